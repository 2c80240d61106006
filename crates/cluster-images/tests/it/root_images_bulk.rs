//! Folders of images, which a root reads and other nodes extract. Archives take the same way.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api_images::{ImageKind, image_id};
use axum::body::Body;
use http::{HeaderValue, Method, Request};
use serde_json::{Value, json};
use transport::Peer;

use crate::root_images_support::{SHARDS, image_root, images, two_nodes};
use crate::root_support::{
    Answer, FakeNode, FakeReply, PassedRequest, TestRoot, refusing_socket, reply,
};

/// Writes files "0.jpg" and so on, all different. Nodes of these tests read no pixels.
fn folder(count: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..count {
        std::fs::write(folder.path().join(format!("{number}.jpg")), number.to_string()).unwrap();
    }
    folder
}

async fn put(root: &TestRoot, query: &str, folder: &Path) -> Answer {
    let body = json!({ "folder": folder }).to_string();
    let mut request = Request::put(format!("/v1/images/{query}"))
        .header("content-type", "application/json")
        .body(Body::from(body))
        .unwrap();
    request.extensions_mut().insert(Peer::Unix(None));
    root.send_request(request).await
}

/// Returns the lines of an answer by the name of the image, and its summary.
fn lines(answer: &Answer) -> (BTreeMap<String, Value>, Value) {
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    assert_eq!(answer.status, 200, "{text}");
    let mut lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = lines.pop().unwrap()["summary"].clone();
    let named = lines.into_iter().map(|line| (line["name"].as_str().unwrap().to_owned(), line));
    (named.collect(), summary)
}

fn added(_: &PassedRequest) -> FakeReply {
    let mut answer = reply(200, &json!({"id": 1, "status": "added"}));
    answer.headers_mut().insert("x-millpond-written", HeaderValue::from_static("id/1/9"));
    answer
}

/// Returns the answer of a node to an image whose shard refuses it.
fn refused_by_shard(status: u16) -> FakeReply {
    let mut answer = reply(status, &json!({"error": "the shard takes no image"}));
    let headers = answer.headers_mut();
    headers.insert("x-millpond-shard-refusal", HeaderValue::from_static("1"));
    headers.insert("retry-after", HeaderValue::from_static("0"));
    answer
}

/// Returns the shard of the image with these bytes.
fn shard_of_file(bytes: &[u8]) -> u32 {
    cluster::shard_of(image_id(bytes).to_string().as_bytes(), SHARDS).unwrap().0
}

fn counts(added: u64, present: u64, failed: u64, ignored: u64) -> Value {
    json!({"added": added, "present": present, "failed": failed, "ignored": ignored})
}

#[tokio::test]
async fn all_extraction_nodes_get_images_of_a_folder() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    nodes.iter().for_each(|node| node.answer_passed(added));
    let folder = folder(20);
    std::fs::write(folder.path().join("notes.txt"), "no image").unwrap();
    let query = "c?payload=%7B%22n%22%3A1%7D&kind=photo&consistency=strong&timeout=40";
    let (lines, summary) = lines(&put(&root, query, folder.path()).await);
    assert_eq!(summary, counts(20, 0, 0, 1));
    assert_eq!(lines["3.jpg"], json!({"name": "3.jpg", "id": 1, "status": "added"}));
    let passed = nodes.clone().map(|node| node.taken_passed());
    assert!(passed.iter().all(|passed| passed.len() >= 5), "{:?}", passed.each_ref().map(Vec::len));
    let passed: Vec<PassedRequest> = passed.into_iter().flatten().collect();
    assert_eq!(passed.len(), 20);
    for request in &passed {
        let number = String::from_utf8(request.body.to_vec()).unwrap();
        let query = format!(
            "name={number}.jpg&payload=%7B%22n%22%3A1%7D&kind=photo&background=1&consistency=strong&timeout=40"
        );
        assert_eq!(request.target, format!("/v1/images/c?{query}"));
        assert_eq!(request.headers["x-millpond-passed-on"], "1");
        assert_eq!(request.headers["content-type"], "application/octet-stream");
    }
    root.send(Method::GET, "/v1/images/c", &Value::Null).await;
    let reads: Vec<Value> = nodes.iter().flat_map(|node| node.taken_reads()).collect();
    assert!(reads.iter().all(|read| read["shards"]["1"] == 9), "a root reads its own writes");
}

#[tokio::test]
async fn an_image_that_occurs_twice_is_sent_once() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    nodes.iter().for_each(|node| node.answer_passed(added));
    let folder = folder(3);
    for name in ["again.jpg", "more.jpg"] {
        std::fs::write(folder.path().join(name), "1").unwrap();
    }
    let (_, summary) = lines(&put(&root, "c", folder.path()).await);
    assert_eq!(summary, counts(3, 2, 0, 0));
    assert_eq!(nodes.iter().flat_map(|node| node.taken_passed()).count(), 3);
}

#[tokio::test]
async fn an_overloaded_node_is_asked_again() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    root.view.update(|view| drop(view.nodes.remove("b")));
    let asked = Arc::new(AtomicU64::new(0));
    let own = asked.clone();
    nodes[0].answer_passed(move |request| match own.fetch_add(1, Ordering::Relaxed) {
        0 => reply(429, &json!({"error": "full"})),
        1 => reply(503, &json!({"error": "restarts"})),
        _ => added(request),
    });
    let (_, summary) = lines(&put(&root, "c", folder(1).path()).await);
    assert_eq!((summary, asked.load(Ordering::Relaxed)), (counts(1, 0, 0, 0), 3));
}

#[tokio::test]
async fn images_wait_for_a_node_that_extracts() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    nodes.iter().for_each(|node| node.answer_passed(added));
    let extracts = |extracts: bool| {
        root.view.update(|view| {
            view.nodes.values_mut().for_each(|node| node.roles.extract = extracts);
        });
    };
    extracts(false);
    let folder = folder(3);
    let begun = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        extracts(true);
    };
    let (answer, ()) = tokio::join!(put(&root, "c", folder.path()), begun);
    assert_eq!(lines(&answer).1, counts(3, 0, 0, 0));
}

#[tokio::test]
async fn a_refused_image_fails_alone() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    for node in &nodes {
        node.answer_passed(|request| {
            if request.target.contains("name=2.jpg") {
                reply(400, &json!({"error": "no picture"}))
            } else {
                reply(200, &json!({"id": 1, "status": "present"}))
            }
        });
    }
    let (lines, summary) = lines(&put(&root, "c", folder(4).path()).await);
    assert_eq!(summary, counts(0, 3, 1, 0));
    let failed = json!({"name": "2.jpg", "id": null, "status": "failed", "error": "no picture"});
    assert_eq!(lines["2.jpg"], failed);
}

#[tokio::test]
async fn images_after_a_full_disk_are_not_sent() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    nodes.iter().for_each(|node| node.answer_passed(|_| reply(507, &json!({"error": "no space"}))));
    let (lines, summary) = lines(&put(&root, "c", folder(300).path()).await);
    assert_eq!((summary, lines.len()), (counts(0, 0, 300, 0), 300));
    let sent = nodes.iter().flat_map(|node| node.taken_passed()).count();
    // At most the images that were in flight when the first one was refused.
    assert!(sent <= 256, "{sent}");
    let error = |line: &Value| line["error"].as_str().unwrap().to_owned();
    let not_tried = lines.values().filter(|line| error(line).starts_with("not tried")).count();
    assert_eq!(not_tried, 300 - sent);
    assert!(lines.values().all(|line| error(line).ends_with("no space")));
}

#[tokio::test]
async fn a_full_shard_fails_its_images_alone() {
    const FULL: u32 = 1;
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    for node in &nodes {
        node.answer_passed(|request| match shard_of_file(&request.body) {
            FULL => refused_by_shard(507),
            _ => added(request),
        });
    }
    let refused = (0..40_u64).filter(|it| shard_of_file(it.to_string().as_bytes()) == FULL);
    let refused: Vec<String> = refused.map(|number| format!("{number}.jpg")).collect();
    assert!(refused.len() > 1);
    // The images of the shard wait no longer than the client's timeout, which is that of each image
    // too.
    let (lines, summary) = lines(&put(&root, "c?timeout=3", folder(40).path()).await);
    let failed = refused.len() as u64;
    assert_eq!((summary, lines.len()), (counts(40 - failed, 0, failed, 0), 40));
    for name in refused {
        let error = lines[&name]["error"].as_str().unwrap();
        assert!(error.ends_with("the shard takes no image"), "{error}");
    }
}

/// The shard has no owner for a moment. No other node is asked to send the image to the same shard.
#[tokio::test]
async fn images_wait_for_their_shard() {
    const REFUSALS: u64 = 2;
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    let asked = Arc::new(AtomicU64::new(0));
    for node in &nodes {
        let asked = asked.clone();
        node.answer_passed(move |request| {
            let is_owned = shard_of_file(&request.body) != 1;
            if is_owned || asked.fetch_add(1, Ordering::Relaxed) >= REFUSALS {
                return added(request);
            }
            refused_by_shard(503)
        });
    }
    let (_, summary) = lines(&put(&root, "c", folder(40).path()).await);
    assert_eq!(summary, counts(40, 0, 0, 0));
    let sent = nodes.iter().flat_map(|node| node.taken_passed()).count() as u64;
    assert_eq!(sent, 40 + REFUSALS);
}

/// An upload that is repeated finds most of its images. A shard that had no owner for a moment must
/// not fail them.
#[tokio::test]
async fn one_refusal_fails_no_image_that_is_present() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    let asked = Arc::new(AtomicU64::new(0));
    for node in &nodes {
        let asked = asked.clone();
        node.answer_passed(move |request| {
            let is_first =
                shard_of_file(&request.body) == 1 && asked.fetch_add(1, Ordering::Relaxed) == 0;
            if is_first {
                refused_by_shard(503)
            } else {
                reply(200, &json!({"id": 1, "status": "present"}))
            }
        });
    }
    // More than the nodes get before the first answer. The timeout is that of each image too.
    let (_, summary) = lines(&put(&root, "c?timeout=10", folder(400).path()).await);
    assert_eq!(summary, counts(0, 400, 0, 0));
}

#[tokio::test]
async fn a_dead_node_costs_no_image() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    nodes.iter().for_each(|node| node.answer_passed(added));
    let dead = refusing_socket();
    root.serve("a", &dead.local_addr().unwrap().to_string(), &[]);
    let (_, summary) = lines(&put(&root, "c", folder(10).path()).await);
    assert_eq!(summary, counts(10, 0, 0, 0));
    assert_eq!(nodes[1].taken_passed().len(), 10);
}

#[tokio::test]
async fn the_first_image_creates_the_collection_alone() {
    let root = image_root(ImageKind::Photo);
    let node = FakeNode::start("a", images).await;
    root.serve(node.name, &node.address, &[]);
    let view = root.view.clone();
    node.answer_passed(move |request| {
        // A damaged image creates nothing.
        if request.target.contains("name=0.jpg") {
            return reply(400, &json!({"error": "damaged"}));
        }
        view.update(|view| {
            let mut record = view.collections["c"].clone();
            record.name = "new".to_owned();
            record.id = "new-id".to_owned();
            view.collections.entry(record.name.clone()).or_insert(record);
        });
        added(request)
    });
    let (_, summary) = lines(&put(&root, "new?shard_number=2", folder(8).path()).await);
    assert_eq!(summary, counts(7, 0, 1, 0));
    let passed = node.taken_passed();
    let seen = |request: &PassedRequest| request.headers["x-millpond-collection"].clone();
    let seen: Vec<HeaderValue> = passed.iter().map(seen).collect();
    assert_eq!(seen[..2], ["none", "none"]);
    assert!(seen[2..].iter().all(|id| id == "new-id"), "{seen:?}");
    assert!(passed.iter().all(|request| request.target.contains("shard_number=2")));
}

#[tokio::test]
async fn wrong_parameters_refuse_a_folder() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    let own = folder(1);
    for (query, word) in [
        ("c?name=a.jpg", "name="),
        ("c?kind=x", "kind"),
        ("c?background=0", "background"),
        ("c?quality_min=101", "quality_min"),
        ("c?payload=1", "payload"),
        ("c?shard_number=0", "shard_number"),
        ("c?other=1", "other"),
    ] {
        let answer = put(&root, query, own.path()).await;
        let error = answer.json["error"].as_str().unwrap();
        assert!(answer.status == 400 && error.contains(word), "{query}: {error}");
    }
    let relative = put(&root, "c", Path::new("pictures")).await;
    assert_eq!(relative.status, 400, "{}", relative.json);
    assert!(nodes.iter().all(|node| node.taken_passed().is_empty()));
}
