//! Traits of media, files and readers.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};

use crate::page::PAGE_BYTES;

/// Technology of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MediumKind {
    /// Slots of the pool. They vanish with the process unless there is a directory.
    Dram,
    /// Persistent memory, mapped with MAP_SYNC.
    Dax,
    /// Files read past the page cache through io_uring.
    Nvme,
    /// Files mapped through the page cache: the reference system's way, kept for comparison.
    Mmap,
}

/// Media whose readers read each other's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaderGroup {
    /// Media whose files are read through io_uring.
    IoUring,
    /// Media whose files are read with ordinary calls.
    Calls,
    /// Media whose files are mapped memory.
    InPlace,
}

/// A flat space of named files. Names are one path component of `[a-z0-9._-]`.
pub trait Medium: Send + Sync + Debug {
    /// Returns the technology of the medium.
    fn kind(&self) -> MediumKind;

    /// Creates an empty file.
    ///
    /// # Errors
    /// `AlreadyExists` if there is one of that name, otherwise the medium's error.
    fn create(&self, name: &str) -> Result<Box<dyn Writer>>;

    /// Opens an existing file for further writes: a log, a manifest.
    ///
    /// # Errors
    /// `NotFound`, otherwise the medium's error.
    fn reopen(&self, name: &str) -> Result<Box<dyn Writer>>;

    /// Opens an existing file for reading. Later writes need not become visible.
    ///
    /// # Errors
    /// `NotFound`, `ResourceExhausted` if there is no room for a file that must be held in memory,
    /// otherwise the medium's error.
    fn open(&self, name: &str) -> Result<Arc<dyn Sealed>>;

    /// Reads a whole small file into ordinary memory: a log, a manifest.
    ///
    /// # Errors
    /// As [`Medium::open`], and `ResourceExhausted` for more than [`LOAD_BYTES_MAX`].
    fn load(&self, name: &str) -> Result<Vec<u8>> {
        let file = self.open(name)?;
        let bytes = loadable(name, file.bytes())?;
        let mut all = vec![0; bytes];
        file.read_at(0, &mut all)?;
        Ok(all)
    }

    /// Loads a file as [`Medium::load`] does. Lost pages become zeros and are listed, so that the
    /// caller can keep the others.
    ///
    /// # Errors
    /// As [`Medium::load`], except for lost pages.
    fn salvage(&self, name: &str) -> Result<Salvaged> {
        let file = self.open(name)?;
        let bytes = loadable(name, file.bytes())?;
        Salvaged::read(bytes, |offset, buffer| file.read_at(offset, buffer))
    }

    /// Removes a file. Open handles can still read it.
    ///
    /// # Errors
    /// `NotFound`, otherwise the medium's error.
    fn remove(&self, name: &str) -> Result<()>;

    /// Lists names and lengths in bytes of all files, sorted by name.
    ///
    /// # Errors
    /// The medium's error.
    fn list(&self) -> Result<Vec<(String, u64)>>;

    /// Makes creations and removals so far durable.
    ///
    /// # Errors
    /// The medium's error. Afterwards they may or may not be durable.
    fn persist_names(&self) -> Result<()>;

    /// Returns the free space of the file system below, or `None` if the medium has no limit of its
    /// own.
    ///
    /// # Errors
    /// The medium's error.
    fn space(&self) -> Result<Option<Space>> {
        Ok(None)
    }

    /// Makes a reader for one thread.
    ///
    /// # Errors
    /// `Unimplemented` with the reason if the system refuses a needed call.
    fn reader(&self, options: ReaderOptions) -> Result<Box<dyn Reader>>;

    /// Returns the group of the readers. One reader of a group can take the place of readers of all
    /// media of the group. `None` if readers read the files of their own medium only.
    fn reader_group(&self) -> Option<ReaderGroup> {
        None
    }
}

/// Free space of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that can still be written.
    pub free: u64,
    /// Bytes of the whole file system.
    pub total: u64,
    /// Files that can still be created, or `None` if their number has no limit.
    pub files_free: Option<u64>,
}

/// Readable contents of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// All bytes of the file, with zeros in unreadable pages.
    pub bytes: Vec<u8>,
    /// Numbers of the unreadable pages, ascending.
    pub lost: Vec<u64>,
}

impl Salvaged {
    /// Reads `bytes` bytes with `read`. If `read` returns `DataLoss`, part of the range is lost.
    pub(crate) fn read(
        bytes: usize,
        read: impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Salvaged> {
        let mut found = Salvaged { bytes: vec![0; bytes], lost: Vec::new() };
        // Returns true if the range could be read. Bytes of a failed read are not trusted.
        let attempt = |at: usize, part: &mut [u8]| match read(at as u64, part) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::DataLoss => {
                part.fill(0);
                Ok(false)
            }
            Err(error) => Err(error),
        };
        for (index, stretch) in found.bytes.chunks_mut(SALVAGE_BYTES).enumerate() {
            let start = index * SALVAGE_BYTES;
            if attempt(start, stretch)? {
                continue;
            }
            for (index, page) in stretch.chunks_mut(PAGE_BYTES).enumerate() {
                let at = start + index * PAGE_BYTES;
                if !attempt(at, page)? {
                    found.lost.push((at / PAGE_BYTES) as u64);
                }
            }
        }
        Ok(found)
    }

    /// Returns true if a page of this range could not be read.
    pub fn lacks(&self, range: Range<u64>) -> bool {
        let page = PAGE_BYTES as u64;
        !range.is_empty()
            && self
                .lost
                .iter()
                .any(|&lost| lost * page < range.end && range.start < (lost + 1) * page)
    }
}

/// Bytes that [`Medium::salvage`] reads at once while they are readable. A whole number of pages.
const SALVAGE_BYTES: usize = 1 << 20;

/// Longest file that [`Medium::load`] reads. It is more than any log or list has, so that a damaged
/// length cannot use up the memory.
pub const LOAD_BYTES_MAX: u64 = 1 << 30;

/// Checks a length that is to be loaded.
///
/// # Errors
/// `ResourceExhausted`.
pub(crate) fn loadable(name: &str, bytes: u64) -> Result<usize> {
    usize::try_from(bytes).ok().filter(|_| bytes <= LOAD_BYTES_MAX).ok_or_else(|| {
        Error::exhausted(format!(
            "{name}: {bytes} bytes are more than the {LOAD_BYTES_MAX} that are read at once"
        ))
    })
}

/// A file being written.
pub trait Writer: Send {
    /// Returns the length of the file in bytes.
    fn bytes(&self) -> u64;

    /// Writes at `offset`, which may be up to the end of the file.
    ///
    /// # Errors
    /// `StorageFull` if the medium is full, otherwise its error. The bytes of the range may then be
    /// old, new or mixed.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Writes at the end and returns that offset.
    ///
    /// # Errors
    /// As [`Writer::write_at`].
    fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        let offset = self.bytes();
        self.write_at(offset, bytes)?;
        Ok(offset)
    }

    /// Cuts the file at `bytes`.
    ///
    /// # Errors
    /// The medium's error.
    fn truncate(&mut self, bytes: u64) -> Result<()>;

    /// Makes all writes so far durable, so that they survive a loss of power.
    ///
    /// # Errors
    /// The medium's error. The writes may then be lost, and only writing them again makes them
    /// safe.
    fn persist(&mut self) -> Result<()>;
}

/// A read-only file.
pub trait Sealed: Send + Sync + Debug {
    /// Returns a number that no other open file of this process has.
    fn id(&self) -> u64;

    /// Returns the length of the file in bytes.
    fn bytes(&self) -> u64;

    /// Fills `buffer` from `offset` on the calling thread. It is for opening a segment, not for
    /// queries.
    ///
    /// # Errors
    /// `DataLoss` past the end or if the medium has lost the bytes, otherwise its error.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// Returns the whole file if the processor can load from it directly.
    fn in_place(&self) -> Option<&[u8]> {
        None
    }

    /// Returns the number of pages that the medium has lost since the file was opened. Such a page
    /// is zeros in [`Sealed::in_place`], also if a caller verified it before.
    fn lost_pages(&self) -> u32 {
        0
    }

    /// Returns the descriptor to read it by, if it has one.
    fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        None
    }
}

/// Limits of a [`Reader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderOptions {
    /// Maximum reads in flight.
    pub depth: usize,
    /// Bytes of the largest read, a multiple of 4096.
    pub read_bytes_max: usize,
}

/// One read of whole pages.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// The file, kept open until the read is done.
    pub file: &'a Arc<dyn Sealed>,
    /// Offset in the file, a multiple of 4096.
    pub offset: u64,
    /// Number of bytes, a multiple of 4096 and within the file.
    pub bytes: usize,
    /// Number that the reader returns with the completion.
    pub tag: u64,
}

/// Reader of many pages at once, for one thread. Completions come in any order.
pub trait Reader: Send {
    /// Reads that may be submitted before one must complete.
    fn room(&self) -> usize;

    /// Reads submitted and not yet passed to the caller of [`Reader::complete`].
    fn in_flight(&self) -> usize;

    /// Queues a read. It may start only when [`Reader::complete`] is called.
    ///
    /// # Errors
    /// `ResourceExhausted` if there is no room, `InvalidArgument` for a misplaced read. A read that
    /// fails later reports the failure when it completes.
    fn submit(&mut self, read: Read<'_>) -> Result<()>;

    /// Starts the queued reads, waits until at least `wait` are done, and passes them to `each`
    /// with their tags. Does not wait if `wait` is 0, and waits for all if `wait` is more than are
    /// in flight. It passes at most `wait`, or a quarter of the depth if that is more. So the
    /// caller can submit new reads before the queue runs dry. The others come with the next call.
    /// The bytes are valid only during `each`. Returns the number of reads passed.
    ///
    /// # Errors
    /// The medium's error if the queue itself fails. The reads in flight are then lost.
    fn complete(&mut self, wait: usize, each: &mut dyn FnMut(u64, Result<&[u8]>)) -> Result<usize>;

    /// Closes files of earlier reads that nothing else holds, if no read is in flight. Otherwise a
    /// reader keeps a file open until its next reads are done, and the disk space of a removed file
    /// is not free before that.
    ///
    /// # Errors
    /// As [`Reader::complete`].
    fn close_unused_files(&mut self) -> Result<()> {
        if self.in_flight() > 0 {
            return Ok(());
        }
        self.complete(0, &mut |_, _| {}).map(drop)
    }
}
