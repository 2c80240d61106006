//! Search for an engine's library: a path from the caller, a Python environment, or an
//! installation.
//!
//! Reads no environment variable; the command line passes in their values.

use std::path::{Path, PathBuf};

/// Name of a project's virtual environment.
const VENV_DIR: &str = ".venv";
/// Maximum parent directories of a starting directory that are searched for a virtual environment.
const ANCESTORS_MAX: usize = 16;
/// Prefixes of system-wide installations.
const SYSTEM_PREFIXES: [&str; 2] = ["/usr/local", "/usr"];
/// Names of the directory of Python packages; the second is Debian's.
const PACKAGE_DIRS: [&str; 2] = ["site-packages", "dist-packages"];

/// Places to search, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibrarySearch {
    /// The library, or a directory that contains it or is a virtual environment. If given, nothing
    /// else is tried.
    pub explicit: Option<PathBuf>,
    /// The active virtual environment.
    pub virtual_env: Option<PathBuf>,
    /// Prefix that the program is installed under: the parent of its directory. It may be a virtual
    /// environment that is not active.
    pub program_prefix: Option<PathBuf>,
    /// Directories to search, with their parents, for a `.venv`.
    pub start_dirs: Vec<PathBuf>,
    /// Prefixes of the system's own installations.
    pub system_prefixes: Vec<PathBuf>,
}

impl LibrarySearch {
    /// Returns the usual search: `explicit`, then `virtual_env`, the program's own prefix, a
    /// `.venv` in or above the current directory and the program's own, and the system's Python
    /// packages.
    pub fn around_process(
        explicit: Option<PathBuf>,
        virtual_env: Option<PathBuf>,
    ) -> LibrarySearch {
        let program =
            std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned));
        let prefix = program.as_deref().and_then(Path::parent).map(Path::to_owned);
        let start_dirs = std::env::current_dir().ok().into_iter().chain(program).collect();
        let system_prefixes: Vec<PathBuf> = SYSTEM_PREFIXES.map(PathBuf::from).to_vec();
        // A project's environment comes before the system's packages, even for a program in
        // /usr/local/bin.
        let program_prefix = prefix.filter(|prefix| !system_prefixes.contains(prefix));
        LibrarySearch { explicit, virtual_env, program_prefix, start_dirs, system_prefixes }
    }

    /// Lists the environments to look into if nothing was named, whether they exist or not.
    pub fn environments(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let above = self.start_dirs.iter().flat_map(|dir| dir.ancestors().take(ANCESTORS_MAX));
        let named = self.virtual_env.iter().chain(&self.program_prefix).cloned();
        named.chain(above.map(|dir| dir.join(VENV_DIR))).chain(self.system_prefixes.iter().cloned())
    }

    /// Lists the directories of Python packages in [`LibrarySearch::environments`] that exist.
    pub fn package_dirs(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.environments().flat_map(|environment| package_dirs(&environment))
    }

    /// Names the places that [`LibrarySearch::environments`] stands for, for an error message.
    pub fn places(&self) -> Vec<String> {
        let mut places = Vec::new();
        match &self.virtual_env {
            Some(active) => places.push(format!("{} (VIRTUAL_ENV)", active.display())),
            None => places.push("VIRTUAL_ENV (not set)".to_owned()),
        }
        places.extend(
            self.program_prefix
                .iter()
                .map(|prefix| format!("{} (the program's)", prefix.display())),
        );
        places.extend(
            self.start_dirs.iter().map(|dir| format!("{VENV_DIR} in or above {}", dir.display())),
        );
        let system = |prefix: &PathBuf| {
            format!("{}/lib/python3*/{{{}}}", prefix.display(), PACKAGE_DIRS.join(","))
        };
        places.extend(self.system_prefixes.iter().map(system));
        places
    }
}

/// Lists the directories of Python packages under `prefix`, those of the newest Python first.
pub fn package_dirs(prefix: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(prefix.join("lib")).into_iter().flatten();
    let mut pythons: Vec<(Vec<u32>, PathBuf)> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter_map(|path| Some((python_version(path.file_name()?.to_str()?)?, path)))
        .collect();
    pythons.sort();
    let packages = |(_, python): &(Vec<u32>, PathBuf)| PACKAGE_DIRS.map(|name| python.join(name));
    pythons.iter().rev().flat_map(packages).filter(|dir| dir.is_dir()).collect()
}

/// Parses the numbers of a directory such as `python3.12`; `None` for another name.
fn python_version(name: &str) -> Option<Vec<u32>> {
    let version = name.strip_prefix("python").filter(|version| version.starts_with('3'))?;
    version.split('.').map(|number| number.trim_end_matches('t').parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search() -> LibrarySearch {
        LibrarySearch {
            virtual_env: Some("/active".into()),
            program_prefix: Some("/opt/tool".into()),
            start_dirs: vec!["/one/two".into(), "/three".into()],
            system_prefixes: vec!["/usr".into()],
            ..LibrarySearch::default()
        }
    }

    #[test]
    fn the_active_environment_comes_before_those_above() {
        let expected = [
            "/active",
            "/opt/tool",
            "/one/two/.venv",
            "/one/.venv",
            "/.venv",
            "/three/.venv",
            "/.venv",
            "/usr",
        ];
        assert!(search().environments().eq(expected.map(PathBuf::from)));
    }

    #[test]
    fn an_error_names_the_searched_paths() {
        let places = search().places().join(", ");
        for place in [
            "/active (VIRTUAL_ENV)",
            "/opt/tool",
            ".venv in or above /one/two",
            "/usr/lib/python3*/",
        ] {
            assert!(places.contains(place), "{place} is not in {places}");
        }
    }

    #[test]
    fn packages_of_the_newest_python_come_first() {
        let prefix = tempfile::tempdir().unwrap();
        let names = [
            "python3.9/site-packages",
            "python3.12/dist-packages",
            "python3/dist-packages",
            "python2/site-packages",
        ];
        for name in names {
            std::fs::create_dir_all(prefix.path().join("lib").join(name)).unwrap();
        }
        let found = package_dirs(prefix.path());
        let expected =
            ["python3.12/dist-packages", "python3.9/site-packages", "python3/dist-packages"];
        assert_eq!(found, expected.map(|name| prefix.path().join("lib").join(name)));
    }
}
