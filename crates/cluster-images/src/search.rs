//! Searches for images by an image.

use std::time::{Duration, Instant};

use api_images::{ExtractedQuery, ImageKind, check_search_limits, check_threshold};
use api_qdrant::json;
use base::{Error, Result};
use bytes::Bytes;
use cluster_root::reads::result_bytes;
use cluster_root::{ReadCoverage, RootContext, check};
use metrics::KindLabels;
use search::points::PointId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use transport::{Reply, query_flag};

use super::call::ImageCall;
use super::merge;
use super::rounds::{self, RoundsAnswer, RoundsPlan};
use super::target::ImageTarget;
use super::views::{RootViewSearch, ViewsAnswer};
use super::{extraction, reply};

/// Default number of hits.
pub(super) const HITS_DEFAULT: usize = 10;

/// Parameters of a search.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RootSearchParams {
    k: Option<usize>,
    threshold: Option<f32>,
    candidates: Option<usize>,
    explain: Option<String>,
    views: Option<String>,
    filter: Option<String>,
}

/// The image to search by.
enum RootQueryImage {
    File(Bytes),
    Point(PointId),
}

/// Finds the images that show the same subject as a file or a stored image.
pub(super) async fn search(mut call: ImageCall) -> Result<Reply> {
    let parameters: RootSearchParams = call.query.route_parameters()?;
    let target = ImageTarget::open(&call.context)?;
    let is_file = call.media() != "application/json";
    let views = wants_views(parameters.views.as_deref(), target.settings.kind, is_file)?;
    let plan = plan(parameters, target.settings.kind)?;
    let image = read_image(&mut call, is_file).await?;
    let _admitted = call.admit()?;
    let context = &call.context;
    if context.params.strong {
        context.state.check_current(&target.record, context.deadline).await?;
    }
    let (query, file) = match image {
        RootQueryImage::File(file) => {
            (extraction::of_file(context, &target, file.clone()).await?, Some(file))
        }
        RootQueryImage::Point(id) => (extraction::of_point(context, &target, id).await?, None),
    };
    let started = Instant::now();
    let mut found = rounds::run(context, &target, &query, &plan).await?;
    let took = started.elapsed();
    observe(context, "search", took);
    let mut further = ViewsAnswer::default();
    let bytes = result_bytes(&found.results);
    if let Some(file) = file.filter(|_| views) {
        let threshold = plan.threshold_among(target.settings.kind, 1);
        let read = move || {
            let accepted = merge::accepted(&found.results, threshold)?;
            Ok((found, accepted.hits.is_empty()))
        };
        let none_accepted;
        (found, none_accepted) = context.compute(bytes, read).await?;
        if none_accepted {
            further =
                RootViewSearch { context, target: &target, plan: &plan }.run(&file, &query).await;
            observe(context, "views", further.took);
        }
    }
    let kind = target.settings.kind;
    let merge = move || merged(found, &further, &query, &plan, kind, took);
    let MergedSearch { text, found } = context.compute(bytes, merge).await?;
    reply::reserved(text, found.reservation, &context.state.requests)
}

fn observe(context: &RootContext, kind: &'static str, took: Duration) {
    let seconds = &context.state.requests.metrics.images.search_seconds;
    seconds.get_or_create(&KindLabels { kind }).observe(took.as_secs_f64());
}

/// Returns true if further views are searched for if nothing is accepted: by default for files of
/// photographs.
fn wants_views(views: Option<&str>, kind: ImageKind, is_file: bool) -> Result<bool> {
    let wanted = views.map(|views| query_flag("views", Some(views))).transpose()?;
    match (wanted, kind, is_file) {
        (Some(true), ImageKind::Fingerprint, _) => Err(Error::invalid(
            "views=1 is for photographs; a fingerprint has no other views, leave it out",
        )),
        (Some(true), ImageKind::Photo, false) => Err(Error::invalid(
            "views=1 needs a file; an image of the collection is found as it is, leave it out",
        )),
        (wanted, kind, is_file) => {
            Ok(wanted.unwrap_or(true) && kind == ImageKind::Photo && is_file)
        }
    }
}

/// Returns the checked settings of a search.
fn plan(parameters: RootSearchParams, kind: ImageKind) -> Result<RoundsPlan> {
    let RootSearchParams { k, threshold, candidates, explain, filter, .. } = parameters;
    let k = k.unwrap_or(HITS_DEFAULT);
    check_search_limits(kind, k, candidates.unwrap_or(1))?;
    check_threshold(threshold)?;
    let explain = query_flag("explain", explain.as_deref())?;
    let filter = filter.as_deref().map(parsed_filter).transpose()?;
    Ok(RoundsPlan { k, threshold, candidates, explain, filter, view: None })
}

/// Reads and checks a filter in Qdrant's JSON.
///
/// # Errors
/// `InvalidArgument` for malformed JSON and for a filter that is too large; `Unimplemented` for
/// conditions that are not supported.
pub(super) fn parsed_filter(filter: &str) -> Result<Value> {
    check::depth(filter.as_bytes())?;
    let parsed = json::parse_filter(filter.as_bytes())?;
    parsed.check().map_err(|error| error.context("filter"))?;
    serde_json::from_str(filter).map_err(|error| Error::invalid("filter").caused_by(error))
}

async fn read_image(call: &mut ImageCall, is_file: bool) -> Result<RootQueryImage> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct NamedPoint {
        id: PointId,
    }
    if is_file {
        return Ok(RootQueryImage::File(call.bytes().await?));
    }
    Ok(RootQueryImage::Point(call.json::<NamedPoint>().await?.id))
}

/// Response of a search.
#[derive(Serialize)]
struct SearchText<'a> {
    results: Vec<&'a RawValue>,
    query: QueryText,
    threshold: f64,
    compared: u64,
    of: u64,
    partial: bool,
    views: u32,
    stages: StagesText,
    #[serde(skip_serializing_if = "Option::is_none")]
    coverage: Option<ReadCoverage>,
}

/// Size of the query's image in pixels.
#[derive(Serialize)]
struct QueryText {
    width: u32,
    height: u32,
    keypoints: usize,
}

/// Times in milliseconds.
#[derive(Serialize)]
struct StagesText {
    decode_ms: f64,
    embed_ms: f64,
    keypoints_ms: f64,
    search_ms: f64,
    views_ms: f64,
}

/// The response of a search, and the answers it was made from.
struct MergedSearch {
    text: Vec<u8>,
    found: RoundsAnswer,
}

/// Returns milliseconds to a thousandth.
fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// Merges the hits of the whole image and of its views into the answer.
fn merged(
    found: RoundsAnswer,
    further: &ViewsAnswer,
    query: &ExtractedQuery,
    plan: &RoundsPlan,
    kind: ImageKind,
    took: Duration,
) -> Result<MergedSearch> {
    let mut hits = merge::hits(&found.results, &further.hits, plan.order(kind), plan.k)?;
    // Points may be removed between the rounds.
    let of = found.of.unwrap_or(hits.of).max(hits.compared);
    let threshold = plan.threshold_among(kind, of);
    if kind == ImageKind::Fingerprint {
        hits.accept_from(threshold)?;
    }
    let coverage = (!found.coverage.is_whole()).then_some(found.coverage);
    let answer = SearchText {
        results: hits.hits.iter().map(|hit| &*hit.shown).collect(),
        query: QueryText { width: query.width, height: query.height, keypoints: query.keypoints },
        compared: hits.compared,
        threshold: f64::from(threshold),
        of,
        partial: hits.partial || found.partial || further.partial || coverage.is_some(),
        views: further.searched,
        stages: StagesText {
            decode_ms: query.decode_ms,
            embed_ms: query.embed_ms,
            keypoints_ms: query.keypoints_ms,
            search_ms: milliseconds(took),
            views_ms: milliseconds(further.took),
        },
        coverage,
    };
    let text = serde_json::to_vec(&answer)
        .map_err(|error| Error::internal("an answer cannot be written").caused_by(error))?;
    Ok(MergedSearch { text, found })
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn views_are_refused_as_one_server_refuses_them() {
        let wants =
            |views, kind, is_file| wants_views(views, kind, is_file).map_err(|it| it.kind());
        assert_eq!(wants(Some("1"), ImageKind::Photo, true), Ok(true));
        assert_eq!(wants(None, ImageKind::Photo, true), Ok(true));
        assert_eq!(wants(Some("0"), ImageKind::Photo, true), Ok(false));
        assert_eq!(wants(None, ImageKind::Photo, false), Ok(false));
        assert_eq!(wants(None, ImageKind::Fingerprint, true), Ok(false));
        let refused = Err(ErrorKind::InvalidArgument);
        assert_eq!(wants(Some("1"), ImageKind::Photo, false), refused);
        assert_eq!(wants(Some("1"), ImageKind::Fingerprint, true), refused);
    }

    #[test]
    fn plans_have_defaults_and_limits() {
        let default = plan(RootSearchParams::default(), ImageKind::Photo).unwrap();
        assert_eq!((default.k, default.candidates), (HITS_DEFAULT, None));
        assert_eq!(default.threshold, None);
        let most = api_images::candidates_max(ImageKind::Photo);
        for (k, candidates) in [(0, 1), (api_images::HITS_MAX + 1, 1), (1, 0), (1, most + 1)] {
            let wrong = RootSearchParams {
                k: Some(k),
                candidates: Some(candidates),
                ..RootSearchParams::default()
            };
            let error = plan(wrong, ImageKind::Photo).unwrap_err();
            assert!(error.message().contains("k is 1 to"), "{error}");
        }
        for filter in ["{", r#"{"must":[{"nested":1}]}"#, &"[".repeat(200)] {
            assert!(parsed_filter(filter).is_err(), "{filter}");
        }
        let filter = r#"{"must":[{"key":"a","match":{"value":1}}]}"#;
        assert_eq!(parsed_filter(filter).unwrap().to_string(), filter);
    }
}
