//! Collections against a map, for any sequence of writes, flushes, merges and reopens, and any
//! moment of a power loss.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use search::collection::{Collection, CollectionOptions, CollectionQuery, FacetValue, Merging};
use search::filter::{Condition, Filter, Match};
use search::ingest::{Op, PointRef};
use storage::{FaultMedium, FaultPlan, Medium};

use crate::points::{
    MEMORY_BYTES, MEMTABLE_BYTES, Model, Sum, TestCollection, limits, memory_medium, open, options,
    point, ranked, resources, stored, try_open,
};

/// Ids in use.
const IDS: u64 = 48;

#[derive(Clone, Debug)]
enum Step {
    Upsert(u64),
    /// Several points per sync; a few hundred do not fit in memory, so a flush comes first.
    Many(u64, u64),
    Delete(u64),
    Flush,
    Merge,
    Reopen,
    CollectionQuery(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..IDS).prop_map(Step::Upsert),
        4 => (0..IDS, 1_u64..12).prop_map(|(id, count)| Step::Many(id, count)),
        1 => (0..IDS, 200_u64..400).prop_map(|(id, count)| Step::Many(id, count)),
        5 => (0..IDS).prop_map(Step::Delete),
        3 => Just(Step::Flush),
        2 => Just(Step::Merge),
        2 => Just(Step::Reopen),
        2 => any::<u64>().prop_map(Step::CollectionQuery),
    ]
}

/// Collection and its expected content. An id may have one of several states if a change was not
/// acknowledged.
struct Subject {
    collection: Option<TestCollection>,
    medium: Arc<dyn Medium>,
    /// The same medium, if power may fail.
    fault: Option<Arc<FaultMedium>>,
    /// Versions allowed by id; `None` for no point.
    allowed: BTreeMap<u64, Vec<Option<u64>>>,
    version: u64,
}

impl Subject {
    fn new(medium: Arc<dyn Medium>) -> Subject {
        let collection =
            try_open(medium.clone(), options(), &resources(MEMORY_BYTES, MEMTABLE_BYTES)).ok();
        let allowed = (0..IDS).map(|id| (id, vec![None])).collect();
        Subject { collection, medium, fault: None, allowed, version: 0 }
    }

    /// Runs a step. Returns false once the medium has failed.
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
            Step::Flush => collection.flush().is_ok(),
            Step::Merge => collection.merge().is_ok(),
            Step::Reopen => {
                self.collection = None;
                let resources = resources(MEMORY_BYTES, MEMTABLE_BYTES);
                self.collection = try_open(self.medium.clone(), options(), &resources).ok();
                self.collection.is_some()
            }
            Step::CollectionQuery(seed) => {
                // The failure may have hit an optional operation such as removing a file. From now
                // on nothing is readable.
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
        let points: Vec<_> = versions
            .iter()
            .map(|&(id, version)| version.map(|version| stored(id, version)))
            .collect();
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

    /// Checks that every id has an allowed state with the right content, and narrows it to that
    /// state.
    fn check(&mut self) {
        let collection = self.collection.as_ref().unwrap();
        let mut there = 0;
        for (&id, allowed) in &mut self.allowed {
            let found = collection.get(id).unwrap();
            let is = |version: &Option<u64>| version.map(|version| stored(id, version)) == found;
            let version = allowed.iter().copied().find(|version| is(version));
            let version = version.unwrap_or_else(|| {
                panic!("id {id}: {allowed:?} were possible, there is {found:?}")
            });
            there += u64::from(version.is_some());
            *allowed = vec![version];
        }
        assert_eq!(collection.count(), there);
        let status = collection.status();
        assert!(!status.partial && status.quarantined.is_empty(), "{status:?}");
        assert!(status.memory.peak <= status.memory.limit);
    }

    fn model(&self) -> Model {
        let newest =
            self.allowed.iter().filter_map(|(&id, allowed)| Some((id, (*allowed.last()?)?)));
        newest.map(|(id, version)| (id, stored(id, version))).collect()
    }

    /// Checks queries against a comparison with every point.
    fn check_queries(&self, seed: u64) {
        let collection = self.collection.as_ref().unwrap();
        let model = self.model();
        let mut thread = collection.thread(limits()).unwrap();
        let like = stored(seed % IDS, seed / IDS);
        let wanted = ranked(&model, &like.embedding);
        let query = CollectionQuery::nearest(&like.embedding, 7);
        let found = collection.nearest(&mut thread, &query).unwrap();
        let ids: Vec<u64> = found.hits.iter().map(|hit| hit.id).collect();
        let nearest: Vec<u64> = wanted.iter().take(7).map(|(point, _)| point.id).collect();
        assert_eq!(ids, nearest, "{:?}", collection.status());
        for (hit, (_, distance)) in found.hits.iter().zip(&wanted) {
            assert!((hit.score + distance).abs() < 1e-3, "{hit:?} {distance}");
        }

        let scorer = Sum(seed);
        let query = CollectionQuery { k: 5, candidates: 12, ..query };
        let found = collection.search(&mut thread, &query, &scorer).unwrap();
        // Empty records have equal scores in any order.
        let mut best: Vec<f32> =
            wanted.iter().take(12).map(|(point, _)| scorer.of(&point.record)).collect();
        best.sort_by(|a, b| b.total_cmp(a));
        best.truncate(5);
        let scores: Vec<f32> = found.hits.iter().map(|hit| hit.score).collect();
        assert_eq!(scores, best);
        assert!(
            found.hits.iter().all(|hit| scorer.of(&model[&hit.id].record) == hit.score),
            "{found:?}"
        );

        let colour = Condition::Match {
            key: "colour".into(),
            matching: Match::Value((1 + seed % 4).into()),
        };
        let clause = Filter { must: vec![colour], ..Filter::default() };
        let found = collection
            .nearest(&mut thread, &CollectionQuery { filter: Some(&clause), ..query })
            .unwrap();
        let text = format!(r#""colour":{}}}"#, 1 + seed % 4);
        let of_colour = wanted.iter().filter(|(point, _)| point.payload.ends_with(text.as_bytes()));
        let wanted: Vec<u64> = of_colour.take(5).map(|(point, _)| point.id).collect();
        let ids: Vec<u64> = found.hits.iter().map(|hit| hit.id).collect();
        assert_eq!(ids, wanted);
        self.check_facet(&clause);
    }

    /// Checks facets against a count of every payload.
    fn check_facet(&self, clause: &Filter) {
        let collection = self.collection.as_ref().unwrap();
        let model = self.model();
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
    fn acknowledged_writes_survive_a_power_loss(
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

/// Runs steps until power fails at the `moment`-th operation, then checks the rest.
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
    // The collection works again.
    for step in [Step::Upsert(1), Step::Flush, Step::Merge, Step::Delete(1), Step::Reopen] {
        assert!(subject.step(&step), "{step:?} after a crash at {moment}");
    }
    subject.check();
}

/// Every moment of a short life with all kinds of steps.
#[test]
fn the_power_may_fail_at_any_moment() {
    let mut steps: Vec<Step> = Vec::new();
    for round in 0..3 {
        steps.extend([
            Step::Many(round, 11),
            Step::Upsert(7),
            Step::Delete(7 + round),
            Step::Flush,
        ]);
    }
    steps.extend([
        Step::Merge,
        Step::Upsert(3),
        Step::Delete(5),
        Step::Reopen,
        Step::Many(9, 300),
        Step::Flush,
    ]);
    let fault = Arc::new(FaultMedium::new(memory_medium(), FaultPlan::default()).unwrap());
    let mut subject = Subject::new(fault.clone());
    steps.iter().for_each(|step| assert!(subject.step(step), "{step:?}"));
    subject.check();
    assert!(subject.collection.as_ref().unwrap().status().segments.len() >= 2);
    drop(subject);
    let operations = fault.operations();
    // All moments take too long without optimisation, so each run of the suite tests only some.
    let start = u64::from(std::process::id()) % 5;
    for moment in (1 + start..=operations).step_by(5) {
        crash(&steps, moment, moment);
    }
}

#[test]
fn concurrent_writes_searches_flushes_and_merges() {
    let options =
        CollectionOptions { merging: Merging { fan_in: 2, ..Merging::default() }, ..options() };
    let medium = memory_medium();
    let opened = open(&medium, options.clone());
    // Writes wait for the background threads below.
    let collection: &Collection = &opened;
    let stop = AtomicBool::new(false);
    let searched = AtomicU64::new(0);
    let versions = 40;
    std::thread::scope(|scope| {
        let searcher = scope.spawn(|| {
            let mut thread = collection.thread(limits()).unwrap();
            loop {
                let like = stored(searched.fetch_add(1, Ordering::Relaxed) % 30, 3);
                let query = CollectionQuery {
                    k: 10,
                    candidates: 50,
                    ..CollectionQuery::nearest(&like.embedding, 10)
                };
                let found = collection.search(&mut thread, &query, &Sum(1)).unwrap();
                let mut ids: Vec<u64> = found.hits.iter().map(|hit| hit.id).collect();
                ids.sort_unstable();
                ids.dedup();
                assert_eq!(ids.len(), found.hits.len(), "no id twice in one state");
                assert!(!found.partial);
                // After a search, so that there is one even if this thread begins late.
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let repeat = |work: fn(&Collection) -> base::Result<bool>| {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if !work(collection).unwrap() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        };
        repeat(Collection::flush_oldest);
        repeat(Collection::flush_if_stalled);
        repeat(Collection::merge);
        repeat(Collection::merge_if_behind);
        let writers: Vec<_> = (0..3_u64)
            .map(|writer| {
                scope.spawn(move || {
                    for version in 0..versions {
                        for id in (writer * 10)..(writer * 10 + 10) {
                            collection.upsert(point(&stored(id, version))).unwrap();
                            // A writer reads its own change at any time.
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
            assert_eq!(
                collection.get(id).unwrap(),
                (!gone).then(|| stored(id, versions - 1)),
                "{id}"
            );
        }
        assert_eq!(collection.count(), 27);
    };
    check(collection);
    let status = collection.status();
    assert!(status.flushes > 0 && searched.into_inner() > 0, "{status:?}");
    assert!(status.memory.peak <= status.memory.limit);
    drop(opened);
    check(&open(&medium, options));
}

#[test]
fn of_equal_points_the_smallest_ids_are_found() {
    const POINTS: u64 = 90;
    const PARTS: u64 = 3;
    let collection = open(&memory_medium(), options());
    let embedding = stored(1, 1).embedding;
    let check = |place: &str| {
        let mut thread = collection.thread(limits()).unwrap();
        for k in [1, 7, 60] {
            let query = CollectionQuery::nearest(&embedding, k);
            let found = collection.nearest(&mut thread, &query).unwrap();
            let ids = found.hits.iter().map(|hit| hit.id);
            assert!(ids.eq(0..k as u64), "{place}: {:?}", found.hits);
        }
    };
    for part in 0..PARTS {
        if part > 0 {
            collection.flush().unwrap();
        }
        // In descending order, so that the order of writes is of no help.
        for id in (0..POINTS).rev().filter(|id| id % PARTS == part) {
            let point = PointRef { id, embedding: &embedding, record: &[], payload: &[] };
            collection.upsert(point).unwrap();
        }
    }
    check("two segments and a memtable");
    collection.flush().unwrap();
    check("three segments");
    assert!(collection.merge().unwrap());
    assert_eq!(collection.status().segments.len(), 1);
    check("one segment");
}
