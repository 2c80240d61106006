//! The client's side of the Open Inference Protocol with binary tensors: JSON, then raw tensors.

use base::{DType, Data, NamedTensor, Tensor};
use bytes::Bytes;
use command_line::exit::{CommandError, CommandResult};
use protocol::oip::{datatype, from_datatype};
use serde_json::{Value, json};

use crate::infer::json;

/// A request body.
pub(crate) struct EncodedRequest {
    /// Length of its JSON part in bytes.
    pub(crate) json_bytes: usize,
    pub(crate) body: Vec<u8>,
}

pub(crate) struct DecodedResponse {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) outputs: Vec<NamedTensor>,
}

/// Encodes a request for all outputs, in binary.
pub(crate) fn encode(inputs: &[NamedTensor]) -> EncodedRequest {
    let mut raw = Vec::new();
    let mut entries = Vec::new();
    for input in inputs {
        let start = raw.len();
        match input.tensor.data() {
            Data::Bytes(bytes) => raw.extend_from_slice(bytes),
            Data::Strings(strings) => {
                for string in strings.iter() {
                    raw.extend_from_slice(&(string.len() as u32).to_le_bytes());
                    raw.extend_from_slice(string);
                }
            }
        }
        entries.push(json!({
            "name": &*input.name,
            "datatype": datatype(input.tensor.dtype()),
            "shape": input.tensor.shape(),
            "parameters": { "binary_data_size": raw.len() - start },
        }));
    }
    let head = json!({ "inputs": entries, "parameters": { "binary_data_output": true } });
    let mut body = head.to_string().into_bytes();
    let json_bytes = body.len();
    body.append(&mut raw);
    EncodedRequest { json_bytes, body }
}

/// Decodes a response. The server chose binary or JSON for each output; with binary ones, the JSON
/// has `json_bytes`.
///
/// # Errors
/// Returns an error if the response does not follow the protocol.
pub(crate) fn decode(answer: &[u8], json_bytes: Option<usize>) -> CommandResult<DecodedResponse> {
    let broken = || CommandError::failed("the answer is not that of the Open Inference Protocol");
    let body = Bytes::copy_from_slice(answer);
    let split = json_bytes.unwrap_or(body.len());
    if split > body.len() {
        return Err(broken());
    }
    let head: Value = serde_json::from_slice(&body[..split]).map_err(|_| broken())?;
    let mut raw = body.slice(split..);
    let mut outputs = Vec::new();
    for output in head.get("outputs").and_then(Value::as_array).ok_or_else(broken)? {
        outputs.push(output_tensor(output, &mut raw)?);
    }
    let text = |key: &str| head.get(key).and_then(Value::as_str).unwrap_or("?").to_owned();
    Ok(DecodedResponse { model: text("model_name"), version: text("model_version"), outputs })
}

/// Decodes one output. A binary output takes its bytes from the front of `raw`.
fn output_tensor(output: &Value, raw: &mut Bytes) -> CommandResult<NamedTensor> {
    let broken =
        |what: &str| CommandError::failed(format!("the answer's output has {what}: {output}"));
    let name = output.get("name").and_then(Value::as_str).ok_or_else(|| broken("no name"))?;
    let dtype = output
        .get("datatype")
        .and_then(Value::as_str)
        .and_then(from_datatype)
        .ok_or_else(|| broken("no known type"))?;
    let shape: Option<Vec<usize>> = output
        .get("shape")
        .and_then(Value::as_array)
        .and_then(|dims| dims.iter().map(|dim| usize::try_from(dim.as_u64()?).ok()).collect());
    let shape = shape.ok_or_else(|| broken("no shape"))?;
    let size = output.get("parameters").and_then(|parameters| parameters.get("binary_data_size"));
    let tensor = match size.and_then(Value::as_u64) {
        Some(size) => {
            let size = usize::try_from(size).ok().filter(|&size| size <= raw.len());
            let bytes = raw.split_to(size.ok_or_else(|| broken("fewer bytes than it says"))?);
            match dtype {
                DType::String => Tensor::from_strings(shape.as_slice(), strings(&bytes)?)?,
                _ => Tensor::from_bytes(dtype, shape.as_slice(), bytes)?,
            }
        }
        None => json::tensor(dtype, &shape, output.get("data").ok_or_else(|| broken("no data"))?)?,
    };
    Ok(NamedTensor::new(name, tensor))
}

/// Splits length-prefixed byte strings.
fn strings(bytes: &Bytes) -> CommandResult<Vec<Bytes>> {
    let cut = || CommandError::failed("the answer's byte strings are cut short");
    let mut rest = bytes.clone();
    let mut strings = Vec::new();
    while !rest.is_empty() {
        let (length, _) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = u32::from_le_bytes(*length) as usize;
        if rest.len() < 4 + length {
            return Err(cut());
        }
        strings.push(rest.slice(4..4 + length));
        rest = rest.slice(4 + length..);
    }
    Ok(strings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, tensor: base::Result<Tensor>) -> NamedTensor {
        NamedTensor::new(name, tensor.unwrap())
    }

    /// A request becomes a response if its member `inputs` is renamed to `outputs`.
    #[test]
    fn encoded_tensors_can_be_decoded() {
        let tensors = vec![
            named("a", Tensor::from_vec([2usize, 2].as_slice(), vec![1f32, 2.0, 3.0, 4.5])),
            named(
                "b",
                Tensor::from_strings([2usize].as_slice(), vec![Bytes::from("x"), Bytes::new()]),
            ),
            named("c", Tensor::from_vec([0usize].as_slice(), Vec::<i64>::new())),
        ];
        let request = encode(&tensors);
        let head = String::from_utf8(request.body[..request.json_bytes].to_vec())
            .unwrap()
            .replace("inputs", "outputs");
        let body = [head.as_bytes(), &request.body[request.json_bytes..]].concat();
        assert_eq!(decode(&body, Some(head.len())).unwrap().outputs, tensors);
    }

    #[test]
    fn answers_in_json_are_decoded() {
        let body = br#"{"model_name":"m","model_version":"3","outputs":[
            {"name":"y","datatype":"FP32","shape":[1,2],"data":[2.5,3]}]}"#;
        let decoded = decode(body, None).unwrap();
        assert_eq!((decoded.model.as_str(), decoded.version.as_str()), ("m", "3"));
        assert_eq!(decoded.outputs[0].tensor.to_vec::<f32>().unwrap(), [2.5, 3.0]);
    }

    #[test]
    fn broken_answers_are_refused() {
        for (json_bytes, body) in [
            (None, &b"[]"[..]),
            (Some(99), b"{}"),
            (None, br#"{"outputs":[{"name":"y","datatype":"FP32","shape":[3],"parameters":{"binary_data_size":12}}]}"#),
            (None, br#"{"outputs":[{"name":"y","datatype":"FP32","shape":[3],"data":[1]}]}"#),
        ] {
            assert!(decode(body, json_bytes).is_err());
        }
    }
}
