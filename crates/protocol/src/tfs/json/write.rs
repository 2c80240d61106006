//! Writes tensors into bodies.

use base::{Error, NamedTensor, Result};
use bytes::Bytes;

use super::{BodyMembers, PredictFormat, REQUEST, RESPONSE};
use crate::json::{TextEncoding, key, text_bytes_max, write_nested};

/// Suffix of names of outputs that hold bytes. They are always written in base64.
const BYTES_SUFFIX: &str = "_bytes";
/// Maximum instances without elements in a list.
const INSTANCES_MAX: usize = 1 << 16;
/// Bytes of the braces and the comma of an instance.
const INSTANCE_BYTES: usize = 3;

/// Returns an upper bound of the bytes that [`predict_response`] writes.
pub fn predict_bytes_max(outputs: &[NamedTensor], form: PredictFormat) -> usize {
    let text = text_bytes_max(outputs);
    match (form, outputs) {
        (PredictFormat::Row, [_, _, ..]) => text.saturating_add(row_names_bytes(outputs)),
        (PredictFormat::Row | PredictFormat::Column, _) => text,
    }
}

/// Returns the bytes that the row format takes besides the values. Each instance repeats all names.
fn row_names_bytes(tensors: &[NamedTensor]) -> usize {
    let mut names = Vec::new();
    for tensor in tensors {
        key(&mut names, &tensor.name);
    }
    // A comma comes before each name but the first.
    let instance = INSTANCE_BYTES + names.len() + tensors.len();
    let rows = tensors.iter().map(|named| named.tensor.shape().first().copied().unwrap_or(0));
    let elements = tensors.iter().map(|named| named.tensor.elements()).max().unwrap_or(0);
    // More instances than this are not written.
    let instances = rows.min().unwrap_or(0).min(elements.max(INSTANCES_MAX));
    instances.saturating_mul(instance)
}

/// Writes the response in the format of the request. A single output has no name.
///
/// # Errors
/// `InvalidArgument` for types without a form in JSON, and in the row format if the outputs differ
/// in their first axis.
pub fn predict_response(outputs: &[NamedTensor], form: PredictFormat) -> Result<Bytes> {
    encode(outputs, form, RESPONSE)
}

/// Writes a client's request. A single input has no name.
///
/// # Errors
/// As [`predict_response`], and for the row format without inputs.
pub fn encode_request(inputs: &[NamedTensor], form: PredictFormat) -> Result<Bytes> {
    if inputs.is_empty() && form == PredictFormat::Row {
        return Err(Error::invalid("a request without inputs has no instances; use \"inputs\""));
    }
    encode(inputs, form, REQUEST)
}

/// Writes a body with the tensors in one member, which `members` names.
fn encode(tensors: &[NamedTensor], form: PredictFormat, members: BodyMembers) -> Result<Bytes> {
    // Growing would hold the text twice.
    let mut out = Vec::with_capacity(predict_bytes_max(tensors, form));
    out.push(b'{');
    key(&mut out, members.of(form));
    match form {
        PredictFormat::Column => write_column(&mut out, tensors)?,
        PredictFormat::Row => write_row(&mut out, tensors)?,
    }
    out.push(b'}');
    Ok(out.into())
}

fn write(out: &mut Vec<u8>, named: &NamedTensor, shape: &[usize], start: usize) -> Result<()> {
    let text = if named.name.ends_with(BYTES_SUFFIX) {
        TextEncoding::Base64
    } else {
        TextEncoding::Base64IfNeeded
    };
    write_nested(out, &named.tensor, text, shape, start)
        .map_err(|error| error.context(format_args!("\"{}\"", named.name)))
}

/// Writes the only tensor, or an object of tensors by name.
fn write_column(out: &mut Vec<u8>, tensors: &[NamedTensor]) -> Result<()> {
    if let [single] = tensors {
        return write(out, single, single.tensor.shape(), 0);
    }
    out.push(b'{');
    for (position, tensor) in tensors.iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        key(out, &tensor.name);
        write(out, tensor, tensor.tensor.shape(), 0)?;
    }
    out.push(b'}');
    Ok(())
}

/// Writes the only tensor, or a list with an object for each instance.
fn write_row(out: &mut Vec<u8>, tensors: &[NamedTensor]) -> Result<()> {
    let instances = instances(tensors)?;
    if let [single] = tensors {
        return write(out, single, single.tensor.shape(), 0);
    }
    out.push(b'[');
    for instance in 0..instances {
        out.extend_from_slice(if instance > 0 { b",{" } else { b"{" });
        for (position, tensor) in tensors.iter().enumerate() {
            if position > 0 {
                out.push(b',');
            }
            key(out, &tensor.name);
            let inner = tensor.tensor.shape().get(1..).unwrap_or_default();
            write(out, tensor, inner, instance * inner.iter().product::<usize>())?;
        }
        out.push(b'}');
    }
    out.push(b']');
    Ok(())
}

/// Returns the size of the first axis, which all tensors must share.
fn instances(tensors: &[NamedTensor]) -> Result<usize> {
    let mut common = None;
    for NamedTensor { name, tensor } in tensors {
        let &first = tensor.shape().first().ok_or_else(|| {
            Error::invalid(format!(
                "\"{name}\" is a scalar and cannot be listed by instance; use \"inputs\""
            ))
        })?;
        if *common.get_or_insert(first) != first {
            return Err(Error::invalid(format!(
                "\"{name}\" has {first} rows, but others have {}; use \"inputs\"",
                common.unwrap_or_default()
            )));
        }
    }
    let common = common.unwrap_or_default();
    if common > INSTANCES_MAX && tensors.iter().all(|named| named.tensor.elements() == 0) {
        return Err(Error::invalid(format!("{common} empty instances are too many to list")));
    }
    Ok(common)
}
