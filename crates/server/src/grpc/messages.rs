//! Messages of calls. They are read within the limits of bodies and the budget, decompressed, and
//! weighed before they are decoded.

use std::future::poll_fn;
use std::pin::Pin;

use base::{Error, Result};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName};
use hyper::body::Body;
use protocol::weigh::{Weighed, weigh};
use protocol::{Message, unreadable};
use transport::body_reader::{self, BodyAccounting};
use transport::decompress::{self, ContentCoding};
use transport::{
    CodecStep, FREE_BYTES_MAX, INLINE_WORK_MAX, ProgressTimeout, RequestBody, RequestResources,
    Reservation,
};

/// Names the compression of a call's messages.
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
/// Bytes before each message: a flag for compression, and its length (gRPC over HTTP/2,
/// "Length-Prefixed-Message").
pub(super) const PREFIX_BYTES: usize = 5;

/// Returns the compression that the messages of a call may have.
///
/// # Errors
/// `Unimplemented`, as gRPC requires, for a compression other than gzip and deflate.
pub(super) fn coding(headers: &HeaderMap) -> Result<Option<ContentCoding>> {
    decompress::coding_of(headers, ENCODING).map_err(|error| Error::unimplemented(error.message()))
}

pub(super) struct DecodedMessage<M> {
    pub(super) message: M,
    /// Memory of the message besides its bytes.
    pub(super) reservation: Reservation,
    /// True if the message is too large to be handled further on the connection's thread.
    pub(super) large: bool,
}

/// Decodes `message`.
///
/// # Errors
/// `InvalidArgument` for bytes that are not such a message.
pub(super) fn parse<M: Message + Default>(message: Bytes) -> Result<M> {
    M::decode(message).map_err(unreadable)
}

/// Weighs and decodes a message, on a codec thread if it is large.
///
/// # Errors
/// `InvalidArgument` for bytes that are not such a message, and the errors of [`weigh`] and of the
/// budget.
pub(super) async fn decode<M: Weighed + Send + 'static>(
    requests: &RequestResources,
    message: Bytes,
) -> Result<DecodedMessage<M>> {
    let mut reservation = requests.memory.empty();
    let first = weigh::<M>(&message, INLINE_WORK_MAX)?;
    let large = !first.whole;
    let decode = move || {
        let weight = if large { weigh::<M>(&message, u64::MAX)? } else { first };
        reservation.cover(weight.bytes)?;
        Ok(DecodedMessage { message: parse(message)?, reservation, large })
    };
    requests.codec.run_if(large, CodecStep::Decode, decode).await
}

/// Returns the decompressed message of a frame.
///
/// # Errors
/// `InvalidArgument` for a frame that is not one message, and the errors of
/// [`decompress::decompress`].
pub(super) async fn message(
    requests: &RequestResources,
    coding: Option<ContentCoding>,
    frame: Bytes,
) -> Result<Bytes> {
    let length = frame_length(&frame).ok_or_else(|| Error::invalid("the call has no message"))?;
    if frame.len() as u64 != length {
        return Err(Error::invalid(format!(
            "the call has {} bytes, but its one message has {length}",
            frame.len()
        )));
    }
    let message = frame.slice(PREFIX_BYTES..);
    match (frame[0], coding) {
        (0, _) => Ok(message),
        (1, Some(coding)) => {
            // From here on only the closure holds the frame's memory, which it frees early.
            drop(frame);
            let reservation = requests.memory.empty();
            let bytes_max = requests.limits.body_bytes_max;
            let decompress =
                move || decompress::decompress(coding, &message, bytes_max, reservation);
            requests.codec.run(CodecStep::Decompress, decompress).await
        }
        _ => Err(Error::invalid(
            "the message is marked as compressed, but grpc-encoding names no compression",
        )),
    }
}

/// Takes the first `length` bytes of the buffer. The memory of a large message must end with its
/// reservation, so the bytes after it move. A client may pause for ever before the next message.
fn split_message(buffer: &mut BytesMut, length: usize) -> Bytes {
    let message = buffer.split_to(length).freeze();
    if length as u64 > FREE_BYTES_MAX {
        *buffer = BytesMut::from(&buffer[..]);
    }
    message
}

/// Returns the length of the frame that begins with `first`, prefix included. Returns `None` if the
/// prefix is incomplete.
fn frame_length(first: &[u8]) -> Option<u64> {
    let length = first.first_chunk::<PREFIX_BYTES>()?.last_chunk::<4>()?;
    Some(u64::from(u32::from_be_bytes(*length)) + PREFIX_BYTES as u64)
}

/// Reads the whole body of a call with one message of at most `bytes_max` bytes before
/// decompression.
///
/// # Errors
/// Returns the errors of [`body_reader::read_framed`].
pub(super) async fn frame(
    requests: &RequestResources,
    body: RequestBody,
    bytes_max: usize,
) -> Result<Bytes> {
    let limits = requests.body_limits(bytes_max, PREFIX_BYTES);
    let accounting = BodyAccounting {
        reservation: requests.memory.empty(),
        receive_permits: Some(&requests.receive_permits),
    };
    body_reader::read_framed(body, frame_length, limits, accounting).await
}

/// The messages of a stream, in order.
pub(super) struct Messages {
    body: RequestBody,
    coding: Option<ContentCoding>,
    buffer: BytesMut,
}

impl Messages {
    /// Returns the messages of a call with these headers.
    ///
    /// # Errors
    /// Returns the errors of [`coding`].
    pub(super) fn new(headers: &HeaderMap, body: RequestBody) -> Result<Messages> {
        Ok(Messages { body, coding: coding(headers)?, buffer: BytesMut::new() })
    }

    /// Returns the next message, which holds its part of the budget. Returns `None` at the end. The
    /// client may pause before a message, and not within one.
    ///
    /// # Errors
    /// Returns the errors of a call with one message.
    pub(super) async fn next(&mut self, requests: &RequestResources) -> Result<Option<Bytes>> {
        let limits = &requests.limits;
        let mut reservation = requests.memory.empty();
        let mut timeout = ProgressTimeout::new(limits.client_timeout, limits.request_timeout);
        let mut length = None;
        loop {
            if length.is_none()
                && let Some(bytes) = frame_length(&self.buffer)
            {
                length = Some(self.reserve(requests, bytes, &mut reservation)?);
            }
            if let Some(length) = length.filter(|length| self.buffer.len() >= *length) {
                let frame = reservation.attach(split_message(&mut self.buffer, length));
                return message(requests, self.coding, frame).await.map(Some);
            }
            let frame = if self.buffer.is_empty() {
                poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await
            } else {
                poll_fn(|cx| body_reader::poll_within(&mut self.body, &mut timeout, cx)).await?
            };
            let Some(frame) = frame else {
                let cut = Error::invalid("the stream ends in the middle of a message");
                return if self.buffer.is_empty() { Ok(None) } else { Err(cut) };
            };
            let frame =
                frame.map_err(|error| Error::invalid("the body ended early").caused_by(error))?;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }

    /// Makes room for a frame of `length` bytes, and returns the length.
    fn reserve(
        &mut self,
        requests: &RequestResources,
        length: u64,
        reservation: &mut Reservation,
    ) -> Result<usize> {
        let bytes_max = requests.limits.body_bytes_max;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > bytes_max.saturating_add(PREFIX_BYTES) {
            return Err(Error::too_large(format!(
                "the message is larger than {bytes_max} bytes; send less or raise --max-body"
            )));
        }
        reservation.cover(length as u64)?;
        self.buffer.reserve(length.saturating_sub(self.buffer.len()));
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_message_leaves_no_memory_behind() {
        for rest in [0, 3] {
            let mut buffer = BytesMut::zeroed((1 << 20) + rest);
            let message = split_message(&mut buffer, 1 << 20);
            assert_eq!((message.len(), buffer.len()), (1 << 20, rest));
            assert!(message.is_unique(), "the buffer holds its memory too");
        }
    }
}
