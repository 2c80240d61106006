//! Bodies with tensors: their memory, and the thread that decodes or encodes them.

use base::{DType, Result, Signature};
use bytes::Bytes;
use transport::{CodecStep, INLINE_BYTES_MAX, RequestResources, Reservation, json_values_max};

/// Maximum bytes of a number while its list grows. The new list has twice the room, and the old one
/// is not freed yet.
const NUMBER_BYTES: u64 = 3 * size_of::<u64>() as u64;
/// Maximum bytes of a string while its list grows.
const STRING_BYTES: u64 = 3 * size_of::<Bytes>() as u64;
/// Bytes of an empty string in raw contents.
const RAW_STRING_BYTES_MIN: usize = 4;
/// Bytes of the references to such a string in the list and in the tensor.
const RAW_STRING_BYTES: usize = 2 * size_of::<Bytes>();
/// Shortest JSON in bytes whose values are counted. The number of requests bounds the memory of
/// shorter ones.
const COUNTED_BYTES_MIN: usize = 512;

/// A body with tensors: JSON, and perhaps raw contents after it.
pub(super) struct TensorBody {
    body: Bytes,
    json_bytes: usize,
    /// True if the raw contents may be strings.
    strings: bool,
    /// True if the JSON holds examples.
    examples: bool,
}

impl TensorBody {
    /// Examines `body` for a model with `signature`. The first `header_length` bytes are JSON.
    /// `None` is all of them.
    pub(super) fn new(
        body: Bytes,
        header_length: Option<usize>,
        signature: &Signature,
    ) -> TensorBody {
        let json_bytes = header_length.unwrap_or(body.len()).min(body.len());
        let json = &body[..json_bytes];
        // The datatype may be written with escapes.
        let named = || json.contains(&b'\\') || json.windows(5).any(|five| five == b"BYTES");
        let strings = json_bytes < body.len()
            && match json_bytes {
                0 => signature.inputs.iter().any(|input| input.dtype == DType::String),
                _ => json_bytes > INLINE_BYTES_MAX || named(),
            };
        TensorBody { body, json_bytes, strings, examples: false }
    }

    /// Takes `body` for JSON with examples.
    pub(super) fn of_examples(body: Bytes) -> TensorBody {
        TensorBody { json_bytes: body.len(), body, strings: false, examples: true }
    }

    /// Returns true if the body is too large for a connection's thread.
    fn large(&self) -> bool {
        self.json_bytes > INLINE_BYTES_MAX || (self.strings && self.body.len() > INLINE_BYTES_MAX)
    }

    /// Returns an upper bound of the bytes that reading the tensors allocates.
    fn bytes_max(&self) -> u64 {
        let (json, raw_bytes) = self.body.split_at(self.json_bytes);
        if self.examples {
            return protocol::tfs::json::example_bytes_max(json);
        }
        let strings = if self.strings {
            raw_bytes.len() / RAW_STRING_BYTES_MIN * RAW_STRING_BYTES
        } else {
            0
        };
        if json.len() < COUNTED_BYTES_MIN {
            return strings as u64;
        }
        let quotes = json.iter().filter(|byte| **byte == b'"').count() as u64;
        // Escaped text and base64 are copied.
        strings as u64
            + json_values_max(json) * NUMBER_BYTES
            + quotes / 2 * STRING_BYTES
            + quotes.min(1) * json.len() as u64
    }
}

/// Reads the tensors of `body` by `parse`, on a codec thread if they are large. Returns their
/// reservation too.
pub(super) async fn parse_tensors<T: Send + 'static>(
    resources: &RequestResources,
    body: TensorBody,
    parse: impl FnOnce(Bytes) -> Result<T> + Send + 'static,
) -> Result<(T, Reservation)> {
    let large = body.large();
    let mut reservation = resources.memory.empty();
    let work = move || {
        reservation.cover(body.bytes_max())?;
        Ok((parse(body.body)?, reservation))
    };
    resources.codec.run_if(large, CodecStep::Decode, work).await
}

/// The size of an answer in bytes.
pub(super) struct AnswerSize {
    /// Bytes of JSON text.
    pub(super) text: usize,
    /// Bytes of the answer and its tensors together.
    pub(super) memory: u64,
}

/// Writes an answer by `write`, on a codec thread if its text is large. Turns the `reservation` of
/// the request into the answer's.
pub(super) async fn write_answer<T: Send + 'static>(
    resources: &RequestResources,
    mut reservation: Reservation,
    size: AnswerSize,
    write: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<(T, Reservation)> {
    // The inputs are freed by now.
    reservation.shrink_to(0);
    reservation.cover(size.memory)?;
    let large = size.text > INLINE_BYTES_MAX;
    let written = resources.codec.run_if(large, CodecStep::Encode, write).await?;
    Ok((written, reservation))
}
