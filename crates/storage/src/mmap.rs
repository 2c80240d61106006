//! Files mapped through the page cache: every first touch of a page is a fault that waits for the
//! disk. Kept for comparison: the reference system worked this way.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use base::{Error, Result};

use crate::directory::{Directory, FileWriter, drop_cached, io_error};
use crate::in_place::InPlaceReader;
use crate::mapping::Mapping;
use crate::medium::{
    Medium, MediumKind, Reader, ReaderGroup, ReaderOptions, Salvaged, Sealed, Space, Writer,
};
use crate::names;
use crate::page::PAGE_BYTES;

/// Files of a directory, mapped when opened.
#[derive(Debug)]
pub struct MmapMedium {
    directory: Directory,
    /// Opened files by number.
    open_files: Mutex<HashMap<u64, Weak<MappedFile>>>,
}

impl MmapMedium {
    /// Opens the medium in `directory`, which is created if it is missing.
    ///
    /// # Errors
    /// The file system's error.
    pub fn new(directory: PathBuf) -> Result<MmapMedium> {
        Ok(MmapMedium { directory: Directory::new(directory)?, open_files: Mutex::default() })
    }

    /// Drops whole pages of a range of an open file from the mapping and the page cache, so that
    /// the next touch waits for the disk. For measurements with less memory than the machine has.
    ///
    /// # Errors
    /// `NotFound` for a file that is not open on this medium.
    pub fn forget(&self, file: &Arc<dyn Sealed>, offset: u64, bytes: usize) -> Result<()> {
        let found = self.open_files().get(&file.id()).and_then(Weak::upgrade);
        let mapped =
            found.ok_or_else(|| Error::not_found("the file is not open on this medium"))?;
        mapped.forget(offset, bytes);
        Ok(())
    }

    fn open_files(&self) -> MutexGuard<'_, HashMap<u64, Weak<MappedFile>>> {
        self.open_files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Medium for MmapMedium {
    fn kind(&self) -> MediumKind {
        MediumKind::Mmap
    }

    fn create(&self, name: &str) -> Result<Box<dyn Writer>> {
        Ok(Box::new(FileWriter::new(self.directory.create(name)?)?))
    }

    fn reopen(&self, name: &str) -> Result<Box<dyn Writer>> {
        Ok(Box::new(FileWriter::new(self.directory.reopen(name)?)?))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Sealed>> {
        let path = self.directory.file(name)?;
        let fail = |error: std::io::Error| io_error(&path, &error);
        let file = File::open(&path).map_err(fail)?;
        let bytes = file.metadata().map_err(fail)?.len() as usize;
        let mapping = if bytes == 0 {
            None
        } else {
            let mapping = Mapping::new(&file, bytes, false, libc::MAP_SHARED).map_err(fail)?;
            // Without it a fault would also read the pages around, which random reads never use.
            mapping.advise(libc::MADV_RANDOM);
            Some(mapping)
        };
        let file =
            Arc::new(MappedFile { id: names::next_id(), mapping, start: 0, bytes, path, file });
        let mut files = self.open_files();
        files.retain(|_, file| file.strong_count() > 0);
        files.insert(file.id, Arc::downgrade(&file));
        Ok(file)
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
        Ok(Box::new(InPlaceReader::new(options)?))
    }

    fn reader_group(&self) -> Option<ReaderGroup> {
        Some(ReaderGroup::InPlace)
    }
}

/// A file mapped for reading, from `start` of the mapping on.
#[derive(Debug)]
pub(crate) struct MappedFile {
    pub(crate) id: u64,
    /// `None` for an empty file, which cannot be mapped.
    pub(crate) mapping: Option<Mapping>,
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    pub(crate) path: PathBuf,
    pub(crate) file: File,
}

impl MappedFile {
    fn slice(&self) -> &[u8] {
        let mapped = self.mapping.as_ref().map_or(&[][..], Mapping::as_slice);
        mapped.get(self.start..self.start + self.bytes).unwrap_or_default()
    }

    fn forget(&self, offset: u64, bytes: usize) {
        let start = offset.next_multiple_of(PAGE_BYTES as u64);
        let end = offset.saturating_add(bytes as u64) / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let end = end.min(self.bytes as u64);
        if let Some(mapping) = self.mapping.as_ref().filter(|_| start < end) {
            // The cache can drop a page only if nothing maps it.
            mapping.forget(self.start + start as usize, (end - start) as usize);
            drop_cached(&self.file, self.start as u64 + start, end - start);
        }
    }
}

impl Sealed for MappedFile {
    fn id(&self) -> u64 {
        self.id
    }

    fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        names::within(self.path.display(), self.bytes(), offset, buffer.len())?;
        let lost = |file: &MappedFile| file.mapping.as_ref().map_or(0, Mapping::lost);
        let before = lost(self);
        buffer.copy_from_slice(&self.slice()[offset as usize..][..buffer.len()]);
        if lost(self) > before {
            let path = self.path.display();
            return Err(Error::data_loss(format!(
                "{path}: pages at {offset} are lost; restore the file"
            )));
        }
        Ok(())
    }

    fn in_place(&self) -> Option<&[u8]> {
        Some(self.slice())
    }
}
