//! `Constant` nodes: another form of parameters, and the only form that some exporters write.

use std::ops::Range;

use base::Result;

use super::encode::WIRE_BYTES;
use super::schema::{attribute, node};
use super::tensor::NAME_BYTES_MAX;
use super::wire::Walker;

/// Maximum bytes of the name of an operator or attribute that is read. No name of interest is
/// longer.
const WORD_BYTES_MAX: u64 = 64;

/// A `Constant` with a tensor as its value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConstantNode {
    /// Name of its output.
    pub(super) output: Vec<u8>,
    /// Bytes of the `TensorProto` in the file.
    pub(super) value: Range<u64>,
}

/// Reads a `NodeProto`. Returns `None` unless it is a plain `Constant`: no input, one output, one
/// attribute `value` with one tensor.
pub(super) fn read(walker: &mut Walker, payload: Range<u64>) -> Result<Option<ConstantNode>> {
    let mut output = None;
    let mut value = None;
    let mut is_constant = false;
    let mut foreign = false;
    let mut attributes = 0;
    let mut outputs = 0;
    let mut at = payload.start;
    while at < payload.end {
        let field = walker.field(at, payload.end)?;
        at = field.whole.end;
        if field.wire != WIRE_BYTES {
            continue;
        }
        match field.number {
            node::INPUT => foreign = true,
            node::OUTPUT => {
                outputs += 1;
                output = Some(field.payload);
            }
            node::OP_TYPE => is_constant = word(walker, field.payload)? == b"Constant",
            node::DOMAIN => {
                let domain = word(walker, field.payload)?;
                foreign |= !(domain.is_empty() || domain == b"ai.onnx");
            }
            node::ATTRIBUTE => {
                attributes += 1;
                value = Some(field.payload);
            }
            _ => {}
        }
    }
    let (Some(output), Some(attribute)) = (output, value) else { return Ok(None) };
    if !is_constant || foreign || attributes != 1 || outputs != 1 {
        return Ok(None);
    }
    let Some(value) = tensor_value(walker, attribute)? else { return Ok(None) };
    Ok(Some(ConstantNode { output: walker.bytes(output, NAME_BYTES_MAX)?, value }))
}

/// Returns the range of the tensor in the attribute at `payload`. Returns `None` if the attribute
/// has another name than `value`, refers to an attribute of a function, or does not have exactly
/// one tensor.
fn tensor_value(walker: &mut Walker, payload: Range<u64>) -> Result<Option<Range<u64>>> {
    let mut named = false;
    let mut tensors = 0;
    let mut tensor = None;
    let mut plain = true;
    let mut at = payload.start;
    while at < payload.end {
        let field = walker.field(at, payload.end)?;
        at = field.whole.end;
        match field.number {
            attribute::NAME if field.wire == WIRE_BYTES => {
                named = word(walker, field.payload)? == b"value"
            }
            attribute::T if field.wire == WIRE_BYTES => {
                tensors += 1;
                tensor = Some(field.payload);
            }
            attribute::REF_ATTR_NAME => plain = false,
            _ => {}
        }
    }
    Ok(tensor.filter(|_| named && plain && tensors == 1))
}

/// Reads a name. Returns `?` for a name that is longer than all names of interest.
fn word(walker: &mut Walker, range: Range<u64>) -> Result<Vec<u8>> {
    if range.end - range.start > WORD_BYTES_MAX {
        Ok(b"?".to_vec())
    } else {
        walker.bytes(range, WORD_BYTES_MAX)
    }
}
