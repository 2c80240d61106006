//! Uploads of published versions.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::ErrorKind;
use engine::fake::publish::affine;
use engine::layout::Artifact;
use engine::publish::VERSION_MAX;
use millpond_model_store::{StorePlace, UploadProgress, block_on, upload};
use object_store::ObjectStoreExt;
use os::Rate;
use tokio::sync::watch;

use crate::faulty::FaultyStore;

/// Returns the signal of an upload that is not stopped.
fn never() -> watch::Receiver<bool> {
    watch::channel(false).1
}

#[test]
fn numbers_follow_the_highest() {
    let dir = tempfile::tempdir().unwrap();
    let (local, store) = (dir.path().join("local"), dir.path().join("store"));
    std::fs::create_dir(&store).unwrap();
    affine(&local, 0.5, 2.0).unwrap();
    let place = StorePlace::open(&format!("file://{}/m", store.display()), &[]).unwrap();
    let mut last = UploadProgress { bytes_done: 0, bytes_total: 0 };
    let mut put = |version| {
        let progress = &mut |progress| last = progress;
        upload(&place, &local, version, Rate::unlimited(), progress, never())
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
    assert_eq!(version.manifest().unwrap().layout, sent.manifest);
    assert_eq!(place.content().unwrap().versions, [1, 41, 42].into());
    let root = StorePlace::open(&format!("file://{}", store.display()), &[]).unwrap();
    assert_eq!(root.content().unwrap().models, ["m".to_owned()].into());
    let error = place.manifest().unwrap_err();
    assert!(error.message().contains("it is not a published version"), "{error}");
}

#[test]
fn numbers_that_no_server_reads_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    affine(dir.path(), 0.5, 2.0).unwrap();
    let place = StorePlace::new(FaultyStore::new(), "m", "mem://m");
    let put =
        |version| upload(&place, dir.path(), version, Rate::unlimited(), &mut |_| {}, never());
    assert_eq!(put(Some(VERSION_MAX + 1)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(block_on(place.list()).unwrap().is_empty());
    assert_eq!(put(Some(VERSION_MAX)).unwrap(), VERSION_MAX);
    let error = put(None).unwrap_err();
    assert!(error.message().ends_with("give a free number with --version"), "{error}");
    assert_eq!(place.content().unwrap().versions, [VERSION_MAX].into());
}

/// A SavedModel has vocabularies in `assets`.
#[test]
fn files_in_directories_are_sent() {
    let dir = tempfile::tempdir().unwrap();
    let local = dir.path().join("local");
    affine(&local, 0.5, 2.0).unwrap();
    for (name, text) in [("assets/words.txt", "a\nb\n"), ("warmup/more/1.json", "{}")] {
        std::fs::create_dir_all(local.join(name).parent().unwrap()).unwrap();
        std::fs::write(local.join(name), text).unwrap();
    }
    let store = FaultyStore::new();
    let place = StorePlace::new(store, "m", "mem://m");
    let mut last = UploadProgress { bytes_done: 0, bytes_total: 0 };
    let progress = &mut |progress| last = progress;
    assert_eq!(upload(&place, &local, None, Rate::unlimited(), progress, never()).unwrap(), 1);
    assert_eq!(last.bytes_done, last.bytes_total);
    let sent = block_on(place.below("1").list()).unwrap();
    let names: Vec<_> = sent.iter().map(|object| object.location.as_ref().to_owned()).collect();
    for name in ["m/1/assets/words.txt", "m/1/warmup/more/1.json"] {
        assert!(names.iter().any(|sent| sent == name), "{names:?}");
    }
}

#[test]
fn a_claimed_number_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    affine(dir.path(), 0.5, 2.0).unwrap();
    let objects = Arc::new(object_store::memory::InMemory::new());
    let place = StorePlace::new(objects.clone(), "m", "mem://m");
    let claim = async {
        drop(objects.put(&"m/.claim-1".into(), "other".into()).await.unwrap());
    };
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(claim);
    let put =
        |version| upload(&place, dir.path(), version, Rate::unlimited(), &mut |_| {}, never());
    let error = put(Some(1)).unwrap_err();
    assert!(error.message().contains("delete .claim-1 if its publisher has ended"), "{error}");
    assert_eq!(put(None).unwrap(), 2);
}

#[test]
fn an_error_names_what_a_failed_upload_leaves() {
    let dir = tempfile::tempdir().unwrap();
    affine(dir.path(), 0.5, 2.0).unwrap();
    let store = FaultyStore::new();
    let place = StorePlace::new(store.clone(), "m", "mem://m");
    let put = || upload(&place, dir.path(), None, Rate::unlimited(), &mut |_| {}, never());
    // The claim is written. It cannot be read, so nothing may be removed.
    store.gets_max.store(0, Ordering::SeqCst);
    let error = put().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains(".claim-1 and files of version 1 may be left"), "{error}");
    store.gets_max.store(u64::MAX, Ordering::SeqCst);
    assert_eq!(put().unwrap(), 2);
}

/// The listing of the second publisher comes before the end of the first one's upload, and its
/// claim after it.
#[test]
fn a_version_that_was_just_finished_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    affine(dir.path(), 0.5, 2.0).unwrap();
    let store = FaultyStore::new();
    let place = StorePlace::new(store.clone(), "m", "mem://m");
    let put =
        |version| upload(&place, dir.path(), version, Rate::unlimited(), &mut |_| {}, never());
    assert_eq!(put(None).unwrap(), 1);
    affine(dir.path(), 3.0, 4.0).unwrap();
    let objects = |name: &str| block_on(place.below(name).list()).unwrap();
    let first = objects("1");
    store.empty_lists.store(1, Ordering::SeqCst);
    assert_eq!(put(Some(1)).unwrap_err().kind(), ErrorKind::AlreadyExists);
    store.empty_lists.store(1, Ordering::SeqCst);
    assert_eq!(put(None).unwrap(), 2);
    assert_eq!(objects("1"), first);
    let all = block_on(place.list()).unwrap();
    assert_eq!(all.len(), first.len() + objects("2").len(), "no claim is left: {all:?}");
}

/// The first publisher is stopped after its first file and seems to have ended.
#[test]
fn a_stopped_publisher_keeps_the_version_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    affine(&first, 0.5, 2.0).unwrap();
    affine(&second, 3.0, 4.0).unwrap();
    let place = StorePlace::new(FaultyStore::new(), "m", "mem://m");
    let put = |from: &Path, progress: &mut dyn FnMut(UploadProgress)| {
        upload(&place, from, Some(1), Rate::unlimited(), progress, never())
    };
    let take_over = || {
        let clean = async {
            for object in place.list().await? {
                let removed = place.objects().delete(&object.location).await;
                removed.map_err(|error| place.failed(error))?;
            }
            Ok(())
        };
        block_on(clean).unwrap();
        assert_eq!(put(second.as_path(), &mut |_| {}).unwrap(), 1);
    };
    let mut is_taken = false;
    let progress = &mut |_| {
        if !std::mem::replace(&mut is_taken, true) {
            std::thread::scope(|scope| scope.spawn(take_over).join().unwrap());
        }
    };
    let error = put(first.as_path(), progress).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    let sent = place.below("1").manifest().unwrap();
    assert_eq!(sent.layout, Artifact::open(&second).unwrap().manifest);
    assert_eq!(block_on(place.list()).unwrap().len(), 3, "graph, weights and manifest");
}

#[test]
fn a_repeated_request_finds_its_own_claim_and_manifest() {
    let dir = tempfile::tempdir().unwrap();
    affine(dir.path(), 0.5, 2.0).unwrap();
    let store = FaultyStore::new();
    store.repeats_creates.store(true, Ordering::SeqCst);
    let place = StorePlace::new(store, "m", "mem://m");
    let put = upload(&place, dir.path(), Some(1), Rate::unlimited(), &mut |_| {}, never());
    assert_eq!(put.unwrap(), 1);
    let sent = place.below("1").manifest().unwrap();
    assert_eq!(sent.layout, Artifact::open(dir.path()).unwrap().manifest);
    let left = block_on(place.list()).unwrap();
    assert_eq!(left.len(), 3, "graph, weights and manifest, and no claim");
}

#[test]
fn a_stopped_upload_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (local, store) = (dir.path().join("local"), dir.path().join("store"));
    std::fs::create_dir(&store).unwrap();
    affine(&local, 0.5, 2.0).unwrap();
    let place = StorePlace::open(&format!("file://{}/m", store.display()), &[]).unwrap();
    let (stop, stopped) = watch::channel(false);
    // Stopped after the first file, before the manifest.
    let stop_now = &mut |_| {
        stop.send_replace(true);
    };
    let put = upload(&place, &local, None, Rate::unlimited(), stop_now, stopped);
    assert_eq!(put.unwrap_err().kind(), ErrorKind::Cancelled);
    let content = place.content().unwrap();
    assert!(content.versions.is_empty(), "{content:?}");
    let left = |dir: &std::path::Path| std::fs::read_dir(dir).map_or(0, Iterator::count);
    assert_eq!(left(&store.join("m/1")), 0);
    assert!(!store.join("m/.claim-1").exists());
    let again = upload(&place, &local, None, Rate::unlimited(), &mut |_| {}, never());
    assert_eq!(again.unwrap(), 1);
}
