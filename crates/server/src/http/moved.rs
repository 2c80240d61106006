//! Answers at public ports to requests that the admin port takes.

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use base::Error;
use http::{HeaderMap, Method};
use transport::Reply;

use super::operations::is_admin_call;
use crate::surface::Surface;

/// Replaces the answers of `routes`, the routes of operators, if they are at the admin port.
pub(super) fn operators(surface: Surface, routes: Router) -> Router {
    let Some(port) = surface.elsewhere() else { return routes };
    routes.route_layer(middleware::from_fn(move |request: Request, _: Next| async move {
        moved(request.uri().path(), port)
    }))
}

/// Replaces the answers of admin calls and of the front page among `routes`, if they are at the
/// admin port.
pub(super) fn callers(surface: Surface, routes: Router) -> Router {
    let Some(port) = surface.elsewhere() else { return routes };
    routes.route_layer(middleware::from_fn(move |request: Request, next: Next| async move {
        let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
        let admin = is_admin_call(request.method(), route) || reads_folder(route, &request);
        if admin || is_front_page(route, request.headers()) {
            moved(request.uri().path(), port)
        } else {
            next.run(request).await
        }
    }))
}

/// Returns true for a request to read a folder of the server. Its route takes images too, so the
/// route does not show that it is an admin call.
fn reads_folder(route: &str, request: &Request) -> bool {
    route == "/v1/images/{collection}"
        && request.method() == Method::PUT
        && api_images::names_folder(request.headers())
}

fn is_front_page(route: &str, headers: &HeaderMap) -> bool {
    route == "/" && console::wants_page(headers)
}

fn moved(path: &str, port: u16) -> Response {
    let error = Error::not_found(format!(
        "{path} is not at this port: admin calls, metrics and pages are at the admin port, {port}"
    ));
    Reply::error(&error).into_response()
}
