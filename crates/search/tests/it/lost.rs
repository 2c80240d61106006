//! Missing, truncated and damaged logs: they are reported and never treated as empty, and no old
//! version of a point is served.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::ErrorKind;
use search::Metric;
use search::collection::{Collection, CollectionQuery};
use search::ingest::StoredPoint;
use search::registry::{CollectionSettings, Registry};
use storage::watermark::Watermark;
use storage::{FaultMedium, FaultPlan, Medium, UringMedium};

use crate::points::{
    MEMORY_BYTES, MEMTABLE_BYTES, TIMEOUT, limits, memory_medium, open, options, point, resources,
    stored, try_open,
};

type Files = Vec<(String, Vec<u8>)>;

const IDS: u64 = 40;

/// Returns a collection with a segment of older versions and a log that changes and deletes some of
/// its points; also the acknowledged state by id.
fn subject() -> (Files, BTreeMap<u64, Option<StoredPoint>>) {
    let medium = memory_medium();
    let collection = open(&medium, options());
    let mut model = BTreeMap::new();
    for id in 0..IDS {
        collection.upsert(point(&stored(id, 1))).unwrap();
        model.insert(id, Some(stored(id, 1)));
    }
    collection.flush().unwrap();
    for id in 0..12 {
        collection.upsert(point(&stored(id, 2))).unwrap();
        model.insert(id, Some(stored(id, 2)));
    }
    for id in 30..34 {
        collection.delete(id).unwrap();
        model.insert(id, None);
    }
    collection.upsert(point(&stored(50, 1))).unwrap();
    model.insert(50, Some(stored(50, 1)));
    drop(collection);
    (files(&medium), model)
}

fn files(medium: &Arc<dyn Medium>) -> Files {
    let names = medium.list().unwrap().into_iter().map(|(name, _)| name);
    names.map(|name| (name.clone(), medium.load(&name).unwrap())).collect()
}

fn write(files: &Files) -> Arc<dyn Medium> {
    let medium = memory_medium();
    for (name, bytes) in files {
        let mut writer = medium.create(name).unwrap();
        writer.append(bytes).unwrap();
        writer.persist().unwrap();
    }
    medium
}

fn log_of(files: &Files) -> usize {
    let mut logs = (0..files.len()).filter(|&at| files[at].0.starts_with("log-"));
    logs.next_back().unwrap()
}

/// Counts unknown points, and points that are wrong without an error.
fn look(collection: &Collection, model: &BTreeMap<u64, Option<StoredPoint>>) -> (usize, usize) {
    let mut unknown = 0;
    let mut wrong = 0;
    for (id, right) in model {
        match collection.get(*id) {
            Ok(found) => wrong += usize::from(found != *right),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::DataLoss, "{error}");
                unknown += 1;
            }
        }
    }
    (unknown, wrong)
}

fn partial(collection: &Collection) -> bool {
    let like = stored(1, 1);
    let mut thread = collection.thread(limits()).unwrap();
    collection.nearest(&mut thread, &CollectionQuery::nearest(&like.embedding, 5)).unwrap().partial
}

#[test]
fn a_failed_start_keeps_the_recorded_positions() {
    let (files, _) = subject();
    let recorded = |medium: &Arc<dyn Medium>| Watermark::open(medium).unwrap().1;
    let before = recorded(&write(&files));
    assert!(before.iter().flatten().any(|(_, mark)| mark.next > 1), "{before:?}");
    let resources = resources(MEMORY_BYTES, MEMTABLE_BYTES);
    let mut failed = 0;
    // The manifest, and then the first log.
    for at in 1..=2 {
        let medium = write(&files);
        let plan = FaultPlan { persist_error_at: Some(at), ..FaultPlan::default() };
        let faulty = Arc::new(FaultMedium::new(medium.clone(), plan).unwrap());
        failed += usize::from(try_open(faulty, options(), &resources).is_err());
        assert_eq!(recorded(&medium), before, "{at}");
    }
    assert_eq!(failed, 2);
}

#[test]
fn a_missing_log_is_damage() {
    let (files, model) = subject();
    let log = log_of(&files);
    let name = files[log].0.clone();
    // With the watermark, without it, and with an older list.
    for also in [None, Some("watermark")] {
        let left: Files = files
            .iter()
            .filter(|(file, _)| *file != name && Some(file.as_str()) != also)
            .cloned()
            .collect();
        let medium = write(&left);
        for round in 0..3 {
            let collection = open(&medium, options());
            let status = collection.status();
            assert!(
                status.log_damaged && status.partial && partial(&collection),
                "{round}: {status:?}"
            );
            assert!(status.quarantined.iter().any(|what| what.file == name), "{status:?}");
            let (unknown, _) = look(&collection, &model);
            assert!(unknown > 0, "a point that is not found may have been there");
            collection.upsert(point(&stored(100, round))).unwrap();
            if round == 1 {
                collection.flush().unwrap();
            }
        }
        let collection = open(&medium, options());
        assert_eq!(collection.get(100).unwrap(), Some(stored(100, 2)));
        collection.abandon(&name).unwrap();
        assert!(!collection.status().log_damaged && !partial(&collection));
        assert_eq!(collection.get(999).unwrap(), None);
        drop(collection);
        let status = open(&medium, options()).status();
        assert!(
            !status.log_damaged && !status.partial && status.quarantined.is_empty(),
            "{status:?}"
        );
    }
}

/// A log that was created after the list was published is known only to the watermark.
#[test]
fn the_watermark_notices_a_missing_new_log() {
    let medium = memory_medium();
    let collection = open(&medium, options());
    (0..5).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    collection.freeze().unwrap();
    (5..9).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    drop(collection);
    let files = files(&medium);
    let name = files[log_of(&files)].0.clone();
    medium.remove(&name).unwrap();
    let collection = open(&medium, options());
    let status = collection.status();
    assert!(
        status.log_damaged && status.quarantined.iter().any(|what| what.file == name),
        "{status:?}"
    );
    (0..5).for_each(|id| assert_eq!(collection.get(id).unwrap(), Some(stored(id, 1))));
    assert_eq!(collection.get(5).unwrap_err().kind(), ErrorKind::DataLoss);
    collection.upsert(point(&stored(5, 2))).unwrap();
    collection.flush().unwrap();
    drop(collection);
    assert!(
        medium.list().unwrap().iter().all(|(file, _)| *file != name),
        "its number is not used again"
    );
    let collection = open(&medium, options());
    assert_eq!(collection.get(5).unwrap(), Some(stored(5, 2)));
    collection.abandon(&name).unwrap();
    assert!(!collection.status().partial);
}

#[test]
fn a_truncated_log_is_damage() {
    let (files, model) = subject();
    let log = log_of(&files);
    let whole = files[log].1.len();
    let mut told = 0;
    for length in (0..whole).step_by(97).chain([whole - 1, whole]) {
        let mut damaged = files.clone();
        damaged[log].1.truncate(length);
        let collection = open(&write(&damaged), options());
        let status = collection.status();
        let (unknown, wrong) = look(&collection, &model);
        assert_eq!(status.partial, status.log_damaged, "{length}");
        assert_eq!(partial(&collection), status.log_damaged, "{length}");
        if status.log_damaged {
            told += 1;
            let named = status.quarantined.iter().find(|what| what.file == files[log].0).unwrap();
            assert!(named.reason.contains("bytes"), "{named}");
        } else {
            assert_eq!((unknown, wrong), (0, 0), "{length} of {whole}");
        }
    }
    assert!(told > 20, "{told}");
}

/// One flipped byte: the point of the change is unknown, and no older version is served.
#[test]
fn a_damaged_change_makes_its_point_unknown() {
    let (files, model) = subject();
    let log = log_of(&files);
    let mut unknown_in_all = 0;
    for at in (0..files[log].1.len()).step_by(61) {
        let mut damaged = files.clone();
        damaged[log].1[at] ^= 0x10;
        let medium = write(&damaged);
        let collection = open(&medium, options());
        let (unknown, wrong) = look(&collection, &model);
        assert_eq!(wrong, 0, "byte {at}");
        assert!(unknown <= 1, "byte {at}: {unknown}");
        let status = collection.status();
        assert_eq!(
            (status.log_damaged, partial(&collection)),
            (unknown == 1, unknown == 1),
            "byte {at}"
        );
        unknown_in_all += unknown;
        if unknown == 0 {
            continue;
        }
        // A flush and another start keep it unknown.
        collection.flush().unwrap();
        drop(collection);
        let collection = open(&medium, options());
        assert_eq!((look(&collection, &model), partial(&collection)), ((1, 0), true), "byte {at}");
        if at % 2 == 0 {
            collection.abandon(&files[log].0).unwrap();
            assert_eq!(look(&collection, &model).0, 0);
        } else {
            // A written point is known again, and then nothing is missing.
            let lost = *model.keys().find(|id| collection.get(**id).is_err()).unwrap();
            collection.upsert(point(&stored(lost, 7))).unwrap();
            assert_eq!(collection.get(lost).unwrap(), Some(stored(lost, 7)));
            collection.flush().unwrap();
        }
        assert!(!partial(&collection) && !collection.status().partial, "byte {at}");
        drop(collection);
        let status = open(&medium, options()).status();
        assert!(!status.partial && !status.log_damaged, "byte {at}: {status:?}");
    }
    assert!(unknown_in_all > 20, "{unknown_in_all}");
}

#[test]
fn the_older_of_two_logs_is_abandoned() {
    let medium = memory_medium();
    let collection = open(&medium, options());
    (0..5).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    collection.freeze().unwrap();
    (5..9).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    drop(collection);
    let mut files = files(&medium);
    let first = files.iter().position(|(name, _)| name.starts_with("log-")).unwrap();
    let name = files[first].0.clone();
    // In the payload of the first frame.
    files[first].1[100] ^= 0x10;
    let medium = write(&files);
    let collection = open(&medium, options());
    assert!(collection.status().log_damaged);
    collection.abandon(&name).unwrap();
    drop(collection);
    assert!(medium.list().unwrap().iter().all(|(file, _)| *file != name));
    let status = open(&medium, options()).status();
    assert!(!status.log_damaged && !status.partial, "{status:?}");
}

#[test]
fn a_watermark_adds_no_sync_to_a_write() {
    let medium = Arc::new(FaultMedium::new(memory_medium(), FaultPlan::default()).unwrap());
    let collection = open(&(medium.clone() as Arc<dyn Medium>), options());
    let before = medium.operations();
    (0..10).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    assert_eq!(medium.operations() - before, 20, "a write and a flush each");
    let before = medium.operations();
    collection.close();
    assert_eq!(medium.operations() - before, 2, "one for all, at the end");
}

/// A killed process has no time to record anything.
#[test]
fn background_threads_record_durable_logs() {
    let root = tempfile::tempdir().unwrap();
    let registry = Registry::open(crate::registry::options(root.path())).unwrap();
    let named = registry.create("a", CollectionSettings::new(8, Metric::L2)).unwrap();
    (0..10).for_each(|id| named.collection().upsert(point(&stored(id, 1))).unwrap());
    let entries =
        std::fs::read_dir(root.path().join("a")).unwrap().map(|entry| entry.unwrap().path());
    let points = entries.into_iter().find(|path| path.is_dir()).unwrap();
    let medium: Arc<dyn Medium> = Arc::new(UringMedium::plain(points).unwrap());
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let recorded = Watermark::open(&medium).unwrap().1;
        if recorded.is_some_and(|marks| marks.values().any(|mark| mark.next == 11)) {
            break;
        }
        assert!(Instant::now() < deadline, "it is never recorded");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_collection_without_watermark_opens() {
    let (files, model) = subject();
    let old: Files = files.into_iter().filter(|(name, _)| name != "watermark").collect();
    let medium = write(&old);
    let collection = open(&medium, options());
    let status = collection.status();
    assert!(!status.partial && !status.log_damaged, "{status:?}");
    // The current list states that there was a watermark.
    assert!(status.repairs.iter().any(|note| note.contains("watermark")), "{status:?}");
    assert_eq!(look(&collection, &model), (0, 0));
    drop(collection);
    assert!(medium.list().unwrap().iter().any(|(name, _)| name == "watermark"), "it is made anew");
    assert!(open(&medium, options()).status().repairs.is_empty());
}
