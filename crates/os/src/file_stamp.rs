//! Stamps of files, which show changes without a read.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// Length, modification time and inode of a file, which change with its content. Symbolic links are
/// followed, because a mounted secret of Kubernetes changes by its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    bytes: u64,
    modified: Option<SystemTime>,
    inode: u64,
}

impl FileStamp {
    /// Returns the stamp of `path`, or `None` if it cannot be found.
    #[must_use]
    pub fn of(path: &Path) -> Option<FileStamp> {
        FileStamp::read(path).ok()
    }

    /// Returns the stamp of `path`.
    ///
    /// # Errors
    /// The file system's error.
    pub fn read(path: &Path) -> std::io::Result<FileStamp> {
        let meta = std::fs::metadata(path)?;
        Ok(FileStamp { bytes: meta.len(), modified: meta.modified().ok(), inode: meta.ino() })
    }

    /// Returns the length of the file.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns the modification time, if the file system has one.
    pub(crate) fn modified(self) -> Option<SystemTime> {
        self.modified
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_has_another_stamp() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.pem");
        assert_eq!(FileStamp::of(&path), None);
        std::fs::write(&path, "old").unwrap();
        let old = FileStamp::of(&path);
        assert_eq!(old.map(FileStamp::bytes), Some(3));
        assert_eq!(FileStamp::of(&path), old);
        let next = dir.path().join("next.pem");
        std::fs::write(&next, "new").unwrap();
        std::fs::rename(&next, &path).unwrap();
        assert_ne!(FileStamp::of(&path), old);
    }
}
