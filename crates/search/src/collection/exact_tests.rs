//! Searches that several threads share have the same results as on one thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use base::ErrorKind;
use coarse::{CoarseKind, Metric};
use matching::index::EdgeQuery;
use matching::{Graph, MatchOptions, Probe, Scratch, synthetic};
use memory::{PoolConfig, SlotPool};
use os::Rate;
use proptest::prelude::*;
use storage::{DramMedium, Medium, UringMedium};

use super::*;
use crate::budget::MemoryBudget;
use crate::collection::helpers::Helpers;
use crate::collection::helpers::tests::{EagerHelper, limits};
use crate::collection::{CollectionOptions, CollectionQuery, PrintQuery, Resources};
use crate::ingest::{Op, PointRef};
use crate::rerank::SharedCaches;
use crate::segment::RecordKind;

const DIMS: usize = 4;
/// Points written at once.
const BATCH: usize = 1000;

/// Scores by the sum of the bytes. Refuses some records.
#[derive(Clone)]
struct ByteScorer {
    /// Number of distinct scores, so that many are equal.
    scores: u64,
}

impl Scorer for ByteScorer {
    type Scratch = ();

    fn scratch(&self) {}

    fn score(&self, record: &[u8], _: &mut ()) -> Result<f32> {
        if record.first() == Some(&77) {
            return Err(Error::data_loss("refused"));
        }
        let sum: u64 = record.iter().map(|&byte| u64::from(byte)).sum();
        Ok((sum % self.scores) as f32)
    }
}

/// Scorer whose bound is the coarse score.
#[derive(Clone)]
struct BoundScorer;

impl Scorer for BoundScorer {
    type Scratch = ();

    fn scratch(&self) {}

    fn score(&self, record: &[u8], _: &mut ()) -> Result<f32> {
        Ok(record.len() as f32)
    }

    fn bound(&self, coarse: f32) -> f32 {
        coarse
    }
}

/// Scorer that panics while a helper runs.
#[derive(Clone)]
struct PanickingScorer(Arc<AtomicBool>);

impl Scorer for PanickingScorer {
    type Scratch = ();

    fn scratch(&self) {}

    fn score(&self, _: &[u8], _: &mut ()) -> Result<f32> {
        assert!(!self.0.load(Ordering::Relaxed), "on purpose");
        Ok(1.0)
    }
}

/// Scorer of prints.
#[derive(Clone)]
struct PrintMatcher(Arc<Probe>);

impl Scorer for PrintMatcher {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        Scratch::new()
    }

    fn score(&self, record: &[u8], scratch: &mut Scratch) -> Result<f32> {
        matching::score(&self.0, record, scratch)
    }
}

/// Helpers on threads of their own, which start with each offer.
struct ThreadedHelpers {
    collection: Weak<Collection>,
    /// Threads of a query, with its owner.
    threads: usize,
    running: Mutex<Vec<JoinHandle<usize>>>,
}

impl ThreadedHelpers {
    fn new(collection: &Arc<Collection>, threads: usize) -> Arc<ThreadedHelpers> {
        let collection = Arc::downgrade(collection);
        Arc::new(ThreadedHelpers { collection, threads, running: Mutex::default() })
    }

    /// Waits for all threads. Returns the number of parts that they did.
    fn join(&self) -> usize {
        let running = std::mem::take(&mut *self.running.lock());
        running.into_iter().map(|thread| thread.join().unwrap()).sum()
    }
}

impl Helpers for ThreadedHelpers {
    fn idle(&self) -> usize {
        self.threads - 1
    }

    fn offer(&self, count: usize, work: Arc<dyn HelpWork>) {
        for _ in 0..count {
            let collection = self.collection.upgrade().unwrap();
            let work = work.clone();
            let help = move || {
                let mut thread = collection.thread(limits()).unwrap();
                work.help(&collection, &mut thread)
            };
            self.running.lock().push(std::thread::spawn(help));
        }
    }

    fn queries_wait(&self) -> bool {
        false
    }
}

/// Helper that panics at once if its scorer does.
struct PanickingHelper {
    collection: Weak<Collection>,
    helps: Arc<AtomicBool>,
}

impl Helpers for PanickingHelper {
    fn idle(&self) -> usize {
        1
    }

    fn offer(&self, _: usize, work: Arc<dyn HelpWork>) {
        let collection = self.collection.upgrade().unwrap();
        let mut thread = collection.thread(limits()).unwrap();
        self.helps.store(true, Ordering::Relaxed);
        let help = AssertUnwindSafe(|| work.help(&collection, &mut thread));
        assert!(catch_unwind(help).is_err());
        self.helps.store(false, Ordering::Relaxed);
    }

    fn queries_wait(&self) -> bool {
        false
    }
}

/// Helper that comes after the query.
#[derive(Default)]
struct LateHelper(Mutex<Vec<Arc<dyn HelpWork>>>);

impl Helpers for LateHelper {
    fn idle(&self) -> usize {
        1
    }

    fn offer(&self, _: usize, work: Arc<dyn HelpWork>) {
        self.0.lock().push(work);
    }

    fn queries_wait(&self) -> bool {
        false
    }
}

fn uring(root: &Path) -> Arc<dyn Medium> {
    Arc::new(UringMedium::plain(root.to_owned()).unwrap())
}

fn dram() -> Arc<dyn Medium> {
    let config =
        PoolConfig { bytes_max: 256 << 20, huge_pages: false, fault_rate: Rate::unlimited() };
    Arc::new(DramMedium::new(SlotPool::new(config).unwrap(), None).unwrap())
}

/// Points of a collection.
struct Filling<'a> {
    /// Points of each segment.
    segments: &'a [u64],
    /// Points in the memtable, after those of the segments.
    unflushed: u64,
    record: &'a dyn Fn(u64) -> Vec<u8>,
}

impl Filling<'_> {
    fn points(&self) -> u64 {
        self.segments.iter().sum::<u64>() + self.unflushed
    }
}

/// Returns a collection with points of the ids from 0 on.
fn filled(
    medium: Arc<dyn Medium>,
    records: RecordKind,
    cache_bytes: u64,
    filling: &Filling<'_>,
) -> Arc<Collection> {
    let resources =
        Resources::new(MemoryBudget::new(256 << 20), 16 << 20, Rate::unlimited()).unwrap();
    let options = CollectionOptions {
        kind: CoarseKind::Flat,
        records,
        ..CollectionOptions::new(DIMS, Metric::L2)
    };
    let shared = Arc::new(SharedCaches::new(cache_bytes, 512));
    let collection = Collection::open(medium, options, &resources, shared).unwrap();
    let mut first = 0;
    for (place, &size) in filling.segments.iter().chain(&[filling.unflushed]).enumerate() {
        let ids: Vec<u64> = (first..first + size).collect();
        first += size;
        for ids in ids.chunks(BATCH) {
            let records: Vec<Vec<u8>> = ids.iter().map(|&id| (filling.record)(id)).collect();
            let embeddings: Vec<[f32; DIMS]> = ids.iter().map(|&id| embedding(id)).collect();
            let ops: Vec<Op<'_>> = ids
                .iter()
                .zip(&records)
                .zip(&embeddings)
                .map(|((&id, record), embedding)| {
                    Op::Upsert(PointRef { id, embedding, record, payload: b"{}" })
                })
                .collect();
            collection.apply(&ops).unwrap().commit().unwrap();
        }
        if place < filling.segments.len() {
            collection.flush().unwrap();
        }
    }
    assert_eq!(collection.status().segments.len(), filling.segments.len());
    Arc::new(collection)
}

fn embedding(id: u64) -> [f32; DIMS] {
    std::array::from_fn(|at| (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (8 * at) & 15) as f32)
}

fn bytes(id: u64) -> Vec<u8> {
    let first = if id % 97 == 5 { 77 } else { 1 };
    let mut record = vec![first; 1 + (id % 700) as usize];
    record.extend(id.to_le_bytes());
    record
}

/// Returns the result without the counts of reads, which depend on the order of reads.
fn scored(found: QueryHits) -> QueryHits {
    QueryHits { reads: 0, cached: 0, ..found }
}

/// Returns the number of parts that a helper does if it leaves after `leave` parts.
fn helped(candidates: usize, leave: usize) -> usize {
    let parts = candidates.div_ceil(PART_CANDIDATES);
    if candidates < SHARED_CANDIDATES_MIN { 0 } else { parts.min(leave) }
}

#[test]
fn threads_claim_fewer_candidates_near_the_end() {
    let rows = 0..20 * PART_CANDIDATES as u32;
    let candidates =
        rows.map(|row| RerankCandidate { segment: 0, row, id: 0, coarse: 0.0 }).collect();
    let shared = CandidateParts::new(candidates, 2);
    let mut limits = vec![shared.unscored_max()];
    while shared.parts.claim().is_some() {
        limits.push(shared.unscored_max());
    }
    let part = PART_CANDIDATES as u64;
    assert_eq!((limits[0], limits[8], limits[16]), (5 * part, 3 * part, part));
    assert_eq!((limits.len(), limits.last()), (21, Some(&part)));
}

#[test]
fn helpers_do_not_change_exact_scores() {
    let filling = Filling { segments: &[900, 400], unflushed: 300, record: &bytes };
    let root = tempfile::tempdir().unwrap();
    let cached = tempfile::tempdir().unwrap();
    for (medium, cache) in [(uring(root.path()), 0), (uring(cached.path()), 8 << 20), (dram(), 0)] {
        let collection = filled(medium, RecordKind::Opaque, cache, &filling);
        let runner = proptest::test_runner::Config { cases: 40, ..Default::default() };
        proptest!(runner, |(seed: u64, k in 0_usize..400, leave in 0_usize..12,
                            scores in 1_u64..90, step in 1_usize..9)| {
            let start = seed % 9;
            let ids: Vec<u64> = (start..filling.points()).step_by(step).collect();
            let in_memtable = ids.iter().filter(|&&id| id >= 1300).count();
            let scorer = ByteScorer { scores };
            let mut alone = collection.thread(limits()).unwrap();
            let expected = collection.score_points(&mut alone, &ids, k, &scorer, None).unwrap();
            let helper = Arc::new(EagerHelper {
                collection: Arc::downgrade(&collection), parts: leave, done: AtomicUsize::new(0),
            });
            let mut thread = collection.thread(limits()).unwrap();
            thread.set_helpers(helper.clone());
            let found = collection.score_points(&mut thread, &ids, k, &scorer, None).unwrap();
            prop_assert_eq!(scored(found), scored(expected));
            let in_segments = if k == 0 { 0 } else { ids.len() - in_memtable };
            let parts = helped(in_memtable, leave) + helped(in_segments, leave);
            prop_assert_eq!(helper.done.load(Ordering::Relaxed), parts);
        });
    }
}

#[test]
fn searches_of_many_threads_find_the_same() {
    let filling = Filling { segments: &[900, 400], unflushed: 300, record: &bytes };
    let root = tempfile::tempdir().unwrap();
    let collection = filled(uring(root.path()), RecordKind::Opaque, 8 << 20, &filling);
    for (seed, candidates) in [(3, 200), (4, 700), (5, 1600)] {
        let vector = embedding(seed);
        let query =
            CollectionQuery { candidates, exact: false, ..CollectionQuery::nearest(&vector, 40) };
        let scorer = ByteScorer { scores: 50 };
        let mut alone = collection.thread(limits()).unwrap();
        let expected = collection.search(&mut alone, &query, &scorer).unwrap();
        assert_eq!(expected.compared + expected.damaged, candidates as u64);
        for threads in [1, 2, 8] {
            let mut thread = collection.thread(limits()).unwrap();
            let helpers = ThreadedHelpers::new(&collection, threads);
            thread.set_helpers(helpers.clone());
            let found = collection.search(&mut thread, &query, &scorer).unwrap();
            assert_eq!(scored(found), scored(expected.clone()));
            let parts = helpers.join();
            assert!(threads > 1 || parts == 0);
        }
    }
}

#[test]
fn a_scorer_with_a_bound_has_one_thread() {
    let filling = Filling { segments: &[600], unflushed: 0, record: &bytes };
    let collection = filled(dram(), RecordKind::Opaque, 0, &filling);
    let ids: Vec<u64> = (0..600).collect();
    let helper = Arc::new(EagerHelper {
        collection: Arc::downgrade(&collection),
        parts: 9,
        done: AtomicUsize::new(0),
    });
    let mut thread = collection.thread(limits()).unwrap();
    thread.set_helpers(helper.clone());
    collection.score_points(&mut thread, &ids, 9, &BoundScorer, None).unwrap();
    assert_eq!(helper.done.load(Ordering::Relaxed), 0);
}

#[test]
fn a_panic_of_a_helper_fails_the_query() {
    let filling = Filling { segments: &[400], unflushed: 300, record: &bytes };
    let root = tempfile::tempdir().unwrap();
    let collection = filled(uring(root.path()), RecordKind::Opaque, 0, &filling);
    for ids in [0..400, 400..700] {
        let ids: Vec<u64> = ids.collect();
        let helps = Arc::new(AtomicBool::new(false));
        let scorer = PanickingScorer(helps.clone());
        let mut thread = collection.thread(limits()).unwrap();
        let collection_of = Arc::downgrade(&collection);
        thread.set_helpers(Arc::new(PanickingHelper { collection: collection_of, helps }));
        let error = collection.score_points(&mut thread, &ids, 9, &scorer, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
    }
}

#[test]
fn a_shared_search_ends_at_its_deadline() {
    let filling = Filling { segments: &[2000], unflushed: 1000, record: &bytes };
    let collection = filled(dram(), RecordKind::Opaque, 0, &filling);
    let ids: Vec<u64> = (0..3000).collect();
    let scorer = ByteScorer { scores: 50 };
    for threads in [1, 2, 8] {
        let mut thread = collection.thread(limits()).unwrap();
        let helpers = ThreadedHelpers::new(&collection, threads);
        thread.set_helpers(helpers.clone());
        let past = Some(Instant::now());
        let late = collection.score_points(&mut thread, &ids, 9, &scorer, past).unwrap();
        helpers.join();
        assert!(late.partial && late.compared < 1000, "{late:?}");
        assert_eq!(late.candidates, 3000);
    }
}

#[test]
fn a_late_helper_finds_no_part_after_the_deadline() {
    let filling = Filling { segments: &[2000], unflushed: 1000, record: &bytes };
    let collection = filled(dram(), RecordKind::Opaque, 0, &filling);
    let ids: Vec<u64> = (0..3000).collect();
    let scorer = ByteScorer { scores: 50 };
    let helper = Arc::new(LateHelper::default());
    let mut thread = collection.thread(limits()).unwrap();
    thread.set_helpers(helper.clone());
    let past = Some(Instant::now());
    let late = collection.score_points(&mut thread, &ids, 9, &scorer, past).unwrap();
    assert!(late.partial, "{late:?}");
    let offered = std::mem::take(&mut *helper.0.lock());
    assert_eq!(offered.len(), 2, "of the memtable and of the segment");
    for work in offered {
        assert_eq!(work.help(&collection, &mut thread), 0);
    }
}

/// Points of each segment: two blocks of the index.
const SEGMENT_PRINTS: u64 = 17_000;
/// Distance of the ids of points with a print.
const PRINT_EVERY: u64 = 40;

/// Returns the record of a point: a print that some other points have too, or none.
fn print(id: u64) -> Vec<u8> {
    let mut record = Vec::new();
    if id.is_multiple_of(PRINT_EVERY) || id >= 2 * SEGMENT_PRINTS {
        synthetic::impression(id / PRINT_EVERY % 90).encode(&mut record);
    }
    record
}

fn identify(
    collection: &Collection,
    thread: &mut SearchThread,
    graph: &Graph,
    deadline: Option<Instant>,
) -> QueryHits {
    let edges = EdgeQuery::new(graph);
    let query = PrintQuery { edges: &edges, k: 30, candidates: 700, filter: None, deadline };
    let matcher = PrintMatcher(Arc::new(Probe::new(graph, MatchOptions::default())));
    scored(collection.identify(thread, &query, &matcher).unwrap())
}

#[test]
fn many_threads_identify_the_same_prints() {
    let segments = [SEGMENT_PRINTS, SEGMENT_PRINTS];
    let filling = Filling { segments: &segments, unflushed: 150, record: &print };
    let collection = filled(dram(), RecordKind::Fingerprint, 0, &filling);
    for finger in [4, 31] {
        let graph = synthetic::distorted(&synthetic::impression(finger), 8);
        let mut alone = collection.thread(limits()).unwrap();
        let expected = identify(&collection, &mut alone, &graph, None);
        assert!(expected.hits.len() == 30 && !expected.partial, "{expected:?}");
        assert!(expected.compared >= SHARED_CANDIDATES_MIN as u64 + 150, "{expected:?}");
        for leave in [0, 1, 3, 99] {
            let helper = Arc::new(EagerHelper {
                collection: Arc::downgrade(&collection),
                parts: leave,
                done: AtomicUsize::new(0),
            });
            let mut thread = collection.thread(limits()).unwrap();
            thread.set_helpers(helper.clone());
            assert_eq!(identify(&collection, &mut thread, &graph, None), expected);
            let in_segments = expected.candidates as usize - 150;
            let parts = 4.min(leave) + helped(150, leave) + helped(in_segments, leave);
            assert_eq!(helper.done.load(Ordering::Relaxed), parts);
        }
        for threads in [2, 8] {
            let helpers = ThreadedHelpers::new(&collection, threads);
            let mut thread = collection.thread(limits()).unwrap();
            thread.set_helpers(helpers.clone());
            assert_eq!(identify(&collection, &mut thread, &graph, None), expected);
            helpers.join();
        }
    }
    let graph = synthetic::impression(4);
    let helpers = ThreadedHelpers::new(&collection, 3);
    let mut thread = collection.thread(limits()).unwrap();
    thread.set_helpers(helpers.clone());
    let late = identify(&collection, &mut thread, &graph, Some(Instant::now()));
    helpers.join();
    assert!(late.partial && late.candidates == 150, "{late:?}");
}
