//! A request's body, and the fate of the part that the handler does not read.
//!
//! hyper closes a connection whose request was not read to its end, but only after an answer that
//! promised to keep it open. So the unread part comes back here. If it is small and arrives at once
//! it is discarded and the connection stays open; otherwise the answer says `connection: close`.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// Maximum bytes of an unread body that are discarded to keep its connection open.
const DISCARD_BYTES_MAX: u64 = 64 << 10;
/// Longest wait for these bytes.
const DISCARD_TIME_MAX: Duration = Duration::from_millis(100);

/// The body of a request.
pub struct RequestBody {
    /// `Some` until the drop.
    incoming: Option<Incoming>,
    /// True once a read has begun; a client that sent `expect: 100-continue` sends from then on.
    begun: bool,
    ended: bool,
    /// Receives the unread part.
    unread: Option<ReturnSlot>,
}

/// Receives the unread part of a [`RequestBody`].
pub(crate) struct BodyReclaim {
    slot: ReturnSlot,
    /// True if the client waits for permission to send the body (`expect: 100-continue`).
    expects_continue: bool,
}

type ReturnSlot = Arc<Mutex<Option<UnreadBody>>>;

struct UnreadBody {
    incoming: Incoming,
    begun: bool,
}

impl RequestBody {
    /// Wraps the body of a request. `headers` are the headers of an HTTP/1.1 request, whose unread
    /// body must be reclaimed unless it is empty. They are `None` for HTTP/2, which has a stream
    /// for each request.
    pub(crate) fn new(
        incoming: Incoming,
        headers: Option<&HeaderMap>,
    ) -> (RequestBody, Option<BodyReclaim>) {
        let headers = headers.filter(|_| !incoming.is_end_stream());
        let reclaim = headers.map(|headers| BodyReclaim {
            slot: ReturnSlot::default(),
            expects_continue: headers.contains_key(header::EXPECT),
        });
        let unread = reclaim.as_ref().map(|reclaim| reclaim.slot.clone());
        (RequestBody { incoming: Some(incoming), begun: false, ended: false, unread }, reclaim)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let (Some(slot), Some(incoming), false) =
            (&self.unread, self.incoming.take(), self.ended)
        {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(UnreadBody { incoming, begun: self.begun });
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
            || tokio::time::timeout(DISCARD_TIME_MAX, discard(incoming)).await.unwrap_or(false)
    }
}

/// Discards the body. Returns true if its end was reached.
async fn discard(mut incoming: Incoming) -> bool {
    let mut left = DISCARD_BYTES_MAX;
    loop {
        let frame = match incoming.frame().await {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => frame,
        };
        let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
        match left.checked_sub(bytes) {
            Some(less) => left = less,
            None => return false,
        }
    }
}
