//! The HTTP door: the Open Inference Protocol under `/v2`, TensorFlow Serving's API under `/v1`, recordings under
//! `/v1/audio`, `/metrics`, the live page at `/` and the one for recordings at `/audio`.

mod oip;
mod reply;
mod repository;
#[cfg(test)]
mod tests;
mod tfs;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};

use base::{DType, Error, Result, Signature};

use crate::app::App;
use crate::body_reader::{self, BodyAccounting, BodyLimits};
use crate::byte_budget::{FREE_BYTES_MAX, Reservation};
use crate::codec_threads::{CodecStep, INLINE_BYTES_MAX};
use crate::request_body::RequestBody;
use crate::{
    admin, api_key, decompress, exporter, host_check, images, page, qdrant, recordings, response_body,
};
pub(crate) use reply::Reply;

/// Where the metrics are.
const METRICS: &str = "/metrics";

/// What handlers share.
pub(crate) type Shared = State<Arc<App>>;

/// The door's service.
pub(crate) fn service(app: Arc<App>) -> HttpService {
    HttpService { router: router(app.clone()), app }
}

/// The router, whose answers are counted in the budget.
#[derive(Clone)]
pub(crate) struct HttpService {
    router: Router,
    app: Arc<App>,
}

impl tower::Service<http::Request<RequestBody>> for HttpService {
    type Response = Response;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Self::Error>> {
        // A router is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<RequestBody>) -> Self::Future {
        // Whoever watches the server must see it when the budget is used up.
        let watched = request.uri().path() == METRICS;
        let answer = self.router.call(request);
        let app = self.app.clone();
        Box::pin(async move {
            let Ok(response) = answer.await;
            if watched {
                return Ok(response);
            }
            let counted = response_body::counted(&app, response).await;
            Ok(counted.unwrap_or_else(|error| Reply::error(&error).into_response()))
        })
    }
}

fn router(app: Arc<App>) -> Router {
    let (listeners, keyed) = (app.listeners.clone(), app.collections.config().api_key.is_some());
    let routes = Router::new()
        .route("/", get(front))
        .route("/events", get(page::events))
        .merge(page::routes())
        .route(METRICS, get(exposition))
        .route("/v2", get(oip::server_metadata))
        .route("/v2/", get(oip::server_metadata))
        .route("/v2/health/live", get(oip::server_live))
        .route("/v2/health/ready", get(oip::server_ready))
        .route("/v1/models", get(models))
        .route("/v2/models", get(models))
        .route("/v2/models/stats", get(oip::all_stats))
        .route("/v2/models/{model}", get(oip::metadata))
        .route("/v2/models/{model}/ready", get(oip::ready))
        .route("/v2/models/{model}/config", get(oip::config))
        .route("/v2/models/{model}/stats", get(oip::stats))
        .route("/v2/models/{model}/infer", post(oip::infer))
        .route("/v2/models/{model}/versions/{version}", get(oip::metadata))
        .route("/v2/models/{model}/versions/{version}/ready", get(oip::ready))
        .route("/v2/models/{model}/versions/{version}/config", get(oip::config))
        .route("/v2/models/{model}/versions/{version}/stats", get(oip::stats))
        .route("/v2/models/{model}/versions/{version}/infer", post(oip::infer))
        .route("/v2/repository/index", post(repository::index))
        .route("/v2/repository/models/{model}/load", post(repository::load))
        .route("/v2/repository/models/{model}/unload", post(repository::unload))
        .merge(recordings::routes())
        .merge(collections(&app))
        .merge(qdrant::probes())
        .route("/v1/models/{*rest}", get(tfs::read).post(tfs::predict))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(app);
    host_check::guarded(routes, &listeners, keyed)
}

/// The routes of collections and pictures, behind the key where there is one, and closed to pages of other sites.
fn collections(app: &Arc<App>) -> Router<Arc<App>> {
    let own = middleware::from_fn_with_state(app.clone(), own_page);
    let routes = qdrant::routes().merge(images::routes()).route_layer(own);
    api_key::guarded(routes, app.collections.config().api_key.as_deref())
}

/// Refuses what a page of another site would change or have done.
async fn own_page(State(app): Shared, request: Request, next: Next) -> Response {
    let keyed = app.collections.config().api_key.is_some();
    let allowed = match request.method().is_safe() {
        true => Ok(()),
        false => admin::own_page(&app.listeners, keyed, request.headers()),
    };
    match allowed {
        Ok(()) => next.run(request).await,
        Err(error) => Reply::error(&error).into_response(),
    }
}

/// The page for browsers, a few lines of text for everybody else.
async fn front(State(app): Shared, headers: HeaderMap) -> Reply {
    if page::wants_page(&headers) {
        return page::page();
    }
    if let Some(version) = qdrant::version(&headers) {
        return version.with_header(header::VARY, http::HeaderValue::from_static("accept, user-agent"));
    }
    let mut text = format!("{} {} ({})\n\nmodels:\n", crate::NAME, crate::VERSION, app.engine_version);
    for name in app.lifecycle.catalog().names() {
        text.push_str(&format!("  /v2/models/{name}    /v1/models/{name}\n"));
    }
    text.push_str("\nmetrics: /metrics    health: /v2/health/ready\n");
    Reply::text(text).with_header(header::VARY, http::HeaderValue::from_static("accept"))
}

async fn exposition(State(app): Shared, headers: HeaderMap) -> Reply {
    let text = exporter::exposition(&app);
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let reply = match exporter::wants_classic(accept) {
        true => Reply::body(exporter::CLASSIC_TYPE, exporter::classic(&text)),
        false => Reply::body(exporter::CONTENT_TYPE, text),
    };
    reply.with_header(header::VARY, http::HeaderValue::from_static("accept"))
}

/// Lists the names of the models, in the form of KServe's `/v1/models` and `/v2/models`.
async fn models(State(app): Shared) -> Reply {
    let names = app.lifecycle.catalog().names();
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    Reply::json(serde_json::json!({ "models": names }).to_string())
}

async fn unknown(uri: http::Uri) -> Reply {
    if let Some(what) = oip::not_offered(uri.path()) {
        return Reply::error(&Error::unimplemented(format!("{} is not offered: {what}", uri.path())));
    }
    Reply::error(&Error::not_found(format!(
        "not found: {}; the API is under /v1/models, /v2, /v1/audio, /v1/images and /collections, metrics are at \
         /metrics, pages at /, /audio and /images",
        uri.path()
    )))
}

async fn wrong_method(method: http::Method, uri: http::Uri) -> Reply {
    let path = uri.path();
    let meant = meant(&method, path).map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    let error = Error::invalid(format!("{path} does not take {method}{meant}"));
    Reply::error(&error).with_status(StatusCode::METHOD_NOT_ALLOWED)
}

/// The request that was most likely meant by `method` on a path that does not take it.
fn meant(method: &http::Method, path: &str) -> Option<String> {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    match (method.as_str(), segments.as_slice()) {
        ("POST", ["v2", "models", _] | ["v2", "models", _, "versions", _]) => {
            Some(format!("{}/infer", path.trim_end_matches('/')))
        }
        ("GET", ["v2", "models", _, .., "infer"] | ["v2", "repository", ..]) => Some(format!("POST {path}")),
        _ => None,
    }
}

/// Reads a request's body within the door's limits and the budget, which hold for what is decompressed too. The bytes hold
/// what they take of the budget until the last part of them is dropped.
pub(crate) async fn read_body(app: &App, headers: &HeaderMap, body: axum::body::Body) -> Result<Bytes> {
    let coding = decompress::coding(headers)?;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    let limits = BodyLimits {
        bytes_max: app.listeners.body_bytes_max,
        framing_bytes: 0,
        piece_timeout: app.listeners.client_timeout,
        total_timeout: app.listeners.request_timeout,
    };
    let budget = &app.request_memory;
    // A connection of HTTP/1.1 has one request at a time.
    let accounting = BodyAccounting { held: budget.nothing(), receive_permits: None };
    let body = body_reader::read(body, announced, limits, accounting).await?;
    let Some(coding) = coding else { return Ok(body) };
    let held = budget.nothing();
    let decompress = move || decompress::decompress(coding, &body, limits.bytes_max, held);
    app.codec.run(CodecStep::Decompress, decompress).await
}

/// Reads a body that is JSON of no type of ours: its values are counted in the budget as well, for as long as the bytes live.
pub(crate) async fn read_json_body(app: &App, headers: &HeaderMap, body: axum::body::Body) -> Result<Bytes> {
    let body = read_body(app, headers, body).await?;
    if body.len() as u64 <= FREE_BYTES_MAX {
        return Ok(body);
    }
    let (mut held, large) = (app.request_memory.nothing(), body.len() > INLINE_BYTES_MAX);
    let count = move || {
        held.cover(tree_bytes_max(&body))?;
        Ok(held.attach(body))
    };
    app.codec.run_if(large, CodecStep::Decode, count).await
}

/// Parses a JSON body, on a thread for decoding if it is large.
///
/// # Errors
/// `InvalidArgument` for anything else than the JSON of a `T`.
pub(crate) async fn parse_json<T>(app: &App, body: Bytes) -> Result<T>
where
    T: serde::de::DeserializeOwned + Send + 'static,
{
    let large = body.len() > INLINE_BYTES_MAX;
    let parse = move || {
        serde_json::from_slice(&body)
            .map_err(|error| Error::invalid(format!("the body is not the expected JSON: {error}")))
    };
    app.codec.run_if(large, CodecStep::Decode, parse).await
}

/// Bytes that a value of JSON takes at most besides its text while a list of such values grows: each stands before a comma,
/// a colon or an end.
const JSON_VALUE_BYTES: u64 = 96;
/// Bytes that an object of JSON takes at most besides its members: a node of a B-tree has room for eleven of them.
const JSON_OBJECT_BYTES: u64 = 704;

/// Returns an upper bound of the bytes that `json` takes as a tree of values, besides its text.
fn tree_bytes_max(json: &[u8]) -> u64 {
    let objects = json.iter().filter(|byte| **byte == b'{').count() as u64;
    values(json) * JSON_VALUE_BYTES + objects * JSON_OBJECT_BYTES
}

/// Returns an upper bound of the number of values in `json`: each but the last stands before a comma or a colon.
fn values(json: &[u8]) -> u64 {
    1 + json.iter().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count() as u64
}

/// Bytes that an element takes at most while its list grows, twice what was there being held as well: a number, a string.
const NUMBER_BYTES: u64 = 3 * size_of::<u64>() as u64;
const STRING_BYTES: u64 = 3 * size_of::<Bytes>() as u64;
/// Bytes of a string in raw contents that is empty, and of its references in the list and in the tensor.
const RAW_STRING_BYTES_MIN: usize = 4;
const RAW_STRING_BYTES: usize = 2 * size_of::<Bytes>();
/// Shortest JSON in bytes whose values are counted; what a shorter one becomes is bounded by the number of requests.
const COUNTED_BYTES_MIN: usize = 512;

/// A body with tensors: JSON, and perhaps raw contents behind it.
struct Tensors {
    body: Bytes,
    json_bytes: usize,
    /// Whether what is behind the JSON may be strings.
    strings: bool,
}

impl Tensors {
    /// Looks at `body`, of which `header_length` bytes are JSON (all of it if `None`), for a model with `signature`.
    fn new(body: Bytes, header_length: Option<usize>, signature: &Signature) -> Tensors {
        let json_bytes = header_length.unwrap_or(body.len()).min(body.len());
        let json = &body[..json_bytes];
        // The datatype may be written with escapes.
        let named = || json.contains(&b'\\') || json.windows(5).any(|five| five == b"BYTES");
        let strings = json_bytes < body.len()
            && match json_bytes {
                0 => signature.inputs.iter().any(|input| input.dtype == DType::String),
                _ => json_bytes > INLINE_BYTES_MAX || named(),
            };
        Tensors { body, json_bytes, strings }
    }

    /// Returns whether this is too much for a thread that watches sockets.
    fn large(&self) -> bool {
        self.json_bytes > INLINE_BYTES_MAX || (self.strings && self.body.len() > INLINE_BYTES_MAX)
    }

    /// Returns an upper bound of the bytes that reading the tensors allocates.
    fn bytes_max(&self) -> u64 {
        let (json, behind) = self.body.split_at(self.json_bytes);
        let strings = if self.strings { behind.len() / RAW_STRING_BYTES_MIN * RAW_STRING_BYTES } else { 0 };
        if json.len() < COUNTED_BYTES_MIN {
            return strings as u64;
        }
        let quotes = json.iter().filter(|byte| **byte == b'"').count() as u64;
        // Escaped text and base64 are copied.
        strings as u64
            + values(json) * NUMBER_BYTES
            + quotes / 2 * STRING_BYTES
            + quotes.min(1) * json.len() as u64
    }
}

/// Reads the tensors of `body` by `parse`, on a thread for decoding if they are large; returns what they hold of the budget
/// as well.
async fn parse_tensors<T: Send + 'static>(
    app: &App,
    tensors: Tensors,
    parse: impl FnOnce(Bytes) -> Result<T> + Send + 'static,
) -> Result<(T, Reservation)> {
    let (mut held, large) = (app.request_memory.nothing(), tensors.large());
    let work = move || {
        held.cover(tensors.bytes_max())?;
        Ok((parse(tensors.body)?, held))
    };
    app.codec.run_if(large, CodecStep::Decode, work).await
}

/// Writes an answer by `write`, on a thread for encoding if its text is large. `bytes` is what the tensors and the answer
/// take, of which `text` are JSON.
async fn write_answer<T: Send + 'static>(
    app: &App,
    mut held: Reservation,
    (text, bytes): (usize, u64),
    write: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<(T, Reservation)> {
    // The inputs are gone.
    held.shrink_to(0);
    held.cover(bytes)?;
    let written = app.codec.run_if(text > INLINE_BYTES_MAX, CodecStep::Encode, write).await?;
    Ok((written, held))
}

/// A version number from a path segment.
fn parse_version(text: &str) -> Result<u64> {
    text.parse().map_err(|_| Error::invalid(format!("\"{text}\" is no version number")))
}
