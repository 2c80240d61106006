//! Reads in flight and their records.

use super::plan::{Extent, WantedRecord};

/// Read in flight.
#[derive(Debug)]
pub(super) struct PendingRead {
    /// Flight that waits for the read. It may have ended.
    pub(super) flight: u64,
    /// Extent that is read.
    pub(super) extent: Extent,
    /// Records, sorted by page.
    pub(super) wanted: Vec<WantedRecord>,
    /// True if its records were looked up in the cache, so that caching them may avoid a read.
    pub(super) looked_up: bool,
    busy: bool,
}

/// Maximum records of a read that are looked up in the cache.
const PROBED_MAX: usize = 3;
/// Cost of a lookup and an insertion, relative to a read. Measured on an EPYC with a virtual disk:
/// 0.6 and 5 microseconds.
const LOOKUP_COST: f32 = 0.125;
/// Lookups over which the share of hits is averaged.
const AVERAGED_LOOKUPS: f32 = 1024.0;

/// Decision if lookups in the cache cost less than they save. A read is avoided only if all of its
/// records are cached, so lookups for several records save time only if hits are frequent. Single
/// records are always looked up. Otherwise the cache would never fill.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CacheLookups {
    /// Recent share of hits among single records.
    hits: f32,
}

impl CacheLookups {
    /// Returns true if the `records` records of one read should be looked up.
    pub(super) fn pays_for(self, records: usize) -> bool {
        records == 1
            || (records <= PROBED_MAX
                && self.hits.powi(records as i32) >= LOOKUP_COST * records as f32)
    }

    /// Updates the share of records that are cached, after a lookup of a single record.
    pub(super) fn record_lookup(&mut self, hit: bool) {
        self.hits += (f32::from(u8::from(hit)) - self.hits) / AVERAGED_LOOKUPS;
    }
}

/// All reads in flight, by tag.
#[derive(Debug, Default)]
pub(super) struct Reads {
    slots: Vec<PendingRead>,
    free: Vec<u32>,
    pub(super) lookups: CacheLookups,
}

impl Reads {
    /// Adds a read and returns its tag. `looked_up` is true if the record cache was searched
    /// before.
    pub(super) fn begin(
        &mut self,
        flight: u64,
        extent: Extent,
        wanted: &[WantedRecord],
        looked_up: bool,
    ) -> u64 {
        let tag = self.free.pop().unwrap_or(self.slots.len() as u32);
        if let Some(slot) = self.slots.get_mut(tag as usize) {
            slot.flight = flight;
            slot.extent = extent;
            slot.looked_up = looked_up;
            slot.busy = true;
            slot.wanted.clear();
            slot.wanted.extend_from_slice(wanted);
        } else {
            self.slots.push(PendingRead {
                flight,
                extent,
                wanted: wanted.to_vec(),
                looked_up,
                busy: true,
            });
        }
        u64::from(tag)
    }

    /// Removes a read that is done and frees its tag.
    pub(super) fn end(&mut self, tag: u64) -> Option<&PendingRead> {
        let slot = self.slots.get_mut(usize::try_from(tag).ok()?).filter(|slot| slot.busy)?;
        slot.busy = false;
        self.free.push(tag as u32);
        Some(slot)
    }

    /// Returns the reads that a flight waits for.
    pub(super) fn of(&self, flight: u64) -> impl Iterator<Item = &PendingRead> {
        self.slots.iter().filter(move |slot| slot.busy && slot.flight == flight)
    }

    /// Adds a record to a read of its page. Returns false if there is no such read.
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

    /// Forgets all reads, because their queue was lost.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_hits_limit_cache_look_ups() {
        let mut lookups = CacheLookups::default();
        let pays = |lookups: CacheLookups| [1, 2, 3, 4].map(|records| lookups.pays_for(records));
        assert_eq!(pays(lookups), [true, false, false, false]);
        (0..4000).for_each(|at| lookups.record_lookup(at % 5 < 3));
        assert_eq!(pays(lookups), [true, true, false, false]);
        (0..4000).for_each(|_| lookups.record_lookup(true));
        assert_eq!(pays(lookups), [true, true, true, false]);
    }
}
