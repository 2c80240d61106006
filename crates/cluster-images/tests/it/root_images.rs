//! Searches of images by a root: two rounds, extraction on other nodes, failures, coverage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api_images::{ExtractedQuery, ImageKind};
use axum::body::Body;
use cluster_node::Roles;
use http::{Method, Request};
use serde_json::{Value, json};

use crate::root_images_support::{
    SHARDS, empty_root, features, image_root, images, result_ids, shard_of, two_nodes,
};
use crate::root_support::{
    Answer, Behaviour, FakeNode, FakeReply, PassedRequest, TestRoot, asked, refusing_socket, reply,
    set,
};

/// Searches by point 7.
async fn search(root: &TestRoot, query: &str) -> Answer {
    let path = format!("/v1/images/c/search?{query}");
    let request = Request::post(path).header("content-type", "application/json");
    root.send_request(request.body(Body::from(r#"{"id":7}"#)).unwrap()).await
}

/// Searches by a file.
async fn search_file(root: &TestRoot, query: &str) -> Answer {
    let path = format!("/v1/images/c/search?{query}");
    root.send_request(Request::post(path).body(Body::from("picture")).unwrap()).await
}

/// Lets nodes return the features of point 7.
fn with_features(nodes: &[Arc<FakeNode>]) {
    for node in nodes {
        node.answer_passed(|request| {
            let expected = format!("/cluster/v1/shards/id/{}/7/features", shard_of(7));
            assert_eq!((&request.method, &request.target), (&Method::GET, &expected));
            reply(200, &features(7))
        });
    }
}

fn error(answer: &Answer) -> &str {
    answer.json["error"].as_str().unwrap_or_else(|| panic!("{}", answer.json))
}

/// Returns the requests of a round to all nodes.
fn of_path(nodes: &[Arc<FakeNode>], path: &str) -> Vec<Value> {
    let all = nodes.iter().flat_map(|node| node.reads.lock().clone());
    all.filter(|request| request["path"] == path).collect()
}

#[tokio::test]
async fn round_two_asks_the_shards_of_the_candidates() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    with_features(&nodes);
    let filter = r#"{"must":[{"key":"n","match":{"value":1}}]}"#;
    let encoded: String = form_urlencoded::byte_serialize(filter.as_bytes()).collect();
    let query = format!("k=2&candidates=2&threshold=50&explain=1&filter={encoded}&timeout=30");
    let answer = search(&root, &query).await;
    assert_eq!(answer.status, 200, "{}", answer.json);
    assert_eq!(result_ids(&answer.json), [38, 39], "the accepted one first");
    assert_eq!((&answer.json["of"], &answer.json["compared"]), (&json!(40), &json!(2)));
    assert_eq!((&answer.json["partial"], &answer.json["views"]), (&json!(false), &json!(0)));
    assert_eq!(answer.json["coverage"], Value::Null);
    let coarse = of_path(&nodes, "images/coarse");
    if root.repeated_reads() == 0 {
        assert_eq!(asked(&coarse), BTreeMap::from([(0, 1), (1, 1), (2, 1), (3, 1)]));
    }
    let body = &coarse[0]["body"];
    assert_eq!((&body["candidates"], &body["embedding"]), (&json!(2), &json!([0.5, 0.25])));
    assert_eq!(body["filter"], serde_json::from_str::<Value>(filter).unwrap());
    let rank = of_path(&nodes, "images/rank");
    let shards: Vec<u32> = asked(&rank).into_keys().collect();
    assert_eq!(set(shards), set([shard_of(39), shard_of(38)]));
    let body = &rank[0]["body"];
    assert_eq!(
        (&body["k"], &body["explain"], &body["threshold"]),
        (&json!(2), &json!(true), &json!(50.0))
    );
    assert_eq!(body["candidates"]["ids"], json!([39, 38]));
    assert_eq!((&body["filter"], &body["prints"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn more_hits_than_candidates_compare_more() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    with_features(&nodes);
    let answer = search(&root, "k=5&candidates=2&threshold=50&consistency=strong").await;
    assert_eq!(result_ids(&answer.json), [38, 36, 39, 37, 35]);
    for path in ["images/coarse", "images/rank"] {
        assert!(of_path(&nodes, path).iter().all(|request| request["strong"] == true), "{path}");
    }
}

#[tokio::test]
async fn a_failed_node_costs_no_hit() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    with_features(&nodes);
    for behaviour in [Behaviour::Refuse(503, json!({"error": "starts"})), Behaviour::Omit] {
        nodes[0].behave(behaviour.clone());
        for _ in 0..4 {
            let answer = search(&root, "k=3&threshold=50").await;
            assert_eq!(result_ids(&answer.json), [38, 36, 34], "{behaviour:?}");
            assert_eq!(answer.json["partial"], false);
        }
    }
    assert!(root.count("retried") > 0);
    assert_eq!(root.count("partial"), 0);
}

#[tokio::test]
async fn shards_missing_in_round_one_make_answers_partial() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    with_features(&nodes);
    let lost = (0..SHARDS).find(|shard| *shard != shard_of(7)).unwrap();
    let rest: Vec<u32> = (0..SHARDS).filter(|shard| *shard != lost).collect();
    nodes.iter().for_each(|node| root.serve(node.name, &node.address, &rest));
    let answer = search(&root, "k=40&threshold=50").await;
    let ids = result_ids(&answer.json);
    assert_eq!(ids.len(), (0..40).filter(|id| shard_of(*id) != lost).count());
    assert_eq!(answer.json["partial"], true);
    assert_eq!(answer.json["coverage"], json!({"shards": 3, "of": 4}));
    assert_eq!(root.count("partial"), 1);
    let few = search(&root, "min_coverage=1").await;
    assert_eq!(few.status, 503);
    assert_eq!((root.count("partial"), root.count("refused")), (1, 1));
    assert!(error(&few).starts_with("3 of 4 shards answered"), "{}", error(&few));
    assert!(few.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn shards_missing_in_round_two_make_answers_partial() {
    let root = image_root(ImageKind::Photo);
    let lost = shard_of(39);
    let node = FakeNode::start("a", move |shard, request| {
        if request["path"] == "images/rank" && shard == lost {
            return json!({"refused": 503});
        }
        images(shard, request)
    });
    let nodes = [node.await];
    root.serve("a", &nodes[0].address, &[0, 1, 2, 3]);
    with_features(&nodes);
    let answer = search(&root, "k=40&threshold=50").await;
    assert_eq!(answer.status, 200, "{}", answer.json);
    assert!(result_ids(&answer.json).iter().all(|id| shard_of(*id) != lost));
    assert_eq!(answer.json["coverage"], json!({"shards": 3, "of": 4}));
    assert_eq!((&answer.json["of"], &answer.json["partial"]), (&json!(40), &json!(true)));
    assert_eq!(search(&root, "min_coverage=0.8").await.status, 503);
    let only = search(&root, "k=1&candidates=1").await;
    assert_eq!(only.status, 503, "no shard with candidates answered: {}", only.json);
}

#[tokio::test]
async fn a_shard_that_hangs_leaves_time_for_the_others() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    with_features(&nodes);
    let lost = (0..SHARDS).find(|shard| *shard != shard_of(7)).unwrap();
    let rest: Vec<u32> = (0..SHARDS).filter(|shard| *shard != lost).collect();
    root.serve("a", &nodes[0].address, &rest);
    root.serve("b", &nodes[1].address, &[lost]);
    nodes[1].behave(Behaviour::Hang);
    let answer = search(&root, "k=40&threshold=50&timeout=2").await;
    assert_eq!(answer.status, 200, "{}", answer.json);
    assert_eq!(answer.json["coverage"], json!({"shards": 3, "of": 4}));
    assert!(result_ids(&answer.json).iter().all(|id| shard_of(*id) != lost));
}

#[tokio::test]
async fn fingerprints_have_one_round() {
    let (root, nodes) = two_nodes(ImageKind::Fingerprint).await;
    with_features(&nodes);
    let answer = search(&root, "k=3&candidates=100").await;
    assert_eq!(result_ids(&answer.json), [39, 38, 37]);
    assert_eq!((&answer.json["of"], &answer.json["compared"]), (&json!(40), &json!(40)));
    assert!(of_path(&nodes, "images/coarse").is_empty());
    let rank = of_path(&nodes, "images/rank");
    assert_eq!(asked(&rank).len(), 4);
    assert_eq!(rank[0]["body"]["prints"], json!({"candidates": 100, "shards": 4}));
    assert_eq!(rank[0]["body"]["candidates"], Value::Null);
}

#[tokio::test]
async fn persons_are_identified_over_the_shards() {
    let (root, nodes) = two_nodes(ImageKind::Fingerprint).await;
    nodes.iter().for_each(|node| node.answer_passed(|_| reply(200, &extracted())));
    let identify = async |root: &TestRoot, query: &str, body: &Value| {
        let path = format!("/v1/images/c/identify?{query}");
        let request = Request::post(path).header("content-type", "application/json");
        root.send_request(request.body(Body::from(body.to_string())).unwrap()).await
    };
    let file = Request::post("/v1/images/c/identify?k=2&candidates=100");
    let answer = root.send_request(file.body(Body::from("picture")).unwrap()).await;
    assert_eq!(answer.status, 200, "{}", answer.json);
    let results = &answer.json["results"];
    // Prints without a person stand for themselves.
    assert_eq!((&results[0]["person"], &results[0]["score"]), (&json!("39"), &json!(39.0)));
    assert_eq!((results[1]["prints"].clone(), results.as_array().unwrap().len()), (json!([38]), 2));
    assert_eq!((&answer.json["compared"], &answer.json["of"]), (&json!(40), &json!(40)));
    assert_eq!((&answer.json["partial"], answer.json.get("coverage")), (&json!(false), None));
    let wrong = identify(&root, "views=1", &json!({"prints": ["aGk="]})).await;
    assert!(wrong.status == 400 && error(&wrong).contains("persons"), "{}", wrong.json);
    let none = identify(&root, "", &json!({"prints": []})).await;
    assert_eq!(none.status, 400, "{}", none.json);
    let (photos, _) = two_nodes(ImageKind::Photo).await;
    let refused = identify(&photos, "", &json!({"prints": ["aGk="]})).await;
    assert_eq!(refused.status, 409, "{}", refused.json);
}

/// Features of a file, as another node extracts them.
fn extracted() -> Value {
    let query = ExtractedQuery {
        record: vec![1, 2, 3],
        embedding: vec![0.5, 0.25],
        width: 640,
        height: 480,
        keypoints: 9,
        decode_ms: 1.5,
        embed_ms: 2.5,
        keypoints_ms: 3.5,
    };
    json!(query)
}

#[tokio::test]
async fn files_are_extracted_by_nodes_in_turn() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    nodes.iter().for_each(|node| node.answer_passed(|_| reply(200, &extracted())));
    for _ in 0..4 {
        let answer = search_file(&root, "k=1&threshold=50").await;
        assert_eq!(result_ids(&answer.json), [38]);
        let size = json!({"width": 640, "height": 480, "keypoints": 9});
        assert_eq!(answer.json["query"], size);
        assert_eq!(answer.json["stages"]["embed_ms"], 2.5);
    }
    for node in &nodes {
        let passed = node.taken_passed();
        assert!(!passed.is_empty(), "{}", node.name);
        let request = &passed[0];
        assert_eq!(request.method, Method::POST);
        assert_eq!(request.target, "/cluster/v1/extract?collection=c");
        assert_eq!(&request.body[..], b"picture");
        let wanted: Value =
            serde_json::from_slice(request.headers["x-extract"].as_bytes()).unwrap();
        let settings = json!({"kind": "photo", "model": "colour"});
        assert_eq!(wanted, json!({"settings": settings, "dims": 2}));
    }
}

/// Answers an extraction: the whole image, or the view of a step.
fn extracted_views(request: &PassedRequest) -> FakeReply {
    let wanted: Value = serde_json::from_slice(request.headers["x-extract"].as_bytes()).unwrap();
    let Some(step) = wanted["views"].as_u64() else { return reply(200, &extracted()) };
    let kind = ["coarse", "mirrored", "part"][step as usize];
    let mut query = extracted();
    if kind == "coarse" {
        query["embedding"] = json!([]);
    }
    let view = json!({"kind": kind, "x": 0, "y": 0, "width": 640, "height": 480});
    reply(200, &json!([{"view": view, "query": query}]))
}

#[tokio::test]
async fn views_are_searched_for_until_one_is_accepted() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    nodes.iter().for_each(|node| node.answer_passed(extracted_views));
    let found = search_file(&root, "k=3&candidates=4&threshold=95").await;
    assert_eq!(found.status, 200, "{}", found.json);
    assert_eq!((&found.json["views"], &found.json["partial"]), (&json!(2), &json!(false)));
    // The odd ones of the four candidates are accepted, and then an even one follows.
    assert_eq!(result_ids(&found.json), [39, 37, 38]);
    let coarse = of_path(&nodes, "images/coarse");
    let candidates: BTreeSet<u64> =
        coarse.iter().map(|request| request["body"]["candidates"].as_u64().unwrap()).collect();
    assert_eq!(candidates, BTreeSet::from([4, 40]), "the view of coarse keypoints has more");
    assert!(coarse.iter().all(|request| request["body"]["embedding"] == json!([0.5, 0.25])));
    let kinds: BTreeSet<String> = of_path(&nodes, "images/rank")
        .iter()
        .map(|request| request["body"]["view"]["kind"].as_str().unwrap_or("whole").to_owned())
        .collect();
    assert_eq!(kinds, ["coarse", "mirrored", "whole"].map(str::to_owned).into());
    let alone = search_file(&root, "k=3&threshold=95&views=0").await;
    assert_eq!((&alone.json["views"], &alone.json["partial"]), (&json!(0), &json!(false)));
    let accepted = search_file(&root, "k=3&threshold=50&views=1").await;
    assert_eq!(accepted.json["views"], 0, "the whole photograph is enough");
}

#[tokio::test]
async fn a_failed_view_costs_no_hit_of_the_whole_photograph() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    // As a node of an earlier build answers, which knows no views.
    nodes.iter().for_each(|node| node.answer_passed(|_| reply(200, &extracted())));
    let found = search_file(&root, "k=1&threshold=95").await;
    assert_eq!((found.status, &found.json["views"]), (200, &json!(0)));
    assert_eq!((result_ids(&found.json), &found.json["partial"]), (vec![39], &json!(true)));
}

#[tokio::test]
async fn extraction_moves_to_another_node() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    nodes[1].answer_passed(|_| reply(200, &extracted()));
    for status in [503, 429] {
        nodes[0].answer_passed(move |_| reply(status, &json!({"error": "full"})));
        for _ in 0..4 {
            assert_eq!(search_file(&root, "k=1&threshold=50").await.status, 200);
        }
        assert!(!nodes[0].taken_passed().is_empty());
    }
    nodes[1].answer_passed(|_| reply(429, &json!({"error": "full"})));
    let full = search_file(&root, "").await;
    assert_eq!((full.status, error(&full)), (429, "full"));
    nodes[0].answer_passed(|_| reply(200, &extracted()));
    let dead = refusing_socket();
    root.serve("b", &dead.local_addr().unwrap().to_string(), &[]);
    for _ in 0..4 {
        assert_eq!(search_file(&root, "k=1&threshold=50").await.status, 200);
    }
}

#[tokio::test]
async fn refusals_of_an_image_reach_the_client() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    for status in [400, 413, 409] {
        for node in &nodes {
            node.answer_passed(move |_| reply(status, &json!({"error": "no picture"})));
        }
        let answer = search_file(&root, "").await;
        assert_eq!((answer.status, error(&answer)), (status, "no picture"));
        let asked: usize = nodes.iter().map(|node| node.taken_passed().len()).sum();
        assert_eq!(asked, 1);
    }
}

#[tokio::test]
async fn without_extraction_the_remedy_is_named() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    root.view.update(|view| {
        let plain = Roles { extract: false, ..Roles::ALL };
        view.nodes.values_mut().for_each(|node| node.roles = plain);
    });
    let put = Request::put("/v1/images/c").body(Body::from("picture")).unwrap();
    for answer in [search_file(&root, "").await, root.send_request(put).await] {
        assert_eq!(answer.status, 503);
        assert!(error(&answer).contains("--cluster-roles"), "{}", error(&answer));
        assert!(answer.headers.contains_key("retry-after"));
    }
    with_features(&nodes);
    assert_eq!(search(&root, "k=1").await.status, 200, "a stored image needs none");
}

#[tokio::test]
async fn wrong_searches_are_refused() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    with_features(&nodes);
    for (query, status, word) in [
        ("kk=1", 400, "kk"),
        ("wait=true", 400, "wait"),
        ("k=0", 400, "k is 1 to"),
        ("k=1001", 400, "k is 1 to"),
        ("candidates=0", 400, "candidates"),
        ("threshold=NaN", 400, "threshold"),
        ("explain=maybe", 400, "explain"),
        ("timeout=0", 400, "timeout"),
        ("min_coverage=2", 400, "min_coverage"),
        ("filter=%7B", 400, "JSON"),
        ("views=1", 400, "views=1 needs a file"),
    ] {
        let answer = search(&root, query).await;
        assert_eq!(answer.status, status, "{query}: {}", answer.json);
        assert!(error(&answer).contains(word), "{query}: {}", error(&answer));
    }
    assert_eq!(search_file(&root, "views=0&k=x").await.status, 400);
    assert!(nodes.iter().all(|node| node.taken_passed().is_empty()));
    let path = "/v1/images/d/search";
    assert_eq!(root.send(Method::POST, path, &json!({"id": 7})).await.status, 404);
    root.view.update(|view| view.collections.get_mut("c").unwrap().images = None);
    let vectors = search(&root, "").await;
    assert_eq!(vectors.status, 409);
    assert!(error(&vectors).contains("has no images"), "{}", error(&vectors));
}

#[tokio::test]
async fn a_root_without_collections_lists_none() {
    let root = empty_root();
    let list = root.send(Method::GET, "/v1/images", &Value::Null).await;
    assert_eq!((list.status, &list.json["collections"]), (200, &json!([])));
}

#[tokio::test]
async fn a_list_waits_for_the_collections_after_a_start() {
    let root = empty_root();
    root.loaded.store(false, Ordering::Relaxed);
    let body = Value::Null;
    let (list, ()) = tokio::join!(root.send(Method::GET, "/v1/images", &body), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        root.loaded.store(true, Ordering::Relaxed);
    });
    assert_eq!(list.status, 200);
    assert_eq!(root.metrics.cluster.start_waits.get(), 1);
}

#[tokio::test]
async fn an_unknown_image_is_not_found() {
    let (root, nodes) = two_nodes(ImageKind::Photo).await;
    for node in &nodes {
        node.answer_passed(|_| reply(404, &json!({"error": "there is no image 7"})));
    }
    let answer = search(&root, "").await;
    assert_eq!((answer.status, error(&answer)), (404, "there is no image 7"));
    // No shard is searched: the only read is the lookup of the point.
    let reads: Vec<Value> = nodes.iter().flat_map(|node| node.taken_reads()).collect();
    assert!(reads.iter().all(|read| read["path"] == "points"), "{reads:?}");
    assert!((1..=1 + root.repeated_reads()).contains(&reads.len()), "{reads:?}");
}
