//! Backups and restores of whole collections, clones and archives.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use backup::{
    ArchiveLabel, BackupExtent, BackupId, RestoreTarget, block_on, read_archive, write_archive,
    write_collection,
};
use base::ErrorKind;
use proptest::prelude::*;
use search::points::PointId;

use crate::common::{TestStore, contents, create, nearest, open, put};

#[test]
fn a_second_backup_stores_only_changes() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&directory.path().join("collections"));
    let store = TestStore::open(&directory.path().join("store"));
    let named = create(&registry, "c");
    put(&named, 0..2000, 1);
    named.collection().flush().unwrap();
    let first = store.back_up(&named);
    assert_eq!((first.points, first.uploaded_bytes), (2000, first.bytes));
    put(&named, 0..20, 2);
    named.delete(&[PointId::Number(1999)]).unwrap();
    let second = store.back_up(&named);
    assert_eq!(second.points, 1999);
    assert!(second.uploaded_bytes * 10 < second.bytes, "{second:?}");
    // Nothing has changed, so only the log is stored again.
    let third = store.back_up(&named);
    assert!(third.uploaded_files <= 1, "{third:?}");
    let changed = |extent| block_on(backup::create(&store.context(), &named, extent)).unwrap();
    let same = changed(BackupExtent::Changed);
    assert_eq!((same.unchanged, same.lists_read), (true, 1), "the newest of three lists");
    let full = changed(BackupExtent::All);
    assert_eq!(full.uploaded_bytes, full.bytes);
    put(&named, 5000..5001, 1);
    let more = changed(BackupExtent::Changed);
    assert_eq!((more.unchanged, more.lists_read), (false, 1 + 4));

    let wanted = contents(&named);
    let report = store.restore(&registry, "c", "copy").unwrap();
    assert_eq!(report.points, 2000);
    let copy = registry.get("copy").unwrap();
    assert_eq!(contents(&copy), wanted);
    assert_eq!(nearest(&registry, &copy), nearest(&registry, &named));
    assert_eq!(*copy.settings(), *named.settings());
    // The copy is a collection of its own.
    put(&copy, 0..10, 9);
    copy.collection().flush().unwrap();
    assert_eq!(contents(&named), wanted);
    drop((named, copy, registry));
    let registry = open(&directory.path().join("collections"));
    assert_eq!(contents(&registry.get("c").unwrap()), wanted);
    assert_eq!(registry.get("copy").unwrap().count(None).unwrap().count, 2000);
}

#[test]
fn an_earlier_backup_replaces_the_collection() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&directory.path().join("collections"));
    let store = TestStore::open(&directory.path().join("store"));
    let named = create(&registry, "c");
    put(&named, 0..300, 1);
    let first = store.back_up(&named).backup;
    let wanted = contents(&named);
    put(&named, 100..400, 2);
    store.back_up(&named);
    drop(named);
    let restore = |replaces| {
        let target = RestoreTarget { name: "c".to_owned(), replaces };
        block_on(backup::restore(&store.context(), &registry, "c", Some(&first), &target))
    };
    assert_eq!(restore(false).unwrap_err().kind(), ErrorKind::AlreadyExists);
    let report = restore(true).unwrap();
    assert_eq!((report.points, &report.backup), (300, &first));
    assert_eq!(contents(&registry.get("c").unwrap()), wanted);
    let left: Vec<String> = std::fs::read_dir(directory.path().join("collections"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != ".lock")
        .collect();
    assert_eq!(left, ["c"], "nothing is left of the replaced collection");
}

#[test]
fn the_version_with_the_backups_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&directory.path().join("collections"));
    let store = TestStore::open(&directory.path().join("store"));
    let named = create(&registry, "photos.v2");
    put(&named, 0..3, 1);
    store.back_up(&named);
    let other = create(&registry, "photos.videos");
    put(&other, 0..3, 1);
    store.back_up(&other);
    // The alias "photos" is removed with the collection.
    let refused = |name| store.restore(&registry, name, "copy").unwrap_err();
    let error = refused("photos");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().ends_with("restore \"photos.v2\""), "{error}");
    assert!(refused("photo").message().ends_with("no backup of \"photo\""));
}

/// Copies a directory that has only directories and files.
fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_directory(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// The disk of a server is set back after a backup, and then other points are deleted. The server
/// gives the new file of deleted rows the name of the one in the backup.
#[test]
fn a_backup_after_a_rollback_of_the_disk_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    let [before, earlier] = ["before", "earlier"].map(|name| directory.path().join(name));
    let store = TestStore::open(&directory.path().join("store"));
    let registry = open(&before);
    let named = create(&registry, "c");
    put(&named, 0..20, 1);
    named.collection().flush().unwrap();
    drop((named, registry));
    copy_directory(&before, &earlier);
    for (collections, id) in [(&before, 1), (&earlier, 2)] {
        let registry = open(collections);
        let named = registry.get("c").unwrap();
        assert_eq!(named.delete(&[PointId::Number(id)]), Ok(1));
        let context = store.context();
        let made = backup::create(&context, &named, BackupExtent::Changed);
        assert!(!block_on(made).unwrap().unchanged);
    }
    let registry = open(&directory.path().join("restored"));
    store.restore(&registry, "c", "c").unwrap();
    let named = registry.get("c").unwrap();
    let has = |id| named.get(&PointId::Number(id)).unwrap().is_some();
    assert_eq!((has(1), has(2), named.collection().count()), (true, false, 19));
}

#[test]
fn a_backup_is_of_one_moment() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&directory.path().join("collections"));
    let store = TestStore::open(&directory.path().join("store"));
    let named = create(&registry, "c");
    let written = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (named, written, stop) = (named.clone(), written.clone(), stop.clone());
        std::thread::spawn(move || {
            for id in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                put(&named, id..id + 1, 1);
                written.store(id + 1, Ordering::SeqCst);
                // Also replaces an earlier point, which moves it between files.
                put(&named, id / 2..id / 2 + 1, 2 + id);
                if id % 200 == 199 {
                    named.collection().freeze().unwrap();
                }
            }
        })
    };
    for round in 0..5 {
        while written.load(Ordering::SeqCst) < 150 * (round + 1) {
            std::thread::yield_now();
        }
        let before = written.load(Ordering::SeqCst);
        store.back_up(&named);
        let after = written.load(Ordering::SeqCst);
        let copy = format!("copy{round}");
        store.restore(&registry, "c", &copy).unwrap();
        let points = contents(&registry.get(&copy).unwrap());
        let count = points.len() as u64;
        assert!((before..=after + 1).contains(&count), "{before} {count} {after}");
        for id in 0..count {
            assert!(points.contains_key(&format!("{:?}", PointId::Number(id))), "{id} of {count}");
        }
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}

#[test]
fn a_clone_shares_segments_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    let named = create(&registry, "c");
    put(&named, 0..1000, 1);
    named.collection().flush().unwrap();
    put(&named, 900..1100, 2);
    let wanted = contents(&named);
    let copy = registry.clone_collection("c", "d").unwrap();
    assert_eq!(contents(&copy), wanted);
    put(&named, 0..200, 3);
    named.collection().flush().unwrap();
    assert_eq!(contents(&copy), wanted);
    assert!(registry.remove("c").unwrap());
    drop(named);
    assert_eq!(contents(&copy), wanted);
    let refused = registry.clone_collection("d", "d").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    drop((copy, registry));
    assert_eq!(contents(&open(directory.path()).get("d").unwrap()), wanted);
}

#[test]
fn an_archive_is_a_whole_backup() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&directory.path().join("collections"));
    let store = TestStore::open(&directory.path().join("store"));
    let named = create(&registry, "c");
    put(&named, 0..500, 1);
    named.collection().flush().unwrap();
    put(&named, 490..510, 2);
    let id = store.back_up(&named).backup;
    let list = block_on(store.store.list("c", &id)).unwrap();
    let mut archive = Vec::new();
    block_on(write_archive(&store.context(), "c", &list, &mut archive)).unwrap();
    assert_eq!(archive.len() as u64, backup::archive_bytes(&list).unwrap());
    let target = RestoreTarget { name: "d".to_owned(), replaces: false };
    let read = |archive: &[u8]| read_archive(&registry, archive, &target, |_| Ok(()));
    for cut in [0, 100, 512, archive.len() / 2, archive.len() - 2000] {
        assert_eq!(
            read(&archive[..cut]).unwrap_err().kind(),
            ErrorKind::InvalidArgument,
            "cut at {cut}"
        );
    }
    // The first of these bytes is in the list, the other one in a file.
    for at in [600, archive.len() / 2] {
        let mut damaged = archive.clone();
        damaged[at] ^= 1;
        let error = read(&damaged).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "changed at {at}");
        assert!(error.message().starts_with("the snapshot is damaged"), "{error}");
    }
    assert!(registry.get("d").is_err());
    read(&archive).unwrap();
    assert_eq!(contents(&registry.get("d").unwrap()), contents(&named));
}

#[test]
fn a_collection_becomes_an_archive_without_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&directory.path().join("collections"));
    let store = TestStore::open(&directory.path().join("store"));
    let named = create(&registry, "c");
    put(&named, 0..500, 1);
    named.collection().flush().unwrap();
    put(&named, 490..510, 2);
    let (id, mut archive, mut announced) = (BackupId::now(), Vec::new(), 0);
    let label = ArchiveLabel { collection: "docs", id: &id };
    let begin = |bytes| announced = bytes;
    block_on(write_collection(&store.context(), &named, label, begin, &mut archive)).unwrap();
    assert_eq!(archive.len() as u64, announced);
    assert!(block_on(store.store.ids("c")).unwrap().is_empty());
    let target = RestoreTarget { name: "d".to_owned(), replaces: false };
    let report = read_archive(&registry, &archive[..], &target, |_| Ok(())).unwrap();
    assert_eq!((report.backup, report.points), (id, 510));
    assert_eq!(contents(&registry.get("d").unwrap()), contents(&named));
}

#[test]
fn a_snapshot_of_qdrant_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(2);
    header.set_cksum();
    builder.append_data(&mut header, "0/segments/config.json", &b"{}"[..]).unwrap();
    let archive = builder.into_inner().unwrap();
    let target = RestoreTarget { name: "c".to_owned(), replaces: false };
    let error = read_archive(&registry, &archive[..], &target, |_| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("a snapshot that Qdrant made"), "{error}");
}

#[test]
fn an_error_quotes_no_bytes_of_another_file() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path());
    let other = b"root:x:0:0:secret".repeat(100);
    let target = RestoreTarget { name: "c".to_owned(), replaces: false };
    let error = read_archive(&registry, &other[..], &target, |_| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("as a tar archive: it is damaged"), "{error}");
    assert!(!error.message().contains("secret"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, max_shrink_iters: 20, ..ProptestConfig::default() })]

    /// A restored collection has the points of the moment of the backup, after any changes.
    #[test]
    fn a_restored_collection_equals_the_original(
        changes in prop::collection::vec((0_u64..300, 1_u64..60, 0_u8..4), 1..12),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let registry = open(&directory.path().join("collections"));
        let store = TestStore::open(&directory.path().join("store"));
        let named = create(&registry, "c");
        for (round, (from, count, kind)) in changes.into_iter().enumerate() {
            match kind {
                0 => {
                    let ids: Vec<PointId> = (from..from + count).map(PointId::Number).collect();
                    named.delete(&ids).unwrap();
                }
                1 => named.collection().flush().unwrap(),
                _ => put(&named, from..from + count, round as u64),
            }
            if round % 3 == 1 {
                store.back_up(&named);
            }
        }
        store.back_up(&named);
        store.restore(&registry, "c", "d").unwrap();
        let copy = registry.get("d").unwrap();
        prop_assert_eq!(contents(&copy), contents(&named));
        prop_assert_eq!(nearest(&registry, &copy), nearest(&registry, &named));
    }
}
