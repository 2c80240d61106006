//! Pass over the points of one state that reads indexes and payloads in slices: all segments, then
//! the memtables.
//!
//! The pass keeps its state and its position, so it continues after a pause and visits each point
//! once.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::Result;
use coarse::RowSet;
use parking_lot::Mutex;
use serde_json::Value;

use super::filters::{PayloadReader, set_bytes};
use super::inner::Collection;
use super::scan::{self, PayloadScan, ScanStep};
use super::state::{CollectionState, SegmentView};
use crate::budget::BudgetReservation;
use crate::filter::Filter;

/// Maximum passes of each kind that one work keeps. Work with more passes does not pause.
const PASSES_MAX: usize = 64;

/// Receiver of the points of a pass.
pub(super) trait PointVisitor {
    /// Visits the allowed rows of a segment by its payload index, or all rows if `allow` is `None`.
    /// Returns the rows whose payloads are still to be read, if there are any. If `scan` stops, the
    /// next call with the same segment and rows continues.
    ///
    /// # Errors
    /// The error of the medium or of the receiver, which ends the pass.
    fn visit_index(
        &mut self,
        view: &SegmentView,
        allow: Option<&RowSet>,
        scan: &mut PayloadScan,
    ) -> Result<Option<RowSet>>;

    /// Visits a row of a segment by its payload. Returns false if the row is damaged.
    ///
    /// # Errors
    /// The error of the receiver, which ends the pass.
    fn visit_row(&mut self, view: &SegmentView, row: u32, payload: &Value) -> Result<bool>;

    /// Visits a point of a memtable.
    ///
    /// # Errors
    /// The error of the receiver, which ends the pass.
    fn visit_unflushed(&mut self, id: u64, payload: &Value) -> Result<()>;
}

/// Pass and its position.
pub(super) struct PointsPass {
    state: Arc<CollectionState>,
    /// Segments of the state that were visited.
    segments: usize,
    /// Rest of the next segment, if a part of it was visited.
    rest: Option<SegmentRest>,
    /// Live rows of the memtables that were visited.
    unflushed: usize,
    partial: bool,
    /// Memory that the pass takes during a pause.
    _held: Option<BudgetReservation>,
}

/// Rest of a segment that a pause left.
enum SegmentRest {
    /// Rows that match the filter, of an index that is being visited, or `None` without a filter.
    Index(Option<RowSet>),
    /// Rows whose payloads are being read.
    Payloads(UnreadRows),
}

/// Rows of one segment whose payloads are to be read.
struct UnreadRows {
    rows: RowSet,
    /// First row that was not read.
    next: Option<u32>,
}

impl PointsPass {
    /// Begins a pass over the current points. `bytes` is the memory of the visitor that is not
    /// reserved elsewhere. Without free memory for a pause, the work of this thread does not pause.
    pub(super) fn new(collection: &Collection, bytes: usize) -> PointsPass {
        let state = collection.read_state();
        let partial = collection.is_partial(&state);
        let rows = state.open().map(|(_, _, view)| set_bytes(&view.segment)).max().unwrap_or(0);
        let held = collection.budget.reserve_if_free(rows + bytes as u64);
        if held.is_none() {
            scan::disable_pauses();
        }
        PointsPass { state, segments: 0, rest: None, unflushed: 0, partial, _held: held }
    }

    /// Returns true if points may be missing because data is damaged or a segment is not open yet.
    pub(super) fn is_partial(&self) -> bool {
        self.partial
    }

    /// Visits the remaining points that match `filter`. `key` is the field that the visitor uses.
    ///
    /// # Errors
    /// `Cancelled` after a pause, which [`scan::is_paused`] shows. The next call then continues.
    /// `DeadlineExceeded` if payloads are still to be read. Also the errors of the filter and of
    /// the visitor.
    pub(super) fn run(
        &mut self,
        collection: &Collection,
        key: &str,
        filter: Option<&Filter>,
        visitor: &mut impl PointVisitor,
    ) -> Result<()> {
        let state = self.state.clone();
        let reader = PayloadReader::new(filter, Some(key));
        let mut scan = PayloadScan::in_slices();
        while let Some(slot) = state.segments.get(self.segments) {
            if let Some(view) = slot.view() {
                collection.check_open()?;
                self.visit_segment(collection, filter, view, visitor, &reader, &mut scan)?;
                scan.check(&format!("\"{key}\" has no index"))?;
            }
            self.segments += 1;
        }
        self.visit_memtables(&state, filter, visitor, &reader, &mut scan)?;
        scan.check("new points are not in a segment yet")
    }

    /// Visits the rest of a segment by its index, and then by the payloads that the index does not
    /// cover. Keeps the rest for the next call if `scan` stops.
    fn visit_segment(
        &mut self,
        collection: &Collection,
        filter: Option<&Filter>,
        view: &SegmentView,
        visitor: &mut impl PointVisitor,
        reader: &PayloadReader<'_>,
        scan: &mut PayloadScan,
    ) -> Result<()> {
        let rest = match self.rest.take() {
            Some(rest) => rest,
            None => SegmentRest::Index(collection.filtered(filter, view, &mut self.partial)?),
        };
        let mut unread = match rest {
            SegmentRest::Payloads(unread) => unread,
            SegmentRest::Index(filtered) => {
                let allow = filtered.as_ref().or(view.allowed().map(|allowed| &**allowed));
                let rows = visitor.visit_index(view, allow, scan)?;
                if scan.step() != ScanStep::Read {
                    self.rest = Some(SegmentRest::Index(filtered));
                    return Ok(());
                }
                let Some(rows) = rows else { return Ok(()) };
                UnreadRows { next: rows.next_from(0), rows }
            }
        };
        unread.next = match unread.next {
            Some(first) => self.read(view, &unread.rows, first, visitor, reader, scan)?,
            None => None,
        };
        if unread.next.is_some() {
            self.rest = Some(SegmentRest::Payloads(unread));
        }
        Ok(())
    }

    /// Visits `rows` from `first` on until `scan` stops. Returns the row to continue with.
    fn read(
        &mut self,
        view: &SegmentView,
        rows: &RowSet,
        first: u32,
        visitor: &mut impl PointVisitor,
        reader: &PayloadReader<'_>,
        scan: &mut PayloadScan,
    ) -> Result<Option<u32>> {
        let mut is_damaged = false;
        let mut failure = None;
        let pass = view.segment.payloads_of(rows, first, &mut |row, bytes| {
            if scan.next_row() != ScanStep::Read {
                return ControlFlow::Break(());
            }
            let visited = match reader.read(bytes) {
                Some(payload) => visitor.visit_row(view, row, &payload),
                None => Ok(false),
            };
            match visited {
                Ok(is_whole) => {
                    is_damaged |= !is_whole;
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        self.partial |= is_damaged || pass.lost > 0;
        Ok(pass.next)
    }

    /// Visits the unflushed points that were not visited before, until `scan` stops.
    fn visit_memtables(
        &mut self,
        state: &CollectionState,
        filter: Option<&Filter>,
        visitor: &mut impl PointVisitor,
        reader: &PayloadReader<'_>,
        scan: &mut PayloadScan,
    ) -> Result<()> {
        let live = state.memtables.iter().flat_map(|memtable| memtable.live().map(|(_, row)| row));
        for row in live.skip(self.unflushed) {
            if scan.next_row() != ScanStep::Read {
                return Ok(());
            }
            self.unflushed += 1;
            if !reader.may_match(&row.payload) {
                continue;
            }
            match reader.read(&row.payload) {
                Some(payload) if filter.is_none_or(|filter| filter.matches(row.id, &payload)) => {
                    visitor.visit_unflushed(row.id, &payload)?;
                }
                Some(_) => {}
                None => self.partial = true,
            }
        }
        Ok(())
    }
}

/// Passes of one kind that one work keeps for its next slice.
pub(super) struct KeptPasses<P>(Mutex<Vec<P>>);

impl<P> Default for KeptPasses<P> {
    fn default() -> KeptPasses<P> {
        KeptPasses(Mutex::default())
    }
}

impl<P> KeptPasses<P> {
    /// Takes the pass of a call. If there is none and no room for another one, the work continues
    /// without a pause.
    pub(super) fn take(&self, is_of_call: impl Fn(&P) -> bool) -> Option<P> {
        let mut passes = self.0.lock();
        let place = passes.iter().position(is_of_call);
        if place.is_none() && passes.len() >= PASSES_MAX {
            scan::disable_pauses();
        }
        place.map(|place| passes.swap_remove(place))
    }

    /// Keeps a pass for the next slice.
    pub(super) fn keep(&self, pass: P) {
        self.0.lock().push(pass);
    }

    /// Returns the number of passes.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.lock().len()
    }
}

#[cfg(test)]
#[path = "points_pass_tests.rs"]
mod tests;
