//! Rebuilds of a collection of images with another model, over a socket.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use engine::fake::publish::publish;
use serde_json::{Value, json};

use super::images::{Expected as _, Served, files_below, picture, serve, served};
use crate::loopback::WAIT_MAX;

/// The negative of the values of the model `colour`.
const OTHER: &str =
    "millpond-fake 1\ninput x float32 n 3 2 3\noutput y float32 n 18\ny = affine x -1 0\n";

/// Rebuilds "photos" and returns the final progress.
fn rebuilt(served: &Served, asked: &Value) -> Value {
    let begun = served.json("POST", "/v1/images/photos/rebuild", asked);
    assert_eq!(begun.status, 202, "{}", begun.text());
    ended(served)
}

/// Returns the final progress of the rebuild of "photos".
fn ended(served: &Served) -> Value {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        let progress = served.get("/v1/images/photos/rebuild").good();
        if progress["state"] != "running" {
            return progress;
        }
        assert!(Instant::now() < deadline, "{progress}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_rebuild_lacks_lost_originals_only_within_max_failed() {
    let dir = tempfile::tempdir().unwrap();
    publish(&dir.path().join("models/other/1"), OTHER, &[]).unwrap();
    let served = served(dir.path(), |_| {});
    let put =
        |seed| served.put("/v1/images/photos?model=colour", &picture(seed)).good()["id"].clone();
    let originals = || files_below(&dir.path().join("collections/.originals"));
    let kept = put(0);
    let before = originals();
    let lost = put(1);
    originals()
        .iter()
        .filter(|file| !before.contains(file))
        .for_each(|file| std::fs::remove_file(file).unwrap());
    let asked =
        |max_failed: u64| json!({ "model": "other", "switch": true, "max_failed": max_failed });
    let refused = rebuilt(&served, &asked(0));
    assert_eq!((&refused["state"], &refused["failed"]), (&json!("failed"), &json!(1)), "{refused}");
    assert!(refused["error"].as_str().unwrap().contains("\"max_failed\": 1"), "{refused}");
    assert!(refused["failures"].get(lost.as_str().unwrap()).is_some(), "{refused}");
    assert_eq!(served.count("photos"), 2);
    served.json("POST", "/v1/images/photos/rebuild", &asked(1 << 40)).bad(400, "at most");
    let done = rebuilt(&served, &asked(1));
    assert_eq!((&done["state"], &done["failed"]), (&json!("switched"), &json!(1)), "{done}");
    let found = served.search("/v1/images/photos/search", &picture(0)).good();
    assert_eq!((served.count("photos"), &found["results"][0]["id"]), (1, &kept));
}

#[test]
fn a_rebuild_does_not_bring_a_removed_collection_back() {
    let dir = tempfile::tempdir().unwrap();
    publish(&dir.path().join("models/other/1"), OTHER, &[]).unwrap();
    let served = served(dir.path(), |_| {});
    served.put("/v1/images/photos?model=colour", &picture(0)).good();
    let registry = served.server.collections.registry().unwrap();
    // No alias changes during a write.
    let writing = registry.writing("photos").unwrap();
    let asked = json!({ "model": "other", "switch": true });
    assert_eq!(served.json("POST", "/v1/images/photos/rebuild", &asked).status, 202);
    served.ask("DELETE", "/v1/images/photos", "", b"").good();
    drop(writing);
    let progress = ended(&served);
    assert_eq!(progress["state"], "failed", "{progress}");
    served.get("/v1/images/photos").bad(404, "there is no collection");
}

#[test]
fn a_rebuild_changes_no_version_that_the_name_stands_for() {
    let dir = tempfile::tempdir().unwrap();
    publish(&dir.path().join("models/other/1"), OTHER, &[]).unwrap();
    let served = served(dir.path(), |_| {});
    let id = served.put("/v1/images/photos?model=colour", &picture(0)).good()["id"].clone();
    served.put("/v1/images/photos?model=colour", &picture(1)).good();
    assert_eq!(rebuilt(&served, &json!({ "model": "other" }))["state"], "done");
    let path = format!("/v1/images/photos.v2/{}", id.as_str().unwrap());
    served.ask("DELETE", &path, "", b"").good();
    let asked = json!({ "model": "colour" });
    served.json("POST", "/v1/images/photos.v2/rebuild", &asked).bad(409, "is the alias of");
    assert_eq!((served.count("photos"), served.count("photos.v2")), (2, 1));
}

#[test]
fn a_rebuild_does_not_switch_while_images_are_damaged() {
    let dir = tempfile::tempdir().unwrap();
    publish(&dir.path().join("models/other/1"), OTHER, &[]).unwrap();
    let begun = served(dir.path(), |_| {});
    begun.put("/v1/images/photos?model=colour", &picture(0)).good();
    begun
        .server
        .collections
        .registry()
        .unwrap()
        .get("photos")
        .unwrap()
        .collection()
        .flush()
        .unwrap();
    drop(begun);
    let segment =
        |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("segment-");
    let path = files_below(&dir.path().join("collections")).into_iter().find(segment).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let served = serve(dir.path(), |_| {});
    assert!(served.server.collections.registry().unwrap().wait_open(WAIT_MAX));
    let refused = rebuilt(&served, &json!({ "model": "other", "switch": true }));
    assert_eq!(refused["state"], "failed", "{refused}");
    assert!(refused["error"].as_str().unwrap().contains("could be seen"), "{refused}");
}

#[test]
fn a_collection_gets_another_model_while_it_serves_and_goes_back() {
    let dir = tempfile::tempdir().unwrap();
    publish(&dir.path().join("models/other/1"), OTHER, &[]).unwrap();
    let served = served(dir.path(), |_| {});
    served.put("/v1/images/photos", &picture(0)).bad(409, "several models");
    for seed in 0..5 {
        served.put(&format!("/v1/images/photos?model=colour&name={seed}"), &picture(seed)).good();
    }
    let rebuild = |model: &str| rebuilt(&served, &json!({ "model": model, "switch": true }));
    served
        .json("POST", "/v1/images/photos/rebuild", &json!({ "model": "nobody" }))
        .bad(409, "nobody");
    served
        .json("POST", "/v1/images/photos/rebuild", &json!({ "model": "colour" }))
        .bad(409, "already");
    let progress = rebuild("other");
    assert_eq!(
        (&progress["state"], &progress["to"], &progress["done"]),
        (&json!("switched"), &json!("photos.v2"), &json!(5))
    );
    let listed = |wanted: &str| {
        let listed = served.get("/v1/images").good();
        let all = listed["collections"].as_array().unwrap().clone();
        all.into_iter().find(|entry| entry["name"] == wanted).unwrap()
    };
    assert_eq!(
        (&listed("photos")["model"], &listed("photos.v1")["count"]),
        (&json!("other"), &json!(5))
    );
    let found = served.search("/v1/images/photos/search?k=1", &picture(3)).good();
    assert_eq!(found["results"][0]["name"], "3");
    // The rebuild back copies later changes.
    let new = served.put("/v1/images/photos?name=new", &picture(50)).good()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    // Qdrant's API changes an image that both versions have.
    let third = found["results"][0]["id"].as_str().unwrap();
    let shelf = json!({ "payload": { "shelf": 7 }, "points": [third] });
    served.json("POST", "/collections/photos/points/payload?wait=true", &shelf).good();
    let back = rebuild("colour");
    assert_eq!((&back["state"], &back["to"]), (&json!("switched"), &json!("photos.v1")), "{back}");
    assert_eq!(served.count("photos"), 6);
    let point = served.get(&format!("/collections/photos/points/{third}")).good();
    assert_eq!(point["result"]["payload"]["shelf"], 7, "{point}");
    let alias = json!({ "actions": [{ "create_alias": { "collection_name": "photos.v2", "alias_name": "photos" } }] });
    served.json("POST", "/collections/aliases", &alias).good();
    assert_eq!(listed("photos")["model"], "other");
    // An original stays while any version has its image.
    served.ask("DELETE", &format!("/v1/images/photos/{new}"), "", b"").good();
    assert_eq!(served.get(&format!("/v1/images/photos.v1/{new}")).body, picture(50));
    served.ask("DELETE", "/v1/images/photos", "", b"").good();
    served.wait_for_removals();
    assert_eq!(served.get(&format!("/v1/images/photos.v1/{new}")).body, picture(50));
    // Deleting the last version deletes the originals, in either API.
    let originals = dir.path().join("collections/.originals");
    assert!(!files_below(&originals).is_empty());
    served.ask("DELETE", "/collections/photos.v1", "", b"").good();
    served.wait_for_removals();
    assert_eq!(
        (files_below(&originals).len(), served.get("/v1/images/photos.v1").status),
        (0, 404)
    );
}
