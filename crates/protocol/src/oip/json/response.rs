//! The body of a response, for servers and clients.

use base::{ErrorKind, NamedTensor, Result, VersionId};
use bytes::Bytes;

use super::tensor::{read_all, resolve, split, write_body};
use super::{Body, OutputEncoding};
use crate::json::{JsonReader, description_bytes_max, key, string, text_bytes_max};
use crate::oip::InferResponse;

/// Upper bounds of the bytes that [`infer_response`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseSize {
    /// Bytes of the JSON.
    pub text: usize,
    /// Bytes of the binary tensors after the JSON.
    pub raw: usize,
}

/// Returns upper bounds of the response's size, without the model's name.
pub fn response_bytes_max(
    id: &str,
    outputs: &[NamedTensor],
    encoding: &OutputEncoding,
) -> ResponseSize {
    let mut size = ResponseSize { text: 6 * id.len() + text_bytes_max(&[]), raw: 0 };
    for output in outputs {
        let is_binary = encoding.is_binary(&output.name);
        size.text = size.text.saturating_add(if is_binary {
            description_bytes_max(output)
        } else {
            text_bytes_max(std::slice::from_ref(output))
        });
        match output.tensor.data() {
            _ if !is_binary => {}
            base::Data::Bytes(bytes) => size.raw += bytes.len(),
            base::Data::Strings(strings) => {
                size.raw += strings.iter().map(|text| text.len() + 4).sum::<usize>()
            }
        }
    }
    size
}

/// Writes the response. An empty `id` is left out.
///
/// # Errors
/// `InvalidArgument` if an output in JSON has a type without a form in JSON, or strings that are
/// not UTF-8. The client must request binary data.
pub fn infer_response(
    version: &VersionId,
    id: &str,
    outputs: &[NamedTensor],
    encoding: &OutputEncoding,
) -> Result<Body> {
    // Growing would hold the text twice.
    let mut json = Vec::with_capacity(response_bytes_max(id, outputs, encoding).text);
    json.push(b'{');
    if !id.is_empty() {
        key(&mut json, "id");
        string(&mut json, id);
        json.push(b',');
    }
    key(&mut json, "model_name");
    string(&mut json, &version.model);
    json.extend_from_slice(format!(",\"model_version\":\"{}\",", version.version).as_bytes());
    write_body(json, "outputs", outputs, |name| encoding.is_binary(name))
}

/// Reads a response, for a client.
///
/// # Errors
/// `DataLoss` for a body that is not a response.
pub fn parse_response(body: Bytes, header_length: Option<usize>) -> Result<InferResponse> {
    parse(body, header_length)
        .map_err(|error| error.with_kind(ErrorKind::DataLoss).context("the server's answer"))
}

fn parse(body: Bytes, header_length: Option<usize>) -> Result<InferResponse> {
    let (json, raw_bytes) = split(body, header_length)?;
    let mut response = InferResponse::default();
    let mut outputs = Vec::new();
    let mut reader = JsonReader::new(&json);
    reader.object(|reader, key| {
        match key {
            "id" => response.id = reader.string()?.into_owned(),
            "model_name" => response.model = reader.string()?.into_owned(),
            "model_version" => response.version = reader.string()?.into_owned(),
            "outputs" => outputs = read_all(reader, &json)?,
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    reader.end()?;
    response.outputs = resolve(outputs, raw_bytes)?;
    Ok(response)
}
