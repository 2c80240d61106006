//! Bodies of responses, counted in the budget until the client has read them, and cut off if it
//! reads too slowly.
//!
//! A small body is one piece of bytes that holds its reservation until the connection has written
//! it. A large body is passed to the connection in copied pieces, so that its memory can be freed
//! although the connection still holds a piece. A task checks it once a window. A client that reads
//! less than [`ANSWER_WINDOW_BYTES_MIN`] bytes in a window loses the rest. A connection whose
//! client reads nothing at all is closed by its own limit. An HTTP/2 connection is also closed if
//! the client does not let it send (`unread_answers`).

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use base::{RequestClock, Result};
use bytes::Bytes;
use http::Response;
use hyper::body::{Body, Frame, SizeHint};
use metrics::KindLabels;
use tokio::task::AbortHandle;

use crate::byte_budget::{
    AnswerProgress, ByteBudget, FREE_BYTES_MAX, HeldAnswer, Reservation, ReservedBytes,
};
use crate::resources::RequestResources;

/// Default time between two checks of a large body.
pub const ANSWER_WINDOW: Duration = Duration::from_secs(30);
/// Minimum bytes of a large body that a client must read in a window: about 9 KB/s.
pub(crate) const ANSWER_WINDOW_BYTES_MIN: u64 = 256 << 10;
/// Largest body that is passed on whole, in bytes.
const WHOLE_BYTES_MAX: usize = 256 << 10;
/// Bytes of a piece of a larger body.
const PIECE_BYTES: usize = 64 << 10;

/// The part of a response's body that the connection has not taken yet.
pub struct ResponseBody {
    whole: Option<Bytes>,
    large: Option<LargeBody>,
    /// Clock of the request, which ends with the body.
    clock: Option<RequestClock>,
    held: Option<HeldAnswer>,
}

/// A large body and the task that checks it.
struct LargeBody {
    unsent: Arc<Mutex<UnsentBytes>>,
    budget: Arc<ByteBudget>,
    progress: Arc<AnswerProgress>,
    /// `None` for an answer of a stream, which only its connection checks.
    check: Option<AbortHandle>,
}

/// Rest of a body that was not sent.
struct UnsentBytes {
    /// `None` once the client was too slow.
    bytes: Option<Bytes>,
    /// Bytes taken since the last check.
    taken: u64,
}

impl ResponseBody {
    /// Creates a body of `bytes`, for which `reservation` has reserved at least their length.
    pub fn new(
        resources: &RequestResources,
        bytes: Bytes,
        mut reservation: Reservation,
    ) -> ResponseBody {
        reservation.shrink_to(bytes.len() as u64);
        if bytes.len() <= WHOLE_BYTES_MAX {
            let ReservedBytes { bytes, held } = reservation.attach_held(bytes);
            return ResponseBody { whole: Some(bytes), large: None, clock: None, held };
        }
        let mut large = LargeBody::new(resources, reservation.attach(bytes));
        let held = HeldAnswer::of(&large.progress);
        let checked = large.unsent.clone();
        let mark = held.clone();
        let metrics = resources.metrics.clone();
        let window = resources.limits.answer_window;
        let check = tokio::spawn(async move {
            loop {
                tokio::time::sleep(window).await;
                let mut unsent = lock(&checked);
                if std::mem::take(&mut unsent.taken) < ANSWER_WINDOW_BYTES_MIN {
                    unsent.bytes = None;
                    if mark.count_slow() {
                        metrics.refused.get_or_create(&KindLabels { kind: "slow_reader" }).inc();
                    }
                    return;
                }
            }
        });
        large.check = Some(check.abort_handle());
        ResponseBody { whole: None, large: Some(large), clock: None, held: Some(held) }
    }

    /// Creates the body of one answer of a stream, for which `reservation` holds at least its
    /// length, or nothing. The body has a mark for [`StreamAnswers`](crate::StreamAnswers). An
    /// answer waits for the answers before it, so a large answer has no time limit of its own.
    pub fn of_stream(
        resources: &RequestResources,
        bytes: Bytes,
        mut reservation: Reservation,
    ) -> ResponseBody {
        reservation.shrink_to(bytes.len() as u64);
        if bytes.len() <= WHOLE_BYTES_MAX {
            let ReservedBytes { bytes, held } = reservation.attach_marked(bytes);
            return ResponseBody { whole: Some(bytes), large: None, clock: None, held };
        }
        let large = LargeBody::new(resources, reservation.attach(bytes));
        let held = Some(HeldAnswer::of(&large.progress));
        ResponseBody { whole: None, large: Some(large), clock: None, held }
    }

    /// Takes the mark of a body whose bytes are counted, or that belongs to a stream. As an
    /// extension of the response it lets an HTTP/2 connection notice that its client does not read.
    pub fn take_held(&mut self) -> Option<HeldAnswer> {
        self.held.take()
    }

    /// Lets the clock of the request run until the connection has taken the last piece.
    #[must_use]
    pub fn with_clock(self, clock: Option<RequestClock>) -> ResponseBody {
        ResponseBody { clock, ..self }
    }

    /// Takes the next piece. Returns `None` at the end.
    ///
    /// # Errors
    /// `TimedOut` if the client was too slow.
    pub fn next_piece(&mut self) -> Option<std::io::Result<Bytes>> {
        if let Some(whole) = self.whole.take() {
            return Some(Ok(whole)).filter(|piece| !piece.as_ref().is_ok_and(Bytes::is_empty));
        }
        let Some(large) = self.large.as_ref() else {
            drop(self.clock.take());
            return None;
        };
        let mut unsent = lock(&large.unsent);
        let Some(bytes) = &mut unsent.bytes else {
            let slow = "the client takes its answer too slowly";
            return Some(Err(std::io::Error::new(std::io::ErrorKind::TimedOut, slow)));
        };
        let piece = Bytes::copy_from_slice(&bytes.split_to(PIECE_BYTES.min(bytes.len())));
        let last = bytes.is_empty();
        unsent.taken += piece.len() as u64;
        drop(unsent);
        large.progress.record();
        // Without room for the copy, the piece is sent uncounted, because only sent pieces free the
        // memory of the body.
        let reservation = large.budget.reserve(piece.len() as u64);
        let reservation = reservation.unwrap_or_else(|_| large.budget.empty());
        let piece = reservation.attach_piece(piece, large.progress.clone());
        if last {
            self.large = None;
        }
        Some(Ok(piece))
    }

    /// Returns the number of unsent bytes.
    fn bytes_left(&self) -> usize {
        let large = || {
            self.large.as_ref().and_then(|large| lock(&large.unsent).bytes.as_ref().map(Bytes::len))
        };
        self.whole.as_ref().map(Bytes::len).or_else(large).unwrap_or(0)
    }
}

fn lock(unsent: &Mutex<UnsentBytes>) -> MutexGuard<'_, UnsentBytes> {
    unsent.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LargeBody {
    /// Creates the body of `bytes`, which no task checks.
    fn new(resources: &RequestResources, bytes: Bytes) -> LargeBody {
        LargeBody {
            unsent: Arc::new(Mutex::new(UnsentBytes { bytes: Some(bytes), taken: 0 })),
            budget: resources.memory.clone(),
            progress: AnswerProgress::begin(),
            check: None,
        }
    }
}

impl Drop for LargeBody {
    fn drop(&mut self) {
        if let Some(check) = &self.check {
            check.abort();
        }
        // The task itself is dropped a little later.
        lock(&self.unsent).bytes = None;
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        Poll::Ready(self.next_piece().map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.large.is_none() && self.whole.as_ref().is_none_or(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes_left() as u64)
    }
}

/// Mark of a response whose body is a [`ResponseBody`].
#[derive(Clone, Copy)]
pub(crate) struct BodyCounted;

/// Counts the body of a response that its handler has not counted. A body without a length is a
/// stream and stays as it is.
///
/// # Errors
/// Returns the errors of the budget.
pub async fn count_body(
    resources: &RequestResources,
    response: Response<axum::body::Body>,
) -> Result<Response<axum::body::Body>> {
    let counted = response.extensions().get::<BodyCounted>().is_some();
    let length = response.body().size_hint().exact();
    let Some(bytes) = length.filter(|bytes| *bytes > FREE_BYTES_MAX && !counted) else {
        return Ok(response);
    };
    let reservation = resources.memory.reserve(bytes)?;
    let (head, body) = response.into_parts();
    // The body is one piece in memory, so this neither waits nor copies.
    let body = axum::body::to_bytes(body, usize::MAX).await;
    let body =
        body.map_err(|error| base::Error::internal("an answer cannot be read").caused_by(error))?;
    let mut body = ResponseBody::new(resources, body, reservation);
    let held = body.take_held();
    let mut response = Response::from_parts(head, axum::body::Body::new(body));
    if let Some(held) = held {
        response.extensions_mut().insert(held);
    }
    Ok(response)
}
