//! The body of an infer request, for servers and clients.

use std::sync::Arc;
use std::time::Duration;

use base::{Dim, Error, NamedTensor, Result, Shape, Signature, Tensor, TensorSpec};
use bytes::Bytes;

use super::Body;
use super::tensor::{PendingTensor, read_all, read_name, resolve, split, write_body};
use crate::json::{JsonReader, Scalar, key, string};
use crate::oip::parameters::{self, InferOptions};
use crate::wire;

/// A requested output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedOutput {
    /// Name of the output.
    pub name: Arc<str>,
    /// True for raw elements, false for JSON, or `None` for the request's default.
    pub binary: Option<bool>,
}

/// An inference request without the model's name and version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestInferRequest {
    /// The id to echo. Empty if the client sent none.
    pub id: String,
    /// The inputs, not yet checked against a signature.
    pub inputs: Vec<NamedTensor>,
    /// The requested outputs. Empty for all.
    pub outputs: Vec<RequestedOutput>,
    /// True if outputs without a choice of their own are raw.
    pub binary_output: bool,
    /// The client's time limit, from the `timeout` parameter in microseconds.
    pub timeout: Option<Duration>,
    /// The priority level, from the `priority` parameter: 1 is the highest, 0 the model's default.
    pub priority: usize,
    /// The signature, from the `signature_name` parameter. Empty for the model's default.
    pub signature: String,
    /// The key for rollouts, from the `request_key` parameter. Empty if there is none.
    pub request_key: String,
}

/// The form of the outputs of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputEncoding {
    /// True if outputs are raw.
    pub binary: bool,
    /// Names of the outputs in the other form.
    pub except: Vec<Arc<str>>,
}

impl OutputEncoding {
    pub(super) fn is_binary(&self, name: &str) -> bool {
        self.binary != self.except.iter().any(|other| **other == *name)
    }
}

impl RestInferRequest {
    /// Returns the form of the outputs.
    pub fn encoding(&self) -> OutputEncoding {
        let differs = |output: &&RequestedOutput| {
            output.binary.is_some_and(|binary| binary != self.binary_output)
        };
        let except =
            self.outputs.iter().filter(differs).map(|output| output.name.clone()).collect();
        OutputEncoding { binary: self.binary_output, except }
    }
}

/// Reads the body of an infer request. `header_length` is the value of
/// `Inference-Header-Content-Length`. Without it the body is JSON. If it is 0, the body is the raw
/// form of the only input that `signature` requires. Raw tensors share the body.
///
/// # Errors
/// `InvalidArgument` for malformed JSON or a malformed priority. Also for tensors whose elements do
/// not match their type and shape, and for binary data of another length than announced.
/// `Unimplemented` for shared memory and classification.
pub fn parse_infer(
    body: Bytes,
    header_length: Option<usize>,
    signature: &Signature,
) -> Result<RestInferRequest> {
    if header_length == Some(0) {
        return raw_request(body, signature);
    }
    let (json, raw_bytes) = split(body, header_length)?;
    read_members(&json, raw_bytes, |_, _| Ok(false))
}

/// Reads a request of JSON only. `other` reads members that a request does not have, and returns
/// false for members to skip.
///
/// # Errors
/// As [`parse_infer`], and the errors of `other`.
pub(super) fn read_request(
    json: &Bytes,
    other: impl FnMut(&mut JsonReader<'_>, &str) -> Result<bool>,
) -> Result<RestInferRequest> {
    read_members(json, Bytes::new(), other)
}

/// Reads a request. `raw_bytes` is the binary data after the JSON. `other` reads a member that a
/// request does not have, and returns false to skip it.
fn read_members(
    json: &Bytes,
    raw_bytes: Bytes,
    mut other: impl FnMut(&mut JsonReader<'_>, &str) -> Result<bool>,
) -> Result<RestInferRequest> {
    let mut request = RestInferRequest::default();
    let mut inputs = None;
    let mut reader = JsonReader::new(json);
    reader.object(|reader, key| {
        match key {
            "id" if !reader.null() => request.id = reader.string()?.into_owned(),
            "inputs" if inputs.is_some() => return Err(reader.error("\"inputs\" is given twice")),
            "inputs" => inputs = Some(read_all(reader, json)?),
            "outputs" if !reader.null() => request.outputs = read_outputs(reader)?,
            "parameters" if !reader.null() => read_parameters(reader, &mut request)?,
            "id" | "outputs" | "parameters" => {}
            _ if other(reader, key)? => {}
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    reader.end().map_err(|error| match &inputs {
        Some(inputs) if inputs.iter().any(PendingTensor::is_after_json) => error.context(
            "Inference-Header-Content-Length must be the length of the JSON before the binary data",
        ),
        _ => error,
    })?;
    let inputs = inputs.ok_or_else(|| Error::invalid("the request has no \"inputs\""))?;
    request.inputs = resolve(inputs, raw_bytes)?;
    Ok(request)
}

fn read_parameters(reader: &mut JsonReader<'_>, request: &mut RestInferRequest) -> Result<()> {
    let mut options = InferOptions::default();
    reader.object(|reader, key| options.read(key, &reader.scalar()?))?;
    request.timeout = options.timeout;
    request.priority = options.priority;
    request.binary_output = options.binary_output;
    request.signature = options.signature;
    request.request_key = options.request_key;
    Ok(())
}

fn read_outputs(reader: &mut JsonReader<'_>) -> Result<Vec<RequestedOutput>> {
    let mut outputs = Vec::new();
    reader.array(|reader| {
        wire::check_count("outputs", outputs.len() + 1)?;
        outputs.push(read_output(reader)?);
        Ok(())
    })?;
    Ok(outputs)
}

/// Reads an entry of the list "outputs".
fn read_output(reader: &mut JsonReader<'_>) -> Result<RequestedOutput> {
    let mut name = None;
    // The name may come after the parameters.
    let mut parameters: Vec<(String, Scalar<'_>)> = Vec::new();
    reader.object(|reader, key| {
        match key {
            "name" => name = Some(read_name(reader)?),
            "parameters" if !reader.null() => reader.object(|reader, key| {
                wire::check_count("parameters", parameters.len() + 1)?;
                parameters.push((key.to_owned(), reader.scalar()?));
                Ok(())
            })?,
            "parameters" => {}
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    let name: Arc<str> =
        name.ok_or_else(|| Error::invalid("a requested output has no \"name\""))?;
    let mut binary = None;
    for (parameter, value) in &parameters {
        binary = parameters::output(&name, parameter, value)?.or(binary);
    }
    Ok(RequestedOutput { name, binary })
}

/// Reads a body of the elements of the only input. The response is raw too.
fn raw_request(body: Bytes, signature: &Signature) -> Result<RestInferRequest> {
    let required: Vec<&TensorSpec> =
        signature.inputs.iter().filter(|spec| !spec.optional).collect();
    let spec = match (required.as_slice(), signature.inputs.as_slice()) {
        ([spec], _) => spec,
        ([], [spec]) => spec,
        (_, all) => {
            return Err(Error::invalid(format!(
                "a body without JSON is for models with one input, this one has {}",
                all.len()
            )));
        }
    };
    let tensor = raw_input(spec, body)?;
    let inputs = vec![NamedTensor::new(spec.name.as_str(), tensor)];
    Ok(RestInferRequest { inputs, binary_output: true, ..RestInferRequest::default() })
}

fn raw_input(spec: &TensorSpec, body: Bytes) -> Result<Tensor> {
    let Some(bits) = spec.dtype.bits() else {
        // The whole body is one string, without a length in front of it.
        let ones: Shape = spec.shape.iter().flatten().map(|_| 1).collect();
        return Tensor::from_strings(ones, vec![body]);
    };
    let shape = raw_shape(spec, body.len().saturating_mul(8) / bits)?;
    wire::fixed(&spec.name, spec.dtype, shape, body)
}

/// Returns the shape, with its dynamic axis computed from the number of elements. If the batch axis
/// in front is dynamic too, it is 1.
fn raw_shape(spec: &TensorSpec, elements: usize) -> Result<Shape> {
    let unclear = || {
        Error::invalid(format!(
            "the shape of \"{}\" cannot be derived from the length of the body; send JSON with a shape",
            spec.name
        ))
    };
    let dims = spec.shape.as_ref().ok_or_else(unclear)?;
    let mut open: Vec<usize> = dims
        .iter()
        .enumerate()
        .filter(|(_, dim)| matches!(dim, Dim::Dynamic(_)))
        .map(|(axis, _)| axis)
        .collect();
    if open.len() == 2 && open[0] == 0 {
        open.remove(0);
    }
    let mut shape: Shape =
        dims.iter().map(|dim| if let Dim::Fixed(size) = dim { *size } else { 1 }).collect();
    match open.as_slice() {
        [] => {}
        [axis] => {
            let others = wire::elements(&spec.name, &shape)?;
            shape[*axis] = elements.checked_div(others).ok_or_else(unclear)?;
        }
        _ => return Err(unclear()),
    }
    Ok(shape)
}

/// Encodes a client's request. Empty `outputs` request all outputs. With `binary`, tensors are raw
/// in both directions.
///
/// # Errors
/// `InvalidArgument` if a tensor's type has no form in JSON and `binary` is false.
pub fn encode_request(
    id: &str,
    inputs: &[NamedTensor],
    outputs: &[&str],
    binary: bool,
) -> Result<Body> {
    let mut json = b"{".to_vec();
    if !id.is_empty() {
        key(&mut json, "id");
        string(&mut json, id);
        json.push(b',');
    }
    if binary {
        json.extend_from_slice(b"\"parameters\":{\"binary_data_output\":true},");
    }
    if !outputs.is_empty() {
        json.extend_from_slice(b"\"outputs\":[");
        for (position, output) in outputs.iter().enumerate() {
            json.extend_from_slice(if position > 0 { b",{\"name\":" } else { b"{\"name\":" });
            string(&mut json, output);
            json.push(b'}');
        }
        json.extend_from_slice(b"],");
    }
    write_body(json, "inputs", inputs, |_| binary)
}
