//! Budgets of the memory that rows take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of rows in one kind of memory, and their maximum.
#[derive(Debug)]
pub(crate) struct RowBudget {
    bytes_max: u64,
    used: AtomicU64,
}

/// Bytes of a [`RowBudget`] that some rows take. Dropping it returns them.
#[derive(Debug)]
pub(crate) struct RowReservation {
    budget: Arc<RowBudget>,
    bytes: u64,
}

impl RowBudget {
    pub(crate) fn new(bytes_max: u64) -> Arc<RowBudget> {
        Arc::new(RowBudget { bytes_max, used: AtomicU64::new(0) })
    }

    /// Returns the number of bytes that rows take.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that rows may still take.
    pub(crate) fn left(&self) -> u64 {
        self.bytes_max.saturating_sub(self.used())
    }

    /// Reserves `bytes`, or returns `None` if fewer are left. Call it before the memory is
    /// allocated: several threads upload rows at the same time.
    pub(crate) fn reserve(self: &Arc<RowBudget>, bytes: u64) -> Option<RowReservation> {
        let add = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.bytes_max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(RowReservation { budget: self.clone(), bytes })
    }
}

impl RowReservation {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for RowReservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_stay_within_the_budget() {
        let budget = RowBudget::new(100);
        let first = budget.reserve(60).unwrap();
        // Rows that another thread uploads meanwhile.
        assert!(budget.reserve(41).is_none());
        assert_eq!((budget.used(), budget.left()), (60, 40));
        let second = budget.reserve(40).unwrap();
        drop(first);
        assert_eq!((budget.used(), second.bytes()), (40, 40));
        let unlimited = RowBudget::new(u64::MAX);
        let _held = unlimited.reserve(u64::MAX - 1).unwrap();
        assert!(unlimited.reserve(2).is_none());
    }
}
