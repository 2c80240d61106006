//! Messages as they come in calls: read within the door's limits and the budget, decompressed, and weighed before they are
//! decoded.

use std::future::poll_fn;
use std::pin::Pin;

use base::{Error, Result};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName};
use hyper::body::Body;
use protocol::weigh::{Weighed, weigh};

use super::unary::{PREFIX_BYTES, told};
use crate::app::App;
use transport::ProgressTimeout;
use transport::RequestBody;
use transport::Reservation;
use transport::body_reader::{self, BodyAccounting};
use transport::decompress::{self, ContentCoding};
use transport::{CodecStep, INLINE_WORK_MAX};

/// How a call's messages are compressed.
pub(super) const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Returns how the messages of a call may be compressed.
///
/// # Errors
/// `Unimplemented` for a compression that is not offered, as gRPC wants it.
pub(super) fn coding(headers: &HeaderMap) -> Result<Option<ContentCoding>> {
    decompress::coding_of(headers, ENCODING).map_err(|error| Error::unimplemented(error.message()))
}

/// A decoded message.
pub(super) struct Decoded<M> {
    pub(super) message: M,
    /// What the message holds of the budget besides its bytes.
    pub(super) held: Reservation,
    /// Whether it is too large to go on with on the thread that watches its socket.
    pub(super) large: bool,
}

/// Decodes a message after it was weighed, on a thread for decoding if it is large.
///
/// # Errors
/// `InvalidArgument` for bytes that are no message, and those of [`weigh`] and of the budget.
pub(super) async fn decode<M: Weighed + Send + 'static>(app: &App, message: Bytes) -> Result<Decoded<M>> {
    let mut held = app.requests.memory.empty();
    let first = weigh::<M>(&message, INLINE_WORK_MAX)?;
    let large = !first.whole;
    let decode = move || {
        let weight = if large { weigh::<M>(&message, u64::MAX)? } else { first };
        held.cover(weight.bytes)?;
        let message = M::decode(message)
            .map_err(|error| Error::invalid(format!("the message cannot be read: {error}")))?;
        Ok(Decoded { message, held, large })
    };
    app.requests.codec.run_if(large, CodecStep::Decode, decode).await
}

/// Returns the message of a frame, decompressed.
///
/// # Errors
/// `InvalidArgument` for a frame that is not one message, and those of [`decompress::decompress`].
pub(super) async fn message(app: &App, coding: Option<ContentCoding>, frame: Bytes) -> Result<Bytes> {
    let length = told(&frame).ok_or_else(|| Error::invalid("the call has no message"))?;
    if frame.len() as u64 != length {
        return Err(Error::invalid(format!(
            "the call has {} bytes where its one message has {length}",
            frame.len()
        )));
    }
    let message = frame.slice(PREFIX_BYTES..);
    match (frame[0], coding) {
        (0, _) => Ok(message),
        (1, Some(coding)) => {
            // The frame is in the closure, and gone after it.
            drop(frame);
            let (held, bytes_max) = (app.requests.memory.empty(), app.requests.limits.body_bytes_max);
            app.requests
                .codec
                .run(CodecStep::Decompress, move || decompress::decompress(coding, &message, bytes_max, held))
                .await
        }
        _ => Err(Error::invalid("the message is marked as compressed, but grpc-encoding does not say how")),
    }
}

/// Reads the whole body of a call with one message of at most `bytes_max` bytes, before decompression.
///
/// # Errors
/// Those of [`body_reader::read_told`].
pub(super) async fn frame(app: &App, body: RequestBody, bytes_max: usize) -> Result<Bytes> {
    let limits = app.requests.body_limits(bytes_max, PREFIX_BYTES);
    let accounting = BodyAccounting {
        reservation: app.requests.memory.empty(),
        receive_permits: Some(&app.requests.receive_permits),
    };
    body_reader::read_framed(body, told, limits, accounting).await
}

/// The messages of a stream, one after the other.
pub(super) struct Messages {
    body: RequestBody,
    coding: Option<ContentCoding>,
    buffer: BytesMut,
}

impl Messages {
    /// Makes the messages of a call with these headers.
    ///
    /// # Errors
    /// Those of [`coding`].
    pub(super) fn new(headers: &HeaderMap, body: RequestBody) -> Result<Messages> {
        Ok(Messages { body, coding: coding(headers)?, buffer: BytesMut::new() })
    }

    /// Returns the next message, `None` at the end. The client may take its time before a message, and not within one. The
    /// bytes hold what they take of the budget.
    ///
    /// # Errors
    /// As a call with one message has.
    pub(super) async fn next(&mut self, app: &App) -> Result<Option<Bytes>> {
        let mut held = app.requests.memory.empty();
        let mut progress =
            ProgressTimeout::new(app.requests.limits.client_timeout, app.requests.limits.request_timeout);
        let mut wanted = None;
        loop {
            if wanted.is_none()
                && let Some(length) = told(&self.buffer)
            {
                wanted = Some(self.reserve(app, length, &mut held)?);
            }
            if let Some(length) = wanted.filter(|length| self.buffer.len() >= *length) {
                let frame = held.attach(self.buffer.split_to(length).freeze());
                return message(app, self.coding, frame).await.map(Some);
            }
            let frame = match self.buffer.is_empty() {
                true => poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await,
                false => poll_fn(|cx| body_reader::poll_within(&mut self.body, &mut progress, cx)).await?,
            };
            let Some(frame) = frame else {
                let cut = Error::invalid("the stream ends in the middle of a message");
                return if self.buffer.is_empty() { Ok(None) } else { Err(cut) };
            };
            let frame = frame.map_err(|error| Error::invalid(format!("the body broke off: {error}")))?;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }

    /// Makes room for a message of `length` bytes with its prefix, which it returns.
    fn reserve(&mut self, app: &App, length: u64, held: &mut Reservation) -> Result<usize> {
        let bytes_max = app.requests.limits.body_bytes_max;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > bytes_max.saturating_add(PREFIX_BYTES) {
            return Err(Error::too_large(format!(
                "the message is larger than {bytes_max} bytes; send less or raise --max-body"
            )));
        }
        held.cover(length as u64)?;
        self.buffer.reserve(length.saturating_sub(self.buffer.len()));
        Ok(length)
    }
}
