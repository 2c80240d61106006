//! Middleware that applies an [`AccessPolicy`] to routes.

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawPathParams, Request};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use base::{Error, Result};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::{
    AccessPolicy, BrowserSessions, Caller, KeyGrant, KeyRefusal, KeyRole, Operation,
    SEC_FETCH_SITE, check_same_site,
};
use crate::peer::Peer;
use crate::reply::Reply;

impl AccessPolicy {
    /// Adds the check of host names to `routes` if the server is private or has allowed names.
    pub fn guard_hosts(self: &Arc<Self>, routes: Router) -> Router {
        if !self.is_private() && self.allowed_hosts.is_empty() {
            return routes;
        }
        let policy = self.clone();
        routes.layer(middleware::from_fn(move |request: Request, next: Next| {
            let peer = request.extensions().get::<Peer>().copied();
            let checked = policy.check_host(peer, request.uri(), request.headers());
            run_if(checked, request, next)
        }))
    }

    /// Adds the check of `AccessPolicy::check_page` to all `routes` that change something.
    pub fn guard_pages<S>(self: &Arc<Self>, routes: Router<S>, change: &'static str) -> Router<S>
    where
        S: Clone + Send + Sync + 'static,
    {
        let policy = self.clone();
        routes.route_layer(middleware::from_fn(move |request: Request, next: Next| {
            let checked = if request.method().is_safe() {
                Ok(())
            } else {
                policy.check_page(change, request.headers())
            };
            run_if(checked, request, next)
        }))
    }

    /// Requires a key on `routes` if the server has keys. Other paths still get status 404.
    pub fn guard_operations(self: &Arc<Self>, routes: Router, guard: OperationGuard) -> Router {
        if self.keys.is_none() {
            return routes;
        }
        let policy = self.clone();
        routes.route_layer(middleware::from_fn(
            move |path: RawPathParams, request: Request, next: Next| {
                let (parts, body) = request.into_parts();
                let admitted = policy.admit(&parts, (guard.operation)(&parts, &path));
                async move {
                    match admitted {
                        Ok(grant) => run_for(grant, Request::from_parts(parts, body), next).await,
                        Err(KeyRefusal::Unauthenticated(error)) => {
                            (guard.unauthenticated)(&parts, &error)
                        }
                        Err(KeyRefusal::Refused(error)) => (guard.refused)(&parts, &error),
                    }
                }
            },
        ))
    }

    /// Returns the rights of a request's key, or `None` if the operation needs none.
    fn admit(
        &self,
        parts: &Parts,
        operation: Option<Operation>,
    ) -> std::result::Result<Option<KeyGrant>, KeyRefusal> {
        let Some(operation) = operation else { return Ok(None) };
        let peer = parts.extensions.get::<Peer>().copied();
        let caller = Caller { peer, headers: &parts.headers };
        // A browser adds the cookie of a session to requests of other sites' pages too.
        let sessions = if parts.method.is_safe() || is_own_page(&parts.headers) {
            BrowserSessions::Accepted
        } else {
            BrowserSessions::Ignored
        };
        let admitted = self.authorize(caller, sessions, &operation);
        if let Err(KeyRefusal::Refused(error) | KeyRefusal::Unauthenticated(error)) = &admitted
            && operation.role == KeyRole::Admin
        {
            let action = format!("{} {}", parts.method, parts.uri.path());
            self.log_refused_admin(caller, &action, error);
        }
        admitted
    }
}

/// The rules of [`AccessPolicy::guard_operations`].
#[derive(Clone, Copy)]
pub struct OperationGuard {
    /// Returns the operation of a request, or `None` if it needs no key.
    pub operation: fn(&Parts, &RawPathParams) -> Option<Operation>,
    /// Answers a request without a key.
    pub unauthenticated: fn(&Parts, &Error) -> Response,
    /// Answers a request whose key lacks a right, or is over its quota.
    pub refused: fn(&Parts, &Error) -> Response,
}

/// Answers a request for the caller whose key it shows.
async fn run_for(grant: Option<KeyGrant>, mut request: Request, next: Next) -> Response {
    let Some(grant) = grant else { return next.run(request).await };
    let account = grant.cpu_account();
    request.extensions_mut().insert(grant);
    account.wrap(next.run(request)).await
}

async fn run_if(checked: Result<()>, request: Request, next: Next) -> Response {
    match checked {
        Ok(()) => next.run(request).await,
        Err(error) => Reply::error(&error).into_response(),
    }
}

/// Returns true if the browser's headers show that a page of this server sends the request.
fn is_own_page(headers: &HeaderMap) -> bool {
    let says = headers.contains_key(SEC_FETCH_SITE) || headers.contains_key(header::ORIGIN);
    says && check_same_site(headers).is_ok()
}

/// Asks for a key.
pub fn unauthenticated(error: &Error) -> Response {
    Reply::error(error)
        .with_status(StatusCode::UNAUTHORIZED)
        .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
        .into_response()
}
