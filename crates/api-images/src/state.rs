//! The state of the routes.

use std::sync::{Arc, OnceLock};

use api_qdrant::RegistrySource;
use base::Result;
use inference::InferenceService;
use model_store::StorePlace;
use tokio::runtime::Handle;
use transport::access::AccessPolicy;
use transport::{RequestResources, UploadPermit};

use super::addition_limit::AdditionLimit;
use super::bulk_requests::BulkResources;
use super::claims::Claims;
use super::config::ImagesConfig;
use super::duplicates::DuplicateJobs;
use super::ingest::Ingest;
use super::originals::Originals;
use super::pool::{Pool, PoolKind};
use super::progress::Rebuilds;
use super::removal_task;
use super::removed_collections::RemovedCollections;
use super::services::ImageServices;
use super::uploads::RunningUploads;

/// The state of the routes.
pub struct ImagesState {
    pub(crate) services: Arc<ImageServices>,
    pub(crate) ingest: Ingest,
    pub(crate) rebuilds: Rebuilds,
    pub(crate) duplicates: DuplicateJobs,
    pub(crate) bulk: Arc<BulkResources>,
    pub(crate) uploads: Arc<RunningUploads>,
}

impl ImagesState {
    /// Creates the state. Threads start with the first image.
    pub fn new(
        config: ImagesConfig,
        requests: Arc<RequestResources>,
        access: Arc<AccessPolicy>,
        inference: Arc<InferenceService>,
        registry: Arc<dyn RegistrySource>,
    ) -> ImagesState {
        let directory = config.directory.clone();
        let store = config.originals_name();
        let metrics = requests.metrics.clone();
        let removed = RemovedCollections::new(directory.as_deref(), store, metrics);
        let bulk = BulkResources::new(requests.clone(), access, directory);
        let bulk = bulk.with_registry(registry.clone());
        let services = ImageServices {
            pool: Pool::new(PoolKind::Interactive, requests.metrics.clone()),
            background: Pool::new(PoolKind::Background, requests.metrics.clone()),
            store_waits: Pool::new(PoolKind::StoreWaits, requests.metrics.clone()),
            additions: AdditionLimit::default(),
            writes: Claims::default(),
            embedding_model: config.embedding_model.clone(),
            originals: Originals::new(config),
            removed,
            removal_runtime: OnceLock::new(),
            requests,
            inference,
            registry,
        };
        ImagesState {
            services: Arc::new(services),
            ingest: Ingest::default(),
            rebuilds: Rebuilds::default(),
            duplicates: DuplicateJobs::default(),
            bulk: Arc::new(bulk),
            uploads: Arc::default(),
        }
    }

    /// Keeps originals in `store`. For tests, before the first request.
    #[doc(hidden)]
    pub fn use_originals(&self, store: StorePlace) {
        self.services.originals.use_store(store);
    }

    /// Returns the number of images whose points are being written or removed. For tests.
    #[doc(hidden)]
    pub fn images_claimed(&self) -> usize {
        self.services.writes.claimed()
    }

    /// Continues to remove the originals of collections that the last process removed. This task
    /// and all later ones run on `runtime`.
    pub fn resume_removals(&self, runtime: &Handle) {
        removal_task::resume(&self.services, runtime);
    }

    /// Reports removed collections whose originals the last process has not all removed. For a node
    /// of a cluster, which has another store of originals.
    pub fn report_removals(&self) {
        self.services.removed.report();
    }

    /// Returns the number of queued images whose caller waits.
    pub fn interactive_waiting(&self) -> usize {
        self.services.pool.waiting()
    }

    /// Returns the number of images that are being added one by one, also those whose clients have
    /// disconnected. For tests.
    #[doc(hidden)]
    pub fn additions_running(&self) -> usize {
        self.services.additions.running()
    }

    /// Returns the number of queued images of bulk work.
    pub fn bulk_waiting(&self) -> usize {
        self.ingest.waiting() + self.services.background.waiting()
    }

    /// Returns the number of bytes of the files that bulk work holds in memory. For tests.
    #[doc(hidden)]
    pub fn bulk_bytes(&self) -> u64 {
        self.bulk.files().bytes()
    }

    /// Returns the limits of requests with many images.
    pub fn bulk(&self) -> &Arc<BulkResources> {
        &self.bulk
    }

    /// Returns a permit for an archive, a folder, a rebuild or a search for duplicates.
    ///
    /// # Errors
    /// As [`BulkResources::permit`].
    pub(crate) async fn bulk_permit(&self) -> Result<UploadPermit> {
        self.bulk.permit().await
    }

    /// Returns a permit as [`ImagesState::bulk_permit`] does, but does not wait for one.
    ///
    /// # Errors
    /// As [`BulkResources::permit`].
    pub(crate) fn bulk_permit_now(&self) -> Result<UploadPermit> {
        self.bulk.permit_now()
    }
}
