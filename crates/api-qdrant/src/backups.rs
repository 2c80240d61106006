//! Backups of collections over HTTP. Requests that take long are queued; the answer has the number
//! of the job, whose state is read at `/v1/backups/jobs/NUMBER`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Extension, Router};
use backup::{
    BackupExtent, BackupId, BackupJob, BackupJobState, BackupList, BackupRequest, BackupService,
    RestoreTarget, RetentionPolicy,
};
use base::{Error, ErrorKind, Result};
use http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use transport::access::{AccessPolicy, AdminRequest, Caller, KeyGrant};
use transport::{Peer, Reply, Shared, check_no_query};

/// Description of the routes as OpenAPI 3.1.
pub const OPENAPI: &str = include_str!("backups.json");

/// Maximum bytes of a body.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Longest wait for a body.
const BODY_WAIT_MAX: Duration = Duration::from_secs(10);
const DAY_SECONDS: f64 = 86_400.0;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CreateBackup {
    /// True to upload files again that the store has already.
    full: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ChosenBackup {
    backup: Option<BackupId>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PruneBackups {
    keep: Option<usize>,
    keep_days: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RestoreBackup {
    backup: Option<BackupId>,
    to: Option<String>,
    replace: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CloneCollection {
    to: String,
}

/// Returns the routes of backups. `access` checks the requests that change something.
pub fn routes(access: Arc<AccessPolicy>) -> Router<Arc<BackupService>> {
    const COLLECTION: &str = "/v1/collections/{collection}";
    let at = |rest: &str| format!("{COLLECTION}/{rest}");
    Router::new()
        .route("/v1/backups", get(overview))
        .route("/v1/backups/jobs/{job}", get(job))
        .route(&at("backups"), get(list).post(create))
        .route(&at("backups/{backup}"), delete(remove))
        .route(&at("backups/verify"), post(verify))
        .route(&at("backups/prune"), post(prune))
        .route(&at("restore"), post(restore))
        .route(&at("clone"), post(clone))
        .route_layer(from_fn_with_state(access, run_admin_call))
}

/// Checks and logs a request that changes something, as an admin call.
async fn run_admin_call(
    State(access): State<Arc<AccessPolicy>>,
    request: Request,
    next: Next,
) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let query = check_no_query(request.uri());
    let headers = request.headers().clone();
    let peer = request.extensions().get::<Peer>().copied();
    let action = format!("{} backups", request.method());
    let path = request.uri().path().to_owned();
    let call = AdminRequest {
        calls: "backups are made, compared, removed and restored",
        action: &action,
        subject: &path,
        caller: Caller { peer, headers: &headers },
    };
    let mut answered = None;
    let work = async {
        // Otherwise `restore?backup=ID` would restore the newest backup.
        query?;
        let response = next.run(request).await;
        let status = response.status();
        answered = Some(response);
        if status.is_success() {
            Ok(())
        } else {
            Err(Error::precondition(format!("the request was answered with {status}")))
        }
    };
    let outcome = access.admin(call, work).await;
    match (answered, outcome) {
        (Some(response), _) => response,
        (None, Err(error)) => Reply::error(&error).into_response(),
        (None, Ok(())) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Describes the store: its collections, and jobs.
async fn overview(
    State(backups): Shared<BackupService>,
    grant: Option<Extension<KeyGrant>>,
) -> Reply {
    let described = async {
        let store = backups.store()?;
        let sees = |name: &str| grant.as_ref().is_none_or(|grant| grant.sees_collection(name));
        let mut collections = store.collections().await?;
        collections.retain(|stored| sees(&stored.collection));
        let mut jobs = backups.jobs();
        jobs.retain(|job| sees(job.request.collection()));
        let jobs: Vec<Value> = jobs.iter().map(describe_job).collect();
        let body = json!({ "store": store.shown(), "collections": collections, "jobs": jobs });
        Ok(Reply::json(body.to_string()))
    };
    Reply::of(described.await)
}

async fn job(
    State(backups): Shared<BackupService>,
    Path(job): Path<u64>,
    grant: Option<Extension<KeyGrant>>,
) -> Reply {
    let found = backups.job(job).and_then(|job| {
        if grant.is_some_and(|grant| !grant.sees_collection(job.request.collection())) {
            // Numbers can be guessed, so the error does not name the collection.
            let number = job.number;
            return Err(Error::denied(format!(
                "the key may not use the collection of job {number}"
            )));
        }
        Ok(Reply::json(describe_job(&job).to_string()))
    });
    Reply::of(found)
}

/// Returns the JSON of a job: its state, its progress in bytes, and its report or error.
fn describe_job(job: &BackupJob) -> Value {
    let BackupJob { number, request, state, progress } = job;
    let mut body = json!({
        "job": number,
        "work": request.work(),
        "collection": request.collection(),
        "bytes_total": progress.bytes_total(),
        "bytes_done": progress.bytes_done(),
        "bytes_moved": progress.bytes_moved(),
    });
    match state {
        BackupJobState::Waiting => body["state"] = json!("waiting"),
        BackupJobState::Running => body["state"] = json!("running"),
        BackupJobState::Ended(Ok(report)) => {
            body["state"] = json!("done");
            body["report"] = report.clone();
        }
        BackupJobState::Ended(Err(error)) => {
            body["state"] = json!("failed");
            body["error"] = json!(error.message());
        }
    }
    body
}

async fn list(State(backups): Shared<BackupService>, Path(collection): Path<String>) -> Reply {
    let listed = async {
        let collection = backups.resolve(&collection)?;
        let stored = backups.lists(&collection).await?;
        let listed: Vec<Value> = stored.lists.iter().map(describe).collect();
        let body = json!({
            "collection": collection,
            "backups": listed,
            "unreadable": stored.unreadable,
        });
        Ok(Reply::json(body.to_string()))
    };
    Reply::of(listed.await)
}

fn describe(list: &BackupList) -> Value {
    json!({
        "backup": list.id,
        "created": list.id.created().format("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "points": list.points,
        "files": list.files.len(),
        "bytes": list.bytes(),
    })
}

/// Reads a JSON body; an empty one is the default.
async fn parse<T: DeserializeOwned>(body: Body) -> Result<T> {
    let body = in_time(to_bytes(body, BODY_BYTES_MAX), BODY_WAIT_MAX).await?;
    let body = body.map_err(|error| {
        Error::too_large(format!("the body has more than {BODY_BYTES_MAX} bytes"))
            .with_source(error)
    })?;
    let text: &[u8] = if body.is_empty() { b"{}" } else { &body };
    serde_json::from_slice(text).map_err(|error| Error::invalid("the body").caused_by(error))
}

/// Waits for a body.
///
/// # Errors
/// `ClientTimeout` if it does not arrive within `wait`.
async fn in_time<T>(arrival: impl Future<Output = T>, wait: Duration) -> Result<T> {
    tokio::time::timeout(wait, arrival).await.map_err(|_| {
        let text = format!("the body did not arrive within {} s", wait.as_secs_f32());
        Error::new(ErrorKind::ClientTimeout, text)
    })
}

/// Queues a request and answers with the job's number.
fn submit(backups: &BackupService, request: BackupRequest) -> Result<Reply> {
    let number = backups.submit(request)?.number;
    Ok(Reply::json(json!({ "job": number }).to_string()).with_status(StatusCode::ACCEPTED))
}

async fn create(
    State(backups): Shared<BackupService>,
    Path(collection): Path<String>,
    body: Body,
) -> Reply {
    let queued = async {
        let CreateBackup { full } = parse(body).await?;
        backups.store()?;
        // An unknown collection is an error at once.
        let collection = backups.registry()?.get(&collection)?.name().to_owned();
        let extent = if full { BackupExtent::All } else { BackupExtent::Missing };
        submit(&backups, BackupRequest::Backup { collection, extent })
    };
    Reply::of(queued.await)
}

async fn remove(
    State(backups): Shared<BackupService>,
    Path((collection, backup)): Path<(String, String)>,
) -> Reply {
    let queued = || {
        let collection = backups.resolve(&collection)?;
        submit(&backups, BackupRequest::Delete { collection, backup: backup.parse()? })
    };
    Reply::of(queued())
}

async fn verify(
    State(backups): Shared<BackupService>,
    Path(collection): Path<String>,
    body: Body,
) -> Reply {
    let queued = async {
        let ChosenBackup { backup } = parse(body).await?;
        let collection = backups.resolve(&collection)?;
        submit(&backups, BackupRequest::Verify { collection, backup })
    };
    Reply::of(queued.await)
}

async fn prune(
    State(backups): Shared<BackupService>,
    Path(collection): Path<String>,
    body: Body,
) -> Reply {
    let queued = async {
        let PruneBackups { keep, keep_days } = parse(body).await?;
        let age_max = keep_days.map(age_of).transpose()?;
        let policy = RetentionPolicy { newest: keep, age_max };
        policy.check()?;
        let collection = backups.resolve(&collection)?;
        submit(&backups, BackupRequest::Prune { collection, policy })
    };
    Reply::of(queued.await)
}

fn age_of(days: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(days * DAY_SECONDS)
        .map_err(|error| Error::invalid(format!("\"keep_days\" {days}")).caused_by(error))
}

async fn restore(
    State(backups): Shared<BackupService>,
    Path(collection): Path<String>,
    grant: Option<Extension<KeyGrant>>,
    body: Body,
) -> Reply {
    let queued = async {
        let RestoreBackup { backup, to, replace } = parse(body).await?;
        let collection = backups.resolve(&collection)?;
        let name = to.unwrap_or_else(|| collection.clone());
        check_seen(grant.as_deref(), &name)?;
        let target = RestoreTarget { name, replaces: replace };
        submit(&backups, BackupRequest::Restore { collection, backup, target })
    };
    Reply::of(queued.await)
}

async fn clone(
    State(backups): Shared<BackupService>,
    Path(collection): Path<String>,
    grant: Option<Extension<KeyGrant>>,
    body: Body,
) -> Reply {
    let queued = async {
        let CloneCollection { to } = parse(body).await?;
        check_seen(grant.as_deref(), &to)?;
        let collection = backups.registry()?.get(&collection)?.name().to_owned();
        submit(&backups, BackupRequest::Clone { collection, to })
    };
    Reply::of(queued.await)
}

/// Checks that the request's key may use a collection that the path does not name.
fn check_seen(grant: Option<&KeyGrant>, name: &str) -> Result<()> {
    if grant.is_none_or(|grant| grant.sees_collection(name)) {
        Ok(())
    } else {
        Err(Error::denied(format!("the key may not use the collection {name:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_does_not_arrive_is_not_awaited_for_ever() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let arrival = std::future::pending::<()>();
        let error = runtime.block_on(in_time(arrival, Duration::from_millis(10))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ClientTimeout);
    }
}
