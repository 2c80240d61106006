//! Finds images by an image: embedding and keypoints of the query, coarse filter, exact comparison
//! of keypoints, and the matched pairs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, Result};
use bytes::Bytes;
use matching::index::EdgeQuery;
use matching::rank::{StageScores, best_first};
use matching::{Explanation, Graph, Probe};
use metrics::KindLabels;
use search::collection::{
    CANDIDATES_MAX, CollectionQuery, PRINT_CANDIDATES_MAX, PointParts, PrintQuery, QueryHit,
    QueryHits, SearchThread, SliceOutcome, in_slice,
};
use search::filter::Filter;
use search::points::{FetchedPoint, PointId};
use search::registry::{NamedCollection, Registry, TaskProgress};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use vision::photo::PhotoView;

use super::collection::{ImageCollection, ImageKind};
use super::features::{self, BLOCK};
use super::prints;
use super::services::ImageServices;
use super::views::{self, ViewSearch, ViewsResult};

/// Most hits of one response.
const HITS_MAX: usize = 1000;
/// Default number of candidates that the exact stage compares. Embeddings of photographs of one
/// object are near each other.
const PHOTO_CANDIDATES: usize = 100;
/// Divisor of a collection's fingerprints that are compared by default, the best by the index of
/// their edges: 1 % (`docs/adr/0020-fingerprint-index.md`).
const PRINTS_SHARE: u64 = 100;
/// Fewest fingerprints that are compared by default: all of a small collection. They take a tenth
/// of a second.
const PRINTS_LEAST: u64 = 4096;

/// Most candidates whose embeddings are read, so that candidates without matching keypoints are
/// ranked by their exact similarity.
const EXACT_MAX: usize = 1000;

#[derive(Clone)]
pub(crate) struct ImageQuery {
    pub(crate) k: usize,
    /// Smallest score of an accepted image; `None` is the default of the kind.
    pub(crate) threshold: Option<f32>,
    pub(crate) candidates: Option<usize>,
    pub(crate) explain: bool,
    /// True to search for further views if nothing is accepted, false not to; `None` is true for
    /// files of photographs.
    pub(crate) views: Option<bool>,
    /// Filter in Qdrant's JSON.
    pub(crate) filter: Option<String>,
}

pub(crate) enum QueryImage {
    /// Bytes of a file.
    File(Bytes),
    /// Id of an image in the collection.
    Point(PointId),
}

/// Scores records against the query's keypoints.
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

pub(crate) struct QueryFeatures {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) graph: Graph,
    pub(crate) embedding: Vec<f32>,
    pub(crate) stages: Stages,
}

#[derive(Default)]
pub(crate) struct Stages {
    pub(crate) decode: Duration,
    pub(crate) embed: Duration,
    pub(crate) keypoints: Duration,
}

/// Features of a query, and what was found.
pub(crate) struct Found {
    features: QueryFeatures,
    pub(crate) result: SearchResult,
    /// Matches of further views, if they were searched for.
    views: Option<ViewsResult>,
    plan: SearchPlan,
    took: Duration,
}

/// Searches, and returns the response as JSON.
///
/// # Errors
/// Returns the errors of the image, the model and the collection; `InvalidArgument` for numbers out
/// of range.
pub(crate) async fn search(
    services: &ImageServices,
    name: &str,
    wanted: ImageQuery,
    image: QueryImage,
) -> Result<Value> {
    let target = ImageCollection::open(&*services.registry()?, name)?;
    Ok(answer(found(services, &target, &wanted, image).await?))
}

/// Searches a collection.
///
/// # Errors
/// As [`search`].
pub(crate) async fn found(
    services: &ImageServices,
    target: &ImageCollection,
    wanted: &ImageQuery,
    image: QueryImage,
) -> Result<Found> {
    let registry = services.registry()?;
    let limit = CandidateLimit::new(target, wanted)?;
    let clause = wanted
        .filter
        .as_deref()
        .map(|filter| api_qdrant::parse_filter(&target.named, filter))
        .transpose()?;
    let file = match &image {
        QueryImage::File(bytes) => Some(bytes.clone()),
        QueryImage::Point(_) => None,
    };
    check_views(wanted.views, target.kind, file.is_some())?;
    let features = match image {
        QueryImage::File(bytes) => extract(services, target, bytes).await?,
        QueryImage::Point(id) => stored(services, target, id).await?,
    };
    let threshold = wanted.threshold.unwrap_or_else(|| accept(target.kind));
    let edges = match target.kind {
        ImageKind::Photo => None,
        ImageKind::Fingerprint => Some(EdgeQuery::new(&features.graph)),
    };
    let plan = SearchPlan {
        k: wanted.k,
        most: limit.most,
        cut: limit.cut,
        threshold,
        explain: wanted.explain,
        clause,
        edges,
        deadline: Instant::now() + services.requests.limits.request_timeout,
    };
    let started = Instant::now();
    let result = plan.clone().submit(&registry, target, &features).await?;
    let took = started.elapsed();
    record(services, &features.stages, took);
    let file = file.filter(|_| target.kind == ImageKind::Photo && wanted.views != Some(false));
    let views = match file.filter(|_| !result.any_accepted(threshold)) {
        Some(file) => {
            let search = ViewSearch { services, registry: &registry, target, plan: &plan };
            let views = search.run(file, &features).await?;
            observe(services, "views", views.took);
            Some(views)
        }
        None => None,
    };
    Ok(Found { features, result, views, plan, took })
}

/// Checks that a setting for further views has an effect.
fn check_views(views: Option<bool>, kind: ImageKind, is_file: bool) -> Result<()> {
    match views {
        Some(true) if kind != ImageKind::Photo => Err(Error::invalid(
            "views=1 is for photographs; a fingerprint has no other views, leave it out",
        )),
        Some(true) if !is_file => Err(Error::invalid(
            "views=1 needs a file; an image of the collection is found as it is, leave it out",
        )),
        _ => Ok(()),
    }
}

/// Number of candidates of a query.
struct CandidateLimit {
    most: usize,
    /// True if the limit is below the share that should be compared.
    cut: bool,
}

impl CandidateLimit {
    /// # Errors
    /// `InvalidArgument` for numbers out of range.
    fn new(target: &ImageCollection, wanted: &ImageQuery) -> Result<CandidateLimit> {
        let (candidates, candidates_max) = match target.kind {
            ImageKind::Photo => (PHOTO_CANDIDATES as u64, CANDIDATES_MAX),
            ImageKind::Fingerprint => {
                (prints_compared(target.named.collection().count()), PRINT_CANDIDATES_MAX)
            }
        };
        let most = wanted.candidates.unwrap_or((candidates as usize).min(candidates_max));
        let cut = wanted.candidates.is_none() && candidates > candidates_max as u64;
        if !(1..=HITS_MAX).contains(&wanted.k) || !(1..=candidates_max).contains(&most) {
            return Err(Error::invalid(format!(
                "k is 1 to {HITS_MAX} and candidates 1 to {candidates_max}"
            )));
        }
        Ok(CandidateLimit { most, cut })
    }
}

/// Returns the smallest score at which images of this kind show the same subject.
pub(crate) fn accept(kind: ImageKind) -> f32 {
    match kind {
        ImageKind::Photo => vision::photo::ACCEPT,
        ImageKind::Fingerprint => vision::fingerprint::ACCEPT,
    }
}

/// Extracts the features of a file.
async fn extract(
    services: &ImageServices,
    target: &ImageCollection,
    bytes: Bytes,
) -> Result<QueryFeatures> {
    if target.kind == ImageKind::Fingerprint {
        return extract_print(services, bytes).await;
    }
    let embedder = services.embedder(Some(target), None)?;
    let kind = target.kind;
    let own = embedder.clone();
    let budget = services.requests.memory.clone();
    let work = move || {
        let memory = features::reserve(&budget, kind, &bytes, "")?;
        let started = Instant::now();
        let decoded = features::decoded(&memory, &bytes, "")?;
        let after_decode = Instant::now();
        let graph = features::keypoints(kind, &decoded)?.graph;
        let after_keypoints = Instant::now();
        let tensor = own.tensor(&decoded.image)?;
        let stages = Stages {
            decode: after_decode - started,
            keypoints: after_keypoints - after_decode,
            embed: after_keypoints.elapsed(),
        };
        let width = f64::from(decoded.image.width);
        let height = f64::from(decoded.image.height);
        Ok((QueryFeatures { width, height, graph, embedding: Vec::new(), stages }, tensor))
    };
    let (mut features, tensor) = services.pool.run(work).await?;
    let started = Instant::now();
    features.embedding = services.embed(&embedder, tensor).await?;
    features.stages.embed += started.elapsed();
    target.check_dims(features.embedding.len())?;
    Ok(features)
}

/// Extracts the minutiae of a file. The index needs no embedding, so no model runs.
async fn extract_print(services: &ImageServices, bytes: Bytes) -> Result<QueryFeatures> {
    let budget = services.requests.memory.clone();
    let work = move || {
        let print = prints::read(&budget, &bytes, "")?;
        Ok(QueryFeatures {
            width: f64::from(print.width),
            height: f64::from(print.height),
            graph: print.graph,
            embedding: Vec::new(),
            stages: Stages {
                decode: print.decode,
                keypoints: print.keypoints,
                embed: Duration::ZERO,
            },
        })
    };
    services.pool.run(work).await
}

/// Reads the features of an image in the collection.
async fn stored(
    services: &ImageServices,
    target: &ImageCollection,
    id: PointId,
) -> Result<QueryFeatures> {
    let named = target.named.clone();
    let work = move || {
        let point = named.get(&id)?;
        let point = point.ok_or_else(|| Error::not_found(format!("there is no image {id}")))?;
        let graph = Graph::decode(&point.record)?;
        let (width, height) = size(&point);
        let FetchedPoint { embedding, .. } = point;
        Ok(QueryFeatures { width, height, graph, embedding, stages: Stages::default() })
    };
    services.pool.run(work).await
}

fn size(point: &FetchedPoint) -> (f64, f64) {
    let of = |key: &str| {
        point.payload.get(BLOCK).and_then(|block| block.get(key)?.as_f64()).unwrap_or(0.0)
    };
    (of("width"), of("height"))
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
    /// Edges of a fingerprint; `None` for photographs, whose embeddings give the candidates.
    pub(crate) edges: Option<EdgeQuery>,
    pub(crate) deadline: Instant,
}

/// Keypoints of a found image, and the matched pairs.
struct ImageMatch {
    graph: Graph,
    explanation: Explanation,
}

pub(crate) struct SearchHit {
    pub(crate) hit: QueryHit,
    pub(crate) point: FetchedPoint,
    /// Present if the query wants it.
    matched: Option<ImageMatch>,
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

/// Returns the number of fingerprints that a search of `all` compares by default.
fn prints_compared(all: u64) -> u64 {
    (all / PRINTS_SHARE).max(PRINTS_LEAST)
}

impl SearchPlan {
    /// Runs the search on a search thread.
    ///
    /// # Errors
    /// `Unavailable` if no thread can take it; those of the collection.
    pub(crate) async fn submit(
        self,
        registry: &Registry,
        target: &ImageCollection,
        features: &QueryFeatures,
    ) -> Result<SearchResult> {
        let probe = Arc::new(Probe::new(&features.graph, matching::MatchOptions::default()));
        let (sender, receiver) = oneshot::channel();
        let embedding = features.embedding.clone();
        let mut sender = Some(sender);
        let work = move |named: &NamedCollection, thread: &mut SearchThread| {
            // The client may have disconnected.
            if sender.as_ref().is_none_or(oneshot::Sender::is_closed) {
                return TaskProgress::Done;
            }
            let search = || self.run(named, thread, &embedding, &probe);
            let SliceOutcome::Done(found) = in_slice(self.deadline, search) else {
                return TaskProgress::Paused;
            };
            if let Some(sender) = sender.take() {
                drop(sender.send(found));
            }
            TaskProgress::Done
        };
        registry.submit_sliced(&target.named, Box::new(work))?;
        receiver.await.map_err(|_| {
            Error::unavailable("no search thread could take the query; try again")
                .with_retry_after(Duration::from_secs(1))
        })?
    }

    /// Searches and reads the hits. Only a filter that reads payloads pauses; the search then runs
    /// again from its start, with the rows that the filter has found so far.
    fn run(
        &self,
        named: &NamedCollection,
        thread: &mut SearchThread,
        embedding: &[f32],
        probe: &Arc<Probe>,
    ) -> Result<SearchResult> {
        let found = self.candidates(named, thread, embedding, &Matcher(probe.clone()))?;
        let (of, unseen) = match &self.clause {
            Some(clause) => named.count(Some(clause)).map(|count| (count.count, count.partial))?,
            None => (named.collection().count(), false),
        };
        // Points may be deleted during the count.
        let compared = found.compared;
        let coverage = Coverage { compared, of: of.max(compared) };
        let hits = match self.edges {
            // The exact score alone ranks fingerprints; the search has done so.
            Some(_) => found.hits,
            None => ranked(found.hits, self.threshold, self.k),
        };
        let ids: Vec<u64> = hits.iter().map(|hit| hit.id).collect();
        let points = named
            .resolve(&ids, PointParts { embedding: false, record: self.explain, payload: true });
        let mut partial = found.partial || unseen || self.cut;
        let mut scratch = matching::Scratch::new();
        let mut kept = Vec::with_capacity(hits.len());
        for (hit, point) in hits.into_iter().zip(points) {
            // A point that was removed meanwhile is no hit. A damaged point makes the result
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
        if let Some(edges) = &self.edges {
            let query = PrintQuery {
                edges,
                k: self.k,
                candidates: self.most,
                filter: self.clause.as_ref(),
                deadline: Some(self.deadline),
            };
            return named.collection().identify(thread, &query, matcher);
        }
        // All candidates are returned, because candidates without matching keypoints are ranked by
        // their embeddings.
        let query = CollectionQuery {
            k: self.most.max(self.k),
            candidates: self.most.max(self.k),
            filter: self.clause.as_ref(),
            exact: self.most <= EXACT_MAX,
            deadline: Some(self.deadline),
            ..CollectionQuery::nearest(embedding, self.k)
        };
        named.collection().search(thread, &query, matcher)
    }
}

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

/// A result in the response.
pub(crate) struct ShownHit {
    pub(crate) id: u64,
    pub(crate) scores: StageScores,
    pub(crate) json: Value,
}

impl ShownHit {
    /// Returns the result for a hit of the photograph, or of a view of it.
    pub(crate) fn new(
        features: &QueryFeatures,
        view: Option<PhotoView>,
        found: &SearchHit,
        plan: &SearchPlan,
    ) -> ShownHit {
        let SearchHit { hit, point, matched } = found;
        let mut payload = point.payload.clone();
        let block = payload.remove(BLOCK).unwrap_or_default();
        let of = |key: &str| block.get(key).cloned().unwrap_or_default();
        let mut json = json!({
            "id": point.id, "score": hit.score, "coarse": hit.coarse, "accepted": hit.score >= plan.threshold,
            "name": of("name"), "payload": payload, "width": of("width"), "height": of("height"),
        });
        if plan.explain {
            json["pairs"] = pairs(features, view, point, matched.as_ref());
        }
        if let Some(view) = view {
            json["view"] = views::to_json(view);
        }
        let scores = StageScores { score: hit.score, coarse: hit.coarse };
        ShownHit { id: hit.id, scores, json }
    }
}

fn answer(found: Found) -> Value {
    let Found { features, result, views, plan, took } = found;
    let hits = result.hits.iter();
    let mut shown: Vec<ShownHit> =
        hits.map(|hit| ShownHit::new(&features, None, hit, &plan)).collect();
    let searched = views.as_ref().map_or(0, |views| views.searched);
    let views_took = views.as_ref().map_or(Duration::ZERO, |views| views.took);
    let partial = result.partial || views.as_ref().is_some_and(|views| views.partial);
    if let Some(views) = views {
        views::add(&mut shown, views.hits, &plan);
    }
    let results: Vec<Value> = shown.into_iter().map(|hit| hit.json).collect();
    let stages = &features.stages;
    json!({
        "results": results,
        "query": { "width": features.width as u64, "height": features.height as u64, "keypoints": features.graph.vertices.len() },
        "compared": result.coverage.compared, "of": result.coverage.of, "partial": partial, "views": searched,
        "stages": {
            "decode_ms": milliseconds(stages.decode), "embed_ms": milliseconds(stages.embed),
            "keypoints_ms": milliseconds(stages.keypoints), "search_ms": milliseconds(took),
            "views_ms": milliseconds(views_took),
        },
    })
}

/// Returns the matched keypoints: x and y in the query, then x and y in the found image.
fn pairs(
    features: &QueryFeatures,
    view: Option<PhotoView>,
    point: &FetchedPoint,
    matched: Option<&ImageMatch>,
) -> Value {
    let Some(ImageMatch { graph, explanation }) = matched else { return json!([]) };
    let (width, height) = size(point);
    let pairs = explanation.pairs.iter().filter_map(|pair| {
        let probe = at(&features.graph, usize::from(pair.probe), features.width, features.height)?;
        let probe = view.map_or(probe, |view| view.to_photograph(probe.0, probe.1));
        let record = at(graph, usize::from(pair.record), width, height)?;
        Some([probe.0, probe.1, record.0, record.1])
    });
    json!(pairs.collect::<Vec<_>>())
}

/// Returns the position of a vertex in pixels of its image, to a tenth.
pub(crate) fn at(graph: &Graph, vertex: usize, width: f64, height: f64) -> Option<(f64, f64)> {
    let vertex = graph.vertices.get(vertex)?;
    let scaled = |place: i16, frame: u16, side: f64| {
        let factor = if frame == 0 || side == 0.0 { 1.0 } else { side / f64::from(frame) };
        (f64::from(place) * factor * 10.0).round() / 10.0
    };
    Some((scaled(vertex.x, graph.width, width), scaled(vertex.y, graph.height, height)))
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn record(services: &ImageServices, stages: &Stages, search: Duration) {
    let all = [
        ("decode", stages.decode),
        ("embed", stages.embed),
        ("keypoints", stages.keypoints),
        ("search", search),
    ];
    for (kind, time) in all {
        observe(services, kind, time);
    }
}

/// Records the time of a stage.
fn observe(services: &ImageServices, kind: &'static str, time: Duration) {
    let seconds = &services.requests.metrics.images.search_seconds;
    seconds.get_or_create(&KindLabels { kind }).observe(time.as_secs_f64());
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
    fn small_collections_of_fingerprints_are_compared_whole() {
        assert_eq!(prints_compared(10), PRINTS_LEAST);
        assert_eq!(prints_compared(1_000_000), 10_000);
        assert!(prints_compared(10_000_000) > PRINT_CANDIDATES_MAX as u64);
    }

    #[test]
    fn a_point_without_keypoints_scores_zero() {
        use search::Scorer;
        let matcher =
            Matcher(Arc::new(Probe::new(&Graph::default(), matching::MatchOptions::default())));
        assert_eq!(matcher.score(&[], &mut matcher.scratch()), Ok(0.0));
        assert!(matcher.score(&[1], &mut matcher.scratch()).is_err());
    }

    #[test]
    fn positions_are_in_pixels_of_the_image() {
        let vertex = matching::Vertex { x: 50, y: 10, ..matching::Vertex::default() };
        let graph =
            Graph { width: 100, height: 100, vertices: vec![vertex], descriptors: Vec::new() };
        assert_eq!(at(&graph, 0, 200.0, 50.0), Some((100.0, 5.0)));
        assert_eq!(at(&graph, 1, 200.0, 50.0), None);
    }
}
