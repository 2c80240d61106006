//! The Open Inference Protocol, version 2: gRPC messages, REST bodies, and the names that both use.

mod contents;
mod datatype;
mod describe;
pub mod grpc;
pub mod json;
mod parameters;
mod repository;
pub mod settings;
mod strings;

pub use datatype::{datatype, from_datatype};
pub use repository::{RepositoryChangeResponse, RepositoryTarget};

use base::{Error, NamedTensor, Result};

/// Supported extensions of the protocol, as server metadata lists them.
pub const EXTENSIONS: [&str; 9] = [
    "model_repository",
    // No model depends on another one here, so an unload with dependents is an unload.
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
];

/// A response as a client reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InferResponse {
    /// The model that answered.
    pub model: String,
    /// Version of the model. Empty if the server does not return it.
    pub version: String,
    /// The request's id.
    pub id: String,
    /// The outputs in the server's order.
    pub outputs: Vec<NamedTensor>,
}

/// Parameter that requests the highest classes in place of an output.
const CLASSIFICATION: &str = "classification";
/// Parameter for a request's time limit in microseconds.
const TIMEOUT: &str = "timeout";
/// Millpond's own parameter for the signature of a model with several.
const SIGNATURE_NAME: &str = "signature_name";
/// Millpond's own parameter for the key by which a rollout assigns the request to a version.
const REQUEST_KEY: &str = "request_key";
/// Parameter for a request's priority level: 1 is the highest, 0 the model's default.
const PRIORITY: &str = "priority";

fn no_priority() -> Error {
    Error::invalid(
        "\"priority\" must be a whole number: 1 for the highest level, 0 for the model's default",
    )
}

fn no_shared_memory(name: &str) -> Error {
    Error::unimplemented(format!(
        "\"{name}\" is in shared memory, which is not offered; put it into the request"
    ))
}

fn no_classification(name: &str) -> Error {
    Error::unimplemented(format!(
        "classification of \"{name}\" is not offered; request the output itself"
    ))
}

/// Returns the error for a parameter of a load, other than the version. Loads read the model's
/// directory. A load that ignored a parameter would load a model that was not requested.
///
/// The error is `Unimplemented` for `config` and `file:...`, with the remedy, and `InvalidArgument`
/// for any other name.
pub fn refused_load_parameter(name: &str) -> Error {
    // The name comes from the client, so a message shows its start only.
    let shown: String = name.chars().take(64).collect();
    if name == "config" || name.starts_with("file:") {
        return Error::unimplemented(format!(
            "a load does not take \"{shown}\"; put files and settings (millpond.toml) into the model's directory"
        ));
    }
    Error::invalid(format!(
        "a load has the parameter \"{shown}\", which is not known here; it takes \"version\""
    ))
}

fn dtype_of(name: &str, datatype: &str) -> Result<base::DType> {
    from_datatype(datatype).ok_or_else(|| {
        // The text comes from the client, so a message shows its start only.
        let shown: String = datatype.chars().take(32).collect();
        Error::invalid(format!(
            "\"{name}\" has unknown datatype \"{shown}\"; known are FP32, INT64, BYTES and so on"
        ))
    })
}
