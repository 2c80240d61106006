//! Copies of versions that have failed.
//!
//! A listing compares the lengths of a copy's files. Their content is compared with the hashes of
//! the manifest only if the version has failed, because that reads all of it.

use std::collections::BTreeSet;

use super::follower::{Follower, SyncContext};
use crate::hashed_file::is_intact;

impl Follower {
    /// Checks each copy whose version has failed, once for each failure. A damaged one is fetched
    /// again. If other versions have failed than at the last listing, the wanted ones are chosen
    /// again.
    pub(super) async fn check_failed(&mut self, context: &SyncContext<'_>) {
        let copies = self.cache.versions().into_iter().map(|copy| (copy.model, copy.version));
        let failed: BTreeSet<(String, u64)> =
            copies.filter(|(model, version)| (context.has_failed)(model, *version)).collect();
        if failed == self.checked {
            return;
        }
        self.copied = None;
        self.checked.retain(|key| failed.contains(key));
        for key in failed {
            if self.checked.contains(&key) {
                continue;
            }
            let model = key.0.as_str();
            let version = key.1;
            if !is_intact(&self.cache.version_dir(model, version), context.pacer).await {
                tracing::warn!(model, version, "its copy is damaged and is fetched again");
                if let Err(error) = self.cache.forget(model, version) {
                    tracing::error!(model, version, %error, "a damaged copy stays");
                }
            }
            self.checked.insert(key);
        }
    }
}
