//! Reads in flight: what each is for.

use super::plan::{Extent, Wanted};

/// A read in flight.
#[derive(Debug)]
pub(super) struct PendingRead {
    /// The flight that waits for it, which may have left.
    pub(super) flight: u64,
    /// What is read.
    pub(super) extent: Extent,
    /// What for, by page.
    pub(super) wanted: Vec<Wanted>,
    /// Whether it is for few records, so that it would be worth sparing the next time.
    pub(super) sparse: bool,
    busy: bool,
}

/// All of them, by tag.
#[derive(Debug, Default)]
pub(super) struct Reads {
    slots: Vec<PendingRead>,
    free: Vec<u32>,
}

impl Reads {
    /// Takes note of a read and gives its tag.
    pub(super) fn begin(&mut self, flight: u64, extent: Extent, wanted: &[Wanted], sparse: bool) -> u64 {
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
    pub(super) fn attach(&mut self, flight: u64, wanted: Wanted) -> bool {
        let (start, end) = (wanted.address.offset, wanted.address.offset + u64::from(wanted.address.bytes));
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
