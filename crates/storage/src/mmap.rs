//! Files mapped through the page cache: every first touch of a page is a fault that waits for the disk. Kept to compare
//! with, since it is what the reference system did.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use base::Result;

use crate::directory::{Directory, FileWriter, io_error};
use crate::in_place::InPlaceReader;
use crate::mapping::Mapping;
use crate::medium::{Medium, MediumKind, Reader, ReaderOptions, Sealed, Writer};
use crate::names;

/// Files of a directory, mapped when they are opened.
#[derive(Debug)]
pub struct MmapMedium {
    directory: Directory,
}

impl MmapMedium {
    /// Files in `directory`, which is made where it is missing.
    ///
    /// # Errors
    /// What the file system says.
    pub fn new(directory: PathBuf) -> Result<MmapMedium> {
        Ok(MmapMedium { directory: Directory::new(directory)? })
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
            // Without it a fault would read pages around the one that is wanted, which random reads never use.
            mapping.advise(libc::MADV_RANDOM);
            Some(mapping)
        };
        Ok(Arc::new(MappedFile { id: names::next_id(), mapping, start: 0, bytes, path }))
    }

    fn load(&self, name: &str) -> Result<Vec<u8>> {
        self.directory.load(name)
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

    fn reader(&self, options: ReaderOptions) -> Result<Box<dyn Reader>> {
        Ok(Box::new(InPlaceReader::new(options)?))
    }
}

/// A file that is mapped for reading, from `start` of the mapping on.
#[derive(Debug)]
pub(crate) struct MappedFile {
    pub(crate) id: u64,
    /// `None` for an empty file, which cannot be mapped.
    pub(crate) mapping: Option<Mapping>,
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    pub(crate) path: PathBuf,
}

impl MappedFile {
    fn slice(&self) -> &[u8] {
        let mapped = self.mapping.as_ref().map_or(&[][..], Mapping::as_slice);
        mapped.get(self.start..self.start + self.bytes).unwrap_or_default()
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
            return Err(base::Error::data_loss(format!(
                "{path}: pages at {offset} are lost; restore the file"
            )));
        }
        Ok(())
    }

    fn in_place(&self) -> Option<&[u8]> {
        Some(self.slice())
    }
}
