//! Ids that the latest entries of a log wrote. An owner uses them to decide on conditional writes.

use std::collections::{BTreeMap, VecDeque};

use crate::entry::EntryNumber;

/// Maximum acknowledged writes of ids that an owner remembers for a shard. They take about 0.4 MB.
/// Unacknowledged writes are remembered too. The limits of the queue bound their number.
pub const RECENT_WRITES_MAX: usize = 4096;

/// A write of an id.
#[derive(Clone, Copy, Debug)]
struct RecentWrite {
    id: [u8; 16],
    /// Number of its entry; `None` until the entry is acknowledged.
    entry: Option<EntryNumber>,
}

/// Latest writes of ids by one owner, in the order of the log.
///
/// A client looks an id up and then writes it on the condition that no entry after the lookup has
/// written it. The owner takes the writes in the order in which they get their entries. So the
/// later one of two such writes is refused, even if both share an entry. The owner does not know
/// entries before its fence and writes that it has forgotten. So it also refuses a write whose
/// lookup may have missed one of these.
#[derive(Clone, Debug)]
pub struct RecentWrites {
    writes_max: usize,
    /// Last entry that may have a write that is not in `writes`.
    forgotten_through: EntryNumber,
    /// Remembered writes. The first `acknowledged` of them have a number.
    writes: VecDeque<RecentWrite>,
    acknowledged: usize,
    /// Order of the first remembered write. The order counts all writes of this owner from 0.
    first: u64,
    /// Order of the last write of each remembered id.
    last: BTreeMap<[u8; 16], u64>,
}

impl RecentWrites {
    /// Creates the memory of an owner without writes, for `writes_max` acknowledged writes.
    pub fn new(writes_max: usize) -> RecentWrites {
        RecentWrites {
            writes_max,
            forgotten_through: EntryNumber::default(),
            writes: VecDeque::new(),
            acknowledged: 0,
            first: 0,
            last: BTreeMap::new(),
        }
    }

    /// Sets the fence of the owner. Earlier entries are not known.
    pub fn begin_behind(&mut self, fence: EntryNumber) {
        self.forgotten_through = self.forgotten_through.max(fence);
    }

    /// Takes the next write of the log, which writes `ids`. Returns false if the write is refused,
    /// because an entry after `unless_after` may have written one of them. Without `unless_after`
    /// it is never refused.
    pub fn take(&mut self, ids: &[[u8; 16]], unless_after: Option<EntryNumber>) -> bool {
        if unless_after.is_some_and(|after| self.may_be_written(ids, after)) {
            return false;
        }
        for id in ids {
            let order = self.next_order();
            self.last.insert(*id, order);
            self.writes.push_back(RecentWrite { id: *id, entry: None });
        }
        true
    }

    /// Returns true if an entry after the entry `after` has, or may get, a write of one of the ids.
    fn may_be_written(&self, ids: &[[u8; 16]], after: EntryNumber) -> bool {
        let is_later = |order: &u64| self.entry(*order).is_none_or(|entry| entry > after);
        after < self.forgotten_through
            || ids.iter().any(|id| self.last.get(id).is_some_and(is_later))
    }

    /// Returns the entry of a remembered write; `None` if it is not acknowledged.
    fn entry(&self, order: u64) -> Option<EntryNumber> {
        let at = usize::try_from(order.checked_sub(self.first)?).ok()?;
        self.writes.get(at)?.entry
    }

    /// Returns the order of the next write.
    pub fn next_order(&self) -> u64 {
        self.first + self.writes.len() as u64
    }

    /// Sets the entry of all unacknowledged writes before `order`. Forgets the oldest writes beyond
    /// the maximum.
    pub fn acknowledge(&mut self, order: u64, entry: EntryNumber) {
        while self.first + (self.acknowledged as u64) < order {
            let Some(write) = self.writes.get_mut(self.acknowledged) else { break };
            write.entry = Some(entry);
            self.acknowledged += 1;
        }
        while self.acknowledged > self.writes_max {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        self.acknowledged = self.acknowledged.saturating_sub(1);
        let Some(RecentWrite { id, entry }) = self.writes.pop_front() else { return };
        if self.last.get(&id) == Some(&self.first) {
            self.last.remove(&id);
        }
        self.first += 1;
        if let Some(entry) = entry {
            self.forgotten_through = self.forgotten_through.max(entry);
        }
    }

    /// Returns the number of remembered writes. For tests.
    #[doc(hidden)]
    pub fn remembered(&self) -> usize {
        self.writes.len()
    }
}
