//! Limits the control frames of an HTTP/2 connection.
//!
//! HTTP/2 lets a client send control frames (SETTINGS, PRIORITY, WINDOW_UPDATE, PING, ...) at no
//! cost to itself. h2 answers or applies each of them without a limit. A scanner therefore reads
//! the frame headers of both directions. Control frames spend credit. Requests and data earn it,
//! because clients acknowledge data by WINDOW_UPDATE and measure it by PING. Envoy limits these
//! frames in proportion to streams and data in the same way
//! (`max_inbound_priority_frames_per_stream` = 100,
//! `max_inbound_window_update_frames_per_data_frame_sent` = 10). Time earns a little, so that the
//! keepalive of an idle connection never runs out of credit.

use std::sync::Arc;
use std::time::Instant;

use metrics::{KindLabels, Metrics};

/// Credit of a new connection, in control frames.
const CONTROL_FRAMES_BASE_MAX: u64 = 1000;
/// Credit of a new stream. Browsers and Node send a PRIORITY for a stream, and clients cancel
/// streams.
const CONTROL_FRAMES_PER_STREAM_MAX: u64 = 20;
/// Credit of one DATA frame to the client, because two WINDOW_UPDATEs and a PING are usual. Envoy's
/// default.
const CONTROL_FRAMES_PER_DATA_SENT_MAX: u64 = 10;
/// Credit of one DATA frame from the client, because gRPC clients measure their bandwidth by PING.
const CONTROL_FRAMES_PER_DATA_RECEIVED_MAX: u64 = 1;
/// Credit per second of a connection that has no other.
const CONTROL_FRAMES_PER_SECOND_MAX: u64 = 20;
/// Largest credit of a connection. It covers two WINDOW_UPDATEs for each DATA frame (16 KiB) of an
/// answer of 2 GiB, and as many PINGs.
const CREDIT_MAX: u64 = 1 << 19;

/// "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" (RFC 9113 §3.4).
pub(crate) const PREFACE_BYTES: usize = 24;
/// Length, type, flags and stream (RFC 9113 §4.1).
pub(crate) const HEADER_BYTES: usize = 9;
/// Last stream and error code of GOAWAY (RFC 9113 §6.8). A reason may follow.
const GOAWAY_BYTES: u32 = 8;
/// The END_STREAM flag of DATA, which is ACK for SETTINGS and PING.
const END_STREAM: u8 = 1;

/// Header of an HTTP/2 frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) length: u32,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    stream: u32,
}

impl FrameHeader {
    pub(crate) fn parse(bytes: [u8; HEADER_BYTES]) -> FrameHeader {
        let [a, b, c, kind, flags, w, x, y, z] = bytes;
        let stream = u32::from_be_bytes([w, x, y, z]) & (u32::MAX >> 1);
        FrameHeader { length: u32::from_be_bytes([0, a, b, c]), kind, flags, stream }
    }

    fn kind(self) -> Http2FrameKind {
        match self.kind {
            0 if self.length > 0 => Http2FrameKind::Data,
            // Each stream ends once.
            0 if self.flags & END_STREAM != 0 => Http2FrameKind::Control("data_end"),
            0 => Http2FrameKind::Control("data_empty"),
            1 => Http2FrameKind::Headers,
            2 => Http2FrameKind::Control("priority"),
            3 => Http2FrameKind::Control("rst_stream"),
            4 if self.flags & END_STREAM != 0 => Http2FrameKind::Control("settings_ack"),
            4 => Http2FrameKind::Control("settings"),
            6 if self.flags & END_STREAM != 0 => Http2FrameKind::Control("ping_ack"),
            6 => Http2FrameKind::Control("ping"),
            7 => Http2FrameKind::Control("goaway"),
            8 => Http2FrameKind::Control("window_update"),
            9 => Http2FrameKind::Control("continuation"),
            _ => Http2FrameKind::Control("unknown"),
        }
    }
}

/// Kinds of frames that change the credit in different ways.
enum Http2FrameKind {
    Headers,
    Data,
    /// The name is the label of the metric.
    Control(&'static str),
}

/// Parser that finds frame headers in a stream of bytes. The bytes come in pieces of any size.
#[derive(Default)]
struct FrameScanner {
    header: [u8; HEADER_BYTES],
    /// Bytes of `header` that have arrived.
    known: usize,
    /// Bytes before the next frame header.
    skip: usize,
}

impl FrameScanner {
    /// Calls `each` for every frame header that ends in `bytes`.
    fn scan(&mut self, mut bytes: &[u8], mut each: impl FnMut(FrameHeader)) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let taken = (HEADER_BYTES - self.known).min(bytes.len());
            if taken == 0 {
                return;
            }
            self.header[self.known..self.known + taken].copy_from_slice(&bytes[..taken]);
            self.known += taken;
            bytes = &bytes[taken..];
            if self.known == HEADER_BYTES {
                let header = FrameHeader::parse(self.header);
                self.known = 0;
                self.skip = header.length as usize;
                each(header);
            }
        }
    }

    /// Returns true if the last frame is complete.
    fn at_boundary(&self) -> bool {
        self.known == 0 && self.skip == 0
    }
}

/// The frames of one connection in both directions, and the credit of its client.
pub(crate) struct FrameCounter {
    received: FrameScanner,
    sent: FrameScanner,
    /// Control frames that the client may still send.
    credit: u64,
    /// Time up to which credit per second was added.
    refilled: Instant,
    /// Highest stream of a request.
    last_stream: u32,
    metrics: Arc<Metrics>,
}

impl FrameCounter {
    /// Creates the counter of a new connection.
    pub(crate) fn new(metrics: &Arc<Metrics>) -> FrameCounter {
        FrameCounter {
            received: FrameScanner { skip: PREFACE_BYTES, ..FrameScanner::default() },
            sent: FrameScanner::default(),
            credit: CONTROL_FRAMES_BASE_MAX,
            refilled: Instant::now(),
            last_stream: 0,
            metrics: metrics.clone(),
        }
    }

    /// Counts the frames in `bytes` from the client and returns their number.
    ///
    /// # Errors
    /// The kind of the first control frame that exceeded the credit. It is counted in the metrics.
    pub(crate) fn received(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        let mut frames = 0;
        let mut over = None;
        let FrameCounter { received, credit, refilled, last_stream, .. } = self;
        received.scan(bytes, |header| {
            frames += 1;
            match header.kind() {
                Http2FrameKind::Headers => {
                    *last_stream = header.stream.max(*last_stream);
                    add_credit(credit, CONTROL_FRAMES_PER_STREAM_MAX);
                }
                Http2FrameKind::Data => add_credit(credit, CONTROL_FRAMES_PER_DATA_RECEIVED_MAX),
                Http2FrameKind::Control(kind) => {
                    if *credit == 0 {
                        refill(credit, refilled);
                    }
                    match credit.checked_sub(1) {
                        Some(less) => *credit = less,
                        None => over = over.or(Some(kind)),
                    }
                }
            }
        });
        let Some(kind) = over else { return Ok(frames) };
        self.metrics.connections_ended.get_or_create(&KindLabels { kind }).inc();
        Err(kind)
    }

    /// Counts the frames in `bytes` to the client. If they end the connection for a limit of h2,
    /// the metrics count it.
    pub(crate) fn sent(&mut self, bytes: &[u8]) {
        let FrameCounter { sent, credit, metrics, .. } = self;
        sent.scan(bytes, |header| match header.kind() {
            Http2FrameKind::Data => add_credit(credit, CONTROL_FRAMES_PER_DATA_SENT_MAX),
            // h2 adds a reason only if the client has exceeded one of its own limits.
            Http2FrameKind::Control("goaway") if header.length > GOAWAY_BYTES => {
                metrics.connections_ended.get_or_create(&KindLabels { kind: "h2_limit" }).inc();
            }
            _ => {}
        });
    }

    /// Returns a GOAWAY frame with ENHANCE_YOUR_CALM (RFC 9113 §6.8, §7), or `None` within another
    /// frame.
    pub(crate) fn go_away(&self) -> Option<[u8; HEADER_BYTES + 8]> {
        let [a, b, c, d] = self.last_stream.to_be_bytes();
        self.sent.at_boundary().then_some([0, 0, 8, 7, 0, 0, 0, 0, 0, a, b, c, d, 0, 0, 0, 0xb])
    }
}

/// Adds the credit for `frames` control frames.
fn add_credit(credit: &mut u64, frames: u64) {
    *credit = (*credit + frames).min(CREDIT_MAX);
}

/// Adds credit for the time since the last refill.
fn refill(credit: &mut u64, refilled: &mut Instant) {
    let earned = (refilled.elapsed().as_secs_f64() * CONTROL_FRAMES_PER_SECOND_MAX as f64) as u64;
    if earned > 0 {
        *refilled = Instant::now();
        *credit = earned.min(CONTROL_FRAMES_BASE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes()[..], payload].concat()
    }

    #[test]
    fn headers_are_found_in_pieces_of_any_size() {
        let bytes = [
            frame(4, 0, 0, &[7; 12]),
            frame(0, 1, 1, &[]),
            frame(8, 0, 3, &[0; 4]),
            frame(0, 0, 5, &[9; 1000]),
        ]
        .concat();
        for size in [1, 2, 7, 9, 10, 100, 5000] {
            let (mut scanner, mut found) = (FrameScanner::default(), Vec::new());
            bytes.chunks(size).for_each(|piece| scanner.scan(piece, |header| found.push(header)));
            let found: Vec<_> =
                found.iter().map(|header| (header.kind, header.stream, header.length)).collect();
            assert_eq!(found, [(4, 0, 12), (0, 1, 0), (8, 3, 4), (0, 5, 1000)], "{size}");
            assert!(scanner.at_boundary());
        }
    }

    #[test]
    fn control_frames_need_credit() {
        let metrics = Arc::new(Metrics::default());
        let kinds = [
            (8, 0, "window_update"),
            (2, 0, "priority"),
            (4, 0, "settings"),
            (6, 1, "ping_ack"),
            (99, 0, "unknown"),
        ];
        for (kind, flags, label) in kinds {
            let mut frames = FrameCounter::new(&metrics);
            frames.refilled = Instant::now() + Duration::from_secs(3600);
            assert_eq!(frames.received(&[0; PREFACE_BYTES]), Ok(0));
            let control = frame(kind, flags, 0, &[0; 8]);
            for _ in 0..CONTROL_FRAMES_BASE_MAX {
                assert_eq!(frames.received(&control), Ok(1));
            }
            assert_eq!(frames.received(&control), Err(label));
            let labels = KindLabels { kind: label };
            assert_eq!(metrics.connections_ended.get_or_create(&labels).get(), 1);
            assert_eq!(frames.go_away().map(|bytes| (bytes[3], bytes[16])), Some((7, 0xb)));
        }
    }

    #[test]
    fn requests_and_data_earn_credit() {
        let mut frames = FrameCounter::new(&Arc::new(Metrics::default()));
        frames.refilled = Instant::now() + Duration::from_secs(3600);
        frames.credit = 0;
        frames.received.skip = 0;
        frames.sent(&[frame(4, 1, 0, &[]), frame(6, 1, 0, &[0; 8]), frame(0, 1, 1, &[])].concat());
        assert_eq!(frames.credit, 0);
        assert_eq!(frames.received(&frame(1, 4, 1, b"headers")), Ok(1));
        assert_eq!(frames.credit, CONTROL_FRAMES_PER_STREAM_MAX);
        frames.sent(&frame(0, 0, 1, b"answer"));
        assert_eq!(frames.credit, CONTROL_FRAMES_PER_STREAM_MAX + CONTROL_FRAMES_PER_DATA_SENT_MAX);
        assert!(frames.go_away().is_some());
        frames.sent(&[0, 0, 5, 0]);
        assert!(frames.go_away().is_none(), "within a frame");
    }

    #[test]
    fn a_limit_of_h2_that_ends_the_connection_is_counted() {
        let metrics = Arc::new(Metrics::default());
        let mut frames = FrameCounter::new(&metrics);
        let ended = metrics.connections_ended.get_or_create_owned(&KindLabels { kind: "h2_limit" });
        frames.sent(&frame(7, 0, 0, &[0; 8]));
        assert_eq!(ended.get(), 0, "a shutdown");
        frames.sent(&frame(7, 0, 0, b"\0\0\0\x01\0\0\0\x0btoo_many_data_frames"));
        assert_eq!(ended.get(), 1);
    }

    #[test]
    fn time_earns_credit() {
        let mut frames = FrameCounter::new(&Arc::new(Metrics::default()));
        (frames.credit, frames.received.skip) = (0, 0);
        frames.refilled =
            Instant::now().checked_sub(Duration::from_secs(1)).unwrap_or_else(Instant::now);
        assert_eq!(frames.received(&frame(6, 0, 0, &[0; 8])), Ok(1));
        assert!((1..CONTROL_FRAMES_BASE_MAX).contains(&(frames.credit + 1)));
    }
}
