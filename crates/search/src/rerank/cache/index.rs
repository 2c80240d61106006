//! Which place of the ring a key is at, in grains: a table of fixed size with open addressing.

/// A free entry. No place is that far, because rings are smaller than 2^31 grains.
const FREE: u32 = u32::MAX;

/// Linear probing; a removal moves those behind it up, so that there are no gravestones and a look-up never gets longer
/// with time (Knuth, The Art of Computer Programming 3, 6.4, algorithm R).
#[derive(Debug)]
pub(super) struct RecordIndex {
    /// Hash and place. A power of two of them.
    slots: Box<[(u32, u32)]>,
    used: usize,
}

impl RecordIndex {
    /// Room for about `entries`.
    pub(super) fn new(entries: usize) -> RecordIndex {
        // Full to 3/4 at most: probes stay short.
        let slots = (entries.max(8) * 4 / 3).next_power_of_two();
        RecordIndex { slots: vec![(0, FREE); slots].into_boxed_slice(), used: 0 }
    }

    /// Bytes that `new(entries)` takes.
    pub(super) fn footprint(entries: usize) -> usize {
        (entries.max(8) * 4 / 3).next_power_of_two() * size_of::<(u32, u32)>()
    }

    /// Whether one more may go in.
    pub(super) fn has_room(&self) -> bool {
        self.used < self.slots.len() / 4 * 3
    }

    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    /// The place with this hash that `is` the right one.
    pub(super) fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = hash as usize & self.mask();
        loop {
            let &(own, place) = self.slots.get(at)?;
            if place == FREE {
                return None;
            }
            if own == hash && is(place) {
                return Some(place);
            }
            at = (at + 1) & self.mask();
        }
    }

    /// Adds a place. Call it where there is room.
    pub(super) fn insert(&mut self, hash: u32, place: u32) {
        if !self.has_room() {
            return;
        }
        let mut at = hash as usize & self.mask();
        while self.slots.get(at).is_some_and(|slot| slot.1 != FREE) {
            at = (at + 1) & self.mask();
        }
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = (hash, place);
            self.used += 1;
        }
    }

    /// Removes a place. Whether it was there.
    pub(super) fn remove(&mut self, hash: u32, place: u32) -> bool {
        let mut at = hash as usize & self.mask();
        let wanted = (hash, place);
        while self.slots.get(at).is_some_and(|slot| slot.1 != FREE && *slot != wanted) {
            at = (at + 1) & self.mask();
        }
        let there = self.slots.get(at) == Some(&wanted);
        if there {
            self.close_up(at);
        }
        there
    }

    /// Frees `gap` and moves up what a search would no longer reach over it.
    fn close_up(&mut self, mut gap: usize) {
        let mask = self.mask();
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let (hash, place) = self.slots[at];
            if place == FREE {
                break;
            }
            let home = hash as usize & mask;
            // It may move to the gap if its home is not between the gap and where it is, going round.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.slots[gap] = (hash, place);
                gap = at;
            }
        }
        self.slots[gap].1 = FREE;
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
            // Hashes crowd, so that runs of probes meet and wrap.
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
