//! Errors of requests that reach no handler, in the form of the path's interface.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use base::Error;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use transport::Reply;

/// Paths of Qdrant's interface without a collection.
const QDRANT_PATHS: [&str; 4] = ["/collections", "/aliases", "/cluster", "/issues"];
/// Start of all other paths of Qdrant's interface.
const QDRANT_PREFIX: &str = "/collections/";

/// Returns the reply for an error at `path`.
pub(super) fn reply(path: &str, error: &Error) -> Reply {
    if is_qdrant(path) { api_qdrant::refuse(error, Duration::ZERO) } else { Reply::error(error) }
}

/// Answers a request whose key lacks a right.
pub(super) fn refused(parts: &Parts, error: &Error) -> Response {
    reply(parts.uri.path(), error).into_response()
}

/// Answers a request without a key.
pub(super) fn unauthenticated(parts: &Parts, error: &Error) -> Response {
    let response = console::unauthenticated(parts, error);
    // A browser is sent to the form.
    if response.status() != StatusCode::UNAUTHORIZED || !is_qdrant(parts.uri.path()) {
        return response;
    }
    reply(parts.uri.path(), error)
        .with_status(StatusCode::UNAUTHORIZED)
        .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
        .into_response()
}

fn is_qdrant(path: &str) -> bool {
    QDRANT_PATHS.contains(&path) || path.starts_with(QDRANT_PREFIX)
}
