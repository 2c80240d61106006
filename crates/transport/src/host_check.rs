//! Which names this server may be known by.
//!
//! A site can point its own name at this machine (DNS rebinding). Its pages then count as pages of this server, and a
//! browser lets them send requests here and read the answers, without any header that says where they come from but
//! Host. A server that only this machine reaches and that wants no key therefore refuses every request, whatever its
//! method or path, that comes under a name which somebody else may own. gRPC needs no such check: no page can speak it.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use base::{Error, Result};
use http::{HeaderMap, Uri, header};

use crate::config::ListenerConfig;
use crate::http::Reply;

/// Returns whether only this machine reaches the server and no key is wanted: whatever reaches it may do everything.
pub(crate) fn private(listeners: &ListenerConfig, keyed: bool) -> bool {
    listeners.host.is_loopback() && !listeners.allow_remote_admin && !keyed
}

/// Returns `routes`, which refuse requests under foreign names if the server is private or if names are given.
pub(crate) fn guarded(routes: Router, listeners: &ListenerConfig, keyed: bool) -> Router {
    if !private(listeners, keyed) && listeners.allowed_hosts.is_empty() {
        return routes;
    }
    let allowed: Arc<[String]> = listeners.allowed_hosts.as_slice().into();
    routes.layer(middleware::from_fn(move |request: Request, next: Next| {
        let allowed = allowed.clone();
        async move { checked(&allowed, request, next).await }
    }))
}

async fn checked(allowed: &[String], request: Request, next: Next) -> Response {
    match check(allowed, request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => Reply::error(&error).into_response(),
    }
}

/// Checks every name that the request calls the server by.
///
/// # Errors
/// `PermissionDenied`, with what to do.
fn check(allowed: &[String], uri: &Uri, headers: &HeaderMap) -> Result<()> {
    let hosts = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let target = uri.authority().map(http::uri::Authority::as_str);
    match hosts.chain(target).find(|name| is_foreign(name, allowed)) {
        None => Ok(()),
        Some(name) => Err(Error::denied(format!(
            "this server is not known as \"{}\", a name that may belong to another site and its pages; ask it as localhost or \
             by IP address, or start it with --allowed-hosts NAME or --api-key KEY",
            name.escape_debug()
        ))),
    }
}

/// Returns whether somebody else may own the name of `authority`, which is a host with or without a port. Nobody owns
/// IP addresses, `localhost` and names below it; this machine's own name and the `allowed` ones are the operator's.
pub(crate) fn is_foreign(authority: &str, allowed: &[String]) -> bool {
    if authority.starts_with('[') {
        return false;
    }
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => host,
        _ => authority,
    };
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let local = host == "localhost" || host.ends_with(".localhost");
    let own = || {
        !host.is_empty()
            && (host == own_name() || allowed.iter().any(|name| name.eq_ignore_ascii_case(&host)))
    };
    !local && host.parse::<std::net::Ipv4Addr>().is_err() && !own()
}

/// Returns this machine's name in lower case; empty if it cannot be read.
fn own_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_ascii_lowercase()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_others_may_own() {
        let own = format!("{}:8501", own_name());
        let allowed = ["mill.example".to_owned()];
        for local in [
            "localhost:8501",
            "localhost",
            "Mill.localhost:1",
            "localhost.:80",
            "127.0.0.1:8501",
            "10.0.0.7",
            "[::1]:8501",
            "MILL.example:8501",
            &own,
        ] {
            assert!(own_name().is_empty() || !is_foreign(local, &allowed), "{local}");
        }
        for foreign in [
            "evil.example:8501",
            "evil.example",
            "127.0.0.1.evil.example:80",
            "localhost.evil.example",
            "other.mill.example",
            "evil",
            "",
        ] {
            assert!(is_foreign(foreign, &allowed), "{foreign}");
        }
    }

    #[test]
    fn every_name_of_a_request_is_checked() {
        let asked = |uri: &str, hosts: &[&str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, host.parse().unwrap());
            }
            check(&[], &uri.parse().unwrap(), &headers).is_ok()
        };
        assert!(asked("/v2", &[]), "HTTP/1.0 has no Host");
        assert!(asked("/v2", &["localhost:8501"]));
        assert!(!asked("/v2", &["evil.example"]));
        assert!(!asked("/v2", &["localhost", "evil.example"]));
        assert!(!asked("http://evil.example/v2", &["localhost"]));
    }
}
