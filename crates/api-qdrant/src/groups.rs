//! Queries whose hits are grouped by a payload field.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::Instant;

use base::{Error, Result};
use search::collection::{CANDIDATES_MAX, PointParts, SearchThread};
use search::filter::{Condition, Filter, Match, each_value, null_at};
use search::points::PointId;
use search::registry::NamedCollection;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::call::CallContext;
use crate::filters;
use crate::json::{
    self, GroupLookup, PointRecord, QueryGroupsRequest, QueryRequest, ScoredPoint, VectorQuery,
    WithPayload,
};
use crate::mmr;
use crate::query::{QueryRun, RankedHit, RankedHits, join_filters};
use crate::retrieve::{self, CHUNK, Projection, ResponseBudget};

/// Maximum limit of a prefetch after it was multiplied by the size of a group. The root of a
/// cluster sends the ids of the hits of all prefetches to each shard.
const SCALED_LIMIT_MAX: usize = 1024;

/// Groups of hits, the one with the best hit first.
#[derive(Serialize)]
pub(crate) struct GroupsResponse {
    groups: Vec<PointGroup>,
    #[serde(skip_serializing_if = "retrieve::is_false")]
    partial: bool,
}

/// Hits with one value of the field, best first.
#[derive(Serialize)]
struct PointGroup {
    id: GroupValue,
    hits: Vec<ScoredPoint>,
    /// Positions of the hits that a date ordered, only for a root of a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    order_dates: Option<Range<usize>>,
    /// The point of another collection whose id is the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    lookup: Option<PointRecord>,
}

/// Value by which points are grouped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(untagged)]
pub enum GroupValue {
    /// A signed whole number of 64 bits.
    Whole(i64),
    /// A whole number above the largest signed one.
    Large(u64),
    /// A string of the payload.
    Text(String),
}

impl GroupValue {
    /// Converts a value; `None` for values that make no group.
    fn of(value: &Value) -> Option<GroupValue> {
        match value {
            Value::Number(number) => {
                let large = || number.as_u64().map(GroupValue::Large);
                number.as_i64().map(GroupValue::Whole).or_else(large)
            }
            Value::String(text) => Some(GroupValue::Text(text.clone())),
            _ => None,
        }
    }

    /// Returns the value of the payload.
    pub fn to_value(&self) -> Value {
        match self {
            GroupValue::Whole(value) => Value::from(*value),
            GroupValue::Large(value) => Value::from(*value),
            GroupValue::Text(text) => Value::from(text.as_str()),
        }
    }

    /// Returns the point whose id is the value; `None` for a value that is not an id.
    pub fn point(&self) -> Option<PointId> {
        match self {
            GroupValue::Whole(value) => u64::try_from(*value).ok().map(PointId::Number),
            GroupValue::Large(value) => Some(PointId::Number(*value)),
            GroupValue::Text(text) => PointId::uuid(text).ok(),
        }
    }
}

/// Returns the values under `path`, each once. As in Qdrant, a point belongs to no group if one of
/// its values makes none, such as null.
pub fn group_values(payload: &Value, path: &str) -> Vec<GroupValue> {
    if null_at(payload, path) {
        return Vec::new();
    }
    let mut seen = HashSet::new();
    let mut values = Vec::new();
    let mut all_group = true;
    each_value(payload, path, &mut |value| match GroupValue::of(value) {
        Some(value) if seen.insert(value.clone()) => values.push(value),
        Some(_) => {}
        None => all_group = false,
    });
    if all_group { values } else { Vec::new() }
}

/// Group before its points are read.
pub struct HitGroup<H> {
    /// Value that all hits have.
    pub value: GroupValue,
    /// The best hits, best first.
    pub hits: Vec<H>,
    /// True if `hits` has all points of the group.
    complete: bool,
}

/// Groups in the order of their best hits.
pub struct HitGroups<H> {
    size: usize,
    groups: Vec<HitGroup<H>>,
    /// Position in `groups` by value.
    positions: HashMap<GroupValue, usize>,
}

impl<H: Copy> HitGroups<H> {
    /// Creates groups of at most `size` hits each.
    pub fn new(size: usize) -> HitGroups<H> {
        HitGroups { size, groups: Vec::new(), positions: HashMap::new() }
    }

    /// Adds a hit to the groups of its values. It must not be better than the hits before it.
    pub fn push(&mut self, hit: H, values: Vec<GroupValue>) {
        self.add_hit(hit, values, 0, true);
    }

    /// Returns true if further hits change none of the first `count` groups.
    pub fn are_full(&self, count: usize) -> bool {
        let mut first = self.groups.iter().take(count);
        self.groups.len() >= count && first.all(|group| group.hits.len() >= self.size)
    }

    /// Returns the first `count` groups.
    pub fn into_first(mut self, count: usize) -> Vec<HitGroup<H>> {
        self.groups.truncate(count);
        self.groups
    }

    /// Adds the hits of one search, best first, with the values of each. Groups of earlier
    /// searches get no hits, since points with a better score may have been excluded. `complete`
    /// is true if the search found every point. Returns true if there is a new group.
    fn add(&mut self, hits: Vec<(H, Vec<GroupValue>)>, complete: bool) -> bool {
        let before = self.groups.len();
        for (hit, values) in hits {
            self.add_hit(hit, values, before, complete);
        }
        self.groups.len() > before
    }

    /// Adds a hit to the groups of its values. Groups before the position `first` get no hits.
    fn add_hit(&mut self, hit: H, values: Vec<GroupValue>, first: usize, complete: bool) {
        for value in values {
            let next = self.groups.len();
            let at = *self.positions.entry(value.clone()).or_insert(next);
            if at == next {
                self.groups.push(HitGroup { value, hits: Vec::new(), complete });
            }
            let group = &mut self.groups[at];
            if at >= first && group.hits.len() < self.size {
                group.hits.push(hit);
            }
        }
    }

    /// Returns the filter of points with a value that no group has.
    fn other_values(&self, key: &str) -> Filter {
        let known: Vec<Value> = self.groups.iter().map(|group| group.value.to_value()).collect();
        let matching = Match::Except(known.into());
        let other = Condition::Match { key: key.to_owned(), matching };
        Filter { must: vec![other], ..Filter::default() }
    }
}

/// Returns the filter of the points of one group.
fn in_group(key: &str, value: &GroupValue) -> Filter {
    let matching = Match::Value(value.to_value());
    let must = vec![Condition::Match { key: key.to_owned(), matching }];
    Filter { must, ..Filter::default() }
}

/// Answers a query with groups. Finds the groups and fetches the points of their hits. Then adds
/// the points of the other collection if the request has one.
pub(crate) fn query(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<GroupsResponse> {
    let mut request: QueryGroupsRequest = json::parse(body)?;
    request.check()?;
    request.query.check_prefetches()?;
    scale_limits(&mut request.query.prefetch, request.group_size);
    let query = &mut request.query;
    let payload = query.with_payload.take().unwrap_or(WithPayload::All(false));
    let projection = Projection::new(named, payload, query.with_vector.as_ref())?;
    let filter = query.filter.take().map(|filter| filters::prepare(named, filter)).transpose()?;
    let target = query.query.take();
    let run = QueryRun { named, thread, context, deadline: context.deadline };
    run.check_using(&query.using, target.as_ref())?;
    let mut search = GroupSearch { run, request: &request, target, filter, partial: false };
    let ranked = search.groups()?;
    let mut budget = ResponseBudget::new(context);
    let mut response = GroupsResponse { groups: Vec::new(), partial: search.partial };
    for HitGroup { value, hits, .. } in ranked {
        let hits = RankedHits { hits, partial: false };
        let presented = search.run.present(hits, &projection, &mut budget)?;
        response.partial |= presented.partial;
        // All points of the group may have been removed since the search.
        if !presented.points.is_empty() {
            response.groups.push(PointGroup {
                id: value,
                hits: presented.points,
                order_dates: presented.order_dates,
                lookup: None,
            });
        }
    }
    if let Some(lookup) = &request.with_lookup {
        add_lookups(context, lookup, &mut response, &mut budget)?;
    }
    Ok(response)
}

/// Adds the points of another collection whose ids are the values of the groups. A damaged point is
/// left out, and the response is partial then.
///
/// # Errors
/// As [`CallContext::other_collection`], and the error of [`ResponseBudget::add_or_fail`].
fn add_lookups(
    context: &CallContext,
    lookup: &GroupLookup,
    response: &mut GroupsResponse,
    budget: &mut ResponseBudget,
) -> Result<()> {
    let other = context.other_collection(&lookup.collection);
    let other = other.map_err(|error| error.context("with_lookup"))?;
    let payload = lookup.with_payload.clone().unwrap_or(WithPayload::All(true));
    let projection = Projection::new(&other, payload, lookup.with_vectors.as_ref());
    let projection = projection.map_err(|error| error.context("with_lookup"))?;
    let mut ids: Vec<PointId> = Vec::new();
    let mut groups: Vec<&mut PointGroup> = Vec::new();
    for group in &mut response.groups {
        // A value that is not an id has no point.
        if let Some(id) = group.id.point() {
            ids.push(id);
            groups.push(group);
        }
    }
    for (point, group) in other.get_parts(&ids, projection.parts()).into_iter().zip(groups) {
        match point {
            Ok(Some(point)) => {
                let record = projection.record(point);
                budget.add_or_fail(&record)?;
                group.lookup = Some(record);
            }
            Ok(None) => {}
            Err(error) if retrieve::concerns_one_point(&error) => response.partial = true,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the number of hits that a search finds, at most `all`.
pub fn most_hits(query: Option<&VectorQuery>, all: usize) -> usize {
    match query {
        Some(VectorQuery::Mmr { .. }) => all.min(mmr::CANDIDATES_MAX),
        _ => all,
    }
}

/// Raises the limits of prefetches to `all` hits, so that a large group hides no other one.
pub fn raise_limits(prefetches: &mut [QueryRequest], all: usize) {
    for prefetch in prefetches {
        let most = most_hits(prefetch.query.as_ref(), all);
        prefetch.limit = Some(prefetch.limit().max(most));
        raise_limits(&mut prefetch.prefetch, all);
    }
}

/// Multiplies the limits of prefetches by the size of a group, as Qdrant does. Otherwise the points
/// of the first groups could be all hits of the prefetches.
pub fn scale_limits(prefetches: &mut [QueryRequest], group_size: usize) {
    for prefetch in prefetches {
        let limit = prefetch.limit();
        let scaled = limit.saturating_mul(group_size).min(SCALED_LIMIT_MAX);
        prefetch.limit = Some(limit.max(scaled));
        scale_limits(&mut prefetch.prefetch, group_size);
    }
}

struct GroupSearch<'a> {
    run: QueryRun<'a>,
    request: &'a QueryGroupsRequest,
    target: Option<VectorQuery>,
    filter: Option<Filter>,
    partial: bool,
}

impl GroupSearch<'_> {
    /// Returns the groups with the best hits, each with its best hits. Searches exclude the values
    /// of known groups until there are enough groups, so that a large group hides no other one.
    fn groups(&mut self) -> Result<Vec<HitGroup<RankedHit>>> {
        if self.target.as_ref().is_some_and(VectorQuery::ranks_together) {
            return self.groups_of_one_search();
        }
        let QueryGroupsRequest { group_by, group_size, limit, .. } = self.request;
        let mut ranked = HitGroups::new(*group_size);
        let mut factor = 1;
        while ranked.groups.len() < *limit {
            let missing = limit - ranked.groups.len();
            let most = (missing * group_size).saturating_mul(factor).min(CANDIDATES_MAX);
            let count = self.run.hits_to_find(self.target.as_ref(), most, 0)?;
            let found = self.find(ranked.other_values(group_by), count)?;
            let complete = found.len() < count;
            let found = self.with_values(found)?;
            let is_new = ranked.add(found, complete);
            if complete || (!is_new && most == CANDIDATES_MAX) {
                break;
            }
            if !is_new {
                // Hits whose values make no group took the places of others.
                factor *= 2;
            }
        }
        ranked.groups.truncate(*limit);
        for group in &mut ranked.groups {
            if group.hits.len() < *group_size && !group.complete {
                group.hits = self.hits_of_group(&group.value)?;
            }
        }
        Ok(ranked.groups)
    }

    /// Returns the groups of a query whose hits depend on each other, from one search for as many
    /// hits as a search finds.
    fn groups_of_one_search(&mut self) -> Result<Vec<HitGroup<RankedHit>>> {
        let points = usize::try_from(self.run.named.count(None)?.count).unwrap_or(usize::MAX);
        let all = points.clamp(1, CANDIDATES_MAX);
        let mut query = self.request.query.clone();
        raise_limits(&mut query.prefetch, all);
        let count = most_hits(self.target.as_ref(), all);
        query.limit = Some(count);
        let found = self.run.find(self.target.clone(), &query, count, self.filter.clone())?;
        self.partial |= found.partial;
        let hits = self.with_values(found.hits)?;
        let mut ranked = HitGroups::new(self.request.group_size);
        ranked.add(hits, true);
        Ok(ranked.into_first(self.request.limit))
    }

    /// Searches the points of one group. Points with a value that makes no group are hits of the
    /// search and belong to none, so it may take several searches.
    fn hits_of_group(&mut self, value: &GroupValue) -> Result<Vec<RankedHit>> {
        let size = self.request.group_size;
        let mut count = size;
        loop {
            let hits = self.find(in_group(&self.request.group_by, value), count)?;
            let is_last = hits.len() < count || count >= CANDIDATES_MAX;
            let mut found = self.with_values(hits)?;
            found.retain(|(_, values)| values.contains(value));
            if is_last || found.len() >= size {
                return Ok(found.into_iter().take(size).map(|(hit, _)| hit).collect());
            }
            count = count.saturating_mul(4).min(CANDIDATES_MAX);
        }
    }

    fn find(&mut self, limit: Filter, count: usize) -> Result<Vec<RankedHit>> {
        if Instant::now() > self.run.deadline {
            return Err(Error::deadline(
                "the request timed out before all groups were found; request fewer groups, or allow \
                 more time",
            ));
        }
        let filter = join_filters(self.filter.clone(), Some(limit));
        let query: &QueryRequest = &self.request.query;
        let found = self.run.find(self.target.clone(), query, count, filter)?;
        self.partial |= found.partial;
        Ok(found.hits)
    }

    /// Reads the values of hits. A hit with a damaged payload is left out. An order by a field
    /// finds a point once for each of its values. Only its first hit stays, because a group has a
    /// point once, as in Qdrant.
    fn with_values(
        &mut self,
        mut hits: Vec<RankedHit>,
    ) -> Result<Vec<(RankedHit, Vec<GroupValue>)>> {
        if let Some(VectorQuery::OrderBy(_)) = self.target {
            let mut seen = HashSet::with_capacity(hits.len());
            hits.retain(|hit| seen.insert(hit.id));
        }
        let mut found = Vec::with_capacity(hits.len());
        for hits in hits.chunks(CHUNK) {
            let ids: Vec<u64> = hits.iter().map(|hit| hit.id).collect();
            let points = self.run.named.resolve(&ids, PointParts::PAYLOAD);
            for (point, hit) in points.into_iter().zip(hits) {
                match point {
                    Ok(Some(point)) => {
                        let payload = Value::Object(point.payload);
                        found.push((*hit, group_values(&payload, &self.request.group_by)));
                    }
                    // The point was removed after the search.
                    Ok(None) => {}
                    Err(error) if retrieve::concerns_one_point(&error) => self.partial = true,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_numbers_of_64_bits_make_groups() {
        let payload = json!({"hash": [u64::MAX, -3, 7, u64::MAX]});
        let values = group_values(&payload, "hash");
        let expected = [GroupValue::Large(u64::MAX), GroupValue::Whole(-3), GroupValue::Whole(7)];
        assert_eq!(values, expected);
        for value in values {
            let json = value.to_value();
            assert_eq!(serde_json::to_value(&value).unwrap(), json);
            assert_eq!(serde_json::from_value::<GroupValue>(json).unwrap(), value);
        }
        for other in [json!(1.5), json!(null)] {
            assert!(group_values(&json!({"hash": [7, other]}), "hash").is_empty());
        }
    }

    #[test]
    fn further_hits_change_no_full_groups() {
        let text = |value: &str| GroupValue::Text(value.to_owned());
        let mut groups = HitGroups::new(2);
        assert!(!groups.are_full(1));
        for (hit, value) in [(1, "a"), (2, "b"), (3, "a")] {
            groups.push(hit, vec![text(value)]);
        }
        assert!(groups.are_full(1) && !groups.are_full(2));
        groups.push(4, vec![text("a"), text("b"), text("c")]);
        assert!(groups.are_full(2) && !groups.are_full(3));
        let found = groups.into_first(2);
        let found: Vec<(GroupValue, Vec<i32>)> =
            found.into_iter().map(|group| (group.value, group.hits)).collect();
        assert_eq!(found, [(text("a"), vec![1, 3]), (text("b"), vec![2, 4])]);
    }
}
