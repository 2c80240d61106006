//! The routes over HTTP/1.1: the Open Inference Protocol under `/v2`, TensorFlow Serving's API
//! under `/v1`, audio, images and collections, `/metrics`, and the pages.

mod fallback;
mod health;
mod log;
mod moved;
mod oip;
pub(crate) mod openapi;
mod operations;
mod refusals;
mod repository;
mod rollout;
mod slow;
mod tensors;
#[cfg(test)]
mod tests;
mod tfs;
mod trace;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use api_models::view;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use base::Error;
use http::{HeaderMap, Uri, header};
use observe::{Exporter, MetricNames, trace_call};
use transport::access::{AccessPolicy, KeyGrant, OperationGuard};
use transport::{Reply, RequestBody, RequestResources, Shared, count_body};

use crate::compose::Server;
use crate::config::TFS_METRICS;
use crate::models::ModelsState;
use crate::surface::Surface;

/// Path of the metrics.
const METRICS: &str = "/metrics";

/// Returns the service of the routes of `surface`.
pub(crate) fn service(server: &Server, surface: Surface) -> HttpService {
    HttpService {
        router: router(server, surface),
        requests: server.requests.clone(),
        tfs_metrics: server.http_options.tfs_metrics.as_deref().map(Arc::from),
    }
}

/// A router whose answers are counted in the memory of requests.
#[derive(Clone)]
pub(crate) struct HttpService {
    router: Router,
    requests: Arc<RequestResources>,
    /// Path that clients use for [`TFS_METRICS`], if the settings name one.
    tfs_metrics: Option<Arc<str>>,
}

impl tower::Service<http::Request<RequestBody>> for HttpService {
    type Response = Response;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Self::Error>> {
        // A router is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<RequestBody>) -> Self::Future {
        let tfs_metrics = Some(request.uri().path()) == self.tfs_metrics.as_deref();
        if tfs_metrics {
            *request.uri_mut() = Uri::from_static(TFS_METRICS);
        }
        let request = with_plain_case(request);
        // Metrics must be readable when the memory of requests is used up.
        let exempt = tfs_metrics || request.uri().path() == METRICS;
        let answer = self.router.call(request);
        let requests = self.requests.clone();
        Box::pin(async move {
            let Ok(response) = answer.await;
            if exempt {
                return Ok(response);
            }
            let counted = count_body(&requests, response).await;
            Ok(counted.unwrap_or_else(|error| Reply::error(&error).into_response()))
        })
    }
}

/// Returns the request with TensorFlow Serving's paths in the case of the routes, because it
/// accepts any case.
fn with_plain_case(mut request: http::Request<RequestBody>) -> http::Request<RequestBody> {
    const PREFIX: &str = "/v1/models";
    let path = request.uri().path();
    let Some((start, rest)) = path.split_at_checked(PREFIX.len()) else { return request };
    let other = start != PREFIX && start.eq_ignore_ascii_case(PREFIX);
    if other && (rest.is_empty() || rest.starts_with('/')) {
        let mut parts = request.uri().clone().into_parts();
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        parts.path_and_query = format!("{PREFIX}{rest}{query}").parse().ok();
        if let Ok(uri) = http::Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
    request
}

/// Returns the routes of images and points, of this server or of its cluster.
fn images_and_points(server: &Server) -> Router {
    match server.cluster.get() {
        Some(cluster) => cluster.routes(),
        None => {
            let images = api_images::routes().with_state(server.images.clone());
            images.merge(api_qdrant::routes().with_state(server.qdrant.clone()))
        }
    }
}

/// Returns the routes of backups. A node of a cluster refuses them. It has no collections of its
/// own, so a comparison of all backups would find no problem.
fn backups(server: &Server) -> Router {
    let routes = api_qdrant::backups::routes(server.access.clone());
    let routes = routes.with_state(server.backups.clone());
    if server.cluster.get().is_some() {
        routes.route_layer(from_fn(refuse_backups))
    } else {
        routes
    }
}

/// Refuses a request for backups at a node of a cluster.
async fn refuse_backups(_request: Request, _next: Next) -> Response {
    Reply::error(&Error::unimplemented(
        "backups and copies of one server are not available in a cluster; make a snapshot with POST \
         /collections/NAME/snapshots at a node with the role root (docs/cluster.md, Snapshots)",
    ))
    .into_response()
}

/// Adds a trace to each request of `routes`.
fn traced(server: &Server, routes: Router) -> Router {
    routes.route_layer(from_fn_with_state(server.models.starter.clone(), trace_call))
}

/// Requires a key on `routes`, if the server has any.
fn guarded(server: &Server, routes: Router) -> Router {
    let guard = OperationGuard {
        operation: operations::operation,
        unauthenticated: refusals::unauthenticated,
        refused: refusals::refused,
    };
    server.access.guard_operations(routes, guard)
}

/// Returns the routes of images and points for calls over gRPC, which check the keys.
pub(crate) fn collections(server: &Server) -> Router {
    guarded(server, traced(server, images_and_points(server)))
}

pub(crate) fn router(server: &Server, surface: Surface) -> Router {
    let access = &server.access;
    let collections = traced(server, images_and_points(server).merge(backups(server)));
    let collections = access.guard_pages(collections, "collections and images are changed");
    let routes = models()
        .with_state(server.models.clone())
        .route("/openapi.json", get(openapi::openapi))
        .merge(traced(server, api_audio::routes().with_state(server.audio.clone())))
        .merge(collections)
        .merge(health::routes(server));
    let routes =
        moved::callers(surface, routes).merge(moved::operators(surface, operators(server)));
    let routes = guarded(server, routes)
        .fallback(fallback::unknown)
        .method_not_allowed_fallback(fallback::wrong_method)
        .layer(Extension(surface))
        .layer(from_fn(refusals::check_path));
    host_policy(server, surface).guard_hosts(access.cors.guard(routes, is_api))
}

/// Returns the rules for the host names in requests. An admin port that only this machine reaches
/// takes no name of another site, even if other machines reach the other ports.
fn host_policy(server: &Server, surface: Surface) -> Arc<AccessPolicy> {
    match (surface, server.http_options.admin_host) {
        (Surface::Admin, Some(host)) => {
            Arc::new(AccessPolicy { host, ..AccessPolicy::clone(&server.access) })
        }
        _ => server.access.clone(),
    }
}

/// Returns the routes that the admin port offers in place of the others: metrics, log and pages.
fn operators(server: &Server) -> Router {
    let routes = console::routes()
        .merge(console::live_routes().with_state(server.page.clone()))
        .route(METRICS, get(exposition).with_state(server.exporter.clone()))
        .layer(Extension(server.http_options.metric_names))
        .merge(console::login_routes(
            server.access.clone(),
            server.requests.clone(),
            server.http_options.encrypted,
        ))
        .merge(log::routes(server))
        .merge(slow::routes(server))
        .merge(trace::routes().with_state(server.models.clone()));
    if server.http_options.tfs_metrics.is_some() {
        routes.route(TFS_METRICS, get(tfs_exposition).with_state(server.exporter.clone()))
    } else {
        routes
    }
}

/// Returns the routes of models, and the front page.
fn models() -> Router<Arc<ModelsState>> {
    Router::new()
        .route("/", get(front))
        .route("/v2", get(oip::server_metadata))
        .route("/v2/", get(oip::server_metadata))
        .route("/v2/health/live", get(oip::server_live))
        .route("/v2/health/ready", get(oip::server_ready))
        .route("/v1/models", get(model_names))
        .route("/v2/models", get(model_names))
        .route("/v2/models/stats", get(oip::all_stats))
        .route("/v2/models/{model}", get(oip::metadata))
        .route("/v2/models/{model}/ready", get(oip::ready))
        .route("/v2/models/{model}/config", get(oip::config))
        .route("/v2/models/{model}/stats", get(oip::stats))
        .route("/v2/models/{model}/infer", post(oip::infer))
        .route("/v2/models/{model}/rollout", get(rollout::show).post(rollout::change))
        .route("/v2/models/{model}/versions/{version}", get(oip::metadata))
        .route("/v2/models/{model}/versions/{version}/ready", get(oip::ready))
        .route("/v2/models/{model}/versions/{version}/config", get(oip::config))
        .route("/v2/models/{model}/versions/{version}/stats", get(oip::stats))
        .route("/v2/models/{model}/versions/{version}/infer", post(oip::infer))
        .route("/v2/repository/index", post(repository::index))
        .route("/v2/repository/models/{model}/load", post(repository::load))
        .route("/v2/repository/models/{model}/unload", post(repository::unload))
        .route("/v1/models/{*rest}", get(tfs::read).post(tfs::run))
}

/// Answers browsers with the page, and other clients with a few lines of text.
async fn front(
    State(state): Shared<ModelsState>,
    Extension(surface): Extension<Surface>,
    grant: Option<Extension<KeyGrant>>,
    headers: HeaderMap,
) -> Reply {
    if console::wants_page(&headers) {
        return console::page();
    }
    if let Some(version) = api_qdrant::version(&headers, crate::NAME, crate::VERSION) {
        return version
            .with_header(header::VARY, http::HeaderValue::from_static("accept, user-agent"));
    }
    let mut text =
        format!("{} {} ({})\n\nmodels:\n", crate::NAME, crate::VERSION, state.engine_version);
    for name in state.lifecycle.catalog().names() {
        if view::sees_model(grant.as_deref(), &name) {
            text.push_str(&format!("  /v2/models/{name}    /v1/models/{name}\n"));
        }
    }
    text.push_str(&match surface.elsewhere() {
        None => "\nmetrics: /metrics    health: /v2/health/ready    all calls: /openapi.json (page: /docs)\n".to_owned(),
        Some(port) => format!(
            "\nhealth: /v2/health/ready    all calls: /openapi.json    admin calls, metrics and pages: port {port}\n"
        ),
    });
    Reply::text(text).with_header(header::VARY, http::HeaderValue::from_static("accept"))
}

async fn exposition(
    State(exporter): Shared<Exporter>,
    Extension(names): Extension<MetricNames>,
    headers: HeaderMap,
) -> Reply {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let accept = accept.unwrap_or_default().to_owned();
    let made = exporter.in_turn(move |exporter| exporter.preferred(names, &accept)).await;
    Reply::of(made.map(|exposition| Reply::body(exposition.content_type, exposition.text)))
        .with_header(header::VARY, http::HeaderValue::from_static("accept"))
}

async fn tfs_exposition(State(exporter): Shared<Exporter>) -> Reply {
    let made = exporter.in_turn(Exporter::tfs_exposition).await;
    Reply::of(made.map(|text| Reply::body(observe::CLASSIC_TYPE, text)))
}

/// Returns true for the paths that pages of other origins may use, if any may: the API, without
/// metrics and pages.
fn is_api(path: &str) -> bool {
    let below = |start: &str| {
        path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let roots = ["/v1", "/v2", "/collections", "/aliases", "/issues", "/openapi.json"];
    // The paths below `/cluster` are for the nodes of a cluster.
    roots.into_iter().any(below) || path == "/cluster"
}

/// Lists the names of the models that the request's key may use, as KServe's `/v1/models` and
/// `/v2/models` do.
async fn model_names(
    State(state): Shared<ModelsState>,
    grant: Option<Extension<KeyGrant>>,
) -> Reply {
    let names = state.lifecycle.catalog().names();
    let seen = |name: &&str| view::sees_model(grant.as_deref(), name);
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).filter(seen).collect();
    Reply::json(serde_json::json!({ "models": names }).to_string())
}
