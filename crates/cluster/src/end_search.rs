//! Search for the end of a log that grows without a pause.

use crate::entry::EntryNumber;
use crate::writer::PIPELINE_MAX;

/// Maximum entries from the start of a search to the end that it finds.
pub const END_DISTANCE_MAX: u64 = 64;

/// Search for a number above all entries that were acknowledged before the search began.
///
/// It needs one absent number. An owner acknowledges an entry only if all numbers before it had
/// entries. So if a number is absent, either no entry from it on was acknowledged, or its entry was
/// removed. In the second case, the floor is above it. The floor is raised before entries are
/// removed, and is read after the number. A reader whose next entry is absent uses the same proof.
/// The search needs no listing of entries, and an entry that appears late can only make the search
/// longer.
///
/// The number may be after a gap that stays. Then entries never reach it. A reader that waits for
/// it must also end its wait if its own next entry is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndSearch {
    from: EntryNumber,
    /// Number of entries from `from` to the number that is read next.
    distance: u64,
}

impl EndSearch {
    /// Begins a search ahead of `from`, the next entry of a reader. Nearer numbers than
    /// [`PIPELINE_MAX`] are skipped, because they often have entries while an owner writes.
    pub fn new(from: EntryNumber) -> EndSearch {
        EndSearch { from, distance: PIPELINE_MAX as u64 }
    }

    /// Returns the number whose presence is read next.
    pub fn number(&self) -> EntryNumber {
        self.from.plus(self.distance)
    }

    /// Skips [`EndSearch::number`], which has an entry. Returns false if the end is more than
    /// [`END_DISTANCE_MAX`] entries away, which ends the search.
    pub fn pass_by(&mut self) -> bool {
        self.distance = self.distance.saturating_mul(2);
        self.distance <= END_DISTANCE_MAX
    }

    /// Returns [`EndSearch::number`] as the end, because this entry is absent. `floor` is the floor
    /// of the log, read after the number. Returns `None` if the entry may have been removed.
    pub fn end(&self, floor: EntryNumber) -> Option<EntryNumber> {
        let number = self.number();
        (floor <= number).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_has_a_maximum_distance() {
        let from = EntryNumber(100);
        let mut search = EndSearch::new(from);
        let mut read = vec![search.number().0];
        while search.pass_by() {
            read.push(search.number().0);
        }
        assert_eq!(read, [104, 108, 116, 132, 164]);
    }

    #[test]
    fn an_absent_number_below_the_floor_is_no_end() {
        let search = EndSearch::new(EntryNumber(100));
        assert_eq!(search.end(EntryNumber(104)), Some(EntryNumber(104)));
        assert_eq!(search.end(EntryNumber(105)), None);
    }
}
