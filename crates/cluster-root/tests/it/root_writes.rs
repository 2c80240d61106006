//! Writes of a root: the search for owners, owners that change, outcomes that are not known.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use cluster_node::{CollectionRecord, ShardKey};
use cluster_root::writes::{ShardWrite, WriteCondition, is_shard_refusal, was_not_written};
use http::Method;
use search::points::PointId;
use serde_json::{Value, json};

use crate::root_support::{Answer, Behaviour, FakeNode, TestRoot, refusing_socket, wait_until};

/// Shards of the collection "c".
const SHARDS: u32 = 2;
/// Maximum tries of a write whose short time may pass while this thread is paused.
const TRIES_MAX: usize = 20;

fn shard_of(id: u64) -> u32 {
    let id = PointId::Number(id).to_string();
    cluster::shard_of(id.as_bytes(), SHARDS).unwrap().0
}

/// Two nodes that hold all shards. Node "a" owns shard 0, and node "b" shard 1.
async fn two_owners() -> (TestRoot, [Arc<FakeNode>; 2]) {
    let root = TestRoot::with_collection(SHARDS, "Dot");
    let count = |_: u32, _: &Value| json!({"count": 0});
    let nodes = [FakeNode::start("a", count).await, FakeNode::start("b", count).await];
    for (node, shard) in nodes.iter().zip(0..) {
        root.serve(node.name, &node.address, &[0, 1]);
        root.own(node.name, shard, 1);
    }
    (root, nodes)
}

fn points(count: u64) -> Value {
    let point = |id: u64| json!({"id": id, "vector": [id, 1], "payload": {"n": id}});
    json!({"points": (0..count).map(point).collect::<Vec<_>>()})
}

/// A point of shard 0.
fn first_shards_point() -> Value {
    let id = (0..).find(|id| shard_of(*id) == 0).unwrap();
    json!({"points": [{"id": id, "vector": [1, 2]}]})
}

/// Writes a point of shard 0 that no owner takes within a second. Writes again if the root was
/// paused for that second before it sent the point.
async fn refused_within_a_second(root: &TestRoot) -> Answer {
    for _ in 0..TRIES_MAX {
        let answer = root.put("points?timeout=1", &first_shards_point()).await;
        if !answer.error().contains("timed out before the write was sent") {
            return answer;
        }
    }
    panic!("the root sends no write");
}

#[tokio::test]
async fn points_go_to_the_owners_of_their_shards() {
    let (root, nodes) = two_owners().await;
    let answer = root.put("points?wait=true", &points(20)).await;
    assert_eq!(answer.result(), &json!({"operation_id": 5, "status": "completed"}));
    for (node, shard) in nodes.iter().zip(0..) {
        let writes = node.taken_writes();
        assert_eq!((writes.len(), &writes[0]["shard"]), (1, &json!(shard)));
        assert_eq!(writes[0]["collection"], "id");
        let operations = writes[0]["operations"].as_array().unwrap();
        let ids: Vec<u64> = operations[0]["upsert"]["points"]
            .as_array()
            .unwrap()
            .iter()
            .map(|point| point["id"].as_u64().unwrap())
            .collect();
        assert_eq!(ids, (0..20).filter(|id| shard_of(*id) == shard).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn new_vectors_go_to_the_owners_of_their_shards() {
    let (root, nodes) = two_owners().await;
    let vector = |id: u64| json!({"id": id, "vector": [id, 1]});
    let body = json!({"points": (0..20).map(vector).collect::<Vec<_>>()});
    let answer = root.put("points/vectors?wait=true", &body).await;
    assert_eq!(answer.result()["status"], "completed");
    let batch = json!({"operations": [{"update_vectors": body}, {"delete": {"points": []}}]});
    assert_eq!(root.post("points/batch", &batch).await.result().as_array().unwrap().len(), 2);
    for (node, shard) in nodes.iter().zip(0..) {
        let own = (0..20).filter(|id| shard_of(*id) == shard);
        let points: Vec<Value> = own.map(vector).collect();
        let writes = node.taken_writes();
        assert_eq!(writes.len(), 2);
        for write in writes {
            assert_eq!(write["operations"], json!([{"update_vectors": {"points": points}}]));
        }
    }
    let conditional = json!({"points": [vector(1)], "update_filter": {}});
    assert_eq!(root.put("points/vectors", &conditional).await.status, 501);
    assert!(nodes.iter().all(|node| node.writes.lock().is_empty()));
}

#[tokio::test]
async fn reads_carry_the_entries_of_earlier_writes() {
    let (root, nodes) = two_owners().await;
    root.put("points", &first_shards_point()).await.result();
    root.post("points/count", &json!({})).await.result();
    let reads: Vec<Value> = nodes.iter().flat_map(|node| node.taken_reads()).collect();
    assert_eq!(reads[0]["shards"], json!({"0": 5, "1": 0}));
}

#[tokio::test]
async fn many_operations_become_several_writes() {
    let (root, nodes) = two_owners().await;
    let id = (0..).find(|id| shard_of(*id) == 0).unwrap();
    let operations = vec![json!({"clear_payload": {"points": [id]}}); 20_000];
    root.post("points/batch", &json!({ "operations": operations })).await.result();
    let writes = nodes[0].taken_writes();
    let counts: Vec<usize> =
        writes.iter().map(|write| write["operations"].as_array().unwrap().len()).collect();
    assert_eq!(counts, [16_384, 3_616]);
}

/// Two pages of the points of a shard that a filter chooses.
fn chosen(shard: u32, request: &Value) -> Value {
    let mut ids = (0..).filter(|id| shard_of(*id) == shard);
    let pages = [ids.next().unwrap(), ids.next().unwrap()];
    match request["body"]["offset"].as_u64() {
        None => json!({"points": [{"id": pages[0]}], "next_page_offset": pages[1]}),
        Some(id) => json!({"points": [{"id": id}], "next_page_offset": null}),
    }
}

#[tokio::test]
async fn changes_by_filter_are_sent_by_ids() {
    let root = TestRoot::with_collection(SHARDS, "Dot");
    let nodes = [FakeNode::start("a", chosen).await, FakeNode::start("b", chosen).await];
    for (node, shard) in nodes.iter().zip(0..) {
        root.serve(node.name, &node.address, &[0, 1]);
        root.own(node.name, shard, 1);
    }
    let filter = json!({"must": [{"key": "a", "match": {"value": 1}}]});
    let all = json!({ "filter": filter });
    let set = json!({"payload": {"b": 2}, "filter": filter});
    let delete = json!({"keys": ["b"], "filter": filter});
    root.post("points/delete", &all).await.result();
    root.post("points/payload", &set).await.result();
    root.put("points/payload", &set).await.result();
    root.post("points/payload/delete", &delete).await.result();
    root.post("points/payload/clear", &all).await.result();
    let operations = json!([{"set_payload": set}, {"clear_payload": all}]);
    let batch = root.post("points/batch", &json!({ "operations": operations })).await;
    assert_eq!(batch.result().as_array().unwrap().len(), 2);
    for (node, shard) in nodes.iter().zip(0..) {
        assert!(node.taken_reads().iter().all(|read| read["strong"] == true));
        let writes = node.taken_writes();
        let sent: Vec<&Value> =
            writes.iter().flat_map(|write| write["operations"].as_array().unwrap()).collect();
        let kinds =
            ["delete", "set_payload", "overwrite_payload", "delete_payload", "clear_payload"];
        let kinds = kinds.into_iter().chain(["set_payload", "clear_payload"]);
        let kinds: Vec<&str> = kinds.flat_map(|kind| [kind, kind]).collect();
        assert_eq!(sent.len(), kinds.len(), "{}", node.name);
        let ids: Vec<u64> = (0..).filter(|id| shard_of(*id) == shard).take(2).collect();
        for (at, (operation, kind)) in sent.iter().zip(kinds).enumerate() {
            let change = &operation[kind];
            assert_eq!(change["points"], json!([ids[at % 2]]), "{operation}");
            assert_eq!(change["filter"], Value::Null);
            assert_eq!(
                change["payload"].is_object(),
                kind.starts_with("set") || kind.starts_with("over")
            );
        }
    }
}

/// Answers as a collection whose points have a payload of 40 KiB. A filter chooses point 1.
fn large_payloads(shard: u32, request: &Value) -> Value {
    let text = "x".repeat(40 << 10);
    let point = |id: &Value| json!({"id": id, "payload": {"old": text}});
    match request["path"].as_str().unwrap() {
        "points" => request["body"]["ids"].as_array().unwrap().iter().map(point).collect(),
        _ if shard == shard_of(1) => json!({"points": [point(&json!(1))]}),
        _ => json!({"points": []}),
    }
}

#[tokio::test]
async fn a_payload_that_would_become_too_large_is_refused() {
    let root = TestRoot::with_collection(SHARDS, "Dot");
    let node = FakeNode::start("a", large_payloads).await;
    root.serve("a", &node.address, &[0, 1]);
    (0..SHARDS).for_each(|shard| root.own("a", shard, 1));
    let large = "y".repeat(30 << 10);
    let set = json!({"payload": {"new": large}, "points": [1, 2]});
    let filter = json!({"must": [{"key": "a", "match": {"value": 1}}]});
    for (path, body) in [
        ("points/payload", set.clone()),
        ("points/payload", json!({"payload": {"new": large}, "filter": filter})),
        ("points/payload", json!({"payload": {"new": large}, "key": "a.b", "points": [1]})),
        ("points/batch", json!({"operations": [{"set_payload": set}]})),
    ] {
        let answer = root.post(path, &body).await;
        assert_eq!(answer.status, 413, "{path}: {}", answer.json);
        assert!(answer.error().contains("payload would have"), "{}", answer.error());
        assert!(node.taken_reads().iter().all(|read| read["strong"] == true));
    }
    assert!(node.taken_writes().is_empty());
    let clear = json!({"clear_payload": {"points": [1, 2]}});
    let fits = json!({"operations": [clear, {"set_payload": set}]});
    assert_eq!(root.post("points/batch", &fits).await.result()[1]["status"], "completed");
    root.post("points/payload", &json!({"payload": {"n": 1}, "points": [1]})).await.result();
    assert!(!node.taken_writes().is_empty());
    node.behave(Behaviour::Refuse(503, json!({"error": "down"})));
    let unknown = root.post("points/payload?timeout=1", &set).await;
    assert_eq!(unknown.status, 503);
    assert!(unknown.error().contains("cannot be read"), "{}", unknown.error());
    assert!(node.taken_writes().is_empty());
}

#[tokio::test]
async fn operations_that_no_holder_can_make_are_not_sent() {
    let (root, nodes) = two_owners().await;
    for (path, body) in [
        ("points", json!({"points": [{"id": 1, "vector": [1]}]})),
        ("points", json!({"points": [{"id": 1, "vector": [1e39, 0]}]})),
        ("points", json!({"points": [{"id": 1, "vector": {"x": [1, 2]}}]})),
        ("points", json!({"points": [], "batch": {}})),
        ("points/payload", json!({"payload": {}})),
        ("points/vectors", json!({"points": [{"id": 1, "vector": [1]}]})),
    ] {
        assert_eq!(root.put(path, &body).await.status, 400, "{body}");
    }
    let late = json!({"operations": [{"delete": {"points": [1]}}, {"delete": {}}]});
    let answer = root.post("points/batch", &late).await;
    assert_eq!(answer.status, 400);
    assert!(answer.error().starts_with("operations[1]"), "{}", answer.error());
    assert!(nodes.iter().all(|node| node.writes.lock().is_empty()));
    let nothing = root.put("points", &json!({"points": []})).await;
    assert_eq!(nothing.result()["status"], "completed");
    assert!(nodes.iter().all(|node| node.writes.lock().is_empty()));
}

#[tokio::test]
async fn large_requests_are_sent_in_parts() {
    let (root, nodes) = two_owners().await;
    let text = "x".repeat(60_000);
    let point = |id: u64| json!({"id": id, "vector": [1, 2], "payload": {"text": text}});
    let ids: Vec<u64> = (0..).filter(|id| shard_of(*id) == 0).take(80).collect();
    let body = json!({"points": ids.iter().copied().map(point).collect::<Vec<_>>()});
    root.put("points?timeout=60", &body).await.result();
    let writes = nodes[0].taken_writes();
    assert_eq!(writes.len(), 2, "4.8 MB in requests of at most 4 MiB");
    let mut found = Vec::new();
    for operation in writes.iter().flat_map(|write| write["operations"].as_array().unwrap()) {
        let points = operation["upsert"]["points"].as_array().unwrap();
        assert!(points.len() < 20, "an operation has at most 1 MiB");
        found.extend(points.iter().map(|point| point["id"].as_u64().unwrap()));
    }
    assert_eq!(found, ids, "in order");
}

#[tokio::test]
async fn a_named_owner_is_asked_at_once() {
    let (root, nodes) = two_owners().await;
    nodes[0].behave_in_writes(Behaviour::Refuse(409, json!({"owner": "b"})));
    let answer = root.put("points", &first_shards_point()).await;
    assert_eq!(answer.result()["status"], "completed");
    assert_eq!((nodes[0].taken_writes().len(), nodes[1].taken_writes().len()), (1, 1));
}

#[tokio::test]
async fn a_write_waits_for_the_next_owner() {
    let (root, nodes) = two_owners().await;
    nodes[0].behave_in_writes(Behaviour::Refuse(409, json!({"owner": null})));
    let moved = async {
        wait_until(|| !nodes[0].writes.lock().is_empty()).await;
        root.own("b", 0, 2);
    };
    let body = first_shards_point();
    let (answer, ()) = tokio::join!(root.put("points", &body), moved);
    assert_eq!(answer.result()["status"], "completed");
    assert_eq!(nodes[1].taken_writes().len(), 1);
}

#[tokio::test]
async fn a_write_waits_while_the_owner_is_dead() {
    let (root, nodes) = two_owners().await;
    let dead = refusing_socket();
    root.serve("a", &dead.local_addr().unwrap().to_string(), &[0, 1]);
    let moved = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        root.own("b", 0, 2);
    };
    let body = first_shards_point();
    let (answer, ()) = tokio::join!(root.put("points", &body), moved);
    assert_eq!(answer.result()["status"], "completed");
    assert_eq!(nodes[1].taken_writes().len(), 1);
}

#[tokio::test]
async fn a_write_without_an_owner_ends_at_its_deadline() {
    let (root, nodes) = two_owners().await;
    root.view.update(|view| view.owners.clear());
    let answer = refused_within_a_second(&root).await;
    assert_eq!(answer.status, 503);
    assert!(answer.error().contains("the write was not made"), "{}", answer.error());
    assert!(answer.error().contains("until node"), "{}", answer.error());
    assert!(!answer.error().contains("start an ingest node"), "{}", answer.error());
    assert!(answer.headers.contains_key("retry-after"));
    root.view.update(|view| {
        for node in view.nodes.values_mut() {
            node.roles.ingest = false;
        }
    });
    let answer = refused_within_a_second(&root).await;
    assert!(answer.error().contains("start an ingest node"), "{}", answer.error());
    root.own("a", 0, 1);
    let busy = json!({"error": "the queue is full", "made": false});
    nodes[0].behave_in_writes(Behaviour::Refuse(503, busy));
    let answer = refused_within_a_second(&root).await;
    assert!(answer.error().contains("the write was not made"), "{}", answer.error());
    nodes[0].taken_writes();
    let body = first_shards_point();
    tokio::select! {
        answer = root.put("points?timeout=60", &body) => panic!("{}", answer.json),
        () = wait_until(|| nodes[0].writes.lock().len() > 1) => {}
    }
}

#[tokio::test]
async fn a_root_with_an_old_view_finds_the_new_owner() {
    let (root, nodes) = two_owners().await;
    nodes[0].behave_in_writes(Behaviour::Refuse(409, json!({"owner": "b"})));
    let point = first_shards_point();
    // This node owned the shard and has lost it.
    root.view.update(|view| {
        view.owners.clear();
        view.stale = Some("etcd does not answer".to_owned());
    });
    let answer = root.put("points", &point).await;
    assert_eq!(answer.result()["status"], "completed");
    assert_eq!((nodes[0].taken_writes().len(), nodes[1].taken_writes().len()), (1, 1));
    // The owner that the view names has ended.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = listener.local_addr().unwrap().to_string();
    drop(listener);
    root.serve("a", &dead, &[0, 1]);
    root.own("a", 0, 1);
    let answer = root.put("points", &point).await;
    assert_eq!(answer.result()["status"], "completed");
    assert_eq!((nodes[0].taken_writes().len(), nodes[1].taken_writes().len()), (0, 1));
}

#[tokio::test]
async fn a_root_with_an_old_view_asks_each_writer() {
    let (root, nodes) = two_owners().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = listener.local_addr().unwrap().to_string();
    drop(listener);
    // The view of the first node is old too: it names an owner that has ended.
    root.serve("c", &dead, &[]);
    nodes[0].behave_in_writes(Behaviour::Refuse(409, json!({"owner": "c"})));
    root.view.update(|view| {
        view.owners.clear();
        view.stale = Some("etcd does not answer".to_owned());
    });
    let answer = root.put("points", &first_shards_point()).await;
    assert_eq!(answer.result()["status"], "completed");
    assert_eq!((nodes[0].taken_writes().len(), nodes[1].taken_writes().len()), (1, 1));
}

/// Earlier steps of a request may take its time. Other writes to the shard may succeed then.
#[tokio::test]
async fn a_write_that_was_not_sent_is_not_refused_by_its_shard() {
    let mut states = Vec::new();
    let root = TestRoot::with_routes(|state| {
        states.push(state.clone());
        Router::new()
    });
    root.add_collection(SHARDS, "Dot");
    let write = |deadline: Instant| ShardWrite {
        state: states[0].clone(),
        key: ShardKey::new("id", 0),
        deadline,
    };
    let condition = WriteCondition { id: PointId::Number(1), after: 0 };
    let unsent = write(Instant::now()).run_on_condition(condition, "{}").await.unwrap_err();
    assert!(was_not_written(&unsent) && !is_shard_refusal(&unsent), "{unsent}");
    let mut was_refused = false;
    for _ in 0..TRIES_MAX {
        // This thread may be paused until then. The write is not sent in that case.
        let soon = Instant::now() + Duration::from_millis(100);
        let unowned = write(soon).run_on_condition(condition, "{}").await.unwrap_err();
        assert!(was_not_written(&unowned), "{unowned}");
        was_refused = is_shard_refusal(&unowned);
        if was_refused {
            break;
        }
    }
    assert!(was_refused, "no write is refused by its shard");
}

#[tokio::test]
async fn a_write_to_a_full_shard_is_not_sent_again() {
    let (root, nodes) = two_owners().await;
    let full = json!({"error": "all holders of shard id/0000 have full disks: a", "made": false});
    nodes[0].behave_in_writes(Behaviour::Refuse(507, full));
    let answer = root.put("points", &first_shards_point()).await;
    assert_eq!(answer.status, 507);
    assert!(answer.error().contains("have full disks"), "{}", answer.error());
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(nodes[0].taken_writes().len(), 1);
}

/// As many requests as --max-requests may wait for the owner of a shard.
#[tokio::test]
async fn a_write_that_waits_belongs_to_the_request_memory() {
    let (root, nodes) = two_owners().await;
    nodes[0].behave_in_writes(Behaviour::Hang);
    let mut body = first_shards_point();
    body["points"][0]["payload"] = json!({"text": "x".repeat(60_000)});
    let held = async {
        wait_until(|| !nodes[0].writes.lock().is_empty()).await;
        root.requests.memory.used()
    };
    tokio::select! {
        answer = root.put("points", &body) => panic!("status {}", answer.status),
        held = held => assert!(held >= 120_000, "{held} bytes"),
    }
    wait_until(|| root.requests.memory.used() == 0).await;
}

/// A second write of the same operations could undo a later write of another client.
#[tokio::test]
async fn an_unknown_outcome_is_not_written_again() {
    let (root, nodes) = two_owners().await;
    for behaviour in [
        Behaviour::Refuse(503, json!({"error": "the store does not answer"})),
        Behaviour::Refuse(500, json!({"error": "broken"})),
        Behaviour::Hang,
    ] {
        nodes[0].behave_in_writes(behaviour.clone());
        let answer = refused_within_a_second(&root).await;
        assert_eq!(answer.status, 503, "{behaviour:?}");
        assert!(answer.error().contains("may have been made"), "{}", answer.error());
        assert_eq!(nodes[0].taken_writes().len(), 1, "{behaviour:?}");
    }
    nodes[0].behave_in_writes(Behaviour::Refuse(400, json!({"error": "no operation"})));
    let answer = root.put("points", &first_shards_point()).await;
    assert_eq!(answer.status, 400);
}

#[tokio::test]
async fn an_error_of_one_shard_fails_the_request() {
    let (root, nodes) = two_owners().await;
    nodes[0].behave_in_writes(Behaviour::Refuse(500, json!({"error": "broken"})));
    let answer = root.put("points", &points(20)).await;
    assert_eq!(answer.status, 503);
    assert!(answer.error().contains("shard id/0000"), "{}", answer.error());
    assert_eq!(nodes[1].taken_writes().len(), 1);
}

/// A client may remove and create the collection at one root, and then write to it at this one.
#[tokio::test]
async fn a_write_to_a_replaced_collection_has_retry_advice() {
    for is_created_again in [true, false] {
        let (root, nodes) = two_owners().await;
        nodes[0].behave_in_writes(Behaviour::Refuse(409, json!({"owner": null})));
        let remove = async {
            wait_until(|| !nodes[0].writes.lock().is_empty()).await;
            root.view.update(|view| {
                let removed = view.collections.remove("c").unwrap();
                if is_created_again {
                    let newer = CollectionRecord { id: "newer".to_owned(), ..removed };
                    view.collections.insert("c".to_owned(), newer);
                }
            });
        };
        let point = first_shards_point();
        let (answer, ()) = tokio::join!(root.put("points", &point), remove);
        assert_eq!(answer.status, if is_created_again { 503 } else { 404 });
        assert_eq!(answer.headers.contains_key("retry-after"), is_created_again);
        assert_eq!(answer.error().contains("created again"), is_created_again);
    }
}

#[tokio::test]
async fn collections_are_created_listed_and_removed() {
    let (root, nodes) = two_owners().await;
    let send = |method, path: &'static str, body: Value| {
        let root = &root;
        async move { root.send(method, path, &body).await }
    };
    let create = json!({"vectors": {"size": 2, "distance": "Dot"}, "shard_number": 3});
    let again = send(Method::PUT, "/collections/c", create.clone()).await;
    assert_eq!(again.status, 409);
    assert!(again.json["status"]["error"].as_str().unwrap().contains("already exists"));
    let created = send(Method::PUT, "/collections/d", create);
    let served = async {
        wait_until(|| root.view.source().current().collections.contains_key("d")).await;
        root.view.update(|view| {
            let id = view.collections["d"].id.clone();
            let node = view.nodes.get_mut("a").unwrap();
            node.serving.insert(id, (0..3).collect());
        });
    };
    let (created, ()) = tokio::join!(created, served);
    assert_eq!(created.result(), &json!(true));
    let record = root.view.source().current().collections["d"].clone();
    assert_eq!((record.shards, record.copies), (3, 2));
    let list = send(Method::GET, "/collections", Value::Null).await;
    assert_eq!(list.result(), &json!({"collections": [{"name": "c"}, {"name": "d"}]}));
    let exists = send(Method::GET, "/collections/d/exists", Value::Null).await;
    assert_eq!(exists.result(), &json!({"exists": true}));
    let view = send(Method::GET, "/cluster/v1/view", Value::Null).await;
    let shown = &view.result()["collections"][1];
    assert_eq!((&shown["name"], &shown["coverage"]), (&json!("d"), &json!({"shards": 3, "of": 3})));
    assert_eq!(view.result()["nodes"][0]["address"], nodes[0].address.as_str());
    for removed in [true, false] {
        let answer = send(Method::DELETE, "/collections/d", Value::Null).await;
        assert_eq!(answer.result(), &json!(removed));
    }
    let exists = send(Method::GET, "/collections/d/exists", Value::Null).await;
    assert_eq!(exists.result(), &json!({"exists": false}));
}

#[tokio::test]
async fn a_removal_waits_for_the_owners_of_the_logs() {
    let (root, _nodes) = two_owners().await;
    let mut removal = pin!(root.send(Method::DELETE, "/collections/c", &Value::Null));
    tokio::select! {
        answer = &mut removal => panic!("{}", answer.json),
        () = wait_until(|| !root.view.source().current().collections.contains_key("c")) => {}
    }
    let early = tokio::time::timeout(Duration::from_millis(300), &mut removal).await;
    assert!(early.is_err(), "another root could still write to the collection");
    root.view.update(|view| view.owners.clear());
    assert_eq!(removal.await.result(), &json!(true));
}

#[tokio::test]
async fn a_collection_without_holders_is_reported() {
    let root = TestRoot::new();
    let create = json!({"vectors": {"size": 2, "distance": "Dot"}});
    let answer = root.send(Method::PUT, "/collections/d?timeout=1", &create).await;
    assert_eq!(answer.status, 503);
    assert!(answer.error().contains("8 of its 8 shards"), "{}", answer.error());
    assert!(root.view.source().current().collections.contains_key("d"));
}

#[tokio::test]
async fn replication_factor_alone_is_refused() {
    let (root, _nodes) = two_owners().await;
    let copies = root.view.source().current().collections["c"].copies;
    let change = async |copies: u32| {
        let body = json!({ "params": { "replication_factor": copies } });
        root.send(Method::PATCH, "/collections/c", &body).await
    };
    assert_eq!(change(0).await.status, 422);
    for other in [copies - 1, copies + 1] {
        let refused = change(other).await;
        assert_eq!(refused.status, 501);
        assert!(refused.error().contains("?replication_factor="), "{}", refused.error());
    }
    assert_eq!(change(copies).await.result(), &json!(true));
}

#[tokio::test]
async fn replication_factor_with_others_is_a_hint() {
    let (root, _nodes) = two_owners().await;
    let current = || root.view.source().current();
    let record = current().collections["c"].clone();
    // One server has one copy, so that its hints leave out this number.
    assert_eq!(record.copies, 2);
    let params = json!({ "replication_factor": 1, "write_consistency_factor": 1 });
    let body = json!({ "params": params, "metadata": { "owner": "x" } });
    let answer = root.send(Method::PATCH, "/collections/c", &body).await;
    assert_eq!(answer.result(), &json!(true));
    let changes = current().changes.collections[&record.id].clone();
    assert_eq!(changes.metadata["owner"], "x");
    assert_eq!(json!(changes.hints), json!({ "replication_factor": 1 }));
    let body = json!({ "params": { "replication_factor": record.copies } });
    assert_eq!(root.send(Method::PATCH, "/collections/c", &body).await.result(), &json!(true));
    assert!(current().changes.collections[&record.id].hints.is_empty());
}
