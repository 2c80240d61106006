//! Reads request bodies within limits of size, of the time between two pieces, and of the whole
//! time.

use std::future::poll_fn;
use std::io;
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
use crate::receive_permits::{ReceivePermits, UNPERMITTED_WAIT_MAX};

/// Limits of the size of one body and of the time for it.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Largest body in bytes.
    pub bytes_max: usize,
    /// Flag that raises `bytes_max`, or `None` if it is fixed.
    pub flag: Option<&'static str>,
    /// Bytes of framing that do not count, such as the prefix of a gRPC message.
    pub framing_bytes: usize,
    /// Longest wait for the next piece.
    pub piece_timeout: Duration,
    /// Longest wait for the whole body.
    pub total_timeout: Duration,
}

impl BodyLimits {
    /// Refuses a body whose announced length is over the limit.
    fn check(&self, length: Option<u64>) -> Result<()> {
        let max = (self.bytes_max as u64).saturating_add(self.framing_bytes as u64);
        if length.is_none_or(|length| length <= max) {
            return Ok(());
        }
        let limit = self.bytes_max;
        Err(Error::too_large(match self.flag {
            Some(flag) => {
                format!("the body is larger than {limit} bytes; send less or raise {flag}")
            }
            None => {
                format!("the body is larger than {limit} bytes, the limit of this call; send less")
            }
        }))
    }
}

/// Resources that a body holds while it arrives.
pub struct BodyAccounting<'a> {
    /// Grows with the body.
    pub reservation: Reservation,
    /// Permits for bodies that do not arrive at once, or `None` if the number of connections bounds
    /// them.
    pub receive_permits: Option<&'a ReceivePermits>,
}

/// A wait for a body, either with a receive permit, or for a short time without one.
#[derive(Default)]
struct BodyWait {
    permit: Option<OwnedSemaphorePermit>,
    /// Timer that ends the wait without a permit.
    timer: Option<Pin<Box<Sleep>>>,
}

impl BodyWait {
    /// Returns the refusal once the wait without a permit took too long.
    fn poll_refused(&mut self, permits: &ReceivePermits, cx: &mut Context<'_>) -> Poll<Error> {
        if self.permit.is_none() && self.timer.is_none() {
            self.permit = permits.try_acquire();
        }
        if self.permit.is_some() {
            return Poll::Pending;
        }
        let timer =
            self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(UNPERMITTED_WAIT_MAX)));
        timer.as_mut().poll(cx).map(|()| permits.refusal())
    }
}

/// The next frame of a body. `None` is its end.
pub type NextFrame<B> = Option<std::result::Result<Frame<<B as Body>::Data>, <B as Body>::Error>>;

/// Polls the next frame of `body` within the limits of `timeout`.
///
/// # Errors
/// `ClientTimeout` if the frame, or the whole body, takes too long.
pub fn poll_within<B: Body + Unpin>(
    body: &mut B,
    timeout: &mut ProgressTimeout,
    cx: &mut Context<'_>,
) -> Poll<Result<NextFrame<B>>> {
    match Pin::new(body).poll_frame(cx) {
        Poll::Ready(frame) => {
            timeout.record_progress();
            Poll::Ready(Ok(frame))
        }
        Poll::Pending => timeout.poll_elapsed(cx).map(|()| Err(timeout.error())),
    }
}

/// Reads a whole body, whose length may be `announced`. A body of one piece is not copied. The
/// returned bytes hold their part of the budget.
///
/// # Errors
/// `TooLarge` as soon as the announced or the received length exceeds the limit. `ClientTimeout` if
/// the client stalls or takes too long. `InvalidArgument` if the body breaks off.
/// `ResourceExhausted` if the budget is used up or too many bodies are awaited.
pub async fn read<B>(
    body: B,
    announced: Option<u64>,
    limits: BodyLimits,
    accounting: BodyAccounting<'_>,
) -> Result<Bytes>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    limits.check(announced)?;
    read_framed(body, |_| announced, limits, accounting).await
}

/// Returns the error of a body that ended early, or whose chunks are malformed.
fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    let mut cause: &(dyn std::error::Error + 'static) = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
    if matches!(kind, Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)) {
        // The message of hyper does not contain its cause.
        return Error::invalid(format!("the body cannot be read: {cause}")).with_source(error);
    }
    Error::invalid("the body ended early").caused_by(error)
}

/// Reads a whole body as [`read`] does. `length_of` returns the length of a body from its
/// first bytes, if they contain it.
///
/// # Errors
/// Returns the errors of [`read`].
pub async fn read_framed<B>(
    mut body: B,
    length_of: impl Fn(&[u8]) -> Option<u64>,
    limits: BodyLimits,
    accounting: BodyAccounting<'_>,
) -> Result<Bytes>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let mut timeout = ProgressTimeout::new(limits.piece_timeout, limits.total_timeout);
    let mut first = Bytes::new();
    let mut rest: Option<BytesMut> = None;
    let BodyAccounting { mut reservation, receive_permits } = accounting;
    let mut waiting = BodyWait::default();
    let mut next = |cx: &mut Context<'_>| {
        let polled = poll_within(&mut body, &mut timeout, cx);
        match receive_permits.filter(|_| polled.is_pending()) {
            Some(permits) => waiting.poll_refused(permits, cx).map(Err),
            None => polled,
        }
    };
    while let Some(frame) = poll_fn(&mut next).await? {
        let frame = frame.map_err(unreadable)?;
        let Ok(data) = frame.into_data() else { continue };
        let so_far = rest.as_ref().map_or(first.len(), BytesMut::len);
        limits.check(Some((so_far + data.len()) as u64))?;
        match &mut rest {
            Some(rest) => {
                if rest.capacity() - rest.len() < data.len() {
                    // Growing holds the old and the new memory for a moment.
                    let room = (2 * rest.capacity()).max(rest.len() + data.len());
                    reservation.grow(room as u64)?;
                    rest.reserve(room - rest.len());
                    reservation.shrink_to(rest.capacity() as u64);
                }
                rest.extend_from_slice(&data);
            }
            None if first.is_empty() => {
                limits.check(length_of(&data))?;
                reservation.cover(data.len() as u64)?;
                first = data;
            }
            None => {
                // The length comes from the client; it was checked against the limit.
                let announced = length_of(&first).unwrap_or(0) as usize;
                let room = announced.max(first.len() + data.len());
                reservation.shrink_to(0);
                reservation.grow(room as u64)?;
                let mut joined = BytesMut::with_capacity(room);
                joined.extend_from_slice(&first);
                joined.extend_from_slice(&data);
                rest = Some(joined);
            }
        }
    }
    Ok(reservation.attach(rest.map_or(first, BytesMut::freeze)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::byte_budget::ByteBudget;
    use crate::run;
    use base::ErrorKind;
    use http_body_util::{Full, StreamBody};

    const LIMITS: BodyLimits = BodyLimits {
        bytes_max: 8,
        flag: None,
        framing_bytes: 0,
        piece_timeout: Duration::from_secs(600),
        total_timeout: Duration::from_millis(50),
    };

    fn accounting<'a>(
        budget: &std::sync::Arc<ByteBudget>,
        permits: &'a ReceivePermits,
    ) -> BodyAccounting<'a> {
        BodyAccounting { reservation: budget.empty(), receive_permits: Some(permits) }
    }

    fn budget(bytes: u64) -> std::sync::Arc<ByteBudget> {
        ByteBudget::new(bytes, Default::default())
    }

    #[test]
    fn a_body_in_pieces_counts_its_memory() {
        let limits = BodyLimits { bytes_max: 1 << 20, ..LIMITS };
        let pieces = |count: usize| {
            let piece =
                || Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(vec![7; 1000])));
            StreamBody::new(tokio_stream::iter((0..count).map(move |_| piece())))
        };
        let (budget, permits) = (budget(100_000), ReceivePermits::new(1, Default::default()));
        let announced =
            run(read(pieces(2), Some(100_001), limits, accounting(&budget, &permits))).unwrap_err();
        assert_eq!(announced.kind(), ErrorKind::TooLarge, "{announced}");
        let grown =
            run(read(pieces(200), None, limits, accounting(&budget, &permits))).unwrap_err();
        assert_eq!(grown.kind(), ErrorKind::TooLarge, "{grown}");
        assert!(budget.used() == 0 && budget.peak() <= 100_000);
        let body = run(read(pieces(20), None, limits, accounting(&budget, &permits))).unwrap();
        assert!(body.len() == 20_000 && budget.used() >= 20_000);
        drop(body);
        assert_eq!(budget.used(), 0);
    }

    fn kind(body: &'static [u8], announced: Option<u64>) -> std::result::Result<Bytes, ErrorKind> {
        let permits = ReceivePermits::new(1, Default::default());
        run(read(
            Full::new(Bytes::from_static(body)),
            announced,
            LIMITS,
            accounting(&budget(8), &permits),
        ))
        .map_err(|e| e.kind())
    }

    #[test]
    fn the_limit_holds_with_and_without_an_announced_length() {
        assert_eq!(kind(b"12345678", None), Ok(Bytes::from_static(b"12345678")));
        assert_eq!(kind(b"123456789", None), Err(ErrorKind::TooLarge));
        assert_eq!(kind(b"", Some(9)), Err(ErrorKind::TooLarge));
        let framed = BodyLimits { framing_bytes: 5, ..LIMITS };
        assert!(framed.check(Some(13)).is_ok());
        let refusal = |limits: BodyLimits| limits.check(Some(14)).unwrap_err().to_string();
        assert!(refusal(framed).contains("larger than 8 bytes, the limit of this call"));
        let raised = BodyLimits { flag: Some("--max-body"), ..framed };
        assert!(refusal(raised).contains("send less or raise --max-body"));
    }

    /// Every piece is in time, and the body never ends.
    #[test]
    fn an_endless_body_times_out() {
        use tokio_stream::StreamExt;
        let endless = tokio_stream::iter(std::iter::repeat_with(|| {
            Ok::<_, std::convert::Infallible>(Frame::data(Bytes::new()))
        }));
        let permits = ReceivePermits::new(1, Default::default());
        let dribbling = async |stream| {
            read(StreamBody::new(Box::pin(stream)), None, LIMITS, accounting(&budget(8), &permits))
                .await
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
