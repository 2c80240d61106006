//! Every later version reads a collection in the first released format.

use std::path::PathBuf;

use search::CoarseKind;
use search::collection::{CollectionOptions, CollectionQuery};
use search::filter::{Condition, Filter};

use crate::points::{limits, memory_medium, open, options, point, stored};

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/collection-v1")
}

/// Segments with each kind of coarse index, deletes of their points, and points that are only in
/// the log.
fn expected(id: u64) -> Option<search::ingest::StoredPoint> {
    match id {
        5 | 12 => None,
        3 | 24 => Some(stored(id, 2)),
        0..30 | 100..130 | 200..230 => Some(stored(id, 1)),
        _ => None,
    }
}

#[test]
fn version_1_is_read() {
    let medium = memory_medium();
    for entry in std::fs::read_dir(directory()).unwrap() {
        let entry = entry.unwrap();
        let mut writer = medium.create(entry.file_name().to_str().unwrap()).unwrap();
        writer.append(&std::fs::read(entry.path()).unwrap()).unwrap();
        writer.persist().unwrap();
    }
    let collection = open(&medium, options());
    for id in 0..240 {
        assert_eq!(collection.get(id).unwrap(), expected(id), "{id}");
    }
    let status = collection.status();
    assert_eq!(
        (status.points, status.unflushed, status.segments.len(), status.partial),
        (88, 2, 3, false)
    );
    // These segments have no payload index.
    assert_eq!(collection.indexed_fields().unwrap(), []);
    let none = Condition::IsEmpty { key: "absent".into() };
    let clause = Filter {
        must: vec![none],
        must_not: vec![Condition::has_id(vec![7])],
        ..Filter::default()
    };
    assert_eq!(collection.ids_from(0, 100, Some(&clause)).unwrap().ids.len(), 87);
    let mut thread = collection.thread(limits()).unwrap();
    // One of each kind of coarse index, and one that is not flushed.
    for (id, version) in [(7, 1), (111, 1), (222, 1), (24, 2)] {
        let like = stored(id, version);
        let found =
            collection.nearest(&mut thread, &CollectionQuery::nearest(&like.embedding, 1)).unwrap();
        assert_eq!((found.hits[0].id, found.hits[0].score), (id, 0.0));
    }
}

/// Writes the files for a new version of the format, into a new directory and never over an old
/// one.
#[test]
#[ignore = "run by hand when the format gets a new version"]
fn write_the_files() {
    let medium = memory_medium();
    let collection = open(&medium, options());
    (0..30).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    collection.flush().unwrap();
    collection.delete(5).unwrap();
    collection.upsert(point(&stored(3, 2))).unwrap();
    collection.delete(3).unwrap();
    collection.flush().unwrap();
    drop(collection);
    for (kind, first) in [(CoarseKind::IvfPq, 100), (CoarseKind::Rabitq, 200)] {
        let collection = open(&medium, CollectionOptions { kind, ..options() });
        (first..first + 30).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
        collection.flush().unwrap();
    }
    let collection = open(&medium, options());
    collection.upsert(point(&stored(3, 2))).unwrap();
    collection.upsert(point(&stored(24, 2))).unwrap();
    collection.delete(12).unwrap();
    drop(collection);
    std::fs::create_dir_all(directory()).unwrap();
    for (name, _) in medium.list().unwrap() {
        std::fs::write(directory().join(&name), medium.load(&name).unwrap()).unwrap();
    }
}
