//! Routes of clients.

use std::sync::Arc;
use std::time::Duration;

use api_qdrant::refuse;
use axum::Router;
use axum::routing::{any, delete, get, post, put};
use base::Error;
use http::{Method, Uri};
use transport::Reply;

use super::call::RootCall;
use super::snapshot_call::SnapshotCall;
use super::state::RootState;
use super::{
    aliases, collection_changes, collections, describe, groups, matrix, node_work, older, plan,
    query, read, snapshots, write,
};

/// Returns the routes of the cluster's collections, which an API key protects. They replace
/// `api_qdrant::routes`.
pub fn routes() -> Router<Arc<RootState>> {
    Router::new()
        .route("/collections", get(|call: RootCall| call.answer(collections::list)))
        .route(
            "/collections/{collection}",
            get(|call: RootCall| call.answer(describe::describe))
                .put(|call: RootCall| call.answer(collections::create))
                .patch(|call: RootCall| call.answer(collection_changes::update))
                .delete(|call: RootCall| call.answer(collections::remove))
                .fallback(unsupported),
        )
        .route(
            "/collections/{collection}/exists",
            get(|call: RootCall| call.answer(collections::exists)),
        )
        .route("/collections/{collection}/facet", post(|call: RootCall| call.answer(read::facet)))
        .route("/cluster/v1/view", get(|call: RootCall| call.answer(describe::cluster)))
        .route("/cluster/v1/work", get(|call: RootCall| call.answer(node_work::of_nodes)))
        .route("/cluster/v1/plan", post(|call: RootCall| call.answer(plan::plan)))
        .merge(points())
        .merge(older_queries())
        .route(
            "/collections/aliases",
            post(|call: RootCall| call.answer(aliases::change)).fallback(unsupported),
        )
        .route(
            "/collections/{collection}/aliases",
            get(|call: RootCall| call.answer(aliases::of_collection)).fallback(unsupported),
        )
        .route("/aliases", get(|call: RootCall| call.answer(aliases::list)).fallback(unsupported))
        .route(
            "/collections/{collection}/index",
            put(|call: RootCall| call.answer(collection_changes::declare_index))
                .fallback(unsupported),
        )
        .route(
            "/collections/{collection}/index/{item}",
            delete(|call: RootCall| call.answer(collection_changes::drop_index))
                .fallback(unsupported),
        )
        .merge(snapshots())
        .route("/collections/{collection}/{*item}", any(unsupported))
        .route("/snapshots", any(unsupported))
        .route("/snapshots/{*item}", any(unsupported))
        .route("/telemetry", any(unsupported))
        .route("/quotas", any(unsupported))
        .route("/quotas/{*item}", any(unsupported))
        .route("/issues", any(unsupported))
        .route("/cluster", any(unsupported))
        .route("/cluster/telemetry", any(unsupported))
        .route("/cluster/recover", any(unsupported))
        .route("/cluster/peer/{item}", any(unsupported))
}

fn snapshots() -> Router<Arc<RootState>> {
    const SNAPSHOTS: &str = "/collections/{collection}/snapshots";
    let at = |rest: &str| format!("{SNAPSHOTS}/{rest}");
    Router::new()
        .route(
            SNAPSHOTS,
            get(|call: RootCall| call.answer(snapshots::list))
                .post(|call: RootCall| call.answer(snapshots::create))
                .fallback(unsupported),
        )
        .route(
            &at("recover"),
            put(|call: SnapshotCall| call.answer(snapshots::recover)).fallback(unsupported),
        )
        .route(
            &at("upload"),
            post(|call: SnapshotCall| call.answer(snapshots::upload)).fallback(unsupported),
        )
        .route(
            &at("{item}"),
            // A HEAD would copy the whole collection.
            get(snapshots::download)
                .head(unsupported)
                .delete(|call: RootCall| call.answer(snapshots::remove))
                .fallback(unsupported),
        )
}

fn points() -> Router<Arc<RootState>> {
    const POINTS: &str = "/collections/{collection}/points";
    let at = |rest: &str| format!("{POINTS}/{rest}");
    Router::new()
        .route(
            POINTS,
            put(|call: RootCall| call.answer(write::upsert))
                .post(|call: RootCall| call.answer(read::fetch)),
        )
        .route(
            &at("{item}"),
            get(|call: RootCall| call.answer(read::get_point)).fallback(unsupported),
        )
        .route(&at("scroll"), post(|call: RootCall| call.answer(read::scroll)))
        .route(&at("count"), post(|call: RootCall| call.answer(read::count)))
        .route(&at("query"), post(|call: RootCall| call.answer(query::query)))
        .route(&at("query/groups"), post(|call: RootCall| call.answer(groups::query)))
        .route(&at("query/batch"), post(|call: RootCall| call.answer(query::batch)))
        .route(
            &at("search/matrix/pairs"),
            post(|call: RootCall| call.answer(matrix::pairs)).fallback(unsupported),
        )
        .route(
            &at("search/matrix/offsets"),
            post(|call: RootCall| call.answer(matrix::offsets)).fallback(unsupported),
        )
        .route(&at("delete"), post(|call: RootCall| call.answer(write::delete)))
        .route(
            &at("payload"),
            post(|call: RootCall| call.answer(write::set_payload))
                .put(|call: RootCall| call.answer(write::overwrite_payload)),
        )
        .route(&at("payload/delete"), post(|call: RootCall| call.answer(write::delete_payload)))
        .route(&at("payload/clear"), post(|call: RootCall| call.answer(write::clear_payload)))
        .route(
            &at("vectors"),
            put(|call: RootCall| call.answer(write::update_vectors)).fallback(unsupported),
        )
        .route(&at("batch"), post(|call: RootCall| call.answer(write::batch)))
}

/// Returns the routes that `points/query` replaces.
fn older_queries() -> Router<Arc<RootState>> {
    let at = |rest: &str| format!("/collections/{{collection}}/points/{rest}");
    Router::new()
        .route(&at("search"), post(|call: RootCall| call.answer(older::search)))
        .route(&at("search/batch"), post(|call: RootCall| call.answer(older::search_batch)))
        .route(&at("search/groups"), post(|call: RootCall| call.answer(older::search_groups)))
        .route(&at("recommend"), post(|call: RootCall| call.answer(older::recommend)))
        .route(&at("recommend/batch"), post(|call: RootCall| call.answer(older::recommend_batch)))
        .route(&at("recommend/groups"), post(|call: RootCall| call.answer(older::recommend_groups)))
        .route(&at("discover"), post(|call: RootCall| call.answer(older::discover)))
        .route(&at("discover/batch"), post(|call: RootCall| call.answer(older::discover_batch)))
}

async fn unsupported(method: Method, uri: Uri) -> Reply {
    let path = uri.path();
    let message = format!(
        "{method} {path} is not part of what a cluster has of Qdrant's interface; see \
         GET /cluster/v1/view for its nodes and shards"
    );
    refuse(&Error::unimplemented(message), Duration::ZERO)
}
