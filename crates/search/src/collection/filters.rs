//! Rows that match a filter, for each segment: from the payload index, and from payloads for rows
//! that the index leaves undecided. Results are cached.
//!
//! The payloads of a segment never change, so the matching rows stay valid while the segment
//! exists. Deleted rows are removed when a query uses them.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base::{Error, Result};
use parking_lot::Mutex;
use serde_json::Value;

use super::scan::{self, PayloadScan, ScanStep};
use crate::budget::{BudgetReservation, FreeOnDemand, MemoryBudget};
use crate::filter::{Filter, RowSet};
use crate::ingest::MemtableRow;
use crate::payload_index::{IndexAnswer, SelectionParts};
use crate::segment::{PayloadPass, Segment};

/// Maximum cached filters. The memory limit may allow fewer.
const CLAUSES_MAX: usize = 256;
/// Maximum segments per cached filter.
const SEGMENTS_MAX: usize = 1024;
/// Maximum bytes of cached rows per collection.
const KEPT_BYTES_MAX: u64 = 64 << 20;
/// Maximum bytes of a filter that is cached for other queries; filters that are used again are
/// short. The rows of a longer filter are kept for the slices of its own query.
const CLAUSE_BYTES_MAX: u64 = 64 << 10;
/// Most recently used filters that are prepared for a new segment.
const WARMED_MAX: usize = 8;
/// Maximum paused passes over payloads that a collection keeps. Further passes do not pause.
const PAUSED_MAX: usize = 64;
/// Time after which a paused pass is dropped, because its query has ended.
const PAUSED_FOR_MAX: Duration = Duration::from_secs(60);
/// Sets of rows that a filter needs while it is evaluated.
const WORKING_SETS: u64 = 4;

/// Counts of filters that were evaluated on a segment, by how.
#[derive(Debug, Default)]
pub(crate) struct FilterCounts {
    indexed: AtomicU64,
    verified: AtomicU64,
    scanned: AtomicU64,
    paused: AtomicU64,
    late: AtomicU64,
}

/// Counts of filters that were evaluated on a segment since the start. A cached result is not
/// counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterStats {
    /// Decided by the payload index alone.
    pub indexed: u64,
    /// Some payloads were read, of rows that the index left undecided.
    pub verified: u64,
    /// All payloads were read.
    pub scanned: u64,
    /// Times that reading payloads was paused to let other requests run.
    pub paused: u64,
    /// Ended by a deadline before all payloads were read.
    pub late: u64,
}

impl FilterCounts {
    /// Returns the counts.
    pub(crate) fn stats(&self) -> FilterStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FilterStats {
            indexed: count(&self.indexed),
            verified: count(&self.verified),
            scanned: count(&self.scanned),
            paused: count(&self.paused),
            late: count(&self.late),
        }
    }
}

/// Rows of one segment that match a filter.
#[derive(Debug)]
pub(super) struct SelectedRows {
    pub(super) filter: RowSet,
    /// Rows whose payloads could not be read; they do not match.
    pub(super) lost: u32,
}

/// Evaluation of a filter on a segment whose payloads are being read.
#[derive(Debug)]
struct FilterScan {
    uuid: [u8; 16],
    clause: Arc<Filter>,
    selected: SelectedRows,
    /// Rows whose payloads decide.
    undecided: RowSet,
    /// First row that was not read.
    next: Option<u32>,
    /// Fields without an index, with reasons.
    unindexed: Vec<String>,
    held: BudgetReservation,
    /// Time at which it was paused last.
    paused_at: Instant,
}

/// Filters that take memory: those of a collection, or the long ones of one work. No memory is
/// reserved while a list is locked, because a reservation may take the memory of the list back.
#[derive(Debug, Default)]
struct HeldFilters {
    /// Least recently used first.
    kept: Mutex<VecDeque<CachedFilter>>,
    /// Passes over payloads that stopped before their end, oldest first.
    paused: Mutex<VecDeque<FilterScan>>,
}

/// Filters of all collections. A reservation that would be refused takes their memory back.
#[derive(Debug, Default)]
pub(super) struct FilterCaches(Mutex<Vec<Weak<HeldFilters>>>);

#[derive(Debug, Default)]
pub(super) struct FilterCache {
    held: Arc<HeldFilters>,
    counts: Arc<FilterCounts>,
}

/// Filter and its matching rows.
#[derive(Debug)]
struct CachedFilter {
    clause: Arc<Filter>,
    /// Memory that the filter takes.
    _held: BudgetReservation,
    /// Least recently used first.
    segments: VecDeque<CachedRows>,
    /// Time of the last use.
    used_at: Instant,
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

    /// Lets this thread's work go on without a pause if it used the filter in its slice. Work with
    /// more filters than are cached would evict its first ones, pause, and read them again, without
    /// end.
    fn note_eviction(&self) {
        if scan::is_in_slice(self.used_at) {
            scan::read_on();
        }
    }
}

impl HeldFilters {
    /// Returns the bytes of cached filters and of passes whose queries have ended.
    fn bytes(&self) -> u64 {
        let kept: u64 = self.kept.lock().iter().map(CachedFilter::bytes).sum();
        let paused = self.paused.lock();
        let ended = paused.iter().filter(|scan| scan.has_ended());
        kept + ended.map(|scan| scan.held.bytes()).sum::<u64>()
    }

    /// Drops the passes whose queries have ended, and returns their bytes.
    fn drop_ended(&self) -> u64 {
        let mut freed = 0;
        self.paused.lock().retain(|scan| {
            let has_ended = scan.has_ended();
            freed += if has_ended { scan.held.bytes() } else { 0 };
            !has_ended
        });
        freed
    }

    /// Returns the time at which the first filter to evict was used last.
    fn oldest_use(&self) -> Option<Instant> {
        self.kept.lock().front().map(|kept| kept.used_at)
    }

    /// Returns cached rows and marks them as most recently used.
    fn find(&self, segment: [u8; 16], clause: &Filter) -> Option<Arc<SelectedRows>> {
        let mut kept = self.kept.lock();
        let place = kept.iter().position(|kept| *kept.clause == *clause)?;
        let mut found = kept.remove(place)?;
        let place = found.segments.iter().position(|of| of.uuid == segment);
        let of = place.and_then(|place| found.segments.remove(place));
        let selected = of.as_ref().map(|of| of.selected.clone());
        found.segments.extend(of);
        found.used_at = Instant::now();
        kept.push_back(found);
        selected
    }

    /// Caches matching rows if memory allows. Evicts the least recently used filters.
    fn keep(
        &self,
        segment: [u8; 16],
        clause: &Filter,
        selected: Arc<SelectedRows>,
        held: BudgetReservation,
        budget: &Arc<MemoryBudget>,
    ) {
        let bytes = clause.memory_bytes();
        let Ok(clause_held) = budget.reserve(bytes, "a filter's conditions") else {
            // A pause would have the rows read again, without end.
            return scan::read_on();
        };
        let mut kept = self.kept.lock();
        let of = CachedRows { uuid: segment, selected, held };
        match kept.iter_mut().find(|kept| *kept.clause == *clause) {
            Some(known) => {
                known.used_at = Instant::now();
                known.segments.retain(|of| of.uuid != segment);
                if known.segments.len() >= SEGMENTS_MAX {
                    known.segments.pop_front();
                }
                known.segments.push_back(of);
            }
            None => {
                let clause = Arc::new(clause.clone());
                kept.push_back(CachedFilter {
                    clause,
                    _held: clause_held,
                    segments: VecDeque::from([of]),
                    used_at: Instant::now(),
                });
            }
        }
        let mut total: u64 = kept.iter().map(CachedFilter::bytes).sum();
        while kept.len() > CLAUSES_MAX || (total > KEPT_BYTES_MAX && kept.len() > 1) {
            let Some(evicted) = kept.pop_front() else { break };
            total -= evicted.bytes();
            evicted.note_eviction();
        }
    }
}

impl FilterCaches {
    /// Adds the filters of a collection until it is closed.
    fn add(&self, cache: &FilterCache) {
        let mut caches = self.0.lock();
        caches.retain(|held| held.strong_count() > 0);
        caches.push(Arc::downgrade(&cache.held));
    }

    /// Returns the filters of open collections.
    fn open(&self) -> Vec<Arc<HeldFilters>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

impl FreeOnDemand for FilterCaches {
    fn bytes(&self) -> u64 {
        self.open().iter().map(|held| held.bytes()).sum()
    }

    /// Drops passes whose queries have ended. Then evicts the filters that were not used for the
    /// longest time, of all collections.
    fn free(&self, bytes: u64) {
        let caches = self.open();
        let mut freed: u64 = caches.iter().map(|held| held.drop_ended()).sum();
        while freed < bytes {
            let used = caches.iter().filter_map(|held| Some((held.oldest_use()?, held)));
            let Some((_, oldest)) = used.min_by_key(|(used_at, _)| *used_at) else { return };
            // Another thread may have evicted it.
            let Some(evicted) = oldest.kept.lock().pop_front() else { continue };
            freed += evicted.bytes();
            evicted.note_eviction();
        }
    }
}

impl FilterCache {
    /// Creates a cache that counts in `counts` and belongs to `caches`.
    pub(super) fn new(counts: Arc<FilterCounts>, caches: &FilterCaches) -> FilterCache {
        let cache = FilterCache { counts, ..FilterCache::default() };
        caches.add(&cache);
        cache
    }

    /// Returns the rows of a segment that match `clause`.
    ///
    /// # Errors
    /// `DeadlineExceeded` or `Cancelled` if payloads are still to be read, as
    /// [`PayloadScan::check`]; the next call continues. `ResourceExhausted` if memory has no room;
    /// otherwise the error of the medium.
    pub(super) fn select(
        &self,
        segment: &Segment,
        clause: &Filter,
        budget: &Arc<MemoryBudget>,
    ) -> Result<Arc<SelectedRows>> {
        let uuid = segment.uuid();
        let keeper = match clause.memory_bytes() <= CLAUSE_BYTES_MAX {
            true => Some(self.held.clone()),
            false => scan::progress().map(|progress| progress.get::<HeldFilters>()),
        };
        if let Some(selected) = keeper.as_ref().and_then(|keeper| keeper.find(uuid, clause)) {
            return Ok(selected);
        }
        let mut scan = match self.resume(uuid, clause) {
            Some(scan) => scan,
            None => self.start(segment, clause, budget)?,
        };
        if scan.next.is_some() {
            scan = self.read(segment, scan, keeper.is_some())?;
        }
        let FilterScan { selected, mut held, .. } = scan;
        held.resize(set_bytes(segment), "a filter")?;
        let selected = Arc::new(selected);
        // Not cached if rows were lost: the next read may succeed.
        match keeper.filter(|_| selected.lost == 0) {
            Some(keeper) => keeper.keep(uuid, clause, selected.clone(), held, budget),
            // A pause in a later segment would have this one read again, without end.
            None => scan::read_on(),
        }
        Ok(selected)
    }

    /// Evaluates a filter with the payload index.
    fn start(
        &self,
        segment: &Segment,
        clause: &Filter,
        budget: &Arc<MemoryBudget>,
    ) -> Result<FilterScan> {
        let sets = clause.working_sets().max(WORKING_SETS);
        let mut held = budget.reserve(sets * set_bytes(segment), "a filter")?;
        let IndexAnswer { selection, unindexed } = segment.select(clause)?;
        held.resize(WORKING_SETS * set_bytes(segment), "a filter")?;
        let SelectionParts { sure, undecided } = selection.into_parts();
        let undecided = undecided.unwrap_or_else(|| RowSet::none(segment.rows()));
        let counter = match undecided.count() {
            0 => &self.counts.indexed,
            count if count == segment.rows() => &self.counts.scanned,
            _ => &self.counts.verified,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(FilterScan {
            uuid: segment.uuid(),
            // Only a pass that stops keeps the filter.
            clause: Arc::new(if undecided.is_empty() { Filter::default() } else { clause.clone() }),
            selected: SelectedRows { filter: sure, lost: 0 },
            next: undecided.next_from(0),
            undecided,
            unindexed,
            held,
            paused_at: Instant::now(),
        })
    }

    /// Reads payloads until all rows are decided. If it stops before, keeps the progress. A filter
    /// whose rows are not kept does not stop at the end of a slice: a pause in a later segment
    /// would have this one read again from its start.
    fn read(&self, segment: &Segment, mut scan: FilterScan, is_kept: bool) -> Result<FilterScan> {
        let mut pass = if is_kept { PayloadScan::in_slices() } else { PayloadScan::new() };
        loop {
            scan.read(segment, &mut pass)?;
            // Passes that drop each other's progress would start again without end.
            if pass.step() != ScanStep::Pause || self.has_room_to_pause() {
                break;
            }
            pass = PayloadScan::new();
        }
        let stopped = pass.check(&scan.unindexed.join(", "));
        let counter = match pass.step() {
            ScanStep::Read => return Ok(scan),
            ScanStep::Pause => &self.counts.paused,
            ScanStep::Late => &self.counts.late,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let mut paused = self.held.paused.lock();
        if paused.len() >= PAUSED_MAX {
            paused.pop_front();
        }
        scan.paused_at = Instant::now();
        paused.push_back(scan);
        drop(paused);
        stopped.and_then(|()| Err(Error::internal("a pass over payloads stopped for no reason")))
    }

    fn has_room_to_pause(&self) -> bool {
        let mut paused = self.held.paused.lock();
        paused.retain(|scan| !scan.has_ended());
        paused.len() < PAUSED_MAX
    }

    /// Takes a pass that was paused.
    fn resume(&self, uuid: [u8; 16], clause: &Filter) -> Option<FilterScan> {
        let mut paused = self.held.paused.lock();
        let place = paused.iter().position(|scan| scan.uuid == uuid && *scan.clause == *clause)?;
        paused.remove(place)
    }

    /// Prepares the most recently used filters for a segment before it is searched, so that no
    /// query has to read all its payloads. After a failure, the next query reads the payloads.
    pub(super) fn warm(&self, segment: &Segment, budget: &Arc<MemoryBudget>) {
        let clauses: Vec<Arc<Filter>> = self
            .held
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

    /// Drops the rows of a segment that was merged. Otherwise they would take memory from filters
    /// in use.
    pub(super) fn forget(&self, segment: [u8; 16]) {
        let mut kept = self.held.kept.lock();
        kept.iter_mut().for_each(|kept| kept.segments.retain(|of| of.uuid != segment));
    }

    /// Clears the cache to free memory.
    pub(super) fn clear(&self) {
        self.held.kept.lock().clear();
        self.held.paused.lock().clear();
    }
}

impl FilterScan {
    /// Returns true if it was paused for so long that its query has ended.
    fn has_ended(&self) -> bool {
        self.paused_at.elapsed() >= PAUSED_FOR_MAX
    }

    /// Reads the payloads of undecided rows until `pass` stops.
    fn read(&mut self, segment: &Segment, pass: &mut PayloadScan) -> Result<()> {
        let FilterScan { clause, selected, undecided, next, .. } = self;
        let Some(first) = *next else { return Ok(()) };
        let SelectedRows { filter, lost } = selected;
        let mut unreadable = 0;
        let read = segment.payloads_of(undecided, first, &mut |row, bytes| {
            if pass.next_row() != ScanStep::Read {
                return ControlFlow::Break(());
            }
            match (segment.ids().id(row), value_of(bytes)) {
                (Some(id), Some(value)) if clause.matches(id, &value) => filter.insert(row),
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

/// Returns the bytes of a set of rows.
pub(super) fn set_bytes(segment: &Segment) -> u64 {
    u64::from(segment.rows().div_ceil(64)) * 8
}

/// Parses a payload; `None` if it is not JSON.
pub(super) fn value_of(bytes: &[u8]) -> Option<Value> {
    if bytes.is_empty() { Some(Value::Null) } else { serde_json::from_slice(bytes).ok() }
}

/// Returns true if a row of a memtable matches `clause`.
pub(super) fn allows(clause: &Filter, row: &MemtableRow) -> bool {
    value_of(&row.payload).is_some_and(|value| clause.matches(row.id, &value))
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;
    use crate::collection::scan::{SliceOutcome, in_ended_slice, until};
    use crate::collection::slice_progress::SliceProgress;
    use crate::filter::{Condition, CountRange, Match, MinShould, Range};
    use crate::payload_index::{FIELDS_MAX, segment_of_values};

    fn clause(number: u64) -> Filter {
        Filter { must: vec![Condition::has_id(vec![number])], ..Filter::default() }
    }

    fn segment(number: u8) -> [u8; 16] {
        [number; 16]
    }

    #[test]
    fn more_passes_than_are_kept_all_end() {
        let payloads: Vec<Value> =
            (0..2000).map(|row| serde_json::json!({ "list": vec![row; 3] })).collect();
        let test = segment_of_values(&payloads);
        let (budget, filters) = (MemoryBudget::new(1 << 30), FilterCache::default());
        let mut left: Vec<Filter> = (0..=PAUSED_MAX as u64).map(counted).collect();
        for _ in 0..6 {
            left.retain(|filter| {
                let select = || filters.select(&test.segment, filter, &budget);
                let slice = in_ended_slice(&Arc::default(), select);
                matches!(slice, SliceOutcome::Paused)
            });
        }
        assert!(left.is_empty(), "{} make no progress", left.len());
    }

    /// Returns a filter that has to read payloads, because numbers of values have no index.
    fn counted(most: u64) -> Filter {
        let range = CountRange { lt: Some(most), ..CountRange::default() };
        let must = vec![Condition::ValuesCount { key: "list".into(), range }];
        Filter { must, ..Filter::default() }
    }

    #[test]
    fn work_with_more_filters_than_are_cached_ends() {
        // Two turns, so that a pass in a slice that has ended pauses once.
        let payloads: Vec<Value> =
            (0..1000).map(|row| serde_json::json!({ "list": vec![row; 3] })).collect();
        let test = segment_of_values(&payloads);
        let (budget, filters) = (MemoryBudget::new(1 << 30), FilterCache::default());
        let cold = 12;
        let known = CLAUSES_MAX as u64 - 4;
        let clauses: Vec<Filter> = (0..known).map(clause).chain((0..cold).map(counted)).collect();
        let work = || {
            let select = |filter: &Filter| filters.select(&test.segment, filter, &budget);
            clauses.iter().try_for_each(|filter| select(filter).map(drop))
        };
        let mut pauses = 0;
        loop {
            match in_ended_slice(&Arc::default(), work) {
                SliceOutcome::Paused => pauses += 1,
                SliceOutcome::Done(result) => break result.unwrap(),
            }
            assert!(pauses <= cold, "it makes no progress");
        }
        let stats = filters.counts.stats();
        let read = stats.scanned + stats.verified;
        assert_eq!((read, stats.paused), (cold, pauses), "each filter is read once");
        assert!(pauses < cold, "it goes on once its own filters are evicted");
        assert_eq!(filters.held.kept.lock().len(), CLAUSES_MAX);
    }

    #[test]
    fn counted_conditions_are_within_the_memory() {
        let payloads: Vec<Value> = (0..64_000).map(|row| serde_json::json!({ "n": row })).collect();
        let test = segment_of_values(&payloads);
        let conditions = range("n", 5.0).must;
        let min_should = Some(MinShould { conditions, min_count: 1 });
        let filter = Filter { min_should, ..Filter::default() };
        // The counts alone need 32.
        let budget = MemoryBudget::new(10 * set_bytes(&test.segment));
        let error = FilterCache::default().select(&test.segment, &filter, &budget).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
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
                filters.held.keep(segment(of), &clause(number), selected, held, &budget);
            }
        }
        for number in 0..clauses {
            for of in 0..20 {
                assert_eq!(
                    filters.held.find(segment(of), &clause(number)).is_some(),
                    number >= 44,
                    "{number} {of}"
                );
            }
        }
        assert!(filters.held.find(segment(20), &clause(clauses - 1)).is_none());
    }

    #[test]
    fn filters_together_have_a_limit() {
        let filters = FilterCache::default();
        let budget = MemoryBudget::new(1 << 30);
        for number in 0..5 {
            let selected = Arc::new(SelectedRows { filter: RowSet::none(64), lost: 0 });
            let held = budget.reserve(KEPT_BYTES_MAX / 3, "a test").unwrap();
            filters.held.keep(segment(1), &clause(number), selected, held, &budget);
        }
        let there: Vec<bool> =
            (0..5).map(|number| filters.held.find(segment(1), &clause(number)).is_some()).collect();
        assert_eq!(there, [false, false, true, true, true]);
    }

    #[test]
    fn a_reservation_evicts_filters_before_it_is_refused() {
        const ROWS_BYTES: u64 = 100 << 10;
        let budget = MemoryBudget::new(1 << 20);
        let caches = Arc::new(FilterCaches::default());
        let results: Weak<FilterCaches> = Arc::downgrade(&caches);
        budget.set_results(results);
        let one = FilterCache::new(Arc::default(), &caches);
        let other = FilterCache::new(Arc::default(), &caches);
        for number in 0..4 {
            for filters in [&one, &other] {
                let selected = Arc::new(SelectedRows { filter: RowSet::none(64), lost: 0 });
                let held = budget.reserve(ROWS_BYTES, "a test").unwrap();
                filters.held.keep(segment(1), &clause(number), selected, held, &budget);
            }
        }
        assert_eq!(caches.bytes(), 8 * ROWS_BYTES);
        assert!(budget.free() < 3 * ROWS_BYTES, "it does not count as free");
        assert!(budget.reserve(2 << 20, "too much").is_err());
        assert_eq!(caches.bytes(), 8 * ROWS_BYTES, "a refusal costs no filter");
        let row = budget.reserve(4 * ROWS_BYTES, "a point").unwrap();
        assert_eq!(caches.bytes(), 6 * ROWS_BYTES);
        for filters in [&one, &other] {
            assert!(filters.held.find(segment(1), &clause(0)).is_none(), "the oldest ones first");
            assert!(filters.held.find(segment(1), &clause(1)).is_some());
        }
        assert_eq!(budget.stats().refused, 1);
        drop((row, one, other));
        assert_eq!((caches.bytes(), budget.stats().used), (0, 0));
    }

    #[test]
    fn passes_of_ended_queries_give_their_memory_back() {
        let payloads: Vec<Value> =
            (0..1000).map(|row| serde_json::json!({ "list": vec![row; 3] })).collect();
        let test = segment_of_values(&payloads);
        let budget = MemoryBudget::new(1 << 20);
        let caches = Arc::new(FilterCaches::default());
        let results: Weak<FilterCaches> = Arc::downgrade(&caches);
        budget.set_results(results);
        let filters = FilterCache::new(Arc::default(), &caches);
        let late = until(Instant::now(), || filters.select(&test.segment, &counted(1), &budget));
        assert_eq!(late.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
        assert!(budget.stats().used > 0);
        assert_eq!(caches.bytes(), 0, "the query may be repeated");
        assert!(budget.reserve(1 << 20, "a point").is_err());
        for scan in filters.held.paused.lock().iter_mut() {
            scan.paused_at = scan.paused_at.checked_sub(PAUSED_FOR_MAX).unwrap();
        }
        assert_eq!(caches.bytes(), budget.stats().used);
        assert!(budget.reserve(1 << 20, "a point").is_ok());
        assert!(filters.held.paused.lock().is_empty());
    }

    #[test]
    fn rows_of_a_merged_segment_are_dropped() {
        let filters = FilterCache::default();
        let budget = MemoryBudget::new(1 << 30);
        for of in 0..2 {
            let selected = Arc::new(SelectedRows { filter: RowSet::none(64), lost: 0 });
            let held = budget.reserve(1000, "a test").unwrap();
            filters.held.keep(segment(of), &clause(1), selected, held, &budget);
        }
        let both = budget.stats().used;
        filters.forget(segment(0));
        assert_eq!(budget.stats().used, both - 1000);
        assert!(filters.held.find(segment(0), &clause(1)).is_none());
        assert!(filters.held.find(segment(1), &clause(1)).is_some());
    }

    fn range(key: &str, lt: f64) -> Filter {
        let range = Range { lt: Some(lt), ..Range::default() };
        Filter { must: vec![Condition::Range { key: key.into(), range }], ..Filter::default() }
    }

    #[test]
    fn unindexed_fields_are_read_in_slices() {
        // The last field of each row has no index.
        let fields = FIELDS_MAX;
        let payload = |row: u32| {
            let mut payload: serde_json::Map<String, Value> =
                (0..fields).map(|at| (format!("f{at}"), row.into())).collect();
            payload.insert("late".into(), (row % 10).into());
            Value::Object(payload)
        };
        // Fields are seen in the order of their names.
        let test = segment_of_values(&(0..2000).map(payload).collect::<Vec<_>>());
        let budget = MemoryBudget::new(1 << 30);
        let filters = FilterCache::default();
        let select = |filter: &Filter| filters.select(&test.segment, filter, &budget);
        let selected = select(&range("f1", 100.0)).unwrap();
        assert_eq!(selected.filter, RowSet::from_rows(2000, 0..100));
        assert_eq!(filters.counts.stats(), FilterStats { indexed: 1, ..FilterStats::default() });
        // An indexed condition leaves few rows to read.
        let mut both = range("late", 5.0);
        both.must.extend(range("f1", 100.0).must);
        assert_eq!(select(&both).unwrap().filter.count(), 50);
        assert_eq!(filters.counts.stats().verified, 1);
        let slow = range("late", 3.0);
        let mut slices = 0;
        let selected = loop {
            slices += 1;
            match in_ended_slice(&Arc::default(), || select(&slow)) {
                SliceOutcome::Paused => assert!(slices < 10, "it makes no progress"),
                SliceOutcome::Done(selected) => break selected.unwrap(),
            }
        };
        assert_eq!(selected.filter.count(), 600);
        let stats = filters.counts.stats();
        assert_eq!((slices, stats.scanned, stats.paused), (4, 1, 3));
        assert!(filters.held.paused.lock().is_empty());
        // The deadline names the field.
        let late = until(Instant::now(), || select(&range("late", 1.0))).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
        assert!(late.message().contains("\"late\" has no index"), "{late}");
        assert_eq!(select(&range("late", 1.0)).unwrap().filter.count(), 200, "and it goes on");
    }

    #[test]
    fn a_long_filter_is_kept_for_the_slices_of_its_work() {
        let payloads: Vec<Value> = (0..2000).map(|row| serde_json::json!({ "n": row })).collect();
        let test = segment_of_values(&payloads);
        let budget = MemoryBudget::new(1 << 30);
        let filters = FilterCache::default();
        let values: Vec<Value> = (0..2000).map(Value::from).collect();
        let matching = Match::Any(values.into());
        // Counts have no index.
        let range = CountRange { gte: Some(1), ..CountRange::default() };
        let must = vec![
            Condition::Match { key: "n".into(), matching },
            Condition::ValuesCount { key: "n".into(), range },
        ];
        let short = Filter { must: must[1..].to_vec(), ..Filter::default() };
        let long = Filter { must, ..Filter::default() };
        assert!(long.memory_bytes() > CLAUSE_BYTES_MAX);
        let select = |filter: &Filter| filters.select(&test.segment, filter, &budget);
        let work = || {
            let selected = select(&long)?;
            select(&short).map(|_| selected.filter.count())
        };
        let progress = Arc::<SliceProgress>::default();
        let mut pauses = 0;
        let count = loop {
            match in_ended_slice(&progress, work) {
                SliceOutcome::Paused => pauses += 1,
                SliceOutcome::Done(count) => break count.unwrap(),
            }
            assert!(pauses < 20, "it makes no progress");
        };
        assert_eq!((count, pauses), (2000, 6), "both pause three times");
        let stats = filters.counts.stats();
        assert_eq!((stats.verified + stats.scanned, stats.paused), (2, 6), "each is read once");
        let kept = |held: &HeldFilters| held.kept.lock().len();
        assert_eq!((kept(&progress.get::<HeldFilters>()), kept(&filters.held)), (1, 1));
        // Without slices, its rows are not kept.
        assert_eq!(work().unwrap(), 2000);
        let stats = filters.counts.stats();
        assert_eq!((stats.verified + stats.scanned, kept(&filters.held)), (3, 1));
    }
}
