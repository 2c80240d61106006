//! Queries: the coarse filter over all segments and memtables, then the exact stage over the best
//! candidates.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Instant;

use base::{Error, ErrorKind, Result};
use matching::index::EdgeScratch;
use storage::Reader;

use super::best::{BestPoints, HitLocation, QueryHit, QueryHits, RankedPoint, better, note_lost};
use super::exact::UnflushedPoint;
use super::filters::MemtableFilter;
use super::helpers::{Helpers, ListHelpers, SegmentOrder, SegmentsSearch};
use super::inner::Collection;
use super::options::CANDIDATES_MAX;
use super::state::{CollectionState, SegmentView};
use crate::budget::BudgetReservation;
use crate::coarse::{
    self, Coarse, CoarseRequest, CoarseScratch, RabitqCandidate, ReadCodes, SQUARE_MAX,
    ScanHelpers, ScanParams,
};
use crate::filter::{Filter, RowSet};
use crate::ingest::SketchQuery;
use crate::rerank::{Records, RerankCandidate, Scorer, Searcher};
use crate::segment::{CODES_READER, CodeReader, Segment, similarity};

/// Query for similar points.
#[derive(Clone, Copy, Debug)]
pub struct CollectionQuery<'a> {
    /// Vector to compare with.
    pub embedding: &'a [f32],
    /// Maximum hits.
    pub k: usize,
    /// Points that the exact stage compares; at least `k`.
    pub candidates: usize,
    /// Effort of the coarse stage.
    pub params: ScanParams,
    /// Condition that hits must match.
    pub filter: Option<&'a Filter>,
    /// True if the coarse stage reads embeddings from the medium to rank candidates exactly. Seldom
    /// useful if a scorer decides in the end.
    pub exact: bool,
    /// Time after which codes are no longer read, points are no longer compared, and the result is
    /// partial.
    pub deadline: Option<Instant>,
}

impl<'a> CollectionQuery<'a> {
    /// Creates a query for the `k` points with the most similar embeddings, ranked exactly.
    pub fn nearest(embedding: &'a [f32], k: usize) -> CollectionQuery<'a> {
        let params = ScanParams::default();
        CollectionQuery {
            embedding,
            k,
            candidates: k,
            params,
            filter: None,
            exact: true,
            deadline: None,
        }
    }
}

/// Readers of the medium and working memory of one search thread.
pub struct SearchThread {
    pub(super) scratch: CoarseScratch,
    pub(super) hits: Vec<coarse::CoarseHit>,
    pub(super) edges: EdgeScratch,
    pub(super) searcher: Searcher,
    pub(super) vectors: Box<dyn Reader>,
    /// Reader of codes, made by the first query that needs it.
    pub(super) codes: Option<CodesThread>,
    /// Threads that may take parts of a query.
    pub(super) helpers: Option<Arc<dyn Helpers>>,
}

impl SearchThread {
    /// Returns true if its readers work and have no reads in flight. Otherwise create another one.
    pub fn is_sound(&self) -> bool {
        let codes = self.codes.as_ref().map_or(0, |codes| codes.reader.in_flight());
        self.searcher.is_sound() && self.vectors.in_flight() == 0 && codes == 0
    }
}

/// Reader of codes of one search thread, and the memory of its buffers.
pub(super) struct CodesThread {
    pub(super) reader: Box<dyn Reader>,
    pub(super) _held: BudgetReservation,
}

/// Meaning of the scores that the search of a segment leaves in [`SearchThread::hits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HitScores {
    /// Scores of the result.
    Final,
    /// Upper bounds of exact scores.
    UpperBounds,
}

impl Collection {
    /// Returns the points whose embeddings are most similar to the query.
    ///
    /// # Errors
    /// `InvalidArgument` for a query that does not fit the collection. Damaged data makes the
    /// result partial.
    pub fn nearest(
        &self,
        thread: &mut SearchThread,
        query: &CollectionQuery<'_>,
    ) -> Result<QueryHits> {
        let state = self.state();
        let views: Vec<&SegmentView> = state.open().map(|(_, _, view)| view).collect();
        let mut found = self.begin(&state);
        let best = self.coarse(thread, query, &state, &views, query.k, &mut found)?;
        Ok(found.with(best))
    }

    /// Returns the best points by `scorer` among the points with the most similar embeddings.
    ///
    /// # Errors
    /// As [`Collection::nearest`].
    pub fn search<S: Scorer + Clone + 'static>(
        &self,
        thread: &mut SearchThread,
        query: &CollectionQuery<'_>,
        scorer: &S,
    ) -> Result<QueryHits> {
        let state = self.state();
        let views: Vec<&SegmentView> = state.open().map(|(_, _, view)| view).collect();
        let mut found = self.begin(&state);
        let count = query.candidates.max(query.k);
        let ranked = self.coarse(thread, query, &state, &views, count, &mut found)?.sorted();
        self.score_all(thread, query, scorer, &views, &ranked, &mut found)?;
        Ok(found)
    }

    /// Leaves the best candidates by `scorer` in `found`. Idle threads take parts of many
    /// candidates, with one clone of `scorer` for all of them.
    pub(super) fn score_all<S: Scorer + Clone + 'static>(
        &self,
        thread: &mut SearchThread,
        query: &CollectionQuery<'_>,
        scorer: &S,
        views: &[&SegmentView],
        ranked: &[RankedPoint<'_>],
        found: &mut QueryHits,
    ) -> Result<()> {
        found.candidates = ranked.len() as u64;
        found.hits = Vec::new();
        let unflushed: Vec<UnflushedPoint> = ranked.iter().filter_map(UnflushedPoint::of).collect();
        thread.score_unflushed(scorer, unflushed, query.deadline, found)?;
        let candidates: Vec<RerankCandidate> = ranked.iter().filter_map(in_segment).collect();
        if !candidates.is_empty() {
            self.rerank(thread, query, scorer, views, candidates, found)?;
        }
        found.hits.sort_by(|a, b| better((a.score, a.id), (b.score, b.id)));
        found.hits.truncate(query.k);
        Ok(())
    }

    pub(super) fn begin(&self, state: &CollectionState) -> QueryHits {
        QueryHits {
            partial: state.is_partial() || self.health.lock().log_damaged(),
            ..QueryHits::default()
        }
    }

    /// Adds the hits among the candidates in segments to `found`.
    fn rerank<S: Scorer + Clone + 'static>(
        &self,
        thread: &mut SearchThread,
        query: &CollectionQuery<'_>,
        scorer: &S,
        views: &[&SegmentView],
        candidates: Vec<RerankCandidate>,
        found: &mut QueryHits,
    ) -> Result<()> {
        let segments: Arc<[Arc<dyn Records>]> =
            views.iter().map(|view| view.segment.clone() as Arc<dyn Records>).collect();
        let answer = thread.rerank(scorer, segments, candidates, query.k, query.deadline)?;
        for damage in &answer.damaged {
            let view = views.get(damage.candidate.segment as usize);
            // A read that failed for another reason says nothing about the page.
            let is_lost = damage.error.kind() == ErrorKind::DataLoss;
            if let (Some(view), Some(page)) = (view, damage.page.filter(|_| is_lost)) {
                view.segment.note_page(page, damage.error.message());
            }
        }
        for (candidate, score) in &answer.hits {
            let view = views.get(candidate.segment as usize);
            if let Some(id) = view.and_then(|view| view.segment.ids().id(candidate.row)) {
                found.hits.push(QueryHit { id, score: *score, coarse: candidate.coarse });
            }
        }
        found.partial |= answer.partial;
        found.compared += answer.scored;
        found.damaged += answer.damaged_count;
        found.reads += answer.reads;
        found.cached += answer.cached;
        Ok(())
    }

    /// Returns the best `count` rows of all segments and memtables.
    fn coarse<'s>(
        &self,
        thread: &mut SearchThread,
        query: &CollectionQuery<'_>,
        state: &'s CollectionState,
        views: &[&SegmentView],
        count: usize,
        found: &mut QueryHits,
    ) -> Result<BestPoints<'s>> {
        self.check_query(query, count)?;
        let mut best = BestPoints::new(count, f32::NEG_INFINITY);
        self.scan_memtables(query, state, &mut best)?;
        let order = SegmentOrder::new(views.iter().copied());
        self.coarse_segments(thread, query, &order, &mut best, found)?;
        Ok(best)
    }

    /// Checks a query for `count` rows.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(super) fn check_query(&self, query: &CollectionQuery<'_>, count: usize) -> Result<()> {
        coarse::check_query(query.embedding, self.options.shape.dims, count)?;
        if count > CANDIDATES_MAX {
            return Err(Error::invalid(format!(
                "{count} candidates are more than {CANDIDATES_MAX}"
            )));
        }
        // The same limit as for points. Scores beyond it overflow, and such points are not found.
        let square: f64 =
            query.embedding.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
        let most = f64::from(SQUARE_MAX);
        if square > most {
            return Err(Error::invalid(format!(
                "the query's vector has the length {:.1e}, and one of {:.1e} at most can be \
                 compared; scale it",
                square.sqrt(),
                most.sqrt()
            )));
        }
        query.filter.map_or(Ok(()), Filter::check)
    }

    /// Offers the rows of the memtables to `best`.
    ///
    /// # Errors
    /// `DeadlineExceeded` if the query's filter could not read all of them in time.
    pub(super) fn scan_memtables<'s>(
        &self,
        query: &CollectionQuery<'_>,
        state: &'s CollectionState,
        best: &mut BestPoints<'s>,
    ) -> Result<()> {
        let metric = self.options.shape.metric;
        let asked = SketchQuery::new(metric, query.embedding);
        let mut matching = MemtableFilter::new(query.filter);
        for memtable in &state.memtables {
            memtable.scan(&asked, best.floor, |row| {
                if matching.allows(row) {
                    let coarse = similarity(metric, query.embedding, &row.embedding);
                    best.offer(RankedPoint {
                        coarse,
                        id: row.id,
                        place: HitLocation::Memtable(row),
                    });
                }
                best.floor
            });
        }
        best.keep();
        matching.check()
    }

    /// Offers the best rows of segments to `best`. Threads that are idle take some of them.
    fn coarse_segments(
        &self,
        thread: &mut SearchThread,
        query: &CollectionQuery<'_>,
        order: &SegmentOrder<'_>,
        best: &mut BestPoints<'_>,
        found: &mut QueryHits,
    ) -> Result<()> {
        if order.iter().len() > 1 {
            let segments = order.iter().map(|(at, view)| (at, view.clone())).collect();
            let search = SegmentsSearch::new(query, best.count, best.floor, segments);
            let helpers = thread.idle_helpers().filter(|_| self.is_long(query, order));
            // One thread that defers nothing has less to do if each segment raises the floor.
            if helpers.is_some() || search.defers() {
                let search = Arc::new(search);
                if let Some(helpers) = helpers {
                    helpers.offer(helpers.idle().min(search.parts() - 1), search.clone());
                }
                return search.finish(self, thread, best, found);
            }
        }
        for (at, view) in order.iter() {
            let params = query.params;
            let floor = best.floor;
            let request = CoarseRequest { params, floor, ..CoarseRequest::best(best.count) };
            self.coarse_segment(thread, query, view, request, None, found)?;
            best.offer_hits(at, view, &thread.hits);
            best.keep();
        }
        Ok(())
    }

    /// Returns true if a query takes so long that threads should share it.
    fn is_long(&self, query: &CollectionQuery<'_>, order: &SegmentOrder<'_>) -> bool {
        let rows: u64 = order.iter().map(|(_, view)| u64::from(view.segment.index().rows())).sum();
        let values = rows * self.options.shape.dims as u64;
        query.filter.is_some() || values >= self.options.shared_values_min
    }

    /// Returns the rows of a segment that a query may find, or `None` for all.
    pub(super) fn allowed(
        &self,
        query: &CollectionQuery<'_>,
        view: &SegmentView,
        found: &mut QueryHits,
    ) -> Result<Option<Arc<RowSet>>> {
        let filtered = self.filtered(query.filter, view, &mut found.partial)?;
        Ok(filtered.map(Arc::new).or_else(|| view.allowed().cloned()))
    }

    /// Returns the rows of one segment that are to be compared exactly, best first.
    pub(super) fn segment_candidates(
        &self,
        thread: &mut SearchThread,
        query: &CollectionQuery<'_>,
        view: &SegmentView,
        request: CoarseRequest<'_>,
        found: &mut QueryHits,
    ) -> Result<Vec<RabitqCandidate>> {
        let allow = self.allowed(query, view, found)?;
        if allow.as_deref().is_some_and(RowSet::is_empty) {
            return Ok(Vec::new());
        }
        self.ready_codes(thread, &view.segment);
        // The source of exact scores is not used in this step; its presence limits the candidates.
        let exact = view.segment.exact(&mut *thread.vectors);
        let codes = view.segment.codes(codes_reader(&mut thread.codes), query.deadline);
        let request = CoarseRequest {
            allow: allow.as_deref(),
            exact: Some(&exact),
            codes: codes.as_ref().map(|codes| codes as &dyn ReadCodes),
            ..request
        };
        let candidates =
            view.segment.index().candidates(query.embedding, &request, &mut thread.scratch);
        note_codes(found, codes.as_ref());
        candidates
    }

    /// Makes the thread's reader of codes, if the segment needs one and there is memory for it.
    /// Without one, codes are read one after the other.
    pub(super) fn ready_codes(&self, thread: &mut SearchThread, segment: &Segment) {
        if thread.codes.is_some() || !segment.reads_codes() {
            return;
        }
        let bytes = (CODES_READER.depth * CODES_READER.read_bytes_max) as u64;
        let Some(held) = self.budget.reserve_if_free(bytes, "a reader of codes") else { return };
        match self.medium.reader(CODES_READER) {
            Ok(reader) => thread.codes = Some(CodesThread { reader, _held: held }),
            Err(error) => tracing::debug!(%error, "codes are read one after the other"),
        }
    }

    /// Compares candidates of one segment exactly and leaves the best rows in `thread.hits`.
    pub(super) fn compare_segment(
        &self,
        thread: &mut SearchThread,
        query: &CollectionQuery<'_>,
        view: &SegmentView,
        request: CoarseRequest<'_>,
        candidates: &[RabitqCandidate],
        found: &mut QueryHits,
    ) -> Result<()> {
        let SearchThread { scratch, hits, vectors, .. } = thread;
        let exact = view.segment.exact(&mut **vectors);
        let request = CoarseRequest { exact: Some(&exact), ..request };
        view.segment.index().compare(query.embedding, &request, candidates, scratch, hits)?;
        note_lost(found, exact.lost());
        Ok(())
    }

    /// Leaves the best rows of one segment in `thread.hits`, or the rows to compare exactly if
    /// `search` defers that. `search` is the search of several segments that it belongs to, if
    /// threads share them.
    pub(super) fn coarse_segment(
        &self,
        thread: &mut SearchThread,
        query: &CollectionQuery<'_>,
        view: &SegmentView,
        request: CoarseRequest<'_>,
        search: Option<&SegmentsSearch>,
        found: &mut QueryHits,
    ) -> Result<HitScores> {
        let mut scores = HitScores::Final;
        thread.hits.clear();
        let allow = self.allowed(query, view, found)?;
        if allow.as_deref().is_some_and(RowSet::is_empty) {
            return Ok(scores);
        }
        self.ready_codes(thread, &view.segment);
        let SearchThread { scratch, hits, vectors, helpers, codes, .. } = thread;
        let codes = view.segment.codes(codes_reader(codes), query.deadline);
        let lists = helpers.as_deref().map(|helpers| ListHelpers {
            helpers,
            segment: &view.segment,
            allow: allow.as_ref(),
            deadline: query.deadline,
            search,
            unread: OnceCell::new(),
        });
        let helpers = lists.as_ref().map(|lists| lists as &dyn ScanHelpers);
        let index: &dyn Coarse = view.segment.index();
        let request = CoarseRequest {
            allow: allow.as_deref(),
            helpers,
            codes: codes.as_ref().map(|codes| codes as &dyn ReadCodes),
            ..request
        };
        if query.exact {
            let exact = view.segment.exact(&mut **vectors);
            let request = CoarseRequest { exact: Some(&exact), ..request };
            let defers = search.is_some_and(SegmentsSearch::defers);
            if defers && index.bounds(query.embedding, &request, scratch, hits)? {
                scores = HitScores::UpperBounds;
            } else {
                index.search(query.embedding, &request, scratch, hits)?;
            }
            note_lost(found, exact.lost());
        } else {
            index.search(query.embedding, &request, scratch, hits)?;
        }
        note_codes(found, codes.as_ref());
        if let Some(lists) = &lists {
            lists.note_unread(found);
        }
        Ok(scores)
    }
}

/// Records codes that were not read.
fn note_codes(found: &mut QueryHits, codes: Option<&CodeReader<'_>>) {
    let Some(codes) = codes else { return };
    note_lost(found, codes.lost());
    found.partial |= codes.is_late();
}

/// Returns the reader of codes of a thread, if it has one.
pub(super) fn codes_reader(codes: &mut Option<CodesThread>) -> Option<&mut dyn Reader> {
    codes.as_mut().map(|codes| &mut *codes.reader as &mut dyn Reader)
}

fn in_segment(ranked: &RankedPoint<'_>) -> Option<RerankCandidate> {
    match ranked.place {
        HitLocation::Segment(segment, row) => {
            Some(RerankCandidate { segment, row, coarse: ranked.coarse })
        }
        HitLocation::Memtable(_) => None,
    }
}
