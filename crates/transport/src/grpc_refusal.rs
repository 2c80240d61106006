//! The answer to an HTTP/2 client at a listener for others. It may be a gRPC client that speaks
//! plain text to a listener with TLS, or any client that speaks HTTP/2 to a listener of HTTP/1.1.
//!
//! A GOAWAY alone says that the call was not processed. gRPC's clients then connect again and
//! repeat the call by themselves, without a pause. A call without a deadline would never end. So
//! the first call gets a status, which ends it.

use std::io::{self, Error};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest wait for the first call of a client.
const CALL_WAIT_MAX: Duration = Duration::from_millis(500);
/// Frames that may come before the first call: settings, window updates and pings.
const FRAMES_MAX: usize = 16;
/// Longest text of a refusal. One byte then holds its length (RFC 7541 §5.1).
pub(crate) const TEXT_BYTES_MAX: usize = 126;

/// Bytes with which an HTTP/2 client begins (RFC 9113 §3.4).
const PREFACE_BYTES: u64 = 24;
const FRAME_HEAD_BYTES: usize = 9;
/// Bytes of the first request's header block in which the content type is searched. A client that
/// does not know the server's settings yet sends a whole frame of at most this size (RFC 9113
/// §6.5.2).
const HEADER_BLOCK_BYTES_MAX: u64 = 16 << 10;
/// Content type of gRPC, as text and in HPACK's Huffman code (RFC 7541 appendix B).
const GRPC_CONTENT_TYPE: &[u8] = b"application/grpc";
const GRPC_CONTENT_TYPE_HUFFMAN: &[u8] = b"\x1d\x75\xd0\x62\x0d\x26\x3d\x4c\x4d\x65\x64";
// Types of frames (RFC 9113 §6).
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GO_AWAY: u8 = 7;
/// Flags of a HEADERS frame that is the whole answer: END_STREAM and END_HEADERS.
const WHOLE_ANSWER: u8 = 0x1 | 0x4;
// Codes of a GOAWAY (RFC 9113 §7). HTTP_1_1_REQUIRED ends the process of clients of gRPC's core.
const PROTOCOL_ERROR: u32 = 0x1;
const INADEQUATE_SECURITY: u32 = 0xc;
// `:status` in HPACK's static table (RFC 7541 appendix A).
const STATUS_200: u8 = 0x88;
const STATUS_400: u8 = 0x8c;
/// Start of a header field that is written out and not indexed (RFC 7541 §6.2.2).
const LITERAL_FIELD: u8 = 0;
/// gRPC's status code of a failed connection.
const UNAVAILABLE: &str = "14";

/// Refuses the first call of a gRPC client with the status UNAVAILABLE and `text`, and then the
/// connection. If the client sends no call within half a second, only the connection is refused.
///
/// `text` is printable ASCII without `%`, at most [`TEXT_BYTES_MAX`] bytes.
pub(crate) async fn refuse<S>(stream: &mut S, text: &str) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    refuse_first(stream, INADEQUATE_SECURITY, STATUS_200, text).await
}

/// Refuses the first request of an HTTP/2 client of a listener of HTTP/1.1, and then the
/// connection. A gRPC client gets the status UNAVAILABLE and `text`, another one the status 400.
///
/// Older versions of gRPC's client for Go report INTERNAL without `text` if the HTTP status is not
/// 200 (grpc-go#8548).
///
/// `text` is as in [`refuse`].
pub(crate) async fn refuse_http2<S>(stream: &mut S, text: &str) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    refuse_first(stream, PROTOCOL_ERROR, STATUS_400, text).await
}

/// First request of a client.
#[derive(Clone, Copy)]
struct FirstCall {
    /// Number of its stream.
    stream: u32,
    is_grpc: bool,
}

/// Answers the first call with `text`, and ends the connection with a GOAWAY. A request that is not
/// a gRPC call gets the HTTP status `other_status`.
async fn refuse_first<S>(
    stream: &mut S,
    go_away_code: u32,
    other_status: u8,
    text: &str,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    let waited = tokio::time::timeout(CALL_WAIT_MAX, first_call(stream)).await;
    // A client that is silent or breaks the protocol gets no status, but the reason.
    let call = waited.ok().and_then(Result::ok);
    let mut answer = Vec::new();
    if let Some(FirstCall { stream, is_grpc }) = call {
        let http_status = if is_grpc { STATUS_200 } else { other_status };
        answer.extend(frame(HEADERS, WHOLE_ANSWER, stream, &status(http_status, text)));
    }
    let last_call = call.map_or(0, |call| call.stream).to_be_bytes();
    let reason = [&last_call[..], &go_away_code.to_be_bytes()[..], text.as_bytes()].concat();
    answer.extend(frame(GO_AWAY, 0, 0, &reason));
    stream.write_all(&answer).await
}

/// Reads the client's preface and frames up to its first HEADERS.
async fn first_call<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<FirstCall> {
    skip(stream, PREFACE_BYTES).await?;
    for _ in 0..FRAMES_MAX {
        let mut head = [0; FRAME_HEAD_BYTES];
        stream.read_exact(&mut head).await?;
        let [length_2, length_1, length_0, kind, _flags, id_3, id_2, id_1, id_0] = head;
        let length = u64::from(u32::from_be_bytes([0, length_2, length_1, length_0]));
        let kept = if kind == HEADERS { length.min(HEADER_BLOCK_BYTES_MAX) } else { 0 };
        let block = read(stream, kept).await?;
        skip(stream, length - kept).await?;
        if kind == HEADERS {
            // The highest bit is reserved (RFC 9113 §4.1).
            let id = u32::from_be_bytes([id_3 & 0x7f, id_2, id_1, id_0]);
            return Ok(FirstCall { stream: id, is_grpc: is_grpc(&block) });
        }
    }
    Err(Error::other("no call is among the first frames"))
}

/// Returns true if gRPC's content type is in a header block. The first block of a connection can
/// refer to no earlier one, so the type is written out.
fn is_grpc(block: &[u8]) -> bool {
    [GRPC_CONTENT_TYPE, GRPC_CONTENT_TYPE_HUFFMAN]
        .iter()
        .any(|wanted| block.windows(wanted.len()).any(|bytes| bytes == *wanted))
}

/// Returns the next `bytes` bytes, or fewer if the stream ends before.
async fn read<S: AsyncRead + Unpin>(stream: &mut S, bytes: u64) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    stream.take(bytes).read_to_end(&mut all).await?;
    Ok(all)
}

/// Discards the next `bytes` bytes.
async fn skip<S: AsyncRead + Unpin>(stream: &mut S, bytes: u64) -> io::Result<()> {
    tokio::io::copy(&mut stream.take(bytes), &mut tokio::io::sink()).await?;
    Ok(())
}

/// Returns the header block of an answer that has only a status. `http_status` is an entry of
/// HPACK's static table.
fn status(http_status: u8, text: &str) -> Vec<u8> {
    let mut block = vec![http_status];
    append_field(&mut block, "content-type", "application/grpc");
    append_field(&mut block, "grpc-status", UNAVAILABLE);
    append_field(&mut block, "grpc-message", text);
    block
}

fn append_field(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(LITERAL_FIELD);
    for text in [name, value] {
        let [length, ..] = text.len().to_le_bytes();
        block.push(length);
        block.extend_from_slice(text.as_bytes());
    }
}

/// Returns a frame. `payload` has less than 16 MiB.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [length_0, length_1, length_2, ..] = payload.len().to_le_bytes();
    let head = [length_2, length_1, length_0, kind, flags];
    [&head[..], &stream.to_be_bytes()[..], payload].concat()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::run;

    const TEXT: &str = "use grpcs://";
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    /// Returns the answer to a client that sends `frames` after its preface.
    fn answer_to(frames: &[Vec<u8>]) -> Vec<u8> {
        run(async {
            let (mut client, mut server) = tokio::io::duplex(1 << 20);
            client.write_all(PREFACE).await.unwrap();
            client.write_all(&frames.concat()).await.unwrap();
            refuse(&mut server, TEXT).await.unwrap();
            drop(server);
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            answer
        })
    }

    fn go_away(last_call: u8) -> Vec<u8> {
        let reason = [&[0, 0, 0, last_call, 0, 0, 0, 0xc][..], TEXT.as_bytes()].concat();
        frame(GO_AWAY, 0, 0, &reason)
    }

    #[test]
    fn the_first_call_gets_a_status() {
        let call = frame(HEADERS, WHOLE_ANSWER, 5, b"headers");
        let answer = answer_to(&[frame(SETTINGS, 0, 0, &[0; 6]), call]);
        let block = b"\x88\0\x0ccontent-type\x10application/grpc\0\x0bgrpc-status\x02\x31\x34\
                      \0\x0cgrpc-message\x0cuse grpcs://";
        let wanted =
            [frame(SETTINGS, 0, 0, &[]), frame(HEADERS, WHOLE_ANSWER, 5, block), go_away(5)];
        assert_eq!(answer, wanted.concat());
    }

    /// Returns the answer of a listener of HTTP/1.1 to a first request with this header block.
    fn answer_of_http1(block: &[u8]) -> Vec<u8> {
        run(async {
            let (mut client, mut server) = tokio::io::duplex(1 << 20);
            client.write_all(PREFACE).await.unwrap();
            client.write_all(&frame(HEADERS, WHOLE_ANSWER, 1, block)).await.unwrap();
            refuse_http2(&mut server, "use HTTP/1.1").await.unwrap();
            drop(server);
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            answer
        })
    }

    #[test]
    fn http2_at_a_listener_of_http1_is_refused() {
        let rest = b"\0\x0ccontent-type\x10application/grpc\0\x0bgrpc-status\x02\x31\x34\
                     \0\x0cgrpc-message\x0cuse HTTP/1.1";
        let cases: [(&[u8], u8); 5] = [
            (b"headers", STATUS_400),
            (b"\x5f\x10application/json", STATUS_400),
            (b"\x83\x5f\x10application/grpc\x86", STATUS_200),
            (b"\x5f\x16application/grpc+proto", STATUS_200),
            // As above, in Huffman's code.
            (b"\x83\x5f\x8b\x1d\x75\xd0\x62\x0d\x26\x3d\x4c\x4d\x65\x64\x86", STATUS_200),
        ];
        for (block, status) in cases {
            let wanted = [
                frame(SETTINGS, 0, 0, &[]),
                frame(HEADERS, WHOLE_ANSWER, 1, &[&[status][..], &rest[..]].concat()),
                frame(GO_AWAY, 0, 0, b"\0\0\0\x01\0\0\0\x01use HTTP/1.1"),
            ];
            assert_eq!(answer_of_http1(block), wanted.concat(), "{block:?}");
        }
        // The content type comes after the searched bytes.
        let long = [b"x".repeat(20 << 10).as_slice(), GRPC_CONTENT_TYPE].concat();
        let answer = answer_of_http1(&long);
        assert_eq!(answer[FRAME_HEAD_BYTES * 2], STATUS_400);
        assert!(answer.ends_with(b"use HTTP/1.1"));
    }

    #[test]
    fn a_client_without_a_call_gets_the_reason() {
        let pings = vec![frame(6, 0, 0, &[0; 8]); FRAMES_MAX + 1];
        assert_eq!(answer_to(&pings), [frame(SETTINGS, 0, 0, &[]), go_away(0)].concat());
        // Without a call, the function waits for the whole time.
        assert_eq!(answer_to(&[]), [frame(SETTINGS, 0, 0, &[]), go_away(0)].concat());
    }
}
