//! What every medium can do.

use std::fmt::{self, Debug, Display};
use std::ops::Range;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};

use crate::page::PAGE_BYTES;

/// What a medium is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MediumKind {
    /// Slots of the pool; gone with the process unless a directory stands behind it.
    Dram,
    /// Persistent memory, mapped with MAP_SYNC.
    Dax,
    /// Files read past the page cache through io_uring.
    Nvme,
    /// Files mapped through the page cache: what the reference system did, kept to compare with.
    Mmap,
}

impl Display for MediumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MediumKind::Dram => "dram",
            MediumKind::Dax => "pmem",
            MediumKind::Nvme => "nvme",
            MediumKind::Mmap => "mmap",
        })
    }
}

/// A flat place for named files. Names are one path component of `[a-z0-9._-]`.
pub trait Medium: Send + Sync + Debug {
    /// What it is made of.
    fn kind(&self) -> MediumKind;

    /// A new, empty file.
    ///
    /// # Errors
    /// `AlreadyExists` if there is one of that name, otherwise what the medium says.
    fn create(&self, name: &str) -> Result<Box<dyn Writer>>;

    /// An existing file, to write more to it: a log, a manifest.
    ///
    /// # Errors
    /// `NotFound`, otherwise what the medium says.
    fn reopen(&self, name: &str) -> Result<Box<dyn Writer>>;

    /// An existing file, for reading. What is written to it later need not be visible.
    ///
    /// # Errors
    /// `NotFound`, `ResourceExhausted` where it must be held in memory and there is no room,
    /// otherwise what the medium says.
    fn open(&self, name: &str) -> Result<Arc<dyn Sealed>>;

    /// All of a small file, into ordinary memory: a log, a manifest.
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

    /// As [`Medium::load`], but pages that the medium has lost are zeros and named, so that one of
    /// them does not cost the others.
    ///
    /// # Errors
    /// As [`Medium::load`], but for lost pages.
    fn salvage(&self, name: &str) -> Result<Salvaged> {
        let file = self.open(name)?;
        let bytes = loadable(name, file.bytes())?;
        Salvaged::read(bytes, |offset, buffer| file.read_at(offset, buffer))
    }

    /// Removes a file. Those who have it open can go on reading it.
    ///
    /// # Errors
    /// `NotFound`, otherwise what the medium says.
    fn remove(&self, name: &str) -> Result<()>;

    /// The names and lengths in bytes of all files, by name.
    ///
    /// # Errors
    /// What the medium says.
    fn list(&self) -> Result<Vec<(String, u64)>>;

    /// Makes creations and removals so far durable.
    ///
    /// # Errors
    /// What the medium says; afterwards they may or may not be durable.
    fn persist_names(&self) -> Result<()>;

    /// Returns the free space of what the files lie on; `None` if the medium has no limit of its
    /// own.
    ///
    /// # Errors
    /// What the medium says.
    fn space(&self) -> Result<Option<Space>> {
        Ok(None)
    }

    /// A reader for one thread.
    ///
    /// # Errors
    /// `Unimplemented` with the reason where the system refuses what it needs.
    fn reader(&self, options: ReaderOptions) -> Result<Box<dyn Reader>>;
}

/// Free space of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that can still be written.
    pub free: u64,
    /// Bytes of the whole file system.
    pub total: u64,
    /// Files that can still be created; `None` if their number has no limit.
    pub files_free: Option<u64>,
}

/// What could be read of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// As many as the file has; zeros where they could not be read.
    pub bytes: Vec<u8>,
    /// The numbers of the pages that could not be read, ascending.
    pub lost: Vec<u64>,
}

impl Salvaged {
    /// Reads so many bytes with `read`, whose `DataLoss` means that something in the range is lost.
    pub(crate) fn read(
        bytes: usize,
        read: impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Salvaged> {
        let mut found = Salvaged { bytes: vec![0; bytes], lost: Vec::new() };
        // Whether it could be read. What came of a failed read is not to be trusted.
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

    /// Whether one of the pages that hold this range could not be read.
    pub fn lacks(&self, range: Range<u64>) -> bool {
        let page = PAGE_BYTES as u64;
        !range.is_empty()
            && self
                .lost
                .iter()
                .any(|&lost| lost * page < range.end && range.start < (lost + 1) * page)
    }
}

/// Bytes that [`Medium::salvage`] reads at once, as long as they can be read; a whole number of
/// pages.
const SALVAGE_BYTES: usize = 1 << 20;

/// Bytes of the longest file that [`Medium::load`] reads: more than any log or list has, so that a
/// damaged length cannot use up the memory.
pub const LOAD_BYTES_MAX: u64 = 1 << 30;

/// A length that may be loaded.
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
    /// How long it is, in bytes.
    fn bytes(&self) -> u64;

    /// Writes at `offset`, which may lie in what is there or at its end, not beyond it.
    ///
    /// # Errors
    /// `StorageFull` if the medium is full, otherwise what it says. The bytes of the range may then
    /// be old, new or mixed.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Writes at the end and says where that was.
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
    /// What the medium says.
    fn truncate(&mut self, bytes: u64) -> Result<()>;

    /// Makes what was written so far durable: afterwards it survives a loss of power.
    ///
    /// # Errors
    /// What the medium says; what was written may then be lost, and writing it again is the only
    /// way to be sure.
    fn persist(&mut self) -> Result<()>;
}

/// A file that is only read.
pub trait Sealed: Send + Sync + Debug {
    /// A number that no other open file of this process has.
    fn id(&self) -> u64;

    /// How long it is, in bytes.
    fn bytes(&self) -> u64;

    /// Fills `buffer` from `offset`, on the calling thread: for opening a segment, not for queries.
    ///
    /// # Errors
    /// `DataLoss` past the end or where the medium has lost the bytes, otherwise what it says.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// The whole file, if the processor can load from it directly.
    fn in_place(&self) -> Option<&[u8]> {
        None
    }

    /// The descriptor to read it by, if it has one.
    fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        None
    }
}

/// How much a [`Reader`] may have under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderOptions {
    /// Reads in flight at once, at most.
    pub depth: usize,
    /// Bytes of the largest read; a multiple of 4096.
    pub read_bytes_max: usize,
}

/// One read.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// The file, which the reader keeps open until the read is done.
    pub file: &'a Arc<dyn Sealed>,
    /// Where it starts; a multiple of 4096.
    pub offset: u64,
    /// How many bytes; a multiple of 4096, and within the file.
    pub bytes: usize,
    /// What the completion is called by.
    pub tag: u64,
}

/// Reads many pages at once, for one thread. The order of completions is the medium's.
pub trait Reader: Send {
    /// Reads that may be submitted now before one must complete.
    fn room(&self) -> usize;

    /// Reads submitted and not yet handed to [`Reader::complete`]'s caller.
    fn in_flight(&self) -> usize;

    /// Queues a read. It may start only when [`Reader::complete`] is called.
    ///
    /// # Errors
    /// `ResourceExhausted` if there is no room, `InvalidArgument` for a misplaced read. A read that
    /// fails later says so when it completes.
    fn submit(&mut self, read: Read<'_>) -> Result<()>;

    /// Starts what is queued, waits until at least `wait` reads are done (0: does not wait; more
    /// than are in flight: all), and hands them to `each` with their tags: at most `wait`, or a
    /// quarter of the depth where that is more, so that new reads can be put behind them before the
    /// queue runs dry; the others with the next call. The bytes are valid during `each` only. Gives
    /// how many there were.
    ///
    /// # Errors
    /// What the medium says where the queue itself fails; the reads in flight are then lost.
    fn complete(&mut self, wait: usize, each: &mut dyn FnMut(u64, Result<&[u8]>)) -> Result<usize>;
}
