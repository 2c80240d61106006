//! The HTTP door: the Open Inference Protocol under `/v2`, TensorFlow Serving's API under `/v1`, recordings under
//! `/v1/audio`, `/metrics`, the live page at `/` and the one for recordings at `/audio`.

mod oip;
mod reply;
mod repository;
#[cfg(test)]
mod tests;
mod tfs;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};

use base::{Error, Result};

use crate::app::App;
use crate::body::{self, BodyLimits};
use crate::{admin, api_key, exporter, images, page, qdrant, recordings, unpack};
pub(crate) use reply::Reply;

/// What handlers share.
pub(crate) type Shared = State<Arc<App>>;

/// The door's service.
pub(crate) fn service(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(front))
        .route("/events", get(page::events))
        .merge(page::routes())
        .route("/metrics", get(exposition))
        .route("/v2", get(oip::server_metadata))
        .route("/v2/", get(oip::server_metadata))
        .route("/v2/health/live", get(oip::server_live))
        .route("/v2/health/ready", get(oip::server_ready))
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
        .with_state(app)
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
        false => admin::own_page(&app.doors, keyed, request.headers()),
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

async fn unknown(uri: http::Uri) -> Reply {
    if let Some(what) = oip::not_offered(uri.path()) {
        return Reply::error(&Error::unimplemented(format!("{} is not offered: {what}", uri.path())));
    }
    if matches!(uri.path(), "/v1/models" | "/v1/models/") {
        return Reply::error(&tfs::malformed(uri.path()));
    }
    Reply::error(&Error::not_found(format!("there is nothing at {}; see / for what there is", uri.path())))
}

async fn wrong_method(method: http::Method, uri: http::Uri) -> Reply {
    let error = Error::invalid(format!("{} does not take {method}", uri.path()));
    Reply::error(&error).with_status(StatusCode::METHOD_NOT_ALLOWED)
}

/// Reads a request's body within the door's limits, which hold for what is decompressed too.
pub(crate) async fn read_body(app: &App, headers: &HeaderMap, body: axum::body::Body) -> Result<Bytes> {
    let coding = unpack::coding(headers)?;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    let limits = BodyLimits {
        bytes_max: app.doors.body_bytes_max,
        piece_timeout: app.doors.client_timeout,
        total_timeout: app.doors.request_timeout,
    };
    let body = body::read(body, announced, limits).await?;
    let Some(coding) = coding else { return Ok(body) };
    // Some megabytes take longer than a door's thread should be away.
    let unpacked = tokio::task::spawn_blocking(move || unpack::unpack(coding, &body, limits.bytes_max)).await;
    unpacked.map_err(|error| Error::internal(format!("decompressing: {error}")))?
}

/// A version number from a path segment.
fn parse_version(text: &str) -> Result<u64> {
    text.parse().map_err(|_| Error::invalid(format!("\"{text}\" is no version number")))
}
