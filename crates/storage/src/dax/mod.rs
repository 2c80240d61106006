//! Persistent memory: files on a file system with DAX, loaded from and stored to in place.
//!
//! A write needs no fsync. Bytes are stored, their lines flushed and fenced. Then one word of eight
//! bytes, the length of the file, is stored, flushed and fenced. The processor writes such a word
//! as a whole or not at all. So after a loss of power a file has its old length or its new one, and
//! every byte up to it.
//!
//! On this medium a file starts with a page for that word, which readers never see. It is
//! `MPDAXFIL`, then the word, then zeros. The word has the length in its low 48 bits, and above
//! them the low 16 bits of the crc32c of those six bytes. After it come the same bytes as on any
//! other medium, and room to grow into.

mod lines;
mod recorder;
mod writer;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, Result};

use crate::bytes::u64_at;
use crate::directory::{Directory, OpenFile, io_error};
use crate::in_place::InPlaceReader;
use crate::mapping::Mapping;
use crate::medium::{
    Medium, MediumKind, Reader, ReaderGroup, ReaderOptions, Sealed, Space, Writer,
};
use crate::mmap::MappedFile;
use crate::names;
use crate::page::PAGE_BYTES;

pub use lines::Watch;
pub use recorder::{Recorder, StoreEvent, crash_images};

/// Bytes before the first byte of a file.
pub const PREFIX_BYTES: usize = PAGE_BYTES;

const MAGIC: &[u8; 8] = b"MPDAXFIL";
/// Offset of the length word.
const WORD_AT: u64 = 8;
const LENGTH_BITS: u32 = 48;
/// An unlisted file to test a mapping with.
const PROBE: &str = ".dax-probe";

/// Durability of the bytes that are stored to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MappingDurability {
    /// Flushed bytes survive a loss of power.
    Durable,
    /// The steps are the same, without durability.
    Simulated,
}

/// Files in persistent memory.
#[derive(Debug)]
pub struct DaxMedium {
    directory: Directory,
    durability: MappingDurability,
    watch: Option<Arc<dyn Watch>>,
}

impl DaxMedium {
    /// Opens the medium in `directory`, which is created if it is missing.
    ///
    /// # Errors
    /// `Unimplemented` with a remedy if the file system has no DAX, otherwise the file system's
    /// error.
    pub fn new(directory: PathBuf) -> Result<DaxMedium> {
        DaxMedium::make(directory, MappingDurability::Durable, None)
    }

    /// Opens a medium whose files are mapped like any others. It takes the same steps, but has no
    /// durability. For tests and measurements on tmpfs.
    ///
    /// # Errors
    /// The file system's error.
    pub fn simulated(directory: PathBuf) -> Result<DaxMedium> {
        DaxMedium::make(directory, MappingDurability::Simulated, None)
    }

    /// Opens a simulated medium that reports every store, flush and fence to `watch`.
    ///
    /// # Errors
    /// The file system's error.
    pub fn watched(directory: PathBuf, watch: Arc<dyn Watch>) -> Result<DaxMedium> {
        DaxMedium::make(directory, MappingDurability::Simulated, Some(watch))
    }

    fn make(
        path: PathBuf,
        durability: MappingDurability,
        watch: Option<Arc<dyn Watch>>,
    ) -> Result<DaxMedium> {
        let directory = Directory::new(path.clone())?;
        if durability == MappingDurability::Durable {
            probe(&path)?;
        }
        Ok(DaxMedium { directory, durability, watch })
    }

    fn writer(&self, opened: OpenFile) -> Result<Box<dyn Writer>> {
        let lines = lines::CacheLines::new(names::next_id(), self.watch.clone());
        Ok(Box::new(writer::DaxWriter::new(opened, flags(self.durability), lines)?))
    }

    /// Replaces the sizes of listed files by their lengths. Leaves out files that another thread
    /// has removed in the meantime.
    fn lengths(&self, files: Vec<(String, u64)>) -> Result<Vec<(String, u64)>> {
        let mut found = Vec::with_capacity(files.len());
        for (name, _) in files {
            let path = self.directory.file(&name)?;
            match File::open(&path).and_then(|file| length_of(&file)) {
                Ok(bytes) => found.push((name, bytes)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(io_error(&path, &error)),
            }
        }
        Ok(found)
    }
}

/// Flags of a mapping. With MAP_SYNC the file system makes a page's location durable before it can
/// be stored to.
fn flags(durability: MappingDurability) -> i32 {
    match durability {
        MappingDurability::Durable => libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC,
        MappingDurability::Simulated => libc::MAP_SHARED,
    }
}

/// Tests if files of an existing directory can be mapped with MAP_SYNC. The directory must be on a
/// file system with DAX on persistent memory. Makes and removes one file.
///
/// # Errors
/// `Unimplemented` with a remedy if not, otherwise the file system's error.
pub fn probe(directory: &Path) -> Result<()> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(Error::unimplemented(
            "persistent memory is flushed on x86-64 only; use the nvme medium",
        ));
    }
    let path = directory.join(PROBE);
    let tried = (|| {
        let file = os::private::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        file.set_len(PAGE_BYTES as u64)?;
        Mapping::writable(&file, PAGE_BYTES, flags(MappingDurability::Durable)).map(drop)
    })();
    let _ = std::fs::remove_file(&path);
    let remedy =
        "mount a file system with -o dax on persistent memory, or keep the index on another medium";
    match tried {
        Ok(()) if lines::SUPPORTED => Ok(()),
        Ok(()) => Err(Error::unimplemented(format!("no DAX on this processor: {remedy}"))),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
            Err(Error::unimplemented(format!(
                "{}: no DAX here ({error}); {remedy}",
                directory.display()
            )))
        }
        Err(error) => Err(io_error(&path, &error)),
    }
}

/// Returns the word for a length.
fn encode_length(length: u64) -> u64 {
    let check = crc32c::crc32c(&length.to_le_bytes()[..6]) & 0xffff;
    length | u64::from(check) << LENGTH_BITS
}

/// Returns the length of a file by its first page and the size of the file on disk.
///
/// If the prefix is damaged, only the length is lost. The whole file is returned then, because
/// everything in a file checks itself. Only a file without any commit has neither a prefix nor
/// bytes.
fn length(prefix: &[u8], file_bytes: u64) -> u64 {
    let room = file_bytes.saturating_sub(PREFIX_BYTES as u64);
    let word = u64_at(prefix, WORD_AT as usize);
    let length = word & ((1 << LENGTH_BITS) - 1);
    let whole = prefix.get(..8) == Some(MAGIC) && encode_length(length) == word && length <= room;
    if whole { length } else { room }
}

fn length_of(file: &File) -> std::io::Result<u64> {
    let bytes = file.metadata()?.len();
    let mut prefix = [0; 16];
    match file.read_exact_at(&mut prefix, 0) {
        Ok(()) => Ok(length(&prefix, bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(0),
        // Only the page with the length is lost.
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(length(&[], bytes)),
        Err(error) => Err(error),
    }
}

impl Medium for DaxMedium {
    fn kind(&self) -> MediumKind {
        MediumKind::Dax
    }

    fn create(&self, name: &str) -> Result<Box<dyn Writer>> {
        let created = self.writer(self.directory.create(name)?);
        // Without room for its first page the file does not exist.
        created.inspect_err(|_| drop(self.directory.remove(name)))
    }

    fn reopen(&self, name: &str) -> Result<Box<dyn Writer>> {
        self.writer(self.directory.reopen(name)?)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Sealed>> {
        let path = self.directory.file(name)?;
        let fail = |error: std::io::Error| io_error(&path, &error);
        let file = File::open(&path).map_err(fail)?;
        let bytes = length_of(&file).map_err(fail)? as usize;
        let mapping = if bytes == 0 {
            None
        } else {
            Some(Mapping::read_only(&file, PREFIX_BYTES + bytes).map_err(fail)?)
        };
        Ok(Arc::new(MappedFile {
            id: names::next_id(),
            mapping,
            start: PREFIX_BYTES,
            bytes,
            path,
            file,
        }))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.directory.remove(name)
    }

    fn list(&self) -> Result<Vec<(String, u64)>> {
        self.lengths(self.directory.list()?)
    }

    fn persist_names(&self) -> Result<()> {
        self.directory.persist_names()
    }

    fn space(&self) -> Result<Option<Space>> {
        self.directory.space()
    }

    fn reader(&self, options: ReaderOptions) -> Result<Box<dyn Reader>> {
        Ok(Box::new(InPlaceReader::new(options)?))
    }

    fn reader_group(&self) -> Option<ReaderGroup> {
        Some(ReaderGroup::InPlace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_removed_meanwhile_is_not_listed() {
        let root = tempfile::tempdir().unwrap();
        let medium = DaxMedium::simulated(root.path().to_owned()).unwrap();
        ["a", "b"].iter().for_each(|name| drop(medium.create(name).unwrap()));
        let listed = medium.directory.list().unwrap();
        medium.remove("a").unwrap();
        assert_eq!(medium.lengths(listed).unwrap(), [("b".to_owned(), 0)]);
    }
}
