//! A walk through all points for background work. It first visits the segments, each in the order
//! of rows, which is the order of coarse clusters. Then it visits the memtables in the order of
//! ids.
//!
//! A walk survives restarts and changes of the collection. It records the segments that it has
//! passed. A segment that a flush or a merge makes meanwhile is visited as a whole. A point may
//! therefore be visited twice. A live point is left out only if it is damaged, or if it is written
//! while the walk visits the memtables, or later.

use base::{Error, Result};
use serde::{Deserialize, Serialize};

use super::inner::Collection;
use super::state::CollectionState;

/// Maximum points of one step.
const WALK_STEP_MAX: usize = 4096;

/// Place among segments and memtables from which the next step of a walk continues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WalkPosition {
    /// Segments whose rows were all visited.
    passed: Vec<[u8; 16]>,
    /// Segment that is being visited.
    segment: Option<[u8; 16]>,
    /// Next row of the walk.
    row: u32,
    /// Next id in the memtables.
    id: u64,
}

/// Point that a walk visits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WalkedPoint {
    /// Internal id.
    pub(crate) id: u64,
    /// Values, one for each dimension.
    pub(crate) embedding: Vec<f32>,
}

/// Points of one step of a walk.
#[derive(Clone, Debug, Default)]
pub(crate) struct WalkStep {
    /// Live points. May be empty before the end.
    pub(crate) points: Vec<WalkedPoint>,
    /// Points that could not be read.
    pub(crate) unreadable: u64,
    /// True after the last point.
    pub(crate) ended: bool,
}

impl Collection {
    /// Returns the next points of a walk, at most `max` up to [`WALK_STEP_MAX`], and moves
    /// `position` to the point after them.
    ///
    /// # Errors
    /// `Unavailable` while a segment is opened for the first time since the start. Damaged points
    /// are counted only.
    pub(crate) fn walk(&self, position: &mut WalkPosition, max: usize) -> Result<WalkStep> {
        let state = self.state();
        if self.opening() {
            return Err(Error::unavailable("segments are being opened; try again"));
        }
        let max = max.clamp(1, WALK_STEP_MAX);
        let mut step = WalkStep::default();
        while step.points.len() < max {
            if !walk_segment(&state, position, max, &mut step) {
                step.ended = walk_memtables(&state, position, max, &mut step);
                return Ok(step);
            }
        }
        Ok(step)
    }
}

/// Visits rows of the first segment that was not passed. Returns false if there is none.
fn walk_segment(
    state: &CollectionState,
    position: &mut WalkPosition,
    max: usize,
    step: &mut WalkStep,
) -> bool {
    // Segments that were merged away need not be remembered.
    position.passed.retain(|uuid| state.segments.iter().any(|slot| slot.uuid == *uuid));
    let next = state.open().find(|(_, slot, _)| !position.passed.contains(&slot.uuid));
    let Some((_, slot, view)) = next else { return false };
    if position.segment != Some(slot.uuid) {
        position.segment = Some(slot.uuid);
        position.row = 0;
    }
    let rows = view.segment.rows();
    while position.row < rows && step.points.len() < max {
        let row = position.row;
        position.row += 1;
        let Some(id) = view.segment.ids().id(row).filter(|_| !view.deletes.contains(row)) else {
            continue;
        };
        let mut embedding = Vec::new();
        match view.segment.vector(row, &mut embedding) {
            Ok(()) => step.points.push(WalkedPoint { id, embedding }),
            Err(_) => step.unreadable += 1,
        }
    }
    if position.row >= rows {
        position.passed.push(slot.uuid);
        position.segment = None;
        position.row = 0;
    }
    true
}

/// Visits points of the memtables. Returns true if there are no more.
fn walk_memtables(
    state: &CollectionState,
    position: &mut WalkPosition,
    max: usize,
    step: &mut WalkStep,
) -> bool {
    let live = state.memtables.iter().flat_map(|memtable| memtable.live());
    let mut rows: Vec<_> = live.map(|(_, row)| row).filter(|row| row.id >= position.id).collect();
    rows.sort_unstable_by_key(|row| row.id);
    let room = max - step.points.len();
    let ended = rows.len() <= room;
    for row in rows.into_iter().take(room) {
        step.points.push(WalkedPoint { id: row.id, embedding: row.embedding.to_vec() });
        position.id = row.id.saturating_add(1);
    }
    ended
}
