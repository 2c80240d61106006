//! A request's body, and the treatment of the part that the handler does not read.
//!
//! hyper closes an HTTP/1.1 connection whose request was not read to its end, but only after an
//! answer that promised to keep it open. So the unread part comes back here. If it is small and
//! arrives at once, it is discarded and the connection stays open. Otherwise the answer says
//! `connection: close`.
//!
//! h2 resets an HTTP/2 stream whose request was not read to its end. It forgets such streams if
//! there are more than 50 of them, and answers each DATA frame that is still in flight by a reset.
//! After some thousands it closes the connection, with all its other calls. So the part in flight
//! is discarded here. Most clients send nothing more once they have read the answer, and some of
//! them (Go) do not end the stream either. So it is reset as soon as nothing arrives for a moment.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::listen::STREAM_WINDOW;

/// Maximum bytes of an unread body that are discarded to keep its connection open.
const DISCARD_BYTES_MAX: u64 = 64 << 10;
/// Longest wait for the rest of an unread body.
const DISCARD_TIME_MAX: Duration = Duration::from_millis(100);
/// Maximum bytes of an unread HTTP/2 body that are discarded. When the answer is sent, at most one
/// window is in flight, and discarding it permits a second one.
const STREAM_DISCARD_BYTES_MAX: u64 = 2 * STREAM_WINDOW as u64;
/// Longest wait for the rest of an unread HTTP/2 body. The stream counts as open until then.
const STREAM_DISCARD_TIME_MAX: Duration = Duration::from_secs(5);
/// Time without a frame after which nothing more of the body is expected. A client whose link takes
/// longer for a frame (16 KiB) may have some frames in flight, for which h2 resets the stream
/// again.
const STREAM_QUIET_TIME: Duration = Duration::from_millis(100);

/// The body of a request.
pub struct RequestBody {
    /// `Some` until the drop.
    incoming: Option<Incoming>,
    /// True once a read has begun. A client that sent `expect: 100-continue` sends from then on.
    begun: bool,
    ended: bool,
    unread: UnreadPart,
}

/// Use of the part of a body that the handler does not read.
enum UnreadPart {
    /// HTTP/1.1: the [`BodyReclaim`] receives it.
    Returned(ReturnSlot),
    /// HTTP/2: a task discards it, which takes a permit of the connection.
    Discarded(Arc<Semaphore>),
    /// HTTP/1.1: the request has no body.
    Empty,
}

/// Receiver of the unread part of a [`RequestBody`].
pub(crate) struct BodyReclaim {
    slot: ReturnSlot,
    /// True if the client waits for permission to send the body (`expect: 100-continue`).
    expects_continue: bool,
}

type ReturnSlot = Arc<Mutex<Option<UnreadBody>>>;

/// Rest of a body that the handler did not read.
struct UnreadBody {
    incoming: Incoming,
    begun: bool,
}

impl RequestBody {
    /// Wraps the body of an HTTP/2 request, which has a stream of its own. A task discards the
    /// unread part, if `discards` has a permit for it.
    pub(crate) fn of_stream(incoming: Incoming, discards: Arc<Semaphore>) -> RequestBody {
        RequestBody::with(incoming, UnreadPart::Discarded(discards))
    }

    /// Wraps the body of an HTTP/1.1 request with these headers. Its unread part must be reclaimed
    /// unless it is empty.
    pub(crate) fn of_http1(
        incoming: Incoming,
        headers: &HeaderMap,
    ) -> (RequestBody, Option<BodyReclaim>) {
        if incoming.is_end_stream() {
            return (RequestBody::with(incoming, UnreadPart::Empty), None);
        }
        let slot = ReturnSlot::default();
        let body = RequestBody::with(incoming, UnreadPart::Returned(slot.clone()));
        let expects_continue = headers.contains_key(header::EXPECT);
        (body, Some(BodyReclaim { slot, expects_continue }))
    }

    fn with(incoming: Incoming, unread: UnreadPart) -> RequestBody {
        RequestBody { incoming: Some(incoming), begun: false, ended: false, unread }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let Some(incoming) = self.incoming.take() else { return };
        if self.ended {
            return;
        }
        match &self.unread {
            UnreadPart::Returned(slot) => {
                *slot.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(UnreadBody { incoming, begun: self.begun });
            }
            UnreadPart::Discarded(discards) => {
                // Without a permit, h2 resets the stream once its answer has ended.
                if let Ok(permit) = discards.clone().try_acquire_owned() {
                    discard_stream(incoming, permit);
                }
            }
            UnreadPart::Empty => {}
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.begun = true;
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let polled = Pin::new(incoming).poll_frame(cx);
        self.ended |= matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl BodyReclaim {
    /// Handles the unread part of the body once there is an answer. Adds `connection: close` to the
    /// answer's `headers` if the connection cannot be kept.
    pub(crate) async fn finish(self, headers: &mut HeaderMap) {
        if !headers.contains_key(header::CONNECTION) && !self.ends_reusable().await {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// Returns true if the body was read, is still being read, or its small rest was discarded.
    async fn ends_reusable(self) -> bool {
        let rest = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(UnreadBody { incoming, begun }) = rest else { return true };
        // The first read would make a waiting client send the body.
        if incoming.size_hint().lower() > DISCARD_BYTES_MAX || (self.expects_continue && !begun) {
            return false;
        }
        incoming.is_end_stream()
            || timeout(DISCARD_TIME_MAX, discard(incoming, DISCARD_BYTES_MAX, DISCARD_TIME_MAX))
                .await
                .unwrap_or(false)
    }
}

/// Discards the rest of an HTTP/2 body in a task, until the client ends the stream or sends nothing
/// more. Past the limits, and outside a runtime, the body is dropped instead. h2 then resets the
/// stream once its answer has ended.
fn discard_stream(incoming: Incoming, permit: OwnedSemaphorePermit) {
    if incoming.is_end_stream() {
        return;
    }
    let Ok(runtime) = Handle::try_current() else { return };
    drop(runtime.spawn(async move {
        let discarded = discard(incoming, STREAM_DISCARD_BYTES_MAX, STREAM_QUIET_TIME);
        // The body is dropped after each outcome.
        let _ = timeout(STREAM_DISCARD_TIME_MAX, discarded).await;
        drop(permit);
    }));
}

/// Discards up to `bytes_max` bytes of the body, while frames arrive within `quiet_time`. Returns
/// true if its end was reached.
async fn discard(mut incoming: Incoming, bytes_max: u64, quiet_time: Duration) -> bool {
    let mut left = bytes_max;
    loop {
        let frame = match timeout(quiet_time, incoming.frame()).await {
            Ok(None) => return true,
            Ok(Some(Ok(frame))) => frame,
            Err(_) | Ok(Some(Err(_))) => return false,
        };
        let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
        match left.checked_sub(bytes) {
            Some(less) => left = less,
            None => return false,
        }
    }
}
