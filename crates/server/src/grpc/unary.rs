//! Calls of one message in and one out, which is what inference is, and the frames of answers.
//!
//! tonic is made for streams of messages: it copies what arrives into a buffer of its own, doubles that buffer before it
//! decodes a message that has arrived whole, and decodes without a look at what the message becomes. Here a message that
//! comes in one piece is weighed and decoded where it lies (ADR 0006).

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base::{Error, Result};
use bytes::{BufMut, Bytes};
use http::{HeaderMap, HeaderValue, header};
use hyper::body::Frame;
use protocol::Message;
use protocol::weigh::Weighed;
use tokio::sync::mpsc;
use tonic::Status;
use tonic::body::Body;

use super::messages::{self, Decoded};
use super::status::grpc_status;
use crate::app::{App, Ticket};
use transport::RequestBody;
use transport::Reservation;
use transport::ResponseBody;

/// Before each message: whether it is compressed, and its length (gRPC over HTTP/2, "Length-Prefixed-Message").
pub(super) const PREFIX_BYTES: usize = 5;

/// A request's message and how long its client waits, once all of it is there.
pub(super) struct ReceivedCall<M> {
    pub(super) ticket: Ticket,
    pub(super) decoded: Decoded<M>,
    pub(super) timeout: Option<Duration>,
}

/// Reads a request.
///
/// # Errors
/// `TooLarge` and `ClientTimeout` as any body, `InvalidArgument` for what is not one message, and those of the budget. They
/// are counted.
pub(super) async fn read<M: Weighed + Send + 'static>(
    app: &App,
    protocol: &'static str,
    request: http::Request<RequestBody>,
) -> Result<ReceivedCall<M>> {
    let (head, body) = request.into_parts();
    let frame = messages::frame(app, body, app.requests.limits.body_bytes_max).await;
    let ticket = App::begin(protocol);
    let decoded = async {
        let message = messages::message(app, messages::coding(&head.headers)?, frame?).await?;
        messages::decode(app, message).await
    };
    let decoded = decoded.await.inspect_err(|error| app.reject(&ticket, error))?;
    Ok(ReceivedCall { ticket, decoded, timeout: super::timeout(&head.headers) })
}

/// The length of a body that begins like this.
pub(super) fn told(first: &[u8]) -> Option<u64> {
    let length = first.first_chunk::<PREFIX_BYTES>()?.last_chunk::<4>()?;
    Some(u64::from(u32::from_be_bytes(*length)) + PREFIX_BYTES as u64)
}

/// Returns the response that carries `answer`; `held` is what the call holds of the budget.
pub(super) fn response<M: Message>(app: &App, answer: Result<(M, Reservation)>) -> http::Response<Body> {
    match answer.and_then(|(message, held)| encoded(app, &message, held)) {
        Err(error) => grpc_status(&error).into_http(),
        Ok(frame) => respond(MessageFrames { frame: Some(frame), more: None, told: false }),
    }
}

/// Returns the response that carries the frames of a stream, up to the first error, with which it ends.
pub(super) fn stream(frames: mpsc::Receiver<Result<ResponseBody>>) -> http::Response<Body> {
    respond(MessageFrames { frame: None, more: Some(frames), told: false })
}

fn respond(frames: MessageFrames) -> http::Response<Body> {
    let mut response = http::Response::new(Body::new(frames));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// Returns the frame of a message; `held` is what the call holds of the budget.
///
/// # Errors
/// `ResourceExhausted` for more than 4 GiB, and those of the budget.
pub(super) fn encoded<M: Message>(app: &App, message: &M, mut held: Reservation) -> Result<ResponseBody> {
    let length = message.encoded_len();
    let prefix = u32::try_from(length)
        .map_err(|_| Error::exhausted(format!("the answer has {length} bytes, and gRPC carries 4 GiB")))?;
    // The request is gone; the outputs are there until they are copied into the frame.
    held.shrink_to(0);
    held.cover(2 * length as u64)?;
    let mut frame = Vec::with_capacity(PREFIX_BYTES + length);
    frame.put_u8(0);
    frame.put_u32(prefix);
    message.encode(&mut frame).map_err(|error| Error::internal(format!("encoding the answer: {error}")))?;
    Ok(ResponseBody::new(&app.requests, frame.into(), held))
}

/// Messages, and then how the call ended.
struct MessageFrames {
    frame: Option<ResponseBody>,
    more: Option<mpsc::Receiver<Result<ResponseBody>>>,
    told: bool,
}

impl MessageFrames {
    fn end(&mut self, status: Option<Status>) -> Poll<Option<std::result::Result<Frame<Bytes>, Status>>> {
        if std::mem::replace(&mut self.told, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::with_capacity(1);
        match status {
            None => drop(trailers.insert("grpc-status", HeaderValue::from_static("0"))),
            Some(status) => status.add_header(&mut trailers)?,
        }
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}

impl hyper::body::Body for MessageFrames {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Status>>> {
        loop {
            match self.frame.as_mut().and_then(ResponseBody::next_piece) {
                Some(Ok(piece)) => return Poll::Ready(Some(Ok(Frame::data(piece)))),
                Some(Err(slow)) => return Poll::Ready(Some(Err(Status::cancelled(slow.to_string())))),
                None => self.frame = None,
            }
            let told = self.told;
            let next = match self.more.as_mut().filter(|_| !told) {
                None => return self.end(None),
                Some(more) => more.poll_recv(cx),
            };
            match next {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return self.end(None),
                Poll::Ready(Some(Ok(frame))) => self.frame = Some(frame),
                Poll::Ready(Some(Err(error))) => return self.end(Some(grpc_status(&error))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.told
    }
}
