//! Flushes and merges that run or wait. Both slow queries down, because they take processor time
//! and disk reads. Without them, queries scan more memtables and segments.

use std::sync::atomic::Ordering;

use super::inner::Collection;

/// Flushes and merges that run or wait, of one or more collections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptimizerWork {
    /// Full memtables that are being flushed or wait for it.
    pub flushes: usize,
    /// Merges that run.
    pub merges: usize,
    /// Collections whose segments wait to be merged, also if memory for the merge is missing.
    pub merges_waiting: usize,
}

impl OptimizerWork {
    /// Adds the work of other collections.
    pub fn add(&mut self, other: OptimizerWork) {
        self.flushes += other.flushes;
        self.merges += other.merges;
        self.merges_waiting += other.merges_waiting;
    }
}

impl Collection {
    /// Returns the running and waiting flushes and merges. Work that waits until no points arrive
    /// does not count.
    pub fn optimizer_work(&self) -> OptimizerWork {
        let state = self.state();
        // The last memtable takes writes.
        let flushes = state.memtables.len().saturating_sub(1);
        if self.optimizer.merge_runs.load(Ordering::Relaxed) {
            return OptimizerWork { flushes, merges: 1, merges_waiting: 0 };
        }
        // Another thread holds the lock while it looks for a merge.
        let damaged = self.merging.try_lock().map(|damaged| damaged.clone());
        let waits = self.merge_waits(&state, &damaged.unwrap_or_default());
        OptimizerWork { flushes, merges: 0, merges_waiting: usize::from(waits) }
    }
}
