//! Queries that arrive together. One pass over the codes of a segment serves several of them.

use base::Result;
use coarse::{CoarseRequest, Exact, RowSet};

use super::best::{BestPoints, QueryHits};
use super::helpers::SegmentOrder;
use super::inner::Collection;
use super::search::{CollectionQuery, RunningQuery, SearchThread};
use super::state::SegmentView;

/// Query of a batch, with the hits that were found so far.
struct BatchRun<'q, 's> {
    query: &'q CollectionQuery<'q>,
    best: BestPoints<'s>,
    found: QueryHits,
}

impl BatchRun<'_, '_> {
    /// Returns true if one pass can serve both, because they have the same effort and no filter.
    fn shares_with(&self, other: &CollectionQuery<'_>) -> bool {
        let CollectionQuery { k, params, filter, exact, .. } = *self.query;
        let none = filter.is_none() && other.filter.is_none();
        none && k == other.k && params == other.params && exact == other.exact
    }
}

impl Collection {
    /// Returns true if a segment has so many codes to compare that queries should share the pass.
    pub fn shares_scans(&self) -> bool {
        self.read_state().open().any(|(_, _, view)| view.segment.index().shares_scans())
    }

    /// Runs [`Collection::nearest`] for several queries, on one state. Queries of the same effort
    /// without filters share passes over segments whose index compares all rows.
    ///
    /// # Errors
    /// As [`Collection::nearest`], for the first query that fails.
    pub fn nearest_many(
        &self,
        thread: &mut SearchThread,
        queries: &[CollectionQuery<'_>],
    ) -> Result<Vec<QueryHits>> {
        let state = self.read_state();
        let mut runs = Vec::with_capacity(queries.len());
        for query in queries {
            self.check_query(query, query.k)?;
            let mut best = BestPoints::new(query.k, f32::NEG_INFINITY);
            self.scan_memtables(query, &state, &mut best)?;
            runs.push(BatchRun { query, best, found: self.begin(&state) });
        }
        for (at, view) in SegmentOrder::new(state.open().map(|(_, _, view)| view)).iter() {
            if view.segment.index().shares_scans() {
                self.search_together(thread, at, view, &mut runs)?;
                continue;
            }
            for run in &mut runs {
                let query = run.query;
                let request = CoarseRequest {
                    params: query.params,
                    floor: run.best.floor,
                    ..CoarseRequest::best(query.k)
                };
                let found = &mut run.found;
                let mut running = RunningQuery { collection: self, thread, query, found };
                running.coarse_segment(view, request, None)?;
                run.best.offer_hits(at, view, &running.thread.hits);
                run.best.keep();
            }
        }
        Ok(runs.into_iter().map(|run| run.found.with(run.best)).collect())
    }

    /// Searches one segment for all queries, with one pass for the queries that can share it.
    fn search_together(
        &self,
        thread: &mut SearchThread,
        at: u32,
        view: &SegmentView,
        runs: &mut [BatchRun<'_, '_>],
    ) -> Result<()> {
        let mut left: Vec<usize> = (0..runs.len()).collect();
        while let Some(first) = left.first().copied() {
            let query = *runs[first].query;
            let (group, rest): (Vec<usize>, Vec<usize>) =
                left.into_iter().partition(|&run| run == first || runs[run].shares_with(&query));
            left = rest;
            let partial = &mut runs[first].found.partial;
            let allow = self.allowed(query.filter, view, partial)?;
            if allow.as_deref().is_some_and(RowSet::is_empty) {
                continue;
            }
            let queries: Vec<f32> =
                group.iter().flat_map(|&run| runs[run].query.embedding).copied().collect();
            let exact = view.segment.exact(&mut *thread.vectors);
            let source = query.exact.then_some(&exact as &dyn Exact);
            let request = CoarseRequest {
                params: query.params,
                allow: allow.as_deref(),
                exact: source,
                ..CoarseRequest::best(query.k)
            };
            let mut hits = Vec::new();
            view.segment.index().search_many(&queries, &request, &mut thread.scratch, &mut hits)?;
            let lost = exact.lost();
            for (&run, hits) in group.iter().zip(&hits) {
                let BatchRun { best, found, .. } = &mut runs[run];
                // The rows of all queries of the group were read together.
                found.partial |= lost > 0;
                found.damaged += lost;
                best.offer_hits(at, view, hits);
                best.keep();
            }
        }
        Ok(())
    }
}
