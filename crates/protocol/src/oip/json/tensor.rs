//! Tensors in REST bodies of requests and responses.

use std::ops::Range;
use std::sync::Arc;

use base::{DType, Data, Error, NamedTensor, Result, Shape, Tensor};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::Body;
use crate::json::{JsonReader, column, key, string, write_flat};
use crate::oip::parameters::{self, BINARY_SIZE};
use crate::oip::{contents, datatype, dtype_of};
use crate::wire::{self, RANK_MAX};

/// A tensor whose elements may follow the JSON.
pub(super) struct PendingTensor {
    name: Arc<str>,
    dtype: DType,
    shape: Shape,
    source: ElementSource,
}

impl PendingTensor {
    /// Returns true if the elements follow the JSON.
    pub(super) fn is_after_json(&self) -> bool {
        matches!(self.source, ElementSource::AfterJson(_))
    }
}

/// Place of the elements of a tensor.
enum ElementSource {
    /// Elements in the JSON.
    Here(Tensor),
    /// Number of bytes of a binary tensor after the JSON.
    AfterJson(usize),
}

/// The members of a tensor's object, which may come in any order.
#[derive(Default)]
struct TensorMembers {
    name: Option<Arc<str>>,
    datatype: Option<String>,
    shape: Option<SmallVec<[i64; 6]>>,
    /// Number of bytes of its binary data after the JSON.
    binary_size: Option<usize>,
    /// True if the strings are base64 (MLServer's `content_type`).
    base64: bool,
    /// True if the elements must be strings (MLServer's `content_type`).
    text: bool,
    data: Option<JsonData>,
}

/// Elements in the JSON.
enum JsonData {
    Read(Tensor),
    /// The range of the data, which came before type and shape.
    Passed(Range<usize>),
}

/// Splits a body into its JSON and the bytes after it.
pub(super) fn split(mut body: Bytes, header_length: Option<usize>) -> Result<(Bytes, Bytes)> {
    match header_length {
        None => Ok((body, Bytes::new())),
        Some(length) if length > body.len() => Err(Error::invalid(format!(
            "Inference-Header-Content-Length is {length}, the body has only {} bytes",
            body.len()
        ))),
        Some(length) => {
            let json = body.split_to(length);
            Ok((json, body))
        }
    }
}

/// Reads a list of tensors.
pub(super) fn read_all(reader: &mut JsonReader<'_>, json: &Bytes) -> Result<Vec<PendingTensor>> {
    let mut pending = Vec::new();
    reader.array(|reader| {
        wire::check_count("tensors", pending.len() + 1)?;
        pending.push(read(reader, json)?);
        Ok(())
    })?;
    Ok(pending)
}

fn read(reader: &mut JsonReader<'_>, json: &Bytes) -> Result<PendingTensor> {
    let mut members = TensorMembers::default();
    reader.object(|reader, key| members.read(reader, key))?;
    members.finish(json)
}

impl TensorMembers {
    /// Reads the member `key`. Elements are parsed at once if type and shape came before them.
    /// Otherwise their place is kept, and they are parsed later.
    fn read(&mut self, reader: &mut JsonReader<'_>, key: &str) -> Result<()> {
        match key {
            "name" => self.name = Some(read_name(reader)?),
            "datatype" => self.datatype = Some(reader.string()?.into_owned()),
            "shape" => self.shape = Some(read_shape(reader)?),
            "parameters" => self.read_parameters(reader)?,
            // Clients send null beside binary data; KServe's does for an array without elements.
            "data" if reader.null() => {}
            "data" => {
                self.data = Some(match (&self.name, &self.datatype, &self.shape) {
                    (Some(name), Some(datatype), Some(shape)) => {
                        let dtype = dtype_of(name, datatype)?;
                        let shape = wire::shape(name, shape.iter().copied())?;
                        JsonData::Read(read_data(reader, name, dtype, shape)?)
                    }
                    _ => JsonData::Passed(reader.pass()?),
                });
            }
            _ => reader.skip()?,
        }
        Ok(())
    }

    /// Reads the parameters of a tensor.
    fn read_parameters(&mut self, reader: &mut JsonReader<'_>) -> Result<()> {
        if reader.null() {
            return Ok(());
        }
        reader.object(|reader, key| {
            let input = self.name.as_deref().unwrap_or_default();
            let value = reader.scalar()?;
            if parameters::is_base64_content(key, &value) {
                self.base64 = true;
                return Ok(());
            }
            if parameters::is_text_content(key, &value) {
                self.text = true;
                return Ok(());
            }
            let size = parameters::input(input, key, &value)?;
            self.binary_size = size.or(self.binary_size);
            Ok(())
        })
    }

    /// Checks the members of a tensor, and decodes data that came before its name, type or shape.
    /// `json` is the text that was read.
    fn finish(self, json: &Bytes) -> Result<PendingTensor> {
        let name = self.name.ok_or_else(|| Error::invalid("a tensor has no \"name\""))?;
        let lacks = |what: &str| Error::invalid(format!("\"{name}\" has no \"{what}\""));
        let dtype = dtype_of(&name, &self.datatype.ok_or_else(|| lacks("datatype"))?)?;
        let shape = wire::shape(&name, self.shape.ok_or_else(|| lacks("shape"))?.into_iter())?;
        if self.text && dtype != DType::String {
            return Err(only_strings(&name, "str"));
        }
        let decoded =
            |tensor: Tensor| if self.base64 { decode_base64(&name, &tensor) } else { Ok(tensor) };
        let source = match (self.data, self.binary_size) {
            (Some(_), Some(_)) => {
                return Err(Error::invalid(format!(
                    "\"{name}\" has \"data\" and {BINARY_SIZE}; give one of them"
                )));
            }
            (None, None) => return Err(lacks("data")),
            (None, Some(_)) if self.base64 => {
                return Err(Error::invalid(format!(
                    "\"{name}\" is binary data and has the content type base64, which is for \"data\"; \
                     send the decoded strings, without the content type"
                )));
            }
            (None, Some(size)) => ElementSource::AfterJson(size),
            (Some(JsonData::Read(tensor)), None) => ElementSource::Here(decoded(tensor)?),
            (Some(JsonData::Passed(span)), None) => {
                let tensor =
                    read_data(&mut JsonReader::again(json, &span), &name, dtype, shape.clone())?;
                ElementSource::Here(decoded(tensor)?)
            }
        };
        Ok(PendingTensor { name, dtype, shape, source })
    }
}

/// Decodes strings of base64.
///
/// # Errors
/// `InvalidArgument` for elements that are not strings, or strings that are not base64.
fn decode_base64(name: &str, tensor: &Tensor) -> Result<Tensor> {
    let Data::Strings(strings) = tensor.data() else {
        return Err(only_strings(name, "base64"));
    };
    let decode = |text: &Bytes| {
        STANDARD
            .decode(text)
            .map(Bytes::from)
            .map_err(|error| Error::invalid(format!("\"{name}\" is not base64")).caused_by(error))
    };
    let strings = strings.iter().map(decode).collect::<Result<Vec<_>>>()?;
    Tensor::from_strings(Shape::from_slice(tensor.shape()), strings)
}

/// Returns the error for a tensor of numbers with a content type of strings.
fn only_strings(name: &str, content_type: &str) -> Error {
    Error::invalid(format!(
        "\"{name}\" has the content type {content_type}, which is for the datatype BYTES"
    ))
}

/// Reads a name of bounded length.
pub(super) fn read_name(reader: &mut JsonReader<'_>) -> Result<Arc<str>> {
    let name = reader.string()?;
    wire::check_name(&name)?;
    Ok(name.into())
}

fn read_shape(reader: &mut JsonReader<'_>) -> Result<SmallVec<[i64; 6]>> {
    let mut shape = SmallVec::new();
    reader.array(|reader| {
        if shape.len() == RANK_MAX {
            return Err(Error::invalid(format!("a shape has more than {RANK_MAX} axes")));
        }
        shape.push(reader.whole()?);
        Ok(())
    })?;
    Ok(shape)
}

/// Reads the elements of the input `name` in any nesting.
fn read_data(
    reader: &mut JsonReader<'_>,
    name: &str,
    dtype: DType,
    shape: Shape,
) -> Result<Tensor> {
    let mut column = column(dtype).map_err(|error| error.context(format_args!("\"{name}\"")))?;
    column.read(reader, 0).map_err(|error| error.context(format_args!("\"{name}\"")))?;
    let given = column.nesting().shape();
    let elements = wire::elements(name, &shape)?;
    // Any nesting is accepted, as in Triton, because the elements are in order.
    if given.iter().product::<usize>() != elements {
        return Err(Error::invalid(format!(
            "\"{name}\" has shape {:?} and data of shape {:?}; give {elements} elements",
            shape.as_slice(),
            given.as_slice()
        )));
    }
    column.finish(shape)
}

/// Assigns the bytes after the JSON to the pending tensors, in order. All bytes must be assigned.
pub(super) fn resolve(
    pending: Vec<PendingTensor>,
    mut raw_bytes: Bytes,
) -> Result<Vec<NamedTensor>> {
    let announced = pending.iter().fold(0usize, |sum, tensor| match tensor.source {
        ElementSource::AfterJson(size) => sum.saturating_add(size),
        ElementSource::Here(_) => sum,
    });
    if announced != raw_bytes.len() {
        return Err(Error::invalid(format!(
            "{} bytes of binary data follow the JSON, the tensors announce {announced}",
            raw_bytes.len()
        )));
    }
    let tensor = |PendingTensor { name, dtype, shape, source }: PendingTensor| {
        let tensor = match source {
            ElementSource::Here(tensor) => tensor,
            ElementSource::AfterJson(size) => {
                contents::raw_tensor(&name, dtype, shape, raw_bytes.split_to(size))?
            }
        };
        Ok(NamedTensor { name, tensor })
    };
    pending.into_iter().map(tensor).collect()
}

/// The form of tensors in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorForm {
    /// Strings are text.
    Text,
    /// Strings are base64 if one of them is not text, which the tensor's content type says.
    Lossless,
}

/// Appends the member `list` of tensors with their elements.
///
/// # Errors
/// `InvalidArgument` for a type that has no form in JSON, or for strings without one.
pub(super) fn write_tensors(
    json: &mut Vec<u8>,
    list: &str,
    tensors: &[NamedTensor],
    form: TensorForm,
) -> Result<()> {
    key(json, list);
    json.push(b'[');
    for (position, NamedTensor { name, tensor }) in tensors.iter().enumerate() {
        json.extend_from_slice(if position > 0 { b",{" } else { b"{" });
        write_description(json, name, tensor);
        write_elements(json, tensor, form)
            .map_err(|error| error.context(format_args!("\"{name}\"")))?;
        json.push(b'}');
    }
    json.push(b']');
    Ok(())
}

/// Writes the member `data`, and before it the parameter for base64 if the strings need it.
fn write_elements(json: &mut Vec<u8>, tensor: &Tensor, form: TensorForm) -> Result<()> {
    let text = |text: &Bytes| std::str::from_utf8(text).is_ok();
    match tensor.data() {
        Data::Strings(strings) if form == TensorForm::Lossless && !strings.iter().all(text) => {
            json.extend_from_slice(b",\"parameters\":{\"content_type\":\"base64\"},\"data\":[");
            for (position, bytes) in strings.iter().enumerate() {
                if position > 0 {
                    json.push(b',');
                }
                string(json, &STANDARD.encode(bytes));
            }
            json.push(b']');
            Ok(())
        }
        _ => {
            json.extend_from_slice(b",\"data\":");
            write_flat(json, tensor)
        }
    }
}

/// Writes tensors into a body. `json` is an open object. It gets the member `list` and is closed.
/// The raw form of each tensor for which `binary` returns true follows.
pub(super) fn write_body(
    mut json: Vec<u8>,
    list: &str,
    tensors: &[NamedTensor],
    binary: impl Fn(&str) -> bool,
) -> Result<Body> {
    let mut raw_bytes: Vec<Bytes> = Vec::new();
    key(&mut json, list);
    json.push(b'[');
    for (position, NamedTensor { name, tensor }) in tensors.iter().enumerate() {
        json.extend_from_slice(if position > 0 { b",{" } else { b"{" });
        write_description(&mut json, name, tensor);
        if binary(name) {
            let raw = contents::raw_form(name, tensor)?;
            json.extend_from_slice(
                format!(",\"parameters\":{{\"{BINARY_SIZE}\":{}}}", raw.len()).as_bytes(),
            );
            raw_bytes.push(raw);
        } else {
            write_elements(&mut json, tensor, TensorForm::Text)
                .map_err(|error| error.context(format_args!("\"{name}\"")))?;
        }
        json.push(b'}');
    }
    json.push(b']');
    json.push(b'}');
    if raw_bytes.is_empty() {
        return Ok(Body { body: json.into(), header_length: None });
    }
    let length = json.len();
    let mut body =
        BytesMut::with_capacity(length + raw_bytes.iter().map(Bytes::len).sum::<usize>());
    body.extend_from_slice(&json);
    for raw in raw_bytes {
        body.extend_from_slice(&raw);
    }
    Ok(Body { body: body.freeze(), header_length: Some(length) })
}

/// Writes the members with name, type and shape of a tensor, without the braces.
fn write_description(json: &mut Vec<u8>, name: &str, tensor: &Tensor) {
    key(json, "name");
    string(json, name);
    json.extend_from_slice(
        format!(",\"datatype\":\"{}\",\"shape\":[", datatype(tensor.dtype())).as_bytes(),
    );
    for (axis, dim) in tensor.shape().iter().enumerate() {
        json.extend_from_slice(
            if axis > 0 { format!(",{dim}") } else { dim.to_string() }.as_bytes(),
        );
    }
    json.push(b']');
}
