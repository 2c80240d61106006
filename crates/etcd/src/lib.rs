//! A client of etcd through its JSON gateway (etcd 3.4 or newer).
//!
//! The gateway needs no gRPC client, and the few requests a second of a node do not need speed. A
//! request whose outcome is unknown may have been carried out. It may also be carried out twice if
//! the first endpoint does not answer. Callers therefore compare revisions of creation, or values.
//!
//! # Modules
//! * Requests: `login` keeps a user's token, `wire` has the messages.
//! * Tests: `testing` starts a real etcd, `fuzzing` has parsers for the fuzz targets.

#[doc(hidden)]
pub mod fuzzing;
mod login;
#[cfg(feature = "testing")]
pub mod testing;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Uri};
use http_client::{HttpAnswer, HttpClient, HttpRequest, was_cut, was_not_sent};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::login::EtcdLogin;
pub use self::login::EtcdUser;
use wire::{KeepAliveAnswer, LeaseAnswer, RangeAnswer, TransactionAnswer};

/// Longest time of a request to one endpoint.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum entries of one answer.
const PAGE_ENTRIES_MAX: usize = 1000;
/// Maximum entries below one prefix.
const RANGE_ENTRIES_MAX: usize = 1 << 20;
/// Maximum endpoints of one cluster.
const ENDPOINTS_MAX: usize = 16;

/// Maximum characters of a name that becomes part of keys.
const NAME_CHARACTERS_MAX: usize = 128;

/// Checks a name that becomes part of keys. `owner` says what has the name: a node, a cluster or a
/// fleet.
///
/// # Errors
/// `InvalidArgument` for other characters than letters, digits, `.`, `_` and `-`, and if the name
/// is empty or too long.
pub fn check_name(owner: &str, name: &str) -> Result<()> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=NAME_CHARACTERS_MAX).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{name:?} is not a valid name of a {owner}; use 1 to {NAME_CHARACTERS_MAX} letters, digits, dots, \
         hyphens and underscores"
    )))
}

/// Number that etcd gave a lease; 0 stands for no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseId(pub i64);

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdEntry {
    /// Key. Bytes that are not UTF-8 are replaced.
    pub key: String,
    /// Bytes of the value, which need not be text.
    pub value: Bytes,
    /// Revision in which the key was created. No other creation of the key has it.
    pub create_revision: i64,
    /// Lease whose end removes the key; 0 if it has none.
    pub lease: LeaseId,
}

/// Entries below a prefix at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdRange {
    /// Revision of etcd at which the entries were read.
    pub revision: i64,
    /// Entries in the order of keys.
    pub entries: Vec<EtcdEntry>,
}

/// A client of one etcd. Clones share connections.
#[derive(Clone, Debug)]
pub struct Etcd {
    client: HttpClient,
    /// `HOST:PORT` of each endpoint.
    addresses: Arc<[String]>,
    /// Index of the endpoint that answered last.
    current: Arc<AtomicUsize>,
    /// Logins, if etcd has users.
    login: Option<Arc<EtcdLogin>>,
}

impl Etcd {
    /// Creates a client of the etcd at `endpoints`: `http://HOST:PORT`, also several with commas
    /// between them. A request goes to the endpoint that answered last, and then to the others. If
    /// `client` uses TLS, all endpoints are `https://HOST:PORT`.
    ///
    /// # Errors
    /// `InvalidArgument` for an endpoint of another form, and if there is none.
    pub fn new(endpoints: &[String], client: HttpClient) -> Result<Etcd> {
        let texts = endpoints.iter().flat_map(|text| text.split(',')).map(str::trim);
        let addresses = texts
            .filter(|text| !text.is_empty())
            .map(|text| endpoint_address(text, client.uses_tls()))
            .collect::<Result<Arc<[String]>>>()?;
        if addresses.is_empty() || addresses.len() > ENDPOINTS_MAX {
            return Err(Error::invalid(format!(
                "{} endpoints of etcd are named; name 1 to {ENDPOINTS_MAX} as http://HOST:PORT",
                addresses.len()
            )));
        }
        Ok(Etcd { client, addresses, current: Arc::new(AtomicUsize::new(0)), login: None })
    }

    /// Returns a client that logs in as `user`. It logs in again if its token ends.
    pub fn with_user(self, user: EtcdUser) -> Etcd {
        Etcd { login: Some(Arc::new(EtcdLogin::new(user))), ..self }
    }

    /// Grants a lease that ends `ttl` after its last keep-alive, in whole seconds.
    ///
    /// # Errors
    /// `Unavailable` if no endpoint answers, as for all methods. A lease may exist then.
    pub async fn grant(&self, ttl: Duration) -> Result<LeaseId> {
        let request = json!({ "TTL": ttl.as_secs().max(1).to_string() });
        let lease: LeaseAnswer = self.call("/v3/lease/grant", &request).await?;
        if lease.id == 0 {
            return Err(Error::internal("etcd grants a lease without a number"));
        }
        Ok(LeaseId(lease.id))
    }

    /// Renews a lease. Returns false if it has ended.
    ///
    /// # Errors
    /// As [`Etcd::grant`].
    pub async fn keep_alive(&self, lease: LeaseId) -> Result<bool> {
        let request = json!({ "ID": lease.0.to_string() });
        let answer: Result<KeepAliveAnswer> = self.call("/v3/lease/keepalive", &request).await;
        let renewed = answer.and_then(|answer| match answer {
            KeepAliveAnswer { error: Some(error), .. } => {
                Err(wire::refused("its keep-alive", &error))
            }
            KeepAliveAnswer { result: Some(lease), .. } => Ok(lease.ttl > 0),
            _ => Err(Error::unavailable("etcd does not say if the lease exists")),
        });
        match renewed {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            renewed => renewed,
        }
    }

    /// Ends a lease and removes its keys. An absent lease is not an error.
    ///
    /// # Errors
    /// As [`Etcd::grant`].
    pub async fn revoke(&self, lease: LeaseId) -> Result<()> {
        let request = json!({ "ID": lease.0.to_string() });
        match self.call::<Value>("/v3/lease/revoke", &request).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            answered => answered.map(drop),
        }
    }

    /// Sets a key, which ends with the lease.
    ///
    /// # Errors
    /// `NotFound` if the lease has ended, and as [`Etcd::grant`].
    pub async fn put(&self, key: &str, value: &[u8], lease: LeaseId) -> Result<()> {
        self.call::<Value>("/v3/kv/put", &put_request(key, value, lease)).await.map(drop)
    }

    /// Creates a key, which ends with the lease. Returns the revision of the creation, or `None` if
    /// the key exists.
    ///
    /// # Errors
    /// As [`Etcd::put`]. The key may have been created if the kind is `Unavailable`, and `None` may
    /// mean that an earlier try of the same call created it.
    pub async fn create(&self, key: &str, value: &[u8], lease: LeaseId) -> Result<Option<i64>> {
        let operation = json!({ "request_put": put_request(key, value, lease) });
        let answer = self.transact(&wire::if_created(key, 0, operation)).await?;
        Ok(answer.succeeded.then_some(answer.header.revision))
    }

    /// Removes a key. An absent key is not an error.
    ///
    /// # Errors
    /// As [`Etcd::grant`].
    pub async fn delete(&self, key: &str) -> Result<()> {
        let request = json!({ "key": wire::encoded(key.as_bytes()) });
        self.call::<Value>("/v3/kv/deleterange", &request).await.map(drop)
    }

    /// Removes a key if it was created in `revision`. Returns true if this call removed it.
    ///
    /// # Errors
    /// As [`Etcd::grant`].
    pub async fn delete_if_created(&self, key: &str, revision: i64) -> Result<bool> {
        let delete = json!({ "key": wire::encoded(key.as_bytes()) });
        let operation = json!({ "request_delete_range": delete });
        let answer = self.transact(&wire::if_created(key, revision, operation)).await?;
        Ok(answer.succeeded)
    }

    /// Removes a key if it has this value. Returns true if this call removed it.
    ///
    /// # Errors
    /// As [`Etcd::grant`].
    pub async fn delete_if_value(&self, key: &str, value: &[u8]) -> Result<bool> {
        let delete = json!({ "key": wire::encoded(key.as_bytes()) });
        let operation = json!({ "request_delete_range": delete });
        let answer = self.transact(&wire::if_value(key, value, operation)).await?;
        Ok(answer.succeeded)
    }

    /// Reads one key; `None` if it is absent.
    ///
    /// # Errors
    /// As [`Etcd::grant`], and `DataLoss` for an answer that is not base64.
    pub async fn get(&self, key: &str) -> Result<Option<EtcdEntry>> {
        let request = json!({ "key": wire::encoded(key.as_bytes()) });
        let answer: RangeAnswer = self.call("/v3/kv/range", &request).await?;
        answer.kvs.first().map(|entry| entry.decode()).transpose()
    }

    /// Returns the present revision of etcd. It grows with each change of any key. A user needs the
    /// permission to read the key `key`, which may be absent.
    ///
    /// # Errors
    /// As [`Etcd::grant`].
    pub async fn revision(&self, key: &str) -> Result<i64> {
        let request = json!({ "key": wire::encoded(key.as_bytes()), "count_only": true });
        let answer: RangeAnswer = self.call("/v3/kv/range", &request).await?;
        Ok(answer.header.revision)
    }

    /// Reads all keys that begin with `prefix`, all from one revision.
    ///
    /// # Errors
    /// As [`Etcd::get`], and `ResourceExhausted` for more than 1,048,576 keys.
    pub async fn range(&self, prefix: &str) -> Result<EtcdRange> {
        self.range_paged(prefix, PAGE_ENTRIES_MAX).await
    }

    /// Reads a range in requests of at most `page` entries, all at the revision of the first
    /// answer.
    async fn range_paged(&self, prefix: &str, page: usize) -> Result<EtcdRange> {
        let mut range = EtcdRange { revision: 0, entries: Vec::new() };
        let mut from = prefix.as_bytes().to_vec();
        loop {
            let request = json!({
                "key": wire::encoded(&from),
                "range_end": wire::encoded(&wire::range_end(prefix)),
                "limit": page.to_string(),
                // Zero is the newest. Later pages show the revision of the first one.
                "revision": range.revision.to_string(),
            });
            let answer: RangeAnswer = self.call("/v3/kv/range", &request).await?;
            if range.revision == 0 {
                range.revision = answer.header.revision;
            }
            for entry in &answer.kvs {
                range.entries.push(entry.decode()?);
            }
            let Some(last) = answer.kvs.last().filter(|_| answer.more) else {
                return Ok(range);
            };
            if range.entries.len() > RANGE_ENTRIES_MAX {
                return Err(Error::exhausted(format!(
                    "etcd has more than {RANGE_ENTRIES_MAX} keys below {prefix}; remove some"
                )));
            }
            // The next key in order: the last one and a zero byte.
            from = last.key()?;
            from.push(0);
        }
    }

    async fn transact(&self, request: &Value) -> Result<TransactionAnswer> {
        self.call("/v3/kv/txn", request).await
    }

    /// Sends a request to each endpoint in turn until one answers.
    async fn call<A: DeserializeOwned>(&self, path: &str, request: &Value) -> Result<A> {
        let body = Bytes::from(request.to_string());
        let first = self.current.load(Ordering::Relaxed);
        let mut failure = Error::unavailable("etcd has no endpoint");
        for attempt in 0..self.addresses.len() {
            let at = (first + attempt) % self.addresses.len();
            match self.send_with_token(&self.addresses[at], path, body.clone()).await {
                Err(error) if error.kind() == ErrorKind::Unavailable => failure = error,
                answered => {
                    self.current.store(at, Ordering::Relaxed);
                    return answered;
                }
            }
        }
        Err(failure.context("etcd does not answer"))
    }

    /// Sends a request to one endpoint, with a token if there is a user. A request that is refused
    /// for its token is sent a second time with another token. If a request is not answered, the
    /// next one may use another token.
    async fn send_with_token<A: DeserializeOwned>(
        &self,
        address: &str,
        path: &str,
        body: Bytes,
    ) -> Result<A> {
        let Some(login) = &self.login else {
            return self.exchange(address, path, body, None).await;
        };
        let token = login.token(&self.client, address, None).await?;
        let sent = self.send(address, path, body.clone(), Some(token.clone())).await;
        // A token names an entry of etcd's log. An etcd that lost its data does not have the entry,
        // and does not answer until it has.
        let is_unanswered =
            |error: &Error| error.kind() == ErrorKind::Unavailable && !was_not_sent(error);
        if sent.as_ref().is_err_and(is_unanswered) {
            login.forget(&token);
        }
        match sent.and_then(|answer| read_answer(address, &answer)) {
            Err(error) if wire::is_token_refused(&error) => {
                let renewed = login.token(&self.client, address, Some(&token)).await?;
                self.exchange(address, path, body, Some(renewed)).await
            }
            answered => answered,
        }
    }

    async fn exchange<A: DeserializeOwned>(
        &self,
        address: &str,
        path: &str,
        body: Bytes,
        token: Option<HeaderValue>,
    ) -> Result<A> {
        read_answer(address, &self.send(address, path, body, token).await?)
    }

    /// Sends a request with a token, if there is one. Explains the error of a server that expects
    /// TLS.
    async fn send(
        &self,
        address: &str,
        path: &str,
        body: Bytes,
        token: Option<HeaderValue>,
    ) -> Result<HttpAnswer> {
        let json = HeaderValue::from_static("application/json");
        let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, json)]);
        headers.extend(token.map(|token| (AUTHORIZATION, token)));
        let request = HttpRequest { method: Method::POST, path, headers, body };
        let answer = self.client.send(address, request, REQUEST_TIMEOUT).await;
        answer.map_err(|error| {
            if !self.client.uses_tls() && was_cut(&error) {
                Error::unavailable(format!(
                    "{}; if etcd uses TLS, write https:// in --cluster-etcd",
                    error.message()
                ))
            } else {
                error
            }
        })
    }
}

fn read_answer<A: DeserializeOwned>(address: &str, answer: &HttpAnswer) -> Result<A> {
    if answer.status != 200 {
        return Err(wire::refusal(address, answer.status, &answer.body));
    }
    wire::message(address, &answer.body)
}

fn put_request(key: &str, value: &[u8], lease: LeaseId) -> Value {
    json!({
        "key": wire::encoded(key.as_bytes()),
        "value": wire::encoded(value),
        "lease": lease.0.to_string(),
    })
}

/// Returns `HOST:PORT` of an endpoint.
///
/// # Errors
/// `InvalidArgument` for another form than `http://HOST:PORT`, or `https://HOST:PORT` with TLS.
fn endpoint_address(text: &str, uses_tls: bool) -> Result<String> {
    let wanted = if uses_tls { "https" } else { "http" };
    let refused = |reason: &str| {
        Error::invalid(format!("etcd's endpoint {text:?} {reason}; write {wanted}://HOST:PORT"))
    };
    let uri =
        text.parse::<Uri>().map_err(|error| refused("is not an address").with_source(error))?;
    match uri.scheme_str() {
        Some("https") if !uses_tls => {
            let reason =
                "uses TLS, which needs the issuer of etcd's certificate (--cluster-etcd-ca)";
            return Err(refused(reason));
        }
        Some("http") if uses_tls => {
            return Err(refused("does not use TLS, although --cluster-etcd-ca is given"));
        }
        Some("http" | "https") => {}
        Some(_) => return Err(refused("has another scheme than http and https")),
        None => return Err(refused("has no scheme")),
    }
    if uri.path().len() > 1 || uri.query().is_some() {
        return Err(refused("has a path"));
    }
    let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
    let authority = authority.ok_or_else(|| refused("has a user or no host"))?;
    match authority.port() {
        Some(_) => Ok(authority.to_string()),
        None => Err(refused("has no port")),
    }
}

#[cfg(test)]
mod tests {
    use transport::access::Secret;

    use super::*;

    #[test]
    fn endpoints_are_http_addresses() {
        let new = |text: &str| Etcd::new(&[text.to_owned()], HttpClient::new(None));
        let etcd = new("http://a:2379, http://[::1]:2379/,").unwrap();
        assert_eq!(*etcd.addresses, ["a:2379".to_owned(), "[::1]:2379".to_owned()]);
        let refused = ["", "a:2379", "https://a:2379", "http://a", "http://a:1/b", "http://u@a:1"];
        for text in refused {
            assert_eq!(new(text).unwrap_err().kind(), ErrorKind::InvalidArgument, "{text}");
        }
        assert!(new("https://a:2379").unwrap_err().message().contains("--cluster-etcd-ca"));
        let other = new("ftp://a:1").unwrap_err();
        assert!(other.message().contains("another scheme"), "{other}");
        let wanted = endpoint_address("http://a:1", true).unwrap_err();
        assert!(wanted.message().ends_with("write https://HOST:PORT"), "{wanted}");
        assert_eq!(endpoint_address("https://a:1", true).unwrap(), "a:1");
    }

    #[test]
    fn passwords_are_not_shown() {
        let user = EtcdUser { name: "mill".to_owned(), password: Secret("s3cret".to_owned()) };
        let etcd = Etcd::new(&["http://a:1".to_owned()], HttpClient::new(None)).unwrap();
        let shown = format!("{:?}", etcd.with_user(user));
        assert!(shown.contains("mill") && !shown.contains("s3cret"), "{shown}");
    }
}
