//! Exact scores of chosen points, without a coarse stage.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use base::{Error, Result};

use super::best::{HitLocation, QueryHits, RankedPoint};
use super::inner::Collection;
use super::options::CANDIDATES_MAX;
use super::search::{CollectionQuery, RunningQuery, SearchThread};
use super::state::{PointLocation, SegmentView};
use crate::rerank::Scorer;

/// Coarse score of a point while it is scored. It is so high that a scorer never skips the point
/// because of its bound.
const UNKNOWN_SCORE: f32 = f32::MAX;

impl Collection {
    /// Returns the best `k` points of `ids` by `scorer`, as [`Collection::search`] does with these
    /// candidates. Ids of no point are left out, and repeated ids count once. Coarse scores are 0.
    ///
    /// # Errors
    /// `InvalidArgument` for more than [`CANDIDATES_MAX`] ids. Also the error of the medium. The
    /// result is partial if a record is damaged, changes are lost with a log, or the deadline
    /// passed. It is also partial if damage hides a point's state, or a segment is not open yet.
    pub fn score_points<S: Scorer + Clone + 'static>(
        &self,
        thread: &mut SearchThread,
        ids: &[u64],
        k: usize,
        scorer: &S,
        deadline: Option<Instant>,
    ) -> Result<QueryHits> {
        if ids.len() > CANDIDATES_MAX {
            return Err(Error::invalid(format!(
                "{} candidates are more than {CANDIDATES_MAX}",
                ids.len()
            )));
        }
        let mut seen = HashSet::with_capacity(ids.len());
        let ids: Vec<u64> = ids.iter().copied().filter(|id| seen.insert(*id)).collect();
        let places = self.places(&ids);
        let partial = self.health.lock().log_damaged();
        let mut found = QueryHits { partial, ..QueryHits::default() };
        let mut views: Vec<&SegmentView> = Vec::new();
        let mut ranked = Vec::with_capacity(ids.len());
        for (id, place) in ids.iter().zip(&places) {
            let place = match place {
                Ok(Some(PointLocation::Memtable(row))) => HitLocation::Memtable(row),
                Ok(Some(PointLocation::Segment(view, row))) => {
                    HitLocation::Segment(position(&mut views, view), *row)
                }
                Ok(None) => continue,
                Err(_) => {
                    found.partial = true;
                    continue;
                }
            };
            ranked.push(RankedPoint { coarse: UNKNOWN_SCORE, id: *id, place });
        }
        let query = CollectionQuery { deadline, ..CollectionQuery::nearest(&[], k) };
        let mut running =
            RunningQuery { collection: self, thread, query: &query, found: &mut found };
        running.score_all(scorer, &views, &ranked)?;
        for hit in &mut found.hits {
            hit.coarse = 0.0;
        }
        Ok(found)
    }
}

/// Returns the index of the segment of `view` in `views`, and adds it if it is not there.
fn position<'v>(views: &mut Vec<&'v SegmentView>, view: &'v SegmentView) -> u32 {
    let known = views.iter().position(|other| Arc::ptr_eq(&other.segment, &view.segment));
    let at = known.unwrap_or_else(|| {
        views.push(view);
        views.len() - 1
    });
    at as u32
}
