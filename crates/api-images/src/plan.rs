//! A search on a search thread: candidates, exact comparison of keypoints, and the points of the
//! hits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, Result};
use image_features::collection::ImageCollection;
use matching::index::EdgeQuery;
use matching::rank::{StageScores, best_first};
use matching::{Explanation, Graph, Probe};
use search::collection::{
    CollectionQuery, PointCount, PointParts, PrintQuery, QueryHit, QueryHits, SearchThread,
    SliceOutcome, SliceProgress, in_slice,
};
use search::filter::Filter;
use search::points::FetchedPoint;
use search::registry::{NamedCollection, Registry, TaskProgress};
use tokio::sync::oneshot;

use super::query_features::QueryFeatures;

/// Maximum candidates whose embeddings are read, so that candidates without matching keypoints are
/// ranked by their exact similarity.
const EXACT_MAX: usize = 1000;

/// Scores records against the query's keypoints.
#[derive(Clone)]
struct Matcher(Arc<Probe>);

impl search::Scorer for Matcher {
    type Scratch = matching::Scratch;

    fn scratch(&self) -> matching::Scratch {
        matching::Scratch::new()
    }

    fn score(&self, record: &[u8], scratch: &mut matching::Scratch) -> Result<f32> {
        // A point without an image has no keypoints that could match.
        if record.is_empty() {
            return Ok(0.0);
        }
        matching::score(&self.0, record, scratch)
    }
}

/// A candidate that the coarse filter of a whole collection has chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ChosenPoint {
    /// Internal id.
    pub(crate) id: u64,
    /// Similarity of the embeddings.
    pub(crate) coarse: f32,
}

/// Origin of the images that the exact stage compares.
#[derive(Clone)]
pub(crate) enum CandidateSource {
    /// The most similar embeddings.
    Embeddings,
    /// The index of the edges of fingerprints.
    Edges(EdgeQuery),
    /// The given images. Ids that no image has are left out.
    Chosen(Arc<[ChosenPoint]>),
}

#[derive(Clone)]
pub(crate) struct SearchPlan {
    pub(crate) k: usize,
    pub(crate) most: usize,
    /// True if the limit of candidates is below the share that should be compared.
    pub(crate) cut: bool,
    pub(crate) threshold: f32,
    pub(crate) explain: bool,
    pub(crate) clause: Option<Filter>,
    pub(crate) source: CandidateSource,
    pub(crate) deadline: Instant,
}

/// Keypoints of a found image, and the matched pairs.
pub(crate) struct ImageMatch {
    pub(crate) graph: Graph,
    pub(crate) explanation: Explanation,
}

pub(crate) struct SearchHit {
    pub(crate) hit: QueryHit,
    pub(crate) point: FetchedPoint,
    /// Present if the query wants it.
    pub(crate) matched: Option<ImageMatch>,
}

pub(crate) struct SearchResult {
    pub(crate) hits: Vec<SearchHit>,
    pub(crate) coverage: Coverage,
    pub(crate) partial: bool,
}

impl SearchResult {
    pub(crate) fn any_accepted(&self, threshold: f32) -> bool {
        self.hits.iter().any(|hit| hit.hit.score >= threshold)
    }
}

/// Numbers of compared records and of records that the filter allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coverage {
    pub(crate) compared: u64,
    pub(crate) of: u64,
}

impl SearchPlan {
    /// Runs the search on a search thread.
    ///
    /// # Errors
    /// `Unavailable` if no thread can take it; the errors of the collection.
    pub(crate) async fn submit(
        self,
        registry: &Registry,
        target: &ImageCollection,
        features: &QueryFeatures,
    ) -> Result<SearchResult> {
        let probe = Arc::new(Probe::new(&features.graph, matching::MatchOptions::default()));
        let embedding = features.embedding.clone();
        let deadline = self.deadline;
        let work = move |named: &NamedCollection, thread: &mut SearchThread| {
            self.run(named, thread, &embedding, &probe)
        };
        on_search_thread(registry, &target.named, deadline, work).await
    }

    /// Searches and reads the hits. Only a filter that reads payloads pauses. Then the search runs
    /// again from its start, with the rows that the filter has found so far.
    fn run(
        &self,
        named: &NamedCollection,
        thread: &mut SearchThread,
        embedding: &[f32],
        probe: &Arc<Probe>,
    ) -> Result<SearchResult> {
        let found = self.candidates(named, thread, embedding, &Matcher(probe.clone()))?;
        let rows = count_allowed(named, self.clause.as_ref())?;
        // Points may be deleted during the count.
        let compared = found.compared;
        let coverage = Coverage { compared, of: rows.count.max(compared) };
        let hits = match self.source {
            // The exact score alone ranks fingerprints; the search has done so.
            CandidateSource::Edges(_) => found.hits,
            CandidateSource::Embeddings | CandidateSource::Chosen(_) => {
                ranked(found.hits, self.threshold, self.k)
            }
        };
        let ids: Vec<u64> = hits.iter().map(|hit| hit.id).collect();
        let points = named
            .resolve(&ids, PointParts { embedding: false, record: self.explain, payload: true });
        let mut partial = found.partial || rows.partial || self.cut;
        let mut scratch = matching::Scratch::new();
        let mut kept = Vec::with_capacity(hits.len());
        for (hit, point) in hits.into_iter().zip(points) {
            // A point that was removed meanwhile is not a hit. A damaged point makes the result
            // partial.
            partial |= point.is_err();
            let Ok(Some(point)) = point else { continue };
            let matched = if self.explain { explain(probe, &point, &mut scratch) } else { None };
            kept.push(SearchHit { hit, point, matched });
        }
        Ok(SearchResult { hits: kept, coverage, partial })
    }

    /// Returns the candidates with their exact scores.
    fn candidates(
        &self,
        named: &NamedCollection,
        thread: &mut SearchThread,
        embedding: &[f32],
        matcher: &Matcher,
    ) -> Result<QueryHits> {
        let collection = named.collection();
        match &self.source {
            // All candidates are returned, because candidates without matching keypoints are ranked
            // by their embeddings.
            CandidateSource::Embeddings => {
                let most = self.most.max(self.k);
                let query =
                    coarse_query(embedding, most, self.clause.as_ref(), Some(self.deadline));
                collection.search(thread, &query, matcher)
            }
            CandidateSource::Edges(edges) => {
                let query = PrintQuery {
                    edges,
                    k: self.k,
                    candidates: self.most,
                    filter: self.clause.as_ref(),
                    deadline: Some(self.deadline),
                };
                collection.identify(thread, &query, matcher)
            }
            CandidateSource::Chosen(chosen) => {
                let ids: Vec<u64> = chosen.iter().map(|point| point.id).collect();
                let deadline = Some(self.deadline);
                let mut found =
                    collection.score_points(thread, &ids, ids.len(), matcher, deadline)?;
                let coarse: HashMap<u64, f32> =
                    chosen.iter().map(|point| (point.id, point.coarse)).collect();
                for hit in &mut found.hits {
                    hit.coarse = coarse.get(&hit.id).copied().unwrap_or_default();
                }
                Ok(found)
            }
        }
    }
}

/// Returns the query for the `candidates` images with the most similar embeddings.
pub(crate) fn coarse_query<'a>(
    embedding: &'a [f32],
    candidates: usize,
    filter: Option<&'a Filter>,
    deadline: Option<Instant>,
) -> CollectionQuery<'a> {
    CollectionQuery {
        candidates,
        filter,
        exact: candidates <= EXACT_MAX,
        deadline,
        ..CollectionQuery::nearest(embedding, candidates)
    }
}

/// Counts the images that a filter allows.
///
/// # Errors
/// Returns the errors of [`NamedCollection::count`].
pub(crate) fn count_allowed(
    named: &NamedCollection,
    clause: Option<&Filter>,
) -> Result<PointCount> {
    match clause {
        Some(clause) => named.count(Some(clause)),
        None => Ok(PointCount { count: named.collection().count(), partial: false }),
    }
}

/// Runs `work` on a search thread, again from its start after each pause of a filter that reads
/// payloads. Does not begin it, and does not continue it, once the caller has disconnected.
///
/// # Errors
/// `Unavailable` if no thread can take it; the errors of `work`.
pub(crate) async fn on_search_thread<T: Send + 'static>(
    registry: &Registry,
    named: &Arc<NamedCollection>,
    deadline: Instant,
    mut work: impl FnMut(&NamedCollection, &mut SearchThread) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    let mut sender = Some(sender);
    let progress = Arc::<SliceProgress>::default();
    let task = move |named: &NamedCollection, thread: &mut SearchThread| {
        // The client may have disconnected.
        if sender.as_ref().is_none_or(oneshot::Sender::is_closed) {
            return TaskProgress::Done;
        }
        let SliceOutcome::Done(found) = in_slice(deadline, &progress, || work(named, thread))
        else {
            return TaskProgress::Paused;
        };
        if let Some(sender) = sender.take() {
            drop(sender.send(found));
        }
        TaskProgress::Done
    };
    registry.submit_sliced(named, Box::new(task))?;
    receiver.await.map_err(|_| {
        Error::unavailable("no search thread could take the query; try again")
            .with_retry_after(Duration::from_secs(1))
    })?
}

/// Returns the matching keypoints of the query and of a point. `None` if the point's record has no
/// graph.
fn explain(
    probe: &Probe,
    point: &FetchedPoint,
    scratch: &mut matching::Scratch,
) -> Option<ImageMatch> {
    let graph = Graph::decode(&point.record).ok()?;
    let explanation = matching::explain(probe, &point.record, scratch).ok()?;
    Some(ImageMatch { graph, explanation })
}

/// Returns the best `k` hits by the rule of [`matching::rank`], and by id if they are equal.
fn ranked(mut hits: Vec<QueryHit>, threshold: f32, k: usize) -> Vec<QueryHit> {
    let scores = |hit: &QueryHit| StageScores { score: hit.score, coarse: hit.coarse };
    hits.sort_by(|a, b| best_first(threshold, scores(a), scores(b)).then(a.id.cmp(&b.id)));
    hits.truncate(k);
    hits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_hits_come_first_and_others_by_coarse_score() {
        let hit = |id, score, coarse| QueryHit { id, score, coarse };
        let hits = vec![
            hit(1, 99.0, 0.1),
            hit(2, 0.0, 0.9),
            hit(3, 150.0, 0.2),
            hit(4, 120.0, 0.8),
            hit(5, 5.0, 0.9),
        ];
        let order = |k| ranked(hits.clone(), 100.0, k).iter().map(|hit| hit.id).collect::<Vec<_>>();
        assert_eq!(order(5), [3, 4, 5, 2, 1]);
        assert_eq!(order(1), [3]);
        assert!(ranked(Vec::new(), 100.0, 3).is_empty());
    }

    #[test]
    fn a_point_without_keypoints_scores_zero() {
        use search::Scorer;
        let matcher =
            Matcher(Arc::new(Probe::new(&Graph::default(), matching::MatchOptions::default())));
        assert_eq!(matcher.score(&[], &mut matcher.scratch()), Ok(0.0));
        assert!(matcher.score(&[1], &mut matcher.scratch()).is_err());
    }
}
