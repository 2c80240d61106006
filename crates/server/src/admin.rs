//! Calls that change what is served: from loopback only unless allowed, handed to the control plane and awaited.

use std::time::Duration;

use base::{Error, Result};
use http::{HeaderMap, HeaderName, header};
use lifecycle::LoadSpec;
use tokio::sync::oneshot;

use crate::app::App;
use crate::config::DoorConfig;
use crate::listen::Peer;

/// Browsers say with it which page a request comes from; no page can change it.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Longest wait for a load or unload that a client asked for; the work itself goes on after that.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(600);

/// Refuses strangers.
///
/// # Errors
/// `PermissionDenied` for a client that is not on this machine, unless remote admin is allowed.
pub(crate) fn allowed(app: &App, peer: Option<Peer>) -> Result<()> {
    if app.doors.allow_remote_admin || peer.is_some_and(Peer::is_loopback) {
        return Ok(());
    }
    Err(Error::denied(
        "models are loaded and unloaded from this machine only; start the server with --allow-remote-admin to change that",
    ))
}

/// Refuses a browser that another site's page has sent. What is no browser sends neither header and passes.
///
/// # Errors
/// `PermissionDenied` for a request that `Sec-Fetch-Site` or `Origin` shows to come from elsewhere.
pub(crate) fn same_site(headers: &HeaderMap) -> Result<()> {
    let foreign = || Error::denied("a page of another site may not ask this; open this server's own page");
    if headers.get(SEC_FETCH_SITE).is_some_and(|site| site != "same-origin" && site != "none") {
        return Err(foreign());
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().ok().and_then(authority);
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    match (origin, host) {
        (Some(origin), Some(host)) if origin.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(foreign()),
    }
}

/// Refuses a browser whose page is not this server's. Another site may point its own name at this machine, and then
/// its pages look like ours (DNS rebinding); so where calls come from this machine only, the page must have been
/// opened by address or as `localhost`, which no other site can be reached by.
///
/// # Errors
/// `PermissionDenied`, with what to do.
pub(crate) fn same_page(app: &App, headers: &HeaderMap) -> Result<()> {
    same_site(headers)?;
    if opened_by_a_foreign_name(headers) && !app.doors.allow_remote_admin {
        return Err(Error::denied(
            "models are loaded and unloaded from a page opened as localhost or by IP address only; \
             open it as http://localhost:PORT, or start the server with --allow-remote-admin",
        ));
    }
    Ok(())
}

/// Refuses changes of collections and pictures that another site's page asks for, as [`same_page`] does. Callers of
/// a server that other machines reach, or that wants a key, may know it by any name: their pages only have to be its own.
///
/// # Errors
/// `PermissionDenied`, with what to do.
pub(crate) fn own_page(doors: &DoorConfig, keyed: bool, headers: &HeaderMap) -> Result<()> {
    same_site(headers)?;
    let private = doors.host.is_loopback() && !doors.allow_remote_admin && !keyed;
    if private && opened_by_a_foreign_name(headers) {
        return Err(Error::denied(
            "collections and pictures are changed from a page opened as localhost or by IP address only; \
             open it as http://localhost:PORT, or start the server with --api-key or --allow-remote-admin",
        ));
    }
    Ok(())
}

/// Whether a browser's page was opened under a name that somebody else may own. What is no browser has no page.
fn opened_by_a_foreign_name(headers: &HeaderMap) -> bool {
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    origin.and_then(authority).is_some_and(is_a_foreign_name)
}

/// Host and port of an origin, `None` for "null" and what is no origin of a page.
fn authority(origin: &str) -> Option<&str> {
    origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))
}

/// Whether a host is known by a name that somebody else may own.
fn is_a_foreign_name(authority: &str) -> bool {
    if authority.starts_with('[') {
        return false;
    }
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host).to_ascii_lowercase();
    let local = host == "localhost" || host.ends_with(".localhost");
    !local && host.parse::<std::net::Ipv4Addr>().is_err()
}

/// Loads or reloads a model and waits until it serves.
///
/// # Errors
/// Those of the load, with its reason; what served before still does.
pub(crate) async fn load(app: &App, name: &str, spec: LoadSpec) -> Result<()> {
    let (sender, receiver) = oneshot::channel();
    app.lifecycle.load(name, spec, Box::new(move |result| drop(sender.send(result))));
    outcome(receiver).await
}

/// Unloads a model and waits until its last version is released.
///
/// # Errors
/// `NotFound` for a model that is not known.
pub(crate) async fn unload(app: &App, name: &str) -> Result<()> {
    let (sender, receiver) = oneshot::channel();
    app.lifecycle.unload(name, Box::new(move |result| drop(sender.send(result))));
    outcome(receiver).await
}

async fn outcome(receiver: oneshot::Receiver<Result<()>>) -> Result<()> {
    match tokio::time::timeout(ADMIN_TIMEOUT, receiver).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(Error::unavailable("the server is shutting down")),
        Err(_) => {
            Err(Error::deadline("it takes longer than ten minutes; it goes on, see the model's status"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn refused(pairs: &[(HeaderName, &'static str)]) -> bool {
        let headers: HeaderMap =
            pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        same_site(&headers).is_err()
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let (origin, host) = (header::ORIGIN, header::HOST);
        let page = |from| refused(&[(origin.clone(), from), (host.clone(), "localhost:8501")]);
        assert!(!page("http://localhost:8501"));
        assert!(!page("http://LOCALHOST:8501"));
        assert!(!page("https://localhost:8501"), "a proxy in front may speak TLS");
        assert!(page("http://localhost:3000"), "another port is another site");
        assert!(page("http://example.com"));
        assert!(page("null"));
        assert!(page(""));
        assert!(refused(&[(origin, "http://localhost:8501")]), "no host to compare with");
    }

    #[test]
    fn what_the_browser_says_counts_without_an_origin_too() {
        let site = |value| refused(&[(SEC_FETCH_SITE, value), (header::HOST, "localhost:8501")]);
        assert!(!site("same-origin"));
        assert!(!site("none"));
        assert!(site("cross-site"));
        assert!(site("same-site"));
        assert!(!refused(&[(header::HOST, "localhost:8501")]), "programs send neither");
    }

    #[test]
    fn a_page_that_only_looks_like_ours_changes_nothing() {
        let asked = |host: &str, keyed, origin: Option<&str>, doors: &DoorConfig| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            own_page(doors, keyed, &headers).is_ok()
        };
        let here = DoorConfig::default();
        let (evil, page) = ("evil.example:8501", Some("http://evil.example:8501"));
        assert!(!asked(evil, false, page, &here), "its name may point here");
        assert!(asked(evil, false, None, &here), "programs use any name");
        assert!(asked("localhost:8501", false, Some("http://localhost:8501"), &here));
        assert!(!asked("localhost:8501", true, page, &here));
        assert!(asked(evil, true, page, &here), "such a page does not know the key");
        let everywhere = DoorConfig { host: std::net::IpAddr::from([0, 0, 0, 0]), ..DoorConfig::default() };
        assert!(asked(evil, false, page, &everywhere), "others may open our page by the machine's name");
        let allowed = DoorConfig { allow_remote_admin: true, ..DoorConfig::default() };
        assert!(asked(evil, false, page, &allowed));
    }

    #[test]
    fn names_that_others_may_own() {
        for local in
            ["localhost:8501", "localhost", "Mill.localhost:1", "127.0.0.1:8501", "10.0.0.7", "[::1]:8501"]
        {
            assert!(!is_a_foreign_name(local), "{local}");
        }
        for foreign in
            ["evil.example:8501", "evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example"]
        {
            assert!(is_a_foreign_name(foreign), "{foreign}");
        }
    }
}
