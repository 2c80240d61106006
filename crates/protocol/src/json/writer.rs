//! Writes tensors as JSON: flat, or nested as their shape.

use base::{DType, Data, Error, NamedTensor, Result, Tensor};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use half::{bf16, f16};
use serde_json::ser::{CompactFormatter, Formatter};

use crate::wire;

/// Maximum lists of a tensor without elements. A shape such as [10^12, 0] would be endless.
const EMPTY_LISTS_MAX: usize = 1 << 16;
/// Maximum depth of nested lists, since [`lists`] recurses. TensorFlow has at most 254 axes. A
/// TorchScript module can return any number.
const LISTS_DEPTH_MAX: usize = 256;

/// The form of bytes that may not be text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextEncoding {
    /// A string. Bytes that are not UTF-8 are refused.
    Plain,
    /// A string if the bytes are UTF-8, otherwise `{"b64": ...}`.
    Base64IfNeeded,
    /// Always `{"b64": ...}`.
    Base64,
}

/// Bytes of a tensor's description besides its name, and of the object around all of them.
const DESCRIPTION_BYTES: usize = 128;

/// Returns an upper bound of the bytes of `tensors` as JSON, flat or nested, without the names of
/// model and request.
pub(crate) fn text_bytes_max(tensors: &[NamedTensor]) -> usize {
    let tensor = |named: &NamedTensor| {
        description_bytes_max(named)
            .saturating_add(elements_bytes_max(&named.tensor))
            .saturating_add(lists_bytes_max(&named.tensor))
    };
    tensors.iter().map(tensor).fold(DESCRIPTION_BYTES, usize::saturating_add)
}

/// Returns an upper bound of the bytes of a tensor's name, type and shape.
pub(crate) fn description_bytes_max(NamedTensor { name, tensor }: &NamedTensor) -> usize {
    // A name may be all escapes, of six bytes for each of its own.
    DESCRIPTION_BYTES + 6 * name.len() + 24 * tensor.shape().len()
}

/// Returns an upper bound of the bytes of all elements, with a comma each.
fn elements_bytes_max(tensor: &Tensor) -> usize {
    let widest = match (tensor.data(), tensor.dtype()) {
        // {"b64":"..."} or a string of which each byte is an escape, and the base64 text while it
        // is copied.
        (Data::Strings(strings), _) => {
            return strings
                .iter()
                .fold(0, |sum: usize, text| sum.saturating_add(6 * text.len() + 16));
        }
        (
            _,
            DType::Bool | DType::U8 | DType::I8 | DType::U16 | DType::I16 | DType::U4 | DType::I4,
        ) => 7,
        (_, DType::U32 | DType::I32) => 12,
        (_, DType::U64 | DType::I64) => 21,
        (_, DType::F16 | DType::BF16 | DType::F32) => 17,
        _ => 26,
    };
    tensor.elements().saturating_mul(widest)
}

/// Returns an upper bound of the brackets and commas of nested lists. An axis has as many lists as
/// the axes outside of it have elements.
fn lists_bytes_max(tensor: &Tensor) -> usize {
    let mut lists = 1usize;
    let outer = tensor.shape().iter().map(|&dim| {
        let outside = lists;
        lists = lists.saturating_mul(dim);
        outside
    });
    // More lists than this are not written.
    let bound = tensor.elements().max(EMPTY_LISTS_MAX);
    outer.fold(0, |sum: usize, lists| sum.saturating_add(3 * lists.min(bound)))
}

/// Appends `text` as a JSON string.
pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
    // Writing to a vector cannot fail.
    let _ = serde_json::to_writer(out, text);
}

/// Appends `bytes` as a string if they are UTF-8, otherwise as `{"b64": ...}`.
pub(crate) fn string_or_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => string(out, text),
        Err(_) => write_base64(out, bytes),
    }
}

/// Appends `name` and a colon.
pub(crate) fn key(out: &mut Vec<u8>, name: &str) {
    string(out, name);
    out.push(b':');
}

/// Appends all elements as one list.
///
/// # Errors
/// `InvalidArgument` if the type has no form in JSON, or if a string is not UTF-8 and must be
/// [`TextEncoding::Plain`].
pub(crate) fn write_flat(out: &mut Vec<u8>, tensor: &Tensor) -> Result<()> {
    write(out, tensor, TextEncoding::Plain, &[tensor.elements()], 0)
}

/// Appends the elements from `start` on as lists of `shape`, or one value if the shape is empty.
///
/// # Errors
/// `InvalidArgument` if the type has no form in JSON, or if the shape means too many empty lists or
/// lists that are nested too deep.
pub(crate) fn write_nested(
    out: &mut Vec<u8>,
    tensor: &Tensor,
    text: TextEncoding,
    shape: &[usize],
    start: usize,
) -> Result<()> {
    if shape.len() > LISTS_DEPTH_MAX {
        return Err(Error::invalid(format!(
            "{} axes are too many to write as lists, at most {LISTS_DEPTH_MAX} are written",
            shape.len()
        )));
    }
    let mut lists = 1usize;
    for &dim in shape {
        lists = lists.saturating_mul(dim);
        if lists > tensor.elements().max(EMPTY_LISTS_MAX) {
            return Err(Error::invalid(format!(
                "shape {:?} is too large to write as lists",
                tensor.shape()
            )));
        }
    }
    write(out, tensor, text, shape, start)
}

/// Appends the elements from `start` on as lists of `shape`, without a check of the shape. `text`
/// is the form of strings.
fn write(
    out: &mut Vec<u8>,
    tensor: &Tensor,
    text: TextEncoding,
    shape: &[usize],
    start: usize,
) -> Result<()> {
    let bytes = match tensor.data() {
        Data::Strings(strings) => {
            return lists(out, shape, &mut { start }, &mut |out, at| {
                write_text(out, &strings[at], text)
            });
        }
        Data::Bytes(bytes) => bytes.as_ref(),
    };
    let mut at = start;
    // One loop for each type, because a match for each element would cost more.
    macro_rules! numbers {
        ($size:literal, $append:expr) => {
            lists(out, shape, &mut at, &mut |out, position| {
                let mut element = [0; $size];
                element.copy_from_slice(&bytes[position * $size..][..$size]);
                $append(out, element);
                Ok(())
            })
        };
    }
    match tensor.dtype() {
        DType::Bool => numbers!(1, |out: &mut Vec<u8>, b: [u8; 1]| {
            out.extend_from_slice(if b[0] == 0 { b"false" } else { b"true" });
        }),
        DType::U8 => {
            numbers!(1, |out, b| drop(CompactFormatter.write_u8(out, u8::from_le_bytes(b))))
        }
        DType::U16 => {
            numbers!(2, |out, b| drop(CompactFormatter.write_u16(out, u16::from_le_bytes(b))))
        }
        DType::U32 => {
            numbers!(4, |out, b| drop(CompactFormatter.write_u32(out, u32::from_le_bytes(b))))
        }
        DType::U64 => {
            numbers!(8, |out, b| drop(CompactFormatter.write_u64(out, u64::from_le_bytes(b))))
        }
        DType::I8 => {
            numbers!(1, |out, b| drop(CompactFormatter.write_i8(out, i8::from_le_bytes(b))))
        }
        DType::I16 => {
            numbers!(2, |out, b| drop(CompactFormatter.write_i16(out, i16::from_le_bytes(b))))
        }
        DType::I32 => {
            numbers!(4, |out, b| drop(CompactFormatter.write_i32(out, i32::from_le_bytes(b))))
        }
        DType::I64 => {
            numbers!(8, |out, b| drop(CompactFormatter.write_i64(out, i64::from_le_bytes(b))))
        }
        DType::F16 => numbers!(2, |out, b| single(out, f16::from_le_bytes(b).to_f32())),
        DType::BF16 => numbers!(2, |out, b| single(out, bf16::from_le_bytes(b).to_f32())),
        DType::F32 => numbers!(4, |out, b| single(out, f32::from_le_bytes(b))),
        DType::F64 => numbers!(8, |out, b| double(out, f64::from_le_bytes(b))),
        dtype @ (DType::U4 | DType::I4) => {
            let elements = wire::unpack(dtype, tensor.elements(), bytes);
            lists(out, shape, &mut at, &mut |out, position| {
                drop(CompactFormatter.write_i8(out, elements[position].cast_signed()));
                Ok(())
            })
        }
        other => Err(no_form(other)),
    }
}

/// Returns the error for an output whose type JSON cannot express.
fn no_form(dtype: DType) -> Error {
    Error::invalid(format!("{dtype} has no form in JSON; ask for binary data, or use gRPC"))
}

/// Writes lists of `shape`, and calls `element` with the position of each element in order.
fn lists(
    out: &mut Vec<u8>,
    shape: &[usize],
    at: &mut usize,
    element: &mut impl FnMut(&mut Vec<u8>, usize) -> Result<()>,
) -> Result<()> {
    let Some((&length, inner)) = shape.split_first() else {
        let position = *at;
        *at += 1;
        return element(out, position);
    };
    out.push(b'[');
    for position in 0..length {
        if position > 0 {
            out.push(b',');
        }
        lists(out, inner, at, element)?;
    }
    out.push(b']');
    Ok(())
}

/// Appends a number, or a bare token for one that is not finite.
pub(crate) fn single(out: &mut Vec<u8>, value: f32) {
    if value.is_finite() {
        drop(CompactFormatter.write_f32(out, value))
    } else {
        double(out, f64::from(value))
    }
}

fn double(out: &mut Vec<u8>, value: f64) {
    if value.is_finite() {
        drop(CompactFormatter.write_f64(out, value));
    } else if value.is_nan() {
        out.extend_from_slice(b"NaN");
    } else {
        out.extend_from_slice(if value > 0.0 { b"Infinity" } else { b"-Infinity" });
    }
}

/// Writes a string in the form that `text` permits.
fn write_text(out: &mut Vec<u8>, bytes: &[u8], text: TextEncoding) -> Result<()> {
    match (std::str::from_utf8(bytes), text) {
        (Ok(plain), TextEncoding::Plain | TextEncoding::Base64IfNeeded) => string(out, plain),
        (Err(_), TextEncoding::Plain) => {
            return Err(Error::invalid(
                "an output holds bytes that are not UTF-8 text; ask for binary data",
            ));
        }
        _ => write_base64(out, bytes),
    }
    Ok(())
}

fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(b"{\"b64\":");
    string(out, &STANDARD.encode(bytes));
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn nested(tensor: &Tensor, text: TextEncoding) -> Result<String> {
        let mut out = Vec::new();
        write_nested(&mut out, tensor, text, tensor.shape(), 0)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn lists_follow_the_shape() {
        let shape = [2usize, 1, 2];
        let tensor =
            Tensor::from_vec(shape.as_slice(), vec![1f32, 0.1, f32::NAN, f32::NEG_INFINITY])
                .unwrap();
        assert_eq!(
            nested(&tensor, TextEncoding::Plain).unwrap(),
            "[[[1.0,0.1]],[[NaN,-Infinity]]]"
        );
        let mut flat = Vec::new();
        write_flat(&mut flat, &tensor).unwrap();
        assert_eq!(flat, b"[1.0,0.1,NaN,-Infinity]");
        let scalar = Tensor::from_vec([].as_slice(), vec![-3i64]).unwrap();
        assert_eq!(nested(&scalar, TextEncoding::Plain).unwrap(), "-3");
        let nibbles =
            Tensor::from_bytes(DType::I4, [3usize].as_slice(), Bytes::from_static(&[0x78, 0x0f]))
                .unwrap();
        assert_eq!(nested(&nibbles, TextEncoding::Plain).unwrap(), "[-8,7,-1]");
    }

    #[test]
    fn text_and_other_bytes() {
        let strings = vec![Bytes::from_static(b"a\"\n"), Bytes::from_static(&[0xff])];
        let tensor = Tensor::from_strings([2usize].as_slice(), strings).unwrap();
        assert!(nested(&tensor, TextEncoding::Plain).is_err());
        assert_eq!(
            nested(&tensor, TextEncoding::Base64IfNeeded).unwrap(),
            r#"["a\"\n",{"b64":"/w=="}]"#
        );
        assert_eq!(
            nested(&tensor, TextEncoding::Base64).unwrap(),
            r#"[{"b64":"YSIK"},{"b64":"/w=="}]"#
        );
    }

    #[test]
    fn the_bound_of_a_text_holds() {
        let tensors = [
            Tensor::from_vec([2usize, 2, 1].as_slice(), vec![-f32::MIN_POSITIVE; 4]),
            Tensor::from_vec(
                [3usize, 1, 1, 1].as_slice(),
                vec![f64::MIN_POSITIVE, -f64::MAX, f64::NEG_INFINITY],
            ),
            Tensor::from_vec([100usize].as_slice(), vec![i64::MIN; 100]),
            Tensor::from_vec([100usize, 1].as_slice(), vec![i32::MIN; 100]),
            Tensor::from_vec([100usize].as_slice(), vec![i16::MIN; 100]),
            Tensor::from_strings(
                [2usize].as_slice(),
                vec![Bytes::from(vec![1; 999]), Bytes::from(vec![255; 999])],
            ),
        ];
        for tensor in tensors.map(Result::unwrap) {
            let text = nested(&tensor, TextEncoding::Base64IfNeeded).unwrap().len();
            let elements = elements_bytes_max(&tensor) + lists_bytes_max(&tensor);
            assert!(elements >= text, "{text} {elements} {:?}", tensor.dtype());
            assert!(text_bytes_max(&[NamedTensor::new("y", tensor)]) > elements);
        }
    }

    /// A model chooses the number of axes. Without a maximum, the recursion would end the process.
    #[test]
    fn the_depth_of_lists_is_bounded() {
        let write = |rank: usize| {
            let tensor = Tensor::from_vec(vec![1usize; rank], vec![7i32]).unwrap();
            nested(&tensor, TextEncoding::Plain)
        };
        let deepest = format!("{}7{}", "[".repeat(LISTS_DEPTH_MAX), "]".repeat(LISTS_DEPTH_MAX));
        assert_eq!(write(LISTS_DEPTH_MAX).unwrap(), deepest);
        let error = write(LISTS_DEPTH_MAX + 1).unwrap_err();
        assert!(error.message().starts_with("257 axes"), "{error}");
    }

    #[test]
    fn empty_lists_are_bounded() {
        let few = Tensor::from_vec::<f32>([2usize, 0].as_slice(), vec![]).unwrap();
        assert_eq!(nested(&few, TextEncoding::Plain).unwrap(), "[[],[]]");
        let endless = Tensor::from_vec::<f32>([1usize << 40, 0].as_slice(), vec![]).unwrap();
        assert!(nested(&endless, TextEncoding::Plain).is_err());
    }
}
