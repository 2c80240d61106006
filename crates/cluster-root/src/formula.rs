//! Queries that score the hits of their prefetches by a formula. The root scores them, because it
//! knows the hits of all shards. It reads the members of their payloads that the formula names.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use api_qdrant::formula::{Formula, FormulaPoint};
use api_qdrant::fusion::FusionHit;
use api_qdrant::prepare_filter;
use base::Result;
use search::points::PointId;
use serde_json::{Map, Value};

use super::envelope::Completeness;
use super::merge::MergedKeys;
use super::payload_members::{self, POINTS_AT_ONCE_MAX, Payloads};
use super::read::confirmed_answers;
use super::root_query::QueriedCollection;
use super::shard_read::ResultTexts;

/// Hits of a formula, best first, with their completeness.
pub(super) struct FormulaHits {
    pub(super) hits: Vec<FusionHit<PointId>>,
    pub(super) found: Completeness,
}

/// A formula with the scores that it may use.
struct FormulaScores {
    formula: Formula,
    /// The score of each hit of each prefetch.
    scores: Vec<HashMap<PointId, f32>>,
}

impl FormulaScores {
    /// Returns the hits of the points of `ids` that have a payload.
    ///
    /// # Errors
    /// As [`Formula::score`].
    fn hits(&self, ids: &[PointId], payloads: &Payloads) -> Result<Vec<FusionHit<PointId>>> {
        let mut hits = Vec::with_capacity(ids.len());
        for id in ids {
            // A point without one was removed since.
            let Some(payload) = payloads.get(id) else { continue };
            let scores: Vec<Option<f32>> =
                self.scores.iter().map(|scores| scores.get(id).copied()).collect();
            let point = FormulaPoint { id: id.internal(), payload, scores: &scores };
            hits.push(FusionHit { id: *id, score: self.formula.score(&point)? });
        }
        Ok(hits)
    }
}

/// Returns the hits of the prefetches, scored by a formula. Hits of equal scores are in the order
/// of the prefetches. `found` is the completeness of `lists`.
///
/// # Errors
/// `InvalidArgument` if a point has no score; as [`confirmed_answers`].
pub(super) async fn hits(
    run: &QueriedCollection<'_>,
    mut formula: Formula,
    lists: &[MergedKeys],
    mut found: Completeness,
) -> Result<FormulaHits> {
    formula.prepare(|filter| prepare_filter(run.settings, filter))?;
    let members = formula.payload_members();
    let ids = distinct(lists);
    let scores = lists.iter().map(scores).collect();
    let scores = Arc::new(FormulaScores { formula, scores });
    let mut hits = Vec::with_capacity(ids.len());
    for ids in ids.chunks(POINTS_AT_ONCE_MAX) {
        let scores = scores.clone();
        let ids = ids.to_vec();
        if members.is_empty() {
            let work = move || {
                let empty = |id: &PointId| (*id, Value::Object(Map::new()));
                let payloads: Payloads = ids.iter().map(empty).collect();
                scores.hits(&ids, &payloads)
            };
            hits.append(&mut run.context.compute(0, work).await?);
            continue;
        }
        let wanted = payload_members::request(payload_members::of_names(&members)?)?;
        let read = Box::pin(confirmed_answers(run.context, run.record, wanted, &ids)).await?;
        found = found.after(read.coverage);
        let work =
            move |results: &ResultTexts| scores.hits(&ids, &payload_members::payloads(results)?);
        hits.append(&mut run.context.compute_results(read, work).await?);
    }
    hits.sort_by(|one, other| other.score.total_cmp(&one.score));
    Ok(FormulaHits { hits, found })
}

/// Returns the score of each hit of a prefetch.
fn scores(found: &MergedKeys) -> HashMap<PointId, f32> {
    // A score that is not a number has no JSON.
    let hits = found.hits.iter();
    hits.map(|key| (key.point(), key.score().unwrap_or(f32::NAN))).collect()
}

/// Returns the points of all lists, each once, in the order of the lists.
fn distinct(lists: &[MergedKeys]) -> Vec<PointId> {
    let mut seen = HashSet::new();
    let ids = lists.iter().flat_map(|list| &list.hits).map(|key| key.point());
    ids.filter(|id| seen.insert(*id)).collect()
}
