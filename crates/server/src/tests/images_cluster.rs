//! Collections of images of a cluster beside one of this server alone, with the same images: both
//! give the same answers. One node holds all shards, and makes the operations of the log at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use api_qdrant::BoxFuture;
use axum::Router;
use axum::body::Body;
use axum::extract::{Json, Path as UrlPath, Request, State};
use axum::response::Response;
use axum::routing::{any, post};
use base::Result;
use bytes::Bytes;
use cluster_images::{ImageRootState, image_routes};
use cluster_node::node::LocalCollections;
use cluster_node::{
    CatalogChanges, ClusterView, CollectionCatalog, CollectionRecord, NodeInfo, Owner, Roles,
    ShardKey, ViewUpdater,
};
use cluster_root::RootState;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use http_client::HttpClient;
use metrics::KindLabels;
use model_store::StorePlace;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::RwLock;
use tower::ServiceExt;

use super::images::{Expected, Served, archive, picture, served};
use super::images_duplicates::{bitmap, pixels};
use crate::loopback::WAIT_MAX;

mod originals;

/// Shards of the collection "spread".
const SHARDS: u32 = 3;

/// The node that holds all shards.
#[derive(Clone)]
struct OneNode {
    local: LocalCollections,
    routes: Router,
    view: ViewUpdater,
    entry: Arc<AtomicU64>,
    /// Held for reading by the answer to a removal of points.
    removals: Arc<RwLock<()>>,
    conditions: Arc<Mutex<Conditions>>,
    /// True if another root has removed the collections, which this one has not seen.
    removed: Arc<AtomicBool>,
}

/// Reason for which the owner of a shard refuses the write of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConflictCause {
    /// Another upload has just added the image.
    OtherUpload,
    /// The same write has arrived before.
    Repetition,
    /// The owner does not know the entries behind the lookup.
    Forgotten,
}

/// Conditional writes of images.
#[derive(Default)]
struct Conditions {
    /// Conflicts of the next writes.
    conflicts: VecDeque<ConflictCause>,
    /// Entries that the roots had seen, of all writes so far.
    seen: Vec<u64>,
}

impl Conditions {
    /// Takes a write. Returns its conflict, if there is one.
    fn take(&mut self, condition: &Value) -> Option<ConflictCause> {
        self.seen.push(condition["after"].as_u64().unwrap());
        self.conflicts.pop_front()
    }
}

impl CollectionCatalog for OneNode {
    fn create<'a>(&'a self, record: &'a CollectionRecord) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            for key in record.shard_keys() {
                self.local.create(&key, record).await?;
            }
            self.view.update(|view: &mut ClusterView| {
                view.collections.insert(record.name.clone(), record.clone());
                let node = view.nodes.get_mut("a").unwrap();
                let shards: BTreeSet<u32> = (0..record.shards).collect();
                node.serving.insert(record.id.clone(), shards);
                for key in record.shard_keys() {
                    let owner = Owner { node: "a".to_owned(), epoch: Default::default() };
                    view.owners.insert(key, owner);
                }
            });
            Ok(true)
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool>> {
        self.view.update(|view| {
            if let Some(removed) = view.collections.remove(name) {
                view.owners.retain(|key, _| *key.collection != *removed.id);
            }
        });
        Box::pin(async { Ok(true) })
    }

    fn remove_own<'a>(&'a self, record: &'a CollectionRecord) -> BoxFuture<'a, Result<bool>> {
        self.view.update(|view| view.collections.retain(|_, known| known.id != record.id));
        Box::pin(async { Ok(true) })
    }

    fn is_current<'a>(&'a self, _: &'a CollectionRecord) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async { Ok(!self.removed.load(Ordering::Relaxed)) })
    }

    fn change<'a>(
        &'a self,
        change: &'a (dyn Fn(&CatalogChanges) -> Result<CatalogChanges> + Send + Sync),
    ) -> BoxFuture<'a, Result<u64>> {
        let changed = change(&self.view.source().current().changes);
        Box::pin(async move {
            let changes = Arc::new(changed?);
            self.view.update(|view| view.changes = changes);
            Ok(1)
        })
    }

    fn is_loaded(&self) -> bool {
        true
    }

    fn read_again(&self) -> BoxFuture<'_, ()> {
        if self.removed.swap(false, Ordering::Relaxed) {
            self.view.update(|view| view.collections.clear());
        }
        Box::pin(async {})
    }
}

/// A read or a write of another node. Texts stay as they are, as numbers must.
#[derive(serde::Deserialize)]
struct NodeRequest {
    collection: String,
    #[serde(default)]
    shards: BTreeMap<u32, u64>,
    #[serde(default)]
    path: String,
    body: Option<Box<RawValue>>,
    #[serde(default)]
    shard: u32,
    #[serde(default)]
    operations: Vec<Box<RawValue>>,
    unless_written: Option<Value>,
}

async fn read(State(node): State<OneNode>, Json(request): Json<NodeRequest>) -> String {
    let mut answers = Vec::new();
    for shard in request.shards.keys() {
        let key = ShardKey::new(&request.collection, *shard);
        let body = Bytes::from(request.body.as_ref().unwrap().get().to_owned());
        let answer = node.local.call(Method::POST, &key, &request.path, body).await.unwrap();
        let (status, body) = (answer.status.as_u16(), String::from_utf8_lossy(&answer.body));
        answers.push(format!("\"{shard}\":{{\"status\":{status},\"body\":{body}}}"));
    }
    format!("{{\"shards\":{{{}}}}}", answers.join(","))
}

async fn write(
    State(node): State<OneNode>,
    Json(request): Json<NodeRequest>,
) -> (StatusCode, String) {
    let key = ShardKey::new(&request.collection, request.shard);
    let named = node.local.find(&key).unwrap().unwrap();
    let texts = request.operations.iter().map(|operation| operation.get().to_owned());
    let mut texts: Vec<String> = texts.collect();
    let removes = texts.iter().any(|text| text.starts_with("{\"delete\""));
    let condition = request.unless_written;
    let conflict = condition.and_then(|it| node.conditions.lock().unwrap().take(&it));
    match conflict {
        // The other upload has a name and an original of its own.
        Some(ConflictCause::OtherUpload) => {
            for text in &mut texts {
                *text = text.replace("own.jpg", "other.jpg").replace("/originals/", "/originals/x");
            }
        }
        Some(ConflictCause::Forgotten) => texts.clear(),
        Some(ConflictCause::Repetition) | None => {}
    }
    for text in texts {
        let named = named.clone();
        let apply = move || {
            if api_images::is_image_operation(text.as_bytes()) {
                api_images::apply_image_operation(&named, text.as_bytes())
            } else {
                api_qdrant::apply_operation(&named, text.as_bytes())
            }
        };
        // A holder makes some operations twice after a restart.
        let twice = move || apply().and_then(|()| apply());
        tokio::task::spawn_blocking(twice).await.unwrap().unwrap();
    }
    if removes {
        drop(node.removals.read().await);
    }
    let entry = node.entry.fetch_add(1, Ordering::Relaxed);
    if conflict.is_some() {
        return (StatusCode::PRECONDITION_FAILED, json!({ "conflict": entry }).to_string());
    }
    (StatusCode::OK, json!({ "entry": entry }).to_string())
}

async fn stored(
    State(node): State<OneNode>,
    UrlPath((id, shard, rest)): UrlPath<(String, u32, String)>,
    mut request: Request,
) -> Response {
    let name = ShardKey::new(&id, shard).local_name();
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    *request.uri_mut() = format!("/v1/images/{name}/{rest}{query}").parse().unwrap();
    // The other route must not see the parameters of this one.
    *request.extensions_mut() = http::Extensions::default();
    let Ok(response) = node.routes.oneshot(request).await;
    response
}

/// Body of a request.
#[derive(Clone, Copy)]
enum Sent<'a> {
    Nothing,
    Image(&'a [u8]),
    Archive(&'a [u8]),
    Json(&'a Value),
}

/// A root over one node, and the server whose directory and model both use.
struct Spread {
    served: Served,
    root: Router,
    runtime: tokio::runtime::Runtime,
    removals: Arc<RwLock<()>>,
    node: OneNode,
    store: StorePlace,
}

impl Spread {
    fn start(dir: &Path) -> Spread {
        let served = served(dir, |_| {});
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let server = &served.server;
        let routes = api_qdrant::routes()
            .with_state(server.qdrant.clone())
            .merge(api_images::routes().with_state(server.images.clone()))
            .merge(api_images::shard_routes().with_state(server.images.clone()));
        let node = OneNode {
            local: LocalCollections::new(routes.clone(), server.collections.clone()),
            routes,
            view: ViewUpdater::new(),
            entry: Arc::new(AtomicU64::new(1)),
            removals: Arc::default(),
            conditions: Arc::default(),
            removed: Arc::default(),
        };
        let removals = node.removals.clone();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let info = NodeInfo {
            name: "a".to_owned(),
            address: listener.local_addr().unwrap().to_string(),
            roles: Roles::ALL,
            weight: 1,
            build: "1".to_owned(),
            ..NodeInfo::default()
        };
        node.view.update(|view| drop(view.nodes.insert(info.name.clone(), info)));
        let between = Router::new()
            .route("/cluster/v1/read", post(read))
            .route("/cluster/v1/write", post(write))
            .route("/cluster/v1/shards/{id}/{shard}/{*rest}", any(stored))
            .with_state(node.clone());
        runtime.spawn(async move { axum::serve(listener, between).await.unwrap() });
        let url = format!("file://{}/store", dir.display());
        std::fs::create_dir(dir.join("store")).unwrap();
        let store = StorePlace::open(&url, &[]).unwrap();
        let root = Router::new();
        let mut spread = Spread { served, root, runtime, removals, node, store };
        spread.root = spread.root_named("a");
        spread
    }

    /// Returns the state of a root of a node with this name.
    fn root_state(&self, name: &str) -> Arc<RootState> {
        let server = &self.served.server;
        let (requests, client) = (server.requests.clone(), HttpClient::new(None));
        let catalog = Arc::new(self.node.clone());
        let state = RootState::new(name, requests, client, self.node.view.source(), catalog);
        Arc::new(state.with_images(server.images.clone(), true))
    }

    /// Returns a root of a node with this name.
    fn root_named(&self, name: &str) -> Router {
        let state = self.root_state(name);
        let images = ImageRootState::new(state.clone()).with_store(self.store.clone());
        let images = image_routes().with_state(Arc::new(images));
        cluster_root::routes().with_state(state).merge(images)
    }

    /// Sends a request to the root. Returns the status and the body.
    fn send(&self, method: &str, path: &str, body: Sent<'_>) -> (u16, Bytes) {
        self.send_to(&self.root, method, path, body)
    }

    fn send_to(&self, root: &Router, method: &str, path: &str, body: Sent<'_>) -> (u16, Bytes) {
        self.ask(root, method, &format!("/v1/images/spread{path}"), body)
    }

    fn ask(&self, root: &Router, method: &str, uri: &str, body: Sent<'_>) -> (u16, Bytes) {
        let (media, body) = match body {
            Sent::Nothing => ("", Body::empty()),
            Sent::Image(bytes) => ("image/jpeg", Body::from(bytes.to_vec())),
            Sent::Archive(bytes) => ("application/zip", Body::from(bytes.to_vec())),
            Sent::Json(json) => ("application/json", Body::from(json.to_string())),
        };
        let request = Request::builder().method(method).uri(uri);
        let mut request = request.header("content-type", media).body(body).unwrap();
        request.extensions_mut().insert(transport::Peer::Unix(None));
        self.runtime.block_on(async {
            let Ok(response) = root.clone().oneshot(request).await;
            let status = response.status().as_u16();
            (status, response.into_body().collect().await.unwrap().to_bytes())
        })
    }

    #[track_caller]
    fn good(&self, method: &str, path: &str, body: Sent<'_>) -> Value {
        let (status, body) = self.send(method, path, body);
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    /// Returns the lines of an answer to many images by their names, and the summary.
    #[track_caller]
    fn lines(&self, path: &str, body: Sent<'_>) -> (Vec<Value>, Value) {
        let (status, body) = self.send("PUT", path, body);
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert_eq!(status, 200, "{text}");
        let mut lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let summary = lines.pop().unwrap()["summary"].clone();
        lines.sort_by_key(|line| format!("{} {}", line["name"], line["status"]));
        (lines, summary)
    }

    fn puts(&self, kind: &'static str) -> u64 {
        let put = &self.served.server.core.metrics.images.put;
        put.get_or_create(&KindLabels { kind }).get()
    }
}

/// Removes the times of a search.
fn timeless(mut answer: Value) -> Value {
    answer.as_object_mut().unwrap().remove("stages");
    answer
}

#[test]
fn spread_images_are_found_as_on_one_server() {
    let dir = tempfile::tempdir().unwrap();
    let spread = Spread::start(dir.path());
    let served = &spread.served;
    let mut ids = Vec::new();
    for seed in 0..8 {
        let query = format!("?name=p{seed}.jpg&payload=%7B%22seed%22%3A{seed}%7D");
        let alone = served.put(&format!("/v1/images/photos{query}"), &picture(seed)).good();
        let path = format!("{query}&shard_number={SHARDS}&replication_factor=1");
        let added = spread.good("PUT", &path, Sent::Image(&picture(seed)));
        assert_eq!(added, alone);
        let again = spread.good("PUT", "", Sent::Image(&picture(seed)));
        assert_eq!((&again["status"], &again["name"]), (&json!("present"), &added["name"]));
        ids.push(added["id"].as_str().unwrap().to_owned());
    }
    // Images of this server's own collection are counted too.
    assert_eq!((spread.puts("added"), spread.puts("present")), (16, 8));
    let filter = "filter=%7B%22must%22%3A%5B%7B%22key%22%3A%22seed%22%2C%22range%22%3A%7B%22lt%22%3A5%7D%7D%5D%7D";
    for query in ["k=8", "k=3&explain=1", "k=2&candidates=4&threshold=9999", filter] {
        for seed in [2, 100] {
            let path = format!("/v1/images/photos/search?{query}");
            let alone = served.search(&path, &picture(seed)).good();
            let path = format!("/search?{query}");
            let found = spread.good("POST", &path, Sent::Image(&picture(seed)));
            assert_eq!(timeless(found), timeless(alone), "{query}");
        }
        let named = json!({ "id": ids[4] });
        let alone = served.json("POST", &format!("/v1/images/photos/search?{query}"), &named);
        let found = spread.good("POST", &format!("/search?{query}"), Sent::Json(&named));
        assert_eq!(timeless(found), timeless(alone.good()), "{query}");
    }
    let page = spread.good("GET", "?limit=5", Sent::Nothing);
    assert_eq!(page, served.get("/v1/images/photos?limit=5").good());
    for part in ["", "/thumbnail?size=64", "/keypoints", "/features"] {
        let path = format!("/{}{part}", ids[1]);
        let alone = served.get(&format!("/v1/images/photos{path}"));
        let (status, body) = spread.send("GET", &path, Sent::Nothing);
        assert_eq!((status, &body[..]), (alone.status, &alone.body[..]), "{part}");
    }
    let extracted = spread.good("POST", "/features?name=x", Sent::Image(&picture(50)));
    let path = "/v1/images/photos/features?name=x";
    assert_eq!(extracted, served.search(path, &picture(50)).good());
}

#[test]
fn features_and_removed_images_leave_the_shards() {
    let dir = tempfile::tempdir().unwrap();
    let spread = Spread::start(dir.path());
    let new = format!("?shard_number={SHARDS}&name=a.jpg");
    let id = spread.good("PUT", &new, Sent::Image(&picture(1)))["id"].clone();
    let path = format!("/{}", id.as_str().unwrap());
    let mut features = spread.good("GET", &format!("{path}/features"), Sent::Nothing);
    features["payload"] = json!({"shop": 7});
    let mut other = features.clone();
    other["id"] = json!(5);
    let points = json!({ "points": [features, other] });
    let written = spread.good("PUT", "/features", Sent::Json(&points));
    assert_eq!(written, json!({"added": 1, "replaced": 1}));
    // The original stays, and its point has the new payload.
    assert_eq!(spread.send("GET", &path, Sent::Nothing).1, picture(1));
    let page = spread.good("GET", "", Sent::Nothing);
    let payloads: Vec<&Value> =
        page["images"].as_array().unwrap().iter().map(|image| &image["payload"]).collect();
    assert_eq!(payloads, [&json!({"shop": 7}), &json!({"shop": 7})]);
    let missing = json!({ "ids": [id, 5, 6] });
    let missing = spread.good("POST", "/missing", Sent::Json(&missing));
    assert_eq!(missing, json!({ "missing": [6] }));
    assert_eq!(originals_below(dir.path()).len(), 1);
    assert_eq!(spread.good("DELETE", &path, Sent::Nothing), json!({ "deleted": id }));
    assert!(originals_below(dir.path()).is_empty());
    for path in [path.clone(), format!("{path}/features")] {
        assert_eq!(spread.send("GET", &path, Sent::Nothing).0, 404, "{path}");
    }
    assert_eq!(spread.send("DELETE", &path, Sent::Nothing).0, 404);
    assert_eq!(spread.good("GET", "", Sent::Nothing)["count"], 1);
    let wrong = spread.send("PUT", "?kind=fingerprint", Sent::Image(&picture(1)));
    assert_eq!(wrong.0, 409);
    let unread = spread.send("PUT", "", Sent::Image(b"no picture"));
    assert_eq!((unread.0, spread.puts("invalid_argument")), (400, 1));
}

/// Returns the files of originals, without the object that shows the time of the store.
fn originals_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = super::images::files_below(&dir.join("collections/.originals"));
    files.retain(|file| file.file_name().is_none_or(|name| name != "clock"));
    files
}

/// The owner of the shard refuses a write if another node may have added the image.
#[test]
fn an_upload_that_loses_a_race_finds_the_image() {
    use ConflictCause::{Forgotten, OtherUpload, Repetition};
    let dir = tempfile::tempdir().unwrap();
    let spread = Spread::start(dir.path());
    let put = |seed: u64, conflicts: &[ConflictCause]| {
        spread.node.conditions.lock().unwrap().conflicts.extend(conflicts);
        let path = "?shard_number=1&replication_factor=1&name=own.jpg";
        let (status, body) = spread.send("PUT", path, Sent::Image(&picture(seed)));
        let answer: Value = serde_json::from_slice(&body).unwrap();
        (status, answer["status"].clone(), answer["name"].clone())
    };
    let originals = || originals_below(dir.path()).len();
    let conflicts = || spread.served.server.core.metrics.cluster.write_conflicts.get();
    let added = (200, json!("added"), json!("own.jpg"));
    assert_eq!(put(1, &[]), added);
    assert_eq!(put(2, &[OtherUpload]), (200, json!("present"), json!("other.jpg")));
    assert_eq!((originals(), conflicts()), (1, 1), "the upload removes its own original");
    assert_eq!(put(3, &[Forgotten]), added);
    assert_eq!((originals(), conflicts()), (2, 2));
    assert_eq!(put(4, &[Forgotten; 3]).0, 503);
    assert_eq!((originals(), conflicts()), (2, 5));
    assert_eq!(put(4, &[]), added);
    assert_eq!(put(5, &[Repetition]), added);
    assert_eq!((originals(), conflicts()), (4, 6), "the point names the original of this upload");
    // The entry of a refusal is that of the next condition.
    assert_eq!(spread.node.conditions.lock().unwrap().seen, (0..9).collect::<Vec<u64>>());
    assert_eq!((spread.puts("added"), spread.puts("present")), (4, 1));
    assert_eq!(spread.good("GET", "", Sent::Nothing)["count"], 5);
}

#[test]
fn a_collection_is_removed_by_its_alias() {
    let dir = tempfile::tempdir().unwrap();
    let spread = Spread::start(dir.path());
    let path = "?shard_number=1&replication_factor=1";
    spread.good("PUT", path, Sent::Image(&picture(1)));
    let create = json!({"create_alias": {"alias_name": "live", "collection_name": "spread"}});
    let actions = json!({ "actions": [create] });
    let root = &spread.root;
    let (status, _) = spread.ask(root, "POST", "/collections/aliases", Sent::Json(&actions));
    assert_eq!(status, 200);
    let (status, body) = spread.ask(root, "DELETE", "/v1/images/live", Sent::Nothing);
    let answer: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((status, answer), (200, json!({ "deleted": "live" })));
    assert_eq!(spread.send("GET", "", Sent::Nothing).0, 404);
    // The view has the alias of a collection that another root has removed a moment ago.
    spread.good("PUT", path, Sent::Image(&picture(1)));
    spread.node.removed.store(true, Ordering::Relaxed);
    assert_eq!(spread.ask(root, "DELETE", "/v1/images/live", Sent::Nothing).0, 404);
}

/// Another root has removed the collection a moment ago.
#[test]
fn an_image_of_a_removed_collection_is_not_present() {
    let dir = tempfile::tempdir().unwrap();
    let spread = Spread::start(dir.path());
    let path = "?shard_number=1&replication_factor=1&name=own.jpg";
    let image = picture(1);
    let added = spread.good("PUT", path, Sent::Image(&image));
    spread.node.removed.store(true, Ordering::Relaxed);
    assert_eq!(spread.send("PUT", path, Sent::Image(&image)).0, 503);
    assert_eq!(spread.good("PUT", path, Sent::Image(&image)), added, "to a new collection");
    spread.node.removed.store(true, Ordering::Relaxed);
    let ids = json!({ "ids": [added["id"]] });
    let missing = spread.good("POST", "/missing", Sent::Json(&ids));
    assert_eq!(missing, json!({ "missing": [added["id"]] }));
    spread.good("PUT", path, Sent::Image(&image));
    spread.node.removed.store(true, Ordering::Relaxed);
    let print = json!({ "id": added["id"] });
    let pair = json!({ "first": print, "second": print });
    let compared = spread.send("POST", "/verify?consistency=strong", Sent::Json(&pair));
    assert_eq!(compared.0, 404, "photographs cannot be compared, but there are none");
}

/// Groups of a collection: the ids of the images of each, the pairs, and the summary.
#[derive(Debug, PartialEq)]
struct ShownGroups {
    images: BTreeSet<Vec<String>>,
    pairs: BTreeSet<Vec<String>>,
    summary: Value,
}

impl ShownGroups {
    fn of(lines: &[u8]) -> ShownGroups {
        let text = std::str::from_utf8(lines).unwrap();
        let mut shown =
            ShownGroups { images: BTreeSet::new(), pairs: BTreeSet::new(), summary: Value::Null };
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            if let Some(summary) = line.get("summary") {
                shown.summary = summary.clone();
                continue;
            }
            let sorted = |mut texts: Vec<String>| {
                texts.sort();
                texts
            };
            let images = line["images"].as_array().unwrap();
            shown.images.insert(sorted(images.iter().map(Value::to_string).collect()));
            for pair in line["pairs"].as_array().unwrap() {
                assert!(pair["score"].as_f64().unwrap() > 100.0, "{pair}");
                let ids = ["a", "b"].map(|end| pair[end].to_string()).to_vec();
                shown.pairs.insert(sorted(ids));
            }
        }
        shown
    }
}

impl Spread {
    /// Waits until the search for duplicates is not "running". Returns its progress.
    fn duplicates_ended(&self) -> Value {
        let give_up = std::time::Instant::now() + WAIT_MAX;
        loop {
            let progress = self.good("GET", "/duplicates", Sent::Nothing);
            if progress["state"] != "running" {
                return progress;
            }
            assert!(std::time::Instant::now() < give_up, "{progress}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Adds images, and copies of some, to the cluster and to the collection "photos".
    fn put_copies(&self) {
        for seed in 0..9 {
            let copied = [1, 3, 4].contains(&seed);
            let copy = copied.then(|| bitmap(&pixels(&picture(seed))));
            for image in [Some(picture(seed)), copy].into_iter().flatten() {
                self.served.put(&format!("/v1/images/photos?name={seed}"), &image).good();
                let path = format!("?name={seed}&shard_number={SHARDS}&replication_factor=1");
                self.good("PUT", &path, Sent::Image(&image));
            }
        }
    }

    /// Compares the groups of the cluster with those of "photos".
    fn compare_groups(&self) {
        let alone = "/v1/images/photos/duplicates";
        assert_eq!(self.served.json("POST", alone, &json!({})).status, 202);
        let give_up = std::time::Instant::now() + WAIT_MAX;
        while self.served.get(alone).good()["state"] == "running" {
            assert!(std::time::Instant::now() < give_up);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let wanted = ShownGroups::of(&self.served.get(&format!("{alone}/groups")).body);
        assert_eq!((wanted.images.len(), wanted.pairs.len()), (3, 3), "{wanted:?}");
        let (status, lines) = self.send("GET", "/duplicates/groups", Sent::Nothing);
        assert_eq!((status, ShownGroups::of(&lines)), (200, wanted));
    }
}

#[test]
fn duplicates_of_shards_are_those_of_one_server() {
    let dir = tempfile::tempdir().unwrap();
    let spread = Spread::start(dir.path());
    spread.put_copies();
    for path in ["/duplicates", "/duplicates/groups"] {
        let (status, body) = spread.send("GET", path, Sent::Nothing);
        assert_eq!(status, 404, "{}", String::from_utf8_lossy(&body));
    }
    for wrong in [json!({"threshold": 2}), json!({"verify": false, "score": 3}), json!({"x": 1})] {
        assert_eq!(spread.send("POST", "/duplicates", Sent::Json(&wrong)).0, 400, "{wrong}");
    }
    let (status, begun) = spread.send("POST", "/duplicates", Sent::Json(&json!({})));
    let begun: Value = serde_json::from_slice(&begun).unwrap();
    assert_eq!((status, &begun["total"], &begun["state"]), (202, &json!(12), &json!("running")));
    let progress = spread.duplicates_ended();
    assert_eq!((&progress["state"], &progress["pairs"]), (&json!("done"), &json!(3)), "{progress}");
    assert_eq!((&progress["done"], &progress["unreadable"]), (&json!(12), &json!(0)));
    spread.compare_groups();
    let name = json!("spread");
    let deleted = spread.good("DELETE", "/duplicates", Sent::Nothing);
    assert_eq!(deleted, json!({ "deleted": name }));
    assert_eq!(spread.send("DELETE", "/duplicates", Sent::Nothing).0, 404);
    assert_eq!(spread.send("GET", "/duplicates/groups", Sent::Nothing).0, 404);
}

#[test]
fn another_root_cancels_and_continues_a_job() {
    let dir = tempfile::tempdir().unwrap();
    let spread = Spread::start(dir.path());
    spread.put_copies();
    let other = spread.root_named("b");
    let slow = json!({ "points_per_second": 1 });
    let begin = |root: &Router| spread.send_to(root, "POST", "/duplicates", Sent::Json(&slow)).0;
    assert_eq!(begin(&other), 202);
    // The cluster does not have the node "b": it has ended.
    let progress = spread.good("GET", "/duplicates", Sent::Nothing);
    assert_eq!(progress["state"], "interrupted");
    spread.node.view.update(|view| {
        let mut node = view.nodes["a"].clone();
        node.name = "b".to_owned();
        node.serving = BTreeMap::new();
        view.nodes.insert("b".to_owned(), node);
    });
    let progress = spread.good("GET", "/duplicates", Sent::Nothing);
    assert_eq!(progress["state"], "running");
    assert_eq!((begin(&spread.root), begin(&other)), (409, 409));
    let cancelled = spread.good("DELETE", "/duplicates", Sent::Nothing);
    assert_eq!(cancelled, json!({ "cancelled": "spread" }));
    let progress = spread.good("GET", "/duplicates", Sent::Nothing);
    assert_eq!(progress["state"], "cancelled");
    // The job at "b" ends once it cannot create its next step.
    let fast = json!({ "points_per_second": 0 });
    assert_eq!(spread.send("POST", "/duplicates", Sent::Json(&fast)).0, 202);
    let progress = spread.duplicates_ended();
    assert_eq!((&progress["state"], &progress["pairs"]), (&json!("done"), &json!(3)), "{progress}");
    spread.compare_groups();
}

#[test]
fn archives_and_folders_are_added_as_on_one_server() {
    let dir = tempfile::tempdir().unwrap();
    let spread = Spread::start(dir.path());
    let pictures: Vec<Vec<u8>> = (0..6).map(picture).collect();
    let inner = archive(&[("a.jpg", &pictures[0])]);
    let body = archive(&[
        ("broken.jpg", &pictures[3][..200]),
        ("deep/one.jpg", &pictures[0]),
        ("two.jpg", &pictures[1]),
        ("notes.txt", b"not a picture"),
        ("nested.zip", &inner),
        // Both images have one name, because either can be added first.
        ("again/one.jpg", &pictures[0]),
    ]);
    let payload = "payload=%7B%22album%22%3A7%7D";
    let query = format!("?{payload}&shard_number={SHARDS}&replication_factor=1");
    let alone = spread.served.zip(&format!("/v1/images/photos?{payload}"), &body).lines();
    assert_eq!(alone.1, json!({"added": 2, "present": 1, "failed": 2, "ignored": 1}));
    assert_eq!(spread.lines(&query, Sent::Archive(&body)), alone);
    // Images of this server's own collection are counted too.
    let counted = ["added", "present", "invalid_argument"].map(|kind| spread.puts(kind));
    assert_eq!(counted, [4, 2, 2]);
    let folder = dir.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    for (name, at) in [("four.jpg", 4), ("two.jpg", 1)] {
        std::fs::write(folder.join(name), &pictures[at]).unwrap();
    }
    let named = json!({ "folder": folder });
    let alone = spread.served.json("PUT", "/v1/images/photos", &named).lines();
    assert_eq!(alone.1, json!({"added": 1, "present": 1, "failed": 0, "ignored": 0}));
    assert_eq!(spread.lines("", Sent::Json(&named)), alone);
    let path = "/v1/images/photos?background=1&name=five.jpg";
    let alone = spread.served.put(path, &pictures[5]).good();
    let path = "?background=1&name=five.jpg";
    assert_eq!(spread.good("PUT", path, Sent::Image(&pictures[5])), alone);
    let page = spread.good("GET", "", Sent::Nothing);
    assert_eq!(page, spread.served.get("/v1/images/photos").good());
    assert_eq!((&page["count"], spread.served.server.images.bulk_bytes()), (&json!(4), 0));
    let half = &body[..body.len() / 2];
    for (path, body, word) in [
        ("", Sent::Archive(half), "zip"),
        ("", Sent::Archive(b""), "zip"),
        ("?name=a.jpg", Sent::Archive(&body), "name="),
        ("?quality_min=101", Sent::Archive(&body), "quality_min"),
        ("", Sent::Json(&json!({ "folder": "relative" })), "absolute path"),
        ("", Sent::Json(&json!({ "directory": "/" })), "directory"),
    ] {
        let (status, answer) = spread.send("PUT", path, body);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(status == 400 && answer.contains(word), "{path}: {answer}");
    }
}
