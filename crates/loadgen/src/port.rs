//! Detection of a port's protocol, after a client of the wrong protocol got no answer from it.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Longest wait for a connection, and for each piece of an answer.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Preface of an HTTP/2 client, with empty settings.
const HTTP2_PREFACE: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
/// Offset of the type in an HTTP/2 frame.
const TYPE_AT: usize = 3;
/// Type of a SETTINGS frame, with which an HTTP/2 server begins.
const SETTINGS: u8 = 4;
/// Type of a GOAWAY frame.
const GO_AWAY: u8 = 7;
/// Bytes of a GOAWAY frame up to its error code, which it includes.
const GO_AWAY_BYTES: usize = 17;
/// Offset of the last byte of the error code in a GOAWAY frame.
const GO_AWAY_CODE_AT: usize = 16;
/// Code of a server that takes only encrypted connections.
const INADEQUATE_SECURITY: u8 = 0xc;
/// Code of a server of HTTP/1.1, which answers the second question too.
const PROTOCOL_ERROR: u8 = 0x1;
/// Type of the TLS record with which a server refuses bytes that are not TLS.
const TLS_ALERT: u8 = 0x15;
/// Length of an HTTP/2 frame's head.
const FRAME_HEAD_BYTES: usize = 9;

/// A protocol that a server answered in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortProtocol {
    /// HTTP/1.1: an HTTP port.
    Http1,
    /// HTTP/2 from the first byte: a gRPC port.
    Http2,
    /// TLS only.
    Tls,
}

/// Returns the protocol that the server at `authority` ("host:port") speaks, or `None` if it is
/// unknown.
pub fn probe_protocol(authority: &str) -> Option<PortProtocol> {
    let frame = exchange(authority, HTTP2_PREFACE)?;
    if frame.first() == Some(&TLS_ALERT) {
        return Some(PortProtocol::Tls);
    }
    if frame.len() >= FRAME_HEAD_BYTES && frame.get(TYPE_AT) == Some(&SETTINGS) {
        let (_, next) = frame.split_at(FRAME_HEAD_BYTES);
        let refused = next.get(TYPE_AT) == Some(&GO_AWAY);
        match next.get(GO_AWAY_CODE_AT).filter(|_| refused) {
            Some(&INADEQUATE_SECURITY) => return Some(PortProtocol::Tls),
            Some(&PROTOCOL_ERROR) => {}
            _ => return Some(PortProtocol::Http2),
        }
    }
    let request = format!("GET / HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
    exchange(authority, request.as_bytes())?.starts_with(b"HTTP/1").then_some(PortProtocol::Http1)
}

/// Sends `request` and returns the first bytes of the answer. They are empty if the server closes
/// without one.
fn exchange(authority: &str, request: &[u8]) -> Option<Vec<u8>> {
    let address = authority.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, WAIT_MAX).ok()?;
    stream.set_read_timeout(Some(WAIT_MAX)).ok()?;
    stream.set_write_timeout(Some(WAIT_MAX)).ok()?;
    stream.write_all(request).ok()?;
    let mut head = Vec::new();
    // A reset after some bytes still leaves those bytes.
    let _ = Read::by_ref(&mut stream).take(FRAME_HEAD_BYTES as u64).read_to_end(&mut head);
    // Only settings without a payload can be followed by that frame at once.
    if head.starts_with(&[0, 0, 0, SETTINGS]) {
        let _ = stream.take(GO_AWAY_BYTES as u64).read_to_end(&mut head);
    }
    Some(head)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Checks the detected protocol of a server that greets each of `count` clients with `greeting`
    /// and then closes.
    fn check(greeting: &'static [u8], count: usize, wanted: Option<PortProtocol>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            for _ in 0..count {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(greeting).unwrap();
                // A client that got its answer may have disconnected already.
                let _ = stream.shutdown(std::net::Shutdown::Write);
                // Until the client disconnects, so that no reset interrupts its read.
                let _ = stream.read_to_end(&mut Vec::new());
            }
        });
        assert_eq!(probe_protocol(&authority), wanted);
        server.join().unwrap();
    }

    #[test]
    fn protocols_are_detected_by_their_first_bytes() {
        check(
            b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00",
            1,
            Some(PortProtocol::Http2),
        );
        check(b"HTTP/1.1 400 Bad Request\r\n\r\n", 2, Some(PortProtocol::Http1));
        let refused = b"\0\0\0\x04\0\0\0\0\0\0\0\x0c\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0ctext";
        check(refused, 1, Some(PortProtocol::Tls));
        // This server would answer a request of HTTP/1.1 with frames too.
        let refused = b"\0\0\0\x04\0\0\0\0\0\0\0\x0c\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01text";
        check(refused, 2, None);
        check(b"\x15\x03\x01\x00\x02\x02\x46", 1, Some(PortProtocol::Tls));
        check(b"220 mail ready\r\n", 2, None);
        check(b"", 2, None);
    }
}
