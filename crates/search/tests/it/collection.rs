//! Collections against a map: whatever is written, sealed, merged and reopened, and whenever the power fails.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::ErrorKind;
use memory::Rate;
use proptest::prelude::*;
use search::budget::Budget;
use search::coarse::Metric;
use search::collection::{Collection, FacetValue, Merging, Options, Query, Resources};
use search::filter::{Clause, Condition, Match};
use search::ingest::{Op, Point, StoredPoint};
use storage::{FaultMedium, FaultPlan, Medium, MediumKind, Reader, ReaderOptions, Sealed, Writer};

use crate::points::{
    DIMS, Model, PATIENCE, Sum, limits, memory_medium, open, options, point, ranked, shared, stored,
};

/// Ids that are used.
const IDS: u64 = 48;

#[derive(Clone, Debug)]
enum Step {
    Upsert(u64),
    /// Several with one flush; some hundreds do not fit in memory, so that sealing goes on before the flush.
    Many(u64, u64),
    Delete(u64),
    Seal,
    Merge,
    Reopen,
    Query(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..IDS).prop_map(Step::Upsert),
        4 => (0..IDS, 1_u64..12).prop_map(|(id, count)| Step::Many(id, count)),
        1 => (0..IDS, 200_u64..400).prop_map(|(id, count)| Step::Many(id, count)),
        5 => (0..IDS).prop_map(Step::Delete),
        3 => Just(Step::Seal),
        2 => Just(Step::Merge),
        2 => Just(Step::Reopen),
        2 => any::<u64>().prop_map(Step::Query),
    ]
}

/// A collection and what it should hold. Where a change was not acknowledged, an id may have one of several states.
struct Subject {
    collection: Option<Collection>,
    medium: Arc<dyn Medium>,
    /// Where the power may fail: the same medium.
    fault: Option<Arc<FaultMedium>>,
    /// By id: the versions that may be there, `None` for no point.
    allowed: BTreeMap<u64, Vec<Option<u64>>>,
    version: u64,
}

impl Subject {
    fn new(medium: Arc<dyn Medium>) -> Subject {
        let collection = Collection::open(medium.clone(), options(), shared()).ok();
        let allowed = (0..IDS).map(|id| (id, vec![None])).collect();
        Subject { collection, medium, fault: None, allowed, version: 0 }
    }

    /// Does a step; false once the medium has failed.
    fn step(&mut self, step: &Step) -> bool {
        let Some(collection) = &self.collection else { return false };
        match *step {
            Step::Upsert(id) => self.write(&[(id, true)]),
            Step::Many(first, count) => {
                let changes: Vec<(u64, bool)> =
                    (0..count).map(|at| ((first + at * 5) % IDS, at % 4 != 3)).collect();
                self.write(&changes)
            }
            Step::Delete(id) => self.write(&[(id, false)]),
            Step::Seal => collection.seal().is_ok(),
            Step::Merge => collection.merge().is_ok(),
            Step::Reopen => {
                self.collection = None;
                self.collection = Collection::open(self.medium.clone(), options(), shared()).ok();
                self.collection.as_ref().is_some_and(|collection| collection.wait_open(PATIENCE))
            }
            Step::Query(seed) => {
                // A failure may have hit something that costs nothing, such as removing a file. Now nothing is readable.
                let on = self.fault.as_ref().is_none_or(|fault| !fault.crashed());
                if on {
                    self.check_queries(seed);
                }
                on
            }
        }
    }

    fn write(&mut self, changes: &[(u64, bool)]) -> bool {
        let Some(collection) = &self.collection else { return false };
        let versions: Vec<(u64, Option<u64>)> = changes
            .iter()
            .map(|&(id, there)| {
                self.version += 1;
                (id, there.then_some(self.version))
            })
            .collect();
        let points: Vec<_> =
            versions.iter().map(|&(id, version)| version.map(|version| stored(id, version))).collect();
        let ops: Vec<Op<'_>> = points
            .iter()
            .zip(&versions)
            .map(|(stored, (id, _))| {
                stored.as_ref().map_or(Op::Delete(*id), |stored| Op::Upsert(point(stored)))
            })
            .collect();
        let acknowledged = collection.write(&ops);
        for (id, version) in versions {
            let allowed = self.allowed.get_mut(&id).unwrap();
            if acknowledged.is_ok() {
                allowed.clear();
            }
            allowed.push(version);
        }
        acknowledged.is_ok()
    }

    /// Every id has one of the states it may have, with the right content; from now on it has that one.
    fn check(&mut self) {
        let collection = self.collection.as_ref().unwrap();
        let mut there = 0;
        for (&id, allowed) in &mut self.allowed {
            let found = collection.get(id).unwrap();
            let is = |version: &Option<u64>| version.map(|version| stored(id, version)) == found;
            let version = allowed.iter().copied().find(|version| is(version));
            let version =
                version.unwrap_or_else(|| panic!("id {id}: {allowed:?} were possible, there is {found:?}"));
            there += u64::from(version.is_some());
            *allowed = vec![version];
        }
        assert_eq!(collection.count(), there);
        let status = collection.status();
        assert!(!status.partial && status.quarantined.is_empty(), "{status:?}");
        assert!(status.memory.peak <= status.memory.limit);
    }

    fn model(&self) -> Model {
        let newest = self.allowed.iter().filter_map(|(&id, allowed)| Some((id, (*allowed.last()?)?)));
        newest.map(|(id, version)| (id, stored(id, version))).collect()
    }

    /// Queries give what a look at every point gives.
    fn check_queries(&self, seed: u64) {
        let (collection, model) = (self.collection.as_ref().unwrap(), self.model());
        let mut thread = collection.thread(limits()).unwrap();
        let like = stored(seed % IDS, seed / IDS);
        let wanted = ranked(&model, &like.embedding);
        let query = Query::nearest(&like.embedding, 7);
        let found = collection.nearest(&mut thread, &query).unwrap();
        let ids: Vec<u64> = found.hits.iter().map(|hit| hit.id).collect();
        let nearest: Vec<u64> = wanted.iter().take(7).map(|(point, _)| point.id).collect();
        assert_eq!(ids, nearest, "{:?}", collection.status());
        for (hit, (_, distance)) in found.hits.iter().zip(&wanted) {
            assert!((hit.score + distance).abs() < 1e-3, "{hit:?} {distance}");
        }

        let scorer = Sum(seed);
        let query = Query { k: 5, candidates: 12, ..query };
        let found = collection.search(&mut thread, &query, &scorer).unwrap();
        // Records without content score the same, and which of those come first is not said.
        let mut best: Vec<f32> = wanted.iter().take(12).map(|(point, _)| scorer.of(&point.record)).collect();
        best.sort_by(|a, b| b.total_cmp(a));
        best.truncate(5);
        let scores: Vec<f32> = found.hits.iter().map(|hit| hit.score).collect();
        assert_eq!(scores, best);
        assert!(found.hits.iter().all(|hit| scorer.of(&model[&hit.id].record) == hit.score), "{found:?}");

        let colour = Condition::Match { key: "colour".into(), matching: Match::Value((1 + seed % 4).into()) };
        let clause = Clause { must: vec![colour], ..Clause::default() };
        let found = collection.nearest(&mut thread, &Query { filter: Some(&clause), ..query }).unwrap();
        let text = format!(r#""colour":{}}}"#, 1 + seed % 4);
        let of_colour = wanted.iter().filter(|(point, _)| point.payload.ends_with(text.as_bytes()));
        let wanted: Vec<u64> = of_colour.take(5).map(|(point, _)| point.id).collect();
        let ids: Vec<u64> = found.hits.iter().map(|hit| hit.id).collect();
        assert_eq!(ids, wanted);
        self.check_facet(&clause);
    }

    /// Values are counted as a look at every payload counts them.
    fn check_facet(&self, clause: &Clause) {
        let (collection, model) = (self.collection.as_ref().unwrap(), self.model());
        for clause in [None, Some(clause)] {
            let mut counts = BTreeMap::new();
            for point in model.values().filter(|point| !point.payload.is_empty()) {
                let payload: serde_json::Value = serde_json::from_slice(&point.payload).unwrap();
                if clause.is_none_or(|clause| clause.matches(point.id, &payload)) {
                    let colour = payload.get("colour").and_then(serde_json::Value::as_i64);
                    *counts.entry(colour).or_insert(0) += 1;
                }
            }
            counts.remove(&None);
            let mut wanted: Vec<(FacetValue, u64)> = counts
                .into_iter()
                .filter_map(|(colour, count)| Some((FacetValue::Whole(colour?), count)))
                .collect();
            wanted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let found = collection.facet("colour", clause, 3).unwrap();
            wanted.truncate(3);
            assert_eq!((found.hits, found.partial), (wanted, false), "{clause:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 60, ..ProptestConfig::default() })]
    #[test]
    fn a_collection_is_a_map(steps in prop::collection::vec(step(), 1..60)) {
        let mut subject = Subject::new(memory_medium());
        for step in &steps {
            prop_assert!(subject.step(step), "{:?}", step);
        }
        subject.check();
        subject.check_queries(steps.len() as u64);
        prop_assert!(subject.step(&Step::Reopen));
        subject.check();
        subject.check_queries(steps.len() as u64);
    }

    #[test]
    fn what_was_acknowledged_survives_a_loss_of_power(
        steps in prop::collection::vec(step(), 1..60),
        moments in prop::collection::vec(any::<prop::sample::Index>(), 3),
        seed in any::<u64>(),
    ) {
        let operations = {
            let fault = Arc::new(FaultMedium::new(memory_medium(), FaultPlan { seed, ..FaultPlan::default() }).unwrap());
            let mut subject = Subject::new(fault.clone());
            steps.iter().for_each(|step| assert!(subject.step(step), "{step:?}"));
            drop(subject);
            fault.operations()
        };
        for moment in moments {
            crash(&steps, 1 + moment.index(operations as usize) as u64, seed);
        }
    }
}

/// Runs steps until the power fails at the `moment`-th operation, then looks at what is left.
fn crash(steps: &[Step], moment: u64, seed: u64) {
    let plan = FaultPlan { seed, crash_at: Some(moment), ..FaultPlan::default() };
    let fault = Arc::new(FaultMedium::new(memory_medium(), plan).unwrap());
    let mut subject = Subject::new(fault.clone());
    subject.fault = Some(fault.clone());
    for step in steps {
        if !subject.step(step) {
            break;
        }
    }
    subject.collection = None;
    let left = memory_medium();
    fault.remains(&*left, seed ^ moment).unwrap();
    (subject.medium, subject.fault) = (left, None);
    subject.collection = Some(open(&subject.medium, options()));
    subject.check();
    subject.check_queries(seed);
    // And it goes on as if nothing had been.
    for step in [Step::Upsert(1), Step::Seal, Step::Merge, Step::Delete(1), Step::Reopen] {
        assert!(subject.step(&step), "{step:?} after a crash at {moment}");
    }
    subject.check();
}

/// Every moment of a short life with everything in it.
#[test]
fn the_power_may_fail_at_any_moment() {
    let mut steps: Vec<Step> = Vec::new();
    for round in 0..3 {
        steps.extend([Step::Many(round, 11), Step::Upsert(7), Step::Delete(7 + round), Step::Seal]);
    }
    steps.extend([
        Step::Merge,
        Step::Upsert(3),
        Step::Delete(5),
        Step::Reopen,
        Step::Many(9, 300),
        Step::Seal,
    ]);
    let fault = Arc::new(FaultMedium::new(memory_medium(), FaultPlan::default()).unwrap());
    let mut subject = Subject::new(fault.clone());
    steps.iter().for_each(|step| assert!(subject.step(step), "{step:?}"));
    subject.check();
    assert!(subject.collection.as_ref().unwrap().status().segments.len() >= 2);
    drop(subject);
    let operations = fault.operations();
    // Every one takes too long without optimisation; each run of the suite takes others.
    let start = u64::from(std::process::id()) % 5;
    for moment in (1 + start..=operations).step_by(5) {
        crash(&steps, moment, moment);
    }
}

#[test]
fn writers_searchers_seals_and_merges_at_once() {
    let options =
        Options { background: true, merging: Merging { fan_in: 2, ..Merging::default() }, ..options() };
    let medium = memory_medium();
    let collection = open(&medium, options.clone());
    let (stop, searched) = (AtomicBool::new(false), AtomicU64::new(0));
    let versions = 40;
    std::thread::scope(|scope| {
        let searcher = scope.spawn(|| {
            let mut thread = collection.thread(limits()).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let like = stored(searched.fetch_add(1, Ordering::Relaxed) % 30, 3);
                let query = Query { k: 10, candidates: 50, ..Query::nearest(&like.embedding, 10) };
                let found = collection.search(&mut thread, &query, &Sum(1)).unwrap();
                let mut ids: Vec<u64> = found.hits.iter().map(|hit| hit.id).collect();
                ids.sort_unstable();
                ids.dedup();
                assert_eq!(ids.len(), found.hits.len(), "no id twice in one state");
                assert!(!found.partial);
            }
        });
        let writers: Vec<_> = (0..3_u64)
            .map(|writer| {
                let collection = &collection;
                scope.spawn(move || {
                    for version in 0..versions {
                        for id in (writer * 10)..(writer * 10 + 10) {
                            collection.upsert(point(&stored(id, version))).unwrap();
                            // The writer finds its own change, whatever is under way.
                            assert_eq!(collection.get(id).unwrap(), Some(stored(id, version)));
                        }
                        collection.delete(writer * 10 + version % 10).unwrap();
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        searcher.join().unwrap();
    });
    let check = |collection: &Collection| {
        for id in 0..30 {
            let gone = id % 10 == (versions - 1) % 10;
            assert_eq!(collection.get(id).unwrap(), (!gone).then(|| stored(id, versions - 1)), "{id}");
        }
        assert_eq!(collection.count(), 27);
    };
    check(&collection);
    let status = collection.status();
    assert!(status.seals > 0 && searched.into_inner() > 0, "{status:?}");
    assert!(status.memory.peak <= status.memory.limit);
    drop(collection);
    check(&open(&medium, options));
}

/// A medium that lets something happen when a segment begins to be written.
#[derive(Debug)]
struct Meanwhile {
    inner: Arc<dyn Medium>,
    happens: Mutex<Option<Happens>>,
}

struct Happens(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Happens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("something")
    }
}

impl Medium for Meanwhile {
    fn kind(&self) -> MediumKind {
        self.inner.kind()
    }

    fn create(&self, name: &str) -> base::Result<Box<dyn Writer>> {
        if name.starts_with("segment-") {
            let happens = self.happens.lock().unwrap().take();
            happens.into_iter().for_each(|happens| happens.0());
        }
        self.inner.create(name)
    }

    fn reopen(&self, name: &str) -> base::Result<Box<dyn Writer>> {
        self.inner.reopen(name)
    }

    fn open(&self, name: &str) -> base::Result<Arc<dyn Sealed>> {
        self.inner.open(name)
    }

    fn load(&self, name: &str) -> base::Result<Vec<u8>> {
        self.inner.load(name)
    }

    fn remove(&self, name: &str) -> base::Result<()> {
        self.inner.remove(name)
    }

    fn list(&self) -> base::Result<Vec<(String, u64)>> {
        self.inner.list()
    }

    fn persist_names(&self) -> base::Result<()> {
        self.inner.persist_names()
    }

    fn reader(&self, options: ReaderOptions) -> base::Result<Box<dyn Reader>> {
        self.inner.reader(options)
    }
}

#[test]
fn what_changes_while_a_segment_is_written_is_not_undone_by_it() {
    let medium = Arc::new(Meanwhile { inner: memory_medium(), happens: Mutex::default() });
    let collection = Arc::new(open(&(medium.clone() as Arc<dyn Medium>), options()));
    let mut model = Model::new();
    for round in 0..3_u64 {
        (0..8).for_each(|id| {
            collection.upsert(point(&stored(round * 10 + id, 1))).unwrap();
            model.insert(round * 10 + id, stored(round * 10 + id, 1));
        });
        // While this round's points are sealed, one of them is replaced and one removed.
        let during = collection.clone();
        *medium.happens.lock().unwrap() = Some(Happens(Box::new(move || {
            during.upsert(point(&stored(round * 10, 2))).unwrap();
            during.delete(round * 10 + 1).unwrap();
            assert_eq!(during.get(round * 10).unwrap(), Some(stored(round * 10, 2)));
        })));
        collection.seal().unwrap();
        model.insert(round * 10, stored(round * 10, 2));
        model.remove(&(round * 10 + 1));
    }
    let during = collection.clone();
    *medium.happens.lock().unwrap() = Some(Happens(Box::new(move || {
        during.upsert(point(&stored(2, 2))).unwrap();
        during.delete(12).unwrap();
        during.delete(20).unwrap();
    })));
    assert!(collection.merge().unwrap());
    model.insert(2, stored(2, 2));
    model.remove(&12);
    model.remove(&20);
    let check = |collection: &Collection| {
        (0..30).for_each(|id| assert_eq!(collection.get(id).unwrap(), model.get(&id).cloned(), "{id}"));
        assert_eq!(collection.count(), model.len() as u64);
    };
    check(&collection);
    *medium.happens.lock().unwrap() = None;
    drop(Arc::into_inner(collection));
    check(&open(&medium.inner, options()));
}

#[test]
fn sealing_that_gives_way_is_left_to_a_thread_that_hurries_where_writers_of_any_collection_wait() {
    let part_bytes = options().part_bytes;
    let resources = Resources::new(Budget::new(64 << 20), part_bytes, Rate::unlimited()).unwrap();
    let opened = |medium: &Arc<dyn Medium>| {
        let collection = Collection::open_with(medium.clone(), options(), &resources, shared()).unwrap();
        collection.open_segments();
        Arc::new(collection)
    };
    let slow = Arc::new(Meanwhile { inner: memory_medium(), happens: Mutex::default() });
    let (sealed, written) = (opened(&(slow.clone() as Arc<dyn Medium>)), opened(&memory_medium()));
    (0..8).for_each(|id| sealed.upsert(point(&stored(id, 1))).unwrap());
    sealed.freeze().unwrap();
    assert!(!sealed.seal_in_hurry().unwrap(), "nobody waits");
    // Sealing one collection gets no further until a writer of the other one has waited for long.
    let (blocked, blocks) = std::sync::mpsc::channel::<()>();
    let (begun, begins) = std::sync::mpsc::channel();
    *slow.happens.lock().unwrap() = Some(Happens(Box::new(move || {
        begun.send(()).unwrap();
        blocks.recv().unwrap();
    })));
    let gentle = {
        let sealed = sealed.clone();
        std::thread::spawn(move || sealed.seal_oldest().unwrap())
    };
    begins.recv().unwrap();
    let writer = {
        let written = written.clone();
        std::thread::spawn(move || (0..600).for_each(|id| written.upsert(point(&stored(id, 1))).unwrap()))
    };
    while !resources.waits().hurried {
        assert!(!writer.is_finished(), "no write had to wait");
        std::thread::sleep(Duration::from_millis(1));
    }
    blocked.send(()).unwrap();
    assert!(!gentle.join().unwrap(), "what gives way was not given up");
    assert_eq!((sealed.status().seals, sealed.count()), (0, 8));
    while !writer.is_finished() {
        written.seal_in_hurry().unwrap();
    }
    writer.join().unwrap();
    assert_eq!(written.count(), 600);
    assert!(sealed.seal_in_hurry().unwrap(), "hurry lasts");
    assert_eq!((sealed.status().seals, sealed.count()), (1, 8));
}

#[test]
fn who_does_not_wait_for_room_is_refused_at_once_and_hurries_nothing() {
    let part_bytes = options().part_bytes;
    let resources = Resources::new(Budget::new(64 << 20), part_bytes, Rate::unlimited()).unwrap();
    // Nobody seals by itself.
    let collection = Collection::open_with(memory_medium(), options(), &resources, shared()).unwrap();
    collection.open_segments();
    let put = |id| {
        let stored = stored(id, 1);
        collection.try_apply(&[Op::Upsert(point(&stored))]).and_then(|applied| applied.commit())
    };
    let fill = |from: u64| {
        let refused = (from..from + 10_000).find_map(|id| put(id).err().map(|error| (id, error)));
        let (written, refusal) = refused.expect("memory is full at some time");
        assert_eq!(refusal.kind(), ErrorKind::ResourceExhausted);
        assert!(refusal.retry_after().is_some(), "{refusal}");
        written
    };
    let written = fill(0);
    // Longer than a writer who waits is patient.
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(put(written).unwrap_err().kind(), ErrorKind::ResourceExhausted);
    assert_eq!(resources.waits(), search::collection::Waits::default());
    assert!(!collection.seal_in_hurry().unwrap());
    assert!(collection.seal_oldest().unwrap());
    let more = fill(written);
    assert!(more > written, "there is room again");
    assert_eq!(collection.count(), more);
}

#[test]
fn writers_who_are_faster_than_sealing_are_slowed_down_until_it_is_done() {
    let part_bytes = options().part_bytes;
    let resources = Resources::new(Budget::new(64 << 20), part_bytes, Rate::unlimited()).unwrap();
    let collection = Collection::open_with(memory_medium(), options(), &resources, shared()).unwrap();
    collection.open_segments();
    let collection = Arc::new(collection);
    let fill = |from: u64| {
        let put = |id| {
            collection.try_apply(&[Op::Upsert(point(&stored(id, 1)))]).and_then(|applied| applied.commit())
        };
        (from..).find(|&id| put(id).is_err()).unwrap()
    };
    collection.upsert(point(&stored(0, 1))).unwrap();
    collection.keep_pace();
    assert_eq!(resources.waits().slowed, 0, "no part waits to be sealed");
    let written = fill(1);
    // Sealing takes long, and someone waits for it.
    let waiting = collection.clone();
    let writer = std::thread::spawn(move || waiting.upsert(point(&stored(written, 1))).unwrap());
    std::thread::sleep(Duration::from_secs(2));
    assert!(collection.seal_in_hurry().unwrap());
    writer.join().unwrap();
    // So a part that is nearly full beside one that waits must not go on filling for two seconds.
    fill(written + 1);
    let paced = collection.clone();
    let slowed = std::thread::spawn(move || paced.keep_pace());
    while resources.waits().slowed == 0 && !slowed.is_finished() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((resources.waits().slowed, resources.waits().hurried), (1, true));
    collection.seal_in_hurry().unwrap();
    slowed.join().unwrap();
    let before = resources.waits().slowed;
    collection.keep_pace();
    assert_eq!((before, resources.waits().slowed), (1, 1), "nothing waits to be sealed any more");
    assert_eq!(resources.waits().waited, 1);
}

#[test]
fn a_full_part_is_left_to_a_thread_that_hurries_after_a_while() {
    let collection = open(&memory_medium(), Options { seal_wait: Duration::ZERO, ..options() });
    (0..8).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    assert!(!collection.seal_in_hurry().unwrap(), "nothing is full");
    collection.freeze().unwrap();
    assert!(!collection.seal_oldest().unwrap(), "it has waited for too long to give way to others");
    assert!(collection.seal_in_hurry().unwrap());
    assert_eq!((collection.status().seals, collection.count()), (1, 8));
}

#[test]
fn segments_that_pile_up_are_left_to_a_thread_that_hurries() {
    let medium = Arc::new(Meanwhile { inner: memory_medium(), happens: Mutex::default() });
    let collection = Arc::new(open(&(medium.clone() as Arc<dyn Medium>), options()));
    let grow = |rounds: std::ops::Range<u64>| {
        for round in rounds {
            (0..8).for_each(|id| collection.upsert(point(&stored(round * 8 + id, 1))).unwrap());
            collection.seal().unwrap();
        }
    };
    grow(0..5);
    assert!(!collection.merge_in_hurry().unwrap(), "5 are less than twice 3");
    grow(5..6);
    // Merging that gives way is at work when another thread takes over.
    let (send, hurries) = std::sync::mpsc::channel();
    let during = collection.clone();
    *medium.happens.lock().unwrap() = Some(Happens(Box::new(move || {
        send.send(std::thread::spawn(move || during.merge_in_hurry())).unwrap();
        // It says so and then waits for this thread to give up.
        std::thread::sleep(Duration::from_millis(500));
    })));
    assert!(!collection.merge().unwrap());
    assert!(hurries.recv().unwrap().join().unwrap().unwrap());
    let status = collection.status();
    assert_eq!((status.merges, status.segments.len(), collection.count()), (1, 1, 48));
    assert!(status.merge_error.is_none(), "{status:?}");
    assert!(!collection.merge_in_hurry().unwrap() && !collection.merge().unwrap());
}

#[test]
fn memory_is_never_exceeded_and_a_refusal_says_what_to_do() {
    // Room for sealing, two parts, and little more: codes and ids of sealed points use it up.
    let options = Options { memory_bytes: 5 * (64 << 10) + (5 << 20) + (160 << 10), ..options() };
    let medium = memory_medium();
    let collection = open(&medium, options.clone());
    let mut written = 0;
    let refusal = loop {
        match collection.upsert(point(&stored(written, 1))) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100_000, "it must be full at some time");
    };
    assert_eq!(refusal.kind(), ErrorKind::ResourceExhausted);
    assert!(refusal.message().contains("budget"), "{refusal}");
    let status = collection.status();
    assert!(status.memory.peak <= options.memory_bytes && status.seals > 0, "{status:?}");
    assert!(collection.get(0).unwrap().is_some() && collection.get(written - 1).unwrap().is_some());
    collection.delete(0).unwrap();
    drop(collection);
    // With more memory it goes on.
    let more = Options { memory_bytes: 32 << 20, ..options };
    let collection = open(&medium, more);
    assert_eq!(collection.count(), written - 1);
    collection.upsert(point(&stored(written, 1))).unwrap();
}

#[test]
fn what_can_never_be_written_is_refused() {
    let collection = open(&memory_medium(), options());
    let good = stored(1, 1);
    let refused = |point| collection.upsert(point).unwrap_err().kind();
    let short = search::ingest::Point { embedding: &good.embedding[1..], ..point(&good) };
    assert_eq!(refused(short), ErrorKind::InvalidArgument);
    let infinite = [f32::NAN; DIMS];
    assert_eq!(
        refused(search::ingest::Point { embedding: &infinite, ..point(&good) }),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        refused(search::ingest::Point { payload: b"[1]", ..point(&good) }),
        ErrorKind::InvalidArgument
    );
    let long = vec![0; (1 << 20) + 1];
    assert_eq!(refused(search::ingest::Point { record: &long, ..point(&good) }), ErrorKind::TooLarge);
    assert_eq!(
        refused(search::ingest::Point { record: &long[..100_000], ..point(&good) }),
        ErrorKind::TooLarge
    );
    assert_eq!(collection.count(), 0);
    let other = Options { shape: Options::new(DIMS, Metric::Dot, 1 << 20).shape, ..options() };
    let medium = memory_medium();
    drop(open(&medium, options()));
    let error = Collection::open(medium, other, shared()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
}

#[test]
fn a_state_stays_as_it_was_while_everything_moves() {
    let medium = memory_medium();
    let collection = open(&medium, options());
    for round in 0..4_u64 {
        (0..20).for_each(|id| collection.upsert(point(&stored(round * 20 + id, 1))).unwrap());
        collection.seal().unwrap();
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
fn an_embedding_that_no_index_can_be_made_of_is_refused() {
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
        let collection =
            open(&memory_medium(), Options { background: false, ..Options::new(2, metric, 32 << 20) });
        let outcome = collection.upsert(Point { id: 77, embedding: &embedding, record: &[], payload: &[] });
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
        collection.upsert(Point { id: 78, embedding: &[1.0, 2.0], record: &[], payload: &[] }).unwrap();
        collection.seal().unwrap();
        assert_eq!(collection.count(), 1 + u64::from(fits));
    }
}

#[test]
fn what_is_set_aside_for_sealing_is_there_again_after_a_failure() {
    let part_bytes = options().part_bytes;
    let resources = Resources::new(Budget::new(64 << 20), part_bytes, Rate::unlimited()).unwrap();
    // Enough for a log and not for a segment.
    let plan = FaultPlan { space: Some(32 << 10), ..FaultPlan::default() };
    let medium = Arc::new(FaultMedium::new(memory_medium(), plan).unwrap());
    let collection = Collection::open_with(medium, options(), &resources, shared()).unwrap();
    for id in 0..8 {
        let stored = stored(id, 1);
        let point = Point { record: &[], ..point(&stored) };
        collection.upsert(point).unwrap();
    }
    collection.freeze().unwrap();
    let before = resources.memory().used;
    for _ in 0..3 {
        assert!(collection.seal_oldest().is_err());
        assert_eq!(resources.memory().used, before);
    }
    assert_eq!(collection.count(), 8);
}

#[test]
fn a_segment_that_memory_has_no_room_for_is_opened_once_it_has() {
    let medium = memory_medium();
    let collection = open(&medium, options());
    (0..40).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    collection.seal().unwrap();
    drop(collection);
    let resources = Resources::new(Budget::new(64 << 20), options().part_bytes, Rate::unlimited()).unwrap();
    let collection = Collection::open_with(medium, options(), &resources, shared()).unwrap();
    let list = collection.ids_from(0, 100, None).unwrap();
    assert_eq!(list.unseen.map(|error| error.kind()), Some(ErrorKind::Unavailable), "it is being opened");
    let others = resources.budget().reserve(resources.budget().free(), "others").unwrap();
    assert!(collection.open_segments(), "it is to be tried again");
    assert!(collection.wait_open(PATIENCE));
    let status = collection.status();
    assert!(status.partial && status.quarantined.len() == 1, "{status:?}");
    assert_eq!(collection.get(7).unwrap_err().kind(), ErrorKind::Unavailable);
    collection.delete(8).unwrap();
    drop(others);
    assert!(!collection.open_segments());
    let status = collection.status();
    assert!(!status.partial && status.quarantined.is_empty(), "{status:?}");
    assert_eq!((collection.get(7).unwrap(), collection.get(8).unwrap()), (Some(stored(7, 1)), None));
    assert_eq!(collection.ids_from(0, 100, None).unwrap().unseen, None);
}

#[test]
fn filters_are_kept_without_the_ids_they_exclude_and_large_ones_are_not() {
    let resources = Resources::new(Budget::new(64 << 20), options().part_bytes, Rate::unlimited()).unwrap();
    let collection = Collection::open_with(memory_medium(), options(), &resources, shared()).unwrap();
    (0..40).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    collection.seal().unwrap();
    let matching = |values: Vec<serde_json::Value>| Condition::Match {
        key: "colour".into(),
        matching: Match::Any(values),
    };
    let used = |clause: &Clause| {
        let list = collection.ids_from(0, 100, Some(clause)).unwrap();
        (list.ids, resources.memory().used)
    };
    let red = Clause { must: vec![matching(vec![2.into()])], ..Clause::default() };
    let bare = resources.memory().used;
    let (ids, kept) = used(&red);
    assert!(kept > bare && ids.len() > 3);
    for first in &ids {
        let must_not = vec![Condition::has_id(vec![*first, 999])];
        let others = Clause { must: vec![Condition::Nested(red.clone())], must_not, ..Clause::default() };
        let wanted: Vec<u64> = ids.iter().copied().filter(|id| id != first).collect();
        assert_eq!(used(&others), (wanted, kept), "{first}");
        let all_but = Clause { must: Vec::new(), ..others };
        assert_eq!((used(&all_but).0.len(), used(&all_but).1), (39, kept));
    }
    let large = Clause { must: vec![matching((0..2000).map(Into::into).collect())], ..Clause::default() };
    assert_eq!(used(&large).1, kept);
    let longer = Clause { must: vec![matching((0..200).map(Into::into).collect())], ..Clause::default() };
    assert!(used(&longer).1 > kept + 200 * 8, "its values count");
}

/// A medium whose readers fail once, at this read, and go on.
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
fn reads_of_a_query_that_failed_do_not_come_to_the_next_one() {
    const POINTS: u64 = 900;
    let fault = Arc::new(FaultMedium::new(memory_medium(), FaultPlan::default()).unwrap());
    let medium: Arc<dyn Medium> = Arc::new(Stumbling(fault, 4));
    let collection = open(&medium, Options { part_bytes: 2 << 20, ..options() });
    let mut model = Model::new();
    for id in 0..POINTS {
        let stored = StoredPoint { record: Vec::new(), ..stored(id, 1) };
        collection.upsert(point(&stored)).unwrap();
        model.insert(id, stored);
    }
    collection.seal().unwrap();
    let mut thread = collection.thread(limits()).unwrap();
    // They lie in several pages, each of which is a read.
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
