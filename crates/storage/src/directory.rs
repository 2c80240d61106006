//! A directory as a flat space of files: the code that all media on a file system share.
//!
//! Writes go through the page cache, because logs of small frames need it. They do not fill it,
//! because written bytes go to the disk every few MiB and leave the cache. Bytes that a failed
//! fsync may have lost are never trusted again. The writer refuses everything afterwards.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base::{Error, Result};
use os::disk::DiskSpace;
use os::private;

use crate::medium::{Salvaged, Space, Writer, loadable};
use crate::names;
use crate::page::PAGE_BYTES;

/// Bytes to write before they are sent to the disk. Earlier bytes then leave the page cache.
const WRITE_BACK_BYTES: u64 = 4 << 20;

/// A file opened for writing, and its path.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

/// An existing directory.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Makes the directory if it is missing.
    pub(crate) fn new(path: PathBuf) -> Result<Directory> {
        private::create_dir_all(&path).map_err(|error| Error::io(&path, &error))?;
        Ok(Directory { path })
    }

    /// Returns the path of a file after checking its name.
    pub(crate) fn file(&self, name: &str) -> Result<PathBuf> {
        names::check(name)?;
        Ok(self.path.join(name))
    }

    pub(crate) fn create(&self, name: &str) -> Result<OpenFile> {
        let path = self.file(name)?;
        match private::options().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => Ok(OpenFile { file, path }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(names::name_exists(name))
            }
            Err(error) => Err(io_error(&path, &error)),
        }
    }

    pub(crate) fn reopen(&self, name: &str) -> Result<OpenFile> {
        let path = self.file(name)?;
        let file = File::options().read(true).write(true).open(&path);
        Ok(OpenFile { file: file.map_err(|error| io_error(&path, &error))?, path })
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let path = self.file(name)?;
        std::fs::remove_file(&path).map_err(|error| io_error(&path, &error))
    }

    /// Lists names and lengths, sorted by name. Files with invalid names are foreign and left out.
    pub(crate) fn list(&self) -> Result<Vec<(String, u64)>> {
        let fail = |error: io::Error| io_error(&self.path, &error);
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            match entry.metadata() {
                Ok(metadata) if metadata.is_file() && names::check(&name).is_ok() => {
                    files.push((name, metadata.len()));
                }
                Ok(_) => {}
                // Removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(fail(error)),
            }
        }
        files.sort();
        Ok(files)
    }

    /// Makes creations and removals durable with an fsync of the directory.
    pub(crate) fn persist_names(&self) -> Result<()> {
        let synced = File::open(&self.path).and_then(|directory| directory.sync_all());
        synced.map_err(|error| {
            io_error(&self.path, &error).context("creations and removals may be lost")
        })
    }

    /// Returns the free space of the directory's file system for unprivileged users.
    pub(crate) fn space(&self) -> Result<Option<Space>> {
        let space = os::disk::space(&self.path).map_err(|error| io_error(&self.path, &error))?;
        let DiskSpace { free, total, files_free } = space;
        Ok(Some(Space { free, total, files_free }))
    }

    /// Reads the whole file through the page cache and then drops it there.
    pub(crate) fn load(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.file(name)?;
        let fail = |error: io::Error| io_error(&path, &error);
        let file = File::open(&path).map_err(fail)?;
        let mut bytes = vec![0; loadable(name, file.metadata().map_err(fail)?.len())?];
        file.read_exact_at(&mut bytes, 0).map_err(fail)?;
        drop_cached(&file, 0, 0);
        Ok(bytes)
    }

    /// Loads a file as [`Directory::load`] does. Pages that the disk cannot read become zeros.
    pub(crate) fn salvage(&self, name: &str) -> Result<Salvaged> {
        let path = self.file(name)?;
        let fail = |error: io::Error| io_error(&path, &error);
        let file = File::open(&path).map_err(fail)?;
        let bytes = loadable(name, file.metadata().map_err(fail)?.len())?;
        let found = Salvaged::read(bytes, |offset, buffer| {
            file.read_exact_at(buffer, offset).map_err(fail)
        })?;
        drop_cached(&file, 0, 0);
        Ok(found)
    }
}

/// Converts an I/O error. Bytes that the disk lost are `DataLoss`. A full disk and a limit of file
/// sizes are `StorageFull`.
pub(crate) fn io_error(path: &Path, error: &io::Error) -> Error {
    let context = path.display();
    match error.raw_os_error() {
        Some(
            code @ (libc::EIO
            | libc::EUCLEAN
            | libc::EBADMSG
            | libc::EILSEQ
            | libc::ENODATA
            | libc::EREMOTEIO),
        ) => Error::data_loss(format!("{context}: the disk failed: {error}"))
            .with_source(io::Error::from_raw_os_error(code)),
        Some(code @ (libc::EDQUOT | libc::ENOSPC)) => {
            Error::storage_full(format!("{context}: {error}; free space, or use another disk"))
                .with_source(io::Error::from_raw_os_error(code))
        }
        Some(code @ libc::EFBIG) => {
            let remedy = "raise ulimit -f or LimitFSIZE=";
            Error::storage_full(format!("{context}: {error}; {remedy}"))
                .with_source(io::Error::from_raw_os_error(code))
        }
        _ => Error::io(path, error),
    }
}

/// Advises the kernel to drop cached pages of a range. 0 bytes mean the rest of the file. If the
/// kernel refuses, only cache space is lost.
pub(crate) fn drop_cached(file: &File, offset: u64, bytes: u64) {
    let (Ok(offset), Ok(bytes)) = (libc::off_t::try_from(offset), libc::off_t::try_from(bytes))
    else {
        return;
    };
    // SAFETY: takes numbers only, about a descriptor of ours.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, bytes, libc::POSIX_FADV_DONTNEED) };
}

/// Writer of one file of a directory.
#[derive(Debug)]
pub(crate) struct FileWriter {
    file: File,
    path: PathBuf,
    bytes: u64,
    /// End of the bytes sent to the disk.
    sent: u64,
    /// End of the bytes that were also dropped from the page cache.
    dropped: u64,
    failed: Option<Error>,
}

impl FileWriter {
    pub(crate) fn new(opened: OpenFile) -> Result<FileWriter> {
        let OpenFile { file, path } = opened;
        let bytes = file.metadata().map_err(|error| io_error(&path, &error))?.len();
        Ok(FileWriter { file, path, bytes, sent: bytes, dropped: bytes, failed: None })
    }

    fn check_usable(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(error) => Err(refusal(&self.path.display().to_string(), error)),
        }
    }

    /// Keeps the page cache small while a long file is written. Starts sending the last part to the
    /// disk, waits until the part before it is sent, and drops that one from the cache.
    ///
    /// Waiting consumes a disk error, and a later fsync would not report it any more. So such an
    /// error ends the writer like one of fsync.
    fn write_back(&mut self) -> Result<()> {
        let end = self.bytes;
        if end < self.sent + WRITE_BACK_BYTES {
            return Ok(());
        }
        let waited = self.sent - self.dropped;
        let started = end - self.sent;
        let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        self.send(self.sent, started, libc::SYNC_FILE_RANGE_WRITE)?;
        self.send(self.dropped, waited, all)?;
        if waited > 0 {
            drop_cached(&self.file, self.dropped, waited);
        }
        (self.dropped, self.sent) = (self.sent, end);
        Ok(())
    }

    /// Calls sync_file_range for a range of the file.
    fn send(&mut self, offset: u64, bytes: u64, flags: u32) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: takes numbers only, about a descriptor of ours.
        let sent = unsafe {
            libc::sync_file_range(self.file.as_raw_fd(), offset as i64, bytes as i64, flags)
        };
        let error = io::Error::last_os_error();
        // File systems without this call lose nothing.
        let unknown =
            matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::ESPIPE));
        if sent == 0 || unknown { Ok(()) } else { Err(self.fail(&error)) }
    }

    /// Ends the writer.
    fn fail(&mut self, error: &io::Error) -> Error {
        let error = io_error(&self.path, error);
        self.failed = Some(error.clone());
        error
    }
}

/// Returns the error of every writer after a failed persist.
pub(crate) fn refusal(what: &str, error: &Error) -> Error {
    Error::precondition(format!(
        "{what}: nothing more is written after a failure to make it durable ({error}); write it again under \
         another name, or open it again to read the durable part"
    ))
}

/// Checks that a write starts in a file or at its end.
pub(crate) fn check_write(what: &str, length: u64, offset: u64, bytes: usize) -> Result<()> {
    if offset > length || offset.checked_add(bytes as u64).is_none() {
        return Err(Error::invalid(format!(
            "{what}: a write at {offset} would leave a gap after its end at {length}"
        )));
    }
    Ok(())
}

impl Writer for FileWriter {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_usable()?;
        check_write(&self.path.display().to_string(), self.bytes, offset, bytes.len())?;
        if let Err(error) = self.file.write_all_at(bytes, offset) {
            // Bytes written beyond the end are not part of the file. If they stay, the next write
            // covers them, and readers check them.
            let _ = self.file.set_len(self.bytes);
            return Err(io_error(&self.path, &error));
        }
        self.bytes = self.bytes.max(offset + bytes.len() as u64);
        self.write_back()
    }

    fn truncate(&mut self, bytes: u64) -> Result<()> {
        self.check_usable()?;
        if bytes > self.bytes {
            let length = self.bytes;
            return Err(Error::invalid(format!("{length} bytes cannot be cut at {bytes}")));
        }
        self.file.set_len(bytes).map_err(|error| io_error(&self.path, &error))?;
        self.bytes = bytes;
        self.sent = self.sent.min(bytes);
        self.dropped = self.dropped.min(bytes);
        Ok(())
    }

    fn persist(&mut self) -> Result<()> {
        self.check_usable()?;
        if let Err(error) = self.file.sync_data() {
            // The kernel may have marked the lost pages clean, so another fsync would report
            // success.
            return Err(self.fail(&error));
        }
        // A last page that is not full stays cached, because the next append would read it back.
        let whole = self.bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        if whole > self.dropped {
            drop_cached(&self.file, self.dropped, whole - self.dropped);
        }
        (self.sent, self.dropped) = (self.bytes, whole);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_file_sizes_is_named() {
        let error = io_error(Path::new("log"), &io::Error::from_raw_os_error(libc::EFBIG));
        assert_eq!(error.kind(), base::ErrorKind::StorageFull);
        assert!(error.message().contains("LimitFSIZE="), "{error}");
    }
}
