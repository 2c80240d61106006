//! Files of a version directory, and their fingerprint.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::{Error, Result};

use super::calls::CallProgress;

/// Maximum number of directory levels inside a version directory.
const DEPTH_MAX: usize = 4;
/// Maximum files of a version directory. PyTorch exports a large model with one file per tensor.
const FILES_MAX: usize = 65_536;

/// Hash of the names, lengths, modification times, modes and inodes of a set of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint([u8; 16]);

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A file of a version directory, with the values that show a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ScannedFile {
    /// Path relative to the version directory.
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    modified: (i64, i64),
    mode: u32,
    inode: u64,
}

/// Lists all files below `dir`, in order of path. `None` if one vanished after it was listed. Each
/// entry is a step of `progress`, because a network file system may need seconds for a thousand
/// files.
///
/// # Errors
/// If a file or directory cannot be read, or there are too many.
pub(super) fn list(dir: &Path, progress: &CallProgress) -> Result<Option<Vec<ScannedFile>>> {
    let mut files = Vec::new();
    if !walk(dir, Path::new(""), 0, &mut files, progress)? {
        return Ok(None);
    }
    files.sort();
    Ok(Some(files))
}

/// Adds the files of `dir/below`. Returns false if an entry vanished.
fn walk(
    dir: &Path,
    below: &Path,
    depth: usize,
    files: &mut Vec<ScannedFile>,
    progress: &CallProgress,
) -> Result<bool> {
    let here = dir.join(below);
    let entries = match std::fs::read_dir(&here) {
        Err(error) if error.kind() == ErrorKind::NotFound && depth > 0 => return Ok(false),
        entries => entries.map_err(|e| Error::io(&here, &e))?,
    };
    for entry in entries {
        let entry = entry.map_err(|e| Error::io(&here, &e))?;
        progress.step();
        let path = below.join(entry.file_name());
        let full = dir.join(&path);
        let meta = match std::fs::metadata(&full) {
            Err(error) if error.kind() == ErrorKind::NotFound && super::is_missing(&full) => {
                return Ok(false);
            }
            meta => meta.map_err(|e| Error::io(&full, &e))?,
        };
        if meta.is_dir() {
            if depth == DEPTH_MAX {
                return Err(Error::invalid(format!(
                    "{}: directories are nested deeper than {DEPTH_MAX} levels; move the files up",
                    full.display()
                )));
            }
            if !walk(dir, &path, depth + 1, files, progress)? {
                return Ok(false);
            }
        } else {
            let modified = (meta.mtime(), meta.mtime_nsec());
            files.push(ScannedFile {
                path,
                bytes: meta.len(),
                modified,
                mode: meta.mode(),
                inode: meta.ino(),
            });
        }
        if files.len() > FILES_MAX {
            return Err(Error::invalid(format!(
                "{}: more than {FILES_MAX} files; keep only those of the model",
                dir.display()
            )));
        }
    }
    Ok(true)
}

/// Returns the fingerprint of the `files` that `chosen` selects.
pub(crate) fn fingerprint(files: &[ScannedFile], chosen: impl Fn(&Path) -> bool) -> Fingerprint {
    use std::os::unix::ffi::OsStrExt;
    let mut hasher = blake3::Hasher::new();
    for file in files.iter().filter(|file| chosen(&file.path)) {
        hasher.update(file.path.as_os_str().as_bytes());
        hasher.update(&[0]);
        for number in [
            file.bytes,
            file.modified.0 as u64,
            file.modified.1 as u64,
            file.inode,
            file.mode.into(),
        ] {
            hasher.update(&number.to_le_bytes());
        }
    }
    let mut short = [0; 16];
    short.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    Fingerprint(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_is_a_step() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("variables")).unwrap();
        for name in ["saved_model.pb", "variables/a", "variables/b"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        let progress = CallProgress::default();
        assert_eq!(list(dir.path(), &progress).unwrap().unwrap().len(), 3);
        assert_eq!(progress.steps(), 4);
    }
}
