//! Reading a file once, past the page cache. Data that is kept elsewhere must not evict other
//! pages, and filling the cache is the part of a cold load that stalls a machine.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::{Error, Result};

use crate::aligned_buffer::AlignedBuffer;
use crate::regular_file::check_regular_file;

/// Alignment of file offsets and buffers in bytes. Lengths are rounded up to it. Covers devices
/// with sectors of 512 bytes and of 4 KiB. A device with larger sectors refuses direct reads and
/// writes.
pub const DIRECT_ALIGNMENT: usize = 4096;

/// A file read with O_DIRECT. If its file system refuses that, it is read through the page cache
/// and dropped from the cache after each read.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    path: PathBuf,
    bytes: u64,
    direct: bool,
    refusal: Option<String>,
}

impl DirectFile {
    /// Opens `path` for reading past the page cache, if the file system can do that.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_direct(path: &Path) -> Result<DirectFile> {
        DirectFile::open(path, true)
    }

    /// Opens `path` for reading, with O_DIRECT if `direct` is true and the file system can do that.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied` or `Internal` if the file cannot be opened. `DataLoss` for a
    /// named pipe, a socket and a device.
    pub fn open(path: &Path, direct: bool) -> Result<DirectFile> {
        let fail = |error: io::Error| Error::io(path, &error);
        // The open of a named pipe would wait for its writer.
        std::fs::metadata(path).and_then(|meta| check_regular_file(&meta)).map_err(fail)?;
        let open = |flags| OpenOptions::new().read(true).custom_flags(flags).open(path);
        let (file, refusal) = match open(if direct { libc::O_DIRECT } else { 0 }) {
            Ok(file) => (file, None),
            Err(error) if direct && is_direct_refusal(&error) => {
                (open(0).map_err(fail)?, Some(refusal(path, &error)))
            }
            Err(error) => return Err(fail(error)),
        };
        let bytes = file.metadata().map_err(fail)?.len();
        Ok(DirectFile {
            file,
            path: path.to_owned(),
            bytes,
            direct: direct && refusal.is_none(),
            refusal,
        })
    }

    /// Returns the length of the file when it was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns true if reads bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Returns the reason why direct reads were refused.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Reads `bytes` at `offset` to the start of `buffer`. Buffer and `offset` must start at a
    /// multiple of [`DIRECT_ALIGNMENT`]. Whole blocks are read, so the buffer must have room for
    /// `bytes` rounded up to that multiple.
    ///
    /// # Errors
    /// `DataLoss` if the file ends early, `InvalidArgument` for a misaligned buffer or offset,
    /// otherwise the error of the disk.
    pub fn read_exact_at(&mut self, buffer: &mut [u8], offset: u64, bytes: usize) -> Result<()> {
        let block = DIRECT_ALIGNMENT as u64;
        let whole = bytes.next_multiple_of(DIRECT_ALIGNMENT);
        let placed =
            buffer.as_ptr().addr().is_multiple_of(DIRECT_ALIGNMENT) && offset.is_multiple_of(block);
        if !placed || buffer.len() < whole {
            return Err(Error::invalid(format!(
                "a direct read of {bytes} bytes at {offset} is misplaced"
            )));
        }
        let mut done = 0;
        while done < bytes {
            let count = self.read_at(&mut buffer[done..whole], offset + done as u64)?;
            if done + count >= bytes {
                break;
            }
            // A short read is the end of the file or an interruption. A direct read continues from
            // a whole block, so less than a block is not progress. Only the end of a file causes
            // that.
            let next = if self.direct {
                (done + count) / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT
            } else {
                done + count
            };
            if next == done {
                return Err(self.truncated(offset + (done + count) as u64));
            }
            done = next;
        }
        self.drop_cached(offset, whole);
        Ok(())
    }

    /// Reads at most `bytes` bytes at `offset`, which needs no alignment. Reads as many as `buffer`
    /// has room for, and at least one if `bytes` is not 0.
    ///
    /// # Errors
    /// `DataLoss` if the file ends before the bytes that are read. Otherwise the error of the disk.
    pub fn read_block<'a>(
        &mut self,
        buffer: &'a mut AlignedBuffer,
        offset: u64,
        bytes: usize,
    ) -> Result<&'a [u8]> {
        let skipped = (offset % DIRECT_ALIGNMENT as u64) as usize;
        let memory = buffer.as_mut_slice();
        let end = memory.len().min(skipped.saturating_add(bytes));
        self.read_exact_at(memory, offset - skipped as u64, end)?;
        Ok(&memory[skipped..end])
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        loop {
            match self.file.read_at(buffer, offset) {
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if self.direct && is_direct_refusal(&error) => {
                    self.go_buffered(&error)?
                }
                Err(error) => return Err(Error::io(&self.path, &error)),
            }
        }
    }

    /// Continues through the page cache. Some file systems open a file with O_DIRECT and then
    /// refuse to read it.
    fn go_buffered(&mut self, error: &io::Error) -> Result<()> {
        leave_direct(&self.file).map_err(|e| Error::io(&self.path, &e))?;
        self.direct = false;
        self.refusal = Some(refusal(&self.path, error));
        Ok(())
    }

    /// Drops a range of the file from the page cache, if reads went through it.
    fn drop_cached(&self, offset: u64, bytes: usize) {
        if self.direct {
            return;
        }
        let (Ok(offset), Ok(bytes)) = (libc::off_t::try_from(offset), libc::off_t::try_from(bytes))
        else {
            return;
        };
        // SAFETY: takes numbers only, about a descriptor of ours. It is advice: refusal costs cache
        // space only.
        unsafe {
            libc::posix_fadvise(self.file.as_raw_fd(), offset, bytes, libc::POSIX_FADV_DONTNEED)
        };
    }

    fn truncated(&self, end: u64) -> Error {
        Error::data_loss(format!(
            "{}: truncated at byte {end}; restore the file from its source",
            self.path.display()
        ))
    }
}

/// Returns true if an error of an open, a read or a write with O_DIRECT says that the file system
/// has no direct reads or writes.
pub fn is_direct_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// Lets further reads of `file`, opened with O_DIRECT, go through the page cache. It stays the same
/// file, even if another one has taken its path.
///
/// # Errors
/// The system's error.
pub fn leave_direct(file: &File) -> io::Result<()> {
    let descriptor = file.as_raw_fd();
    // SAFETY: takes numbers only, about a descriptor that is open.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags & !libc::O_DIRECT) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn refusal(path: &Path, error: &io::Error) -> String {
    format!("{}: the file system refuses O_DIRECT ({error})", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights, segments and objects of backups are read in this way.
    #[test]
    fn a_truncated_file_has_a_remedy_for_any_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [7; 100]).unwrap();
        let mut file = DirectFile::open_direct(&path).unwrap();
        let mut buffer = AlignedBuffer::new(1);
        let error = file.read_exact_at(buffer.as_mut_slice(), 0, 101).unwrap_err();
        assert_eq!(error.kind(), base::ErrorKind::DataLoss);
        let wanted = "truncated at byte 100; restore the file from its source";
        assert!(error.message().ends_with(wanted), "{error}");
    }

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        for path in [path.as_path(), Path::new("/dev/null")] {
            let error = DirectFile::open_direct(path).unwrap_err();
            assert_eq!(error.kind(), base::ErrorKind::DataLoss, "{error}");
            assert!(error.message().ends_with("not a regular file"), "{error}");
        }
    }

    #[test]
    fn a_file_leaves_direct_reads_and_stays_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"abc").unwrap();
        // A file system without direct reads refuses the open.
        let flags =
            if DirectFile::open_direct(&path).unwrap().is_direct() { libc::O_DIRECT } else { 0 };
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        leave_direct(&file).unwrap();
        let mut bytes = [0; 2];
        file.read_exact_at(&mut bytes, 1).unwrap();
        assert_eq!(&bytes, b"bc");
    }

    #[test]
    fn a_full_disk_is_no_refusal() {
        let refuses = |code| is_direct_refusal(&io::Error::from_raw_os_error(code));
        assert!(refuses(libc::EINVAL) && refuses(libc::EOPNOTSUPP));
        assert!(!refuses(libc::ENOSPC) && !refuses(libc::EIO));
    }
}
