//! Images that are being added to a collection, and the request that they belong to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Error, Result};
use image_features::collection::CollectionSpec;
use tokio::runtime::Handle;

use super::services::ImageServices;

/// State that the images of one request share.
pub(crate) struct IngestJob {
    pub(crate) services: Arc<ImageServices>,
    pub(crate) wanted: CollectionSpec,
    pub(crate) runtime: Handle,
    /// Flag that is set once the remaining images are not wanted.
    pub(crate) stop: Arc<AtomicBool>,
}

impl IngestJob {
    /// Creates the job of a request. Must be called on the runtime of the request.
    pub(crate) fn new(
        services: &Arc<ImageServices>,
        wanted: CollectionSpec,
        stop: Arc<AtomicBool>,
    ) -> Arc<IngestJob> {
        Arc::new(IngestJob { services: services.clone(), wanted, runtime: Handle::current(), stop })
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs work that takes locks of queries on a thread of ordinary priority, and waits for it. A
    /// thread of idle priority gets no time to release such a lock while other threads keep all
    /// cores busy. Every query would wait for it.
    ///
    /// # Errors
    /// Returns the errors of `work`; `Internal` if it panics or the server ends.
    pub(crate) fn at_ordinary_priority<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        // A new thread has the priority of the thread that starts it, so the runtime starts it.
        let work = self.runtime.spawn(async { tokio::task::spawn_blocking(work).await });
        let ended = self.runtime.block_on(work).and_then(|ended| ended);
        ended
            .map_err(|error| Error::internal("work on a collection ended early").caused_by(error))?
    }
}
