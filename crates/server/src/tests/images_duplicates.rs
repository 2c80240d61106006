//! Further views of a query, and duplicates of a collection, over a socket.

use std::time::Instant;

use serde_json::{Value, json};
use vision::Image;

use super::images::{Expected as _, Served, picture, serve, served};
use crate::loopback::WAIT_MAX;

/// Returns the pixels of a picture.
pub(super) fn pixels(file: &[u8]) -> Image {
    vision::decode(file, &vision::Limits::default()).unwrap().image
}

/// Encodes an image as an uncompressed BMP file (24 bits, rows from the bottom): other bytes than
/// any JPEG file. The width must be a multiple of 4, so that rows need no padding.
pub(super) fn bitmap(image: &Image) -> Vec<u8> {
    assert_eq!(image.width % 4, 0);
    let bytes = image.rgb.len() as u32;
    let mut file = b"BM".to_vec();
    for word in [54 + bytes, 0, 54, 40, image.width, image.height] {
        file.extend(word.to_le_bytes());
    }
    file.extend([1, 0, 24, 0]);
    for word in [0, bytes, 2835, 2835, 0, 0_u32] {
        file.extend(word.to_le_bytes());
    }
    for row in image.rgb.chunks_exact(image.width as usize * 3).rev() {
        file.extend(row.chunks_exact(3).flat_map(|pixel| [pixel[2], pixel[1], pixel[0]]));
    }
    file
}

/// Waits for the end of a search for duplicates and returns its progress.
fn ended(served: &Served, collection: &str) -> Value {
    let give_up = Instant::now() + WAIT_MAX;
    loop {
        let progress = served.get(&format!("/v1/images/{collection}/duplicates")).good();
        if progress["state"] != "running" {
            return progress;
        }
        assert!(Instant::now() < give_up, "{progress}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_mirrored_query_is_found_by_a_view() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    for seed in 0..4 {
        served.put("/v1/images/photos", &picture(seed)).good();
    }
    let id = served.put("/v1/images/photos", &picture(2)).good()["id"].clone();
    let plain = served.search("/v1/images/photos/search?k=1", &picture(2)).good();
    assert_eq!((&plain["views"], &plain["results"][0]["view"]), (&json!(0), &Value::Null));
    let mirrored = bitmap(&pixels(&picture(2)).mirrored());
    let found = served.search("/v1/images/photos/search?k=3&explain=1", &mirrored).good();
    let best = &found["results"][0];
    assert_eq!((&best["id"], &best["accepted"]), (&id, &json!(true)), "{found}");
    assert_eq!(best["view"]["kind"], "mirrored");
    assert_eq!(found["views"], json!(2));
    assert_eq!(found["results"].as_array().unwrap().len(), 3);
    // Pairs are in pixels of the query, which is the mirror image.
    let pairs = best["pairs"].as_array().unwrap();
    assert!(pairs.len() > 5);
    for pair in pairs {
        let at = |index: usize| pair[index].as_f64().unwrap();
        assert!((at(0) + at(2) - 160.0).abs() < 3.0 && (at(1) - at(3)).abs() < 3.0, "{pair}");
    }
    let off = served.search("/v1/images/photos/search?k=1&views=0", &mirrored).good();
    assert_eq!((&off["views"], &off["results"][0]["accepted"]), (&json!(0), &json!(false)));
    let by_id = json!({ "id": id });
    served.json("POST", "/v1/images/photos/search?views=1", &by_id).bad(400, "needs a file");
    served.json("POST", "/v1/images/photos/search?views=0", &by_id).good();
}

#[test]
fn duplicates_are_grouped_and_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = served(dir.path(), |_| {});
    for seed in 0..5 {
        first.put(&format!("/v1/images/photos?name=p{seed}"), &picture(seed)).good();
    }
    first.put("/v1/images/photos?name=copy", &bitmap(&pixels(&picture(3)))).good();
    let job = "/v1/images/photos/duplicates";
    first.get(job).bad(404, "there was no search");
    first.get(&format!("{job}/groups")).bad(404, "there was no search");
    first.json("POST", job, &json!({ "verify": false, "score": 3 })).bad(400, "no effect");
    first.json("POST", job, &json!({ "threshold": 2 })).bad(400, "threshold");
    let begun = first.json("POST", job, &json!({}));
    assert_eq!(begun.status, 202, "{}", begun.text());
    assert_eq!(begun.json()["options"]["verify"], json!(true));
    let progress = ended(&first, "photos");
    assert_eq!((&progress["state"], &progress["pairs"]), (&json!("done"), &json!(1)), "{progress}");
    assert_eq!((&progress["done"], &progress["total"]), (&json!(6), &json!(6)));
    let grouped = |served: &Served| {
        let (groups, summary) = served.get(&format!("{job}/groups")).lines();
        assert_eq!(summary, json!({ "groups": 1, "images": 2 }));
        let images = groups[0]["images"].as_array().unwrap();
        let mut names: Vec<&str> =
            images.iter().map(|image| image["name"].as_str().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, ["copy", "p3"]);
        let pair = &groups[0]["pairs"][0];
        assert!(
            pair["score"].as_f64().unwrap() > 125.0 && pair["similarity"].as_f64().unwrap() > 0.9
        );
    };
    grouped(&first);
    drop(first);
    let second = serve(dir.path(), |_| {});
    let give_up = Instant::now() + WAIT_MAX;
    while second.get(&format!("{job}/groups")).status == 503 {
        assert!(Instant::now() < give_up, "the collection was not opened");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    grouped(&second);
    assert_eq!(ended(&second, "photos")["state"], "done");
    second.ask("DELETE", job, "", b"").good();
    second.ask("DELETE", job, "", b"").bad(404, "there was no search");
}

#[test]
fn duplicates_of_vectors_are_found_unverified() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let settings = json!({ "vectors": { "size": 4, "distance": "Cosine" } });
    served.json("PUT", "/collections/notes", &settings).good();
    let vectors = [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.99, 0.02, 0.0, 0.0]];
    let points: Vec<Value> =
        (1..).zip(vectors).map(|(id, vector)| json!({ "id": id, "vector": vector })).collect();
    served.json("PUT", "/collections/notes/points?wait=true", &json!({ "points": points })).good();
    let job = "/v1/images/notes/duplicates";
    served.json("POST", job, &json!({ "verify": true })).bad(400, "only vectors");
    assert_eq!(served.json("POST", job, &json!({})).status, 202);
    assert_eq!(ended(&served, "notes")["pairs"], json!(1));
    let (groups, _) = served.get(&format!("{job}/groups")).lines();
    assert_eq!((&groups[0]["pairs"][0]["a"], &groups[0]["pairs"][0]["b"]), (&json!(1), &json!(3)));
    assert_eq!(groups[0]["pairs"][0]["score"], Value::Null);
}
