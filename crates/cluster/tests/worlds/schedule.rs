//! Simulated time: items that happen in order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Items by time, in the unit of the caller, and in the order in which they were added at one time.
pub(crate) struct Schedule<T> {
    now: u64,
    order: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    items: BTreeMap<u64, T>,
}

impl<T> Schedule<T> {
    pub(crate) fn new() -> Schedule<T> {
        Schedule { now: 0, order: 0, queue: BinaryHeap::new(), items: BTreeMap::new() }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Adds an item that happens after `delay`.
    pub(crate) fn at(&mut self, delay: u64, item: T) {
        self.order += 1;
        self.queue.push(Reverse((self.now + delay, self.order)));
        self.items.insert(self.order, item);
    }

    /// Returns the next item and advances the time to it.
    pub(crate) fn next(&mut self) -> Option<T> {
        let Reverse((time, order)) = self.queue.pop()?;
        self.now = time;
        self.items.remove(&order)
    }
}
