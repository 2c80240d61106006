//! The handlers of `/v1/images`.

mod jobs;
mod searches;
mod stored;
mod upload;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::routing::{get, post, put};
use axum::{Extension, Router};
use base::{Error, ErrorKind, Result};
use http::{HeaderMap, header};
use serde_json::{Value, json};
use transport::access::KeyGrant;
use transport::{Reply, Shared};

use super::services::ImageServices;
use super::state::ImagesState;
use super::{browse, feature_endpoints};

/// Description of the routes as OpenAPI 3.1.
pub const OPENAPI: &str = include_str!("openapi.json");

/// Returns the routes, with the paths of the OpenAPI description.
pub fn routes() -> Router<Arc<ImagesState>> {
    Router::new()
        .route("/v1/images", get(collections))
        .route("/v1/images/openapi.json", get(|| async { Reply::json(OPENAPI) }))
        .route(
            "/v1/images/{collection}",
            put(upload::put_in).get(stored::page).delete(drop_collection),
        )
        .route("/v1/images/{collection}/search", post(searches::find))
        .route("/v1/images/{collection}/identify", post(searches::identify))
        .route("/v1/images/{collection}/verify", post(searches::verify))
        .route("/v1/images/{collection}/missing", post(stored::missing))
        .route(
            "/v1/images/{collection}/rebuild",
            post(jobs::begin_rebuild).get(jobs::rebuild_progress),
        )
        .route(
            "/v1/images/{collection}/duplicates",
            post(jobs::begin_duplicates)
                .get(jobs::duplicates_progress)
                .delete(jobs::cancel_duplicates),
        )
        .route("/v1/images/{collection}/duplicates/groups", get(jobs::duplicate_groups))
        .route("/v1/images/{collection}/{id}", get(stored::original).delete(stored::delete))
        .route("/v1/images/{collection}/{id}/thumbnail", get(stored::thumbnail))
        .route("/v1/images/{collection}/{id}/keypoints", get(stored::keypoints))
        .route("/v1/images/{collection}/{id}/template", get(stored::template))
        .merge(feature_endpoints::routes())
}

fn answer(outcome: Result<Value>) -> Reply {
    Reply::of(outcome.map(|body| Reply::json(body.to_string())))
}

/// Reads the file that is a request's body. A body that ends early adds no image.
///
/// # Errors
/// As [`check_file_body`]; the errors of [`transport::RequestResources::read_body`].
pub(crate) async fn read_file(
    services: &ImageServices,
    headers: &HeaderMap,
    body: Body,
) -> Result<bytes::Bytes> {
    check_file_body(headers)?;
    services.requests.read_body(headers, body).await
}

/// Checks that a body which is expected to be a file is not a form with the file in it.
///
/// # Errors
/// `InvalidArgument` with the remedy.
pub fn check_file_body(headers: &HeaderMap) -> Result<()> {
    if media(headers) == "multipart/form-data" {
        return Err(Error::invalid(
            "the body is a form (multipart/form-data); send the bytes of the file alone, as `curl --data-binary @FILE` does",
        ));
    }
    Ok(())
}

/// Returns the type of a body in lower case, without its parameters; empty if it is missing.
pub(crate) fn media(headers: &HeaderMap) -> String {
    let text =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns true if the headers of a request that puts images in are of a body that names a folder
/// of the server. Reading a folder is an admin call.
pub fn names_folder(headers: &HeaderMap) -> bool {
    media(headers) == "application/json"
}

/// Lists the collections that the request's key may use.
async fn collections(
    State(state): Shared<ImagesState>,
    grant: Option<Extension<KeyGrant>>,
) -> Reply {
    let seen = |name: &str| grant.as_ref().is_none_or(|grant| grant.sees_collection(name));
    answer(browse::collections(&state.services, seen))
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

/// Reads a body of JSON, and converts it on the thread that parses it. That is a thread "decoder-N"
/// for a large body.
pub(super) async fn converted<T, U>(
    services: &ImageServices,
    headers: &HeaderMap,
    body: Body,
    convert: impl FnOnce(T) -> Result<U> + Send + 'static,
) -> Result<U>
where
    T: serde::de::DeserializeOwned + 'static,
    U: Send + 'static,
{
    let body = services.requests.read_json_body(headers, body).await?;
    services.requests.convert_json(body, convert).await
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
