//! A store in memory that counts, and that fails on request.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use engine::layout::MANIFEST_NAME;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio_stream::Stream;

type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T>> + Send>>;

/// A store in memory with faults.
#[derive(Debug, Default)]
pub(crate) struct FaultyStore {
    pub(crate) inner: Arc<InMemory>,
    pub(crate) lists: AtomicU64,
    /// Prefixes of all listings.
    pub(crate) listed: Mutex<Vec<String>>,
    pub(crate) gets: AtomicU64,
    /// Bytes of the answered reads.
    pub(crate) bytes: AtomicU64,
    /// Number of the read before which a publisher replaces an object, its path, and its content.
    pub(crate) replacement: Mutex<Option<(u64, Path, PutPayload)>>,
    /// Reads that succeed before every further one fails.
    pub(crate) gets_max: AtomicU64,
    /// Object whose reads are refused.
    pub(crate) refused: Mutex<Option<Path>>,
    /// Paths of all reads.
    pub(crate) read: Mutex<Vec<String>>,
    /// True if nothing answers.
    pub(crate) offline: AtomicBool,
    /// Prefix whose listings never end.
    pub(crate) silent: Mutex<Option<String>>,
    /// Next listings that show no object.
    pub(crate) empty_lists: AtomicU64,
    /// True if claims and manifests are written twice, as by a client that repeats a request.
    pub(crate) repeats_creates: AtomicBool,
}

impl FaultyStore {
    pub(crate) fn new() -> Arc<FaultyStore> {
        let store = FaultyStore::default();
        store.gets_max.store(u64::MAX, Ordering::SeqCst);
        Arc::new(store)
    }

    fn broken() -> Error {
        Error::Generic { store: "faulty", source: "the connection broke off".into() }
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}

#[async_trait::async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, at: &Path, load: PutPayload, with: PutOptions) -> Result<PutResult> {
        let is_created =
            at.filename().is_some_and(|name| name == MANIFEST_NAME || name.starts_with(".claim-"));
        if self.repeats_creates.load(Ordering::SeqCst) && is_created {
            self.inner.put_opts(at, load.clone(), with.clone()).await?;
        }
        self.inner.put_opts(at, load, with).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        with: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, with).await
    }

    async fn get_opts(&self, at: &Path, with: GetOptions) -> Result<GetResult> {
        let count = self.gets.fetch_add(1, Ordering::SeqCst);
        if self.offline.load(Ordering::SeqCst) || count >= self.gets_max.load(Ordering::SeqCst) {
            return Err(FaultyStore::broken());
        }
        self.read.lock().unwrap().push(at.to_string());
        if self.refused.lock().unwrap().as_ref() == Some(at) {
            let source = "the key has no right".into();
            return Err(Error::PermissionDenied { path: at.to_string(), source });
        }
        let due = self.replacement.lock().unwrap().take_if(|(read, ..)| *read == count);
        if let Some((_, path, content)) = due {
            self.inner.put_opts(&path, content, PutOptions::default()).await?;
        }
        let got = self.inner.get_opts(at, with).await?;
        self.bytes.fetch_add(got.range.end - got.range.start, Ordering::SeqCst);
        Ok(got)
    }

    fn delete_stream(&self, at: BoxStream<Path>) -> BoxStream<Path> {
        self.inner.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<ObjectMeta> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        let listed = prefix.map(Path::to_string).unwrap_or_default();
        self.listed.lock().unwrap().push(listed.clone());
        if *self.silent.lock().unwrap() == Some(listed) {
            return Box::pin(tokio_stream::pending());
        }
        if self.offline.load(Ordering::SeqCst) {
            return Box::pin(tokio_stream::once(Err(FaultyStore::broken())));
        }
        let one_less = |left: u64| left.checked_sub(1);
        match self.empty_lists.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) {
            Ok(_) => Box::pin(tokio_stream::empty()),
            Err(_) => self.inner.list(prefix),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, with: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, with).await
    }
}
