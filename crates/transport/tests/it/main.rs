//! Listeners from the side of clients: floods of control frames, and the end of connections.
#![allow(clippy::unwrap_used, reason = "tests")]

mod streams;
mod tls;
mod unix_socket;

use std::convert::Infallible;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{Empty, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use metrics::{KindLabels, Metrics};
use millpond_transport::{ConnectionLimits, HttpVersion, ListenSocket, Listener, RequestBody};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::StreamExt;

const WAIT_MAX: Duration = Duration::from_secs(60);
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// Path whose handler panics.
const PANICS: &str = "/panics";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const LIMITS: ConnectionLimits = ConnectionLimits {
    answer_window: millpond_transport::ANSWER_WINDOW,
    age_max: None,
    connections_max: 1000,
    streams_max: 100,
    header_timeout: Duration::from_secs(10),
    shutdown_grace: WAIT_MAX,
    drain_time: WAIT_MAX,
};

/// A listener whose service answers every request but that for [`PANICS`], stopped when dropped.
struct Served {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    stop: watch::Sender<bool>,
    runtime: Option<Runtime>,
}

impl Served {
    fn start(version: HttpVersion, drain_time: Duration) -> Served {
        Served::start_within(version, ConnectionLimits { drain_time, ..LIMITS })
    }

    fn start_within(version: HttpVersion, limits: ConnectionLimits) -> Served {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let socket = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = socket.local_addr().unwrap();
        let metrics = Arc::new(Metrics::default());
        let (stop, stopped) = watch::channel(false);
        let listener = Listener {
            name: "test",
            version,
            socket: ListenSocket::Tcp(socket),
            service: tower::service_fn(async |request: http::Request<RequestBody>| {
                assert_ne!(request.uri().path(), PANICS, "told to panic");
                Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from_static(b"here"))))
            }),
            metrics: metrics.clone(),
            limits,
            threads: None,
            tls: None,
        };
        runtime.spawn(listener.serve(stopped));
        Served { address, metrics, stop, runtime: Some(runtime) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream
    }

    fn open_connections(&self) -> i64 {
        self.metrics.connections.get_or_create_owned(&KindLabels { kind: "test" }).get()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.runtime.take().unwrap().shutdown_timeout(Duration::from_secs(1));
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Reads an answer and returns its head in lower case, or `None` if the connection is closed.
fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    stream.read_exact(&mut [0; 4]).ok()?;
    Some(String::from_utf8_lossy(&head).to_ascii_lowercase())
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

#[test]
fn floods_of_control_frames_end_their_connection() {
    let served = Served::start(HttpVersion::Http2, WAIT_MAX);
    let increment = 1u32.to_be_bytes();
    let floods = [
        ("settings", frame(4, 0, 0, &[])),
        ("priority", frame(2, 0, 1, &[0, 0, 0, 0, 7])),
        ("window_update", frame(8, 0, 0, &increment)),
        ("ping", frame(6, 0, 0, &[0; 8])),
        ("ping_ack", frame(6, 1, 0, &[0; 8])),
        ("unknown", frame(0xfa, 0, 0, &[0; 3])),
    ];
    for (kind, control) in floods {
        let mut stream = served.connect();
        stream.write_all(PREFACE).unwrap();
        stream.write_all(&[frame(4, 0, 0, &[]), frame(4, 1, 0, &[])].concat()).unwrap();
        stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
        let some = control.repeat(100);
        let written = (0..1000).take_while(|_| stream.write_all(&some).is_ok()).count();
        // SETTINGS that acknowledge nothing are not here: h2 ends their connection by itself.
        let ended = served.metrics.connections_ended.get_or_create_owned(&KindLabels { kind });
        until(kind, || ended.get() == 1);
        let mut rest = Vec::new();
        if let Err(error) = stream.read_to_end(&mut rest) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{kind} after {written}");
        }
    }
    until("all of them are closed", || served.open_connections() == 0);
    let answer = served.runtime.as_ref().unwrap().block_on(async {
        let stream = TokioIo::new(tokio::net::TcpStream::connect(served.address).await.unwrap());
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::get("http://localhost/").body(Empty::<Bytes>::new()).unwrap();
        sender.send_request(request).await.unwrap()
    });
    assert_eq!(answer.status(), 200);
}

#[test]
fn further_connections_are_closed_until_one_ends() {
    let limits = ConnectionLimits { connections_max: 2, ..LIMITS };
    let served = Served::start_within(HttpVersion::Http1, limits);
    let refused = KindLabels { kind: "connections_max" };
    let refused = served.metrics.refused.get_or_create_owned(&refused);
    let (mut first, mut second) = (served.connect(), served.connect());
    for stream in [&mut first, &mut second] {
        stream.write_all(GET).unwrap();
        assert!(head(stream).unwrap().starts_with("http/1.1 200"));
    }
    assert_eq!(refused.get(), 0);
    let mut further = served.connect();
    if let Err(error) = further.read_to_end(&mut Vec::new()) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    assert_eq!((refused.get(), served.open_connections()), (1, 2));
    drop(first);
    until("its place is free", || {
        let mut next = served.connect();
        next.write_all(GET).is_ok() && head(&mut next).is_some()
    });
    second.write_all(GET).unwrap();
    assert!(head(&mut second).unwrap().starts_with("http/1.1 200"));
}

#[test]
fn a_connection_ends_at_its_age() {
    let limits = ConnectionLimits { age_max: Some(Duration::from_secs(2)), ..LIMITS };
    let served = Served::start_within(HttpVersion::Http2, limits);
    served.runtime.as_ref().unwrap().block_on(async {
        let stream = TokioIo::new(tokio::net::TcpStream::connect(served.address).await.unwrap());
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let request = http::Request::get("http://localhost/").body(Empty::<Bytes>::new()).unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
        let ended = tokio::time::timeout(WAIT_MAX, connection).await;
        assert!(ended.is_ok(), "the connection does not end");
    });
    until("it is closed", || served.open_connections() == 0);
}

#[test]
fn an_unfinished_preface_ends_its_connection() {
    let limits = ConnectionLimits { header_timeout: Duration::from_secs(1), ..LIMITS };
    let served = Served::start_within(HttpVersion::Http2, limits);
    let mut whole = served.connect();
    whole.write_all(PREFACE).unwrap();
    whole.write_all(&frame(4, 0, 0, &[])).unwrap();
    let mut half = served.connect();
    half.write_all(b"PRI * HTTP/2.0\r\n").unwrap();
    let mut rest = Vec::new();
    // The end may come as a reset.
    let _ = half.read_to_end(&mut rest);
    until("one is closed", || served.open_connections() == 1);
    // The other connection is still open.
    whole.write_all(&frame(6, 0, 0, &[7; 8])).unwrap();
    let mut received = Vec::new();
    let pong = frame(6, 1, 0, &[7; 8]);
    while !received.ends_with(&pong) {
        let mut byte = [0];
        whole.read_exact(&mut byte).unwrap();
        received.push(byte[0]);
    }
}

#[test]
fn idle_connections_are_kept_for_the_drain_time() {
    let served = Served::start(HttpVersion::Http1, WAIT_MAX);
    let (mut idle, mut silent) = (served.connect(), served.connect());
    idle.write_all(GET).unwrap();
    assert!(!head(&mut idle).unwrap().contains("connection: close"));
    until("both are accepted", || served.open_connections() == 2);
    served.stop.send_replace(true);
    until("no new connections", || TcpStream::connect(served.address).is_err());
    for stream in [&mut idle, &mut silent] {
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.write_all(GET).unwrap();
        let answer = head(stream).unwrap();
        assert!(
            answer.starts_with("http/1.1 200") && answer.contains("connection: close"),
            "{answer}"
        );
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn idle_connections_end_after_the_drain_time() {
    let served = Served::start(HttpVersion::Http1, Duration::from_millis(10));
    let (mut idle, mut silent) = (served.connect(), served.connect());
    idle.write_all(GET).unwrap();
    assert!(head(&mut idle).is_some());
    served.stop.send_replace(true);
    assert_eq!((idle.read(&mut [0]).unwrap(), silent.read(&mut [0]).unwrap_or(0)), (0, 0));
}

#[test]
fn a_shutdown_loses_no_request_of_a_busy_connection() {
    let served = Served::start(HttpVersion::Http1, WAIT_MAX);
    let answered = AtomicUsize::new(0);
    let lost = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                let mut stream = served.connect();
                let answered = &answered;
                scope.spawn(move || {
                    loop {
                        let sent = stream.write_all(GET);
                        match head(&mut stream).filter(|_| sent.is_ok()) {
                            None => return 1,
                            Some(answer) if answer.contains("connection: close") => return 0,
                            Some(_) => answered.fetch_add(1, Ordering::Relaxed),
                        };
                    }
                })
            })
            .collect();
        until("connections are busy", || answered.load(Ordering::Relaxed) > 500);
        served.stop.send_replace(true);
        clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>()
    });
    assert_eq!(lost, 0);
    until("all are closed", || served.open_connections() == 0);
}

#[test]
fn a_handler_that_panics_leaves_no_connection_counted() {
    let served = Served::start(HttpVersion::Http1, WAIT_MAX);
    let mut stream = served.connect();
    stream
        .write_all(format!("GET {PANICS} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())
        .unwrap();
    assert_eq!(head(&mut stream), None);
    until("it is closed", || served.open_connections() == 0);
}

#[test]
fn a_client_with_a_long_body_reads_the_refusal_of_its_head() {
    let served = Served::start(HttpVersion::Http1, WAIT_MAX);
    let mut stream = served.connect();
    stream.write_all(b"POST /not a path HTTP/1.1\r\nContent-Length: 16777216\r\n\r\n").unwrap();
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..16 {
        stream.write_all(&piece).unwrap();
    }
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
}

/// The next request arrives long before the end of the answer, and then waits longer than its head
/// may take.
#[test]
fn a_pipelined_request_breaks_off_no_answer() {
    const PIECES: usize = 8;
    let header_timeout = Duration::from_millis(200);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let socket = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = socket.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let (written, both_written) = watch::channel(false);
    let listener = Listener {
        name: "test",
        version: HttpVersion::Http1,
        socket: ListenSocket::Tcp(socket),
        service: tower::service_fn(move |_: http::Request<RequestBody>| {
            let both_written = both_written.clone();
            let pieces = tokio_stream::iter(0..PIECES).then(move |piece| {
                let mut both_written = both_written.clone();
                async move {
                    // The first piece shows the client that the answer has begun.
                    if piece > 0 {
                        drop(both_written.wait_for(|written| *written).await);
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"piece")))
                }
            });
            let answer = http::Response::new(StreamBody::new(Box::pin(pieces)));
            std::future::ready(Ok::<_, Infallible>(answer))
        }),
        metrics: Arc::new(Metrics::default()),
        limits: ConnectionLimits { header_timeout, ..LIMITS },
        threads: None,
        tls: None,
    };
    runtime.spawn(listener.serve(stopped));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.write_all(GET).unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    let last = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(last).unwrap();
    written.send_replace(true);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    let rest = String::from_utf8(rest).unwrap();
    assert_eq!(rest.matches("piece").count(), 2 * PIECES, "{rest}");
    stop.send_replace(true);
    runtime.shutdown_timeout(Duration::from_secs(1));
}
