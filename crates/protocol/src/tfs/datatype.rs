//! TensorFlow's numbers of element types.

use base::DType;

use crate::tensorflow::DataType;

const TABLE: [(DType, DataType); 22] = [
    (DType::F32, DataType::DtFloat),
    (DType::F64, DataType::DtDouble),
    (DType::I32, DataType::DtInt32),
    (DType::U8, DataType::DtUint8),
    (DType::I16, DataType::DtInt16),
    (DType::I8, DataType::DtInt8),
    (DType::String, DataType::DtString),
    (DType::Complex64, DataType::DtComplex64),
    (DType::I64, DataType::DtInt64),
    (DType::Bool, DataType::DtBool),
    (DType::BF16, DataType::DtBfloat16),
    (DType::U16, DataType::DtUint16),
    (DType::Complex128, DataType::DtComplex128),
    (DType::F16, DataType::DtHalf),
    (DType::U32, DataType::DtUint32),
    (DType::U64, DataType::DtUint64),
    (DType::F8E5M2, DataType::DtFloat8E5m2),
    (DType::F8E4M3FN, DataType::DtFloat8E4m3fn),
    (DType::F8E4M3FNUZ, DataType::DtFloat8E4m3fnuz),
    (DType::F8E5M2FNUZ, DataType::DtFloat8E5m2fnuz),
    (DType::I4, DataType::DtInt4),
    (DType::U4, DataType::DtUint4),
];

/// Returns TensorFlow's type of an element type.
pub fn datatype(dtype: DType) -> DataType {
    TABLE.iter().find(|row| row.0 == dtype).map_or(DataType::DtInvalid, |row| row.1)
}

/// Returns the element type of a number, as the inverse of [`datatype`], or `None` for TensorFlow's
/// quantised types, handles and variants.
pub fn from_datatype(number: i32) -> Option<DType> {
    let wanted = DataType::try_from(number).ok()?;
    TABLE.iter().find(|row| row.1 == wanted).map(|row| row.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_number() {
        for dtype in DType::ALL {
            assert_eq!(from_datatype(datatype(dtype).into()), Some(dtype));
        }
        assert_eq!(from_datatype(0), None);
        assert_eq!(from_datatype(DataType::DtResource.into()), None);
        assert_eq!(from_datatype(101), None);
    }
}
