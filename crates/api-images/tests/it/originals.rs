//! Original images on one server, and points that have none.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::Body;
use http::{Method, StatusCode};
use search::points::{NewPoint, PayloadChange, PointId, PointSelection};
use search::registry::AliasChange;
use serde_json::{Map, json};

use crate::held_store::HeldStore;
use crate::world::{DIMS, World, picture};

/// Returns the number of originals.
fn originals(world: &World) -> usize {
    fn files(directory: &Path) -> usize {
        let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
        let count = |entry: std::fs::DirEntry| match entry.path() {
            path if path.is_dir() => files(&path),
            _ => 1,
        };
        entries.map(|entry| count(entry.unwrap())).sum()
    }
    files(&world.directory.path().join("collections/.originals"))
}

fn status(world: &World, method: Method, path: &str) -> StatusCode {
    world.send(method, path, "image/jpeg", Body::empty()).0
}

/// Change of aliases that is in progress. Meanwhile no point is written and no collection is
/// removed.
struct HeldAliases {
    release: mpsc::Sender<()>,
    change: JoinHandle<bool>,
}

impl HeldAliases {
    fn hold(world: &World, changes: Vec<AliasChange>) -> HeldAliases {
        let registry = world.registry.clone();
        let (begun, has_begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let change = std::thread::spawn(move || {
            let wait = || {
                begun.send(()).unwrap();
                // The sender is dropped.
                let _ = released.recv();
                true
            };
            registry.change_aliases_if(&changes, wait).unwrap()
        });
        has_begun.recv().unwrap();
        HeldAliases { release, change }
    }

    fn release(self) {
        drop(self.release);
        assert!(self.change.join().unwrap());
    }
}

/// Returns the number of complete records of removed collections.
fn records(world: &World) -> usize {
    let directory = world.directory.path().join("collections/.removed-collections");
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    entries.filter(|entry| entry.as_ref().unwrap().path().extension().is_none()).count()
}

#[test]
fn an_original_is_removed_and_added_with_its_image() {
    let world = World::start();
    let id = world.put("/v1/images/c", &picture(1))["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/images/c/{id}");
    for _ in 0..2 {
        assert_eq!((status(&world, Method::GET, &path), originals(&world)), (StatusCode::OK, 1));
        assert_eq!((status(&world, Method::DELETE, &path), originals(&world)), (StatusCode::OK, 0));
        assert_eq!(status(&world, Method::DELETE, &path), StatusCode::NOT_FOUND);
        assert_eq!(world.put("/v1/images/c", &picture(1))["status"], "added");
    }
}

#[test]
fn a_removed_version_removes_the_originals_that_only_it_names() {
    let world = World::start();
    let put = |seed| world.put("/v1/images/c", &picture(seed))["id"].as_str().unwrap().to_owned();
    let shared = [put(1), put(2)];
    world.registry.clone_collection("c.v1", "c.v2").unwrap();
    put(3);
    assert_eq!(originals(&world), 3);
    assert_eq!(status(&world, Method::DELETE, "/v1/images/c.v1"), StatusCode::OK);
    world.wait_for_removals();
    assert_eq!((originals(&world), world.removals("checked")), (2, 3));
    let paths = shared.map(|id| format!("/v1/images/c.v2/{id}"));
    for path in &paths {
        assert_eq!(status(&world, Method::GET, path), StatusCode::OK);
    }
    assert_eq!(status(&world, Method::DELETE, &paths[0]), StatusCode::OK);
    assert_eq!(originals(&world), 1);
    assert_eq!(status(&world, Method::DELETE, "/v1/images/c.v2"), StatusCode::OK);
    world.wait_for_removals();
    assert_eq!(originals(&world), 0);
}

#[test]
fn a_removal_of_originals_continues_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let collections = directory.path().join("collections");
    // A collection that cannot be opened may need the originals of any other one.
    let broken = collections.join("broken");
    std::fs::create_dir_all(&broken).unwrap();
    let world = World::start_in(directory);
    for seed in 1..4 {
        world.put("/v1/images/c", &picture(seed));
    }
    assert_eq!(status(&world, Method::DELETE, "/v1/images/c"), StatusCode::OK);
    assert_eq!(status(&world, Method::GET, "/v1/images/c"), StatusCode::NOT_FOUND);
    assert_eq!((originals(&world), world.waiting_removals()), (3, 1));
    // A new collection of the same name has an image of the old one.
    let id = world.put("/v1/images/c", &picture(1))["id"].as_str().unwrap().to_owned();
    let directory = world.stop();
    std::fs::remove_dir(&broken).unwrap();
    let world = World::start_in(directory);
    world.wait_for_removals();
    assert_eq!(originals(&world), 1);
    let path = format!("/v1/images/c/{id}");
    assert_eq!(status(&world, Method::GET, &path), StatusCode::OK);
    let records = std::fs::read_dir(collections.join(".removed-collections")).unwrap();
    assert_eq!(records.count(), 0);
}

#[test]
fn an_upload_during_a_removal_leaves_no_original() {
    let world = World::start();
    world.put("/v1/images/c", &picture(1));
    let held = HeldAliases::hold(&world, Vec::new());
    let removal = world.begin(Method::DELETE, "/v1/images/c", Body::empty());
    world.wait_until(|| records(&world) == 1);
    let upload = world.begin(Method::PUT, "/v1/images/c?background=1", picture(2));
    world.wait_until(|| originals(&world) == 2);
    held.release();
    assert_eq!(world.run(removal).unwrap(), StatusCode::OK);
    // The point is written before the removal, or refused after it.
    let status = world.run(upload).unwrap();
    let refused = [StatusCode::NOT_FOUND, StatusCode::SERVICE_UNAVAILABLE];
    assert!(status == StatusCode::OK || refused.contains(&status), "{status}");
    world.wait_for_removals();
    assert_eq!((originals(&world), records(&world)), (0, 0));
}

#[test]
fn a_refused_upload_leaves_no_original() {
    let world = World::start();
    world.put("/v1/images/c", &picture(1));
    world.registry.clone_collection("c.v1", "c.v2").unwrap();
    for (seed, path, other) in
        [(2, "/v1/images/c", "c.v2"), (3, "/v1/images/c?background=1", "c.v1")]
    {
        let (alias, collection) = ("c".to_owned(), other.to_owned());
        let held = HeldAliases::hold(&world, vec![AliasChange::Create { alias, collection }]);
        let upload = world.begin(Method::PUT, path, picture(seed));
        world.wait_until(|| originals(&world) == 2);
        // The name of the upload becomes another collection.
        held.release();
        assert_eq!(world.run(upload).unwrap(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(originals(&world), 1);
    }
    // The original that both versions name stays.
    let id = world.put("/v1/images/c", &picture(1))["id"].as_str().unwrap().to_owned();
    assert_eq!(status(&world, Method::GET, &format!("/v1/images/c/{id}")), StatusCode::OK);
}

#[test]
fn an_upload_ends_without_its_client() {
    let world = World::start();
    world.put("/v1/images/c", &picture(1));
    let held = HeldAliases::hold(&world, Vec::new());
    let upload = world.begin(Method::PUT, "/v1/images/c", picture(2));
    world.wait_until(|| originals(&world) == 2);
    upload.abort();
    assert!(world.run(upload).unwrap_err().is_cancelled());
    assert_eq!(world.images.additions_running(), 1);
    held.release();
    world.wait_until(|| world.images.additions_running() == 0);
    let named = world.registry.get("c").unwrap();
    assert_eq!((named.collection().count(), originals(&world)), (2, 2));
}

/// Threads that decode, at most.
fn decoding_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[test]
fn a_store_that_hangs_holds_no_thread_that_decodes() {
    let store = Arc::new(HeldStore::default());
    let world = World::with_originals(store.clone());
    // The queue and the server have room for so many requests.
    let count = (decoding_threads() as u64 + 1).min(20);
    let put = |seed| world.put("/v1/images/c", &picture(seed))["id"].as_str().unwrap().to_owned();
    let ids: Vec<String> = (0..=count).map(put).collect();
    let (kept, removed) = ids.split_last().unwrap();
    let path = format!("/v1/images/c/{}/features", removed[1]);
    let (_, features) = world.send(Method::GET, &path, "image/jpeg", Body::empty());
    let points = format!("{{\"points\":[{}]}}", String::from_utf8(features).unwrap());
    let delete =
        |id: &String| world.begin(Method::DELETE, &format!("/v1/images/c/{id}"), Body::empty());
    let deletions: Vec<_> = removed.iter().map(delete).collect();
    // More than there are threads that decode, if the machine has fewer than 16 cores.
    world.wait_until(|| store.held() >= deletions.len().min(16));
    // The upload of an image that is being removed waits, too, and so do features of such an image.
    let again = world.begin(Method::PUT, "/v1/images/c", picture(0));
    let write = |_| world.begin(Method::PUT, "/v1/images/c/features", points.clone());
    let writes: Vec<_> = (0..count).map(write).collect();
    for request in ["keypoints", "thumbnail"] {
        let path = format!("/v1/images/c/{kept}/{request}");
        assert_eq!(status(&world, Method::GET, &path), StatusCode::OK);
    }
    assert_eq!(world.put("/v1/images/c", &picture(count + 1))["status"], "added");
    assert!(deletions.iter().all(|deletion| !deletion.is_finished()) && !again.is_finished());
    store.release();
    for request in deletions.into_iter().chain([again]).chain(writes) {
        assert_eq!(world.run(request).unwrap(), StatusCode::OK);
    }
    // The image is complete, although its original was removed while it was uploaded.
    let path = format!("/v1/images/c/{}", removed[0]);
    assert_eq!(status(&world, Method::GET, &path), StatusCode::OK);
}

#[test]
fn files_of_duplicates_are_read_on_threads_that_decode() {
    let world = World::start();
    world.put("/v1/images/c", &picture(0));
    let held = HeldAliases::hold(&world, Vec::new());
    let count = decoding_threads();
    // Each holds a thread, since its point cannot be written.
    let upload = |seed: usize| {
        let upload = world.begin(Method::PUT, "/v1/images/c", picture(seed as u64));
        world.wait_until(|| world.images.images_claimed() == seed);
        upload
    };
    let uploads: Vec<_> = (1..=count).map(upload).collect();
    let path = "/v1/images/c/duplicates";
    let others = [
        (Method::GET, path, StatusCode::NOT_FOUND),
        (Method::GET, "/v1/images/c/duplicates/groups", StatusCode::NOT_FOUND),
        (Method::DELETE, path, StatusCode::NOT_FOUND),
    ];
    let requests =
        others.map(|(method, path, status)| (world.begin(method, path, Body::empty()), status));
    world.wait_until(|| world.images.interactive_waiting() == requests.len());
    held.release();
    for (request, status) in requests {
        assert_eq!(world.run(request).unwrap(), status);
    }
    for upload in uploads {
        assert_eq!(world.run(upload).unwrap(), StatusCode::OK);
    }
}

#[test]
fn an_original_that_is_copied_back_stays() {
    let directory = tempfile::tempdir().unwrap();
    let collections = directory.path().join("collections");
    std::fs::create_dir_all(collections.join("broken")).unwrap();
    let world = World::start_in(directory);
    let id = world.put("/v1/images/c", &picture(1))["id"].as_str().unwrap().to_owned();
    let space = collections.join(".originals/c");
    // The store cannot write the first object that shows its time.
    std::fs::create_dir(space.join("clock-0")).unwrap();
    assert_eq!(status(&world, Method::DELETE, "/v1/images/c"), StatusCode::OK);
    world.wait_until(|| world.removals("failed") > 0);
    // The times of the file system differ after this.
    std::thread::sleep(Duration::from_millis(20));
    let start = space.join(&id[..2]);
    let entry = std::fs::read_dir(start).unwrap().next().unwrap().unwrap();
    let original = std::fs::read(entry.path()).unwrap();
    std::fs::write(entry.path(), original).unwrap();
    // While the collection is being opened, it cannot be removed.
    world.wait_until(|| world.registry.remove("broken").is_ok_and(|removed| removed));
    world.wait_for_removals();
    assert_eq!(originals(&world), 1);
}

#[test]
fn originals_are_removed_once_all_collections_are_open() {
    let directory = tempfile::tempdir().unwrap();
    // A collection that cannot be opened may need the originals of any other one.
    std::fs::create_dir_all(directory.path().join("collections/broken")).unwrap();
    let world = World::start_in(directory);
    for seed in [1, 2] {
        let id = world.put("/v1/images/c", &picture(seed))["id"].as_str().unwrap().to_owned();
        let path = format!("/v1/images/c/{id}");
        assert_eq!(status(&world, Method::DELETE, &path), StatusCode::OK);
    }
    let kept = world.put("/v1/images/c", &picture(3))["id"].as_str().unwrap().to_owned();
    assert!(world.waiting_removals() > 0 && records(&world) > 0);
    // The original of an image that is restored later was copied back.
    let copied = PointId::Uuid([7; 16]);
    let of_collection = world.directory.path().join("collections/.originals/c/07");
    std::fs::create_dir_all(&of_collection).unwrap();
    let copied = of_collection.join(format!("{copied}.jpg"));
    std::fs::write(&copied, "a copy").unwrap();
    // The removals continue after a restart.
    let world = World::start_in(world.stop());
    // While the collection is being opened, it cannot be removed.
    world.wait_until(|| world.registry.remove("broken").is_ok_and(|removed| removed));
    world.wait_for_removals();
    assert_eq!((originals(&world), records(&world)), (2, 0));
    assert!(copied.exists());
    let path = format!("/v1/images/c/{kept}");
    assert_eq!(status(&world, Method::GET, &path), StatusCode::OK);
}

#[test]
fn a_directory_of_originals_without_a_collection_is_counted() {
    let world = World::start();
    world.put("/v1/images/c", &picture(1));
    let directory = world.stop();
    std::fs::create_dir(directory.path().join("collections/.originals/old")).unwrap();
    let world = World::start_in(directory);
    world.wait_until(|| world.removals("unused") > 0);
    assert_eq!(world.removals("unused"), 1);
}

#[test]
fn a_point_that_names_no_original_keeps_none() {
    let world = World::start();
    let id = world.put("/v1/images/c", &picture(1))["id"].as_str().unwrap().to_owned();
    let copy = world.registry.clone_collection("c.v1", "c.v2").unwrap();
    let selection = PointSelection::Ids(vec![id.parse().unwrap()]);
    let change = PayloadChange::DeleteKeys(vec!["image.original".to_owned()]);
    assert_eq!(copy.change_payload(&selection, &change), Ok(1));
    assert_eq!(originals(&world), 1);
    let path = format!("/v1/images/c/{id}");
    assert_eq!(status(&world, Method::DELETE, &path), StatusCode::OK);
    assert_eq!(originals(&world), 0);
}

#[test]
fn an_image_with_a_cleared_payload_is_removed_with_its_original() {
    let world = World::start();
    let id = world.put("/v1/images/c", &picture(1))["id"].as_str().unwrap().to_owned();
    world.put("/v1/images/c", &picture(2));
    let selection = PointSelection::Ids(vec![id.parse().unwrap()]);
    let named = world.registry.get("c").unwrap();
    assert_eq!(named.change_payload(&selection, &PayloadChange::Clear), Ok(1));
    let path = format!("/v1/images/c/{id}");
    assert_eq!((status(&world, Method::DELETE, &path), originals(&world)), (StatusCode::OK, 1));
}

#[test]
fn a_removal_leaves_the_original_of_a_copied_payload() {
    let world = World::start();
    let put = |seed| world.put("/v1/images/c", &picture(seed))["id"].as_str().unwrap().to_owned();
    let first = put(1);
    let second = put(2);
    let named = world.registry.get("c").unwrap();
    let payload = named.get(&first.parse().unwrap()).unwrap().unwrap().payload;
    let selection = PointSelection::Ids(vec![second.parse().unwrap()]);
    assert_eq!(named.change_payload(&selection, &PayloadChange::Overwrite(payload)), Ok(1));
    let path = format!("/v1/images/c/{second}");
    assert_eq!((status(&world, Method::DELETE, &path), originals(&world)), (StatusCode::OK, 1));
    let path = format!("/v1/images/c/{first}");
    assert_eq!(status(&world, Method::GET, &path), StatusCode::OK);
}

#[test]
fn a_refused_payload_leaves_no_original() {
    let world = World::start();
    world.put("/v1/images/c", &picture(1));
    // Nearly the longest address that a request can have.
    let long = format!("/v1/images/c?payload=%7B%22a%22%3A%22{}%22%7D", "x".repeat(65_400));
    for (path, status) in [
        (long.as_str(), StatusCode::PAYLOAD_TOO_LARGE),
        ("/v1/images/c?payload=%7B%22__millpond_id%22%3A1%7D", StatusCode::BAD_REQUEST),
    ] {
        let (found, answer) = world.send(Method::PUT, path, "image/jpeg", picture(2));
        assert_eq!(found, status, "{}", String::from_utf8_lossy(&answer));
        assert_eq!(originals(&world), 1);
    }
}

#[test]
fn a_vector_alone_has_no_keypoints_to_compare() {
    let world = World::start();
    world.put("/v1/images/c", &picture(1));
    let id = PointId::Number(7);
    let payload = Map::new();
    let point = NewPoint { id, embedding: &[0.5; DIMS], record: &[], payload: &payload };
    world.registry.get("c").unwrap().upsert(&[point]).unwrap();
    let words = "point 7 has no keypoints";
    world.refused("/v1/images/c/search", &json!({ "id": 7 }), 404, words);
    for part in ["keypoints", "features"] {
        let path = format!("/v1/images/c/7/{part}");
        let (found, answer) = world.send(Method::GET, &path, "", Body::empty());
        let text = String::from_utf8_lossy(&answer);
        assert!(found == StatusCode::NOT_FOUND && text.contains(words), "{found} {text}");
    }
}

#[test]
fn a_changed_original_is_not_returned() {
    let world = World::start();
    let id = world.put("/v1/images/c", &picture(1))["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/images/c/{id}");
    assert_eq!(status(&world, Method::GET, &path), StatusCode::OK);
    let start = world.directory.path().join("collections/.originals/c").join(&id[..2]);
    let entry = std::fs::read_dir(start).unwrap().next().unwrap().unwrap();
    let mut original = std::fs::read(entry.path()).unwrap();
    let last = original.len() - 1;
    original[last] ^= 1;
    std::fs::write(entry.path(), original).unwrap();
    for path in [path.clone(), format!("{path}/thumbnail")] {
        let (status, body) = world.send(Method::GET, &path, "image/jpeg", Body::empty());
        let body = String::from_utf8_lossy(&body);
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{path}: {body}");
        assert!(body.contains("the original is damaged"), "{path}: {body}");
    }
}
