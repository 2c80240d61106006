//! Groups of hits that shards found, merged to the groups of the collection. All functions are
//! pure.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use api_qdrant::fusion::FusionHit;
use api_qdrant::{GroupValue, HitGroup, group_values};
use base::{Error, Result};
use search::points::PointId;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::merge::{self, HitOrder, KeyedPoint, PointKey, PointsText};
use super::parts::MergedHit;
use super::split::RawMembers;

/// A group and its best hits.
pub(super) struct MergedGroup {
    pub(super) value: GroupValue,
    pub(super) hits: Vec<MergedHit>,
    /// The point of another collection whose id is the value.
    pub(super) lookup: Option<Box<RawValue>>,
}

impl MergedGroup {
    /// Creates a group of hits that the root ranked.
    ///
    /// # Errors
    /// As [`MergedHit::of`].
    pub(super) fn of(group: &HitGroup<FusionHit<PointId>>) -> Result<MergedGroup> {
        let hits = group.hits.iter().map(MergedHit::of).collect::<Result<Vec<_>>>()?;
        Ok(MergedGroup { value: group.value.clone(), hits, lookup: None })
    }
}

pub(super) struct RoundResult<T> {
    pub(super) value: T,
    /// True if points may be missing.
    pub(super) partial: bool,
}

/// Best hit of a group.
struct BestHit {
    key: PointKey,
    /// Position among all hits of the shards. Groups with the same best point keep the order that
    /// its shard gave them.
    position: usize,
}

/// Returns the values of the best groups, best first.
///
/// # Errors
/// `Internal` for a result that is not the expected JSON.
pub(super) fn best_values(
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
        /// Positions of the hits that a date ordered.
        #[serde(default)]
        order_dates: Range<usize>,
    }
    let mut partial = false;
    let mut best: HashMap<GroupValue, BestHit> = HashMap::new();
    let mut position = 0;
    for result in results {
        let text: GroupsText<'_> = merge::read(result)?;
        partial |= text.partial;
        for group in text.groups {
            let Some(hit) = group.hits.first() else { continue };
            let key = merge::keyed_in_order(hit, group.order_dates.contains(&0))?.key;
            let hit = BestHit { key, position };
            position += 1;
            let known = best.get(&group.id);
            if known.is_none_or(|known| order.compare(&hit.key, &known.key).is_lt()) {
                best.insert(group.id, hit);
            }
        }
    }
    let mut best: Vec<(GroupValue, BestHit)> = best.into_iter().collect();
    best.sort_by(|(_, one), (_, other)| {
        order.compare(&one.key, &other.key).then_with(|| one.position.cmp(&other.position))
    });
    best.truncate(limit);
    Ok(RoundResult { value: best.into_iter().map(|(value, _)| value).collect(), partial })
}

/// Hits of each group.
#[derive(Clone, Copy)]
pub(super) struct GroupHits<'a> {
    /// Maximum hits of a group.
    pub(super) size: usize,
    /// Maximum hits of a group that were requested from a shard.
    pub(super) requested: usize,
    /// Path of the field by which points are grouped.
    pub(super) field: &'a str,
}

/// Groups with their best hits.
pub(super) struct FilledGroups {
    pub(super) groups: Vec<MergedGroup>,
    /// True if a shard may have further hits of a group, which are hidden by points that belong to
    /// none.
    pub(super) lacks_hits: bool,
}

/// Returns the groups with their best hits. Shards also return points that have the value of a
/// group and belong to no group. These are left out. A group has a point once.
///
/// # Errors
/// As [`best_values`]; `Internal` if a shard answered another number of queries.
pub(super) fn merged_groups(
    results: &[&RawValue],
    values: Vec<GroupValue>,
    order: HitOrder,
    wanted: GroupHits<'_>,
) -> Result<RoundResult<FilledGroups>> {
    let mut partial = false;
    let mut lacks_hits = false;
    let mut columns: Vec<Vec<GroupPoint>> = values.iter().map(|_| Vec::new()).collect();
    for result in results {
        let found: Vec<PointsText<'_>> = merge::read(result)?;
        if found.len() != values.len() {
            return Err(Error::internal(format!(
                "a shard answered {} of {} queries",
                found.len(),
                values.len()
            )));
        }
        for ((column, value), text) in columns.iter_mut().zip(&values).zip(found) {
            partial |= text.partial;
            let is_cut = text.points.len() >= wanted.requested;
            let before = column.len();
            // An order by a field finds a point once for each of its values.
            let mut seen = HashSet::new();
            for point in text.into_keyed()? {
                if seen.insert(point.key.point()) {
                    column.extend(group_point(&point, value, wanted.field)?);
                }
            }
            lacks_hits |= is_cut && column.len() - before < wanted.size;
        }
    }
    let mut groups = Vec::with_capacity(values.len());
    for (value, mut points) in values.into_iter().zip(columns) {
        points.sort_by(|one, other| order.compare(&one.key, &other.key));
        points.truncate(wanted.size);
        let hits = points.into_iter().map(|point| point.hit).collect();
        groups.push(MergedGroup { value, hits, lookup: None });
    }
    // All points of a group may have been removed between the rounds.
    groups.retain(|group| !group.hits.is_empty());
    Ok(RoundResult { value: FilledGroups { groups, lacks_hits }, partial })
}

struct GroupPoint {
    key: PointKey,
    hit: MergedHit,
}

/// Returns the point of a group; `None` for a point that belongs to no group, because it has a
/// value that makes none.
///
/// # Errors
/// As [`best_values`].
fn group_point(
    point: &KeyedPoint<'_>,
    value: &GroupValue,
    field: &str,
) -> Result<Option<GroupPoint>> {
    let key = point.key;
    let mut members: RawMembers = merge::read_text(point.text)?;
    let payload = members.remove("payload").map(|text| merge::read::<Value>(&text));
    let payload = payload.transpose()?.unwrap_or_default();
    let belongs = group_values(&payload, field).contains(value);
    Ok(belongs.then(|| GroupPoint { key, hit: MergedHit { id: key.point(), members } }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::split;
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
        let mut date = group(json!("b"), 5, 1);
        date["order_dates"] = json!({"start": 0, "end": 1});
        let dates = raw(&json!({ "groups": [date] }));
        let texts: Vec<&RawValue> = texts.iter().copied().chain([&*dates]).collect();
        let first =
            |descending| best_values(&texts, HitOrder::Value { descending }, 1).unwrap().value;
        assert_eq!(first(true), [GroupValue::Text("b".into())]);
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
        let wanted = GroupHits { size: 2, requested: 3, field: "city" };
        let found = merged_groups(&texts, values.clone(), order, wanted).unwrap().value;
        let ids: Vec<PointId> = found.groups[0].hits.iter().map(|hit| hit.id).collect();
        assert_eq!(ids, [PointId::Number(1), PointId::Number(4)]);
        assert!(!found.groups[0].hits[0].members.contains_key("payload"));
        let lacks = |size, requested| {
            let wanted = GroupHits { size, requested, field: "city" };
            merged_groups(&texts, values.clone(), order, wanted).unwrap().value.lacks_hits
        };
        // Each shard returned two points. Of the second one, one belongs to no group.
        assert_eq!([lacks(1, 2), lacks(2, 2), lacks(2, 3)], [false, true, false]);
        // An order by a field finds the first point twice.
        let hit = |id: u64, n: u64| json!({ "id": id, "version": 0, "score": 1.0, "order_value": n, "payload": { "city": "a" } });
        let ordered = [raw(&json!([{"points": [hit(1, 1), hit(1, 2), hit(2, 3)]}]))];
        let ordered: Vec<&RawValue> = ordered.iter().map(|text| &**text).collect();
        let order_by = HitOrder::Value { descending: false };
        let found = merged_groups(&ordered, values.clone(), order_by, wanted).unwrap().value;
        let ids: Vec<PointId> = found.groups[0].hits.iter().map(|hit| hit.id).collect();
        assert_eq!(ids, [PointId::Number(1), PointId::Number(2)]);
        let short = [raw(&json!([]))];
        let short: Vec<&RawValue> = short.iter().map(|text| &**text).collect();
        assert!(merged_groups(&short, values.clone(), order, wanted).is_err());
    }
}
