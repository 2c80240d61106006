//! Answers to requests for unknown paths and methods.

use axum::Extension;
use base::Error;
use http::{StatusCode, Uri};
use transport::Reply;

use super::{oip, refusals};
use crate::surface::Surface;

/// Answers 404 with the known paths, or 501 for a route of Triton that is not offered.
pub(super) async fn unknown(Extension(surface): Extension<Surface>, uri: Uri) -> Reply {
    let path = uri.path();
    if let Some(what) = oip::not_offered(path) {
        return Reply::error(&Error::unimplemented(format!("{path} is not offered: {what}")));
    }
    let others = match surface.elsewhere() {
        None => "metrics are at /metrics, pages at /, /try, /images, /vectors, /audio and /docs"
            .to_owned(),
        Some(port) => format!("admin calls, metrics and pages are at port {port}"),
    };
    // Other servers ignore a slash at the end, so 404 could mean that a collection does not exist.
    let is_slashed = path.len() > 1 && path.ends_with('/');
    let remedy = if is_slashed { "; leave out the last slash" } else { "" };
    let error = Error::not_found(format!(
        "not found: {path}{remedy}; the API is under /v1/models, /v2, /v1/audio, /v1/images and /collections, \
         {others}, all calls in /openapi.json"
    ));
    refusals::reply(path, &error)
}

/// Answers 405, with the request that the client most likely meant.
pub(super) async fn wrong_method(method: http::Method, uri: Uri) -> Reply {
    let path = uri.path();
    let advice = match likely_request(&method, path) {
        Some(likely) => format!("; did you mean {likely}?"),
        // A browser asks so before a page of another origin may call.
        None if method == http::Method::OPTIONS => {
            "; to let pages of another origin call this server, start it with --cors ORIGIN"
                .to_owned()
        }
        None => String::new(),
    };
    let error = Error::invalid(format!("{path} does not take {method}{advice}"));
    refusals::reply(path, &error).with_status(StatusCode::METHOD_NOT_ALLOWED)
}

/// Returns the request that a client most likely meant. `path` does not accept `method`.
fn likely_request(method: &http::Method, path: &str) -> Option<String> {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    match (method.as_str(), segments.as_slice()) {
        ("POST", ["v2", "models", _] | ["v2", "models", _, "versions", _]) => {
            Some(format!("{}/infer", path.trim_end_matches('/')))
        }
        ("GET", ["v2", "models", _, .., "infer"] | ["v2", "repository", ..]) => {
            Some(format!("POST {path}"))
        }
        _ => None,
    }
}
