//! Routes between the nodes of a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api_qdrant::ShardCall;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::{get, post};
use base::{Error, Result};
use bytes::Bytes;
use cluster::EntryNumber;
use http::{HeaderMap, StatusCode};
use search::collection::OptimizerWork;
use search::points::PointId;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use transport::Reply;

use super::hints::{self, AppendedEntries};
use super::local::LocalAnswer;
use super::ownership::OwnerWriteOutcome;
use super::{ClusterNode, image_endpoints};
use crate::types::ShardKey;
use cluster_log::{LogWrite, was_not_made};

/// Longest time of a request of another node.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Maximum shards that a node reads at the same time. More wait.
pub(super) const READS_RUNNING_MAX: usize = 64;
/// Start of the routes of background work. Their reads have turns of their own, so that queries do
/// not wait for them.
const BACKGROUND_PATHS: &str = "images/duplicates/";
/// Maximum shards that a node reads at the same time for background work. More wait.
pub(super) const BACKGROUND_READS_MAX: usize = 16;
/// Path of the flushes and merges of a node.
const WORK_PATH: &str = "/cluster/v1/node/work";
/// Maximum shards of one read.
const SHARDS_MAX: usize = 1024;
/// Maximum bytes that [`answer_text`] writes for a shard besides its body.
const FRAME_BYTES_MAX: usize = 38;
/// Routes of a collection that a root may read.
const READ_PATHS: [&str; 14] = [
    "points",
    "points/query",
    "points/query/batch",
    "points/query/groups",
    "points/count",
    "points/scroll",
    "facet",
    "images/coarse",
    "images/rank",
    "images/duplicates/embeddings",
    "images/duplicates/neighbours",
    "images/duplicates/records",
    "images/duplicates/verify",
    "images/duplicates/images",
];

/// A read of some shards that this node holds.
#[derive(Debug, Deserialize)]
struct ReadRequest {
    /// Id of the collection.
    collection: String,
    /// The shards, each with the entry that it must have applied. Entry 0 is a fence, so 0 requires
    /// none.
    shards: BTreeMap<u32, u64>,
    /// Route after the name of the collection.
    path: String,
    /// Body for the route, as the client wrote it.
    body: Box<RawValue>,
    /// Longest time, in milliseconds.
    timeout_ms: u64,
    /// True to answer only once all acknowledged writes are applied.
    #[serde(default)]
    strong: bool,
}

impl ReadRequest {
    /// Checks the route and the number of shards.
    ///
    /// # Errors
    /// `InvalidArgument` for a route that is not read, and for too many shards.
    fn check(&self) -> Result<()> {
        if !READ_PATHS.contains(&self.path.as_str()) {
            return Err(Error::invalid(format!("{:?} is not read in a cluster", self.path)));
        }
        let count = self.shards.len();
        if count > SHARDS_MAX {
            let message = format!("a read has at most {SHARDS_MAX} shards, and this one {count}");
            return Err(Error::invalid(message));
        }
        Ok(())
    }
}

/// A read that runs.
struct RunningRead {
    request: ReadRequest,
    body: Bytes,
    /// Shared by the calls of all shards.
    call: ShardCall,
    until: Instant,
}

struct ShardAnswer {
    status: u16,
    /// JSON text.
    body: Bytes,
}

/// A write to a shard whose log this node writes.
#[derive(Debug, Deserialize)]
struct WriteRequest {
    collection: String,
    shard: u32,
    operations: Vec<Box<RawValue>>,
    timeout_ms: u64,
    /// Condition of the operations, which write one image.
    #[serde(default)]
    unless_written: Option<UnlessWritten>,
}

/// Refuses the write of an image if an entry after the entry `after` may have written the image.
#[derive(Debug, Deserialize)]
struct UnlessWritten {
    id: PointId,
    after: u64,
}

impl WriteRequest {
    /// Returns the write to append to the log.
    ///
    /// # Errors
    /// `InvalidArgument` for a condition on a point that is not an image; `Unimplemented` for an
    /// operation that holders of this version do not make. All of them would stop at it.
    fn log_write(&self) -> Result<LogWrite> {
        let operations = self.operations.iter();
        let operations: Vec<Bytes> =
            operations.map(|operation| Bytes::from(operation.get().to_owned())).collect();
        for operation in &operations {
            if !api_images::is_image_operation(operation) {
                api_qdrant::check_logged_operation(operation)?;
            }
        }
        let Some(UnlessWritten { id, after }) = &self.unless_written else {
            let ids = operations.iter().flat_map(|operation| api_images::written_images(operation));
            let ids = ids.collect();
            return Ok(LogWrite { operations, ids, unless_after: None });
        };
        let PointId::Uuid(id) = id else {
            return Err(Error::invalid(format!("unless_written: {id} is not the id of an image")));
        };
        Ok(LogWrite { operations, ids: vec![*id], unless_after: Some(EntryNumber(*after)) })
    }
}

/// Returns the routes between nodes.
pub(super) fn routes() -> Router<Arc<ClusterNode>> {
    Router::new()
        .route("/cluster/v1/read", post(read))
        .route("/cluster/v1/write", post(write))
        .route(hints::PATH, post(appended))
        .route("/cluster/v1/node", get(status))
        .route(WORK_PATH, get(work))
        .route("/cluster/v1/drain", post(drain))
        .merge(image_endpoints::routes())
}

fn deadline(timeout_ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(timeout_ms).min(TIMEOUT_MAX)
}

/// Reads and parses the JSON of a request.
async fn parsed<T: for<'a> Deserialize<'a>>(
    node: &ClusterNode,
    headers: &HeaderMap,
    body: Body,
) -> Result<T> {
    let body: Bytes = node.requests.read_json_body(headers, body).await?;
    serde_json::from_slice(&body)
        .map_err(|error| Error::invalid("a request of another node").caused_by(error))
}

async fn read(State(node): State<Arc<ClusterNode>>, headers: HeaderMap, body: Body) -> Reply {
    Reply::of(answer_read(&node, &headers, body).await)
}

/// Reads the requested shards at the same time. A shard that fails has an error in the answer, and
/// the others have their results.
async fn answer_read(node: &Arc<ClusterNode>, headers: &HeaderMap, body: Body) -> Result<Reply> {
    let request: ReadRequest = parsed(node, headers, body).await?;
    request.check()?;
    let body = Bytes::from(request.body.get().to_owned());
    let until = deadline(request.timeout_ms);
    let read = Arc::new(RunningRead { request, body, call: ShardCall::default(), until });
    let mut running = JoinSet::new();
    // Carries no message, and closes when the last shard is read. So the task of the connection
    // wakes once, and not after each shard.
    let (reading, mut all_read) = mpsc::channel::<()>(1);
    for shard in read.request.shards.keys().copied() {
        let node = node.clone();
        let read = read.clone();
        let reading = reading.clone();
        running.spawn(async move {
            let answer = read_shard(&node, &read, shard).await;
            drop(reading);
            (shard, answer)
        });
    }
    drop(reading);
    all_read.recv().await;
    let mut answers = BTreeMap::new();
    while let Some(done) = running.join_next().await {
        let (shard, answer) =
            done.map_err(|error| Error::internal("a read of a shard").caused_by(error))?;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => ShardAnswer {
                status: error.kind().http_status(),
                body: json!({ "status": { "error": error.message() } }).to_string().into(),
            },
        };
        answers.insert(shard, answer);
    }
    Ok(Reply::json(answer_text(&answers)))
}

/// Returns the JSON of the answers of shards. Copies each body once.
fn answer_text(answers: &BTreeMap<u32, ShardAnswer>) -> Vec<u8> {
    let bytes: usize = answers.values().map(|answer| answer.body.len() + FRAME_BYTES_MAX).sum();
    let start = b"{\"shards\":{";
    let end = b"}}";
    let mut text = Vec::with_capacity(start.len() + bytes + end.len());
    text.extend_from_slice(start);
    for (at, (shard, ShardAnswer { status, body })) in answers.iter().enumerate() {
        if at > 0 {
            text.push(b',');
        }
        text.extend_from_slice(format!("\"{shard}\":{{\"status\":{status},\"body\":").as_bytes());
        text.extend_from_slice(body);
        text.push(b'}');
    }
    text.extend_from_slice(end);
    text
}

/// Reads one shard. Waits first until its copy has the entries that the request must see.
async fn read_shard(node: &ClusterNode, read: &RunningRead, shard: u32) -> Result<ShardAnswer> {
    let RunningRead { request, body, call, until } = read;
    let until = *until;
    let key = ShardKey::new(&request.collection, shard);
    let unserved =
        || Error::unavailable(format!("node {} does not serve the shard {key}", node.name()));
    let state = node.held.find(&key).ok_or_else(unserved)?;
    // Before the check: otherwise the collection could be opened again between the two.
    let generation = state.generation();
    if !state.is_caught_up() {
        return Err(unserved());
    }
    if request.strong {
        state.wait_end(until).await?;
    }
    if let Some(entry @ 1..) = request.shards.get(&shard) {
        state.wait_applied(EntryNumber(*entry), until).await?;
    }
    // A root that asks for many shards, or many roots together, wait here and are not refused.
    let turns = if request.path.starts_with(BACKGROUND_PATHS) {
        &node.background_reads
    } else {
        &node.reads
    };
    let turn = turns.acquire();
    let _turn = tokio::time::timeout_at(until.into(), turn)
        .await
        .map_err(|_| Error::exhausted("too many shards are read on this node; try again later"))?;
    let answered = node.services.local.read(call.clone(), &key, &request.path, body.clone());
    let answer = tokio::time::timeout_at(until.into(), answered)
        .await
        .map_err(|_| Error::deadline(format!("the shard {key} took too long")))??;
    state.check_generation(&key, generation)?;
    shard_answer(&key, answer)
}

/// Turns the answer of a local collection into that of a shard.
///
/// # Errors
/// `Internal` for a body that would damage the answers of other shards.
fn shard_answer(key: &ShardKey, answer: LocalAnswer) -> Result<ShardAnswer> {
    let LocalAnswer { status, body } = answer;
    let malformed = |error: &dyn std::fmt::Display| {
        Error::internal(format!("the answer of the shard {key}: {error}"))
    };
    if status == StatusCode::OK {
        // Handlers write results as JSON, so these are not parsed again.
        std::str::from_utf8(&body).map_err(|error| malformed(&error))?;
    } else {
        // The router itself answers some errors, without JSON.
        serde_json::from_slice::<&RawValue>(&body).map_err(|error| malformed(&error))?;
    }
    Ok(ShardAnswer { status: status.as_u16(), body })
}

async fn write(State(node): State<Arc<ClusterNode>>, headers: HeaderMap, body: Body) -> Reply {
    Reply::of(answer_write(&node, &headers, body).await)
}

/// Appends the operations of a request to a log of this node.
async fn append(node: &ClusterNode, headers: &HeaderMap, body: Body) -> Result<OwnerWriteOutcome> {
    let request: WriteRequest = parsed(node, headers, body).await?;
    let key = ShardKey::new(&request.collection, request.shard);
    let until = deadline(request.timeout_ms);
    let write = request.log_write()?;
    // The write has copies of the operations, and may wait for the store.
    drop(request);
    let bytes: usize = write.operations.iter().map(Bytes::len).sum();
    let _waiting = node.waiting.reserve(bytes as u64)?;
    node.owned.write(&key, write, until).await
}

/// Answers a write of a root: with the number of its entry, with the number of a conflicting entry
/// (412), or with the owner's name (409).
async fn answer_write(node: &ClusterNode, headers: &HeaderMap, body: Body) -> Result<Reply> {
    let outcome = match append(node, headers, body).await {
        // The root sends it again, to the owner that it then knows.
        Err(error) if error.is_retryable() && was_not_made(&error) => {
            let body = json!({ "made": false, "error": error.message() });
            return Ok(Reply::error_with_body(&error, body.to_string()));
        }
        outcome => outcome?,
    };
    Ok(match outcome {
        OwnerWriteOutcome::Appended(entry) => Reply::json(json!({ "entry": entry.0 }).to_string()),
        OwnerWriteOutcome::Refused(entry) => {
            Reply::json(json!({ "conflict": entry.0 }).to_string())
                .with_status(StatusCode::PRECONDITION_FAILED)
        }
        OwnerWriteOutcome::Elsewhere(owner) => {
            Reply::json(json!({ "owner": owner }).to_string()).with_status(StatusCode::CONFLICT)
        }
    })
}

async fn appended(State(node): State<Arc<ClusterNode>>, headers: HeaderMap, body: Body) -> Reply {
    Reply::of(answer_appended(&node, &headers, body).await)
}

async fn answer_appended(node: &ClusterNode, headers: &HeaderMap, body: Body) -> Result<Reply> {
    let mut request: AppendedEntries = parsed(node, headers, body).await?;
    for (collection, shards) in std::mem::take(&mut request.entries) {
        for (shard, newest) in shards {
            let passed = request.take_passed(&collection, shard);
            let key = ShardKey::new(&collection, shard);
            node.held.appended(&key, EntryNumber(newest), passed.into_iter());
        }
    }
    Ok(Reply::json("{}"))
}

/// A request that a node drains.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainRequest {
    /// Name of the node, this one or another.
    node: String,
}

/// Leaves the shards of a node to others. The node serves them until then, and until it is stopped.
/// It learns of the drain from etcd, because its admin port may be reachable only from its own
/// machine.
async fn drain(State(node): State<Arc<ClusterNode>>, headers: HeaderMap, body: Body) -> Reply {
    Reply::of(answer_drain(&node, &headers, body).await)
}

async fn answer_drain(node: &ClusterNode, headers: &HeaderMap, body: Body) -> Result<Reply> {
    let request: DrainRequest = parsed(node, headers, body).await?;
    node.drain(&request.node).await?;
    Ok(Reply::json(json!({ "node": request.node, "draining": true }).to_string()))
}

/// Describes this node and its copies of shards: next entry, damage, and the reason if a copy does
/// not follow its log.
async fn status(State(node): State<Arc<ClusterNode>>) -> Reply {
    let shards: Vec<Value> = node
        .held
        .progress()
        .into_iter()
        .map(|shard| {
            json!({
                "shard": shard.shard.to_string(),
                "next": shard.next.0,
                "caught_up": shard.caught_up,
                "damage": shard.damage,
                "stalled": shard.stalled.map(|report| report.reason),
            })
        })
        .collect();
    Reply::json(json!({ "name": node.name(), "shards": shards }).to_string())
}

/// Returns the flushes and merges of this node that run or wait. They can slow searches down.
async fn work(State(node): State<Arc<ClusterNode>>) -> Reply {
    let work = node.services.local.optimizer_work().await;
    Reply::of(work.map(|work| {
        let OptimizerWork { flushes, merges, merges_waiting } = work;
        let body =
            json!({ "flushes": flushes, "merges": merges, "merges_waiting": merges_waiting });
        Reply::json(body.to_string())
    }))
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn answers_of_shards_are_one_json_text() {
        assert_eq!(answer_text(&BTreeMap::new()), br#"{"shards":{}}"#);
        let answer = |status, body: &'static str| ShardAnswer { status, body: body.into() };
        let answers = BTreeMap::from([
            (u32::MAX, answer(u16::MAX, r#"{"error":"\u00e9"}"#)),
            (3, answer(200, r#"{"result":[1],"status":"ok"}"#)),
        ]);
        let text = answer_text(&answers);
        let first = r#""3":{"status":200,"body":{"result":[1],"status":"ok"}}"#;
        let second = r#""4294967295":{"status":65535,"body":{"error":"\u00e9"}}"#;
        assert_eq!(text, format!(r#"{{"shards":{{{first},{second}}}}}"#).as_bytes());
        let bodies: usize = answers.values().map(|answer| answer.body.len()).sum();
        assert!(text.len() <= bodies + 2 * FRAME_BYTES_MAX + br#"{"shards":{}}"#.len());
    }

    #[test]
    fn writes_name_the_images_that_they_write() {
        let id = "5c56c793-69f3-8fbf-87e6-c4bf54c28c26";
        let point = id.parse::<PointId>().unwrap();
        let PointId::Uuid(bytes) = point else { panic!("{id} is a UUID") };
        let put = json!({ "put_images": { "points": [{ "id": id, "embedding": [1.0] }] } });
        let delete = json!({ "delete": { "points": [id] } });
        let write = |members: Value| {
            let mut request = json!({ "collection": "c", "shard": 1, "timeout_ms": 1 });
            let members = members.as_object().unwrap().clone();
            request.as_object_mut().unwrap().extend(members);
            serde_json::from_str::<WriteRequest>(&request.to_string()).unwrap().log_write()
        };
        let conditional = json!({
            "operations": [put], "unless_written": { "id": id, "after": 7 }, "member of a later node": 1,
        });
        let conditional = write(conditional).unwrap();
        assert_eq!(
            (conditional.ids, conditional.unless_after),
            (vec![bytes], Some(EntryNumber(7)))
        );
        assert_eq!(conditional.operations, [put.to_string()]);
        // A root of an earlier version sends no condition.
        let without = write(json!({ "operations": [delete, put] })).unwrap();
        assert_eq!((without.ids, without.unless_after), (vec![bytes], None));
        assert!(write(json!({ "operations": [delete] })).unwrap().ids.is_empty());
        for unmade in ["operation_of_a_later_version", "delete_vectors"] {
            let operations = json!({ "operations": [delete, { unmade: {} }] });
            assert_eq!(write(operations).unwrap_err().kind(), ErrorKind::Unimplemented);
        }
        let number = json!({ "operations": [put], "unless_written": { "id": 7, "after": 7 } });
        assert_eq!(write(number).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn the_error_of_a_read_names_what_is_wrong() {
        let check = |path: &str, shards: usize| {
            let shards: BTreeMap<usize, u64> = (0..shards).map(|shard| (shard, 0)).collect();
            let request = json!({
                "collection": "c", "shards": shards, "path": path, "body": {}, "timeout_ms": 1,
            });
            serde_json::from_str::<ReadRequest>(&request.to_string()).unwrap().check()
        };
        check(READ_PATHS[0], SHARDS_MAX).unwrap();
        let error = check("other", 1).unwrap_err();
        assert!(error.message().contains("\"other\" is not read"), "{error}");
        let error = check(READ_PATHS[0], SHARDS_MAX + 1).unwrap_err();
        assert!(error.message().contains("1025"), "{error}");
    }

    #[test]
    fn a_body_without_json_damages_no_other_shard() {
        let key = ShardKey::new("c", 0);
        let answer = |status, body: &'static [u8]| {
            shard_answer(&key, LocalAnswer { status, body: Bytes::from_static(body) })
        };
        let malformed: [(StatusCode, &'static [u8]); 3] = [
            (StatusCode::OK, b"{\"result\":\"\xff\"}"),
            (StatusCode::NOT_FOUND, b""),
            (StatusCode::BAD_REQUEST, b"{\"error\":\"\xff\"}"),
        ];
        for (status, body) in malformed {
            assert_eq!(answer(status, body).err().unwrap().kind(), ErrorKind::Internal);
        }
        let refused = answer(StatusCode::BAD_REQUEST, br#"{"error":"why"}"#).unwrap();
        assert_eq!((refused.status, &*refused.body), (400, &br#"{"error":"why"}"#[..]));
        assert_eq!(answer(StatusCode::OK, br#"{"result":1}"#).unwrap().status, 200);
    }
}
