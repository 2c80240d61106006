//! Rows that match a filter, for each segment: from the payload index, and from payloads for rows
//! that the index leaves undecided. Results are cached.
//!
//! The payloads of a segment never change, so the matching rows stay valid while the segment
//! exists. Deleted rows are removed when a query uses them.

mod counts;
mod filter_scan;
mod held;
mod payload_reader;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use base::{Error, Result};
use coarse::RowSet;
use serde_json::Value;

use self::filter_scan::FilterScan;
use self::held::HeldFilters;
use super::scan::{self, PayloadScan, ScanStep};
use crate::budget::MemoryBudget;
use crate::filter::Filter;
use crate::ingest::MemtableRow;
use crate::payload_index::{IndexAnswer, SelectionParts};
use crate::segment::Segment;

pub(super) use self::counts::FilterCounts;
pub use self::counts::FilterStats;
pub(super) use self::held::FilterCaches;
pub(super) use self::payload_reader::PayloadReader;

/// Maximum bytes of a filter that is cached for other queries. Filters that are used again are
/// short. The rows of a longer filter are kept for the slices of its own query.
const FILTER_BYTES_MAX: u64 = 64 << 10;
/// Most recently used filters that are prepared for a new segment.
const WARMED_MAX: usize = 8;
/// Maximum paused passes over payloads that a collection keeps. Further passes do not pause.
const PAUSED_MAX: usize = 64;
/// Sets of rows that a filter needs while it is evaluated.
const WORKING_SETS: u64 = 4;

/// Rows of one segment that match a filter.
#[derive(Debug)]
pub(super) struct SelectedRows {
    pub(super) rows: RowSet,
    /// Rows whose payloads could not be read. They do not match.
    pub(super) lost: u32,
}

#[derive(Debug, Default)]
pub(super) struct FilterCache {
    held: Arc<HeldFilters>,
    counts: Arc<FilterCounts>,
}

impl FilterCache {
    /// Creates a cache that counts in `counts` and belongs to `caches`.
    pub(super) fn new(counts: Arc<FilterCounts>, caches: &FilterCaches) -> FilterCache {
        let cache = FilterCache { counts, ..FilterCache::default() };
        caches.add(&cache);
        cache
    }

    /// Returns the rows of a segment that match `filter`.
    ///
    /// # Errors
    /// `DeadlineExceeded` or `Cancelled` if payloads are still to be read, as
    /// [`PayloadScan::check`]. The next call continues. `ResourceExhausted` if memory has no room.
    /// Otherwise the error of the medium.
    pub(super) fn select(
        &self,
        segment: &Segment,
        filter: &Filter,
        budget: &Arc<MemoryBudget>,
    ) -> Result<Arc<SelectedRows>> {
        let uuid = segment.uuid();
        let keeper = if filter.memory_bytes() <= FILTER_BYTES_MAX {
            Some(self.held.clone())
        } else {
            scan::progress().map(|progress| progress.get::<HeldFilters>())
        };
        if let Some(selected) = keeper.as_ref().and_then(|keeper| keeper.find(uuid, filter)) {
            return Ok(selected);
        }
        let mut scan = match self.resume(uuid, filter) {
            Some(scan) => scan,
            None => self.start(segment, filter, budget)?,
        };
        if scan.next.is_some() {
            scan = self.read(segment, scan, keeper.is_some())?;
        }
        let FilterScan { selected, mut held, .. } = scan;
        held.resize(set_bytes(segment), "a filter")?;
        let selected = Arc::new(selected);
        // Not cached if rows were lost, because the next read may succeed.
        match keeper.filter(|_| selected.lost == 0) {
            Some(keeper) => keeper.keep(uuid, filter, selected.clone(), held, budget),
            // After a pause in a later segment, this one would be read again, without end.
            None => scan::disable_pauses(),
        }
        Ok(selected)
    }

    /// Evaluates a filter with the payload index.
    fn start(
        &self,
        segment: &Segment,
        filter: &Filter,
        budget: &Arc<MemoryBudget>,
    ) -> Result<FilterScan> {
        let sets = filter.working_sets().max(WORKING_SETS);
        let mut held = budget.reserve(sets * set_bytes(segment), "a filter")?;
        let IndexAnswer { selection, unindexed } = segment.select(filter)?;
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
            filter: Arc::new(if undecided.is_empty() { Filter::default() } else { filter.clone() }),
            selected: SelectedRows { rows: sure, lost: 0 },
            next: undecided.next_from(0),
            undecided,
            unindexed,
            held,
            paused_at: Instant::now(),
        })
    }

    /// Reads payloads until all rows are decided. If it stops before, keeps the progress. A filter
    /// whose rows are not kept does not stop at the end of a slice. After a pause in a later
    /// segment, this one would be read again from its start.
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
    fn resume(&self, uuid: [u8; 16], filter: &Filter) -> Option<FilterScan> {
        let mut paused = self.held.paused.lock();
        let place = paused.iter().position(|scan| scan.uuid == uuid && *scan.filter == *filter)?;
        paused.remove(place)
    }

    /// Prepares the most recently used filters for a segment before it is searched, so that no
    /// query has to read all its payloads. After a failure, the next query reads the payloads.
    pub(super) fn warm(&self, segment: &Segment, budget: &Arc<MemoryBudget>) {
        let recent: Vec<Arc<Filter>> = self
            .held
            .kept
            .lock()
            .iter()
            .rev()
            .take(WARMED_MAX)
            .map(|kept| kept.filter.clone())
            .collect();
        for filter in &recent {
            if let Err(error) = self.select(segment, filter, budget) {
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

/// Returns the bytes of a set of rows.
pub(super) fn set_bytes(segment: &Segment) -> u64 {
    u64::from(segment.rows().div_ceil(64)) * 8
}

/// Parses a payload. Returns `None` if it is not JSON.
fn value_of(bytes: &[u8]) -> Option<Value> {
    if bytes.is_empty() { Some(Value::Null) } else { serde_json::from_slice(bytes).ok() }
}

/// Pass of a filter over rows of memtables, which stops at the deadline of the work on this thread.
pub(super) struct MemtableFilter<'a> {
    filter: Option<&'a Filter>,
    reader: PayloadReader<'a>,
    scan: PayloadScan,
}

impl<'a> MemtableFilter<'a> {
    /// Starts a pass. Every row matches `None`, which reads no payload.
    pub(super) fn new(filter: Option<&'a Filter>) -> MemtableFilter<'a> {
        let reader = PayloadReader::new(filter, None);
        MemtableFilter { filter, reader, scan: PayloadScan::in_memory() }
    }

    /// Returns true if a row matches. After the deadline no row does.
    pub(super) fn allows(&mut self, row: &MemtableRow) -> bool {
        self.decide(row) == Some(true)
    }

    /// Returns true if a row matches, or `None` after the deadline.
    pub(super) fn decide(&mut self, row: &MemtableRow) -> Option<bool> {
        let Some(filter) = self.filter else { return Some(true) };
        if self.scan.next_row() != ScanStep::Read {
            return None;
        }
        let is_match = self.reader.may_match(&row.payload)
            && self.reader.read(&row.payload).is_some_and(|value| filter.matches(row.id, &value));
        Some(is_match)
    }

    /// Checks that every row was read.
    ///
    /// # Errors
    /// `DeadlineExceeded` if rows were skipped.
    pub(super) fn check(&self) -> Result<()> {
        self.scan.check("new points are not indexed yet")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use base::ErrorKind;

    use super::filter_scan::PAUSED_FOR_MAX;
    use super::held::FILTERS_MAX;
    use super::*;
    use crate::budget::FreeOnDemand;
    use crate::collection::scan::{SliceOutcome, in_ended_slice, until};
    use crate::collection::slice_progress::SliceProgress;
    use crate::filter::{Condition, CountRange, Match, MinShould, Range};
    use crate::payload_index::{FIELDS_MAX, segment_of_values};

    pub(super) fn id_filter(number: u64) -> Filter {
        Filter { must: vec![Condition::has_id(vec![number])], ..Filter::default() }
    }

    pub(super) fn segment(number: u8) -> [u8; 16] {
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
        let known = FILTERS_MAX as u64 - 4;
        let all: Vec<Filter> = (0..known).map(id_filter).chain((0..cold).map(counted)).collect();
        let work = || {
            let select = |filter: &Filter| filters.select(&test.segment, filter, &budget);
            all.iter().try_for_each(|filter| select(filter).map(drop))
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
        assert!(pauses < cold, "it continues once its own filters are evicted");
        assert_eq!(filters.held.kept.lock().len(), FILTERS_MAX);
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
    fn passes_of_ended_queries_return_their_memory() {
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
            let selected = Arc::new(SelectedRows { rows: RowSet::none(64), lost: 0 });
            let held = budget.reserve(1000, "a test").unwrap();
            filters.held.keep(segment(of), &id_filter(1), selected, held, &budget);
        }
        let both = budget.stats().used;
        filters.forget(segment(0));
        assert_eq!(budget.stats().used, both - 1000);
        assert!(filters.held.find(segment(0), &id_filter(1)).is_none());
        assert!(filters.held.find(segment(1), &id_filter(1)).is_some());
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
        assert_eq!(selected.rows, RowSet::from_rows(2000, 0..100));
        assert_eq!(filters.counts.stats(), FilterStats { indexed: 1, ..FilterStats::default() });
        // An indexed condition leaves few rows to read.
        let mut both = range("late", 5.0);
        both.must.extend(range("f1", 100.0).must);
        assert_eq!(select(&both).unwrap().rows.count(), 50);
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
        assert_eq!(selected.rows.count(), 600);
        let stats = filters.counts.stats();
        assert_eq!((slices, stats.scanned, stats.paused), (4, 1, 3));
        assert!(filters.held.paused.lock().is_empty());
        // The deadline names the field.
        let late = until(Instant::now(), || select(&range("late", 1.0))).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
        assert!(late.message().contains("\"late\" has no index"), "{late}");
        assert_eq!(select(&range("late", 1.0)).unwrap().rows.count(), 200, "and it continues");
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
        assert!(long.memory_bytes() > FILTER_BYTES_MAX);
        let select = |filter: &Filter| filters.select(&test.segment, filter, &budget);
        let work = || {
            let selected = select(&long)?;
            select(&short).map(|_| selected.rows.count())
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
