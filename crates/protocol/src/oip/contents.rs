//! Tensors in messages: raw bytes, or the typed fields of `InferTensorContents`.

use base::{DType, Element, Error, NamedTensor, Result, Shape, Tensor};
use bytes::Bytes;

use super::{dtype_of, strings};
use crate::inference::InferTensorContents;
use crate::wire;

/// Bytes of an empty string in raw contents.
pub(crate) const STRING_BYTES_MIN: usize = strings::LENGTH_BYTES;

/// A tensor of a message without its elements.
pub(crate) struct TensorHeader {
    pub(crate) name: String,
    pub(crate) datatype: String,
    pub(crate) shape: Vec<i64>,
    pub(crate) contents: Option<InferTensorContents>,
}

/// Joins headers with their elements, which are either all in `raw` or all in the headers.
pub(crate) fn tensors(
    what: &str,
    headers: Vec<TensorHeader>,
    raw: Vec<Bytes>,
) -> Result<Vec<NamedTensor>> {
    wire::check_count(what, headers.len())?;
    if raw.is_empty() {
        return headers.into_iter().map(typed).collect();
    }
    if raw.len() != headers.len() {
        let count = headers.len();
        let raw = raw.len();
        return Err(Error::invalid(format!(
            "{count} {what} but {raw} raw contents; give one for each"
        )));
    }
    headers.into_iter().zip(raw).map(|(header, raw)| from_raw(header, raw)).collect()
}

/// Returns the tensor of `header` with the raw contents `raw`.
fn from_raw(header: TensorHeader, raw: Bytes) -> Result<NamedTensor> {
    let TensorHeader { name, datatype, shape, contents } = header;
    if contents.is_some_and(|contents| contents != InferTensorContents::default()) {
        return Err(Error::invalid(format!(
            "\"{name}\" has contents and raw contents; give one of them"
        )));
    }
    let dtype = dtype_of(&name, &datatype)?;
    let shape = wire::shape(&name, shape.into_iter())?;
    let tensor = raw_tensor(&name, dtype, shape, raw)?;
    Ok(NamedTensor::new(name, tensor))
}

/// Creates a tensor over its raw form.
pub(crate) fn raw_tensor(name: &str, dtype: DType, shape: Shape, raw: Bytes) -> Result<Tensor> {
    match dtype {
        DType::String => strings::decode(name, shape, raw),
        _ => wire::fixed(name, dtype, shape, raw),
    }
}

/// Returns the raw form of a tensor: its own bytes, or strings with their lengths.
pub(crate) fn raw_form(name: &str, tensor: &Tensor) -> Result<Bytes> {
    match tensor.data() {
        base::Data::Bytes(bytes) => Ok(bytes.clone()),
        base::Data::Strings(elements) => strings::encode(name, elements),
    }
}

/// Creates a tensor from the typed field of its header.
fn typed(header: TensorHeader) -> Result<NamedTensor> {
    let TensorHeader { name, datatype, shape, contents } = header;
    let dtype = dtype_of(&name, &datatype)?;
    let shape = wire::shape(&name, shape.into_iter())?;
    let contents = contents.unwrap_or_default();
    check_field(&name, dtype, &datatype, &contents)?;
    let tensor = from_contents(dtype, shape, contents)
        .map_err(|error| error.context(format_args!("\"{name}\"")))?;
    Ok(NamedTensor::new(name, tensor))
}

/// Returns the name of the field for elements of `dtype`, or `None` for types without one.
fn field(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "bool_contents",
        DType::I8 | DType::I16 | DType::I32 => "int_contents",
        DType::I64 => "int64_contents",
        DType::U8 | DType::U16 | DType::U32 => "uint_contents",
        DType::U64 => "uint64_contents",
        DType::F32 => "fp32_contents",
        DType::F64 => "fp64_contents",
        DType::String => "bytes_contents",
        _ => return None,
    })
}

/// Checks that the elements of the tensor `name` are in the field for its type, and in no other
/// one.
fn check_field(
    name: &str,
    dtype: DType,
    datatype: &str,
    contents: &InferTensorContents,
) -> Result<()> {
    let Some(right) = field(dtype) else {
        return Err(Error::invalid(format!(
            "\"{name}\": {datatype} travels in raw_input_contents only"
        )));
    };
    let lengths = [
        ("bool_contents", contents.bool_contents.len()),
        ("int_contents", contents.int_contents.len()),
        ("int64_contents", contents.int64_contents.len()),
        ("uint_contents", contents.uint_contents.len()),
        ("uint64_contents", contents.uint64_contents.len()),
        ("fp32_contents", contents.fp32_contents.len()),
        ("fp64_contents", contents.fp64_contents.len()),
        ("bytes_contents", contents.bytes_contents.len()),
    ];
    match lengths.into_iter().find(|(field, length)| *length > 0 && *field != right) {
        Some((wrong, _)) => Err(Error::invalid(format!(
            "\"{name}\" is {datatype} and belongs in {right}, not in {wrong}"
        ))),
        None => Ok(()),
    }
}

/// Returns the tensor of the typed `contents`, in the field that the protocol has for `dtype`.
fn from_contents(dtype: DType, shape: Shape, contents: InferTensorContents) -> Result<Tensor> {
    match dtype {
        DType::Bool => {
            let bytes: Vec<u8> = contents.bool_contents.into_iter().map(u8::from).collect();
            Tensor::from_bytes(DType::Bool, shape, Bytes::from(bytes))
        }
        DType::I8 => narrow::<_, i8>(shape, contents.int_contents),
        DType::I16 => narrow::<_, i16>(shape, contents.int_contents),
        DType::I32 => Tensor::from_vec(shape, contents.int_contents),
        DType::I64 => Tensor::from_vec(shape, contents.int64_contents),
        DType::U8 => narrow::<_, u8>(shape, contents.uint_contents),
        DType::U16 => narrow::<_, u16>(shape, contents.uint_contents),
        DType::U32 => Tensor::from_vec(shape, contents.uint_contents),
        DType::U64 => Tensor::from_vec(shape, contents.uint64_contents),
        DType::F32 => Tensor::from_vec(shape, contents.fp32_contents),
        DType::F64 => Tensor::from_vec(shape, contents.fp64_contents),
        _ => Tensor::from_strings(shape, contents.bytes_contents),
    }
}

/// Converts elements to a narrower type, and fails for a value out of its range.
fn narrow<W, T>(shape: Shape, wide: Vec<W>) -> Result<Tensor>
where
    W: Copy + std::fmt::Display,
    T: Element + TryFrom<W>,
{
    let element = |value: W| {
        T::try_from(value)
            .map_err(|_| Error::invalid(format!("{value} is not a valid {} value", T::DTYPE)))
    };
    Tensor::from_vec(shape, wide.into_iter().map(element).collect::<Result<Vec<T>>>()?)
}
