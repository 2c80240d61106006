//! Live rows of a segment as searches use them. A search uses the bitmap of one state.
//!
//! A query keeps the state that it began with, so a later delete must not change its bitmap. A new
//! bitmap for each delete would cost the next query one bit for every row of the segment. So a
//! delete clears its bit in place if no query has the state. Otherwise the next query takes a
//! bitmap that no query uses any more, and changes only the rows that were deleted in between.
//!
//! Each running query may have a bitmap of its own. So large ones are counted in the memory budget
//! while it has room for them beside the memory that filters need. A search never fails for them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use coarse::RowSet;
use parking_lot::Mutex;

use crate::budget::{BudgetReservation, MemoryBudget};
use crate::deletes::Deletes;

/// Maximum bitmaps of a segment that no query uses, and that are kept for the next states.
const SPARES_MAX: usize = 4;
/// Maximum deletes between the state of a spare bitmap and the state that takes it.
const RECENT_MAX: usize = 4096;
/// Minimum bytes of a bitmap that is counted in the budget.
const COUNTED_BYTES_MIN: u64 = 64 << 10;

/// Live rows of one state of a segment.
#[derive(Debug, Default)]
pub(super) struct LiveRows {
    /// Made by the first query that needs them.
    rows: OnceLock<LiveBitmap<Arc<RowSet>>>,
    /// Shared by all states of the segment.
    spares: Arc<Mutex<SpareRows>>,
    /// Budget that counts the bitmaps. `None` counts none.
    budget: Option<Arc<MemoryBudget>>,
}

/// A bitmap and its memory.
#[derive(Debug)]
struct LiveBitmap<R> {
    rows: R,
    /// `None` for a small bitmap, and if the budget had no room.
    held: Option<BudgetReservation>,
}

/// Bitmaps of a segment that no query uses, and the deletes that distinguish them.
///
/// A state is identified by its number of deleted rows. Every delete makes one more row deleted,
/// and only the newest state gets deletes.
#[derive(Debug, Default)]
struct SpareRows {
    sets: Vec<LiveBitmap<RowSet>>,
    /// Rows that were deleted last, oldest first.
    recent: VecDeque<u32>,
    /// Deleted rows of the newest state.
    deleted: u32,
    /// Time of the last request for a bitmap.
    requested: Option<Instant>,
    /// Bitmaps that were filled from all deletes.
    filled: u64,
}

impl LiveRows {
    /// Creates the live rows of a segment. `budget` counts their bitmaps.
    pub(super) fn new(budget: Arc<MemoryBudget>) -> LiveRows {
        LiveRows { rows: OnceLock::new(), spares: Arc::default(), budget: Some(budget) }
    }

    /// Returns the live rows of the state with these deletes.
    pub(super) fn get(&self, deletes: &Deletes) -> &Arc<RowSet> {
        let bitmap = self.rows.get_or_init(|| {
            let spare = self.spares.lock().take(deletes.count());
            let LiveBitmap { rows, held } = spare.unwrap_or_else(|| self.fill(deletes));
            LiveBitmap { rows: Arc::new(rows), held }
        });
        &bitmap.rows
    }

    /// Makes a bitmap of the rows that are not deleted.
    fn fill(&self, deletes: &Deletes) -> LiveBitmap<RowSet> {
        let bytes = u64::from(deletes.rows().div_ceil(64)) * 8;
        let budget = self.budget.as_ref().filter(|_| bytes >= COUNTED_BYTES_MIN);
        let held = budget.and_then(|budget| budget.reserve_beside_work(bytes));
        let words = deletes.words().map(|word| !word).collect();
        LiveBitmap { rows: RowSet::from_words(deletes.rows(), words), held }
    }

    /// Deletes `row`, which `deletes` already has, from the newest state. Other holders of `live`
    /// keep the older state.
    pub(super) fn delete(live: &mut Arc<LiveRows>, row: u32, deletes: &Deletes) {
        live.spares.lock().record(row, deletes.count());
        let Some(own) = Arc::get_mut(live) else {
            let spares = live.spares.clone();
            let budget = live.budget.clone();
            *live = Arc::new(LiveRows { rows: OnceLock::new(), spares, budget });
            return;
        };
        let Some(bitmap) = own.rows.get_mut() else { return };
        match Arc::get_mut(&mut bitmap.rows) {
            Some(rows) => rows.remove(row),
            // A thread still searches them for a query that has ended.
            None => own.rows = OnceLock::new(),
        }
    }

    /// Drops spare bitmaps if no query requested one for `age`.
    pub(super) fn drop_unused(&self, age: Duration) {
        let mut spares = self.spares.lock();
        let is_unused = spares.requested.is_none_or(|last| last.elapsed() >= age);
        let unused = if is_unused { std::mem::take(&mut spares.sets) } else { Vec::new() };
        // Large bitmaps are freed without the lock, which queries wait for.
        drop(spares);
        drop(unused);
    }
}

impl Drop for LiveRows {
    fn drop(&mut self) {
        let Some(LiveBitmap { rows, held }) = self.rows.take() else { return };
        if let Some(rows) = Arc::into_inner(rows) {
            let surplus = self.spares.lock().add(LiveBitmap { rows, held });
            drop(surplus);
        }
    }
}

/// Returns the number of deleted rows of the state that a bitmap belongs to.
fn deleted_rows(set: &RowSet) -> u32 {
    set.rows() - set.count()
}

impl SpareRows {
    /// Records that `row` was deleted. The segment now has `deleted` deleted rows.
    fn record(&mut self, row: u32, deleted: u32) {
        if self.deleted + 1 != deleted {
            // Rows were deleted before the segment was opened.
            self.recent.clear();
        }
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(row);
        self.deleted = deleted;
    }

    /// Returns the places in `recent` of the rows that are live in one of two states only, or
    /// `None` if not all of them are known.
    fn between(&self, one: u32, other: u32) -> Option<Range<usize>> {
        let first = self.deleted.saturating_sub(self.recent.len() as u32);
        let low = one.min(other).checked_sub(first)?;
        let high = one.max(other);
        (high <= self.deleted).then(|| low as usize..(high - first) as usize)
    }

    /// Returns a spare bitmap, changed to the state with `deleted` deleted rows. Returns `None`
    /// if no spare bitmap can be changed.
    fn take(&mut self, deleted: u32) -> Option<LiveBitmap<RowSet>> {
        self.requested = Some(Instant::now());
        let distance =
            |set: &RowSet| self.between(deleted_rows(set), deleted).map(|rows| rows.len());
        let distances =
            self.sets.iter().enumerate().filter_map(|(at, set)| Some((distance(&set.rows)?, at)));
        let Some((_, nearest)) = distances.min() else {
            self.filled += 1;
            return None;
        };
        let mut set = self.sets.swap_remove(nearest);
        let before = deleted_rows(&set.rows);
        let changed = self.recent.range(self.between(before, deleted)?);
        if before < deleted {
            changed.for_each(|row| set.rows.remove(*row));
        } else {
            changed.for_each(|row| set.rows.insert(*row));
        }
        Some(set)
    }

    /// Keeps a bitmap that no query uses. Returns one that is too many.
    fn add(&mut self, set: LiveBitmap<RowSet>) -> Option<LiveBitmap<RowSet>> {
        self.sets.push(set);
        if self.sets.len() <= SPARES_MAX {
            return None;
        }
        let oldest = (0..self.sets.len()).min_by_key(|&at| deleted_rows(&self.sets[at].rows))?;
        Some(self.sets.swap_remove(oldest))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// One state of a segment, as a query holds it, and the rows that it must find.
    #[derive(Clone)]
    struct TestState {
        deletes: Arc<Deletes>,
        live: Arc<LiveRows>,
        expected: BTreeSet<u32>,
    }

    impl TestState {
        fn new(rows: u32) -> TestState {
            TestState {
                deletes: Arc::new(Deletes::none(rows)),
                live: Arc::default(),
                expected: (0..rows).collect(),
            }
        }

        fn delete(&mut self, row: u32) {
            if Arc::make_mut(&mut self.deletes).insert(row) {
                LiveRows::delete(&mut self.live, row, &self.deletes);
            }
            self.expected.remove(&row);
        }

        fn check(&self) {
            let rows = self.live.get(&self.deletes);
            assert!(rows.iter().eq(self.expected.iter().copied()));
            assert_eq!(rows.count() as usize, self.expected.len());
        }

        fn filled(&self) -> u64 {
            self.live.spares.lock().filled
        }
    }

    #[test]
    fn bitmaps_are_reused_beside_running_queries() {
        let mut newest = TestState::new(10_000);
        newest.delete(0);
        newest.check();
        for row in 1..1000 {
            newest.delete(row);
            newest.check();
        }
        assert_eq!(newest.filled(), 1, "no query held a state");
        let mut running: VecDeque<TestState> = VecDeque::new();
        for row in 1000..2000 {
            newest.delete(row);
            running.push_back(newest.clone());
            running.iter().for_each(TestState::check);
            if running.len() == 3 {
                running.pop_front();
            }
        }
        assert_eq!(newest.filled(), 3, "one for each of three queries at a time");
    }

    #[test]
    fn an_old_state_takes_the_bitmap_of_a_newer_one() {
        let mut newest = TestState::new(100);
        newest.delete(0);
        let held = newest.clone();
        newest.delete(1);
        newest.check();
        let newer = newest.clone();
        newest.delete(2);
        drop(newer);
        held.check();
        assert_eq!(newest.filled(), 1);
    }

    #[test]
    fn few_spare_bitmaps_are_kept_and_not_for_long() {
        let mut newest = TestState::new(100);
        let mut held = Vec::new();
        for row in 0..2 * SPARES_MAX as u32 {
            newest.delete(row);
            newest.check();
            held.push(newest.clone());
        }
        drop(held);
        let spares = || newest.live.spares.lock().sets.len();
        assert_eq!(spares(), SPARES_MAX);
        newest.live.drop_unused(Duration::MAX);
        assert_eq!(spares(), SPARES_MAX);
        newest.live.drop_unused(Duration::ZERO);
        assert_eq!(spares(), 0);
    }

    #[test]
    fn large_bitmaps_are_counted_while_there_is_room() {
        let bytes = 2 * COUNTED_BYTES_MIN;
        let rows = 8 * bytes as u32;
        let budget = MemoryBudget::new(3 * bytes);
        let mut deletes = Deletes::none(rows);
        let mut live = Arc::new(LiveRows::new(budget.clone()));
        let mut states = Vec::new();
        for (row, counted) in [(0, bytes), (1, 2 * bytes), (2, 2 * bytes)] {
            deletes.insert(row);
            LiveRows::delete(&mut live, row, &deletes);
            assert_eq!(live.get(&deletes).count(), rows - row - 1);
            states.push(live.clone());
            assert_eq!(budget.stats().used, counted);
        }
        assert_eq!(budget.stats().refused, 0);
        // The third bitmap would take memory that filters need. The others become spare ones.
        drop(states);
        assert_eq!(budget.stats().used, 2 * bytes);
        live.drop_unused(Duration::ZERO);
        assert_eq!(budget.stats().used, 0);
    }

    #[test]
    fn more_deletes_than_are_recorded_fill_a_bitmap() {
        let rows = 2 * RECENT_MAX as u32 + 10;
        let mut newest = TestState::new(rows);
        newest.delete(0);
        let held = newest.clone();
        held.check();
        (1..=RECENT_MAX as u32 + 1).for_each(|row| newest.delete(row));
        drop(held);
        newest.check();
        assert_eq!(newest.filled(), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        // Each step deletes a row, starts a query, ends one, or lets one read its rows.
        #[test]
        fn every_query_sees_the_rows_of_its_state(
            rows in 1_u32..400,
            opened_with in prop::collection::vec(any::<u32>(), 0..5),
            steps in prop::collection::vec((0_u8..4, any::<u32>()), 0..200),
        ) {
            let mut newest = TestState::new(rows);
            // Deletes of a file do not pass through `LiveRows`.
            for row in opened_with.iter().map(|row| row % rows) {
                Arc::make_mut(&mut newest.deletes).insert(row);
                newest.expected.remove(&row);
            }
            let mut running: Vec<TestState> = Vec::new();
            for (step, number) in steps {
                match step {
                    0 => newest.delete(number % rows),
                    1 => running.push(newest.clone()),
                    2 if !running.is_empty() => {
                        running.swap_remove(number as usize % running.len());
                    }
                    _ => {
                        newest.check();
                        if let Some(state) = running.get(number as usize % running.len().max(1)) {
                            state.check();
                        }
                    }
                }
            }
            running.iter().for_each(TestState::check);
            newest.check();
        }
    }
}
