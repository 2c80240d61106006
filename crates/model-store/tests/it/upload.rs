//! Uploads of published versions.

use std::sync::Arc;

use base::ErrorKind;
use engine::fake::publish::affine;
use engine::layout::Artifact;
use millpond_model_store::{StorePlace, UploadProgress, upload};
use os::Rate;

#[test]
fn numbers_follow_the_highest() {
    let dir = tempfile::tempdir().unwrap();
    let (local, store) = (dir.path().join("local"), dir.path().join("store"));
    std::fs::create_dir(&store).unwrap();
    affine(&local, 0.5, 2.0).unwrap();
    let place = StorePlace::open(&format!("file://{}/m", store.display()), &[]).unwrap();
    let mut last = UploadProgress { bytes_done: 0, bytes_total: 0 };
    let mut put = |version| {
        upload(&place, &local, version, Rate::unlimited(), &mut |progress| last = progress)
    };
    assert_eq!(put(None).unwrap(), 1);
    assert_eq!(put(Some(41)).unwrap(), 41);
    assert_eq!(put(None).unwrap(), 42);
    assert_eq!(put(Some(41)).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert!(last.bytes_done > 0 && last.bytes_done == last.bytes_total);
    let sent = Artifact::open(&store.join("m/42")).unwrap();
    assert_eq!(sent.manifest, Artifact::open(&local).unwrap().manifest);
    // No claim is left.
    let names = std::fs::read_dir(store.join("m")).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    let version = StorePlace::open(&format!("file://{}/m/41", store.display()), &[]).unwrap();
    assert_eq!(version.manifest().unwrap(), sent.manifest);
    let error = place.manifest().unwrap_err();
    assert!(error.message().contains("it is no published version"), "{error}");
}

#[test]
fn a_claimed_number_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    affine(dir.path(), 0.5, 2.0).unwrap();
    let objects = Arc::new(object_store::memory::InMemory::new());
    let place = StorePlace::new(objects.clone(), "m", "mem://m");
    let claim = async {
        use object_store::ObjectStoreExt;
        drop(objects.put(&"m/.claim-1".into(), "other".into()).await.unwrap());
    };
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(claim);
    let put = |version| upload(&place, dir.path(), version, Rate::unlimited(), &mut |_| {});
    let error = put(Some(1)).unwrap_err();
    assert!(error.message().contains("delete .claim-1 if its publisher has died"), "{error}");
    assert_eq!(put(None).unwrap(), 2);
}
