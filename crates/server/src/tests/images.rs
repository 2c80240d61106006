//! The routes of images over a socket, with the fake engine behind real workers. An embedding here
//! is the colours of six regions, because the model takes images of three by two pixels.

use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::fake::FakeEngine;
use engine::fake::publish::publish;
use serde_json::{Value, json};
use vision::{Image, thumbnail};

use crate::config::{Config, SearchConfig};
use crate::loopback::{self, Answer, Loopback, WAIT_MAX};

const COLOUR: &str =
    "millpond-fake 1\ninput x float32 n 3 2 3\noutput y float32 n 18\ny = echo x\n";

/// One value per colour of an image of one pixel.
const CLASSES: &str =
    "millpond-fake 1\ninput x float32 n 3 1 1\noutput y float32 n 3 1 1\ny = echo x\n";

/// A server in a directory that outlives it.
pub(super) struct Served(Loopback);

pub(super) fn served(dir: &Path, change: impl FnOnce(&mut Config)) -> Served {
    publish(&dir.join("models/colour/1"), COLOUR, &[]).unwrap();
    serve(dir, change)
}

/// Starts a server with the models in `dir`.
pub(super) fn serve(dir: &Path, change: impl FnOnce(&mut Config)) -> Served {
    let root = dir.join("models");
    let mut config = loopback::configuration(dir, &root);
    config.search = SearchConfig {
        directory: Some(dir.join("collections")),
        required: true,
        memory_bytes: 128 << 20,
        cache_bytes: 1 << 20,
        threads: 1,
        ..SearchConfig::default()
    };
    change(&mut config);
    let served = Loopback::start(&config, Arc::new(FakeEngine::new()));
    served.server.collections.start().unwrap();
    Served(served)
}

impl std::ops::Deref for Served {
    type Target = Loopback;

    fn deref(&self) -> &Loopback {
        &self.0
    }
}

/// Checks of an answer.
pub(super) trait Expected {
    fn good(&self) -> Value;
    fn bad(&self, status: u16, words: &str);
    fn good_bytes(&self);
    fn lines(&self) -> (Vec<Value>, Value);
}

impl Expected for Answer {
    #[track_caller]
    fn good(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    #[track_caller]
    fn bad(&self, status: u16, words: &str) {
        assert!(
            self.status == status && self.text().contains(words),
            "{} {}",
            self.status,
            self.text()
        );
    }

    #[track_caller]
    fn good_bytes(&self) {
        assert_eq!(self.status, 200, "{}", self.text());
    }

    /// Returns all lines but the last, by name, and the summary.
    #[track_caller]
    fn lines(&self) -> (Vec<Value>, Value) {
        let mut lines: Vec<Value> =
            self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let summary = lines.pop().unwrap()["summary"].clone();
        lines.sort_by_key(|line| format!("{} {}", line["name"], line["status"]));
        (lines, summary)
    }
}

impl Served {
    pub(super) fn put(&self, path: &str, body: &[u8]) -> Answer {
        self.ask("PUT", path, "Content-Type: image/jpeg\r\n", body)
    }

    pub(super) fn zip(&self, path: &str, body: &[u8]) -> Answer {
        self.ask("PUT", path, "Content-Type: application/zip\r\n", body)
    }

    pub(super) fn json(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.ask(method, path, "Content-Type: application/json\r\n", body.to_string().as_bytes())
    }

    pub(super) fn search(&self, path: &str, body: &[u8]) -> Answer {
        self.ask("POST", path, "Content-Type: image/jpeg\r\n", body)
    }

    pub(super) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", b"")
    }

    /// Waits until all originals of removed collections are checked.
    #[track_caller]
    pub(super) fn wait_for_removals(&self) {
        let waiting = &self.server.core.metrics.images.removals_waiting;
        let deadline = Instant::now() + WAIT_MAX;
        while waiting.get() > 0 {
            assert!(Instant::now() < deadline, "originals are still being removed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn count(&self, collection: &str) -> u64 {
        self.get(&format!("/v1/images/{collection}")).good()["count"].as_u64().unwrap()
    }
}

/// Returns a JPEG file of rectangles on a ground, different for each seed.
pub(super) fn picture(seed: u64) -> Vec<u8> {
    let (width, height) = (160_u32, 120_u32);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move |below: u32| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as u32 % below
    };
    let ground: [u8; 3] = std::array::from_fn(|_| random(256) as u8);
    let mut rgb = ground.repeat((width * height) as usize);
    for _ in 0..40 {
        let colour: [u8; 3] = std::array::from_fn(|_| random(256) as u8);
        let (left, top, wide, high) =
            (random(width), random(height), 6 + random(30), 6 + random(30));
        for y in top..(top + high).min(height) {
            for x in left..(left + wide).min(width) {
                let at = ((y * width + x) * 3) as usize;
                rgb[at..at + 3].copy_from_slice(&colour);
            }
        }
    }
    thumbnail(&Image { width, height, rgb }, width).unwrap()
}

pub(super) fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = ::zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        writer.start_file(*name, ::zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

pub(super) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files
}

#[test]
fn images_are_added_found_read_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    served.get("/v1/images/photos").bad(404, "there is no collection");
    let mut ids = Vec::new();
    for seed in 0..6 {
        let path = format!("/v1/images/photos?name=p{seed}.jpg&payload=%7B%22seed%22%3A{seed}%7D");
        let added = served.put(&path, &picture(seed)).good();
        assert_eq!((&added["status"], &added["width"]), (&json!("added"), &json!(160)), "{added}");
        assert!(added["keypoints"].as_u64().unwrap() > 5, "{added}");
        ids.push(added["id"].as_str().unwrap().to_owned());
    }
    let again = served.put("/v1/images/photos?background=1", &picture(3)).good();
    assert_eq!(
        (&again["status"], &again["id"], &again["name"]),
        (&json!("present"), &json!(ids[3]), &json!("p3.jpg"))
    );
    let bulk = served.put("/v1/images/photos?background=1&name=b.jpg", &picture(77)).good();
    assert_eq!(bulk["status"], "added");
    let found = served.search("/v1/images/photos/search?k=3&explain=1", &picture(2)).good();
    let best = &found["results"][0];
    assert_eq!(
        (&best["id"], &best["accepted"], &best["name"]),
        (&json!(ids[2]), &json!(true), &json!("p2.jpg"))
    );
    assert_eq!(
        (best["payload"]["seed"].clone(), found["results"].as_array().unwrap().len()),
        (json!(2), 3)
    );
    let pairs = best["pairs"].as_array().unwrap();
    assert!(
        pairs.len() > 5 && pairs.iter().all(|pair| pair[0] == pair[2] && pair[1] == pair[3]),
        "{pairs:?}"
    );
    assert_eq!((&found["query"]["width"], &found["partial"]), (&json!(160), &json!(false)));
    assert_eq!((&found["compared"], &found["of"]), (&json!(7), &json!(7)));
    let some = served.search("/v1/images/photos/search?k=1&candidates=2", &picture(2)).good();
    assert_eq!(
        (&some["compared"], &some["of"], &some["partial"]),
        (&json!(2), &json!(7), &json!(false))
    );
    let by_id =
        served.json("POST", "/v1/images/photos/search?k=1", &json!({ "id": ids[4] })).good();
    assert_eq!(by_id["results"][0]["id"], json!(ids[4]));
    let filter = "%7B%22must%22%3A%5B%7B%22key%22%3A%22seed%22%2C%22match%22%3A%7B%22value%22%3A5%7D%7D%5D%7D";
    let filtered =
        served.search(&format!("/v1/images/photos/search?filter={filter}"), &picture(2)).good();
    assert_eq!(
        (filtered["results"][0]["id"].clone(), filtered["results"].as_array().unwrap().len()),
        (json!(ids[5]), 1)
    );
    assert_eq!((&filtered["compared"], &filtered["of"]), (&json!(1), &json!(1)));
    let listed = served.get("/v1/images").good();
    let entry = &listed["collections"][0];
    assert_eq!(
        (&entry["name"], &entry["kind"], &entry["count"]),
        (&json!("photos"), &json!("photo"), &json!(7))
    );
    let mut seen = Vec::new();
    let mut next = String::new();
    loop {
        let page = served.get(&format!("/v1/images/photos?limit=2{next}")).good();
        seen.extend(
            page["images"]
                .as_array()
                .unwrap()
                .iter()
                .map(|image| image["id"].as_str().unwrap().to_owned()),
        );
        let Some(id) = page["next"].as_str() else { break };
        next = format!("&offset={id}");
    }
    assert!(seen.len() == 7 && ids.iter().all(|id| seen.contains(id)));
    let unknown = "5c56c793-69f3-8fbf-87e6-c4bf54c28c26";
    let missing = served
        .json("POST", "/v1/images/photos/missing", &json!({ "ids": [ids[0], unknown] }))
        .good();
    assert_eq!(missing["missing"], json!([unknown]));
    let original = served.get(&format!("/v1/images/photos/{}", ids[1]));
    assert!(original.body == picture(1) && original.head.contains("content-type: image/jpeg"));
    let small = served.get(&format!("/v1/images/photos/{}/thumbnail?size=64", ids[1]));
    let small = vision::decode(&small.body, &vision::Limits::default()).unwrap().image;
    assert_eq!((small.width, small.height), (64, 48));
    let points = served.get(&format!("/v1/images/photos/{}/keypoints", ids[1])).good();
    assert_eq!((&points["width"], &points["kind"]), (&json!(160), &json!("photo")));
    assert!(points["keypoints"].as_array().unwrap().len() > 5);
    let path = format!("/v1/images/photos/{}", ids[1]);
    served.ask("DELETE", &path, "", b"").good();
    served.get(&path).bad(404, "there is no image");
    assert_eq!(served.count("photos"), 6);
    let metrics = served.get("/metrics").text();
    for line in [
        "millpond_images_total{kind=\"added\"} 7",
        "millpond_images_total{kind=\"present\"} 1",
        "millpond_image_search_seconds_count{kind=\"keypoints\"}",
        "millpond_collection{model=\"photos.v1\",kind=\"points\"} 6",
        "millpond_collection_writes{kind=\"refused\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    served.ask("DELETE", "/v1/images/photos", "", b"").good();
    served.get("/v1/images/photos").bad(404, "there is no collection");
    served.wait_for_removals();
    assert!(files_below(&dir.path().join("collections/.originals")).is_empty(), "originals stayed");
}

#[test]
fn deletions_by_qdrants_interface_remove_originals() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let put = |seed: u64| {
        let path = format!("/v1/images/photos?payload=%7B%22seed%22%3A{seed}%7D");
        served.put(&path, &picture(seed)).good()["id"].clone()
    };
    let ids: Vec<Value> = (0..6).map(put).collect();
    let left = || {
        let originals = files_below(&dir.path().join("collections/.originals"));
        (originals.len(), served.count("photos"))
    };
    let change = |name: &str, body: &Value| {
        served.json("POST", &format!("/collections/photos/points/{name}"), body).good();
    };
    assert_eq!(left(), (6, 6));
    let unknown = "5c56c793-69f3-8fbf-87e6-c4bf54c28c26";
    change("delete", &json!({ "points": [ids[0], unknown] }));
    assert_eq!(left(), (5, 5));
    let seed = |seed: u64| json!({"must": [{"key": "seed", "match": {"value": seed}}]});
    change("delete", &json!({ "filter": seed(1) }));
    assert_eq!(left(), (4, 4));
    let operations = json!([
        {"set_payload": {"payload": {"seed": 9}, "points": [ids[2]]}},
        {"delete": {"filter": seed(9)}},
        {"delete": {"points": [ids[3]]}},
        {"set_payload": {"payload": {"seed": 9}, "points": [ids[4]]}},
    ]);
    change("batch", &json!({ "operations": operations }));
    assert_eq!(left(), (2, 2));
    let again = served.put("/v1/images/photos", &picture(0)).good();
    assert_eq!((&again["status"], left()), (&json!("added"), (3, 3)));
    served.get(&format!("/v1/images/photos/{}", ids[4].as_str().unwrap())).good_bytes();
}

#[test]
fn a_wrong_request_adds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let whole = picture(1);
    served.put("/v1/images/photos?name=half.jpg", &whole[..whole.len() / 2]).bad(400, "half.jpg");
    served.put("/v1/images/photos", b"").bad(400, "the file is empty");
    served.put("/v1/images/photos", b"hello").bad(
        400,
        "not a readable image (supported: JPEG, PNG, WebP, TIFF, BMP, WSQ, ANSI/NIST-ITL)",
    );
    let folder = br#" { "folder": "/pictures" }"#;
    served.put("/v1/images/photos", folder).bad(400, "this is JSON and not an image");
    served.put("/v1/images/photos?kind=riddle", &whole).bad(400, "riddle");
    served.put("/v1/images/photos?payload=%7B%22image%22%3A1%7D", &whole).bad(400, "image");
    served.put("/v1/images/photos?model=nobody", &whole).bad(409, "nobody");
    served.put("/v1/images/photos?nonsense=1", &whole).bad(400, "nonsense");
    served.put("/v1/images/.hidden", &whole).bad(400, "name");
    served
        .ask("PUT", "/v1/images/photos", "Content-Type: text/html\r\n", &whole)
        .bad(400, "text/html");
    served.get("/v1/images/photos").bad(404, "there is no collection");
    // An upload that stops half-way is not added.
    let mut stream = served.connect();
    let head = format!(
        "PUT /v1/images/photos HTTP/1.1\r\nHost: {}\r\nContent-Type: image/jpeg\r\nContent-Length: {}\r\n\r\n",
        served.address,
        whole.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&whole[..whole.len() / 2]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    drop(stream.read_to_end(&mut Vec::new()));
    served.get("/v1/images/photos").bad(404, "there is no collection");
    served.put("/v1/images/photos", &whole).good();
    served.put("/v1/images/photos?kind=fingerprint", &picture(2)).bad(409, "kind photo");
    served.search("/v1/images/photos/search?k=0", &whole).bad(400, "k is 1");
    served.search("/v1/images/photos/search?candidates=100000", &whole).bad(400, "candidates");
    served.search("/v1/images/photos/search?filter=%7B", &whole).bad(400, "");
    served.get("/v1/images/photos/nonsense").bad(400, "nonsense");
}

#[test]
fn decoding_stays_within_the_memory_of_requests() {
    let dir = tempfile::tempdir().unwrap();
    let needed = vision::decode_bytes(&picture(1), &vision::Limits::default()).unwrap();
    let max = needed * 3 / 2;
    let served = served(dir.path(), |config| config.listeners.request_memory_bytes = Some(max));
    let budget = served.server.requests.memory.clone();
    let id = served.put("/v1/images/photos", &picture(1)).good()["id"].as_str().unwrap().to_owned();
    assert!(budget.used() == 0 && budget.peak() >= needed, "{} {}", budget.used(), budget.peak());
    let others = budget.reserve(needed).unwrap();
    let small = format!("/v1/images/photos/{id}/thumbnail");
    for refused in [
        served.put("/v1/images/photos", &picture(2)),
        served.search("/v1/images/photos/search", &picture(1)),
        served.get(&small),
    ] {
        refused.bad(429, "--request-memory");
        assert!(refused.head.to_lowercase().contains("retry-after"), "{}", refused.head);
    }
    assert_eq!(budget.used(), needed);
    // Bulk work waits for the memory.
    let body = archive(&[
        ("two.jpg", &picture(2)),
        ("three.jpg", &picture(3)),
        ("broken.jpg", b"\xff\xd8\xff\xe0"),
    ]);
    let (_, summary) = std::thread::scope(|scope| {
        let sent = scope.spawn(|| served.zip("/v1/images/photos", &body).lines());
        let give_up = Instant::now() + WAIT_MAX;
        while served.server.images.bulk_bytes() == 0 && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(others);
        sent.join().unwrap()
    });
    assert_eq!(summary, json!({ "added": 2, "present": 0, "failed": 1, "ignored": 0 }));
    served.get(&small).good_bytes();
    assert_eq!((budget.used(), served.server.images.bulk_bytes()), (0, 0));
    assert!(budget.peak() <= max);
}

#[test]
fn an_image_beyond_the_memory_of_requests_is_too_large() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.listeners.request_memory_bytes = Some(1 << 20));
    served.put("/v1/images/photos", &picture(1)).bad(413, "--request-memory");
    let (lines, summary) =
        served.zip("/v1/images/photos", &archive(&[("one.jpg", &picture(1))])).lines();
    assert!(lines[0]["error"].as_str().unwrap().contains("--request-memory"), "{lines:?}");
    assert_eq!((&summary["failed"], served.server.requests.memory.used()), (&json!(1), 0));
}

#[test]
fn an_acknowledged_image_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let id = {
        let served = served(dir.path(), |_| {});
        served.put("/v1/images/photos?name=kept.jpg", &picture(9)).good()["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let served = served(dir.path(), |_| {});
    assert!(served.server.collections.registry().unwrap().wait_open(WAIT_MAX));
    assert_eq!(served.get(&format!("/v1/images/photos/{id}")).body, picture(9));
    let found = served.search("/v1/images/photos/search?k=1", &picture(9)).good();
    assert_eq!(
        (&found["results"][0]["id"], &found["results"][0]["accepted"]),
        (&json!(id), &json!(true))
    );
}

#[test]
fn a_classifier_is_no_embedding_model_unless_it_is_named() {
    let dir = tempfile::tempdir().unwrap();
    publish(&dir.path().join("models/classes/1"), CLASSES, &[]).unwrap();
    let served = serve(dir.path(), |_| {});
    served.put("/v1/images/photos", &picture(0)).bad(409, "(classes) give fewer than 16 values");
    let reason = served.get("/v1/images").good()["embedding"]["error"].to_string();
    assert!(reason.contains("(classes) give fewer than 16 values"), "{reason}");
    served.put("/v1/images/classes?model=classes", &picture(0)).good();
    drop(served);
    let served = self::served(dir.path(), |_| {});
    served.put("/v1/images/photos", &picture(0)).good();
    let listed = served.get("/v1/images").good();
    assert_eq!(listed["collections"][1]["model"], "colour");
    assert_eq!(listed["embedding"], json!({ "model": "colour" }));
}

#[test]
fn every_route_of_collections_needs_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.search.api_key = Some("s3cret".to_owned()));
    for path in ["/v1/images", "/v1/images/photos", "/v1/images/openapi.json", "/collections"] {
        served.get(path).bad(401, "key");
        assert_ne!(served.ask("GET", path, "api-key: s3cret\r\n", b"").status, 401, "{path}");
        assert_ne!(
            served.ask("GET", path, "Authorization: Bearer s3cret\r\n", b"").status,
            401,
            "{path}"
        );
    }
    assert_eq!(served.get("/v2/health/ready").status, 200);
    assert_eq!(served.get("/no/such/place").status, 404);
}

#[test]
fn a_server_without_collections_names_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.search = SearchConfig::default());
    served.get("/v1/images").bad(409, "--collections-dir");
    served.put("/v1/images/photos", &picture(1)).bad(409, "--collections-dir");
}

#[test]
fn the_default_directory_is_created_on_demand() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.search.required = false);
    assert!(!dir.path().join("collections").exists());
    served.put("/v1/images/photos", &picture(1)).good();
    assert!(dir.path().join("collections").exists());
}
