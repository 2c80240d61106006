//! The first bytes of a connection. They are the handshake of TLS, and the answer to a client that
//! speaks another protocol than the listener. Such a client speaks TLS to a listener without TLS,
//! or HTTP/2 to a listener of HTTP/1.1, or the other way round.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use metrics::{KindLabels, Metrics};
use os::WarningLimiter;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::grpc_refusal;
use crate::http_version::HttpVersion;
use crate::linger::{LingerLimits, LingeringStream};
use crate::peer::Peer;
use crate::tls::{SocketStream, TlsIdentity};

/// First byte of a TLS connection. It is the record type "handshake" (RFC 8446 §5.1).
const TLS_HANDSHAKE: u8 = 0x16;
/// Answer of a port with TLS to other connections.
const NEEDS_TLS: &str = "this port takes encrypted connections only: use https:// or grpcs://";
const _: () = assert!(NEEDS_TLS.len() <= grpc_refusal::TEXT_BYTES_MAX);
/// First bytes of HTTP/2 (RFC 9113 §3.4). No method of HTTP/1.1 begins with them.
const HTTP2_START: &[u8; 3] = b"PRI";
/// Answer of a port without TLS to TLS connections.
const NO_TLS: &str = "this port takes no encrypted connections: use http:// or a channel without TLS, or start the \
                      server with --tls-cert and --tls-key";
/// Answer of an HTTP/1.1 port to HTTP/2.
const NO_HTTP2: &str =
    "this port takes HTTP/1.1 only: send gRPC to the gRPC port, which is 8500 by default";
/// Answer of a gRPC port to HTTP/1.1.
const NO_HTTP1: &str =
    "this port takes gRPC only: send HTTP/1.1 to the HTTP port, which is 8501 by default";
const _: () = assert!(NO_HTTP2.len() <= grpc_refusal::TEXT_BYTES_MAX);

/// Protocol of a client that its listener does not speak.
#[derive(Clone, Copy)]
enum WrongProtocol {
    Plaintext,
    Tls,
    Http1,
    Http2,
}

impl WrongProtocol {
    /// Returns the outcome of the TLS handshake, if the protocol differs in TLS.
    fn handshake_outcome(self) -> Option<&'static str> {
        match self {
            WrongProtocol::Plaintext => Some("plaintext"),
            WrongProtocol::Tls => Some("tls_at_plain_port"),
            WrongProtocol::Http1 | WrongProtocol::Http2 => None,
        }
    }

    /// Returns the advice.
    fn text(self) -> &'static str {
        match self {
            WrongProtocol::Plaintext => NEEDS_TLS,
            WrongProtocol::Tls => NO_TLS,
            WrongProtocol::Http1 => NO_HTTP1,
            WrongProtocol::Http2 => NO_HTTP2,
        }
    }
}

/// Opener of the connections of one listener.
#[derive(Clone)]
pub(crate) struct ConnectionOpener {
    listener: &'static str,
    version: HttpVersion,
    tls: Option<Arc<TlsIdentity>>,
    metrics: Arc<Metrics>,
    warnings: Arc<Mutex<WarningLimiter>>,
}

/// Time limits of the first bytes.
#[derive(Clone, Copy)]
pub(crate) struct OpeningLimits {
    /// Longest silence before the first byte.
    pub(crate) idle: Duration,
    /// Longest handshake.
    pub(crate) handshake: Duration,
}

impl ConnectionOpener {
    pub(crate) fn new(
        listener: &'static str,
        version: HttpVersion,
        tls: Option<Arc<TlsIdentity>>,
        metrics: Arc<Metrics>,
    ) -> ConnectionOpener {
        ConnectionOpener { listener, version, tls, metrics, warnings: Arc::default() }
    }

    /// Returns the stream once the client's first bytes of HTTP have arrived. Returns `None` if the
    /// connection has ended. `drained` ends the wait for them.
    ///
    /// The parsers' own timers and their shutdown start with the first byte. This function applies
    /// the timeout to a client that never sends a byte, and disconnects it at a shutdown.
    pub(crate) async fn open(
        &self,
        stream: TcpStream,
        peer: Peer,
        limits: OpeningLimits,
        drained: &mut watch::Receiver<bool>,
    ) -> Option<SocketStream> {
        let mut stream = SocketStream::Plain(stream);
        self.wait(&mut stream, limits, drained).await?;
        let SocketStream::Plain(socket) = stream else { return None };
        let mut buffer = [0; HTTP2_START.len()];
        // The parser gets the same error from its first read.
        let read = socket.peek(&mut buffer).await.unwrap_or(0);
        let first = buffer.get(..read).unwrap_or_default();
        if self.tls.is_some() && first.is_empty() {
            return None;
        }
        match self.wrong_protocol(first) {
            None => {}
            // The parser answers with frames of HTTP/2, by which commands detect the port.
            Some(WrongProtocol::Http1) => self.warn(peer, NO_HTTP1),
            Some(wrong) => {
                self.explain(socket, peer, wrong).await;
                return None;
            }
        }
        let Some(tls) = &self.tls else { return Some(SocketStream::Plain(socket)) };
        match tls.accept(self.version, socket, limits.handshake).await {
            Ok(mut stream) => {
                self.count("ok");
                self.wait(&mut stream, limits, drained).await?;
                Some(stream)
            }
            Err(error) => {
                let timeout = error.kind() == ErrorKind::TimedOut;
                self.count(if timeout { "timeout" } else { "failed" });
                self.warn(peer, &format!("the TLS handshake failed: {error}"));
                None
            }
        }
    }

    /// Returns the protocol of a client with these first bytes, if the listener does not speak it.
    fn wrong_protocol(&self, first: &[u8]) -> Option<WrongProtocol> {
        let speaks_tls = first.first() == Some(&TLS_HANDSHAKE);
        if self.tls.is_some() {
            return (!speaks_tls).then_some(WrongProtocol::Plaintext);
        }
        if speaks_tls {
            return Some(WrongProtocol::Tls);
        }
        // Fewer bytes may be the start of both; the parser decides.
        let first: &[u8; HTTP2_START.len()] = first.try_into().ok()?;
        match self.version {
            HttpVersion::Http1 => (first == HTTP2_START).then_some(WrongProtocol::Http2),
            HttpVersion::Http2 => (first != HTTP2_START).then_some(WrongProtocol::Http1),
        }
    }

    /// Waits for the first byte. Returns `None` if the connection is to be closed: after the time
    /// limit, if the connection fails, or if the server stops.
    async fn wait(
        &self,
        stream: &mut SocketStream,
        limits: OpeningLimits,
        drained: &mut watch::Receiver<bool>,
    ) -> Option<()> {
        let spoke = tokio::select! {
            spoke = tokio::time::timeout(limits.idle, stream.wait_readable()) => spoke.ok()?,
            _ = drained.wait_for(|drained| *drained) => false,
        };
        spoke.then_some(())
    }

    /// Tells a client with the wrong protocol what to do, in bytes that it can read.
    async fn explain(&self, stream: TcpStream, peer: Peer, wrong: WrongProtocol) {
        if let Some(outcome) = wrong.handshake_outcome() {
            self.count(outcome);
        }
        let text = wrong.text();
        self.warn(peer, text);
        let (mut stream, linger) = LingeringStream::new(SocketStream::Plain(stream));
        // A client that has disconnected needs no answer.
        let _ = match (self.version, wrong) {
            (HttpVersion::Http2, WrongProtocol::Plaintext) => {
                grpc_refusal::refuse(&mut stream, text).await
            }
            (_, WrongProtocol::Http2) => grpc_refusal::refuse_http2(&mut stream, text).await,
            // A client that speaks TLS shows that it got no TLS ("wrong version number").
            _ => stream.write_all(bad_request(text).as_bytes()).await,
        };
        drop(stream);
        linger.until_closed(LingerLimits::WHOLE_REQUEST).await;
    }

    fn count(&self, kind: &'static str) {
        self.metrics.tls_handshakes.get_or_create(&KindLabels { kind }).inc();
    }

    /// Logs a refused connection, at a limited rate.
    fn warn(&self, peer: Peer, reason: &str) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = warnings.count(Instant::now()) {
            let listener = self.listener;
            tracing::warn!(listener, %peer, count, "a connection was refused: {reason}");
        }
    }
}

/// Returns an answer of HTTP/1.1 that ends the connection.
fn bad_request(text: &str) -> String {
    let body = format!("{{\"error\":\"{text}\"}}");
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    )
}
