//! A store of originals that holds removals until the test releases them.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt};

type StoreStream<T> = Pin<Box<dyn Stream<Item = Result<T>> + Send>>;

#[derive(Debug)]
pub(crate) struct HeldStore {
    objects: InMemory,
    /// Removals that were requested.
    held: Arc<AtomicUsize>,
    released: watch::Sender<bool>,
}

impl Default for HeldStore {
    fn default() -> HeldStore {
        HeldStore {
            objects: InMemory::new(),
            held: Arc::default(),
            released: watch::Sender::new(false),
        }
    }
}

impl HeldStore {
    /// Returns the number of removals that were requested.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    /// Lets all removals continue.
    pub(crate) fn release(&self) {
        self.released.send_replace(true);
    }
}

impl fmt::Display for HeldStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store that holds removals")
    }
}

#[async_trait::async_trait]
impl ObjectStore for HeldStore {
    async fn put_opts(&self, at: &Path, load: PutPayload, with: PutOptions) -> Result<PutResult> {
        self.objects.put_opts(at, load, with).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        with: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(at, with).await
    }

    async fn get_opts(&self, at: &Path, with: GetOptions) -> Result<GetResult> {
        self.objects.get_opts(at, with).await
    }

    fn delete_stream(&self, at: StoreStream<Path>) -> StoreStream<Path> {
        let held = self.held.clone();
        let released = self.released.subscribe();
        let wait = move |path| {
            held.fetch_add(1, Ordering::SeqCst);
            let mut released = released.clone();
            async move {
                // Fails only at the end of the test.
                let _ = released.wait_for(|released| *released).await;
                path
            }
        };
        self.objects.delete_stream(Box::pin(at.then(wait)))
    }

    fn list(&self, prefix: Option<&Path>) -> StoreStream<ObjectMeta> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, with: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, with).await
    }
}
