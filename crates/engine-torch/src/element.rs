//! Element types of Millpond and LibTorch.

use base::DType;

/// Millpond's element types with LibTorch's numbers (`c10::ScalarType`).
pub(crate) const TABLE: [(DType, i32); 19] = [
    (DType::U8, 0),
    (DType::I8, 1),
    (DType::I16, 2),
    (DType::I32, 3),
    (DType::I64, 4),
    (DType::F16, 5),
    (DType::F32, 6),
    (DType::F64, 7),
    (DType::Complex64, 9),
    (DType::Complex128, 10),
    (DType::Bool, 11),
    (DType::BF16, 15),
    (DType::F8E5M2, 23),
    (DType::F8E4M3FN, 24),
    (DType::F8E5M2FNUZ, 25),
    (DType::F8E4M3FNUZ, 26),
    (DType::U16, 27),
    (DType::U32, 28),
    (DType::U64, 29),
];

/// Returns LibTorch's number of `dtype`, or `None` if it has no such tensors.
pub(crate) fn to_torch(dtype: DType) -> Option<i32> {
    TABLE.iter().find(|(ours, _)| *ours == dtype).map(|(_, theirs)| *theirs)
}

/// Returns the type with the number `number` in LibTorch, or `None` if Millpond has no such type.
pub(crate) fn from_torch(number: i32) -> Option<DType> {
    TABLE.iter().find(|(_, theirs)| *theirs == number).map(|(ours, _)| *ours)
}
