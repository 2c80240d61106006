//! The client's side of the Open Inference Protocol with binary tensors: JSON, then raw tensors.

use base::{Data, NamedTensor};
use bytes::Bytes;
use command_line::exit::{CommandError, CommandResult};
use protocol::oip::{self, InferResponse};
use serde_json::json;

/// A request body.
pub(crate) struct EncodedRequest {
    /// Length of its JSON part in bytes.
    pub(crate) json_bytes: usize,
    pub(crate) body: Vec<u8>,
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
            "datatype": oip::datatype(input.tensor.dtype()),
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
pub(crate) fn decode(answer: &[u8], json_bytes: Option<usize>) -> CommandResult<InferResponse> {
    let response = oip::json::parse_response(Bytes::copy_from_slice(answer), json_bytes)?;
    // Any JSON object can be read as a response without outputs. A server names its model.
    if response.model.is_empty() && response.outputs.is_empty() {
        return Err(CommandError::failed("the answer is not that of the Open Inference Protocol"));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use base::Tensor;

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
            {"name":"y","datatype":"FP32","shape":[1,4],"data":[2.5,3,-Infinity,NaN]}]}"#;
        let decoded = decode(body, None).unwrap();
        assert_eq!((decoded.model.as_str(), decoded.version.as_str()), ("m", "3"));
        let values = decoded.outputs[0].tensor.to_vec::<f32>().unwrap();
        assert_eq!(values[..3], [2.5, 3.0, f32::NEG_INFINITY]);
        assert!(values[3].is_nan());
    }

    #[test]
    fn broken_answers_are_refused() {
        for (json_bytes, body) in [
            (None, &b"[]"[..]),
            (None, br#"{"status":"ok"}"#),
            (Some(99), b"{}"),
            (None, br#"{"outputs":[{"name":"y","datatype":"FP32","shape":[3],"parameters":{"binary_data_size":12}}]}"#),
            (None, br#"{"outputs":[{"name":"y","datatype":"FP32","shape":[3],"data":[1]}]}"#),
        ] {
            assert!(decode(body, json_bytes).is_err());
        }
    }
}
