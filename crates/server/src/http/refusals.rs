//! Errors of requests that reach no handler, in the form of the path's interface.

use std::time::Duration;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts as _, RawPathParams, Request};
use axum::middleware::Next;
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

/// Answers 400 if a name in the path is not UTF-8. axum would answer with plain text, and clients
/// read an object of JSON.
pub(super) async fn check_path(request: Request, next: Next) -> Response {
    // Such a name has escapes. Most requests have none.
    if !request.uri().path().contains('%') {
        return next.run(request).await;
    }
    let (mut parts, body) = request.into_parts();
    let names = RawPathParams::from_request_parts(&mut parts, &()).await;
    // A path without a route has no names, which is another rejection.
    if let Err(rejection @ RawPathParamsRejection::InvalidUtf8InPathParam(_)) = &names {
        let error = Error::invalid(format!("Invalid URL: {}", rejection.body_text()));
        return reply(parts.uri.path(), &error).into_response();
    }
    next.run(Request::from_parts(parts, body)).await
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
