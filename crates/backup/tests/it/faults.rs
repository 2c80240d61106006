//! Damaged stores: each fault is named, and no damaged collection appears.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backup::{BackupExtent, RetentionPolicy, block_on};
use base::ErrorKind;
use search::registry::NamedCollection;
use storage::page::PAGE_BYTES;
use storage::superblock::Superblock;

use crate::common::{TestStore, contents, create, open, open_with_reserve, put};

fn objects(store: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(store.join("c/objects"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    found.sort();
    found
}

#[test]
fn a_damaged_object_is_named_and_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&directory.path().join("collections"));
    let place = directory.path().join("store");
    let store = TestStore::open(&place);
    let named = create(&registry, "c");
    put(&named, 0..400, 1);
    named.collection().flush().unwrap();
    put(&named, 0..10, 2);
    named.collection().flush().unwrap();
    put(&named, 20..30, 2);
    store.back_up(&named);
    let verify = || block_on(backup::verify(&store.context(), "c", None)).unwrap();
    let sound = verify();
    assert_eq!((sound.problem_count, sound.backups), (0, 1));
    assert!(sound.objects >= 3, "{sound:?}");
    type Damage = fn(&Path, Vec<u8>);
    let faults: [(&str, Damage); 3] = [
        ("it is missing", |path, _| std::fs::remove_file(path).unwrap()),
        ("bytes, and the list says", |path, mut bytes| {
            bytes.pop();
            std::fs::write(path, bytes).unwrap();
        }),
        ("it does not match its checksum", |path, mut bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(path, bytes).unwrap();
        }),
    ];
    for object in objects(&place) {
        let whole = std::fs::read(&object).unwrap();
        let name = object.file_name().unwrap().to_str().unwrap();
        for (fault, damage) in faults {
            damage(&object, whole.clone());
            let error = store.restore(&registry, "c", "d").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DataLoss);
            assert!(error.message().contains(name) && error.message().contains(fault), "{error}");
            assert!(registry.get("d").is_err());
            let report = verify();
            assert_eq!(report.problem_count, 1);
            let problem = &report.problems[0].problem;
            assert!(problem.contains(name) && problem.contains(fault), "{problem}");
            std::fs::write(&object, &whole).unwrap();
        }
    }
    let object = &objects(&place)[0];
    std::fs::write(object, b"damaged").unwrap();
    block_on(backup::create(&store.context(), &named, BackupExtent::All)).unwrap();
    store.restore(&registry, "c", "d").unwrap();
    assert_eq!(contents(&registry.get("d").unwrap()), contents(&named));
}

#[test]
fn a_damaged_list_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&directory.path().join("collections"));
    let place = directory.path().join("store");
    let store = TestStore::open(&place);
    let named = create(&registry, "c");
    put(&named, 0..10, 1);
    let id = store.back_up(&named).backup;
    let path = place.join("c/backups").join(id.as_str());
    let mut text = std::fs::read(&path).unwrap();
    let middle = text.len() / 2;
    text[middle] ^= 1;
    std::fs::write(&path, text).unwrap();
    let error = store.restore(&registry, "c", "d").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(error.message().contains(id.as_str()), "{error}");
    let report = block_on(backup::verify(&store.context(), "c", None)).unwrap();
    assert_eq!(report.problem_count, 1);
    // The next backup does not need it.
    let next = store.back_up(&named).backup;
    store.restore(&registry, "c", "d").unwrap();
    // The damaged list does not hide the other one.
    let stored = block_on(store.store.readable_lists("c")).unwrap();
    assert_eq!(stored.lists.iter().map(|list| &list.id).collect::<Vec<_>>(), [&next]);
    assert_eq!(stored.unreadable.len(), 1);
    assert_eq!(stored.unreadable[0].backups, [id]);
    assert!(stored.unreadable[0].problem.contains("checksum"), "{:?}", stored.unreadable);
    // A removal of unused files needs all lists.
    let error = block_on(store.store.lists("c")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(error.message().ends_with("removed by its id"), "{error}");
}

#[test]
fn a_backup_without_its_files_is_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&directory.path().join("collections"));
    let place = directory.path().join("store");
    let store = TestStore::open(&place);
    let named = create(&registry, "c");
    put(&named, 0..10, 1);
    named.collection().flush().unwrap();
    store.back_up(&named);
    let context = store.context();
    let back_up =
        || block_on(backup::create(&context, &named, BackupExtent::Changed)).unwrap().unchanged;
    assert!(back_up());
    // The segment is the last one.
    std::fs::remove_file(objects(&place).pop().unwrap()).unwrap();
    assert!(!back_up());
    store.restore(&registry, "c", "d").unwrap();
    assert_eq!(contents(&registry.get("d").unwrap()), contents(&named));
}

#[test]
fn a_damaged_backup_is_not_the_only_one_left() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&directory.path().join("collections"));
    let place = directory.path().join("store");
    let store = TestStore::open(&place);
    let named = create(&registry, "c");
    put(&named, 0..10, 1);
    let sound = store.back_up(&named).backup;
    let damaged = store.back_up(&named).backup;
    std::fs::write(place.join("c/backups").join(damaged.as_str()), "{}\n{}\n").unwrap();
    let policy = RetentionPolicy { newest: Some(1), age_max: None };
    let context = store.context();
    let prune = || block_on(backup::prune(&context, "c", &policy, Duration::ZERO));
    let error = prune().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(error.message().contains(damaged.as_str()), "{error}");
    assert_eq!(block_on(store.store.ids("c")).unwrap(), [sound.clone(), damaged.clone()]);
    block_on(backup::delete(&context, "c", &damaged, Duration::ZERO)).unwrap();
    assert_eq!((prune().unwrap().kept, block_on(store.store.ids("c")).unwrap()), (1, vec![sound]));
    store.restore(&registry, "c", "d").unwrap();
    assert_eq!(contents(&registry.get("d").unwrap()), contents(&named));
}

#[test]
fn a_damaged_collection_is_not_backed_up() {
    let directory = tempfile::tempdir().unwrap();
    let collections = directory.path().join("collections");
    let store = TestStore::open(&directory.path().join("store"));
    let registry = open(&collections);
    let named = create(&registry, "c");
    put(&named, 0..100, 1);
    named.collection().flush().unwrap();
    let points = collections.join("c").join(named.points_name());
    drop((named, registry));
    let segment = std::fs::read_dir(points)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("segment-"))
        .unwrap();
    std::fs::write(&segment, b"damaged").unwrap();
    let registry = open(&collections);
    let named = registry.get("c").unwrap();
    let made = block_on(backup::create(&store.context(), &named, BackupExtent::Missing));
    let error = made.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(error.message().contains("segment-"), "{error}");
    assert!(block_on(store.store.ids("c")).unwrap().is_empty());
}

#[test]
fn a_damaged_file_replaces_no_sound_object() {
    let directory = tempfile::tempdir().unwrap();
    let collections = directory.path().join("collections");
    let store = TestStore::open(&directory.path().join("store"));
    let registry = open(&collections);
    let named = create(&registry, "c");
    put(&named, 0..100, 1);
    named.collection().flush().unwrap();
    store.back_up(&named);
    let segment = std::fs::read_dir(collections.join("c").join(named.points_name()))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("segment-"))
        .unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let made = block_on(backup::create(&store.context(), &named, BackupExtent::All));
    let error = made.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(error.message().contains("segment-"), "{error}");
    let report = block_on(backup::verify(&store.context(), "c", None)).unwrap();
    assert_eq!((report.problem_count, report.backups), (0, 1));
}

/// Returns the path of the only segment of a collection.
fn segment_of(collections: &Path, named: &NamedCollection) -> PathBuf {
    let points = collections.join(named.name()).join(named.points_name());
    std::fs::read_dir(points)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("segment-"))
        .unwrap()
}

#[test]
fn damage_that_no_read_has_found_is_not_backed_up() {
    const PAGE_CHECKSUMS: u32 = 9;
    let directory = tempfile::tempdir().unwrap();
    let collections = directory.path().join("collections");
    let store = TestStore::open(&directory.path().join("store"));
    let registry = open(&collections);
    let filled = |name: &str| {
        let named = create(&registry, name);
        put(&named, 0..20, 1);
        named.collection().flush().unwrap();
        named
    };
    let superblock = |path: &Path| Superblock::decode(&std::fs::read(path).unwrap()).unwrap();
    let sound = filled("sound");
    store.back_up(&sound);
    let sections = superblock(&segment_of(&collections, &sound)).sections;
    let with_bytes = sections.iter().filter(|section| section.bytes > 0);
    let kinds: Vec<u32> = with_bytes.map(|section| section.kind).collect();
    assert!(kinds.len() > 9 && kinds.contains(&PAGE_CHECKSUMS), "{kinds:?}");
    // The superblock is not a section.
    for kind in kinds.iter().copied().map(Some).chain([None]) {
        let name = kind.map_or("superblock".to_owned(), |kind| format!("kind-{kind}"));
        let named = filled(&name);
        let segment = segment_of(&collections, &named);
        let offset = kind.map_or(0, |kind| superblock(&segment).section(kind).unwrap().offset);
        let file = File::options().read(true).write(true).open(&segment).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset + 3).unwrap();
        file.write_all_at(&[byte[0] ^ 1], offset + 3).unwrap();
        let made = block_on(backup::create(&store.context(), &named, BackupExtent::Missing));
        let error = made.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataLoss, "{name}: {error}");
        let file_name = segment.file_name().unwrap().to_str().unwrap();
        assert!(error.message().starts_with(file_name), "{name}: {error}");
        // The superblock and the checksums are read before the pages.
        if kind.is_some_and(|kind| kind != PAGE_CHECKSUMS) {
            let page = format!(": page {}: ", offset / PAGE_BYTES as u64);
            assert!(error.message().contains(&page), "{name}: {error}");
        }
        assert!(block_on(store.store.ids(&name)).unwrap().is_empty(), "{name}");
    }
}

#[test]
fn a_backup_leaves_the_reserve_of_the_disk_free() {
    let directory = tempfile::tempdir().unwrap();
    let collections = directory.path().join("collections");
    let place = directory.path().join("store");
    let store = TestStore::open(&place);
    let registry = open(&collections);
    put(&create(&registry, "c"), 0..20, 1);
    drop(registry);
    // No disk has so much free space.
    let registry = open_with_reserve(&collections, u64::MAX / 2);
    let named = registry.get("c").unwrap();
    let full = block_on(backup::create(&store.context(), &named, BackupExtent::Missing));
    let full = full.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert!(full.message().starts_with("the backup: "), "{full}");
    assert!(full.message().contains("--search-disk-reserve"), "{full}");
    assert!(!place.join("c/objects").exists(), "nothing is stored");
    // Objects that no backup needs make room.
    std::fs::create_dir_all(place.join("c/objects")).unwrap();
    std::fs::write(place.join("c/objects/unused"), b"of a removed backup").unwrap();
    let making_room = |grace: Duration| {
        let extent = BackupExtent::Missing;
        block_on(backup::create_with_room(&store.context(), &named, extent, grace))
    };
    for (grace, left) in [(Duration::from_secs(3600), 1), (Duration::ZERO, 0)] {
        assert_eq!(making_room(grace).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(objects(&place).len(), left);
    }
    drop(named);
    drop(registry);
    let registry = open(&collections);
    store.back_up(&registry.get("c").unwrap());
}
