//! Remarks about listings that have fewer models or versions than an operator may expect.

use std::time::Duration;

use engine::layout::MANIFEST_NAME;

use super::follower::Follower;
use crate::listing::{RemoteKind, StoreListing};

impl Follower {
    /// Logs that a changed listing of `objects` objects has no model, or no version of the model.
    pub(super) fn note_empty(&self, listing: &StoreListing, objects: usize) {
        let store = self.place.shown();
        if listing.is_model {
            tracing::warn!(
                store,
                "it has numbered directories, so it is one model, not a directory of models: give NAME={store}"
            );
        } else if self.source.model.is_some() {
            if listing.models.values().all(|model| model.versions.is_empty()) {
                tracing::warn!(
                    store,
                    objects,
                    "it has no version of the model: no object is at VERSION/FILE below this URL; check the path"
                );
            }
        } else if listing.models.is_empty() {
            tracing::warn!(
                store,
                objects,
                "it has no model: no object is at NAME/VERSION/FILE below this URL; check the path"
            );
        }
    }

    /// Notes why a version of the policy is not copied although nothing failed.
    pub(super) fn note_unfinished(
        &mut self,
        model: &str,
        version: u64,
        kind: RemoteKind,
        settle: Duration,
    ) {
        let text = match kind {
            RemoteKind::Published => format!(
                "version {version} is not complete in the store: its files do not have the lengths \
                 that {MANIFEST_NAME} states"
            ),
            RemoteKind::Foreign => format!(
                "version {version} is copied once its files stay the same for {} s",
                settle.as_secs()
            ),
            RemoteKind::Unfinished => format!(
                "version {version} is not complete in the store: it has no {MANIFEST_NAME}, which is \
                 uploaded last, and no file of another layout"
            ),
        };
        let note = self.unfinished.entry(model.to_owned()).or_default();
        if !note.is_empty() {
            note.push_str("; ");
        }
        note.push_str(&text);
    }
}
