//! REST bodies: inference with the binary-tensor extension, metadata, configuration and statistics.
//!
//! A body is JSON, or JSON followed by raw tensors. The header `Inference-Header-Content-Length` is
//! the length of the JSON then. Tensors in JSON may be flat or nested as their shape.

mod describe;
mod golden;
mod record;
mod request;
mod response;
mod tensor;

pub use describe::{
    live, model_config, model_metadata, model_ready, ready, repository_index, server_metadata,
    statistics,
};
pub use golden::{GoldenInfer, parse_golden};
pub use record::{InferRecord, RecordedInfer, encode_record, next_line, parse_record};
pub use request::{OutputEncoding, RequestedOutput, RestInferRequest, encode_request, parse_infer};
pub use response::{ResponseSize, infer_response, parse_response, response_bytes_max};

use bytes::Bytes;

/// A body and its `Inference-Header-Content-Length`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// JSON, followed by the raw tensors.
    pub body: Bytes,
    /// The value of the header, or `None` if the whole body is JSON.
    pub header_length: Option<usize>,
}
