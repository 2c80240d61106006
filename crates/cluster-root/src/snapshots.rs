//! Qdrant's routes of snapshots over the backups of a cluster's collections. A snapshot stays in
//! the store of backups. It is downloaded as an archive in the format of one server. An archive
//! that is uploaded, or read from a location, becomes a new collection.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use api_images::ImageSettings;
use api_qdrant::{
    PieceWriter, SnapshotDescription, json, named_snapshot, refuse, snapshot_id, snapshot_response,
    upload_limits, uploaded_pieces,
};
use axum::response::{IntoResponse, Response};
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use cluster_node::backups::{BackupSet, ClusterBackups, ImagesCheck, ImportTarget};
use cluster_node::{CatalogChanges, CollectionCatalog, CollectionChanges, CollectionRecord};
use search::registry::check_name;
use serde::Deserialize;
use tokio::sync::oneshot;
use transport::access::{AdminRequest, Caller};
use transport::result_stream::result_channel;
use transport::upload::{UploadPieces, upload_channel};

use super::call::RootContext;
use super::collections::{self, HOLDERS_WAIT_MAX};
use super::envelope::RootAnswer;
use super::snapshot_call::{RecoverPriority, SnapshotCall, TransferParams, check_checksum};
use super::snapshot_rights;
use super::state::RootState;

/// Longest wait for a snapshot or a recovery. The work continues after that. A second recovery
/// under the same name may begin then. Each writes a collection with an id of its own. The record
/// of the name is created only if it is absent, and the data of the later recovery is removed after
/// an hour.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// Body of a recovery.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecoverRequest {
    /// Name of a snapshot of this cluster, or a URL of an archive.
    location: String,
    /// Without effect, because the new collection has no replicas yet.
    #[serde(rename = "priority", default)]
    _priority: Option<RecoverPriority>,
    #[serde(default)]
    checksum: Option<String>,
    #[serde(default)]
    api_key: Option<String>,
}

/// Lists the snapshots of a collection, which may be removed. If its name has become an alias, the
/// snapshots of both collections are listed, oldest first.
pub(super) async fn list(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    let backups = backups(&context)?;
    let name = source(&context)?;
    let mut sets = backups.list(&name).await?;
    if name != context.collection && context.sees(&context.collection) {
        sets.extend(backups.list(&context.collection).await?);
        // Clients take the last one for the newest.
        sets.sort_by(|one, other| one.id.cmp(&other.id));
    }
    if sets.is_empty() {
        context.state.record(&name)?;
    }
    RootAnswer::of(&sets.iter().map(describe).collect::<Vec<SnapshotDescription>>())
}

/// Makes a snapshot of a collection.
pub(super) async fn create(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    let backups = backups(&context)?;
    let record = context.newest_record().await?;
    let work = async move { backups.create(&record).await };
    match finished(&context, work).await? {
        Some(set) => RootAnswer::of(&describe(&set)),
        None => accepted(),
    }
}

/// Removes a snapshot.
pub(super) async fn remove(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    let backups = backups(&context)?;
    let name = source_of_item(&context)?;
    let id = snapshot_id(&name, &context.item)?;
    let work = async move { backups.delete(&name, &id).await };
    match finished(&context, work).await? {
        Some(()) => RootAnswer::of(&true),
        None => accepted(),
    }
}

/// Sends a snapshot as one archive, in the format of one server's snapshots.
pub(super) async fn download(call: SnapshotCall) -> Response {
    let started = Instant::now();
    match Box::pin(begin_download(call)).await {
        Ok(response) => response,
        Err(error) => refuse(&error, started.elapsed()).into_response(),
    }
}

/// Makes an archive of a snapshot, and returns a response that sends it.
async fn begin_download(call: SnapshotCall) -> Result<Response> {
    let context = call.context;
    let backups = backups(&context)?;
    let name = source_of_item(&context)?;
    let id = snapshot_id(&name, &context.item)?;
    let set = backups.get(&name, &id).await?;
    let exported = backups.export(&set).await?;
    let (writer, results) = result_channel(Arc::new(AtomicBool::new(false)));
    let (announce, length) = oneshot::channel();
    let send = move || {
        os::thread::enter_low_priority("sending a snapshot");
        let mut pieces = PieceWriter::new(&writer);
        let begin = |bytes| {
            // The client may have disconnected.
            let _ = announce.send(bytes);
        };
        let sent = exported.write(begin, &mut pieces);
        if let Err(error) = &sent {
            tracing::warn!(collection = name, backup = %id, %error, "a download of a snapshot has ended");
        }
        writer.end(sent);
    };
    os::thread::spawn("snapshot", send)?;
    results.begun().await?;
    let length = length
        .await
        .map_err(|_| Error::internal("the thread of a snapshot ended without an archive"))?;
    Ok(snapshot_response(results, length, &context.item))
}

/// Makes a new collection from the archive in the body.
pub(super) async fn upload(call: SnapshotCall) -> Result<RootAnswer> {
    let SnapshotCall { context, params, headers, header_timeout, body, .. } = call;
    // The wait for holders begins after an upload that takes longer than other requests may.
    let context = context.with_time(WAIT_MAX);
    let limits = upload_limits(context.state.requests.limits.client_timeout);
    // Until the body is complete, its bytes do not belong to a next request.
    let receiving = header_timeout.complete();
    let (target, backups) = match new_collection(&context, &params).await {
        Ok(new) => new,
        Err(error) => {
            // A client that reads only after sending gets the error.
            UploadPieces::raw(body).discard(limits.piece_timeout).await;
            return Err(error);
        }
    };
    let pieces = uploaded_pieces(&headers, body, limits).await?;
    let (sender, reader, _) = upload_channel(None);
    tokio::spawn(async move {
        sender.feed(pieces, limits).await;
        drop(receiving);
    });
    let check = images_check(&context);
    let state = context.state.clone();
    let work = async move {
        let imported = backups.import(&target, check, move || Ok(reader)).await?;
        publish(&state, &imported.record, &imported.changes).await?;
        Ok(imported.record)
    };
    created(&context, work).await
}

/// Returns the collection that an upload creates, and the backups that take it.
async fn new_collection(
    context: &RootContext,
    params: &TransferParams,
) -> Result<(ImportTarget, Arc<ClusterBackups>)> {
    let target = params.target(&context.collection)?;
    context.check_creates()?;
    check_free(context, &target.name).await?;
    Ok((target, backups(context)?))
}

/// Makes a new collection from a snapshot of this cluster, or from an archive at a location.
pub(super) async fn recover(call: SnapshotCall) -> Result<RootAnswer> {
    let SnapshotCall { context, params, headers, peer, body, .. } = call;
    // The wait for holders begins after a recovery that takes longer than other requests may.
    let context = context.with_time(WAIT_MAX);
    let requests = &context.state.requests;
    requests.check_room()?;
    let body = requests.read_json_body(&headers, body).await?;
    let _admitted = requests.admit()?;
    let request: RecoverRequest = json::parse(&body)?;
    check_checksum(request.checksum.as_deref())?;
    if request.api_key.is_some() {
        return Err(Error::unimplemented(
            "\"api_key\" is not supported; download the snapshot and send it to snapshots/upload",
        ));
    }
    let target = params.target(&context.collection)?;
    check_free(&context, &target.name).await?;
    let backups = backups(&context)?;
    let state = context.state.clone();
    if !request.location.contains("://") {
        if params.names_shards() {
            return Err(Error::invalid(
                "shard_number and replication_factor are for archives; a snapshot of a cluster keeps its shards",
            ));
        }
        let set = find(&context, &backups, &request.location).await?;
        let work = async move {
            let record = backups.restore(&set, &target.name).await?;
            publish(&state, &record, &set.changes).await?;
            Ok(record)
        };
        return created(&context, work).await;
    }
    let locations = context.state.locations.as_ref().ok_or_else(|| {
        Error::precondition("this node recovers no snapshots from a location; upload the snapshot")
    })?;
    // The location may be any file of this machine.
    let call = AdminRequest {
        calls: "snapshots are recovered from a location",
        action: "recover snapshot",
        subject: &context.collection,
        caller: Caller { peer, headers: &headers },
    };
    let options = locations.options.clone();
    let check = images_check(&context);
    let work = async move {
        let imported = backups.import_from(&target, check, request.location, options).await?;
        Box::pin(publish(&state, &imported.record, &imported.changes)).await?;
        Ok(imported.record)
    };
    Box::pin(locations.access.admin(call, created(&context, work))).await
}

/// Runs the work that makes a collection, and waits until each shard has a holder.
async fn created(
    context: &RootContext,
    work: impl Future<Output = Result<CollectionRecord>> + Send + 'static,
) -> Result<RootAnswer> {
    let Some(record) = finished(context, work).await? else { return accepted() };
    // Holders read the whole log first, so the wait is longer than that for an empty collection.
    let until = context.deadline.max(Instant::now() + HOLDERS_WAIT_MAX);
    collections::wait_for_holders_until(context, &record, until).await?;
    RootAnswer::of(&true)
}

/// Returns the check of an archive by the rights of the request's key.
fn images_check(context: &RootContext) -> ImagesCheck {
    let caller = context.clone();
    Box::new(move |images: Option<&ImageSettings>| match caller.grant() {
        Some(grant) => snapshot_rights::check_model(&caller.state, grant, images),
        None => Ok(()),
    })
}

/// Adds a collection, whose data is written, to the catalog.
///
/// # Errors
/// `AlreadyExists` if the name was taken meanwhile; as [`check_data`].
async fn publish(
    state: &RootState,
    record: &CollectionRecord,
    changes: &CollectionChanges,
) -> Result<()> {
    // First, so that the collection never appears without them.
    change_settings(state, record, changes).await?;
    let catalog = &*state.catalog;
    let created = create_with_data(catalog, record, || check_data(state, record)).await;
    // After an error that may pass, the record may be there.
    let is_refused = match &created {
        Ok(is_created) => !is_created,
        Err(error) => !error.is_retryable(),
    };
    if is_refused {
        let none = CollectionChanges::default();
        if let Err(error) = change_settings(state, record, &none).await {
            tracing::warn!(collection = record.name, %error, "the settings of a collection that was not created stay");
        }
    }
    if created? { Ok(()) } else { Err(name_exists(&record.name)) }
}

/// Creates the record of a collection whose data is written. Returns false if there is one of its
/// name. `check` checks that the data is there, as [`check_data`] does.
///
/// # Errors
/// Errors of `check` and of the catalog. If the data was removed, there is no record either.
async fn create_with_data<F>(
    catalog: &dyn CollectionCatalog,
    record: &CollectionRecord,
    check: impl Fn() -> F,
) -> Result<bool>
where
    F: Future<Output = Result<()>>,
{
    check().await?;
    let created = catalog.create(record).await;
    // After an error that may pass, the record may be there. An answer that came late is such an
    // error.
    let may_be_there = match &created {
        Ok(is_created) => *is_created,
        Err(error) => error.is_retryable(),
    };
    if may_be_there && let Err(error) = check().await {
        // This node may have been stopped since the first check. The name may belong to another
        // collection by now.
        if !error.is_retryable() {
            catalog.remove_own(record).await?;
        }
        return Err(error);
    }
    // From here on, the record keeps the data.
    created
}

/// Checks that the data of a new collection is there.
///
/// # Errors
/// `FailedPrecondition` if it was removed, because this node was stopped for more than an hour; the
/// store's error.
async fn check_data(state: &RootState, record: &CollectionRecord) -> Result<()> {
    match &state.backups {
        Some(backups) => backups.check_prepared(record).await,
        None => Ok(()),
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
            "location: use the name of a snapshot of this cluster (NAME-ID.snapshot), as GET \
             /collections/NAME/snapshots lists it, or file:///PATH, http://HOST/PATH or a URL of a store",
        ));
    };
    check_name(collection)?;
    if !context.sees(collection) {
        return Err(Error::not_found(format!("there is no snapshot {location:?}")));
    }
    backups.get(collection, &id).await.map(Arc::new)
}

async fn check_free(context: &RootContext, name: &str) -> Result<()> {
    // Another root may have removed the collection or the alias a moment ago.
    context.state.see_newest(name, context.deadline).await?;
    let view = context.state.loaded_view()?;
    if view.changes.aliases.contains_key(name) {
        context.state.read_again(context.deadline).await;
    }
    let view = context.state.loaded_view()?;
    if view.collections.contains_key(name) || view.changes.aliases.contains_key(name) {
        return Err(name_exists(name));
    }
    Ok(())
}

fn name_exists(name: &str) -> Error {
    Error::new(
        ErrorKind::AlreadyExists,
        format!(
            "there is a collection or an alias \"{name}\" already: recover the snapshot under another name, and move \
             the alias that clients use"
        ),
    )
}

/// Returns the name of the request's collection. The collection may be removed and still have
/// snapshots.
fn source(context: &RootContext) -> Result<String> {
    check_name(&context.collection)?;
    let view = context.state.loaded_view()?;
    let record: Option<&CollectionRecord> = view.collection(&context.collection);
    Ok(record.map_or_else(|| context.collection.clone(), |record| record.name.clone()))
}

/// Returns the collection of the snapshot in the path. The name in the path may be an alias that
/// has the name of a deleted collection, whose snapshots stay.
fn source_of_item(context: &RootContext) -> Result<String> {
    let known = source(context)?;
    let requested = &context.collection;
    let is_of_deleted = is_snapshot_of(&context.item, requested) && context.sees(requested);
    Ok(if is_of_deleted { requested.clone() } else { known })
}

/// Returns true if `item` is the name of a snapshot of `collection`.
fn is_snapshot_of(item: &str, collection: &str) -> bool {
    named_snapshot(item).is_some_and(|(found, _)| found == collection)
}

fn backups(context: &RootContext) -> Result<Arc<ClusterBackups>> {
    let backups = context.state.backups.clone();
    backups.ok_or_else(|| {
        Error::precondition("this node has no store of backups; send the request to another root")
    })
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
        Ok(Err(_)) => Err(Error::unavailable("the work was stopped; try again")),
        Err(_) => Err(Error::deadline(
            "it takes longer than the time limit and continues; list the snapshots to see its end",
        )),
    }
}

/// Returns the answer to a request whose work continues.
fn accepted() -> Result<RootAnswer> {
    RootAnswer::of(&true).map(|answer| RootAnswer { continues: true, ..answer })
}

#[cfg(test)]
mod tests {
    use api_qdrant::BoxFuture;
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;

    /// A catalog with the outcome of its creations, and its calls.
    struct TestCatalog {
        created: Result<bool>,
        calls: Mutex<Vec<&'static str>>,
    }

    impl CollectionCatalog for TestCatalog {
        fn create<'a>(&'a self, _: &'a CollectionRecord) -> BoxFuture<'a, Result<bool>> {
            self.calls.lock().push("create");
            let created = self.created.clone();
            Box::pin(async move { created })
        }

        fn remove<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<bool>> {
            self.calls.lock().push("remove");
            Box::pin(async { Ok(true) })
        }

        fn remove_own<'a>(&'a self, _: &'a CollectionRecord) -> BoxFuture<'a, Result<bool>> {
            self.calls.lock().push("remove_own");
            Box::pin(async { Ok(true) })
        }

        fn is_current<'a>(&'a self, _: &'a CollectionRecord) -> BoxFuture<'a, Result<bool>> {
            Box::pin(async { Ok(true) })
        }

        fn change<'a>(
            &'a self,
            _: &'a (dyn Fn(&CatalogChanges) -> Result<CatalogChanges> + Send + Sync),
        ) -> BoxFuture<'a, Result<u64>> {
            self.calls.lock().push("change");
            Box::pin(async { Ok(1) })
        }

        fn is_loaded(&self) -> bool {
            true
        }

        fn read_again(&self) -> BoxFuture<'_, ()> {
            Box::pin(async {})
        }
    }

    #[tokio::test]
    async fn a_record_without_its_data_does_not_stay() {
        let record = CollectionRecord {
            name: "c".to_owned(),
            id: "1".to_owned(),
            shards: 1,
            copies: 1,
            create: Value::Null,
            images: None,
        };
        let outcome = async |created: Result<bool>, checks: [Result<()>; 2]| {
            let catalog = TestCatalog { created, calls: Mutex::default() };
            let checks = Mutex::new(Vec::from(checks));
            let check = || std::future::ready(checks.lock().remove(0));
            let result = create_with_data(&catalog, &record, check).await;
            (result.map_err(|error| error.kind()), catalog.calls.into_inner())
        };
        let lost = || Error::precondition("the data was removed");
        let unsure = || Error::unavailable("the store does not answer");
        let (is_lost, is_unsure) = (Err(lost().kind()), Err(unsure().kind()));
        let sound = outcome(Ok(true), [Ok(()), Ok(())]).await;
        assert_eq!(sound, (Ok(true), vec!["create"]));
        assert_eq!(outcome(Ok(true), [Err(lost()), Ok(())]).await, (is_lost, vec![]));
        let removed = vec!["create", "remove_own"];
        assert_eq!(outcome(Ok(true), [Ok(()), Err(lost())]).await, (is_lost, removed.clone()));
        let late = outcome(Err(unsure()), [Ok(()), Err(lost())]).await;
        assert_eq!(late, (is_lost, removed), "the record may be there");
        // In doubt the record stays, and so does that of another collection.
        let doubt = outcome(Ok(true), [Ok(()), Err(unsure())]).await;
        assert_eq!(doubt, (is_unsure, vec!["create"]));
        let late = outcome(Err(unsure()), [Ok(()), Ok(())]).await;
        assert_eq!(late, (is_unsure, vec!["create"]));
        let taken = outcome(Ok(false), [Ok(()), Err(lost())]).await;
        assert_eq!(taken, (Ok(false), vec!["create"]));
    }

    #[test]
    fn snapshot_names_have_their_collection() {
        let item = "docs-2-20261129T164317923Z-00e33b68.snapshot";
        assert!(is_snapshot_of(item, "docs-2"));
        assert!(!is_snapshot_of(item, "docs"));
        assert!(!is_snapshot_of("docs-2", "docs-2"));
    }
}
