//! Entries of a shard's log that their writer passed on, until the follower applies them.

use std::collections::BTreeMap;

use cluster::{EntryBody, EntryNumber, LogEntry};
use cluster_log::Batch;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Maximum entries that wait.
const OFFERED_MAX: usize = 32;
/// Maximum bytes of these entries.
const OFFERED_BYTES_MAX: usize = 1 << 20;

/// Entries that were passed on. Others are read from the log.
#[derive(Default)]
pub(super) struct OfferedEntries {
    waiting: Mutex<WaitingEntries>,
    arrived: Notify,
}

#[derive(Default)]
struct WaitingEntries {
    entries: BTreeMap<EntryNumber, LogEntry<Batch>>,
    /// The next entry that the follower takes or reads.
    next: EntryNumber,
}

impl OfferedEntries {
    /// Adds entries that the follower still needs, as many as fit. Returns true if it then has or
    /// had all entries up to `newest`, so that it needs no read of the log.
    pub(super) fn add(
        &self,
        newest: EntryNumber,
        passed: impl Iterator<Item = (EntryNumber, LogEntry<Batch>)>,
    ) -> bool {
        let mut waiting = self.waiting.lock();
        let WaitingEntries { entries, next } = &mut *waiting;
        let mut bytes: usize = entries.values().map(bytes_of).sum();
        for (number, entry) in passed {
            let has_room =
                entries.len() < OFFERED_MAX && bytes + bytes_of(&entry) <= OFFERED_BYTES_MAX;
            if number >= *next && has_room {
                bytes += bytes_of(&entry);
                entries.insert(number, entry);
            }
        }
        let mut needed = *next;
        while needed <= newest && entries.contains_key(&needed) {
            needed = needed.plus(1);
        }
        drop(waiting);
        self.arrived.notify_one();
        needed > newest
    }

    /// Takes the entry `next`, and drops the entries before it.
    pub(super) fn take(&self, next: EntryNumber) -> Option<LogEntry<Batch>> {
        let mut waiting = self.waiting.lock();
        waiting.entries = waiting.entries.split_off(&next);
        let taken = waiting.entries.remove(&next);
        waiting.next = if taken.is_some() { next.plus(1) } else { next };
        taken
    }

    /// Waits until `next` is one of the entries.
    pub(super) async fn wait_for(&self, next: EntryNumber) {
        loop {
            // Created before the check, so that no arrival is missed.
            let arrived = self.arrived.notified();
            if self.waiting.lock().entries.contains_key(&next) {
                return;
            }
            arrived.await;
        }
    }
}

fn bytes_of(entry: &LogEntry<Batch>) -> usize {
    match &entry.body {
        EntryBody::Writes(batch) => batch.bytes(),
        EntryBody::Fence => 0,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cluster::{Epoch, WriterId};

    use super::*;

    fn entry(bytes: usize) -> LogEntry<Batch> {
        let body = EntryBody::Writes(Batch::from(vec![Bytes::from(vec![b' '; bytes])]));
        LogEntry { epoch: Epoch(1), writer: WriterId(1), body }
    }

    fn add(offered: &OfferedEntries, newest: u64, numbers: &[u64], bytes: usize) -> bool {
        let passed = numbers.iter().map(|number| (EntryNumber(*number), entry(bytes)));
        offered.add(EntryNumber(newest), passed)
    }

    #[tokio::test]
    async fn entries_wait_in_order_and_within_limits() {
        let offered = OfferedEntries::default();
        assert!(offered.take(EntryNumber(5)).is_none());
        assert!(!add(&offered, 7, &[4, 7, 6], 10), "the entry 5 was not passed on");
        assert!(add(&offered, 7, &[5], 10));
        offered.wait_for(EntryNumber(6)).await;
        assert!(offered.take(EntryNumber(4)).is_none(), "it was below the next one");
        assert_eq!(offered.take(EntryNumber(6)), Some(entry(10)));
        assert!(add(&offered, 6, &[6], 10), "it was taken, and is not needed again");
        // The follower has read the entry 7 itself.
        assert!(offered.take(EntryNumber(8)).is_none());
        assert!(offered.waiting.lock().entries.is_empty());
        assert!(!add(&offered, 9, &[8, 9], OFFERED_BYTES_MAX / 2), "no room for the second");
        assert!(offered.take(EntryNumber(10)).is_none());
        let many: Vec<u64> = (10..100).collect();
        assert!(!add(&offered, 99, &many, 10));
        assert_eq!(offered.waiting.lock().entries.len(), OFFERED_MAX);
    }

    #[tokio::test]
    async fn an_arrival_wakes_the_follower() {
        let offered = OfferedEntries::default();
        let later = async {
            tokio::task::yield_now().await;
            add(&offered, 2, &[2], 1);
            tokio::task::yield_now().await;
            add(&offered, 2, &[1], 1);
        };
        tokio::join!(offered.wait_for(EntryNumber(1)), later);
        assert!(offered.take(EntryNumber(1)).is_some());
    }
}
