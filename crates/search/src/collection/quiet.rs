//! Work for a collection that has had no new points for some time. The last points are flushed, so
//! that queries do not scan them, and more segments are merged.

use std::time::{Duration, Instant};

use base::Result;

use super::inner::{Collection, QuietSince};
use super::options::Merging;

/// Unflushed points are flushed if they fill this part of a memtable. A scan of a full memtable
/// took a quarter of a query's processor time (ADR 0032), so fewer points cost about 2 %.
const FLUSHED_SHARE: u64 = 16;
/// Minimum number of segments that a merge joins.
const FAN_IN_MIN: usize = 2;
/// Time without a request for live rows after which their spare bitmaps are freed.
const ROWS_UNUSED_MAX: Duration = Duration::from_secs(5);

impl Collection {
    /// Returns the time for which checks have seen no new point.
    pub(super) fn quiet_time(&self) -> Duration {
        let state = self.state();
        let Some(newest) = state.memtables.last() else { return Duration::ZERO };
        let (begun, rows) = (newest.begun(), newest.rows());
        let mut last = self.optimizer.quiet.lock();
        let seen = last.filter(|seen| (seen.begun, seen.rows) == (begun, rows));
        let seen = seen.unwrap_or_else(|| QuietSince { begun, rows, since: Instant::now() });
        *last = Some(seen);
        seen.since.elapsed()
    }

    /// Freezes the active memtable if no points arrive or it is old, and if it has enough points to
    /// slow queries down. Returns true if it did. Also frees memory that deletes needed.
    ///
    /// # Errors
    /// The error of the medium.
    pub(crate) fn freeze_if_quiet(&self) -> Result<bool> {
        self.state().open().for_each(|(_, _, view)| view.drop_unused_rows(ROWS_UNUSED_MAX));
        let quiet = self.options.quiet;
        let is_quiet = self.quiet_time() >= quiet.flush;
        let state = self.state();
        let [active] = &state.memtables[..] else { return Ok(false) };
        let is_old = active.begun().elapsed() >= quiet.age;
        let is_small = active.bytes() < self.memtable_bytes / FLUSHED_SHARE;
        if is_small || !(is_quiet || is_old) || self.low_disk().is_some() {
            return Ok(false);
        }
        drop(state);
        self.freeze()
    }

    /// Returns when more segments are merged because no points arrive. Then half as many are
    /// enough. Returns `None` if points arrive.
    pub(super) fn quiet_merging(&self) -> Option<Merging> {
        let merging = self.options.merging;
        let fan_in = (merging.fan_in / 2).max(FAN_IN_MIN);
        let is_quiet = self.quiet_time() >= self.options.quiet.merge;
        is_quiet.then_some(Merging { fan_in, ..merging })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use coarse::Metric;
    use os::Rate;
    use storage::UringMedium;

    use super::*;
    use crate::budget::MemoryBudget;
    use crate::collection::{CollectionOptions, OptimizerWork, QuietTimes, Resources};
    use crate::ingest::PointRef;
    use crate::rerank::SharedCaches;

    const MEMTABLE_BYTES: u64 = 64 << 10;
    /// Points that fill more than a sixteenth of a memtable.
    const MANY: u64 = 40;

    const NEVER: QuietTimes =
        QuietTimes { flush: Duration::MAX, age: Duration::MAX, merge: Duration::MAX };

    fn opened(root: &std::path::Path, quiet: QuietTimes) -> Collection {
        opened_with_reserve(root, quiet, Some(0))
    }

    fn opened_with_reserve(
        root: &std::path::Path,
        quiet: QuietTimes,
        disk_reserve: Option<u64>,
    ) -> Collection {
        let medium = Arc::new(UringMedium::plain(root.to_owned()).unwrap());
        let shape = CollectionOptions::new(2, Metric::L2);
        let options = CollectionOptions { quiet, disk_reserve, ..shape };
        let budget = MemoryBudget::new(32 << 20);
        let resources = Resources::new(budget, MEMTABLE_BYTES, Rate::unlimited()).unwrap();
        let shared = Arc::new(SharedCaches::new(0, 512));
        Collection::open(medium, options, &resources, shared).unwrap()
    }

    fn add(collection: &Collection, ids: std::ops::Range<u64>) {
        for id in ids {
            let embedding = [id as f32, 1.0];
            let point = PointRef { id, embedding: &embedding, record: b"", payload: b"{}" };
            collection.upsert(point).unwrap();
        }
    }

    /// Adds so many segments of ten points.
    fn add_segments(collection: &Collection, count: u64) {
        for number in 0..count {
            add(collection, number * 10..(number + 1) * 10);
            collection.flush().unwrap();
        }
    }

    fn segments(collection: &Collection) -> usize {
        collection.status().segments.len()
    }

    #[test]
    fn many_points_are_flushed_when_no_more_arrive() {
        let root = tempfile::tempdir().unwrap();
        let collection = opened(root.path(), NEVER);
        add(&collection, 0..MANY);
        assert!(!collection.freeze_if_quiet().unwrap(), "points may still arrive");
        drop(collection);
        let collection = opened(root.path(), QuietTimes { flush: Duration::ZERO, ..NEVER });
        assert!(!collection.is_optimizing());
        assert!(collection.freeze_if_quiet().unwrap() && collection.is_optimizing());
        assert!(!collection.freeze_if_quiet().unwrap(), "one waits already");
        assert!(collection.flush_oldest().unwrap());
        assert_eq!((segments(&collection), collection.status().unflushed), (1, 0));
        add(&collection, MANY..MANY + 3);
        assert!(!collection.freeze_if_quiet().unwrap(), "queries scan three points quickly");
        assert_eq!((segments(&collection), collection.status().unflushed), (1, 3));
    }

    #[test]
    fn old_points_are_flushed_although_more_arrive() {
        let root = tempfile::tempdir().unwrap();
        let collection = opened(root.path(), QuietTimes { age: Duration::ZERO, ..NEVER });
        add(&collection, 0..1);
        assert!(!collection.freeze_if_quiet().unwrap(), "queries scan one point quickly");
        add(&collection, 1..MANY);
        assert!(collection.freeze_if_quiet().unwrap() && collection.flush_oldest().unwrap());
        assert_eq!((segments(&collection), collection.status().unflushed), (1, 0));
    }

    #[test]
    fn a_quiet_collection_merges_more_segments() {
        let root = tempfile::tempdir().unwrap();
        let collection = opened(root.path(), NEVER);
        add_segments(&collection, 3);
        assert!(!collection.merge().unwrap() && !collection.is_optimizing(), "three are few");
        drop(collection);
        let collection = opened(root.path(), QuietTimes { merge: Duration::ZERO, ..NEVER });
        assert!(!collection.open_segments() && segments(&collection) == 3);
        assert!(collection.merge().unwrap());
        assert_eq!((segments(&collection), collection.count()), (1, 30));
        assert!(!collection.merge().unwrap());
    }

    #[test]
    fn a_search_for_merges_is_no_optimization() {
        let root = tempfile::tempdir().unwrap();
        let collection = opened(root.path(), NEVER);
        let searched = collection.merging.lock();
        assert!(!collection.is_optimizing());
        drop(searched);
        collection.optimizer.merge_runs.store(true, Ordering::Relaxed);
        assert!(collection.is_optimizing() && collection.status().optimizing);
    }

    #[test]
    fn work_that_runs_or_waits_is_counted() {
        let root = tempfile::tempdir().unwrap();
        let collection = opened(root.path(), QuietTimes { flush: Duration::ZERO, ..NEVER });
        let counts = |flushes: usize, merges: usize, merges_waiting: usize| {
            let mut all = OptimizerWork { flushes: 1, merges: 1, merges_waiting: 1 };
            all.add(collection.optimizer_work());
            let expected = [flushes + 1, merges + 1, merges_waiting + 1];
            assert_eq!([all.flushes, all.merges, all.merges_waiting], expected);
        };
        add(&collection, 0..MANY);
        assert!(collection.freeze_if_quiet().unwrap());
        counts(1, 0, 0);
        assert!(collection.flush_oldest().unwrap());
        for first in [100, 200, 300] {
            counts(0, 0, 0);
            add(&collection, first..first + 10);
            collection.flush().unwrap();
        }
        counts(0, 0, 1);
        let _all = collection.budget.reserve(collection.budget.free(), "other data").unwrap();
        assert!(!collection.is_optimizing(), "no memory");
        counts(0, 0, 1);
        collection.optimizer.merge_runs.store(true, Ordering::Relaxed);
        counts(0, 1, 0);
    }

    #[test]
    fn a_due_merge_that_fails_is_no_optimization() {
        let root = tempfile::tempdir().unwrap();
        let collection = opened(root.path(), NEVER);
        add_segments(&collection, 4);
        assert!(collection.is_optimizing());
        let error = base::Error::storage_full("no room");
        collection.health.lock().merge_error = Some(error);
        assert!(!collection.is_optimizing());
    }

    #[test]
    fn a_quiet_collection_without_disk_space_is_left_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let collection = opened(root.path(), NEVER);
        add_segments(&collection, 3);
        drop(collection);
        let quiet = QuietTimes { merge: Duration::ZERO, ..NEVER };
        let collection = opened_with_reserve(root.path(), quiet, Some(1 << 60));
        assert!(!collection.open_segments() && segments(&collection) == 3);
        assert!(!collection.merge().unwrap());
        assert_eq!((segments(&collection), collection.status().merge_error), (3, None));
    }

    #[test]
    fn points_end_the_quiet_time() {
        let root = tempfile::tempdir().unwrap();
        let collection = opened(root.path(), QuietTimes::default());
        add(&collection, 0..1);
        collection.quiet_time();
        let since = collection.optimizer.quiet.lock().unwrap().since;
        collection.quiet_time();
        assert_eq!(collection.optimizer.quiet.lock().unwrap().since, since, "nothing arrived");
        add(&collection, 1..2);
        collection.quiet_time();
        assert!(collection.optimizer.quiet.lock().unwrap().since > since);
    }
}
