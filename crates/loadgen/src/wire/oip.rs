//! The Open Inference Protocol.

use base::{Data, Error, NamedTensor, Result, TensorSpec};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use protocol::inference::model_infer_request::InferInputTensor;
use protocol::inference::{ModelInferRequest, ModelMetadataRequest, ModelMetadataResponse};
use serde_json::{Value, json};

use super::{EncodedRequests, ModelEndpoint, names, spec};
use crate::connection::{RawResponse, Template, grpc_frame, url_segment};

const INFER_METHOD: &str = "/inference.GRPCInferenceService/ModelInfer";
const METADATA_METHOD: &str = "/inference.GRPCInferenceService/ModelMetadata";

/// Returns raw little-endian bytes, and strings with a 4-byte length before each.
fn raw(tensor: &base::Tensor) -> Bytes {
    match tensor.data() {
        Data::Bytes(bytes) => bytes.clone(),
        Data::Strings(strings) => {
            let mut out = BytesMut::new();
            for text in strings.iter() {
                out.put_u32_le(u32::try_from(text.len()).unwrap_or(u32::MAX));
                out.put_slice(text);
            }
            out.freeze()
        }
    }
}

fn shape(tensor: &base::Tensor) -> Vec<i64> {
    tensor.shape().iter().map(|&size| size as i64).collect()
}

/// Returns the gRPC request of `inputs`, with raw contents.
fn message(model: &str, inputs: &[NamedTensor]) -> Result<ModelInferRequest> {
    let input = |input: &NamedTensor| {
        Ok(InferInputTensor {
            name: input.name.to_string(),
            datatype: protocol::oip::datatype(input.tensor.dtype()).into(),
            shape: shape(&input.tensor),
            ..InferInputTensor::default()
        })
    };
    Ok(ModelInferRequest {
        model_name: model.into(),
        inputs: inputs.iter().map(input).collect::<Result<_>>()?,
        raw_input_contents: inputs.iter().map(|input| raw(&input.tensor)).collect(),
        ..ModelInferRequest::default()
    })
}

pub(super) fn encode_grpc(
    target: &ModelEndpoint,
    requests: &[Vec<NamedTensor>],
) -> Result<EncodedRequests> {
    let body = |inputs: &Vec<NamedTensor>| {
        Ok(grpc_frame(&message(&target.model, inputs)?.encode_to_vec()))
    };
    Ok(EncodedRequests {
        template: Template::grpc(&target.endpoint, INFER_METHOD)?,
        bodies: requests.iter().map(body).collect::<Result<_>>()?,
    })
}

/// Encodes shapes as JSON and values as bytes: the binary-tensor extension.
pub(super) fn encode_http(
    target: &ModelEndpoint,
    requests: &[Vec<NamedTensor>],
) -> Result<EncodedRequests> {
    let encoded: Vec<(usize, Bytes)> =
        requests.iter().map(|inputs| binary_body(inputs)).collect::<Result<_>>()?;
    let header_bytes = encoded.iter().map(|(length, _)| *length).max().unwrap_or(0);
    // One template serves all bodies, so all JSON parts are padded to one length.
    let pad = |(length, body): &(usize, Bytes)| {
        let mut padded = BytesMut::with_capacity(body.len() + header_bytes - length);
        padded.put_slice(&body[..*length]);
        padded.put_bytes(b' ', header_bytes - length);
        padded.put_slice(&body[*length..]);
        padded.freeze()
    };
    let headers = [
        ("inference-header-content-length", header_bytes.to_string()),
        ("content-type", "application/octet-stream".to_owned()),
    ];
    let path = format!("/v2/models/{}/infer", url_segment(&target.model));
    Ok(EncodedRequests {
        template: Template::post(&target.endpoint, &path, &headers)?,
        bodies: encoded.iter().map(pad).collect(),
    })
}

/// Returns the body of an HTTP request with binary tensors, and the length of its JSON header.
fn binary_body(inputs: &[NamedTensor]) -> Result<(usize, Bytes)> {
    let contents: Vec<Bytes> = inputs.iter().map(|input| raw(&input.tensor)).collect();
    let describe = |(input, content): (&NamedTensor, &Bytes)| {
        Ok(json!({
            "name": &*input.name,
            "datatype": protocol::oip::datatype(input.tensor.dtype()),
            "shape": input.tensor.shape(),
            "parameters": {"binary_data_size": content.len()},
        }))
    };
    let described: Vec<Value> =
        inputs.iter().zip(&contents).map(describe).collect::<Result<_>>()?;
    let header =
        json!({"inputs": described, "parameters": {"binary_data_output": true}}).to_string();
    let mut body = BytesMut::from(header.as_bytes());
    contents.iter().for_each(|content| body.put_slice(content));
    Ok((header.len(), body.freeze()))
}

pub(super) fn inputs_grpc(target: &ModelEndpoint) -> Result<Vec<TensorSpec>> {
    let request =
        ModelMetadataRequest { name: target.model.clone(), ..ModelMetadataRequest::default() };
    let answer = target.grpc_call(METADATA_METHOD, &request.encode_to_vec())?;
    let metadata = ModelMetadataResponse::decode(answer.body)
        .map_err(|e| Error::data_loss("the server's metadata").caused_by(e))?;
    let input = |input: &protocol::inference::model_metadata_response::TensorMetadata| {
        Ok(spec(&input.name, names::from_oip(&input.datatype)?, input.shape.iter().copied()))
    };
    metadata.inputs.iter().map(input).collect()
}

pub(super) fn inputs_http(target: &ModelEndpoint) -> Result<Vec<TensorSpec>> {
    let page = target.json_page(&format!("/v2/models/{}", url_segment(&target.model)))?;
    let unusable = || Error::data_loss("the server's metadata has no usable inputs");
    let input = |input: &Value| {
        let name = input["name"].as_str().ok_or_else(unusable)?;
        let dtype = names::from_oip(input["datatype"].as_str().ok_or_else(unusable)?)?;
        let shape = input["shape"].as_array().ok_or_else(unusable)?;
        Ok(spec(name, dtype, shape.iter().map(|size| size.as_i64().unwrap_or(-1))))
    };
    page["inputs"].as_array().ok_or_else(unusable)?.iter().map(input).collect()
}

/// Content of a gRPC response.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// Version that answered, or 0 if unknown.
    pub version: u64,
    /// Name, shape and raw bytes of each output.
    pub tensors: Vec<(String, Vec<i64>, Bytes)>,
}

impl Outputs {
    /// Returns the output called `name` in single precision.
    pub fn floats(&self, name: &str) -> Result<(&[i64], Vec<f32>)> {
        let (_, shape, raw) = self
            .tensors
            .iter()
            .find(|(own, ..)| own == name)
            .ok_or_else(|| Error::data_loss(format!("the answer has no output \"{name}\"")))?;
        if raw.len() % 4 != 0 {
            return Err(Error::data_loss(format!("output \"{name}\" is not made of singles")));
        }
        Ok((shape, bytemuck::pod_collect_to_vec(raw)))
    }
}

/// Decodes a gRPC response without copying its tensors.
///
/// # Errors
/// `DataLoss` if it is malformed, or has tensors that are not raw.
pub fn read_answer(answer: &RawResponse) -> Result<Outputs> {
    let message = protocol::inference::ModelInferResponse::decode(answer.body.clone())
        .map_err(|e| Error::data_loss("the answer cannot be read").caused_by(e))?;
    if message.outputs.len() != message.raw_output_contents.len() {
        return Err(Error::data_loss("the answer's tensors are not raw"));
    }
    let version = message.model_version.parse().unwrap_or(0);
    let tensors = message
        .outputs
        .into_iter()
        .zip(message.raw_output_contents)
        .map(|(output, raw)| (output.name, output.shape, raw))
        .collect();
    Ok(Outputs { version, tensors })
}
