//! Queries by minutiae: the index of edges gives the candidates, the exact stage scores them.

use std::sync::Arc;
use std::time::Instant;

use base::{Error, Result};
use matching::index::EdgeQuery;

use super::best::{HitLocation, QueryHits, RankedPoint};
use super::edge_votes::IndexedSegment;
use super::filters::MemtableFilter;
use super::inner::Collection;
use super::options::PRINT_CANDIDATES_MAX;
use super::search::{CollectionQuery, RunningQuery, SearchThread};
use super::state::{CollectionState, SegmentView};
use crate::filter::Filter;
use crate::rerank::Scorer;

/// Query for prints of one finger.
#[derive(Clone, Copy, Debug)]
pub struct PrintQuery<'a> {
    /// Edges to look up.
    pub edges: &'a EdgeQuery,
    /// Maximum hits.
    pub k: usize,
    /// Points of the index that the exact stage compares, up to [`PRINT_CANDIDATES_MAX`]. At most
    /// as many points without an index are compared too. They are unflushed points, and points in
    /// segments of older programs.
    pub candidates: usize,
    /// Condition that hits must match, or `None` for all points.
    pub filter: Option<&'a Filter>,
    /// Time after which points are no longer compared and the result is partial. `None` is no
    /// limit.
    pub deadline: Option<Instant>,
}

/// Minimum candidates of a segment with an index.
const SEGMENT_CANDIDATES_MIN: usize = 16;
/// Score of a point without an index, which is ranked before all others.
const UNINDEXED: f32 = f32::MAX;

impl Collection {
    /// Returns the best points by `scorer` among the candidates of the index of edges. The coarse
    /// score of a hit is the score of its [`matching::index::EdgeHit`], or 0 without an index.
    ///
    /// # Errors
    /// `InvalidArgument` for too many candidates or a wrong filter. Damaged data makes the result
    /// partial, as do points without an index beyond the limit.
    pub fn identify<S: Scorer + Clone + 'static>(
        &self,
        thread: &mut SearchThread,
        query: &PrintQuery<'_>,
        scorer: &S,
    ) -> Result<QueryHits> {
        if query.candidates > PRINT_CANDIDATES_MAX {
            return Err(Error::invalid(format!(
                "{} candidates are more than {PRINT_CANDIDATES_MAX}",
                query.candidates
            )));
        }
        if let Some(filter) = query.filter {
            filter.check()?;
        }
        let state = self.read_state();
        let views: Vec<&SegmentView> = state.open().map(|(_, _, view)| view).collect();
        let mut found = self.begin(&state);
        let mut ranked = self.unindexed(query, &state, &views, &mut found)?;
        ranked.extend(self.indexed(thread, query, &views, &mut found)?);
        let scored =
            CollectionQuery { deadline: query.deadline, ..CollectionQuery::nearest(&[], query.k) };
        let mut running =
            RunningQuery { collection: self, thread, query: &scored, found: &mut found };
        running.score_all(scorer, &views, &ranked)?;
        for hit in &mut found.hits {
            if hit.coarse == UNINDEXED {
                hit.coarse = 0.0;
            }
        }
        Ok(found)
    }

    /// Returns the points without an index.
    fn unindexed<'s>(
        &self,
        query: &PrintQuery<'_>,
        state: &'s CollectionState,
        views: &[&SegmentView],
        found: &mut QueryHits,
    ) -> Result<Vec<RankedPoint<'s>>> {
        let mut ranked = Vec::new();
        let mut matching = MemtableFilter::new(query.filter);
        for memtable in &state.memtables {
            for (_, row) in memtable.live() {
                if matching.allows(row) {
                    let place = HitLocation::Memtable(row);
                    ranked.push(RankedPoint { coarse: UNINDEXED, id: row.id, place });
                }
            }
        }
        matching.check()?;
        for (at, view) in (0..).zip(views) {
            if view.segment.edges().is_some() {
                continue;
            }
            let filtered = self.filtered(query.filter, view, &mut found.partial)?;
            let allow = filtered.as_ref().or(view.allowed().map(Arc::as_ref));
            let rows = (0..view.segment.rows())
                .filter(|&row| allow.is_none_or(|allow| allow.contains(row)));
            let points = rows.filter_map(|row| {
                let id = view.segment.ids().id(row)?;
                let place = HitLocation::Segment(at, row);
                Some(RankedPoint { coarse: UNINDEXED, id, place })
            });
            // One too many shows that points are left out.
            let room = (PRINT_CANDIDATES_MAX + 1).saturating_sub(ranked.len());
            ranked.extend(points.take(room));
        }
        found.partial |= ranked.len() > PRINT_CANDIDATES_MAX;
        ranked.truncate(PRINT_CANDIDATES_MAX);
        Ok(ranked)
    }

    /// Returns the best points of all indexes.
    ///
    /// The candidates of a segment are proportional to its rows. Scores depend on how common the
    /// edges are in a segment, so scores of different segments cannot be compared.
    fn indexed(
        &self,
        thread: &mut SearchThread,
        query: &PrintQuery<'_>,
        views: &[&SegmentView],
        found: &mut QueryHits,
    ) -> Result<Vec<RankedPoint<'static>>> {
        let mut segments = Vec::new();
        for (at, view) in (0..).zip(views.iter().copied()) {
            if view.segment.edges().is_some() {
                let allow = self.allowed(query.filter, view, &mut found.partial)?;
                let rows = allow.as_ref().map_or(view.segment.rows(), |allow| allow.count());
                let segment = view.segment.clone();
                segments.push(IndexedSegment { at, segment, allow, rows, count: 0 });
            }
        }
        let all: u64 = segments.iter().map(|segment| u64::from(segment.rows)).sum();
        segments.retain(|segment| segment.rows > 0);
        for segment in &mut segments {
            segment.count = share(query.candidates, segment.rows, all);
        }
        let voted = thread.count_votes(query.edges, segments, query.deadline)?;
        found.partial |= voted.late;
        Ok(voted.ranked)
    }
}

/// Returns the part of `candidates` for a segment with `rows` of `all` rows.
fn share(candidates: usize, rows: u32, all: u64) -> usize {
    let part = (candidates as u64 * u64::from(rows)).div_ceil(all.max(1)) as usize;
    part.max(SEGMENT_CANDIDATES_MIN).min(rows as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_share_the_candidates_by_their_rows() {
        assert_eq!(share(10_000, 900_000, 1_000_000), 9_000);
        assert_eq!(share(10_000, 1_000, 1_000_000), SEGMENT_CANDIDATES_MIN);
        assert_eq!(share(10_000, 10, 1_000_000), 10);
        assert_eq!(share(4_096, 3_000, 3_000), 3_000);
    }
}
