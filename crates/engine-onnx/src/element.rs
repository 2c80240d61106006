//! Element types of Millpond and ONNX.

use base::DType;
use ort::sys::ONNXTensorElementDataType as Onnx;

/// Millpond's element types with ONNX's. ONNX also names complex numbers, but the library has no
/// tensors of them.
pub(crate) const TABLE: [(DType, Onnx); 20] = [
    (DType::Bool, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL),
    (DType::U8, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8),
    (DType::U16, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16),
    (DType::U32, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32),
    (DType::U64, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64),
    (DType::I8, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8),
    (DType::I16, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16),
    (DType::I32, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32),
    (DType::I64, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64),
    (DType::F16, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16),
    (DType::BF16, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16),
    (DType::F32, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT),
    (DType::F64, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE),
    (DType::F8E4M3FN, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN),
    (DType::F8E4M3FNUZ, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ),
    (DType::F8E5M2, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2),
    (DType::F8E5M2FNUZ, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ),
    (DType::U4, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4),
    (DType::I4, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4),
    (DType::String, Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING),
];

/// Returns ONNX's type for `dtype`, or `None` if the library has no such tensors.
pub(crate) fn to_onnx(dtype: DType) -> Option<Onnx> {
    TABLE.iter().find(|(ours, _)| *ours == dtype).map(|(_, theirs)| *theirs)
}

/// Returns the type of ONNX's number. Takes the number and not the binding's enum, because a newer
/// library may have more types.
pub(crate) fn from_onnx(number: i32) -> Option<DType> {
    TABLE.iter().find(|(_, theirs)| *theirs as i32 == number).map(|(ours, _)| *ours)
}
