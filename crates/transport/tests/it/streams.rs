//! HTTP/2 connections whose streams end early: calls that the client cancels, and requests that are
//! answered before their body has arrived.

use std::io::{Read, Write};
use std::net::TcpStream;

use millpond_transport::HttpVersion;

use super::{LIMITS, PREFACE, Served, WAIT_MAX, frame};

// Types of frames (RFC 9113 §6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Payload of an RST_STREAM for a stream above the limit: REFUSED_STREAM.
const REFUSED: [u8; 4] = 7u32.to_be_bytes();
/// Payload of the DATA frames of a large body.
const FRAME_BYTES: usize = 16 << 10;
/// GET http://localhost/ (RFC 7541 §6).
const HEAD: &[u8] = b"\x82\x86\x84\x41\x09localhost";

struct ReceivedFrame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl ReceivedFrame {
    fn ends_answer(&self) -> bool {
        self.kind == DATA && self.flags & END_STREAM != 0
    }

    /// Returns the bytes that a WINDOW_UPDATE frame permits.
    fn increment(&self) -> usize {
        let bytes = self.payload.first_chunk().unwrap();
        u32::from_be_bytes(*bytes) as usize
    }
}

/// Reads the next frame, which must not be the end of the connection.
fn next_frame(stream: &mut TcpStream) -> ReceivedFrame {
    let mut header = [0; 9];
    stream.read_exact(&mut header).unwrap();
    let [a, b, c, kind, flags, w, x, y, z] = header;
    let length = u32::from_be_bytes([0, a, b, c]);
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).unwrap();
    assert_ne!(kind, GOAWAY, "the server ends the connection");
    ReceivedFrame { kind, flags, stream: u32::from_be_bytes([w, x, y, z]), payload }
}

/// Returns the ids of the first `count` streams of a client.
fn stream_ids(count: usize) -> Vec<u32> {
    (1..).step_by(2).take(count).collect()
}

/// Checks that a call of the stream `id` is answered.
fn assert_answered(stream: &mut TcpStream, id: u32) {
    stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, id, HEAD)).unwrap();
    loop {
        let received = next_frame(stream);
        if received.stream == id && received.ends_answer() {
            return;
        }
    }
}

/// The server finds all these calls in its socket at once, as after a pause. They are more than may
/// wait to be accepted (1024).
#[test]
fn cancelled_calls_leave_their_connection_open() {
    const CALLS: usize = 5000;
    let served = Served::start(HttpVersion::Http2, WAIT_MAX);
    let mut stream = served.connect();
    let cancel = 8u32.to_be_bytes();
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    for id in stream_ids(CALLS) {
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, id, HEAD));
        bytes.extend(frame(RST_STREAM, 0, id, &cancel));
    }
    stream.write_all(&bytes).unwrap();
    assert_answered(&mut stream, 2 * CALLS as u32 + 1);
}

/// The service reads no body. More frames are in flight than h2 permits to streams that it has
/// reset (1024).
#[test]
fn unread_bodies_leave_their_connection_open() {
    const FRAMES_IN_FLIGHT: usize = 30;
    let served = Served::start(HttpVersion::Http2, WAIT_MAX);
    let mut stream = served.connect();
    let ids = stream_ids(LIMITS.streams_max);
    let mut heads = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    for &id in &ids {
        heads.extend(frame(HEADERS, END_HEADERS, id, HEAD));
    }
    stream.write_all(&heads).unwrap();
    let mut answered = 0;
    while answered < ids.len() {
        answered += usize::from(next_frame(&mut stream).ends_answer());
    }
    let mut rest = Vec::new();
    for &id in &ids {
        rest.extend(frame(DATA, 0, id, &[0; 256]).repeat(FRAMES_IN_FLIGHT));
    }
    // Some clients end the stream once they have read the answer.
    for &id in &ids {
        rest.extend(frame(RST_STREAM, 0, id, &0u32.to_be_bytes()));
    }
    stream.write_all(&rest).unwrap();
    assert_answered(&mut stream, 2 * ids.len() as u32 + 1);
}

/// Clients in Go neither end nor reset a stream whose answer they have read.
#[test]
fn abandoned_streams_leave_room_for_others() {
    let served = Served::start(HttpVersion::Http2, WAIT_MAX);
    let mut stream = served.connect();
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).unwrap();
    let ids = stream_ids(3 * LIMITS.streams_max);
    for ids in ids.chunks(LIMITS.streams_max / 2) {
        for &id in ids {
            stream.write_all(&frame(HEADERS, END_HEADERS, id, HEAD)).unwrap();
        }
        let mut answered = 0;
        while answered < ids.len() {
            let received = next_frame(&mut stream);
            answered += usize::from(received.ends_answer());
            let refused = received.kind == RST_STREAM && received.payload == REFUSED;
            assert!(!refused, "too many streams are open");
        }
    }
}

/// The client goes on sending after the answer, within the window of the stream.
#[test]
fn endless_unread_body_is_reset() {
    const STREAM_WINDOW: usize = 4 << 20;
    const DISCARD_BYTES_MAX: usize = 2 * STREAM_WINDOW;
    // A reset without a discard permits one window. The frame above the limit is released too.
    const SENT_MAX: usize = DISCARD_BYTES_MAX + FRAME_BYTES + STREAM_WINDOW;
    // A client that is paused for a moment is reset earlier.
    let sends_all = |_| {
        let sent = sent_until_reset(STREAM_WINDOW);
        assert!(sent <= SENT_MAX, "{sent}");
        sent > DISCARD_BYTES_MAX
    };
    assert!((0..5).any(sends_all));
}

/// Returns the bytes that a client sends after its answer until the server resets the stream.
fn sent_until_reset(mut window: usize) -> usize {
    let served = Served::start(HttpVersion::Http2, WAIT_MAX);
    let mut stream = served.connect();
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    // The window of a stream is larger than 65,535 bytes once the settings are acknowledged.
    bytes.extend(frame(SETTINGS, ACK, 0, &[]));
    bytes.extend(frame(HEADERS, END_HEADERS, 1, HEAD));
    stream.write_all(&bytes).unwrap();
    while !next_frame(&mut stream).ends_answer() {}
    let piece = frame(DATA, 0, 1, &[0; FRAME_BYTES]);
    let mut sent = 0;
    loop {
        while window >= FRAME_BYTES {
            stream.write_all(&piece).unwrap();
            window -= FRAME_BYTES;
            sent += FRAME_BYTES;
        }
        let received = next_frame(&mut stream);
        match received.kind {
            WINDOW_UPDATE if received.stream == 1 => window += received.increment(),
            RST_STREAM if received.stream == 1 => break,
            _ => {}
        }
    }
    assert_answered(&mut stream, 3);
    sent
}
