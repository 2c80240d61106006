//! Routes of clients, with the paths of `api_images::routes`: keys are checked by these paths.

use std::sync::Arc;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get, post, put};
use base::Error;
use transport::Reply;

use super::by_id::{self, ImagePart};
use super::call::ImageCall;
use super::state::ImageRootState;
use super::{
    bulk, delete, duplicates, features, identify, list, page, put as put_image, search, verify,
};

/// Returns the routes of the cluster's collections of images, which an API key protects. They take
/// the place of `api_images::routes`.
pub fn image_routes() -> Router<Arc<ImageRootState>> {
    const COLLECTION: &str = "/v1/images/{collection}";
    let at = |rest: &str| format!("{COLLECTION}/{rest}");
    Router::new()
        .route("/v1/images", get(|call: ImageCall| call.answer(list::collections)))
        .route("/v1/images/openapi.json", get(|call: ImageCall| call.answer(list::openapi)))
        .route(
            COLLECTION,
            put(put_images)
                .get(|call: ImageCall| call.answer(page::page))
                .delete(|call: ImageCall| call.answer(delete::collection)),
        )
        .route(&at("search"), post(|call: ImageCall| call.answer(search::search)))
        .route(&at("verify"), post(|call: ImageCall| call.answer(verify::verify)))
        .route(&at("missing"), post(|call: ImageCall| call.answer(page::missing)))
        .route(
            &at("features"),
            put(|call: ImageCall| call.answer(features::write))
                .post(|call: ImageCall| call.answer(features::extract)),
        )
        .route(&at("identify"), post(|call: ImageCall| call.answer(identify::identify)))
        .route(&at("rebuild"), unsupported(REBUILD))
        .route(
            &at("duplicates"),
            post(|call: ImageCall| call.answer(duplicates::begin))
                .get(|call: ImageCall| call.answer(duplicates::progress))
                .delete(|call: ImageCall| call.answer(duplicates::cancel)),
        )
        .route(&at("duplicates/groups"), get(duplicates::groups))
        .route(
            &at("{id}"),
            stored(ImagePart::Original).delete(|call: ImageCall| call.answer(delete::image)),
        )
        .route(&at("{id}/thumbnail"), stored(ImagePart::Thumbnail))
        .route(&at("{id}/keypoints"), stored(ImagePart::Keypoints))
        .route(&at("{id}/template"), stored(ImagePart::Template))
        .route(&at("{id}/features"), stored(ImagePart::Features))
}

/// Answers a request with an image, an archive, or the name of a folder. If the client disconnects,
/// the work stops at its next wait. Work on an archive or a folder stops before its next image.
async fn put_images(call: ImageCall) -> Response {
    let answered = match call.media().as_str() {
        "application/zip" | "application/x-zip-compressed" => Box::pin(bulk::archive(call)).await,
        "application/json" => Box::pin(bulk::folder(call)).await,
        _ => return call.answer(put_image::put).await.into_response(),
    };
    answered.unwrap_or_else(|error| Reply::error(&error).into_response())
}

const REBUILD: &str = "a cluster does not rebuild a collection with another model, because no operation pauses the writers \
                       of all shards: stop the clients that write, copy the images with their originals into a new \
                       collection, which model= creates, move the alias that clients use, and remove the old collection \
                       (docs/cluster.md, Another embedding model, has the commands)";

/// Returns a route of one stored image.
fn stored(part: ImagePart) -> MethodRouter<Arc<ImageRootState>> {
    get(move |call: ImageCall| call.answer(move |call| by_id::part(call, part)))
}

/// Returns a route that a cluster does not have.
fn unsupported(reason: &'static str) -> MethodRouter<Arc<ImageRootState>> {
    any(move || async move { Reply::error(&Error::unimplemented(reason)) })
}
