//! Snapshots of collections: backups in the server's store under Qdrant's routes. A snapshot is
//! downloaded and uploaded as one file.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Router};
use backup::{
    BackupContext, BackupExtent, BackupId, BackupList, BackupProgress, BackupRequest,
    BackupService, RestoreTarget, archive_bytes, open_location, read_archive, write_archive,
};
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use metrics::KindLabels;
use search::registry::CollectionSettings;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use transport::access::{AdminRequest, Caller, KeyGrant};
use transport::result_stream::{ResultStream, ResultWriter, result_channel};
use transport::upload::{FormFile, UploadLimits, UploadPieces, upload_channel};
use transport::{HeaderTimeout, Peer, QueryResult, Reply, UploadPermit, query_parameters};

use crate::call::{self, refuse};
use crate::restore_rights::RestoreRights;
use crate::state::CollectionsState;

/// Snapshots that are received (uploads and recoveries) at the same time, and snapshots that are
/// downloaded at the same time. The limits are separate because a recovery may download the
/// snapshot from this server. With one limit, recoveries would wait for their own permits.
pub(crate) const SNAPSHOTS_MAX: usize = 2;
/// Longest wait for a snapshot or a recovery. The work continues after that.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Maximum bytes of an uploaded snapshot.
const UPLOAD_BYTES_MAX: u64 = 1 << 40;
/// Bytes of an answer that are sent at once.
const PIECE_BYTES: usize = 256 << 10;
/// End of the name of a snapshot.
const SUFFIX: &str = ".snapshot";
/// Retry advice if too many snapshots are transferred.
const RETRY_AFTER: Duration = Duration::from_secs(10);

type Context = State<Arc<CollectionsState>>;
/// Receiver of the report of a restore.
type RestoreOutcome = oneshot::Receiver<Result<Value>>;

/// Query string of the routes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotParams {
    wait: Option<bool>,
    /// Without effect, because there are no replicas.
    #[serde(rename = "priority")]
    _priority: Option<SnapshotPriority>,
    checksum: Option<String>,
    timeout: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SnapshotPriority {
    NoSync,
    Snapshot,
    Replica,
}

/// Body of a recovery.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecoverSnapshot {
    location: String,
    /// Without effect, because there are no replicas.
    #[serde(rename = "priority", default)]
    _priority: Option<SnapshotPriority>,
    #[serde(default)]
    checksum: Option<String>,
    #[serde(default)]
    api_key: Option<String>,
}

/// A snapshot in a response.
#[derive(Debug, Serialize)]
pub struct SnapshotDescription {
    name: String,
    creation_time: String,
    size: u64,
}

impl SnapshotDescription {
    /// Describes a backup of `collection` with `bytes` bytes.
    pub fn new(collection: &str, id: &BackupId, bytes: u64) -> SnapshotDescription {
        SnapshotDescription {
            name: format!("{collection}-{id}{SUFFIX}"),
            creation_time: id.created().format("%Y-%m-%dT%H:%M:%S").to_string(),
            size: bytes,
        }
    }
}

pub(crate) fn routes() -> Router<Arc<CollectionsState>> {
    const SNAPSHOTS: &str = "/collections/{collection}/snapshots";
    let at = |rest: &str| format!("{SNAPSHOTS}/{rest}");
    Router::new()
        .route(SNAPSHOTS, get(list).post(create))
        .route(&at("recover"), put(recover))
        .route(&at("upload"), post(upload))
        .route(&at("{item}"), get(download).delete(remove))
}

/// Answers in Qdrant's envelope.
fn reply(result: Result<impl Serialize>, started: Instant) -> Reply {
    call::reply(result.and_then(|result| call::encode(&result)), started)
}

/// Answers a request whose work continues.
fn accepted(started: Instant) -> Reply {
    let body = json!({ "status": "accepted", "time": started.elapsed().as_secs_f64() });
    Reply::json(body.to_string()).with_status(StatusCode::ACCEPTED)
}

async fn list(State(state): Context, Path(collection): Path<String>) -> Reply {
    let started = Instant::now();
    let listed = async {
        let collection = state.backups.resolve(&collection)?;
        let stored = state.backups.lists(&collection).await?;
        for damaged in &stored.unreadable {
            tracing::warn!(collection, problem = damaged.problem, "a snapshot is not listed");
        }
        stored.lists.iter().map(describe).collect::<Result<Vec<SnapshotDescription>>>()
    };
    reply(listed.await, started)
}

fn describe(list: &BackupList) -> Result<SnapshotDescription> {
    Ok(SnapshotDescription::new(&list.collection, &list.id, archive_bytes(list)?))
}

/// Returns the backup of a snapshot's name.
///
/// # Errors
/// `NotFound` for a name that no snapshot of the collection has.
pub fn snapshot_id(collection: &str, name: &str) -> Result<BackupId> {
    match named_snapshot(name) {
        Some((found, id)) if found == collection => Ok(id),
        _ => Err(no_snapshot(collection, name)),
    }
}

fn no_snapshot(collection: &str, name: &str) -> Error {
    let shown: String = name.chars().take(80).collect();
    Error::not_found(format!("there is no snapshot {shown:?} of {collection:?}"))
}

/// Returns the collection and the backup of a snapshot's name; `None` for another name.
pub fn named_snapshot(name: &str) -> Option<(&str, BackupId)> {
    let name = name.strip_suffix(SUFFIX)?;
    // The id has a "-" of its own.
    let (head, random) = name.rsplit_once('-')?;
    let (collection, time) = head.rsplit_once('-')?;
    Some((collection, format!("{time}-{random}").parse().ok()?))
}

async fn create(
    State(state): Context,
    Path(collection): Path<String>,
    query: QueryResult<SnapshotParams>,
) -> Reply {
    let started = Instant::now();
    let made = async {
        let params = query_parameters(query)?;
        let collection = state.backups.registry()?.get(&collection)?.name().to_owned();
        let extent = BackupExtent::Missing;
        let request = BackupRequest::Backup { collection: collection.clone(), extent };
        let Some(report) = work(&state.backups, request, &params).await? else { return Ok(None) };
        let id = report.get("backup").and_then(Value::as_str).unwrap_or_default();
        let list = state.backups.store()?.list(&collection, &id.parse()?).await?;
        describe(&list).map(Some)
    };
    match made.await {
        Ok(None) => accepted(started),
        made => reply(made, started),
    }
}

/// Submits a request and waits for its report. Returns `None` at once if the client does not wait.
async fn work(
    backups: &BackupService,
    request: BackupRequest,
    params: &SnapshotParams,
) -> Result<Option<Value>> {
    let submitted = backups.submit(request)?;
    if params.wait == Some(false) {
        return Ok(None);
    }
    wait(submitted.outcome, params).await.map(Some)
}

/// Waits for work on a snapshot, for the time that the client allows.
///
/// # Errors
/// `DeadlineExceeded` if it takes longer, while it continues; `Unavailable` if it was stopped; the
/// errors of the work.
async fn wait<T>(outcome: oneshot::Receiver<Result<T>>, params: &SnapshotParams) -> Result<T> {
    let limit = params.timeout.map_or(WAIT_MAX, Duration::from_secs).min(WAIT_MAX);
    match tokio::time::timeout(limit, outcome).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(Error::unavailable("the work was stopped; try again")),
        Err(_) => Err(Error::deadline(
            "it takes longer than the time limit and continues; list the snapshots to see its end",
        )),
    }
}

async fn remove(
    State(state): Context,
    Path((collection, name)): Path<(String, String)>,
    query: QueryResult<SnapshotParams>,
) -> Reply {
    let started = Instant::now();
    let removed = async {
        let params = query_parameters(query)?;
        let collection = state.backups.resolve(&collection)?;
        let backup = snapshot_id(&collection, &name)?;
        // A missing snapshot is a mistake of the client, and not failed work for the log. A damaged
        // one can be removed.
        if let Err(error) = snapshot_list(&state.backups, &collection, &name, &backup).await
            && error.kind() == ErrorKind::NotFound
        {
            return Err(error);
        }
        work(&state.backups, BackupRequest::Delete { collection, backup }, &params).await
    };
    match removed.await {
        Ok(None) => accepted(started),
        removed => reply(removed.map(|_| true), started),
    }
}

/// Returns the list of a snapshot's backup.
///
/// # Errors
/// `NotFound` that names the snapshot; the errors of the store.
async fn snapshot_list(
    backups: &BackupService,
    collection: &str,
    name: &str,
    id: &BackupId,
) -> Result<BackupList> {
    backups.store()?.list(collection, id).await.map_err(|error| match error.kind() {
        ErrorKind::NotFound => no_snapshot(collection, name),
        _ => error,
    })
}

/// Direction of the transfer of a snapshot.
#[derive(Clone, Copy)]
enum SnapshotTransfer {
    /// An upload or a recovery.
    Receive,
    Download,
}

/// Returns the permit of a transfer.
async fn permit(state: &CollectionsState, transfer: SnapshotTransfer) -> Result<UploadPermit> {
    let (permits, verb) = match transfer {
        SnapshotTransfer::Receive => (&state.snapshots_received, "received"),
        SnapshotTransfer::Download => (&state.snapshots_downloaded, "downloaded"),
    };
    permits.acquire().await.ok_or_else(|| {
        let labels = KindLabels { kind: "snapshots_max" };
        state.requests.metrics.refused.get_or_create(&labels).inc();
        Error::exhausted(format!("{SNAPSHOTS_MAX} snapshots are being {verb}; try again later"))
            .with_retry_after(RETRY_AFTER)
    })
}

/// Runs `work` on a new thread of low priority, which may wait for the disk and the network. `work`
/// holds `permit`, which bounds the number of such threads.
///
/// # Errors
/// `ResourceExhausted` if no thread can be started.
fn on_thread(permit: UploadPermit, work: impl FnOnce(UploadPermit) + Send + 'static) -> Result<()> {
    let name = format!("snapshot-{}", permit.number);
    let run = move || {
        os::thread::enter_low_priority("transferring a snapshot");
        work(permit);
    };
    os::thread::spawn(name, run).map(drop)
}

async fn download(
    State(state): Context,
    Path((collection, name)): Path<(String, String)>,
) -> Response {
    let started = Instant::now();
    match begin_download(&state, &collection, &name).await {
        Ok(response) => response,
        Err(error) => refuse(&error, started.elapsed()).into_response(),
    }
}

async fn begin_download(
    state: &Arc<CollectionsState>,
    collection: &str,
    name: &str,
) -> Result<Response> {
    let collection = state.backups.resolve(collection)?;
    let id = snapshot_id(&collection, name)?;
    let list = snapshot_list(&state.backups, &collection, name, &id).await?;
    let length = archive_bytes(&list)?;
    let permit = permit(state, SnapshotTransfer::Download).await?;
    let (writer, results) = result_channel(Arc::new(AtomicBool::new(false)));
    let backups = state.backups.clone();
    on_thread(permit, move |_permit| {
        let sent = send_archive(&backups, &collection, &list, &writer);
        if let Err(error) = &sent {
            tracing::warn!(collection, backup = %list.id, %error, "a download of a snapshot has ended");
        }
        writer.end(sent);
    })?;
    results.begun().await?;
    Ok(snapshot_response(results, length, name))
}

/// Returns the response that sends the archive of the snapshot `name`, which has `length` bytes.
pub fn snapshot_response(results: ResultStream, length: u64, name: &str) -> Response {
    let mut response = Response::new(Body::from_stream(results));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    let disposition = HeaderValue::from_str(&format!("attachment; filename=\"{name}\""));
    headers.extend(disposition.ok().map(|value| (header::CONTENT_DISPOSITION, value)));
    response
}

fn send_archive(
    backups: &BackupService,
    collection: &str,
    list: &BackupList,
    writer: &ResultWriter,
) -> Result<()> {
    let store = backups.store()?;
    let progress = BackupProgress::default();
    let context = BackupContext { store: &store, pacer: backups.pacer(), progress: &progress };
    let mut pieces = PieceWriter::new(writer);
    backup::block_on(write_archive(&context, collection, list, &mut pieces))
}

/// Writer that collects bytes into pieces and sends them.
pub struct PieceWriter<'a> {
    writer: &'a ResultWriter,
    piece: Vec<u8>,
}

impl<'a> PieceWriter<'a> {
    /// Creates a writer whose pieces go to `writer`. The last piece needs a flush.
    pub fn new(writer: &'a ResultWriter) -> PieceWriter<'a> {
        PieceWriter { writer, piece: Vec::with_capacity(PIECE_BYTES) }
    }
}

impl Write for PieceWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = bytes.len().min(PIECE_BYTES - self.piece.len());
        self.piece.extend_from_slice(&bytes[..count]);
        if self.piece.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES));
        self.writer.send(Bytes::from(piece)).map_err(std::io::Error::other)
    }
}

/// Restores a collection from a snapshot at a location. Only administrators may do this.
async fn recover(
    State(state): Context,
    Path(collection): Path<String>,
    query: QueryResult<SnapshotParams>,
    peer: Option<Extension<Peer>>,
    grant: Option<Extension<KeyGrant>>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let started = Instant::now();
    let caller = Caller { peer: peer.map(|Extension(peer)| peer), headers: &headers };
    // The location may be any file of this machine.
    let call = AdminRequest {
        calls: "snapshots are recovered from a location",
        action: "recover snapshot",
        subject: &collection,
        caller,
    };
    let recovered = async {
        let params = query_parameters(query)?;
        let body = state.requests.read_json_body(&headers, body).await?;
        let request: RecoverSnapshot = crate::json::parse(&body)?;
        check_unsupported(&params, &request)?;
        let location = request.location;
        let options = state.backups.store_options().to_vec();
        let open = move || open_location(&location, &options);
        let outcome = begin_restore(&state, &collection, grant, open).await?;
        // The log of admin calls shows the outcome.
        restored(outcome, &params).await
    };
    answer(state.access.admin(call, recovered).await, started)
}

/// Waits for the end of a restore, and returns true. Returns false at once if the client does not
/// wait.
///
/// # Errors
/// The errors of the restore, and of [`wait`].
async fn restored(outcome: RestoreOutcome, params: &SnapshotParams) -> Result<bool> {
    if params.wait == Some(false) {
        return Ok(false);
    }
    wait(outcome, params).await.map(|_| true)
}

/// Answers a request that restores a collection, with the result of [`restored`].
fn answer(restored: Result<bool>, started: Instant) -> Reply {
    match restored {
        Ok(false) => accepted(started),
        ended => reply(ended, started),
    }
}

/// Checks that a request to restore a snapshot has no field without effect.
///
/// # Errors
/// `Unimplemented` that names the field.
fn check_unsupported(params: &SnapshotParams, request: &RecoverSnapshot) -> Result<()> {
    let checksum = params.checksum.as_ref().or(request.checksum.as_ref());
    if checksum.is_some() {
        return Err(Error::unimplemented(
            "\"checksum\" is not supported; each file in a snapshot has its own checksum, which is compared",
        ));
    }
    match &request.api_key {
        Some(_) => Err(Error::unimplemented(
            "\"api_key\" is not supported; download the snapshot and send it to snapshots/upload",
        )),
        None => Ok(()),
    }
}

/// Restores the snapshot that `open` returns, on a thread of its own. Replaces the collection. The
/// key with the rights `grant` must permit what the settings in the snapshot name.
async fn begin_restore<R: Read>(
    state: &Arc<CollectionsState>,
    collection: &str,
    grant: Option<Extension<KeyGrant>>,
    open: impl FnOnce() -> Result<R> + Send + 'static,
) -> Result<RestoreOutcome> {
    let target = RestoreTarget { name: state.backups.resolve(collection)?, replaces: true };
    let permit = permit(state, SnapshotTransfer::Receive).await?;
    let (sender, outcome) = oneshot::channel();
    let backups = state.backups.clone();
    let rights =
        grant.map(|Extension(grant)| RestoreRights::new(grant, state.images.default_model()));
    on_thread(permit, move |permit| {
        let restored = backups.registry().and_then(|registry| {
            let check = |settings: &CollectionSettings| {
                if let Some(rights) = &rights {
                    rights.check(&backups, &registry, settings, &target)?;
                }
                backups.check_originals(&registry, settings, &target)
            };
            read_archive(&registry, open()?, &target, check)
        });
        let collection = &target.name;
        match &restored {
            Ok(report) => {
                tracing::info!(collection, backup = %report.backup, "a snapshot was restored")
            }
            Err(error) => tracing::error!(collection, %error, "a snapshot was not restored"),
        }
        // The client's next request finds the permit free.
        drop(permit);
        // The client may have disconnected.
        let _ = sender.send(restored.map(|report| json!(report)));
    })?;
    Ok(outcome)
}

/// Restores a collection from the snapshot in the body.
async fn upload(
    State(state): Context,
    Path(collection): Path<String>,
    query: QueryResult<SnapshotParams>,
    watch: Option<Extension<HeaderTimeout>>,
    grant: Option<Extension<KeyGrant>>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let started = Instant::now();
    let uploaded = async {
        let params = query_parameters(query)?;
        if params.checksum.is_some() {
            return Err(Error::unimplemented(
                "\"checksum\" is not supported; each file in a snapshot has its own checksum, which is compared",
            ));
        }
        let limits = upload_limits(state.requests.limits.client_timeout);
        // Until the body is complete, its bytes do not belong to a next request.
        let receiving = watch.map(|Extension(watch)| watch.complete());
        let pieces = uploaded_pieces(&headers, body, limits).await?;
        let (sender, reader, _) = upload_channel(None);
        let outcome = begin_restore(&state, &collection, grant, move || Ok(reader)).await?;
        tokio::spawn(async move {
            sender.feed(pieces, limits).await;
            drop(receiving);
        });
        restored(outcome, &params).await
    };
    answer(uploaded.await, started)
}

/// Returns the limits of an uploaded snapshot, of which each piece may take `piece_timeout`.
pub fn upload_limits(piece_timeout: Duration) -> UploadLimits {
    UploadLimits { noun: "snapshot", bytes_max: UPLOAD_BYTES_MAX, piece_timeout }
}

/// Returns the bytes of the uploaded snapshot, which is the body or the first file of a form.
///
/// # Errors
/// `InvalidArgument` for a form without a file; as [`FormFile::first`].
pub async fn uploaded_pieces(
    headers: &HeaderMap,
    body: Body,
    limits: UploadLimits,
) -> Result<UploadPieces> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let Some(form) = content_type.filter(|text| text.starts_with("multipart/form-data")) else {
        return Ok(UploadPieces::raw(body));
    };
    let missing = || {
        Error::invalid("the form has no file; send the snapshot with -F snapshot=@FILE.snapshot")
    };
    FormFile::first(form, body, limits).await?.map(|file| file.pieces).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_backups() {
        let id = "20260131T235959123Z-0123abcd";
        assert_eq!(snapshot_id("a-b", &format!("a-b-{id}.snapshot")).unwrap().as_str(), id);
        for wrong in [
            "x.snapshot",
            "a-b.snapshot",
            "a-b-1.snapshot",
            "c-20260131T235959123Z-0123abcd.snapshot",
        ] {
            assert_eq!(
                snapshot_id("a-b", wrong).unwrap_err().kind(),
                base::ErrorKind::NotFound,
                "{wrong}"
            );
        }
    }
}
