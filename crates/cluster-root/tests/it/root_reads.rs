//! Reads of a root: routes to holders, failures, second requests, coverage.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use cluster_node::CollectionRecord;
use cluster_root::reads::catch_up;
use http::{Method, Request};
use search::points::PointId;
use serde_json::{Value, json};

use crate::root_support::{
    Behaviour, FakeNode, ID, TestRoot, WAIT, asked, record, refusing_socket, set, wait_until,
};

/// Shards of the collection "c".
pub(crate) const SHARDS: u32 = 4;

/// Returns the shard of a point.
pub(crate) fn shard_of(id: &PointId) -> u32 {
    cluster::shard_of(id.to_string().as_bytes(), SHARDS).unwrap().0
}

/// Answers like a collection whose points are the numbers from 0 to 39. The score of point n is n.
pub(crate) fn numbers(shard: u32, request: &Value) -> Value {
    let own = (0..40u64).filter(|id| shard_of(&PointId::Number(*id)) == shard);
    let body = &request["body"];
    let limit = body["limit"].as_u64().unwrap_or(10) as usize;
    let hit = |id: u64| json!({"id": id, "version": 0, "score": id as f32});
    match request["path"].as_str().unwrap() {
        "points/query" => {
            assert_eq!(body.get("offset"), None);
            json!({"points": own.rev().take(limit).map(hit).collect::<Vec<_>>()})
        }
        "points/query/batch" => {
            let answer = |search: &Value| {
                let body = json!({"path": "points/query", "body": search});
                numbers(shard, &body)
            };
            body["searches"].as_array().unwrap().iter().map(answer).collect()
        }
        "points/count" => json!({"count": own.count()}),
        "points/scroll" => {
            let from = body["offset"].as_u64().unwrap_or(0);
            let own: Vec<u64> = own.filter(|id| *id >= from).collect();
            let page: Vec<Value> = own.iter().take(limit).map(|id| json!({ "id": id })).collect();
            json!({"points": page, "next_page_offset": own.get(limit)})
        }
        "points" => {
            let ids = body["ids"].as_array().unwrap().iter();
            let own: Vec<u64> = own.collect();
            let found = ids.filter(|id| id.as_u64().is_some_and(|id| own.contains(&id)));
            found.map(|id| json!({"id": id, "payload": {}, "vector": [id, 1.5]})).collect()
        }
        "facet" => json!({"hits": [{"value": "a", "count": own.count()}]}),
        other => panic!("{other}"),
    }
}

/// Two nodes that hold all shards, and a root.
pub(crate) async fn two_nodes() -> (TestRoot, [Arc<FakeNode>; 2]) {
    let root = TestRoot::with_collection(SHARDS, "Dot");
    let nodes = [FakeNode::start("a", numbers).await, FakeNode::start("b", numbers).await];
    for node in &nodes {
        root.serve(node.name, &node.address, &[0, 1, 2, 3]);
    }
    (root, nodes)
}

pub(crate) fn ids(result: &Value) -> Vec<u64> {
    let points = result.get("points").unwrap_or(result).as_array().unwrap();
    points.iter().map(|point| point["id"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn a_request_waits_for_the_collections_after_a_start() {
    let root = TestRoot::new();
    root.loaded.store(false, Ordering::Relaxed);
    let body = json!({"query": [1, 2]});
    let refused = root.post("points/query?timeout=1", &body).await;
    assert_eq!((refused.status, &refused.headers["retry-after"]), (503, &"1".parse().unwrap()));
    let (answer, ()) = tokio::join!(root.post("points/query", &body), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        root.loaded.store(true, Ordering::Relaxed);
    });
    assert_eq!(answer.status, 404, "it was read, and has no such collection");
    assert_eq!(root.metrics.cluster.start_waits.get(), 2);
}

#[tokio::test]
async fn an_unknown_name_reads_the_collections_again() {
    let root = TestRoot::new();
    let unknown = root.post("points/query", &json!({"query": [1, 2]})).await;
    assert_eq!((unknown.status, root.metrics.cluster.name_waits.get()), (404, 1));
    // Another root has created the collection a moment ago.
    root.unread.lock().push(record(1, "Dot"));
    root.serve("a", "127.0.0.1:1", &[0]);
    let exists = root.send(Method::GET, "/collections/c/exists", &Value::Null).await;
    assert_eq!(exists.result(), &json!({"exists": true}));
    assert_eq!(root.metrics.cluster.name_waits.get(), 2);
    root.send(Method::GET, "/collections/c/exists", &Value::Null).await;
    // A creation and a removal read the record themselves.
    root.send(Method::DELETE, "/collections/other", &Value::Null).await;
    assert_eq!(root.metrics.cluster.name_waits.get(), 2);
}

/// Returns a root over two nodes. Another root has replaced the collection "c" by one with the id
/// "newer" a moment ago.
async fn replaced_collection() -> (TestRoot, [Arc<FakeNode>; 2]) {
    let (root, nodes) = two_nodes().await;
    root.view.update(|view| {
        for node in view.nodes.values_mut() {
            node.serving.insert("newer".to_owned(), (0..SHARDS).collect());
        }
    });
    let newer = CollectionRecord { id: "newer".to_owned(), ..record(SHARDS, "Dot") };
    root.unread.lock().push(newer);
    (root, nodes)
}

#[tokio::test]
async fn a_strong_read_sees_a_replaced_collection() {
    let (root, nodes) = replaced_collection().await;
    root.post("points/count?consistency=strong", &json!({})).await.result();
    let reads: Vec<Value> = nodes.iter().flat_map(|node| node.taken_reads()).collect();
    assert!(!reads.is_empty() && reads.iter().all(|read| read["collection"] == "newer"));
    // The point may be in the newer collection.
    let (root, _nodes) = replaced_collection().await;
    let absent = root.post("points", &json!({"ids": [1000]})).await;
    assert_eq!((absent.status, &absent.headers["retry-after"]), (503, &"1".parse().unwrap()));
    assert_eq!(root.post("points", &json!({"ids": [1000]})).await.result(), &json!([]));
}

#[tokio::test]
async fn a_replaced_collection_gets_changes() {
    let (root, _nodes) = replaced_collection().await;
    let index = json!({"field_name": "f", "field_schema": "keyword"});
    root.put("index", &index).await.result();
    let changed = root.view.source().current().changes.collections.clone();
    assert_eq!(changed["newer"].payload_schema["f"]["data_type"], "keyword");

    let (root, nodes) = replaced_collection().await;
    let filter = json!({"filter": {"must": [{"key": "n", "match": {"value": 1}}]}});
    let refused = root.post("points/delete", &filter).await;
    assert_eq!((refused.status, &refused.headers["retry-after"]), (503, &"1".parse().unwrap()));
    assert!(nodes.iter().all(|node| node.taken_reads().is_empty()));
}

#[tokio::test]
async fn an_alias_may_name_a_collection_of_another_root() {
    let root = TestRoot::with_collection(1, "Dot");
    root.unread.lock().push(CollectionRecord { name: "d".to_owned(), ..record(1, "Dot") });
    let create = json!({"create_alias": {"alias_name": "live", "collection_name": "d"}});
    let actions = json!({ "actions": [create] });
    root.send(Method::POST, "/collections/aliases", &actions).await.result();
    assert_eq!(root.view.source().current().changes.aliases["live"], "d");
    // Only the catalog knows if another root has removed the alias.
    let vectors = json!({"vectors": {"size": 2, "distance": "Dot"}});
    root.send(Method::PUT, "/collections/live?timeout=1", &vectors).await;
    assert!(root.view.source().current().collections.contains_key("live"));
}

#[tokio::test]
async fn an_alias_may_have_the_name_of_a_removed_collection() {
    let root = TestRoot::with_collection(1, "Dot");
    root.removed.store(true, Ordering::Relaxed);
    root.unread.lock().push(CollectionRecord { name: "d".to_owned(), ..record(1, "Dot") });
    let create = json!({"create_alias": {"alias_name": "c", "collection_name": "d"}});
    let actions = json!({ "actions": [create] });
    root.send(Method::POST, "/collections/aliases", &actions).await.result();
    assert_eq!(root.view.source().current().changes.aliases["c"], "d");
}

#[tokio::test]
async fn a_request_waits_for_the_holders_of_a_new_collection() {
    let (root, node) = (TestRoot::with_collection(1, "Dot"), FakeNode::start("a", numbers).await);
    let body = json!({"query": [1, 2]});
    let served = async {
        // The request waits for two seconds. A pause of this thread must not take them.
        while root.metrics.cluster.name_waits.get() == 0 {
            tokio::task::yield_now().await;
        }
        root.serve("a", &node.address, &[0]);
    };
    let (answer, served) =
        tokio::join!(root.post("points/query", &body), tokio::time::timeout(WAIT, served));
    served.unwrap();
    assert_eq!((answer.status, root.metrics.cluster.name_waits.get()), (200, 1));
    // A shard that loses its holders later is not awaited.
    root.serve("a", &node.address, &[]);
    assert_eq!(root.post("points/query", &body).await.status, 503);
    assert_eq!(root.metrics.cluster.name_waits.get(), 1);
}

#[tokio::test]
async fn requests_that_wait_for_a_name_are_limited() {
    const WAITS_AT_ONCE_MAX: u64 = 256;
    let root = Arc::new(TestRoot::new());
    root.hangs.store(true, Ordering::Relaxed);
    let mut answers = tokio::task::JoinSet::new();
    for _ in 0..WAITS_AT_ONCE_MAX + 9 {
        let root = root.clone();
        answers.spawn(async move {
            let path = "/collections/c/exists?timeout=1";
            root.send(Method::GET, path, &Value::Null).await;
        });
    }
    while let Some(answered) = answers.join_next().await {
        answered.unwrap();
    }
    assert_eq!(root.metrics.cluster.name_waits.get(), WAITS_AT_ONCE_MAX);
    root.hangs.store(false, Ordering::Relaxed);
    root.post("points/query", &json!({"query": [1, 2]})).await;
    assert_eq!(root.metrics.cluster.name_waits.get(), WAITS_AT_ONCE_MAX + 1);
}

#[tokio::test]
async fn one_request_a_node_reads_all_shards() {
    // Without a pause of the machine, a root repeats no read of nodes that work.
    const TRIES_MAX: usize = 5;
    for _ in 0..TRIES_MAX {
        if one_read_a_query().await {
            return;
        }
    }
    panic!("the root repeats reads of nodes that work");
}

/// Sends four queries to a new root. Returns false if it has repeated a read.
async fn one_read_a_query() -> bool {
    let (root, nodes) = two_nodes().await;
    for _ in 0..4 {
        let answer = root.post("points/query", &json!({"query": [1, 2], "limit": 3})).await;
        assert_eq!(ids(answer.result()), [39, 38, 37]);
        assert_eq!(
            (&answer.json["coverage"], &answer.json["status"]),
            (&Value::Null, &json!("ok"))
        );
    }
    for read in nodes.iter().flat_map(|node| node.reads.lock().clone()) {
        assert_eq!(
            (&read["collection"], &read["strong"], &read["shards"]["3"]),
            (&json!(ID), &json!(false), &json!(0))
        );
        assert!(read["timeout_ms"].as_u64().is_some_and(|ms| (1..=60_000).contains(&ms)));
    }
    assert_eq!(root.count("first"), 4);
    // A node that was late is asked last for a while.
    if root.repeated_reads() > 0 {
        return false;
    }
    for node in &nodes {
        let reads = node.taken_reads();
        assert_eq!(asked(&reads), BTreeMap::from([(0, 2), (1, 2), (2, 2), (3, 2)]));
        assert_eq!(reads.len(), 2, "queries alternate");
    }
    true
}

#[tokio::test]
async fn older_routes_answer_with_lists() {
    let (root, _nodes) = two_nodes().await;
    let search = json!({"vector": [1, 2], "limit": 3, "offset": 2});
    let found = root.post("points/search", &search).await;
    assert!(found.result().is_array(), "{}", found.json);
    assert_eq!(ids(found.result()), [37, 36, 35]);
    let batch = root.post("points/search/batch", &json!({"searches": [search]})).await;
    assert_eq!(ids(&batch.result()[0]), [37, 36, 35]);
    let recommend = json!({"positive": [[1, 2]], "limit": 2});
    assert_eq!(ids(root.post("points/recommend", &recommend).await.result()), [39, 38]);
    assert_eq!(root.post("points/search", &json!({"vector": [1, 2]})).await.status, 400);
}

#[tokio::test]
async fn every_kind_of_read_is_merged() {
    let (root, _nodes) = two_nodes().await;
    let query = json!({"query": [1, 2], "limit": 3, "offset": 2});
    assert_eq!(ids(root.post("points/query", &query).await.result()), [37, 36, 35]);
    let batch = root.post("points/query/batch", &json!({"searches": [query, {}]})).await;
    assert_eq!(ids(&batch.result()[0]), [37, 36, 35]);
    assert_eq!(batch.result()[1]["points"].as_array().unwrap().len(), 10);
    assert_eq!(
        root.post("points/query/batch", &json!({"searches": []})).await.result(),
        &json!([])
    );
    assert_eq!(root.post("points/count", &Value::Null).await.result(), &json!({"count": 40}));
    let facet = root.post("facet", &json!({"key": "k"})).await;
    assert_eq!(facet.result(), &json!({"hits": [{"value": "a", "count": 40}]}));
    let records = root.post("points", &json!({"ids": [7, 99, 3, 7]})).await;
    assert_eq!(ids(records.result()), [7, 3]);
    assert_eq!(root.post("points", &json!({"ids": []})).await.result(), &json!([]));
    let mut pages = Vec::new();
    let mut offset = Value::Null;
    loop {
        let page = root.post("points/scroll", &json!({"limit": 7, "offset": offset})).await;
        pages.extend(ids(page.result()));
        offset = page.result()["next_page_offset"].clone();
        if offset.is_null() {
            break;
        }
    }
    assert_eq!(pages, (0..40).collect::<Vec<u64>>());
    let described = root.send(Method::GET, "/collections/c", &Value::Null).await;
    assert_eq!(described.result()["points_count"], 40);
    assert_eq!(described.result()["status"], "green");
}

#[tokio::test]
async fn distances_are_merged_from_the_smallest() {
    let root = TestRoot::with_collection(2, "Euclid");
    let hit = |id: u32| json!({"id": id, "score": id});
    let node =
        FakeNode::start("a", move |shard, _| json!({"points": [hit(shard), hit(shard + 10)]}));
    root.serve("a", &node.await.address, &[0, 1]);
    let answer = root.post("points/query", &json!({"query": [1, 2]})).await;
    assert_eq!(ids(answer.result()), [0, 1, 10, 11]);
}

#[tokio::test]
async fn points_go_to_their_shards_only() {
    let (root, nodes) = two_nodes().await;
    let one = root.send(Method::GET, "/collections/c/points/7", &Value::Null).await;
    assert_eq!(one.result(), &json!({"id": 7, "payload": {}, "vector": [7, 1.5]}));
    let missing = root.send(Method::GET, "/collections/c/points/99", &Value::Null).await;
    assert_eq!(
        (missing.status, missing.error()),
        (404, "Not found: Point with id 99 does not exist")
    );
    let reads: Vec<Value> = nodes.iter().flat_map(|node| node.taken_reads()).collect();
    let shards = |id| set([shard_of(&PointId::Number(id))]);
    let asked_shards: Vec<_> =
        reads.iter().map(|read| set(asked(std::slice::from_ref(read)).into_keys())).collect();
    let most = 3 + root.repeated_reads();
    assert!((3..=most).contains(&reads.len()), "the absent point is read again: {reads:?}");
    assert!(asked_shards.contains(&shards(7)) && asked_shards.contains(&shards(99)));
}

#[tokio::test]
async fn the_point_of_a_query_becomes_its_vector() {
    let (root, nodes) = two_nodes().await;
    root.post("points/query", &json!({"query": 7})).await.result();
    let reads: Vec<Value> = nodes.iter().flat_map(|node| node.taken_reads()).collect();
    let query = reads.iter().find(|read| read["path"] == "points/query").unwrap();
    assert_eq!(query["body"]["query"], json!([7.0, 1.5]));
    assert_eq!(query["body"]["filter"], json!({"must_not": [{"has_id": [7]}]}));
    let missing = root.post("points/query", &json!({"query": 99})).await;
    assert_eq!(
        (missing.status, missing.error()),
        (404, "query: Not found: No point with id 99 found")
    );
}

#[tokio::test]
async fn another_holder_answers_for_one_that_fails() {
    let (root, nodes) = two_nodes().await;
    for behaviour in [
        Behaviour::Refuse(500, json!({"error": "broken"})),
        Behaviour::Refuse(503, json!({"error": "stops"})),
        Behaviour::RefuseShards(503, "behind"),
        Behaviour::RefuseShards(500, "damaged"),
        Behaviour::RefuseShards(404, "no collection"),
        Behaviour::Omit,
    ] {
        nodes[0].behave(behaviour.clone());
        let before = root.count("retried");
        for _ in 0..2 {
            let answer = root.post("points/count", &json!({})).await;
            assert_eq!(answer.result(), &json!({"count": 40}), "{behaviour:?}");
        }
        // A node that failed as a whole is asked last for a while.
        assert!(root.count("retried") <= before + 2, "{behaviour:?}");
    }
    assert!(root.count("retried") > 0);
    assert_eq!(root.count("partial"), 0);
}

#[tokio::test]
async fn a_dead_node_costs_no_answer() {
    let (root, _nodes) = two_nodes().await;
    let dead = refusing_socket();
    root.serve("a", &dead.local_addr().unwrap().to_string(), &[0, 1, 2, 3]);
    for _ in 0..10 {
        assert_eq!(root.post("points/count", &json!({})).await.result(), &json!({"count": 40}));
    }
    let retried = root.count("retried");
    assert!((1..=10).contains(&retried), "{retried}");
    assert_eq!((root.count("hedged"), root.count("partial")), (0, 0));
}

#[tokio::test]
async fn refusals_of_the_request_reach_the_client() {
    let (root, nodes) = two_nodes().await;
    for (status, message, expected) in [
        (400, "no such vector", 400),
        (422, "Validation error in JSON body: [limit: 0]", 422),
        (501, "not supported", 501),
    ] {
        nodes.iter().for_each(|node| node.behave(Behaviour::RefuseShards(status, message)));
        let answer = root.post("points/query", &json!({"query": [1, 2]})).await;
        assert_eq!((answer.status, answer.error()), (expected, message));
    }
    assert_eq!(root.count("retried"), 0);
    let local = root.post("points/query", &json!({"query": [1, 2], "prefetch": {}})).await;
    assert_eq!(local.status, 501);
    let groups = root.post("points/query/groups", &json!({"query": [1, 2]})).await;
    assert_eq!(groups.status, 400, "{}", groups.error());
    assert!(groups.error().contains("group_by"), "{}", groups.error());
    let unknown = root.send(Method::POST, "/collections/d/points/count", &json!({})).await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn calls_that_a_cluster_does_not_have_answer_501() {
    let root = TestRoot::with_collection(2, "Dot");
    for path in ["/cluster", "/cluster/telemetry", "/cluster/recover", "/cluster/peer/1", "/issues"]
    {
        let answer = root.send(Method::GET, path, &Value::Null).await;
        assert_eq!(answer.status, 501, "{path}");
        assert!(answer.error().contains(path), "{}", answer.error());
    }
}

#[tokio::test]
async fn missing_shards_make_answers_partial() {
    let (root, nodes) = two_nodes().await;
    nodes.iter().for_each(|node| root.serve(node.name, &node.address, &[0, 1, 2]));
    let count = root.post("points/count", &json!({})).await;
    let points = (0..40).filter(|id| shard_of(&PointId::Number(*id)) < 3).count();
    assert_eq!(count.result(), &json!({"count": points, "partial": true}));
    assert_eq!(count.json["coverage"], json!({"shards": 3, "of": 4}));
    let path = "/collections/c/points/count";
    let enough = root.send(Method::POST, &format!("{path}?min_coverage=0.75"), &json!({})).await;
    assert_eq!(enough.status, 200);
    let partial = root.count("partial");
    let few = root.send(Method::POST, &format!("{path}?min_coverage=0.8"), &json!({})).await;
    assert_eq!(few.status, 503);
    assert!(few.error().starts_with("3 of 4 shards answered"), "{}", few.error());
    assert!(few.headers.contains_key("retry-after"));
    let header = Request::post(path).header("x-min-coverage", "1").body(Body::from("{}")).unwrap();
    assert_eq!(root.send_request(header).await.status, 503);
    assert_eq!((partial, root.count("partial"), root.count("refused")), (2, 2, 2));
    let batch = root.post("points/query/batch", &json!({"searches": [{}]})).await;
    assert_eq!(batch.result()[0]["partial"], true);
    let described = root.send(Method::GET, "/collections/c", &Value::Null).await;
    assert_eq!(
        (&described.result()["status"], &described.result()["points_count"]),
        (&json!("red"), &json!(points))
    );
    let lost = (0..40).find(|id| shard_of(&PointId::Number(*id)) == 3).unwrap();
    let one = root.send(Method::GET, &format!("/collections/c/points/{lost}"), &Value::Null).await;
    assert_eq!(one.status, 503, "an unknown point is not a missing one");
    let by_id = root.post("points/query", &json!({ "query": lost })).await;
    assert_eq!(by_id.status, 503);
    root.view.update(|view| view.nodes.clear());
    assert_eq!(root.post("points/count", &json!({})).await.status, 503);
    let index = json!({"field_name": "city", "field_schema": "keyword"});
    assert_eq!(root.put("index", &index).await.status, 200);
    let described = root.send(Method::GET, "/collections/c", &Value::Null).await;
    let described = described.result();
    assert_eq!((&described["status"], &described["points_count"]), (&json!("red"), &Value::Null));
    assert_eq!(described["payload_schema"]["city"]["points"], 0);
    assert!(described["optimizer_status"]["error"].is_string(), "{described}");
}

#[tokio::test]
async fn a_slow_holder_is_hedged_within_the_budget() {
    let (root, nodes) = two_nodes().await;
    for _ in 0..200 {
        root.post("points/count", &json!({})).await.result();
    }
    nodes[0].taken_reads();
    nodes[0].behave(Behaviour::Hang);
    for _ in 0..60 {
        let answer = root.post("points/count", &json!({})).await;
        assert_eq!(answer.result(), &json!({"count": 40}));
    }
    let (first, hedged, won) = (root.count("first"), root.count("hedged"), root.count("hedge_won"));
    assert_eq!(first, 260);
    assert!((1..=first / 20).contains(&hedged), "{hedged} of {first}");
    assert!((1..=hedged).contains(&won), "{won} of {hedged}");
    assert_eq!(root.count("partial"), 0);
    let hung = nodes[0].taken_reads().len() as u64;
    assert!(hung < 25, "{hung} of 60 queries went to the slow node first");
    wait_until(|| nodes[0].dropped.load(Ordering::Relaxed) == hung).await;
}

#[tokio::test]
async fn the_deadline_ends_a_read() {
    let (root, nodes) = two_nodes().await;
    nodes.iter().for_each(|node| node.behave(Behaviour::Hang));
    let path = "/collections/c/points/count?timeout=1";
    let answer = root.send(Method::POST, path, &json!({})).await;
    assert_eq!(answer.status, 503);
    assert!(answer.error().contains("0 of 4 shards"), "{}", answer.error());
    let hung: u64 = nodes.iter().map(|node| node.taken_reads().len() as u64).sum();
    let dropped = || nodes.iter().map(|node| node.dropped.load(Ordering::Relaxed)).sum::<u64>();
    wait_until(|| dropped() == hung).await;
}

#[tokio::test]
async fn holders_that_return_are_asked_again() {
    let (root, nodes) = two_nodes().await;
    nodes.iter().for_each(|node| node.behave(Behaviour::Refuse(503, json!({"error": "starts"}))));
    let mended = async {
        wait_until(|| nodes.iter().all(|node| !node.reads.lock().is_empty())).await;
        nodes.iter().for_each(|node| node.behave(Behaviour::Work));
    };
    let body = json!({});
    let (answer, ()) = tokio::join!(root.post("points/count", &body), mended);
    assert_eq!(answer.result(), &json!({"count": 40}));
}

#[tokio::test]
async fn overloaded_nodes_are_not_asked_again() {
    let (root, nodes) = two_nodes().await;
    nodes.iter().for_each(|node| node.behave(Behaviour::RefuseShards(429, "full")));
    let answer = root.post("points/count", &json!({})).await;
    assert_eq!(answer.status, 503);
    let reads: usize = nodes.iter().map(|node| node.taken_reads().len()).sum();
    assert_eq!(reads, 2, "once each");
}

#[tokio::test]
async fn requests_of_strong_reads_are_marked() {
    let (root, nodes) = two_nodes().await;
    let path = "/collections/c/points/count?consistency=strong";
    root.send(Method::POST, path, &json!({})).await.result();
    let reads: Vec<Value> = nodes.iter().flat_map(|node| node.taken_reads()).collect();
    assert!(reads.iter().all(|read| read["strong"] == true), "{reads:?}");
    assert!((1..=1 + root.repeated_reads()).contains(&reads.len()), "{reads:?}");
}

/// Answers as a holder that applies the end of its log for strong reads only.
fn lagging(shard: u32, request: &Value) -> Value {
    if request["path"] == "points" && request["strong"] == false {
        json!([])
    } else {
        numbers(shard, request)
    }
}

#[tokio::test]
async fn a_point_that_a_holder_lacks_is_read_again() {
    let root = TestRoot::with_collection(SHARDS, "Dot");
    let node = FakeNode::start("a", lagging).await;
    root.serve("a", &node.address, &[0, 1, 2, 3]);
    let one = root.send(Method::GET, "/collections/c/points/7", &Value::Null).await;
    assert_eq!(one.result()["id"], 7);
    assert_eq!(ids(root.post("points", &json!({"ids": [7, 3]})).await.result()), [7, 3]);
    let named = root.post("points/query", &json!({"query": 7, "limit": 1})).await;
    assert_eq!(ids(named.result()), [39]);
    let absent = root.send(Method::GET, "/collections/c/points/99", &Value::Null).await;
    assert_eq!(absent.status, 404);
    assert_eq!(root.count("confirmed"), 4);
    let (root, nodes) = two_nodes().await;
    let one = root.send(Method::GET, "/collections/c/points/7", &Value::Null).await;
    assert_eq!(one.result()["id"], 7);
    let reads: usize = nodes.iter().map(|node| node.taken_reads().len()).sum();
    assert_eq!(root.count("confirmed"), 0);
    let most = 1 + root.repeated_reads();
    assert!((1..=most).contains(&reads), "a point that is there costs one read, and not {reads}");
}

#[tokio::test]
async fn an_absent_point_is_not_certain_without_the_log() {
    let root = TestRoot::with_collection(SHARDS, "Dot");
    let behind = |shard, request: &Value| {
        if request["strong"] == true { json!({"refused": 503}) } else { lagging(shard, request) }
    };
    let node = FakeNode::start("a", behind).await;
    root.serve("a", &node.address, &[0, 1, 2, 3]);
    let one = root.send(Method::GET, "/collections/c/points/7?timeout=1", &Value::Null).await;
    assert_eq!(one.status, 503);
    let some = root.post("points?timeout=1", &json!({"ids": [7]})).await;
    assert_eq!(some.status, 503, "{}", some.json);
}

#[tokio::test]
async fn every_holder_catches_up() {
    let mut state = None;
    let root = TestRoot::with_routes(|own| {
        state = Some(own.clone());
        Router::new()
    });
    let state = state.unwrap();
    let first = FakeNode::start("a", numbers).await;
    let second = FakeNode::start("b", numbers).await;
    root.serve("a", &first.address, &[0, 1, 2, 3]);
    root.serve("b", &second.address, &[1, 3]);
    let record = record(SHARDS, "Dot");
    let until = Instant::now() + WAIT;
    catch_up(&state, &record, until).await.unwrap();
    let reads = [&first, &second].map(|node| node.taken_reads());
    let shards = reads.each_ref().map(|reads| asked(reads).into_keys().collect::<Vec<u32>>());
    assert_eq!(shards, [vec![0, 1, 2, 3], vec![1, 3]]);
    assert!(reads.iter().flatten().all(|read| read["strong"] == true), "{reads:?}");
    second.behave(Behaviour::RefuseShards(503, "the copy is behind"));
    assert!(catch_up(&state, &record, until).await.is_err());
    second.behave(Behaviour::Omit);
    assert!(catch_up(&state, &record, until).await.is_err());
    // The second node reads its logs, although the first one fails.
    first.behave(Behaviour::RefuseShards(503, "the copy is behind"));
    second.behave(Behaviour::Work);
    second.taken_reads();
    assert!(catch_up(&state, &record, until).await.is_err());
    assert_eq!(second.taken_reads().len(), 1);
}
