//! gRPC clients on a Unix socket, whose `:authority` is the percent-encoded path of the socket.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use metrics::Metrics;
use millpond_transport::{
    ConnectionLimits, HttpVersion, ListenSocket, Listener, RequestBody, UnixSocket,
};
use tokio::sync::watch;

use super::{WAIT_MAX, frame};

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// Ends the headers, and the stream.
const WHOLE: u8 = 4 | 1;
const PADDED: u8 = 8;

/// Reads frames up to the first one that answers `stream`, and returns its payload, or the error
/// code of a reset.
fn body(client: &mut UnixStream, stream: u32) -> Result<Vec<u8>, u32> {
    loop {
        let mut header = [0; 9];
        client.read_exact(&mut header).unwrap();
        let [_, a, b, kind, _, id @ ..] = header;
        let mut payload = vec![0; usize::from(u16::from_be_bytes([a, b]))];
        client.read_exact(&mut payload).unwrap();
        match kind {
            0 if u32::from_be_bytes(id) == stream => return Ok(payload),
            3 => return Err(u32::from_be_bytes(payload.try_into().unwrap())),
            7 => panic!("the connection ends: {payload:?}"),
            _ => {}
        }
    }
}

fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[0x40, name.len() as u8], name, &[value.len() as u8], value].concat()
}

/// Answers each request with its authority.
fn listener(socket: UnixSocket, stop: watch::Receiver<bool>) -> impl Future<Output = ()> {
    Listener {
        name: "test",
        version: HttpVersion::Http2,
        socket: ListenSocket::Unix(socket),
        service: tower::service_fn(async |request: http::Request<RequestBody>| {
            let authority = request.uri().authority().map(|authority| authority.to_string());
            let body = Full::new(Bytes::from(authority.unwrap_or_default()));
            Ok::<_, Infallible>(http::Response::new(body))
        }),
        metrics: Arc::new(Metrics::default()),
        limits: ConnectionLimits {
            answer_window: millpond_transport::ANSWER_WINDOW,
            age_max: None,
            connections_max: 10,
            streams_max: 10,
            header_timeout: Duration::from_secs(10),
            shutdown_grace: Duration::from_secs(1),
            drain_time: Duration::ZERO,
        },
        threads: None,
        tls: None,
    }
    .serve(stop)
}

#[test]
fn the_encoded_path_of_the_socket_is_a_valid_authority() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("grpc.sock");
    let (_stop, stopped) = watch::channel(false);
    let entered = runtime.enter();
    runtime.spawn(listener(UnixSocket::bind(&path, 0o600).unwrap(), stopped));
    drop(entered);
    let mut client = UnixStream::connect(&path).unwrap();
    client.set_read_timeout(Some(WAIT_MAX)).unwrap();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    client.write_all(&frame(4, 0, 0, &[])).unwrap();

    // As C-core: literals that enter the dynamic table.
    let block =
        [literal(b":path", b"/a"), literal(b":authority", b"tmp%2Fgrpc.sock"), vec![0x83, 0x86]];
    client.write_all(&frame(HEADERS, WHOLE, 1, &block.concat())).unwrap();
    assert_eq!(body(&mut client, 1), Ok(b"tmp-2Fgrpc.sock".to_vec()));
    // Both headers refer to the dynamic table.
    client.write_all(&frame(HEADERS, WHOLE, 3, &[0x83, 0x86, 0xbe, 0xbf])).unwrap();
    assert_eq!(body(&mut client, 3), Ok(b"tmp-2Fgrpc.sock".to_vec()));
    // Huffman (RFC 7541 C.4.1), which becomes the first entry.
    let block = b"\x83\x86\xbf\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
    client.write_all(&frame(HEADERS, WHOLE, 5, block)).unwrap();
    assert_eq!(body(&mut client, 5), Ok(b"www.example.com".to_vec()));
    // All three entries are still found, with padding and a continuation, byte by byte.
    let first = frame(HEADERS, 1 | PADDED, 7, b"\x03\x83\x86\xc0\x41\x10tmp%2F%%%");
    let last = frame(CONTINUATION, 4, 7, b"my%20.sock");
    let bytes = [first, last].concat();
    let sent = bytes.iter().try_for_each(|byte| client.write_all(&[*byte]));
    sent.unwrap();
    assert_eq!(body(&mut client, 7), Ok(b"tmp-2Fmy-20.sock".to_vec()));
    // Malformed pseudo-headers still reset their stream (PROTOCOL_ERROR).
    client.write_all(&frame(HEADERS, WHOLE, 9, b"\x83\x86\xc1\x01\x03a b")).unwrap();
    assert_eq!(body(&mut client, 9), Err(1));
}
