//! Copies of stores that no server follows. They are removed after a time, and before any other
//! copy if a version needs room.

use base::units::format_bytes;

use super::StoreMirror;
use super::follower::{Follower, SyncContext};
use crate::cache::{UnusedCache, unused_caches};

/// Returns true if the copies of an unused cache must stay. That is so if its store is configured
/// and could not be opened, or if a version of it is in use.
fn is_kept(cache: &UnusedCache, context: &SyncContext) -> bool {
    let models_dir = cache.models_dir();
    // The models of a store that was just removed may still serve.
    context.unopened.borrow().contains_key(&models_dir)
        || cache.versions.iter().any(|it| (context.in_use)(&models_dir, &it.model, it.version))
}

impl StoreMirror {
    /// Removes the copies of stores that no server has followed for
    /// [`super::MirrorConfig::keep_unused`]. [`StoreMirror::follow`] does this once an hour.
    pub fn remove_unused(&self) {
        self.context.remove_unused();
    }
}

impl SyncContext {
    /// Does the work of [`StoreMirror::remove_unused`].
    pub(super) fn remove_unused(&self) {
        for cache in unused_caches(&self.config.stores_dir) {
            // The time begins although a version is in use.
            let is_due = cache.is_unused_for(self.config.keep_unused);
            if !is_due || is_kept(&cache, self) {
                continue;
            }
            let shown = cache.root().display().to_string();
            match cache.evict() {
                Ok(true) => {
                    tracing::info!(
                        cache = shown,
                        "removed {} of copies of a store that no server has followed for {} h",
                        format_bytes(cache.bytes),
                        self.config.keep_unused.as_secs() / 3600
                    );
                }
                // A server has begun to follow the store.
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the copies of an unused store stay"),
            }
        }
    }
}

impl Follower {
    /// Removes caches of stores that no server follows, the least recently wanted first. Stops if
    /// `fits` accepts the bytes in use, which are `used` and those of the remaining caches.
    ///
    /// They are removed only if their room is needed, because a server that does not run at the
    /// moment may follow their stores.
    pub(super) fn evict_unused(
        &self,
        context: &SyncContext,
        used: u64,
        fits: &impl Fn(u64) -> bool,
    ) {
        let mut unused = self.cache.unused_neighbours();
        unused.retain(|cache| !is_kept(cache, context));
        unused.sort_by_key(UnusedCache::last_wanted);
        let mut total = unused.iter().fold(used, |sum, cache| sum.saturating_add(cache.bytes));
        for cache in unused {
            if fits(total) {
                return;
            }
            let shown = cache.root().display().to_string();
            match cache.evict() {
                Ok(true) => {
                    tracing::info!(
                        cache = shown,
                        "removed the copies of a store that no server follows, for room"
                    );
                }
                // A server has begun to follow the store.
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the copies of an unused store stay"),
            }
            total = total.saturating_sub(cache.bytes);
        }
    }
}
