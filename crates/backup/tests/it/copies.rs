//! Copies of backups in other stores.

use std::path::PathBuf;

use backup::{BackupCopy, BackupId, block_on};
use base::ErrorKind;
use serde_json::json;

use crate::common::{TestStore, contents, create, open, put};

#[test]
fn a_copy_is_restored_and_damage_makes_none() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&directory.path().join("collections"));
    let named = create(&registry, "docs");
    put(&named, 0..300, 1);
    let store = TestStore::open(&directory.path().join("store"));
    let backup = store.back_up(&named).backup;
    let other = TestStore::open(&directory.path().join("other"));
    let copy = |name: &str| {
        let id = BackupId::now();
        let copy =
            BackupCopy { collection: "docs", backup: &backup, to: &other.store, name, id: &id };
        block_on(backup::copy(&store.context(), &copy, |settings| settings.extra = json!("new")))
    };
    let list = copy("copied").unwrap();
    assert_eq!((list.collection.as_str(), list.points), ("copied", 300));
    other.restore(&registry, "copied", "restored").unwrap();
    let restored = registry.get("restored").unwrap();
    assert_eq!(contents(&restored), contents(&named));
    assert_eq!(restored.settings().extra, json!("new"));

    let objects = directory.path().join("store/docs/objects");
    let objects = std::fs::read_dir(objects).unwrap();
    let objects: Vec<PathBuf> = objects.map(|entry| entry.unwrap().path()).collect();
    let object = objects.iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(object).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(object, &bytes).unwrap();
    let damaged = copy("damaged").unwrap_err();
    std::fs::write(object, &bytes[..middle]).unwrap();
    let shortened = copy("shortened").unwrap_err();
    let length = format!("it has less than {} bytes", bytes.len());
    assert!(shortened.message().ends_with(&length), "{shortened}");
    std::fs::remove_file(object).unwrap();
    let missing = copy("missing").unwrap_err();
    let name = object.file_name().unwrap().to_str().unwrap();
    for error in [damaged, shortened, missing] {
        assert_eq!(error.kind(), ErrorKind::DataLoss, "{error}");
        assert!(error.message().contains(name), "{error}");
    }
    for name in ["damaged", "shortened", "missing"] {
        assert!(block_on(other.store.ids(name)).unwrap().is_empty());
    }
}

/// The caller that stops a copy may have looked for its list before.
#[test]
fn a_copy_that_is_stopped_before_its_list_is_not_listed() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&directory.path().join("collections"));
    let named = create(&registry, "docs");
    put(&named, 0..3, 1);
    let store = TestStore::open(&directory.path().join("store"));
    let backup = store.back_up(&named).backup;
    let other = TestStore::open(&directory.path().join("other"));
    let id = BackupId::now();
    let copy =
        BackupCopy { collection: "docs", backup: &backup, to: &other.store, name: "c", id: &id };
    // The settings are changed after the last object was copied.
    let stopped = block_on(backup::copy(&store.context(), &copy, |_| store.progress.stop()));
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(block_on(other.store.ids("c")).unwrap().is_empty());
}
