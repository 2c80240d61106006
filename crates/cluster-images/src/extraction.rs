//! Features of the image that a search begins with.

use std::fmt::Write as _;

use api_images::{ExtractedQuery, ExtractedView};
use base::{Error, Result};
use bytes::Bytes;
use cluster_node::node::image_endpoints::{EXTRACT_HEADER, EXTRACT_PATH, ExtractionRequest};
use cluster_root::RootContext;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_client::HttpRequest;
use search::points::PointId;
use serde::de::DeserializeOwned;
use tokio::time::timeout_at;

use super::by_id::{HolderRequest, ask_holder};
use super::target::ImageTarget;
use super::{pass_on, reply};

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
        Some(images) => {
            in_time(context, images.extract_query(&target.settings, target.dims, file)).await
        }
        None => elsewhere(context, target, file, None).await,
    }
}

/// Extracts the features of the views of a photograph in one step, as [`of_file`].
///
/// # Errors
/// As [`of_file`].
pub(super) async fn of_views(
    context: &RootContext,
    target: &ImageTarget,
    file: Bytes,
    step: usize,
) -> Result<Vec<ExtractedView>> {
    match context.state.extraction() {
        Some(images) => {
            in_time(context, images.extract_views(&target.settings, target.dims, file, step)).await
        }
        None => elsewhere(context, target, file, Some(step)).await,
    }
}

async fn in_time<T>(
    context: &RootContext,
    extracted: impl Future<Output = Result<T>>,
) -> Result<T> {
    timeout_at(context.deadline.into(), extracted)
        .await
        .map_err(|_| Error::deadline(super::FEATURES_LATE))?
}

/// Lets another node extract: the whole image, or the views of a step.
async fn elsewhere<T: DeserializeOwned + Send + 'static>(
    context: &RootContext,
    target: &ImageTarget,
    file: Bytes,
    views: Option<usize>,
) -> Result<T> {
    let wanted = ExtractionRequest { settings: target.settings.clone(), dims: target.dims, views };
    let wanted = serde_json::to_string(&wanted)
        .map_err(|error| Error::internal("the wanted features").caused_by(error))?;
    let wanted = HeaderValue::try_from(ascii(&wanted))
        .map_err(|error| Error::internal("the wanted features").caused_by(error))?;
    let headers = HeaderMap::from_iter([(HeaderName::from_static(EXTRACT_HEADER), wanted)]);
    let name: String = form_urlencoded::byte_serialize(target.record.name.as_bytes()).collect();
    let path = format!("{EXTRACT_PATH}?collection={name}");
    let request = HttpRequest { method: Method::POST, path: &path, headers, body: file };
    let answer = pass_on::send_to_extraction(context, request).await?;
    if answer.status != 200 {
        return Err(reply::error_of(&answer));
    }
    let _memory = context.state.requests.memory.reserve(answer.body.len() as u64)?;
    let bytes = answer.body.len();
    let parse = move || {
        serde_json::from_slice(&answer.body)
            .map_err(|error| Error::internal("features of a node").caused_by(error))
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
