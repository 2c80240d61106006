//! Routes of Qdrant's interface.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{any, delete, get, post, put};
use base::Error;
use http::{HeaderMap, Method, StatusCode, Uri, header};
use transport::Reply;

use crate::call::{RestCall, refuse};
use crate::state::CollectionsState;
use crate::{
    collections, describe, groups, json, matrix, older, query, retrieve, snapshots, update,
};

/// Description of the routes as OpenAPI 3.1. Routes that answer 501 are left out.
pub const OPENAPI: &str = include_str!("openapi.json");

/// User agents of Qdrant's clients, and of libraries that such clients are written with.
const AGENTS: [&str; 7] = [
    "python-client/",
    "qdrant",
    "go-client/",
    "python-requests/",
    "python-httpx/",
    "aiohttp/",
    "axios/",
];

/// Returns the routes of collections and points, which an API key protects.
pub fn routes() -> Router<Arc<CollectionsState>> {
    Router::new()
        .route("/collections", get(|call: RestCall| call.at_once(collections::list)))
        .route(
            "/collections/{collection}",
            get(|call: RestCall| call.inspect(describe::describe))
                .put(|call: RestCall| call.write(collections::create))
                .patch(|call: RestCall| call.write(collections::update))
                .delete(|call: RestCall| call.remove(collections::remove)),
        )
        .route(
            "/collections/{collection}/exists",
            get(|call: RestCall| call.at_once(collections::exists)),
        )
        .route(
            "/collections/{collection}/aliases",
            get(|call: RestCall| call.at_once(collections::aliases_of)),
        )
        .route(
            "/collections/aliases",
            post(|call: RestCall| call.write(collections::change_aliases)),
        )
        .route("/aliases", get(|call: RestCall| call.at_once(collections::aliases)))
        .route(
            "/collections/{collection}/index",
            put(|call: RestCall| call.write(collections::index)),
        )
        .route(
            "/collections/{collection}/index/{item}",
            delete(|call: RestCall| call.write(collections::drop_index)),
        )
        .route(
            "/collections/{collection}/segments",
            get(|call: RestCall| call.inspect(describe::segments)).fallback(unsupported),
        )
        .route(
            "/collections/{collection}/segments/{item}",
            delete(|call: RestCall| call.write(collections::give_up)).fallback(unsupported),
        )
        .route("/collections/{collection}/facet", post(|call: RestCall| call.read(retrieve::facet)))
        .route("/cluster", get(|call: RestCall| call.at_once(collections::cluster)))
        .merge(points())
        .merge(older_queries())
        .merge(snapshots::routes())
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
            get(|call: RestCall| call.at_once(collections::issues))
                .delete(|call: RestCall| call.at_once(collections::clear_issues))
                .fallback(wrong_method),
        )
}

fn points() -> Router<Arc<CollectionsState>> {
    const POINTS: &str = "/collections/{collection}/points";
    let at = |rest: &str| format!("{POINTS}/{rest}");
    Router::new()
        .route(
            POINTS,
            put(|call: RestCall| call.write(update::upsert))
                .post(|call: RestCall| call.read(retrieve::fetch)),
        )
        .route(
            &at("{item}"),
            get(|call: RestCall| call.read(retrieve::get_point)).fallback(unsupported),
        )
        .route(&at("scroll"), post(|call: RestCall| call.read(retrieve::scroll)))
        .route(&at("count"), post(|call: RestCall| call.read(retrieve::count)))
        .route(&at("query"), post(|call: RestCall| call.read(query::query)))
        .route(&at("query/groups"), post(|call: RestCall| call.read(groups::query)))
        .route(&at("query/batch"), post(|call: RestCall| call.read_in_steps(query::batch_in_steps)))
        .route(
            &at("search/matrix/pairs"),
            post(|call: RestCall| call.read(matrix::pairs)).fallback(unsupported),
        )
        .route(
            &at("search/matrix/offsets"),
            post(|call: RestCall| call.read(matrix::offsets)).fallback(unsupported),
        )
        .route(&at("delete"), post(|call: RestCall| call.write_deleting(update::delete)))
        .route(
            &at("payload"),
            post(|call: RestCall| call.write_selected(update::set_payload))
                .put(|call: RestCall| call.write_selected(update::overwrite_payload)),
        )
        .route(
            &at("payload/delete"),
            post(|call: RestCall| call.write_selected(update::delete_payload)),
        )
        .route(
            &at("payload/clear"),
            post(|call: RestCall| call.write_selected(update::clear_payload)),
        )
        .route(
            &at("vectors"),
            put(|call: RestCall| call.write(update::update_vectors)).fallback(unsupported),
        )
        .route(&at("vectors/delete"), post(|call: RestCall| call.write(update::delete_vectors)))
        .route(&at("batch"), post(|call: RestCall| call.write_deleting(update::batch)))
}

/// Returns the older query routes, which `points/query` replaces.
fn older_queries() -> Router<Arc<CollectionsState>> {
    let at = |rest: &str| format!("/collections/{{collection}}/points/{rest}");
    Router::new()
        .route(&at("search"), post(|call: RestCall| call.read(older::search)))
        .route(&at("search/batch"), post(|call: RestCall| call.read_in_steps(older::search_batch)))
        .route(&at("search/groups"), post(|call: RestCall| call.read(older::search_groups)))
        .route(&at("recommend"), post(|call: RestCall| call.read(older::recommend)))
        .route(
            &at("recommend/batch"),
            post(|call: RestCall| call.read_in_steps(older::recommend_batch)),
        )
        .route(&at("recommend/groups"), post(|call: RestCall| call.read(older::recommend_groups)))
        .route(&at("discover"), post(|call: RestCall| call.read(older::discover)))
        .route(
            &at("discover/batch"),
            post(|call: RestCall| call.read_in_steps(older::discover_batch)),
        )
}

/// Returns the reply by which clients recognise Qdrant at the root, or `None` for other clients.
/// Clients in Python and Go have a user agent of their own, others ask for JSON. `name` and
/// `version` are the server's.
pub fn version(headers: &HeaderMap, name: &str, version: &str) -> Option<Reply> {
    let has = |name: header::HeaderName, part: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.contains(part))
    };
    let is_client = AGENTS.iter().any(|agent| has(header::USER_AGENT, agent))
        || has(header::ACCEPT, "application/json");
    is_client.then(|| Reply::json(json::version(name, version)))
}

/// Answers 405 in Qdrant's envelope.
async fn wrong_method(method: Method, uri: Uri) -> Reply {
    let message = format!("{} has no {method}", uri.path());
    refuse(&Error::invalid(message), Duration::ZERO).with_status(StatusCode::METHOD_NOT_ALLOWED)
}

async fn unsupported(method: Method, uri: Uri) -> Reply {
    let path = uri.path();
    // Qdrant ignores a slash at the end. Here the rights of a key depend on the path as it is.
    let remedy = if path.ends_with('/') { "; leave out the last slash" } else { "" };
    let message = format!(
        "{method} {path} is not part of what this server has of Qdrant's interface{remedy}"
    );
    refuse(&Error::unimplemented(message), Duration::ZERO)
}
