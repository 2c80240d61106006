//! Images as they were sent, in a directory or in object storage.
//!
//! The key of an original contains its hash. On one server, writing it twice changes nothing, and
//! an original without a point, as a crash can leave, is replaced by the next upload of the same
//! image. The removal of an image can remove an original that another client has just written. So
//! the writer of a point checks that first ([`Originals::keep`]). In a cluster each upload has a
//! key of its own, and the removal of an image removes old uploads.

use std::path::Path as FilePath;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use model_store::StorePlace;
use object_store::local::LocalFileSystem;
use object_store::{ObjectStoreExt, PutPayload};
use tokio_stream::StreamExt;
use transport::{ByteBudget, Reservation};

use super::config::ImagesConfig;

/// Default directory, beside the collections. No collection has a name that starts with a dot.
const DIRECTORY: &str = ".originals";

/// The store of originals, opened when it is first used.
pub(crate) struct Originals {
    config: ImagesConfig,
    store: OnceLock<StorePlace>,
    /// Number of removals by [`Originals::remove`].
    removals: AtomicU64,
}

/// An original that was written before its point.
pub(crate) struct WrittenOriginal {
    key: String,
    bytes: Bytes,
    /// Number of removals before it was written.
    removals: u64,
}

impl Originals {
    pub(crate) fn new(config: ImagesConfig) -> Originals {
        Originals { config, store: OnceLock::new(), removals: AtomicU64::new(0) }
    }

    /// Writes the original of an image whose point follows.
    ///
    /// # Errors
    /// As [`Originals::put`].
    pub(crate) async fn put_first(&self, key: String, bytes: Bytes) -> Result<WrittenOriginal> {
        let removals = self.removals.load(Ordering::SeqCst);
        self.put(&key, bytes.clone()).await?;
        Ok(WrittenOriginal { key, bytes, removals })
    }

    /// Writes an original again if it was removed since. The caller has claimed the id of the
    /// image, and writes the point before it gives the claim back.
    ///
    /// # Errors
    /// Returns the errors of the store.
    pub(crate) async fn keep(&self, original: &WrittenOriginal) -> Result<()> {
        let WrittenOriginal { key, bytes, removals } = original;
        if self.removals.load(Ordering::SeqCst) == *removals {
            return Ok(());
        }
        let store = self.store()?;
        match store.objects().head(&store.key(key)).await {
            Ok(_) => Ok(()),
            Err(object_store::Error::NotFound { .. }) => self.put(key, bytes.clone()).await,
            Err(error) => Err(failed(&error)),
        }
    }

    /// Removes the original of an image whose point was removed. The caller has claimed the id of
    /// the image since before it removed the point.
    ///
    /// # Errors
    /// Returns the errors of the store.
    pub(crate) async fn remove(&self, key: &str) -> Result<()> {
        let removed = self.delete(key).await;
        // Counted afterwards, so that an upload which wrote the original meanwhile sees the change.
        self.removals.fetch_add(1, Ordering::SeqCst);
        removed
    }

    /// Writes an image; durable once this returns.
    ///
    /// # Errors
    /// Returns the errors of the store.
    pub(crate) async fn put(&self, key: &str, bytes: Bytes) -> Result<()> {
        let store = self.store()?;
        let put = store.objects().put(&store.key(key), PutPayload::from_bytes(bytes)).await;
        put.map(drop).map_err(|error| failed(&error))
    }

    /// Reads an image.
    ///
    /// # Errors
    /// `NotFound` if it does not exist; otherwise the errors of the store.
    pub(crate) async fn get(&self, key: &str) -> Result<Bytes> {
        let store = self.store()?;
        let got = store.objects().get(&store.key(key)).await.map_err(|error| failed(&error))?;
        got.bytes().await.map_err(|error| failed(&error))
    }

    /// Reads an image for a client, in memory that is reserved for it.
    ///
    /// # Errors
    /// As [`Originals::get`]; the errors of [`ByteBudget::reserve`].
    pub(crate) async fn get_reserved(
        &self,
        key: &str,
        budget: &Arc<ByteBudget>,
    ) -> Result<(Bytes, Reservation)> {
        let store = self.store()?;
        let got = store.objects().get(&store.key(key)).await.map_err(|error| failed(&error))?;
        let memory = budget.reserve(got.meta.size)?;
        let bytes = got.bytes().await.map_err(|error| failed(&error))?;
        Ok((bytes, memory))
    }

    /// Removes an image if it exists.
    ///
    /// # Errors
    /// Returns the errors of the store.
    pub(crate) async fn delete(&self, key: &str) -> Result<()> {
        let store = self.store()?;
        match store.objects().delete(&store.key(key)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Removes the images of a space. Images that were written after `began` stay, since they
    /// belong to a new collection of the same name. S3 counts whole seconds, so an image of the
    /// same second is removed too.
    ///
    /// # Errors
    /// Returns the errors of the store.
    pub(crate) async fn delete_all(&self, space: &str, began: SystemTime) -> Result<()> {
        self.delete_if(space, |written| written <= began).await
    }

    /// Removes the images below `prefix` that were written at least `age` ago.
    ///
    /// # Errors
    /// Returns the errors of the store.
    pub(crate) async fn delete_older(&self, prefix: &str, age: Duration) -> Result<()> {
        let is_old = |written: SystemTime| {
            SystemTime::now().duration_since(written).is_ok_and(|since| since >= age)
        };
        self.delete_if(prefix, is_old).await
    }

    async fn delete_if(&self, prefix: &str, is_removed: impl Fn(SystemTime) -> bool) -> Result<()> {
        let store = self.store()?;
        let prefix = store.key(prefix);
        let mut objects = store.objects().list(Some(&prefix));
        while let Some(object) = objects.next().await {
            let object = object.map_err(|error| failed(&error))?;
            if !is_removed(SystemTime::from(object.last_modified)) {
                continue;
            }
            match store.objects().delete(&object.location).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(failed(&error)),
            }
        }
        Ok(())
    }

    fn store(&self) -> Result<&StorePlace> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        // After a failure the next caller tries again.
        let store = open(&self.config)?;
        Ok(self.store.get_or_init(|| store))
    }
}

fn open(config: &ImagesConfig) -> Result<StorePlace> {
    match &config.originals {
        Some(url) if model_store::is_url(url) => {
            let place = StorePlace::open(url, &config.originals_options);
            place.map_err(|error| error.context("--originals"))
        }
        Some(directory) => local(FilePath::new(directory)),
        None => {
            let directory = config.directory.as_deref().ok_or_else(|| {
                Error::precondition(
                    "this server has no store of original images; start it with --originals DIR or URL",
                )
            })?;
            local(&directory.join(DIRECTORY))
        }
    }
}

fn local(directory: &FilePath) -> Result<StorePlace> {
    os::private::create_dir_all(directory).map_err(|error| Error::io(directory, &error))?;
    let store = LocalFileSystem::new_with_prefix(directory).map_err(|error| failed(&error))?;
    // An acknowledged image survives a power failure.
    let store = store.with_fsync(true).with_automatic_cleanup(true);
    Ok(StorePlace::new(Arc::new(store), "", &directory.display().to_string()))
}

fn failed(error: &object_store::Error) -> Error {
    let kind = match error {
        object_store::Error::NotFound { .. } => ErrorKind::NotFound,
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => ErrorKind::FailedPrecondition,
        error if is_full(error) => {
            return Error::storage_full(format!(
                "the store of original images is full: {error}; free space, or use another disk"
            ));
        }
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("the store of original images: {error}"))
}

/// Returns true if the cause of an error is a full disk or an exhausted quota.
fn is_full(error: &object_store::Error) -> bool {
    use std::io::{Error as IoError, ErrorKind::QuotaExceeded, ErrorKind::StorageFull};
    let causes =
        std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| {
            error.source()
        });
    causes
        .filter_map(|cause| cause.downcast_ref::<IoError>())
        .any(|cause| matches!(cause.kind(), StorageFull | QuotaExceeded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_removal_leaves_what_was_written_after_it_began() {
        let dir = tempfile::tempdir().unwrap();
        let config = ImagesConfig { directory: Some(dir.path().into()), ..ImagesConfig::default() };
        let originals = Originals::new(config);
        // Times of files advance in steps of some milliseconds.
        let pause = Duration::from_millis(50);
        originals.put("a/0/old.png", Bytes::from_static(b"1")).await.unwrap();
        std::thread::sleep(pause);
        let began = SystemTime::now();
        std::thread::sleep(pause);
        originals.put("a/0/new.png", Bytes::from_static(b"2")).await.unwrap();
        originals.delete_all("a", began).await.unwrap();
        assert!(originals.get("a/0/old.png").await.is_err());
        assert!(originals.get("a/0/new.png").await.is_ok());
    }

    #[tokio::test]
    async fn an_original_that_was_removed_meanwhile_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let config = ImagesConfig { directory: Some(dir.path().into()), ..ImagesConfig::default() };
        let originals = Originals::new(config);
        let bytes = Bytes::from_static(b"1");
        let written = originals.put_first("a/0/1.png".to_owned(), bytes.clone()).await.unwrap();
        originals.remove("a/0/1.png").await.unwrap();
        assert!(originals.get("a/0/1.png").await.is_err());
        originals.keep(&written).await.unwrap();
        assert_eq!(originals.get("a/0/1.png").await, Ok(bytes));
        // The removal of another original does not write this one.
        originals.remove("a/0/2.png").await.unwrap();
        originals.keep(&written).await.unwrap();
        assert!(originals.get("a/0/1.png").await.is_ok());
    }

    #[tokio::test]
    async fn an_original_is_read_into_reserved_memory() {
        let dir = tempfile::tempdir().unwrap();
        let config = ImagesConfig { directory: Some(dir.path().into()), ..ImagesConfig::default() };
        let originals = Originals::new(config);
        originals.put("a/0/1.png", Bytes::from_static(b"123456")).await.unwrap();
        let budget = |bytes| ByteBudget::new(bytes, Arc::default());
        let large = budget(6);
        let (bytes, memory) = originals.get_reserved("a/0/1.png", &large).await.unwrap();
        assert_eq!((&bytes[..], memory.bytes(), large.used()), (&b"123456"[..], 6, 6));
        let refused = originals.get_reserved("a/0/1.png", &budget(5)).await.err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
    }
}
