//! Element types of Millpond and TensorFlow.

use base::DType;

/// TensorFlow's number of strings.
pub(crate) const STRING: i32 = 7;

/// Millpond's element types with TensorFlow's numbers (`DataType`), which have the same bytes in
/// memory. TensorFlow keeps each 4-bit element in a byte, so these types are left out.
pub(crate) const TABLE: [(DType, i32); 20] = [
    (DType::F32, 1),
    (DType::F64, 2),
    (DType::I32, 3),
    (DType::U8, 4),
    (DType::I16, 5),
    (DType::I8, 6),
    (DType::String, STRING),
    (DType::Complex64, 8),
    (DType::I64, 9),
    (DType::Bool, 10),
    (DType::BF16, 14),
    (DType::U16, 17),
    (DType::Complex128, 18),
    (DType::F16, 19),
    (DType::U32, 22),
    (DType::U64, 23),
    (DType::F8E5M2, 24),
    (DType::F8E4M3FN, 25),
    (DType::F8E4M3FNUZ, 26),
    (DType::F8E5M2FNUZ, 28),
];

/// Returns TensorFlow's number of `dtype`, or `None` if it has no such tensors.
pub(crate) fn to_tensorflow(dtype: DType) -> Option<i32> {
    TABLE.iter().find(|(ours, _)| *ours == dtype).map(|(_, theirs)| *theirs)
}

/// Added to the number of a type for a reference to a variable of it.
const REFERENCE: i32 = 100;

/// Returns the type of TensorFlow's number, also for a reference to it.
pub(crate) fn from_tensorflow(number: i32) -> Option<DType> {
    TABLE
        .iter()
        .find(|(_, theirs)| *theirs == number || theirs + REFERENCE == number)
        .map(|(ours, _)| *ours)
}
