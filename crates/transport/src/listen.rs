//! Accepting connections: a bound on how many, time limits on slow clients, a graceful end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::{Error, Result};
use http::{HeaderValue, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use metrics::{KindLabels, Metrics};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::config::ListenerConfig;
use crate::connection_threads::ConnectionThreads;
use crate::control_frames::FrameCounter;
use crate::descriptors::{self, SpareDescriptor, WarningLimiter};
use crate::header_timeout::{HeaderTimeout, TimedStream};
use crate::linger::LingeringStream;
use crate::request_body::RequestBody;
use crate::write_coalescer::WriteCoalescer;

/// How long a connection may send nothing between requests (HTTP/1.1) before it is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// HTTP/2: the server pings a silent client this often and closes when there is no answer in time.
const PING_INTERVAL: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a client may take nothing of an answer before its connection is closed.
const WRITE_STALL_MAX: Duration = Duration::from_secs(60);
/// Pause after a failed accept, so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Bytes of headers a request may have.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// Flow-control windows of HTTP/2: large enough that a tensor of some megabytes is not paced by round trips.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// The client's address, put into each request's extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Peer {
    pub(crate) fn is_loopback(self) -> bool {
        self.0.ip().to_canonical().is_loopback()
    }
}

/// Binds before anything is loaded, so that a taken port is found in the first millisecond.
///
/// # Errors
/// `Unavailable` naming the address and what to do.
pub(crate) fn bind(host: std::net::IpAddr, port: u16, flag: &str) -> Result<std::net::TcpListener> {
    let address = SocketAddr::new(host, port);
    let listener = std::net::TcpListener::bind(address).map_err(|e| {
        let remedy = match e.kind() {
            std::io::ErrorKind::AddrNotAvailable => "--host must be an address of this machine".to_owned(),
            _ => format!("choose another with {flag}"),
        };
        Error::unavailable(format!("cannot listen on {address}: {e}; {remedy}"))
    })?;
    listener.set_nonblocking(true).map_err(|e| Error::internal(format!("{address}: {e}")))?;
    Ok(listener)
}

/// What a door's connections speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 from the first byte, as gRPC has it.
    Http2,
}

/// One door: its listener, what answers, and its bounds.
pub(crate) struct Listener<S> {
    pub(crate) name: &'static str,
    pub(crate) version: HttpVersion,
    pub(crate) socket: TcpListener,
    pub(crate) service: S,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) config: ListenerConfig,
    /// Where connections run; `None` is the runtime that accepts them.
    pub(crate) threads: Option<Arc<ConnectionThreads>>,
}

impl<S, B> Listener<S>
where
    S: tower::Service<http::Request<RequestBody>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    B: hyper::body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Accepts until told to stop, then lets connections finish what they have begun, at most for the grace time.
    pub(crate) async fn serve(self, mut stop: watch::Receiver<bool>) {
        let builder = Arc::new(connection_builder(self.version, &self.config));
        let graceful = GracefulShutdown::new();
        let room = Arc::new(Semaphore::new(self.config.connections_max));
        let open = self.metrics.connections.get_or_create_owned(&KindLabels { kind: self.name });
        let refused = KindLabels { kind: "connections_max" };
        let (drained, idle_ends) = watch::channel(false);
        let mut failures = AcceptFailures::new(self.name);
        loop {
            let stream = tokio::select! {
                accepted = self.socket.accept() => accepted,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let (stream, address) = match stream {
                Ok(accepted) => accepted,
                Err(error) => {
                    failures.after(&error, &self.socket, &self.metrics).await;
                    continue;
                }
            };
            let Ok(permit) = room.clone().try_acquire_owned() else {
                self.metrics.refused.get_or_create(&refused).inc();
                drop(stream);
                continue;
            };
            // The thread's own event queue takes the socket over.
            let Ok(stream) = stream.into_std() else { continue };
            open.inc();
            let end = ShutdownSignals {
                watcher: graceful.watcher(),
                stop: stop.clone(),
                drained: idle_ends.clone(),
            };
            let served = self.connection(&builder, end, stream, address);
            let open = open.clone();
            let counted = async move {
                served.await;
                open.dec();
                drop(permit);
            };
            match &self.threads {
                Some(threads) => threads.spawn(counted),
                None => drop(tokio::spawn(counted)),
            }
        }
        drop((self.socket, idle_ends));
        let ended = end_connections(&self.config, self.version, graceful, &room, &drained);
        if tokio::time::timeout(self.config.shutdown_grace, ended).await.is_err() {
            tracing::warn!(listener = self.name, "connections were cut off at the end of the grace time");
        }
    }

    fn connection(
        &self,
        builder: &auto::Builder<TokioExecutor>,
        end: ShutdownSignals,
        stream: std::net::TcpStream,
        address: SocketAddr,
    ) -> impl Future<Output = ()> + Send + 'static {
        // Small answers must not wait for more bytes to fill a packet; failing to say so costs only latency.
        let _ = stream.set_nodelay(true);
        let watch = HeaderTimeout::default();
        let said_close = Arc::new(AtomicBool::new(false));
        let closing = CloseNotice { stop: end.stop, said_close: said_close.clone() };
        let answers = ConnectionService {
            service: self.service.clone(),
            address,
            http1: (self.version == HttpVersion::Http1).then(|| (watch.clone(), closing)),
        };
        let answer = hyper::service::service_fn(move |request| answers.answer(request));
        let (name, version, builder) = (self.name, self.version, builder.clone());
        let (watcher, mut drained, head_limit) = (end.watcher, end.drained, self.config.client_timeout);
        let frames = (version == HttpVersion::Http2).then(|| FrameCounter::new(&self.metrics));
        async move {
            let Ok(stream) = TcpStream::from_std(stream) else { return };
            // The parsers' own timers start with the first byte, and they know of a shutdown only from then on; a
            // client that never sends one is timed, and let go at a shutdown, here.
            let spoke = tokio::select! {
                spoke = tokio::time::timeout(IDLE_TIMEOUT, stream.readable()) => matches!(spoke, Ok(Ok(()))),
                _ = drained.wait_for(|drained| *drained) => false,
            };
            if !spoke {
                return;
            }
            let ended = match frames {
                None => {
                    let (stream, linger) = LingeringStream::new(stream);
                    let stream = TimedStream::new(stream, watch.clone(), WRITE_STALL_MAX);
                    let connection = builder.serve_connection(TokioIo::new(stream), answer).into_owned();
                    let ended = tokio::select! {
                        ended = watcher.watch(connection) => ended,
                        () = watch.overdue(head_limit) => Err("the client took too long to send its headers".into()),
                    };
                    if said_close.load(Ordering::Relaxed) {
                        linger.until_closed().await;
                    }
                    ended
                }
                Some(frames) => {
                    let (stream, flush) = WriteCoalescer::new(stream, WRITE_STALL_MAX, frames);
                    let connection = builder.serve_connection(TokioIo::new(stream), answer).into_owned();
                    let ended = flush.drive(watcher.watch(connection)).await;
                    ended.unwrap_or_else(|| Err("the client takes nothing".into()))
                }
            };
            if let Err(error) = ended {
                // A client that hangs up, sends garbage or is too slow is its own problem.
                tracing::debug!(listener = name, %address, %error, "connection ended");
            }
        }
    }
}

/// How a connection learns of a shutdown.
struct ShutdownSignals {
    /// Ends it, or after the answer that is on its way.
    watcher: Watcher,
    /// Set at the beginning of the shutdown.
    stop: watch::Receiver<bool>,
    /// Set once idle connections need not wait for a request any more.
    drained: watch::Receiver<bool>,
}

/// What answers of an HTTP/1.1 connection say about its end.
#[derive(Clone)]
struct CloseNotice {
    stop: watch::Receiver<bool>,
    said_close: Arc<AtomicBool>,
}

impl CloseNotice {
    /// Says in an answer's headers that the connection closes, if the server is stopping.
    fn tell(&self, headers: &mut http::HeaderMap) {
        if *self.stop.borrow() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            self.said_close.store(true, Ordering::Relaxed);
        }
    }
}

/// ConnectionService the requests of one connection.
struct ConnectionService<S> {
    service: S,
    address: SocketAddr,
    /// `None` for HTTP/2.
    http1: Option<(HeaderTimeout, CloseNotice)>,
}

impl<S, B> ConnectionService<S>
where
    S: tower::Service<http::Request<RequestBody>, Response = http::Response<B>> + Clone,
{
    fn answer(
        &self,
        request: http::Request<Incoming>,
    ) -> impl Future<Output = std::result::Result<http::Response<B>, S::Error>> + use<S, B> {
        let head = self.http1.as_ref().map(|(head, _)| head);
        let answering = head.map(HeaderTimeout::complete);
        let (mut parts, incoming) = request.into_parts();
        let (body, reclaim) = RequestBody::new(incoming, head.map(|_| &parts.headers));
        parts.extensions.insert(Peer(self.address));
        if let Some(head) = head {
            // For answers that begin while the body still comes: their handler goes on watching.
            parts.extensions.insert(head.clone());
        }
        let closing = self.http1.as_ref().map(|(_, closing)| closing.clone());
        let answer = tower::ServiceExt::oneshot(self.service.clone(), http::Request::from_parts(parts, body));
        async move {
            let mut response = answer.await;
            if let Ok(response) = &mut response {
                if let Some(reclaim) = reclaim {
                    reclaim.finish(response.headers_mut()).await;
                }
                if let Some(closing) = closing {
                    closing.tell(response.headers_mut());
                }
            }
            drop(answering);
            response
        }
    }
}

/// Ends the connections of a listener and waits for that.
///
/// An idle HTTP/1.1 connection cannot be told that it will be closed, and a request may be on its way on it. It is
/// kept for the drain time: the answer to that request says `connection: close`. HTTP/2 has GOAWAY for it.
async fn end_connections(
    config: &ListenerConfig,
    version: HttpVersion,
    graceful: GracefulShutdown,
    room: &Semaphore,
    drained: &watch::Sender<bool>,
) {
    let all = u32::try_from(config.connections_max).unwrap_or(u32::MAX);
    let drain = async {
        // All places are free once no connection is left. Neither outcome is an error.
        let _ = tokio::time::timeout(config.drain_time, room.acquire_many(all)).await;
        drained.send_replace(true);
    };
    match version {
        HttpVersion::Http1 => {
            drain.await;
            graceful.shutdown().await;
        }
        HttpVersion::Http2 => {
            tokio::join!(drain, graceful.shutdown());
        }
    }
}

/// What is done after an accept that failed.
struct AcceptFailures {
    name: &'static str,
    spare: Option<SpareDescriptor>,
    warnings: WarningLimiter,
}

impl AcceptFailures {
    fn new(name: &'static str) -> AcceptFailures {
        AcceptFailures { name, spare: SpareDescriptor::reserve().ok(), warnings: WarningLimiter::default() }
    }

    /// Closes the next connection if no descriptor is left for it, otherwise waits for a moment.
    async fn after(&mut self, error: &std::io::Error, listener: &TcpListener, metrics: &Metrics) {
        if let Some(count) = self.warnings.count(Instant::now()) {
            tracing::warn!(listener = self.name, %error, count, "connections could not be accepted");
        }
        if descriptors::exhausted(error)
            && let Some(spare) = &mut self.spare
            && spare.refuse(listener).await
        {
            metrics.refused.get_or_create(&KindLabels { kind: "descriptors" }).inc();
            return;
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

fn connection_builder(version: HttpVersion, config: &ListenerConfig) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX.max(400 << 10))
        .keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_header_list_size(HEADER_BYTES_MAX as u32)
        .max_concurrent_streams(config.requests_max.min(u32::MAX as usize) as u32)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        // No gRPC server sends it, and no client reads it.
        .auto_date_header(false);
    match version {
        HttpVersion::Http1 => builder.http1_only(),
        HttpVersion::Http2 => builder.http2_only(),
    }
}
