//! Files mapped through the page cache. Every first touch of a page is a fault that waits for the
//! disk. Kept for comparison: the reference system worked this way.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use base::{Error, ErrorKind, Result};

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
            let mapping = Mapping::read_only(&file, bytes).map_err(fail)?;
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

    /// Drops the whole pages of a range from the mapping and the page cache, so that the next load
    /// reads the disk.
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
        names::check_within(self.path.display(), self.bytes(), offset, buffer.len())?;
        if self.lost_pages() == 0 {
            buffer.copy_from_slice(&self.slice()[offset as usize..][..buffer.len()]);
            if self.lost_pages() == 0 {
                return Ok(());
            }
        }
        // A lost page is zeros in the mapping and raises no second signal. Only the file tells if
        // it is one of these pages.
        let position = self.start as u64 + offset;
        self.file.read_exact_at(buffer, position).map_err(|error| {
            let error = io_error(&self.path, &error);
            match error.kind() {
                ErrorKind::DataLoss => {
                    error.context(format_args!("pages at {offset} are lost; restore the file"))
                }
                _ => error,
            }
        })
    }

    fn in_place(&self) -> Option<&[u8]> {
        Some(self.slice())
    }

    fn lost_pages(&self) -> u32 {
        self.mapping.as_ref().map_or(0, Mapping::lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_read_finds_the_lost_pages() {
        let directory = tempfile::tempdir().unwrap();
        let medium = MmapMedium::new(directory.path().to_owned()).unwrap();
        let written = vec![7; 4 * PAGE_BYTES];
        let mut writer = medium.create("f").unwrap();
        writer.append(&written).unwrap();
        drop(writer);
        let file = medium.open("f").unwrap();
        let path = directory.path().join("f");
        let kept = 3 * PAGE_BYTES;
        File::options().write(true).open(path).unwrap().set_len(kept as u64).unwrap();
        // The first read of the whole file replaces the page in the mapping by zeros.
        for _ in 0..2 {
            let read = |offset: u64, part: &mut [u8]| file.read_at(offset, part);
            let found = Salvaged::read(written.len(), read).unwrap();
            assert_eq!(found.lost, [3]);
            assert_eq!(found.bytes[..kept], written[..kept]);
        }
    }
}
