//! Closing an HTTP/1.1 connection so that its client can read the last answer.
//!
//! Closing a socket with unread bytes resets the connection, which can destroy an answer in flight.
//! The last answer of a connection says `connection: close` if the server stops, or if it has
//! refused a body or a head. So such a connection is closed for writing first, and then read until
//! the client closes it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::tls::{SocketReader, SocketStream, SocketWriter};

/// Longest silence of a client that is expected to close.
const SILENCE_MAX: Duration = Duration::from_millis(500);

/// Limits of the wait for a client to close.
#[derive(Clone, Copy)]
pub(crate) struct LingerLimits {
    /// Longest wait.
    time_max: Duration,
    /// Maximum bytes that the client may send during that wait.
    bytes_max: usize,
}

impl LingerLimits {
    /// The limits for a client that has sent its whole request.
    pub(crate) const WHOLE_REQUEST: LingerLimits =
        LingerLimits { time_max: SILENCE_MAX, bytes_max: 256 << 10 };
    /// The limits for a client that may still send a refused body. Many clients read nothing before
    /// they have sent everything.
    const REFUSED_BODY: LingerLimits =
        LingerLimits { time_max: Duration::from_secs(5), bytes_max: 256 << 20 };

    /// Returns the limits after an answer that closes its connection. A server that is stopping
    /// closes all connections, usually after whole requests.
    pub(crate) fn after_close(is_stopping: bool) -> LingerLimits {
        if is_stopping { LingerLimits::WHOLE_REQUEST } else { LingerLimits::REFUSED_BODY }
    }
}

type ReadHalfSlot = Arc<Mutex<Option<SocketReader>>>;

/// A socket that shuts its write side down and returns its read side to a [`Linger`] when dropped.
/// Under TLS, hyper shuts it down before the drop.
pub(crate) struct LingeringStream {
    /// `Some` until the drop.
    incoming: Option<SocketReader>,
    outgoing: SocketWriter,
    returned: ReadHalfSlot,
}

/// Receiver of the read side of a dropped [`LingeringStream`].
pub(crate) struct Linger(ReadHalfSlot);

impl LingeringStream {
    /// Splits `stream` for a connection.
    pub(crate) fn new(stream: SocketStream) -> (LingeringStream, Linger) {
        let (incoming, outgoing) = stream.into_split();
        let returned = ReadHalfSlot::default();
        (
            LingeringStream { incoming: Some(incoming), outgoing, returned: returned.clone() },
            Linger(returned),
        )
    }
}

impl Linger {
    /// Discards bytes from the client until it closes, within the limits. Call it after the stream
    /// was dropped.
    pub(crate) async fn until_closed(self, limits: LingerLimits) {
        let incoming = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut incoming) = incoming else { return };
        let discard = async {
            let mut piece = [0; 4096];
            let mut left = limits.bytes_max;
            while left > 0
                && let Ok(Ok(count @ 1..)) =
                    tokio::time::timeout(SILENCE_MAX, incoming.read(&mut piece)).await
            {
                left = left.saturating_sub(count);
            }
        };
        // A client that does not close in time is cut off.
        let _ = tokio::time::timeout(limits.time_max, discard).await;
    }
}

impl Drop for LingeringStream {
    fn drop(&mut self) {
        *self.returned.lock().unwrap_or_else(PoisonError::into_inner) = self.incoming.take();
    }
}

impl AsyncRead for LingeringStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.incoming {
            Some(incoming) => Pin::new(incoming).poll_read(cx, buffer),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for LingeringStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.outgoing).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.outgoing).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.outgoing.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.outgoing).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.outgoing).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_client_that_still_sends_reads_the_answer() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (mut stream, linger) =
                LingeringStream::new(SocketStream::Plain(listener.accept().await.unwrap().0));
            client.write_all(b"another request").await.unwrap();
            stream.write_all(b"answer").await.unwrap();
            drop(stream);
            let reading = async {
                let mut answer = Vec::new();
                client.read_to_end(&mut answer).await.unwrap();
                drop(client);
                answer
            };
            let ((), answer) =
                tokio::join!(linger.until_closed(LingerLimits::WHOLE_REQUEST), reading);
            assert_eq!(answer, b"answer");
        });
    }
}
