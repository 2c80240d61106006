//! Reads in flight: what each is for.

use super::plan::{Extent, WantedRecord};

/// A read in flight.
#[derive(Debug)]
pub(super) struct PendingRead {
    /// The flight that waits for it, which may have left.
    pub(super) flight: u64,
    /// What is read.
    pub(super) extent: Extent,
    /// What for, by page.
    pub(super) wanted: Vec<WantedRecord>,
    /// Whether its records were looked for in the cache, so that keeping them may spare it the next time.
    pub(super) sparse: bool,
    busy: bool,
}

/// Records of a read up to which the cache may be asked for them.
const PROBED_MAX: usize = 3;
/// What a look into the cache and keeping a record there cost, as a part of what a read costs. Measured on an EPYC with
/// a virtual disk: 0.6 and 5 microseconds.
const LOOK_COST: f32 = 0.125;
/// One part in so many of the share of hits is renewed by each look.
const MEMORY: f32 = 1024.0;

/// Whether looking for records in the cache pays. A read is spared only if all that it is for are there, so for several
/// of them a look pays only where hits are frequent; for one it is always made, or the cache would never fill.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Thrift {
    /// The share of single records that were there of late.
    hits: f32,
}

impl Thrift {
    /// Whether to look for `records` of one read.
    pub(super) fn looks_for(self, records: usize) -> bool {
        records == 1
            || (records <= PROBED_MAX && self.hits.powi(records as i32) >= LOOK_COST * records as f32)
    }

    /// Takes note of how a look for a single record ended.
    pub(super) fn learn(&mut self, hit: bool) {
        self.hits += (f32::from(u8::from(hit)) - self.hits) / MEMORY;
    }
}

/// All of them, by tag.
#[derive(Debug, Default)]
pub(super) struct Reads {
    slots: Vec<PendingRead>,
    free: Vec<u32>,
    pub(super) thrift: Thrift,
}

impl Reads {
    /// Takes note of a read and gives its tag.
    pub(super) fn begin(
        &mut self,
        flight: u64,
        extent: Extent,
        wanted: &[WantedRecord],
        sparse: bool,
    ) -> u64 {
        let tag = self.free.pop().unwrap_or(self.slots.len() as u32);
        if let Some(slot) = self.slots.get_mut(tag as usize) {
            (slot.flight, slot.extent, slot.sparse, slot.busy) = (flight, extent, sparse, true);
            slot.wanted.clear();
            slot.wanted.extend_from_slice(wanted);
        } else {
            self.slots.push(PendingRead { flight, extent, wanted: wanted.to_vec(), sparse, busy: true });
        }
        u64::from(tag)
    }

    /// The read that is done, whose tag is free again.
    pub(super) fn end(&mut self, tag: u64) -> Option<&PendingRead> {
        let slot = self.slots.get_mut(usize::try_from(tag).ok()?).filter(|slot| slot.busy)?;
        slot.busy = false;
        self.free.push(tag as u32);
        Some(slot)
    }

    /// Those that a flight waits for.
    pub(super) fn of(&self, flight: u64) -> impl Iterator<Item = &PendingRead> {
        self.slots.iter().filter(move |slot| slot.busy && slot.flight == flight)
    }

    /// Adds a record to a read that fetches its page already. False where there is none.
    pub(super) fn attach(&mut self, flight: u64, wanted: WantedRecord) -> bool {
        let start = wanted.address.offset;
        let end = wanted.address.offset + u64::from(wanted.address.bytes);
        let fetches = |slot: &&mut PendingRead| {
            let Extent { segment, offset, bytes, .. } = slot.extent;
            slot.busy
                && slot.flight == flight
                && segment == wanted.candidate.segment
                && offset <= start
                && end <= offset + u64::from(bytes)
        };
        let Some(read) = self.slots.iter_mut().find(fetches) else { return false };
        read.wanted.push(wanted);
        true
    }

    /// Forgets all, because the queue they were in is lost.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_asked_for_several_records_only_where_hits_are_frequent() {
        let mut thrift = Thrift::default();
        let looks = |thrift: Thrift| [1, 2, 3, 4].map(|records| thrift.looks_for(records));
        assert_eq!(looks(thrift), [true, false, false, false]);
        (0..4000).for_each(|at| thrift.learn(at % 5 < 3));
        assert_eq!(looks(thrift), [true, true, false, false]);
        (0..4000).for_each(|_| thrift.learn(true));
        assert_eq!(looks(thrift), [true, true, true, false]);
    }
}
