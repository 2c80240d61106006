//! Queries that score the hits of their prefetches by a formula. The root scores them, because it
//! knows the hits of all shards. It reads the members of their payloads that the formula names.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use api_qdrant::formula::{Formula, FormulaPoint};
use api_qdrant::fusion::FusionHit;
use api_qdrant::prepare_filter;
use base::Result;
use search::points::PointId;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::envelope::Completeness;
use super::merge::{self, MergedKeys};
use super::read::confirmed_answers;
use super::root_query::QueryRun;
use super::split::{self, RawMembers};

/// Points whose payloads are read at the same time: 64 MiB at most.
const POINTS_AT_ONCE_MAX: usize = 1024;

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

/// Payloads of points that exist.
type Payloads = HashMap<PointId, Value>;

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
    run: &QueryRun<'_>,
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
        let wanted = payload_request(&members)?;
        let read = Box::pin(confirmed_answers(run.context, run.record, wanted, &ids)).await?;
        found = found.after(read.coverage);
        let bytes = read.results.values().map(|result| result.get().len()).sum();
        let (results, _reservation) = (read.results, read.reservation);
        let work = move || scores.hits(&ids, &payloads(&results)?);
        hits.append(&mut run.context.compute(bytes, work).await?);
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

/// Returns the members of a request for points with these members of their payloads.
///
/// # Errors
/// As [`split::raw`].
fn payload_request(members: &BTreeSet<String>) -> Result<RawMembers> {
    // No path leads to a name with a quotation mark.
    let with_payload = if members.iter().any(|name| name.contains('"')) {
        split::raw(&true)?
    } else {
        split::raw(&members.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>())?
    };
    Ok(RawMembers::from([
        ("with_payload".to_owned(), with_payload),
        ("with_vector".to_owned(), split::raw(&false)?),
    ]))
}

/// Reads the payloads in the results of shards.
///
/// # Errors
/// `Internal` for a result that is not the expected JSON.
fn payloads(results: &BTreeMap<u32, Box<RawValue>>) -> Result<Payloads> {
    #[derive(Deserialize)]
    struct PayloadText {
        id: PointId,
        payload: Option<Map<String, Value>>,
    }
    let mut payloads = Payloads::new();
    for result in results.values() {
        let points: Vec<PayloadText> = merge::read(result)?;
        let points = points.into_iter();
        payloads.extend(
            points.map(|point| (point.id, Value::Object(point.payload.unwrap_or_default()))),
        );
    }
    Ok(payloads)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn payloads_are_read_by_quoted_names() {
        let request = |names: &[&str]| {
            let members = names.iter().map(|name| (*name).to_owned()).collect();
            let text = split::raw(&payload_request(&members).unwrap()).unwrap();
            let read: api_qdrant::json::RetrieveRequest =
                api_qdrant::json::parse(format!("{{\"ids\":[],{}", &text.get()[1..]).as_bytes())
                    .unwrap();
            assert!(read.with_payload.is_some());
            serde_json::from_str::<Value>(text.get()).unwrap()["with_payload"].clone()
        };
        assert_eq!(request(&["a", "b.c"]), json!(["\"a\"", "\"b.c\""]));
        assert_eq!(request(&["a", "b\"c"]), json!(true));
    }
}
