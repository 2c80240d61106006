//! Reads without ranking: by id, in the order of ids or of a field, counted, faceted.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api_qdrant::json;
use base::{Error, Result};
use bytes::Bytes;
use cluster_node::CollectionRecord;
use search::collection::IDS_MAX;
use search::points::PointId;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::call::RootContext;
use super::envelope::RootAnswer;
use super::fan_out::read_shards;
use super::merge::{self, CountedPoints, ShardResults};
use super::shard_read::{
    ReadBody, ReadPriority, ResultTexts, ShardAnswers, ShardRead, result_bytes,
};
use super::split::{self, IdsBody, RawMembers};

/// Maximum values of a facet that one shard counts. Counts of the collection are exact only if
/// every shard returns all of its values. Otherwise the answer is partial.
const FACET_VALUES_MAX: usize = 65_536;

/// Longest time of the second read of points that a holder does not have. The read fails if the
/// store does not answer.
const CONFIRMATION_MAX: Duration = Duration::from_secs(5);

/// Returns a read of all shards of a collection.
pub fn of_all(
    context: &RootContext,
    record: &Arc<CollectionRecord>,
    path: &'static str,
    body: Box<RawValue>,
) -> ShardRead {
    ShardRead {
        shards: (0..record.shards).collect(),
        record: record.clone(),
        path,
        body: ReadBody::Same(body),
        deadline: context.deadline,
        strong: context.params.strong,
        priority: ReadPriority::Client,
    }
}

/// Returns a read of points by their ids. `members` are the members of the body besides `ids`.
///
/// # Errors
/// As [`split::shard_of_id`].
pub fn of_ids(
    context: &RootContext,
    record: &Arc<CollectionRecord>,
    members: RawMembers,
    ids: &[PointId],
) -> Result<ShardRead> {
    let ids = split::ids_by_shard(ids, record.shards)?;
    Ok(ShardRead {
        shards: ids.keys().copied().collect(),
        record: record.clone(),
        path: "points",
        body: ReadBody::Ids(IdsBody { members, ids }),
        deadline: context.deadline,
        strong: context.params.strong,
        priority: ReadPriority::Client,
    })
}

/// Reads points by their ids. `members` are the members of the body besides `ids`.
///
/// A holder that lags may not have a point whose write was acknowledged at another root. So shards
/// in which a point is absent are read again, with a strong read, and count as unanswered if that
/// fails. If all points are found, there is no second read.
///
/// # Errors
/// As [`of_ids`] and [`read_shards`]; `Unavailable` with retry advice if a point is absent and
/// another root has removed the collection.
pub async fn confirmed(
    context: &RootContext,
    record: &Arc<CollectionRecord>,
    members: RawMembers,
    ids: &[PointId],
) -> Result<ShardAnswers> {
    let mut read = of_ids(context, record, members, ids)?;
    let mut answers = Box::pin(read_shards(&context.state, &read)).await?;
    if read.strong {
        return Ok(answers);
    }
    let wanted = split::ids_by_shard(ids, record.shards)?;
    let results = std::mem::take(&mut answers.results);
    let bytes = result_bytes(&results);
    let find = move || Ok((lacking(&wanted, &results)?, results));
    let (lacking, results) = context.compute(bytes, find).await?;
    answers.results = results;
    if lacking.is_empty() {
        return Ok(answers);
    }
    context.state.count("confirmed");
    read.shards = lacking;
    read.strong = true;
    read.deadline = read.deadline.min(Instant::now() + CONFIRMATION_MAX);
    // Points of a newer collection of the same name are absent from a removed one.
    let is_current = context.state.is_current(record, read.deadline);
    let again = Box::pin(read_shards(&context.state, &read));
    let (again, is_current) = tokio::join!(again, is_current);
    if !is_current {
        return Err(context.state.removed(record, context.deadline).await);
    }
    answers.replace(&read.shards, again?);
    Ok(answers)
}

/// Reads points as [`confirmed`] does, and checks that enough shards answered.
///
/// # Errors
/// As [`confirmed`] and [`ShardAnswers::check`].
pub(super) async fn confirmed_answers(
    context: &RootContext,
    record: &Arc<CollectionRecord>,
    members: RawMembers,
    ids: &[PointId],
) -> Result<ShardAnswers> {
    let answers = confirmed(context, record, members, ids).await?;
    checked(context, &answers)?;
    Ok(answers)
}

/// Returns the shards whose results lack some of their points.
fn lacking(wanted: &BTreeMap<u32, Vec<PointId>>, results: &ResultTexts) -> Result<Vec<u32>> {
    #[derive(Deserialize)]
    struct FoundPoint {
        id: PointId,
    }
    let mut lacking = Vec::new();
    for (shard, result) in results {
        let found: Vec<FoundPoint> = merge::read(result)?;
        let found: HashSet<PointId> = found.into_iter().map(|point| point.id).collect();
        let wanted = wanted.get(shard).into_iter().flatten();
        if wanted.into_iter().any(|id| !found.contains(id)) {
            lacking.push(*shard);
        }
    }
    Ok(lacking)
}

/// Reads shards, and checks that enough answered.
///
/// # Errors
/// As [`read_shards`] and [`ShardAnswers::check`].
pub async fn answers(context: &RootContext, read: &ShardRead) -> Result<ShardAnswers> {
    let answers = Box::pin(read_shards(&context.state, read)).await?;
    checked(context, &answers)?;
    Ok(answers)
}

/// Checks that enough shards answered, and counts a partial answer or the refusal.
///
/// # Errors
/// As [`ShardAnswers::check`].
fn checked(context: &RootContext, answers: &ShardAnswers) -> Result<()> {
    let checked = answers.check(context.params.min_coverage);
    if checked.is_err() {
        context.state.count("refused");
    } else if !answers.coverage.is_whole() {
        context.state.count("partial");
    }
    checked
}

/// Reads shards and merges their results.
///
/// # Errors
/// As [`answers`]; errors of `merge`.
pub(super) async fn merged(
    context: &RootContext,
    read: &ShardRead,
    merge: impl FnOnce(ShardResults<'_>) -> Result<Vec<u8>> + Send + 'static,
) -> Result<RootAnswer> {
    let answers = answers(context, read).await?;
    merged_answers(context, answers, merge).await
}

/// Merges the results of shards.
///
/// # Errors
/// Errors of `merge`.
async fn merged_answers(
    context: &RootContext,
    answers: ShardAnswers,
    merge: impl FnOnce(ShardResults<'_>) -> Result<Vec<u8>> + Send + 'static,
) -> Result<RootAnswer> {
    let coverage = (!answers.coverage.is_whole()).then_some(answers.coverage);
    let bytes = result_bytes(&answers.results);
    let mut reservation = answers.reservation;
    let results = answers.results;
    let work = move || {
        let texts: Vec<&RawValue> = results.values().map(|result| &**result).collect();
        merge(ShardResults { results: &texts, incomplete: coverage.is_some() })
    };
    let result = context.compute(bytes, work).await?;
    reservation.shrink_to(result.len() as u64);
    Ok(RootAnswer { result, coverage, reservation: Some(reservation), continues: false })
}

/// Returns points by their ids, in the order of the request.
pub(super) async fn fetch(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let record = context.state.record(&context.collection)?;
    let bytes = body.len();
    let parse = move || {
        let request: json::RetrieveRequest = json::parse(&body)?;
        Ok((request.distinct_ids(), split::members(&body)?))
    };
    let (ids, mut members) = context.compute(bytes, parse).await?;
    if ids.len() > IDS_MAX {
        return Err(Error::invalid(format!(
            "ids: {} are more than the {IDS_MAX} of one request",
            ids.len()
        )));
    }
    members.remove("ids");
    let answers = confirmed_answers(&context, &record, members, &ids).await?;
    merged_answers(&context, answers, move |shards| merge::records(shards.results, &ids)).await
}

/// Returns one point with its payload and its vector.
pub(super) async fn get_point(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    let record = context.state.record(&context.collection)?;
    let id: PointId = context.item.parse()?;
    let members = split::members(br#"{"with_payload":true,"with_vector":true}"#)?;
    let answers = confirmed_answers(&context, &record, members, &[id]).await?;
    merged_answers(&context, answers, move |shards| {
        let list = merge::records(shards.results, &[id])?;
        let found: Vec<&RawValue> = serde_json::from_slice(&list)
            .map_err(|error| Error::internal("a shard's result").caused_by(error))?;
        let missing = || Error::not_found(format!("Not found: Point with id {id} does not exist"));
        found.first().map(|point| point.get().as_bytes().to_vec()).ok_or_else(missing)
    })
    .await
}

/// Counts points.
pub(super) async fn count(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let record = context.state.record(&context.collection)?;
    let body = if body.is_empty() { Bytes::from_static(b"{}") } else { body };
    json::parse::<json::CountRequest>(&body)?;
    let read = of_all(&context, &record, "points/count", split::parse(&body)?);
    merged(&context, &read, merge::count).await
}

/// Counts points. `body` is the body of a request to count points.
///
/// # Errors
/// As [`answers`].
pub async fn count_points(
    context: &RootContext,
    record: &Arc<CollectionRecord>,
    body: &Value,
) -> Result<CountedPoints> {
    let read = of_all(context, record, "points/count", split::raw(body)?);
    let answers = answers(context, &read).await?;
    let texts: Vec<&RawValue> = answers.results.values().map(|result| &**result).collect();
    merge::sum(ShardResults { results: &texts, incomplete: !answers.coverage.is_whole() })
}

/// Returns points in the order of their ids or of a field.
pub(super) async fn scroll(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let record = context.state.record(&context.collection)?;
    let request: json::ScrollRequest = json::parse(&body)?;
    let limit = request.limit();
    let read = of_all(&context, &record, "points/scroll", split::parse(&body)?);
    match request.order_by {
        Some(order) => {
            let descending = order.descending;
            merged(&context, &read, move |shards| merge::ordered_scroll(shards, descending, limit))
                .await
        }
        None => {
            // Points beyond the maximum of one page come with the next page.
            let limit = limit.min(IDS_MAX);
            merged(&context, &read, move |shards| merge::scroll(shards, limit)).await
        }
    }
}

/// Counts points by the values of a field.
pub(super) async fn facet(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let record = context.state.record(&context.collection)?;
    let limit = json::parse::<json::FacetRequest>(&body)?.limit();
    if limit > FACET_VALUES_MAX {
        return Err(Error::invalid(format!(
            "limit: {limit} values are more than the {FACET_VALUES_MAX} of one facet"
        )));
    }
    let mut members = split::members(&body)?;
    members.insert("limit".to_owned(), split::raw(&json!(FACET_VALUES_MAX))?);
    let read = of_all(&context, &record, "facet", split::raw(&members)?);
    let merge = move |shards: ShardResults<'_>| merge::facet(shards, limit, FACET_VALUES_MAX);
    merged(&context, &read, merge).await
}
