//! Stored images behind a root: passed to holders, listed, and looked up.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use api_images::ImageKind;
use axum::body::Body;
use axum::response::IntoResponse;
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};

use crate::root_images_support::{SHARDS, features, images, root_with_memory, shard_of, two_nodes};
use crate::root_support::{Answer, FakeNode, FakeReply, TestRoot, reply};

async fn get(root: &TestRoot, path: &str) -> Answer {
    root.send(Method::GET, &format!("/v1/images{path}"), &Value::Null).await
}

fn error(answer: &Answer) -> &str {
    answer.json["error"].as_str().unwrap_or_else(|| panic!("{}", answer.json))
}

/// An image that clients may cache.
fn jpeg() -> FakeReply {
    let headers = [
        ("content-type", "image/jpeg"),
        ("cache-control", "private, max-age=86400"),
        ("x-content-type-options", "nosniff"),
        ("x-internal", "1"),
    ];
    (StatusCode::OK, headers, &b"\xff\xd8\x00"[..]).into_response()
}

#[tokio::test]
async fn a_holder_answers_for_a_stored_image() {
    let (root, nodes) = two_nodes(ImageKind::Fingerprint).await;
    nodes.iter().for_each(|node| node.answer_passed(|_| jpeg()));
    let shard = shard_of(7);
    for (path, expected) in [
        ("", ""),
        ("/thumbnail?size=64&timeout=9", "/thumbnail?size=64"),
        ("/keypoints?min_coverage=1", "/keypoints"),
        ("/template?format=iso", "/template?format=iso"),
        ("/features", "/features"),
    ] {
        let answer = get(&root, &format!("/c/7{path}")).await;
        assert_eq!((answer.status, &answer.body[..]), (200, &b"\xff\xd8\x00"[..]), "{path}");
        assert_eq!(answer.headers["content-type"], "image/jpeg");
        assert_eq!(answer.headers["cache-control"], "private, max-age=86400");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        assert!(!answer.headers.contains_key("x-internal"));
        let passed: Vec<_> = nodes.iter().flat_map(|node| node.taken_passed()).collect();
        let target = format!("/cluster/v1/shards/id/{shard}/7{expected}");
        assert_eq!((passed.len(), &passed[0].target), (1, &target));
    }
}

#[tokio::test]
async fn the_next_holder_answers_after_a_failure() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    nodes[1].answer_passed(|_| jpeg());
    for status in [503, 429, 500] {
        nodes[0].answer_passed(move |_| reply(status, &json!({"error": "busy"})));
        for _ in 0..3 {
            assert_eq!(get(&root, "/c/7").await.status, 200);
        }
        assert!(!nodes[0].taken_passed().is_empty());
    }
    nodes[1].answer_passed(|_| reply(429, &json!({"error": "full"})));
    assert!([429, 500].contains(&get(&root, "/c/7").await.status));
    nodes.iter().for_each(|node| drop(node.taken_passed()));
    nodes.iter().for_each(|node| {
        node.answer_passed(|_| reply(404, &json!({"error": "there is no image 7"})));
    });
    let missing = get(&root, "/c/7").await;
    assert_eq!((missing.status, error(&missing)), (404, "there is no image 7"));
    // The second one is the holder in which a lookup found the point.
    let asked: usize = nodes.iter().map(|node| node.taken_passed().len()).sum();
    assert_eq!(asked, 2);
    root.view.update(|view| view.nodes.clear());
    let unserved = get(&root, "/c/7").await;
    assert_eq!(unserved.status, 503);
    assert!(error(&unserved).contains("start more search nodes"), "{}", error(&unserved));
}

#[tokio::test]
async fn an_image_that_a_holder_lacks_is_looked_up() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    let is_first = Arc::new(AtomicBool::new(true));
    for node in &nodes {
        let is_first = is_first.clone();
        node.answer_passed(move |_| {
            if is_first.swap(false, Ordering::Relaxed) {
                reply(404, &json!({"error": "there is no image 7"}))
            } else {
                jpeg()
            }
        });
    }
    assert_eq!(get(&root, "/c/7").await.status, 200);
    is_first.store(true, Ordering::Relaxed);
    let missing = get(&root, "/c/77").await;
    assert_eq!((missing.status, error(&missing)), (404, "there is no image 77"));
    assert_eq!(root.count("confirmed"), 1);
}

#[tokio::test]
async fn a_holder_that_hangs_costs_no_answer() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    nodes[1].answer_passed(|_| jpeg());
    // Connections wait for a listener that accepts none.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    root.serve("a", &silent, &[0, 1, 2, 3]);
    for _ in 0..3 {
        // Half of the time is for the silent node.
        assert_eq!(get(&root, "/c/7?timeout=8").await.status, 200);
    }
}

#[tokio::test]
async fn a_root_reads_its_own_image() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    nodes.iter().for_each(|node| node.answer_passed(|_| jpeg()));
    let points = json!({"points": [features(7)]});
    root.send(Method::PUT, "/v1/images/c/features", &points).await;
    nodes.iter().for_each(|node| drop(node.taken_reads()));
    for _ in 0..4 {
        assert_eq!(get(&root, "/c/7").await.status, 200);
        let shard = shard_of(7).to_string();
        for node in &nodes {
            let lookups = node.taken_reads();
            assert!(lookups.iter().all(|lookup| lookup["shards"][&shard] == 5));
            assert_eq!(lookups.len(), node.taken_passed().len(), "who was looked at, answers");
        }
    }
    nodes.iter().for_each(|node| drop(node.taken_passed()));
    let other = (0..40).find(|id| shard_of(*id) != shard_of(7)).unwrap();
    get(&root, &format!("/c/{other}")).await;
    assert!(nodes.iter().all(|node| node.taken_reads().is_empty()), "no write to this shard");
    let strong = get(&root, &format!("/c/{other}?consistency=strong")).await;
    assert_eq!(strong.status, 200);
    let reads: Vec<Value> = nodes.iter().flat_map(|node| node.taken_reads()).collect();
    assert!(reads.len() == 1 && reads[0]["strong"] == true, "{reads:?}");
    let unknown = get(&root, "/c/77?consistency=strong").await;
    assert_eq!((unknown.status, error(&unknown)), (404, "there is no image 77"));
}

#[tokio::test]
async fn wrong_requests_for_an_image_are_refused() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    for (path, status, word) in [
        ("/c/7?size=3", 400, "size"),
        ("/c/7/thumbnail?side=3", 400, "side"),
        ("/c/7/features?wait=true", 400, "wait"),
        ("/c/x", 400, "x"),
        ("/c/7/template", 409, "photographs"),
        ("/d/7", 404, "d"),
    ] {
        let answer = get(&root, path).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.json);
        assert!(error(&answer).contains(word), "{path}: {}", error(&answer));
    }
    assert!(nodes.iter().all(|node| node.taken_passed().is_empty()));
}

#[tokio::test]
async fn a_holder_verifies_a_fingerprint() {
    let (root, nodes) = two_nodes(ImageKind::Fingerprint).await;
    nodes.iter().for_each(|node| node.answer_passed(|_| reply(200, &json!({"score": 9}))));
    let post = |query: &str, media: &str| {
        let request = Request::post(format!("/v1/images/c/verify{query}"));
        request.header("content-type", media).body(Body::from("finger")).unwrap()
    };
    let answer = root.send_request(post("?id=7&threshold=5", "image/png")).await;
    assert_eq!(answer.json, json!({"score": 9}));
    let passed: Vec<_> = nodes.iter().flat_map(|node| node.taken_passed()).collect();
    let target = format!("/cluster/v1/shards/id/{}/verify?id=7&threshold=5", shard_of(7));
    assert_eq!((passed.len(), &passed[0].target), (1, &target));
    assert_eq!((&passed[0].method, &passed[0].body[..]), (&Method::POST, &b"finger"[..]));
    assert_eq!(passed[0].headers["content-type"], "image/png");
    let two = root.send_request(post("", "application/json")).await;
    assert!(two.status == 400 && error(&two).contains("JSON"), "{}", two.json);
    let unnamed = root.send_request(post("", "image/png")).await;
    assert!(unnamed.status == 400 && error(&unnamed).contains("id="), "{}", unnamed.json);
}

#[tokio::test]
async fn files_to_verify_hold_memory_of_the_root() {
    let (root, memory) = root_with_memory(ImageKind::Fingerprint);
    let node = FakeNode::start("a", images).await;
    root.serve(node.name, &node.address, &[0, 1, 2, 3]);
    let held = Arc::new(AtomicU64::new(0));
    let seen = held.clone();
    node.answer_passed(move |_| {
        seen.store(memory.used(), Ordering::Relaxed);
        reply(200, &json!({"score": 9}))
    });
    let file = json!({ "file": "AAAA".repeat(1 << 17) });
    let body = json!({ "first": file, "second": file });
    let request = Request::post("/v1/images/c/verify").header("content-type", "application/json");
    let answer = root.send_request(request.body(Body::from(body.to_string())).unwrap()).await;
    assert_eq!(answer.json, json!({"score": 9}));
    // The texts of both files, and the request with them.
    assert!(held.load(Ordering::Relaxed) >= 2 << 20, "{held:?}");
}

#[tokio::test]
async fn pages_have_all_images_in_order() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    let mut seen = Vec::new();
    let mut query = "?limit=15".to_owned();
    loop {
        let page = get(&root, &format!("/c{query}")).await;
        assert_eq!((page.status, &page.json["count"]), (200, &json!(40)), "{}", page.json);
        assert_eq!(page.json["partial"], false);
        for image in page.json["images"].as_array().unwrap() {
            let id = image["id"].as_u64().unwrap();
            assert_eq!(
                (&image["name"], &image["payload"]),
                (&json!(format!("{id}.png")), &json!({"n": id}))
            );
            seen.push(id);
        }
        let Some(next) = page.json["next"].as_u64() else { break };
        query = format!("?limit=15&offset={next}");
    }
    assert_eq!(seen, (0..40).collect::<Vec<_>>());
    let lost = shard_of(0);
    let rest: Vec<u32> = (0..SHARDS).filter(|shard| *shard != lost).collect();
    nodes.iter().for_each(|node| root.serve(node.name, &node.address, &rest));
    let part = get(&root, "/c").await;
    assert_eq!(part.json["coverage"], json!({"shards": 3, "of": 4}));
    assert_eq!(part.json["partial"], true);
    assert_eq!(get(&root, "/c?min_coverage=1").await.status, 503);
    for query in ["limit=0", "limit=1001", "offset=x", "filter=%7B", "page=1"] {
        assert_eq!(get(&root, &format!("/c?{query}")).await.status, 400, "{query}");
    }
}

#[tokio::test]
async fn missing_ids_are_certain() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    let path = "/v1/images/c/missing";
    let body = json!({"ids": [39, 40, 7, 77]});
    let answer = root.send(Method::POST, path, &body).await;
    assert_eq!(answer.json, json!({"missing": [40, 77]}));
    let reads: Vec<Value> = nodes.iter().flat_map(|node| node.taken_reads()).collect();
    assert!(reads.iter().all(|read| read["strong"] == true), "a holder may lag: {reads:?}");
    let new = root.send(Method::POST, "/v1/images/new/missing", &body).await;
    assert_eq!(new.json, json!({"missing": [39, 40, 7, 77]}));
    let none = root.send(Method::POST, path, &json!({"ids": []})).await;
    assert_eq!(none.json, json!({"missing": []}));
    let many: Vec<u64> = (0..1001).collect();
    assert_eq!(root.send(Method::POST, path, &json!({ "ids": many })).await.status, 400);
    let lost = shard_of(39);
    let rest: Vec<u32> = (0..SHARDS).filter(|shard| *shard != lost).collect();
    nodes.iter().for_each(|node| root.serve(node.name, &node.address, &rest));
    assert_eq!(root.send(Method::POST, path, &body).await.status, 503);
}

#[tokio::test]
async fn the_list_counts_images_and_names_the_model() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    for node in &nodes {
        node.answer_passed(|request| {
            assert_eq!(
                (&*request.target, &request.headers["x-millpond-passed-on"]),
                ("/v1/images", &"1".parse().unwrap())
            );
            reply(200, &json!({"collections": [], "embedding": {"model": "colour"}}))
        });
    }
    root.view.update(|view| {
        let mut vectors = view.collections["c"].clone();
        vectors.name = "vectors".to_owned();
        vectors.id = "vectors".to_owned();
        vectors.images = None;
        let mut unserved = view.collections["c"].clone();
        unserved.name = "b".to_owned();
        unserved.id = "b".to_owned();
        view.collections.insert(vectors.name.clone(), vectors);
        view.collections.insert(unserved.name.clone(), unserved);
    });
    let list = get(&root, "").await;
    assert_eq!(list.json["embedding"], json!({"model": "colour"}));
    let [unserved, served] = &list.json["collections"].as_array().unwrap()[..] else {
        panic!("{}", list.json)
    };
    let expected = json!({"name": "c", "collection": "c", "state": "ready", "kind": "photo",
                          "model": "colour", "dims": 2, "count": 40});
    assert_eq!(served, &expected);
    assert_eq!((&unserved["name"], &unserved["state"]), (&json!("b"), &json!("opening")));
    let openapi = get(&root, "/openapi.json").await;
    let paths: BTreeSet<&String> = openapi.json["paths"].as_object().unwrap().keys().collect();
    assert!(paths.contains(&"/v1/images/{collection}/search".to_owned()));
    root.view.update(|view| view.nodes.values_mut().for_each(|node| node.roles.extract = false));
    let error = get(&root, "").await.json["embedding"]["error"].to_string();
    assert!(error.contains("--cluster-roles"), "{error}");
}
