//! A root over nodes that answer as a test says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use api_qdrant::BoxFuture;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request as ServerRequest, State};
use axum::response::IntoResponse;
use axum::routing::post;
use base::Result;
use bytes::Bytes;
use cluster::Epoch;
use cluster_node::{
    CatalogChanges, ClusterView, CollectionCatalog, CollectionRecord, NodeInfo, Owner, Roles,
    ShardKey, ViewUpdater,
};
use cluster_root::{RootState, routes};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use http_client::HttpClient;
use metrics::{KindLabels, Metrics};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::ServiceExt;
use transport::{RequestLimits, RequestResources};

pub(crate) const WAIT: Duration = Duration::from_secs(60);
/// Id of the collection "c".
pub(crate) const ID: &str = "id";

/// Behaviour of a node's reads or writes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Behaviour {
    /// Answers.
    Work,
    /// Never answers.
    Hang,
    /// Answers with a status and a body.
    Refuse(u16, Value),
    /// Answers each shard with a status and a message.
    RefuseShards(u16, &'static str),
    /// Answers without the shards.
    Omit,
}

/// A request to another route than those of reads and writes.
#[derive(Clone, Debug)]
pub(crate) struct PassedRequest {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Answer to a passed request.
type PassedAnswers = dyn Fn(&PassedRequest) -> FakeReply + Send + Sync;

/// Result of a shard for a request. `{"refused": STATUS}` is an error of the shard.
type Results = dyn Fn(u32, &Value) -> Value + Send + Sync;

pub(crate) struct FakeNode {
    pub(crate) name: &'static str,
    pub(crate) address: String,
    pub(crate) reads: Mutex<Vec<Value>>,
    pub(crate) writes: Mutex<Vec<Value>>,
    pub(crate) behaviour: Mutex<Behaviour>,
    pub(crate) write_behaviour: Mutex<Behaviour>,
    /// Requests that never ended and were abandoned.
    pub(crate) dropped: AtomicU64,
    passed: Mutex<Vec<PassedRequest>>,
    passed_answers: Mutex<Arc<PassedAnswers>>,
    entry: AtomicU64,
    results: Box<Results>,
}

/// Counts requests that are dropped before their answer.
struct DropCount(Arc<FakeNode>);

impl Drop for DropCount {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl FakeNode {
    /// Starts a node that serves `results`. The first entry that it writes has the number 5.
    pub(crate) async fn start(
        name: &'static str,
        results: impl Fn(u32, &Value) -> Value + Send + Sync + 'static,
    ) -> Arc<FakeNode> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node = Arc::new(FakeNode {
            name,
            address: listener.local_addr().unwrap().to_string(),
            reads: Mutex::default(),
            writes: Mutex::default(),
            behaviour: Mutex::new(Behaviour::Work),
            write_behaviour: Mutex::new(Behaviour::Work),
            dropped: AtomicU64::new(0),
            passed: Mutex::default(),
            passed_answers: Mutex::new(Arc::new(|_| reply(404, &json!({"error": "no route"})))),
            entry: AtomicU64::new(5),
            results: Box::new(results),
        });
        let routes = Router::new()
            .route("/cluster/v1/read", post(read))
            .route("/cluster/v1/write", post(write))
            .fallback(passed)
            .layer(axum::extract::DefaultBodyLimit::disable())
            .with_state(node.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        node
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock() = behaviour;
    }

    pub(crate) fn behave_in_writes(&self, behaviour: Behaviour) {
        *self.write_behaviour.lock() = behaviour;
    }

    /// Takes the requests so far.
    pub(crate) fn taken_reads(&self) -> Vec<Value> {
        std::mem::take(&mut *self.reads.lock())
    }

    pub(crate) fn taken_writes(&self) -> Vec<Value> {
        std::mem::take(&mut *self.writes.lock())
    }

    pub(crate) fn taken_passed(&self) -> Vec<PassedRequest> {
        std::mem::take(&mut *self.passed.lock())
    }

    /// Sets the answers to requests on other routes.
    pub(crate) fn answer_passed(
        &self,
        answers: impl Fn(&PassedRequest) -> FakeReply + Send + Sync + 'static,
    ) {
        *self.passed_answers.lock() = Arc::new(answers);
    }
}

/// Returns a socket that does not listen. Its port refuses connections, and no other socket gets
/// the port while this one is open.
pub(crate) fn refusing_socket() -> tokio::net::TcpSocket {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket
}

pub(crate) type FakeReply = axum::response::Response;

pub(crate) fn reply(status: u16, body: &Value) -> FakeReply {
    (StatusCode::from_u16(status).unwrap(), body.to_string()).into_response()
}

async fn read(State(node): State<Arc<FakeNode>>, body: String) -> FakeReply {
    let request: Value = serde_json::from_str(&body).unwrap();
    node.reads.lock().push(request.clone());
    let behaviour = node.behaviour.lock().clone();
    let shard = |shard: &String| -> Value {
        match &behaviour {
            Behaviour::RefuseShards(status, message) => {
                json!({"status": status, "body": {"status": {"error": message}, "time": 0}})
            }
            _ => {
                let result = (node.results)(shard.parse().unwrap(), &request);
                if let Some(status) = result.get("refused") {
                    return json!({"status": status, "body": {"error": "refused"}});
                }
                let body = json!({"result": result, "status": "ok", "time": 0.0});
                json!({"status": 200, "body": body})
            }
        }
    };
    match &behaviour {
        Behaviour::Refuse(status, body) => reply(*status, body),
        Behaviour::Omit => reply(200, &json!({"shards": {}})),
        Behaviour::Hang => {
            let _count = DropCount(node.clone());
            std::future::pending().await
        }
        Behaviour::Work | Behaviour::RefuseShards(..) => {
            let shards = request["shards"].as_object().unwrap().keys();
            let answers: BTreeMap<String, Value> =
                shards.map(|name| (name.clone(), shard(name))).collect();
            reply(200, &json!({"shards": answers, "rows": {}}))
        }
    }
}

async fn write(State(node): State<Arc<FakeNode>>, body: String) -> FakeReply {
    node.writes.lock().push(serde_json::from_str(&body).unwrap());
    let behaviour = node.write_behaviour.lock().clone();
    match behaviour {
        Behaviour::Refuse(status, body) => reply(status, &body),
        Behaviour::Hang => std::future::pending().await,
        _ => {
            let entry = node.entry.fetch_add(1, Ordering::Relaxed);
            reply(200, &json!({ "entry": entry }))
        }
    }
}

async fn passed(State(node): State<Arc<FakeNode>>, request: ServerRequest) -> FakeReply {
    let (head, body) = request.into_parts();
    let request = PassedRequest {
        method: head.method,
        target: head.uri.to_string(),
        headers: head.headers,
        body: body.collect().await.unwrap().to_bytes(),
    };
    node.passed.lock().push(request.clone());
    let answers = node.passed_answers.lock().clone();
    answers(&request)
}

/// Records in memory, which change the view.
pub(crate) struct MemoryCatalog {
    view: ViewUpdater,
    loaded: Arc<AtomicBool>,
    unread: Arc<Mutex<Vec<CollectionRecord>>>,
    removed: Arc<AtomicBool>,
    removed_aliases: Arc<AtomicBool>,
    hangs: Arc<AtomicBool>,
}

impl CollectionCatalog for MemoryCatalog {
    fn create<'a>(&'a self, record: &'a CollectionRecord) -> BoxFuture<'a, Result<bool>> {
        let mut created = false;
        self.view.update(|view| {
            created = !view.collections.contains_key(&record.name);
            view.collections.entry(record.name.clone()).or_insert_with(|| record.clone());
        });
        Box::pin(async move { Ok(created) })
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool>> {
        let mut removed = false;
        self.view.update(|view| removed = view.collections.remove(name).is_some());
        Box::pin(async move { Ok(removed) })
    }

    fn remove_own<'a>(&'a self, record: &'a CollectionRecord) -> BoxFuture<'a, Result<bool>> {
        let mut removed = false;
        self.view.update(|view| {
            let before = view.collections.len();
            view.collections.retain(|_, known| known.id != record.id);
            removed = view.collections.len() < before;
        });
        Box::pin(async move { Ok(removed) })
    }

    fn is_current<'a>(&'a self, record: &'a CollectionRecord) -> BoxFuture<'a, Result<bool>> {
        let is_other = |it: &CollectionRecord| it.name == record.name && it.id != record.id;
        let is_replaced =
            self.removed.load(Ordering::Relaxed) || self.unread.lock().iter().any(is_other);
        Box::pin(async move { Ok(!is_replaced) })
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
        self.loaded.load(Ordering::Relaxed)
    }

    fn read_again(&self) -> BoxFuture<'_, ()> {
        if self.hangs.load(Ordering::Relaxed) {
            return Box::pin(std::future::pending());
        }
        let read = std::mem::take(&mut *self.unread.lock());
        let is_removed = self.removed.swap(false, Ordering::Relaxed);
        let lacks_aliases = self.removed_aliases.swap(false, Ordering::Relaxed);
        self.view.update(|view| {
            if lacks_aliases {
                view.changes = Arc::default();
            }
            view.collections.retain(|_, _| !is_removed);
            view.collections.extend(read.into_iter().map(|record| (record.name.clone(), record)));
        });
        Box::pin(async {})
    }
}

/// Returns the record of the collection "c" with `shards` shards.
pub(crate) fn record(shards: u32, distance: &str) -> CollectionRecord {
    CollectionRecord {
        name: "c".to_owned(),
        id: ID.to_owned(),
        shards,
        copies: 2,
        create: json!({"vectors": {"size": 2, "distance": distance}}),
        images: None,
    }
}

/// A root, and the view that it sees.
pub(crate) struct TestRoot {
    pub(crate) view: ViewUpdater,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) requests: Arc<RequestResources>,
    /// True once the collections were read from the store.
    pub(crate) loaded: Arc<AtomicBool>,
    /// Collections of other roots, which the next reading of the store finds.
    pub(crate) unread: Arc<Mutex<Vec<CollectionRecord>>>,
    /// True if another root has removed the collections, which this one has not seen.
    pub(crate) removed: Arc<AtomicBool>,
    /// True if another root has removed the aliases, which this one has not seen.
    pub(crate) removed_aliases: Arc<AtomicBool>,
    /// True if readings of the store do not end.
    pub(crate) hangs: Arc<AtomicBool>,
    router: Router,
}

/// Status, headers and JSON of an answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) json: Value,
}

impl Answer {
    /// Returns the result of an answer that has one.
    pub(crate) fn result(&self) -> &Value {
        assert_eq!(self.status, 200, "{}", self.json);
        &self.json["result"]
    }

    pub(crate) fn error(&self) -> &str {
        self.json["status"]["error"].as_str().unwrap_or_else(|| panic!("{}", self.json))
    }
}

impl TestRoot {
    /// Creates a root that sees nothing.
    pub(crate) fn new() -> TestRoot {
        TestRoot::with_routes(|_| Router::new())
    }

    /// Creates a root that sees nothing. Its router has the routes of `further` too.
    pub(crate) fn with_routes(further: impl FnOnce(&Arc<RootState>) -> Router) -> TestRoot {
        let metrics = Arc::new(Metrics::default());
        let limits = RequestLimits {
            body_bytes_max: 16 << 20,
            requests_max: 64,
            client_timeout: WAIT,
            request_timeout: WAIT,
            answer_window: WAIT,
        };
        let requests = Arc::new(RequestResources::new(limits, 1 << 30, metrics.clone()));
        let view = ViewUpdater::new();
        let loaded = Arc::new(AtomicBool::new(true));
        let unread = Arc::<Mutex<Vec<CollectionRecord>>>::default();
        let removed = Arc::<AtomicBool>::default();
        let removed_aliases = Arc::<AtomicBool>::default();
        let hangs = Arc::<AtomicBool>::default();
        let catalog = Arc::new(MemoryCatalog {
            view: view.clone(),
            loaded: loaded.clone(),
            unread: unread.clone(),
            removed: removed.clone(),
            removed_aliases: removed_aliases.clone(),
            hangs: hangs.clone(),
        });
        let client = HttpClient::new(None);
        let own = requests.clone();
        let state = RootState::new("this-root", own, client, view.source(), catalog);
        let state = Arc::new(state);
        let router = further(&state).merge(routes().with_state(state));
        TestRoot {
            view,
            metrics,
            requests,
            loaded,
            unread,
            removed,
            removed_aliases,
            hangs,
            router,
        }
    }

    /// Creates a root with the collection "c" of `shards` shards.
    pub(crate) fn with_collection(shards: u32, distance: &str) -> TestRoot {
        let root = TestRoot::new();
        root.add_collection(shards, distance);
        root
    }

    /// Adds the collection "c" of `shards` shards.
    pub(crate) fn add_collection(&self, shards: u32, distance: &str) {
        self.view.update(|view| {
            view.collections.insert("c".to_owned(), record(shards, distance));
        });
    }

    /// Adds a node, or changes its shards.
    pub(crate) fn serve(&self, name: &str, address: &str, shards: &[u32]) {
        let node = NodeInfo {
            name: name.to_owned(),
            address: address.to_owned(),
            roles: Roles::ALL,
            weight: 1,
            build: "1".to_owned(),
            serving: BTreeMap::from([(ID.to_owned(), shards.iter().copied().collect())]),
            ..NodeInfo::default()
        };
        self.view.update(|view| {
            view.nodes.insert(node.name.clone(), node);
        });
    }

    /// Makes a node the owner of a shard.
    pub(crate) fn own(&self, name: &str, shard: u32, epoch: u64) {
        let owner = Owner { node: name.to_owned(), epoch: Epoch(epoch) };
        self.view.update(|view: &mut ClusterView| {
            view.owners.insert(ShardKey::new(ID, shard), owner);
        });
    }

    /// Sends a request; null means no body.
    pub(crate) async fn send(&self, method: Method, path: &str, body: &Value) -> Answer {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder().method(method).uri(path).body(Body::from(text)).unwrap();
        self.send_request(request).await
    }

    pub(crate) async fn send_request(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request);
        let response = tokio::time::timeout(WAIT, response).await.unwrap().unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let json = serde_json::from_slice(&body).unwrap_or(Value::Null);
        Answer { status: head.status.as_u16(), headers: head.headers, body, json }
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, &format!("/collections/c/{path}"), body).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::PUT, &format!("/collections/c/{path}"), body).await
    }

    /// Returns a count of requests.
    pub(crate) fn count(&self, kind: &'static str) -> u64 {
        self.metrics.cluster.requests.get_or_create(&KindLabels { kind }).get()
    }

    /// Returns the reads that this root has sent to another holder. It does so if a node does not
    /// answer within a second, also if the machine pauses for that time.
    pub(crate) fn repeated_reads(&self) -> usize {
        usize::try_from(self.count("hedged") + self.count("retried")).unwrap()
    }
}

/// Waits until `is_done` returns true.
pub(crate) async fn wait_until(is_done: impl Fn() -> bool) {
    let done = async {
        while !is_done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT, done).await.unwrap();
}

/// Returns the shards of the requests, each with its number of requests.
pub(crate) fn asked(requests: &[Value]) -> BTreeMap<u32, usize> {
    let mut asked = BTreeMap::new();
    for request in requests {
        for shard in request["shards"].as_object().unwrap().keys() {
            *asked.entry(shard.parse().unwrap()).or_default() += 1;
        }
    }
    asked
}

/// Returns the set of numbers.
pub(crate) fn set(numbers: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
    numbers.into_iter().collect()
}
