//! Responses of calls: frames of messages, and the status at their end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use base::{Error, Result};
use bytes::{BufMut, Bytes};
use http::{HeaderMap, HeaderValue, header};
use hyper::body::Frame;
use inference::RequestTicket;
use protocol::Message;
use transport::{RequestResources, Reservation, ResponseBody};

use super::messages::PREFIX_BYTES;
use super::status::{GRPC_STATUS, status_headers};
use super::stream::AnswerReceiver;

/// Content type of calls and responses.
pub(super) const CONTENT_TYPE: &str = "application/grpc";

pub(super) type Response = http::Response<ResponseFrames>;

/// Returns the response with one message or an error. The reservation belongs to the call, the
/// ticket to a request that ran a model.
pub(super) fn single<M: Message>(
    requests: &RequestResources,
    answer: Result<(M, Reservation)>,
    ticket: Option<RequestTicket>,
) -> Response {
    match answer.and_then(|(message, reservation)| encode(requests, &message, reservation)) {
        Err(error) => {
            if let Some(ticket) = &ticket {
                ticket.fail(&error);
            }
            failed(&error)
        }
        Ok(frame) => {
            let frame = frame.with_clock(ticket.map(RequestTicket::into_encoded));
            respond(ResponseFrames { frame: Some(frame), ..ResponseFrames::default() })
        }
    }
}

/// Returns the response with the frames of a stream. The first error ends it.
pub(super) fn stream(answers: AnswerReceiver) -> Response {
    respond(ResponseFrames { more: Some(answers), ..ResponseFrames::default() })
}

/// Returns the response of a call that failed. It has headers with the status, and no body.
pub(super) fn failed(error: &Error) -> Response {
    let mut response = respond(ResponseFrames { ended: true, ..ResponseFrames::default() });
    response.headers_mut().extend(status_headers(error));
    response
}

fn respond(mut frames: ResponseFrames) -> Response {
    let held = frames.frame.as_mut().and_then(ResponseBody::take_held);
    let mut response = http::Response::new(frames);
    if let Some(held) = held {
        response.extensions_mut().insert(held);
    }
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    response
}

/// Returns the frame of a message, which takes over the reservation of its call.
///
/// # Errors
/// `ResourceExhausted` for more than 4 GiB, and the errors of the budget.
fn encode<M: Message>(
    requests: &RequestResources,
    message: &M,
    reservation: Reservation,
) -> Result<ResponseBody> {
    let (frame, reservation) = encode_frame(message, reservation)?;
    Ok(ResponseBody::new(requests, frame, reservation))
}

/// Returns the frame of a message of a stream, which takes over the reservation of its request.
///
/// # Errors
/// `ResourceExhausted` for more than 4 GiB, and the errors of the budget.
pub(super) fn encode_streamed<M: Message>(
    requests: &RequestResources,
    message: &M,
    reservation: Reservation,
) -> Result<ResponseBody> {
    let (frame, reservation) = encode_frame(message, reservation)?;
    Ok(ResponseBody::of_stream(requests, frame, reservation))
}

/// Encodes an uncompressed frame, and returns it with `reservation`, which then covers its bytes.
fn encode_frame<M: Message>(
    message: &M,
    mut reservation: Reservation,
) -> Result<(Bytes, Reservation)> {
    let length = message.encoded_len();
    let prefix = prefix(length)?;
    // The request is freed; the outputs live until they are copied into the frame.
    reservation.shrink_to(0);
    reservation.cover(2 * length as u64)?;
    let mut frame = Vec::with_capacity(PREFIX_BYTES + length);
    frame.put_u8(0);
    frame.put_u32(prefix);
    message
        .encode(&mut frame)
        .map_err(|error| Error::internal("encoding the answer").caused_by(error))?;
    Ok((frame.into(), reservation))
}

/// Returns the response with a message that is encoded already, as [`encode`] does.
///
/// # Errors
/// As [`encode`].
pub(super) fn encoded(
    requests: &RequestResources,
    message: &[u8],
    mut reservation: Reservation,
) -> Result<Response> {
    let prefix = prefix(message.len())?;
    reservation.shrink_to(0);
    reservation.cover(2 * message.len() as u64)?;
    let mut frame = Vec::with_capacity(PREFIX_BYTES + message.len());
    frame.put_u8(0);
    frame.put_u32(prefix);
    frame.put_slice(message);
    let frame = ResponseBody::new(requests, frame.into(), reservation);
    Ok(respond(ResponseFrames { frame: Some(frame), ..ResponseFrames::default() }))
}

/// Returns the length of a message for its frame.
///
/// # Errors
/// `ResourceExhausted` for more than 4 GiB.
fn prefix(length: usize) -> Result<u32> {
    u32::try_from(length).map_err(|_| {
        Error::exhausted(format!("the answer has {length} bytes, and gRPC carries 4 GiB"))
    })
}

/// Frames of messages, and then the status of the call.
#[derive(Default)]
pub(crate) struct ResponseFrames {
    frame: Option<ResponseBody>,
    more: Option<AnswerReceiver>,
    ended: bool,
}

type NextBytesFrame = Option<io::Result<Frame<Bytes>>>;

impl ResponseFrames {
    fn end(&mut self, failure: Option<&Error>) -> Poll<NextBytesFrame> {
        if std::mem::replace(&mut self.ended, true) {
            return Poll::Ready(None);
        }
        let succeeded = || HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static("0"))]);
        let trailers = failure.map_or_else(succeeded, status_headers);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}

impl hyper::body::Body for ResponseFrames {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextBytesFrame> {
        loop {
            match self.frame.as_mut().and_then(ResponseBody::next_piece) {
                Some(piece) => return Poll::Ready(Some(piece.map(Frame::data))),
                None => self.frame = None,
            }
            let ended = self.ended;
            let next = match self.more.as_mut().filter(|_| !ended) {
                None => return self.end(None),
                Some(more) => more.poll_next(cx),
            };
            match next {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return self.end(None),
                Poll::Ready(Some(Ok(frame))) => self.frame = Some(frame),
                Poll::Ready(Some(Err(error))) => return self.end(Some(&error)),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}
