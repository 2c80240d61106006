//! Where an engine's library may be: named by the caller, or in a virtual environment.
//!
//! Reads no environment variable; the command line passes in what it read.

use std::path::{Path, PathBuf};

/// A virtual environment in a project's directory.
const VENV_DIR: &str = ".venv";
/// How far up from a starting directory a virtual environment is looked for.
const ANCESTORS_MAX: usize = 16;

/// Where to look, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibrarySearch {
    /// The library, or a directory that holds it or is a virtual environment. Nothing else is tried when given.
    pub explicit: Option<PathBuf>,
    /// The active virtual environment.
    pub virtual_env: Option<PathBuf>,
    /// Directories in and above which a `.venv` may lie.
    pub start_dirs: Vec<PathBuf>,
}

impl LibrarySearch {
    /// The usual search: `explicit`, then `virtual_env`, then a `.venv` in or above the current directory and the
    /// program's own.
    pub fn around_process(explicit: Option<PathBuf>, virtual_env: Option<PathBuf>) -> LibrarySearch {
        let program = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned));
        let start_dirs = std::env::current_dir().ok().into_iter().chain(program).collect();
        LibrarySearch { explicit, virtual_env, start_dirs }
    }

    /// The virtual environments to look into where nothing was named, whether they are there or not.
    pub fn environments(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let above = self.start_dirs.iter().flat_map(|dir| dir.ancestors().take(ANCESTORS_MAX));
        self.virtual_env.iter().cloned().chain(above.map(|dir| dir.join(VENV_DIR)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_active_environment_comes_before_those_above() {
        let search = LibrarySearch {
            explicit: None,
            virtual_env: Some("/active".into()),
            start_dirs: vec!["/one/two".into(), "/three".into()],
        };
        let expected = ["/active", "/one/two/.venv", "/one/.venv", "/.venv", "/three/.venv", "/.venv"];
        assert!(search.environments().eq(expected.map(PathBuf::from)));
    }
}
