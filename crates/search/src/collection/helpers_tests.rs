//! A query has the same hits, bit for bit, if other threads do parts of it.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use coarse::{CoarseKind, Metric};
use os::Rate;
use proptest::prelude::*;
use storage::{Read, Reader, UringMedium};

use super::*;
use crate::budget::MemoryBudget;
use crate::codes::CodesPlace;
use crate::collection::scan::{SliceOutcome, in_ended_slice};
use crate::collection::{CollectionOptions, Resources};
use crate::filter::{Condition, CountRange, Match};
use crate::ingest::PointRef;
use crate::rerank::{Records as _, SearchLimits, SharedCaches};

const DIMS: usize = 24;
/// Points written at once.
const BATCH: usize = 1000;

/// Helper that starts at once and stops after some parts.
pub(in crate::collection) struct EagerHelper {
    pub(in crate::collection) collection: Weak<Collection>,
    pub(in crate::collection) parts: usize,
    pub(in crate::collection) done: AtomicUsize,
}

/// Helpers of the thread that helps: none, and a query that waits after some parts.
struct LeavingHelper(AtomicUsize);

pub(in crate::collection) fn limits() -> SearchLimits {
    SearchLimits {
        queries: 1,
        query_in_flight: 8,
        in_flight: 8,
        read_bytes_max: 32 << 10,
        joined_bytes_max: 32 << 10,
        gap_bytes_max: 16 << 10,
    }
}

impl Helpers for EagerHelper {
    fn idle(&self) -> usize {
        1
    }

    fn offer(&self, _: usize, work: Arc<dyn HelpWork>) {
        let collection = self.collection.upgrade().unwrap();
        let mut thread = collection.thread(limits()).unwrap();
        thread.set_helpers(Arc::new(LeavingHelper(AtomicUsize::new(self.parts))));
        assert!(work.is_left());
        self.done.fetch_add(work.help(&collection, &mut thread), Ordering::Relaxed);
    }

    fn queries_wait(&self) -> bool {
        false
    }
}

impl Helpers for LeavingHelper {
    fn idle(&self) -> usize {
        0
    }

    fn offer(&self, _: usize, _: Arc<dyn HelpWork>) {}

    fn queries_wait(&self) -> bool {
        let left = |left: usize| left.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_err()
    }
}

/// Helper on a thread of its own. It claims the first segment before the owner claims one.
struct FirstHelper {
    collection: Weak<Collection>,
    running: Mutex<Option<JoinHandle<usize>>>,
}

impl Helpers for FirstHelper {
    fn idle(&self) -> usize {
        1
    }

    fn offer(&self, _: usize, work: Arc<dyn HelpWork>) {
        let collection = self.collection.upgrade().unwrap();
        let (sender, offered) = mpsc::channel();
        let help = move || {
            let mut thread = collection.thread(limits()).unwrap();
            thread.set_helpers(Arc::new(WaitingHelper(sender)));
            work.help(&collection, &mut thread)
        };
        *self.running.lock() = Some(std::thread::spawn(help));
        offered.recv().expect("the helper offers lists");
    }

    fn queries_wait(&self) -> bool {
        false
    }
}

/// Helpers of that thread: none, so the owner does all parts of the lists that it offers.
struct WaitingHelper(mpsc::Sender<()>);

impl Helpers for WaitingHelper {
    fn idle(&self) -> usize {
        1
    }

    fn offer(&self, _: usize, work: Arc<dyn HelpWork>) {
        self.0.send(()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while work.is_left() {
            assert!(Instant::now() < deadline, "the owner does not scan lists of the helper");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn queries_wait(&self) -> bool {
        false
    }
}

/// Reader that counts the times that reads begin while none is in flight.
struct CountingReader {
    inner: Box<dyn Reader>,
    batches: Arc<AtomicUsize>,
    /// True if each read fails.
    fails: bool,
}

/// Returns a search thread whose reader of vectors counts batches. With `helped`, its queries are
/// shared with a helper that does no part.
fn counting_thread(
    collection: &Arc<Collection>,
    helped: bool,
    fails: bool,
    batches: &Arc<AtomicUsize>,
) -> SearchThread {
    let mut thread = collection.thread(limits()).unwrap();
    let batches = batches.clone();
    thread.vectors = Box::new(CountingReader { inner: thread.vectors, batches, fails });
    if helped {
        let done = AtomicUsize::new(0);
        let collection = Arc::downgrade(collection);
        thread.set_helpers(Arc::new(EagerHelper { collection, parts: 0, done }));
    }
    thread
}

impl Reader for CountingReader {
    fn room(&self) -> usize {
        self.inner.room()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn submit(&mut self, read: Read<'_>) -> Result<()> {
        let begins = self.inner.in_flight() == 0;
        self.batches.fetch_add(usize::from(begins), Ordering::Relaxed);
        self.inner.submit(read)
    }

    fn complete(&mut self, wait: usize, each: &mut dyn FnMut(u64, Result<&[u8]>)) -> Result<usize> {
        if self.fails {
            let error = || Error::data_loss("on purpose");
            self.inner.complete(wait, &mut |tag, _| each(tag, Err(error())))
        } else {
            self.inner.complete(wait, each)
        }
    }
}

fn value(seed: u64) -> f32 {
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Few distinct values, so that many scores are equal.
    ((mixed >> 40) % 16) as f32 / 4.0 - 2.0
}

fn vector(seed: u64) -> Vec<f32> {
    (0..DIMS as u64).map(|at| value(seed * 131 + at)).collect()
}

/// Returns a collection with segments of these sizes and some rows in a memtable.
fn collection(kind: CoarseKind, sizes: &[u64], root: &std::path::Path) -> Arc<Collection> {
    collection_with(options(kind, Metric::L2), sizes, root)
}

fn options(kind: CoarseKind, metric: Metric) -> CollectionOptions {
    CollectionOptions { kind, shared_values_min: 0, ..CollectionOptions::new(DIMS, metric) }
}

/// Returns a collection as [`collection`] does, with these options.
fn collection_with(
    options: CollectionOptions,
    sizes: &[u64],
    root: &std::path::Path,
) -> Arc<Collection> {
    let medium = Arc::new(UringMedium::plain(root.to_owned()).unwrap());
    let resources =
        Resources::new(MemoryBudget::new(256 << 20), 16 << 20, Rate::unlimited()).unwrap();
    let shared = Arc::new(SharedCaches::new(0, 512));
    let collection = Collection::open(medium, options, &resources, shared).unwrap();
    let mut first = 1;
    for &size in sizes.iter().chain(&[30]) {
        put(&collection, first..first + size);
        first += size;
        if size != 30 {
            collection.flush().unwrap();
        }
    }
    (1..first - 1).step_by(17).for_each(|id| collection.delete(id).unwrap());
    Arc::new(collection)
}

/// Writes points with these ids.
fn put(collection: &Collection, ids: Range<u64>) {
    // Every tenth vector comes twice.
    let point = |id: u64| (id, vector(id - u64::from(id.is_multiple_of(10))));
    let points: Vec<(u64, Vec<f32>)> = ids.map(point).collect();
    for points in points.chunks(BATCH) {
        let ops: Vec<crate::ingest::Op<'_>> = points
            .iter()
            .map(|(id, embedding)| {
                let payload: &[u8] = if id % 3 == 0 { br#"{"third":true}"# } else { b"{}" };
                let point = PointRef { id: *id, embedding, record: &[], payload };
                crate::ingest::Op::Upsert(point)
            })
            .collect();
        collection.apply(&ops).unwrap().commit().unwrap();
    }
}

fn third() -> Filter {
    let matching = Match::Value(true.into());
    Filter { must: vec![Condition::Match { key: "third".into(), matching }], ..Filter::default() }
}

#[test]
fn helpers_do_not_change_hits() {
    for (kind, metric) in [
        (CoarseKind::IvfPq, Metric::L2),
        (CoarseKind::IvfPq, Metric::Dot),
        (CoarseKind::IvfPq, Metric::Cosine),
        (CoarseKind::Rabitq, Metric::L2),
        (CoarseKind::Flat, Metric::L2),
    ] {
        let root = tempfile::tempdir().unwrap();
        let sizes = [900, 300, 700, 41, 300];
        let collection = collection_with(options(kind, metric), &sizes, root.path());
        let runner = proptest::test_runner::Config { cases: 60, ..Default::default() };
        proptest!(runner, |(seed in any::<u32>(), k in 1_usize..60, parts in 0_usize..7,
                            exact: bool, filtered: bool, probes in 0_usize..40)| {
            let embedding = vector(u64::from(seed));
            let filter = filtered.then(third);
            let query = CollectionQuery {
                exact,
                filter: filter.as_ref(),
                params: ScanParams { probes, refine: 0 },
                ..CollectionQuery::nearest(&embedding, k)
            };
            let mut alone = collection.thread(limits()).unwrap();
            let expected = collection.nearest(&mut alone, &query).unwrap();
            let mut thread = collection.thread(limits()).unwrap();
            let done = AtomicUsize::new(0);
            let helper = Arc::new(EagerHelper {
                collection: Arc::downgrade(&collection), parts, done,
            });
            thread.set_helpers(helper.clone());
            let found = collection.nearest(&mut thread, &query).unwrap();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(helper.done.load(Ordering::Relaxed), parts.min(5));
        });
    }
}

/// Sizes of segments. The memtable and three of them have fewer points than
/// [`DEFERRED_HITS_MAX`]. So the floor of a query for that many hits excludes no row, and each
/// segment has rows to compare.
const SMALL_SEGMENTS: [u64; 4] = [300, 300, 200, 200];

/// Drops the cached parts of all segments.
fn forget_vectors(collection: &Collection) {
    for (_, _, view) in collection.state().open() {
        collection.codes.cache.forget(view.segment.file().id());
    }
}

#[test]
fn shared_segments_are_compared_exactly_together() {
    const QUERIES: usize = 10;
    let root = tempfile::tempdir().unwrap();
    let collection = collection(CoarseKind::IvfPq, &SMALL_SEGMENTS, root.path());
    assert!(SMALL_SEGMENTS[..3].iter().sum::<u64>() + 30 < DEFERRED_HITS_MAX as u64);
    let waits = |k: usize, helped: bool| {
        let batches = Arc::new(AtomicUsize::new(0));
        let mut thread = counting_thread(&collection, helped, false, &batches);
        let mut alone = collection.thread(limits()).unwrap();
        for seed in 0..QUERIES as u64 {
            let embedding = vector(seed * 977);
            let query = CollectionQuery::nearest(&embedding, k);
            let expected = collection.nearest(&mut alone, &query).unwrap();
            forget_vectors(&collection);
            assert_eq!(collection.nearest(&mut thread, &query).unwrap(), expected);
        }
        batches.load(Ordering::Relaxed)
    };
    // One batch has more rows than there are points.
    assert_eq!(waits(DEFERRED_HITS_MAX, true), QUERIES);
    let one_a_segment = SMALL_SEGMENTS.len() * QUERIES;
    assert_eq!(waits(DEFERRED_HITS_MAX, false), QUERIES);
    assert_eq!(waits(DEFERRED_HITS_MAX + 1, true), one_a_segment, "not deferred");
}

#[test]
fn deferred_rows_that_cannot_be_read_are_counted() {
    let root = tempfile::tempdir().unwrap();
    let collection = collection(CoarseKind::IvfPq, &SMALL_SEGMENTS, root.path());
    let embedding = vector(977);
    let found = |helped: bool| {
        let mut thread = counting_thread(&collection, helped, true, &Arc::default());
        let query = CollectionQuery::nearest(&embedding, DEFERRED_HITS_MAX);
        let found = collection.nearest(&mut thread, &query).unwrap();
        assert!(thread.is_sound());
        found
    };
    let shared = found(true);
    assert_eq!(shared, found(false));
    // Each row that is not deleted is lost, and the points of the memtable are found.
    let last: u64 = SMALL_SEGMENTS.iter().sum();
    let live = (1..=last).filter(|id| id % 17 != 1).count() as u64;
    assert_eq!((shared.damaged, shared.partial), (live, true));
    assert!(!shared.hits.is_empty() && shared.hits.iter().all(|hit| hit.id > last));
}

/// Rows of a segment whose lists are divided if all of them are scanned.
const LONG_SEGMENT: u64 = 17_000;

/// Returns a query that scans all lists.
fn scan_all(embedding: &[f32], k: usize) -> CollectionQuery<'_> {
    let params = ScanParams { probes: 100_000, refine: 200 };
    CollectionQuery { params, ..CollectionQuery::nearest(embedding, k) }
}

#[test]
fn helpers_read_lists_on_the_medium() {
    let root = tempfile::tempdir().unwrap();
    let on_medium =
        CollectionOptions { codes: CodesPlace::Medium, ..options(CoarseKind::IvfPq, Metric::L2) };
    let collection = collection_with(on_medium, &[LONG_SEGMENT], root.path());
    assert!(collection.status().segments.iter().all(|segment| segment.codes_on_medium > 0));
    let helped = |parts: usize, query: &CollectionQuery<'_>| {
        let done = AtomicUsize::new(0);
        let helper = Arc::new(EagerHelper { collection: Arc::downgrade(&collection), parts, done });
        let mut thread = collection.thread(limits()).unwrap();
        thread.set_helpers(helper.clone());
        let found = collection.nearest(&mut thread, query).unwrap();
        assert!(thread.is_sound());
        (found, helper.done.load(Ordering::Relaxed))
    };
    for (seed, parts) in [(1, 0), (2, 1), (3, 99)] {
        let embedding = vector(seed * 977);
        let filter = third();
        for (exact, filter) in [(true, None), (false, Some(&filter))] {
            let query = CollectionQuery { exact, filter, ..scan_all(&embedding, 20) };
            let mut alone = collection.thread(limits()).unwrap();
            let expected = collection.nearest(&mut alone, &query).unwrap();
            let (found, done) = helped(parts, &query);
            assert_eq!((found.hits.len(), &found), (20, &expected));
            // Lists without a row of the filter are left out, so fewer may be divided.
            let divided = done == parts || parts == 99 && done >= 2;
            assert!(divided || filter.is_some(), "{done} of {parts}");
        }
        // A helper that reads nothing after the deadline makes the result partial.
        let query = scan_all(&embedding, 20);
        let late = CollectionQuery { deadline: Some(Instant::now()), ..query };
        let (found, _) = helped(parts, &late);
        let in_segment = found.hits.iter().any(|hit| hit.id <= LONG_SEGMENT);
        assert!(found.partial && !in_segment, "{found:?}");
    }
    put(&collection, 20_000..20_300);
    collection.flush().unwrap();
    check_lists_of_a_helper(&collection);
}

/// Checks that the owner of a query scans lists of a segment that a helper searches. `collection`
/// has a long segment and a short one.
fn check_lists_of_a_helper(collection: &Arc<Collection>) {
    let embedding = vector(4 * 977);
    let query = scan_all(&embedding, 20);
    let mut alone = collection.thread(limits()).unwrap();
    let expected = collection.nearest(&mut alone, &query).unwrap();
    let running = Mutex::new(None);
    let helper = Arc::new(FirstHelper { collection: Arc::downgrade(collection), running });
    let mut thread = collection.thread(limits()).unwrap();
    thread.set_helpers(helper.clone());
    assert_eq!(collection.nearest(&mut thread, &query).unwrap(), expected);
    let helped = helper.running.lock().take().unwrap();
    assert_eq!(helped.join().unwrap(), 1, "the owner searches the short segment");
}

#[test]
fn lists_are_divided_if_few_segments_are_left() {
    let root = tempfile::tempdir().unwrap();
    let collection = collection(CoarseKind::Flat, &[800, 400, 400], root.path());
    let state = collection.state();
    let views: Vec<&SegmentView> = state.open().map(|(_, _, view)| view).collect();
    let order = SegmentOrder::new(views.iter().copied());
    let segments = order.iter().map(|(at, view)| (at, view.clone())).collect();
    let embedding = vector(1);
    let query = CollectionQuery::nearest(&embedding, 3);
    let search = SegmentsSearch::new(&query, 3, f32::NEG_INFINITY, segments);
    let mut divided = Vec::new();
    for rows in [800, 400, 400] {
        search.parts.claim().unwrap();
        divided.push([0, 1, 2].map(|idle| search.divides(rows, idle)));
    }
    // One idle thread needs the time of the long segment for the two short ones.
    assert_eq!(divided[0], [false, false, true]);
    assert_eq!(divided[1], [false, false, true]);
    assert_eq!(divided[2], [false, true, true]);
}

#[test]
fn queries_together_have_the_hits_of_each() {
    for kind in [CoarseKind::Flat, CoarseKind::IvfPq] {
        let root = tempfile::tempdir().unwrap();
        let collection = collection(kind, &[12_000, 300], root.path());
        assert_eq!(collection.shares_scans(), kind == CoarseKind::Flat);
        let mut thread = collection.thread(limits()).unwrap();
        let vectors: Vec<Vec<f32>> = (0..40).map(|seed| vector(seed * 977)).collect();
        let filter = third();
        let queries: Vec<CollectionQuery<'_>> = (0..)
            .zip(&vectors)
            .map(|(at, embedding)| CollectionQuery {
                exact: at % 3 != 0,
                filter: (at % 5 == 0).then_some(&filter),
                ..CollectionQuery::nearest(embedding, 5 + at % 2)
            })
            .collect();
        let together = collection.nearest_many(&mut thread, &queries).unwrap();
        for (query, found) in queries.iter().zip(together) {
            assert_eq!(found, collection.nearest(&mut thread, query).unwrap());
        }
    }
}

/// Returns a filter without an index: indexes have no numbers of values.
fn counted() -> Filter {
    let range = CountRange { gte: Some(1), ..CountRange::default() };
    Filter {
        must: vec![Condition::ValuesCount { key: "third".into(), range }],
        ..Filter::default()
    }
}

#[test]
fn a_helper_pauses_at_the_end_of_the_slice() {
    let root = tempfile::tempdir().unwrap();
    let collection = collection(CoarseKind::Flat, &[2000, 1500], root.path());
    let mut thread = collection.thread(limits()).unwrap();
    let done = AtomicUsize::new(0);
    let helper = EagerHelper { collection: Arc::downgrade(&collection), parts: 9, done };
    thread.set_helpers(Arc::new(helper));
    let embedding = [0.0; DIMS];
    let filter = counted();
    let query =
        CollectionQuery { filter: Some(&filter), ..CollectionQuery::nearest(&embedding, 3) };
    let mut slices = 0;
    let found = loop {
        slices += 1;
        match in_ended_slice(&Arc::default(), || collection.nearest(&mut thread, &query)) {
            SliceOutcome::Paused => assert!(slices < 20, "it makes no progress"),
            SliceOutcome::Done(found) => break found.unwrap(),
        }
    };
    // The helper reads 512 payloads a slice.
    assert!(slices > 5, "{slices}");
    let mut alone = collection.thread(limits()).unwrap();
    assert_eq!(found, collection.nearest(&mut alone, &query).unwrap());
}

#[test]
fn an_error_of_a_helper_is_the_error_of_the_query() {
    let root = tempfile::tempdir().unwrap();
    let collection = collection(CoarseKind::Flat, &[100, 100], root.path());
    let mut thread = collection.thread(limits()).unwrap();
    let query = [0.0; DIMS];
    // A deadline that passed ends the filter's scan of payloads.
    let filter = counted();
    let query = CollectionQuery {
        filter: Some(&filter),
        deadline: Some(Instant::now()),
        ..CollectionQuery::nearest(&query, 3)
    };
    let done = AtomicUsize::new(0);
    let helper = EagerHelper { collection: Arc::downgrade(&collection), parts: 9, done };
    thread.set_helpers(Arc::new(helper));
    let error = collection.nearest(&mut thread, &query).unwrap_err();
    assert_eq!(error.kind(), base::ErrorKind::DeadlineExceeded);
}
