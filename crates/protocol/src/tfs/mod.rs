//! TensorFlow Serving: gRPC messages, REST bodies and warm-up files.
//!
//! A Millpond model has one signature, which goes by TensorFlow's default name for it.

mod datatype;
mod fill;
pub mod grpc;
pub mod json;
mod rank;
mod response;
mod tensor;
pub mod warmup;

pub use datatype::{datatype, from_datatype};
pub use rank::{AddedAxes, adapt_ranks};
pub use response::{SharedPredictResponse, TensorFields};
pub use tensor::{decode_tensor, encode_tensor};

use base::{Error, Result};

/// The only signature's name.
pub const SIGNATURE: &str = "serving_default";
/// What the signature is for.
const METHOD: &str = "tensorflow/serving/predict";
/// The only metadata there is.
const METADATA_FIELD: &str = "signature_def";

/// Refuses a signature other than [`SIGNATURE`]; empty means that one.
///
/// # Errors
/// `FailedPrecondition`, as TensorFlow Serving answers.
fn check_signature(name: &str) -> Result<()> {
    if name.is_empty() || name == SIGNATURE {
        return Ok(());
    }
    let shown: String = name.chars().take(64).collect();
    Err(Error::precondition(format!("there is no signature \"{shown}\"; the only one is \"{SIGNATURE}\"")))
}
