//! The file of a TorchScript module, which is a zip archive: how much it holds, and reading it with its checksums
//! checked.
//!
//! LibTorch is compiled without checking them, so a flipped bit in a weight would be served. Records that are stored
//! as they are, all weights among them, are checked while LibTorch reads them; the few that are compressed (code) are
//! small and checked before.

use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use base::{Error, Result};
use engine::Arena;
use memory::PacedReader;
use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

/// LibTorch places each tensor at a multiple of this.
const ALIGNMENT: u64 = 64;
/// Room for what LibTorch allocates beside the records while it loads.
const SLACK_BYTES: u64 = 64 << 10;
/// Records of an archive at most.
const RECORDS_MAX: usize = 1 << 20;
/// A record that LibTorch read in pieces is read again in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

/// How many bytes of an arena loading the module at `path` takes at most. Reads the archive's directory only.
///
/// # Errors
/// `DataLoss` where it is no archive or damaged; those of opening the file.
pub(crate) fn parameter_bytes(path: &Path) -> Result<usize> {
    let archive = open(path)?;
    let mut total = SLACK_BYTES;
    for index in 0..archive.len() {
        let bytes = archive.by_index_data(index).map_err(|e| damaged(path, e))?.size();
        total = bytes.checked_add(ALIGNMENT).and_then(|bytes| total.checked_add(bytes)).ok_or_else(|| {
            Error::data_loss(format!("{}: its records are larger than any memory", path.display()))
        })?;
    }
    // Nothing is deflated a thousandfold by torch.jit.save; a file that says so is not worth its memory.
    usize::try_from(total).map_err(|_| Error::data_loss(format!("{}: too large", path.display())))
}

/// The archive's directory. Through the page cache, a page at a time.
fn open(path: &Path) -> Result<ZipArchive<File>> {
    use std::os::fd::AsRawFd;
    let file = File::open(path).map_err(|e| Error::io(path, &e))?;
    // SAFETY: takes numbers only, about a descriptor of ours. It is advice: refusal costs reading ahead in vain.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    let archive = ZipArchive::new(file).map_err(|e| damaged(path, e))?;
    match archive.len() {
        0..=RECORDS_MAX => Ok(archive),
        count => Err(Error::data_loss(format!("{}: {count} records", path.display()))),
    }
}

fn damaged(path: &Path, error: ZipError) -> Error {
    match error {
        ZipError::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => Error::io(path, &error),
        error => Error::data_loss(format!("{}: not a whole TorchScript file: {error}", path.display())),
    }
}

/// Where the bytes come from.
enum ArchiveInput {
    Paced(PacedReader),
    File(File),
}

impl ArchiveInput {
    /// Fills `buffer` from `offset` and shows `each` part of it on the way.
    fn fill(
        &mut self,
        path: &Path,
        buffer: &mut [u8],
        offset: u64,
        mut each: impl FnMut(&[u8]),
    ) -> Result<()> {
        match self {
            ArchiveInput::Paced(reader) => reader.read_exact_at(buffer, offset, each),
            ArchiveInput::File(file) => {
                file.read_exact_at(buffer, offset).map_err(|e| Error::io(path, &e))?;
                each(buffer);
                Ok(())
            }
        }
    }
}

/// A stored record, of which some may have been read.
struct ZipRecord {
    start: u64,
    bytes: u64,
    checksum: u32,
    /// Over the bytes up to `read`, while they come in order.
    hasher: crc32fast::Hasher,
    read: u64,
    /// Some of it was handed out.
    touched: bool,
    /// All of it was, and it is what it should be.
    whole: bool,
}

/// An archive that LibTorch reads through [`read`].
pub(crate) struct TorchArchive {
    path: PathBuf,
    input: ArchiveInput,
    bytes: u64,
    /// By where they start.
    records: Vec<ZipRecord>,
    /// Addresses of memory that was written to before.
    initialised: Range<usize>,
    /// Why reading failed: LibTorch does not pass it on.
    failure: Option<Error>,
}

impl TorchArchive {
    /// Opens the module at `path` for reading at the pace of `arena`'s store, where there is one.
    ///
    /// # Errors
    /// `DataLoss` where it is damaged, `InvalidArgument` where it is another kind of archive, those of opening it.
    pub(crate) fn open(path: &Path, arena: Option<&Arena>) -> Result<TorchArchive> {
        let mut directory = open(path)?;
        check_kind(path, &directory)?;
        let records = records(path, &mut directory)?;
        let file = directory.into_inner();
        let bytes = file.metadata().map_err(|e| Error::io(path, &e))?.len();
        let input = match arena {
            Some(arena) => ArchiveInput::Paced(arena.reader(path)?),
            None => ArchiveInput::File(file),
        };
        Ok(TorchArchive { path: path.to_owned(), input, bytes, records, initialised: 0..0, failure: None })
    }

    /// Says that `memory` need not be cleared before it is read into.
    pub(crate) fn trust(&mut self, memory: &[u8]) {
        self.initialised = memory.as_ptr_range().start.addr()..memory.as_ptr_range().end.addr();
    }

    /// The file's length.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Why a read failed, which explains LibTorch's own error.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Checks what was read in another order than from its first byte to its last.
    ///
    /// # Errors
    /// `DataLoss` naming the file, or what the disk says.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let mut piece = Vec::new();
        for at in 0..self.records.len() {
            let Some(record) = self.records.get(at).filter(|record| record.touched && !record.whole) else {
                continue;
            };
            let (start, bytes, checksum) = (record.start, record.bytes, record.checksum);
            let mut hasher = crc32fast::Hasher::new();
            let mut done = 0;
            while done < bytes {
                piece.resize((bytes - done).min(PIECE_BYTES as u64) as usize, 0);
                self.input.fill(&self.path, &mut piece, start + done, |part| hasher.update(part))?;
                done += piece.len() as u64;
            }
            if hasher.finalize() != checksum {
                return Err(self.mismatch(start));
            }
        }
        Ok(())
    }

    /// Reads the whole file in order, which checks every stored record.
    pub(crate) fn read_all(&mut self) -> Result<()> {
        let (mut piece, mut at) = (vec![0; PIECE_BYTES.min(self.bytes as usize)], 0);
        while at < self.bytes {
            at += self.read(&mut piece, at)? as u64;
        }
        self.finish()
    }

    /// Fills as much of `buffer` from `offset` as there is, and checks it.
    fn read(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let count = self.bytes.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let (mut at, mut fits) = (offset, true);
        let records = &mut self.records;
        self.input.fill(&self.path, &mut buffer[..count], offset, |part| {
            fits &= take(records, part, at);
            at += part.len() as u64;
        })?;
        if fits { Ok(count) } else { Err(self.mismatch(offset)) }
    }

    fn mismatch(&self, offset: u64) -> Error {
        let path = self.path.display();
        Error::data_loss(format!("{path}: damaged at or after byte {offset}: its checksum does not fit"))
    }
}

/// Takes note of `buffer`, read at `offset`. False where a record is complete with it and not what its checksum says.
fn take(records: &mut [ZipRecord], buffer: &[u8], offset: u64) -> bool {
    let end = offset + buffer.len() as u64;
    let first = records.partition_point(|record| record.start + record.bytes <= offset);
    let mut touched = records[first..].iter_mut().take_while(|record| record.start < end);
    touched.all(|record| record.take(buffer, offset))
}

impl ZipRecord {
    /// Takes note of `buffer`, read at `offset`, as far as it is this record's. False where the record is complete and
    /// not what its checksum says.
    fn take(&mut self, buffer: &[u8], offset: u64) -> bool {
        self.touched = true;
        let next = self.start + self.read;
        if self.whole || offset > next {
            return true;
        }
        let end = (self.start + self.bytes).min(offset + buffer.len() as u64);
        let new = next.checked_sub(offset).zip(end.checked_sub(offset));
        let Some(new) = new.and_then(|(from, to)| buffer.get(from as usize..to as usize)) else {
            return true;
        };
        self.hasher.update(new);
        self.read += new.len() as u64;
        self.whole = self.read == self.bytes;
        !self.whole || self.hasher.clone().finalize() == self.checksum
    }
}

/// Tells a TorchScript module from the other archives that are called `.pt`.
fn check_kind<R: Read + Seek>(path: &Path, directory: &ZipArchive<R>) -> Result<()> {
    let has = |ending: &[u8]| directory.file_names_raw().any(|name| name.ends_with(ending));
    match (has(b"/data.pkl"), has(b"/constants.pkl")) {
        (true, true) => Ok(()),
        (true, false) => Err(Error::invalid(format!(
            "{}: holds tensors and no module (a file of torch.save); write it with torch.jit.save",
            path.display()
        ))),
        _ => Err(Error::invalid(format!("{}: an archive, but not a TorchScript module", path.display()))),
    }
}

/// The stored records, by where they start; the compressed ones are checked here.
fn records(path: &Path, directory: &mut ZipArchive<File>) -> Result<Vec<ZipRecord>> {
    let mut records = Vec::new();
    for index in 0..directory.len() {
        let entry = directory.by_index_raw(index).map_err(|e| damaged(path, e))?;
        let start = entry.data_start().ok_or_else(|| damaged(path, ZipError::FileNotFound))?;
        let (bytes, checksum) = (entry.size(), entry.crc32());
        if entry.compression() == CompressionMethod::Stored {
            if bytes != entry.compressed_size() {
                return Err(Error::data_loss(format!("{}: a stored record has two sizes", path.display())));
            }
            let hasher = crc32fast::Hasher::new();
            let whole = bytes == 0;
            records.push(ZipRecord { start, bytes, checksum, hasher, read: 0, touched: false, whole });
            continue;
        }
        drop(entry);
        let entry = directory.by_index(index).map_err(|e| damaged(path, e))?;
        // One byte more than it says shows that it says too little.
        let read = io::copy(&mut entry.take(bytes.saturating_add(1)), &mut io::sink());
        if read.map_err(|e| Error::data_loss(format!("{}: {e}", path.display())))? != bytes {
            return Err(Error::data_loss(format!("{}: a record is not as long as it says", path.display())));
        }
    }
    records.sort_by_key(|record| record.start);
    Ok(records)
}

/// Reads for LibTorch. `context` is a [`TorchArchive`]. Gives 0 where it fails and keeps the reason.
///
/// # Safety
/// `context` points to an archive that nobody else uses during the call, and `buffer` to `bytes` bytes that may be
/// written.
pub(crate) unsafe extern "C" fn read(
    context: *mut c_void,
    offset: u64,
    buffer: *mut c_void,
    bytes: usize,
) -> usize {
    if buffer.is_null() || bytes == 0 {
        return 0;
    }
    // SAFETY: as the caller promises. Fresh memory is cleared before it counts as bytes.
    let (archive, buffer) = unsafe {
        let archive = &mut *context.cast::<TorchArchive>();
        if !archive.initialised.contains(&buffer.addr()) {
            std::ptr::write_bytes(buffer.cast::<u8>(), 0, bytes);
        }
        (archive, std::slice::from_raw_parts_mut(buffer.cast::<u8>(), bytes))
    };
    let read = catch_unwind(AssertUnwindSafe(|| archive.read(buffer, offset)));
    let failure = match read {
        Ok(Ok(count)) => return count,
        Ok(Err(error)) => error,
        Err(_) => Error::internal("reading the model panicked; see the log"),
    };
    archive.failure.get_or_insert(failure);
    0
}
