//! The rows that a clause allows, segment by segment, kept for the next query that asks the same.
//!
//! A segment's payloads never change, so what a clause allows of it holds for as long as the segment does; deletes are
//! taken away when a query needs it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use base::{Error, Result};
use serde_json::Value;

use super::inner::lock;
use crate::budget::{BudgetReservation, MemoryBudget};
use crate::filter::{Filter, RowSet};
use crate::ingest::MemtableRow;
use crate::segment::Segment;

/// Clauses whose filters are kept. The memory limit may allow fewer.
const CLAUSES_MAX: usize = 256;
/// Segments of one clause whose filters are kept.
const SEGMENTS_MAX: usize = 1024;
/// Bytes that the filters of one collection keep together.
const KEPT_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a clause whose filters are kept: what people ask for again is short.
const CLAUSE_BYTES_MAX: u64 = 64 << 10;
/// Rows after which a thread that reads payloads looks at the clock and lets others have the core.
const ROWS_A_TURN: u32 = 512;
/// Clauses used last whose filters a new segment gets before it is searched.
const WARMED_MAX: usize = 8;

/// What a clause allows of one segment.
#[derive(Debug)]
pub(super) struct SelectedRows {
    pub(super) filter: RowSet,
    /// Rows whose payloads could not be read; they are not allowed.
    pub(super) lost: u32,
}

thread_local! {
    /// Until when the answer is wanted that this thread is working for.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Does `work` on this thread. A filter in it that has to read payloads gives up with `DeadlineExceeded` if they are
/// not all read at `deadline`.
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

/// A reading of payloads that ends early if nobody waits for it.
pub(super) struct PayloadScan {
    deadline: Option<Instant>,
    rows: u32,
    late: bool,
}

impl PayloadScan {
    pub(super) fn new() -> PayloadScan {
        PayloadScan { deadline: DEADLINE.get(), rows: 0, late: false }
    }

    /// Counts a row, and says whether it is to be looked at.
    pub(super) fn go_on(&mut self) -> bool {
        if self.rows.is_multiple_of(ROWS_A_TURN) && !self.late {
            self.late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            std::thread::yield_now();
        }
        self.rows = self.rows.wrapping_add(1);
        !self.late
    }

    /// Checks that every row was looked at.
    ///
    /// # Errors
    /// `DeadlineExceeded` if rows were left out.
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
    /// The clause used last comes last.
    kept: Mutex<VecDeque<CachedFilter>>,
}

/// A clause and what it allows of segments.
#[derive(Debug)]
struct CachedFilter {
    clause: Arc<Filter>,
    /// The memory that the clause takes.
    _held: BudgetReservation,
    /// The segment used last comes last.
    segments: VecDeque<CachedRows>,
}

#[derive(Debug)]
struct CachedRows {
    uuid: [u8; 16],
    selected: Arc<SelectedRows>,
    /// The memory it takes.
    held: BudgetReservation,
}

impl CachedFilter {
    fn bytes(&self) -> u64 {
        self.segments.iter().map(|of| of.held.bytes()).sum()
    }
}

impl FilterCache {
    /// What `clause` allows of a segment. The first time every payload is read.
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
        // One with losses is not kept: the medium may do better next time.
        if selected.lost == 0 {
            self.keep(uuid, clause, selected.clone(), held, budget);
        }
        Ok(selected)
    }

    /// Finds what is kept, which becomes what was used last.
    fn find(&self, segment: [u8; 16], clause: &Filter) -> Option<Arc<SelectedRows>> {
        let mut kept = lock(&self.kept);
        let place = kept.iter().position(|kept| *kept.clause == *clause)?;
        let mut found = kept.remove(place)?;
        let place = found.segments.iter().position(|of| of.uuid == segment);
        let of = place.and_then(|place| found.segments.remove(place));
        let selected = of.as_ref().map(|of| of.selected.clone());
        found.segments.extend(of);
        kept.push_back(found);
        selected
    }

    /// Keeps what a clause allows, if the clause is not too large and there is memory for it. Clauses that were not
    /// used for the longest time make room.
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
        let mut kept = lock(&self.kept);
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
                kept.push_back(CachedFilter { clause, _held: held, segments: VecDeque::from([of]) });
            }
        }
        let mut total: u64 = kept.iter().map(CachedFilter::bytes).sum();
        while kept.len() > CLAUSES_MAX || (total > KEPT_BYTES_MAX && kept.len() > 1) {
            total -= kept.pop_front().map_or(0, |kept| kept.bytes());
        }
    }

    /// Makes the filters of the clauses used last for a segment that is about to be searched, so that no query has to
    /// read all its payloads. Where it fails, a query does it.
    pub(super) fn warm(&self, segment: &Segment, budget: &Arc<MemoryBudget>) {
        let clauses: Vec<Arc<Filter>> =
            lock(&self.kept).iter().rev().take(WARMED_MAX).map(|kept| kept.clause.clone()).collect();
        for clause in &clauses {
            if let Err(error) = self.select(segment, clause, budget) {
                tracing::debug!(%error, "a filter is left to the next query");
                return;
            }
        }
    }

    /// Drops all that is kept, to make room.
    pub(super) fn clear(&self) {
        lock(&self.kept).clear();
    }
}

fn read(segment: &Segment, clause: &Filter) -> Result<SelectedRows> {
    let mut filter = RowSet::none(segment.rows());
    let (mut unreadable, mut turns) = (0, PayloadScan::new());
    let mut each = |row: u32, value: Option<Value>| match (segment.ids().id(row), value) {
        (Some(id), Some(value)) if clause.matches(id, &value) => filter.insert(row),
        (Some(_), Some(_)) => {}
        _ => unreadable += 1,
    };
    let lost = if clause.needs_payload() {
        segment.payloads(&mut |row, bytes| {
            if turns.go_on() {
                each(row, value_of(bytes));
            }
        })?
    } else {
        (0..segment.rows()).for_each(|row| each(row, Some(Value::Null)));
        0
    };
    turns.check()?;
    Ok(SelectedRows { filter, lost: lost + unreadable })
}

/// A payload; `None` for what is not JSON.
pub(super) fn value_of(bytes: &[u8]) -> Option<Value> {
    if bytes.is_empty() { Some(Value::Null) } else { serde_json::from_slice(bytes).ok() }
}

/// Whether a clause allows a point that is not sealed yet.
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
    fn clauses_are_kept_with_all_their_segments() {
        let (filters, budget) = (FilterCache::default(), MemoryBudget::new(1 << 30));
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
        let (filters, budget) = (FilterCache::default(), MemoryBudget::new(1 << 30));
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
    fn a_reading_ends_at_its_deadline_and_only_within_the_work_it_is_for() {
        let late = until(Instant::now(), || {
            let mut turns = PayloadScan::new();
            assert!(!turns.go_on() && !turns.go_on());
            turns.check().unwrap_err()
        });
        assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
        let mut turns = PayloadScan::new();
        assert!(turns.go_on() && turns.check().is_ok(), "the deadline went with the work");
        until(Instant::now() + Duration::from_secs(3600), || assert!(PayloadScan::new().go_on()));
    }
}
