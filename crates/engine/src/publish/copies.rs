//! Copies of directories of a version: files that a model needs beside its graph and weights, and
//! requests for warming up.

use std::fs::File;
use std::path::Path;

use base::{Error, Result};

/// Directories of a version with requests for warming up: those of SavedModels, which may have
/// other files too, and those of the Open Inference Protocol.
const REQUEST_DIRS: [&str; 2] = ["assets.extra", "warmup"];
/// Maximum depth of directories inside the directory of a version.
pub const DEPTH_MAX: usize = 8;

/// Copies the recorded requests of the version in the directory `source` to the directory `to`.
/// Does nothing if `source` is a file or has none.
///
/// # Errors
/// As [`copy_directory`].
pub fn copy_requests(source: &Path, to: &Path) -> Result<()> {
    REQUEST_DIRS.into_iter().try_for_each(|name| copy_directory(&source.join(name), &to.join(name)))
}

/// Copies the files below `from` to `to`, which is made, and waits until they are durable. Does
/// nothing if there is no such directory.
///
/// # Errors
/// I/O errors, also for a named pipe, a socket and a device; `InvalidArgument` for directories
/// nested too deep.
pub fn copy_directory(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() { copy_level(from, to, 0) } else { Ok(()) }
}

/// Copies a directory that is `depth` levels below the first one, and syncs the copies.
fn copy_level(from: &Path, to: &Path, depth: usize) -> Result<()> {
    if depth == DEPTH_MAX {
        let shown = from.display();
        return Err(Error::invalid(format!(
            "{shown}: directories are nested deeper than {DEPTH_MAX} levels; move the files up"
        )));
    }
    std::fs::create_dir(to).map_err(|e| Error::io(to, &e))?;
    for entry in std::fs::read_dir(from).map_err(|e| Error::io(from, &e))? {
        let entry = entry.map_err(|e| Error::io(from, &e))?;
        let source = entry.path();
        let target = to.join(entry.file_name());
        // Follows links, as TensorFlow does.
        let meta = std::fs::metadata(&source).map_err(|e| Error::io(&source, &e))?;
        if meta.is_dir() {
            copy_level(&source, &target, depth + 1)?;
        } else {
            os::check_regular_file(&meta).map_err(|e| Error::io(&source, &e))?;
            std::fs::copy(&source, &target).map_err(|e| Error::io(&source, &e))?;
            sync(&target)?;
        }
    }
    sync(to)
}

fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).map_err(|e| Error::io(path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_requests_are_copied() {
        let dir = tempfile::tempdir().unwrap();
        let (source, to) = (dir.path().join("source"), dir.path().join("to"));
        std::fs::create_dir_all(source.join("warmup/more")).unwrap();
        std::fs::create_dir_all(source.join("other")).unwrap();
        std::fs::create_dir(&to).unwrap();
        std::fs::write(source.join("warmup/more/1.json"), "{}").unwrap();
        copy_requests(&source, &to).unwrap();
        assert_eq!(std::fs::read_to_string(to.join("warmup/more/1.json")).unwrap(), "{}");
        assert_eq!(std::fs::read_dir(&to).unwrap().count(), 1);
        copy_requests(&source.join("warmup/more/1.json"), &to).unwrap();
    }

    /// The open of a named pipe would wait for its writer.
    #[test]
    fn other_kinds_of_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        std::fs::create_dir(&from).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
        let error = copy_directory(&from, &dir.path().join("to")).unwrap_err();
        assert!(error.message().contains("socket: not a regular file"), "{error}");
    }

    #[test]
    fn directories_nested_too_deep_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let deep = (0..=DEPTH_MAX).fold(dir.path().join("from"), |dir, _| dir.join("d"));
        std::fs::create_dir_all(deep).unwrap();
        let error = copy_directory(&dir.path().join("from"), &dir.path().join("to")).unwrap_err();
        assert!(error.message().contains("nested deeper than"), "{error}");
    }
}
