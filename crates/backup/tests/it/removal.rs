//! Removal of backups, beside running ones.

use std::collections::BTreeSet;
use std::time::Duration;

use backup::{BackupId, RetentionPolicy, block_on};
use base::ErrorKind;

use crate::common::{TestStore, contents, create, open, put};

#[test]
fn kept_backups_stay_whole() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&directory.path().join("collections"));
    let place = directory.path().join("store");
    let store = TestStore::open(&place);
    let named = create(&registry, "c");
    let mut ids: Vec<BackupId> = Vec::new();
    for version in 0..5 {
        put(&named, 0..200, version);
        named.collection().flush().unwrap();
        ids.push(store.back_up(&named).backup);
    }
    ids.sort();
    let stored = || std::fs::read_dir(place.join("c/objects")).unwrap().count();
    let before = stored();
    let prune = |keep: usize, grace: Duration| {
        let policy = RetentionPolicy { newest: Some(keep), age_max: None };
        block_on(backup::prune(&store.context(), "c", &policy, grace)).unwrap()
    };
    let report = prune(3, Duration::from_secs(3600));
    assert_eq!((report.kept, report.objects, stored()), (3, 0, before), "within the grace time");
    let policy = RetentionPolicy { newest: Some(2), age_max: None };
    let among = BTreeSet::from([ids[4].clone()]);
    let context = store.context();
    let prune_among =
        backup::prune_among(&context, "c", &policy, &among, Duration::from_secs(3600));
    let report = block_on(prune_among).unwrap();
    assert_eq!((report.removed.len(), report.kept), (0, 3), "the newest is not expired");
    let report = prune(2, Duration::ZERO);
    assert_eq!((report.removed.len(), report.kept), (1, 2));
    assert!(report.objects > 0 && stored() == before - report.objects);
    let sound = block_on(backup::verify(&store.context(), "c", None)).unwrap();
    assert_eq!((sound.problem_count, sound.backups), (0, 2));
    store.restore(&registry, "c", "d").unwrap();
    assert_eq!(contents(&registry.get("d").unwrap()), contents(&named));
    let delete =
        |id: &BackupId| block_on(backup::delete(&store.context(), "c", id, Duration::ZERO));
    assert_eq!(delete(&ids[0]).unwrap_err().kind(), ErrorKind::NotFound);
    let left = block_on(store.store.ids("c")).unwrap();
    delete(&left[0]).unwrap();
    delete(&left[1]).unwrap();
    assert_eq!(stored(), 0);
    let none = store.restore(&registry, "c", "e").unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
}

#[test]
fn no_object_is_removed_while_a_backup_runs() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&directory.path().join("collections"));
    let place = directory.path().join("store");
    let store = TestStore::open(&place);
    let named = create(&registry, "c");
    put(&named, 0..50, 1);
    store.back_up(&named);
    put(&named, 0..50, 2);
    store.back_up(&named);
    let running = place.join("c/running");
    std::fs::create_dir_all(&running).unwrap();
    let mark = running.join(BackupId::now().as_str());
    std::fs::write(&mark, b"in progress").unwrap();
    let policy = RetentionPolicy { newest: Some(1), age_max: None };
    let prune = || block_on(backup::prune(&store.context(), "c", &policy, Duration::ZERO)).unwrap();
    let report = prune();
    assert_eq!((report.removed.len(), report.objects), (1, 0));
    assert!(report.objects_kept.is_some());
    // The mark of a program that was killed long ago is ignored, and removed.
    let old = std::time::SystemTime::now() - Duration::from_secs(7200);
    std::fs::File::options().write(true).open(&mark).unwrap().set_modified(old).unwrap();
    let report = prune();
    assert!(report.objects > 0 && report.objects_kept.is_none(), "{report:?}");
    assert!(!mark.exists());
}
