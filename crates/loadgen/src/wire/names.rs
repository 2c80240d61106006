//! Names of element types in the two APIs.

use base::{DType, Error, Result};
use protocol::tensorflow::DataType;

const NAMES: [(DType, &str, DataType); 15] = [
    (DType::Bool, "BOOL", DataType::DtBool),
    (DType::U8, "UINT8", DataType::DtUint8),
    (DType::U16, "UINT16", DataType::DtUint16),
    (DType::U32, "UINT32", DataType::DtUint32),
    (DType::U64, "UINT64", DataType::DtUint64),
    (DType::I8, "INT8", DataType::DtInt8),
    (DType::I16, "INT16", DataType::DtInt16),
    (DType::I32, "INT32", DataType::DtInt32),
    (DType::I64, "INT64", DataType::DtInt64),
    (DType::F16, "FP16", DataType::DtHalf),
    (DType::BF16, "BF16", DataType::DtBfloat16),
    (DType::F32, "FP32", DataType::DtFloat),
    (DType::F64, "FP64", DataType::DtDouble),
    (DType::String, "BYTES", DataType::DtString),
    (DType::Complex64, "", DataType::DtComplex64),
];

/// Returns the Open Inference Protocol's name.
pub(super) fn oip(dtype: DType) -> Result<&'static str> {
    NAMES
        .iter()
        .find(|(own, name, _)| *own == dtype && !name.is_empty())
        .map(|(_, name, _)| *name)
        .ok_or_else(|| {
            Error::unimplemented(format!("{dtype} has no name in the Open Inference Protocol"))
        })
}

/// Returns the type that the Open Inference Protocol calls `name`.
pub(super) fn from_oip(name: &str) -> Result<DType> {
    let known = NAMES.iter().find(|(_, oip, _)| !name.is_empty() && *oip == name);
    known
        .map(|(dtype, ..)| *dtype)
        .ok_or_else(|| Error::invalid(format!("unknown element type \"{name}\"")))
}

/// Returns TensorFlow's code.
pub(super) fn tfs(dtype: DType) -> Result<i32> {
    let known = NAMES.iter().find(|(own, ..)| *own == dtype);
    known
        .map(|(.., code)| *code as i32)
        .ok_or_else(|| Error::unimplemented(format!("{dtype} has no TensorFlow type")))
}

/// Returns the type of TensorFlow's `code`.
pub(super) fn from_tfs(code: i32) -> Result<DType> {
    let known = NAMES.iter().find(|(.., own)| *own as i32 == code);
    known
        .map(|(dtype, ..)| *dtype)
        .ok_or_else(|| Error::invalid(format!("unknown TensorFlow type {code}")))
}

/// Returns the type of TensorFlow's `name` ("DT_FLOAT").
pub(super) fn from_tfs_name(name: &str) -> Result<DType> {
    let known = NAMES.iter().find(|(.., own)| own.as_str_name() == name);
    known
        .map(|(dtype, ..)| *dtype)
        .ok_or_else(|| Error::invalid(format!("unknown TensorFlow type \"{name}\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back() {
        for (dtype, ..) in NAMES {
            assert_eq!(tfs(dtype).and_then(from_tfs), Ok(dtype));
            if dtype != DType::Complex64 {
                assert_eq!(oip(dtype).and_then(from_oip), Ok(dtype));
            }
        }
        assert!(oip(DType::Complex64).is_err() && from_oip("").is_err());
        assert_eq!(from_tfs_name("DT_FLOAT"), Ok(DType::F32));
    }
}
