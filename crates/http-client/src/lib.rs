//! A client of HTTP/1.1, plain or with TLS, for requests to other nodes of a cluster and to etcd.
//!
//! # Invariant
//! A client with TLS trusts only the issuers in its files, and opens no connection without TLS.

mod connector;
#[cfg(feature = "testing")]
pub mod testing;
mod tls;
mod tls_error;

use std::error::Error as StdError;
use std::sync::Arc;
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
/// Connections to one address that stay open without a request.
const IDLE_CONNECTIONS_MAX: usize = 32;
/// Time after which an idle connection is closed. A node's listener closes one after 75 seconds, so
/// the client is always the first.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// A response with any status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// HTTP status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

/// A request of any form.
#[derive(Clone)]
pub struct HttpRequest<'a> {
    /// Method.
    pub method: Method,
    /// Path, with the query, if any.
    pub path: &'a str,
    /// Headers besides the key.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl fmt::Debug for HttpRequest<'_> {
    /// Leaves out headers and body, which may have secrets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HttpRequest")
            .field("method", &self.method)
            .field("path", &self.path)
            .finish_non_exhaustive()
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
        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, json)]);
        self.send(address, HttpRequest { method: Method::POST, path, headers, body }, timeout).await
    }

    /// Gets `path` (with the query, if any) from `address` (`HOST:PORT`).
    ///
    /// # Errors
    /// As [`HttpClient::post`].
    pub async fn get(&self, address: &str, path: &str, timeout: Duration) -> Result<HttpAnswer> {
        let (headers, body) = (HeaderMap::new(), Bytes::new());
        self.send(address, HttpRequest { method: Method::GET, path, headers, body }, timeout).await
    }

    fn request(&self, address: &str, request: HttpRequest<'_>) -> Result<Request<Full<Bytes>>> {
        let HttpRequest { method, path, headers, body } = request;
        let scheme = if self.uses_tls() { "https" } else { "http" };
        let uri = format!("{scheme}://{address}{path}");
        let request = Request::builder().method(method).uri(&uri).body(Full::new(body));
        let mut request = request.map_err(|error| {
            Error::invalid(format!("{uri:?} is no address ({error}); write HOST:PORT"))
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
        let request = self.request(address, request)?;
        match tokio::time::timeout(timeout, self.exchange(address, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::unavailable(format!(
                "{address} did not answer within {} ms; check that it runs and is not overloaded",
                timeout.as_millis()
            ))),
        }
    }

    async fn exchange(&self, address: &str, request: Request<Full<Bytes>>) -> Result<HttpAnswer> {
        let response = self
            .client
            .request(request)
            .await
            // The source says if a connection was ever made.
            .map_err(|error| self.connection_error(address, &error).with_source(error))?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        match body {
            Ok(body) => Ok(HttpAnswer { status, headers, body: body.to_bytes() }),
            Err(error) if error.is::<LengthLimitError>() => Err(Error::too_large(format!(
                "{address} answers with more than {} MiB; ask for less in one request",
                ANSWER_BYTES_MAX >> 20
            ))),
            Err(error) => Err(self.connection_error(address, &*error)),
        }
    }

    /// Builds the error of a connection that failed, with the innermost cause: the outer ones name
    /// only the layers of the client.
    fn connection_error(&self, address: &str, error: &(dyn StdError + 'static)) -> Error {
        let of_tls = self.tls.as_ref().and_then(|tls| tls_error::explanation(address, error, tls));
        if let Some(text) = of_tls {
            return Error::unavailable(text);
        }
        let mut cause: &dyn StdError = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        Error::unavailable(format!("{address} cannot be reached ({cause}); check that it runs"))
    }
}

/// Returns true if no connection to the server existed, so that it cannot have the request.
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

/// Returns true if the server closed the connection in place of an answer.
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
    let mut value = HeaderValue::try_from(format!("Bearer {bearer}")).map_err(|_| {
        Error::invalid("the key of the cluster has characters that no header may have")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

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
        let (closed, refusing) = listener().await;
        drop(closed);
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
        let cases = [(refusing, WAIT), (silent, Duration::from_millis(50)), (tearing, WAIT)];
        for (address, timeout) in cases {
            let error = client.get(&address, "/", timeout).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.message().contains(&address), "{error}");
        }
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
