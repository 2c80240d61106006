//! Removal of local collections that a node does not hold any more, beside its other work. A slow
//! disk takes long to remove a large collection, and the node must announce its other shards and
//! begin to hold new ones meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::types::ShardKey;

/// Shards whose local collections are removed, one after the other.
#[derive(Default)]
pub(super) struct LocalRemovals {
    /// Shards whose collections are being removed or wait for it. Bounded by the collections of
    /// this node.
    shards: Mutex<BTreeSet<ShardKey>>,
    turn: tokio::sync::Mutex<()>,
}

impl LocalRemovals {
    /// Returns true if the local collection of a shard is being removed or waits for it. The shard
    /// must not be held until then.
    pub(super) fn has(&self, key: &ShardKey) -> bool {
        self.shards.lock().contains(key)
    }

    /// Starts `removal`, which removes the local collection of a shard, after the ones before it.
    /// Does nothing if one of the shard was started and has not ended.
    pub(super) fn start(
        self: &Arc<LocalRemovals>,
        key: &ShardKey,
        removal: impl Future<Output = ()> + Send + 'static,
    ) {
        if !self.shards.lock().insert(key.clone()) {
            return;
        }
        let removals = self.clone();
        let started = StartedRemoval { removals: self.clone(), key: key.clone() };
        tokio::spawn(async move {
            // Dropped after the turn, also if the removal panics.
            let _started = started;
            let _turn = removals.turn.lock().await;
            removal.await;
        });
    }
}

/// A removal that has not ended, until this is dropped.
struct StartedRemoval {
    removals: Arc<LocalRemovals>,
    key: ShardKey,
}

impl Drop for StartedRemoval {
    fn drop(&mut self) {
        self.removals.shards.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_slow_removal_delays_only_other_removals() {
        let removals = Arc::<LocalRemovals>::default();
        let [slow, next, other] = [0, 1, 2].map(|shard| ShardKey::new("a", shard));
        let count = Arc::new(AtomicUsize::new(0));
        let removal = || {
            let count = count.clone();
            async move {
                count.fetch_add(1, Ordering::AcqRel);
            }
        };
        let (end, ending) = oneshot::channel::<()>();
        removals.start(&slow, async move {
            let _ = ending.await;
        });
        // It has not ended, so there is no second one.
        removals.start(&slow, removal());
        removals.start(&next, removal());
        tokio::task::yield_now().await;
        assert!(removals.has(&slow) && removals.has(&next) && !removals.has(&other));
        assert_eq!(count.load(Ordering::Acquire), 0);
        drop(end);
        while removals.has(&slow) || removals.has(&next) {
            tokio::task::yield_now().await;
        }
        assert_eq!(count.load(Ordering::Acquire), 1);
    }
}
