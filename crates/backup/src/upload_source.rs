//! Content that is sent to a store: a file of a collection, or an object of another store.

use base::{Error, ErrorKind, Result};
use object_store::ObjectStoreExt;
use object_store::path::Path as Key;
use os::{AlignedBuffer, DirectFile};
use parking_lot::Mutex;
use search::collection::PinnedReader;

use crate::store::BackupStore;

/// Content that is sent to a store.
pub(crate) enum UploadSource<'a> {
    /// A file of a collection of this machine.
    File(&'a PinnedReader<'a>),
    /// An object of a store.
    Object(StoredSource<'a>),
}

/// An object of a store, and its bytes.
pub(crate) struct StoredSource<'a> {
    store: &'a BackupStore,
    key: Key,
    bytes: u64,
    /// The object's file, if the store is a directory of this machine.
    local: Option<Mutex<LocalSource>>,
}

struct LocalSource {
    file: DirectFile,
    buffer: AlignedBuffer,
}

impl<'a> StoredSource<'a> {
    /// Opens the object at `key`, which has `bytes` bytes. It is read in steps of at most
    /// `step_bytes`.
    ///
    /// # Errors
    /// `NotFound` for a missing file of this machine, `DataLoss` for a shorter one; the error of
    /// the file system.
    pub(crate) fn open(
        store: &'a BackupStore,
        key: Key,
        bytes: u64,
        step_bytes: usize,
    ) -> Result<StoredSource<'a>> {
        let local = match store.local_path(&key)? {
            Some(path) => {
                let file = DirectFile::open_direct(&path)?;
                if file.bytes() < bytes {
                    return Err(shortened(&key, bytes));
                }
                let buffer = AlignedBuffer::new(step_bytes);
                Some(Mutex::new(LocalSource { file, buffer }))
            }
            None => None,
        };
        Ok(StoredSource { store, key, bytes, local })
    }

    /// Fills `part` from `at` on. Returns false for a store over the network, for which one request
    /// for all steps is better.
    fn read_step(&self, at: u64, part: &mut [u8]) -> Result<bool> {
        let Some(local) = &self.local else { return Ok(false) };
        let LocalSource { file, buffer } = &mut *local.lock();
        let found = file.read_block(buffer, at, part.len())?;
        if found.len() != part.len() {
            return Err(shortened(&self.key, self.bytes));
        }
        part.copy_from_slice(found);
        Ok(true)
    }
}

fn shortened(key: &Key, bytes: u64) -> Error {
    Error::data_loss(format!("object {key}: it has less than {bytes} bytes"))
}

impl UploadSource<'_> {
    /// Returns the length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            UploadSource::File(file) => file.bytes(),
            UploadSource::Object(object) => object.bytes,
        }
    }

    /// Fills `part`, the bytes from `at` on, if the source is read in small steps. Otherwise
    /// returns false: [`UploadSource::fetch`] then reads the whole part.
    ///
    /// # Errors
    /// The error of the medium; `DataLoss` for an object that is shorter than its list says.
    pub(crate) fn read_step(&self, at: u64, part: &mut [u8]) -> Result<bool> {
        match self {
            UploadSource::File(file) => file.read_at(at, part).map(|()| true),
            UploadSource::Object(object) => object.read_step(at, part),
        }
    }

    /// Fills `part`, the bytes from `at` on, with one request to the store.
    ///
    /// # Errors
    /// The store's error; `DataLoss` for an object that is missing or shorter than its list says.
    pub(crate) async fn fetch(&self, at: u64, part: &mut [u8]) -> Result<()> {
        let UploadSource::Object(object) = self else {
            return self.read_step(at, part).map(drop);
        };
        let range = at..at + part.len() as u64;
        let got = object.store.raw().get_range(&object.key, range).await;
        let got = got.map_err(|error| match object.store.failed(error) {
            missing if missing.kind() == ErrorKind::NotFound => {
                Error::data_loss(format!("object {}: it is missing", object.key))
            }
            error => error,
        })?;
        if got.len() != part.len() {
            return Err(shortened(&object.key, object.bytes));
        }
        part.copy_from_slice(&got);
        Ok(())
    }
}
