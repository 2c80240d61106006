//! Accepts connections within a bound, limits slow clients, and ends gracefully.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::{HeaderValue, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown, Watcher};
use metrics::{KindLabels, LevelGauge, Metrics};
use os::WarningLimiter;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::connection_threads::ConnectionThreads;
use crate::control_frames::FrameCounter;
use crate::descriptors::{self, SpareDescriptor};
use crate::header_timeout::{AnswerBody, HeaderTimeout, PrefaceTimeout, TimedStream};
use crate::http_version::HttpVersion;
use crate::linger::{LingerLimits, LingeringStream};
use crate::opening::{ConnectionOpener, OpeningLimits};
use crate::peer::Peer;
use crate::request_body::RequestBody;
use crate::response_body::ANSWER_WINDOW;
use crate::socket::ListenSocket;
use crate::socket_authority::AuthorityPatcher;
use crate::tls::TlsIdentity;
use crate::unread_answers::{StreamAnswers, UnreadAnswers, UnreadCheck};
use crate::write_coalescer::{ConnectionFrames, Flush, WriteCoalescer};

/// Longest silence of an HTTP/1.1 connection between requests.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// Time between two pings of a silent HTTP/2 client.
const PING_INTERVAL: Duration = Duration::from_secs(60);
/// Longest wait for the answer to a ping before the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time in which a client reads nothing of an answer before its connection is closed.
const WRITE_STALL_MAX: Duration = Duration::from_secs(75);
// The buffers of the system take the first window of a large answer. So the check of the second one
// must end before the connection is closed, or no metric counts the slow reader.
const _: () = assert!(WRITE_STALL_MAX.as_secs() > 2 * ANSWER_WINDOW.as_secs());
/// Pause after a failed accept, which keeps the loop from spinning.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Maximum bytes that an HTTP/1.1 connection buffers, and so of the headers of a request.
const HTTP1_BUFFER_BYTES_MAX: usize = 400 << 10;
/// Maximum bytes of the headers of an HTTP/2 request.
const HTTP2_HEADER_BYTES_MAX: u32 = 64 << 10;
/// Flow-control window of an HTTP/2 stream in bytes. A tensor of some megabytes then needs no round
/// trips.
pub(crate) const STREAM_WINDOW: u32 = 4 << 20;
/// Flow-control window of an HTTP/2 connection in bytes.
///
/// h2 closes a connection that has too many small DATA frames unread. A frame of fewer than
/// `COUNTED_FRAME_BYTES` counts its difference to that size, and the limit is half of this window.
/// hyper cannot set the limit. A client that sends requests to a stream faster than their model
/// runs leaves a whole `STREAM_WINDOW` of them unread, usually one in each frame. If its requests
/// have `SMALL_REQUEST_BYTES` or more, one such stream stays within the limit. Several streams of a
/// connection share it: about 82,000 unread frames of any size stay within it.
const CONNECTION_WINDOW: u32 = 40 << 20;
/// Size below which h2 counts a DATA frame as small.
const COUNTED_FRAME_BYTES: u32 = 256;
/// Size of a small request to a model, with its prefix in gRPC: one value, and short names.
const SMALL_REQUEST_BYTES: u32 = 45;
const _: () = assert!(
    STREAM_WINDOW / SMALL_REQUEST_BYTES * (COUNTED_FRAME_BYTES - SMALL_REQUEST_BYTES)
        <= CONNECTION_WINDOW / 2
);
/// Maximum streams of an HTTP/2 connection that the client has reset before the server took them,
/// and that still wait. Above it the connection is closed, with all its other calls.
///
/// Calls with short deadlines are cancelled together if the server or its machine pauses. Their
/// RST_STREAM frames are then read with their heads. The default of h2, 20, ended such connections.
/// This is the default of `--max-requests`. Heads of 64 KiB then take no more memory than those of
/// the streams that may be open.
const RESET_STREAMS_MAX: usize = 1024;
/// Maximum frames for streams that the server has reset, over the life of an HTTP/2 connection,
/// beyond the streams that h2 remembers. Above it the connection is closed, with all its calls.
///
/// h2 keeps a small entry for each of them until its own RST_STREAM is sent, so this bounds the
/// memory. Few of them arrive, because unread bodies are discarded first. h2's default is 1024.
const LATE_FRAMES_MAX: usize = 16 << 10;

/// Limits of the connections of one listener.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Maximum open connections. A further one is closed at once.
    pub connections_max: usize,
    /// Maximum streams of an HTTP/2 connection.
    pub streams_max: usize,
    /// Longest time for the headers of a request, from their first byte, and for the preface of an
    /// HTTP/2 connection.
    pub header_timeout: Duration,
    /// Longest wait for running requests at shutdown.
    pub shutdown_grace: Duration,
    /// Part of that time in which idle HTTP/1.1 connections stay open for a request in flight.
    pub drain_time: Duration,
    /// Time after which an HTTP/2 connection with unread answers is closed if the client reads next
    /// to nothing.
    pub answer_window: Duration,
    /// Age at which an HTTP/2 connection gets no new requests, changed by up to a tenth. Its client
    /// opens another one, which a balancer may send to another server. `None` is no limit.
    pub age_max: Option<Duration>,
}

impl ConnectionLimits {
    /// Returns how many streams of a connection may be open only because their unread body is
    /// discarded. The other half stays free for calls.
    fn discards_max(&self) -> usize {
        self.streams_max.div_ceil(2).min(Semaphore::MAX_PERMITS)
    }
}

/// A listening socket with its service and its limits.
pub struct Listener<S> {
    /// Name in logs and in the metric of connections.
    pub name: &'static str,
    /// Version of HTTP that all its connections speak.
    pub version: HttpVersion,
    /// The bound socket.
    pub socket: ListenSocket,
    /// Service that answers the requests.
    pub service: S,
    /// Counters of connections and refusals.
    pub metrics: Arc<Metrics>,
    /// Limits of the number of connections and of the time for each step.
    pub limits: ConnectionLimits,
    /// Threads that run the connections. `None` is the runtime that accepts them.
    pub threads: Option<Arc<ConnectionThreads>>,
    /// Certificates of encrypted connections. `None` is plain text.
    pub tls: Option<Arc<TlsIdentity>>,
}

impl<S, B> Listener<S>
where
    S: tower::Service<http::Request<RequestBody>, Response = http::Response<B>>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    B: hyper::body::Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Accepts connections until `stop` is true. Then lets running requests finish within the grace
    /// time.
    pub async fn serve(self, mut stop: watch::Receiver<bool>) {
        let builder = Arc::new(connection_builder(self.version, self.limits));
        let graceful = GracefulShutdown::new();
        let room = Arc::new(Semaphore::new(self.limits.connections_max));
        let open = self.metrics.connections.get_or_create_owned(&KindLabels { kind: self.name });
        let refused = KindLabels { kind: "connections_max" };
        let (drained, idle_ends) = watch::channel(false);
        let mut failures = AcceptFailures::new(self.name);
        let opener =
            ConnectionOpener::new(self.name, self.version, self.tls.clone(), self.metrics.clone());
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    failures.handle(&error, &self.socket, &self.metrics).await;
                    continue;
                }
            };
            let Ok(permit) = room.clone().try_acquire_owned() else {
                self.metrics.refused.get_or_create(&refused).inc();
                drop(stream);
                continue;
            };
            let counted = OpenConnection::begin(&open, permit);
            let shutdown = ShutdownSignals {
                watcher: graceful.watcher(),
                stop: stop.clone(),
                drained: idle_ends.clone(),
            };
            let client = AcceptedConnection { stream, peer, opener: opener.clone() };
            let served = self.connection(&builder, shutdown, client);
            let connection = async move {
                served.await;
                drop(counted);
            };
            match &self.threads {
                Some(threads) => threads.spawn(connection),
                None => drop(tokio::spawn(connection)),
            }
        }
        drop(self.socket);
        drop(idle_ends);
        let ended = end_connections(self.limits, self.version, graceful, &room, &drained);
        if tokio::time::timeout(self.limits.shutdown_grace, ended).await.is_err() {
            tracing::warn!(
                listener = self.name,
                "connections were cut off at the end of the grace time"
            );
        }
    }

    /// Returns the work of one connection. It is opened, and then serves requests until the client,
    /// a limit or the shutdown ends it.
    fn connection(
        &self,
        builder: &auto::Builder<TokioExecutor>,
        shutdown: ShutdownSignals,
        client: AcceptedConnection,
    ) -> impl Future<Output = ()> + Send + 'static {
        let AcceptedConnection { stream, peer, opener } = client;
        // Small answers must not wait for more bytes to fill a packet. A failure costs only
        // latency, and a Unix socket has no packets to fill.
        let _ = stream.set_nodelay(true);
        let header_timeout = HeaderTimeout::default();
        let said_close = Arc::new(AtomicBool::new(false));
        let closing = CloseNotice { stop: shutdown.stop.clone(), said_close: said_close.clone() };
        let unread = (self.version == HttpVersion::Http2)
            .then(|| UnreadAnswers::new(self.limits.answer_window, &self.metrics));
        let answers = ConnectionService {
            service: self.service.clone(),
            peer,
            unread: unread.clone(),
            discards: Arc::new(Semaphore::new(self.limits.discards_max())),
            http1: (self.version == HttpVersion::Http1)
                .then(|| Http1Connection { header_timeout: header_timeout.clone(), closing }),
        };
        let answer = hyper::service::service_fn(move |request| answers.answer(request));
        let name = self.name;
        let age_max = self.limits.age_max.map(jittered);
        let header_limit = self.limits.header_timeout;
        let opening = OpeningLimits { idle: IDLE_TIMEOUT, handshake: header_limit };
        let builder = builder.clone();
        let ShutdownSignals { watcher, stop, mut drained } = shutdown;
        let frames = unread.map(|unread| self.frames(unread, header_timeout.clone()));
        async move {
            let Ok(stream) = TcpStream::from_std(stream) else { return };
            let opened = opener.open(stream, peer, opening, &mut drained).await;
            let Some(stream) = opened else { return };
            let ended = match frames {
                None => {
                    let (stream, linger) = LingeringStream::new(stream);
                    let stream = TimedStream::new(stream, header_timeout.clone(), WRITE_STALL_MAX);
                    let connection =
                        builder.serve_connection(TokioIo::new(stream), answer).into_owned();
                    let ended = tokio::select! {
                        ended = watcher.watch(connection) => ended,
                        () = header_timeout.elapsed(header_limit) => {
                            Err("the client took too long to send its headers".into())
                        }
                    };
                    if said_close.load(Ordering::Relaxed) || has_refused_head(&ended) {
                        let limits = LingerLimits::after_close(*stop.borrow());
                        linger.until_closed(limits).await;
                    }
                    ended
                }
                Some(frames) => {
                    let check = UnreadCheck::new(frames.unread.clone());
                    let (stream, flush) = WriteCoalescer::new(stream, WRITE_STALL_MAX, frames);
                    let connection =
                        builder.serve_connection(TokioIo::new(stream), answer).into_owned();
                    let connection = until_age(connection, watcher, stop, age_max);
                    drive_http2(flush, connection, check, header_timeout, header_limit).await
                }
            };
            if let Err(error) = ended {
                // A client that disconnects, sends invalid bytes or is too slow is not a failure of
                // the server.
                tracing::debug!(listener = name, %peer, %error, "connection ended");
            }
        }
    }

    fn frames(&self, unread: Arc<UnreadAnswers>, preface: HeaderTimeout) -> ConnectionFrames {
        ConnectionFrames {
            unread,
            counter: FrameCounter::new(&self.metrics),
            authority: self.socket.tcp().is_none().then(AuthorityPatcher::new),
            preface: PrefaceTimeout::new(preface),
        }
    }
}

type ConnectionEnd = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Returns true if hyper has refused the head of a request by itself, with 400, 414 or 431.
fn has_refused_head(ended: &ConnectionEnd) -> bool {
    let error = ended.as_ref().err().and_then(|error| error.downcast_ref::<hyper::Error>());
    error.is_some_and(hyper::Error::is_parse)
}

/// Runs an HTTP/2 connection until it ends, or until its client is too slow. The preface may take
/// `header_limit`.
async fn drive_http2(
    flush: Flush,
    connection: impl Future<Output = ConnectionEnd>,
    unread: UnreadCheck,
    header_timeout: HeaderTimeout,
    header_limit: Duration,
) -> ConnectionEnd {
    tokio::select! {
        ended = flush.drive(connection, unread) => match ended {
            Some(ended) => ended,
            None => Err("the client does not read its answers".into()),
        },
        () = header_timeout.elapsed(header_limit) => {
            Err("the client took too long to send the preface of HTTP/2".into())
        }
    }
}

/// Runs an HTTP/2 connection until it ends. At the shutdown, and at the age `age_max`, its client
/// gets GOAWAY. Running requests are answered, and new ones need another connection.
async fn until_age<C: GracefulConnection>(
    connection: C,
    watcher: Watcher,
    mut stop: watch::Receiver<bool>,
    age_max: Option<Duration>,
) -> std::result::Result<(), C::Error> {
    let Some(age_max) = age_max else { return watcher.watch(connection).await };
    let own = GracefulShutdown::new();
    let connection = own.watch(connection);
    let goes_away = async {
        // Either outcome ends the connection.
        let _ = tokio::time::timeout(age_max, stop.wait_for(|stop| *stop)).await;
        own.shutdown().await;
        std::future::pending::<std::result::Result<(), C::Error>>().await
    };
    // The shutdown of the listener waits for `watcher`, which lives until the end of this function.
    tokio::select! {
        ended = connection => ended,
        ended = goes_away => ended,
    }
}

/// Returns a time that differs from `age` by up to a tenth, as in gRPC. Connections that began
/// together then do not end together.
fn jittered(age: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    age.mul_f64(0.9 + 0.2 * (random as f64 / u64::MAX as f64))
}

/// Guard that counts an open connection of a listener, also if its handler panics.
struct OpenConnection {
    open: LevelGauge,
    _permit: OwnedSemaphorePermit,
}

impl OpenConnection {
    fn begin(open: &LevelGauge, permit: OwnedSemaphorePermit) -> OpenConnection {
        open.inc();
        OpenConnection { open: open.clone(), _permit: permit }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// A connection that was accepted and is not open yet.
struct AcceptedConnection {
    stream: std::net::TcpStream,
    peer: Peer,
    opener: ConnectionOpener,
}

/// Signals of a shutdown to one connection.
struct ShutdownSignals {
    /// Signal that ends an idle connection, or a busy one after its answer.
    watcher: Watcher,
    /// True from the beginning of the shutdown.
    stop: watch::Receiver<bool>,
    /// True once idle connections no longer wait for a request.
    drained: watch::Receiver<bool>,
}

/// Marker that announces the end of an HTTP/1.1 connection in its answers.
#[derive(Clone)]
struct CloseNotice {
    stop: watch::Receiver<bool>,
    /// True once an answer has announced the end.
    said_close: Arc<AtomicBool>,
}

impl CloseNotice {
    /// Adds `connection: close` to an answer if the server is stopping. Records an answer that has
    /// this header, also one that refuses a body.
    fn announce(&self, headers: &mut http::HeaderMap) {
        if *self.stop.borrow() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if headers.get(header::CONNECTION).is_some_and(|value| value == "close") {
            self.said_close.store(true, Ordering::Relaxed);
        }
    }
}

/// State that only HTTP/1.1 connections need.
#[derive(Clone)]
struct Http1Connection {
    header_timeout: HeaderTimeout,
    closing: CloseNotice,
}

/// Service for the requests of one connection.
struct ConnectionService<S> {
    service: S,
    peer: Peer,
    /// `None` for HTTP/1.1.
    unread: Option<Arc<UnreadAnswers>>,
    /// Permits for the tasks that discard unread bodies of HTTP/2.
    discards: Arc<Semaphore>,
    /// `None` for HTTP/2.
    http1: Option<Http1Connection>,
}

impl<S, B> ConnectionService<S>
where
    S: tower::Service<http::Request<RequestBody>, Response = http::Response<B>> + Clone,
{
    /// Answers a request. Wraps its body, runs the service, and wraps the body of the answer.
    fn answer(
        &self,
        request: http::Request<Incoming>,
    ) -> impl Future<Output = std::result::Result<http::Response<AnswerBody<B>>, S::Error>> + use<S, B>
    {
        let http1 = self.http1.clone();
        let unread = self.unread.clone();
        let answering = http1.as_ref().map(|http1| http1.header_timeout.complete());
        let (mut parts, incoming) = request.into_parts();
        let (body, reclaim) = if http1.is_some() {
            RequestBody::of_http1(incoming, &parts.headers)
        } else {
            (RequestBody::of_stream(incoming, self.discards.clone()), None)
        };
        parts.extensions.insert(self.peer);
        if let Some(unread) = &unread {
            parts.extensions.insert(StreamAnswers(unread.clone()));
        }
        if let Some(http1) = &http1 {
            // A handler that answers while the body still arrives keeps a guard of its own.
            parts.extensions.insert(http1.header_timeout.clone());
        }
        let answer = tower::ServiceExt::oneshot(
            self.service.clone(),
            http::Request::from_parts(parts, body),
        );
        async move {
            let mut response = answer.await;
            if let Ok(response) = &mut response {
                if let Some(reclaim) = reclaim {
                    reclaim.finish(response.headers_mut()).await;
                }
                if let Some(unread) = unread
                    && let Some(held) = response.extensions_mut().remove()
                {
                    unread.add(held);
                }
                if let Some(http1) = http1 {
                    http1.closing.announce(response.headers_mut());
                }
            }
            response.map(|response| response.map(|body| AnswerBody::new(body, answering)))
        }
    }
}

/// Ends the connections of a listener and waits until they are closed.
///
/// The server cannot announce the end of an idle HTTP/1.1 connection, and a request may be in
/// flight. The connection is kept for the drain time, and the answer to that request says
/// `connection: close`. HTTP/2 has GOAWAY instead.
async fn end_connections(
    limits: ConnectionLimits,
    version: HttpVersion,
    graceful: GracefulShutdown,
    room: &Semaphore,
    drained: &watch::Sender<bool>,
) {
    let all = u32::try_from(limits.connections_max).unwrap_or(u32::MAX);
    let drain = async {
        // All permits are free once no connection is left. Neither outcome is an error.
        let _ = tokio::time::timeout(limits.drain_time, room.acquire_many(all)).await;
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

/// Handles accepts that failed.
struct AcceptFailures {
    listener: &'static str,
    spare: Option<SpareDescriptor>,
    warnings: WarningLimiter,
}

impl AcceptFailures {
    fn new(name: &'static str) -> AcceptFailures {
        AcceptFailures {
            listener: name,
            spare: SpareDescriptor::reserve().ok(),
            warnings: WarningLimiter::default(),
        }
    }

    /// Logs an accept that failed. Closes the next connection if no descriptor is left for it,
    /// otherwise waits for [`ACCEPT_PAUSE`].
    async fn handle(&mut self, error: &std::io::Error, socket: &ListenSocket, metrics: &Metrics) {
        if let Some(count) = self.warnings.count(Instant::now()) {
            let listener = self.listener;
            tracing::warn!(listener, %error, count, "connections could not be accepted");
        }
        if descriptors::exhausted(error)
            && let Some(spare) = &mut self.spare
            && let Some(listener) = socket.tcp()
            && spare.refuse(listener).await
        {
            metrics.refused.get_or_create(&KindLabels { kind: "descriptors" }).inc();
            return;
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// Returns the settings of connections of one HTTP version: timeouts, windows, and maximum sizes.
fn connection_builder(
    version: HttpVersion,
    limits: ConnectionLimits,
) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(HTTP1_BUFFER_BYTES_MAX)
        .keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_header_list_size(HTTP2_HEADER_BYTES_MAX)
        .max_concurrent_streams(limits.streams_max.min(u32::MAX as usize) as u32)
        .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
        .max_local_error_reset_streams(LATE_FRAMES_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        // No gRPC server sends it, and no client reads it.
        .auto_date_header(false);
    match version {
        HttpVersion::Http1 => builder.http1_only(),
        HttpVersion::Http2 => builder.http2_only(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_without_a_descriptor_are_counted() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = ListenSocket::Tcp(listener);
        let metrics = Metrics::default();
        let refused = metrics.refused.get_or_create_owned(&KindLabels { kind: "descriptors" });
        let mut failures = AcceptFailures::new("test");
        // EMFILE and ECONNRESET.
        let [exhausted, reset] = [24, 104].map(std::io::Error::from_raw_os_error);
        failures.handle(&exhausted, &socket, &metrics).await;
        assert_eq!(refused.get(), 0, "no connection waits");
        let _first = TcpStream::connect(address).await.unwrap();
        let counted = async {
            while refused.get() == 0 {
                failures.handle(&exhausted, &socket, &metrics).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), counted).await.unwrap();
        let _second = TcpStream::connect(address).await.unwrap();
        failures.handle(&reset, &socket, &metrics).await;
        assert_eq!(refused.get(), 1, "another error refuses no connection");
    }
}
