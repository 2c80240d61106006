//! A time limit on the head of an HTTP/1.1 request, from its first byte.
//!
//! hyper's own limit also runs while a kept-alive connection is idle, so it cannot be as short as the progress with
//! a client that dribbles. This one starts with the first byte after the last request and ends when the next
//! request is handed over.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::progress_timeout::{ProgressTimeout, written};

/// Even: between requests. Odd: a head has begun. Each head has its own number.
#[derive(Default)]
struct State {
    phase: AtomicU64,
    answering: AtomicU64,
    begun: Notify,
}

/// Shared by the stream, the service and the one that waits.
#[derive(Clone, Default)]
pub(crate) struct HeaderTimeout(Arc<State>);

impl HeaderTimeout {
    /// Bytes have come from the client.
    fn bytes_read(&self) {
        let phase = self.0.phase.load(Ordering::Relaxed);
        if phase.is_multiple_of(2) && self.0.answering.load(Ordering::Relaxed) == 0 {
            self.0.phase.store(phase + 1, Ordering::Relaxed);
            self.0.begun.notify_one();
        }
    }

    /// The head is complete; until the guard goes, bytes belong to the body.
    pub(crate) fn complete(&self) -> Answering {
        self.0.answering.fetch_add(1, Ordering::Relaxed);
        let phase = self.0.phase.load(Ordering::Relaxed);
        self.0.phase.store(phase + phase % 2, Ordering::Relaxed);
        Answering(self.0.clone())
    }

    /// Returns when a head has taken longer than `limit`.
    pub(crate) async fn overdue(&self, limit: Duration) {
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

/// A request is being answered.
pub(crate) struct Answering(Arc<State>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream whose reads are watched, and whose writes fail once the client neither takes nor sends anything.
///
/// Sending counts because many clients read nothing before they have sent everything.
pub(crate) struct TimedStream<T> {
    stream: T,
    watch: HeaderTimeout,
    progress: ProgressTimeout,
}

impl<T> TimedStream<T> {
    /// `stall` is how long a write may wait.
    pub(crate) fn new(stream: T, watch: HeaderTimeout, stall: Duration) -> TimedStream<T> {
        TimedStream { stream, watch, progress: ProgressTimeout::between_pieces(stall) }
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
            self.watch.bytes_read();
            self.progress.record_progress();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for TimedStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        written(polled, &mut self.progress, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        written(polled, &mut self.progress, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(20);

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    #[test]
    fn a_head_that_never_ends_is_overdue() {
        let watch = HeaderTimeout::default();
        watch.bytes_read();
        assert!(run(async { tokio::time::timeout(LONG, watch.overdue(LIMIT)).await }).is_ok());
    }

    #[test]
    fn idle_connections_and_bodies_are_not() {
        let watch = HeaderTimeout::default();
        watch.bytes_read();
        let answering = watch.complete();
        watch.bytes_read();
        drop(answering);
        assert!(run(async { tokio::time::timeout(5 * LIMIT, watch.overdue(LIMIT)).await }).is_err());
        watch.bytes_read();
        assert!(run(async { tokio::time::timeout(LONG, watch.overdue(LIMIT)).await }).is_ok());
    }

    /// The other side of a pipe that holds eight bytes.
    fn full() -> (tokio::io::DuplexStream, TimedStream<tokio::io::DuplexStream>) {
        let (client, server) = tokio::io::duplex(8);
        (client, TimedStream::new(server, HeaderTimeout::default(), LIMIT))
    }

    #[test]
    fn a_client_that_takes_nothing_is_given_up() {
        let (_client, mut stream) = full();
        let written = run(async { tokio::time::timeout(LONG, stream.write_all(&[0; 64])).await });
        assert_eq!(written.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    /// It takes nothing before it has sent all, which lasts far longer than the limit.
    #[test]
    fn a_client_that_still_sends_is_not() {
        let (mut client, stream) = full();
        let (mut reading, mut writing) = tokio::io::split(stream);
        let uploading = async {
            for _ in 0..20 {
                tokio::time::sleep(LIMIT / 4).await;
                client.write_all(b"piece").await.unwrap();
            }
            let mut all = [0; 64];
            client.read_exact(&mut all).await.unwrap();
        };
        let taking = async {
            let mut piece = [0; 100];
            reading.read_exact(&mut piece).await.unwrap();
        };
        run(async { tokio::join!(uploading, taking, async { writing.write_all(&[0; 64]).await.unwrap() }) });
    }
}
