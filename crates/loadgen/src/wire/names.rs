//! Element types of the two APIs' answers.

use base::{DType, Error, Result};
use protocol::tensorflow::DataType;

/// Returns the type that the Open Inference Protocol calls `name`.
pub(super) fn from_oip(name: &str) -> Result<DType> {
    protocol::oip::from_datatype(name)
        .ok_or_else(|| Error::invalid(format!("unknown element type \"{name}\"")))
}

/// Returns the type of TensorFlow's `code`.
pub(super) fn from_tfs(code: i32) -> Result<DType> {
    protocol::tfs::from_datatype(code)
        .ok_or_else(|| Error::invalid(format!("unknown TensorFlow type {code}")))
}

/// Returns the type of TensorFlow's `name` ("DT_FLOAT").
pub(super) fn from_tfs_name(name: &str) -> Result<DType> {
    DataType::from_str_name(name)
        .and_then(|code| protocol::tfs::from_datatype(code.into()))
        .ok_or_else(|| Error::invalid(format!("unknown TensorFlow type \"{name}\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes() {
        assert_eq!(from_oip("FP32"), Ok(DType::F32));
        assert_eq!(from_tfs(DataType::DtHalf.into()), Ok(DType::F16));
        assert_eq!(from_tfs_name("DT_FLOAT"), Ok(DType::F32));
        assert!(from_oip("").is_err() && from_tfs(0).is_err() && from_tfs_name("FLOAT").is_err());
    }
}
