//! Hostile requests: control frames, half requests, foreign names, admin calls.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{NamedTensor, Tensor};
use bytes::Bytes;
use engine::fake::FakeEngine;
use engine::fake::publish::publish;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use metrics::KindLabels;
use protocol::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use protocol::inference::{self as pb};
use protocol::{Message, oip};
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::body::Body;
use transport::access::Secret;

use crate::config::Config;
use crate::loopback::{self, Loopback, WAIT_MAX, run};

const ECHO: &str = "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\n";
const INFER: &str = "/v2/models/echo/infer";
const LOAD: &str = "/v2/repository/models/echo/load";
const INPUT: &[u8] = br#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1,2]}]}"#;

fn served(dir: &Path, change: impl FnOnce(&mut Config)) -> Loopback {
    publish(&dir.join("models/echo/1"), ECHO, &[]).unwrap();
    let mut config = loopback::configuration(dir, &dir.join("models"));
    change(&mut config);
    Loopback::start(&config, Arc::new(FakeEngine::new()))
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// Opens an HTTP/2 connection of raw bytes, after both sides' SETTINGS.
fn raw_http2(served: &Loopback) -> TcpStream {
    let mut stream = TcpStream::connect(served.grpc).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&[frame(4, 0, 0, &[]), frame(4, 1, 0, &[])].concat()).unwrap();
    stream
}

/// Returns the kind and the payload of the next frame.
fn next_frame(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut header = [0; 9];
    stream.read_exact(&mut header).unwrap();
    let mut payload = vec![0; u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize];
    stream.read_exact(&mut payload).unwrap();
    (header[3], payload)
}

/// Encodes a header as HPACK without index or compression (RFC 7541 §6.2.2).
fn literal(name: &str, value: &str) -> Vec<u8> {
    [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

fn request() -> pb::ModelInferRequest {
    let x = NamedTensor::new("x", Tensor::from_vec(&[1][..], vec![1f32]).unwrap());
    oip::grpc::encode_request("echo", None, &[x], &[]).unwrap()
}

/// Makes a generated client.
async fn client(
    served: &Loopback,
) -> GrpcInferenceServiceClient<
    impl tower::Service<
        http::Request<Body>,
        Response = http::Response<hyper::body::Incoming>,
        Error = hyper::Error,
        Future = impl Future<Output = Result<http::Response<hyper::body::Incoming>, hyper::Error>>,
    > + Clone,
> {
    let stream = tokio::net::TcpStream::connect(served.grpc).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let send = tower::service_fn(move |request: http::Request<Body>| {
        let mut sender = sender.clone();
        async move { sender.send_request(request).await }
    });
    GrpcInferenceServiceClient::with_origin(
        send,
        format!("http://{}", served.grpc).parse().unwrap(),
    )
}

/// A client that acknowledges each small answer by two WINDOW_UPDATEs and measures by PING, as
/// gRPC's own do.
#[test]
fn a_busy_stream_may_send_control_frames() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let mut stream = raw_http2(&served);
    let headers = [
        literal(":method", "POST"),
        literal(":scheme", "http"),
        literal(":path", "/inference.GRPCInferenceService/ModelStreamInfer"),
        literal(":authority", "localhost"),
        literal("content-type", "application/grpc"),
        literal("te", "trailers"),
    ]
    .concat();
    stream.write_all(&frame(1, 4, 1, &headers)).unwrap();
    let message = request().encode_to_vec();
    let message = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let answer = |stream: &mut TcpStream| {
        while next_frame(stream).0 != 0 {}
    };
    let control = |bytes: u32| {
        let bytes = bytes.to_be_bytes();
        [frame(8, 0, 0, &bytes), frame(8, 0, 1, &bytes), frame(6, 0, 0, &[7; 8])].concat()
    };
    for _ in 0..1000 {
        stream.write_all(&frame(0, 0, 1, &message)).unwrap();
        answer(&mut stream);
        stream.write_all(&control(50)).unwrap();
    }
    assert!(!served.server.core.metrics.encode().contains("connections_ended_total{"));
}

/// Returns a body of which only the first byte arrives.
fn half_body() -> Body {
    let first = tokio_stream::iter([Ok::<_, std::convert::Infallible>(Frame::data(
        Bytes::from_static(&[0]),
    ))]);
    Body::new(StreamBody::new(first.chain(tokio_stream::pending())))
}

/// Opens an HTTP/2 connection to the gRPC port.
async fn handshake(
    served: &Loopback,
) -> (
    http2::SendRequest<Body>,
    http2::Connection<TokioIo<tokio::net::TcpStream>, Body, TokioExecutor>,
) {
    let stream = tokio::net::TcpStream::connect(served.grpc).await.unwrap();
    http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap()
}

fn call(served: &Loopback, body: Body) -> http::Request<Body> {
    let uri = format!("http://{}/inference.GRPCInferenceService/ModelInfer", served.grpc);
    let call = http::Request::post(uri)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    call.body(body).unwrap()
}

#[test]
fn half_calls_take_no_permits() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| {
        config.listeners.requests_max = 4;
        config.listeners.client_timeout = 10 * WAIT_MAX;
    });
    run(async {
        let (mut sender, connection) = handshake(&served).await;
        tokio::spawn(connection);
        let halves =
            [(); 4].map(|()| tokio::spawn(sender.send_request(call(&served, half_body()))));
        while served.server.requests.receive_permits.taken() < halves.len() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        client(&served).await.model_infer(request()).await.unwrap();
        assert!(halves.iter().all(|half| !half.is_finished()));
    });
}

#[test]
fn half_requests_take_no_permits() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| {
        config.listeners.requests_max = 1;
        config.listeners.client_timeout = 10 * WAIT_MAX;
    });
    let half = || {
        let mut stream = served.connect();
        write!(stream, "POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{")
            .unwrap();
        stream
    };
    let halves: Vec<TcpStream> = (0..40).map(|_| half()).collect();
    let open =
        served.server.core.metrics.connections.get_or_create_owned(&KindLabels { kind: "http" });
    until("all are accepted", || open.get() == 40);
    assert_eq!(served.ask("POST", INFER, "", INPUT).status, 200);
    drop(halves);
}

#[test]
fn half_calls_are_bounded_and_whole_ones_answered() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| {
        config.listeners.requests_max = 2;
        config.listeners.client_timeout = 10 * WAIT_MAX;
    });
    run(async {
        let (mut sender, connection) = handshake(&served).await;
        tokio::spawn(connection);
        let half =
            |sender: &mut http2::SendRequest<Body>| sender.send_request(call(&served, half_body()));
        let halves: Vec<_> = (0..2).map(|_| tokio::spawn(half(&mut sender))).collect();
        while served.server.requests.receive_permits.taken() < halves.len() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The other receive permits; a connection has at most two streams.
        let places: Vec<_> = (2..32)
            .map(|_| served.server.requests.receive_permits.try_acquire().unwrap())
            .collect();
        let (mut other, connection) = handshake(&served).await;
        tokio::spawn(connection);
        let refused = half(&mut other).await.unwrap();
        assert_eq!(refused.headers()["grpc-status"], "8");
        let kind = KindLabels { kind: "receiving_max" };
        assert_eq!(served.server.core.metrics.refused.get_or_create(&kind).get(), 1);
        client(&served).await.model_infer(request()).await.unwrap();
        drop(places);
    });
}

/// Reads an answer and returns its head in lower case, or `None` if the connection is closed
/// instead.
fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).ok()?;
    Some(head)
}

/// Returns the status of a request that calls the server `host`.
fn status_as(served: &Loopback, method: &str, path: &str, host: &str) -> String {
    let mut stream = served.connect();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    head(&mut stream).unwrap()["http/1.1 ".len()..][..3].to_owned()
}

const ROUTES: [(&str, &str); 14] = [
    ("GET", "/"),
    ("GET", "/metrics"),
    ("GET", "/v2"),
    ("GET", "/v2/health/live"),
    ("GET", "/v2/models/echo"),
    ("POST", INFER),
    ("POST", "/v2/repository/index"),
    ("GET", "/v1/models/echo"),
    ("POST", "/v1/models/echo:predict"),
    ("GET", "/v1/audio/voice/speakers"),
    ("GET", "/v1/images/photos"),
    ("GET", "/collections"),
    ("DELETE", "/collections/c"),
    ("GET", "/nothing"),
];

#[test]
fn a_private_server_answers_to_its_own_names_only() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    for (method, path) in ROUTES {
        assert_eq!(status_as(&served, method, path, "evil.example:8501"), "403", "{method} {path}");
        for own in ["localhost:8501", "127.0.0.1", "[::1]:1"] {
            assert_ne!(status_as(&served, method, path, own), "403", "{method} {path} {own}");
        }
    }
    // Two names, one of them foreign.
    let text = served.ask("GET", "/collections", "Host: evil.example\r\n", b"").text();
    assert!(text.contains("evil.example") && text.contains("--allowed-hosts"), "{text}");
}

#[test]
fn a_server_with_a_key_answers_to_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let keyed = served(dir.path(), |config| config.search.api_key = Some("s3cret".into()));
    // The name is accepted, and a key is required.
    assert_eq!(status_as(&keyed, "GET", "/v2", "mill.example"), "401");
    drop(keyed);
    let named = served(dir.path(), |config| {
        config.search.api_key = Some("s3cret".into());
        config.listeners.allowed_hosts = vec!["mill.example".into()];
    });
    assert_eq!(status_as(&named, "GET", "/v2", "mill.example"), "401");
    assert_eq!(status_as(&named, "GET", "/v2", "evil.example"), "403");
}

fn load_by_grpc(served: &Loopback, name: &'static str, value: &str) -> Code {
    let load = pb::RepositoryModelLoadRequest { model_name: "echo".into(), ..Default::default() };
    let mut request = tonic::Request::new(load);
    request.metadata_mut().insert(name, value.parse().unwrap());
    run(async {
        client(served)
            .await
            .repository_model_load(request)
            .await
            .map_or_else(|s| s.code(), |_| Code::Ok)
    })
}

#[test]
fn admin_calls_through_a_proxy_are_not_local() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let load = |headers: &str| served.ask("POST", LOAD, headers, b"");
    let in_url = served.ask("POST", &format!("{LOAD}?version=3"), "", b"");
    assert!(in_url.status == 400 && in_url.text().contains("version"), "{}", in_url.text());
    let misplaced = served.ask("POST", LOAD, "", br#"{"version":3}"#);
    assert!(misplaced.status == 400 && misplaced.text().contains("version"));
    assert_eq!(load("").status, 200);
    for header in [
        "Forwarded: for=192.0.2.1",
        "X-Forwarded-For: 192.0.2.1",
        "X-Real-IP: 192.0.2.1",
        "Via: 1.1 p",
    ] {
        let refused = load(&format!("{header}\r\n"));
        assert!(
            refused.status == 403 && refused.text().contains("--admin-key"),
            "{header} {}",
            refused.text()
        );
    }
    assert_eq!(load_by_grpc(&served, "x-other", "1"), Code::Ok);
    assert_eq!(load_by_grpc(&served, "x-forwarded-for", "192.0.2.1"), Code::PermissionDenied);
    let forwarded = "X-Forwarded-For: 192.0.2.1\r\n";
    let enrol = served.ask("PUT", "/v1/audio/voice/speakers/Eve", forwarded, b"");
    assert!(enrol.status == 403 && enrol.text().contains("enrolled"), "{}", enrol.text());
}

#[test]
fn admin_calls_must_show_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| {
        config.search.api_key = Some("s3cret".into());
        config.listeners.admin_key = Some(Secret("adm1n".into()));
        config.listeners.allow_remote_admin = true;
    });
    let load = |headers: &str| served.ask("POST", LOAD, headers, b"").status;
    let remote = "X-Forwarded-For: 192.0.2.1\r\n";
    assert_eq!((load(""), load("api-key: other\r\n")), (401, 401));
    assert_eq!((load("api-key: s3cret\r\n"), load("Authorization: Bearer adm1n\r\n")), (403, 200));
    assert_eq!((load(remote), load(&format!("{remote}api-key: s3cret\r\n"))), (401, 403));
    assert_eq!(load(&format!("{remote}api-key: adm1n\r\n")), 200);
    assert_eq!(load_by_grpc(&served, "x-other", "1"), Code::Unauthenticated);
    assert_eq!(load_by_grpc(&served, "authorization", "Bearer s3cret"), Code::PermissionDenied);
    assert_eq!(load_by_grpc(&served, "authorization", "Bearer adm1n"), Code::Ok);
    let enrol = served.ask("DELETE", "/v1/audio/voice/speakers/Eve", "api-key: s3cret\r\n", b"");
    assert!(enrol.status == 403 && enrol.text().contains("admin"), "{}", enrol.text());
}

#[test]
fn the_only_key_may_do_everything_on_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.search.api_key = Some("s3cret".into()));
    let load = |headers: &str| served.ask("POST", LOAD, headers, b"").status;
    assert_eq!((load(""), load("api-key: s3cret\r\n")), (401, 200));
    assert_eq!(load("api-key: s3cret\r\nX-Forwarded-For: 192.0.2.1\r\n"), 403);
    assert_eq!(load_by_grpc(&served, "authorization", "Bearer s3cret"), Code::Ok);
    for path in ["/", "/metrics", "/v2/models/echo", "/collections", "/events"] {
        assert_eq!(served.ask("GET", path, "", b"").status, 401, "{path}");
    }
    assert_eq!(served.ask("GET", "/v2/health/ready", "", b"").status, 200);
}
