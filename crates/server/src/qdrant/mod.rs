//! Qdrant's REST interface, so that its clients work unchanged.
//!
//! A collection has one vector, with or without a name. Reads run on the search threads, writes on a few
//! threads of their own that wait for the log; a door's thread does neither. What Qdrant knows and this
//! server does not is refused with 501 and the reason; a field of a body that neither knows with 400. Hints that a
//! collection does not follow (shards and replicas, graph and optimiser parameters, where to keep what) are
//! accepted, are not shown as if they held, and are named in the `warnings` of `GET /collections/NAME`. `wait` and
//! `ordering` have no effect, as every acknowledged write is durable. An index on a payload field is recorded
//! and shown, and does not make filters faster, which `warnings` says as well.
//!
//! A read waits for a collection that is still being opened, for a limited time, and is answered 503 after it. If
//! damage may have left something out of an answer, its result has `"partial": true`.

mod call;
mod collections;
mod describe;
mod filters;
mod mmr;
mod query;
mod retrieve;
mod scores;
#[cfg(test)]
mod tests;
mod update;
mod write_threads;

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{any, delete, get, post, put};
use axum::{Extension, Router};
use base::Error;
use http::{HeaderMap, StatusCode, header};

use self::call::{Call, refuse};
use self::write_threads::WriteThreads;
use crate::app::App;
use transport::Reply;

use crate::app::Shared;

/// The routes that want the key where there is one.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/collections", get(|call: Call| call.at_once(collections::list)))
        .route(
            "/collections/{collection}",
            get(|call: Call| call.inspect(describe::describe))
                .put(|call: Call| call.write(collections::create))
                .patch(|call: Call| call.write(collections::update))
                .delete(|call: Call| call.remove(collections::remove)),
        )
        .route("/collections/{collection}/exists", get(|call: Call| call.at_once(collections::exists)))
        .route("/collections/{collection}/aliases", get(|call: Call| call.at_once(collections::aliases_of)))
        .route("/collections/aliases", post(|call: Call| call.write(collections::change_aliases)))
        .route("/aliases", get(|call: Call| call.at_once(collections::aliases)))
        .route("/collections/{collection}/index", put(|call: Call| call.write(collections::index)))
        .route(
            "/collections/{collection}/index/{item}",
            delete(|call: Call| call.write(collections::drop_index)),
        )
        .route(
            "/collections/{collection}/segments/{item}",
            delete(|call: Call| call.write(collections::give_up)).fallback(unsupported),
        )
        .route("/collections/{collection}/facet", post(|call: Call| call.read(retrieve::facet)))
        .route("/cluster", get(|call: Call| call.at_once(collections::cluster)))
        .merge(points())
        .route("/collections/{collection}/{*item}", any(unsupported))
        .route("/snapshots", any(unsupported))
        .route("/snapshots/{*item}", any(unsupported))
        .route("/telemetry", any(unsupported))
        .route("/quotas", any(unsupported))
        .route("/quotas/{*item}", any(unsupported))
        .route("/cluster/telemetry", get(unsupported).fallback(wrong_method))
        .route("/cluster/recover", post(unsupported).fallback(wrong_method))
        .route("/cluster/peer/{item}", delete(unsupported).fallback(wrong_method))
        .route(
            "/issues",
            get(|call: Call| call.at_once(collections::issues))
                .delete(|call: Call| call.at_once(collections::clear_issues))
                .fallback(wrong_method),
        )
        .layer(Extension(Arc::new(WriteThreads::default())))
}

fn points() -> Router<Arc<App>> {
    const POINTS: &str = "/collections/{collection}/points";
    let at = |rest: &str| format!("{POINTS}/{rest}");
    Router::new()
        .route(
            POINTS,
            put(|call: Call| call.write(update::upsert)).post(|call: Call| call.read(retrieve::fetch)),
        )
        .route(&at("{item}"), get(|call: Call| call.read(retrieve::one)).fallback(unsupported))
        .route(&at("scroll"), post(|call: Call| call.read(retrieve::scroll)))
        .route(&at("count"), post(|call: Call| call.read(retrieve::count)))
        .route(&at("query"), post(|call: Call| call.read(query::query)))
        .route(&at("query/batch"), post(|call: Call| call.read(query::batch)))
        .route(&at("delete"), post(|call: Call| call.write(update::delete)))
        .route(
            &at("payload"),
            post(|call: Call| call.write(update::set_payload))
                .put(|call: Call| call.write(update::overwrite_payload)),
        )
        .route(&at("payload/delete"), post(|call: Call| call.write(update::delete_payload)))
        .route(&at("payload/clear"), post(|call: Call| call.write(update::clear_payload)))
        .route(&at("batch"), post(|call: Call| call.write(update::batch)))
}

/// A filter in Qdrant's words, for a collection.
///
/// # Errors
/// `InvalidArgument` for what is no such filter, `Unimplemented` for conditions that are not supported.
pub(crate) fn clause(
    named: &search::registry::NamedCollection,
    filter: &str,
) -> base::Result<search::filter::Filter> {
    filters::prepare(named, api_qdrant::json::parse_filter(filter.as_bytes())?)
}

/// The probes, which want no key.
pub(crate) fn probes() -> Router<Arc<App>> {
    Router::new()
        .route("/healthz", get(|| async { Reply::text("healthz check passed") }))
        .route("/livez", get(|| async { Reply::text("healthz check passed") }))
        .route("/readyz", get(ready))
}

/// Ready once every collection that can be opened is.
async fn ready(State(app): Shared) -> Reply {
    let opening = app.collections.opened().is_some_and(|registry| registry.stats().collections[0] > 0);
    if opening {
        return Reply::text("collections are still being opened")
            .with_status(StatusCode::SERVICE_UNAVAILABLE);
    }
    Reply::text("all shards are ready")
}

/// What Qdrant's clients look for at the root; `None` for everybody else. Python's and Go's say who they are,
/// others ask for JSON.
pub(crate) fn version(headers: &HeaderMap) -> Option<Reply> {
    let has = |name: header::HeaderName, what: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|value| value.contains(what))
    };
    // The last ones are libraries for programs, which say that they take anything; curl, for people, is not among them.
    let agents =
        ["python-client/", "qdrant", "go-client/", "python-requests/", "python-httpx/", "aiohttp/", "axios/"];
    let asks =
        agents.iter().any(|agent| has(header::USER_AGENT, agent)) || has(header::ACCEPT, "application/json");
    asks.then(|| Reply::json(api_qdrant::json::version(crate::NAME, crate::VERSION)))
}

/// Answers 405 in Qdrant's envelope.
async fn wrong_method(method: http::Method, uri: http::Uri) -> Reply {
    let what = format!("{} has no {method}", uri.path());
    refuse(&Error::invalid(what), std::time::Duration::ZERO).with_status(StatusCode::METHOD_NOT_ALLOWED)
}

async fn unsupported(method: http::Method, uri: http::Uri) -> Reply {
    let what = format!("{method} {} is not part of what this server has of Qdrant's interface", uri.path());
    refuse(&Error::unimplemented(what), std::time::Duration::ZERO)
}
