//! Qdrant's routes of snapshots over the backups of a cluster's collections. A snapshot stays in
//! the store of backups; it is not downloaded as one file.

use std::sync::Arc;
use std::time::Duration;

use api_qdrant::{SnapshotDescription, json, named_snapshot, snapshot_id};
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use cluster_node::backups::{BackupSet, ClusterBackups};
use cluster_node::{CatalogChanges, CollectionChanges, CollectionRecord};
use search::registry::check_name;
use serde::Deserialize;

use super::call::RootContext;
use super::collections;
use super::envelope::RootAnswer;
use super::state::RootState;

/// Longest wait for a snapshot or a recovery. The work continues after that.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// Body of a recovery.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecoverRequest {
    /// Name of a snapshot of this cluster.
    location: String,
    /// Without effect, because the new collection has no replicas yet.
    #[serde(rename = "priority", default)]
    _priority: Option<RecoverPriority>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RecoverPriority {
    NoSync,
    Snapshot,
    Replica,
}

/// Lists the snapshots of a collection, which may be gone.
pub(super) async fn list(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    let backups = backups(&context)?;
    let name = source(&context)?;
    let sets = backups.list(&name).await?;
    if sets.is_empty() {
        context.state.record(&name)?;
    }
    RootAnswer::of(&sets.iter().map(describe).collect::<Vec<SnapshotDescription>>())
}

/// Makes a snapshot of a collection.
pub(super) async fn create(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    let backups = backups(&context)?;
    let record = context.state.record(&context.collection)?;
    let work = async move { backups.create(&record).await };
    match finished(&context, work).await? {
        Some(set) => RootAnswer::of(&describe(&set)),
        None => accepted(),
    }
}

/// Removes a snapshot.
pub(super) async fn remove(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    let backups = backups(&context)?;
    let name = source(&context)?;
    let id = snapshot_id(&name, &context.item)?;
    let work = async move { backups.delete(&name, &id).await };
    match finished(&context, work).await? {
        Some(()) => RootAnswer::of(&true),
        None => accepted(),
    }
}

/// Makes a new collection from a snapshot.
pub(super) async fn recover(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    // The wait for holders begins after a recovery that takes longer than other requests may.
    let context = context.with_time(WAIT_MAX);
    let backups = backups(&context)?;
    let request: RecoverRequest = json::parse(&body)?;
    let set = find(&context, &backups, &request.location).await?;
    let name = context.collection.clone();
    check_name(&name)?;
    check_free(&context, &name)?;
    let state = context.state.clone();
    let work = async move {
        let record = backups.restore(&set, &name).await?;
        // First, so that the collection never appears without them.
        change_settings(&state, &record, &set.changes).await?;
        let created = state.catalog.create(&record).await;
        // After an error that may pass, the record may be there.
        let is_refused = match &created {
            Ok(is_created) => !is_created,
            Err(error) => !error.is_retryable(),
        };
        if is_refused {
            let none = CollectionChanges::default();
            if let Err(error) = change_settings(&state, &record, &none).await {
                tracing::warn!(collection = name, %error, "settings of no collection stay");
            }
        }
        if !created? {
            return Err(taken(&name));
        }
        Ok(record)
    };
    match finished(&context, work).await? {
        Some(record) => {
            collections::wait_for_holders(&context, &record).await?;
            RootAnswer::of(&true)
        }
        None => accepted(),
    }
}

/// Sets the changes that a collection has besides its record.
async fn change_settings(
    state: &RootState,
    record: &CollectionRecord,
    changes: &CollectionChanges,
) -> Result<()> {
    let change = |all: &CatalogChanges| {
        all.with_collection(&record.id, |own| {
            own.clone_from(changes);
            Ok(())
        })
    };
    state.catalog.change(&change).await.map(drop)
}

/// Returns the backup of the snapshot `location`, which the request's key may see.
async fn find(
    context: &RootContext,
    backups: &ClusterBackups,
    location: &str,
) -> Result<Arc<BackupSet>> {
    let Some((collection, id)) = named_snapshot(location) else {
        return Err(Error::invalid(
            "location: a cluster recovers its own snapshots, by their names (NAME-ID.snapshot), as GET \
             /collections/NAME/snapshots lists them",
        ));
    };
    check_name(collection)?;
    if !context.sees(collection) {
        return Err(Error::not_found(format!("there is no snapshot {location:?}")));
    }
    backups.get(collection, &id).await.map(Arc::new)
}

fn check_free(context: &RootContext, name: &str) -> Result<()> {
    let view = context.state.loaded_view()?;
    if view.collections.contains_key(name) || view.changes.aliases.contains_key(name) {
        return Err(taken(name));
    }
    Ok(())
}

fn taken(name: &str) -> Error {
    Error::new(
        ErrorKind::AlreadyExists,
        format!(
            "there is a collection or an alias \"{name}\" already: recover the snapshot under another name, and move \
             the alias that clients use"
        ),
    )
}

/// Returns the collection of the request, of which there may be nothing but snapshots.
fn source(context: &RootContext) -> Result<String> {
    check_name(&context.collection)?;
    let view = context.state.loaded_view()?;
    let record: Option<&CollectionRecord> = view.collection(&context.collection);
    Ok(record.map_or_else(|| context.collection.clone(), |record| record.name.clone()))
}

fn backups(context: &RootContext) -> Result<Arc<ClusterBackups>> {
    let backups = context.state.backups.clone();
    backups.ok_or_else(|| Error::precondition("this node has no store of backups"))
}

fn describe(set: &BackupSet) -> SnapshotDescription {
    SnapshotDescription::new(&set.record.name, &set.id, set.bytes())
}

/// Runs `work` to its end, even if the client disconnects. Returns `None` at once if the client
/// does not wait.
///
/// # Errors
/// Errors of `work`; `DeadlineExceeded` if it takes longer than the client's time, and continues.
async fn finished<T: Send + 'static>(
    context: &RootContext,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<Option<T>> {
    let collection = context.collection.clone();
    let task = tokio::spawn(async move {
        let done = work.await;
        if let Err(error) = &done {
            tracing::warn!(collection, %error, "work on a snapshot has failed");
        }
        done
    });
    if !context.params.wait {
        return Ok(None);
    }
    let limit = context.params.timeout.unwrap_or(WAIT_MAX).min(WAIT_MAX);
    match tokio::time::timeout(limit, task).await {
        Ok(Ok(done)) => done.map(Some),
        Ok(Err(_)) => Err(Error::unavailable("the work was given up; try again")),
        Err(_) => Err(Error::deadline(
            "it takes longer than the time limit and continues; list the snapshots to see its end",
        )),
    }
}

/// Returns the answer to a request whose work continues.
fn accepted() -> Result<RootAnswer> {
    RootAnswer::of(&true).map(|answer| RootAnswer { continues: true, ..answer })
}
