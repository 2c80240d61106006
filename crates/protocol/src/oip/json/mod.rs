//! REST bodies: inference with the binary-tensor extension, and everything that is only described.
//!
//! A body is JSON, or JSON followed by raw tensors; then the header `Inference-Header-Content-Length` says how long
//! the JSON is. Tensors in JSON may be flat or nested as their shape.

mod describe;
mod request;
mod response;
mod tensor;

pub use describe::{
    live, model_config, model_metadata, model_ready, ready, repository_index, server_metadata, statistics,
};
pub use request::{OutputEncoding, RequestedOutput, RestInferRequest, encode_request, parse_infer};
pub use response::{ResponseSize, infer_response, parse_response, response_bytes_max};

use bytes::Bytes;

/// A body and what its header must say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// JSON, followed by raw tensors where there are any.
    pub body: Bytes,
    /// The value of `Inference-Header-Content-Length`; none where the whole body is JSON.
    pub header_length: Option<usize>,
}

/// `{"error": message}`.
pub fn error(message: &str) -> Bytes {
    let mut out = b"{\"error\":".to_vec();
    crate::json::string(&mut out, message);
    out.push(b'}');
    out.into()
}
