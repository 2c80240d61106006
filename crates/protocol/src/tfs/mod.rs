//! TensorFlow Serving: gRPC messages, REST bodies and warm-up files.
//!
//! A model whose engine does not name its signature has one, under TensorFlow's default name.

mod datatype;
mod example;
mod fill;
pub mod grpc;
pub mod json;
mod rank;
mod response;
mod results;
mod tensor;
pub mod text;
pub mod warmup;

pub use datatype::{datatype, from_datatype};
pub use example::{Examples, FeatureValue, Reserve};
pub use rank::{AddedAxes, adapt_ranks};
pub use response::{SharedPredictResponse, TensorFields};
pub use results::{ClassOutputs, ExampleResult, classification, regression, result_bytes_max};
pub use tensor::decode_tensor;

use base::Signature;

/// Name of a signature that has no name of its own.
const SIGNATURE: &str = "serving_default";
/// Maximum tasks of one MultiInference request. Each runs the model once.
pub(crate) const TASKS_MAX: usize = 64;
/// Method of a signature for Predict.
pub const PREDICT_METHOD: &str = "tensorflow/serving/predict";
/// Method of a signature for Classify.
pub const CLASSIFY_METHOD: &str = "tensorflow/serving/classify";
/// Method of a signature for Regress.
pub const REGRESS_METHOD: &str = "tensorflow/serving/regress";
/// The only field of metadata.
const METADATA_FIELD: &str = "signature_def";

/// One signature of a model, as metadata shows it.
#[derive(Clone, Copy, Debug)]
pub struct SignatureInfo<'a> {
    /// Name in requests.
    pub name: &'a str,
    /// Method, such as [`PREDICT_METHOD`]. May be empty.
    pub method: &'a str,
    /// Inputs and outputs.
    pub signature: &'a Signature,
    /// Names in the graph of the inputs, in the order of the signature. An input without one has
    /// its own name.
    pub input_tensors: &'a [String],
    /// Names in the graph of the outputs, in the same form.
    pub output_tensors: &'a [String],
}

impl<'a> SignatureInfo<'a> {
    /// Returns the signature of a model that has one and does not name it.
    pub fn only(signature: &'a Signature) -> SignatureInfo<'a> {
        SignatureInfo {
            name: SIGNATURE,
            method: PREDICT_METHOD,
            signature,
            input_tensors: &[],
            output_tensors: &[],
        }
    }
}
