//! Images as they were sent, in a directory or in object storage.
//!
//! The key of an original contains its hash. On one server, writing it twice changes nothing. If
//! the point of an upload is refused, its original is removed. An original without a point, as a
//! crash can leave, is replaced by the next upload of the same image. The versions of a collection
//! share originals. An original is removed once no point of a version names it. The removal can
//! remove an original that another client has just written. So the writer of a point checks that
//! first ([`Originals::keep`]). In a cluster each upload has a key of its own. The removal of an
//! image removes old uploads, and one node removes old uploads without a point.

mod clock;
mod store_error;

use std::path::{Path as FilePath, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use base::{Error, Result};
use bytes::Bytes;
use image_features::features::{originals_of, uuid};
use model_store::StorePlace;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStoreExt, PutPayload};
use search::points::PointId;
use tokio_stream::StreamExt;
use transport::{ByteBudget, Reservation};

pub(crate) use self::store_error::failed;

use self::clock::is_clock;
use self::store_error::unread;
use super::config::{DEFAULT_ORIGINALS, ImagesConfig};

/// The store of originals, opened when it is first used.
pub(crate) struct Originals {
    config: ImagesConfig,
    store: OnceLock<StorePlace>,
    /// Number of removals by [`Originals::remove`].
    removals: AtomicU64,
    /// Number of objects that [`Originals::now`] has written to read the time of the store.
    clocks: AtomicU64,
}

/// An original that was written before its point.
pub(crate) struct WrittenOriginal {
    key: String,
    bytes: Bytes,
    /// Number of removals before it was written.
    removals: u64,
}

impl WrittenOriginal {
    /// Returns the original as one of the image `id`.
    pub(crate) fn stored(&self, id: PointId) -> StoredOriginal {
        StoredOriginal { id, key: self.key.clone() }
    }
}

/// An original in the store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(crate) struct StoredOriginal {
    /// Id of its image.
    pub(crate) id: PointId,
    pub(crate) key: String,
}

impl StoredOriginal {
    /// Returns the original of an object in `directory`, which is that of `space`. `None` if the
    /// object has no key that a server without a cluster gives to originals.
    fn of(object: &ObjectPath, directory: &ObjectPath, space: &str) -> Option<StoredOriginal> {
        let object: &str = object.as_ref();
        let directory: &str = directory.as_ref();
        let name = object.strip_prefix(directory)?.strip_prefix('/')?;
        let (id, _) = name.rsplit('/').next()?.split_once('.')?;
        let id: PointId = id.parse().ok()?;
        uuid(&id)?;
        let key = format!("{space}/{name}");
        // Another file can belong to another image, whose point names it.
        key.strip_prefix(&originals_of(&id, space))?.strip_prefix('.')?;
        Some(StoredOriginal { id, key })
    }
}

impl Originals {
    pub(crate) fn new(config: ImagesConfig) -> Originals {
        Originals {
            config,
            store: OnceLock::new(),
            removals: AtomicU64::new(0),
            clocks: AtomicU64::new(0),
        }
    }

    /// Returns the default directory of originals, which no other server uses, or `None` if another
    /// store is configured.
    pub(crate) fn own_directory(&self) -> Option<PathBuf> {
        if self.config.originals.is_some() {
            return None;
        }
        self.config.directory.as_deref().map(|directory| directory.join(DEFAULT_ORIGINALS))
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

    /// Returns true if no original was removed since this one was written. [`Originals::keep`] then
    /// does not wait for the store.
    pub(crate) fn is_kept(&self, original: &WrittenOriginal) -> bool {
        self.removals.load(Ordering::SeqCst) == original.removals
    }

    /// Writes an original again if it was removed since. The caller has claimed the id of the
    /// image, and writes the point before it releases the claim.
    ///
    /// # Errors
    /// Returns the errors of the store.
    pub(crate) async fn keep(&self, original: &WrittenOriginal) -> Result<()> {
        if self.is_kept(original) {
            return Ok(());
        }
        let WrittenOriginal { key, bytes, .. } = original;
        let store = self.store()?;
        match store.objects().head(&store.key(key)).await {
            Ok(_) => Ok(()),
            Err(object_store::Error::NotFound { .. }) => self.put(key, bytes.clone()).await,
            Err(error) => Err(failed(error)),
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

    /// Writes an image, which is durable when this returns.
    ///
    /// # Errors
    /// Returns the errors of the store.
    pub(crate) async fn put(&self, key: &str, bytes: Bytes) -> Result<()> {
        let store = self.store()?;
        let put = store.objects().put(&store.key(key), PutPayload::from_bytes(bytes)).await;
        put.map(drop).map_err(failed)
    }

    /// Reads an image.
    ///
    /// # Errors
    /// `NotFound` if it does not exist; otherwise the errors of the store.
    pub(crate) async fn get(&self, key: &str) -> Result<Bytes> {
        let store = self.store()?;
        let got = store.objects().get(&store.key(key)).await.map_err(unread)?;
        got.bytes().await.map_err(failed)
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
        let got = store.objects().get(&store.key(key)).await.map_err(unread)?;
        let memory = budget.reserve(got.meta.size)?;
        let bytes = got.bytes().await.map_err(failed)?;
        Ok((bytes, memory))
    }

    /// Removes an image if it exists.
    ///
    /// # Errors
    /// Returns the errors of the store.
    pub(crate) async fn delete(&self, key: &str) -> Result<()> {
        self.delete_object(&self.store()?.key(key)).await
    }

    async fn delete_object(&self, object: &ObjectPath) -> Result<()> {
        match self.store()?.objects().delete(object).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Calls `each` with the originals of the directory `space` that were written until `until`, at
    /// most `count_max` in a call. The times are those of the clock of the store. Removes objects
    /// of [`Originals::now`] that a crash left.
    ///
    /// # Errors
    /// Returns the errors of the store; the first error of `each`.
    pub(crate) async fn each_written_until<F>(
        &self,
        space: &str,
        until: SystemTime,
        count_max: usize,
        mut each: impl FnMut(Vec<StoredOriginal>) -> F,
    ) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        let store = self.store()?;
        let directory = store.key(space);
        let mut objects = store.objects().list(Some(&directory));
        let mut has_ended = false;
        while !has_ended {
            let mut part = Vec::new();
            while part.len() < count_max {
                let Some(object) = objects.next().await else {
                    has_ended = true;
                    break;
                };
                let object = object.map_err(failed)?;
                if SystemTime::from(object.last_modified) > until {
                    continue;
                }
                if is_clock(&object.location, &directory) {
                    self.delete_object(&object.location).await?;
                } else {
                    part.extend(StoredOriginal::of(&object.location, &directory, space));
                }
            }
            if !part.is_empty() {
                each(part).await?;
            }
        }
        Ok(())
    }

    /// Removes the images below `prefix`, a directory in `space`, that were written at least `age`
    /// ago. The age is by the store's clock, because the clock of this machine may be wrong.
    ///
    /// # Errors
    /// Returns the errors of the store.
    pub(crate) async fn delete_older(
        &self,
        space: &str,
        prefix: &str,
        age: Duration,
    ) -> Result<()> {
        let store = self.store()?;
        let prefix = store.key(prefix);
        let mut objects = store.objects().list(Some(&prefix));
        let mut store_time = None;
        while let Some(object) = objects.next().await {
            let object = object.map_err(failed)?;
            // Most images have no other upload, and then no time is read.
            let now = match store_time {
                Some(time) => time,
                None => self.store_time(space).await?,
            };
            store_time = Some(now);
            let written = SystemTime::from(object.last_modified);
            if now.duration_since(written).is_ok_and(|since| since >= age) {
                self.delete_object(&object.location).await?;
            }
        }
        Ok(())
    }

    /// Sets the store, unless it is open.
    pub(crate) fn use_store(&self, store: StorePlace) {
        // Fails only if the store is open.
        let _ = self.store.set(store);
    }

    /// Returns the store, which is opened if it is not.
    ///
    /// # Errors
    /// Returns the error of opening it.
    pub(crate) fn store(&self) -> Result<&StorePlace> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        // After a failure the next caller tries again.
        let store = open(&self.config)?;
        Ok(self.store.get_or_init(|| store))
    }
}

/// Opens the store that `--originals` names, or the default directory in the directory of the
/// collections.
///
/// # Errors
/// `FailedPrecondition` if there is neither; the errors of the store.
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
            local(&directory.join(DEFAULT_ORIGINALS))
        }
    }
}

fn local(directory: &FilePath) -> Result<StorePlace> {
    os::private::create_dir_all(directory).map_err(|error| Error::io(directory, &error))?;
    let store = LocalFileSystem::new_with_prefix(directory).map_err(failed)?;
    // An acknowledged image survives a power failure.
    let store = store.with_fsync(true).with_automatic_cleanup(true);
    Ok(StorePlace::new(Arc::new(store), "", &directory.display().to_string()))
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::future::ready;
    use std::pin::Pin;

    use base::ErrorKind;
    use object_store::memory::InMemory;
    use object_store::{
        CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
        PutMultipartOptions, PutOptions, PutResult, Result as StoreResult,
    };
    use tokio_stream::Stream;

    use super::*;

    type StoreStream<T> = Pin<Box<dyn Stream<Item = StoreResult<T>> + Send>>;

    /// Time by which the clock of [`LateStore`] is behind that of this machine.
    const LATE: Duration = Duration::from_secs(7200);

    /// A store whose clock is behind that of this machine.
    #[derive(Debug, Default)]
    struct LateStore(InMemory);

    impl fmt::Display for LateStore {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a store with a late clock")
        }
    }

    #[async_trait::async_trait]
    impl ObjectStore for LateStore {
        async fn put_opts(
            &self,
            at: &ObjectPath,
            load: PutPayload,
            with: PutOptions,
        ) -> StoreResult<PutResult> {
            self.0.put_opts(at, load, with).await
        }

        async fn put_multipart_opts(
            &self,
            at: &ObjectPath,
            with: PutMultipartOptions,
        ) -> StoreResult<Box<dyn MultipartUpload>> {
            self.0.put_multipart_opts(at, with).await
        }

        async fn get_opts(&self, at: &ObjectPath, with: GetOptions) -> StoreResult<GetResult> {
            let mut got = self.0.get_opts(at, with).await?;
            got.meta.last_modified -= LATE;
            Ok(got)
        }

        fn delete_stream(&self, at: StoreStream<ObjectPath>) -> StoreStream<ObjectPath> {
            self.0.delete_stream(at)
        }

        fn list(&self, prefix: Option<&ObjectPath>) -> StoreStream<ObjectMeta> {
            let late = |mut object: ObjectMeta| {
                object.last_modified -= LATE;
                object
            };
            Box::pin(self.0.list(prefix).map(move |object| object.map(late)))
        }

        async fn list_with_delimiter(
            &self,
            prefix: Option<&ObjectPath>,
        ) -> StoreResult<ListResult> {
            self.0.list_with_delimiter(prefix).await
        }

        async fn copy_opts(
            &self,
            from: &ObjectPath,
            to: &ObjectPath,
            with: CopyOptions,
        ) -> StoreResult<()> {
            self.0.copy_opts(from, to, with).await
        }
    }

    /// Returns originals in a store whose clock is behind.
    fn late_originals() -> Originals {
        let place = StorePlace::new(Arc::new(LateStore::default()), "", "memory");
        Originals { store: OnceLock::from(place), ..Originals::new(ImagesConfig::default()) }
    }

    #[tokio::test]
    async fn an_original_after_a_time_of_the_store_is_left_out() {
        let originals = late_originals();
        let key = |number| format!("{}.png", originals_of(&PointId::Uuid([number; 16]), "a"));
        originals.put(&key(1), Bytes::from_static(b"1")).await.unwrap();
        let until = originals.now("a").await.unwrap();
        // The times of the store differ after this.
        std::thread::sleep(Duration::from_millis(2));
        originals.put(&key(2), Bytes::from_static(b"2")).await.unwrap();
        let mut keys = Vec::new();
        let each = |part: Vec<StoredOriginal>| {
            keys.extend(part.into_iter().map(|original| original.key));
            ready(Ok(()))
        };
        originals.each_written_until("a", until, 9, each).await.unwrap();
        assert_eq!(keys, [key(1)]);
        let store = originals.store().unwrap();
        let left = store.objects().list(Some(&store.key("a"))).collect::<Vec<_>>().await;
        assert_eq!(left.len(), 2, "the object of the time is removed");
    }

    #[tokio::test]
    async fn a_removal_removes_the_clock_that_a_crash_left() {
        let originals = late_originals();
        let others = ["a/clock", "a/clock-a", "a/clock-7/1.png", "a/00/clock-7"];
        for key in others.into_iter().chain(["a/clock-7"]) {
            originals.put(key, Bytes::new()).await.unwrap();
        }
        let until = originals.now("a").await.unwrap();
        let called = |_| ready(Err(Error::internal("there is no original")));
        originals.each_written_until("a", until, 9, called).await.unwrap();
        assert!(originals.get("a/clock-7").await.is_err());
        for key in others {
            assert!(originals.get(key).await.is_ok(), "{key}");
        }
    }

    #[tokio::test]
    async fn the_age_of_an_upload_is_by_the_clock_of_the_store() {
        let originals = late_originals();
        let key = "a/00/image/upload.png";
        originals.put(key, Bytes::from_static(b"1")).await.unwrap();
        // By the clock of this machine, the upload has this age.
        originals.delete_older("a", "a/00/image", LATE).await.unwrap();
        assert!(originals.get(key).await.is_ok());
        originals.delete_older("a", "a/00/image", Duration::ZERO).await.unwrap();
        let missing = originals.get(key).await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert!(missing.message().ends_with("upload it again"), "{missing}");
    }

    #[tokio::test]
    async fn the_originals_of_a_space_are_listed_in_parts() {
        let dir = tempfile::tempdir().unwrap();
        let config = ImagesConfig { directory: Some(dir.path().into()), ..ImagesConfig::default() };
        let originals = Originals::new(config);
        let mut wanted = Vec::new();
        for number in 0..5_u8 {
            let id = PointId::Uuid([number; 16]);
            let key = format!("{}.png", originals_of(&id, "a"));
            originals.put(&key, Bytes::from_static(b"1")).await.unwrap();
            wanted.push(StoredOriginal { id, key });
        }
        let other = format!("{}.png", originals_of(&PointId::Uuid([9; 16]), "b"));
        let upload = PointId::Uuid([8; 16]);
        let of_cluster = format!("{}/{upload}.png", originals_of(&PointId::Uuid([0; 16]), "a"));
        for key in [other.as_str(), of_cluster.as_str(), "a/00/other.txt", "a/00/7.png"] {
            originals.put(key, Bytes::from_static(b"1")).await.unwrap();
        }
        let mut sizes = Vec::new();
        let mut listed = Vec::new();
        let each = |part: Vec<StoredOriginal>| {
            sizes.push(part.len());
            listed.extend(part);
            ready(Ok(()))
        };
        let until = SystemTime::now() + Duration::from_secs(3600);
        originals.each_written_until("a", until, 2, each).await.unwrap();
        listed.sort_by(|one, other| one.key.cmp(&other.key));
        assert_eq!((sizes, listed), (vec![2, 2, 1], wanted));
        let called = |_| ready(Err(Error::internal("there is no such original")));
        originals.each_written_until("none", until, 2, called).await.unwrap();
        originals.each_written_until("a", SystemTime::UNIX_EPOCH, 2, called).await.unwrap();
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
