//! Encodes the response of Predict without copying most tensors.
//!
//! TensorFlow Serving puts elements into the typed fields (`float_val` and others), and its clients
//! read them there. A packed field of fixed-width numbers has the same bytes on the wire as a
//! `bytes` field that holds them in little-endian order. So the messages here declare those fields
//! as `bytes`, which share the tensor's memory and are written with one copy.

use std::collections::BTreeMap;

use base::{DType, Data, Tensor};
use bytes::Bytes;
use prost::Message;

use super::{datatype, tensor::shape_message};
use crate::tensorflow::TensorShapeProto;
use crate::tensorflow::serving::ModelSpec;
use crate::wire;

/// The fields for the elements of a response's tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TensorFields {
    /// The typed fields, as TensorFlow Serving does.
    #[default]
    Typed,
    /// `tensor_content`, which clients decode faster. Strings are in `string_val` in any case.
    Content,
}

/// A `PredictResponse` for encoding.
#[derive(Clone, PartialEq, Message)]
pub struct SharedPredictResponse {
    /// The outputs by name.
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) outputs: BTreeMap<String, SharedTensorProto>,
    /// The version that answered.
    #[prost(message, optional, tag = "2")]
    pub model_spec: Option<ModelSpec>,
}

/// A `TensorProto` for encoding: each field of fixed-width numbers holds their bytes.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SharedTensorProto {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    tensor_shape: Option<TensorShapeProto>,
    #[prost(bytes = "bytes", tag = "4")]
    tensor_content: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    float_val: Bytes,
    #[prost(bytes = "bytes", tag = "6")]
    double_val: Bytes,
    #[prost(int32, repeated, tag = "7")]
    int_val: Vec<i32>,
    #[prost(bytes = "bytes", repeated, tag = "8")]
    string_val: Vec<Bytes>,
    #[prost(bytes = "bytes", tag = "9")]
    scomplex_val: Bytes,
    #[prost(int64, repeated, tag = "10")]
    int64_val: Vec<i64>,
    /// A bool takes one byte, 0 or 1, packed as well as in memory.
    #[prost(bytes = "bytes", tag = "11")]
    bool_val: Bytes,
    #[prost(bytes = "bytes", tag = "12")]
    dcomplex_val: Bytes,
    #[prost(int32, repeated, tag = "13")]
    half_val: Vec<i32>,
    #[prost(uint32, repeated, tag = "16")]
    uint32_val: Vec<u32>,
    #[prost(uint64, repeated, tag = "17")]
    uint64_val: Vec<u64>,
    #[prost(bytes = "bytes", tag = "18")]
    float8_val: Bytes,
}

pub(super) fn shared_response(
    outputs: Vec<base::NamedTensor>,
    elements: TensorFields,
    model_spec: ModelSpec,
) -> SharedPredictResponse {
    let output =
        |output: base::NamedTensor| (output.name.to_string(), tensor(&output.tensor, elements));
    SharedPredictResponse {
        outputs: outputs.into_iter().map(output).collect(),
        model_spec: Some(model_spec),
    }
}

/// Returns the message of a tensor, with the elements in the fields that `elements` chooses.
fn tensor(tensor: &Tensor, elements: TensorFields) -> SharedTensorProto {
    let mut message = SharedTensorProto {
        dtype: datatype(tensor.dtype()).into(),
        tensor_shape: Some(shape_message(tensor.shape())),
        ..SharedTensorProto::default()
    };
    match (tensor.data(), elements) {
        (Data::Strings(strings), _) => message.string_val = strings.to_vec(),
        (Data::Bytes(bytes), TensorFields::Typed) => message.set_typed(tensor, bytes),
        (Data::Bytes(packed), TensorFields::Content) => {
            message.tensor_content = match tensor.dtype() {
                dtype @ (DType::U4 | DType::I4) => {
                    wire::unpack(dtype, tensor.elements(), packed).into()
                }
                _ => packed.clone(),
            }
        }
    }
    message
}

impl SharedTensorProto {
    /// Puts `bytes`, the elements of `tensor`, into TensorFlow's field for their type.
    fn set_typed(&mut self, tensor: &Tensor, bytes: &Bytes) {
        match tensor.dtype() {
            DType::F32 => self.float_val = bytes.clone(),
            DType::F64 => self.double_val = bytes.clone(),
            DType::Complex64 => self.scomplex_val = bytes.clone(),
            DType::Complex128 => self.dcomplex_val = bytes.clone(),
            DType::Bool => self.bool_val = bytes.clone(),
            DType::I64 => self.int64_val = numbers(bytes, i64::from_le_bytes),
            DType::U64 => self.uint64_val = numbers(bytes, u64::from_le_bytes),
            DType::U32 => self.uint32_val = numbers(bytes, u32::from_le_bytes),
            DType::I32 => self.int_val = numbers(bytes, i32::from_le_bytes),
            DType::I16 => self.int_val = numbers(bytes, |b| i16::from_le_bytes(b).into()),
            DType::U16 => self.int_val = numbers(bytes, |b| u16::from_le_bytes(b).into()),
            DType::I8 => self.int_val = numbers(bytes, |b| i8::from_le_bytes(b).into()),
            DType::U8 => self.int_val = numbers(bytes, |b| u8::from_le_bytes(b).into()),
            DType::F16 | DType::BF16 => {
                self.half_val = numbers(bytes, |b| u16::from_le_bytes(b).into())
            }
            dtype @ (DType::U4 | DType::I4) => {
                let elements = wire::unpack(dtype, tensor.elements(), bytes);
                self.int_val =
                    elements.into_iter().map(|element| element.cast_signed().into()).collect();
            }
            // The 8-bit floats. Strings are handled before.
            _ => self.float8_val = bytes.clone(),
        }
    }
}

fn numbers<const WIDTH: usize, T>(bytes: &[u8], number: impl Fn([u8; WIDTH]) -> T) -> Vec<T> {
    bytes.as_chunks::<WIDTH>().0.iter().map(|element| number(*element)).collect()
}
