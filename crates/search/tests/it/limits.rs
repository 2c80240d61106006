//! Limits: memory in use, embeddings without an index, failed reads.

use std::sync::Arc;

use base::ErrorKind;
use os::Rate;
use search::Metric;
use search::budget::MemoryBudget;
use search::collection::{Collection, CollectionOptions, CollectionQuery, Resources};
use search::filter::{Condition, Filter, Match};
use search::ingest::{Op, PointRef, StoredPoint};
use storage::{FaultMedium, FaultPlan, Medium, MediumKind, Reader, ReaderOptions, Sealed, Writer};

use crate::points::{
    DIMS, MEMORY_BYTES, MEMTABLE_BYTES, Model, Sum, limits, memory_medium, open, options, point,
    resources, shared, stored, try_open,
};

#[test]
fn memory_is_never_exceeded() {
    // Room for a flush, two memtables and little more, which codes and ids of segments fill.
    let memory_bytes = 5 * MEMTABLE_BYTES + (5 << 20) + (160 << 10);
    let medium = memory_medium();
    let resources = resources(memory_bytes, MEMTABLE_BYTES);
    let collection = try_open(medium.clone(), options(), &resources).unwrap();
    let mut written = 0;
    let refusal = loop {
        match collection.upsert(point(&stored(written, 1))) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100_000, "it must be full at some time");
    };
    assert_eq!(refusal.kind(), ErrorKind::ResourceExhausted);
    assert!(refusal.message().contains("--search-memory"), "{refusal}");
    let status = collection.status();
    assert!(status.memory.peak <= memory_bytes && status.flushes > 0, "{status:?}");
    assert!(collection.get(0).unwrap().is_some() && collection.get(written - 1).unwrap().is_some());
    // Points leave a sixty-fourth of the memory for filters and merges.
    let free = status.memory.limit - status.memory.used;
    assert!(free >= memory_bytes / 128, "{status:?}");
    let matching = Match::Any(vec![serde_json::Value::from(2)].into());
    let must = vec![Condition::Match { key: "colour".into(), matching }];
    let red = Filter { must, ..Filter::default() };
    assert!(collection.ids_from(0, 100, Some(&red)).unwrap().ids.len() > 3);
    collection.delete(0).unwrap();
    drop(collection);
    // With more memory it works again.
    let collection = open(&medium, options());
    assert_eq!(collection.count(), written - 1);
    collection.upsert(point(&stored(written, 1))).unwrap();
}

#[test]
fn the_status_says_that_memory_is_full() {
    let resources = resources(5 * MEMTABLE_BYTES + (5 << 20) + (160 << 10), MEMTABLE_BYTES);
    let collection = try_open(memory_medium(), options(), &resources).unwrap();
    assert_eq!(collection.status().low_memory, None);
    let put = |id| {
        let embedding = stored(id, 1).embedding;
        collection.upsert(PointRef { id, embedding: &embedding, record: &[], payload: &[] })
    };
    let refusal = (0..100_000).find_map(|id| put(id).err()).unwrap();
    assert_eq!(refusal.kind(), ErrorKind::ResourceExhausted);
    let why = collection.status().low_memory.unwrap();
    assert!(why.contains("raise --search-memory"), "{why}");
}

#[test]
fn changes_before_a_refused_one_survive() {
    let medium = memory_medium();
    let collection =
        try_open(medium.clone(), options(), &resources(MEMORY_BYTES, MEMTABLE_BYTES)).unwrap();
    let points: Vec<StoredPoint> = (0..10_000).map(|id| stored(id, 1)).collect();
    let ops: Vec<Op<'_>> = points.iter().map(|stored| Op::Upsert(point(stored))).collect();
    // No thread flushes, so both memtables are full at some time.
    let refusal = collection.try_apply(&ops).err().unwrap();
    assert_eq!(refusal.kind(), ErrorKind::ResourceExhausted);
    let count = collection.count();
    assert!(count > 0 && count < points.len() as u64, "{count}");
    drop(collection);
    assert_eq!(open(&medium, options()).count(), count);
}

#[test]
fn invalid_points_are_refused() {
    let collection = open(&memory_medium(), options());
    let good = stored(1, 1);
    let refused = |point| collection.upsert(point).unwrap_err().kind();
    let short = search::ingest::PointRef { embedding: &good.embedding[1..], ..point(&good) };
    assert_eq!(refused(short), ErrorKind::InvalidArgument);
    let infinite = [f32::NAN; DIMS];
    assert_eq!(
        refused(search::ingest::PointRef { embedding: &infinite, ..point(&good) }),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        refused(search::ingest::PointRef { payload: b"[1]", ..point(&good) }),
        ErrorKind::InvalidArgument
    );
    let long = vec![0; (1 << 20) + 1];
    assert_eq!(
        refused(search::ingest::PointRef { record: &long, ..point(&good) }),
        ErrorKind::TooLarge
    );
    assert_eq!(
        refused(search::ingest::PointRef { record: &long[..100_000], ..point(&good) }),
        ErrorKind::FailedPrecondition,
        "the memory of this machine is too small"
    );
    assert_eq!(collection.count(), 0);
    let other =
        CollectionOptions { shape: CollectionOptions::new(DIMS, Metric::Dot).shape, ..options() };
    let medium = memory_medium();
    drop(open(&medium, options()));
    let error = try_open(medium, other, &resources(MEMORY_BYTES, MEMTABLE_BYTES)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
}

#[test]
fn a_query_keeps_its_state() {
    let medium = memory_medium();
    let collection = open(&medium, options());
    for round in 0..4_u64 {
        (0..20).for_each(|id| collection.upsert(point(&stored(round * 20 + id, 1))).unwrap());
        collection.flush().unwrap();
    }
    (0..80).step_by(5).for_each(|id| collection.delete(id).unwrap());
    while collection.merge().unwrap() {}
    let status = collection.status();
    assert_eq!((status.segments.len(), status.segments[0].deleted, status.points), (1, 0, 64));
    let names: Vec<String> = medium.list().unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.iter().filter(|name| name.starts_with("segment-")).count(), 1, "{names:?}");
    assert_eq!(names.iter().filter(|name| name.starts_with("log-")).count(), 1, "{names:?}");
}

#[test]
fn extreme_embeddings_are_refused() {
    for (metric, embedding, fits) in [
        (Metric::Cosine, [1e-40, 0.0], false),
        (Metric::Cosine, [1e-25, 1e-25], false),
        (Metric::Cosine, [0.0, 0.0], true),
        (Metric::Cosine, [1e-10, 0.0], true),
        (Metric::Cosine, [3e20, 0.0], false),
        (Metric::Dot, [1e20, 1e20], false),
        (Metric::Dot, [1e-40, 0.0], true),
        (Metric::L2, [-f32::MAX, f32::MAX], false),
        (Metric::L2, [1e15, 1.0], true),
    ] {
        let collection = open(&memory_medium(), CollectionOptions::new(2, metric));
        let outcome = collection.upsert(PointRef {
            id: 77,
            embedding: &embedding,
            record: &[],
            payload: &[],
        });
        match outcome {
            Ok(()) => assert!(fits, "{metric:?} {embedding:?}"),
            Err(error) => {
                assert!(
                    !fits && error.kind() == ErrorKind::InvalidArgument,
                    "{metric:?} {embedding:?}: {error}"
                );
                assert!(error.message().contains("77"), "{error}");
            }
        }
        collection
            .upsert(PointRef { id: 78, embedding: &[1.0, 2.0], record: &[], payload: &[] })
            .unwrap();
        collection.flush().unwrap();
        assert_eq!(collection.count(), 1 + u64::from(fits));
    }
}

#[test]
fn flush_memory_is_reserved_again_after_a_failure() {
    let resources = resources(64 << 20, MEMTABLE_BYTES);
    // Enough for a log and not for a segment.
    let plan = FaultPlan { space: Some(32 << 10), ..FaultPlan::default() };
    let medium = Arc::new(FaultMedium::new(memory_medium(), plan).unwrap());
    let collection = Collection::open(medium, options(), &resources, shared()).unwrap();
    for id in 0..8 {
        let stored = stored(id, 1);
        let point = PointRef { record: &[], ..point(&stored) };
        collection.upsert(point).unwrap();
    }
    collection.freeze().unwrap();
    let before = resources.memory().used;
    for _ in 0..3 {
        assert!(collection.flush_oldest().is_err());
        assert_eq!(resources.memory().used, before);
    }
    assert_eq!(collection.count(), 8);
}

#[test]
fn a_segment_is_opened_once_memory_allows() {
    let medium = memory_medium();
    let collection = open(&medium, options());
    (0..40).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    collection.flush().unwrap();
    drop(collection);
    let budget = MemoryBudget::new(64 << 20);
    let resources = Resources::new(budget.clone(), MEMTABLE_BYTES, Rate::unlimited()).unwrap();
    let collection = Collection::open(medium, options(), &resources, shared()).unwrap();
    let list = collection.ids_from(0, 100, None).unwrap();
    assert_eq!(
        list.unseen.map(|error| error.kind()),
        Some(ErrorKind::Unavailable),
        "it is being opened"
    );
    let others = budget.reserve(budget.free(), "others").unwrap();
    assert!(collection.open_segments(), "it is to be tried again");
    let status = collection.status();
    assert!(status.partial && status.quarantined.len() == 1, "{status:?}");
    assert_eq!(collection.get(7).unwrap_err().kind(), ErrorKind::Unavailable);
    collection.delete(8).unwrap();
    drop(others);
    assert!(!collection.open_segments());
    let status = collection.status();
    assert!(!status.partial && status.quarantined.is_empty(), "{status:?}");
    assert_eq!(
        (collection.get(7).unwrap(), collection.get(8).unwrap()),
        (Some(stored(7, 1)), None)
    );
    assert_eq!(collection.ids_from(0, 100, None).unwrap().unseen, None);
}

#[test]
fn filters_are_cached_without_excluded_ids() {
    let resources = resources(64 << 20, MEMTABLE_BYTES);
    let collection = Collection::open(memory_medium(), options(), &resources, shared()).unwrap();
    (0..40).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    collection.flush().unwrap();
    let matching = |values: Vec<serde_json::Value>| Condition::Match {
        key: "colour".into(),
        matching: Match::Any(values.into()),
    };
    let used = |clause: &Filter| {
        let list = collection.ids_from(0, 100, Some(clause)).unwrap();
        (list.ids, resources.memory().used)
    };
    let red = Filter { must: vec![matching(vec![2.into()])], ..Filter::default() };
    let bare = resources.memory().used;
    let (ids, kept) = used(&red);
    assert!(kept > bare && ids.len() > 3);
    for first in &ids {
        let must_not = vec![Condition::has_id(vec![*first, 999])];
        let others =
            Filter { must: vec![Condition::Nested(red.clone())], must_not, ..Filter::default() };
        let wanted: Vec<u64> = ids.iter().copied().filter(|id| id != first).collect();
        assert_eq!(used(&others), (wanted, kept), "{first}");
        let all_but = Filter { must: Vec::new(), ..others };
        assert_eq!((used(&all_but).0.len(), used(&all_but).1), (39, kept));
    }
    let large =
        Filter { must: vec![matching((0..2000).map(Into::into).collect())], ..Filter::default() };
    assert_eq!(used(&large).1, kept);
    let longer =
        Filter { must: vec![matching((0..200).map(Into::into).collect())], ..Filter::default() };
    assert!(used(&longer).1 > kept + 200 * 8, "its values count");
}

#[test]
fn extreme_queries_are_refused() {
    for (metric, embedding, fits) in [
        (Metric::L2, [1e20, 0.0], false),
        (Metric::L2, [f32::MAX, f32::MAX], false),
        (Metric::Dot, [1e20, 0.0], false),
        (Metric::Cosine, [1e20, 0.0], false),
        (Metric::L2, [1e15, 1.0], true),
        (Metric::Dot, [1e-40, 0.0], true),
        (Metric::Cosine, [1e15, 0.0], true),
    ] {
        let collection = open(&memory_medium(), CollectionOptions::new(2, metric));
        let stored = PointRef { id: 78, embedding: &[1.0, 2.0], record: &[], payload: &[] };
        collection.upsert(stored).unwrap();
        let mut thread = collection.thread(limits()).unwrap();
        let query = CollectionQuery::nearest(&embedding, 1);
        match collection.nearest(&mut thread, &query) {
            Ok(found) => assert!(fits && found.hits.len() == 1, "{metric:?} {embedding:?}"),
            Err(error) => {
                assert!(!fits && error.kind() == ErrorKind::InvalidArgument, "{error}");
                assert!(error.message().contains("scale it"), "{error}");
            }
        }
    }
}

/// Medium whose readers fail once, at this read.
#[derive(Debug)]
struct Stumbling(Arc<dyn Medium>, usize);

struct Stumbles(Box<dyn Reader>, usize);

impl Reader for Stumbles {
    fn room(&self) -> usize {
        self.0.room()
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn submit(&mut self, read: storage::Read<'_>) -> base::Result<()> {
        self.1 = self.1.wrapping_sub(1);
        if self.1 == 0 { Err(base::Error::internal("it stumbles")) } else { self.0.submit(read) }
    }

    fn complete(
        &mut self,
        wait: usize,
        each: &mut dyn FnMut(u64, base::Result<&[u8]>),
    ) -> base::Result<usize> {
        self.0.complete(wait, each)
    }
}

impl Medium for Stumbling {
    fn kind(&self) -> MediumKind {
        self.0.kind()
    }

    fn create(&self, name: &str) -> base::Result<Box<dyn Writer>> {
        self.0.create(name)
    }

    fn reopen(&self, name: &str) -> base::Result<Box<dyn Writer>> {
        self.0.reopen(name)
    }

    fn open(&self, name: &str) -> base::Result<Arc<dyn Sealed>> {
        self.0.open(name)
    }

    fn remove(&self, name: &str) -> base::Result<()> {
        self.0.remove(name)
    }

    fn list(&self) -> base::Result<Vec<(String, u64)>> {
        self.0.list()
    }

    fn persist_names(&self) -> base::Result<()> {
        self.0.persist_names()
    }

    fn reader(&self, options: ReaderOptions) -> base::Result<Box<dyn Reader>> {
        Ok(Box::new(Stumbles(self.0.reader(options)?, self.1)))
    }
}

#[test]
fn reads_of_a_failed_query_do_not_leak() {
    const POINTS: u64 = 900;
    let fault = Arc::new(FaultMedium::new(memory_medium(), FaultPlan::default()).unwrap());
    let medium: Arc<dyn Medium> = Arc::new(Stumbling(fault, 4));
    let resources = resources(MEMORY_BYTES, 2 << 20);
    let collection = try_open(medium.clone(), options(), &resources).unwrap();
    let mut model = Model::new();
    for id in 0..POINTS {
        let stored = StoredPoint { record: Vec::new(), ..stored(id, 1) };
        collection.upsert(point(&stored)).unwrap();
        model.insert(id, stored);
    }
    collection.flush().unwrap();
    let mut thread = collection.thread(limits()).unwrap();
    // They lie in several pages, each of which is one read.
    let ids: Vec<u64> = (0..POINTS).collect();
    let like = stored(5, 9).embedding;
    assert_eq!(collection.scores(&mut thread, &like, &ids).unwrap_err().message(), "it stumbles");
    assert!(thread.is_sound(), "reads are still under way");
    let again = collection.scores(&mut thread, &like, &ids).unwrap();
    for (id, score) in ids.iter().zip(again) {
        let wanted = -crate::points::distance(&like, &model[id]);
        assert!((score.unwrap() - wanted).abs() < 1e-3, "{id}");
    }
}

#[test]
fn a_failed_read_is_not_damage() {
    const POINTS: u64 = 3;
    let fault = Arc::new(FaultMedium::new(memory_medium(), FaultPlan::default()).unwrap());
    let medium: Arc<dyn Medium> = Arc::new(Stumbling(fault, 1));
    let collection = open(&medium, options());
    // Their records lie in one page, which is one read.
    for id in 0..POINTS {
        let stored = StoredPoint { record: vec![7; 10], ..stored(id, 1) };
        collection.upsert(point(&stored)).unwrap();
    }
    collection.flush().unwrap();
    let mut thread = collection.thread(limits()).unwrap();
    let like = stored(1, 9).embedding;
    let query =
        CollectionQuery { exact: false, ..CollectionQuery::nearest(&like, POINTS as usize) };
    let failed = collection.search(&mut thread, &query, &Sum(5)).unwrap();
    assert_eq!((failed.damaged, failed.partial), (POINTS, true));
    let status = collection.status();
    assert!(status.quarantined.is_empty(), "{:?}", status.quarantined);
    let again = collection.search(&mut thread, &query, &Sum(5)).unwrap();
    assert_eq!((again.hits.len() as u64, again.partial), (POINTS, false));
}
