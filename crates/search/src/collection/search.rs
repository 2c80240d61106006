//! Queries: the coarse filter over all segments and memtables, then the exact stage over the best
//! candidates.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Instant;

use base::{Error, Result};
use storage::Reader;

use super::filters::allows;
use super::inner::Collection;
use super::options::CANDIDATES_MAX;
use super::state::{CollectionState, SegmentView};
use crate::coarse::{self, Coarse, CoarseRequest, CoarseScratch, ScanParams};
use crate::filter::{Filter, RowSet};
use crate::ingest::{MemtableRow, SketchQuery};
use crate::rerank::{self, Records, RerankCandidate, Scorer, Searcher};
use crate::segment::similarity;

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
    /// Time after which points are no longer compared and the result is partial.
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

/// Point that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryHit {
    /// Id of the point.
    pub id: u64,
    /// Score of the scorer, or the coarse score if there is none; higher is more similar.
    pub score: f32,
    /// Similarity of the embeddings.
    pub coarse: f32,
}

/// Result of a query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueryHits {
    /// Hits, best first; equal scores by id.
    pub hits: Vec<QueryHit>,
    /// True if a point may be missing because data is damaged, a segment is not open yet or the
    /// deadline passed.
    pub partial: bool,
    /// Points that the exact stage was given.
    pub candidates: u64,
    /// Candidates that could not be read.
    pub damaged: u64,
    /// Reads of records.
    pub reads: u64,
    /// Records found in the cache.
    pub cached: u64,
}

/// Readers of the medium and working memory of one search thread.
pub struct SearchThread {
    pub(super) scratch: CoarseScratch,
    pub(super) hits: Vec<coarse::CoarseHit>,
    pub(super) searcher: Searcher,
    pub(super) vectors: Box<dyn Reader>,
}

impl SearchThread {
    /// Returns true if its readers work and have no reads in flight. Otherwise create another one.
    pub fn is_sound(&self) -> bool {
        self.searcher.is_sound() && self.vectors.in_flight() == 0
    }
}

/// Candidate from a segment or a memtable.
struct RankedPoint<'s> {
    coarse: f32,
    id: u64,
    place: HitLocation<'s>,
}

enum HitLocation<'s> {
    /// Index of the open segment, and the row.
    Segment(u32, u32),
    Memtable(&'s Arc<MemtableRow>),
}

/// Candidates kept beyond `2 * count` before the list is pruned.
const OFFERED: usize = 64;

/// Best candidates so far.
struct BestPoints<'s> {
    count: usize,
    ranked: Vec<RankedPoint<'s>>,
    /// Score of the last candidate, once `count` were found.
    floor: f32,
}

impl<'s> BestPoints<'s> {
    /// Adds a candidate if it can be among the best.
    #[inline]
    fn offer(&mut self, one: RankedPoint<'s>) {
        if one.coarse >= self.floor {
            self.ranked.push(one);
            if self.ranked.len() >= 2 * self.count + OFFERED {
                self.keep();
            }
        }
    }

    /// Prunes the list to the best `count`.
    fn keep(&mut self) {
        if self.count == 0 || self.ranked.len() < self.count {
            return self.ranked.truncate(self.count);
        }
        self.ranked.select_nth_unstable_by(self.count - 1, by_similarity);
        self.ranked.truncate(self.count);
        self.floor = self.ranked[self.count - 1].coarse;
    }
}

fn by_similarity(a: &RankedPoint<'_>, b: &RankedPoint<'_>) -> Ordering {
    better((a.coarse, a.id), (b.coarse, b.id))
}

/// Orders by descending score, then by id.
fn better(a: (f32, u64), b: (f32, u64)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
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
        let ranked = self.coarse(thread, query, &state, &views, query.k, &mut found)?;
        found.hits = ranked
            .iter()
            .map(|it| QueryHit { id: it.id, score: it.coarse, coarse: it.coarse })
            .collect();
        Ok(found)
    }

    /// Returns the best points by `scorer` among those with the most similar embeddings.
    ///
    /// # Errors
    /// As [`Collection::nearest`].
    pub fn search<S: Scorer>(
        &self,
        thread: &mut SearchThread,
        query: &CollectionQuery<'_>,
        scorer: &S,
    ) -> Result<QueryHits> {
        let state = self.state();
        let views: Vec<&SegmentView> = state.open().map(|(_, _, view)| view).collect();
        let mut found = self.begin(&state);
        let ranked =
            self.coarse(thread, query, &state, &views, query.candidates.max(query.k), &mut found)?;
        found.candidates = ranked.len() as u64;
        let mut hits = score_memtable_hits(&ranked, scorer, query, &mut found);
        let candidates: Vec<RerankCandidate> = ranked.iter().filter_map(in_segment).collect();
        if !candidates.is_empty() {
            self.rerank(thread, query, scorer, &views, candidates, &mut hits, &mut found)?;
        }
        hits.sort_by(|a, b| better((a.score, a.id), (b.score, b.id)));
        hits.truncate(query.k);
        found.hits = hits;
        Ok(found)
    }

    fn begin(&self, state: &CollectionState) -> QueryHits {
        QueryHits {
            partial: state.is_partial() || self.health.lock().log_damaged(),
            ..QueryHits::default()
        }
    }

    #[allow(clippy::too_many_arguments, reason = "what one query carries from stage to stage")]
    fn rerank<S: Scorer>(
        &self,
        thread: &mut SearchThread,
        query: &CollectionQuery<'_>,
        scorer: &S,
        views: &[&SegmentView],
        candidates: Vec<RerankCandidate>,
        hits: &mut Vec<QueryHit>,
        found: &mut QueryHits,
    ) -> Result<()> {
        let segments: Arc<[Arc<dyn Records>]> =
            views.iter().map(|view| view.segment.clone() as Arc<dyn Records>).collect();
        let answer = thread.searcher.one(rerank::RerankQuery {
            tag: 0,
            scorer,
            segments,
            k: query.k,
            candidates: rerank::all(candidates),
            deadline: query.deadline,
        })?;
        for damage in &answer.damaged {
            let view = views.get(damage.candidate.segment as usize);
            if let (Some(view), Some(page)) = (view, damage.page) {
                view.segment.note_page(page, damage.error.message());
            }
        }
        for (candidate, score) in &answer.hits {
            let view = views.get(candidate.segment as usize);
            if let Some(id) = view.and_then(|view| view.segment.ids().id(candidate.row)) {
                hits.push(QueryHit { id, score: *score, coarse: candidate.coarse });
            }
        }
        found.partial |= answer.partial;
        found.damaged += answer.damaged_count;
        found.reads += answer.reads;
        found.cached += answer.cached;
        Ok(())
    }

    /// Returns the best `count` rows of all segments and memtables, best first.
    fn coarse<'s>(
        &self,
        thread: &mut SearchThread,
        query: &CollectionQuery<'_>,
        state: &'s CollectionState,
        views: &[&SegmentView],
        count: usize,
        found: &mut QueryHits,
    ) -> Result<Vec<RankedPoint<'s>>> {
        coarse::check_query(query.embedding, self.options.shape.dims, count)?;
        if count > CANDIDATES_MAX {
            return Err(Error::invalid(format!(
                "{count} candidates are more than {CANDIDATES_MAX}"
            )));
        }
        if let Some(clause) = query.filter {
            clause.check()?;
        }
        let mut best = BestPoints { count, ranked: Vec::new(), floor: f32::NEG_INFINITY };
        let metric = self.options.shape.metric;
        let asked = SketchQuery::new(metric, query.embedding);
        for memtable in &state.memtables {
            memtable.scan(&asked, best.floor, |row| {
                if query.filter.is_none_or(|clause| allows(clause, row)) {
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
        // The largest segments hold most of the result, so the others have little left to read.
        let mut order: Vec<(u32, &SegmentView)> = (0..).zip(views.iter().copied()).collect();
        order.sort_by_key(|(_, view)| std::cmp::Reverse(view.segment.index().rows()));
        for (at, view) in order {
            let params = query.params;
            let request = CoarseRequest { params, floor: best.floor, ..CoarseRequest::best(count) };
            self.coarse_segment(thread, query, view, request, found)?;
            let ids = view.segment.ids();
            for hit in &thread.hits {
                // Rows whose exact score could not be read have the score minus infinity.
                let id = ids.id(hit.row).filter(|_| hit.score > f32::NEG_INFINITY);
                if let Some(id) = id {
                    best.offer(RankedPoint {
                        coarse: hit.score,
                        id,
                        place: HitLocation::Segment(at, hit.row),
                    });
                }
            }
            best.keep();
        }
        best.ranked.sort_unstable_by(by_similarity);
        Ok(best.ranked)
    }

    /// Leaves the best rows of one segment in `thread.hits`.
    fn coarse_segment(
        &self,
        thread: &mut SearchThread,
        query: &CollectionQuery<'_>,
        view: &SegmentView,
        request: CoarseRequest<'_>,
        found: &mut QueryHits,
    ) -> Result<()> {
        let SearchThread { scratch, hits, vectors, .. } = thread;
        hits.clear();
        let filtered = self.filtered(query.filter, view, &mut found.partial)?;
        let allow = filtered.as_ref().or(view.allowed().map(|allowed| &**allowed));
        if allow.is_some_and(RowSet::is_empty) {
            return Ok(());
        }
        let index: &dyn Coarse = view.segment.index();
        let ask = CoarseRequest { allow, ..request };
        if !query.exact {
            return index.search(query.embedding, &ask, scratch, hits);
        }
        let exact = view.segment.exact(&mut **vectors);
        index.search(
            query.embedding,
            &CoarseRequest { exact: Some(&exact), ..ask },
            scratch,
            hits,
        )?;
        if exact.lost() > 0 {
            found.partial = true;
            found.damaged += exact.lost();
        }
        Ok(())
    }
}

fn in_segment(ranked: &RankedPoint<'_>) -> Option<RerankCandidate> {
    match ranked.place {
        HitLocation::Segment(segment, row) => {
            Some(RerankCandidate { segment, row, coarse: ranked.coarse })
        }
        HitLocation::Memtable(_) => None,
    }
}

/// Scores the candidates of memtables.
fn score_memtable_hits<S: Scorer>(
    ranked: &[RankedPoint<'_>],
    scorer: &S,
    query: &CollectionQuery<'_>,
    found: &mut QueryHits,
) -> Vec<QueryHit> {
    let mut scratch = None;
    let mut hits = Vec::new();
    for it in ranked {
        let HitLocation::Memtable(row) = &it.place else { continue };
        if query.deadline.is_some_and(|deadline| Instant::now() > deadline) {
            found.partial = true;
            break;
        }
        match scorer.score(&row.record, scratch.get_or_insert_with(|| scorer.scratch())) {
            Ok(score) => hits.push(QueryHit { id: it.id, score, coarse: it.coarse }),
            Err(_) => {
                found.partial = true;
                found.damaged += 1;
            }
        }
    }
    hits
}
