//! The handlers of features without images.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Extension, Router};
use base::{Error, Result};
use http::HeaderMap;
use image_features::collection::CollectionSpec;
use image_features::features::{checked_name, checked_quality};
use image_features::settings::ImageKind;
use transport::access::KeyGrant;
use transport::{QueryResult, Reply, Shared, query_parameters};

use super::endpoints::{check_creates, media, read_file};
use super::state::ImagesState;
use super::transfer::{self, FeatureExtraction};

pub(crate) fn routes() -> Router<Arc<ImagesState>> {
    Router::new()
        .route("/v1/images/{collection}/features", post(extract).put(write))
        .route("/v1/images/{collection}/{id}/features", get(read))
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtractParameters {
    name: Option<String>,
    kind: Option<String>,
    model: Option<String>,
    quality_min: Option<u8>,
}

/// Extracts the features of the image in the body, and stores nothing.
async fn extract(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    query: QueryResult<ExtractParameters>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let extracted = async {
        let parameters = query_parameters(query)?;
        state.services.requests.check_room()?;
        let kind = parameters.kind.as_deref().map(ImageKind::parse).transpose()?;
        let quality_min = checked_quality(parameters.quality_min)?;
        let wanted =
            CollectionSpec { name: collection, kind, model: parameters.model, quality_min };
        let name = checked_name(parameters.name.as_deref().unwrap_or_default())?;
        if media(&headers) == "application/json" {
            return Err(Error::invalid(
                "the body is an image; GET .../ID/features returns the features of a stored one, PUT writes features",
            ));
        }
        let bytes = read_file(&state.services, &headers, body).await?;
        let _admitted = state.services.requests.admit()?;
        let request = FeatureExtraction { wanted, name, bytes };
        transfer::extract(&state.services, request).await?.to_json()
    };
    json(extracted.await)
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteParameters {
    kind: Option<String>,
    model: Option<String>,
}

/// Writes the points of the body.
async fn write(
    State(state): Shared<ImagesState>,
    Path(collection): Path<String>,
    query: QueryResult<WriteParameters>,
    grant: Option<Extension<KeyGrant>>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let written = async {
        check_creates(&state.services, grant.as_deref(), &collection)?;
        let parameters = query_parameters(query)?;
        state.services.requests.check_room()?;
        let kind = parameters.kind.as_deref().map(ImageKind::parse).transpose()?;
        let wanted =
            CollectionSpec { name: collection, kind, model: parameters.model, quality_min: 0 };
        let body = state.services.requests.read_json_body(&headers, body).await?;
        let _admitted = state.services.requests.admit()?;
        let written = transfer::write(&state.services, wanted, body).await?;
        Ok(written.to_json().to_string())
    };
    json(written.await)
}

/// Returns the features of a stored point.
async fn read(
    State(state): Shared<ImagesState>,
    Path((collection, id)): Path<(String, String)>,
) -> Reply {
    let found =
        async { transfer::read(&state.services, &collection, id.parse()?).await?.to_json() };
    json(found.await)
}

fn json(outcome: Result<String>) -> Reply {
    Reply::of(outcome.map(Reply::json))
}
