//! The state of the routes.

use std::sync::Arc;
use std::time::Duration;

use api_qdrant::RegistrySource;
use base::{Error, Result};
use inference::InferenceService;
use transport::access::AccessPolicy;
use transport::{RequestResources, UploadPermit, UploadPermits};

use super::claims::Claims;
use super::config::ImagesConfig;
use super::duplicates::DuplicateJobs;
use super::ingest::Ingest;
use super::originals::Originals;
use super::pool::{Pool, PoolKind};
use super::progress::Rebuilds;
use super::services::ImageServices;

/// Most archives, folders, rebuilds and searches for duplicates at the same time. A further one is
/// refused.
const BULKS_MAX: usize = 4;
/// Retry advice to a refused client.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The state of the routes.
pub struct ImagesState {
    pub(crate) services: Arc<ImageServices>,
    pub(crate) access: Arc<AccessPolicy>,
    pub(crate) ingest: Ingest,
    pub(crate) rebuilds: Rebuilds,
    pub(crate) duplicates: DuplicateJobs,
    bulks: Arc<UploadPermits>,
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
        let services = ImageServices {
            pool: Pool::new(PoolKind::Interactive, requests.metrics.clone()),
            background: Pool::new(PoolKind::Background, requests.metrics.clone()),
            writes: Claims::default(),
            directory: config.directory.clone(),
            embedding_model: config.embedding_model.clone(),
            originals: Originals::new(config),
            requests,
            inference,
            registry,
        };
        ImagesState {
            services: Arc::new(services),
            access,
            ingest: Ingest::default(),
            rebuilds: Rebuilds::default(),
            duplicates: DuplicateJobs::default(),
            bulks: UploadPermits::new(BULKS_MAX),
        }
    }

    /// Returns the number of queued images whose caller waits.
    pub fn interactive_waiting(&self) -> usize {
        self.services.pool.waiting()
    }

    /// Returns the number of queued images of bulk work.
    pub fn bulk_waiting(&self) -> usize {
        self.ingest.waiting() + self.services.background.waiting()
    }

    /// Returns the bytes of the files that bulk work holds in memory.
    pub fn bulk_bytes(&self) -> u64 {
        self.ingest.held_bytes()
    }

    /// Returns a permit for an archive, a folder, a rebuild or a search for duplicates.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if all are taken.
    pub(crate) fn bulk_permit(&self) -> Result<UploadPermit> {
        self.bulks.try_acquire().ok_or_else(|| {
            self.services.count_refusal("images_bulk_max");
            Error::exhausted(
                "several archives, folders, rebuilds or searches for duplicates are worked on already; try again later",
            )
            .with_retry_after(RETRY_AFTER)
        })
    }
}
