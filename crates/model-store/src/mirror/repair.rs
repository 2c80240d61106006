//! Copies of versions that have failed.
//!
//! A listing compares the lengths of a copy's files. Their content is compared with the hashes of
//! the manifest only if the version has failed, because that reads all of it.

use std::collections::BTreeSet;

use super::follower::{Follower, SyncContext};
use crate::hashed_file::is_intact;

/// Maximum number of times that the damaged copy of a version is fetched again while the server
/// runs. A disk that damages more copies must be replaced.
const REPAIRS_MAX: u32 = 3;

impl Follower {
    /// Returns true if a version has failed and no copied version of its model is in use, so that
    /// an earlier one should be copied.
    ///
    /// While one is in use, the copies stay as they are. An earlier version that was withdrawn and
    /// then removed must not come back as a new one.
    pub(super) fn needs_fallback(&self, context: &SyncContext, model: &str, version: u64) -> bool {
        let is_used = |version| (context.in_use)(&self.source.models_dir, model, version);
        // Hundreds of models may fail, so the copies of other models are not read.
        (context.has_failed)(model, version) && !self.cache.numbers(model).into_iter().any(is_used)
    }

    /// Checks each copy whose version has failed, once for each failure. A damaged one is fetched
    /// again. If other versions have failed than at the last check, this listing or the next one
    /// chooses the wanted ones again.
    pub(super) async fn check_failed(&mut self, context: &SyncContext) {
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
            if !is_intact(&self.cache.version_dir(model, version), &context.pacer).await {
                self.repair(model, version);
            }
            self.checked.insert(key);
        }
    }

    /// Lets the next copy fetch a damaged version again.
    fn repair(&mut self, model: &str, version: u64) {
        let repairs = self.repairs.entry((model.to_owned(), version)).or_default();
        if *repairs == REPAIRS_MAX {
            tracing::error!(
                model,
                version,
                "its copy is damaged and stays, because it was fetched {REPAIRS_MAX} times; check the \
                 disk of --cache-dir, then restart the server"
            );
            return;
        }
        *repairs += 1;
        tracing::warn!(model, version, "its copy is damaged and is fetched again");
        if let Err(error) = self.cache.forget(model, version) {
            tracing::error!(model, version, %error, "a damaged copy stays");
        }
    }
}
