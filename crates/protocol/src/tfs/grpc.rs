//! Predict, metadata and status as gRPC messages, for both ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Error, NamedTensor, Result, Signature, TensorSpec, VersionId};
use prost::Message;

use super::fill::FillBudget;
use super::response::{self, SharedPredictResponse, TensorFields, spec};
use super::tensor::{decode_within, encode_tensor};
use super::{METADATA_FIELD, METHOD, SIGNATURE, check_signature, datatype};
use crate::status::VersionState;
use crate::tensorflow::error::Code;
use crate::tensorflow::serving::{
    GetModelMetadataResponse, GetModelStatusResponse, ModelSpec, ModelVersionStatus, PredictRequest,
    PredictResponse, SignatureDefMap, StatusProto, model_spec::VersionChoice,
};
use crate::tensorflow::tensor_shape_proto::Dim;
use crate::tensorflow::{SignatureDef, TensorInfo, TensorShapeProto, tensor_info};
use crate::wire;

const SIGNATURE_DEF_MAP_URL: &str = "type.googleapis.com/tensorflow.serving.SignatureDefMap";

/// Which model, and which version of it, a request names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PredictTarget {
    /// The model.
    pub name: String,
    /// The version, where it is given as a number.
    pub version: Option<u64>,
    /// The version, where it is given as a label.
    pub label: Option<String>,
}

/// What a request asks, apart from its [`PredictTarget`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcPredict {
    /// The inputs, not yet checked against a signature.
    pub inputs: Vec<NamedTensor>,
    /// The wanted outputs; empty means all.
    pub outputs: Vec<Arc<str>>,
}

/// The target of a request.
///
/// # Errors
/// `InvalidArgument` when no model is named or the version is negative, `FailedPrecondition` for another signature than
/// the only one.
pub fn target(spec: Option<&ModelSpec>) -> Result<PredictTarget> {
    let spec = spec.ok_or_else(|| Error::invalid("the request has no model_spec"))?;
    if spec.name.is_empty() {
        return Err(Error::invalid("the request's model_spec has no name"));
    }
    wire::check_name(&spec.name)?;
    check_signature(&spec.signature_name)?;
    let mut target = PredictTarget { name: spec.name.clone(), ..PredictTarget::default() };
    match &spec.version_choice {
        None => {}
        Some(VersionChoice::Version(version)) => {
            let number = u64::try_from(*version)
                .map_err(|_| Error::invalid(format!("{version} is no version number")))?;
            target.version = Some(number);
        }
        Some(VersionChoice::VersionLabel(label)) => {
            wire::check_name(label)?;
            target.label = Some(label.clone());
        }
    }
    Ok(target)
}

/// Returns an upper bound of the bytes that [`decode_predict`] allocates and the bytes of a message do not show: repeated
/// values, and the strings of `tensor_content`.
pub fn filled_bytes_max(request: &PredictRequest) -> u64 {
    let (mut filled, mut strings) = (0u64, 0u64);
    for message in request.inputs.values() {
        let Some(dtype) = super::from_datatype(message.dtype) else { continue };
        // A string takes a reference in the list and in the tensor, and its length before that.
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
    // What is filled may be copied once more.
    2 * filled.min(2 * super::fill::FILLED_BYTES_MAX as u64) + strings
}

/// The inputs and wishes of a request; `tensor_content` is shared, not copied.
///
/// # Errors
/// Those of [`super::decode_tensor`], and `InvalidArgument` for too many inputs or outputs.
pub fn decode_predict(request: PredictRequest) -> Result<GrpcPredict> {
    wire::check_count("inputs", request.inputs.len())?;
    wire::check_count("outputs", request.output_filter.len())?;
    request.inputs.keys().chain(&request.output_filter).try_for_each(|name| wire::check_name(name))?;
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

/// Returns the answer, whose elements go where `elements` says. Tensors of floats, bools and complex numbers share the
/// outputs' memory.
pub fn encode_predict(
    version: &VersionId,
    outputs: Vec<NamedTensor>,
    elements: TensorFields,
) -> SharedPredictResponse {
    response::shared_response(outputs, elements, spec(version, SIGNATURE))
}

/// A request for a client; `outputs` empty means all.
pub fn encode_request(target: &PredictTarget, inputs: &[NamedTensor], outputs: &[&str]) -> PredictRequest {
    let choice = match (target.version, &target.label) {
        (Some(version), _) => Some(VersionChoice::Version(version as i64)),
        (None, Some(label)) => Some(VersionChoice::VersionLabel(label.clone())),
        (None, None) => None,
    };
    PredictRequest {
        model_spec: Some(ModelSpec {
            name: target.name.clone(),
            signature_name: String::new(),
            version_choice: choice,
        }),
        inputs: inputs.iter().map(|input| (input.name.to_string(), encode_tensor(&input.tensor))).collect(),
        output_filter: outputs.iter().map(|output| (*output).into()).collect(),
    }
}

/// The outputs of an answer in the order of their names, for a client.
///
/// # Errors
/// `DataLoss` for an answer whose tensors are not what it says of them.
pub fn decode_response(response: PredictResponse) -> Result<Vec<NamedTensor>> {
    let mut budget = FillBudget::default();
    let output = |(name, message): (String, _)| {
        let tensor = decode_within(&name, message, &mut budget)
            .map_err(|error| Error::data_loss(error.message()).context("the server's answer"))?;
        Ok(NamedTensor::new(name, tensor))
    };
    response.outputs.into_iter().map(output).collect()
}

/// The signature as TensorFlow describes it.
pub fn signature_def(signature: &Signature) -> SignatureDef {
    let infos = |specs: &[TensorSpec]| -> BTreeMap<String, TensorInfo> {
        specs.iter().map(|spec| (spec.name.clone(), tensor_info(spec))).collect()
    };
    SignatureDef {
        inputs: infos(&signature.inputs),
        outputs: infos(&signature.outputs),
        method_name: METHOD.into(),
        defaults: BTreeMap::new(),
    }
}

fn tensor_info(spec: &TensorSpec) -> TensorInfo {
    let dim = |size: i64| Dim { size, name: String::new() };
    TensorInfo {
        encoding: Some(tensor_info::Encoding::Name(spec.name.clone())),
        dtype: datatype(spec.dtype).into(),
        tensor_shape: Some(TensorShapeProto {
            dim: spec.wire_shape().into_iter().map(dim).collect(),
            unknown_rank: spec.shape.is_none(),
        }),
    }
}

/// The metadata of a version: its one signature, packed as the protocol wants it.
///
/// # Errors
/// `InvalidArgument` when `fields` is empty or names anything but "signature_def".
pub fn model_metadata(
    version: &VersionId,
    signature: &Signature,
    fields: &[String],
) -> Result<GetModelMetadataResponse> {
    if fields.is_empty() || fields.iter().any(|field| field != METADATA_FIELD) {
        return Err(Error::invalid(format!(
            "the only metadata_field there is, is \"{METADATA_FIELD}\"; name it"
        )));
    }
    let map = SignatureDefMap { signature_def: [(SIGNATURE.to_owned(), signature_def(signature))].into() };
    let packed = prost_types::Any { type_url: SIGNATURE_DEF_MAP_URL.into(), value: map.encode_to_vec() };
    Ok(GetModelMetadataResponse {
        model_spec: Some(spec(version, "")),
        metadata: [(METADATA_FIELD.to_owned(), packed)].into(),
    })
}

/// The state of each version.
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

/// A version's reason is a sentence without a kind, so all that can be said of a failure is that it is one.
pub(super) fn error_code(state: &VersionState) -> Code {
    if state.error.is_some() { Code::Unknown } else { Code::Ok }
}
