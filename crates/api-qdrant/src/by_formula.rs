//! Queries that score the hits of their prefetches by a formula.

use std::collections::HashMap;

use base::Result;
use search::collection::PointParts;
use search::filter::Filter;
use serde_json::Value;

use crate::filters;
use crate::formula::{Formula, FormulaPoint};
use crate::json::QueryRequest;
use crate::query::{QueryRun, RankedHit, RankedHits};
use crate::retrieve::{self, CHUNK};

impl QueryRun<'_> {
    /// Returns at most `count` hits of the prefetches, scored by a formula. Hits of equal scores
    /// are in the order of the prefetches. Points with damaged payloads are left out.
    ///
    /// # Errors
    /// `InvalidArgument` if a point has no score; the errors of the prefetches and of the medium.
    pub(crate) fn by_formula(
        &mut self,
        mut formula: Formula,
        request: &QueryRequest,
        count: usize,
        filter: Option<&Filter>,
    ) -> Result<RankedHits> {
        formula.prepare(|filter| filters::prepare(self.named, filter))?;
        let found = self.prefetches(request, filter)?;
        let mut partial = found.iter().any(|found| found.partial);
        let scores: Vec<HashMap<u64, f32>> = found.iter().map(RankedHits::scores).collect();
        let ids = distinct(&found);
        let parts =
            PointParts { payload: !formula.payload_members().is_empty(), ..PointParts::NONE };
        let mut hits = Vec::with_capacity(ids.len());
        for ids in ids.chunks(CHUNK) {
            self.check_time()?;
            for (point, id) in self.named.resolve(ids, parts).into_iter().zip(ids) {
                let payload = match point {
                    Ok(Some(point)) => Value::Object(point.payload),
                    // The point was removed meanwhile.
                    Ok(None) => continue,
                    Err(error) if retrieve::concerns_one_point(&error) => {
                        partial = true;
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let scores: Vec<Option<f32>> =
                    scores.iter().map(|scores| scores.get(id).copied()).collect();
                let point = FormulaPoint { id: *id, payload: &payload, scores: &scores };
                hits.push(RankedHit::scored(*id, formula.score(&point)?));
            }
        }
        hits.sort_by(|one, other| other.score.total_cmp(&one.score));
        hits.retain(|hit| request.score_threshold.is_none_or(|least| hit.score >= least));
        hits.truncate(count);
        Ok(RankedHits { hits, partial })
    }
}

/// Returns the points of all lists, each once, in the order of the lists.
fn distinct(found: &[RankedHits]) -> Vec<u64> {
    let mut seen = std::collections::HashSet::new();
    let ids = found.iter().flat_map(|found| &found.hits).map(|hit| hit.id);
    ids.filter(|id| seen.insert(*id)).collect()
}
