//! Cache of the rows that match a filter, for each segment.
//!
//! The payloads of a segment never change, so the matching rows stay valid while the segment
//! exists. Deleted rows are removed when a query uses them.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use base::{Error, Result};
use parking_lot::Mutex;
use serde_json::Value;

use crate::budget::{BudgetReservation, MemoryBudget};
use crate::filter::{Filter, RowSet};
use crate::ingest::MemtableRow;
use crate::segment::Segment;

/// Maximum cached filters. The memory limit may allow fewer.
const CLAUSES_MAX: usize = 256;
/// Maximum segments per cached filter.
const SEGMENTS_MAX: usize = 1024;
/// Maximum bytes of cached rows per collection.
const KEPT_BYTES_MAX: u64 = 64 << 20;
/// Maximum bytes of a filter that is cached; filters that are used again are short.
const CLAUSE_BYTES_MAX: u64 = 64 << 10;
/// Rows between checks of the deadline, at which the thread also yields.
const ROWS_A_TURN: u32 = 512;
/// Most recently used filters that are prepared for a new segment.
const WARMED_MAX: usize = 8;

/// Rows of one segment that match a filter.
#[derive(Debug)]
pub(super) struct SelectedRows {
    pub(super) filter: RowSet,
    /// Rows whose payloads could not be read; they do not match.
    pub(super) lost: u32,
}

thread_local! {
    /// Deadline of the request that this thread works for.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Runs `work` on this thread with a deadline. A filter that has to read payloads fails with
/// `DeadlineExceeded` if it has not read all of them by then.
pub fn until<T>(deadline: Instant, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Instant>);
    impl Drop for Restore {
        fn drop(&mut self) {
            DEADLINE.set(self.0);
        }
    }
    let _restore = Restore(DEADLINE.replace(Some(deadline)));
    work()
}

/// Pass over payloads that ends at the deadline.
pub(super) struct PayloadScan {
    deadline: Option<Instant>,
    rows: u32,
    late: bool,
}

impl PayloadScan {
    pub(super) fn new() -> PayloadScan {
        PayloadScan { deadline: DEADLINE.get(), rows: 0, late: false }
    }

    /// Counts a row. Rescan true if it should be read.
    pub(super) fn next_row(&mut self) -> bool {
        if self.rows.is_multiple_of(ROWS_A_TURN) && !self.late {
            self.late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            std::thread::yield_now();
        }
        self.rows = self.rows.wrapping_add(1);
        !self.late
    }

    /// Checks that every row was read.
    ///
    /// # Errors
    /// `DeadlineExceeded` if rows were skipped.
    pub(super) fn check(&self) -> Result<()> {
        match self.late {
            true => Err(Error::deadline(
                "the time was up while the payloads were read for a filter; ask for less or allow more time",
            )),
            false => Ok(()),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct FilterCache {
    /// Least recently used first.
    kept: Mutex<VecDeque<CachedFilter>>,
}

/// Filter and its matching rows.
#[derive(Debug)]
struct CachedFilter {
    clause: Arc<Filter>,
    /// Memory that the filter takes.
    _held: BudgetReservation,
    /// Least recently used first.
    segments: VecDeque<CachedRows>,
}

#[derive(Debug)]
struct CachedRows {
    uuid: [u8; 16],
    selected: Arc<SelectedRows>,
    /// Memory that the rows take.
    held: BudgetReservation,
}

impl CachedFilter {
    fn bytes(&self) -> u64 {
        self.segments.iter().map(|of| of.held.bytes()).sum()
    }
}

impl FilterCache {
    /// Rescan the rows of a segment that match `clause`. The first call reads every payload.
    pub(super) fn select(
        &self,
        segment: &Segment,
        clause: &Filter,
        budget: &Arc<MemoryBudget>,
    ) -> Result<Arc<SelectedRows>> {
        let uuid = segment.uuid();
        if let Some(selected) = self.find(uuid, clause) {
            return Ok(selected);
        }
        let bytes = u64::from(segment.rows().div_ceil(64)) * 8;
        let held = budget.reserve(bytes, "a filter")?;
        let selected = Arc::new(read(segment, clause)?);
        // Not cached if rows were lost: the next read may succeed.
        if selected.lost == 0 {
            self.keep(uuid, clause, selected.clone(), held, budget);
        }
        Ok(selected)
    }

    /// Rescan cached rows and marks them as most recently used.
    fn find(&self, segment: [u8; 16], clause: &Filter) -> Option<Arc<SelectedRows>> {
        let mut kept = self.kept.lock();
        let place = kept.iter().position(|kept| *kept.clause == *clause)?;
        let mut found = kept.remove(place)?;
        let place = found.segments.iter().position(|of| of.uuid == segment);
        let of = place.and_then(|place| found.segments.remove(place));
        let selected = of.as_ref().map(|of| of.selected.clone());
        found.segments.extend(of);
        kept.push_back(found);
        selected
    }

    /// Caches matching rows if the filter is not too large and memory allows. Evicts the least
    /// recently used filters.
    fn keep(
        &self,
        segment: [u8; 16],
        clause: &Filter,
        selected: Arc<SelectedRows>,
        held: BudgetReservation,
        budget: &Arc<MemoryBudget>,
    ) {
        let bytes = clause.memory_bytes();
        if bytes > CLAUSE_BYTES_MAX {
            return;
        }
        let mut kept = self.kept.lock();
        let of = CachedRows { uuid: segment, selected, held };
        match kept.iter_mut().find(|kept| *kept.clause == *clause) {
            Some(known) => {
                known.segments.retain(|of| of.uuid != segment);
                if known.segments.len() >= SEGMENTS_MAX {
                    known.segments.pop_front();
                }
                known.segments.push_back(of);
            }
            None => {
                let Ok(held) = budget.reserve(bytes, "a filter's conditions") else { return };
                let clause = Arc::new(clause.clone());
                kept.push_back(CachedFilter {
                    clause,
                    _held: held,
                    segments: VecDeque::from([of]),
                });
            }
        }
        let mut total: u64 = kept.iter().map(CachedFilter::bytes).sum();
        while kept.len() > CLAUSES_MAX || (total > KEPT_BYTES_MAX && kept.len() > 1) {
            total -= kept.pop_front().map_or(0, |kept| kept.bytes());
        }
    }

    /// Prepares the most recently used filters for a segment before it is searched, so that no
    /// query has to read all its payloads. After a failure the next query does it.
    pub(super) fn warm(&self, segment: &Segment, budget: &Arc<MemoryBudget>) {
        let clauses: Vec<Arc<Filter>> = self
            .kept
            .lock()
            .iter()
            .rev()
            .take(WARMED_MAX)
            .map(|kept| kept.clause.clone())
            .collect();
        for clause in &clauses {
            if let Err(error) = self.select(segment, clause, budget) {
                tracing::debug!(%error, "a filter is left to the next query");
                return;
            }
        }
    }

    /// Clears the cache to free memory.
    pub(super) fn clear(&self) {
        self.kept.lock().clear();
    }
}

fn read(segment: &Segment, clause: &Filter) -> Result<SelectedRows> {
    let mut filter = RowSet::none(segment.rows());
    let mut unreadable = 0;
    let mut scan = PayloadScan::new();
    let mut each = |row: u32, value: Option<Value>| match (segment.ids().id(row), value) {
        (Some(id), Some(value)) if clause.matches(id, &value) => filter.insert(row),
        (Some(_), Some(_)) => {}
        _ => unreadable += 1,
    };
    let lost = if clause.needs_payload() {
        segment.payloads(&mut |row, bytes| {
            if scan.next_row() {
                each(row, value_of(bytes));
            }
        })?
    } else {
        (0..segment.rows()).for_each(|row| each(row, Some(Value::Null)));
        0
    };
    scan.check()?;
    Ok(SelectedRows { filter, lost: lost + unreadable })
}

/// Parses a payload; `None` if it is not JSON.
pub(super) fn value_of(bytes: &[u8]) -> Option<Value> {
    if bytes.is_empty() { Some(Value::Null) } else { serde_json::from_slice(bytes).ok() }
}

/// Rescan true if a row of a memtable matches `clause`.
pub(super) fn allows(clause: &Filter, row: &MemtableRow) -> bool {
    value_of(&row.payload).is_some_and(|value| clause.matches(row.id, &value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Condition;
    use base::ErrorKind;
    use std::time::Duration;

    fn clause(number: u64) -> Filter {
        Filter { must: vec![Condition::has_id(vec![number])], ..Filter::default() }
    }

    fn segment(number: u8) -> [u8; 16] {
        [number; 16]
    }

    #[test]
    fn filters_are_cached_with_all_segments() {
        let filters = FilterCache::default();
        let budget = MemoryBudget::new(1 << 30);
        let clauses = CLAUSES_MAX as u64 + 44;
        for number in 0..clauses {
            for of in 0..20 {
                let selected = Arc::new(SelectedRows { filter: RowSet::none(64), lost: 0 });
                let held = budget.reserve(8, "a test").unwrap();
                filters.keep(segment(of), &clause(number), selected, held, &budget);
            }
        }
        for number in 0..clauses {
            for of in 0..20 {
                assert_eq!(
                    filters.find(segment(of), &clause(number)).is_some(),
                    number >= 44,
                    "{number} {of}"
                );
            }
        }
        assert!(filters.find(segment(20), &clause(clauses - 1)).is_none());
    }

    #[test]
    fn filters_together_have_a_limit() {
        let filters = FilterCache::default();
        let budget = MemoryBudget::new(1 << 30);
        for number in 0..5 {
            let selected = Arc::new(SelectedRows { filter: RowSet::none(64), lost: 0 });
            let held = budget.reserve(KEPT_BYTES_MAX / 3, "a test").unwrap();
            filters.keep(segment(1), &clause(number), selected, held, &budget);
        }
        let there: Vec<bool> =
            (0..5).map(|number| filters.find(segment(1), &clause(number)).is_some()).collect();
        assert_eq!(there, [false, false, true, true, true]);
    }

    #[test]
    fn a_payload_scan_ends_at_its_deadline() {
        let late = until(Instant::now(), || {
            let mut scan = PayloadScan::new();
            assert!(!scan.next_row() && !scan.next_row());
            scan.check().unwrap_err()
        });
        assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
        let mut scan = PayloadScan::new();
        assert!(scan.next_row() && scan.check().is_ok(), "the deadline went with the work");
        until(Instant::now() + Duration::from_secs(3600), || {
            assert!(PayloadScan::new().next_row())
        });
    }
}
