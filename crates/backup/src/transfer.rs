//! Transfer of files to and from the store: in parts, at a limited rate, with checksums.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use object_store::path::Path as Key;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};
use os::{AlignedBuffer, DirectFile, Pacer};
use search::collection::PinnedReader;

use crate::list::BackupFile;
use crate::local_object::LocalObject;
use crate::store::BackupStore;
use crate::upload_source::UploadSource;

/// Bytes of one part of an upload. Stores take parts of 5 MiB and more.
const PART_BYTES: u64 = 8 << 20;
/// Maximum bytes of a file for a store without uploads in parts. The file is held in memory.
const WHOLE_BYTES_MAX: u64 = 512 << 20;
/// Maximum parts of one object. S3 permits 10,000.
const PARTS_MAX: u64 = 9_000;
/// Bytes that are read and hashed at once, and in a directory also written at once. A search whose
/// read waits for one of them waits a fraction of a millisecond.
pub(crate) const STEP_BYTES: usize = 256 << 10;

/// Progress of a backup or of other work on the store. Other threads read it.
#[derive(Debug, Default)]
pub struct BackupProgress {
    total: AtomicU64,
    done: AtomicU64,
    moved: AtomicU64,
    stop: AtomicBool,
}

impl BackupProgress {
    /// Returns the number of bytes of all files of the work; 0 before they are known.
    pub fn bytes_total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes of complete files, including files that the store had already.
    pub fn bytes_done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes sent to the store or received from it.
    pub fn bytes_moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Requests that the work ends early.
    pub fn stop(&self) {
        // The caller looks for the results of the work afterwards.
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Checks that the work should continue.
    ///
    /// # Errors
    /// `Cancelled` after [`BackupProgress::stop`].
    pub(crate) fn check(&self) -> Result<()> {
        if self.stop.load(Ordering::SeqCst) {
            Err(Error::cancelled("the server is shutting down"))
        } else {
            Ok(())
        }
    }

    pub(crate) fn set_total(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_done(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    fn add_moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        self.add_done(bytes);
    }
}

/// The store, the rate and the progress of work.
#[derive(Clone, Copy)]
pub struct BackupContext<'a> {
    /// Store that backups are written to and read from.
    pub store: &'a BackupStore,
    /// Limit of the bytes per second that are read, sent and received.
    pub pacer: &'a Pacer,
    /// Counts of bytes, which other threads may read during the work.
    pub progress: &'a BackupProgress,
}

impl BackupContext<'_> {
    /// Waits until the rate permits `bytes` more.
    pub(crate) async fn pace(&self, bytes: u64) -> Result<()> {
        self.progress.check()?;
        tokio::time::sleep_until(self.pacer.reserve(bytes).into()).await;
        Ok(())
    }

    /// Returns the BLAKE3 hash of a file of this machine. The caller counts the progress.
    pub(crate) async fn hash(&self, file: &PinnedReader<'_>) -> Result<String> {
        let file = UploadSource::File(file);
        let mut hasher = blake3::Hasher::new();
        let mut at = 0;
        while at < file.bytes() {
            let part = self.read(&file, at, PART_BYTES.min(file.bytes() - at), &mut hasher).await?;
            at += part.len() as u64;
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Uploads content and returns its BLAKE3 hash.
    pub(crate) async fn upload(&self, file: &UploadSource<'_>, key: &Key) -> Result<String> {
        if let Some(path) = self.store.local_path(key)? {
            return self.upload_local(file, path).await;
        }
        if file.bytes() <= PART_BYTES {
            return self.upload_whole(file, key).await;
        }
        let objects = self.store.raw();
        let mut parts = match objects.put_multipart(key).await {
            // WebDAV takes whole files only.
            Err(object_store::Error::NotImplemented { .. }) => {
                return self.upload_whole(file, key).await;
            }
            parts => parts.map_err(|error| self.store.failed(error))?,
        };
        let mut hasher = blake3::Hasher::new();
        match self.upload_parts(file, parts.as_mut(), &mut hasher).await {
            Ok(()) => {
                parts.complete().await.map_err(|error| self.store.failed(error))?;
                Ok(hasher.finalize().to_hex().to_string())
            }
            Err(error) => {
                // Otherwise the store keeps, and bills, the parts.
                let _ = parts.abort().await;
                Err(error)
            }
        }
    }

    /// Writes a file into a directory of this machine.
    async fn upload_local(&self, file: &UploadSource<'_>, path: PathBuf) -> Result<String> {
        let mut object = LocalObject::create(path, file.bytes())?;
        let mut hasher = blake3::Hasher::new();
        let mut at = 0;
        while at < file.bytes() {
            let length = (STEP_BYTES as u64).min(file.bytes() - at);
            object.write(&self.read(file, at, length, &mut hasher).await?, at)?;
            self.progress.add_moved(length);
            at += length;
        }
        object.finish()?;
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Uploads a file in one request, from memory.
    async fn upload_whole(&self, file: &UploadSource<'_>, key: &Key) -> Result<String> {
        let bytes = file.bytes();
        if bytes > WHOLE_BYTES_MAX {
            return Err(Error::too_large(format!(
                "{bytes} bytes, and {} takes files of at most {WHOLE_BYTES_MAX}, since it has no \
                 uploads in parts; use a directory, s3://, gs:// or az://",
                self.store.shown()
            )));
        }
        let mut hasher = blake3::Hasher::new();
        let content = self.read(file, 0, bytes, &mut hasher).await?;
        self.store.put(key, content.into()).await?;
        self.progress.add_moved(bytes);
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Uploads a file in parts, one after the other, and adds its bytes to `hasher`. All parts but
    /// the last one have the same length.
    async fn upload_parts(
        &self,
        file: &UploadSource<'_>,
        parts: &mut dyn MultipartUpload,
        hasher: &mut blake3::Hasher,
    ) -> Result<()> {
        let bytes = file.bytes();
        let part_bytes = PART_BYTES.max(bytes.div_ceil(PARTS_MAX).next_multiple_of(1 << 20));
        let mut at = 0;
        while at < bytes {
            let length = part_bytes.min(bytes - at);
            let content = self.read(file, at, length, hasher).await?;
            let sent = parts.put_part(PutPayload::from(content)).await;
            sent.map_err(|error| self.store.failed(error))?;
            self.progress.add_moved(length);
            at += length;
        }
        Ok(())
    }

    /// Reads and hashes a part of a file in steps, so that no burst disturbs searches.
    async fn read(
        &self,
        file: &UploadSource<'_>,
        at: u64,
        bytes: u64,
        hasher: &mut blake3::Hasher,
    ) -> Result<Bytes> {
        let bytes = usize::try_from(bytes)
            .map_err(|_| Error::too_large(format!("a part of {bytes} bytes")))?;
        let mut content = vec![0; bytes];
        let mut fetched = false;
        for start in (0..bytes).step_by(STEP_BYTES) {
            let end = (start + STEP_BYTES).min(bytes);
            self.pace((end - start) as u64).await?;
            if !fetched && !file.read_step(at + start as u64, &mut content[start..end])? {
                file.fetch(at, &mut content).await?;
                fetched = true;
            }
            hasher.update(&content[start..end]);
        }
        Ok(content.into())
    }

    /// Downloads an object, passes its pieces to `each`, and compares length and checksum.
    ///
    /// # Errors
    /// `DataLoss` that names the object if it is missing, shortened or changed; the errors of the
    /// store and of `each`.
    pub(crate) async fn download(
        &self,
        collection: &str,
        file: &BackupFile,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let key = self.store.object_key(collection, &file.object);
        let received = match self.store.local_path(&key)? {
            Some(path) => self.receive_local(file, &path, &mut each).await,
            None => self.receive(file, &key, &mut each).await,
        };
        if received?.to_hex().as_str() == file.blake3 {
            Ok(())
        } else {
            Err(damaged_object(file, "it does not match its checksum"))
        }
    }

    /// Downloads an object in ranges, since a store ends an answer that takes long. Returns its
    /// checksum.
    async fn receive(
        &self,
        file: &BackupFile,
        key: &Key,
        each: &mut impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<blake3::Hash> {
        let failed = |error: object_store::Error| match error {
            object_store::Error::NotFound { .. } => damaged_object(file, "it is missing"),
            error => self.store.failed(error),
        };
        check_length(file, self.store.raw().head(key).await.map_err(failed)?.size)?;
        let mut hasher = blake3::Hasher::new();
        let mut at = 0;
        while at < file.bytes {
            let end = (at + PART_BYTES).min(file.bytes);
            self.progress.check()?;
            let part = self.store.raw().get_range(key, at..end).await.map_err(failed)?;
            if part.len() as u64 != end - at {
                return Err(damaged_object(
                    file,
                    &format!("it ends at byte {}", at + part.len() as u64),
                ));
            }
            for step in part.chunks(STEP_BYTES) {
                self.pace(step.len() as u64).await?;
                hasher.update(step);
                each(step)?;
            }
            self.progress.add_moved(end - at);
            at = end;
        }
        Ok(hasher.finalize())
    }

    /// Reads an object from a directory of this machine, past the page cache. Returns its checksum.
    async fn receive_local(
        &self,
        file: &BackupFile,
        path: &Path,
        each: &mut impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<blake3::Hash> {
        let mut source = DirectFile::open_direct(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => damaged_object(file, "it is missing"),
            _ => error,
        })?;
        check_length(file, source.bytes())?;
        let mut buffer = AlignedBuffer::new(STEP_BYTES);
        let mut hasher = blake3::Hasher::new();
        let mut at = 0;
        while at < file.bytes {
            let length = (STEP_BYTES as u64).min(file.bytes - at);
            self.pace(length).await?;
            let step = source.read_block(&mut buffer, at, length as usize)?;
            hasher.update(step);
            each(step)?;
            self.progress.add_moved(length);
            at += length;
        }
        Ok(hasher.finalize())
    }
}

/// Returns the error for an object that is not as the list says.
fn damaged_object(file: &BackupFile, why: &str) -> Error {
    Error::data_loss(format!("object {}: {why}", file.object))
}

fn check_length(file: &BackupFile, found: u64) -> Result<()> {
    if found == file.bytes {
        Ok(())
    } else {
        Err(damaged_object(
            file,
            &format!("it has {found} bytes, and the list says {}", file.bytes),
        ))
    }
}
