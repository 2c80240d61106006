//! NVMe: many files read at once, past the page cache, through io_uring.
//!
//! A mapped file makes every read a page fault. They run one at a time, and the thread waits. Here
//! a thread submits a whole batch with one call and works while the reads are in flight. It gets
//! each one in a registered buffer, and uses it there. Only the reader's own buffers take memory.

mod reader;
mod ring;

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Error, Result};

use crate::buffer::Buffer;
use crate::buffered::BufferedReader;
use crate::directory::{Directory, FileWriter, io_error};
use crate::medium::{
    Medium, MediumKind, Reader, ReaderGroup, ReaderOptions, Salvaged, Sealed, Space, Writer,
};
use crate::names;
use crate::page::PAGE_BYTES;

use reader::UringReader;

/// Bytes read at once by [`Sealed::read_at`].
const BOUNCE_BYTES: usize = 1 << 20;

/// Files of a directory, read with O_DIRECT through io_uring.
#[derive(Debug)]
pub struct UringMedium {
    directory: Directory,
    /// True if reads go one after the other, without io_uring.
    plain: bool,
    /// True once it was logged that reads go through the page cache.
    has_logged_refusal: AtomicBool,
}

impl UringMedium {
    /// Opens the medium in `directory`, which is created if it is missing.
    ///
    /// # Errors
    /// `Unimplemented` with a remedy if the system does not allow io_uring, otherwise the file
    /// system's error.
    pub fn new(directory: PathBuf) -> Result<UringMedium> {
        ring::probe()?;
        Ok(UringMedium {
            directory: Directory::new(directory)?,
            plain: false,
            has_logged_refusal: AtomicBool::new(false),
        })
    }

    /// Opens the same medium with ordinary reads, one after the other. They are slower, and allowed
    /// everywhere.
    ///
    /// # Errors
    /// The file system's error.
    pub fn plain(directory: PathBuf) -> Result<UringMedium> {
        Ok(UringMedium {
            directory: Directory::new(directory)?,
            plain: true,
            has_logged_refusal: AtomicBool::new(false),
        })
    }

    /// Opens a file with O_DIRECT, or without it if the file system refuses. Logs the first
    /// refusal.
    fn open_direct(&self, path: &Path) -> Result<File> {
        let fail = |error: std::io::Error| io_error(path, &error);
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        let refused = match direct {
            Ok(file) => match Self::try_direct(&file)? {
                None => return Ok(file),
                Some(error) => error,
            },
            Err(error) if os::is_direct_refusal(&error) => error,
            Err(error) => return Err(fail(error)),
        };
        if !self.has_logged_refusal.swap(true, Ordering::Relaxed) {
            let reason =
                format!("{}: the file system refuses O_DIRECT ({refused})", path.display());
            tracing::warn!(reason, "index files are read through the page cache");
        }
        File::open(path).map_err(fail)
    }

    /// Tests a direct read, because some file systems open a file with O_DIRECT and refuse to read
    /// it. Returns that refusal. Other failures are left to later reads.
    fn try_direct(file: &File) -> Result<Option<std::io::Error>> {
        let mut buffer = Buffer::new(PAGE_BYTES)?;
        let read = file.read_at(buffer.as_mut_slice(), 0);
        Ok(read.err().filter(os::is_direct_refusal))
    }
}

impl Medium for UringMedium {
    fn kind(&self) -> MediumKind {
        MediumKind::Nvme
    }

    fn create(&self, name: &str) -> Result<Box<dyn Writer>> {
        Ok(Box::new(FileWriter::new(self.directory.create(name)?)?))
    }

    fn reopen(&self, name: &str) -> Result<Box<dyn Writer>> {
        Ok(Box::new(FileWriter::new(self.directory.reopen(name)?)?))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Sealed>> {
        let path = self.directory.file(name)?;
        let file = self.open_direct(&path)?;
        let bytes = file.metadata().map_err(|error| io_error(&path, &error))?.len();
        Ok(Arc::new(UringSealed { id: names::next_id(), file, path, bytes }))
    }

    fn load(&self, name: &str) -> Result<Vec<u8>> {
        self.directory.load(name)
    }

    fn salvage(&self, name: &str) -> Result<Salvaged> {
        self.directory.salvage(name)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.directory.remove(name)
    }

    fn list(&self) -> Result<Vec<(String, u64)>> {
        self.directory.list()
    }

    fn persist_names(&self) -> Result<()> {
        self.directory.persist_names()
    }

    fn space(&self) -> Result<Option<Space>> {
        self.directory.space()
    }

    fn reader(&self, options: ReaderOptions) -> Result<Box<dyn Reader>> {
        if self.plain {
            return Ok(Box::new(BufferedReader::new(options, Box::new(|_| 0))?));
        }
        Ok(Box::new(UringReader::new(options)?))
    }

    fn reader_group(&self) -> Option<ReaderGroup> {
        Some(if self.plain { ReaderGroup::Calls } else { ReaderGroup::IoUring })
    }
}

/// A file open for direct reads.
#[derive(Debug)]
struct UringSealed {
    id: u64,
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Sealed for UringSealed {
    fn id(&self) -> u64 {
        self.id
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads through a buffer of whole pages, which direct reads need.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        names::check_within(self.path.display(), self.bytes, offset, buffer.len())?;
        let page = PAGE_BYTES as u64;
        let mut bounce = Buffer::new((buffer.len() + 2 * PAGE_BYTES).min(BOUNCE_BYTES))?;
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let start = at / page * page;
            let got = match self.file.read_at(bounce.as_mut_slice(), start) {
                Ok(got) => got,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(io_error(&self.path, &error)),
            };
            let skip = (at - start) as usize;
            if got <= skip {
                let path = self.path.display();
                return Err(Error::data_loss(format!(
                    "{path}: ends at byte {}",
                    start + got as u64
                )));
            }
            let count = (got - skip).min(buffer.len() - done);
            buffer[done..done + count].copy_from_slice(&bounce.as_mut_slice()[skip..skip + count]);
            done += count;
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.file.as_raw_fd())
    }
}
