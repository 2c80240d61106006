//! Registries against maps; broken collections; killed processes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use base::ErrorKind;
use proptest::prelude::*;
use search::coarse::Metric;
use search::collection::{CollectionQuery, PointParts};
use search::filter::{Condition, Filter, Match};
use search::points::{FetchedPoint, NewPoint, PayloadChange, PointId, PointSelection};
use search::registry::{
    AliasChange, CollectionSettings, ListedState, NamedCollection, Registry, RegistryOptions,
    TaskProgress,
};
use serde_json::{Map, Value, json};

use crate::points::TIMEOUT;

const DIMS: usize = 4;

pub(crate) fn options(directory: &Path) -> RegistryOptions {
    RegistryOptions {
        memory_bytes: 128 << 20,
        cache_bytes: 1 << 20,
        threads: 1,
        ..RegistryOptions::new(directory)
    }
}

pub(crate) fn open(directory: &Path) -> Arc<Registry> {
    open_with(options(directory))
}

pub(crate) fn open_with(options: RegistryOptions) -> Arc<Registry> {
    let registry = Registry::open(options).unwrap();
    assert!(registry.wait_open(TIMEOUT));
    registry
}

pub(crate) fn settings() -> CollectionSettings {
    CollectionSettings {
        vector_name: "image".into(),
        extra: json!({"kind": "photo"}),
        ..CollectionSettings::new(DIMS, Metric::L2)
    }
}

fn uuid(number: u64) -> PointId {
    PointId::Uuid((u128::from(number) << 64 | 0x1234).to_be_bytes())
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

pub(crate) fn got(id: PointId, version: u64) -> FetchedPoint {
    let seed = crate::points::mix(version);
    let embedding = (0..DIMS).map(|at| (seed >> (at * 8) & 255) as f32).collect();
    let payload = match seed % 4 {
        0 => Map::new(),
        colour => object(json!({"colour": colour, "version": version, "deep": {"list": [1, 2]}})),
    };
    FetchedPoint { id, embedding, record: vec![seed as u8; (seed >> 40) as usize % 900], payload }
}

pub(crate) fn put(named: &NamedCollection, points: &[FetchedPoint]) -> base::Result<()> {
    let new: Vec<NewPoint<'_>> = points
        .iter()
        .map(|FetchedPoint { id, embedding, record, payload }| NewPoint {
            id: *id,
            embedding,
            record,
            payload,
        })
        .collect();
    named.upsert(&new)
}

fn colour(colour: u64) -> Filter {
    let matching = Match::Value(colour.into());
    Filter { must: vec![Condition::Match { key: "colour".into(), matching }], ..Filter::default() }
}

/// Returns all points, page by page.
pub(crate) fn all(
    named: &NamedCollection,
    filter: Option<&Filter>,
    page: usize,
) -> Vec<FetchedPoint> {
    let mut points = Vec::new();
    let mut from = None;
    loop {
        let scrolled = named.scroll(from.as_ref(), page, filter, PointParts::ALL).unwrap();
        assert!(!scrolled.partial && scrolled.points.len() <= page);
        points.extend(scrolled.points);
        match scrolled.next {
            Some(next) => from = Some(next),
            None => return points,
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Upsert(u64, u64),
    Delete(u64),
    DeleteColour(u64),
    Set(u64),
    SetColour(u64),
    Keys(u64),
    Clear(u64),
    Overwrite(u64),
    Flush,
    Merge,
    Reopen,
    Extra(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u64..30, 1_u64..8).prop_map(|(first, count)| Step::Upsert(first, count)),
        2 => (0_u64..30).prop_map(Step::Delete),
        1 => (1_u64..4).prop_map(Step::DeleteColour),
        2 => (0_u64..30).prop_map(Step::Set),
        1 => (1_u64..4).prop_map(Step::SetColour),
        1 => (0_u64..30).prop_map(Step::Keys),
        1 => (0_u64..30).prop_map(Step::Clear),
        1 => (0_u64..30).prop_map(Step::Overwrite),
        2 => Just(Step::Flush),
        1 => Just(Step::Merge),
        1 => Just(Step::Reopen),
        1 => (0_u64..9).prop_map(Step::Extra),
    ]
}

pub(crate) fn id(number: u64) -> PointId {
    if number.is_multiple_of(3) { uuid(number) } else { PointId::Number(number) }
}

struct Subject {
    directory: tempfile::TempDir,
    registry: Option<Arc<Registry>>,
    model: BTreeMap<u64, FetchedPoint>,
    extra: Value,
    version: u64,
}

impl Subject {
    fn new() -> Subject {
        let directory = tempfile::tempdir().unwrap();
        let registry = open(directory.path());
        registry.create("c", settings()).unwrap();
        let extra = settings().extra;
        Subject { directory, registry: Some(registry), model: BTreeMap::new(), extra, version: 0 }
    }

    fn named(&self) -> Arc<NamedCollection> {
        self.registry.as_ref().unwrap().get("c").unwrap()
    }

    fn change(
        &mut self,
        which: Result<u64, u64>,
        change: &PayloadChange,
        apply: impl Fn(&mut Map<String, Value>),
    ) {
        let named = self.named();
        let about = match which {
            Ok(number) => PointSelection::Ids(vec![id(number), PointId::Number(999)]),
            Err(of_colour) => PointSelection::Filter(colour(of_colour)),
        };
        let mut count = 0;
        for (number, point) in &mut self.model {
            if which == Ok(*number)
                || which.is_err_and(|colour| point.payload.get("colour") == Some(&colour.into()))
            {
                apply(&mut point.payload);
                count += 1;
            }
        }
        assert_eq!(named.change_payload(&about, change).unwrap(), count);
    }

    fn step(&mut self, step: &Step) {
        let named = self.named();
        let new = |version: u64| object(json!({"colour": version % 4, "new": [version]}));
        self.version += 1;
        let version = self.version;
        match *step {
            Step::Upsert(first, count) => {
                let points: Vec<(u64, FetchedPoint)> = (first..first + count)
                    .map(|number| (number, got(id(number), version * 100 + number)))
                    .collect();
                put(&named, &points.iter().map(|(_, point)| point.clone()).collect::<Vec<_>>())
                    .unwrap();
                self.model.extend(points);
            }
            Step::Delete(number) => {
                let there = u64::from(self.model.remove(&number).is_some());
                assert_eq!(named.delete(&[id(number), uuid(77)]).unwrap(), there);
            }
            Step::DeleteColour(wanted) => {
                let before = self.model.len();
                self.model.retain(|_, point| point.payload.get("colour") != Some(&wanted.into()));
                let gone = named.delete_where(&colour(wanted)).unwrap();
                assert_eq!(gone, (before - self.model.len()) as u64);
            }
            Step::Set(number) => {
                let change = PayloadChange::Set { payload: new(version), key: None };
                self.change(Ok(number), &change, |payload| payload.extend(new(version)));
            }
            Step::SetColour(wanted) => {
                let change = PayloadChange::Set {
                    payload: object(json!({"x": version})),
                    key: Some("deep".into()),
                };
                self.change(Err(wanted), &change, |payload| {
                    let deep = payload.entry("deep").or_insert(json!({}));
                    deep.as_object_mut().unwrap().insert("x".into(), json!(version));
                });
            }
            Step::Keys(number) => {
                let change =
                    PayloadChange::DeleteKeys(vec!["colour".into(), "deep.list[0]".into()]);
                self.change(Ok(number), &change, |payload| {
                    payload.remove("colour");
                    let list = payload.get_mut("deep").and_then(|deep| deep.get_mut("list"));
                    list.and_then(Value::as_array_mut)
                        .filter(|list| !list.is_empty())
                        .map(|list| list.remove(0));
                });
            }
            Step::Clear(number) => self.change(Ok(number), &PayloadChange::Clear, Map::clear),
            Step::Overwrite(number) => {
                self.change(Ok(number), &PayloadChange::Overwrite(new(version)), |payload| {
                    *payload = new(version)
                });
            }
            Step::Flush => named.collection().flush().unwrap(),
            Step::Merge => {
                named.collection().merge().unwrap();
            }
            Step::Extra(value) => {
                self.extra = json!({"v": value});
                let extra = self.extra.clone();
                let change = |old: &mut _| {
                    *old = extra;
                    Ok(())
                };
                named.change_extra(change).unwrap();
            }
            Step::Reopen => {
                drop(named);
                self.registry = None;
                self.registry = Some(open(self.directory.path()));
            }
        }
    }

    fn check(&self) {
        let named = self.named();
        let mut wanted: Vec<FetchedPoint> = self.model.values().cloned().collect();
        wanted.sort_by_key(|point| named.internal(&point.id));
        assert_eq!(all(&named, None, 7), wanted);
        assert_eq!(named.count(None).unwrap().count, wanted.len() as u64);
        assert_eq!(named.settings().extra, self.extra);
        for number in 0..40 {
            assert_eq!(named.get(&id(number)).unwrap(), self.model.get(&number).cloned());
        }
        for shade in 0..4 {
            let of: Vec<FetchedPoint> = wanted
                .iter()
                .filter(|point| point.payload.get("colour") == Some(&shade.into()))
                .cloned()
                .collect();
            assert_eq!(all(&named, Some(&colour(shade)), 3), of);
            assert_eq!(named.count(Some(&colour(shade))).unwrap().count, of.len() as u64);
        }
        self.check_scores(&named);
    }

    /// Checks that exact scores of ids equal those of a search.
    fn check_scores(&self, named: &Arc<NamedCollection>) {
        let (sender, answer) = mpsc::channel();
        let wanted: Vec<u64> = (0..40).map(|number| named.internal(&id(number))).collect();
        let registry = self.registry.as_ref().unwrap();
        let work = move |named: &NamedCollection, thread: &mut _| {
            let query = [1.0, 200.0, 3.0, 90.0];
            let found =
                named.collection().nearest(thread, &CollectionQuery::nearest(&query, 50)).unwrap();
            let scores = named.collection().scores(thread, &query, &wanted).unwrap();
            let by_id: BTreeMap<u64, f32> =
                found.hits.iter().map(|hit| (hit.id, hit.score)).collect();
            let same =
                wanted.iter().zip(&scores).all(|(id, score)| by_id.get(id) == score.as_ref());
            sender.send((found.hits.len(), same)).unwrap();
        };
        registry.submit(named, Box::new(work)).unwrap();
        assert_eq!(answer.recv().unwrap(), (self.model.len(), true));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, max_shrink_iters: 40, ..ProptestConfig::default() })]
    #[test]
    fn a_named_collection_is_a_map(steps in prop::collection::vec(step(), 1..40)) {
        let mut subject = Subject::new();
        steps.iter().for_each(|step| subject.step(step));
        subject.check();
        subject.step(&Step::Reopen);
        subject.check();
    }
}

#[test]
fn a_second_process_is_kept_out() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    let error = Registry::open(options(directory.path())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    drop(registry);
    open(directory.path());
}

#[test]
fn path_traversal_in_names_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    for name in [
        "",
        ".",
        "..",
        "../up",
        "a/b",
        "a\\b",
        ".hidden",
        "nul\0",
        "café",
        " ",
        "a\nb",
        &"x".repeat(256),
    ] {
        let error = registry.create(name, settings()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name:?}");
        assert_eq!(registry.get(name).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(!registry.remove(name).unwrap());
    }
    let odd = [
        "-",
        "_",
        "a..b",
        "A",
        "a",
        "settings",
        "lock",
        "CON",
        "new-1",
        "gone-1",
        &"x".repeat(255),
    ];
    for name in odd {
        let named = registry.create(name, settings()).unwrap();
        put(&named, &[got(uuid(1), 5)]).unwrap();
        let again = registry.create(name, settings()).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    }
    drop(registry);
    let registry = open(directory.path());
    assert_eq!(registry.list().len(), odd.len());
    for name in odd {
        assert_eq!(registry.get(name).unwrap().get(&uuid(1)).unwrap(), Some(got(uuid(1), 5)));
    }
}

#[test]
fn a_removed_name_can_be_reused() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    let old = registry.create("c", settings()).unwrap();
    put(&old, &[got(id(1), 1)]).unwrap();
    std::fs::create_dir(old.directory().join("originals")).unwrap();
    let change = |alias: &str, collection: &str| AliasChange::Create {
        alias: alias.into(),
        collection: collection.into(),
    };
    registry.change_aliases(&[change("alias", "c")]).unwrap();
    assert_eq!(registry.get("alias").unwrap().name(), "c");
    let error = registry.create("alias", settings()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(registry.remove("c").unwrap() && !registry.remove("c").unwrap());
    assert!(
        registry.get("c").is_err()
            && registry.get("alias").is_err()
            && registry.aliases().is_empty()
    );
    // Holders of the removed collection can no longer write, not even to its successor.
    assert_eq!(put(&old, &[got(id(2), 1)]).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(old.change_extra(|_| Ok(())).unwrap_err().kind(), ErrorKind::NotFound);
    let new = registry.create("c", settings()).unwrap();
    assert!(old.collection().flush().is_err());
    assert_eq!(
        (new.count(None).unwrap().count, old.get(&id(1)).unwrap()),
        (0, Some(got(id(1), 1)))
    );
    drop((old, new, registry));
    let left: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".gone")), "{left:?}");
    assert_eq!(open(directory.path()).get("c").unwrap().count(None).unwrap().count, 0);
}

#[test]
fn a_broken_collection_does_not_affect_others() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    for name in ["bad-settings", "bad-manifest", "empty", "good"] {
        put(&registry.create(name, settings()).unwrap(), &[got(id(1), 1)]).unwrap();
    }
    let points = |name: &str| {
        let entries = std::fs::read_dir(directory.path().join(name))
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let mut found = entries
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("points-"));
        found.next().unwrap()
    };
    registry.get("bad-manifest").unwrap().collection().flush().unwrap();
    drop(registry);
    let path = directory.path().join("bad-settings/settings");
    let mut text = std::fs::read(&path).unwrap();
    let last = text.len() - 5;
    text[last] ^= 1;
    std::fs::write(&path, text).unwrap();
    for entry in std::fs::read_dir(points("bad-manifest")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name == "manifest" || name.starts_with("list-") {
            std::fs::write(&path, b"nonsense").unwrap();
        }
    }
    std::fs::remove_file(directory.path().join("empty/settings")).unwrap();
    std::fs::write(directory.path().join(".aliases"), b"damaged\n").unwrap();
    std::fs::create_dir(directory.path().join(".new-7")).unwrap();
    std::fs::create_dir(directory.path().join(".gone-8")).unwrap();
    std::fs::write(directory.path().join("a file"), b"of somebody else").unwrap();

    let registry = open(directory.path());
    assert_eq!(registry.stats().collections, [0, 1, 3]);
    for listed in registry.list() {
        let broken = matches!(listed.state, ListedState::Broken(_));
        assert_eq!(broken, listed.name != "good", "{listed:?}");
        if broken {
            let error = registry.get(&listed.name).unwrap_err();
            assert!(
                error.kind() == ErrorKind::DataLoss && error.message().contains(&listed.name),
                "{error}"
            );
        }
    }
    assert_eq!(registry.get("good").unwrap().get(&id(1)).unwrap(), Some(got(id(1), 1)));
    assert!(registry.remove("bad-settings").unwrap());
    registry.create("bad-settings", settings()).unwrap();
    // Leftovers are removed when everything else is done; foreign files stay.
    let left = |name: &str| directory.path().join(name).exists();
    let deadline = std::time::Instant::now() + TIMEOUT;
    while left(".new-7") || left(".gone-8") {
        assert!(std::time::Instant::now() < deadline, "nobody removes what is left over");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(directory.path().join("a file").exists());
}

/// Returns one of few hash values.
fn crowded(uuid: &[u8; 16]) -> u64 {
    u64::from(uuid[7] & 3)
}

#[test]
fn a_uuid_hash_collision_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open_with(RegistryOptions { uuid_hash: crowded, ..options(directory.path()) });
    let named = registry.create("c", settings()).unwrap();
    put(&named, &[got(uuid(1), 1), got(uuid(2), 2)]).unwrap();
    let check = |named: &NamedCollection| {
        for point in [got(uuid(5), 3), got(uuid(6), 3)] {
            let error = put(named, std::slice::from_ref(&point)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
            assert!(error.message().contains(&point.id.to_string()), "{error}");
            assert_eq!(named.get(&point.id).unwrap(), None);
            assert_eq!(named.delete(&[point.id]).unwrap(), 0);
            let change = PayloadChange::Clear;
            assert_eq!(
                named.change_payload(&PointSelection::Ids(vec![point.id]), &change).unwrap(),
                0
            );
        }
        assert_eq!(named.get(&uuid(1)).unwrap(), Some(got(uuid(1), 1)));
        assert_eq!(named.get(&uuid(2)).unwrap(), Some(got(uuid(2), 2)));
    };
    check(&named);
    named.collection().flush().unwrap();
    check(&named);
    // In one batch neither is written.
    assert!(put(&named, &[got(uuid(3), 1), got(uuid(7), 1)]).is_err());
    assert_eq!(named.count(None).unwrap().count, 2);
    assert_eq!(named.delete(&[uuid(1)]).unwrap(), 1);
    put(&named, &[got(uuid(5), 3)]).unwrap();
    assert_eq!(named.get(&uuid(5)).unwrap(), Some(got(uuid(5), 3)));
    assert_eq!(named.external(named.internal(&uuid(5))).unwrap(), uuid(5));
}

#[test]
fn concurrent_payload_changes_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    let named = registry.create("c", settings()).unwrap();
    put(&named, &[got(uuid(1), 1), got(id(2), 2)]).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let point = named.get(&uuid(1)).unwrap().unwrap();
                assert_eq!(point.embedding, got(uuid(1), 1).embedding);
            }
        });
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let named = &named;
                scope.spawn(move || {
                    for round in 0..10 {
                        let payload = object(json!({format!("w{writer}-{round}"): 1}));
                        let change = PayloadChange::Set { payload, key: None };
                        let changed = named
                            .change_payload(&PointSelection::Ids(vec![uuid(1), id(2)]), &change)
                            .unwrap();
                        assert_eq!(changed, 2);
                        if round == writer {
                            named.collection().flush().unwrap();
                        }
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    for point in [uuid(1), id(2)] {
        let payload = named.get(&point).unwrap().unwrap().payload;
        assert_eq!(payload.keys().filter(|key| key.starts_with('w')).count(), 40, "{payload:?}");
    }
}

#[test]
fn many_small_collections_share_threads_and_memory() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    for number in 0..60 {
        put(
            &registry.create(&format!("c{number}"), settings()).unwrap(),
            &[got(uuid(number), number)],
        )
        .unwrap();
    }
    let before = registry.stats();
    drop(registry);
    let registry = open(directory.path());
    let after = registry.stats();
    assert_eq!((before.collections, after.collections), ([0, 60, 0], [0, 60, 0]));
    assert!(
        after.memory.peak <= after.memory.limit && after.memory.used == before.memory.used,
        "{after:?}"
    );
    let (sender, answers) = mpsc::channel();
    for number in 0..60 {
        let sender = sender.clone();
        let work = move |named: &NamedCollection, thread: &mut _| {
            let like = got(uuid(number), number).embedding;
            let found =
                named.collection().nearest(thread, &CollectionQuery::nearest(&like, 3)).unwrap();
            let ids: Vec<u64> = found.hits.iter().map(|hit| hit.id).collect();
            sender
                .send(
                    named.resolve(&ids, PointParts::ALL).remove(0).unwrap()
                        == Some(got(uuid(number), number)),
                )
                .unwrap();
        };
        registry.submit(&registry.get(&format!("c{number}")).unwrap(), Box::new(work)).unwrap();
    }
    drop(sender);
    assert_eq!(answers.iter().filter(|right| *right).count(), 60);
    assert!(registry.stats().memory.peak <= registry.stats().memory.limit);
}

#[test]
fn full_queues_and_panics_are_survived() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open_with(RegistryOptions { queue_max: 1, ..options(directory.path()) });
    let named = registry.create("c", settings()).unwrap();
    let (begun, begin) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let first = move |_: &NamedCollection, _: &mut _| {
        begun.send(()).unwrap();
        wait.recv().unwrap();
        panic!("on purpose");
    };
    registry.submit(&named, Box::new(first)).unwrap();
    begin.recv().unwrap();
    let (sender, answer) = mpsc::channel();
    registry.submit(&named, Box::new(move |_, _| sender.send(7).unwrap())).unwrap();
    let error = registry.submit(&named, Box::new(|_, _| {})).unwrap_err();
    assert!(error.kind() == ErrorKind::ResourceExhausted && error.retry_after().is_some());
    go.send(()).unwrap();
    assert_eq!(answer.recv().unwrap(), 7);
    assert_eq!(registry.stats().refused, 1);
}

#[test]
fn paused_tasks_let_others_run() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open_with(options(directory.path()));
    let named = registry.create("c", settings()).unwrap();
    let (sender, order) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let (slow, mut slices) = (sender.clone(), 0);
    let sliced = move |_: &NamedCollection, _: &mut _| {
        if slices == 0 {
            wait.recv().unwrap();
        }
        slices += 1;
        slow.send("slice").unwrap();
        if slices < 3 { TaskProgress::Paused } else { TaskProgress::Done }
    };
    registry.submit_sliced(&named, Box::new(sliced)).unwrap();
    for _ in 0..6 {
        let sender = sender.clone();
        registry.submit(&named, Box::new(move |_, _| sender.send("task").unwrap())).unwrap();
    }
    drop(sender);
    go.send(()).unwrap();
    let order: Vec<&str> = order.iter().collect();
    // Four tasks between two slices, and the last slice once no task waits.
    let (task, slice) = ("task", "slice");
    assert_eq!(order, [slice, task, task, task, task, slice, task, task, slice]);
    assert_eq!(registry.stats().done, 7);
}

#[test]
fn flushes_free_the_memory_of_many_collections() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open_with(RegistryOptions {
        memory_bytes: 32 << 20,
        cache_bytes: 0,
        ..options(directory.path())
    });
    let record = vec![9; 60_000];
    let embedding = [0.5; DIMS];
    let payload = Map::new();
    let mut next = 0;
    for round in 0..4 {
        for number in 0..40 {
            let name = format!("c{number}");
            let named =
                if round == 0 { registry.create(&name, settings()) } else { registry.get(&name) }
                    .unwrap();
            let points: Vec<NewPoint<'_>> = (0..6)
                .map(|_| {
                    next += 1;
                    NewPoint {
                        id: PointId::Number(next),
                        embedding: &embedding,
                        record: &record,
                        payload: &payload,
                    }
                })
                .collect();
            named.upsert(&points).unwrap();
        }
    }
    let memory = registry.stats().memory;
    assert!(memory.peak <= memory.limit, "{memory:?}");
    let counted: u64 =
        (0..40).map(|at| registry.get(&format!("c{at}")).unwrap().count(None).unwrap().count).sum();
    assert_eq!(counted, next);
}

/// Not a test: the process that the next test kills. Writes until it is killed and prints
/// acknowledged writes.
#[test]
fn child_that_writes() {
    let Ok(directory) = std::env::var("MILLPOND_SEARCH_TEST_DIRECTORY") else { return };
    let registry = open(Path::new(&directory));
    let named = registry.get("c").or_else(|_| registry.create("c", settings())).unwrap();
    let there = named.count(None).unwrap().count;
    // The last one may come from a process that was killed before it changed its payload.
    for number in there.saturating_sub(1).. {
        if number >= there {
            put(&named, &[got(id(number), number)]).unwrap();
        }
        if number % 7 == 0 {
            let payload = object(json!({"acknowledged": number}));
            named
                .change_payload(
                    &PointSelection::Ids(vec![id(number)]),
                    &PayloadChange::Overwrite(payload),
                )
                .unwrap();
        }
        if number % 50 == 49 {
            named.collection().flush().unwrap();
        }
        println!("written {number}");
    }
}

#[test]
fn acknowledged_writes_survive_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for round in 1..4_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["registry::child_that_writes", "--exact", "--nocapture"])
            .env("MILLPOND_SEARCH_TEST_DIRECTORY", directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut numbers = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("written ")?.parse::<u64>().ok());
        let enough = 60 * round;
        let reached =
            numbers.find(|number| *number >= enough).expect("it writes until it is killed");
        child.kill().unwrap();
        child.wait().unwrap();
        // The process went on until it was killed. The pipe holds the rest of what it acknowledged.
        acknowledged = numbers.last().unwrap_or(reached) + 1;
        let registry = open(directory.path());
        let named = registry.get("c").unwrap();
        for number in 0..acknowledged {
            let found = named.get(&id(number)).unwrap().unwrap();
            let wanted = got(id(number), number);
            assert_eq!(
                (found.id, &found.embedding, &found.record),
                (wanted.id, &wanted.embedding, &wanted.record)
            );
            let changed = object(json!({"acknowledged": number}));
            assert_eq!(found.payload, if number % 7 == 0 { changed } else { wanted.payload });
        }
        assert!(named.count(None).unwrap().count <= acknowledged + 1, "nothing was made up");
    }
    assert!(acknowledged > 100);
}

#[test]
fn incomplete_changes_by_filter_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    let named = registry.create("c", settings()).unwrap();
    put(&named, &(0..30).map(|number| got(id(number), number)).collect::<Vec<_>>()).unwrap();
    named.collection().flush().unwrap();
    put(&named, &(30..40).map(|number| got(id(number), number)).collect::<Vec<_>>()).unwrap();
    let segment = named.collection().status().segments[0].name.clone();
    drop((named, registry));
    let mut below = vec![directory.path().to_owned()];
    let path = loop {
        let path = below.pop().unwrap();
        match path.is_dir() {
            true => {
                below.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()))
            }
            false if path.ends_with(&segment) => break path,
            false => {}
        }
    };
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let registry = open(directory.path());
    let named = registry.get("c").unwrap();
    let every = Filter::default();
    let change = PayloadChange::Clear;
    for outcome in [
        named.delete_where(&every),
        named.change_payload(&PointSelection::Filter(every.clone()), &change),
    ] {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::DataLoss);
    }
    assert!(named.scroll(None, 100, None, PointParts::NONE).unwrap().unseen.is_some());
    for number in 30..40 {
        assert_eq!(
            named.get(&id(number)).unwrap(),
            Some(got(id(number), number)),
            "nothing was changed"
        );
    }
    // An id is unambiguous.
    assert_eq!(named.delete(&[id(31)]).unwrap(), 1);
}
