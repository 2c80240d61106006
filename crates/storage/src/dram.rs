//! Memory: files in slots of the pool, copied there when opened.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Error, Result};
use memory::{Region, SlotPool};
use os::{DIRECT_ALIGNMENT, DirectFile};

use crate::directory::{Directory, FileWriter, check_write, io_error};
use crate::in_place::InPlaceReader;
use crate::medium::{
    Medium, MediumKind, Reader, ReaderGroup, ReaderOptions, Salvaged, Sealed, Space, Writer,
};
use crate::names;

/// Bytes copied from disk at once when a file is opened.
const COPY_BYTES: usize = 1 << 20;

/// Files in memory. With a directory they are durable there, and opening one copies it into slots
/// past the page cache. Without one they vanish with the medium.
#[derive(Debug)]
pub struct DramMedium {
    pool: Arc<SlotPool>,
    files: DramFiles,
}

/// Place of the files that are not open.
#[derive(Debug)]
enum DramFiles {
    Durable(Directory),
    Volatile(Mutex<BTreeMap<String, VolatileBytes>>),
}

/// The bytes of a volatile file.
type VolatileBytes = Arc<Mutex<Vec<u8>>>;

impl DramMedium {
    /// Opens the medium in `pool`, and in `directory` if given, which is created if it is missing.
    ///
    /// # Errors
    /// The file system's error.
    pub fn new(pool: Arc<SlotPool>, directory: Option<PathBuf>) -> Result<DramMedium> {
        let files = match directory {
            Some(directory) => DramFiles::Durable(Directory::new(directory)?),
            None => DramFiles::Volatile(Mutex::default()),
        };
        Ok(DramMedium { pool, files })
    }

    /// Creates a read-only file of `bytes` in the pool. `fill` gets its memory, rounded up to whole
    /// blocks for direct reads, and the length of the file.
    fn create_sealed(
        &self,
        bytes: u64,
        fill: impl FnOnce(&mut [u8], usize) -> Result<()>,
    ) -> Result<Arc<dyn Sealed>> {
        let length = usize::try_from(bytes).map_err(|_| {
            Error::exhausted(format!("a file of {bytes} bytes cannot be addressed"))
        })?;
        let region = self.pool.allocate(length.next_multiple_of(DIRECT_ALIGNMENT));
        let mut region = region.map_err(no_room)?;
        fill(region.as_mut_slice(), length)?;
        Ok(Arc::new(DramSealed { id: names::next_id(), region: region.freeze(), length }))
    }
}

/// Converts the error of a full pool. The pool names the remedy for models, which is replaced by
/// the remedy for files.
fn no_room(error: Error) -> Error {
    error.replaced("of parameters do not fit", "of a file do not fit").replaced(
        "unload a version or make the pool larger",
        "raise --search-memory, or use another medium",
    )
}

/// Converts the error of a direct read to the error of a medium. Bytes that the disk lost are
/// `DataLoss`, because another attempt cannot recover them.
fn disk_error(path: &Path, error: Error) -> Error {
    let source = std::error::Error::source(&error);
    let code = source.and_then(|source| source.downcast_ref::<io::Error>()?.raw_os_error());
    code.map_or(error, |code| io_error(path, &io::Error::from_raw_os_error(code)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Medium for DramMedium {
    fn kind(&self) -> MediumKind {
        MediumKind::Dram
    }

    fn create(&self, name: &str) -> Result<Box<dyn Writer>> {
        match &self.files {
            DramFiles::Durable(directory) => {
                Ok(Box::new(FileWriter::new(directory.create(name)?)?))
            }
            DramFiles::Volatile(files) => {
                names::check(name)?;
                let mut files = lock(files);
                if files.contains_key(name) {
                    return Err(names::name_exists(name));
                }
                let bytes = VolatileBytes::default();
                files.insert(name.to_owned(), bytes.clone());
                Ok(Box::new(DramWriter { bytes }))
            }
        }
    }

    fn reopen(&self, name: &str) -> Result<Box<dyn Writer>> {
        match &self.files {
            DramFiles::Durable(directory) => {
                Ok(Box::new(FileWriter::new(directory.reopen(name)?)?))
            }
            DramFiles::Volatile(files) => {
                let bytes = lock(files).get(name).cloned().ok_or_else(|| names::missing(name))?;
                Ok(Box::new(DramWriter { bytes }))
            }
        }
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Sealed>> {
        match &self.files {
            DramFiles::Durable(directory) => {
                let path = directory.file(name)?;
                let mut source = DirectFile::open_direct(&path)?;
                self.create_sealed(source.bytes(), |memory, length| {
                    for start in (0..length).step_by(COPY_BYTES) {
                        let bytes = COPY_BYTES.min(length - start);
                        source
                            .read_exact_at(&mut memory[start..], start as u64, bytes)
                            .map_err(|error| disk_error(&path, error))?;
                    }
                    Ok(())
                })
            }
            DramFiles::Volatile(files) => {
                let bytes = lock(files).get(name).cloned().ok_or_else(|| names::missing(name))?;
                let bytes = lock(&bytes);
                self.create_sealed(bytes.len() as u64, |memory, length| {
                    memory[..length].copy_from_slice(&bytes);
                    Ok(())
                })
            }
        }
    }

    fn load(&self, name: &str) -> Result<Vec<u8>> {
        match &self.files {
            DramFiles::Durable(directory) => directory.load(name),
            DramFiles::Volatile(files) => {
                let bytes = lock(files).get(name).cloned().ok_or_else(|| names::missing(name))?;
                let bytes = lock(&bytes).clone();
                Ok(bytes)
            }
        }
    }

    fn salvage(&self, name: &str) -> Result<Salvaged> {
        match &self.files {
            DramFiles::Durable(directory) => directory.salvage(name),
            DramFiles::Volatile(_) => Ok(Salvaged { bytes: self.load(name)?, lost: Vec::new() }),
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        match &self.files {
            DramFiles::Durable(directory) => directory.remove(name),
            DramFiles::Volatile(files) => {
                lock(files).remove(name).map(drop).ok_or_else(|| names::missing(name))
            }
        }
    }

    fn list(&self) -> Result<Vec<(String, u64)>> {
        match &self.files {
            DramFiles::Durable(directory) => directory.list(),
            DramFiles::Volatile(files) => Ok(lock(files)
                .iter()
                .map(|(name, bytes)| (name.clone(), lock(bytes).len() as u64))
                .collect()),
        }
    }

    fn persist_names(&self) -> Result<()> {
        match &self.files {
            DramFiles::Durable(directory) => directory.persist_names(),
            DramFiles::Volatile(_) => Ok(()),
        }
    }

    fn space(&self) -> Result<Option<Space>> {
        match &self.files {
            DramFiles::Durable(directory) => directory.space(),
            DramFiles::Volatile(_) => Ok(None),
        }
    }

    fn reader(&self, options: ReaderOptions) -> Result<Box<dyn Reader>> {
        Ok(Box::new(InPlaceReader::new(options)?))
    }

    fn reader_group(&self) -> Option<ReaderGroup> {
        Some(ReaderGroup::InPlace)
    }
}

/// Writer of a volatile file.
struct DramWriter {
    bytes: VolatileBytes,
}

impl Writer for DramWriter {
    fn bytes(&self) -> u64 {
        lock(&self.bytes).len() as u64
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut file = lock(&self.bytes);
        check_write("a file in memory", file.len() as u64, offset, bytes.len())?;
        // At most the file's length, so it fits.
        let offset = offset as usize;
        let within = bytes.len().min(file.len() - offset);
        file[offset..offset + within].copy_from_slice(&bytes[..within]);
        file.extend_from_slice(&bytes[within..]);
        Ok(())
    }

    fn truncate(&mut self, bytes: u64) -> Result<()> {
        let mut file = lock(&self.bytes);
        match usize::try_from(bytes) {
            Ok(bytes) if bytes <= file.len() => file.truncate(bytes),
            _ => {
                return Err(Error::invalid(format!(
                    "{} bytes cannot be cut at {bytes}",
                    file.len()
                )));
            }
        }
        Ok(())
    }

    fn persist(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A file in slots.
struct DramSealed {
    id: u64,
    region: Region,
    /// Length of the file in bytes. The region may be longer.
    length: usize,
}

impl DramSealed {
    fn slice(&self) -> &[u8] {
        &self.region.as_slice()[..self.length]
    }
}

impl Sealed for DramSealed {
    fn id(&self) -> u64 {
        self.id
    }

    fn bytes(&self) -> u64 {
        self.length as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        names::check_within("a file in memory", self.bytes(), offset, buffer.len())?;
        buffer.copy_from_slice(&self.slice()[offset as usize..][..buffer.len()]);
        Ok(())
    }

    fn in_place(&self) -> Option<&[u8]> {
        Some(self.slice())
    }
}

impl std::fmt::Debug for DramSealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DramSealed({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn bytes_that_the_disk_lost_are_data_loss() {
        let path = Path::new("segment");
        let kind = |code| {
            let read = Error::io(path, &io::Error::from_raw_os_error(code));
            disk_error(path, read).kind()
        };
        assert_eq!(kind(libc::EIO), ErrorKind::DataLoss);
        assert_eq!(kind(libc::EMFILE), ErrorKind::ResourceExhausted);
        let misplaced = disk_error(path, Error::invalid("a direct read is misplaced"));
        assert_eq!(misplaced.kind(), ErrorKind::InvalidArgument);
    }
}
