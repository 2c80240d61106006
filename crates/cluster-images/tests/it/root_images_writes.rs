//! Writes of images by a root: features split by shard, images passed on, removal.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_images::{ImageKind, ImageSettings};
use axum::body::Body;
use axum::response::IntoResponse;
use cluster::Epoch;
use cluster_node::{Owner, ShardKey};
use http::{HeaderValue, Method, Request};
use serde_json::{Value, json};

use crate::root_images_support::{
    SHARDS, features, image_root, images, points_root, shard_of, two_nodes,
};
use crate::root_support::{Answer, Behaviour, FakeNode, TestRoot, reply, set, wait_until};

fn points(ids: impl IntoIterator<Item = u64>) -> Value {
    json!({"points": ids.into_iter().map(features).collect::<Vec<_>>()})
}

async fn put_features(root: &TestRoot, query: &str, body: &Value) -> Answer {
    root.send(Method::PUT, &format!("/v1/images/c/features{query}"), body).await
}

fn error(answer: &Answer) -> &str {
    answer.json["error"].as_str().unwrap_or_else(|| panic!("{}", answer.json))
}

/// Returns the ids of the written points by shard.
fn written(nodes: &[Arc<FakeNode>]) -> BTreeMap<u64, Vec<u64>> {
    let mut written: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for write in nodes.iter().flat_map(|node| node.taken_writes()) {
        let ids = written.entry(write["shard"].as_u64().unwrap()).or_default();
        for operation in write["operations"].as_array().unwrap() {
            let points = operation["put_features"]["points"].as_array().unwrap();
            ids.extend(points.iter().map(|point| point["id"].as_u64().unwrap()));
        }
    }
    written
}

#[tokio::test]
async fn features_go_to_the_owners_of_their_shards() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    let answer = put_features(&root, "?kind=photo&model=colour", &points(30..50)).await;
    assert_eq!(answer.json, json!({"added": 10, "replaced": 10}));
    let written = written(&nodes);
    assert_eq!(written.len() as u32, SHARDS);
    for (shard, ids) in written {
        let own: Vec<u64> = (30..50).filter(|id| u64::from(shard_of(*id)) == shard).collect();
        assert_eq!(ids, own);
    }
    let lookups = nodes.iter().flat_map(|node| node.taken_reads());
    for lookup in lookups {
        let body = &lookup["body"];
        let without = (&body["with_payload"], &body["with_vector"]);
        assert_eq!(
            (lookup["path"].as_str(), without),
            (Some("points"), (&json!(false), &json!(false)))
        );
    }
    let count = root.send(Method::GET, "/v1/images/c?limit=1", &Value::Null).await;
    assert_eq!(count.status, 200, "{}", count.json);
    let reads = nodes.iter().flat_map(|node| node.taken_reads());
    let entries = reads.flat_map(|read| read["shards"].as_object().unwrap().clone());
    assert!(entries.into_iter().all(|(_, entry)| entry.as_u64().unwrap() >= 5));
}

#[tokio::test]
async fn features_that_an_old_holder_would_skip_are_refused() {
    // The nodes have no number of the protocol, as those of an earlier version.
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    let answer = put_features(&root, "", &points([39, 1_u64 << 63])).await;
    assert_eq!(answer.status, 503, "{}", answer.json);
    assert!(error(&answer).contains("earlier version"), "{}", answer.json);
    assert!(written(&nodes).is_empty());
}

#[tokio::test]
async fn features_are_written_while_holders_are_missing() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    let lost = shard_of(39);
    let rest: Vec<u32> = (0..SHARDS).filter(|shard| *shard != lost).collect();
    nodes.iter().for_each(|node| root.serve(node.name, &node.address, &rest));
    let answer = put_features(&root, "", &points([39, 40])).await;
    let expected = if shard_of(40) == lost {
        json!({"added": 0, "replaced": 0, "unknown": 2})
    } else {
        json!({"added": 1, "replaced": 0, "unknown": 1})
    };
    assert_eq!(answer.json, expected);
    assert!(written(&nodes)[&u64::from(lost)].contains(&39));
}

#[tokio::test]
async fn a_full_shard_refuses_its_features_alone() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    // The node "b" owns the odd shards.
    let full = json!({"error": "all disks are full", "made": false});
    nodes[1].behave_in_writes(Behaviour::Refuse(507, full));
    let answer = put_features(&root, "", &points(30..50)).await;
    assert_eq!(answer.status, 507);
    assert!(answer.headers.contains_key("retry-after"));
    let is_lost = |id: &u64| shard_of(*id) % 2 == 1;
    let lost: Vec<u64> = (30..50).filter(is_lost).collect();
    let kept: Vec<u64> = (30..50).filter(|id| !is_lost(id)).collect();
    assert!(!lost.is_empty() && !kept.is_empty());
    let replaced = kept.iter().filter(|id| **id < 40).count();
    let numbers = (&answer.json["added"], &answer.json["replaced"]);
    assert_eq!(numbers, (&json!(kept.len() - replaced), &json!(replaced)));
    let start = format!("{} of 20 points failed: ", lost.len());
    assert!(error(&answer).starts_with(&start), "{}", answer.json);
    let failed = answer.json["failed"].as_array().unwrap();
    let ids: Vec<u64> = failed.iter().map(|point| point["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, lost);
    let names_error = |point: &Value| point["error"].as_str().unwrap().contains("disks are full");
    assert!(failed.iter().all(names_error), "{}", answer.json);
    let mut made: Vec<u64> = written(&nodes[..1]).into_values().flatten().collect();
    made.sort_unstable();
    assert_eq!(made, kept);
}

#[tokio::test]
async fn a_wrong_point_refuses_the_request() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    let mut wrong = points([1, 2]);
    wrong["points"][1]["embedding"] = json!([1.0]);
    for (query, body, status, word) in [
        ("", &wrong, 400, "points[1]"),
        ("?model=other", &points([1]), 409, "colour"),
        ("?kind=fingerprint", &points([1]), 409, "photo"),
        ("?kind=x", &points([1]), 400, "kind"),
        ("?shard_number=0", &points([1]), 400, "shard_number"),
        ("?shards=2", &points([1]), 400, "shards"),
        ("", &json!({"points": []}), 400, "points"),
    ] {
        let answer = put_features(&root, query, body).await;
        assert_eq!(answer.status, status, "{query}: {}", answer.json);
        assert!(error(&answer).contains(word), "{query}: {}", error(&answer));
    }
    assert!(nodes.iter().all(|node| node.taken_writes().is_empty()));
    let missing = root.send(Method::PUT, "/v1/images/new/features", &points([1])).await;
    assert_eq!(missing.status, 404);
    assert!(error(&missing).contains("model="), "{}", error(&missing));
}

#[tokio::test]
async fn the_first_features_create_the_collection() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    let path = "/v1/images/new/features?model=shapes&shard_number=1&replication_factor=1";
    let body = points([1, 2]);
    let served = async {
        let view = root.view.source();
        wait_until(|| view.current().collections.contains_key("new")).await;
        let record = view.current().collections["new"].clone();
        root.view.update(|view| {
            let node = view.nodes.get_mut("a").unwrap();
            node.serving.insert(record.id.clone(), set([0]));
            let owner = Owner { node: "a".to_owned(), epoch: Epoch(1) };
            view.owners.insert(ShardKey::new(&record.id, 0), owner);
        });
        record
    };
    let (answer, record) = tokio::join!(root.send(Method::PUT, path, &body), served);
    assert_eq!(answer.status, 200, "{}", answer.json);
    let settings = ImageSettings { kind: ImageKind::Photo, model: "shapes".to_owned() };
    assert_eq!((record.images, record.shards, record.copies), (Some(settings), 1, 1));
    assert_eq!(record.create, json!({"vectors": {"size": 2, "distance": "Cosine"}}));
    let writes = nodes[0].taken_writes();
    assert_eq!((writes.len(), &writes[0]["collection"]), (1, &json!(record.id)));
}

/// A request with an image.
fn image(query: &str) -> Request<Body> {
    let request = Request::put(format!("/v1/images/c{query}"));
    request.header("content-type", "image/png").body(Body::from("picture")).unwrap()
}

#[tokio::test]
async fn images_are_passed_to_a_node_that_extracts() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    for node in &nodes {
        node.answer_passed(|_| {
            let mut answer = reply(200, &json!({"id": 1, "status": "added"}));
            let written = HeaderValue::from_static("id/1/9");
            answer.headers_mut().insert("x-millpond-written", written);
            answer
        });
    }
    let answer = root.send_request(image("?name=a%20b&timeout=30")).await;
    assert_eq!(answer.json, json!({"id": 1, "status": "added"}));
    assert!(!answer.headers.contains_key("x-millpond-written"));
    let passed: Vec<_> = nodes.iter().flat_map(|node| node.taken_passed()).collect();
    let [request] = &passed[..] else { panic!("{passed:?}") };
    assert_eq!(request.method, Method::PUT);
    assert_eq!(request.target, "/v1/images/c?name=a%20b&timeout=30");
    assert_eq!(&request.body[..], b"picture");
    assert_eq!(request.headers["content-type"], "image/png");
    assert_eq!(request.headers["x-millpond-passed-on"], "1");
    root.send(Method::GET, "/v1/images/c", &Value::Null).await;
    let reads: Vec<Value> = nodes.iter().flat_map(|node| node.taken_reads()).collect();
    assert!(reads.iter().all(|read| read["shards"]["1"] == 9), "a root reads its own writes");
}

#[tokio::test]
async fn images_are_passed_on_once() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    nodes.iter().for_each(|node| node.answer_passed(|_| reply(200, &json!({}))));
    let mut twice = image("");
    twice.headers_mut().insert("x-millpond-passed-on", HeaderValue::from_static("1"));
    let answer = root.send_request(twice).await;
    assert_eq!(answer.status, 503);
    assert!(error(&answer).contains("role extract"), "{}", error(&answer));
    assert!(nodes.iter().all(|node| node.taken_passed().is_empty()));
}

#[tokio::test]
async fn an_overloaded_node_passes_no_image() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    nodes[0].answer_passed(|_| reply(429, &json!({"error": "full"})));
    nodes[1].answer_passed(|_| reply(200, &json!({"status": "added"})));
    for _ in 0..4 {
        assert_eq!(root.send_request(image("")).await.status, 200);
    }
    nodes[1].answer_passed(|_| {
        let refused = json!({"error": "full"}).to_string();
        (http::StatusCode::TOO_MANY_REQUESTS, [("retry-after", "7")], refused).into_response()
    });
    nodes[0].answer_passed(|_| reply(400, &json!({"error": "no picture"})));
    for _ in 0..2 {
        let answer = root.send_request(image("")).await;
        assert_eq!((answer.status, error(&answer)), (400, "no picture"));
    }
    root.view.update(|view| drop(view.nodes.remove("a")));
    let full = root.send_request(image("")).await;
    assert_eq!((full.status, &full.headers["retry-after"]), (429, &HeaderValue::from_static("7")));
}

#[tokio::test]
async fn features_are_extracted_by_other_nodes() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    nodes.iter().for_each(|node| node.answer_passed(|_| reply(200, &features(1))));
    let post = |path: &str| Request::post(path).body(Body::from("picture")).unwrap();
    let answer = root.send_request(post("/v1/images/c/features?name=a")).await;
    assert_eq!(answer.json, features(1));
    let passed: Vec<_> = nodes.iter().flat_map(|node| node.taken_passed()).collect();
    assert_eq!((passed.len(), &*passed[0].target), (1, "/v1/images/c/features?name=a"));
    assert!(nodes.iter().all(|node| node.taken_writes().is_empty()));
    let unnamed = root.send_request(post("/v1/images/new/features")).await;
    assert_eq!(unnamed.status, 404);
    assert!(error(&unnamed).contains("model="), "{}", error(&unnamed));
}

#[tokio::test]
async fn requests_that_a_cluster_does_not_offer_are_refused() {
    let root = image_root(ImageKind::Photo);
    let put = |kind: &str, query: &str| {
        let request = Request::put(format!("/v1/images/c{query}")).header("content-type", kind);
        request.body(Body::from("{}")).unwrap()
    };
    for (request, status, word) in [
        (put("application/zip", ""), 400, "not a zip archive"),
        // This request shows no client of this machine.
        (put("application/json", ""), 403, "folders"),
        (put("text/plain", ""), 400, "application/zip"),
        (put("image/png", "?background=2"), 400, "background"),
        (put("image/png", "?nmae=a"), 400, "nmae"),
        (put("image/png", "?quality_min=101"), 400, "quality_min"),
        (put("image/png", "?payload=1"), 400, "payload"),
        (put("image/png", "?replication_factor=99"), 400, "replication_factor"),
    ] {
        let uri = request.uri().clone();
        let answer = root.send_request(request).await;
        assert_eq!(answer.status, status, "{uri}: {}", answer.json);
        assert!(error(&answer).contains(word), "{uri}: {}", error(&answer));
    }
    for (method, path) in [(Method::POST, "rebuild"), (Method::GET, "rebuild")] {
        let answer = root.send(method, &format!("/v1/images/c/{path}"), &Value::Null).await;
        assert_eq!(answer.status, 501, "{path}");
        assert!(error(&answer).contains("cluster"), "{}", error(&answer));
    }
}

#[tokio::test]
async fn removed_images_leave_the_log() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    let answer = root.send(Method::DELETE, "/v1/images/c/7", &Value::Null).await;
    assert_eq!(answer.json, json!({"deleted": "7"}));
    let reads: Vec<Value> = nodes.iter().flat_map(|node| node.taken_reads()).collect();
    assert!(reads.iter().all(|read| read["strong"] == true && read["path"] == "points"));
    let writes: Vec<Value> = nodes.iter().flat_map(|node| node.taken_writes()).collect();
    assert_eq!((writes.len(), &writes[0]["shard"]), (1, &json!(shard_of(7))));
    assert_eq!(writes[0]["operations"], json!([{"delete": {"points": [7]}}]));
    let unknown = root.send(Method::DELETE, "/v1/images/c/77", &Value::Null).await;
    assert_eq!((unknown.status, error(&unknown)), (404, "there is no image 77"));
    assert!(nodes.iter().all(|node| node.taken_writes().is_empty()));
    root.view.update(|view| view.owners.clear());
    let whole = root.send(Method::DELETE, "/v1/images/c", &Value::Null).await;
    assert_eq!(whole.json, json!({"deleted": "c"}));
    assert_eq!(root.send(Method::DELETE, "/v1/images/c", &Value::Null).await.status, 404);
}

#[tokio::test]
async fn vectors_are_not_removed_as_images() {
    let root = points_root();
    let node = FakeNode::start("a", images).await;
    root.serve("a", &node.address, &[0, 1, 2, 3]);
    for path in ["/v1/images/c", "/v1/images/c/7"] {
        let answer = root.send(Method::DELETE, path, &Value::Null).await;
        assert_eq!(answer.status, 409, "{path}: {}", answer.json);
    }
    assert!(root.view.source().current().collections.contains_key("c"));
}
