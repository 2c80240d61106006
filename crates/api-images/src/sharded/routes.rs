//! The rounds of a search in the local collection of a shard, over HTTP. Nodes call these routes;
//! they are not for clients. A node limits its reads itself, so they take no permit of a request.
//! The request of the root, which waits for them, has one already.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::routing::post;
use base::{Error, Result};
use http::HeaderMap;
use image_features::collection::ImageCollection;
use image_features::point_checks::decode_graph;
use image_features::settings::ImageKind;
use matching::index::EdgeQuery;
use search::collection::CANDIDATES_MAX;
use search::filter::Filter;
use search::registry::NamedCollection;
use serde::Serialize;
use serde_json::Value;
use transport::{Reply, Shared};
use vision::photo::PhotoView;

use super::duplicates_routes;
use super::rounds::{
    CoarseAnswer, CoarseCandidates, CoarseSearchRequest, RankAnswer, RankRequest, RankedImage,
};
use crate::endpoints::parsed;
use crate::hits::ShownHit;
use crate::limits::{CandidateLimit, check_search_limits};
use crate::plan::{
    CandidateSource, ChosenPoint, SearchHit, SearchPlan, SearchResult, coarse_query, count_allowed,
    on_search_thread,
};
use crate::query_features::{QueryFeatures, Stages};
use crate::services::ImageServices;
use crate::state::ImagesState;

/// Returns the routes of the rounds and of searches for duplicates, below the name of a shard's
/// local collection.
pub fn shard_routes() -> Router<Arc<ImagesState>> {
    duplicates_routes::routes()
        .route("/v1/shards/{collection}/coarse", post(coarse))
        .route("/v1/shards/{collection}/rank", post(rank))
}

/// Returns the most similar embeddings of a shard.
async fn coarse(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let found = async {
        let request = parsed(&state.services, &headers, body).await?;
        encoded(&run_coarse(&state.services, &collection, request).await?)
    };
    Reply::of(found.await.map(Reply::json))
}

/// Returns the best hits of a shard.
async fn rank(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let found = async {
        let request = parsed(&state.services, &headers, body).await?;
        encoded(&run_rank(&state.services, &collection, request).await?)
    };
    Reply::of(found.await.map(Reply::json))
}

/// Returns the JSON of an answer to a root.
pub(super) fn encoded<T: Serialize>(result: &T) -> Result<String> {
    #[derive(Serialize)]
    struct ShardReply<'a, T> {
        result: &'a T,
    }
    let encoded = serde_json::to_string(&ShardReply { result });
    encoded.map_err(|error| Error::internal("an answer of a shard").caused_by(error))
}

/// Reads a filter in Qdrant's JSON.
fn parsed_filter(named: &NamedCollection, filter: Option<&Value>) -> Result<Option<Filter>> {
    filter.map(|filter| api_qdrant::parse_filter(named, &filter.to_string())).transpose()
}

/// Returns the candidates of a shard for round 1, by the similarity of embeddings alone.
///
/// # Errors
/// `InvalidArgument` for a collection of fingerprints and for wrong limits; the errors of the
/// search.
async fn run_coarse(
    services: &ImageServices,
    name: &str,
    request: CoarseSearchRequest,
) -> Result<CoarseAnswer> {
    let registry = services.registry()?;
    let target = ImageCollection::open(&registry, name)?;
    if target.kind != ImageKind::Photo {
        return Err(Error::invalid(format!(
            "collection \"{name}\" holds fingerprints, which have no round of embeddings; rank them"
        )));
    }
    let CoarseSearchRequest { embedding, candidates, filter } = request;
    check_search_limits(target.kind, 1, candidates)?;
    let clause = parsed_filter(&target.named, filter.as_ref())?;
    let deadline = Instant::now() + services.requests.limits.request_timeout;
    on_search_thread(&registry, &target.named, deadline, move |named, thread| {
        let query = coarse_query(&embedding, candidates, clause.as_ref(), Some(deadline));
        let found = named.collection().nearest(thread, &query)?;
        let rows = count_allowed(named, clause.as_ref())?;
        Ok(CoarseAnswer {
            ids: found.hits.iter().map(|hit| hit.id).collect(),
            coarse: found.hits.iter().map(|hit| hit.coarse).collect(),
            of: rows.count,
            partial: found.partial || rows.partial,
        })
    })
    .await
}

/// Compares the keypoints of a query with images of a shard for round 2.
///
/// # Errors
/// `InvalidArgument` for a damaged record and for wrong limits; the errors of the search.
async fn run_rank(
    services: &ImageServices,
    name: &str,
    request: RankRequest,
) -> Result<RankAnswer> {
    let registry = services.registry()?;
    let target = ImageCollection::open(&registry, name)?;
    let deadline = Instant::now() + services.requests.limits.request_timeout;
    let features = QueryFeatures {
        width: f64::from(request.width),
        height: f64::from(request.height),
        graph: decode_graph(&request.record, target.kind)?,
        embedding: Vec::new(),
        stages: Stages::default(),
    };
    let view = request.view.map(PhotoView::from);
    let plan = plan(&target, request, &features, deadline)?;
    let found = plan.clone().submit(&registry, &target, &features).await?;
    let SearchResult { hits, coverage, partial } = found;
    let ranked = |found: &SearchHit| {
        let shown = ShownHit::new(&features, view, found, &plan).json;
        let hit = found.hit;
        RankedImage { key: hit.id, id: found.point.id, score: hit.score, coarse: hit.coarse, shown }
    };
    Ok(RankAnswer {
        hits: hits.iter().map(ranked).collect(),
        compared: coverage.compared,
        of: coverage.of,
        partial,
    })
}

/// Checks a request of round 2.
///
/// # Errors
/// `InvalidArgument` for numbers out of range, or members of another kind.
fn plan(
    target: &ImageCollection,
    request: RankRequest,
    features: &QueryFeatures,
    deadline: Instant,
) -> Result<SearchPlan> {
    let RankRequest { k, threshold, explain, candidates, prints, filter, .. } = request;
    if !threshold.is_finite() {
        return Err(Error::invalid("\"threshold\" is not a finite 32-bit number"));
    }
    let clause = parsed_filter(&target.named, filter.as_ref())?;
    let (limit, source) = match (target.kind, candidates, prints, &clause) {
        (ImageKind::Photo, Some(candidates), None, None) => {
            check_search_limits(target.kind, k, 1)?;
            let chosen = chosen(&candidates)?;
            let limit = CandidateLimit { most: chosen.len(), cut: false };
            (limit, CandidateSource::Chosen(chosen))
        }
        (ImageKind::Fingerprint, None, Some(share), _) => {
            let rows = target.named.collection().count();
            let limit = CandidateLimit::of_shard(rows, k, share.candidates, share.shards)?;
            (limit, CandidateSource::Edges(EdgeQuery::new(&features.graph)))
        }
        (ImageKind::Photo, ..) => {
            return Err(Error::invalid(
                "photographs are ranked with \"candidates\", without \"prints\" and \"filter\"",
            ));
        }
        (ImageKind::Fingerprint, ..) => {
            return Err(Error::invalid(
                "fingerprints are ranked with \"prints\", without \"candidates\"",
            ));
        }
    };
    let CandidateLimit { most, cut } = limit;
    Ok(SearchPlan { k, most, cut, threshold, explain, clause, source, deadline })
}

/// Checks the candidates that a root has chosen, and returns them.
fn chosen(candidates: &CoarseCandidates) -> Result<Arc<[ChosenPoint]>> {
    let CoarseCandidates { ids, coarse } = candidates;
    if ids.len() != coarse.len() {
        return Err(Error::invalid(format!(
            "{} ids have {} scores; each id has one",
            ids.len(),
            coarse.len()
        )));
    }
    if ids.len() > CANDIDATES_MAX {
        return Err(Error::invalid(format!(
            "{} candidates are more than {CANDIDATES_MAX}",
            ids.len()
        )));
    }
    if let Some(at) = coarse.iter().position(|score| !score.is_finite()) {
        return Err(Error::invalid(format!("coarse[{at}] is not a finite 32-bit number")));
    }
    let points = ids.iter().zip(coarse).map(|(&id, &coarse)| ChosenPoint { id, coarse });
    Ok(points.collect())
}
