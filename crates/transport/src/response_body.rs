//! Answers on their way to clients: counted in the budget until they are taken, and cut off for clients that are too slow.
//!
//! A small answer is one piece of bytes that holds its reservation until the connection has written it. A large one is
//! handed to the connection in copied pieces, so that its memory can be given back although the connection still holds a
//! piece, and a task looks once a window at what was taken: a client that takes less than [`WINDOW_BYTES_MIN`] in a
//! [`WINDOW`] loses the rest of its answer. A connection that takes nothing at all is closed by its own limit.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use base::Result;
use bytes::Bytes;
use http::Response;
use hyper::body::{Body, Frame, SizeHint};
use metrics::KindLabels;
use tokio::task::AbortHandle;

use crate::app::App;
use crate::byte_budget::{ByteBudget, FREE_BYTES_MAX, Reservation};

/// How often it is looked at what a client has taken of a large answer.
pub(crate) const WINDOW: Duration = Duration::from_secs(30);
/// What a client must take of a large answer in a window, in bytes: about 9 KB/s.
pub(crate) const WINDOW_BYTES_MIN: u64 = 256 << 10;
/// Largest answer that is handed over whole.
const WHOLE_BYTES_MAX: usize = 256 << 10;
/// Bytes that are handed over at once of a larger one.
const PIECE_BYTES: usize = 64 << 10;

/// The bytes of an answer that a connection has not taken yet.
pub(crate) struct ResponseBody {
    whole: Option<Bytes>,
    large: Option<LargeBody>,
}

/// A large answer, and the task that watches it.
struct LargeBody {
    rest: Arc<Mutex<UnsentBytes>>,
    budget: Arc<ByteBudget>,
    watcher: AbortHandle,
}

struct UnsentBytes {
    /// None once the client was too slow.
    bytes: Option<Bytes>,
    /// Bytes taken since the last look.
    taken: u64,
}

impl ResponseBody {
    /// Makes an answer of `bytes`, for which `held` has reserved them.
    pub(crate) fn new(app: &App, bytes: Bytes, mut held: Reservation) -> ResponseBody {
        held.shrink_to(bytes.len() as u64);
        ResponseBody::counted(app, held.attach(bytes))
    }

    /// Makes an answer of bytes that hold their reservation.
    fn counted(app: &App, bytes: Bytes) -> ResponseBody {
        if bytes.len() <= WHOLE_BYTES_MAX {
            return ResponseBody { whole: Some(bytes), large: None };
        }
        let rest = Arc::new(Mutex::new(UnsentBytes { bytes: Some(bytes), taken: 0 }));
        let (watched, metrics, window) = (rest.clone(), app.metrics.clone(), app.listeners.answer_window);
        let watcher = tokio::spawn(async move {
            loop {
                tokio::time::sleep(window).await;
                let mut rest = lock(&watched);
                if std::mem::take(&mut rest.taken) < WINDOW_BYTES_MIN {
                    rest.bytes = None;
                    metrics.refused.get_or_create(&KindLabels { kind: "slow_reader" }).inc();
                    return;
                }
            }
        });
        ResponseBody {
            whole: None,
            large: Some(LargeBody {
                rest,
                budget: app.request_memory.clone(),
                watcher: watcher.abort_handle(),
            }),
        }
    }

    /// Returns the next piece, `None` at the end.
    ///
    /// # Errors
    /// `TimedOut` if the client was too slow.
    pub(crate) fn next(&mut self) -> Option<std::io::Result<Bytes>> {
        if let Some(whole) = self.whole.take() {
            return Some(Ok(whole)).filter(|piece| !piece.as_ref().is_ok_and(Bytes::is_empty));
        }
        let large = self.large.as_ref()?;
        let mut rest = lock(&large.rest);
        let Some(bytes) = &mut rest.bytes else {
            let slow = "the client takes its answer too slowly";
            return Some(Err(std::io::Error::new(std::io::ErrorKind::TimedOut, slow)));
        };
        let piece = Bytes::copy_from_slice(&bytes.split_to(PIECE_BYTES.min(bytes.len())));
        let last = bytes.is_empty();
        rest.taken += piece.len() as u64;
        drop(rest);
        // If there is no room for the copy, the piece goes uncounted: the answer must get on for its bytes to come back.
        let piece = match large.budget.reserve(piece.len() as u64) {
            Ok(held) => held.attach(piece),
            Err(_) => piece,
        };
        if last {
            self.large = None;
        }
        Some(Ok(piece))
    }

    /// Returns the number of bytes that are left.
    fn left(&self) -> usize {
        let large = self.large.as_ref().and_then(|large| lock(&large.rest).bytes.as_ref().map(Bytes::len));
        self.whole.as_ref().map(Bytes::len).or(large).unwrap_or(0)
    }
}

fn lock(rest: &Mutex<UnsentBytes>) -> MutexGuard<'_, UnsentBytes> {
    rest.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for LargeBody {
    fn drop(&mut self) {
        self.watcher.abort();
        // The task itself is dropped a little later.
        lock(&self.rest).bytes = None;
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        Poll::Ready(self.next().map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.large.is_none() && self.whole.as_ref().is_none_or(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left() as u64)
    }
}

/// Marks a response whose body is an [`ResponseBody`] already.
#[derive(Clone, Copy)]
pub(crate) struct BodyCounted;

/// Counts the body of a response that no handler has counted; one without a length is a stream, and stays as it is.
///
/// # Errors
/// Those of the budget.
pub(crate) async fn counted(
    app: &App,
    response: Response<axum::body::Body>,
) -> Result<Response<axum::body::Body>> {
    let done = response.extensions().get::<BodyCounted>().is_some();
    let known = response.body().size_hint().exact();
    let Some(bytes) = known.filter(|bytes| *bytes > FREE_BYTES_MAX && !done) else { return Ok(response) };
    let held = app.request_memory.reserve(bytes)?;
    let (head, body) = response.into_parts();
    // It is in memory: there is nothing to wait for, and it is of one piece.
    let body = axum::body::to_bytes(body, usize::MAX).await;
    let body = body.map_err(|error| base::Error::internal(format!("an answer cannot be read: {error}")))?;
    Ok(Response::from_parts(head, axum::body::Body::new(ResponseBody::new(app, body, held))))
}
