//! Element types: those of ONNX Runtime's tensors, a superset of the protocols' types.

use bytemuck::Pod;

/// Type of a tensor element.
///
/// The names are ONNX's. `String` elements are byte strings of any content (BYTES or `DT_STRING` in
/// the protocols). The 4-bit types are packed two to a byte, low nibble first, as in ONNX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// One byte an element, 0 or 1.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// IEEE 754 half precision.
    F16,
    /// bfloat16: the upper half of a single.
    BF16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// Two singles, real first.
    Complex64,
    /// Two doubles, real first.
    Complex128,
    /// 8-bit float, 4 exponent bits, finite and NaN only.
    F8E4M3FN,
    /// 8-bit float, 4 exponent bits, no negative zero.
    F8E4M3FNUZ,
    /// 8-bit float, 5 exponent bits.
    F8E5M2,
    /// 8-bit float, 5 exponent bits, no infinities, no negative zero.
    F8E5M2FNUZ,
    /// Unsigned 4-bit integer, packed.
    U4,
    /// Signed 4-bit integer, packed.
    I4,
    /// Byte strings.
    String,
}

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: [DType; 22] = [
        DType::Bool,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::Complex64,
        DType::Complex128,
        DType::F8E4M3FN,
        DType::F8E4M3FNUZ,
        DType::F8E5M2,
        DType::F8E5M2FNUZ,
        DType::U4,
        DType::I4,
        DType::String,
    ];

    /// Returns the bits of one element; `None` for strings, which have no fixed size.
    pub const fn bits(self) -> Option<usize> {
        Some(match self {
            DType::U4 | DType::I4 => 4,
            DType::Bool | DType::U8 | DType::I8 => 8,
            DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => 8,
            DType::U16 | DType::I16 | DType::F16 | DType::BF16 => 16,
            DType::U32 | DType::I32 | DType::F32 => 32,
            DType::U64 | DType::I64 | DType::F64 | DType::Complex64 => 64,
            DType::Complex128 => 128,
            DType::String => return None,
        })
    }

    /// Returns the number of bytes of `elements` elements, rounded up to a whole byte; `None` for
    /// strings, or if the number does not fit a `usize`.
    pub fn bytes_for(self, elements: usize) -> Option<usize> {
        let bits = self.bits()?;
        Some(elements.checked_mul(bits)?.div_ceil(8))
    }

    /// Returns the alignment in bytes that a C++ engine needs to read a buffer of this type.
    pub const fn alignment(self) -> usize {
        match self {
            DType::U16 | DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::U32 | DType::I32 | DType::F32 | DType::Complex64 => 4,
            DType::U64 | DType::I64 | DType::F64 | DType::Complex128 => 8,
            _ => 1,
        }
    }

    /// Returns the lower-case name used in messages, configuration and manifests ("float32",
    /// "int64", "string").
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "uint8",
            DType::U16 => "uint16",
            DType::U32 => "uint32",
            DType::U64 => "uint64",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F32 => "float32",
            DType::F64 => "float64",
            DType::Complex64 => "complex64",
            DType::Complex128 => "complex128",
            DType::F8E4M3FN => "float8e4m3fn",
            DType::F8E4M3FNUZ => "float8e4m3fnuz",
            DType::F8E5M2 => "float8e5m2",
            DType::F8E5M2FNUZ => "float8e5m2fnuz",
            DType::U4 => "uint4",
            DType::I4 => "int4",
            DType::String => "string",
        }
    }

    /// Returns the type with this [`DType::name`].
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type whose memory is one tensor element.
pub trait Element: Pod + Send + Sync {
    /// Element type that this Rust type stores.
    const DTYPE: DType;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),* $(,)?) => { $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })* };
}
element! {
    u8 => U8, u16 => U16, u32 => U32, u64 => U64, i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    half::f16 => F16, half::bf16 => BF16, f32 => F32, f64 => F64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        }
    }

    #[test]
    fn packed_types_round_up() {
        assert_eq!(DType::I4.bytes_for(3), Some(2));
        assert_eq!(DType::F32.bytes_for(3), Some(12));
        assert_eq!(DType::F64.bytes_for(usize::MAX), None);
        assert_eq!(DType::String.bytes_for(1), None);
    }
}
