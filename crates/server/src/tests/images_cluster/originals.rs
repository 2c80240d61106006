//! Tests of the original files of images: which are removed, and which stay.

use std::time::Duration;

use cluster_root::{CleanupTimes, OriginalCleanup};

use super::*;

/// Image that no request adds.
const ABSENT: &str = "5c000000-0000-8000-8000-000000000000";

/// Point that the node "b" has in each shard for strong reads.
type OtherPoint = Arc<Mutex<Option<Value>>>;

/// Answers a read of the node "b".
async fn read_other(State(point): State<OtherPoint>, Json(request): Json<Value>) -> String {
    let mut points: Vec<Value> = point.lock().unwrap().iter().cloned().collect();
    points.retain(|_| request["strong"] == true);
    let shards = request["shards"].as_object().unwrap().keys();
    let answer = json!({ "status": 200, "body": { "result": points } });
    let answers: serde_json::Map<String, Value> =
        shards.map(|shard| (shard.clone(), answer.clone())).collect();
    json!({ "shards": answers }).to_string()
}

/// Reads all parts of the originals, and one more for the second read of the last one. Returns the
/// number of removed originals.
async fn pass_all(state: &RootState, age: Duration) -> u64 {
    let times = CleanupTimes { age, confirm_after: Duration::ZERO, pause: Duration::ZERO };
    let mut cleanup = OriginalCleanup::new(times);
    let mut removed = 0;
    for _ in 0..=256 {
        removed += cleanup.pass(state).await.unwrap();
    }
    removed
}

impl Spread {
    /// Creates the collection with an image. Returns the id of the image, and the key of an
    /// original of [`ABSENT`].
    fn with_image(&self) -> (String, String) {
        let path = format!("?shard_number={SHARDS}&replication_factor=1");
        let added = self.good("PUT", &path, Sent::Image(&picture(1)));
        let id = added["id"].as_str().unwrap().to_owned();
        let space = self.node.view.source().current().collections["spread"].originals_space();
        (id, format!("{space}/5c/{ABSENT}/lost.jpeg"))
    }
}

/// A node was killed between the write of an original and the write of its point: once for an image
/// that was sent again, and once for another one.
#[test]
fn originals_without_a_point_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let spread = Spread::start(dir.path());
    let (id, without_point) = spread.with_image();
    let space = spread.node.view.source().current().collections["spread"].originals_space();
    let sent_again = format!("{space}/{}/{id}/lost.jpeg", &id[..2]);
    let state = spread.root_state("a");
    let images = state.images().unwrap();
    let count = async |directory: &str| {
        let part = u8::from_str_radix(directory, 16).unwrap();
        let mut uploads = images.old_uploads(&space, part, Duration::ZERO).unwrap();
        uploads.next_batch(10).await.unwrap().len()
    };
    spread.runtime.block_on(async {
        for key in [&sent_again, &without_point] {
            images.put_original(key, Bytes::from_static(b"an image")).await.unwrap();
        }
        let before = count(&id[..2]).await + count("5c").await;
        let hour = Duration::from_secs(3600);
        assert_eq!(pass_all(&state, hour).await, 0, "uploads may still write points");
        assert_eq!(count(&id[..2]).await + count("5c").await, before);
        assert_eq!(pass_all(&state, Duration::ZERO).await, 2);
        assert_eq!(pass_all(&state, Duration::ZERO).await, 0);
    });
    let metrics = &spread.served.server.core.metrics.cluster;
    assert_eq!(metrics.abandoned_originals.get(), 2);
    let (status, original) = spread.send("GET", &format!("/{id}"), Sent::Nothing);
    assert_eq!(status, 200);
    assert_eq!(original, picture(1));
}

/// A copy of a shard may lack a point: a holder of an earlier version skipped its operation.
#[test]
fn an_original_stays_if_one_copy_has_its_point() {
    let dir = tempfile::tempdir().unwrap();
    let spread = Spread::start(dir.path());
    let (_, key) = spread.with_image();
    let point = json!({ "id": ABSENT, "payload": { "image": { "original": key } } });
    let other: OtherPoint = Arc::new(Mutex::new(Some(point)));
    let routes = Router::new().route("/cluster/v1/read", post(read_other));
    let routes = routes.with_state(other.clone());
    let listener = spread.runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    spread.runtime.spawn(async move { axum::serve(listener, routes).await.unwrap() });
    spread.node.view.update(|view| {
        let serving = view.nodes["a"].serving.clone();
        let info = NodeInfo { name: "b".to_owned(), address, serving, ..NodeInfo::default() };
        view.nodes.insert(info.name.clone(), info);
    });
    let state = spread.root_state("a");
    let images = state.images().unwrap();
    spread.runtime.block_on(async {
        images.put_original(&key, Bytes::from_static(b"an image")).await.unwrap();
        assert_eq!(pass_all(&state, Duration::ZERO).await, 0);
        *other.lock().unwrap() = None;
        assert_eq!(pass_all(&state, Duration::ZERO).await, 1);
    });
}

#[test]
fn points_that_qdrants_interface_deletes_lose_their_originals() {
    let dir = tempfile::tempdir().unwrap();
    let spread = Spread::start(dir.path());
    let put = |seed: u64| {
        let path = format!("?payload=%7B%22seed%22%3A{seed}%7D&shard_number={SHARDS}");
        spread.good("PUT", &path, Sent::Image(&picture(seed)))["id"].clone()
    };
    let ids: Vec<Value> = (0..5).map(put).collect();
    let left = || {
        let originals =
            crate::tests::images::files_below(&dir.path().join("collections/.originals"));
        (originals.len(), spread.good("GET", "", Sent::Nothing)["count"].as_u64().unwrap())
    };
    let change = |name: &str, body: &Value| {
        let uri = format!("/collections/spread/points/{name}");
        let (status, body) = spread.ask(&spread.root, "POST", &uri, Sent::Json(body));
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
    };
    assert_eq!(left(), (5, 5));
    change("delete", &json!({ "points": [ids[0], 7] }));
    assert_eq!(left(), (4, 4));
    let seed = |seed: u64| json!({"must": [{"key": "seed", "match": {"value": seed}}]});
    change("delete", &json!({ "filter": seed(1) }));
    assert_eq!(left(), (3, 3));
    let operations = json!([
        {"delete": {"points": [ids[2]]}},
        {"set_payload": {"payload": {"seed": 9}, "points": [ids[4]]}},
        {"delete": {"filter": seed(3)}},
    ]);
    change("batch", &json!({ "operations": operations }));
    assert_eq!(left(), (1, 1));
}

#[test]
fn a_removal_finds_the_original_of_an_image_without_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let spread = Spread::start(dir.path());
    let new = format!("?shard_number={SHARDS}");
    let id = spread.good("PUT", &new, Sent::Image(&picture(1)))["id"].clone();
    let path = format!("/{}", id.as_str().unwrap());
    let change = |method: &str, uri: &str, body: &Value| {
        let uri = format!("/collections/spread/points/{uri}");
        assert_eq!(spread.ask(&spread.root, method, &uri, Sent::Json(body)).0, 200);
    };
    change("POST", "payload/clear", &json!({ "points": [id] }));
    assert_eq!(spread.send("GET", &path, Sent::Nothing).0, 200, "the payload names the original");
    change("PUT", "payload", &json!({"payload": {"image": {}}, "points": [id]}));
    let originals = || originals_below(dir.path());
    // An upload of the last hour may still be running.
    let past = std::time::SystemTime::now() - std::time::Duration::from_secs(24 * 3600);
    for original in originals() {
        let file = std::fs::File::options().write(true).open(original).unwrap();
        file.set_modified(past).unwrap();
    }
    assert_eq!(originals().len(), 1);
    spread.good("DELETE", &path, Sent::Nothing);
    assert!(originals().is_empty());
}

#[test]
fn a_removal_leaves_the_original_of_a_copied_payload() {
    let dir = tempfile::tempdir().unwrap();
    let spread = Spread::start(dir.path());
    let new = format!("?shard_number={SHARDS}");
    let put = |seed: u64| spread.good("PUT", &new, Sent::Image(&picture(seed)))["id"].clone();
    let first = put(1);
    let second = put(2);
    let send = |method: &str, path: &str, body: &Value| -> Value {
        let uri = format!("/collections/spread/points{path}");
        let (status, body) = spread.ask(&spread.root, method, &uri, Sent::Json(body));
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    };
    let found = send("POST", "", &json!({ "ids": [first], "with_payload": true }));
    let payload = &found["result"][0]["payload"];
    assert!(payload["image"]["original"].is_string(), "{found}");
    send("PUT", "/payload", &json!({ "payload": payload, "points": [second] }));
    spread.good("DELETE", &format!("/{}", second.as_str().unwrap()), Sent::Nothing);
    let path = format!("/{}", first.as_str().unwrap());
    assert_eq!(spread.send("GET", &path, Sent::Nothing).1, picture(1));
}

#[test]
fn a_removal_leaves_the_original_of_a_later_upload() {
    let dir = tempfile::tempdir().unwrap();
    let spread = Spread::start(dir.path());
    let new = format!("?shard_number={SHARDS}");
    let id = spread.good("PUT", &new, Sent::Image(&picture(1)))["id"].clone();
    let path = format!("/{}", id.as_str().unwrap());
    let held = spread.runtime.block_on(spread.removals.clone().write_owned());
    let request = Request::delete(format!("/v1/images/spread{path}")).body(Body::empty()).unwrap();
    let removal = spread.runtime.spawn(spread.root.clone().oneshot(request));
    // The point is removed, and its original is not yet.
    while spread.good("GET", "", Sent::Nothing)["count"] != 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let again = spread.good("PUT", "", Sent::Image(&picture(1)));
    assert_eq!(again["status"], "added");
    drop(held);
    let Ok(response) = spread.runtime.block_on(removal).unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(spread.send("GET", &path, Sent::Nothing).1, picture(1));
    assert_eq!(originals_below(dir.path()).len(), 1);
}
