//! A request's body on its way to a handler, and back where the handler did not want all of it.
//!
//! hyper closes a connection whose request was not read to its end, but only after an answer that promised to keep
//! it. So what a handler leaves is given back: a little that comes at once is thrown away and the connection kept;
//! otherwise the answer says that it will be closed.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// Of a body that nobody wants so many bytes are thrown away to keep the connection, if they come within the time.
const DISCARD_BYTES_MAX: u64 = 64 << 10;
const DISCARD_TIME_MAX: Duration = Duration::from_millis(100);

/// The body, as handlers get it.
pub(crate) struct RequestBody {
    /// There until it is given back.
    incoming: Option<Incoming>,
    /// Somebody has begun to read; a client that waits to be told so sends from then on.
    begun: bool,
    ended: bool,
    /// Where it is given back to.
    back: Option<ReturnSlot>,
}

/// Where it comes back to.
pub(crate) struct BodyReclaim {
    slot: ReturnSlot,
    /// The client sends nothing before it is asked to.
    waits: bool,
}

type ReturnSlot = Arc<Mutex<Option<UnreadBody>>>;

struct UnreadBody {
    incoming: Incoming,
    begun: bool,
}

impl RequestBody {
    /// With the `headers` of an HTTP/1.1 request it is given back, unless there is nothing of it. Without, each request
    /// has a stream of its own (HTTP/2), and what is left of one is in nobody's way.
    pub(crate) fn new(incoming: Incoming, headers: Option<&HeaderMap>) -> (RequestBody, Option<BodyReclaim>) {
        let headers = headers.filter(|_| !incoming.is_end_stream());
        let reclaim = headers.map(|headers| BodyReclaim {
            slot: ReturnSlot::default(),
            waits: headers.contains_key(header::EXPECT),
        });
        let back = reclaim.as_ref().map(|reclaim| reclaim.slot.clone());
        (RequestBody { incoming: Some(incoming), begun: false, ended: false, back }, reclaim)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let (Some(slot), Some(incoming), false) = (&self.back, self.incoming.take(), self.ended) {
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
    /// Once there is an answer: keeps the connection if it can be kept, and otherwise says in the answer's headers that
    /// it will be closed.
    pub(crate) async fn finish(self, headers: &mut HeaderMap) {
        if !headers.contains_key(header::CONNECTION) && !self.is_reusable().await {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// Whether the body was read, is still being read, or little was left of it.
    async fn is_reusable(self) -> bool {
        let rest = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(UnreadBody { incoming, begun }) = rest else { return true };
        // Whoever waits to be asked would be, by the first read, for what nobody wants.
        if incoming.size_hint().lower() > DISCARD_BYTES_MAX || (self.waits && !begun) {
            return false;
        }
        incoming.is_end_stream()
            || tokio::time::timeout(DISCARD_TIME_MAX, discard(incoming)).await.unwrap_or(false)
    }
}

/// Throws away what comes; whether that was all of it.
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
