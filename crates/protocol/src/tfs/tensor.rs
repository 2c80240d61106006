//! Converts `TensorProto` to tensors and back.

use base::{DType, Data, Element, Error, Result, Shape, Tensor};
use bytes::{Buf, Bytes};
use prost::encoding::decode_varint;

use super::fill::FillBudget;
use super::{datatype, from_datatype};
use crate::tensorflow::tensor_shape_proto::Dim;
use crate::tensorflow::{DataType, TensorProto, TensorShapeProto};
use crate::wire;

/// Decodes a tensor. `tensor_content` is shared, not copied.
///
/// # Errors
/// `InvalidArgument` if there is no type, or if the elements do not match type and shape.
/// `Unimplemented` for types that Millpond does not have. `TooLarge` if repeating the last value
/// takes too much memory.
pub fn decode_tensor(name: &str, message: TensorProto) -> Result<Tensor> {
    decode_within(name, message, &mut FillBudget::default())
}

/// Decodes a tensor whose repeated values draw on `budget`.
pub(crate) fn decode_within(
    name: &str,
    message: TensorProto,
    budget: &mut FillBudget,
) -> Result<Tensor> {
    let dtype = from_datatype(message.dtype).ok_or_else(|| no_type(name, message.dtype))?;
    let shape = shape(name, message.tensor_shape.as_ref())?;
    let count = wire::elements(name, &shape)?;
    if message.tensor_content.is_empty() {
        let tensor = from_values(dtype, shape, count, message, budget);
        tensor.map_err(|error| error.context(format_args!("\"{name}\"")))
    } else {
        from_content(name, dtype, shape, count, message.tensor_content)
    }
}

/// Returns the error for a number that is not a type of TensorFlow, or one without an equivalent.
fn no_type(name: &str, number: i32) -> Error {
    match DataType::try_from(number) {
        Err(_) | Ok(DataType::DtInvalid) => Error::invalid(format!(
            "\"{name}\" has dtype {number}; give the number of its type, such as 1 for DT_FLOAT"
        )),
        Ok(dtype) => Error::unimplemented(format!(
            "\"{name}\" has type {}, which is not offered",
            dtype.as_str_name()
        )),
    }
}

fn shape(name: &str, shape: Option<&TensorShapeProto>) -> Result<Shape> {
    let Some(shape) = shape else { return Ok(Shape::new()) };
    if shape.unknown_rank {
        return Err(Error::invalid(format!("\"{name}\" has no shape")));
    }
    wire::shape(name, shape.dim.iter().map(|dim| dim.size))
}

/// Decodes the bytes of `tensor_content`.
fn from_content(
    name: &str,
    dtype: DType,
    shape: Shape,
    count: usize,
    content: Bytes,
) -> Result<Tensor> {
    match dtype {
        DType::String => string_list(count, content)
            .and_then(|strings| Tensor::from_strings(shape, strings))
            .map_err(|error| error.context(format_args!("\"{name}\""))),
        DType::U4 | DType::I4 => {
            if content.len() != count {
                return Err(Error::invalid(format!(
                    "\"{name}\": {count} 4-bit elements take a byte each, got {}",
                    content.len()
                )));
            }
            wire::fixed(name, dtype, shape, Bytes::from(wire::pack(&content)))
        }
        _ => wire::fixed(name, dtype, shape, content),
    }
}

/// Decodes TensorFlow's packed strings: all lengths as varints, then all bytes.
fn string_list(count: usize, mut content: Bytes) -> Result<Vec<Bytes>> {
    let cut = || Error::invalid(format!("tensor_content does not hold {count} strings"));
    if count > content.len() {
        return Err(cut());
    }
    let mut lengths = Vec::with_capacity(count);
    for _ in 0..count {
        lengths.push(decode_varint(&mut content).map_err(|error| cut().with_source(error))?);
    }
    let mut strings = Vec::with_capacity(count);
    for length in lengths {
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= content.len())
            .ok_or_else(cut)?;
        strings.push(content.split_to(length));
    }
    if content.has_remaining() { Err(cut()) } else { Ok(strings) }
}

/// Decodes the values of the typed field of `dtype`. If there are fewer than `count`, the last one
/// is repeated, as in TensorFlow.
fn from_values(
    dtype: DType,
    shape: Shape,
    count: usize,
    message: TensorProto,
    budget: &mut FillBudget,
) -> Result<Tensor> {
    if count > 0 {
        check_field(dtype, &message)?;
    }
    match dtype {
        DType::F32 => Tensor::from_vec(shape, budget.fill(message.float_val, count)?),
        DType::F64 => Tensor::from_vec(shape, budget.fill(message.double_val, count)?),
        DType::I32 => Tensor::from_vec(shape, budget.fill(message.int_val, count)?),
        DType::I64 => Tensor::from_vec(shape, budget.fill(message.int64_val, count)?),
        DType::U32 => Tensor::from_vec(shape, budget.fill(message.uint32_val, count)?),
        DType::U64 => Tensor::from_vec(shape, budget.fill(message.uint64_val, count)?),
        DType::I8 => Tensor::from_vec(shape, budget.fill(narrow::<i8>(message.int_val)?, count)?),
        DType::U8 => Tensor::from_vec(shape, budget.fill(narrow::<u8>(message.int_val)?, count)?),
        DType::I16 => Tensor::from_vec(shape, budget.fill(narrow::<i16>(message.int_val)?, count)?),
        DType::U16 => Tensor::from_vec(shape, budget.fill(narrow::<u16>(message.int_val)?, count)?),
        DType::F16 | DType::BF16 => {
            let patterns = budget.fill(narrow::<u16>(message.half_val)?, count)?;
            plain(dtype, shape, bytemuck::allocation::pod_collect_to_vec(&patterns))
        }
        DType::Bool => {
            let bytes = message.bool_val.into_iter().map(u8::from).collect();
            plain(dtype, shape, budget.fill::<u8>(bytes, count)?)
        }
        DType::Complex64 => plain(dtype, shape, pairs(message.scomplex_val, count, budget)?),
        DType::Complex128 => plain(dtype, shape, pairs(message.dcomplex_val, count, budget)?),
        DType::U4 | DType::I4 => {
            let allowed = if dtype == DType::I4 { -8..=7 } else { 0..=15 };
            if let Some(wrong) = message.int_val.iter().find(|value| !allowed.contains(*value)) {
                return Err(Error::invalid(format!("{wrong} is not a valid {dtype} value")));
            }
            let elements = message.int_val.iter().map(|value| *value as u8).collect();
            plain(dtype, shape, wire::pack(&budget.fill::<u8>(elements, count)?))
        }
        DType::String => Tensor::from_strings(shape, budget.fill(message.string_val, count)?),
        // The 8-bit floats.
        _ if message.float8_val.len() == count => {
            Tensor::from_bytes(dtype, shape, message.float8_val)
        }
        _ => plain(dtype, shape, budget.fill(message.float8_val.to_vec(), count)?),
    }
}

/// Checks that the values are in the field of the tensor's type. TensorFlow ignores other fields,
/// so such a tensor would be all zeros.
fn check_field(dtype: DType, message: &TensorProto) -> Result<()> {
    let lengths = [
        ("float_val", message.float_val.len()),
        ("double_val", message.double_val.len()),
        ("int_val", message.int_val.len()),
        ("string_val", message.string_val.len()),
        ("scomplex_val", message.scomplex_val.len()),
        ("int64_val", message.int64_val.len()),
        ("bool_val", message.bool_val.len()),
        ("dcomplex_val", message.dcomplex_val.len()),
        ("half_val", message.half_val.len()),
        ("uint32_val", message.uint32_val.len()),
        ("uint64_val", message.uint64_val.len()),
        ("float8_val", message.float8_val.len()),
    ];
    let right = field_of(dtype);
    let mut wrong = None;
    for (field, length) in lengths {
        if length > 0 && field == right {
            return Ok(());
        }
        if length > 0 {
            wrong = wrong.or(Some(field));
        }
    }
    match wrong {
        None => Ok(()),
        Some(wrong) => {
            Err(Error::invalid(format!("{dtype} values belong in {right}, not in {wrong}")))
        }
    }
}

/// Returns the field of a `TensorProto` that has the values of a type.
fn field_of(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float_val",
        DType::F64 => "double_val",
        DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32 | DType::U4 | DType::I4 => {
            "int_val"
        }
        DType::I64 => "int64_val",
        DType::U32 => "uint32_val",
        DType::U64 => "uint64_val",
        DType::F16 | DType::BF16 => "half_val",
        DType::Bool => "bool_val",
        DType::Complex64 => "scomplex_val",
        DType::Complex128 => "dcomplex_val",
        DType::String => "string_val",
        // The 8-bit floats.
        _ => "float8_val",
    }
}

fn plain(dtype: DType, shape: Shape, bytes: Vec<u8>) -> Result<Tensor> {
    Tensor::from_bytes(dtype, shape, Bytes::from(bytes))
}

fn narrow<T: Element + TryFrom<i32>>(values: Vec<i32>) -> Result<Vec<T>> {
    let element = |value: i32| {
        T::try_from(value).map_err(|_| Error::invalid(format!("{value} is out of range")))
    };
    values.into_iter().map(element).collect()
}

/// Converts alternating real and imaginary parts into the bytes of complex numbers.
fn pairs<T: Element + Default>(
    parts: Vec<T>,
    count: usize,
    budget: &mut FillBudget,
) -> Result<Vec<u8>> {
    let (numbers, rest) = parts.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(Error::invalid("a complex number has no imaginary part"));
    }
    let numbers = budget.fill(numbers.to_vec(), count)?;
    Ok(bytemuck::allocation::pod_collect_to_vec(numbers.as_flattened()))
}

pub(crate) fn shape_message(shape: &[usize]) -> TensorShapeProto {
    let dim = |&size: &usize| Dim { size: size as i64, name: String::new() };
    TensorShapeProto { dim: shape.iter().map(dim).collect(), unknown_rank: false }
}

/// Encodes a tensor: as `tensor_content` that shares the tensor's memory, or as `string_val`.
pub(crate) fn encode_tensor(tensor: &Tensor) -> TensorProto {
    let mut message = TensorProto {
        dtype: datatype(tensor.dtype()).into(),
        tensor_shape: Some(shape_message(tensor.shape())),
        ..TensorProto::default()
    };
    match (tensor.data(), tensor.dtype()) {
        (Data::Strings(strings), _) => message.string_val = strings.to_vec(),
        (Data::Bytes(packed), dtype @ (DType::U4 | DType::I4)) => {
            message.tensor_content = wire::unpack(dtype, tensor.elements(), packed).into();
        }
        (Data::Bytes(bytes), _) => message.tensor_content = bytes.clone(),
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(dtype: DataType, shape: &[i64]) -> TensorProto {
        let dim = |&size: &i64| Dim { size, name: String::new() };
        let tensor_shape =
            Some(TensorShapeProto { dim: shape.iter().map(dim).collect(), unknown_rank: false });
        TensorProto { dtype: dtype.into(), tensor_shape, ..TensorProto::default() }
    }

    #[test]
    fn the_last_value_fills_the_rest() {
        let some = TensorProto { float_val: vec![1.0, 2.0], ..message(DataType::DtFloat, &[2, 2]) };
        assert_eq!(
            decode_tensor("x", some).unwrap().to_vec::<f32>().unwrap(),
            [1.0, 2.0, 2.0, 2.0]
        );
        let none = message(DataType::DtInt64, &[3]);
        assert_eq!(decode_tensor("x", none).unwrap().to_vec::<i64>().unwrap(), [0, 0, 0]);
        let text = TensorProto {
            string_val: vec![Bytes::from_static(b"a")],
            ..message(DataType::DtString, &[2])
        };
        assert_eq!(decode_tensor("x", text).unwrap().strings().unwrap().len(), 2);
        let many = TensorProto { int_val: vec![1, 2, 3], ..message(DataType::DtInt32, &[2]) };
        assert!(decode_tensor("x", many).is_err());
    }

    #[test]
    fn values_of_another_type_are_refused() {
        let double = TensorProto { double_val: vec![1.0], ..message(DataType::DtFloat, &[1]) };
        let error = decode_tensor("x", double).unwrap_err();
        assert_eq!(error.kind(), base::ErrorKind::InvalidArgument);
        assert_eq!(
            error.to_string(),
            "\"x\": float32 values belong in float_val, not in double_val"
        );
        // TensorFlow has no field of its own for small integers.
        let small = TensorProto { uint32_val: vec![1], ..message(DataType::DtUint8, &[1]) };
        assert!(decode_tensor("x", small).is_err());
        let both = TensorProto {
            float_val: vec![2.0],
            double_val: vec![1.0],
            ..message(DataType::DtFloat, &[1])
        };
        assert_eq!(decode_tensor("x", both).unwrap().to_vec::<f32>().unwrap(), [2.0]);
        // A tensor without elements has no wrong values.
        let none = TensorProto { double_val: vec![1.0], ..message(DataType::DtFloat, &[0]) };
        assert_eq!(decode_tensor("x", none).unwrap().elements(), 0);
        for dtype in DType::ALL {
            let empty =
                TensorProto { dtype: datatype(dtype).into(), ..message(DataType::DtFloat, &[1]) };
            assert!(decode_tensor("x", empty).is_ok(), "{dtype}");
        }
    }

    #[test]
    fn filling_is_bounded() {
        let error = decode_tensor("x", message(DataType::DtFloat, &[1 << 40])).unwrap_err();
        assert_eq!(error.kind(), base::ErrorKind::TooLarge);
        let mut budget = FillBudget::default();
        let half = 40 << 20;
        assert!(decode_within("x", message(DataType::DtUint8, &[half]), &mut budget).is_ok());
        assert!(decode_within("y", message(DataType::DtUint8, &[half]), &mut budget).is_err());
        assert!(decode_tensor("x", message(DataType::DtFloat, &[i64::MAX, i64::MAX])).is_err());
        assert!(decode_tensor("x", message(DataType::DtFloat, &[-1])).is_err());
    }

    #[test]
    fn strings_in_content() {
        let content = Bytes::from_static(b"\x02\x00\x03abxyz");
        let strings =
            TensorProto { tensor_content: content.clone(), ..message(DataType::DtString, &[3]) };
        let tensor = decode_tensor("x", strings).unwrap();
        assert_eq!(tensor.strings().unwrap(), [&b"ab"[..], b"", b"xyz"].map(Bytes::from_static));
        for cut in 1..content.len() {
            let content = content.slice(..cut);
            let broken =
                TensorProto { tensor_content: content, ..message(DataType::DtString, &[3]) };
            assert!(decode_tensor("x", broken).is_err(), "{cut}");
        }
    }

    #[test]
    fn odd_types() {
        let pairs =
            TensorProto { scomplex_val: vec![1.0, -1.0], ..message(DataType::DtComplex64, &[2]) };
        let bytes = [1f32, -1.0, 1.0, -1.0].map(f32::to_le_bytes).concat();
        assert_eq!(decode_tensor("x", pairs).unwrap().bytes().unwrap(), &bytes);
        let odd = TensorProto { scomplex_val: vec![1.0], ..message(DataType::DtComplex64, &[1]) };
        assert!(decode_tensor("x", odd).is_err());
        let nibbles = TensorProto { int_val: vec![-8, 7], ..message(DataType::DtInt4, &[3]) };
        assert_eq!(decode_tensor("x", nibbles).unwrap().bytes().unwrap().as_ref(), [0x78, 0x07]);
        let wide = TensorProto { int_val: vec![8], ..message(DataType::DtInt4, &[1]) };
        assert!(decode_tensor("x", wide).is_err());
        let half = TensorProto { half_val: vec![0x3c00], ..message(DataType::DtHalf, &[1]) };
        assert_eq!(
            decode_tensor("x", half).unwrap().to_vec::<half::f16>().unwrap(),
            [half::f16::ONE]
        );
        let quantised = message(DataType::DtQint8, &[1]);
        assert_eq!(
            decode_tensor("x", quantised).unwrap_err().kind(),
            base::ErrorKind::Unimplemented
        );
        for number in [0, 99, 101, -1, i32::MAX] {
            let none = TensorProto { dtype: number, ..message(DataType::DtFloat, &[1]) };
            let error = decode_tensor("x", none).unwrap_err();
            assert_eq!(error.kind(), base::ErrorKind::InvalidArgument, "{error}");
        }
        let bools = TensorProto {
            tensor_content: Bytes::from_static(&[2]),
            ..message(DataType::DtBool, &[1])
        };
        assert!(decode_tensor("x", bools).is_err());
    }
}
