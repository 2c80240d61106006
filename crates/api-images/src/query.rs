//! Finds images by an image: embedding and keypoints of the query, coarse filter, exact comparison
//! of keypoints, and the matched pairs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, Result};
use bytes::Bytes;
use matching::rank::{StageScores, best_first};
use matching::{Explanation, Graph, Probe};
use metrics::KindLabels;
use search::collection::{CollectionQuery, PointParts, QueryHit, SearchThread};
use search::filter::Filter;
use search::points::{FetchedPoint, PointId};
use search::registry::NamedCollection;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::collection::{ImageCollection, ImageKind};
use super::features::{self, BLOCK};
use super::services::ImageServices;

/// Most hits of one response.
const HITS_MAX: usize = 1000;
/// Default number of candidates that the exact stage compares. Embeddings of photographs of one
/// object are near each other. Those of fingerprints are not, so all are compared up to this
/// number, and a response is partial if a collection has more.
const PHOTO_CANDIDATES: usize = 100;
const FINGERPRINT_CANDIDATES: usize = search::collection::CANDIDATES_MAX;

/// Most candidates whose embeddings are read, so that candidates without matching keypoints are
/// ranked by their exact similarity.
const EXACT_MAX: usize = 1000;

pub(crate) struct ImageQuery {
    pub(crate) k: usize,
    /// Smallest score of an accepted image; `None` is the default of the kind.
    pub(crate) threshold: Option<f32>,
    pub(crate) candidates: Option<usize>,
    pub(crate) explain: bool,
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

struct QueryFeatures {
    width: f64,
    height: f64,
    graph: Graph,
    embedding: Vec<f32>,
    stages: Stages,
}

#[derive(Default)]
struct Stages {
    decode: Duration,
    embed: Duration,
    keypoints: Duration,
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
    let registry = services.registry()?;
    let target = ImageCollection::open(&registry, name)?;
    let most = wanted.candidates.unwrap_or(match target.kind {
        ImageKind::Photo => PHOTO_CANDIDATES,
        ImageKind::Fingerprint => FINGERPRINT_CANDIDATES,
    });
    if !(1..=HITS_MAX).contains(&wanted.k)
        || !(1..=search::collection::CANDIDATES_MAX).contains(&most)
    {
        let candidates_max = search::collection::CANDIDATES_MAX;
        return Err(Error::invalid(format!(
            "k is 1 to {HITS_MAX} and candidates 1 to {candidates_max}"
        )));
    }
    let clause = wanted
        .filter
        .as_deref()
        .map(|filter| api_qdrant::parse_filter(&target.named, filter))
        .transpose()?;
    let features = match image {
        QueryImage::File(bytes) => extract(services, &target, bytes).await?,
        QueryImage::Point(id) => stored(services, &target, id).await?,
    };
    let probe = Arc::new(Probe::new(&features.graph, matching::MatchOptions::default()));
    let threshold = wanted.threshold.unwrap_or_else(|| accept(target.kind));
    let deadline = Instant::now() + services.requests.limits.request_timeout;
    let exhaustive = target.kind == ImageKind::Fingerprint && wanted.candidates.is_none();
    let plan = SearchPlan {
        k: wanted.k,
        most,
        exhaustive,
        threshold,
        explain: wanted.explain,
        clause,
        deadline,
    };
    let (sender, receiver) = oneshot::channel();
    let started = Instant::now();
    let embedding = features.embedding.clone();
    let work = move |named: &NamedCollection, thread: &mut SearchThread| {
        // The send fails only if the client has disconnected.
        drop(sender.send(plan.run(named, thread, &embedding, probe)));
    };
    registry.submit(&target.named, Box::new(work))?;
    let found = receiver.await.map_err(|_| {
        Error::unavailable("no search thread could take the query; try again")
            .with_retry_after(Duration::from_secs(1))
    })??;
    let took = started.elapsed();
    record(services, &features.stages, took);
    Ok(answer(&features, &found, threshold, wanted.explain, took))
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
    let embedder = services.embedder(Some(target), None)?;
    let kind = target.kind;
    let own = embedder.clone();
    let budget = services.requests.memory.clone();
    let work = move || {
        let memory = features::reserve(&budget, kind, &bytes, "")?;
        let started = Instant::now();
        let decoded = features::decoded(&memory, &bytes, "")?;
        let after_decode = Instant::now();
        let graph = features::keypoints(kind, &decoded)?;
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

struct SearchPlan {
    k: usize,
    most: usize,
    /// True if the search should compare every record.
    exhaustive: bool,
    threshold: f32,
    explain: bool,
    clause: Option<Filter>,
    deadline: Instant,
}

/// Keypoints of a found image, and the matched pairs.
struct ImageMatch {
    graph: Graph,
    explanation: Explanation,
}

struct SearchHit {
    hit: QueryHit,
    point: FetchedPoint,
    /// Present if the query wants it.
    matched: Option<ImageMatch>,
}

struct SearchResult {
    hits: Vec<SearchHit>,
    coverage: Coverage,
    partial: bool,
}

/// Numbers of compared records and of records that the filter allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Coverage {
    compared: u64,
    of: u64,
}

impl Coverage {
    /// Returns true if a search that should compare every record has left some out, because it
    /// reached its limit of `most`. Records that are added during the search do not count.
    fn is_cut(self, exhaustive: bool, most: usize) -> bool {
        exhaustive && self.compared >= most as u64 && self.compared < self.of
    }
}

impl SearchPlan {
    fn run(
        self,
        named: &NamedCollection,
        thread: &mut SearchThread,
        embedding: &[f32],
        probe: Arc<Probe>,
    ) -> Result<SearchResult> {
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
        let found = named.collection().search(thread, &query, &Matcher(probe.clone()))?;
        let (of, unseen) = match &self.clause {
            Some(clause) => named.count(Some(clause)).map(|count| (count.count, count.partial))?,
            None => (named.collection().count(), false),
        };
        // Points may be deleted during the count.
        let compared = found.hits.len() as u64;
        let coverage = Coverage { compared, of: of.max(compared) };
        let hits = ranked(found.hits, self.threshold, self.k);
        let ids: Vec<u64> = hits.iter().map(|hit| hit.id).collect();
        let points = named
            .resolve(&ids, PointParts { embedding: false, record: self.explain, payload: true });
        let mut partial = found.partial || unseen || coverage.is_cut(self.exhaustive, self.most);
        let mut scratch = matching::Scratch::new();
        let mut kept = Vec::with_capacity(hits.len());
        for (hit, point) in hits.into_iter().zip(points) {
            // A point that was removed meanwhile is no hit. A damaged point makes the result
            // partial.
            partial |= point.is_err();
            let Ok(Some(point)) = point else { continue };
            let matched = if self.explain { explain(&probe, &point, &mut scratch) } else { None };
            kept.push(SearchHit { hit, point, matched });
        }
        Ok(SearchResult { hits: kept, coverage, partial })
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

fn answer(
    features: &QueryFeatures,
    found: &SearchResult,
    threshold: f32,
    explained: bool,
    took: Duration,
) -> Value {
    let results: Vec<Value> = found
        .hits
        .iter()
        .map(|SearchHit { hit, point, matched }| {
            let mut payload = point.payload.clone();
            let block = payload.remove(BLOCK).unwrap_or_default();
            let of = |key: &str| block.get(key).cloned().unwrap_or_default();
            let mut result = json!({
                "id": point.id, "score": hit.score, "coarse": hit.coarse, "accepted": hit.score >= threshold,
                "name": of("name"), "payload": payload, "width": of("width"), "height": of("height"),
            });
            if explained {
                result["pairs"] = pairs(features, point, matched.as_ref());
            }
            result
        })
        .collect();
    let stages = &features.stages;
    json!({
        "results": results,
        "query": { "width": features.width as u64, "height": features.height as u64, "keypoints": features.graph.vertices.len() },
        "compared": found.coverage.compared, "of": found.coverage.of, "partial": found.partial,
        "stages": {
            "decode_ms": milliseconds(stages.decode), "embed_ms": milliseconds(stages.embed),
            "keypoints_ms": milliseconds(stages.keypoints), "search_ms": milliseconds(took),
        },
    })
}

/// Returns the matched keypoints: x and y in the query, then x and y in the found image.
fn pairs(features: &QueryFeatures, point: &FetchedPoint, matched: Option<&ImageMatch>) -> Value {
    let Some(ImageMatch { graph, explanation }) = matched else { return json!([]) };
    let (width, height) = size(point);
    let pairs = explanation.pairs.iter().filter_map(|pair| {
        let probe = at(&features.graph, usize::from(pair.probe), features.width, features.height)?;
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
        services
            .requests
            .metrics
            .images
            .search_seconds
            .get_or_create(&KindLabels { kind })
            .observe(time.as_secs_f64());
    }
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
    fn an_exhaustive_search_is_cut_if_it_leaves_records_out() {
        let most = FINGERPRINT_CANDIDATES;
        let cut = |compared: usize, of: usize, exhaustive| {
            Coverage { compared: compared as u64, of: of as u64 }.is_cut(exhaustive, most)
        };
        assert!(cut(most, most + 1, true) && !cut(most, most, true));
        assert!(!cut(100, 101, true), "one came meanwhile");
        assert!(!cut(100, most, false), "two stages leave out by design");
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
