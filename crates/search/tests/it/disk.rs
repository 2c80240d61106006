//! Full disks: nothing is left behind, nothing is lost, and stored points are served.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use search::Metric;
use search::collection::CollectionOptions;
use search::registry::{CollectionSettings, Registry, RegistryOptions};
use storage::{FaultMedium, FaultPlan, Medium};

use crate::points::{
    MEMORY_BYTES, MEMTABLE_BYTES, TIMEOUT, memory_medium, open, options, point, resources, stored,
    try_open,
};

fn full_medium(inner: &Arc<dyn Medium>, space: Option<u64>) -> Arc<FaultMedium> {
    let plan = FaultPlan { space, ..FaultPlan::default() };
    Arc::new(FaultMedium::new(inner.clone(), plan).unwrap())
}

fn used(medium: &dyn Medium) -> u64 {
    medium.list().unwrap().iter().map(|(_, bytes)| bytes).sum()
}

fn names(medium: &dyn Medium) -> Vec<String> {
    medium.list().unwrap().into_iter().map(|(name, _)| name).collect()
}

/// Retries `what` until it succeeds: a measurement of free space is reused for a moment.
fn soon<T>(mut what: impl FnMut() -> Result<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match what() {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_refused_write_leaves_nothing_behind() {
    let inner = memory_medium();
    let medium = full_medium(&inner, None);
    // Without a reserve, writes fail when the disk is full.
    let options = CollectionOptions { disk_reserve: Some(0), ..options() };
    let collection = open(&(medium.clone() as Arc<dyn Medium>), options.clone());
    (0..10).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    medium.set_space(Some(used(&*inner)));
    let first = collection.upsert(point(&stored(10, 1))).unwrap_err();
    assert_eq!(first.kind(), ErrorKind::StorageFull, "{first}");
    let before = names(&*inner);
    for _ in 0..200 {
        let error = collection.upsert(point(&stored(11, 1))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    }
    assert_eq!(names(&*inner), before);
    let status = collection.status();
    assert!(status.write_error.is_some(), "{status:?}");
    (0..10).for_each(|id| assert_eq!(collection.get(id).unwrap(), Some(stored(id, 1))));
    medium.set_space(None);
    collection.upsert(point(&stored(11, 1))).unwrap();
    let status = collection.status();
    assert_eq!((status.write_error, status.partial), (None, false));
    drop(collection);
    let collection = open(&inner, options);
    (0..10).chain([11]).for_each(|id| assert_eq!(collection.get(id).unwrap(), Some(stored(id, 1))));
    assert!(!collection.status().partial);
}

#[test]
fn a_backup_needs_no_write_after_a_full_disk() {
    let inner = memory_medium();
    let medium = full_medium(&inner, None);
    let options = CollectionOptions { disk_reserve: Some(0), ..options() };
    let collection = open(&(medium.clone() as Arc<dyn Medium>), options);
    let flush =
        || -> Result<bool> { Ok(collection.flush_oldest()? || collection.flush_if_stalled()?) };
    (0..10).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    medium.set_space(Some(used(&*inner)));
    let refused = collection.upsert(point(&stored(10, 1))).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::StorageFull, "{refused}");
    let failed = flush().map_err(|error| error.kind());
    assert_eq!(failed, Err(ErrorKind::StorageFull), "another log needs room");
    medium.set_space(None);
    assert!(collection.pin().is_err(), "the log lacks a change");
    assert!(flush().unwrap(), "it starts another log");
    assert!(flush().unwrap(), "it flushes the changes of the failed one");
    drop(collection.pin().unwrap());
    assert!(!flush().unwrap());
    let status = collection.status();
    assert_eq!((status.segments.len(), status.unflushed, status.write_error), (1, 0, None));
    (0..10).for_each(|id| assert_eq!(collection.get(id).unwrap(), Some(stored(id, 1))));
}

#[test]
fn a_later_publication_ends_the_report_of_a_flush() {
    // A backup may write the list before the thread that flushes.
    for by_backup in [false, true] {
        let medium = full_medium(&memory_medium(), None);
        let options = CollectionOptions { disk_reserve: Some(0), ..options() };
        let collection = open(&(medium.clone() as Arc<dyn Medium>), options);
        (0..10).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
        let full = medium.clone();
        medium.before_create("list-", move || full.set_space(Some(0)));
        assert_eq!(collection.flush().unwrap_err().kind(), ErrorKind::StorageFull);
        assert!(collection.status().flush_error.is_some());
        medium.set_space(None);
        if by_backup {
            drop(collection.pin().unwrap());
        }
        assert_eq!(collection.flush_oldest().unwrap(), !by_backup, "the list is published");
        let status = collection.status();
        assert_eq!((status.segments.len(), status.flush_error), (1, None));
    }
}

#[test]
fn the_reserve_leaves_room_to_flush() {
    const RESERVE: u64 = 512 << 10;
    let inner = memory_medium();
    let medium = full_medium(&inner, Some(2 << 20));
    let options = CollectionOptions { disk_reserve: Some(RESERVE), ..options() };
    let collection = open(&(medium.clone() as Arc<dyn Medium>), options.clone());
    assert_eq!(collection.status().low_disk, None);
    let mut acknowledged = 0;
    let refused = loop {
        match collection.upsert(point(&stored(acknowledged, 1))) {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 100_000, "it is never refused");
    };
    assert_eq!(refused.kind(), ErrorKind::StorageFull);
    assert!(refused.message().contains("--search-disk-reserve"), "{refused}");
    assert!(acknowledged > 100 && medium.space().unwrap().unwrap().free > RESERVE / 2);
    let status = collection.status();
    assert!(status.low_disk.is_some() && status.disk_refused > 0 && !status.partial, "{status:?}");
    assert_eq!(status.write_error, None, "the log is whole");
    // Deletes and flushes still work and make room.
    collection.delete(0).unwrap();
    collection.flush().unwrap();
    assert_eq!(collection.get(1).unwrap(), Some(stored(1, 1)));
    medium.set_space(Some(64 << 20));
    soon(|| collection.upsert(point(&stored(0, 2))));
    assert_eq!(collection.status().low_disk, None, "it is gone once there is room");
    assert_eq!(collection.count(), acknowledged);
}

#[test]
fn a_full_disk_is_readable_at_the_start() {
    let inner = memory_medium();
    let collection = open(&inner, options());
    (0..60).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    collection.flush().unwrap();
    (0..20).for_each(|id| collection.upsert(point(&stored(id, 2))).unwrap());
    drop(collection);
    // Leftovers of refused writes in versions before 0.2, and half a header.
    for number in 1000..1500 {
        let mut writer = inner.create(&format!("log-{number:012}")).unwrap();
        writer.append(&vec![0; number % 64]).unwrap();
    }
    for memtable_bytes in [MEMTABLE_BYTES, 4 << 10] {
        let medium = full_medium(&inner, Some(used(&*inner)));
        let resources = resources(MEMORY_BYTES, memtable_bytes);
        let collection = try_open(medium.clone(), options(), &resources).unwrap();
        for id in 0..60 {
            assert_eq!(collection.get(id).unwrap(), Some(stored(id, if id < 20 { 2 } else { 1 })));
        }
        assert!(
            !names(&*inner).iter().any(|name| name.starts_with("log-0000000010")),
            "empty logs are removed"
        );
        let status = collection.status();
        assert!(!status.partial && status.quarantined.is_empty(), "{status:?}");
        medium.set_space(Some(used(&*inner)));
        let refused = collection.upsert(point(&stored(7, 3))).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StorageFull);
        assert!(collection.status().low_disk.is_some());
        medium.set_space(None);
        soon(|| collection.upsert(point(&stored(100, 1))));
        collection.flush().unwrap();
    }
    let collection = open(&inner, options());
    assert_eq!((collection.count(), collection.status().partial), (61, false));
}

#[test]
fn a_merge_waits_for_disk_space() {
    let inner = memory_medium();
    let medium = full_medium(&inner, Some(64 << 20));
    let options = CollectionOptions { disk_reserve: Some(1 << 20), ..options() };
    let collection = open(&(medium.clone() as Arc<dyn Medium>), options);
    for round in 0..3 {
        (0..30).for_each(|id| collection.upsert(point(&stored(round * 30 + id, 1))).unwrap());
        collection.flush().unwrap();
    }
    medium.set_space(Some(used(&*inner) + (600 << 10)));
    let low =
        || collection.status().low_disk.ok_or_else(|| Error::unavailable("it is not known yet"));
    soon(low);
    let refused = collection.merge().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::StorageFull, "{refused}");
    assert!(collection.status().merge_error.is_some());
    medium.set_space(None);
    assert!(soon(|| collection.merge()));
    assert_eq!((collection.count(), collection.status().merge_error), (90, None));
}

/// Uses a small file system, if the system lets tests mount one.
#[test]
fn a_full_file_system_is_survived() {
    let directory = tempfile::tempdir().unwrap();
    let mount = |arguments: &[&str]| {
        let ran = std::process::Command::new(arguments[0])
            .args(&arguments[1..])
            .arg(directory.path())
            .output();
        ran.is_ok_and(|ran| ran.status.success())
    };
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=600", "tmpfs"]) {
        eprintln!("SKIPPED: this system does not let the test mount a tmpfs");
        return;
    }
    let outcome = std::panic::catch_unwind(|| fill(directory.path()));
    // The kernel closes the files of a ring some time after the ring itself.
    let deadline = Instant::now() + TIMEOUT;
    while !mount(&["umount"]) {
        assert!(Instant::now() < deadline, "the file system stays in use");
        std::thread::sleep(Duration::from_millis(10));
    }
    outcome.unwrap();
}

fn fill(root: &Path) {
    let medium: Arc<dyn Medium> =
        Arc::new(storage::UringMedium::plain(root.join("points")).unwrap());
    let log = root.join("ballast");
    let small = CollectionOptions { disk_reserve: Some(0), ..options() };
    let collection = open(&medium, small.clone());
    (0..20).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    assert!(std::fs::write(&log, vec![1; 16 << 20]).is_err(), "it fills what is left");
    let mut acknowledged = 20;
    while collection.upsert(point(&stored(acknowledged, 1))).is_ok() {
        acknowledged += 1;
    }
    let before = names(&*medium);
    for _ in 0..100 {
        assert_eq!(
            collection.upsert(point(&stored(500, 1))).unwrap_err().kind(),
            ErrorKind::StorageFull
        );
    }
    assert_eq!(names(&*medium), before);
    drop(collection);
    // The default reserve of a tmpfs of 8 MiB is 1 MiB.
    let collection = open(&medium, options());
    (0..acknowledged).for_each(|id| assert_eq!(collection.get(id).unwrap(), Some(stored(id, 1))));
    assert_eq!(
        collection.upsert(point(&stored(500, 1))).unwrap_err().kind(),
        ErrorKind::StorageFull
    );
    std::fs::remove_file(&log).unwrap();
    soon(|| collection.upsert(point(&stored(500, 1))));
    assert_eq!(collection.count(), acknowledged + 1);
}

#[test]
fn an_ending_copy_keeps_files_that_no_list_names_yet() {
    for at in 1..100 {
        let inner = memory_medium();
        let plan = FaultPlan { persist_error_at: Some(at), ..FaultPlan::default() };
        let medium = Arc::new(FaultMedium::new(inner.clone(), plan).unwrap());
        let resources = resources(MEMORY_BYTES, MEMTABLE_BYTES);
        let Ok(collection) = try_open(medium, options(), &resources) else { continue };
        let acknowledged: Vec<u64> =
            (0..20).filter(|id| collection.upsert(point(&stored(*id, 1))).is_ok()).collect();
        let Ok(pinned) = collection.pin() else { continue };
        let failed = collection.flush().is_err();
        drop(pinned);
        if failed {
            // The next writes publish.
            let _ = collection.flush();
            let _ = collection.flush_oldest();
        }
        drop(collection);
        let collection = open(&inner, options());
        for id in acknowledged {
            assert_eq!(
                collection.get(id).unwrap(),
                Some(stored(id, 1)),
                "persist {at}, point {id}"
            );
        }
    }
}

#[test]
fn creation_needs_the_disk_reserve() {
    let root = tempfile::tempdir().unwrap();
    let options = RegistryOptions {
        disk_reserve: Some(u64::MAX / 2),
        ..crate::registry::options(root.path())
    };
    let registry = Registry::open(options).unwrap();
    for _ in 0..10 {
        let refused = registry.create("a", CollectionSettings::new(8, Metric::L2)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StorageFull, "{refused}");
    }
    let left: Vec<_> =
        std::fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [".lock"]);
}

#[test]
fn files_are_private_to_the_user() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("collections");
    let registry = Registry::open(crate::registry::options(&directory)).unwrap();
    let named = registry.create("a", CollectionSettings::new(8, Metric::L2)).unwrap();
    (0..5).for_each(|id| named.collection().upsert(point(&stored(id, 1))).unwrap());
    named.collection().flush().unwrap();
    drop((named, registry));
    let mut files = 0;
    let mut waiting = vec![directory];
    while let Some(path) = waiting.pop() {
        let metadata = std::fs::metadata(&path).unwrap();
        let mode = metadata.permissions().mode() & 0o777;
        let most = if metadata.is_dir() { 0o750 } else { 0o640 };
        assert_eq!(mode & !most, 0, "{}: {mode:o}", path.display());
        files += u32::from(metadata.is_file());
        if metadata.is_dir() {
            waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    assert!(files >= 5, "{files}");
}
