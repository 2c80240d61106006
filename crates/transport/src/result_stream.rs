//! Long answers: from the thread that writes them to the connection, with a bound on the bytes that
//! wait.
//!
//! The thread writes results while the upload still arrives, and many clients read nothing before
//! they have sent everything. So up to `RESULTS_BYTES_MAX` bytes of results wait here. Then the
//! thread waits too, and with it the upload. If the client reads nothing for `RESULTS_STALL_MAX`
//! while the thread waits, it is cut off. Otherwise each would wait for the other.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use tokio_stream::Stream;

/// Maximum bytes of results that wait for a client.
const RESULTS_BYTES_MAX: usize = 32 << 20;
/// Longest time in which a client reads nothing while no more results fit.
const RESULTS_STALL_MAX: Duration = Duration::from_secs(60);

/// Bytes between the writer and the reader.
#[derive(Default)]
struct ResultQueue {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    /// The outcome, set once.
    ended: Option<Result<()>>,
    /// True once the reader was dropped.
    closed: bool,
    reader: Option<Waker>,
}

/// Queue with its limits, shared by writer and reader.
struct ResultChannel {
    state: Mutex<ResultQueue>,
    room: Condvar,
    stop: Arc<AtomicBool>,
    bytes_max: usize,
    stall: Duration,
}

impl ResultChannel {
    fn lock(&self) -> MutexGuard<'_, ResultQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's end of an answer.
pub struct ResultWriter(Arc<ResultChannel>);

/// The connection's end of an answer. Sets the stop flag when dropped.
pub struct ResultStream(Arc<ResultChannel>);

/// Creates both ends of an answer. `stop` is set when the connection's end is dropped.
pub fn result_channel(stop: Arc<AtomicBool>) -> (ResultWriter, ResultStream) {
    bounded(stop, RESULTS_BYTES_MAX, RESULTS_STALL_MAX)
}

fn bounded(
    stop: Arc<AtomicBool>,
    bytes_max: usize,
    stall: Duration,
) -> (ResultWriter, ResultStream) {
    let state = Mutex::default();
    let shared = Arc::new(ResultChannel { state, room: Condvar::new(), stop, bytes_max, stall });
    (ResultWriter(shared.clone()), ResultStream(shared))
}

impl ResultWriter {
    /// Sends bytes. Waits first if too many are unread.
    ///
    /// # Errors
    /// `Cancelled` if the client has disconnected, `ClientTimeout` if it reads nothing.
    pub fn send(&self, bytes: Bytes) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let bytes_max = self.0.bytes_max;
        let mut state = self.wait_while(|state| state.bytes >= bytes_max)?;
        if state.closed {
            return Err(Error::cancelled("the client has disconnected"));
        }
        state.bytes += bytes.len();
        state.waiting.push_back(bytes);
        wake(state);
        Ok(())
    }

    /// Ends the answer, or breaks it off with an error. Waits until the client has read the queued
    /// results, so that the permit of the calling thread bounds this memory. If the client reads
    /// nothing for too long, the rest is dropped and the answer breaks off.
    pub fn end(&self, ended: Result<()>) {
        self.finish(ended);
        let waited = self.wait_while(|state| !state.waiting.is_empty()).map(drop);
        if let Err(error) = waited {
            let mut state = self.0.lock();
            state.waiting.clear();
            state.bytes = 0;
            state.ended = Some(Err(error));
            wake(state);
        }
    }

    /// Waits while `is_waiting`, or until the client has disconnected.
    ///
    /// # Errors
    /// `ClientTimeout` if the client reads nothing for too long.
    fn wait_while(
        &self,
        is_waiting: impl Fn(&ResultQueue) -> bool,
    ) -> Result<MutexGuard<'_, ResultQueue>> {
        let ResultChannel { room, bytes_max, stall, .. } = &*self.0;
        let mut state = self.0.lock();
        while !state.closed && is_waiting(&state) {
            let before = state.bytes;
            let (after, waited) =
                room.wait_timeout(state, *stall).unwrap_or_else(PoisonError::into_inner);
            state = after;
            if waited.timed_out() && state.bytes == before {
                return Err(stalled(*bytes_max, *stall));
            }
        }
        Ok(state)
    }

    fn finish(&self, ended: Result<()>) {
        let mut state = self.0.lock();
        state.ended.get_or_insert(ended);
        wake(state);
    }
}

impl Drop for ResultWriter {
    /// Breaks the answer off if its thread ends by panic.
    fn drop(&mut self) {
        self.finish(Err(Error::internal("the thread that answers ended without an answer")));
    }
}

fn stalled(bytes_max: usize, stall: Duration) -> Error {
    let text = format!(
        "the client has read nothing for {} s while {} MiB of results wait; read them while sending, or request fewer",
        stall.as_secs(),
        bytes_max >> 20
    );
    Error::new(ErrorKind::ClientTimeout, text)
}

fn wake(mut state: MutexGuard<'_, ResultQueue>) {
    let reader = state.reader.take();
    drop(state);
    if let Some(reader) = reader {
        reader.wake();
    }
}

impl ResultStream {
    /// Waits for the first bytes, or the end.
    ///
    /// # Errors
    /// The error that ended the answer before its first bytes.
    pub async fn begun(&self) -> Result<()> {
        std::future::poll_fn(|context| {
            let mut state = self.0.lock();
            match (&state.ended, state.waiting.is_empty()) {
                (Some(Err(error)), true) => Poll::Ready(Err(error.clone())),
                (None, true) => {
                    state.reader = Some(context.waker().clone());
                    Poll::Pending
                }
                _ => Poll::Ready(Ok(())),
            }
        })
        .await
    }
}

impl Stream for ResultStream {
    type Item = io::Result<Bytes>;

    /// Returns the next bytes. An error closes the connection, so that the client sees that the
    /// answer is incomplete.
    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.0.lock();
        if let Some(bytes) = state.waiting.pop_front() {
            state.bytes -= bytes.len();
            drop(state);
            self.0.room.notify_one();
            return Poll::Ready(Some(Ok(bytes)));
        }
        match &mut state.ended {
            Some(Ok(())) => Poll::Ready(None),
            Some(ended) => {
                let error = std::mem::replace(ended, Ok(()));
                Poll::Ready(error.err().map(|error| Err(io::Error::other(error))))
            }
            None => {
                state.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for ResultStream {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
        let mut state = self.0.lock();
        state.closed = true;
        state.bytes = 0;
        state.waiting.clear();
        drop(state);
        self.0.room.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_stream::StreamExt;

    const LONG: Duration = Duration::from_secs(30);

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(LONG, future).await.unwrap() })
    }

    fn pair(bytes_max: usize, stall: Duration) -> (ResultWriter, ResultStream, Arc<AtomicBool>) {
        let stop = Arc::new(AtomicBool::new(false));
        let (writer, results) = bounded(stop.clone(), bytes_max, stall);
        (writer, results, stop)
    }

    #[test]
    fn bytes_arrive_in_order() {
        let (writer, mut results, _) = pair(10, LONG);
        let thread = std::thread::spawn(move || {
            for n in 0..200u8 {
                writer.send(Bytes::from(vec![n; 7])).unwrap();
            }
            writer.end(Ok(()));
        });
        let all: Vec<Bytes> = run(async {
            results.begun().await.unwrap();
            let mut all = Vec::new();
            while let Some(bytes) = results.next().await {
                all.push(bytes.unwrap());
            }
            all
        });
        thread.join().unwrap();
        assert_eq!(all.len(), 200);
        assert!(all.iter().zip(0..).all(|(bytes, n)| bytes[..] == [n; 7]));
    }

    #[test]
    fn a_late_error_breaks_the_answer_off() {
        let (writer, results, _) = pair(10, LONG);
        writer.end(Err(Error::invalid("no sound")));
        assert_eq!(run(results.begun()).unwrap_err().message(), "no sound");
        let (writer, mut results, _) = pair(10, LONG);
        writer.send(Bytes::from_static(b"x")).unwrap();
        drop(writer);
        run(async {
            results.begun().await.unwrap();
            assert!(results.next().await.unwrap().is_ok());
            assert!(results.next().await.unwrap().is_err());
            assert!(results.next().await.is_none());
        });
    }

    #[test]
    fn unread_results_do_not_outlive_their_thread() {
        let (writer, mut results, _) = pair(10, Duration::from_millis(5));
        writer.send(Bytes::from_static(b"x")).unwrap();
        writer.end(Ok(()));
        run(async {
            assert!(results.next().await.unwrap().is_err());
            assert!(results.next().await.is_none());
        });
    }

    #[test]
    fn disconnects_and_stalls_end_the_work() {
        let (writer, results, stop) = pair(2, LONG);
        writer.send(Bytes::from_static(b"xyz")).unwrap();
        let waiting = std::thread::spawn(move || writer.send(Bytes::from_static(b"more")));
        drop(results);
        assert_eq!(waiting.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
        assert!(stop.load(Ordering::Relaxed));
        let (writer, _results, _) = pair(2, Duration::from_millis(5));
        writer.send(Bytes::from_static(b"xyz")).unwrap();
        let error = writer.send(Bytes::from_static(b"more")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ClientTimeout);
    }
}
