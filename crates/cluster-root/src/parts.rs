//! Payloads and vectors of the final hits, which a last round reads by their ids.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use api_qdrant::fusion::FusionHit;
use base::Result;
use cluster_node::CollectionRecord;
use search::points::PointId;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::call::RootContext;
use super::envelope::{Completeness, RootAnswer};
use super::merge;
use super::read::confirmed_answers;
use super::root_query::QueriedCollection;
use super::shard_read::ShardAnswers;
use super::split::{self, RawMembers, shard_of_id};

/// Members of a request that choose the parts of points in the answer.
const PARTS: [&str; 2] = ["with_payload", "with_vector"];

/// A hit. It has no payload and no vector before [`FoundParts::add_to`].
pub(super) struct MergedHit {
    pub(super) id: PointId,
    pub(super) members: RawMembers,
}

impl MergedHit {
    /// Creates a hit that the root ranked.
    ///
    /// # Errors
    /// As [`split::raw`].
    pub(super) fn of(hit: &FusionHit<PointId>) -> Result<MergedHit> {
        let members = [
            ("id", split::raw(&hit.id)?),
            ("version", split::raw(&0)?),
            ("score", split::raw(&hit.score)?),
        ];
        let members = members.map(|(name, value)| (name.to_owned(), value));
        Ok(MergedHit { id: hit.id, members: members.into() })
    }
}

/// JSON of the answer to a query.
#[derive(Serialize)]
struct HitsMembers<'a> {
    points: Vec<&'a RawMembers>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
}

/// Answers a query with its final hits: reads the parts that its `members` choose.
///
/// # Errors
/// As [`confirmed_answers`].
pub(super) async fn answer(
    run: &QueriedCollection<'_>,
    members: &RawMembers,
    mut hits: Vec<MergedHit>,
    found: Completeness,
) -> Result<RootAnswer> {
    let ids = hits.iter().map(|hit| hit.id).collect();
    let Some(mut read) = read(run.context, run.record, members, ids).await? else {
        return whole_answer(&hits, found);
    };
    FoundParts::of(run.record, &read)?.add_to(&mut hits);
    let answer = whole_answer(&hits, found.after(read.coverage))?;
    read.reservation.shrink_to(answer.result.len() as u64);
    Ok(RootAnswer { reservation: Some(read.reservation), ..answer })
}

fn whole_answer(hits: &[MergedHit], found: Completeness) -> Result<RootAnswer> {
    let points = hits.iter().map(|hit| &hit.members).collect();
    let answer = RootAnswer::of(&HitsMembers { points, partial: found.partial })?;
    Ok(RootAnswer { coverage: found.coverage(), ..answer })
}

/// Removes the choice of parts from the members of a request.
pub(super) fn remove(members: &mut RawMembers) {
    PARTS.iter().for_each(|part| drop(members.remove(*part)));
}

/// Reads the parts that `members` choose; `None` if they choose none. The holder that found a hit
/// may be ahead of the one that is asked now, so absent points are read again.
///
/// # Errors
/// As [`confirmed_answers`].
pub(super) async fn read(
    context: &RootContext,
    record: &Arc<CollectionRecord>,
    members: &RawMembers,
    mut ids: Vec<PointId>,
) -> Result<Option<ShardAnswers>> {
    let is_wanted = |part: &&str| {
        let text = members.get(*part);
        text.is_some_and(|text| !matches!(text.get(), "false" | "null"))
    };
    if ids.is_empty() || !PARTS.iter().any(is_wanted) {
        return Ok(None);
    }
    let none = split::raw(&false)?;
    let part = |part: &str| members.get(part).cloned().unwrap_or_else(|| none.clone());
    let members = PARTS.iter().map(|name| ((*name).to_owned(), part(name))).collect();
    ids.sort_unstable();
    ids.dedup();
    confirmed_answers(context, record, members, &ids).await.map(Some)
}

/// Parts of the points of hits.
pub(super) struct FoundParts {
    points: HashMap<PointId, RawMembers>,
    /// Shards that answered.
    answered: BTreeSet<u32>,
    /// Number of shards of the collection.
    shards: u32,
}

impl FoundParts {
    /// Takes the parts of points of a collection from the answers of its shards.
    ///
    /// # Errors
    /// `Internal` for a result that is not the expected JSON.
    pub(super) fn of(record: &CollectionRecord, answers: &ShardAnswers) -> Result<FoundParts> {
        #[derive(Deserialize)]
        struct IdText {
            id: PointId,
        }
        let mut points: HashMap<PointId, RawMembers> = HashMap::new();
        for result in answers.results.values() {
            let list: Vec<&RawValue> = merge::read(result)?;
            for point in list {
                let IdText { id } = merge::read(point)?;
                points.insert(id, merge::read(point)?);
            }
        }
        let answered = answers.results.keys().copied().collect();
        Ok(FoundParts { points, answered, shards: record.shards })
    }

    /// Adds the parts to the hits. Leaves out hits whose points were removed since they were found,
    /// as one server does. A hit of a shard that did not answer stays without parts.
    pub(super) fn add_to(&self, hits: &mut Vec<MergedHit>) {
        hits.retain_mut(|hit| {
            let Some(found) = self.points.get(&hit.id) else { return !self.has_answer(&hit.id) };
            let wanted = found.iter().filter(|(name, _)| *name != "id");
            hit.members.extend(wanted.map(|(name, text)| (name.clone(), text.clone())));
            true
        });
    }

    /// Returns true if the shard of a point answered.
    fn has_answer(&self, id: &PointId) -> bool {
        shard_of_id(id, self.shards).is_ok_and(|shard| self.answered.contains(&shard))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hits_of_removed_points_are_left_out() {
        let raw = |value: serde_json::Value| split::raw(&value).unwrap();
        let part = [("id".to_owned(), raw(json!(1))), ("payload".to_owned(), raw(json!({"a": 1})))];
        let mut found = FoundParts {
            points: HashMap::from([(PointId::Number(1), part.into())]),
            answered: BTreeSet::from([0]),
            shards: 1,
        };
        let hits = || -> Vec<MergedHit> {
            let hit = |id| FusionHit { id: PointId::Number(id), score: 0.5 };
            [1, 2].map(|id| MergedHit::of(&hit(id)).unwrap()).into()
        };
        let mut answered = hits();
        found.add_to(&mut answered);
        assert_eq!(answered.len(), 1);
        assert_eq!(answered[0].members["payload"].get(), r#"{"a":1}"#);
        found.answered.clear();
        let mut unanswered = hits();
        found.add_to(&mut unanswered);
        assert_eq!(unanswered.len(), 2);
        assert!(!unanswered[1].members.contains_key("payload"));
    }
}
