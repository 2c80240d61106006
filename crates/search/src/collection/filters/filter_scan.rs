//! Evaluation of one filter on one segment, which reads the payloads of undecided rows.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Result;
use coarse::RowSet;

use super::{PayloadReader, SelectedRows};
use crate::budget::BudgetReservation;
use crate::collection::scan::{PayloadScan, ScanStep};
use crate::filter::Filter;
use crate::segment::{PayloadPass, Segment};

/// Time after which a paused pass is dropped, because its query has ended.
pub(super) const PAUSED_FOR_MAX: Duration = Duration::from_secs(60);

/// Evaluation of a filter on a segment whose payloads are being read.
#[derive(Debug)]
pub(super) struct FilterScan {
    pub(super) uuid: [u8; 16],
    pub(super) filter: Arc<Filter>,
    pub(super) selected: SelectedRows,
    /// Rows whose payloads decide.
    pub(super) undecided: RowSet,
    /// First row that was not read.
    pub(super) next: Option<u32>,
    /// Fields without an index, with reasons.
    pub(super) unindexed: Vec<String>,
    pub(super) held: BudgetReservation,
    /// Time at which it was paused last.
    pub(super) paused_at: Instant,
}

impl FilterScan {
    /// Returns true if it was paused for so long that its query has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.paused_at.elapsed() >= PAUSED_FOR_MAX
    }

    /// Reads the payloads of undecided rows until `pass` stops.
    pub(super) fn read(&mut self, segment: &Segment, pass: &mut PayloadScan) -> Result<()> {
        let FilterScan { filter, selected, undecided, next, .. } = self;
        let Some(first) = *next else { return Ok(()) };
        let SelectedRows { rows, lost } = selected;
        let reader = PayloadReader::new(Some(&**filter), None);
        let mut unreadable = 0;
        let read = segment.payloads_of(undecided, first, &mut |row, bytes| {
            if pass.next_row() != ScanStep::Read {
                return ControlFlow::Break(());
            }
            match (segment.ids().id(row), reader.read(bytes)) {
                (Some(id), Some(value)) if filter.matches(id, &value) => rows.insert(row),
                (Some(_), Some(_)) => {}
                _ => unreadable += 1,
            }
            ControlFlow::Continue(())
        });
        let PayloadPass { lost: damaged, next: stopped } = read?;
        *lost += damaged + unreadable;
        *next = stopped;
        Ok(())
    }
}
