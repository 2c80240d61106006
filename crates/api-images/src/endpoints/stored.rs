//! The handlers of stored images: pages, missing ids, and one image with its parts.

use axum::body::Body;
use axum::extract::{Path, State};
use http::{HeaderMap, HeaderValue, header};
use matching::template::TemplateFormat;
use search::points::PointId;
use serde_json::{Value, json};
use transport::{QueryResult, Reply, Shared, query_parameters};

use super::{answer, parsed};
use crate::browse::{self, OriginalFile};
use crate::prints;
use crate::state::ImagesState;

/// Default number of images on a page.
const PAGE_DEFAULT: usize = 50;
/// Default side of a thumbnail in pixels.
const SIDE_DEFAULT: u32 = 256;

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageParameters {
    limit: Option<usize>,
    offset: Option<String>,
    filter: Option<String>,
}

pub(super) async fn page(
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

pub(super) async fn missing(
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

/// Lets clients cache a reply, because the image of an id never changes.
fn cacheable(reply: Reply) -> Reply {
    reply
        .with_header(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=86400"))
        .with_header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
}

pub(super) async fn original(
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

pub(super) async fn delete(
    State(state): Shared<ImagesState>,
    Path((collection, id)): Path<(String, String)>,
) -> Reply {
    let deleted = async { browse::delete(&state.services, &collection, id.parse()?).await };
    answer(deleted.await.map(|()| json!({ "deleted": id })))
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ThumbnailParameters {
    size: Option<u32>,
}

pub(super) async fn thumbnail(
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

pub(super) async fn keypoints(
    State(state): Shared<ImagesState>,
    Path((collection, id)): Path<(String, String)>,
) -> Reply {
    let found = async { browse::keypoints(&state.services, &collection, id.parse()?).await };
    answer(found.await)
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TemplateParameters {
    format: Option<String>,
}

/// Returns the template of a stored fingerprint.
pub(super) async fn template(
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
