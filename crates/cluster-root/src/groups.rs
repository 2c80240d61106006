//! Queries whose hits are grouped by a payload field, in three rounds.
//!
//! 1. Each shard returns its best groups with one hit each. A group that is among the best of the
//!    collection is among the best of the shard with its best hit. So the root knows the groups.
//! 2. Each shard returns its best hits of these groups.
//! 3. The holders of the best hits return the parts of the points that the client wants.
//!
//! If no shard knows the order of the hits, `ranked_groups` replaces the first two rounds.
//! With `with_lookup`, a last round reads the points of another collection whose ids are the values
//! of the groups.

use std::collections::HashMap;
use std::sync::Arc;

use api_qdrant::fusion::FusionHit;
use api_qdrant::json::{self, QueryGroupsRequest};
use api_qdrant::{GroupValue, HitGroup, group_values};
use base::{Error, Result};
use bytes::Bytes;
use cluster_node::CollectionRecord;
use search::points::PointId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::json;
use serde_json::value::RawValue;
use transport::Reservation;

use super::call::RootContext;
use super::collections;
use super::envelope::{Completeness, RootAnswer};
use super::merge::{self, HitOrder, KeyedPoint, PointKey, PointsText};
use super::parts::{self, MergedHit};
use super::payload_members;
use super::prefetch;
use super::ranked_groups::{self, RankedGroups};
use super::read::{answers, confirmed_answers, of_all};
use super::root_query::{QueryRun, RootQuery};
use super::shard_read::{ShardAnswers, ShardRead};
use super::split::{self, RawMembers};

/// Members of a request for groups that a plain query does not have.
pub(super) const GROUP_MEMBERS: [&str; 2] = ["group_by", "group_size"];
/// Member of a request that names the other collection.
const WITH_LOOKUP: &str = "with_lookup";

/// Answers a query with groups of hits, the group with the best hit first.
pub(super) async fn query(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let record = context.state.record(&context.collection)?;
    let settings = collections::settings(&record)?;
    let request: QueryGroupsRequest = json::parse(&body)?;
    request.check()?;
    request.query.check_prefetches()?;
    let mut members = split::members(&body)?;
    let lookup = LookupRead::of(&context, &request, members.remove(WITH_LOOKUP))?;
    let mut query = [RootQuery::new(request.query.clone(), members)];
    if query[0].is_grouped_by_root() {
        query[0].find_all()?;
    }
    let run = QueryRun { context: &context, record: &record, settings: &settings };
    let found = prefetch::resolve(&run, &mut query).await?;
    let [query] = query;
    let order = query.order(settings.metric);
    let (context, record, request) = (&context, &record, &request);
    if query.is_grouped_by_root() {
        let members = query.members.clone();
        let ranked = Box::pin(ranked_groups::groups(&run, query, request, found)).await?;
        let RankedGroups { groups, found } = ranked;
        let groups = groups.iter().map(MergedGroup::of).collect::<Result<Vec<_>>>()?;
        let run = GroupsRun { context, record, request, order, members, lookup };
        return run.present(groups, found).await;
    }
    let vectors = run.point_vectors(&query.ids()).await?;
    let members = query.for_shards(&vectors)?;
    let run = GroupsRun { context, record, request, order, members, lookup };
    run.answer(found).await
}

/// A query for groups that is being answered.
struct GroupsRun<'a> {
    context: &'a RootContext,
    record: &'a Arc<CollectionRecord>,
    request: &'a QueryGroupsRequest,
    order: HitOrder,
    /// The query for a shard, by member. If the root ranks the hits, the query of the client.
    members: RawMembers,
    lookup: Option<LookupRead>,
}

/// Points of another collection that the answer has for the groups.
struct LookupRead {
    record: Arc<CollectionRecord>,
    /// Members of the request for the points, besides their ids.
    members: RawMembers,
}

impl LookupRead {
    /// Returns the points that a request wants. `text` is its member `with_lookup`.
    ///
    /// # Errors
    /// As [`RootContext::other_record`].
    fn of(
        context: &RootContext,
        request: &QueryGroupsRequest,
        text: Option<Box<RawValue>>,
    ) -> Result<Option<LookupRead>> {
        let Some(lookup) = &request.with_lookup else { return Ok(None) };
        let record = context.other_record(&lookup.collection);
        let record = record.map_err(|error| error.context(WITH_LOOKUP))?;
        // Another form is the name of the collection alone.
        let object = text.filter(|text| text.get().trim_start().starts_with('{'));
        let members = object.map(|text| merge::read::<RawMembers>(&text)).transpose()?;
        let mut members = members.unwrap_or_default();
        members.remove("collection");
        Ok(Some(LookupRead { record, members }))
    }
}

/// A group and its best hits.
struct MergedGroup {
    value: GroupValue,
    hits: Vec<MergedHit>,
    /// The point of another collection whose id is the value.
    lookup: Option<Box<RawValue>>,
}

impl MergedGroup {
    /// Creates a group of hits that the root ranked.
    ///
    /// # Errors
    /// As [`MergedHit::of`].
    fn of(group: &HitGroup<FusionHit<PointId>>) -> Result<MergedGroup> {
        let hits = group.hits.iter().map(MergedHit::of).collect::<Result<Vec<_>>>()?;
        Ok(MergedGroup { value: group.value.clone(), hits, lookup: None })
    }
}

/// Result of a round.
struct RoundResult<T> {
    value: T,
    /// True if points may be missing.
    partial: bool,
}

impl GroupsRun<'_> {
    /// Answers the query. `found` is the completeness of its prefetches' hits.
    async fn answer(&self, found: Completeness) -> Result<RootAnswer> {
        let best = self.read(self.best_groups()?).await?;
        let found = found.after(best.coverage);
        let order = self.order;
        let limit = self.request.limit;
        let best = self.compute(best, move |results| best_values(results, order, limit)).await?;
        let found = found.or_partial(best.partial);
        let values = best.value;
        if values.is_empty() {
            return whole_answer(&[], found);
        }
        let hits = self.read(self.hits_of(&values)?).await?;
        let found = found.after(hits.coverage);
        let size = self.request.group_size;
        let field = self.request.group_by.clone();
        let merge = move |results: &[&RawValue]| {
            merged_groups(results, values, order, GroupHits { size, field: &field })
        };
        let merged = self.compute(hits, merge).await?;
        self.present(merged.value, found.or_partial(merged.partial)).await
    }

    /// Answers with groups of hits: reads the parts that the client wants. `found` is the
    /// completeness of the hits.
    async fn present(
        &self,
        mut groups: Vec<MergedGroup>,
        mut found: Completeness,
    ) -> Result<RootAnswer> {
        let ids = groups.iter().flat_map(|group| &group.hits).map(|hit| hit.id).collect();
        let parts = parts::read(self.context, self.record, &self.members, ids).await?;
        if let Some(parts) = &parts {
            parts::add(groups.iter_mut().flat_map(|group| &mut group.hits), parts)?;
        }
        let lookups = self.lookups(&groups).await?;
        if let Some(lookups) = &lookups {
            add_lookups(&mut groups, lookups)?;
        }
        let mut reservation: Option<Reservation> = None;
        for read in [parts, lookups].into_iter().flatten() {
            found = found.after(read.coverage);
            match &mut reservation {
                Some(all) => all.join(read.reservation),
                None => reservation = Some(read.reservation),
            }
        }
        let answer = whole_answer(&groups, found)?;
        if let Some(reservation) = &mut reservation {
            reservation.shrink_to(answer.result.len() as u64);
        }
        Ok(RootAnswer { reservation, ..answer })
    }

    /// Reads the points of another collection whose ids are the values of groups; `None` if there
    /// are none.
    async fn lookups(&self, groups: &[MergedGroup]) -> Result<Option<ShardAnswers>> {
        let Some(lookup) = &self.lookup else { return Ok(None) };
        // A value that is no id has no point.
        let mut ids: Vec<PointId> = groups.iter().filter_map(|group| group.value.point()).collect();
        if ids.is_empty() {
            return Ok(None);
        }
        ids.sort_unstable();
        ids.dedup();
        let read = confirmed_answers(self.context, &lookup.record, lookup.members.clone(), &ids);
        Box::pin(read).await.map(Some)
    }

    async fn read(&self, read: ShardRead) -> Result<ShardAnswers> {
        answers(self.context, &read).await
    }

    /// Runs `work` on the results of the shards.
    async fn compute<T: Send + 'static>(
        &self,
        answers: ShardAnswers,
        work: impl FnOnce(&[&RawValue]) -> Result<RoundResult<T>> + Send + 'static,
    ) -> Result<RoundResult<T>> {
        let ShardAnswers { results, reservation: _reservation, .. } = answers;
        let bytes = results.values().map(|result| result.get().len()).sum();
        let work = move || work(&results.values().map(|result| &**result).collect::<Vec<_>>());
        self.context.compute(bytes, work).await
    }

    /// Returns the read of the first round.
    fn best_groups(&self) -> Result<ShardRead> {
        let mut members = self.members.clone();
        parts::remove(&mut members);
        members.insert("group_size".to_owned(), split::raw(&1)?);
        members.insert("limit".to_owned(), split::raw(&self.request.limit)?);
        let body = split::raw(&members)?;
        Ok(of_all(self.context, self.record, "points/query/groups", body))
    }

    /// Returns the read of the second round: a query for each group.
    fn hits_of(&self, values: &[GroupValue]) -> Result<ShardRead> {
        let mut members = self.members.clone();
        GROUP_MEMBERS.iter().for_each(|name| drop(members.remove(*name)));
        members.insert("limit".to_owned(), split::raw(&self.request.group_size)?);
        let part = payload_members::of_path(&self.request.group_by)?;
        members.insert("with_payload".to_owned(), part);
        members.remove("with_vector");
        let filter = members.remove("filter");
        let searches = values
            .iter()
            .map(|value| {
                let key = &self.request.group_by;
                let is_in = json!({ "key": key, "match": { "value": value.to_value() } });
                let both = split::all_of([filter.as_deref(), Some(&split::raw(&is_in)?)])?;
                let mut members = members.clone();
                members.insert("filter".to_owned(), both);
                Ok(members)
            })
            .collect::<Result<Vec<RawMembers>>>()?;
        let body = split::raw(&HashMap::from([("searches", searches)]))?;
        Ok(of_all(self.context, self.record, "points/query/batch", body))
    }
}

/// Best hit of a group.
struct BestHit {
    key: PointKey,
    /// Place among all hits of the shards. Groups with the same best point keep the order that its
    /// shard gave them.
    seen: usize,
}

/// Returns the values of the best groups, best first.
///
/// # Errors
/// `Internal` for a result that is not the expected JSON.
fn best_values(
    results: &[&RawValue],
    order: HitOrder,
    limit: usize,
) -> Result<RoundResult<Vec<GroupValue>>> {
    #[derive(Deserialize)]
    struct GroupsText<'a> {
        #[serde(borrow)]
        groups: Vec<GroupText<'a>>,
        #[serde(default)]
        partial: bool,
    }
    #[derive(Deserialize)]
    struct GroupText<'a> {
        id: GroupValue,
        #[serde(borrow)]
        hits: Vec<&'a RawValue>,
    }
    let mut partial = false;
    let mut best: HashMap<GroupValue, BestHit> = HashMap::new();
    let mut seen = 0;
    for result in results {
        let text: GroupsText<'_> = merge::read(result)?;
        partial |= text.partial;
        for group in text.groups {
            let Some(hit) = group.hits.first() else { continue };
            let hit = BestHit { key: merge::keyed(hit)?.key, seen };
            seen += 1;
            let known = best.get(&group.id);
            if known.is_none_or(|known| order.compare(&hit.key, &known.key).is_lt()) {
                best.insert(group.id, hit);
            }
        }
    }
    let mut best: Vec<(GroupValue, BestHit)> = best.into_iter().collect();
    best.sort_by(|(_, one), (_, other)| {
        order.compare(&one.key, &other.key).then_with(|| one.seen.cmp(&other.seen))
    });
    best.truncate(limit);
    Ok(RoundResult { value: best.into_iter().map(|(value, _)| value).collect(), partial })
}

/// Hits of each group.
#[derive(Clone, Copy)]
struct GroupHits<'a> {
    /// Maximum hits of a group.
    size: usize,
    /// Path of the field by which points are grouped.
    field: &'a str,
}

/// Returns the groups with their best hits.
///
/// # Errors
/// As [`best_values`]; `Internal` if a shard answered another number of queries.
fn merged_groups(
    results: &[&RawValue],
    values: Vec<GroupValue>,
    order: HitOrder,
    wanted: GroupHits<'_>,
) -> Result<RoundResult<Vec<MergedGroup>>> {
    let mut partial = false;
    let mut columns: Vec<Vec<KeyedPoint<'_>>> = values.iter().map(|_| Vec::new()).collect();
    for result in results {
        let found: Vec<PointsText<'_>> = merge::read(result)?;
        if found.len() != values.len() {
            return Err(Error::internal(format!(
                "a shard answered {} of {} queries",
                found.len(),
                values.len()
            )));
        }
        for (column, text) in columns.iter_mut().zip(found) {
            partial |= text.partial;
            for point in text.points {
                column.push(merge::keyed(point)?);
            }
        }
    }
    let mut groups = Vec::with_capacity(values.len());
    for (value, mut column) in values.into_iter().zip(columns) {
        column.sort_by(|one, other| order.compare(&one.key, &other.key));
        let mut hits = Vec::with_capacity(wanted.size.min(column.len()));
        for point in column {
            let mut members: RawMembers = merge::read(point.text)?;
            // A point with a value that makes no group belongs to none.
            let payload = members.remove("payload").map(|text| merge::read::<Value>(&text));
            let payload = payload.transpose()?.unwrap_or_default();
            if hits.len() < wanted.size && group_values(&payload, wanted.field).contains(&value) {
                hits.push(MergedHit { id: point.key.point(), members });
            }
        }
        groups.push(MergedGroup { value, hits, lookup: None });
    }
    // All points of a group may have been removed between the rounds.
    groups.retain(|group| !group.hits.is_empty());
    Ok(RoundResult { value: groups, partial })
}

/// Adds the points of another collection to the groups of their ids.
///
/// # Errors
/// `Internal` for a result that is not the expected JSON.
fn add_lookups(groups: &mut [MergedGroup], answers: &ShardAnswers) -> Result<()> {
    let mut points: HashMap<PointId, &RawValue> = HashMap::new();
    for result in answers.results.values() {
        let found: Vec<&RawValue> = merge::read(result)?;
        for point in found {
            points.insert(merge::keyed(point)?.key.point(), point);
        }
    }
    for group in groups {
        let point = group.value.point().and_then(|id| points.get(&id).copied());
        group.lookup = point.map(RawValue::to_owned);
    }
    Ok(())
}

fn whole_answer(groups: &[MergedGroup], found: Completeness) -> Result<RootAnswer> {
    let list: Vec<GroupMembers<'_>> = groups
        .iter()
        .map(|group| GroupMembers {
            id: &group.value,
            hits: group.hits.iter().map(|hit| &hit.members).collect(),
            lookup: group.lookup.as_deref(),
        })
        .collect();
    let answer = RootAnswer::of(&GroupsMembers { groups: list, partial: found.partial })?;
    Ok(RootAnswer { coverage: found.coverage(), ..answer })
}

/// JSON of the answer.
#[derive(Serialize)]
struct GroupsMembers<'a> {
    groups: Vec<GroupMembers<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
}

#[derive(Serialize)]
struct GroupMembers<'a> {
    id: &'a GroupValue,
    hits: Vec<&'a RawMembers>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lookup: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(value: &Value) -> Box<RawValue> {
        split::raw(value).unwrap()
    }

    fn group(id: Value, hit: u64, score: f32) -> Value {
        json!({ "id": id, "hits": [{ "id": hit, "version": 0, "score": score }] })
    }

    #[test]
    fn the_best_groups_of_all_shards() {
        let one = json!({"groups": [group(json!("a"), 1, 9.0), group(json!(7), 2, 5.0)]});
        let other = json!({"groups": [group(json!(7), 4, 8.0), group(json!("b"), 3, 6.0)],
                           "partial": true});
        let texts = [raw(&one), raw(&other)];
        let texts: Vec<&RawValue> = texts.iter().map(|text| &**text).collect();
        let found = best_values(&texts, HitOrder::HigherScore, 2).unwrap();
        assert_eq!(found.value, [GroupValue::Text("a".into()), GroupValue::Whole(7)]);
        assert!(found.partial);
        let found = best_values(&texts, HitOrder::LowerScore, 9).unwrap();
        let text = |text: &str| GroupValue::Text(text.to_owned());
        assert_eq!(found.value, [GroupValue::Whole(7), text("b"), text("a")]);
    }

    #[test]
    fn the_first_groups_in_the_order_of_a_field() {
        let group = |id: Value, hit: u64, value: u64| {
            let hit = json!({ "id": hit, "version": 0, "score": 1.0, "order_value": value });
            json!({ "id": id, "hits": [hit] })
        };
        let one = json!({"groups": [group(json!(7), 1, 9), group(json!("a"), 2, 5)]});
        let other = json!({"groups": [group(json!("a"), 3, 8), group(json!(7), 4, 6)]});
        let texts = [raw(&one), raw(&other)];
        let texts: Vec<&RawValue> = texts.iter().map(|text| &**text).collect();
        let first =
            |descending| best_values(&texts, HitOrder::Value { descending }, 1).unwrap().value;
        assert_eq!(first(true), [GroupValue::Whole(7)]);
        assert_eq!(first(false), [GroupValue::Text("a".into())]);
    }

    #[test]
    fn groups_have_the_best_hits_of_all_shards() {
        let point = |id: u64, score: f32, city: Value| json!({ "id": id, "version": 0, "score": score, "payload": { "city": city } });
        let one =
            json!([{"points": [point(1, 3.0, json!(["a", "b"])), point(2, 1.0, json!("a"))]}]);
        // The second value makes no group, so the point belongs to none.
        let other =
            json!([{"points": [point(3, 9.0, json!(["a", 0.5])), point(4, 2.0, json!("a"))]}]);
        let texts = [raw(&one), raw(&other)];
        let texts: Vec<&RawValue> = texts.iter().map(|text| &**text).collect();
        let values = vec![GroupValue::Text("a".into())];
        let order = HitOrder::HigherScore;
        let wanted = GroupHits { size: 2, field: "city" };
        let found = merged_groups(&texts, values.clone(), order, wanted).unwrap();
        let ids: Vec<PointId> = found.value[0].hits.iter().map(|hit| hit.id).collect();
        assert_eq!(ids, [PointId::Number(1), PointId::Number(4)]);
        assert!(!found.value[0].hits[0].members.contains_key("payload"));
        let short = [raw(&json!([]))];
        let short: Vec<&RawValue> = short.iter().map(|text| &**text).collect();
        assert!(merged_groups(&short, values, order, wanted).is_err());
    }
}
