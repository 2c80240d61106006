//! Directories of one run, which are removed at its end.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::process::start_watch;

/// Maximum number of tries to remove a directory while threads of this process write to it.
const REMOVALS_MAX: usize = 20;

/// Directories to remove if a signal ends this process.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A directory of one run. It is removed with its content when this value is dropped, or if a
/// hangup, SIGINT or SIGTERM ends the process, which runs no destructors then.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    kept: bool,
}

impl RunFolder {
    /// Takes over the directory `path`, which the caller creates.
    pub fn new(path: PathBuf) -> RunFolder {
        FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
        start_watch();
        RunFolder { path, kept: false }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the directory.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if !self.kept {
            // It does not exist if the run failed before it was created. The result of the run
            // matters more than a file that cannot be removed.
            let _ = std::fs::remove_dir_all(&self.path);
        }
        let mut folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = folders.iter().position(|path| *path == self.path) {
            folders.swap_remove(at);
        }
    }
}

/// Removes the directories of all values that exist.
pub(crate) fn remove_all() {
    for path in FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let is_removed = |_: &usize| {
            std::fs::remove_dir_all(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        (0..REMOVALS_MAX).find(is_removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_removed_with_its_value_unless_it_is_kept() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let folder = RunFolder::new(parent.path().join(name));
            std::fs::create_dir_all(folder.path().join("inner")).unwrap();
            folder
        };
        let (removed, kept) = (make("removed"), make("kept"));
        drop(removed);
        kept.keep();
        let left: Vec<_> = std::fs::read_dir(parent.path()).unwrap().collect();
        assert_eq!(left.len(), 1);
        assert!(parent.path().join("kept/inner").is_dir());
        let ours = |path: &PathBuf| path.starts_with(parent.path());
        assert!(!FOLDERS.lock().unwrap().iter().any(ours));
    }
}
