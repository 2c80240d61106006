//! The protocol's names of element types.

use base::DType;

const TABLE: [(DType, &str); 22] = [
    (DType::F32, "FP32"),
    (DType::I64, "INT64"),
    (DType::String, "BYTES"),
    (DType::I32, "INT32"),
    (DType::F64, "FP64"),
    (DType::F16, "FP16"),
    (DType::BF16, "BF16"),
    (DType::Bool, "BOOL"),
    (DType::U8, "UINT8"),
    (DType::I8, "INT8"),
    (DType::U16, "UINT16"),
    (DType::I16, "INT16"),
    (DType::U32, "UINT32"),
    (DType::U64, "UINT64"),
    // The protocol has no names for these; they are Millpond's, and travel as raw bytes.
    (DType::Complex64, "COMPLEX64"),
    (DType::Complex128, "COMPLEX128"),
    (DType::F8E4M3FN, "FP8_E4M3FN"),
    (DType::F8E4M3FNUZ, "FP8_E4M3FNUZ"),
    (DType::F8E5M2, "FP8_E5M2"),
    (DType::F8E5M2FNUZ, "FP8_E5M2FNUZ"),
    (DType::U4, "UINT4"),
    (DType::I4, "INT4"),
];

/// Returns the protocol's name of an element type, such as "FP32" or "BYTES". Types without a name
/// in the protocol have one of Millpond's, such as "FP8_E4M3FN", "COMPLEX64" or "INT4".
pub fn datatype(dtype: DType) -> &'static str {
    TABLE.iter().find(|row| row.0 == dtype).map_or("", |row| row.1)
}

/// Returns the element type of a name, as the inverse of [`datatype`].
pub fn from_datatype(name: &str) -> Option<DType> {
    TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_name() {
        for dtype in DType::ALL {
            assert_eq!(from_datatype(datatype(dtype)), Some(dtype));
        }
        assert_eq!(from_datatype(""), None);
        assert_eq!(from_datatype("fp32"), None);
    }
}
