//! Random points of a collection, by draws of rows.

use std::collections::HashSet;

use super::inner::Collection;
use super::state::CollectionState;

/// Maximum draws of a row for each requested point. A draw is lost if the row is deleted, or was
/// drawn before.
const DRAWS_A_POINT: usize = 16;

/// Points that were drawn at random.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RandomPoints {
    /// Different internal ids of live points, in the order of the draws.
    pub ids: Vec<u64>,
    /// Rows that were drawn.
    pub draws: usize,
    /// True if points may be missing because data is damaged or a segment is not open yet.
    pub partial: bool,
}

impl Collection {
    /// Draws `count` different points, each with the same probability. Does not list the others.
    /// `next` returns random numbers. Returns `None` if this would take too many draws: more than
    /// half of the points are requested, or most rows are deleted.
    pub fn random_points(
        &self,
        count: usize,
        mut next: impl FnMut() -> u64,
    ) -> Option<RandomPoints> {
        let state = self.read_state();
        if 2 * count as u64 > state.live() {
            return None;
        }
        let rows = RowsOfState::of(&state);
        let mut points =
            RandomPoints { partial: self.is_partial(&state), ..RandomPoints::default() };
        let mut known = HashSet::new();
        while points.ids.len() < count {
            if points.draws >= count * DRAWS_A_POINT {
                return None;
            }
            points.draws += 1;
            // The high half of the product is below the number of rows.
            let row = (u128::from(next()) * u128::from(rows.count)) >> 64;
            let id = rows.live_id(row as u64).filter(|id| known.insert(*id));
            points.ids.extend(id);
        }
        Some(points)
    }
}

/// Rows of all open segments, then those of all memtables.
struct RowsOfState<'a> {
    state: &'a CollectionState,
    count: u64,
}

impl RowsOfState<'_> {
    fn of(state: &CollectionState) -> RowsOfState<'_> {
        let flushed: u64 = state.open().map(|(_, _, view)| u64::from(view.segment.rows())).sum();
        let unflushed: u64 = state.memtables.iter().map(|it| u64::from(it.rows())).sum();
        RowsOfState { state, count: flushed + unflushed }
    }

    /// Returns the id of a row, if it is live.
    fn live_id(&self, mut row: u64) -> Option<u64> {
        for (_, _, view) in self.state.open() {
            let rows = u64::from(view.segment.rows());
            if row < rows {
                let row = row as u32;
                return view.segment.ids().id(row).filter(|_| !view.deletes.contains(row));
            }
            row -= rows;
        }
        for memtable in &self.state.memtables {
            let rows = u64::from(memtable.rows());
            if row < rows {
                let row = row as u32;
                return memtable.row(row).filter(|_| !memtable.is_deleted(row)).map(|it| it.id);
            }
            row -= rows;
        }
        None
    }
}
