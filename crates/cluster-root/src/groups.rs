//! Queries whose hits are grouped by a payload field, in three rounds.
//!
//! 1. Each shard returns its best groups with one hit each. A group that is among the best of the
//!    collection is among the best of the shard with its best hit. So the root knows the groups.
//! 2. Each shard returns its best hits of these groups. If points that belong to no group hide some
//!    of them, this round is repeated with more hits.
//! 3. The holders of the best hits return the parts of the points that the client wants.
//!
//! If no shard knows the order of the hits, `ranked_groups` replaces the first two rounds.
//! With `with_lookup`, a last round reads the points of another collection whose ids are the values
//! of the groups.

use std::collections::HashMap;
use std::sync::Arc;

use api_qdrant::GroupValue;
use api_qdrant::json::{self, QueryGroupsRequest};
use base::Result;
use bytes::Bytes;
use cluster_node::CollectionRecord;
use search::collection::CANDIDATES_MAX;
use search::points::PointId;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use transport::Reservation;

use super::call::RootContext;
use super::collections;
use super::envelope::{Completeness, RootAnswer};
use super::merge::{self, HitOrder};
use super::merged_groups::{
    FilledGroups, GroupHits, MergedGroup, RoundResult, best_values, merged_groups,
};
use super::parts::{self, FoundParts};
use super::payload_members;
use super::prefetch;
use super::ranked_groups::{self, RankedGroups};
use super::read::{answers, confirmed_answers, of_all};
use super::root_query::{QueriedCollection, RootQuery};
use super::shard_read::{ResultTexts, ShardAnswers, ShardRead};
use super::split::{self, RawMembers};

/// Members of a request for groups that a plain query does not have.
pub(super) const GROUP_MEMBERS: [&str; 2] = ["group_by", "group_size"];
/// Member of a request that names the other collection.
const WITH_LOOKUP: &str = "with_lookup";
/// Maximum hits of all groups and shards together for which the second round is repeated. Their
/// answers must stay below the limit of a read, which would refuse the request.
const FURTHER_HITS_MAX: usize = 1 << 18;

/// Answers a query with groups of hits, the group with the best hit first.
pub(super) async fn query(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let record = context.state.record(&context.collection)?;
    let settings = collections::settings(&record)?;
    let request: QueryGroupsRequest = json::parse(&body)?;
    request.check()?;
    request.query.check_prefetches()?;
    let mut members = split::members(&body)?;
    let other = request.with_lookup.as_ref().map(|lookup| lookup.collection.as_str());
    context.wait_others(other.as_slice()).await?;
    let lookup = LookupRead::of(&context, &request, members.remove(WITH_LOOKUP))?;
    let mut query = [RootQuery::new(request.query.clone(), members)];
    if query[0].is_grouped_by_root() {
        query[0].find_all()?;
    } else {
        query[0].scale_prefetches(request.group_size)?;
    }
    let run = QueriedCollection { context: &context, record: &record, settings: &settings };
    let found = prefetch::resolve(&run, &mut query).await?;
    let [query] = query;
    let order = query.order(settings.metric);
    let context = &context;
    let record = &record;
    let request = &request;
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
        self.fill(values, found).await
    }

    /// Answers with the best hits of the groups of `values`. `found` is the completeness of the
    /// rounds before.
    async fn fill(&self, values: Vec<GroupValue>, found: Completeness) -> Result<RootAnswer> {
        let order = self.order;
        let size = self.request.group_size;
        let most = most_further_hits(values.len(), self.record.shards, size);
        let mut requested = size;
        loop {
            let hits = self.read(self.hits_of(&values, requested)?).await?;
            let found = found.after(hits.coverage);
            let values = values.clone();
            let field = self.request.group_by.clone();
            let merge = move |results: &[&RawValue]| {
                merged_groups(results, values, order, GroupHits { size, requested, field: &field })
            };
            let merged = self.compute(hits, merge).await?;
            let FilledGroups { groups, lacks_hits } = merged.value;
            if !lacks_hits || requested >= most {
                return self.present(groups, found.or_partial(merged.partial)).await;
            }
            requested = requested.saturating_mul(4).min(most);
        }
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
            let parts = FoundParts::of(self.record, parts)?;
            groups.iter_mut().for_each(|group| parts.add_to(&mut group.hits));
            groups.retain(|group| !group.hits.is_empty());
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
        // A value that is not an id has no point.
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
        let work = move |results: &ResultTexts| {
            work(&results.values().map(|result| &**result).collect::<Vec<_>>())
        };
        self.context.compute_results(answers, work).await
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

    /// Returns the read of the second round: a query for each group, with at most `requested` hits.
    fn hits_of(&self, values: &[GroupValue], requested: usize) -> Result<ShardRead> {
        let mut members = self.members.clone();
        GROUP_MEMBERS.iter().for_each(|name| drop(members.remove(*name)));
        members.insert("limit".to_owned(), split::raw(&requested)?);
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

/// Returns the maximum hits of a group that are requested from a shard. `size` is the number of
/// wanted hits.
fn most_further_hits(groups: usize, shards: u32, size: usize) -> usize {
    let lists = groups.saturating_mul(shards as usize).max(1);
    (FURTHER_HITS_MAX / lists).min(CANDIDATES_MAX).max(size)
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

    #[test]
    fn further_hits_of_all_shards_are_limited() {
        assert_eq!(most_further_hits(1, 4, 2), CANDIDATES_MAX);
        assert_eq!(most_further_hits(16, 64, 2), FURTHER_HITS_MAX / 1024);
        // All shards were asked for the wanted hits in any case.
        assert_eq!(most_further_hits(1000, 1024, 3), 3);
    }
}
