//! Index of the record cache: position of each key in the ring, in grains. A hash table of fixed
//! size with open addressing.

/// Free entry. No position is that high, because rings are smaller than 2^31 grains.
const FREE: u32 = u32::MAX;

/// Entry of the hash table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HashSlot {
    hash: u32,
    /// Position in the ring, in grains, or [`FREE`].
    place: u32,
}

const FREE_SLOT: HashSlot = HashSlot { hash: 0, place: FREE };

/// Linear probing. A removal moves later entries up, so there are no tombstones and look-ups never
/// get slower (Knuth, The Art of Computer Programming 3, 6.4, algorithm R).
#[derive(Debug)]
pub(super) struct RecordIndex {
    /// The number of slots is a power of two.
    slots: Box<[HashSlot]>,
    used: usize,
}

impl RecordIndex {
    /// Creates an index for about `entries`.
    pub(super) fn new(entries: usize) -> RecordIndex {
        // At most 3/4 full, which keeps probes short.
        let slots = (entries.max(8) * 4 / 3).next_power_of_two();
        RecordIndex { slots: vec![FREE_SLOT; slots].into_boxed_slice(), used: 0 }
    }

    /// Returns the bytes of `new(entries)`.
    pub(super) fn footprint(entries: usize) -> usize {
        (entries.max(8) * 4 / 3).next_power_of_two() * size_of::<HashSlot>()
    }

    /// Returns true if there is room for one more.
    pub(super) fn has_room(&self) -> bool {
        self.used < self.slots.len() / 4 * 3
    }

    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    /// Returns the position with this hash for which `is` returns true.
    pub(super) fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = hash as usize & self.mask();
        loop {
            let slot = self.slots.get(at)?;
            if slot.place == FREE {
                return None;
            }
            if slot.hash == hash && is(slot.place) {
                return Some(slot.place);
            }
            at = (at + 1) & self.mask();
        }
    }

    /// Adds a position. The caller checks for room.
    pub(super) fn insert(&mut self, hash: u32, place: u32) {
        if !self.has_room() {
            return;
        }
        let mut at = hash as usize & self.mask();
        while self.slots.get(at).is_some_and(|slot| slot.place != FREE) {
            at = (at + 1) & self.mask();
        }
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = HashSlot { hash, place };
            self.used += 1;
        }
    }

    /// Removes a position. Returns true if it existed.
    pub(super) fn remove(&mut self, hash: u32, place: u32) -> bool {
        let mut at = hash as usize & self.mask();
        let wanted = HashSlot { hash, place };
        while self.slots.get(at).is_some_and(|slot| slot.place != FREE && *slot != wanted) {
            at = (at + 1) & self.mask();
        }
        let there = self.slots.get(at) == Some(&wanted);
        if there {
            self.close_up(at);
        }
        there
    }

    /// Frees the slot `gap`. A search stops at a free slot, so later entries move up into the gap
    /// where a search would no longer reach them.
    fn close_up(&mut self, mut gap: usize) {
        let mask = self.mask();
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let slot = self.slots[at];
            if slot.place == FREE {
                break;
            }
            let home = slot.hash as usize & mask;
            // The entry may move to the gap if its first slot is not cyclically between the gap and
            // its current slot.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.slots[gap] = slot;
                gap = at;
            }
        }
        self.slots[gap] = FREE_SLOT;
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn is_a_map(steps in proptest::collection::vec((0u32..40, 0u32..3), 1..400)) {
            // Hashes are close together, so that runs of probes meet and wrap.
            let mut index = RecordIndex::new(40);
            let mut map = BTreeMap::new();
            let hash = |key: u32| key % 7 + if key.is_multiple_of(2) { 60 } else { 0 };
            for (at, (key, what)) in steps.into_iter().enumerate() {
                let place = key + 100 * at as u32;
                let old = map.get(&key).copied();
                match (what, old) {
                    (_, Some(old)) => {
                        prop_assert!(index.remove(hash(key), old));
                        map.remove(&key);
                    }
                    (2, None) => prop_assert!(!index.remove(hash(key), place)),
                    (_, None) => {
                        index.insert(hash(key), place);
                        map.insert(key, place);
                    }
                }
                for key in 0..40 {
                    let found = index.find(hash(key), |place| place % 100 == key);
                    prop_assert_eq!(found, map.get(&key).copied());
                }
                prop_assert_eq!(index.used, map.len());
            }
        }
    }
}
