//! The handlers of `/v1/images`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Router};
use base::{Error, ErrorKind, Result};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};
use matching::template::TemplateFormat;
use search::points::PointId;
use serde_json::{Map, Value, json};
use transport::access::KeyGrant;
use transport::result_stream::result_channel;
use transport::{HeaderTimeout, Peer, QueryResult, Reply, Shared, query_flag, query_parameters};

use super::add::{self, NewImage};
use super::browse::OriginalFile;
use super::bulk_requests::{BulkRequest, check_bulk_params, line_response};
use super::collection::CollectionSpec;
use super::features::{checked_name, checked_payload, checked_quality};
use super::ingest_target::IngestTarget;
use super::job::IngestJob;
use super::persons::{self, FingersRequest};
use super::print_pair::PrintPair;
use super::prints::{self, PrintSource, both_named};
use super::query::{self, ImageQuery, QueryImage};
use super::services::ImageServices;
use super::settings::ImageKind;
use super::state::ImagesState;
use super::{browse, duplicates, feature_endpoints, rebuild};

/// Description of the routes as OpenAPI 3.1.
pub const OPENAPI: &str = include_str!("openapi.json");
/// Default number of images on a page.
const PAGE_DEFAULT: usize = 50;
/// Default side of a thumbnail in pixels.
const SIDE_DEFAULT: u32 = 256;
/// Default number of hits of a search.
const HITS_DEFAULT: usize = 10;

/// Returns the routes, with the paths of the OpenAPI description.
pub fn routes() -> Router<Arc<ImagesState>> {
    Router::new()
        .route("/v1/images", get(collections))
        .route("/v1/images/openapi.json", get(|| async { Reply::json(OPENAPI) }))
        .route("/v1/images/{collection}", put(put_in).get(page).delete(drop_collection))
        .route("/v1/images/{collection}/search", post(find))
        .route("/v1/images/{collection}/identify", post(identify))
        .route("/v1/images/{collection}/verify", post(verify))
        .route("/v1/images/{collection}/missing", post(missing))
        .route("/v1/images/{collection}/rebuild", post(begin_rebuild).get(rebuild_progress))
        .route(
            "/v1/images/{collection}/duplicates",
            post(begin_duplicates).get(duplicates_progress).delete(cancel_duplicates),
        )
        .route("/v1/images/{collection}/duplicates/groups", get(duplicate_groups))
        .route("/v1/images/{collection}/{id}", get(original).delete(delete))
        .route("/v1/images/{collection}/{id}/thumbnail", get(thumbnail))
        .route("/v1/images/{collection}/{id}/keypoints", get(keypoints))
        .route("/v1/images/{collection}/{id}/template", get(template))
        .merge(feature_endpoints::routes())
}

fn answer(outcome: Result<Value>) -> Reply {
    Reply::of(outcome.map(|body| Reply::json(body.to_string())))
}

/// Reads a whole body. A body that ends early adds no image.
pub(crate) async fn whole(
    services: &ImageServices,
    headers: &HeaderMap,
    body: Body,
) -> Result<bytes::Bytes> {
    services.requests.read_body(headers, body).await
}

/// Returns the type of a body in lower case, without its parameters; empty if it is missing.
pub(crate) fn media(headers: &HeaderMap) -> String {
    let text =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Lists the collections that the request's key may use.
async fn collections(
    State(state): Shared<ImagesState>,
    grant: Option<Extension<KeyGrant>>,
) -> Reply {
    let seen = |name: &str| grant.as_ref().is_none_or(|grant| grant.sees_collection(name));
    answer(browse::collections(&state.services, seen))
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PutParameters {
    name: Option<String>,
    kind: Option<String>,
    model: Option<String>,
    background: Option<String>,
    payload: Option<String>,
    quality_min: Option<u8>,
}

async fn put_in(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    query: QueryResult<PutParameters>,
    caller: PutCaller,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let PutCaller { peer, header_timeout, grant } = caller;
    if let Err(error) = check_creates(&state.services, grant.as_ref(), &collection) {
        return Reply::error(&error).into_response();
    }
    let sent = PutRequest { collection, peer, header_timeout, headers, body };
    match sent.answered(&state, query).await {
        Ok(response) => response,
        Err(error) => Reply::error(&error).into_response(),
    }
}

/// Refuses a request that would create a collection which its key may not create.
///
/// # Errors
/// `PermissionDenied` for such a request; the registry's error.
pub(crate) fn check_creates(
    services: &ImageServices,
    grant: Option<&KeyGrant>,
    name: &str,
) -> Result<()> {
    let Some(grant) = grant else { return Ok(()) };
    match services.registry()?.get(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => grant.check_create(name),
        _ => Ok(()),
    }
}

/// Sender of an upload, and the timer of its headers.
struct PutCaller {
    peer: Peer,
    header_timeout: HeaderTimeout,
    grant: Option<KeyGrant>,
}

impl<S: Sync> FromRequestParts<S> for PutCaller {
    type Rejection = Reply;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<PutCaller, Reply> {
        let peer = parts.extensions.get().copied();
        let peer = peer
            .ok_or_else(|| Reply::error(&Error::internal("the sender of a request is unknown")))?;
        let header_timeout = parts.extensions.get().cloned().unwrap_or_default();
        Ok(PutCaller { peer, header_timeout, grant: parts.extensions.get().cloned() })
    }
}

struct PutRequest {
    collection: String,
    peer: Peer,
    header_timeout: HeaderTimeout,
    headers: HeaderMap,
    body: Body,
}

impl PutRequest {
    async fn answered(
        self,
        state: &Arc<ImagesState>,
        query: QueryResult<PutParameters>,
    ) -> Result<Response> {
        let parameters = query_parameters(query)?;
        let kind = parameters.kind.as_deref().map(ImageKind::parse).transpose()?;
        let wanted = CollectionSpec {
            name: self.collection.clone(),
            kind,
            model: parameters.model.clone(),
            quality_min: checked_quality(parameters.quality_min)?,
        };
        match media(&self.headers).as_str() {
            "application/zip" | "application/x-zip-compressed" => {
                self.archive(state, ManyImages::new(wanted, &parameters)?).await
            }
            "application/json" => self.folder(state, ManyImages::new(wanted, &parameters)?).await,
            "" | "application/octet-stream" | "application/x-www-form-urlencoded" => {
                self.image(state, wanted, parameters).await
            }
            image if image.starts_with("image/") => self.image(state, wanted, parameters).await,
            other => Err(Error::invalid(format!(
                "the body's type is \"{other}\"; send an image as image/* or application/octet-stream, many as \
                 application/zip, or {{\"folder\": PATH}} as application/json"
            ))),
        }
    }

    async fn image(
        self,
        state: &Arc<ImagesState>,
        wanted: CollectionSpec,
        parameters: PutParameters,
    ) -> Result<Response> {
        state.services.requests.check_room()?;
        let name = checked_name(parameters.name.as_deref().unwrap_or_default())?;
        let payload = checked_payload(parameters.payload.as_deref())?;
        let background = query_flag("background", parameters.background.as_deref())?;
        let bytes = whole(&state.services, &self.headers, self.body).await?;
        let _admitted = state.services.requests.admit()?;
        let new = NewImage { wanted, name, payload, bytes };
        let outcome = if background {
            add::add_in_background(state, new).await
        } else {
            add::add(&state.services, new).await
        };
        Ok(Reply::json(outcome?.to_json().to_string()).into_response())
    }

    async fn archive(self, state: &Arc<ImagesState>, new: ManyImages) -> Result<Response> {
        state.services.registry()?;
        state.bulk.archive(self.bulk(), |stop| Ok(new.target(state, stop))).await
    }

    async fn folder(self, state: &Arc<ImagesState>, new: ManyImages) -> Result<Response> {
        let target = |stop| {
            state.services.registry()?;
            Ok(new.target(state, stop))
        };
        state.bulk.folder(self.bulk(), target).await
    }

    fn bulk(self) -> BulkRequest {
        let PutRequest { collection, peer, header_timeout, headers, body } = self;
        BulkRequest { collection, peer: Some(peer), header_timeout, headers, body }
    }
}

/// Properties that the images of an archive or a folder share.
struct ManyImages {
    wanted: CollectionSpec,
    payload: Map<String, Value>,
}

impl ManyImages {
    fn new(wanted: CollectionSpec, parameters: &PutParameters) -> Result<ManyImages> {
        check_bulk_params(parameters.name.as_deref(), parameters.background.as_deref())?;
        Ok(ManyImages { wanted, payload: checked_payload(parameters.payload.as_deref())? })
    }

    fn target(self, state: &Arc<ImagesState>, stop: Arc<AtomicBool>) -> IngestTarget {
        let job = IngestJob::new(&state.services, self.wanted, stop);
        IngestTarget { state: state.clone(), job, payload: self.payload }
    }
}

/// Reads a body of JSON.
pub(crate) async fn parsed<T>(
    services: &ImageServices,
    headers: &HeaderMap,
    body: Body,
) -> Result<T>
where
    T: serde::de::DeserializeOwned + Send + 'static,
{
    services.requests.parse_json(services.requests.read_json_body(headers, body).await?).await
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PageParameters {
    limit: Option<usize>,
    offset: Option<String>,
    filter: Option<String>,
}

async fn page(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    query: QueryResult<PageParameters>,
) -> Reply {
    let page = async {
        let parameters = query_parameters(query)?;
        let offset = parameters.offset.as_deref().map(str::parse::<PointId>).transpose()?;
        let limit = parameters.limit.unwrap_or(PAGE_DEFAULT);
        browse::page(&state.services, &collection, limit, offset, parameters.filter).await
    };
    answer(page.await)
}

async fn drop_collection(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
) -> Reply {
    answer(
        browse::drop_collection(&state.services, &collection)
            .await
            .map(|()| json!({ "deleted": collection })),
    )
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchParameters {
    k: Option<usize>,
    threshold: Option<f32>,
    candidates: Option<usize>,
    explain: Option<String>,
    views: Option<String>,
    filter: Option<String>,
}

async fn find(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    query: QueryResult<SearchParameters>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let found = async {
        let parameters = query_parameters(query)?;
        state.services.requests.check_room()?;
        let explain = query_flag("explain", parameters.explain.as_deref())?;
        let views = parameters.views.as_deref().map(|views| query_flag("views", Some(views)));
        let image = if media(&headers) == "application/json" {
            #[derive(serde::Deserialize)]
            #[serde(deny_unknown_fields)]
            struct Named {
                id: PointId,
            }
            QueryImage::Point(parsed::<Named>(&state.services, &headers, body).await?.id)
        } else {
            QueryImage::File(whole(&state.services, &headers, body).await?)
        };
        let _admitted = state.services.requests.admit()?;
        let query = ImageQuery {
            deadline: Instant::now() + state.services.requests.limits.request_timeout,
            k: parameters.k.unwrap_or(HITS_DEFAULT),
            threshold: parameters.threshold,
            candidates: parameters.candidates,
            explain,
            views: views.transpose()?,
            filter: parameters.filter,
        };
        query::search(&state.services, &collection, query, image).await
    };
    answer(found.await)
}

/// Finds persons by one finger (the body is a file) or several (JSON).
async fn identify(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    query: QueryResult<SearchParameters>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let found = async {
        let parameters = query_parameters(query)?;
        state.services.requests.check_room()?;
        if parameters.explain.is_some() || parameters.views.is_some() {
            return Err(Error::invalid(
                "explain= and views= are for /search: persons have no keypoints and no views",
            ));
        }
        let files = if media(&headers) == "application/json" {
            parsed::<FingersRequest>(&state.services, &headers, body).await?.files()?
        } else {
            vec![whole(&state.services, &headers, body).await?]
        };
        let _admitted = state.services.requests.admit()?;
        let query = ImageQuery {
            deadline: Instant::now() + state.services.requests.limits.request_timeout,
            k: parameters.k.unwrap_or(HITS_DEFAULT),
            threshold: parameters.threshold,
            candidates: parameters.candidates,
            explain: false,
            views: None,
            filter: parameters.filter,
        };
        persons::identify(&state.services, &collection, query, files).await
    };
    answer(found.await)
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct VerifyParameters {
    id: Option<String>,
    threshold: Option<f32>,
}

/// Compares two fingerprints: the body with the image `id`, or both of the JSON.
async fn verify(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    query: QueryResult<VerifyParameters>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let verified = async {
        let parameters = query_parameters(query)?;
        state.services.requests.check_room()?;
        let prints = if media(&headers) == "application/json" {
            if parameters.id.is_some() {
                return Err(both_named());
            }
            let pair: PrintPair = parsed(&state.services, &headers, body).await?;
            [pair.first.source()?, pair.second.source()?]
        } else {
            let id = parameters.id.ok_or_else(|| {
                Error::invalid("id= is missing: name the image to compare the body with")
            })?;
            let file = whole(&state.services, &headers, body).await?;
            [PrintSource::File(file), PrintSource::Point(id.parse()?)]
        };
        let _admitted = state.services.requests.admit()?;
        prints::verify(&state.services, &collection, parameters.threshold, prints).await
    };
    answer(verified.await)
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct TemplateParameters {
    format: Option<String>,
}

/// Returns the template of a stored fingerprint.
async fn template(
    State(state): Shared<ImagesState>,
    Path((collection, id)): Path<(String, String)>,
    query: QueryResult<TemplateParameters>,
) -> Reply {
    let written = async {
        let format = query_parameters(query)?.format;
        let format = format.map_or(Ok(TemplateFormat::Iso2005), |format| format.parse())?;
        prints::template(&state.services, &collection, id.parse()?, format).await
    };
    Reply::of(written.await.map(|bytes| {
        Reply::body("application/octet-stream", bytes)
            // Features that are written for the id replace the template.
            .with_header(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"))
            .with_header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
    }))
}

async fn missing(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Ids {
        ids: Vec<Value>,
    }
    let missing = async {
        let request: Ids = parsed(&state.services, &headers, body).await?;
        browse::missing(&state.services, &collection, request.ids).await
    };
    answer(missing.await)
}

async fn begin_rebuild(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    grant: Option<Extension<KeyGrant>>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let begun = async {
        let request: rebuild::RebuildRequest = parsed(&state.services, &headers, body).await?;
        grant.as_deref().map_or(Ok(()), |grant| grant.check_model(&request.model))?;
        rebuild::begin(&state, &collection, &request)
    };
    let begun = begun
        .await
        .map(|body| Reply::json(body.to_string()).with_status(http::StatusCode::ACCEPTED));
    Reply::of(begun)
}

async fn rebuild_progress(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
) -> Reply {
    answer(state.rebuilds.progress(&collection))
}

async fn begin_duplicates(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let begun = async {
        let request = parsed(&state.services, &headers, body).await?;
        duplicates::begin(&state, &collection, &request)
    };
    let begun = begun
        .await
        .map(|body| Reply::json(body.to_string()).with_status(http::StatusCode::ACCEPTED));
    Reply::of(begun)
}

async fn duplicates_progress(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
) -> Reply {
    answer(duplicates::progress(&state, &collection))
}

async fn cancel_duplicates(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
) -> Reply {
    answer(duplicates::cancel(&state, &collection))
}

async fn duplicate_groups(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
) -> Response {
    let begun = async {
        let permit = state.bulk_permit().await?;
        let (writer, results) = result_channel(Arc::new(AtomicBool::new(false)));
        duplicates::write_groups(&state, &collection, permit, writer)?;
        line_response(results).await
    };
    begun.await.unwrap_or_else(|error| Reply::error(&error).into_response())
}

/// Lets clients cache a reply, because the image of an id never changes.
fn cacheable(reply: Reply) -> Reply {
    reply
        .with_header(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=86400"))
        .with_header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
}

async fn original(
    State(state): Shared<ImagesState>,
    Path((collection, id)): Path<(String, String)>,
) -> Reply {
    let found = async { browse::original(&state.services, &collection, id.parse()?).await };
    Reply::of(found.await.map(|file| {
        let OriginalFile { media_type, bytes, memory } = file;
        let reply = Reply::body(media_type, bytes);
        cacheable(reply).with_reservation(&state.services.requests, memory)
    }))
}

async fn delete(
    State(state): Shared<ImagesState>,
    Path((collection, id)): Path<(String, String)>,
) -> Reply {
    let deleted = async { browse::delete(&state.services, &collection, id.parse()?).await };
    answer(deleted.await.map(|()| json!({ "deleted": id })))
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ThumbnailParameters {
    size: Option<u32>,
}

async fn thumbnail(
    State(state): Shared<ImagesState>,
    Path((collection, id)): Path<(String, String)>,
    query: QueryResult<ThumbnailParameters>,
) -> Reply {
    let made = async {
        let size = query_parameters(query)?.size.unwrap_or(SIDE_DEFAULT);
        browse::small(&state.services, &collection, id.parse()?, size).await
    };
    Reply::of(made.await.map(|bytes| cacheable(Reply::body("image/jpeg", bytes))))
}

async fn keypoints(
    State(state): Shared<ImagesState>,
    Path((collection, id)): Path<(String, String)>,
) -> Reply {
    let found = async { browse::keypoints(&state.services, &collection, id.parse()?).await };
    answer(found.await)
}
