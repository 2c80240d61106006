//! A time limit on the head of an HTTP/1.1 request, from its first byte, and on the preface of an
//! HTTP/2 connection.
//!
//! hyper's own limit also runs while a kept-alive connection is idle, so it must be long. This
//! limit starts with the first byte after the last answer and ends when the next request reaches
//! its handler, so it can be short.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::control_frames::PREFACE_BYTES;
use crate::progress_timeout::{ProgressTimeout, check_write};

/// State of a connection that decides if a head is awaited.
#[derive(Default)]
struct HeaderPhase {
    /// Even between requests, odd while a head arrives. Each head has its own number.
    phase: AtomicU64,
    /// Requests being answered, 0 or 1.
    answering: AtomicU64,
    begun: Notify,
}

/// The state of the limit, shared by the stream, the service and the task that waits for the end of
/// the time.
#[derive(Clone, Default)]
pub struct HeaderTimeout(Arc<HeaderPhase>);

impl HeaderTimeout {
    /// Records that bytes have arrived from the client.
    fn bytes_read(&self) {
        let phase = self.0.phase.load(Ordering::Relaxed);
        if phase.is_multiple_of(2) && self.0.answering.load(Ordering::Relaxed) == 0 {
            self.0.phase.store(phase + 1, Ordering::Relaxed);
            self.0.begun.notify_one();
        }
    }

    /// Records that the head is complete. Until the guard is dropped, arriving bytes belong to the
    /// body.
    pub fn complete(&self) -> AnsweringGuard {
        self.0.answering.fetch_add(1, Ordering::Relaxed);
        let phase = self.0.phase.load(Ordering::Relaxed);
        self.0.phase.store(phase + phase % 2, Ordering::Relaxed);
        AnsweringGuard(self.0.clone())
    }

    /// Returns once a head has taken longer than `limit`.
    pub(crate) async fn elapsed(&self, limit: Duration) {
        loop {
            self.0.begun.notified().await;
            let phase = self.0.phase.load(Ordering::Relaxed);
            if phase.is_multiple_of(2) {
                continue;
            }
            tokio::time::sleep(limit).await;
            if self.0.phase.load(Ordering::Relaxed) == phase {
                return;
            }
        }
    }
}

/// Stream that applies a [`HeaderTimeout`] to the preface of an HTTP/2 connection. No other limit
/// ends the wait for the preface, because h2 sends no ping before it has read it.
pub(crate) struct PrefaceTimeout {
    timeout: HeaderTimeout,
    /// Bytes of the preface that have not arrived.
    left: usize,
}

impl PrefaceTimeout {
    /// Begins the time of `timeout` with the first wait for it.
    pub(crate) fn new(timeout: HeaderTimeout) -> PrefaceTimeout {
        timeout.bytes_read();
        PrefaceTimeout { timeout, left: PREFACE_BYTES }
    }

    /// Records that `bytes` bytes have arrived.
    pub(crate) fn received(&mut self, bytes: usize) {
        if self.left == 0 {
            return;
        }
        self.left = self.left.saturating_sub(bytes);
        if self.left == 0 {
            drop(self.timeout.complete());
        }
    }
}

/// Exists while a request is being answered.
pub struct AnsweringGuard(Arc<HeaderPhase>);

impl Drop for AnsweringGuard {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer. A client may send its next request before it has read this body, and
/// hyper parses that request only after the end of the body.
pub(crate) struct AnswerBody<B> {
    body: B,
    /// `None` for HTTP/2.
    _answering: Option<AnsweringGuard>,
}

impl<B> AnswerBody<B> {
    /// Wraps `body`. The request is being answered until the body is dropped.
    pub(crate) fn new(body: B, answering: Option<AnsweringGuard>) -> AnswerBody<B> {
        AnswerBody { body, _answering: answering }
    }
}

impl<B: Body + Unpin> Body for AnswerBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that reports its reads to a [`HeaderTimeout`], and whose writes fail once the client
/// neither reads nor sends.
///
/// Sending counts as progress because many clients read nothing before they have sent everything.
pub(crate) struct TimedStream<T> {
    stream: T,
    header_timeout: HeaderTimeout,
    progress: ProgressTimeout,
}

impl<T> TimedStream<T> {
    /// Wraps `stream`. A write may wait for `stall`.
    pub(crate) fn new(stream: T, header_timeout: HeaderTimeout, stall: Duration) -> TimedStream<T> {
        TimedStream { stream, header_timeout, progress: ProgressTimeout::between_pieces(stall) }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for TimedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.header_timeout.bytes_read();
            self.progress.record_progress();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for TimedStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        check_write(polled, &mut self.progress, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        check_write(polled, &mut self.progress, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Encryption keeps bytes that the socket does not take.
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        check_write(polled, &mut self.progress, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        check_write(polled, &mut self.progress, cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::run;

    const LIMIT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn an_unfinished_head_times_out() {
        let head = HeaderTimeout::default();
        head.bytes_read();
        assert!(run(async { tokio::time::timeout(LONG, head.elapsed(LIMIT)).await }).is_ok());
    }

    #[test]
    fn idle_connections_and_bodies_do_not_time_out() {
        let head = HeaderTimeout::default();
        head.bytes_read();
        let answering = head.complete();
        head.bytes_read();
        drop(answering);
        assert!(run(async { tokio::time::timeout(5 * LIMIT, head.elapsed(LIMIT)).await }).is_err());
        head.bytes_read();
        assert!(run(async { tokio::time::timeout(LONG, head.elapsed(LIMIT)).await }).is_ok());
    }

    /// Returns both ends of a pipe that holds eight bytes.
    fn full() -> (tokio::io::DuplexStream, TimedStream<tokio::io::DuplexStream>) {
        let (client, server) = tokio::io::duplex(8);
        (client, TimedStream::new(server, HeaderTimeout::default(), LIMIT))
    }

    #[test]
    fn a_client_that_reads_nothing_times_out() {
        let (_client, mut stream) = full();
        let written = run(async { tokio::time::timeout(LONG, stream.write_all(&[0; 64])).await });
        assert_eq!(written.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    /// Encryption holds bytes as this buffer does.
    #[test]
    fn a_flush_to_a_client_that_reads_nothing_times_out() {
        let (_client, server) = tokio::io::duplex(8);
        let buffered = tokio::io::BufWriter::new(server);
        let mut stream = TimedStream::new(buffered, HeaderTimeout::default(), LIMIT);
        let flushed = run(async {
            stream.write_all(&[0; 64]).await.unwrap();
            tokio::time::timeout(LONG, stream.flush()).await
        });
        assert_eq!(flushed.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    /// The client reads nothing before it has sent everything, far later than the limit.
    #[test]
    fn a_client_that_still_sends_does_not_time_out() {
        /// Longer than the pauses of a busy machine, because a pause between two pieces counts.
        const STALL: Duration = Duration::from_secs(4);
        const PIECES: usize = 6;
        let (mut client, server) = tokio::io::duplex(8);
        let stream = TimedStream::new(server, HeaderTimeout::default(), STALL);
        let (mut reading, mut writing) = tokio::io::split(stream);
        let uploading = async {
            for _ in 0..PIECES {
                tokio::time::sleep(STALL / 4).await;
                client.write_all(b"piece").await.unwrap();
            }
            let mut all = [0; 64];
            client.read_exact(&mut all).await.unwrap();
        };
        let taking = async {
            let mut piece = [0; 5 * PIECES];
            reading.read_exact(&mut piece).await.unwrap();
        };
        run(async {
            tokio::join!(uploading, taking, async { writing.write_all(&[0; 64]).await.unwrap() })
        });
    }
}
