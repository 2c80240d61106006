//! Recordings: from an upload, or a file, through a served model to labels.
//!
//! Each recording has two threads of its own: "audio-N-in" waits for its bytes and decodes them,
//! "audio-N" asks the inference workers and writes the answer, so that labels leave while an upload
//! is silent. There are as many pairs as [`AudioConfig::recordings_max`](crate::AudioConfig)
//! places. The door's tasks only carry bytes: [`upload`] from the connection to the one thread,
//! [`results`] back from the other, both bounded, so that a recording of any length needs the same
//! memory. [`served`] is how the pipeline runs a model, [`find`] which models are recognisers,
//! [`voices`] who is enrolled.

mod answer;
mod door;
mod find;
mod form;
mod listen;
mod served;
mod spool;
#[cfg(test)]
mod tests;
mod voices;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use audio::speakers::Speakers;
use base::{Error, Result};

use transport::UploadPermits;

use crate::config::AudioConfig;
pub(crate) use door::routes;
pub(crate) use find::find;
pub(crate) use served::ServedModel;

/// How long shutdown waits for threads whose clients have been cut off.
const END_WAIT_MAX: Duration = Duration::from_secs(10);

/// What recordings share.
pub(crate) struct Recordings {
    config: AudioConfig,
    permits: Arc<UploadPermits>,
    /// One store a recogniser, opened when it is first asked for.
    speakers: Mutex<BTreeMap<String, Speakers>>,
}

impl Recordings {
    pub(crate) fn new(config: AudioConfig) -> Recordings {
        Recordings {
            permits: UploadPermits::new(config.recordings_max),
            speakers: Mutex::default(),
            config,
        }
    }

    /// Recordings that are being listened to.
    pub(crate) fn active(&self) -> usize {
        self.permits.taken()
    }

    /// Waits, for a while, until no thread listens any more.
    pub(crate) fn wait_ended(&self) {
        if !self.permits.wait_free(END_WAIT_MAX) {
            tracing::warn!(recordings = self.active(), "recordings were cut off");
        }
    }

    /// Who is enrolled with a recogniser, whose name must be that of a served model.
    ///
    /// # Errors
    /// `FailedPrecondition` where there is no place for speakers; those of the store's file.
    fn speakers(&self, recogniser: &str) -> Result<Speakers> {
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
        let mut open = self.speakers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(speakers) = open.get(recogniser) {
            return Ok(speakers.clone());
        }
        os::private::create_dir_all(dir).map_err(|error| Error::io(dir, &error))?;
        let speakers = Speakers::open_or_set_aside(&dir.join(format!("{recogniser}.json")))?;
        open.insert(recogniser.to_owned(), speakers.clone());
        Ok(speakers)
    }
}
