//! Copies of stores that no server follows, which are the first to be removed for room.

use super::follower::{Follower, SyncContext};
use crate::cache::UnusedCache;

impl Follower {
    /// Removes caches of stores that no server follows, the least recently wanted first, until
    /// `fits` accepts the bytes in use: `used` and those of the remaining caches.
    ///
    /// They are not removed without need: a server that does not run at the moment may follow their
    /// stores.
    pub(super) fn evict_unused(
        &self,
        context: &SyncContext<'_>,
        used: u64,
        fits: &impl Fn(u64) -> bool,
    ) {
        let mut unused = self.cache.unused_neighbours();
        // The models of a store that was just removed may still serve.
        unused.retain(|cache| {
            !context.unopened.contains(&cache.models_dir())
                && !cache.versions.iter().any(|it| (context.in_use)(&it.model, it.version))
        });
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
