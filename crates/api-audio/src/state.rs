//! The state of the routes.

use std::sync::Arc;
use std::time::Duration;

use inference::InferenceService;
use lifecycle::Catalog;
use schedule::Scheduler;
use transport::access::AccessPolicy;
use transport::{RequestResources, UploadPermits};

use super::config::AudioConfig;
use super::speaker_registry::SpeakerRegistry;

/// Longest wait at shutdown for threads whose clients have been disconnected.
const END_WAIT_MAX: Duration = Duration::from_secs(10);

/// The state of the routes.
pub struct AudioState {
    pub(crate) config: AudioConfig,
    pub(crate) requests: Arc<RequestResources>,
    pub(crate) access: Arc<AccessPolicy>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) permits: Arc<UploadPermits>,
    pub(crate) speakers: SpeakerRegistry,
    inference: Arc<InferenceService>,
}

impl AudioState {
    /// Creates the state. Threads start with each recording.
    pub fn new(
        config: AudioConfig,
        requests: Arc<RequestResources>,
        access: Arc<AccessPolicy>,
        inference: Arc<InferenceService>,
        scheduler: Arc<Scheduler>,
    ) -> AudioState {
        AudioState {
            permits: UploadPermits::new(config.recordings_max),
            speakers: SpeakerRegistry::new(config.speakers_dir.clone()),
            config,
            requests,
            access,
            scheduler,
            inference,
        }
    }

    pub(crate) fn catalog(&self) -> &Catalog {
        self.inference.catalog()
    }

    /// Returns the number of recordings that are being processed.
    pub fn active(&self) -> usize {
        self.permits.taken()
    }

    /// Waits up to ten seconds until no recording is being processed.
    pub fn wait_ended(&self) {
        if !self.permits.wait_free(END_WAIT_MAX) {
            tracing::warn!(recordings = self.active(), "recordings were cut off");
        }
    }
}
