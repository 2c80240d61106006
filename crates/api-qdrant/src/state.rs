//! State that the routes share.

use std::pin::Pin;
use std::sync::Arc;

use backup::BackupService;
use base::Result;
use search::points::PointSelection;
use search::registry::{NamedCollection, Registry};
use transport::access::AccessPolicy;
use transport::{RequestResources, UploadPermits};

use crate::snapshots::SNAPSHOTS_MAX;
use crate::write_threads::WriteThreads;

/// A future of a trait object's method.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The registry, which may not be open yet.
pub trait RegistrySource: Send + Sync {
    /// Returns the registry, and opens it if it is not open yet.
    ///
    /// # Errors
    /// `FailedPrecondition` if the server has no collections; errors of the file system.
    fn registry(&self) -> Result<Arc<Registry>>;

    /// Returns the registry if it is open.
    fn opened(&self) -> Option<Arc<Registry>>;
}

/// Collections of images. Their points have keypoints, and their originals lie outside the
/// collection.
pub trait ImageCollections: Send + Sync {
    /// Returns true if the collection holds images.
    fn holds_images(&self, named: &NamedCollection) -> bool;

    /// Returns the name of the model that embeds the images of a new collection if the request
    /// names no model. Returns `None` if there is none, or while it is loading.
    fn default_model(&self) -> Option<String>;

    /// Removes a collection of images, durably. The originals that no other version of it names are
    /// removed in the background. Returns false, and does nothing, if `name` is not a collection's
    /// own name or the collection holds no images.
    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool>>;

    /// Deletes points of the collection `name`, and the originals that no other version of the
    /// collection names. Returns false, and deletes nothing, if the collection holds no images.
    ///
    /// Blocks the thread, which has entered a runtime. The caller must not hold
    /// [`Registry::writing`]: this waits for uploads of the same images, and they need it.
    ///
    /// # Errors
    /// As [`NamedCollection::delete`] and [`NamedCollection::delete_where`]; the errors of the
    /// store of originals, after which points are deleted. Their originals are removed later.
    fn delete_points(&self, name: &str, selection: &PointSelection) -> Result<bool>;
}

/// The state of the routes.
pub struct CollectionsState {
    pub(crate) requests: Arc<RequestResources>,
    pub(crate) registry: Arc<dyn RegistrySource>,
    pub(crate) images: Arc<dyn ImageCollections>,
    pub(crate) write_threads: WriteThreads,
    pub(crate) access: Arc<AccessPolicy>,
    pub(crate) backups: Arc<BackupService>,
    pub(crate) snapshots_received: Arc<UploadPermits>,
    pub(crate) snapshots_downloaded: Arc<UploadPermits>,
}

impl CollectionsState {
    /// Creates the state. Threads for writes start with the first write.
    pub fn new(
        requests: Arc<RequestResources>,
        registry: Arc<dyn RegistrySource>,
        images: Arc<dyn ImageCollections>,
        access: Arc<AccessPolicy>,
        backups: Arc<BackupService>,
    ) -> CollectionsState {
        CollectionsState {
            requests,
            registry,
            images,
            write_threads: WriteThreads::default(),
            access,
            backups,
            snapshots_received: UploadPermits::new(SNAPSHOTS_MAX),
            snapshots_downloaded: UploadPermits::new(SNAPSHOTS_MAX),
        }
    }
}
