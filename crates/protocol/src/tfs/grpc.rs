//! Predict, metadata and status as gRPC messages, for servers and clients.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Error, NamedTensor, Result, TensorSpec, VersionId};
use prost::Message;

use super::fill::FillBudget;
use super::response::{self, SharedPredictResponse, TensorFields};
use super::tensor::{decode_within, encode_tensor};
use super::{METADATA_FIELD, SignatureInfo, datatype};
use crate::status::VersionState;
use crate::tensorflow::error::Code;
use crate::tensorflow::serving::{
    GetModelMetadataResponse, GetModelStatusResponse, ModelSpec, ModelVersionStatus,
    PredictRequest, PredictResponse, SignatureDefMap, StatusProto, model_spec::VersionChoice,
};
use crate::tensorflow::tensor_shape_proto::Dim;
use crate::tensorflow::{SignatureDef, TensorInfo, TensorShapeProto, tensor_info};
use crate::wire;

const SIGNATURE_DEF_MAP_URL: &str = "type.googleapis.com/tensorflow.serving.SignatureDefMap";

/// The model, version and signature that a request names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PredictTarget {
    /// Name of the model.
    pub name: String,
    /// The version's number, if the request has one.
    pub version: Option<u64>,
    /// The version's label, if the request has one.
    pub label: Option<String>,
    /// The signature. Empty for the model's default.
    pub signature: String,
}

/// A predict request without its [`PredictTarget`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcPredict {
    /// The inputs, not yet checked against a signature.
    pub inputs: Vec<NamedTensor>,
    /// The requested outputs. Empty for all.
    pub outputs: Vec<Arc<str>>,
}

/// Returns the target of a request.
///
/// # Errors
/// `InvalidArgument` for no model, a negative version or a name that is too long.
pub fn target(spec: Option<&ModelSpec>) -> Result<PredictTarget> {
    let spec = spec.ok_or_else(|| Error::invalid("the request has no model_spec"))?;
    if spec.name.is_empty() {
        return Err(Error::invalid("the request's model_spec has no name"));
    }
    wire::check_name(&spec.name)?;
    wire::check_name(&spec.signature_name)?;
    let mut target = PredictTarget {
        name: spec.name.clone(),
        signature: spec.signature_name.clone(),
        ..PredictTarget::default()
    };
    match &spec.version_choice {
        None => {}
        Some(VersionChoice::Version(version)) => {
            let number = u64::try_from(*version)
                .map_err(|_| Error::invalid(format!("{version} is not a version number")))?;
            target.version = Some(number);
        }
        Some(VersionChoice::VersionLabel(label)) => {
            wire::check_name(label)?;
            target.label = Some(label.clone());
        }
    }
    Ok(target)
}

/// Returns the specification of a version and its signature in a response.
pub fn version_spec(version: &VersionId, signature: &str) -> ModelSpec {
    ModelSpec {
        name: version.model.to_string(),
        signature_name: signature.into(),
        version_choice: Some(VersionChoice::Version(version.version as i64)),
    }
}

/// Returns an upper bound of the bytes that [`decode_predict`] allocates for repeated values and
/// for strings of `tensor_content`. The length of the message does not bound them.
pub fn filled_bytes_max(request: &PredictRequest) -> u64 {
    let mut filled = 0u64;
    let mut strings = 0u64;
    for message in request.inputs.values() {
        let Some(dtype) = super::from_datatype(message.dtype) else { continue };
        // A string has a reference in the list and one in the tensor, and its length before that.
        let width = dtype.bits().map_or(2 * size_of::<bytes::Bytes>() + 8, |bits| bits.div_ceil(8));
        let sizes = message.tensor_shape.iter().flat_map(|shape| &shape.dim);
        let sizes = sizes.map(|dim| u64::try_from(dim.size).unwrap_or(0));
        let elements = sizes.fold(1u64, u64::saturating_mul);
        if message.tensor_content.is_empty() {
            filled = filled.saturating_add(elements.saturating_mul(width as u64));
        } else if dtype == base::DType::String {
            strings += elements.min(message.tensor_content.len() as u64) * width as u64;
        }
    }
    // Filled values may be copied once more.
    2 * filled.min(2 * super::fill::FILLED_BYTES_MAX as u64) + strings
}

/// Decodes the inputs and options of a request. `tensor_content` is shared, not copied.
///
/// # Errors
/// As [`super::decode_tensor`]. `InvalidArgument` for too many inputs or outputs.
pub fn decode_predict(request: PredictRequest) -> Result<GrpcPredict> {
    wire::check_count("inputs", request.inputs.len())?;
    wire::check_count("outputs", request.output_filter.len())?;
    request
        .inputs
        .keys()
        .chain(&request.output_filter)
        .try_for_each(|name| wire::check_name(name))?;
    let mut budget = FillBudget::default();
    let input = |(name, message): (String, _)| {
        let tensor = decode_within(&name, message, &mut budget)?;
        Ok(NamedTensor::new(name, tensor))
    };
    Ok(GrpcPredict {
        inputs: request.inputs.into_iter().map(input).collect::<Result<_>>()?,
        outputs: request.output_filter.into_iter().map(Arc::from).collect(),
    })
}

/// Returns the response of a version's `signature`, with elements in the fields that `elements`
/// selects. Tensors of floats, bools and complex numbers share the outputs' memory.
pub fn encode_predict(
    version: &VersionId,
    signature: &str,
    outputs: Vec<NamedTensor>,
    elements: TensorFields,
) -> SharedPredictResponse {
    response::shared_response(outputs, elements, version_spec(version, signature))
}

/// Encodes a client's request. Empty `outputs` request all outputs.
pub fn encode_request(
    target: &PredictTarget,
    inputs: &[NamedTensor],
    outputs: &[&str],
) -> PredictRequest {
    let choice = match (target.version, &target.label) {
        (Some(version), _) => Some(VersionChoice::Version(version as i64)),
        (None, Some(label)) => Some(VersionChoice::VersionLabel(label.clone())),
        (None, None) => None,
    };
    PredictRequest {
        model_spec: Some(ModelSpec {
            name: target.name.clone(),
            signature_name: target.signature.clone(),
            version_choice: choice,
        }),
        inputs: inputs
            .iter()
            .map(|input| (input.name.to_string(), encode_tensor(&input.tensor)))
            .collect(),
        output_filter: outputs.iter().map(|output| (*output).into()).collect(),
    }
}

/// Decodes the outputs of a response in the order of their names, for a client.
///
/// # Errors
/// `DataLoss` for a response whose elements do not match its types and shapes.
pub fn decode_response(response: PredictResponse) -> Result<Vec<NamedTensor>> {
    let mut budget = FillBudget::default();
    let output = |(name, message): (String, _)| {
        let tensor = decode_within(&name, message, &mut budget).map_err(|error| {
            error.with_kind(base::ErrorKind::DataLoss).context("the server's answer")
        })?;
        Ok(NamedTensor::new(name, tensor))
    };
    response.outputs.into_iter().map(output).collect()
}

/// Returns the signature in TensorFlow's form.
pub(crate) fn signature_def(info: SignatureInfo<'_>) -> SignatureDef {
    let infos = |specs: &[TensorSpec], tensors: &[String]| -> BTreeMap<String, TensorInfo> {
        let entry = |(position, spec): (usize, &TensorSpec)| {
            let tensor = tensors.get(position).unwrap_or(&spec.name);
            (spec.name.clone(), tensor_info(spec, tensor))
        };
        specs.iter().enumerate().map(entry).collect()
    };
    SignatureDef {
        inputs: infos(&info.signature.inputs, info.input_tensors),
        outputs: infos(&info.signature.outputs, info.output_tensors),
        method_name: info.method.into(),
        defaults: BTreeMap::new(),
    }
}

fn tensor_info(spec: &TensorSpec, tensor: &str) -> TensorInfo {
    let dim = |size: i64| Dim { size, name: String::new() };
    TensorInfo {
        encoding: Some(tensor_info::Encoding::Name(tensor.into())),
        dtype: datatype(spec.dtype).into(),
        tensor_shape: Some(TensorShapeProto {
            dim: spec.wire_shape().into_iter().map(dim).collect(),
            unknown_rank: spec.shape.is_none(),
        }),
    }
}

/// Returns the metadata of a version: its signatures, packed into an `Any`.
///
/// # Errors
/// `InvalidArgument` if `fields` is empty or names anything but "signature_def".
pub fn model_metadata(
    version: &VersionId,
    signatures: &[SignatureInfo<'_>],
    fields: &[String],
) -> Result<GetModelMetadataResponse> {
    if fields.is_empty() || fields.iter().any(|field| field != METADATA_FIELD) {
        return Err(Error::invalid(format!(
            "metadata_field must be \"{METADATA_FIELD}\", the only one there is"
        )));
    }
    let map = SignatureDefMap {
        signature_def: signatures
            .iter()
            .map(|info| (info.name.to_owned(), signature_def(*info)))
            .collect(),
    };
    let packed =
        prost_types::Any { type_url: SIGNATURE_DEF_MAP_URL.into(), value: map.encode_to_vec() };
    Ok(GetModelMetadataResponse {
        model_spec: Some(version_spec(version, "")),
        metadata: [(METADATA_FIELD.to_owned(), packed)].into(),
    })
}

/// Returns the state of each version.
pub fn model_status(versions: &[VersionState]) -> GetModelStatusResponse {
    let status = |state: &VersionState| ModelVersionStatus {
        version: state.version as i64,
        state: state.state.message().into(),
        status: Some(StatusProto {
            error_code: error_code(state).into(),
            error_message: state.error.clone().unwrap_or_default(),
        }),
    };
    GetModelStatusResponse { model_version_status: versions.iter().map(status).collect() }
}

/// Returns `Unknown` for any failure, because the reason of a version is a sentence without a kind.
pub(super) fn error_code(state: &VersionState) -> Code {
    if state.error.is_some() { Code::Unknown } else { Code::Ok }
}
