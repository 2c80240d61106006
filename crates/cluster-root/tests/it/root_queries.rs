//! Queries that take several rounds: random samples, matrices, formulas, groups, points of other
//! collections.

use std::sync::Arc;

use search::points::PointId;
use serde_json::{Value, json};

use crate::root_reads::{SHARDS, ids, numbers, shard_of, two_nodes};
use crate::root_support::{FakeNode, TestRoot};

#[tokio::test]
async fn a_sample_has_points_of_all_shards_once() {
    let (root, nodes) = two_nodes().await;
    let random = json!({"sample": "random"});
    let sample =
        |limit: u64, offset: u64| json!({"query": random, "limit": limit, "offset": offset});
    let mut all = ids(root.post("points/query", &sample(100, 0)).await.result());
    all.sort_unstable();
    assert_eq!(all, (0..40).collect::<Vec<u64>>());
    let rest = ids(root.post("points/query", &sample(100, 33)).await.result());
    assert_eq!(rest.len(), 7);
    nodes.iter().for_each(|node| drop(node.taken_reads()));
    let prefetch = json!({"query": random, "limit": 6});
    let fused = json!({"query": {"fusion": "rrf"}, "prefetch": prefetch});
    let batch = json!({"searches": [sample(5, 0), fused]});
    let batch = root.post("points/query/batch", &batch).await;
    let counts = [0usize, 1].map(|at| ids(&batch.result()[at]).len());
    assert_eq!(counts, [5, 6]);
    let reads: Vec<Value> = nodes.iter().flat_map(|node| node.taken_reads()).collect();
    let mut paths: Vec<&str> = reads.iter().map(|read| read["path"].as_str().unwrap()).collect();
    paths.sort_unstable();
    if root.repeated_reads() == 0 {
        assert_eq!(paths, ["points/count", "points/count", "points/query", "points/query"]);
    }
    let mut limits = reads.iter().filter_map(|read| read["body"]["limit"].as_u64());
    assert!(limits.all(|limit| limit <= 6));
}

#[tokio::test]
async fn a_matrix_compares_points_of_all_shards() {
    let (root, nodes) = two_nodes().await;
    let all = json!({"sample": 40, "limit": 2});
    let found = root.post("points/search/matrix/offsets", &all).await;
    assert_eq!(found.result()["ids"], json!((0..40).collect::<Vec<u64>>()));
    assert_eq!(found.result()["offsets_row"].as_array().unwrap().len(), 80);
    let pairs = root.post("points/search/matrix/pairs", &all).await;
    // The vector of point n is [n, 1.5], so the point with the largest number is the nearest.
    let score = 38.0 * 39.0 + 2.25;
    let last = &pairs.result()["pairs"][78];
    assert_eq!(last, &json!({"a": 39, "b": 38, "score": score}));
    let few = root.post("points/search/matrix/pairs", &json!({"sample": 5, "limit": 9})).await;
    assert_eq!(few.result()["pairs"].as_array().unwrap().len(), 20);
    let named = root.post("points/search/matrix/pairs", &json!({"using": "x"})).await;
    assert_eq!(named.status, 400, "{}", named.json);
    assert_eq!(root.post("points/search/matrix/pairs", &json!({"sample": 1})).await.status, 422);
    nodes.iter().for_each(|node| root.serve(node.name, &node.address, &[0, 1, 2]));
    let partial = root.post("points/search/matrix/pairs", &all).await;
    assert_eq!(partial.result()["partial"], true);
    assert_eq!(partial.json["coverage"], json!({"shards": 3, "of": 4}));
}

/// Answers as [`numbers`]. The points have payloads, of which a formula reads "a" and "n".
fn with_payloads(shard: u32, request: &Value) -> Value {
    let mut found = numbers(shard, request);
    if request["path"] == "points" {
        assert_eq!(request["body"]["with_payload"], json!(["\"a\"", "\"n\""]));
        for point in found.as_array_mut().unwrap() {
            let id = point["id"].as_u64().unwrap();
            point["payload"] = json!({"n": id % 10, "a": {"b": id == 33}});
        }
    }
    found
}

#[tokio::test]
async fn a_formula_scores_the_hits_of_all_shards() {
    let root = TestRoot::with_collection(SHARDS, "Dot");
    let node = FakeNode::start("a", with_payloads).await;
    root.serve("a", &node.address, &[0, 1, 2, 3]);
    let marked = json!({"key": "a.b", "match": {"value": true}});
    let formula = json!({"sum": ["$score", {"mult": ["n", -10]}, {"mult": [marked, 100]}]});
    let prefetch = json!([{"query": [1, 2], "limit": 12}, {"query": [2, 1], "limit": 3}]);
    let query = json!({
        "query": {"formula": formula}, "prefetch": prefetch, "limit": 3, "offset": 1,
    });
    // The hits are 39 to 28. Their scores are 39 - 90, .., 33 - 30 + 100, .., 30 - 0, 29 - 90, ..
    let found = root.post("points/query", &query).await;
    assert_eq!(ids(found.result()), [30, 31, 32]);
    assert_eq!(found.result()["points"][0]["score"], 30.0);
    let searches = json!({"searches": [query, {"query": [1, 2], "limit": 1}]});
    let batch = root.post("points/query/batch", &searches).await;
    assert_eq!([0usize, 1].map(|at| ids(&batch.result()[at])), [vec![30, 31, 32], vec![39]]);
    node.taken_reads();
    let inner = json!({"query": {"formula": formula}, "prefetch": prefetch, "limit": 2});
    let outer = json!({"query": [3, 4], "prefetch": inner});
    root.post("points/query", &outer).await.result();
    let last = node.taken_reads().pop().unwrap();
    assert_eq!(last["path"], "points/query");
    let filter = last["body"]["filter"].to_string();
    assert!(filter.contains("\"has_id\":[30,33]"), "{filter}");
}

#[tokio::test]
async fn a_formula_of_scores_reads_no_payloads() {
    let (root, nodes) = two_nodes().await;
    let query = json!({"query": {"formula": "$score[1]"}, "prefetch": {"query": [1, 2]}});
    let found = root.post("points/query", &query).await;
    assert_eq!(ids(found.result()), (30..40).rev().collect::<Vec<u64>>(), "in their order");
    let reads: Vec<Value> = nodes.iter().flat_map(|node| node.taken_reads()).collect();
    assert!(reads.iter().all(|read| read["path"] == "points/query/batch"), "{reads:?}");
    assert!((1..=1 + root.repeated_reads()).contains(&reads.len()), "{reads:?}");
}

#[tokio::test]
async fn a_fusion_and_a_formula_name_no_other_vector() {
    let (root, nodes) = two_nodes().await;
    let prefetch = json!({"query": [1, 2]});
    for query in [json!({"fusion": "rrf"}), json!({"formula": "$score"})] {
        let named = json!({"query": query, "prefetch": prefetch, "using": "x"});
        let within = json!({"query": [1, 2], "prefetch": named});
        for body in [named, within] {
            let refused = root.post("points/query", &body).await;
            assert_eq!(refused.status, 400, "{body}");
            assert!(refused.error().contains("using"), "{}", refused.error());
        }
    }
    assert!(nodes.iter().all(|node| node.taken_reads().is_empty()));
}

/// Answers as [`numbers`]. The payloads have the numbers modulo 3.
fn with_groups(shard: u32, request: &Value) -> Value {
    let mut found = numbers(shard, request);
    if request["body"]["with_payload"] == json!(["group"]) {
        for point in found.as_array_mut().unwrap() {
            let id = point["id"].as_u64().unwrap();
            point["payload"] = json!({ "group": id % 3 });
        }
    }
    found
}

/// Returns the value of each group with the ids of its hits.
fn groups(result: &Value) -> Vec<(u64, Vec<u64>)> {
    let group = |group: &Value| (group["id"].as_u64().unwrap(), ids(&group["hits"]));
    result["groups"].as_array().unwrap().iter().map(group).collect()
}

#[tokio::test]
async fn hits_that_depend_on_each_other_are_grouped_by_the_root() {
    let root = TestRoot::with_collection(SHARDS, "Dot");
    let node = FakeNode::start("a", with_groups).await;
    root.serve("a", &node.address, &[0, 1, 2, 3]);
    let best: [(u64, Vec<u64>); 2] = [(0, vec![39, 36]), (2, vec![38, 35])];
    let worst: [(u64, Vec<u64>); 2] = [(0, vec![0, 3]), (1, vec![1, 4])];
    // Without larger limits, the prefetch would find too few points.
    let inner = json!({"query": [2, 1], "limit": 1});
    let prefetch = json!({"query": [1, 2], "limit": 2, "prefetch": inner});
    for (query, sources, expected, most) in [
        (json!({"fusion": "rrf"}), &prefetch, &best, 16_384),
        (json!({"formula": {"mult": ["$score", -1]}}), &prefetch, &worst, 16_384),
        (json!({"nearest": [1, 2], "mmr": {"diversity": 0.0}}), &Value::Null, &best, 1024),
    ] {
        let body = json!({
            "query": query, "prefetch": sources, "group_by": "group", "group_size": 2, "limit": 2,
        });
        let found = root.post("points/query/groups", &body).await;
        assert_eq!(groups(found.result()), *expected, "{query}");
        assert!(found.result()["groups"][0]["hits"][0].get("payload").is_none());
        let reads = node.taken_reads();
        let first = &reads[0]["body"];
        let first = first["searches"].get(0).unwrap_or(first);
        assert_eq!(first["limit"], most, "{query}");
        assert!(reads.iter().all(|read| !read["body"].to_string().contains("group_by")));
    }
    let sample = json!({"query": {"sample": "random"}, "group_by": "group", "group_size": 40});
    let mut found = groups(root.post("points/query/groups", &sample).await.result());
    found.iter_mut().for_each(|(_, hits)| hits.sort_unstable());
    found.sort_unstable();
    let all = |group: u64| -> Vec<u64> { (0..40u64).filter(|id| id % 3 == group).collect() };
    assert_eq!(found, [(0, all(0)), (1, all(1)), (2, all(2))]);
}

/// Answers like a collection of the numbers from 0 to 39, which all have the value 1. The numbers
/// from 20 on belong to no group, because another value makes none.
fn with_hidden_hits(shard: u32, request: &Value) -> Value {
    let own = |below: u64, limit: u64| -> Vec<Value> {
        let ids = (0..below).rev().filter(|id| shard_of(&PointId::Number(*id)) == shard);
        let values = |id: u64| if id < 20 { json!([1]) } else { json!([1, 0.5]) };
        let hit = |id: u64| json!({"id": id, "score": id as f32, "payload": {"group": values(id)}});
        ids.take(limit as usize).map(hit).collect()
    };
    match request["path"].as_str().unwrap() {
        "points/query/groups" => json!({"groups": [{"id": 1, "hits": own(20, 1)}]}),
        "points/query/batch" => {
            let searches = request["body"]["searches"].as_array().unwrap().iter();
            let limits = searches.map(|search| search["limit"].as_u64().unwrap());
            limits.map(|limit| json!({"points": own(40, limit)})).collect()
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn points_without_a_group_hide_no_hits() {
    let root = TestRoot::with_collection(SHARDS, "Dot");
    let node = FakeNode::start("a", with_hidden_hits).await;
    root.serve("a", &node.address, &[0, 1, 2, 3]);
    let query = json!({"query": [1, 2], "group_by": "group", "group_size": 2});
    let found = root.post("points/query/groups", &query).await;
    assert_eq!(groups(found.result()), [(1, vec![19, 18])]);
    let reads = node.taken_reads();
    let limits: Vec<&Value> =
        reads.iter().filter_map(|read| read["body"]["searches"][0].get("limit")).collect();
    assert_eq!(limits.get(..2), Some(&[&json!(2), &json!(8)][..]));
}

/// Answers as [`numbers`] for the collection "c", whose groups are the numbers modulo 3. The points
/// of the collection "other" are the numbers from 2 to 39.
fn two_collections(shard: u32, request: &Value) -> Value {
    let body = &request["body"];
    if request["collection"] == "other-id" {
        assert_eq!(request["path"], "points");
        let of = |id: &Value| json!({"id": id, "payload": {"a": 1}, "vector": {"v": [id, 2]}});
        let ids = body["ids"].as_array().unwrap().iter();
        let found = ids.filter(|id| (2..40).contains(&id.as_u64().unwrap()));
        return found.map(of).collect();
    }
    let own = |group: u64| {
        (0..40u64)
            .rev()
            .filter(move |id| id % 3 == group && shard_of(&PointId::Number(*id)) == shard)
            .map(move |id| json!({"id": id, "score": id as f32, "payload": {"group": group}}))
    };
    match request["path"].as_str().unwrap() {
        "points/query/groups" => {
            assert_eq!(body.get("with_lookup"), None);
            let group = |group: u64| {
                let hits: Vec<Value> = own(group).take(1).collect();
                json!({ "id": group, "hits": hits })
            };
            let groups = [0, 1, 2].map(group);
            json!({ "groups": groups })
        }
        "points/query/batch" if body["searches"][0]["with_payload"] == json!(["group"]) => {
            let answer = |search: &Value| {
                let group = search["filter"]["must"][0]["match"]["value"].as_u64().unwrap();
                json!({"points": own(group).take(1).collect::<Vec<_>>()})
            };
            body["searches"].as_array().unwrap().iter().map(answer).collect()
        }
        _ => numbers(shard, request),
    }
}

/// A root with the collections "c" and "other", whose vector has the name "v", and their node.
async fn with_other() -> (TestRoot, Arc<FakeNode>) {
    let root = TestRoot::with_collection(SHARDS, "Dot");
    let node = FakeNode::start("a", two_collections).await;
    root.serve("a", &node.address, &[0, 1, 2, 3]);
    root.view.update(|view| {
        let mut other = view.collections["c"].clone();
        other.name = "other".to_owned();
        other.id = "other-id".to_owned();
        other.create = json!({"vectors": {"v": {"size": 2, "distance": "Dot"}}});
        view.collections.insert(other.name.clone(), other);
        for node in view.nodes.values_mut() {
            node.serving.insert("other-id".to_owned(), (0..SHARDS).collect());
        }
    });
    (root, node)
}

#[tokio::test]
async fn vectors_come_from_a_new_collection_of_another_root() {
    let (root, _node) = with_other().await;
    let mut removed = None;
    root.view.update(|view| removed = view.collections.remove("other"));
    root.unread.lock().extend(removed);
    let lookup = json!({"collection": "other", "vector": "v"});
    let query = json!({"query": 7, "lookup_from": lookup, "limit": 1});
    assert_eq!(ids(root.post("points/query", &query).await.result()), [39]);
}

#[tokio::test]
async fn strong_queries_use_vectors_of_a_replaced_collection() {
    let (root, _node) = with_other().await;
    let mut newer = None;
    root.view.update(|view| {
        let other = view.collections.get_mut("other").unwrap();
        newer = Some(other.clone());
        other.id = "old-id".to_owned();
    });
    root.unread.lock().extend(newer);
    let lookup = json!({"collection": "other", "vector": "v"});
    let query = json!({"query": 7, "lookup_from": lookup, "limit": 1});
    // No node serves the removed collection.
    let found = root.post("points/query?consistency=strong", &query).await;
    assert_eq!(ids(found.result()), [39]);
}

#[tokio::test]
async fn vectors_come_from_another_collection() {
    let (root, node) = with_other().await;
    let lookup = json!({"collection": "other", "vector": "v"});
    let recommend = json!({"recommend": {"positive": [7, [1, 1]], "negative": [8]}});
    let vectors = json!({"positive": [[7.0, 2.0], [1.0, 1.0]], "negative": [[8.0, 2.0]]});
    for (asked, sent) in [
        (json!(7), json!([7.0, 2.0])),
        (json!({"nearest": 7, "mmr": {}}), json!([7.0, 2.0])),
        (recommend, json!({ "recommend": vectors })),
    ] {
        node.taken_reads();
        let query = json!({"query": asked, "lookup_from": lookup, "limit": 1});
        assert_eq!(ids(root.post("points/query", &query).await.result()), [39], "{query}");
        let reads = node.taken_reads();
        let read = reads.iter().find(|read| read["path"] == "points/query").unwrap();
        assert_eq!(read["body"]["query"], sent, "{query}");
        assert_eq!(read["body"].get("lookup_from"), None);
        assert_eq!(read["body"].get("filter"), None, "points of another collection are hits");
    }
    let inner = json!({"query": 7, "lookup_from": lookup});
    let own = json!({"query": 7, "lookup_from": {"collection": "c"}});
    let batch = json!({"searches": [own, {"query": [1, 2], "prefetch": inner}]});
    root.post("points/query/batch", &batch).await.result();
    let reads = node.taken_reads();
    let mut batches = reads.iter().filter(|read| read["path"] == "points/query/batch");
    let prefetch = &batches.next().unwrap()["body"]["searches"][0];
    assert_eq!(prefetch["query"], json!([7.0, 2.0]));
    let search = &batches.next().unwrap()["body"]["searches"][0];
    assert_eq!(search["query"], json!([7.0, 1.5]));
    assert_eq!(search["filter"], json!({"must_not": [{"has_id": [7]}]}));
    for (lookup, id, status) in [
        (json!({"collection": "none"}), 7, 404),
        (json!({"collection": "other"}), 7, 400),
        (lookup, 1, 404),
    ] {
        let query = json!({"query": id, "lookup_from": lookup});
        assert_eq!(root.post("points/query", &query).await.status, status, "{query}");
    }
}

#[tokio::test]
async fn groups_have_points_of_another_collection() {
    let (root, node) = with_other().await;
    let mut query = json!({"query": [1, 2], "group_by": "group", "group_size": 1});
    for (lookup, with_payload) in [
        (json!("other"), Value::Null),
        (json!({"collection": "other", "with_payload": ["a"]}), json!(["a"])),
    ] {
        query["with_lookup"] = lookup;
        let found = root.post("points/query/groups", &query).await;
        let groups = found.result()["groups"].as_array().unwrap();
        let known: Vec<&Value> = groups.iter().map(|group| &group["id"]).collect();
        assert_eq!(known, [&json!(0), &json!(2), &json!(1)]);
        let point = json!({"id": 2, "payload": {"a": 1}, "vector": {"v": [2, 2]}});
        assert_eq!(groups[1]["lookup"], point);
        assert!([0, 2].iter().all(|at: &usize| groups[*at].get("lookup").is_none()));
        let reads = node.taken_reads();
        let read = reads.iter().find(|read| read["collection"] == "other-id").unwrap();
        assert_eq!(read["body"]["with_payload"], with_payload);
    }
}
