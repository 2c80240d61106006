//! Memory for building a payload index, beyond the working memory of every segment.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::budget::{BudgetReservation, MemoryBudget};

/// Memory that the builder of an index reserves while values arrive. Without it, fields with many
/// different values get no index.
#[derive(Debug)]
pub(crate) struct SpareIndexMemory {
    held: Mutex<BudgetReservation>,
    bytes_max: u64,
}

impl SpareIndexMemory {
    /// Creates an empty reservation, which grows to at most one in `share` bytes of the memory that
    /// is free now. Returns `None` if the budget has no room.
    pub(crate) fn new(budget: &Arc<MemoryBudget>, share: u64) -> Option<SpareIndexMemory> {
        let bytes_max = budget.free() / share.max(1);
        let held = Mutex::new(budget.reserve_if_free(0)?);
        Some(SpareIndexMemory { held, bytes_max })
    }

    /// Grows to `bytes`. Returns false and changes nothing if they are not free.
    pub(super) fn grow(&self, bytes: u64) -> bool {
        bytes <= self.bytes_max && self.held.lock().grow_if_free(bytes)
    }
}
