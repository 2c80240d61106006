//! A client of HTTP/1.1, plain or with TLS, for requests to other nodes of a cluster and to etcd.
//!
//! # Invariant
//! A client with TLS trusts only the issuers in its files, and opens no connection without TLS.
//!
//! # Modules
//! * Connections: `connector` opens them, `tls` has issuers and certificates, `tls_error` adds
//!   remedies to failures.
//! * Tests: `testing` writes certificates.

mod connector;
#[cfg(feature = "testing")]
pub mod testing;
mod tls;
mod tls_error;

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fmt, io};

use base::{Error, Result};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use self::connector::Connector;
pub use self::tls::{ClientIdentityFiles, ClientTls, ClientTlsFiles, TlsPeer};

/// Bytes of a response's body.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Bytes of the body of a response that has no content of a collection.
const SMALL_ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of connections to one address that stay open without a request.
const IDLE_CONNECTIONS_MAX: usize = 32;
/// Time after which an idle connection is closed. A node's listener closes one after 75 seconds, so
/// the client is always the first.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// A response with any status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// Status code, also of failures.
    pub status: u16,
    /// Headers of the response.
    pub headers: HeaderMap,
    /// Whole body of the response.
    pub body: Bytes,
}

/// A request of any form.
#[derive(Clone)]
pub struct HttpRequest<'a> {
    /// HTTP method, such as `GET`.
    pub method: Method,
    /// Path, with the query, if any.
    pub path: &'a str,
    /// Headers besides the key.
    pub headers: HeaderMap,
    /// Body; empty for none.
    pub body: Bytes,
}

impl fmt::Debug for HttpRequest<'_> {
    /// Omits headers and body, which may have secrets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HttpRequest")
            .field("method", &self.method)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl HttpRequest<'_> {
    /// Creates a request that posts JSON.
    pub fn post(path: &str, body: Bytes) -> HttpRequest<'_> {
        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, json)]);
        HttpRequest { method: Method::POST, path, headers, body }
    }
}

/// Memory for the body of a response.
pub trait AnswerRoom: Send + Sync {
    /// Reserves room for `bytes` that have arrived.
    ///
    /// # Errors
    /// The error of the request. The rest of its response is then not read.
    fn take(&self, bytes: u64) -> Result<()>;
}

/// Room for every response up to [`ANSWER_BYTES_MAX`].
struct FreeRoom;

impl AnswerRoom for FreeRoom {
    fn take(&self, _: u64) -> Result<()> {
        Ok(())
    }
}

/// Room for [`SMALL_ANSWER_BYTES_MAX`] of one response.
struct SmallAnswerRoom<'a> {
    address: &'a str,
    taken: AtomicU64,
}

impl AnswerRoom for SmallAnswerRoom<'_> {
    fn take(&self, bytes: u64) -> Result<()> {
        let taken = self.taken.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if taken > SMALL_ANSWER_BYTES_MAX {
            return Err(Error::unavailable(format!(
                "{}: the answer has more than {} KiB; check that this is a node of the cluster",
                self.address,
                SMALL_ANSWER_BYTES_MAX >> 10
            )));
        }
        Ok(())
    }
}

/// A client of HTTP servers. Clones share connections, which stay open between requests.
///
/// Dropping the future of a request closes its connection.
#[derive(Clone, Debug)]
pub struct HttpClient {
    client: Client<Connector, Full<Bytes>>,
    authorization: Result<Option<HeaderValue>>,
    tls: Option<Arc<ClientTls>>,
}

impl HttpClient {
    /// Creates a client without TLS that sends `bearer`, if there is one, as the key of each
    /// request. Requests fail with `InvalidArgument` if the key has characters that no header may
    /// have.
    pub fn new(bearer: Option<String>) -> HttpClient {
        HttpClient::build(bearer, None)
    }

    /// Creates a client whose connections all use TLS. Otherwise as [`HttpClient::new`].
    ///
    /// A server must show a certificate for the host of its address. Open connections stay as they
    /// are if the files of `tls` are read again.
    pub fn with_tls(bearer: Option<String>, tls: Arc<ClientTls>) -> HttpClient {
        HttpClient::build(bearer, Some(tls))
    }

    fn build(bearer: Option<String>, tls: Option<Arc<ClientTls>>) -> HttpClient {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(Connector::new(tls.clone()));
        HttpClient { client, authorization: bearer.map(authorization).transpose(), tls }
    }

    /// Returns true if connections use TLS.
    pub fn uses_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Posts JSON to `path` (with the query, if any) at `address` (`HOST:PORT`). `timeout` covers
    /// the whole request and response.
    ///
    /// # Errors
    /// `Unavailable` if the server refuses or ends the connection, or does not answer in time. The
    /// server may have carried out the request. `TooLarge` for a response of more than 256 MiB.
    /// `InvalidArgument` if address and path make no URI.
    pub async fn post(
        &self,
        address: &str,
        path: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<HttpAnswer> {
        self.send(address, HttpRequest::post(path, body), timeout).await
    }

    /// Does the same as [`HttpClient::post`], for a response of at most 64 KiB.
    ///
    /// # Errors
    /// As [`HttpClient::post`], and `Unavailable` for a larger response.
    pub async fn post_for_small_answer(
        &self,
        address: &str,
        path: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<HttpAnswer> {
        let request = HttpRequest::post(path, body);
        let room = SmallAnswerRoom { address, taken: AtomicU64::new(0) };
        self.send_within(address, request, timeout, &room).await
    }

    /// Gets `path` (with the query, if any) from `address` (`HOST:PORT`).
    ///
    /// # Errors
    /// As [`HttpClient::post`].
    pub async fn get(&self, address: &str, path: &str, timeout: Duration) -> Result<HttpAnswer> {
        let headers = HeaderMap::new();
        let body = Bytes::new();
        self.send(address, HttpRequest { method: Method::GET, path, headers, body }, timeout).await
    }

    fn request(&self, address: &str, request: HttpRequest<'_>) -> Result<Request<Full<Bytes>>> {
        let HttpRequest { method, path, headers, body } = request;
        let scheme = if self.uses_tls() { "https" } else { "http" };
        let uri = format!("{scheme}://{address}{path}");
        let request = Request::builder().method(method).uri(&uri).body(Full::new(body));
        let mut request = request.map_err(|error| {
            Error::invalid(format!("{uri:?} is not an address ({error}); write HOST:PORT"))
                .with_source(error)
        })?;
        *request.headers_mut() = headers;
        if let Some(value) = self.authorization.clone()? {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok(request)
    }

    /// Sends a request to `address` (`HOST:PORT`). `timeout` covers the whole request and response.
    ///
    /// # Errors
    /// As [`HttpClient::post`].
    pub async fn send(
        &self,
        address: &str,
        request: HttpRequest<'_>,
        timeout: Duration,
    ) -> Result<HttpAnswer> {
        self.send_within(address, request, timeout, &FreeRoom).await
    }

    /// Does the same as [`HttpClient::send`], and reserves room for the body as it arrives.
    ///
    /// # Errors
    /// As [`HttpClient::post`], and the error of `room`.
    pub async fn send_within(
        &self,
        address: &str,
        request: HttpRequest<'_>,
        timeout: Duration,
        room: &dyn AnswerRoom,
    ) -> Result<HttpAnswer> {
        let request = self.request(address, request)?;
        match tokio::time::timeout(timeout, self.exchange(address, request, room)).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::unavailable(format!(
                "{address} did not answer within {} ms; check that it runs and is not overloaded",
                timeout.as_millis()
            ))),
        }
    }

    /// Sends a request and reads its response. Each part of the body takes memory of `room`.
    async fn exchange(
        &self,
        address: &str,
        request: Request<Full<Bytes>>,
        room: &dyn AnswerRoom,
    ) -> Result<HttpAnswer> {
        let response = self
            .client
            .request(request)
            .await
            // The source shows if a connection was ever made.
            .map_err(|error| self.connection_error(address, &error).with_source(error))?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let mut body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
        let mut parts: Vec<Bytes> = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                if error.is::<LengthLimitError>() {
                    Error::too_large(format!(
                        "{address} answers with more than {} MiB; request less at a time",
                        ANSWER_BYTES_MAX >> 20
                    ))
                } else {
                    self.broken_answer(address, error)
                }
            })?;
            if let Ok(part) = frame.into_data() {
                room.take(part.len() as u64)?;
                parts.push(part);
            }
        }
        let body = match parts.len() {
            1 => parts.swap_remove(0),
            _ => Bytes::from(parts.concat()),
        };
        Ok(HttpAnswer { status, headers, body })
    }

    /// Builds the error of a connection that failed before the answer.
    fn connection_error(&self, address: &str, error: &(dyn StdError + 'static)) -> Error {
        self.tls_failure(address, error).unwrap_or_else(|| {
            let cause = innermost(error);
            Error::unavailable(format!("{address} cannot be reached ({cause}); check that it runs"))
        })
    }

    /// Builds the error of a connection that failed within the body of an answer.
    fn broken_answer(&self, address: &str, error: Box<dyn StdError + Send + Sync>) -> Error {
        let built = self.tls_failure(address, &*error).unwrap_or_else(|| {
            let cause = innermost(&*error);
            Error::unavailable(format!(
                "{address} ended the connection before the end of its answer ({cause}); check its log"
            ))
        });
        match error.downcast::<hyper::Error>() {
            Ok(error) => built.with_source(*error),
            Err(_) => built,
        }
    }

    /// Builds the error of a connection that failed because of TLS.
    fn tls_failure(&self, address: &str, error: &(dyn StdError + 'static)) -> Option<Error> {
        let tls = self.tls.as_ref()?;
        tls_error::explanation(address, error, tls).map(Error::unavailable)
    }
}

/// Returns the innermost cause of an error: the outer ones name only the layers of the client.
fn innermost<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause
}

/// Returns true if no connection to the server existed. The server then cannot have the request.
pub fn was_not_sent(error: &Error) -> bool {
    let mut source = error.source();
    while let Some(cause) = source {
        // The system reports it for a connect only.
        if let Some(cause) = cause.downcast_ref::<io::Error>()
            && cause.kind() == io::ErrorKind::ConnectionRefused
        {
            return true;
        }
        if let Some(cause) = cause.downcast_ref::<ClientError>()
            && cause.is_connect()
        {
            return true;
        }
        source = cause.source();
    }
    false
}

/// Returns true if the server closed the connection instead of answering.
pub fn was_cut(error: &Error) -> bool {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if inner.downcast_ref().is_some_and(hyper::Error::is_incomplete_message) {
            return true;
        }
        cause = inner.source();
    }
    false
}

fn authorization(bearer: String) -> Result<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {bearer}")).map_err(|error| {
        Error::invalid("the key of the cluster has characters that no header may have")
            .with_source(error)
    })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use axum::Router;
    use axum::extract::Request as ServerRequest;
    use base::ErrorKind;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const WAIT: Duration = Duration::from_secs(60);

    async fn listener() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    /// Answers each request with its method, path, key and body.
    async fn echo(request: ServerRequest) -> String {
        let (head, body) = request.into_parts();
        let key = head.headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
        let body = body.collect().await.unwrap().to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        format!("{} {} {key:?} {body}", head.method, head.uri)
    }

    #[tokio::test]
    async fn requests_carry_key_and_body() {
        let (listener, address) = listener().await;
        let server = axum::serve(listener, Router::new().fallback(echo));
        tokio::spawn(async move { server.await.unwrap() });
        let client = HttpClient::new(Some("s3cret".to_owned()));
        let answer = client.post(&address, "/a?b=1", Bytes::from("{}"), WAIT).await.unwrap();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.body, r#"POST /a?b=1 Some("Bearer s3cret") {}"#);
        let answer = HttpClient::new(None).get(&address, "/c", WAIT).await.unwrap();
        assert_eq!(answer.body, "GET /c None ");
    }

    #[tokio::test]
    async fn requests_share_a_connection() {
        let (listener, address) = listener().await;
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                        let answer = b"HTTP/1.1 503 x\r\ncontent-length: 2\r\n\r\nno";
                        stream.write_all(answer).await.unwrap();
                    }
                });
            }
        });
        let client = HttpClient::new(None);
        for _ in 0..5 {
            let answer = client.clone().get(&address, "/", WAIT).await.unwrap();
            assert_eq!((answer.status, &*answer.body), (503, &b"no"[..]));
        }
        assert_eq!(connections.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn failures_name_the_address() {
        let client = HttpClient::new(None);
        // A socket that does not listen refuses connections, and keeps its port.
        let closed = tokio::net::TcpSocket::new_v4().unwrap();
        closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let refusing = closed.local_addr().unwrap().to_string();
        let (_silent, silent) = listener().await;
        let (torn, tearing) = listener().await;
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = torn.accept().await.unwrap();
                let mut buffer = [0; 4096];
                let _ = stream.read(&mut buffer).await;
                stream.write_all(b"HTTP/1.1 200 x\r\ncontent-length: 9\r\n\r\nhalf").await.unwrap();
            }
        });
        let torn_address = tearing.clone();
        let cases = [(refusing, WAIT), (silent, Duration::from_millis(50)), (tearing, WAIT)];
        for (address, timeout) in cases {
            let error = client.get(&address, "/", timeout).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.message().contains(&address), "{error}");
            let is_torn = error.message().contains("before the end of its answer");
            assert_eq!(is_torn, address == torn_address, "{error}");
            let source = StdError::source(&error);
            assert_eq!(is_torn, source.is_some_and(|source| source.is::<hyper::Error>()));
        }
    }

    /// Room for some bytes.
    struct SmallRoom(AtomicUsize);

    impl AnswerRoom for SmallRoom {
        fn take(&self, bytes: u64) -> Result<()> {
            let taken = self.0.fetch_add(bytes as usize, Ordering::Relaxed) + bytes as usize;
            if taken > 1 << 20 { Err(Error::exhausted("no room")) } else { Ok(()) }
        }
    }

    #[tokio::test]
    async fn a_body_without_room_is_not_read_on() {
        let (listener, address) = listener().await;
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    // A client takes no response before it has sent its request.
                    let _ = stream.read(&mut [0; 4096]).await.unwrap();
                    let head = b"HTTP/1.1 200 x\r\ncontent-length: 134217728\r\n\r\n";
                    stream.write_all(head).await.unwrap();
                    // The body never ends. Sending fails once the client has closed the connection.
                    while stream.write_all(&[0; 1 << 16]).await.is_ok() {}
                });
            }
        });
        let client = HttpClient::new(None);
        let room = SmallRoom(AtomicUsize::new(0));
        let request = || HttpRequest::post("/", Bytes::new());
        let answer = client.send_within(&address, request(), WAIT, &room).await;
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::ResourceExhausted);
        assert!(room.0.load(Ordering::Relaxed) < 2 << 20, "one part at most is beyond the room");
        let answer = client.post_for_small_answer(&address, "/", Bytes::new(), WAIT).await;
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().starts_with(&format!("{address}: the answer has")), "{error}");
    }

    #[tokio::test]
    async fn addresses_and_keys_are_checked() {
        let client = HttpClient::new(None);
        let error = client.get("a b:1", "/", WAIT).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let client = HttpClient::new(Some("a\nb".to_owned()));
        let error = client.get("127.0.0.1:1", "/", WAIT).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(!error.message().contains('\n'));
    }

    #[test]
    fn a_refused_connection_was_not_sent() {
        let failed = |kind: io::ErrorKind| {
            Error::unavailable("127.0.0.1:1").with_source(io::Error::from(kind))
        };
        assert!(was_not_sent(&failed(io::ErrorKind::ConnectionRefused)));
        assert!(!was_not_sent(&failed(io::ErrorKind::ConnectionReset)));
        assert!(!was_not_sent(&Error::unavailable("127.0.0.1:1")));
    }
}
