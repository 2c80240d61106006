//! Joins writes and reads of an HTTP/2 connection, which saves system calls.
//!
//! h2 writes a response's data and its trailers in two calls. It flushes each data frame of 256
//! bytes or more before it takes the next frame. It reads into the rest of its own 8 KiB buffer, so
//! most requests take two reads. A [`WriteCoalescer`] buffers writes until the connection's task
//! has been polled, and reads all bytes that have arrived at once (ADR 0006).

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::control_frames::FrameCounter;
use crate::header_timeout::PrefaceTimeout;
use crate::progress_timeout::{ProgressTimeout, check_write};
use crate::socket_authority::AuthorityPatcher;
use crate::tls::{SocketReader, SocketStream, SocketWriter};
use crate::unread_answers::{UnreadAnswers, UnreadCheck};

/// Maximum bytes that wait for the end of a poll. Larger writes go straight to the socket.
const COALESCED_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of one read.
const READ_BYTES_MAX: usize = 64 << 10;
/// Maximum frames that a poll of a connection reads. The connection then yields to others of its
/// thread. h2 takes up to 8 KiB more, which may hold 900 frames.
///
/// h2 reads all that it can before each stream that hyper accepts. A client that cancels many calls
/// could have thousands of streams that wait to be accepted. h2 then ends the connection. A limit
/// of the whole poll prevents this.
const POLL_FRAMES_MAX: usize = 512;
/// Maximum bytes that a poll of a connection reads.
const POLL_BYTES_MAX: usize = 1 << 20;

thread_local! {
    /// Buffer for each read, from which bytes are copied to the caller. There is one per thread, so
    /// that idle connections hold no buffer.
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES_MAX]);
    /// Memory of the last flushed buffer, for the next one. There is one per thread, because most
    /// connections are idle.
    static SPARE_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The write side, shared by the stream and its [`Flush`].
struct PendingWrites {
    socket: SocketWriter,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that are written.
    written: usize,
    progress: ProgressTimeout,
}

impl PendingWrites {
    /// Writes the buffer, and the bytes that the encryption holds.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.buffer.len() {
            let rest = &self.buffer[self.written..];
            let polled = Pin::new(&mut self.socket).poll_write(cx, rest);
            match ready!(check_write(polled, &mut self.progress, cx)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => self.written += count,
                Err(error) => {
                    // The socket has failed; a kept buffer would make every later flush fail the
                    // same way.
                    self.clear();
                    return Poll::Ready(Err(error));
                }
            }
        }
        self.clear();
        let polled = Pin::new(&mut self.socket).poll_flush(cx);
        check_write(polled, &mut self.progress, cx)
    }

    /// Frees the memory, so that ten thousand idle connections hold none.
    fn clear(&mut self) {
        self.written = 0;
        if self.buffer.capacity() == 0 {
            return;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        SPARE_BUFFER.with_borrow_mut(|spare| {
            if spare.capacity() < buffer.capacity() {
                *spare = buffer;
            }
        });
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        if self.buffer.len() + bytes <= COALESCED_BYTES_MAX {
            if self.buffer.capacity() == 0 {
                self.buffer = SPARE_BUFFER.take();
            }
            self.buffer.reserve(bytes);
            pieces.iter().for_each(|piece| self.buffer.extend_from_slice(piece));
            return Poll::Ready(Ok(bytes));
        }
        ready!(self.poll_drain(cx))?;
        let polled = Pin::new(&mut self.socket).poll_write_vectored(cx, pieces);
        check_write(polled, &mut self.progress, cx)
    }
}

/// Handle that writes the buffered bytes of a connection.
#[derive(Clone)]
pub(crate) struct Flush {
    pending: Arc<Mutex<PendingWrites>>,
    /// Polls of the connection so far.
    polls: Arc<AtomicU64>,
}

impl Flush {
    fn with<T>(&self, act: impl FnOnce(&mut PendingWrites) -> T) -> T {
        act(&mut self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs a connection and writes its buffered bytes after each poll. Returns `None` if the
    /// client read nothing for too long, or leaves answers unread.
    pub(crate) async fn drive<T>(
        &self,
        connection: impl Future<Output = T>,
        mut unread: UnreadCheck,
    ) -> Option<T> {
        let mut connection = pin!(connection);
        let mut ended = None;
        poll_fn(|cx| {
            self.polls.fetch_add(1, Ordering::Relaxed);
            if ended.is_none()
                && let Poll::Ready(output) = connection.as_mut().poll(cx)
            {
                ended = Some(output);
            }
            // A socket that fails here fails the connection's next read as well.
            let drained = self.with(|pending| pending.poll_drain(cx));
            if ended.is_none() && unread.poll_stalled(cx) {
                return Poll::Ready(None);
            }
            match (drained, ended.take()) {
                (Poll::Ready(_), Some(output)) => Poll::Ready(Some(output)),
                // The socket works, but the client does not read; it may still send, which keeps
                // reads going.
                (Poll::Ready(Err(error)), None) if error.kind() == io::ErrorKind::TimedOut => {
                    Poll::Ready(None)
                }
                (Poll::Pending, output) => {
                    ended = output;
                    Poll::Pending
                }
                (Poll::Ready(_), None) => Poll::Pending,
            }
        })
        .await
    }
}

/// Inspection of the HTTP/2 frames of one connection.
pub(crate) struct ConnectionFrames {
    pub(crate) unread: Arc<UnreadAnswers>,
    pub(crate) counter: FrameCounter,
    /// Set for a client of a Unix socket.
    pub(crate) authority: Option<AuthorityPatcher>,
    pub(crate) preface: PrefaceTimeout,
}

/// A socket whose writes wait until the connection's task has been polled.
pub(crate) struct WriteCoalescer {
    incoming: SocketReader,
    /// Bytes that were read and not yet requested, of which `taken` are consumed.
    surplus: Vec<u8>,
    taken: usize,
    /// Frames that begin in the rest of `surplus`, estimated from their number in the whole read.
    surplus_frames: usize,
    flush: Flush,
    frames: ConnectionFrames,
    /// Frames and bytes given to h2 since the connection last waited or yielded.
    polled_frames: usize,
    polled_bytes: usize,
    /// Number of the poll in which the connection yielded, unless it has read after that.
    yielded: Option<u64>,
}

impl WriteCoalescer {
    /// Splits `stream`. The returned [`Flush`] must drive the connection that uses the stream. A
    /// write may wait for `stall`. Reads fail once the client has sent too many control frames.
    pub(crate) fn new(
        stream: SocketStream,
        stall: Duration,
        frames: ConnectionFrames,
    ) -> (WriteCoalescer, Flush) {
        let (incoming, socket) = stream.into_split();
        let progress = ProgressTimeout::between_pieces(stall);
        let pending = PendingWrites { socket, buffer: Vec::new(), written: 0, progress };
        let flush = Flush { pending: Arc::new(Mutex::new(pending)), polls: Arc::default() };
        (
            WriteCoalescer {
                incoming,
                surplus: Vec::new(),
                taken: 0,
                surplus_frames: 0,
                flush: flush.clone(),
                frames,
                polled_frames: 0,
                polled_bytes: 0,
                yielded: None,
            },
            flush,
        )
    }

    /// Counts the frames in the received `bytes`, and patches their `:authority` if that is on.
    /// Returns their number.
    ///
    /// # Errors
    /// `ConnectionAborted` after too many control frames. GOAWAY is then queued for the client.
    fn received(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.frames.preface.received(bytes.len());
        if let Some(authority) = &mut self.frames.authority {
            authority.patch(bytes);
        }
        match self.frames.counter.received(bytes) {
            Ok(frames) => Ok(frames),
            Err(kind) => {
                if let Some(bytes) = self.frames.counter.go_away() {
                    self.flush.with(|pending| pending.buffer.extend_from_slice(&bytes));
                }
                let text = format!("the client sent too many control frames, the last one {kind}");
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, text))
            }
        }
    }

    /// Yields to other connections of the thread if this one has read a lot without a pause.
    /// Returns `Ready` again in the next poll of the connection.
    fn poll_yield(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.polled_frames < POLL_FRAMES_MAX && self.polled_bytes < POLL_BYTES_MAX {
            return Poll::Ready(());
        }
        let poll = self.flush.polls.load(Ordering::Relaxed);
        match self.yielded {
            Some(yielded) if yielded == poll => Poll::Pending,
            Some(_) => {
                self.reset_poll();
                Poll::Ready(())
            }
            None => {
                self.yielded = Some(poll);
                // Wakes the task after the event queue was polled; waking it directly would skip
                // that.
                pin!(tokio::task::yield_now()).poll(cx)
            }
        }
    }

    fn reset_poll(&mut self) {
        self.polled_frames = 0;
        self.polled_bytes = 0;
        self.yielded = None;
    }

    /// Counts the first `count` bytes of `pieces` as sent.
    fn count_sent(&mut self, mut count: usize, pieces: &[io::IoSlice<'_>]) {
        for piece in pieces {
            self.frames.counter.sent(&piece[..count.min(piece.len())]);
            count = count.saturating_sub(piece.len());
        }
    }

    /// Counts the first `count` of `of` bytes, with their share of the frames, as given to h2.
    fn count_given(&mut self, count: usize, of: usize) {
        let frames = (self.surplus_frames * count).div_ceil(of.max(1));
        self.surplus_frames -= frames;
        self.polled_frames += frames;
        self.polled_bytes += count;
    }

    /// Copies bytes that were read before and not yet passed on.
    fn take_surplus(&mut self, buffer: &mut ReadBuf<'_>) {
        let rest = &self.surplus[self.taken..];
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        let of = rest.len();
        self.count_given(count, of);
        self.taken += count;
        if self.taken == self.surplus.len() {
            self.surplus = Vec::new();
            self.taken = 0;
        }
    }
}

impl AsyncRead for WriteCoalescer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_yield(cx));
        if !self.surplus.is_empty() {
            self.take_surplus(buffer);
            return Poll::Ready(Ok(()));
        }
        if buffer.remaining() >= READ_BYTES_MAX {
            let before = buffer.filled().len();
            let polled = Pin::new(&mut self.incoming).poll_read(cx, buffer);
            if polled.is_pending() {
                self.reset_poll();
            }
            ready!(polled)?;
            let received = &mut buffer.filled_mut()[before..];
            self.polled_bytes += received.len();
            let frames = self.received(received)?;
            self.polled_frames += frames;
            return Poll::Ready(Ok(()));
        }
        READ_BUFFER.with_borrow_mut(|memory| {
            let mut read_buffer = ReadBuf::new(memory);
            let polled = Pin::new(&mut self.incoming).poll_read(cx, &mut read_buffer);
            if polled.is_pending() {
                self.reset_poll();
            }
            ready!(polled)?;
            self.surplus_frames = self.received(read_buffer.filled_mut())?;
            let read = read_buffer.filled();
            let (now, later) = read.split_at(read.len().min(buffer.remaining()));
            buffer.put_slice(now);
            self.surplus.extend_from_slice(later);
            self.count_given(now.len(), read.len());
            Poll::Ready(Ok(()))
        })
    }
}

impl AsyncWrite for WriteCoalescer {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.flush.with(|pending| pending.poll_write(cx, pieces)))?;
        self.frames.unread.count_sent(written);
        self.count_sent(written, pieces);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: [`Flush::drive`] writes.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flush.with(|pending| {
            ready!(pending.poll_drain(cx))?;
            Pin::new(&mut pending.socket).poll_shutdown(cx)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::header_timeout::HeaderTimeout;
    use crate::run;

    const LONG: Duration = Duration::from_secs(60);

    /// Counts bytes that are not HTTP/2. They look like one frame of 16 MiB, longer than any test.
    fn any_frames() -> ConnectionFrames {
        let metrics = Arc::new(metrics::Metrics::default());
        let unread = UnreadAnswers::new(LONG, &metrics);
        ConnectionFrames {
            unread,
            counter: FrameCounter::new(&metrics),
            authority: None,
            preface: PrefaceTimeout::new(HeaderTimeout::default()),
        }
    }

    fn no_check() -> UnreadCheck {
        UnreadCheck::new(any_frames().unread)
    }

    async fn pair() -> (SocketStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (SocketStream::Plain(listener.accept().await.unwrap().0), client)
    }

    #[test]
    fn writes_of_one_poll_arrive_together() {
        run(async {
            let (server, mut client) = pair().await;
            let (mut stream, flush) = WriteCoalescer::new(server, LONG, any_frames());
            flush
                .drive(
                    async {
                        stream.write_all(b"data").await.unwrap();
                        stream.flush().await.unwrap();
                        assert_eq!(
                            flush.with(|pending| pending.buffer.len()),
                            4,
                            "nothing is sent within a poll"
                        );
                        stream.write_all(b" and trailers").await.unwrap();
                    },
                    no_check(),
                )
                .await;
            drop((stream, flush));
            let mut all = Vec::new();
            client.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, b"data and trailers");
        });
    }

    /// Sizes around every bound.
    #[test]
    fn large_and_small_writes_keep_their_order() {
        run(async {
            let (server, mut client) = pair().await;
            let sizes = [
                1,
                100,
                COALESCED_BYTES_MAX - 1,
                COALESCED_BYTES_MAX,
                3,
                COALESCED_BYTES_MAX + 1,
                5 << 20,
                7,
            ];
            let sent: Vec<Vec<u8>> =
                sizes.iter().enumerate().map(|(index, &size)| vec![index as u8; size]).collect();
            let expected = sent.concat();
            let writing = async move {
                let (mut stream, flush) = WriteCoalescer::new(server, LONG, any_frames());
                flush
                    .drive(
                        async {
                            for piece in &sent {
                                stream.write_all(piece).await.unwrap();
                            }
                            stream.shutdown().await.unwrap();
                        },
                        no_check(),
                    )
                    .await;
            };
            let reading = async {
                let mut all = Vec::new();
                client.read_to_end(&mut all).await.unwrap();
                all
            };
            let ((), all) = tokio::join!(writing, reading);
            assert!(all == expected);
        });
    }

    /// The client still sends, which must not keep the connection alive.
    #[test]
    fn a_client_that_reads_nothing_is_cut_off() {
        run(async {
            for size in [COALESCED_BYTES_MAX / 2, 2 * COALESCED_BYTES_MAX] {
                let (server, mut client) = pair().await;
                let (mut stream, flush) =
                    WriteCoalescer::new(server, Duration::from_millis(50), any_frames());
                let answering = flush.drive(
                    async move {
                        loop {
                            if stream.write_all(&vec![0; size]).await.is_err() {
                                return;
                            }
                            tokio::task::yield_now().await;
                        }
                    },
                    no_check(),
                );
                let sending = async {
                    loop {
                        // Fails once the server has closed.
                        let _ = client.write_all(b"ping").await;
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                };
                let ended = tokio::select! {
                    ended = tokio::time::timeout(LONG, answering) => ended,
                    () = sending => unreachable!(),
                };
                assert!(ended.is_ok(), "{size}");
            }
        });
    }

    #[test]
    fn a_connection_with_many_frames_yields() {
        run(async {
            let (server, mut client) = pair().await;
            let (mut stream, flush) = WriteCoalescer::new(server, LONG, any_frames());
            let preface = [0; 24];
            let frames = [0, 0, 1, 0, 0, 0, 0, 0, 1, b'x'].repeat(2 * POLL_FRAMES_MAX);
            let sent = [&preface[..], &frames].concat();
            client.write_all(&sent).await.unwrap();
            let SocketReader::Plain(incoming) = &stream.incoming else { unreachable!() };
            incoming.readable().await.unwrap();
            let mut read = 0;
            let mut polls = Vec::new();
            // Reads as h2 does: again and again in one poll, although the stream yields.
            let reading = poll_fn(|cx| {
                let before = read;
                for _ in 0..1000 {
                    let mut piece = [0; 1000];
                    let mut buffer = ReadBuf::new(&mut piece);
                    let polled = Pin::new(&mut stream).poll_read(cx, &mut buffer);
                    if let Poll::Ready(polled) = polled {
                        polled.unwrap();
                        read += buffer.filled().len();
                    }
                }
                polls.push((read - before) / 10);
                if read == sent.len() { Poll::Ready(()) } else { Poll::Pending }
            });
            flush.drive(reading, no_check()).await.unwrap();
            assert!(polls.len() >= 2, "{polls:?}");
            assert!(polls.iter().all(|&frames| frames <= POLL_FRAMES_MAX + 200), "{polls:?}");
        });
    }

    #[test]
    fn small_buffers_get_all_bytes() {
        run(async {
            let (server, mut client) = pair().await;
            let (mut stream, _flush) = WriteCoalescer::new(server, LONG, any_frames());
            let sent: Vec<u8> = (0..200_000u32).map(|index| index as u8).collect();
            let writing = async {
                client.write_all(&sent).await.unwrap();
                client.shutdown().await.unwrap();
            };
            let reading = async {
                let (mut all, mut piece) = (Vec::new(), [0; 1000]);
                loop {
                    match stream.read(&mut piece).await.unwrap() {
                        0 => return all,
                        count => all.extend_from_slice(&piece[..count]),
                    }
                }
            };
            let ((), all) = tokio::join!(writing, reading);
            assert!(all == sent);
        });
    }
}
