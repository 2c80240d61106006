//! Connections to a server under test: HTTP/2 for gRPC, HTTP/1.1 with keep-alive for REST.
//!
//! gRPC is implemented directly on HTTP/2, because a benchmark needs only unary calls with encoded
//! bodies. There is no stub, channel task or codec between the pacing thread and the socket. A
//! request is written at once, headers and body, as gRPC's own clients do. Two writes would wake
//! the server twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, Uri, Version};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use base::{Error, ErrorKind, Result};

pub use crate::endpoint::{ApiKey, Endpoint, Link, Transport, other_protocol};

/// Size from which a response counts as failed.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Bytes of a server's error message that are kept.
const REASON_BYTES_MAX: usize = 300;
/// Timeout of a single call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of a connection and its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Size of the prefix of a gRPC message: a flag for compression and the length.
const GRPC_PREFIX_BYTES: usize = 5;
/// Flow-control window of a stream. It is the bytes of one response that a server may send ahead.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// Flow-control window of a connection, for all responses together.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 24;

/// Method, path and headers that all requests of a run share.
#[derive(Clone, Debug)]
pub struct Template {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    transport: Transport,
}

impl Template {
    /// Builds calls of the gRPC method `path` ("/package.Service/Method").
    ///
    /// # Errors
    /// `InvalidArgument` if endpoint and path are not a valid URI, or the endpoint's key has
    /// unprintable characters.
    pub fn grpc(endpoint: &Endpoint, path: &str) -> Result<Template> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(http::header::TE, HeaderValue::from_static("trailers"));
        add_key(&mut headers, endpoint)?;
        let scheme = if endpoint.is_tls() { "https" } else { "http" };
        Ok(Template {
            method: Method::POST,
            uri: uri(&format!("{scheme}://{}{path}", endpoint.authority))?,
            headers,
            transport: Transport::Grpc,
        })
    }

    /// Builds posts to `path` with `extra` headers.
    ///
    /// # Errors
    /// `InvalidArgument` if endpoint and path are not a valid URI, or a header has unprintable
    /// characters.
    pub fn post(
        endpoint: &Endpoint,
        path: &str,
        extra: &[(&'static str, String)],
    ) -> Result<Template> {
        let mut template = Template::get(endpoint, path)?;
        template.method = Method::POST;
        template.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, text) in extra {
            template.headers.insert(HeaderName::from_static(name), header_value(text)?);
        }
        Ok(template)
    }

    /// Builds a request for the page at `path`.
    ///
    /// # Errors
    /// As [`Template::post`].
    pub(crate) fn get(endpoint: &Endpoint, path: &str) -> Result<Template> {
        let host = header_value(&endpoint.authority)?;
        let mut headers = HeaderMap::from_iter([(HOST, host)]);
        add_key(&mut headers, endpoint)?;
        Ok(Template { method: Method::GET, uri: uri(path)?, headers, transport: Transport::Http })
    }

    fn request<B>(&self, body: B) -> Request<B> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        if self.transport == Transport::Grpc {
            *request.version_mut() = Version::HTTP_2;
        }
        request
    }
}

/// Adds the header for the key of `endpoint`.
fn add_key(headers: &mut HeaderMap, endpoint: &Endpoint) -> Result<()> {
    let Some(key) = &endpoint.key else { return Ok(()) };
    let mut value = HeaderValue::from_str(key.as_str())
        .map_err(|_| Error::invalid("the API key has characters that no header may have"))?;
    value.set_sensitive(true);
    headers.insert(HeaderName::from_static("api-key"), value);
    Ok(())
}

fn header_value(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text)
        .map_err(|_| Error::invalid(format!("\"{text}\" cannot be a header value")))
}

fn uri(text: &str) -> Result<Uri> {
    text.parse().map_err(|_| Error::invalid(format!("\"{text}\" is not an address to call")))
}

/// Returns a gRPC message with its prefix, to be sent as a body.
pub fn grpc_frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(GRPC_PREFIX_BYTES + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    frame.freeze()
}

/// A response's message, for gRPC without its prefix.
#[derive(Clone, Debug, Default)]
pub struct RawResponse {
    /// Bytes of the message.
    pub body: Bytes,
}

/// A connection of either protocol.
pub enum Connection {
    /// HTTP/2 with a gRPC server.
    Grpc(Grpc),
    /// HTTP/1.1.
    Http(hyper::client::conn::http1::SendRequest<Full<Bytes>>),
}

/// A handle on an HTTP/2 connection.
#[derive(Clone)]
pub struct Grpc {
    sender: h2::client::SendRequest<Bytes>,
    /// True until the server closes the connection.
    open: Arc<AtomicBool>,
}

impl Connection {
    /// Connects to the server. The connection's own task runs on the current runtime.
    ///
    /// # Errors
    /// `Unavailable` if no server answers, `DeadlineExceeded` if it does not answer in time, or the
    /// error of the TLS handshake.
    pub async fn open(endpoint: &Endpoint) -> Result<Connection> {
        Connection::open_within(endpoint, CONNECT_TIMEOUT).await
    }

    async fn open_within(endpoint: &Endpoint, limit: Duration) -> Result<Connection> {
        tokio::time::timeout(limit, Connection::connect(endpoint)).await.unwrap_or_else(|_| {
            Err(Error::deadline(format!(
                "cannot connect to {}: no answer in {} s",
                endpoint.authority,
                limit.as_secs()
            )))
        })
    }

    /// Connects to the endpoint by TCP, TLS or a Unix socket, and starts the protocol.
    async fn connect(endpoint: &Endpoint) -> Result<Connection> {
        match &endpoint.link {
            Link::Tcp => Connection::on(endpoint, tcp(endpoint).await?).await,
            Link::Tls(tls) => {
                let stream = tls.connect(&endpoint.authority, tcp(endpoint).await?).await?;
                Connection::on(endpoint, stream).await
            }
            Link::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|error| {
                    Error::unavailable(format!("cannot connect to {}", path.display()))
                        .caused_by(error)
                })?;
                Connection::on(endpoint, stream).await
            }
        }
    }

    /// Starts the protocol on an open stream.
    async fn on<S>(endpoint: &Endpoint, stream: S) -> Result<Connection>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        match endpoint.transport {
            Transport::Grpc => {
                let (sender, driver) = h2::client::Builder::new()
                    .initial_window_size(STREAM_WINDOW_BYTES)
                    .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                    .handshake(stream)
                    .await
                    .map_err(|e| refused(endpoint, &e))?;
                let open = Arc::new(AtomicBool::new(true));
                let ended = open.clone();
                tokio::spawn(async move {
                    // Calls in progress get the reason why the connection ended.
                    let _ = driver.await;
                    ended.store(false, Ordering::Relaxed);
                });
                Ok(Connection::Grpc(Grpc { sender, open }))
            }
            Transport::Http => {
                let io = TokioIo::new(stream);
                let (sender, driver) = hyper::client::conn::http1::handshake(io)
                    .await
                    .map_err(|e| refused(endpoint, &e))?;
                tokio::spawn(driver);
                Ok(Connection::Http(sender))
            }
        }
    }

    /// Returns another handle on the same connection, or `None` if it takes one request at a time.
    pub fn share(&self) -> Option<Connection> {
        match self {
            Connection::Grpc(grpc) => Some(Connection::Grpc(grpc.clone())),
            Connection::Http(_) => None,
        }
    }

    /// Returns true until the server closes the connection.
    pub fn is_open(&self) -> bool {
        match self {
            Connection::Grpc(grpc) => grpc.open.load(Ordering::Relaxed),
            Connection::Http(sender) => !sender.is_closed(),
        }
    }

    /// Sends a request and returns the response.
    ///
    /// # Errors
    /// The server's error status or the failure of the connection, as a message.
    pub async fn call(&mut self, template: &Template, body: Bytes) -> Result<RawResponse> {
        match self {
            Connection::Grpc(grpc) => grpc.call(template, body).await,
            Connection::Http(sender) => {
                let broken = |e: hyper::Error| Error::unavailable("connection").caused_by(e);
                sender.ready().await.map_err(broken)?;
                let request = template.request(Full::new(body));
                http_answer(sender.send_request(request).await.map_err(broken)?).await
            }
        }
    }
}

fn refused(endpoint: &Endpoint, error: &dyn std::fmt::Display) -> Error {
    Error::unavailable(format!("cannot connect to {}: {error}", endpoint.authority))
}

async fn tcp(endpoint: &Endpoint) -> Result<TcpStream> {
    let stream =
        TcpStream::connect(&endpoint.authority).await.map_err(|e| refused(endpoint, &e))?;
    stream.set_nodelay(true).map_err(|e| refused(endpoint, &e))?;
    Ok(stream)
}

impl Grpc {
    async fn call(&mut self, template: &Template, body: Bytes) -> Result<RawResponse> {
        let broken = |e: h2::Error| Error::unavailable("connection").caused_by(e);
        std::future::poll_fn(|cx| self.sender.poll_ready(cx)).await.map_err(broken)?;
        let (answer, mut stream) =
            self.sender.send_request(template.request(()), false).map_err(broken)?;
        stream.send_data(body, true).map_err(broken)?;
        grpc_answer(answer.await.map_err(broken)?).await
    }
}

/// Makes one call on a connection of its own, outside any measurement.
///
/// # Errors
/// Returns the errors of [`Connection::call`], and `DeadlineExceeded` if no response comes.
pub fn call_once(endpoint: &Endpoint, template: &Template, body: Bytes) -> Result<RawResponse> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::exhausted("cannot start a client runtime").caused_by(e))?;
    let answer = runtime.block_on(async {
        let call = async { Connection::open(endpoint).await?.call(template, body).await };
        tokio::time::timeout(CALL_TIMEOUT, call).await.unwrap_or_else(|_| {
            Err(Error::deadline(format!("no answer from {}", endpoint.authority)))
        })
    });
    answer.map_err(|error| match error.kind() {
        ErrorKind::Unavailable | ErrorKind::DeadlineExceeded => {
            other_protocol(endpoint).unwrap_or_else(|| with_remedy(endpoint, error))
        }
        _ => error,
    })
}

/// Adds the likely cause if a connection with TLS ends without an answer. A server of TLS 1.3
/// refuses a client without a certificate only after the client's handshake.
fn with_remedy(endpoint: &Endpoint, error: Error) -> Error {
    match &endpoint.link {
        Link::Tls(tls) if !tls.is_identified => Error::unavailable(format!(
            "{}; if {} requires a certificate of its clients, give --cert FILE and --key FILE",
            error.message(),
            endpoint.authority
        )),
        _ => error,
    }
}

/// Reads the response of a gRPC call with one message. Returns the message without its prefix.
async fn grpc_answer(response: Response<h2::RecvStream>) -> Result<RawResponse> {
    let broken = |e: h2::Error| Error::unavailable("answer").caused_by(e);
    let (parts, mut body) = response.into_parts();
    if parts.headers.contains_key("grpc-status") {
        grpc_status(&parts.headers)?;
    }
    let mut frame = Bytes::new();
    let mut pieces = BytesMut::new();
    while let Some(piece) = body.data().await {
        let piece = piece.map_err(broken)?;
        body.flow_control().release_capacity(piece.len()).map_err(broken)?;
        if frame.len() + pieces.len() + piece.len() > ANSWER_BYTES_MAX {
            return Err(Error::unavailable("answer: it is too long"));
        }
        // Most have one piece, which need not be copied.
        if frame.is_empty() && pieces.is_empty() {
            frame = piece;
        } else {
            pieces.extend_from_slice(&std::mem::take(&mut frame));
            pieces.extend_from_slice(&piece);
        }
    }
    match body.trailers().await.map_err(broken)? {
        Some(trailers) => grpc_status(&trailers)?,
        None => {
            return Err(Error::unavailable(format!("HTTP {} without a gRPC status", parts.status)));
        }
    }
    if !pieces.is_empty() {
        frame = pieces.freeze();
    }
    if frame.len() < GRPC_PREFIX_BYTES || frame[0] != 0 {
        return Err(Error::data_loss("the answer is not an uncompressed gRPC message"));
    }
    Ok(RawResponse { body: frame.split_off(GRPC_PREFIX_BYTES) })
}

/// Returns an error with the status and message of a call that failed.
fn grpc_status(headers: &HeaderMap) -> Result<()> {
    let text = |name| {
        headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default()
    };
    match text("grpc-status") {
        "0" => Ok(()),
        status => {
            let words = percent_decoded(text("grpc-message"));
            Err(Error::unavailable(format!("gRPC status {status}: {}", clip(&words))))
        }
    }
}

/// Escapes `text` as one segment or value of a URL.
pub fn url_segment(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    text.bytes()
        .map(|byte| if plain(&byte) { char::from(byte).into() } else { format!("%{byte:02X}") })
        .collect()
}

/// Decodes gRPC's percent-encoding of messages in headers. Malformed text stays as it is.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = (first == b'%')
            .then(|| after.get(..2))
            .flatten()
            .and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads the body of a response. A status other than success is an error with the beginning of the
/// body.
async fn http_answer(response: Response<Incoming>) -> Result<RawResponse> {
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX)
        .collect()
        .await
        .map_err(|e| Error::unavailable(format!("answer: {e}")))?
        .to_bytes();
    if !parts.status.is_success() {
        let words = String::from_utf8_lossy(&body);
        return Err(Error::unavailable(format!(
            "HTTP {}: {}",
            parts.status.as_u16(),
            clip(&words)
        )));
    }
    Ok(RawResponse { body })
}

fn clip(text: &str) -> &str {
    let end = (0..=REASON_BYTES_MAX.min(text.len()))
        .rev()
        .find(|&end| text.is_char_boundary(end))
        .unwrap_or(0);
    text[..end].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_server_gets_no_endless_handshake() {
        // Connections are accepted by the system, and never answered.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("grpcs://{}", silent.local_addr().unwrap());
        let endpoint = Endpoint::parse(&url, &crate::tls::TlsArgs::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let opened =
            runtime.block_on(Connection::open_within(&endpoint, Duration::from_millis(50)));
        let error = opened.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    }

    #[test]
    fn frames_and_clips() {
        assert_eq!(&grpc_frame(b"ab")[..], &[0, 0, 0, 0, 2, b'a', b'b']);
        assert_eq!(percent_decoded("no%20%22m%22 100%"), "no \"m\" 100%");
        assert_eq!(url_segment("a b/c"), "a%20b%2Fc");
        assert_eq!(clip(" short "), "short");
        assert_eq!(clip(&"é".repeat(400)).len(), REASON_BYTES_MAX);
    }
}
