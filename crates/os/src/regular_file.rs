//! Files read as a whole.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A regular file or a directory that is open. Checks and the read concern the opened file, even if
/// another file has taken its path.
#[derive(Debug)]
pub struct RegularFile {
    file: File,
    bytes: u64,
}

impl RegularFile {
    /// Opens `path`. Links are followed.
    ///
    /// # Errors
    /// `InvalidData` for a named pipe, a socket and a device. Also the errors of the file system.
    pub fn open(path: &Path) -> io::Result<RegularFile> {
        check_regular_file(&std::fs::metadata(path)?)?;
        let file = open(path)?;
        let meta = file.metadata()?;
        check_regular_file(&meta)?;
        Ok(RegularFile { file, bytes: meta.len() })
    }

    /// Returns the length of the file when it was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the path of the file as [`opened_path`] does.
    ///
    /// # Errors
    /// As [`opened_path`].
    pub fn real_path(&self) -> io::Result<PathBuf> {
        opened_path(&self.file)
    }

    /// Reads the file, which may have at most `bytes_max` bytes. Call it once.
    ///
    /// # Errors
    /// `InvalidData` for a longer file. `OutOfMemory` if its bytes cannot be allocated. Otherwise
    /// the error of the file system, for example for a directory.
    pub fn read(&self, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // A vector that grows would copy a large file, and could have twice its length.
        if let Ok(length) = usize::try_from(self.bytes.min(bytes_max)) {
            bytes.try_reserve_exact(length)?;
        }
        (&self.file).take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            let message = format!("larger than {bytes_max} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(bytes)
    }
}

/// Reads a regular file of at most `bytes_max` bytes.
///
/// # Errors
/// The errors of [`RegularFile::open`] and [`RegularFile::read`].
pub fn read_regular_file(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    RegularFile::open(path)?.read(bytes_max)
}

/// Returns the path of an opened file, without links. If its name was removed since, the path ends
/// with " (deleted)".
///
/// # Errors
/// The errors of `/proc`.
pub fn opened_path(file: &File) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Opens a file. If it was replaced after its check, the open still does not wait for the writer of
/// a named pipe.
fn open(path: &Path) -> io::Result<File> {
    match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        // A file server on this machine holds a lease on the file. The kernel limits this wait, see
        // `/proc/sys/fs/lease-break-time`. A named pipe does not return this error.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => File::open(path),
        opened => opened,
    }
}

/// Refuses a file that is neither a regular file nor a directory. The open of a named pipe waits
/// for its writer without a limit, and a device can have bytes without end.
///
/// # Errors
/// `InvalidData` for a named pipe, a socket and a device.
pub fn check_regular_file(meta: &Metadata) -> io::Result<()> {
    if meta.is_file() || meta.is_dir() {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regular_file_is_read_within_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "four").unwrap();
        let bytes = read_regular_file(&path, 4).unwrap();
        assert_eq!(bytes, b"four");
        assert_eq!(bytes.capacity(), 4, "the vector did not grow");
        let longer = read_regular_file(&path, 3).unwrap_err();
        assert_eq!(longer.to_string(), "larger than 3 bytes");
    }

    #[test]
    fn an_opened_file_stays_the_same_under_another_link() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["own", "other"] {
            std::fs::write(root.join(name), name).unwrap();
        }
        let link = root.join("link");
        std::os::unix::fs::symlink("own", &link).unwrap();
        let file = RegularFile::open(&link).unwrap();
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("other", &link).unwrap();
        assert_eq!(file.real_path().unwrap(), root.join("own"));
        assert_eq!((file.bytes(), file.read(4).unwrap()), (3, b"own".to_vec()));
        let other = RegularFile::open(&link).unwrap();
        assert_eq!(other.real_path().unwrap(), root.join("other"));
    }

    #[test]
    fn other_kinds_of_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let device = read_regular_file(Path::new("/dev/null"), 4).unwrap_err();
        assert_eq!(device.to_string(), "not a regular file");
        let path = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let socket = read_regular_file(&path, 4).unwrap_err();
        assert_eq!(socket.kind(), io::ErrorKind::InvalidData);
        let directory = read_regular_file(dir.path(), 4).unwrap_err();
        assert_eq!(directory.kind(), io::ErrorKind::IsADirectory);
        let missing = read_regular_file(&dir.path().join("none"), 4).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
