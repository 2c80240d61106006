//! From the thread that listens to the client that reads: bytes of the answer, bounded.
//!
//! Results are made while the upload still runs, and many clients read nothing before they have sent everything. So
//! results wait here, up to [`RESULTS_BYTES_MAX`]; then the thread waits too, and with it the upload. A client that takes
//! nothing for [`RESULTS_STALL_MAX`] while the thread waits is given up: otherwise both would wait for each other.

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

/// Bytes of one recording's results that wait for its client.
pub(super) const RESULTS_BYTES_MAX: usize = 32 << 20;
/// How long a client may take nothing while there is no room for more.
pub(super) const RESULTS_STALL_MAX: Duration = Duration::from_secs(60);

#[derive(Default)]
struct State {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    /// Set once: how it ended.
    ended: Option<Result<()>>,
    /// The reader has gone.
    gone: bool,
    reader: Option<Waker>,
}

struct Shared {
    state: Mutex<State>,
    room: Condvar,
    stop: Arc<AtomicBool>,
    bytes_max: usize,
    stall: Duration,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's end.
pub(crate) struct Outbox(Arc<Shared>);

/// The client's end; when it is dropped, the stop flag is set.
pub(crate) struct Results(Arc<Shared>);

/// Both ends. `stop` is set when the client's end goes.
pub(crate) fn results(stop: Arc<AtomicBool>) -> (Outbox, Results) {
    bounded(stop, RESULTS_BYTES_MAX, RESULTS_STALL_MAX)
}

fn bounded(stop: Arc<AtomicBool>, bytes_max: usize, stall: Duration) -> (Outbox, Results) {
    let state = Mutex::default();
    let shared = Arc::new(Shared { state, room: Condvar::new(), stop, bytes_max, stall });
    (Outbox(shared.clone()), Results(shared))
}

impl Outbox {
    /// Hands bytes over; waits while too many lie there already.
    ///
    /// # Errors
    /// `Cancelled` when the client has gone, `ClientTimeout` when it takes nothing.
    pub(crate) fn send(&self, bytes: Bytes) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut state = self.0.lock();
        while !state.gone && state.bytes >= self.0.bytes_max {
            let before = state.bytes;
            let (after, waited) =
                self.0.room.wait_timeout(state, self.0.stall).unwrap_or_else(PoisonError::into_inner);
            state = after;
            if waited.timed_out() && state.bytes == before {
                return Err(stalled(self.0.bytes_max, self.0.stall));
            }
        }
        if state.gone {
            return Err(Error::cancelled("the client has gone"));
        }
        state.bytes += bytes.len();
        state.waiting.push_back(bytes);
        wake(state);
        Ok(())
    }

    /// Says that nothing more comes, or what went wrong.
    pub(crate) fn end(&self, ended: Result<()>) {
        let mut state = self.0.lock();
        state.ended.get_or_insert(ended);
        wake(state);
    }
}

impl Drop for Outbox {
    /// A thread that ends by panic ends its answer too.
    fn drop(&mut self) {
        self.end(Err(Error::internal("the recording's thread ended without an answer")));
    }
}

fn stalled(bytes_max: usize, stall: Duration) -> Error {
    let text = format!(
        "the client has read nothing for {} s while {} MiB of results wait; read them while sending, or ask for fewer",
        stall.as_secs(),
        bytes_max >> 20
    );
    Error::new(ErrorKind::ClientTimeout, text)
}

fn wake(mut state: MutexGuard<'_, State>) {
    let reader = state.reader.take();
    drop(state);
    if let Some(reader) = reader {
        reader.wake();
    }
}

impl Results {
    /// Waits until there is something to send, or the end.
    ///
    /// # Errors
    /// What went wrong before there was anything to send.
    pub(crate) async fn begun(&self) -> Result<()> {
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

impl Stream for Results {
    type Item = io::Result<Bytes>;

    /// An error breaks the connection off, which is how a client learns that an answer without a word for it is not whole.
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

impl Drop for Results {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
        let mut state = self.0.lock();
        (state.gone, state.bytes) = (true, 0);
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

    fn pair(bytes_max: usize, stall: Duration) -> (Outbox, Results, Arc<AtomicBool>) {
        let stop = Arc::new(AtomicBool::new(false));
        let (outbox, results) = bounded(stop.clone(), bytes_max, stall);
        (outbox, results, stop)
    }

    #[test]
    fn bytes_arrive_in_order_while_more_are_made() {
        let (outbox, mut results, _) = pair(10, LONG);
        let thread = std::thread::spawn(move || {
            for n in 0..200u8 {
                outbox.send(Bytes::from(vec![n; 7])).unwrap();
            }
            outbox.end(Ok(()));
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
    fn an_error_before_anything_is_the_answer_and_later_breaks_it_off() {
        let (outbox, results, _) = pair(10, LONG);
        outbox.end(Err(Error::invalid("no sound")));
        assert_eq!(run(results.begun()).unwrap_err().message(), "no sound");
        let (outbox, mut results, _) = pair(10, LONG);
        outbox.send(Bytes::from_static(b"x")).unwrap();
        drop(outbox);
        run(async {
            results.begun().await.unwrap();
            assert!(results.next().await.unwrap().is_ok());
            assert!(results.next().await.unwrap().is_err());
            assert!(results.next().await.is_none());
        });
    }

    #[test]
    fn a_client_that_goes_stops_the_work_and_one_that_stalls_ends_it() {
        let (outbox, results, stop) = pair(2, LONG);
        outbox.send(Bytes::from_static(b"xyz")).unwrap();
        let waiting = std::thread::spawn(move || outbox.send(Bytes::from_static(b"more")));
        drop(results);
        assert_eq!(waiting.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
        assert!(stop.load(Ordering::Relaxed));
        let (outbox, _results, _) = pair(2, Duration::from_millis(5));
        outbox.send(Bytes::from_static(b"xyz")).unwrap();
        let error = outbox.send(Bytes::from_static(b"more")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ClientTimeout);
    }
}
