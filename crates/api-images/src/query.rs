//! Finds images by an image: embedding and keypoints of the query, coarse filter, exact comparison
//! of keypoints, and the matched pairs.

use std::time::{Duration, Instant};

use base::{Error, Result};
use bytes::Bytes;
use image_features::collection::ImageCollection;
use image_features::point_checks::stored_graph;
use image_features::settings::ImageKind;
use matching::index::EdgeQuery;
use search::points::{FetchedPoint, PointId};
use serde_json::{Value, json};

use super::hits::{ShownHit, size};
use super::limits::{CandidateLimit, accept_score, check_threshold};
use super::plan::{CandidateSource, SearchPlan, SearchResult};
use super::query_features::{QueryFeatures, Stages, extract, milliseconds};
use super::services::ImageServices;
use super::views::{self, ViewSearch, ViewsResult};

#[derive(Clone)]
pub(crate) struct ImageQuery {
    /// End of the time of the whole request.
    pub(crate) deadline: Instant,
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

/// Features of a query, and the results of its search.
pub(crate) struct ImageQueryResult {
    features: QueryFeatures,
    pub(crate) result: SearchResult,
    /// Matches of further views, if they were searched for.
    views: Option<ViewsResult>,
    plan: SearchPlan,
    took: Duration,
}

/// Searches the collection, and returns the response as JSON.
///
/// # Errors
/// The errors of the image, the model and the collection; `InvalidArgument` for numbers out of
/// range.
pub(crate) async fn search(
    services: &ImageServices,
    name: &str,
    wanted: ImageQuery,
    image: QueryImage,
) -> Result<Value> {
    let target = ImageCollection::open(&*services.registry()?, name)?;
    Ok(answer(search_collection(services, &target, &wanted, image).await?))
}

/// Searches a collection.
///
/// # Errors
/// As [`search`].
pub(crate) async fn search_collection(
    services: &ImageServices,
    target: &ImageCollection,
    wanted: &ImageQuery,
    image: QueryImage,
) -> Result<ImageQueryResult> {
    let registry = services.registry()?;
    let rows = target.named.collection().count();
    let limit = CandidateLimit::new(target.kind, rows, wanted.k, wanted.candidates)?;
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
    check_threshold(wanted.threshold)?;
    let features = match image {
        QueryImage::File(bytes) => {
            let dims = target.named.settings().dims;
            extract(services, &target.settings(), dims, bytes).await?
        }
        QueryImage::Point(id) => stored(services, target, id).await?,
    };
    let source = match target.kind {
        ImageKind::Photo => CandidateSource::Embeddings,
        ImageKind::Fingerprint => CandidateSource::Edges(EdgeQuery::new(&features.graph)),
    };
    let plan = SearchPlan {
        k: wanted.k,
        most: limit.most,
        cut: limit.cut,
        threshold: wanted.threshold.unwrap_or_else(|| accept_score(target.kind, rows)),
        explain: wanted.explain,
        clause,
        source,
        deadline: wanted.deadline,
    };
    let started = Instant::now();
    let result = plan.clone().submit(&registry, target, &features).await?;
    let took = started.elapsed();
    // Only now the number of fingerprints that the filter allows is known.
    let threshold =
        wanted.threshold.unwrap_or_else(|| accept_score(target.kind, result.coverage.of));
    let plan = SearchPlan { threshold, ..plan };
    record(services, &features.stages, took);
    let file = file.filter(|_| target.kind == ImageKind::Photo && wanted.views != Some(false));
    let views = match file.filter(|_| !result.any_accepted(threshold)) {
        Some(file) => {
            let search = ViewSearch { services, registry: &registry, target, plan: &plan };
            let views = search.run(file, &features).await;
            services.observe("views", views.took);
            Some(views)
        }
        None => None,
    };
    Ok(ImageQueryResult { features, result, views, plan, took })
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
        let graph = stored_graph(&id, &point.record)?;
        let (width, height) = size(&point);
        let FetchedPoint { embedding, .. } = point;
        Ok(QueryFeatures { width, height, graph, embedding, stages: Stages::default() })
    };
    services.pool.run_wanted(work).await
}

/// Returns the JSON of a search's result, with the time of each stage in milliseconds.
fn answer(found: ImageQueryResult) -> Value {
    let ImageQueryResult { features, result, views, plan, took } = found;
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
        "threshold": plan.threshold,
        "compared": result.coverage.compared, "of": result.coverage.of, "partial": partial, "views": searched,
        "stages": {
            "decode_ms": milliseconds(stages.decode), "embed_ms": milliseconds(stages.embed),
            "keypoints_ms": milliseconds(stages.keypoints), "search_ms": milliseconds(took),
            "views_ms": milliseconds(views_took),
        },
    })
}

fn record(services: &ImageServices, stages: &Stages, search: Duration) {
    stages.record(services);
    services.observe("search", search);
}
