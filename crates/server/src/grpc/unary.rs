//! Calls of one message in and one out, which is what inference is.
//!
//! tonic is made for streams of messages: it copies what arrives into a buffer of its own, and doubles that buffer
//! before it decodes a message that has arrived whole. Here a message that comes in one piece is decoded where it lies
//! (ADR 0006). Compressed ones are left to tonic.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base::{Error, Result};
use bytes::{BufMut, Bytes};
use http::{HeaderMap, HeaderValue, header};
use hyper::body::Frame;
use protocol::Message;
use tonic::body::Body;

use crate::app::{App, Ticket};
use crate::body::{self, BodyLimits};
use crate::errors::grpc_status;
use crate::given::Given;

/// Before each message: whether it is compressed, and its length (gRPC over HTTP/2, "Length-Prefixed-Message").
const PREFIX_BYTES: usize = 5;

/// Whether a request may come compressed.
pub(super) fn compressed(headers: &HeaderMap) -> bool {
    headers.get("grpc-encoding").is_some_and(|encoding| encoding != "identity")
}

/// A request's message and how long its client waits, once all of it is there.
pub(super) struct Asked<M> {
    pub(super) ticket: Ticket,
    pub(super) message: M,
    pub(super) timeout: Option<Duration>,
}

/// Reads a request.
///
/// # Errors
/// `TooLarge` and `ClientTimeout` as any body, `InvalidArgument` for what is not one message. They are counted.
pub(super) async fn read<M: Message + Default>(
    app: &App,
    protocol: &'static str,
    request: http::Request<Given>,
) -> Result<Asked<M>> {
    let (head, body) = request.into_parts();
    let limits = BodyLimits {
        bytes_max: app.doors.body_bytes_max.saturating_add(PREFIX_BYTES),
        piece_timeout: app.doors.client_timeout,
        total_timeout: app.doors.request_timeout,
    };
    let body = body::read_told(body, told, limits).await;
    let ticket = App::begin(protocol);
    let message = body.and_then(decoded).inspect_err(|error| app.reject(&ticket, error))?;
    Ok(Asked { ticket, message, timeout: super::timeout(&head.headers) })
}

/// The length of a body that begins like this.
fn told(first: &[u8]) -> Option<u64> {
    let length = first.first_chunk::<PREFIX_BYTES>()?.last_chunk::<4>()?;
    Some(u64::from(u32::from_be_bytes(*length)) + PREFIX_BYTES as u64)
}

fn decoded<M: Message + Default>(body: Bytes) -> Result<M> {
    let length = told(&body).ok_or_else(|| Error::invalid("the call has no message"))?;
    if body[0] != 0 {
        return Err(Error::invalid(
            "the message is marked as compressed, but grpc-encoding does not say how",
        ));
    }
    if body.len() as u64 != length {
        return Err(Error::invalid(format!(
            "the call has {} bytes where its one message has {length}",
            body.len()
        )));
    }
    M::decode(body.slice(PREFIX_BYTES..))
        .map_err(|error| Error::invalid(format!("the message cannot be read: {error}")))
}

/// The response that carries `answer`.
pub(super) fn response<M: Message>(answer: Result<M>) -> http::Response<Body> {
    match answer.and_then(|message| encoded(&message)) {
        Err(error) => grpc_status(&error).into_http(),
        Ok(message) => {
            let mut response = http::Response::new(Body::new(Answer { message: Some(message), told: false }));
            let grpc = HeaderValue::from_static("application/grpc");
            response.headers_mut().insert(header::CONTENT_TYPE, grpc);
            response
        }
    }
}

fn encoded<M: Message>(message: &M) -> Result<Bytes> {
    let length = message.encoded_len();
    let prefix = u32::try_from(length)
        .map_err(|_| Error::exhausted(format!("the answer has {length} bytes, and gRPC carries 4 GiB")))?;
    let mut frame = Vec::with_capacity(PREFIX_BYTES + length);
    frame.put_u8(0);
    frame.put_u32(prefix);
    message.encode(&mut frame).map_err(|error| Error::internal(format!("encoding the answer: {error}")))?;
    Ok(frame.into())
}

/// One message, and then that all is well.
struct Answer {
    message: Option<Bytes>,
    told: bool,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, tonic::Status>>> {
        if let Some(message) = self.message.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if std::mem::replace(&mut self.told, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.told
    }
}
