//! Filters that take memory, and their eviction if memory is short.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::filter_scan::FilterScan;
use super::{FilterCache, SelectedRows};
use crate::budget::{BudgetReservation, FreeOnDemand, MemoryBudget};
use crate::collection::scan;
use crate::filter::Filter;

/// Maximum cached filters. The memory limit may allow fewer.
pub(super) const FILTERS_MAX: usize = 256;
/// Maximum segments per cached filter.
const SEGMENTS_MAX: usize = 1024;
/// Maximum bytes of cached rows per collection.
const KEPT_BYTES_MAX: u64 = 64 << 20;

/// Filters that take memory: those of a collection, or the long ones of one work. No memory is
/// reserved while a list is locked, because a reservation may take the memory of the list back.
#[derive(Debug, Default)]
pub(super) struct HeldFilters {
    /// Least recently used first.
    pub(super) kept: Mutex<VecDeque<CachedFilter>>,
    /// Passes over payloads that stopped before their end, oldest first.
    pub(super) paused: Mutex<VecDeque<FilterScan>>,
}

/// Filters of all collections. A reservation that would be refused takes their memory back.
#[derive(Debug, Default)]
pub(in crate::collection) struct FilterCaches(Mutex<Vec<Weak<HeldFilters>>>);

/// Filter and its matching rows.
#[derive(Debug)]
pub(super) struct CachedFilter {
    pub(super) filter: Arc<Filter>,
    /// Memory that the conditions take.
    held: BudgetReservation,
    /// Least recently used first.
    pub(super) segments: VecDeque<CachedRows>,
    /// Time of the last use.
    used_at: Instant,
}

/// Rows of a segment that match a filter.
#[derive(Debug)]
pub(super) struct CachedRows {
    pub(super) uuid: [u8; 16],
    selected: Arc<SelectedRows>,
    /// Memory that the rows take.
    held: BudgetReservation,
}

impl CachedFilter {
    /// Returns the bytes of the conditions and of the rows.
    fn bytes(&self) -> u64 {
        self.held.bytes() + self.rows_bytes()
    }

    fn rows_bytes(&self) -> u64 {
        self.segments.iter().map(|of| of.held.bytes()).sum()
    }

    /// Lets this thread's work continue without a pause if it used the filter in its slice. Work
    /// with more filters than are cached would otherwise evict and read them without end.
    fn note_eviction(&self) {
        if scan::is_in_slice(self.used_at) {
            scan::disable_pauses();
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
    pub(super) fn find(&self, segment: [u8; 16], filter: &Filter) -> Option<Arc<SelectedRows>> {
        let mut kept = self.kept.lock();
        let place = kept.iter().position(|kept| *kept.filter == *filter)?;
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
    pub(super) fn keep(
        &self,
        segment: [u8; 16],
        filter: &Filter,
        selected: Arc<SelectedRows>,
        held: BudgetReservation,
        budget: &Arc<MemoryBudget>,
    ) {
        let bytes = filter.memory_bytes();
        let Ok(filter_held) = budget.reserve(bytes, "a filter's conditions") else {
            // After a pause, the rows would be read again, without end.
            return scan::disable_pauses();
        };
        let mut kept = self.kept.lock();
        let of = CachedRows { uuid: segment, selected, held };
        match kept.iter_mut().find(|kept| *kept.filter == *filter) {
            Some(known) => {
                known.used_at = Instant::now();
                known.segments.retain(|of| of.uuid != segment);
                if known.segments.len() >= SEGMENTS_MAX {
                    known.segments.pop_front();
                }
                known.segments.push_back(of);
            }
            None => {
                let filter = Arc::new(filter.clone());
                kept.push_back(CachedFilter {
                    filter,
                    held: filter_held,
                    segments: VecDeque::from([of]),
                    used_at: Instant::now(),
                });
            }
        }
        let mut total: u64 = kept.iter().map(CachedFilter::rows_bytes).sum();
        while kept.len() > FILTERS_MAX || (total > KEPT_BYTES_MAX && kept.len() > 1) {
            let Some(evicted) = kept.pop_front() else { break };
            total -= evicted.rows_bytes();
            evicted.note_eviction();
        }
    }
}

impl FilterCaches {
    /// Adds the filters of a collection until it is closed.
    pub(super) fn add(&self, cache: &FilterCache) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collection::filters::tests::{id_filter, segment};
    use crate::filter::Condition;
    use coarse::RowSet;

    #[test]
    fn filters_are_cached_with_all_segments() {
        let filters = FilterCache::default();
        let budget = MemoryBudget::new(1 << 30);
        let count = FILTERS_MAX as u64 + 44;
        for number in 0..count {
            for of in 0..20 {
                let selected = Arc::new(SelectedRows { rows: RowSet::none(64), lost: 0 });
                let held = budget.reserve(8, "a test").unwrap();
                filters.held.keep(segment(of), &id_filter(number), selected, held, &budget);
            }
        }
        for number in 0..count {
            for of in 0..20 {
                assert_eq!(
                    filters.held.find(segment(of), &id_filter(number)).is_some(),
                    number >= 44,
                    "{number} {of}"
                );
            }
        }
        assert!(filters.held.find(segment(20), &id_filter(count - 1)).is_none());
    }

    #[test]
    fn filters_together_have_a_limit() {
        let filters = FilterCache::default();
        let budget = MemoryBudget::new(1 << 30);
        for number in 0..5 {
            let selected = Arc::new(SelectedRows { rows: RowSet::none(64), lost: 0 });
            let held = budget.reserve(KEPT_BYTES_MAX / 3, "a test").unwrap();
            filters.held.keep(segment(1), &id_filter(number), selected, held, &budget);
        }
        let there: Vec<bool> = (0..5)
            .map(|number| filters.held.find(segment(1), &id_filter(number)).is_some())
            .collect();
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
                let selected = Arc::new(SelectedRows { rows: RowSet::none(64), lost: 0 });
                let held = budget.reserve(ROWS_BYTES, "a test").unwrap();
                filters.held.keep(segment(1), &id_filter(number), selected, held, &budget);
            }
        }
        let filter_bytes = ROWS_BYTES + id_filter(0).memory_bytes();
        assert_eq!(caches.bytes(), 8 * filter_bytes);
        assert!(budget.free() < 3 * ROWS_BYTES, "it does not count as free");
        assert!(budget.reserve(2 << 20, "too much").is_err());
        assert_eq!(caches.bytes(), 8 * filter_bytes, "a refusal costs no filter");
        let row = budget.reserve(4 * ROWS_BYTES, "a point").unwrap();
        assert_eq!(caches.bytes(), 6 * filter_bytes);
        for filters in [&one, &other] {
            assert!(
                filters.held.find(segment(1), &id_filter(0)).is_none(),
                "the oldest ones first"
            );
            assert!(filters.held.find(segment(1), &id_filter(1)).is_some());
        }
        assert_eq!(budget.stats().refused, 1);
        drop((row, one, other));
        assert_eq!((caches.bytes(), budget.stats().used), (0, 0));
    }

    #[test]
    fn conditions_without_rows_are_evicted_for_a_reservation() {
        let budget = MemoryBudget::new(1 << 20);
        let caches = Arc::new(FilterCaches::default());
        let results: Weak<FilterCaches> = Arc::downgrade(&caches);
        budget.set_results(results);
        let filters = FilterCache::new(Arc::default(), &caches);
        let must = vec![Condition::has_id((0..4096).collect())];
        let filter = Filter { must, ..Filter::default() };
        let selected = Arc::new(SelectedRows { rows: RowSet::none(64), lost: 0 });
        let held = budget.reserve(8, "a test").unwrap();
        filters.held.keep(segment(1), &filter, selected, held, &budget);
        filters.forget(segment(1));
        let bytes = filter.memory_bytes();
        assert_eq!((caches.bytes(), budget.stats().used), (bytes, bytes));
        assert!(budget.reserve(1 << 20, "a point").is_ok());
        assert_eq!(caches.bytes(), 0);
    }
}
