//! Middleware that applies an [`AccessPolicy`] to routes.

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawPathParams, Request};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use base::{Error, Result};
use http::{HeaderValue, StatusCode, header};

use super::{AccessPolicy, KeyRefusal, Operation, shows_key};
use crate::reply::Reply;

impl AccessPolicy {
    /// Adds the check of host names to `routes` if the server is private or has allowed names.
    pub fn guard_hosts(self: &Arc<Self>, routes: Router) -> Router {
        if !self.is_private() && self.allowed_hosts.is_empty() {
            return routes;
        }
        let policy = self.clone();
        routes.layer(middleware::from_fn(move |request: Request, next: Next| {
            let checked = policy.check_host(request.uri(), request.headers());
            run_if(checked, request, next)
        }))
    }

    /// Adds the check of [`AccessPolicy::check_page`] to all `routes` that change something.
    pub fn guard_pages<S>(self: &Arc<Self>, routes: Router<S>, change: &'static str) -> Router<S>
    where
        S: Clone + Send + Sync + 'static,
    {
        let policy = self.clone();
        routes.route_layer(middleware::from_fn(move |request: Request, next: Next| {
            let checked = match request.method().is_safe() {
                true => Ok(()),
                false => policy.check_page(change, request.headers()),
            };
            run_if(checked, request, next)
        }))
    }

    /// Requires a key of the file on `routes`, if the server has one. `operation` says what a
    /// request does; `None` needs no key. Other paths stay 404.
    pub fn guard_operations(
        self: &Arc<Self>,
        routes: Router,
        operation: fn(&http::request::Parts, &RawPathParams) -> Option<Operation>,
        refused: impl Fn(&Error) + Clone + Send + Sync + 'static,
    ) -> Router {
        if self.keys.is_none() {
            return routes;
        }
        let policy = self.clone();
        routes.route_layer(middleware::from_fn(
            move |path: RawPathParams, mut request: Request, next: Next| {
                let (parts, body) = request.into_parts();
                let needed = operation(&parts, &path);
                let checked =
                    needed.map_or(Ok(None), |needed| policy.authorize(&parts.headers, &needed));
                request = Request::from_parts(parts, body);
                let refused = refused.clone();
                async move {
                    match checked {
                        Ok(_) => next.run(request).await,
                        Err(KeyRefusal::Unauthenticated(error)) => unauthenticated(&error),
                        Err(KeyRefusal::Refused(error)) => {
                            refused(&error);
                            Reply::error(&error).into_response()
                        }
                    }
                }
            },
        ))
    }

    /// Requires the API key on `routes`, if the server has one and no file of keys. Other paths
    /// stay 404.
    pub fn guard_key<S>(self: &Arc<Self>, routes: Router<S>) -> Router<S>
    where
        S: Clone + Send + Sync + 'static,
    {
        if self.api_key.is_none() || self.keys.is_some() {
            return routes;
        }
        let policy = self.clone();
        routes.route_layer(middleware::from_fn(move |request: Request, next: Next| {
            let shown = shows_key(request.headers(), policy.api_key.as_ref());
            async move { if shown { next.run(request).await } else { key_refusal() } }
        }))
    }
}

async fn run_if(checked: Result<()>, request: Request, next: Next) -> Response {
    match checked {
        Ok(()) => next.run(request).await,
        Err(error) => Reply::error(&error).into_response(),
    }
}

fn key_refusal() -> Response {
    let error = Error::denied(
        "this server requires its key: send it as \"api-key: KEY\" or \"authorization: Bearer KEY\"",
    );
    let challenge = HeaderValue::from_static("Bearer");
    Reply::error(&error)
        .with_status(StatusCode::UNAUTHORIZED)
        .with_header(header::WWW_AUTHENTICATE, challenge)
        .into_response()
}

/// Asks for a key. Browsers ask their user, whose password is the key.
fn unauthenticated(error: &Error) -> Response {
    let challenge = HeaderValue::from_static("Basic realm=\"millpond: the password is the key\"");
    Reply::error(error)
        .with_status(StatusCode::UNAUTHORIZED)
        .with_header(header::WWW_AUTHENTICATE, challenge)
        .into_response()
}
