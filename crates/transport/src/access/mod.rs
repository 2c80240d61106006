//! Decides which requests a server accepts. The host name that they use, the page that sends them,
//! their key, and the machine they come from decide.
//!
//! A site can point its own name at this machine (DNS rebinding). Its pages then count as pages of
//! this server. A browser lets them send requests and read the answers. Only the Host header shows
//! where they come from. So some servers refuse every request under a name that another site may
//! own. They are those without a key that only this machine reaches. gRPC needs no such check,
//! because no page can speak it.

mod attempts;
mod audit;
mod cors;
mod credentials;
#[doc(hidden)]
pub mod fuzzing;
mod guards;
mod host_names;
mod key;
mod key_file;
mod key_ring;
mod limits;
mod names;
mod role;
mod sessions;
mod tokens;

use std::net::IpAddr;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use http::{HeaderMap, HeaderName, Uri, header};
use metrics::{KindLabels, Metrics};

pub use self::audit::AdminRequest;
use self::audit::{AUDIT_TARGET, AdminCall};
pub use self::cors::CorsPolicy;
use self::credentials::{KeySource, found_key, shows_key};
pub use self::credentials::{SESSION_COOKIE, session_of};
pub use self::guards::{OperationGuard, unauthenticated};
pub use self::key::KeyGrant;
pub use self::key_ring::{KeyRing, KeySources};
pub use self::limits::KeyUsage;
pub use self::role::{CollectionScope, KeyRole, Operation};
pub use self::sessions::{SESSION_LIFETIME, SessionId};
use crate::peer::Peer;

/// Header in which browsers describe the page that sends a request. No page can change it.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Headers that proxies add. A request with one of them comes from the proxy's client.
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
#[derive(Clone)]
pub struct AccessPolicy {
    /// Address on which the server listens.
    pub host: IpAddr,
    /// Names of the server besides `localhost` and the machine's own name.
    pub allowed_hosts: Vec<String>,
    /// True to accept admin calls from other machines, with the admin key.
    pub allow_remote_admin: bool,
    /// Keys of all calls but health checks. `None` needs none.
    pub keys: Option<Arc<KeyRing>>,
    /// Origins whose pages may use the API.
    pub cors: CorsPolicy,
    /// Counters of refusals.
    pub metrics: Arc<Metrics>,
}

/// The parts of a request that identify its sender.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// Client of the connection.
    pub peer: Option<Peer>,
    /// Headers of the request.
    pub headers: &'a HeaderMap,
}

/// Use of a browser's session as the key of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrowserSessions {
    /// The session counts as its key.
    Accepted,
    /// The request must show a key itself.
    Ignored,
}

/// The reason why a key is not accepted.
#[derive(Debug)]
pub enum KeyRefusal {
    /// No key of the server was shown.
    Unauthenticated(Error),
    /// The key lacks a right or has made too many requests, or too many wrong keys came from the
    /// address of the client.
    Refused(Error),
}

impl AccessPolicy {
    /// Returns true if only this machine reaches the server and there is no key, so that every
    /// request that reaches it may do everything.
    fn is_private(&self) -> bool {
        self.host.is_loopback() && !self.allow_remote_admin && self.keys.is_none()
    }

    /// Returns the rights of a request's key, or `None` if the server needs no keys. Counts the
    /// request.
    ///
    /// # Errors
    /// The reason why the key may not do `operation`.
    pub fn authorize(
        &self,
        caller: Caller<'_>,
        sessions: BrowserSessions,
        operation: &Operation,
    ) -> std::result::Result<Option<KeyGrant>, KeyRefusal> {
        let Some(grant) = self.authenticate(caller, sessions)? else { return Ok(None) };
        let admitted = grant.check(operation).and_then(|()| self.count_request(&grant));
        admitted.map_err(KeyRefusal::Refused)?;
        Ok(Some(grant))
    }

    /// Returns the rights of the key that a request shows, or `None` if the server needs no keys.
    /// Counts a wrong key, and not the request.
    ///
    /// # Errors
    /// The reason why the request shows no key of the server.
    pub fn authenticate(
        &self,
        caller: Caller<'_>,
        sessions: BrowserSessions,
    ) -> std::result::Result<Option<KeyGrant>, KeyRefusal> {
        let found = self.shown_grant(caller.headers, sessions);
        found.map_err(|error| {
            if !shows_key(caller.headers) {
                return KeyRefusal::Unauthenticated(error);
            }
            let error = self.failed_attempt(caller.peer, error);
            if error.kind() == ErrorKind::ResourceExhausted {
                KeyRefusal::Refused(error)
            } else {
                KeyRefusal::Unauthenticated(error)
            }
        })
    }

    /// Counts a failed attempt of `peer` to show a key. Returns `error`, or if too many attempts
    /// from this address failed, `ResourceExhausted` with the time to wait.
    pub fn failed_attempt(&self, peer: Option<Peer>, error: Error) -> Error {
        let counted = self.keys.as_ref().map(|keys| keys.count_failed(peer));
        let Some(Err(wait)) = counted else { return error };
        self.metrics.refused.get_or_create(&KindLabels { kind: "key_failures" }).inc();
        Error::exhausted(format!(
            "{}; too many wrong keys came from this address: try again later",
            error.message()
        ))
        .with_retry_after(wait)
    }

    /// Returns the rights of the key that a request shows, or `None` if the server needs no keys.
    ///
    /// # Errors
    /// `PermissionDenied` if the request shows no key of the server.
    fn shown_grant(
        &self,
        headers: &HeaderMap,
        sessions: BrowserSessions,
    ) -> Result<Option<KeyGrant>> {
        let Some(keys) = &self.keys else { return Ok(None) };
        let found = found_key(keys, headers)?;
        let found = found.filter(|(_, source)| {
            sessions == BrowserSessions::Accepted || *source == KeySource::Header
        });
        let Some((grant, _)) = found else {
            let reason = if shows_key(headers) {
                "the key of this request is not a key of this server: send one of its keys"
            } else {
                "this server requires a key of its own: send it"
            };
            return Err(Error::denied(format!(
                "{reason} as \"authorization: Bearer KEY\" or \"api-key: KEY\""
            )));
        };
        Ok(Some(grant))
    }

    /// Returns true if the server needs no keys, or if a request shows a key that permits
    /// `operation`. Does not count the request.
    pub fn permits(&self, headers: &HeaderMap, operation: &Operation) -> bool {
        match self.shown_grant(headers, BrowserSessions::Accepted) {
            Ok(grant) => grant.is_none_or(|grant| grant.check(operation).is_ok()),
            Err(_) => false,
        }
    }

    /// Does the same as [`AccessPolicy::permits`], and counts a wrong key.
    pub fn permits_caller(&self, caller: Caller<'_>, operation: &Operation) -> bool {
        match self.authenticate(caller, BrowserSessions::Accepted) {
            Ok(grant) => grant.is_none_or(|grant| grant.check(operation).is_ok()),
            Err(_) => false,
        }
    }

    /// Returns the present rights of a key, for the next request of a call that continues. The file
    /// of keys may have changed since the call began.
    ///
    /// # Errors
    /// `PermissionDenied` if the key was removed, or if the token has expired.
    pub fn renewed(&self, grant: &KeyGrant) -> Result<KeyGrant> {
        self.keys.as_ref().map_or_else(|| Ok(grant.clone()), |keys| keys.renewed(grant))
    }

    /// Counts a request of a key.
    ///
    /// # Errors
    /// `ResourceExhausted` with the time to wait, if the key has reached a limit.
    pub fn count_request(&self, grant: &KeyGrant) -> Result<()> {
        grant.count_request().map_err(|exceeded| {
            let labels = KindLabels { kind: exceeded.kind() };
            self.metrics.refused.get_or_create(&labels).inc();
            exceeded.error(grant.name())
        })
    }

    /// Logs an admin call that was refused before it reached its handler.
    pub fn log_refused_admin(&self, caller: Caller<'_>, action: &str, error: &Error) {
        let request = AdminRequest { calls: "", action, subject: "", caller };
        let grant = self.grant(caller.headers);
        AdminCall::begin(&request, grant.as_ref().map(KeyGrant::name)).refuse(error);
    }

    /// Checks an admin call, does it, and logs it. A call of this machine must show an
    /// administrator's key if the server has any keys. A call from elsewhere is accepted only with
    /// `--allow-remote-admin`, and must show such a key. A page of another site is refused.
    ///
    /// # Errors
    /// `PermissionDenied`, with a remedy. Also the errors of `work`.
    pub async fn admin<T>(
        &self,
        request: AdminRequest<'_>,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let AdminRequest { calls, caller, .. } = request;
        let grant = self.grant(caller.headers);
        let call = AdminCall::begin(&request, grant.as_ref().map(KeyGrant::name));
        let admitted = self.check_admin(calls, caller, grant.as_ref());
        call.record(async {
            admitted?;
            self.check_admin_page(caller.headers)?;
            work.await
        })
        .await
    }

    /// Checks that [`AccessPolicy::admin`] would accept the key and the machine of a caller. Logs
    /// nothing. Does not check the origin of a page, which browsers send with changes only.
    ///
    /// # Errors
    /// `PermissionDenied`, with a remedy. Also the errors of [`AccessPolicy::failed_attempt`].
    pub fn check_administrator(&self, calls: &str, caller: Caller<'_>) -> Result<()> {
        if let Err(KeyRefusal::Refused(error)) =
            self.authenticate(caller, BrowserSessions::Accepted)
        {
            return Err(error);
        }
        self.check_admin(calls, caller, self.grant(caller.headers).as_ref())
    }

    /// Logs a login of a browser with the key `name`.
    pub fn log_login(&self, caller: Caller<'_>, name: &str, outcome: &str) {
        let peer = caller.peer.map(|peer| peer.to_string()).unwrap_or_default();
        tracing::info!(target: AUDIT_TARGET, key = name, peer, outcome, "login");
    }

    /// Returns the rights of a key that a request shows.
    fn grant(&self, headers: &HeaderMap) -> Option<KeyGrant> {
        let found = self.keys.as_ref().map(|keys| found_key(keys, headers));
        found.and_then(Result::ok).flatten().map(|(grant, _)| grant)
    }

    /// Checks that the caller may make admin calls. `calls` begins the error, such as "models are
    /// loaded".
    fn check_admin(&self, calls: &str, caller: Caller<'_>, grant: Option<&KeyGrant>) -> Result<()> {
        let local = is_local(caller.peer, caller.headers);
        let admin = grant.is_some_and(|grant| grant.role() == KeyRole::Admin);
        if admin && (local || self.allow_remote_admin) {
            return Ok(());
        }
        let send = "send it as \"authorization: Bearer KEY\" or \"api-key: KEY\"";
        if local {
            return match self.keys {
                None => Ok(()),
                Some(_) => Err(Error::denied(format!(
                    "{calls} with an admin key of this server only; {send}"
                ))),
            };
        }
        if self.allow_remote_admin {
            return Err(Error::denied(format!(
                "{calls} from other machines, or through a proxy, with an admin key only; {send}"
            )));
        }
        Err(Error::denied(format!(
            "{calls} from this machine only, and not through a proxy; start the server with --allow-remote-admin and \
             --admin-key KEY to change that"
        )))
    }

    /// Refuses a browser whose page is not this server's. If admin calls come from this machine
    /// only, the page must have been opened under a name that no other site can own. The origins of
    /// [`CorsPolicy`] do not count, because they use the API and do not administer the server.
    ///
    /// # Errors
    /// `PermissionDenied`, with a remedy.
    fn check_admin_page(&self, headers: &HeaderMap) -> Result<()> {
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
        if self.cors.lists(headers) {
            return Ok(());
        }
        check_same_site(headers)?;
        if self.is_private() && self.is_foreign_page(headers) {
            return Err(Error::denied(format!(
                "{change} from a page opened as localhost or by IP address only; open it as http://localhost:PORT, or \
                 start the server with --allowed-hosts NAME or --api-key KEY"
            )));
        }
        Ok(())
    }

    /// Checks every host name in the request of `peer`.
    ///
    /// # Errors
    /// `PermissionDenied`, with a remedy.
    fn check_host(&self, peer: Option<Peer>, uri: &Uri, headers: &HeaderMap) -> Result<()> {
        // Clients of a Unix socket write any word for the host, as in http://unix/v2.
        let any_word = matches!(peer, Some(Peer::Unix(_))) && is_local(peer, headers);
        let is_foreign = |name: &str| {
            let is_word = any_word && !name.is_empty() && !name.contains('.');
            !is_word && host_names::is_foreign(name, &self.allowed_hosts)
        };
        let hosts =
            headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
        let target = uri.authority().map(http::uri::Authority::as_str);
        match hosts.chain(target).find(|name| is_foreign(name)) {
            None => Ok(()),
            Some(name) => Err(Error::denied(format!(
                "this server is not known as \"{}\", a name that may belong to another site and its pages; use \
                 localhost or the IP address, or start the server with --allowed-hosts NAME or --api-key KEY",
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
        || Error::denied("a page of another site may not call this; open this server's own page");
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

/// Returns host and port of an origin. Returns `None` for "null" and any other text that is not the
/// origin of a page.
fn authority(origin: &str) -> Option<&str> {
    origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))
}

/// Returns true if a request comes from this machine, and not through a proxy on it.
fn is_local(peer: Option<Peer>, headers: &HeaderMap) -> bool {
    peer.is_some_and(Peer::is_local) && !FORWARDED.iter().any(|name| headers.contains_key(name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use http::HeaderValue;

    use super::*;

    fn policy() -> AccessPolicy {
        AccessPolicy {
            host: IpAddr::from([127, 0, 0, 1]),
            allowed_hosts: Vec::new(),
            allow_remote_admin: false,
            keys: None,
            cors: CorsPolicy::default(),
            metrics: Arc::default(),
        }
    }

    fn keys(api_key: Option<&str>, admin_key: Option<&str>) -> Option<Arc<KeyRing>> {
        let ring = KeyRing::read(KeySources { file: None, api_key, admin_key });
        ring.unwrap().map(Arc::new)
    }

    fn refused(pairs: &[(HeaderName, &'static str)]) -> bool {
        let headers: HeaderMap = pairs
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)))
            .collect();
        check_same_site(&headers).is_err()
    }

    #[test]
    fn a_wrong_key_differs_from_a_missing_one() {
        let policy = AccessPolicy { keys: keys(Some("s3cret"), None), ..policy() };
        let reason = |name: HeaderName, value: &'static str| {
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
            let caller = Caller { peer: None, headers: &headers };
            let operation = Operation::new(KeyRole::Read);
            match policy.authorize(caller, BrowserSessions::Ignored, &operation) {
                Err(KeyRefusal::Unauthenticated(error)) => error.message().to_owned(),
                other => panic!("{other:?}"),
            }
        };
        let api_key = HeaderName::from_static("api-key");
        for (name, value) in [(api_key.clone(), "wrong"), (header::AUTHORIZATION, "Bearer wrong")] {
            assert!(reason(name, value).starts_with("the key of this request is not a key"));
        }
        for (name, value) in [(api_key, ""), (header::ACCEPT, "text/html")] {
            assert!(reason(name, value).starts_with("this server requires a key of its own"));
        }
    }

    #[test]
    fn wrong_keys_are_limited_and_right_keys_are_not() {
        let policy = AccessPolicy { keys: keys(Some("s3cret"), None), ..policy() };
        let show = |key: &'static str| {
            let name = HeaderName::from_static("api-key");
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_static(key))]);
            let peer = Some(Peer::Tcp(([192, 0, 2, 1], 1).into()));
            policy.authenticate(Caller { peer, headers: &headers }, BrowserSessions::Ignored)
        };
        let refused = (0..10_000).find_map(|_| match show("wrong") {
            Err(KeyRefusal::Refused(error)) => Some(error),
            other => {
                assert!(matches!(other, Err(KeyRefusal::Unauthenticated(_))), "{other:?}");
                None
            }
        });
        let refused = refused.unwrap();
        assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
        assert!(refused.retry_after().is_some() && refused.message().contains("is not a key"));
        let labels = KindLabels { kind: "key_failures" };
        assert_eq!(policy.metrics.refused.get_or_create(&labels).get(), 1);
        assert!(show("s3cret").unwrap().is_some());
        assert!(matches!(show(""), Err(KeyRefusal::Unauthenticated(_))), "it shows no key");
        let name = HeaderName::from_static("api-key");
        let headers = HeaderMap::from_iter([(name, HeaderValue::from_static("wrong"))]);
        let caller = Caller { peer: None, headers: &headers };
        let is_limited = |error: Error| error.kind() == ErrorKind::ResourceExhausted;
        let check = || policy.check_administrator("models are loaded", caller);
        assert!((0..10_000).any(|_| check().is_err_and(is_limited)), "it has another address");
    }

    #[test]
    fn a_probe_counts_wrong_keys() {
        let policy = AccessPolicy { keys: keys(Some("s3cret"), None), ..policy() };
        let permits = |key: &'static str| {
            let name = HeaderName::from_static("api-key");
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_static(key))]);
            let caller = Caller { peer: None, headers: &headers };
            policy.permits_caller(caller, &Operation::new(KeyRole::Read))
        };
        let labels = KindLabels { kind: "key_failures" };
        let counted = || policy.metrics.refused.get_or_create(&labels).get();
        assert!((0..10_000).any(|_| !permits("wrong") && counted() > 0));
        assert!(permits("s3cret") && !permits(""));
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
        let keyed = AccessPolicy { keys: keys(Some("key"), None), ..policy() };
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
        let listed = CorsPolicy::parse(&["http://evil.example:8501".to_owned()]).unwrap();
        let open = AccessPolicy { cors: listed, ..policy() };
        assert!(asked("localhost:8501", page, &open), "the operator lists its origin");
        let any = AccessPolicy { cors: CorsPolicy::Any, ..policy() };
        assert!(!asked("localhost:8501", page, &any));
    }

    #[test]
    fn every_name_of_a_request_is_checked() {
        let asked_by = |peer: Option<Peer>, uri: &str, hosts: &[&str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, host.parse().unwrap());
            }
            policy().check_host(peer, &uri.parse().unwrap(), &headers).is_ok()
        };
        let asked = |uri: &str, hosts: &[&str]| asked_by(None, uri, hosts);
        assert!(asked("/v2", &[]), "HTTP/1.0 has no Host");
        assert!(asked("/v2", &["localhost:8501"]));
        assert!(!asked("/v2", &["evil.example"]));
        assert!(!asked("/v2", &["localhost", "evil.example"]));
        assert!(!asked("http://evil.example/v2", &["localhost"]));
        let unix = Some(Peer::Unix(None));
        assert!(asked_by(unix, "/v2", &["unix"]));
        assert!(!asked_by(unix, "/v2", &["evil.example"]), "a proxy may pass names on");
        assert!(!asked("/v2", &["unix"]));
    }

    #[test]
    fn a_request_through_a_proxy_is_not_local() {
        let peer = |address: &str| Some(Peer::Tcp(format!("{address}:1").parse().unwrap()));
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
        let keyed = AccessPolicy { keys: keys(Some("api"), None), ..policy() };
        let remote = AccessPolicy {
            allow_remote_admin: true,
            keys: keys(Some("api"), Some("admin")),
            ..policy()
        };
        let keyless = AccessPolicy { allow_remote_admin: true, ..policy() };
        // Answers to no key, the API key and the admin key; on this machine, then from elsewhere.
        for (policy, local, elsewhere) in [
            (&open, [true, true, true], [false; 3]),
            (&keyed, [false, true, false], [false; 3]),
            (&remote, [false, false, true], [false, false, true]),
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
                    call_admin(policy, &headers, address).is_ok()
                })
            };
            assert_eq!((answers([127, 0, 0, 1]), answers([192, 0, 2, 1])), (local, elsewhere));
        }
        let error = call_admin(&open, &HeaderMap::new(), [192, 0, 2, 1]).unwrap_err();
        assert!(
            error.message().contains("enrolled") && error.message().contains("--admin-key"),
            "{error}"
        );
    }

    #[test]
    fn admin_calls_of_foreign_pages_are_refused() {
        let call = |pairs: &[(HeaderName, &'static str)]| {
            let headers =
                pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            call_admin(&policy(), &headers.collect(), [127, 0, 0, 1])
        };
        let own = [(header::HOST, "localhost:8501"), (header::ORIGIN, "http://localhost:8501")];
        assert!(call(&own).is_ok());
        let other = [(header::HOST, "localhost:8501"), (header::ORIGIN, "http://evil.example")];
        assert_eq!(call(&other).unwrap_err().kind(), ErrorKind::PermissionDenied);
        let renamed = [(header::HOST, "evil.example"), (header::ORIGIN, "http://evil.example")];
        let error = call(&renamed).unwrap_err();
        assert!(error.message().contains("--allowed-hosts"), "{error}");
    }

    /// Makes an admin call from `address`, which does nothing.
    fn call_admin(policy: &AccessPolicy, headers: &HeaderMap, address: [u8; 4]) -> Result<()> {
        let request = AdminRequest {
            calls: "speakers are enrolled",
            action: "enrol",
            subject: "Eve",
            caller: Caller { peer: Some(Peer::Tcp((address, 1).into())), headers },
        };
        let mut call = std::pin::pin!(policy.admin(request, std::future::ready(Ok(()))));
        let waker = std::task::Waker::noop();
        match call.as_mut().poll(&mut std::task::Context::from_waker(waker)) {
            std::task::Poll::Ready(result) => result,
            std::task::Poll::Pending => panic!("nothing waits"),
        }
    }
}
