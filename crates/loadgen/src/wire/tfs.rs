//! TensorFlow Serving's API.

use base::{Data, Error, NamedTensor, Result, TensorSpec};
use prost::Message;
use protocol::tensorflow::serving::{
    GetModelMetadataRequest, GetModelMetadataResponse, ModelSpec, PredictRequest, SignatureDefMap,
};
use protocol::tensorflow::{TensorProto, TensorShapeProto, tensor_shape_proto};
use serde_json::{Map, Value, json};

use super::{EncodedRequests, ModelEndpoint, names, spec, values};
use crate::connection::{Template, grpc_frame, url_segment};

const PREDICT_METHOD: &str = "/tensorflow.serving.PredictionService/Predict";
const METADATA_METHOD: &str = "/tensorflow.serving.PredictionService/GetModelMetadata";
const SIGNATURE: &str = "serving_default";
const SIGNATURE_FIELD: &str = "signature_def";

fn tensor(tensor: &base::Tensor) -> Result<TensorProto> {
    let dim = |&size: &usize| tensor_shape_proto::Dim { size: size as i64, name: String::new() };
    let shape =
        TensorShapeProto { dim: tensor.shape().iter().map(dim).collect(), unknown_rank: false };
    let mut proto = TensorProto {
        dtype: protocol::tfs::datatype(tensor.dtype()).into(),
        tensor_shape: Some(shape),
        ..TensorProto::default()
    };
    match tensor.data() {
        Data::Bytes(bytes) => proto.tensor_content = bytes.clone(),
        Data::Strings(strings) => proto.string_val = strings.to_vec(),
    }
    Ok(proto)
}

fn model_spec(target: &ModelEndpoint) -> Option<ModelSpec> {
    Some(ModelSpec { name: target.model.clone(), ..ModelSpec::default() })
}

pub(super) fn encode_grpc(
    target: &ModelEndpoint,
    requests: &[Vec<NamedTensor>],
) -> Result<EncodedRequests> {
    let body = |inputs: &Vec<NamedTensor>| {
        let named = |input: &NamedTensor| Ok((input.name.to_string(), tensor(&input.tensor)?));
        let request = PredictRequest {
            model_spec: model_spec(target),
            inputs: inputs.iter().map(named).collect::<Result<_>>()?,
            ..PredictRequest::default()
        };
        Ok(grpc_frame(&request.encode_to_vec()))
    };
    Ok(EncodedRequests {
        template: Template::grpc(&target.endpoint, PREDICT_METHOD)?,
        bodies: requests.iter().map(body).collect::<Result<_>>()?,
    })
}

pub(super) fn encode_http(
    target: &ModelEndpoint,
    requests: &[Vec<NamedTensor>],
) -> Result<EncodedRequests> {
    let body = |inputs: &Vec<NamedTensor>| {
        let named =
            |input: &NamedTensor| Ok((input.name.to_string(), values::nested(&input.tensor)?));
        let inputs: Map<String, Value> = inputs.iter().map(named).collect::<Result<_>>()?;
        Ok(json!({"inputs": inputs}).to_string().into())
    };
    Ok(EncodedRequests {
        template: Template::post(
            &target.endpoint,
            &format!("/v1/models/{}:predict", url_segment(&target.model)),
            &[],
        )?,
        bodies: requests.iter().map(body).collect::<Result<_>>()?,
    })
}

/// Requests the metadata of the model over gRPC. Returns the inputs of its default signature, or of
/// its first one.
pub(super) fn inputs_grpc(target: &ModelEndpoint) -> Result<Vec<TensorSpec>> {
    let request = GetModelMetadataRequest {
        model_spec: model_spec(target),
        metadata_field: vec![SIGNATURE_FIELD.into()],
    };
    let answer = target.grpc_call(METADATA_METHOD, &request.encode_to_vec())?;
    let unusable = |e: prost::DecodeError| Error::data_loss("the server's metadata").caused_by(e);
    let metadata = GetModelMetadataResponse::decode(answer.body).map_err(unusable)?;
    let packed = metadata
        .metadata
        .get(SIGNATURE_FIELD)
        .ok_or_else(|| Error::data_loss("the server's metadata has no signature_def"))?;
    let signatures =
        SignatureDefMap::decode(packed.value.as_slice()).map_err(unusable)?.signature_def;
    let signature = signatures
        .get(SIGNATURE)
        .or_else(|| signatures.values().next())
        .ok_or_else(|| Error::data_loss("the model has no signature"))?;
    let input = |(name, info): (&String, &protocol::tensorflow::TensorInfo)| {
        let sizes = info.tensor_shape.iter().flat_map(|shape| &shape.dim).map(|dim| dim.size);
        Ok(spec(name, names::from_tfs(info.dtype)?, sizes))
    };
    signature.inputs.iter().map(input).collect()
}

/// Returns the inputs of the model's signature, as the server's metadata describe them.
pub(super) fn inputs_http(target: &ModelEndpoint) -> Result<Vec<TensorSpec>> {
    let page = target.json_page(&format!("/v1/models/{}/metadata", url_segment(&target.model)))?;
    let unusable = || Error::data_loss("the server's metadata has no usable signature_def");
    // TensorFlow Serving nests the map inside a message of the same name.
    let signatures = &page["metadata"][SIGNATURE_FIELD][SIGNATURE_FIELD];
    let inputs = signatures[SIGNATURE]["inputs"].as_object().ok_or_else(unusable)?;
    let input = |(name, info): (&String, &Value)| {
        let dtype = names::from_tfs_name(info["dtype"].as_str().ok_or_else(unusable)?)?;
        let dims = info["tensor_shape"]["dim"].as_array().cloned().unwrap_or_default();
        let size =
            |dim: &Value| dim["size"].as_str().and_then(|size| size.parse().ok()).unwrap_or(-1);
        Ok(spec(name, dtype, dims.iter().map(size)))
    };
    inputs.iter().map(input).collect()
}
