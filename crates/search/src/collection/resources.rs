//! What several collections share: one hard limit on memory, what is set aside for sealing, one pace for background work.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::Result;
use memory::{Pacer, Rate};

use super::inner::EventCounter;
use super::options::headroom_bytes;
use super::stall::{StallStats, WriteStall};
use crate::budget::{BudgetReservation, BudgetStats, MemoryBudget};

/// Shared by the collections that were opened with it ([`super::Collection::open_with`]). One of them seals at a time,
/// with memory that is set aside for it here, so that a hundred small collections set aside no more than one large one.
#[derive(Clone)]
pub struct Resources {
    pub(super) budget: Arc<MemoryBudget>,
    pub(super) flushing: Arc<Mutex<BudgetReservation>>,
    pub(super) pacer: Arc<Pacer>,
    pub(super) events: Arc<EventCounter>,
    /// Of all together: a writer of one may wait for what another one is doing.
    pub(super) stall: Arc<WriteStall>,
    pub(super) memtable_bytes: u64,
}

impl Resources {
    /// Within `budget`, for collections with at most `memtable_bytes` of unsealed points in a part, whose background work
    /// reads and writes at `rate` together.
    ///
    /// # Errors
    /// `ResourceExhausted` where the budget has no room for what is set aside.
    pub fn new(budget: Arc<MemoryBudget>, memtable_bytes: u64, rate: Rate) -> Result<Resources> {
        let headroom = budget.reserve(headroom_bytes(memtable_bytes), "sealing")?;
        Ok(Resources {
            budget,
            flushing: Arc::new(Mutex::new(headroom)),
            pacer: Arc::new(Pacer::new(rate)),
            events: Arc::default(),
            stall: Arc::default(),
            memtable_bytes,
        })
    }

    /// The memory.
    pub fn memory(&self) -> BudgetStats {
        self.budget.stats()
    }

    /// Writes that found no room.
    pub fn stall_stats(&self) -> StallStats {
        self.stall.stats()
    }

    /// The limit that all share.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// Bytes of a part of unsealed points, after which it is sealed.
    pub fn memtable_bytes(&self) -> u64 {
        self.memtable_bytes
    }

    /// A number that changes with every event of one of the collections: a part is full, a segment was sealed.
    pub fn events(&self) -> u64 {
        self.events.count()
    }

    /// Waits until [`Resources::events`] is no longer `seen`, at most for `patience`; whether it is.
    pub fn wait_past(&self, seen: u64, patience: Duration) -> bool {
        self.events.wait_past(seen, Instant::now() + patience)
    }

    /// Wakes all who wait.
    pub fn notify(&self) {
        self.events.notify();
    }
}

impl std::fmt::Debug for Resources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resources").field("memory", &self.memory()).finish_non_exhaustive()
    }
}
