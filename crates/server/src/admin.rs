//! Calls that change what is served: from this machine only unless allowed, handed to the control plane and awaited.

use std::time::Duration;

use base::{Error, Result};
use http::{HeaderMap, HeaderName, header};
use lifecycle::LoadSpec;
use tokio::sync::oneshot;

use crate::app::App;
use crate::config::{ListenerConfig, Secret};
use crate::listen::Peer;
use crate::{api_key, host_check};

/// Browsers say with it which page a request comes from; no page can change it.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Longest wait for a load or unload that a client asked for; the work itself goes on after that.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(600);

/// Headers that proxies add: a request with one of them comes from wherever the proxy's client is.
const FORWARDED: [HeaderName; 4] = [
    header::FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-real-ip"),
    header::VIA,
];

/// What an admin call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminCall {
    /// Loads or unloads a model.
    Models,
    /// Enrols or forgets a speaker.
    Speakers,
    /// Reads a folder of this machine.
    Folders,
}

impl AdminCall {
    fn text(self) -> &'static str {
        match self {
            AdminCall::Models => "models are loaded and unloaded",
            AdminCall::Speakers => "speakers are enrolled and forgotten",
            AdminCall::Folders => "folders of the server are read",
        }
    }
}

/// The keys of a server, and whether it takes admin calls from elsewhere.
struct Guard<'a> {
    remote: bool,
    admin_key: Option<&'a str>,
    api_key: Option<&'a str>,
}

/// Refuses admin calls of strangers. A call of this machine must show the admin key or the API key if the server has
/// any; a call from elsewhere is taken only with `--allow-remote-admin`, and must show the admin key.
///
/// # Errors
/// `PermissionDenied`, with what to do.
pub(crate) fn allowed(app: &App, call: AdminCall, peer: Option<Peer>, headers: &HeaderMap) -> Result<()> {
    let guard = Guard {
        remote: app.listeners.allow_remote_admin,
        admin_key: app.listeners.admin_key.as_ref().map(|Secret(key)| key.as_str()),
        api_key: app.collections.config().api_key.as_deref(),
    };
    guard.check(call, is_local(peer, headers), headers)
}

/// Returns whether a request comes from this machine, and not through a proxy on it.
fn is_local(peer: Option<Peer>, headers: &HeaderMap) -> bool {
    peer.is_some_and(Peer::is_loopback) && !FORWARDED.iter().any(|name| headers.contains_key(name))
}

impl Guard<'_> {
    fn check(&self, call: AdminCall, local: bool, headers: &HeaderMap) -> Result<()> {
        let shown = |key: Option<&str>| key.is_some_and(|key| api_key::shown(headers, key));
        let call = call.text();
        if shown(self.admin_key) && (local || self.remote) {
            return Ok(());
        }
        let send = "send it as \"authorization: Bearer KEY\" or \"api-key: KEY\"";
        if local {
            let open = self.admin_key.is_none() && self.api_key.is_none();
            if open || shown(self.api_key) {
                return Ok(());
            }
            return Err(Error::denied(format!(
                "{call} with this server's admin key or API key only; {send}"
            )));
        }
        if self.remote {
            return Err(Error::denied(format!(
                "{call} from other machines, or through a proxy, with the admin key only; {send}"
            )));
        }
        Err(Error::denied(format!(
            "{call} from this machine only, and not through a proxy; start the server with --allow-remote-admin and \
             --admin-key KEY to change that"
        )))
    }
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
    if opened_by_a_foreign_name(headers, &app.listeners) && !app.listeners.allow_remote_admin {
        return Err(Error::denied(
            "this is done from a page opened as localhost or by IP address only; open it as http://localhost:PORT, or \
             start the server with --allowed-hosts NAME",
        ));
    }
    Ok(())
}

/// Refuses changes of collections and pictures that another site's page asks for, as [`same_page`] does. Callers of
/// a server that other machines reach, or that wants a key, may know it by any name: their pages only have to be its own.
///
/// # Errors
/// `PermissionDenied`, with what to do.
pub(crate) fn own_page(listeners: &ListenerConfig, keyed: bool, headers: &HeaderMap) -> Result<()> {
    same_site(headers)?;
    if host_check::private(listeners, keyed) && opened_by_a_foreign_name(headers, listeners) {
        return Err(Error::denied(
            "collections and pictures are changed from a page opened as localhost or by IP address only; open it as \
             http://localhost:PORT, or start the server with --allowed-hosts NAME or --api-key KEY",
        ));
    }
    Ok(())
}

/// Whether a browser's page was opened under a name that somebody else may own. What is no browser has no page.
fn opened_by_a_foreign_name(headers: &HeaderMap, listeners: &ListenerConfig) -> bool {
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    origin.and_then(authority).is_some_and(|name| host_check::is_foreign(name, &listeners.allowed_hosts))
}

/// Host and port of an origin, `None` for "null" and what is no origin of a page.
fn authority(origin: &str) -> Option<&str> {
    origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))
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
        let asked = |host: &str, keyed, origin: Option<&str>, listeners: &ListenerConfig| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            own_page(listeners, keyed, &headers).is_ok()
        };
        let here = ListenerConfig::default();
        let (evil, page) = ("evil.example:8501", Some("http://evil.example:8501"));
        assert!(!asked(evil, false, page, &here), "its name may point here");
        assert!(asked(evil, false, None, &here), "programs use any name");
        assert!(asked("localhost:8501", false, Some("http://localhost:8501"), &here));
        assert!(!asked("localhost:8501", true, page, &here));
        assert!(asked(evil, true, page, &here), "such a page does not know the key");
        let everywhere =
            ListenerConfig { host: std::net::IpAddr::from([0, 0, 0, 0]), ..ListenerConfig::default() };
        assert!(asked(evil, false, page, &everywhere), "others may open our page by the machine's name");
        let allowed = ListenerConfig { allow_remote_admin: true, ..ListenerConfig::default() };
        assert!(asked(evil, false, page, &allowed));
    }

    #[test]
    fn a_request_through_a_proxy_is_not_local() {
        let peer = |address: &str| Some(Peer(format!("{address}:1").parse().unwrap()));
        assert!(is_local(peer("127.0.0.1"), &HeaderMap::new()) && is_local(peer("[::1]"), &HeaderMap::new()));
        assert!(!is_local(peer("192.0.2.1"), &HeaderMap::new()) && !is_local(None, &HeaderMap::new()));
        for name in ["Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"] {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::try_from(name).unwrap(), HeaderValue::from_static("x"));
            assert!(!is_local(peer("127.0.0.1"), &headers), "{name}");
        }
    }

    #[test]
    fn admin_calls_show_the_keys_that_there_are() {
        let open = Guard { remote: false, admin_key: None, api_key: None };
        let keyed = Guard { api_key: Some("api"), ..open };
        let remote = Guard { remote: true, admin_key: Some("admin"), ..keyed };
        let keyless = Guard { remote: true, ..open };
        // What each server says to: no key, the API key, the admin key; on this machine, then from elsewhere.
        for (guard, local, elsewhere) in [
            (&open, [true, true, true], [false; 3]),
            (&keyed, [false, true, false], [false; 3]),
            (&remote, [false, true, true], [false, false, true]),
            (&keyless, [true, true, true], [false; 3]),
        ] {
            let says = |local| {
                [None, Some("api"), Some("admin")].map(|key| {
                    let mut headers = HeaderMap::new();
                    if let Some(key) = key {
                        headers.insert(header::AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
                    }
                    guard.check(AdminCall::Models, local, &headers).is_ok()
                })
            };
            assert_eq!((says(true), says(false)), (local, elsewhere));
        }
        let error = open.check(AdminCall::Speakers, false, &HeaderMap::new()).unwrap_err();
        assert!(error.message().contains("enrolled") && error.message().contains("--admin-key"), "{error}");
    }
}
