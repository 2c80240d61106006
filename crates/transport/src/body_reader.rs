//! Reading request bodies: bounded in size, in the time between two pieces, and in the time for all.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base::{Error, Result};
use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;

use crate::byte_budget::Reservation;
use crate::progress_timeout::ProgressTimeout;
use crate::receive_permits::{ReceivePermits, WITHOUT_PLACE_MAX};

/// Limits for one body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    /// Largest body in bytes.
    pub(crate) bytes_max: usize,
    /// Bytes around the body that do not count, such as the prefix of a gRPC message.
    pub(crate) framing_bytes: usize,
    /// Longest wait for the next piece.
    pub(crate) piece_timeout: Duration,
    /// Longest wait for all of it.
    pub(crate) total_timeout: Duration,
}

impl BodyLimits {
    fn check(&self, length: Option<u64>) -> Result<()> {
        let max = (self.bytes_max as u64).saturating_add(self.framing_bytes as u64);
        match length {
            Some(length) if length > max => Err(Error::too_large(format!(
                "the body is larger than {} bytes; send less or raise --max-body",
                self.bytes_max
            ))),
            _ => Ok(()),
        }
    }
}

/// What a body is counted in.
pub(crate) struct BodyAccounting<'a> {
    /// Holds the body's bytes of the budget.
    pub(crate) held: Reservation,
    /// Gives a place to a body that has to be waited for; `None` if the number of connections bounds these bodies.
    pub(crate) receive_permits: Option<&'a ReceivePermits>,
}

/// A body that is waited for: with a place among the requests being received, or without one for a short time.
#[derive(Default)]
struct BodyWait {
    place: Option<OwnedSemaphorePermit>,
    without: Option<Pin<Box<Sleep>>>,
}

impl BodyWait {
    /// Returns the refusal once the body was waited for too long without a place.
    fn poll_refused(&mut self, permits: &ReceivePermits, cx: &mut Context<'_>) -> Poll<Error> {
        if self.place.is_none() && self.without.is_none() {
            self.place = permits.wait();
        }
        if self.place.is_some() {
            return Poll::Pending;
        }
        let without = self.without.get_or_insert_with(|| Box::pin(tokio::time::sleep(WITHOUT_PLACE_MAX)));
        without.as_mut().poll(cx).map(|()| permits.refusal())
    }
}

/// A body's next frame, or its end.
pub(crate) type Next<B> = Option<std::result::Result<Frame<<B as Body>::Data>, <B as Body>::Error>>;

/// What comes of a body within `progress`; the error says what was too long.
pub(crate) fn poll_within<B: Body + Unpin>(
    body: &mut B,
    progress: &mut ProgressTimeout,
    cx: &mut Context<'_>,
) -> Poll<Result<Next<B>>> {
    match Pin::new(body).poll_frame(cx) {
        Poll::Ready(frame) => {
            progress.record_progress();
            Poll::Ready(Ok(frame))
        }
        Poll::Pending => progress.poll_elapsed(cx).map(|()| Err(progress.error())),
    }
}

/// Returns the whole body, whose length may be `announced`; a body of one piece is not copied. It holds its bytes of the
/// budget, as `accounting` says.
///
/// # Errors
/// `TooLarge` as soon as the announced or the received length passes the limit, `ClientTimeout` when the client
/// stalls or takes too long, `InvalidArgument` when it breaks off, and those of the budget and of [`ReceivePermits::refusal`].
pub(crate) async fn read<B>(
    body: B,
    announced: Option<u64>,
    limits: BodyLimits,
    accounting: BodyAccounting<'_>,
) -> Result<Bytes>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    limits.check(announced)?;
    read_told(body, |_| announced, limits, accounting).await
}

/// As [`read`], for a body whose first piece may tell its length.
///
/// # Errors
/// As [`read`].
pub(crate) async fn read_told<B>(
    mut body: B,
    told: impl Fn(&[u8]) -> Option<u64>,
    limits: BodyLimits,
    accounting: BodyAccounting<'_>,
) -> Result<Bytes>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let mut progress = ProgressTimeout::new(limits.piece_timeout, limits.total_timeout);
    let mut first = Bytes::new();
    let mut rest: Option<BytesMut> = None;
    let BodyAccounting { mut held, receive_permits } = accounting;
    let mut waiting = BodyWait::default();
    let mut next = |cx: &mut Context<'_>| {
        let polled = poll_within(&mut body, &mut progress, cx);
        match receive_permits.filter(|_| polled.is_pending()) {
            Some(permits) => waiting.poll_refused(permits, cx).map(Err),
            None => polled,
        }
    };
    while let Some(frame) = poll_fn(&mut next).await? {
        let frame = frame.map_err(|error| Error::invalid(format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let so_far = rest.as_ref().map_or(first.len(), BytesMut::len);
        limits.check(Some((so_far + data.len()) as u64))?;
        match &mut rest {
            Some(rest) => {
                if rest.capacity() - rest.len() < data.len() {
                    // Growing holds the old and the new place for a moment.
                    let room = (2 * rest.capacity()).max(rest.len() + data.len());
                    held.grow(room as u64)?;
                    rest.reserve(room - rest.len());
                    held.shrink_to(rest.capacity() as u64);
                }
                rest.extend_from_slice(&data);
            }
            None if first.is_empty() => {
                limits.check(told(&data))?;
                held.cover(data.len() as u64)?;
                first = data;
            }
            None => {
                // A hint from outside, and not above the limit.
                let announced = told(&first).unwrap_or(0) as usize;
                let room = announced.max(first.len() + data.len());
                held.shrink_to(0);
                held.grow(room as u64)?;
                let mut joined = BytesMut::with_capacity(room);
                joined.extend_from_slice(&first);
                joined.extend_from_slice(&data);
                rest = Some(joined);
            }
        }
    }
    Ok(held.attach(rest.map_or(first, BytesMut::freeze)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::byte_budget::ByteBudget;
    use base::ErrorKind;
    use http_body_util::{Full, StreamBody};

    const LIMITS: BodyLimits = BodyLimits {
        bytes_max: 8,
        framing_bytes: 0,
        piece_timeout: Duration::from_secs(600),
        total_timeout: Duration::from_millis(50),
    };

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    fn accounting<'a>(
        budget: &std::sync::Arc<ByteBudget>,
        permits: &'a ReceivePermits,
    ) -> BodyAccounting<'a> {
        BodyAccounting { held: budget.nothing(), receive_permits: Some(permits) }
    }

    fn budget(bytes: u64) -> std::sync::Arc<ByteBudget> {
        ByteBudget::new(bytes, Default::default())
    }

    #[test]
    fn a_body_in_pieces_takes_of_the_budget_what_it_has_room_for() {
        let limits = BodyLimits { bytes_max: 1 << 20, ..LIMITS };
        let pieces = |count: usize| {
            let piece = || Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(vec![7; 1000])));
            StreamBody::new(tokio_stream::iter((0..count).map(move |_| piece())))
        };
        let (budget, permits) = (budget(100_000), ReceivePermits::new(1, Default::default()));
        let announced =
            run(read(pieces(2), Some(100_001), limits, accounting(&budget, &permits))).unwrap_err();
        assert_eq!(announced.kind(), ErrorKind::TooLarge, "{announced}");
        let grown = run(read(pieces(200), None, limits, accounting(&budget, &permits))).unwrap_err();
        assert_eq!(grown.kind(), ErrorKind::TooLarge, "{grown}");
        assert!(budget.used() == 0 && budget.peak() <= 100_000);
        let body = run(read(pieces(20), None, limits, accounting(&budget, &permits))).unwrap();
        assert!(body.len() == 20_000 && budget.used() >= 20_000);
        drop(body);
        assert_eq!(budget.used(), 0);
    }

    fn kind(body: &'static [u8], announced: Option<u64>) -> std::result::Result<Bytes, ErrorKind> {
        let permits = ReceivePermits::new(1, Default::default());
        run(read(Full::new(Bytes::from_static(body)), announced, LIMITS, accounting(&budget(8), &permits)))
            .map_err(|e| e.kind())
    }

    #[test]
    fn the_bound_holds_announced_or_not() {
        assert_eq!(kind(b"12345678", None), Ok(Bytes::from_static(b"12345678")));
        assert_eq!(kind(b"123456789", None), Err(ErrorKind::TooLarge));
        assert_eq!(kind(b"", Some(9)), Err(ErrorKind::TooLarge));
        let framed = BodyLimits { framing_bytes: 5, ..LIMITS };
        assert!(framed.check(Some(13)).is_ok());
        assert!(framed.check(Some(14)).unwrap_err().message().contains("larger than 8 bytes"));
    }

    /// Pieces that always come in time, for ever.
    #[test]
    fn a_body_that_dribbles_ends() {
        use tokio_stream::StreamExt;
        let endless = tokio_stream::iter(std::iter::repeat_with(|| {
            Ok::<_, std::convert::Infallible>(Frame::data(Bytes::new()))
        }));
        let permits = ReceivePermits::new(1, Default::default());
        let dribbling = async |stream| {
            read(StreamBody::new(Box::pin(stream)), None, LIMITS, accounting(&budget(8), &permits)).await
        };
        let pause = Duration::from_millis(5);
        let read = run(async {
            dribbling(endless.then(async |piece| {
                tokio::time::sleep(pause).await;
                piece
            }))
            .await
        });
        assert_eq!(read.unwrap_err().kind(), ErrorKind::ClientTimeout);
    }
}
