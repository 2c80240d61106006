//! Resources that several collections share: a hard memory limit, the memory reserved for flushes,
//! and the rate of background work.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base::Result;
use os::{Pacer, Rate};
use parking_lot::Mutex;

use super::filters::{FilterCaches, FilterCounts, FilterStats};
use super::inner::EventCounter;
use super::options::headroom_bytes;
use super::stall::{StallStats, WriteStall};
use crate::budget::{BudgetReservation, BudgetStats, MemoryBudget};
use crate::segment_cache::{SegmentCache, SegmentCacheStats};

/// Resources shared by all collections that were opened with them
/// ([`super::Collection::open`]). One collection flushes at a time, with memory reserved here,
/// so a hundred small collections reserve no more than one large one.
#[derive(Clone)]
pub struct Resources {
    pub(super) budget: Arc<MemoryBudget>,
    pub(super) flushing: Arc<Mutex<BudgetReservation>>,
    pub(super) pacer: Arc<Pacer>,
    pub(super) events: Arc<EventCounter>,
    /// Shared, because a writer of one collection may wait for a flush of another.
    pub(super) stall: Arc<WriteStall>,
    /// Counts of evaluated filters.
    pub(super) filters: Arc<FilterCounts>,
    /// Cached filters of the collections.
    pub(super) filter_caches: Arc<FilterCaches>,
    pub(super) memtable_bytes: u64,
    /// Cache of blocks of segment files, in the free memory of `budget`.
    pub(super) segment_cache: Arc<SegmentCache>,
}

impl Resources {
    /// Creates resources within `budget`, for collections with at most `memtable_bytes` per
    /// memtable, whose background work reads and writes at `rate` together.
    ///
    /// # Errors
    /// `ResourceExhausted` if the budget has no room for the reserved memory.
    pub fn new(budget: Arc<MemoryBudget>, memtable_bytes: u64, rate: Rate) -> Result<Resources> {
        let headroom = budget.reserve(headroom_bytes(memtable_bytes), "the flush of points")?;
        let filter_caches = Arc::new(FilterCaches::default());
        let freed: Weak<FilterCaches> = Arc::downgrade(&filter_caches);
        budget.set_results(freed);
        Ok(Resources {
            segment_cache: SegmentCache::new(&budget),
            budget,
            flushing: Arc::new(Mutex::new(headroom)),
            pacer: Arc::new(Pacer::new(rate)),
            events: Arc::default(),
            stall: Arc::default(),
            filters: Arc::default(),
            filter_caches,
            memtable_bytes,
        })
    }

    /// Returns the use of memory.
    pub fn memory(&self) -> BudgetStats {
        self.budget.stats()
    }

    /// Returns the counts of stalled writes.
    pub fn stall_stats(&self) -> StallStats {
        self.stall.stats()
    }

    /// Returns the counts of evaluated filters.
    pub(crate) fn filter_stats(&self) -> FilterStats {
        self.filters.stats()
    }

    /// Returns the counts of the cache of blocks of segment files.
    pub fn segment_cache_stats(&self) -> SegmentCacheStats {
        self.segment_cache.stats()
    }

    /// Returns the shared memory budget.
    pub(crate) fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// Returns the number of events so far in all collections, such as a full memtable or a flush.
    pub(crate) fn events(&self) -> u64 {
        self.events.count()
    }

    /// Waits until [`Resources::events`] exceeds `seen`. Returns false after `timeout`.
    pub(crate) fn wait_past(&self, seen: u64, timeout: Duration) -> bool {
        self.events.wait_past(seen, Instant::now() + timeout)
    }

    /// Counts an event and wakes all waiting threads.
    pub(crate) fn notify(&self) {
        self.events.notify();
    }
}

impl std::fmt::Debug for Resources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resources").field("memory", &self.memory()).finish_non_exhaustive()
    }
}
