//! Queries of a collection. The coarse filter runs over all segments and memtables. Then the exact
//! stage scores the best candidates.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Instant;

use base::{Error, ErrorKind, Result};
use coarse::{
    Coarse, CoarseRequest, CoarseScratch, RabitqCandidate, ReadCodes, RowSet, SQUARE_MAX,
    ScanHelpers, ScanParams,
};
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
use crate::filter::Filter;
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
    /// Points that the exact stage compares, at least `k`.
    pub candidates: usize,
    /// Effort of the coarse stage.
    pub params: ScanParams,
    /// Condition that hits must match, or `None` for all points.
    pub filter: Option<&'a Filter>,
    /// True if the coarse stage reads embeddings from the medium to rank candidates exactly. Seldom
    /// useful if a scorer decides in the end.
    pub exact: bool,
    /// Time after which codes are no longer read, points are no longer compared, and the result is
    /// partial. `None` is no limit.
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

    /// Closes files of earlier queries that nothing else holds, such as those of merged segments.
    /// For a thread that waits for queries.
    ///
    /// # Errors
    /// The error of a reader.
    pub(crate) fn close_unused_files(&mut self) -> Result<()> {
        self.searcher.close_unused_files()?;
        self.vectors.close_unused_files()?;
        self.codes.as_mut().map_or(Ok(()), |codes| codes.reader.close_unused_files())
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

/// Query that runs on one thread, and its result so far.
pub(super) struct RunningQuery<'r> {
    pub(super) collection: &'r Collection,
    pub(super) thread: &'r mut SearchThread,
    pub(super) query: &'r CollectionQuery<'r>,
    pub(super) found: &'r mut QueryHits,
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
        let state = self.read_state();
        let views: Vec<&SegmentView> = state.open().map(|(_, _, view)| view).collect();
        let mut found = self.begin(&state);
        let mut running = RunningQuery { collection: self, thread, query, found: &mut found };
        let best = running.coarse(&state, &views, query.k)?;
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
        let state = self.read_state();
        let views: Vec<&SegmentView> = state.open().map(|(_, _, view)| view).collect();
        let mut found = self.begin(&state);
        let mut running = RunningQuery { collection: self, thread, query, found: &mut found };
        let count = query.candidates.max(query.k);
        let ranked = running.coarse(&state, &views, count)?.sorted();
        running.score_all(scorer, &views, &ranked)?;
        Ok(found)
    }

    /// Returns the result of a query on `state` before its first hit.
    pub(super) fn begin(&self, state: &CollectionState) -> QueryHits {
        QueryHits { partial: self.is_partial(state), ..QueryHits::default() }
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
                "the query's vector has the length {:.1e}, but it must be at most {:.1e}; scale it",
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
        let sketch = SketchQuery::new(metric, query.embedding);
        let mut matching = MemtableFilter::new(query.filter);
        for memtable in &state.memtables {
            memtable.scan(&sketch, best.floor, |row| {
                let coarse = similarity(metric, query.embedding, &row.embedding);
                // Similarity is compared first, because a filter parses the payload.
                if coarse >= best.floor && matching.allows(row) {
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

    /// Returns true if a query takes so long that threads should share it.
    fn is_long(&self, query: &CollectionQuery<'_>, order: &SegmentOrder<'_>) -> bool {
        let rows: u64 = order.iter().map(|(_, view)| u64::from(view.segment.index().rows())).sum();
        let values = rows * self.options.shape.dims as u64;
        query.filter.is_some() || values >= self.options.shared_values_min
    }

    /// Returns the live rows of a segment that match `filter`, or `None` for all rows. Sets
    /// `partial` if some payloads cannot be read.
    pub(super) fn allowed(
        &self,
        filter: Option<&Filter>,
        view: &SegmentView,
        partial: &mut bool,
    ) -> Result<Option<Arc<RowSet>>> {
        let filtered = self.filtered(filter, view, partial)?;
        Ok(filtered.map(Arc::new).or_else(|| view.allowed().cloned()))
    }

    /// Makes the thread's reader of codes, if the segment needs one and there is memory for it.
    /// Without one, codes are read one after the other.
    pub(super) fn ready_codes(&self, thread: &mut SearchThread, segment: &Segment) {
        if thread.codes.is_some() || !segment.reads_codes() {
            return;
        }
        let bytes = (CODES_READER.depth * CODES_READER.read_bytes_max) as u64;
        let Some(held) = self.budget.reserve_if_free(bytes) else { return };
        match self.medium.reader(CODES_READER) {
            Ok(reader) => thread.codes = Some(CodesThread { reader, _held: held }),
            Err(error) => tracing::debug!(%error, "codes are read one after the other"),
        }
    }
}

impl RunningQuery<'_> {
    /// Leaves the best candidates by `scorer` in `found`. Idle threads take parts of many
    /// candidates, with one clone of `scorer` for all of them.
    pub(super) fn score_all<S: Scorer + Clone + 'static>(
        &mut self,
        scorer: &S,
        views: &[&SegmentView],
        ranked: &[RankedPoint<'_>],
    ) -> Result<()> {
        let CollectionQuery { k, deadline, .. } = *self.query;
        self.found.candidates = ranked.len() as u64;
        self.found.hits = Vec::new();
        let unflushed: Vec<UnflushedPoint> = ranked.iter().filter_map(UnflushedPoint::of).collect();
        self.thread.score_unflushed(scorer, unflushed, deadline, self.found)?;
        let candidates: Vec<RerankCandidate> = ranked.iter().filter_map(in_segment).collect();
        if !candidates.is_empty() {
            self.rerank(scorer, views, candidates)?;
        }
        self.found.hits.sort_by(|a, b| better((a.score, a.id), (b.score, b.id)));
        self.found.hits.truncate(k);
        Ok(())
    }

    /// Adds the hits among the candidates in segments to `found`.
    fn rerank<S: Scorer + Clone + 'static>(
        &mut self,
        scorer: &S,
        views: &[&SegmentView],
        candidates: Vec<RerankCandidate>,
    ) -> Result<()> {
        let CollectionQuery { k, deadline, .. } = *self.query;
        let segments: Arc<[Arc<dyn Records>]> =
            views.iter().map(|view| view.segment.clone() as Arc<dyn Records>).collect();
        let answer = self.thread.rerank(scorer, segments, candidates, k, deadline)?;
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
                self.found.hits.push(QueryHit { id, score: *score, coarse: candidate.coarse });
            }
        }
        self.found.partial |= answer.partial;
        self.found.compared += answer.scored;
        self.found.damaged += answer.damaged_count;
        self.found.reads += answer.reads;
        self.found.cached += answer.cached;
        Ok(())
    }

    /// Returns the best `count` rows of all segments and memtables.
    fn coarse<'s>(
        &mut self,
        state: &'s CollectionState,
        views: &[&SegmentView],
        count: usize,
    ) -> Result<BestPoints<'s>> {
        self.collection.check_query(self.query, count)?;
        let mut best = BestPoints::new(count, f32::NEG_INFINITY);
        self.collection.scan_memtables(self.query, state, &mut best)?;
        let order = SegmentOrder::new(views.iter().copied());
        self.coarse_segments(&order, &mut best)?;
        Ok(best)
    }

    /// Offers the best rows of segments to `best`. Threads that are idle take some of them.
    fn coarse_segments(
        &mut self,
        order: &SegmentOrder<'_>,
        best: &mut BestPoints<'_>,
    ) -> Result<()> {
        let query = self.query;
        if order.iter().len() > 1 {
            let segments = order.iter().map(|(at, view)| (at, view.clone())).collect();
            let search = SegmentsSearch::new(query, best.count, best.floor, segments);
            let is_long = self.collection.is_long(query, order);
            let helpers = self.thread.idle_helpers().filter(|_| is_long);
            // One thread that defers nothing has less to do if each segment raises the floor.
            if helpers.is_some() || search.defers() {
                let search = Arc::new(search);
                if let Some(helpers) = helpers {
                    helpers.offer(helpers.idle().min(search.parts() - 1), search.clone());
                }
                return search.finish(self, best);
            }
        }
        for (at, view) in order.iter() {
            let params = query.params;
            let floor = best.floor;
            let request = CoarseRequest { params, floor, ..CoarseRequest::best(best.count) };
            self.coarse_segment(view, request, None)?;
            best.offer_hits(at, view, &self.thread.hits);
            best.keep();
        }
        Ok(())
    }

    /// Returns the rows of one segment that are to be compared exactly, best first.
    pub(super) fn segment_candidates(
        &mut self,
        view: &SegmentView,
        request: CoarseRequest<'_>,
    ) -> Result<Vec<RabitqCandidate>> {
        let query = self.query;
        let allow = self.collection.allowed(query.filter, view, &mut self.found.partial)?;
        if allow.as_deref().is_some_and(RowSet::is_empty) {
            return Ok(Vec::new());
        }
        self.collection.ready_codes(self.thread, &view.segment);
        let SearchThread { scratch, vectors, codes, .. } = &mut *self.thread;
        // The source of exact scores is not used in this step; its presence limits the candidates.
        let exact = view.segment.exact(&mut **vectors);
        let codes = view.segment.codes(codes_reader(codes), query.deadline);
        let request = CoarseRequest {
            allow: allow.as_deref(),
            exact: Some(&exact),
            codes: codes.as_ref().map(|codes| codes as &dyn ReadCodes),
            ..request
        };
        let candidates = view.segment.index().candidates(query.embedding, &request, scratch);
        note_codes(self.found, codes.as_ref());
        candidates
    }

    /// Compares candidates of one segment exactly, and leaves the best rows in
    /// [`SearchThread::hits`].
    pub(super) fn compare_segment(
        &mut self,
        view: &SegmentView,
        request: CoarseRequest<'_>,
        candidates: &[RabitqCandidate],
    ) -> Result<()> {
        let SearchThread { scratch, hits, vectors, .. } = &mut *self.thread;
        let exact = view.segment.exact(&mut **vectors);
        let request = CoarseRequest { exact: Some(&exact), ..request };
        let embedding = self.query.embedding;
        view.segment.index().compare(embedding, &request, candidates, scratch, hits)?;
        note_lost(self.found, exact.lost());
        Ok(())
    }

    /// Leaves the best rows of one segment in [`SearchThread::hits`], or the rows to compare
    /// exactly if `search` defers that. `search` is the search of several segments that this one
    /// belongs to, or `None` if it stands alone.
    pub(super) fn coarse_segment(
        &mut self,
        view: &SegmentView,
        request: CoarseRequest<'_>,
        search: Option<&SegmentsSearch>,
    ) -> Result<HitScores> {
        let mut scores = HitScores::Final;
        self.thread.hits.clear();
        let query = self.query;
        let allow = self.collection.allowed(query.filter, view, &mut self.found.partial)?;
        if allow.as_deref().is_some_and(RowSet::is_empty) {
            return Ok(scores);
        }
        self.collection.ready_codes(self.thread, &view.segment);
        let SearchThread { scratch, hits, vectors, helpers, codes, .. } = &mut *self.thread;
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
            note_lost(self.found, exact.lost());
        } else {
            index.search(query.embedding, &request, scratch, hits)?;
        }
        note_codes(self.found, codes.as_ref());
        if let Some(lists) = &lists {
            lists.note_unread(self.found);
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
            Some(RerankCandidate { segment, row, id: ranked.id, coarse: ranked.coarse })
        }
        HitLocation::Memtable(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use coarse::Metric;
    use os::Rate;
    use storage::{Read, UringMedium};

    use super::*;
    use crate::budget::MemoryBudget;
    use crate::collection::helpers::tests::limits;
    use crate::collection::{CollectionOptions, Resources};
    use crate::rerank::SharedCaches;

    /// Reader that counts the calls that close files.
    struct CountedReader(Arc<AtomicUsize>);

    impl Reader for CountedReader {
        fn room(&self) -> usize {
            0
        }

        fn in_flight(&self) -> usize {
            0
        }

        fn submit(&mut self, _: Read<'_>) -> Result<()> {
            Err(Error::internal("it reads nothing"))
        }

        fn complete(&mut self, _: usize, _: &mut dyn FnMut(u64, Result<&[u8]>)) -> Result<usize> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(0)
        }
    }

    #[test]
    fn a_waiting_thread_closes_unused_files() {
        let root = tempfile::tempdir().unwrap();
        let medium = Arc::new(UringMedium::plain(root.path().to_owned()).unwrap());
        let budget = MemoryBudget::new(64 << 20);
        let resources = Resources::new(budget.clone(), 1 << 20, Rate::unlimited()).unwrap();
        let options = CollectionOptions::new(8, Metric::L2);
        let shared = Arc::new(SharedCaches::new(0, 512));
        let collection = Collection::open(medium, options, &resources, shared).unwrap();
        let mut thread = collection.thread(limits()).unwrap();
        let closed = Arc::<AtomicUsize>::default();
        thread.vectors = Box::new(CountedReader(closed.clone()));
        let reader = Box::new(CountedReader(closed.clone()));
        let memory = budget.reserve(0, "a test").unwrap();
        thread.codes = Some(CodesThread { reader, _held: memory });
        thread.close_unused_files().unwrap();
        assert_eq!(closed.load(Ordering::Relaxed), 2);
    }
}
