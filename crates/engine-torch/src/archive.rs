//! Reads the file of a TorchScript module, a zip archive, and checks its checksums.
//!
//! LibTorch is compiled without this check, so it would serve a flipped bit in a weight. Stored
//! records, among them all weights, are checked while LibTorch reads them. The few compressed
//! records (code) are small and are checked before.

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

/// Alignment of LibTorch's tensors, in bytes.
const ALIGNMENT: u64 = 64;
/// Bytes for LibTorch's other allocations while it loads.
const SLACK_BYTES: u64 = 64 << 10;
/// Maximum records of an archive.
const RECORDS_MAX: usize = 1 << 20;
/// Maximum bytes that a compressed byte can become: deflate writes 258 bytes as two bits.
const DEFLATE_RATIO_MAX: u64 = 1032;
/// Chunk size for reading again a record that LibTorch read in pieces.
const PIECE_BYTES: usize = 1 << 20;

/// Returns an upper bound of the arena bytes that loading the module at `path` needs. Reads only
/// the archive's directory.
///
/// # Errors
/// `DataLoss` if it is not an archive or is damaged; the errors of opening the file.
pub(crate) fn parameter_bytes(path: &Path) -> Result<usize> {
    let archive = open(path)?;
    let mut total = SLACK_BYTES;
    for index in 0..archive.len() {
        let bytes = archive.by_index_data(index).map_err(|e| damaged(path, e))?.size();
        total = bytes
            .checked_add(ALIGNMENT)
            .and_then(|bytes| total.checked_add(bytes))
            .ok_or_else(|| {
                Error::data_loss(format!(
                    "{}: its records are larger than any memory",
                    path.display()
                ))
            })?;
    }
    usize::try_from(total).map_err(|_| Error::data_loss(format!("{}: too large", path.display())))
}

/// Opens the archive's directory, through the page cache, one page at a time. Checks the sizes that
/// it states.
fn open(path: &Path) -> Result<ZipArchive<File>> {
    use std::os::fd::AsRawFd;
    let failed = |error: std::io::Error| Error::io(path, &error);
    let meta = std::fs::metadata(path).map_err(failed)?;
    os::check_regular_file(&meta).map_err(failed)?;
    let file = File::open(path).map_err(failed)?;
    // SAFETY: takes numbers only, about a descriptor of ours. It is advice: if it is refused, the
    // only cost is useless read-ahead.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    let archive = engine::foreign::open_archive(file).map_err(|e| no_archive(path, e))?;
    let count = archive.len();
    if count > RECORDS_MAX {
        return Err(Error::data_loss(format!("{}: {count} records", path.display())));
    }
    check_sizes(path, &archive, meta.len())?;
    Ok(archive)
}

/// Checks that the records can have the sizes that the directory states, before memory is taken for
/// them.
fn check_sizes(path: &Path, archive: &ZipArchive<File>, file_bytes: u64) -> Result<()> {
    for index in 0..archive.len() {
        let entry = archive.by_index_data(index).map_err(|e| damaged(path, e))?;
        let bytes = entry.size();
        let compressed = entry.compressed_size();
        if compressed > file_bytes || bytes / DEFLATE_RATIO_MAX > compressed {
            return Err(Error::data_loss(format!(
                "{}: record {index} of {bytes} bytes does not fit in the file; copy or export the file again",
                path.display()
            )));
        }
    }
    Ok(())
}

fn damaged(path: &Path, error: ZipError) -> Error {
    match error {
        ZipError::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            Error::io(path, &error)
        }
        error => Error::data_loss(format!("{}: not a whole TorchScript file", path.display()))
            .caused_by(error),
    }
}

/// Returns the error for a file whose directory cannot be read.
fn no_archive(path: &Path, error: ZipError) -> Error {
    match (&error, engine::foreign::identify(path)) {
        (ZipError::InvalidArchive(_), Some(other)) => {
            Error::data_loss(format!("{} is {other}", path.display()))
        }
        _ => damaged(path, error),
    }
}

/// Source of the bytes.
enum ArchiveInput {
    Paced(PacedReader),
    File(File),
}

impl ArchiveInput {
    /// Fills `buffer` from `offset` and calls `each` for every chunk.
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

/// A stored record, perhaps partly read.
struct ZipRecord {
    start: u64,
    bytes: u64,
    checksum: u32,
    /// Checksum of the bytes up to `read`, while they come in order.
    hasher: crc32fast::Hasher,
    read: u64,
    /// True if any of it was read.
    touched: bool,
    /// True if all of it was read and its checksum is right.
    whole: bool,
}

/// An archive that LibTorch reads through [`read`].
pub(crate) struct TorchArchive {
    path: PathBuf,
    input: ArchiveInput,
    bytes: u64,
    /// Sorted by offset.
    records: Vec<ZipRecord>,
    /// Addresses of memory that is initialised already.
    initialised: Range<usize>,
    /// Reason of a failed read: LibTorch does not pass it on.
    failure: Option<Error>,
}

impl TorchArchive {
    /// Opens the module at `path` for reading, at the rate of `arena`'s store if there is one.
    ///
    /// # Errors
    /// `DataLoss` if it is damaged, `InvalidArgument` if it is another kind of archive; the errors
    /// of opening it.
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
        Ok(TorchArchive {
            path: path.to_owned(),
            input,
            bytes,
            records,
            initialised: 0..0,
            failure: None,
        })
    }

    /// Marks `memory` as initialised, so that reads need not clear it first.
    pub(crate) fn trust(&mut self, memory: &[u8]) {
        self.initialised = memory.as_ptr_range().start.addr()..memory.as_ptr_range().end.addr();
    }

    /// Returns the file's length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the reason of a failed read, which explains LibTorch's own error.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Checks the records that were not read in order from first to last byte.
    ///
    /// # Errors
    /// `DataLoss` that names the file, or the disk's error.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let mut piece = Vec::new();
        for at in 0..self.records.len() {
            let Some(record) =
                self.records.get(at).filter(|record| record.touched && !record.whole)
            else {
                continue;
            };
            let start = record.start;
            let bytes = record.bytes;
            let checksum = record.checksum;
            let mut hasher = crc32fast::Hasher::new();
            let mut done = 0;
            while done < bytes {
                piece.resize((bytes - done).min(PIECE_BYTES as u64) as usize, 0);
                self.input
                    .fill(&self.path, &mut piece, start + done, |part| hasher.update(part))?;
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
        let mut piece = vec![0; PIECE_BYTES.min(self.bytes as usize)];
        let mut at = 0;
        while at < self.bytes {
            at += self.read(&mut piece, at)? as u64;
        }
        self.finish()
    }

    /// Fills `buffer` from `offset` up to the end of the file, and checks it.
    fn read(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let count = self.bytes.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let mut at = offset;
        let mut fits = true;
        let records = &mut self.records;
        self.input.fill(&self.path, &mut buffer[..count], offset, |part| {
            fits &= take(records, part, at);
            at += part.len() as u64;
        })?;
        if fits { Ok(count) } else { Err(self.mismatch(offset)) }
    }

    fn mismatch(&self, offset: u64) -> Error {
        let path = self.path.display();
        Error::data_loss(format!(
            "{path}: damaged at or after byte {offset}: its checksum does not fit"
        ))
    }
}

/// Adds `buffer`, read at `offset`, to the checksums. Returns false if a record is complete with it
/// and its checksum is wrong.
fn take(records: &mut [ZipRecord], buffer: &[u8], offset: u64) -> bool {
    let end = offset + buffer.len() as u64;
    let first = records.partition_point(|record| record.start + record.bytes <= offset);
    let mut touched = records[first..].iter_mut().take_while(|record| record.start < end);
    touched.all(|record| record.take(buffer, offset))
}

impl ZipRecord {
    /// Adds this record's part of `buffer`, read at `offset`. Returns false if the record is
    /// complete and its checksum is wrong.
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

/// Checks that this is a TorchScript module and not another archive that is called `.pt`.
fn check_kind<R: Read + Seek>(path: &Path, directory: &ZipArchive<R>) -> Result<()> {
    let has = |ending: &[u8]| directory.file_names_raw().any(|name| name.ends_with(ending));
    if has(b"/data.pkl") && has(b"/constants.pkl") {
        return Ok(());
    }
    Err(match engine::foreign::identify(path) {
        Some(other) => Error::invalid(format!("{} is {other}", path.display())),
        None => Error::invalid(format!("{}: not a TorchScript module", path.display())),
    })
}

/// Lists the stored records by offset and checks the compressed ones.
fn records(path: &Path, directory: &mut ZipArchive<File>) -> Result<Vec<ZipRecord>> {
    let mut records = Vec::new();
    for index in 0..directory.len() {
        let entry = directory.by_index_raw(index).map_err(|e| damaged(path, e))?;
        let start = entry.data_start().ok_or_else(|| damaged(path, ZipError::FileNotFound))?;
        let bytes = entry.size();
        let checksum = entry.crc32();
        if entry.compression() == CompressionMethod::Stored {
            if bytes != entry.compressed_size() {
                return Err(Error::data_loss(format!(
                    "{}: a stored record has two sizes",
                    path.display()
                )));
            }
            let hasher = crc32fast::Hasher::new();
            let whole = bytes == 0;
            records.push(ZipRecord {
                start,
                bytes,
                checksum,
                hasher,
                read: 0,
                touched: false,
                whole,
            });
            continue;
        }
        drop(entry);
        let entry = directory.by_index(index).map_err(|e| damaged(path, e))?;
        // A byte more than the stated length shows that the length is too small.
        let read = io::copy(&mut entry.take(bytes.saturating_add(1)), &mut io::sink());
        if read.map_err(|e| Error::data_loss(path.display().to_string()).caused_by(e))? != bytes {
            return Err(Error::data_loss(format!(
                "{}: a record has not the size that it states",
                path.display()
            )));
        }
    }
    records.sort_by_key(|record| record.start);
    Ok(records)
}

/// Reads for LibTorch, which calls this function. `context` is a [`TorchArchive`]. Returns 0 on
/// failure, and the archive keeps the reason.
///
/// # Safety
/// `context` points to an archive that is not used elsewhere during the call, and `buffer` to
/// `bytes` writable bytes.
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use base::ErrorKind;
    use zip::write::SimpleFileOptions;

    use super::*;

    /// Offset in an entry of the directory: the compressed size follows, then the other one.
    const SIZES_AT: usize = 20;

    #[test]
    fn impossible_sizes_get_no_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.pt");
        let mut writer = zip::ZipWriter::new(File::create(&path).unwrap());
        let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        writer.start_file("m/data/0", stored).unwrap();
        writer.write_all(&[7; 100]).unwrap();
        writer.finish().unwrap();
        assert!(parameter_bytes(&path).is_ok());
        let whole = std::fs::read(&path).unwrap();
        let entry = whole.windows(4).position(|part| part == b"PK\x01\x02").unwrap();
        for sizes in [[100u32, 1 << 30], [1 << 30, 1 << 30]] {
            let mut bytes = whole.clone();
            let stated = sizes.map(u32::to_le_bytes).concat();
            bytes[entry + SIZES_AT..][..stated.len()].copy_from_slice(&stated);
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(parameter_bytes(&path).unwrap_err().kind(), ErrorKind::DataLoss);
        }
    }
}
