//! Decides which requests a server accepts: by the host name they use, the page that sends them,
//! their key, and the machine they come from.
//!
//! A site can point its own name at this machine (DNS rebinding). Its pages then count as pages of
//! this server, and a browser lets them send requests and read the answers; only the Host header
//! shows where they come from. A server that only this machine reaches and that has no key
//! therefore refuses every request under a name that another site may own. gRPC needs no such
//! check: no page can speak it.

mod guards;
mod host_names;
mod keys;

use std::net::IpAddr;
use std::sync::Arc;

use base::{Error, Result};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};

use crate::peer::Peer;
pub use keys::{KeyGrant, KeyRing, KeyRole, Operation};

/// Header of the key in requests of Qdrant's clients.
const API_KEY: HeaderName = HeaderName::from_static("api-key");
/// Header in which browsers describe the page that sends a request; no page can change it.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Headers that proxies add: a request with one of them comes from the proxy's client.
const FORWARDED: [HeaderName; 4] = [
    header::FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-real-ip"),
    header::VIA,
];

/// A key, which no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("...")
    }
}

/// The rules of one server.
#[derive(Clone, Debug)]
pub struct AccessPolicy {
    /// Address on which the server listens.
    pub host: IpAddr,
    /// Names of the server besides `localhost` and the machine's own name.
    pub allowed_hosts: Vec<String>,
    /// Accept admin calls from other machines, with the admin key.
    pub allow_remote_admin: bool,
    /// Key of admin calls.
    pub admin_key: Option<Secret>,
    /// Key of guarded routes and of local admin calls.
    pub api_key: Option<Secret>,
    /// Keys of all routes; `None` needs none for most.
    pub keys: Option<Arc<KeyRing>>,
}

/// The reason why a key is not accepted.
#[derive(Debug)]
pub enum KeyRefusal {
    /// No key of the server was shown.
    Unauthenticated(Error),
    /// The key lacks a right, or has made too many requests.
    Refused(Error),
}

impl AccessPolicy {
    /// Returns true if only this machine reaches the server and there is no API key, so that every
    /// request that reaches it may do everything.
    fn is_private(&self) -> bool {
        self.host.is_loopback()
            && !self.allow_remote_admin
            && self.api_key.is_none()
            && self.keys.is_none()
    }

    /// Returns the rights of a request's key; `None` if the server has no file of keys. Counts the
    /// request.
    ///
    /// # Errors
    /// The reason why the key may not do `operation`.
    pub fn authorize(
        &self,
        headers: &HeaderMap,
        operation: &Operation,
    ) -> std::result::Result<Option<KeyGrant>, KeyRefusal> {
        let Some(keys) = &self.keys else { return Ok(None) };
        let password = basic_password(headers);
        let shown = shown_keys(headers).chain(password.as_deref());
        let Some(grant) = keys.find(shown).map(KeyGrant) else {
            return Err(KeyRefusal::Unauthenticated(Error::denied(
                "this server requires a key of its own: send it as \"authorization: Bearer KEY\" or \"api-key: KEY\"",
            )));
        };
        grant.check(operation).and_then(|()| grant.count_request()).map_err(KeyRefusal::Refused)?;
        if operation.role == KeyRole::Admin {
            tracing::info!(
                key = grant.name(),
                model = operation.model,
                "an admin call is accepted"
            );
        }
        Ok(Some(grant))
    }

    /// Returns true if the request's key is one of an administrator in the file of keys.
    fn shows_admin(&self, headers: &HeaderMap) -> bool {
        let password = basic_password(headers);
        let shown = shown_keys(headers).chain(password.as_deref());
        let key = self.keys.as_ref().and_then(|keys| keys.find(shown));
        key.is_some_and(|key| key.role == KeyRole::Admin)
    }

    /// Checks an admin call, which `call` describes as in "models are loaded and unloaded". A call
    /// of this machine must show the admin key or the API key if the server has any. A call from
    /// elsewhere is accepted only with `--allow-remote-admin`, and must show the admin key.
    ///
    /// # Errors
    /// `PermissionDenied`, with a remedy.
    pub fn check_admin(&self, call: &str, peer: Option<Peer>, headers: &HeaderMap) -> Result<()> {
        let local = is_local(peer, headers);
        let admin = shows_key(headers, self.admin_key.as_ref()) || self.shows_admin(headers);
        if admin && (local || self.allow_remote_admin) {
            return Ok(());
        }
        let send = "send it as \"authorization: Bearer KEY\" or \"api-key: KEY\"";
        if local {
            let open = self.admin_key.is_none() && self.api_key.is_none() && self.keys.is_none();
            if open || shows_key(headers, self.api_key.as_ref()) {
                return Ok(());
            }
            return Err(Error::denied(format!(
                "{call} with this server's admin key or API key only; {send}"
            )));
        }
        if self.allow_remote_admin {
            return Err(Error::denied(format!(
                "{call} from other machines, or through a proxy, with the admin key only; {send}"
            )));
        }
        Err(Error::denied(format!(
            "{call} from this machine only, and not through a proxy; start the server with --allow-remote-admin and \
             --admin-key KEY to change that"
        )))
    }

    /// Refuses a browser whose page is not this server's. If admin calls come from this machine
    /// only, the page must have been opened under a name that no other site can own.
    ///
    /// # Errors
    /// `PermissionDenied`, with a remedy.
    pub fn check_admin_page(&self, headers: &HeaderMap) -> Result<()> {
        check_same_site(headers)?;
        if self.is_foreign_page(headers) && !self.allow_remote_admin {
            return Err(Error::denied(
                "this is done from a page opened as localhost or by IP address only; open it as http://localhost:PORT, \
                 or start the server with --allowed-hosts NAME",
            ));
        }
        Ok(())
    }

    /// Refuses a browser whose page is not this server's, for changes that `change` describes as in
    /// "collections are changed". Callers of a server that other machines reach, or that has a
    /// key, may know it by any name.
    ///
    /// # Errors
    /// `PermissionDenied`, with a remedy.
    pub(super) fn check_page(&self, change: &str, headers: &HeaderMap) -> Result<()> {
        check_same_site(headers)?;
        if self.is_private() && self.is_foreign_page(headers) {
            return Err(Error::denied(format!(
                "{change} from a page opened as localhost or by IP address only; open it as http://localhost:PORT, or \
                 start the server with --allowed-hosts NAME or --api-key KEY"
            )));
        }
        Ok(())
    }

    /// Checks every host name in the request.
    ///
    /// # Errors
    /// `PermissionDenied`, with a remedy.
    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<()> {
        let hosts =
            headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
        let target = uri.authority().map(http::uri::Authority::as_str);
        match hosts.chain(target).find(|name| host_names::is_foreign(name, &self.allowed_hosts)) {
            None => Ok(()),
            Some(name) => Err(Error::denied(format!(
                "this server is not known as \"{}\", a name that may belong to another site and its pages; ask it as \
                 localhost or by IP address, or start it with --allowed-hosts NAME or --api-key KEY",
                name.escape_debug()
            ))),
        }
    }

    /// Returns true if a browser opened its page under a name that another site may own.
    fn is_foreign_page(&self, headers: &HeaderMap) -> bool {
        let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
        origin
            .and_then(authority)
            .is_some_and(|name| host_names::is_foreign(name, &self.allowed_hosts))
    }
}

/// Refuses a browser that shows a page of another site. Programs send neither header and pass.
///
/// # Errors
/// `PermissionDenied` if `Sec-Fetch-Site` or `Origin` names another site.
pub fn check_same_site(headers: &HeaderMap) -> Result<()> {
    let foreign =
        || Error::denied("a page of another site may not ask this; open this server's own page");
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

/// Returns host and port of an origin; `None` for "null" and any other text that is not the origin
/// of a page.
fn authority(origin: &str) -> Option<&str> {
    origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))
}

/// Returns true if a request comes from this machine, and not through a proxy on it.
fn is_local(peer: Option<Peer>, headers: &HeaderMap) -> bool {
    peer.is_some_and(Peer::is_loopback) && !FORWARDED.iter().any(|name| headers.contains_key(name))
}

/// Returns true if there is a `key` and a request shows it, in `api-key` or as a bearer token.
fn shows_key(headers: &HeaderMap, key: Option<&Secret>) -> bool {
    let Some(Secret(key)) = key else { return false };
    // Hashes are compared, so that the time does not show how much of the key was right.
    shown_keys(headers).any(|shown| blake3::hash(shown) == blake3::hash(key.as_bytes()))
}

/// Returns the keys that a request shows: in `api-key` and as a bearer token.
fn shown_keys(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let own = headers.get(API_KEY).map(HeaderValue::as_bytes);
    own.into_iter().chain(credentials(headers, b"bearer "))
}

/// Returns the password that a browser's own dialogue asked for: the key of a page.
fn basic_password(headers: &HeaderMap) -> Option<Vec<u8>> {
    use base64::Engine as _;
    let text = credentials(headers, b"basic ")?;
    let text = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
    let colon = text.iter().position(|byte| *byte == b':')?;
    Some(text[colon + 1..].to_vec())
}

/// Returns the text after `scheme` in the authorization of a request.
fn credentials<'a>(headers: &'a HeaderMap, scheme: &[u8]) -> Option<&'a [u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (start, rest) = value.split_at_checked(scheme.len())?;
    start.eq_ignore_ascii_case(scheme).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> AccessPolicy {
        AccessPolicy {
            host: IpAddr::from([127, 0, 0, 1]),
            allowed_hosts: Vec::new(),
            allow_remote_admin: false,
            admin_key: None,
            api_key: None,
            keys: None,
        }
    }

    fn secret(key: &str) -> Option<Secret> {
        Some(Secret(key.into()))
    }

    fn refused(pairs: &[(HeaderName, &'static str)]) -> bool {
        let headers: HeaderMap = pairs
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)))
            .collect();
        check_same_site(&headers).is_err()
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
    fn sec_fetch_site_counts_without_an_origin() {
        let site = |value| refused(&[(SEC_FETCH_SITE, value), (header::HOST, "localhost:8501")]);
        assert!(!site("same-origin"));
        assert!(!site("none"));
        assert!(site("cross-site"));
        assert!(site("same-site"));
        assert!(!refused(&[(header::HOST, "localhost:8501")]), "programs send neither");
    }

    #[test]
    fn pages_under_foreign_names_change_nothing() {
        let asked = |host: &str, origin: Option<&str>, policy: &AccessPolicy| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            policy.check_page("collections are changed", &headers).is_ok()
        };
        let here = policy();
        let keyed = AccessPolicy { api_key: secret("key"), ..policy() };
        let (evil, page) = ("evil.example:8501", Some("http://evil.example:8501"));
        assert!(!asked(evil, page, &here), "its name may point here");
        assert!(asked(evil, None, &here), "programs use any name");
        assert!(asked("localhost:8501", Some("http://localhost:8501"), &here));
        assert!(!asked("localhost:8501", page, &keyed));
        assert!(asked(evil, page, &keyed), "such a page does not know the key");
        let everywhere = AccessPolicy { host: IpAddr::from([0, 0, 0, 0]), ..policy() };
        assert!(asked(evil, page, &everywhere), "others may open our page by the machine's name");
        let remote = AccessPolicy { allow_remote_admin: true, ..policy() };
        assert!(asked(evil, page, &remote));
    }

    #[test]
    fn every_name_of_a_request_is_checked() {
        let asked = |uri: &str, hosts: &[&str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, host.parse().unwrap());
            }
            policy().check_host(&uri.parse().unwrap(), &headers).is_ok()
        };
        assert!(asked("/v2", &[]), "HTTP/1.0 has no Host");
        assert!(asked("/v2", &["localhost:8501"]));
        assert!(!asked("/v2", &["evil.example"]));
        assert!(!asked("/v2", &["localhost", "evil.example"]));
        assert!(!asked("http://evil.example/v2", &["localhost"]));
    }

    #[test]
    fn a_request_through_a_proxy_is_not_local() {
        let peer = |address: &str| Some(Peer(format!("{address}:1").parse().unwrap()));
        assert!(
            is_local(peer("127.0.0.1"), &HeaderMap::new())
                && is_local(peer("[::1]"), &HeaderMap::new())
        );
        assert!(
            !is_local(peer("192.0.2.1"), &HeaderMap::new()) && !is_local(None, &HeaderMap::new())
        );
        for name in ["Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"] {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::try_from(name).unwrap(), HeaderValue::from_static("x"));
            assert!(!is_local(peer("127.0.0.1"), &headers), "{name}");
        }
    }

    #[test]
    fn admin_calls_show_a_key_of_the_server() {
        let open = policy();
        let keyed = AccessPolicy { api_key: secret("api"), ..policy() };
        let remote =
            AccessPolicy { allow_remote_admin: true, admin_key: secret("admin"), ..keyed.clone() };
        let keyless = AccessPolicy { allow_remote_admin: true, ..policy() };
        let peer = |address: [u8; 4]| Some(Peer((address, 1).into()));
        // Answers to no key, the API key and the admin key; on this machine, then from elsewhere.
        for (policy, local, elsewhere) in [
            (&open, [true, true, true], [false; 3]),
            (&keyed, [false, true, false], [false; 3]),
            (&remote, [false, true, true], [false, false, true]),
            (&keyless, [true, true, true], [false; 3]),
        ] {
            let answers = |address| {
                [None, Some("api"), Some("admin")].map(|key| {
                    let mut headers = HeaderMap::new();
                    if let Some(key) = key {
                        headers.insert(
                            header::AUTHORIZATION,
                            format!("Bearer {key}").parse().unwrap(),
                        );
                    }
                    policy.check_admin("models are loaded", peer(address), &headers).is_ok()
                })
            };
            assert_eq!((answers([127, 0, 0, 1]), answers([192, 0, 2, 1])), (local, elsewhere));
        }
        let error = open.check_admin("speakers are enrolled", None, &HeaderMap::new()).unwrap_err();
        assert!(
            error.message().contains("enrolled") && error.message().contains("--admin-key"),
            "{error}"
        );
    }

    #[test]
    fn the_key_may_come_in_either_header() {
        let with = |name: HeaderName, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
            shows_key(&headers, secret("s3cret").as_ref())
        };
        assert!(with(API_KEY, "s3cret"));
        assert!(
            with(header::AUTHORIZATION, "Bearer s3cret")
                && with(header::AUTHORIZATION, "bearer s3cret")
        );
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
        assert!(!shows_key(&HeaderMap::new(), secret("s3cret").as_ref()));
    }
}
