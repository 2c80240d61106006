//! Finding images by an image: embedding and keypoints of the query, the coarse filter, the
//! matcher, and why.

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

/// Hits of one answer at most.
const HITS_MAX: usize = 1000;
/// Candidates that the exact stage compares if the caller does not say. Photographs that show the
/// same are near each other by their embeddings; fingerprints are not, as models of photographs see
/// them, so all are compared up to this number. An answer is partial if a collection has more.
const PHOTO_CANDIDATES: usize = 100;
const FINGERPRINT_CANDIDATES: usize = search::collection::CANDIDATES_MAX;

/// Candidates whose embeddings are read, so that those which no keypoints speak for are ranked
/// exactly.
const EXACT_MAX: usize = 1000;

/// What a search asks for.
pub(crate) struct ImageQuery {
    pub(crate) k: usize,
    /// From which score on an image is accepted; `None` is the kind's own.
    pub(crate) threshold: Option<f32>,
    pub(crate) candidates: Option<usize>,
    pub(crate) explain: bool,
    /// In Qdrant's words.
    pub(crate) filter: Option<String>,
}

/// An image to look for.
pub(crate) enum QueryImage {
    /// A file.
    File(Bytes),
    /// One of the collection.
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
        // A point that was put in without an image has no keypoints that could match.
        if record.is_empty() {
            return Ok(0.0);
        }
        matching::score(&self.0, record, scratch)
    }
}

/// The query's side.
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

/// The answer, as JSON.
///
/// # Errors
/// Those of the image, the model and the collection; `InvalidArgument` for numbers out of range.
pub(crate) async fn search(
    services: &ImageServices,
    name: &str,
    asked: ImageQuery,
    sample: QueryImage,
) -> Result<Value> {
    let registry = services.registry()?;
    let target = ImageCollection::open(&registry, name)?;
    let most = asked.candidates.unwrap_or(match target.kind {
        ImageKind::Photo => PHOTO_CANDIDATES,
        ImageKind::Fingerprint => FINGERPRINT_CANDIDATES,
    });
    if !(1..=HITS_MAX).contains(&asked.k)
        || !(1..=search::collection::CANDIDATES_MAX).contains(&most)
    {
        let candidates_max = search::collection::CANDIDATES_MAX;
        return Err(Error::invalid(format!(
            "k is 1 to {HITS_MAX} and candidates 1 to {candidates_max}"
        )));
    }
    let clause = asked
        .filter
        .as_deref()
        .map(|filter| api_qdrant::parse_filter(&target.named, filter))
        .transpose()?;
    let looked = match sample {
        QueryImage::File(bytes) => look(services, &target, bytes).await?,
        QueryImage::Point(id) => stored(services, &target, id).await?,
    };
    let probe = Arc::new(Probe::new(&looked.graph, matching::MatchOptions::default()));
    let threshold = asked.threshold.unwrap_or_else(|| accept(target.kind));
    let deadline = Instant::now() + services.requests.limits.request_timeout;
    let exhaustive = target.kind == ImageKind::Fingerprint && asked.candidates.is_none();
    let plan = SearchPlan {
        k: asked.k,
        most,
        exhaustive,
        threshold,
        explain: asked.explain,
        clause,
        deadline,
    };
    let (sender, receiver) = oneshot::channel();
    let started = Instant::now();
    let (embedding, shared) = (looked.embedding.clone(), probe.clone());
    let work = move |named: &NamedCollection, thread: &mut SearchThread| {
        // A send fails only when the caller has gone.
        drop(sender.send(plan.run(named, thread, &embedding, shared)));
    };
    registry.submit(&target.named, Box::new(work))?;
    let found = receiver.await.map_err(|_| {
        Error::unavailable("no search thread could take the query; try again")
            .with_retry_after(Duration::from_secs(1))
    })??;
    let took = started.elapsed();
    record(services, &looked.stages, took);
    Ok(answer(&looked, &found, threshold, asked.explain, took))
}

/// From which score on an image of this kind is the same.
pub(crate) fn accept(kind: ImageKind) -> f32 {
    match kind {
        ImageKind::Photo => vision::photo::ACCEPT,
        ImageKind::Fingerprint => vision::fingerprint::ACCEPT,
    }
}

/// A file's embedding and keypoints.
async fn look(
    services: &ImageServices,
    target: &ImageCollection,
    bytes: Bytes,
) -> Result<QueryFeatures> {
    let embedder = services.embedder(Some(target), None)?;
    let (kind, own, budget) = (target.kind, embedder.clone(), services.requests.memory.clone());
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
        let (width, height) = (f64::from(decoded.image.width), f64::from(decoded.image.height));
        Ok((QueryFeatures { width, height, graph, embedding: Vec::new(), stages }, tensor))
    };
    let (mut looked, tensor) = services.pool.run(work).await?;
    let started = Instant::now();
    looked.embedding = services.embed(&embedder, tensor).await?;
    looked.stages.embed += started.elapsed();
    target.check_dims(looked.embedding.len())?;
    Ok(looked)
}

/// An image of the collection as a query.
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

/// Width and height of a stored image.
fn size(point: &FetchedPoint) -> (f64, f64) {
    let of = |key: &str| {
        point.payload.get(BLOCK).and_then(|block| block.get(key)?.as_f64()).unwrap_or(0.0)
    };
    (of("width"), of("height"))
}

struct SearchPlan {
    k: usize,
    most: usize,
    /// Whether the search is one that compares every record.
    exhaustive: bool,
    threshold: f32,
    explain: bool,
    clause: Option<Filter>,
    deadline: Instant,
}

/// A found image's keypoints and which of them matched, where that was asked for.
type Why = Option<(Graph, Explanation)>;

struct SearchResult {
    hits: Vec<(QueryHit, FetchedPoint, Why)>,
    coverage: Coverage,
    partial: bool,
}

/// How many records were compared with the query's keypoints, out of those that the filter allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Coverage {
    compared: u64,
    of: u64,
}

impl Coverage {
    /// Whether a search that is to compare every record reached its limit of `most` and left some
    /// out. Records that come while the search runs are not left out.
    fn is_cut(self, exhaustive: bool, most: usize) -> bool {
        exhaustive && self.compared >= most as u64 && self.compared < self.of
    }
}

impl SearchPlan {
    /// On a search thread.
    fn run(
        self,
        named: &NamedCollection,
        thread: &mut SearchThread,
        embedding: &[f32],
        probe: Arc<Probe>,
    ) -> Result<SearchResult> {
        // All candidates come back, because those that no keypoints speak for are ranked by their
        // embeddings.
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
        // Points may go while they are counted.
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
            // A point that was removed meanwhile is none; one that is damaged is missed.
            partial |= point.is_err();
            let Ok(Some(point)) = point else { continue };
            let explained = if self.explain { explain(&probe, &point, &mut scratch) } else { None };
            kept.push((hit, point, explained));
        }
        Ok(SearchResult { hits: kept, coverage, partial })
    }
}

fn explain(
    probe: &Probe,
    point: &FetchedPoint,
    scratch: &mut matching::Scratch,
) -> Option<(Graph, Explanation)> {
    let graph = Graph::decode(&point.record).ok()?;
    Some((graph, matching::explain(probe, &point.record, scratch).ok()?))
}

/// The best `k` by the rule of [`matching::rank`], equal ones by id.
fn ranked(mut hits: Vec<QueryHit>, threshold: f32, k: usize) -> Vec<QueryHit> {
    let likeness = |hit: &QueryHit| StageScores { score: hit.score, coarse: hit.coarse };
    hits.sort_by(|a, b| best_first(threshold, likeness(a), likeness(b)).then(a.id.cmp(&b.id)));
    hits.truncate(k);
    hits
}

fn answer(
    looked: &QueryFeatures,
    found: &SearchResult,
    threshold: f32,
    explained: bool,
    took: Duration,
) -> Value {
    let results: Vec<Value> = found
        .hits
        .iter()
        .map(|(hit, point, why)| {
            let mut payload = point.payload.clone();
            let block = payload.remove(BLOCK).unwrap_or_default();
            let of = |key: &str| block.get(key).cloned().unwrap_or_default();
            let mut result = json!({
                "id": point.id, "score": hit.score, "coarse": hit.coarse, "accepted": hit.score >= threshold,
                "name": of("name"), "payload": payload, "width": of("width"), "height": of("height"),
            });
            if explained {
                result["pairs"] = pairs(looked, point, why.as_ref());
            }
            result
        })
        .collect();
    let stages = &looked.stages;
    json!({
        "results": results,
        "query": { "width": looked.width as u64, "height": looked.height as u64, "keypoints": looked.graph.vertices.len() },
        "compared": found.coverage.compared, "of": found.coverage.of, "partial": found.partial,
        "stages": {
            "decode_ms": milliseconds(stages.decode), "embed_ms": milliseconds(stages.embed),
            "keypoints_ms": milliseconds(stages.keypoints), "search_ms": milliseconds(took),
        },
    })
}

/// The matched keypoints: x and y in the query's image, x and y in the found one.
fn pairs(
    looked: &QueryFeatures,
    point: &FetchedPoint,
    why: Option<&(Graph, Explanation)>,
) -> Value {
    let Some((graph, explanation)) = why else { return json!([]) };
    let (width, height) = size(point);
    let pairs = explanation.pairs.iter().filter_map(|pair| {
        let probe = at(&looked.graph, usize::from(pair.probe), looked.width, looked.height)?;
        let record = at(graph, usize::from(pair.record), width, height)?;
        Some([probe.0, probe.1, record.0, record.1])
    });
    json!(pairs.collect::<Vec<_>>())
}

/// A vertex's place in the pixels of its image, to a tenth.
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
    fn what_is_accepted_comes_first_and_the_rest_as_the_coarse_stage_has_it() {
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
    fn a_search_that_compares_all_records_is_cut_if_it_leaves_some_out() {
        let most = FINGERPRINT_CANDIDATES;
        let cut = |compared: usize, of: usize, exhaustive| {
            Coverage { compared: compared as u64, of: of as u64 }.is_cut(exhaustive, most)
        };
        assert!(cut(most, most + 1, true) && !cut(most, most, true));
        assert!(!cut(100, 101, true), "one came meanwhile");
        assert!(!cut(100, most, false), "two stages leave out by design");
    }

    #[test]
    fn a_point_without_keypoints_is_like_nothing_and_no_damage() {
        use search::Scorer;
        let matcher =
            Matcher(Arc::new(Probe::new(&Graph::default(), matching::MatchOptions::default())));
        assert_eq!(matcher.score(&[], &mut matcher.scratch()), Ok(0.0));
        assert!(matcher.score(&[1], &mut matcher.scratch()).is_err());
    }

    #[test]
    fn places_are_in_the_pictures_own_pixels() {
        let vertex = matching::Vertex { x: 50, y: 10, ..matching::Vertex::default() };
        let graph =
            Graph { width: 100, height: 100, vertices: vec![vertex], descriptors: Vec::new() };
        assert_eq!(at(&graph, 0, 200.0, 50.0), Some((100.0, 5.0)));
        assert_eq!(at(&graph, 1, 200.0, 50.0), None);
    }
}
