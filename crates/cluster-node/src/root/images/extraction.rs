//! Features of the image that a search begins with.

use std::fmt::Write as _;
use std::sync::Arc;

use api_images::{ExtractedQuery, ImagesState};
use base::{Error, Result};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_client::HttpRequest;
use search::points::PointId;
use tokio::time::timeout_at;

use super::super::call::RootContext;
use super::by_id::{HolderRequest, ask_holder};
use super::target::ImageTarget;
use super::{pass_on, reply};
use crate::node::image_endpoints::{EXTRACT_HEADER, EXTRACT_PATH, ExtractionWish};

/// Extracts the features of a file on this node, or on another one if this one does not have the
/// role extract.
///
/// # Errors
/// The errors of the image and the model; `Unavailable` with retry advice if no node extracts.
pub(super) async fn of_file(
    context: &RootContext,
    target: &ImageTarget,
    file: Bytes,
) -> Result<ExtractedQuery> {
    match context.state.extraction() {
        Some(images) => here(context, target, images, file).await,
        None => elsewhere(context, target, file).await,
    }
}

async fn here(
    context: &RootContext,
    target: &ImageTarget,
    images: &Arc<ImagesState>,
    file: Bytes,
) -> Result<ExtractedQuery> {
    let extracted = images.extract_query(&target.settings, target.dims, file);
    timeout_at(context.deadline.into(), extracted)
        .await
        .map_err(|_| Error::deadline("the time was up before the image's features were found"))?
}

async fn elsewhere(
    context: &RootContext,
    target: &ImageTarget,
    file: Bytes,
) -> Result<ExtractedQuery> {
    let wish = ExtractionWish { settings: target.settings.clone(), dims: target.dims };
    let wish = serde_json::to_string(&wish)
        .map_err(|error| Error::internal(format!("the wanted features: {error}")))?;
    let wish = HeaderValue::try_from(ascii(&wish))
        .map_err(|error| Error::internal(format!("the wanted features: {error}")))?;
    let headers = HeaderMap::from_iter([(HeaderName::from_static(EXTRACT_HEADER), wish)]);
    let name: String = form_urlencoded::byte_serialize(target.record.name.as_bytes()).collect();
    let path = format!("{EXTRACT_PATH}?collection={name}");
    let request = HttpRequest { method: Method::POST, path: &path, headers, body: file };
    let answer = pass_on::to_extraction(context, request).await?;
    if answer.status != 200 {
        return Err(reply::error_of(&answer));
    }
    let _memory = context.state.requests.memory.reserve(answer.body.len() as u64)?;
    let bytes = answer.body.len();
    let parse = move || {
        serde_json::from_slice(&answer.body)
            .map_err(|error| Error::internal(format!("features of a node: {error}")))
    };
    context.compute(bytes, parse).await
}

/// Reads the features of a stored image from a holder.
///
/// # Errors
/// `NotFound` for an id without an image; `Unavailable` if no holder answers.
pub(super) async fn of_point(
    context: &RootContext,
    target: &ImageTarget,
    id: PointId,
) -> Result<ExtractedQuery> {
    let request = HolderRequest::get(format!("{id}/features"));
    let answer = ask_holder(context, &target.record, id, request).await?;
    if answer.status != 200 {
        return Err(reply::error_of(&answer));
    }
    let _memory = context.state.requests.memory.reserve(answer.body.len() as u64)?;
    let bytes = answer.body.len();
    context.compute(bytes, move || ExtractedQuery::of_features(&answer.body)).await
}

/// Returns JSON in ASCII, as headers need it.
fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            text.push(character);
            continue;
        }
        let mut units = [0; 2];
        for unit in character.encode_utf16(&mut units) {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\u{unit:04x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_in_headers_is_ascii() {
        let text = serde_json::to_string("a\"模型é🙂").unwrap();
        let escaped = ascii(&text);
        assert!(escaped.is_ascii(), "{escaped}");
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), "a\"模型é🙂");
    }
}
