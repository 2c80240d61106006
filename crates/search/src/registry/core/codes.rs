//! Codes of collections, which move to the medium if memory is short, and back. Also embeddings and
//! payloads that are read into free memory.

use std::time::{Duration, Instant};

use super::RegistryCore;

/// Time without a shortage of memory after which codes are read into memory. With less, codes would
/// move back and forth.
const LOAD_CODES_AGAIN: Duration = Duration::from_secs(600);

impl RegistryCore {
    /// Moves codes of the collection with the most movable codes to the medium. Returns false if
    /// there are none, or if that failed.
    pub(in crate::registry) fn move_codes(&self) -> bool {
        let sizes =
            self.ready().into_iter().map(|named| (named.collection().movable_codes(), named));
        let Some((bytes, named)) = sizes.max_by_key(|(bytes, _)| *bytes) else { return false };
        let moved = if bytes > 0 { named.collection().move_codes() } else { Ok(false) };
        *self.codes_moved.lock() = Some(Instant::now());
        moved.unwrap_or_else(|error| {
            tracing::warn!(collection = named.name(), %error, "codes cannot be moved to the medium");
            false
        })
    }

    /// Reads the embeddings or payloads of one segment into memory, as `Collection::preload`
    /// chooses them. Returns false if no collection has any that fit.
    pub(super) fn preload(&self) -> bool {
        let collections = self.ready();
        collections.iter().take_while(|_| !self.stopped()).any(|named| {
            named.collection().preload().unwrap_or_else(|error| {
                tracing::debug!(collection = named.name(), %error, "a segment stays on the medium");
                false
            })
        })
    }

    /// Reads the codes of one segment into memory. Returns false if there are none that fit, or if
    /// memory was short recently.
    pub(super) fn load_codes(&self) -> bool {
        if self.codes_moved.lock().is_some_and(|moved| moved.elapsed() < LOAD_CODES_AGAIN) {
            return false;
        }
        let collections = self.ready();
        collections.iter().take_while(|_| !self.stopped()).any(|named| {
            named.collection().load_codes().unwrap_or_else(|error| {
                tracing::warn!(collection = named.name(), %error, "codes stay on the medium");
                false
            })
        })
    }
}
