//! Writes: checked, split by shard, and sent to the owners.
//!
//! Only operations by ids go to the log. A holder may make some operations twice after a restart.
//! Only operations by ids then lead to the same points. `by_filter` looks up the points of a
//! filter.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api_qdrant::json::{self, UpdateBatch, UpdateOperation};
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use cluster_node::{
    ClusterView, CollectionRecord, NodeInfo, Owner, ShardKey, WaitingMemory, check_known_ids,
};
use search::points::PointId;
use search::registry::CollectionSettings;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::call::RootContext;
use super::envelope::RootAnswer;
use super::removed_originals::RemovedOriginals;
use super::split::{self, ShardOperations};
use super::split_changes::{self, ChangeStep, ChangeSteps};
use super::state::RootState;
use super::wire::{OwnerReply, timeout_ms, write_node};
use super::{by_filter, check, collections, payload_sizes};

/// Bytes of operations after which the next request to the owner begins.
const WRITE_BYTES_MAX: usize = 4 << 20;
/// Number of operations after which the next request to the owner begins. A log entry has at most
/// 65,536.
const WRITE_OPERATIONS_MAX: usize = 1 << 14;
/// Maximum shards to which one request of a client writes at the same time.
const SHARDS_AT_ONCE_MAX: usize = 64;
/// Longest wait for a change of the view before the next request to an owner.
const OWNER_WAIT: Duration = Duration::from_millis(250);
/// Shortest time between two requests to an owner.
const OWNER_PAUSE: Duration = Duration::from_millis(20);
/// Retry advice for a write that no owner took in time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Kind of a change, as a batch names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeKind {
    Upsert,
    Delete,
    SetPayload,
    OverwritePayload,
    DeletePayload,
    ClearPayload,
    UpdateVectors,
}

impl ChangeKind {
    /// Returns the member of a batch that has a change of this kind.
    fn name(self) -> &'static str {
        match self {
            ChangeKind::Upsert => "upsert",
            ChangeKind::Delete => "delete",
            ChangeKind::SetPayload => "set_payload",
            ChangeKind::OverwritePayload => "overwrite_payload",
            ChangeKind::DeletePayload => "delete_payload",
            ChangeKind::ClearPayload => "clear_payload",
            ChangeKind::UpdateVectors => "update_vectors",
        }
    }

    /// Parses the body of a request for a change of this kind.
    fn parse(self, body: &[u8]) -> Result<UpdateOperation> {
        Ok(match self {
            ChangeKind::Upsert => UpdateOperation::Upsert(json::parse(body)?),
            ChangeKind::Delete => UpdateOperation::Delete(json::parse(body)?),
            ChangeKind::SetPayload => UpdateOperation::SetPayload(json::parse(body)?),
            ChangeKind::OverwritePayload => UpdateOperation::OverwritePayload(json::parse(body)?),
            ChangeKind::DeletePayload => UpdateOperation::DeletePayload(json::parse(body)?),
            ChangeKind::ClearPayload => UpdateOperation::ClearPayload(json::parse(body)?),
            ChangeKind::UpdateVectors => UpdateOperation::UpdateVectors(json::parse(body)?),
        })
    }
}

pub(super) async fn upsert(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    change(context, body, ChangeKind::Upsert).await
}

pub(super) async fn delete(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    change(context, body, ChangeKind::Delete).await
}

pub(super) async fn set_payload(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    change(context, body, ChangeKind::SetPayload).await
}

pub(super) async fn overwrite_payload(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    change(context, body, ChangeKind::OverwritePayload).await
}

pub(super) async fn delete_payload(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    change(context, body, ChangeKind::DeletePayload).await
}

pub(super) async fn clear_payload(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    change(context, body, ChangeKind::ClearPayload).await
}

pub(super) async fn update_vectors(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    change(context, body, ChangeKind::UpdateVectors).await
}

async fn change(context: RootContext, body: Bytes, kind: ChangeKind) -> Result<RootAnswer> {
    let record = context.state.record(&context.collection)?;
    let settings = collections::settings(&record)?;
    let shards = record.shards;
    let bytes = body.len();
    let old_holder = old_holder(&context.state);
    let prepare = move || split_change(&body, kind, &settings, shards, old_holder.as_deref());
    let steps = context.compute(bytes, prepare).await?;
    let _texts = reserve_texts(&context, bytes)?;
    let made = apply_steps(&context, record.clone(), steps).await;
    let entry = made.map_err(|error| unless_replaced(&context, &record, error))?;
    RootAnswer::of(&completed(entry))
}

/// Applies the changes of a batch in order. All are checked before the first is applied.
pub(super) async fn batch(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let record = context.state.record(&context.collection)?;
    let settings = collections::settings(&record)?;
    let shards = record.shards;
    let bytes = body.len();
    let old_holder = old_holder(&context.state);
    let prepare = move || split_batch(&body, &settings, shards, old_holder.as_deref());
    let (steps, count) = context.compute(bytes, prepare).await?;
    let _texts = reserve_texts(&context, bytes)?;
    let made = apply_steps(&context, record.clone(), steps).await;
    let entry = made.map_err(|error| unless_replaced(&context, &record, error))?;
    RootAnswer::of(&vec![completed(entry); count])
}

/// Returns [`ClusterView::old_holder`] of the current view.
fn old_holder(state: &RootState) -> Option<String> {
    state.view.current().old_holder().map(str::to_owned)
}

/// Checks that all search nodes know the ids of points that are written, changed or deleted.
///
/// # Errors
/// `Unavailable` for a number above 2^63 - 1 while a search node has an earlier version.
pub fn check_ids(state: &RootState, ids: &[PointId]) -> Result<()> {
    check_known_ids(ids, old_holder(state).as_deref())
}

/// Reserves memory for the texts of the operations of a request of `bytes` bytes, and for the parts
/// that are sent. They may wait for the owner of a shard until the timeout of the request.
fn reserve_texts(context: &RootContext, bytes: usize) -> Result<WaitingMemory> {
    context.state.waiting_writes.reserve(2 * bytes as u64)
}

/// Returns the error of a write to the collection of `record`. If another root has removed it and
/// created one of the same name, this root has seen that late, and the client writes again.
fn unless_replaced(context: &RootContext, record: &CollectionRecord, error: Error) -> Error {
    let is_other = |now: Arc<CollectionRecord>| now.id != record.id;
    let is_replaced = error.kind() == ErrorKind::NotFound
        && context.state.record(&context.collection).is_ok_and(is_other);
    if !is_replaced {
        return error;
    }
    let message = "the collection was removed and created again meanwhile; send the write again";
    Error::unavailable(message).with_retry_after(RETRY_AFTER)
}

/// Returns the JSON of the outcome of a change. `entry` is the number of a log entry, which grows
/// with every change of a shard.
fn completed(entry: u64) -> Value {
    json!({ "operation_id": entry, "status": "completed" })
}

/// Checks a change and splits it by shard. `old_holder` is that of [`old_holder`].
///
/// # Errors
/// `InvalidArgument` for a body that is not such a change, or one that the settings do not permit;
/// as [`check::operation`].
fn split_change(
    body: &[u8],
    kind: ChangeKind,
    settings: &CollectionSettings,
    shards: u32,
    old_holder: Option<&str>,
) -> Result<Vec<ChangeStep>> {
    check::depth(body)?;
    check::operation(kind.parse(body)?, settings, old_holder)?;
    let mut steps = ChangeSteps::default();
    match kind {
        ChangeKind::Upsert => split_changes::upsert(text(body)?, shards, steps.by_ids())?,
        ChangeKind::UpdateVectors => {
            split_changes::update_vectors(text(body)?, shards, steps.by_ids())?
        }
        kind => split_changes::selection(kind.name(), text(body)?, shards, &mut steps)?,
    }
    Ok(steps.into_list())
}

/// Checks all changes of a batch and splits them by shard. Returns the steps and the number of
/// changes.
///
/// # Errors
/// As [`split_change`], with the position of the change.
fn split_batch(
    body: &[u8],
    settings: &CollectionSettings,
    shards: u32,
    old_holder: Option<&str>,
) -> Result<(Vec<ChangeStep>, usize)> {
    check::depth(body)?;
    let request: UpdateBatch = json::parse(body)?;
    for (at, operation) in request.operations.into_iter().enumerate() {
        check::operation(operation, settings, old_holder)
            .map_err(|error| error.context(format_args!("operations[{at}]")))?;
    }
    let mut steps = ChangeSteps::default();
    let count = split_changes::batch(text(body)?, shards, &mut steps)?;
    Ok((steps.into_list(), count))
}

fn text(body: &[u8]) -> Result<&str> {
    std::str::from_utf8(body).map_err(|error| Error::invalid("the request's JSON").caused_by(error))
}

/// Applies the steps of a change, one after the other. Returns the largest number of a log entry
/// that has a part of the change; 0 without operations.
///
/// # Errors
/// `TooLarge` if a payload would become too large; that step is then not applied. The first error
/// of a shard; other shards may then have applied their operations.
async fn apply_steps(
    context: &RootContext,
    record: Arc<CollectionRecord>,
    steps: Vec<ChangeStep>,
) -> Result<u64> {
    let mut entry = 0;
    for step in steps {
        let made = match step {
            ChangeStep::ByIds(split) => {
                let partly = |error: Error| match entry {
                    0 => error,
                    _ => error.context("earlier changes of the batch were made, and then"),
                };
                payload_sizes::check(context, &record, &split).await.map_err(partly)?;
                let originals = RemovedOriginals::read(context, &record, &split).await;
                let originals = originals.map_err(partly)?;
                let made = deliver(context, &record, split).await?;
                originals.remove(&context.state, &record).await;
                made
            }
            ChangeStep::ByFilter(change) => by_filter::make(context, &record, change).await?,
        };
        entry = made.max(entry);
    }
    Ok(entry)
}

/// Writes operations to their shards, each shard's in order. Returns the largest number of a log
/// entry that has some of them; 0 without operations.
///
/// # Errors
/// The first error of a shard; other shards may then have applied their operations.
pub async fn deliver(
    context: &RootContext,
    record: &CollectionRecord,
    split: ShardOperations,
) -> Result<u64> {
    let writes = split.into_iter().map(|(shard, operations)| {
        let write = ShardWrite::of(context, record, shard);
        async move { write.run(&operations).await }
    });
    run_all(writes).await
}

/// Outcome of the writes to a shard, as [`deliver_each`] collects it.
struct EndedWrite {
    shard: u32,
    outcome: Result<u64>,
}

/// Writes operations to their shards, each shard's in order, at most [`SHARDS_AT_ONCE_MAX`] at the
/// same time. An error of a shard does not stop the writes to the others. Returns the errors by
/// shard. A shard with an error may have applied the first of its operations.
pub async fn deliver_each(
    context: &RootContext,
    record: &CollectionRecord,
    split: ShardOperations,
) -> BTreeMap<u32, Error> {
    let mut waiting = split.into_iter();
    let mut running = JoinSet::new();
    // An error stays if its write ends by a panic.
    let mut errors = BTreeMap::new();
    loop {
        while running.len() < SHARDS_AT_ONCE_MAX {
            let Some((shard, operations)) = waiting.next() else { break };
            let write = ShardWrite::of(context, record, shard);
            let early = format!("the write to shard {} ended early", write.key);
            errors.insert(shard, Error::internal(early));
            running.spawn(async move {
                let outcome = write.run(&operations).await;
                EndedWrite { shard, outcome }
            });
        }
        match running.join_next().await {
            Some(Ok(EndedWrite { shard, outcome: Ok(_) })) => drop(errors.remove(&shard)),
            Some(Ok(EndedWrite { shard, outcome: Err(error) })) => {
                errors.insert(shard, error);
            }
            Some(Err(_)) => {}
            None => return errors,
        }
    }
}

/// Runs writes to different shards at the same time, at most [`SHARDS_AT_ONCE_MAX`]. Returns the
/// largest number of a log entry; 0 without writes.
///
/// # Errors
/// The first error. No write starts after it, and the writes that run end first.
pub(super) async fn run_all(
    mut waiting: impl Iterator<Item = impl Future<Output = Result<u64>> + Send + 'static>,
) -> Result<u64> {
    let mut running = JoinSet::new();
    let mut entry = 0;
    let mut failure = None;
    loop {
        while running.len() < SHARDS_AT_ONCE_MAX && failure.is_none() {
            let Some(write) = waiting.next() else { break };
            running.spawn(write);
        }
        let Some(ended) = running.join_next().await else { break };
        match ended {
            Ok(Ok(written)) => entry = entry.max(written),
            Ok(Err(error)) => failure = failure.or(Some(error)),
            Err(error) => {
                let error = Error::internal("a write ended early").caused_by(error);
                failure = failure.or(Some(error));
            }
        }
    }
    failure.map_or(Ok(entry), Err)
}

/// Reason why a write is in no entry of the log and never will be. It is the source of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotWritten {
    /// The holders of the shard have full disks, or no owner took the write in time.
    Refused,
    /// Another reason, which says nothing about other writes to the shard.
    Prevented,
}

impl NotWritten {
    /// Returns the source of an error, if it is one of these.
    fn of(error: &Error) -> Option<NotWritten> {
        std::error::Error::source(error)?.downcast_ref::<NotWritten>().copied()
    }
}

impl fmt::Display for NotWritten {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            NotWritten::Refused => "the shard refused the write",
            NotWritten::Prevented => "the write was not made",
        })
    }
}

impl std::error::Error for NotWritten {}

/// Returns an error of a write that is in no entry and never will be. It says nothing about other
/// writes to the shard.
pub fn not_written(error: Error) -> Error {
    error.with_source(NotWritten::Prevented)
}

/// Returns an error of a write that its shard refused. [`is_shard_refusal`] holds for it.
pub fn shard_refusal(error: Error) -> Error {
    error.with_source(NotWritten::Refused)
}

/// Returns true if the error says that a shard refused a write. Its holders then have full disks,
/// or no owner took the write in time. Writes to other shards may succeed.
pub fn is_shard_refusal(error: &Error) -> bool {
    NotWritten::of(error) == Some(NotWritten::Refused)
}

/// Returns the node to which request number `turn` of a write goes. Requests to nodes that another
/// node named are not counted. Returns `None` if no node is known.
///
/// That is the owner. If this node cannot read etcd, another node may own the shard by now. After a
/// request to the known owner, further ones go to all nodes that write logs, in turn. Each of them
/// names the owner that it knows.
fn addressee(view: &ClusterView, key: &ShardKey, turn: usize) -> Option<String> {
    let known = view.owners.get(key).map(|owner| owner.node.clone());
    if view.stale.is_none() || (turn == 0 && known.is_some()) {
        return known;
    }
    let writers: Vec<&NodeInfo> = view.nodes.values().filter(|node| node.roles.ingest).collect();
    let at = turn.checked_rem(writers.len())?;
    writers.get(at).map(|node| node.name.clone())
}

/// Returns the refusal of a shard that has no owner, with the remedy.
fn without_owner(view: &ClusterView, key: &ShardKey) -> Error {
    Error::unavailable(match view.wanted_owner(key) {
        None => "the shard has no owner; start an ingest node".to_owned(),
        // A node that ended keeps its shards for about 10 s. If etcd lost its data, the log refuses
        // new owners for longer.
        Some(node) => format!(
            "the shard has no owner until node {node} takes it; if that takes longer than 30 s, the \
             log of this node has the reason"
        ),
    })
}

/// Returns true if the error of a write of one operation says that the operation is in no entry and
/// never will be.
pub fn was_not_written(error: &Error) -> bool {
    use ErrorKind::{InvalidArgument, NotFound, TooLarge};
    matches!(error.kind(), InvalidArgument | NotFound | TooLarge) || NotWritten::of(error).is_some()
}

/// Condition of the write of an image: no entry after the entry `after` has written the image.
#[derive(Clone, Copy, Debug)]
pub struct WriteCondition {
    /// Id of the image, a UUID.
    pub id: PointId,
    /// Entry that a lookup which did not find the image has certainly seen.
    pub after: u64,
}

/// Decision of an owner on a write.
#[derive(Clone, Copy, Debug)]
pub enum OwnerDecision {
    /// The entry that has the operations.
    Made(u64),
    /// The condition is not met. The operations are in no entry and never will be. Entries up to
    /// this one may have written the image.
    Conflict(u64),
}

/// Destination of writes: a shard, until a deadline.
pub struct ShardWrite {
    /// State of the routes.
    pub state: Arc<RootState>,
    /// The shard.
    pub key: ShardKey,
    /// Time at which no further request to an owner begins.
    pub deadline: Instant,
}

impl ShardWrite {
    /// Creates the destination of a request's writes to a shard of `record`.
    fn of(context: &RootContext, record: &CollectionRecord, shard: u32) -> ShardWrite {
        ShardWrite {
            state: context.state.clone(),
            key: ShardKey::new(&record.id, shard),
            deadline: context.deadline,
        }
    }

    /// Writes operations in order. Returns the number of the last log entry; 0 without operations.
    ///
    /// # Errors
    /// As [`ShardWrite::write`]. Earlier operations may then be written.
    pub(super) async fn run(&self, operations: &[String]) -> Result<u64> {
        let mut entry = 0;
        let chunks = split::chunks(operations, WRITE_BYTES_MAX).into_iter();
        let chunks: Vec<&[String]> =
            chunks.flat_map(|chunk| chunk.chunks(WRITE_OPERATIONS_MAX)).collect();
        for chunk in chunks {
            let written = self.write(&chunk.join(","), None).await;
            let written = written.and_then(|decision| match decision {
                OwnerDecision::Made(entry) => Ok(entry),
                OwnerDecision::Conflict(_) => {
                    Err(Error::internal("the owner refused a write without a condition"))
                }
            });
            entry = written.map_err(|error| {
                let error = match entry {
                    0 => error,
                    _ => error.context("a first part was made, and then"),
                };
                error.context(format_args!("shard {}", self.key))
            })?;
            self.state.record_written(&self.key, entry);
        }
        Ok(entry)
    }

    /// Writes one operation on a condition.
    ///
    /// # Errors
    /// `NotFound` if the collection was removed; the owner's refusal of the operation; the last
    /// refusal if no owner took it in time. [`was_not_written`] is true for these. Other errors if
    /// the outcome is unknown.
    pub async fn run_on_condition(
        &self,
        condition: WriteCondition,
        operation: &str,
    ) -> Result<OwnerDecision> {
        let decision = self.write(operation, Some(condition)).await;
        let decision =
            decision.map_err(|error| error.context(format_args!("shard {}", self.key)))?;
        // After a conflict, a lookup must see what the owner has seen.
        let (OwnerDecision::Made(entry) | OwnerDecision::Conflict(entry)) = decision;
        self.state.record_written(&self.key, entry);
        Ok(decision)
    }

    /// Sends operations to the owner until one has decided on them or the deadline has passed. They
    /// are sent again only if no owner wrote them.
    ///
    /// # Errors
    /// `NotFound` if the collection was removed; `StorageFull`, for which [`is_shard_refusal`]
    /// holds, if the disks of all holders are full; the last refusal, for which it holds too, if no
    /// owner wrote them in time; `Unavailable`, as of [`not_written`], if no time was left; the
    /// errors of [`write_node`].
    async fn write(
        &self,
        operations: &str,
        condition: Option<WriteCondition>,
    ) -> Result<OwnerDecision> {
        // Owner that the node of the last request named. The next request goes to it at once,
        // unless that node had been named in the same way.
        let mut hint: Option<String> = None;
        let mut refusal = None;
        let mut turn = 0;
        while Instant::now() < self.deadline {
            let view = self.state.view.current();
            if view.by_id(&self.key.collection).is_none() {
                return Err(Error::not_found("the collection was removed meanwhile"));
            }
            let is_hinted = hint.is_some();
            let owner = hint.take().or_else(|| {
                let next = addressee(&view, &self.key, turn);
                turn += 1;
                next
            });
            let node = owner.as_ref().and_then(|name| view.nodes.get(name));
            refusal = Some(match node {
                None => without_owner(&view, &self.key),
                Some(node) => match self.send(&node.address, operations, condition).await? {
                    OwnerReply::Made(entry) => return Ok(OwnerDecision::Made(entry)),
                    OwnerReply::Conflict(entry) => return Ok(OwnerDecision::Conflict(entry)),
                    // Disks do not get space soon, so the client decides on another try.
                    OwnerReply::Full(error) => return Err(shard_refusal(error)),
                    OwnerReply::NotMade { owner: named, error } => {
                        let other = named.filter(|named| *named != node.name && !is_hinted);
                        hint = other.filter(|named| view.nodes.contains_key(named));
                        error
                    }
                },
            });
            if hint.is_none() {
                self.wait(view.owners.get(&self.key)).await;
            }
        }
        let not_made =
            |error: Error| error.context("the write was not made").with_retry_after(RETRY_AFTER);
        Err(match refusal {
            Some(refusal) => shard_refusal(not_made(refusal)),
            // Earlier steps of the request took the time, so the shard refused nothing.
            None => not_written(not_made(Error::unavailable(
                "the request timed out before the write was sent",
            ))),
        })
    }

    /// Sends operations to a node that may own the shard.
    async fn send(
        &self,
        address: &str,
        operations: &str,
        condition: Option<WriteCondition>,
    ) -> Result<OwnerReply> {
        let collection = &self.key.collection;
        let shard = self.key.shard.0;
        let timeout_ms = timeout_ms(self.deadline);
        // Owners of earlier versions ignore the member.
        let condition = condition.map(|WriteCondition { id, after }| {
            format!("\"unless_written\":{},", json!({ "id": id, "after": after }))
        });
        let condition = condition.unwrap_or_default();
        let body = format!(
            "{{\"collection\":\"{collection}\",\"shard\":{shard},\"timeout_ms\":{timeout_ms},\
             {condition}\"operations\":[{operations}]}}"
        );
        let left = self.deadline.saturating_duration_since(Instant::now());
        write_node(&self.state.client, address, body.into(), left).await
    }

    /// Waits until the view names another owner than `known`, for at most [`OWNER_WAIT`].
    async fn wait(&self, known: Option<&Owner>) {
        let mut view = self.state.view.clone();
        let until = self.deadline.min(Instant::now() + OWNER_WAIT);
        let changed = async {
            tokio::time::sleep(OWNER_PAUSE).await;
            while view.current().owners.get(&self.key) == known {
                view.changed().await;
            }
        };
        // At the end of the time the same owner is asked again.
        let _ = tokio::time::timeout_at(until.into(), changed).await;
    }
}
