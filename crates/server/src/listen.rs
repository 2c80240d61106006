//! Accepting connections: a bound on how many, time limits on slow clients, a graceful end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use metrics::{KindLabels, Metrics};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::config::DoorConfig;
use crate::gather::Gather;
use crate::given::Given;
use crate::head_watch::{HeadWatch, Watched};
use crate::lanes::Lanes;

/// How long a connection may send nothing between requests (HTTP/1.1) before it is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// HTTP/2: the server pings a silent client this often and closes when there is no answer in time.
const PING_INTERVAL: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a client may take nothing of an answer before its connection is closed.
const WRITE_STALL_MAX: Duration = Duration::from_secs(60);
/// Pause after a failed accept (out of descriptors), so that the loop does not spin.
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
pub(crate) enum Wire {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 from the first byte, as gRPC has it.
    Http2,
}

/// One door: its listener, what answers, and its bounds.
pub(crate) struct Door<S> {
    pub(crate) name: &'static str,
    pub(crate) wire: Wire,
    pub(crate) listener: TcpListener,
    pub(crate) service: S,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) config: DoorConfig,
    /// Where connections run; `None` is the runtime that accepts them.
    pub(crate) lanes: Option<Arc<Lanes>>,
}

impl<S, B> Door<S>
where
    S: tower::Service<http::Request<Given>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    B: hyper::body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Accepts until told to stop, then lets connections finish what they have begun, at most for the grace time.
    pub(crate) async fn serve(self, mut stop: watch::Receiver<bool>) {
        let builder = Arc::new(connection_builder(self.wire, &self.config));
        let graceful = GracefulShutdown::new();
        let room = Arc::new(Semaphore::new(self.config.connections_max));
        let open = self.metrics.connections.get_or_create_owned(&KindLabels { kind: self.name });
        let refused = KindLabels { kind: "connections_max" };
        loop {
            let stream = tokio::select! {
                accepted = self.listener.accept() => accepted,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let (stream, address) = match stream {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(door = self.name, %error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(permit) = room.clone().try_acquire_owned() else {
                self.metrics.refused.get_or_create(&refused).inc();
                drop(stream);
                continue;
            };
            // The lane's own event queue takes the socket over.
            let Ok(stream) = stream.into_std() else { continue };
            open.inc();
            let served = self.connection(&builder, (&graceful, stop.clone()), stream, address);
            let open = open.clone();
            let counted = async move {
                served.await;
                open.dec();
                drop(permit);
            };
            match &self.lanes {
                Some(lanes) => lanes.spawn(counted),
                None => drop(tokio::spawn(counted)),
            }
        }
        drop(self.listener);
        if tokio::time::timeout(self.config.shutdown_grace, graceful.shutdown()).await.is_err() {
            tracing::warn!(door = self.name, "connections were cut off at the end of the grace time");
        }
    }

    fn connection(
        &self,
        builder: &auto::Builder<TokioExecutor>,
        (graceful, mut stop): (&GracefulShutdown, watch::Receiver<bool>),
        stream: std::net::TcpStream,
        address: SocketAddr,
    ) -> impl Future<Output = ()> + Send + 'static {
        // Small answers must not wait for more bytes to fill a packet; failing to say so costs only latency.
        let _ = stream.set_nodelay(true);
        let service = self.service.clone();
        let watch = HeadWatch::default();
        let head = (self.wire == Wire::Http1).then(|| watch.clone());
        let answer = hyper::service::service_fn(move |request: http::Request<Incoming>| {
            let answering = head.as_ref().map(HeadWatch::complete);
            let (mut parts, incoming) = request.into_parts();
            let (body, lender) = Given::new(incoming, head.as_ref().map(|_| &parts.headers));
            parts.extensions.insert(Peer(address));
            if let Some(head) = &head {
                // For answers that begin while the body still comes: their handler goes on watching.
                parts.extensions.insert(head.clone());
            }
            let request = http::Request::from_parts(parts, body);
            let answer = tower::ServiceExt::oneshot(service.clone(), request);
            async move {
                let mut response = answer.await;
                if let (Some(lender), Ok(response)) = (lender, &mut response) {
                    lender.settle(response.headers_mut()).await;
                }
                drop(answering);
                response
            }
        });
        let (name, wire, builder, watcher) = (self.name, self.wire, builder.clone(), graceful.watcher());
        let head_limit = self.config.client_timeout;
        async move {
            let Ok(stream) = TcpStream::from_std(stream) else { return };
            // The parsers' own timers start with the first byte, and they know of a shutdown only from then on; a
            // client that never sends one is timed, and let go at a shutdown, here.
            let spoke = tokio::select! {
                spoke = tokio::time::timeout(IDLE_TIMEOUT, stream.readable()) => matches!(spoke, Ok(Ok(()))),
                _ = stop.wait_for(|stop| *stop) => false,
            };
            if !spoke {
                return;
            }
            let ended = match wire {
                Wire::Http1 => {
                    let stream = Watched::new(stream, watch.clone(), WRITE_STALL_MAX);
                    let connection = builder.serve_connection(TokioIo::new(stream), answer).into_owned();
                    tokio::select! {
                        ended = watcher.watch(connection) => ended,
                        () = watch.overdue(head_limit) => {
                            tracing::debug!(door = name, %address, "the client took too long to send its headers");
                            return;
                        }
                    }
                }
                Wire::Http2 => {
                    let (stream, turn) = Gather::new(stream, WRITE_STALL_MAX);
                    let connection = builder.serve_connection(TokioIo::new(stream), answer).into_owned();
                    let ended = turn.drive(watcher.watch(connection)).await;
                    ended.unwrap_or_else(|| Err("the client takes nothing".into()))
                }
            };
            if let Err(error) = ended {
                // A client that hangs up, sends garbage or is too slow is its own problem.
                tracing::debug!(door = name, %address, %error, "connection ended");
            }
        }
    }
}

fn connection_builder(wire: Wire, config: &DoorConfig) -> auto::Builder<TokioExecutor> {
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
    match wire {
        Wire::Http1 => builder.http1_only(),
        Wire::Http2 => builder.http2_only(),
    }
}
