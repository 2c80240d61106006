//! The state of the routes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use audio::speakers::Speakers;
use base::{Error, Result};
use inference::InferenceService;
use lifecycle::Catalog;
use parking_lot::Mutex;
use schedule::Scheduler;
use transport::access::AccessPolicy;
use transport::{RequestResources, UploadPermits};

use super::config::AudioConfig;

/// Longest wait at shutdown for threads whose clients have been disconnected.
const END_WAIT_MAX: Duration = Duration::from_secs(10);

/// The state of the routes.
pub struct AudioState {
    pub(crate) config: AudioConfig,
    pub(crate) requests: Arc<RequestResources>,
    pub(crate) access: Arc<AccessPolicy>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) permits: Arc<UploadPermits>,
    inference: Arc<InferenceService>,
    /// One store per recogniser, opened when it is first used.
    speakers: Mutex<BTreeMap<String, Speakers>>,
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
            speakers: Mutex::default(),
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

    /// Returns the enrolled speakers of a recogniser, which must be the name of a served model.
    ///
    /// # Errors
    /// `FailedPrecondition` if the server has no directory for speakers; errors of the store's
    /// file.
    pub(crate) fn speakers(&self, recogniser: &str) -> Result<Speakers> {
        let dir = self.config.speakers_dir.as_ref().ok_or_else(|| {
            Error::precondition(
                "this server has no directory for speakers; start it with --speakers-dir DIR",
            )
        })?;
        if recogniser.starts_with('.') || recogniser.contains(['/', '\\', '\0']) {
            return Err(Error::precondition(format!(
                "\"{recogniser}\" cannot be the name of a file of speakers"
            )));
        }
        let mut open = self.speakers.lock();
        if let Some(speakers) = open.get(recogniser) {
            return Ok(speakers.clone());
        }
        os::private::create_dir_all(dir).map_err(|error| Error::io(dir, &error))?;
        let speakers = Speakers::open_or_set_aside(&dir.join(format!("{recogniser}.json")))?;
        open.insert(recogniser.to_owned(), speakers.clone());
        Ok(speakers)
    }
}
