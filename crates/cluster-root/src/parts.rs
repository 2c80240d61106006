//! Payloads and vectors of the final hits, which a last round reads by their ids.

use std::collections::HashMap;
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
use super::root_query::QueryRun;
use super::shard_read::ShardAnswers;
use super::split::{self, RawMembers};

/// Members of a request that choose the parts of points in the answer.
const PARTS: [&str; 2] = ["with_payload", "with_vector"];

/// A hit. It has no payload and no vector before [`add`].
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
    run: &QueryRun<'_>,
    members: &RawMembers,
    mut hits: Vec<MergedHit>,
    found: Completeness,
) -> Result<RootAnswer> {
    let ids = hits.iter().map(|hit| hit.id).collect();
    let Some(mut read) = read(run.context, run.record, members, ids).await? else {
        return whole_answer(&hits, found);
    };
    add(hits.iter_mut(), &read)?;
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

/// Adds the parts that were read to the hits.
///
/// # Errors
/// `Internal` for a result that is not the expected JSON.
pub(super) fn add<'a>(
    hits: impl Iterator<Item = &'a mut MergedHit>,
    answers: &ShardAnswers,
) -> Result<()> {
    #[derive(Deserialize)]
    struct IdText {
        id: PointId,
    }
    let mut parts: HashMap<PointId, RawMembers> = HashMap::new();
    for result in answers.results.values() {
        let points: Vec<&RawValue> = merge::read(result)?;
        for point in points {
            let IdText { id } = merge::read(point)?;
            parts.insert(id, merge::read(point)?);
        }
    }
    for hit in hits {
        let Some(found) = parts.get(&hit.id) else { continue };
        let wanted = found.iter().filter(|(name, _)| *name != "id");
        hit.members.extend(wanted.map(|(name, text)| (name.clone(), text.clone())));
    }
    Ok(())
}
