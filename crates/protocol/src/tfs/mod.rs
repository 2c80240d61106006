//! TensorFlow Serving: gRPC messages, REST bodies and warm-up files.
//!
//! A Millpond model has one signature, under TensorFlow's default name.

mod datatype;
mod fill;
pub mod grpc;
pub mod json;
mod rank;
mod response;
mod tensor;
pub mod text;
pub mod warmup;

pub use datatype::{datatype, from_datatype};
pub use rank::{AddedAxes, adapt_ranks};
pub use response::{SharedPredictResponse, TensorFields};
pub use tensor::{decode_tensor, encode_tensor};

use base::{Error, Result};

/// Name of the only signature.
pub const SIGNATURE: &str = "serving_default";
/// Method of the signature.
const METHOD: &str = "tensorflow/serving/predict";
/// The only field of metadata.
const METADATA_FIELD: &str = "signature_def";

/// Checks that a signature's name is empty or [`SIGNATURE`].
///
/// # Errors
/// `FailedPrecondition` for another name, as in TensorFlow Serving.
fn check_signature(name: &str) -> Result<()> {
    if name.is_empty() || name == SIGNATURE {
        return Ok(());
    }
    let shown: String = name.chars().take(64).collect();
    Err(Error::precondition(format!(
        "there is no signature \"{shown}\"; the only one is \"{SIGNATURE}\""
    )))
}
