//! Inference requests and responses as gRPC messages, for servers and clients.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::{DType, Error, NamedTensor, Result, VersionId};

use super::contents::{self, TensorHeader};
use super::{InferResponse, datatype, parameters};
use crate::inference::infer_parameter::ParameterChoice;
use crate::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::inference::model_infer_response::InferOutputTensor;
use crate::inference::model_repository_parameter::ParameterChoice as LoadParameter;
use crate::inference::{
    InferParameter, ModelInferRequest, ModelInferResponse, ModelRepositoryParameter,
};
use crate::json::Scalar;
use crate::wire;

pub use super::describe::{model_config, model_metadata, model_statistics, repository_index};

/// An inference request without the model's name and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcInferRequest {
    /// The id to echo. Empty if the client sent none.
    pub id: String,
    /// The inputs, not yet checked against a signature.
    pub inputs: Vec<NamedTensor>,
    /// The requested outputs. Empty for all.
    pub outputs: Vec<Arc<str>>,
    /// The client's time limit, from the `timeout` parameter in microseconds.
    pub timeout: Option<Duration>,
    /// The priority level, from the `priority` parameter: 1 is the highest, 0 the model's default.
    pub priority: usize,
    /// The signature, from the `signature_name` parameter. Empty for the model's default.
    pub signature: String,
    /// The key for rollouts, from the `request_key` parameter. Empty if there is none.
    pub request_key: String,
}

/// Millpond's own parameter of a load: the version to load.
const VERSION: &str = "version";

/// Returns an upper bound of the bytes that [`decode_request`] allocates for strings in raw
/// contents. The length of the message does not bound them, because an empty string has a reference
/// in the list and one in the tensor.
pub fn strings_bytes_max(request: &ModelInferRequest) -> u64 {
    let strings = request.inputs.iter().zip(&request.raw_input_contents);
    let strings =
        strings.filter(|(input, _)| super::from_datatype(&input.datatype) == Some(DType::String));
    let count = |(input, raw): (&InferInputTensor, &bytes::Bytes)| {
        let sizes = input.shape.iter().map(|&dim| u64::try_from(dim).unwrap_or(0));
        sizes.fold(1, u64::saturating_mul).min((raw.len() / contents::STRING_BYTES_MIN) as u64)
    };
    strings.map(count).sum::<u64>() * STRING_REFERENCES_BYTES
}

/// Bytes of a string's references in the decoded list and in the tensor.
pub const STRING_REFERENCES_BYTES: u64 = 2 * size_of::<bytes::Bytes>() as u64;

/// Decodes the inputs and options of a request. Raw contents are shared, not copied.
///
/// # Errors
/// `InvalidArgument` for tensors whose elements do not match their type and shape. `Unimplemented`
/// for shared memory and classification.
pub fn decode_request(request: ModelInferRequest) -> Result<GrpcInferRequest> {
    for input in &request.inputs {
        wire::check_name(&input.name)?;
        for (name, value) in &input.parameters {
            if name == parameters::BINARY_SIZE {
                let input = &input.name;
                return Err(Error::invalid(format!(
                    "\"{input}\": {name} is for requests over HTTP"
                )));
            }
            let value = scalar(value);
            let is_strings = super::from_datatype(&input.datatype) == Some(DType::String);
            if !(is_strings && parameters::is_text_content(name, &value)) {
                parameters::input(&input.name, name, &value)?;
            }
        }
    }
    let mut options = parameters::InferOptions::default();
    request.parameters.iter().try_for_each(|(name, value)| options.read(name, &scalar(value)))?;
    let header = |input: InferInputTensor| {
        let InferInputTensor { name, datatype, shape, contents, .. } = input;
        TensorHeader { name, datatype, shape, contents }
    };
    let inputs = request.inputs.into_iter().map(header).collect();
    wire::check_count("outputs", request.outputs.len())?;
    Ok(GrpcInferRequest {
        id: request.id,
        inputs: contents::tensors("inputs", inputs, request.raw_input_contents)?,
        outputs: request.outputs.into_iter().map(output).collect::<Result<_>>()?,
        priority: options.priority,
        timeout: options.timeout,
        signature: options.signature,
        request_key: options.request_key,
    })
}

fn output(output: InferRequestedOutputTensor) -> Result<Arc<str>> {
    wire::check_name(&output.name)?;
    for (name, value) in &output.parameters {
        // The choice of raw outputs has no effect, because over gRPC all outputs are raw.
        parameters::output(&output.name, name, &scalar(value))?;
    }
    Ok(output.name.into())
}

/// Returns the value of a parameter in the form that gRPC and REST share.
fn scalar(parameter: &InferParameter) -> Scalar<'_> {
    match &parameter.parameter_choice {
        Some(ParameterChoice::BoolParam(value)) => Scalar::Bool(*value),
        Some(ParameterChoice::Int64Param(value)) => Scalar::Whole(*value),
        Some(ParameterChoice::Uint64Param(value)) => {
            Scalar::Whole(i64::try_from(*value).unwrap_or(i64::MAX))
        }
        Some(ParameterChoice::StringParam(text)) => Scalar::Text(text.as_str().into()),
        _ => Scalar::Other,
    }
}

/// Returns a parameter of this value.
pub fn boolean(value: bool) -> InferParameter {
    InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(value)) }
}

/// Returns the version in the `version` parameter of a load, if there is one.
///
/// # Errors
/// `Unimplemented` for parameters with settings or files. `InvalidArgument` for an unknown
/// parameter, and for a version that is not a number.
pub fn load_version(
    parameters: &BTreeMap<String, ModelRepositoryParameter>,
) -> Result<Option<u64>> {
    if let Some(name) = parameters.keys().find(|name| *name != VERSION) {
        return Err(super::refused_load_parameter(name));
    }
    let Some(version) = parameters.get(VERSION) else { return Ok(None) };
    match version.parameter_choice {
        Some(LoadParameter::Int64Param(version)) if version >= 0 => {
            Ok(Some(version.unsigned_abs()))
        }
        None => Ok(None),
        Some(_) => Err(Error::invalid("\"version\" must be a whole number")),
    }
}

/// Encodes a response. Its raw contents share the outputs' memory.
///
/// # Errors
/// `InvalidArgument` for a string over 4 GiB.
pub fn encode_response(
    version: &VersionId,
    id: String,
    outputs: Vec<NamedTensor>,
) -> Result<ModelInferResponse> {
    let mut response = ModelInferResponse {
        model_name: version.model.to_string(),
        model_version: version.version.to_string(),
        id,
        outputs: Vec::with_capacity(outputs.len()),
        raw_output_contents: Vec::with_capacity(outputs.len()),
        ..Default::default()
    };
    for NamedTensor { name, tensor } in outputs {
        response.raw_output_contents.push(contents::raw_form(&name, &tensor)?);
        response.outputs.push(InferOutputTensor {
            name: name.to_string(),
            datatype: datatype(tensor.dtype()).into(),
            shape: signed(tensor.shape()),
            ..Default::default()
        });
    }
    Ok(response)
}

fn signed(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|&dim| dim as i64).collect()
}

/// Encodes a client's request with raw contents. Empty `outputs` request all outputs.
///
/// # Errors
/// `InvalidArgument` for a string over 4 GiB.
pub fn encode_request(
    model: &str,
    version: Option<u64>,
    inputs: &[NamedTensor],
    outputs: &[&str],
) -> Result<ModelInferRequest> {
    let requested =
        |name: &&str| InferRequestedOutputTensor { name: (*name).into(), ..Default::default() };
    let input = |NamedTensor { name, tensor }: &NamedTensor| InferInputTensor {
        name: name.to_string(),
        datatype: datatype(tensor.dtype()).into(),
        shape: signed(tensor.shape()),
        ..Default::default()
    };
    Ok(ModelInferRequest {
        model_name: model.into(),
        model_version: version.map(|version| version.to_string()).unwrap_or_default(),
        inputs: inputs.iter().map(input).collect(),
        outputs: outputs.iter().map(requested).collect(),
        raw_input_contents: inputs
            .iter()
            .map(|input| contents::raw_form(&input.name, &input.tensor))
            .collect::<Result<_>>()?,
        ..Default::default()
    })
}

/// Decodes the outputs of a response, for a client.
///
/// # Errors
/// `DataLoss` for a response whose elements do not match its types and shapes.
pub fn decode_response(response: ModelInferResponse) -> Result<InferResponse> {
    let header = |output: InferOutputTensor| {
        let InferOutputTensor { name, datatype, shape, contents, .. } = output;
        TensorHeader { name, datatype, shape, contents }
    };
    let outputs = response.outputs.into_iter().map(header).collect();
    let outputs =
        contents::tensors("outputs", outputs, response.raw_output_contents).map_err(|error| {
            error.with_kind(base::ErrorKind::DataLoss).context("the server's answer")
        })?;
    Ok(InferResponse {
        model: response.model_name,
        version: response.model_version,
        id: response.id,
        outputs,
    })
}
