//! Registries: names, broken collections, changes of points by name.

mod answers_model;
mod kill;
mod map_model;
mod one_version;
mod shared_resources;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::ErrorKind;
use search::Metric;
use search::collection::PointParts;
use search::filter::{Condition, Filter, Match};
use search::points::{FetchedPoint, NewPoint, PayloadChange, PointId, PointSelection};
use search::registry::{
    AliasChange, CollectionCounts, CollectionSettings, ListedState, NamedCollection, Registry,
    RegistryOptions,
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

pub(crate) fn id(number: u64) -> PointId {
    if number.is_multiple_of(3) { uuid(number) } else { PointId::Number(number) }
}

#[test]
fn a_second_process_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    let error = Registry::open(options(directory.path())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    drop(registry);
    open(directory.path());
}

#[test]
fn changes_of_payloads_made_again_have_the_same_result() {
    let directory = tempfile::tempdir().unwrap();
    let registry =
        open_with(RegistryOptions { payload_bytes_max: 256 << 10, ..options(directory.path()) });
    let named = registry.create("c", settings()).unwrap();
    put(&named, &[FetchedPoint { payload: Map::new(), ..got(id(1), 1) }]).unwrap();
    let set = |payload: Value| PayloadChange::Set { payload: object(payload), key: None };
    // No payload is larger than 64 KiB the first time.
    let changes = [
        set(json!({"kept": 1})),
        set(json!({"kept": 2, "removed": "x".repeat(30 << 10)})),
        PayloadChange::DeleteKeys(vec!["removed".into()]),
        set(json!({"added": "x".repeat(40 << 10)})),
    ];
    let about = PointSelection::Ids(vec![id(1)]);
    let result = || {
        changes.iter().for_each(|change| assert_eq!(named.change_payload(&about, change), Ok(1)));
        named.get(&id(1)).unwrap().unwrap().payload
    };
    let first = result();
    assert_eq!(first["kept"], 2);
    assert_eq!(result(), first);
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
    let counts = registry.stats().collections;
    assert_eq!(counts, CollectionCounts { opening: 0, ready: 1, broken: 3 });
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
        if path.is_dir() {
            below.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.ends_with(&segment) {
            break path;
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
