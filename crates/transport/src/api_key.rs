//! The key that callers of collections and pictures show, where the server was given one.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use base::Error;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::app::App;
use crate::http::Reply;

/// Where Qdrant's clients put the key.
const API_KEY: HeaderName = HeaderName::from_static("api-key");

/// `routes`, each of which wants `key` in `api-key` or as a bearer's token; as they are where there is none.
pub(crate) fn guarded(routes: Router<Arc<App>>, key: Option<&str>) -> Router<Arc<App>> {
    let Some(key) = key else { return routes };
    let key: Arc<str> = key.into();
    let check = move |request: Request, next: Next| {
        let key = key.clone();
        async move { if shown(request.headers(), &key) { next.run(request).await } else { refusal() } }
    };
    // Only what is routed: a path that is nothing stays 404.
    routes.route_layer(middleware::from_fn(check))
}

fn refusal() -> Response {
    let error = Error::denied(
        "this server wants its key: send it as \"api-key: KEY\" or \"authorization: Bearer KEY\"",
    );
    let challenge = HeaderValue::from_static("Bearer");
    Reply::error(&error)
        .with_status(StatusCode::UNAUTHORIZED)
        .with_header(header::WWW_AUTHENTICATE, challenge)
        .into_response()
}

/// Whether a request shows the key.
pub(crate) fn shown(headers: &HeaderMap, key: &str) -> bool {
    let bearer = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).and_then(|value| {
        let (scheme, token) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
    });
    let own = headers.get(API_KEY).map(HeaderValue::as_bytes);
    own.into_iter().chain(bearer).any(|shown| same(shown, key.as_bytes()))
}

/// Compares by hashes, so that the time it takes says nothing about how much of the key was right.
fn same(shown: &[u8], key: &[u8]) -> bool {
    blake3::hash(shown) == blake3::hash(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_may_come_in_either_header() {
        let with = |name: HeaderName, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
            shown(&headers, "s3cret")
        };
        assert!(with(API_KEY, "s3cret"));
        assert!(with(header::AUTHORIZATION, "Bearer s3cret") && with(header::AUTHORIZATION, "bearer s3cret"));
        for (name, value) in [
            (API_KEY, "s3cre"),
            (API_KEY, "s3cret "),
            (API_KEY, ""),
            (header::AUTHORIZATION, "s3cret"),
            (header::AUTHORIZATION, "Basic s3cret"),
            (header::AUTHORIZATION, "Bearer"),
        ] {
            assert!(!with(name.clone(), value), "{name}: {value}");
        }
        assert!(!shown(&HeaderMap::new(), "s3cret"));
    }
}
