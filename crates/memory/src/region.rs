//! Regions: runs of slots that hold parameters, first written by one owner and then read by many.

use std::ops::Range;
use std::sync::Arc;

use crate::SlotPool;

/// A run of slots in use. Gives them back when dropped; that is bookkeeping, no system call.
struct Run {
    pool: Arc<SlotPool>,
    slots: Range<usize>,
    bytes: usize,
}

impl Run {
    fn start(&self) -> *mut u8 {
        self.pool.slot_address(self.slots.start)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.pool.give_back(self.slots.clone());
    }
}

/// Memory being filled by its only owner. It starts at a multiple of the slot size and holds whatever the slots
/// held before.
pub struct RegionMut(Run);

impl RegionMut {
    pub(crate) fn new(pool: Arc<SlotPool>, slots: Range<usize>, bytes: usize) -> RegionMut {
        RegionMut(Run { pool, slots, bytes })
    }

    /// How many bytes were asked for.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks whether parameters are empty")]
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// The bytes, to be filled.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the pool mapped, faulted in and handed these slots to this run alone; `bytes` lies within
        // them, every byte pattern is a valid `u8`, and `&mut self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.0.start(), self.0.bytes) }
    }

    /// Ends the filling: from now on the bytes never change.
    pub fn freeze(self) -> Region {
        Region(self.0)
    }
}

/// Parameters in place: immutable, shared through `Arc<Region>`. The slots return to the pool with the last
/// holder.
pub struct Region(Run);

impl Region {
    /// How many bytes it has.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks whether parameters are empty")]
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: as in `RegionMut::as_mut_slice`, and nothing writes to a frozen region.
        unsafe { std::slice::from_raw_parts(self.0.start(), self.0.bytes) }
    }

    /// Where it starts; a multiple of the slot size. Valid as long as the region lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.0.start()
    }
}

impl std::fmt::Debug for RegionMut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RegionMut({} bytes, slots {:?})", self.0.bytes, self.0.slots)
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({} bytes, slots {:?})", self.0.bytes, self.0.slots)
    }
}
