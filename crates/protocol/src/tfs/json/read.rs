//! Reads bodies into tensors, by the types of the signature.

use base::{Error, NamedTensor, Result, Signature, TensorSpec};
use bytes::Bytes;
use memchr::memmem;

use super::{BodyMembers, PredictFormat, REQUEST, RESPONSE};
use crate::json::{Column, JsonReader, column};
use crate::wire;

/// A predict request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestPredict {
    /// The inputs, not yet checked against the signature's shapes.
    pub inputs: Vec<NamedTensor>,
    /// The format of the request, which the response has too.
    pub form: PredictFormat,
}

/// Member that names the signature.
const SIGNATURE_NAME: &str = "signature_name";

/// Returns the signature that the body of a request names, or "" for the model's default. Reads no
/// further than that member.
///
/// # Errors
/// `InvalidArgument` for malformed JSON before the name, and for a name that is not a string.
pub fn signature_name(body: &Bytes) -> Result<String> {
    // Most bodies name no signature and are not read twice. An escape may hide the name.
    let holds = |text: &str| memmem::find(body, text.as_bytes()).is_some();
    if !holds(SIGNATURE_NAME) && !holds("\\u") {
        return Ok(String::new());
    }
    let mut found = None;
    let mut reader = JsonReader::tensorflow(body);
    let read = reader.object(|reader, key| {
        if key != SIGNATURE_NAME {
            return reader.skip();
        }
        let name = reader.string().map_err(|error| error.context("'signature_name'"))?;
        wire::check_name(&name)?;
        found = Some(name.into_owned());
        // The rest is not needed. This error is dropped below.
        Err(reader.error("found"))
    });
    match (found, read) {
        (Some(name), _) => Ok(name),
        (None, Ok(())) => Ok(String::new()),
        (None, Err(error)) => Err(error),
    }
}

/// Reads the body of a predict request for `signature`. Unknown members are ignored.
///
/// # Errors
/// `InvalidArgument` for malformed JSON, and for both or neither of "instances" and "inputs". Also
/// for lists that are not a tensor, and for values whose type is not the input's.
pub fn parse_predict(body: &Bytes, signature: &Signature) -> Result<RestPredict> {
    let (inputs, form) = parse(body, &signature.inputs, REQUEST)?;
    Ok(RestPredict { inputs, form })
}

/// Reads a response for a client that has the signature.
///
/// # Errors
/// `DataLoss` for a body that is not a response.
pub fn parse_response(body: &Bytes, signature: &Signature) -> Result<Vec<NamedTensor>> {
    match parse(body, &signature.outputs, RESPONSE) {
        Ok((outputs, _)) => Ok(outputs),
        Err(error) => {
            Err(error.with_kind(base::ErrorKind::DataLoss).context("the server's answer"))
        }
    }
}

/// Reads a body in row or in column form. `members` names the members of both forms.
fn parse(
    body: &Bytes,
    specs: &[TensorSpec],
    members: BodyMembers,
) -> Result<(Vec<NamedTensor>, PredictFormat)> {
    let mut found: Option<(Vec<NamedTensor>, PredictFormat)> = None;
    let mut reader = JsonReader::tensorflow(body);
    reader.object(|reader, key| {
        let form = if key == members.row {
            PredictFormat::Row
        } else if key == members.column {
            PredictFormat::Column
        } else {
            return reader.skip();
        };
        if found.is_some() {
            let BodyMembers { row, column, .. } = members;
            return Err(reader.error(format_args!("give one of \"{row}\" and \"{column}\", once")));
        }
        let tensors = match form {
            PredictFormat::Row => read_row(reader, specs, members.row)?,
            PredictFormat::Column => read_column(reader, specs, members)?,
        };
        found = Some((tensors, form));
        Ok(())
    })?;
    reader.end()?;
    let BodyMembers { row, column, .. } = members;
    found.ok_or_else(|| Error::invalid(format!("the body has neither \"{row}\" nor \"{column}\"")))
}

/// Returns true if the next value is an object of named tensors, and not one string in base64.
fn is_named(reader: &mut JsonReader<'_>) -> bool {
    if reader.peek() != Some(b'{') {
        return false;
    }
    let mut base64 = None;
    // Looks ahead to the first deciding member only. Errors are found when the value is read.
    let _ = reader.clone().object(|ahead, key| {
        base64 = Some(base64.is_none() && key == "b64" && ahead.peek() == Some(b'"'));
        if base64 == Some(true) { ahead.skip() } else { Err(ahead.error("named")) }
    });
    base64 != Some(true)
}

fn spec<'a>(specs: &'a [TensorSpec], name: &str) -> Result<&'a TensorSpec> {
    specs.iter().find(|spec| spec.name == name).ok_or_else(|| unknown(specs, name))
}

fn unknown(specs: &[TensorSpec], name: &str) -> Error {
    let known: Vec<&str> = specs.iter().take(16).map(|spec| spec.name.as_str()).collect();
    let shown: String = name.chars().take(64).collect();
    Error::invalid(format!("the model has no tensor \"{shown}\"; it has {}", known.join(", ")))
}

/// Returns the only required tensor, or the only tensor. Values without a name belong to it.
fn unnamed_spec(specs: &[TensorSpec]) -> Result<&TensorSpec> {
    let mut wanted = specs.iter().filter(|spec| !spec.optional);
    match (wanted.next(), wanted.next(), specs) {
        (Some(spec), None, _) => Ok(spec),
        (None, None, [spec]) => Ok(spec),
        _ => {
            let known: Vec<&str> = specs.iter().take(16).map(|spec| spec.name.as_str()).collect();
            Err(Error::invalid(format!(
                "the values need names; the model has {}",
                known.join(", ")
            )))
        }
    }
}

/// A tensor being read.
struct TensorBuilder<'a> {
    spec: &'a TensorSpec,
    column: Box<dyn Column>,
    /// Number of instances that have a value.
    instances: usize,
}

impl<'a> TensorBuilder<'a> {
    fn new(spec: &'a TensorSpec) -> Result<TensorBuilder<'a>> {
        let column =
            column(spec.dtype).map_err(|error| error.context(format_args!("\"{}\"", spec.name)))?;
        Ok(TensorBuilder { spec, column, instances: 0 })
    }

    fn read(&mut self, reader: &mut JsonReader<'_>, depth: usize) -> Result<()> {
        self.instances += 1;
        self.column
            .read(reader, depth)
            .map_err(|error| error.context(format_args!("\"{}\"", self.spec.name)))
    }

    fn finish(mut self) -> Result<NamedTensor> {
        let shape = self.column.nesting().shape();
        Ok(NamedTensor::new(self.spec.name.as_str(), self.column.finish(shape)?))
    }
}

/// Reads one tensor without its name, or an object of tensors by name.
fn read_column(
    reader: &mut JsonReader<'_>,
    specs: &[TensorSpec],
    members: BodyMembers,
) -> Result<Vec<NamedTensor>> {
    // A body that was cut off here would seem to be a value without a name.
    if reader.peek().is_none() {
        return Err(reader.expected("tensors"));
    }
    if !is_named(reader) {
        return read_unnamed(reader, unnamed_spec(specs)?).map(|tensor| vec![tensor]);
    }
    let mut tensors: Vec<NamedTensor> = Vec::new();
    let mut skipped = None;
    reader.object(|reader, key| {
        let Some(spec) = specs.iter().find(|spec| spec.name == key) else {
            if !members.permits_more {
                return Err(unknown(specs, key));
            }
            skipped.get_or_insert_with(|| unknown(specs, key));
            return reader.skip();
        };
        if tensors.iter().any(|tensor| *tensor.name == *key) {
            return Err(reader.error(format_args!("\"{key}\" is given twice")));
        }
        tensors.push(read_unnamed(reader, spec)?);
        Ok(())
    })?;
    match skipped {
        // The name is probably a wrong one for an input that is missing.
        Some(error) if tensors.len() < specs.len() => Err(error),
        _ => Ok(tensors),
    }
}

fn read_unnamed(reader: &mut JsonReader<'_>, spec: &TensorSpec) -> Result<NamedTensor> {
    let mut builder = TensorBuilder::new(spec)?;
    builder.read(reader, 0)?;
    builder.finish()
}

/// Reads the list of instances in `member`. They are tensors by name, or values of the only input.
fn read_row(
    reader: &mut JsonReader<'_>,
    specs: &[TensorSpec],
    member: &str,
) -> Result<Vec<NamedTensor>> {
    if reader.peek() != Some(b'[') {
        return Err(reader.error(format_args!("\"{member}\" must be a list")));
    }
    let mut first = None;
    // The first instance decides the form of all.
    let ahead = reader.clone().array(|reader| {
        first = Some(is_named(reader));
        Err(reader.error("seen"))
    });
    match (first, ahead) {
        (Some(false), _) => read_unnamed(reader, unnamed_spec(specs)?).map(|tensor| vec![tensor]),
        (Some(true), _) => read_instances(reader, specs),
        (None, Ok(_)) => Err(reader.error(format_args!("\"{member}\" is empty"))),
        (None, Err(error)) => Err(error),
    }
}

/// Reads a list of objects with a value for each tensor, and joins the values of each name.
fn read_instances(reader: &mut JsonReader<'_>, specs: &[TensorSpec]) -> Result<Vec<NamedTensor>> {
    let mut tensors: Vec<TensorBuilder<'_>> = Vec::new();
    let mut instances = 0;
    reader.array(|reader| {
        instances += 1;
        reader.object(|reader, key| read_member(reader, key, specs, &mut tensors, instances))?;
        match tensors.iter().find(|tensor| tensor.instances != instances) {
            Some(missing) => {
                Err(reader.error(format_args!("an instance has no \"{}\"", missing.spec.name)))
            }
            None => Ok(()),
        }
    })?;
    let finish = |mut tensor: TensorBuilder<'_>| {
        tensor.column.nesting().close(0, instances).map_err(|_| {
            Error::invalid(format!("the instances of \"{}\" differ in shape", tensor.spec.name))
        })?;
        tensor.finish()
    };
    tensors.into_iter().map(finish).collect()
}

/// Adds the value `key` of an instance to the tensor of this name. `instances` is the number of
/// instances that were begun, including this one.
fn read_member<'a>(
    reader: &mut JsonReader<'_>,
    key: &str,
    specs: &'a [TensorSpec],
    tensors: &mut Vec<TensorBuilder<'a>>,
    instances: usize,
) -> Result<()> {
    let position = tensors.iter().position(|tensor| tensor.spec.name == key);
    let tensor = match position {
        Some(position) => &mut tensors[position],
        None => {
            let spec = spec(specs, key)?;
            if instances > 1 {
                return Err(reader.error(format_args!("the first instance has no \"{key}\"")));
            }
            wire::check_count("tensors", tensors.len() + 1)?;
            let mut builder = TensorBuilder::new(spec)?;
            // Depth 0 is the list of instances, which all tensors share.
            builder.column.nesting().open(0).map_err(|_| reader.error("nested too deeply"))?;
            tensors.push(builder);
            let last = tensors.len() - 1;
            &mut tensors[last]
        }
    };
    if tensor.instances == instances {
        return Err(reader.error(format_args!("\"{key}\" is given twice")));
    }
    tensor.read(reader, 1)
}
