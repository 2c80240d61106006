//! Rounds doubles to 16-bit floats, as NumPy does. The functions `from_f64` of the crate `half` do
//! not: by type and processor, they round to a single first or ignore the last 32 bits. So they
//! take some numbers for halfway between two values.

use half::{bf16, f16};

/// Rounds a double to the nearest half float, and to the even one if two are equally near.
///
/// # Example: a number just above the middle of two half floats
/// ```
/// let above = millpond_base::round_to_f16(1.00048828126);
/// assert_eq!(above.to_f32(), 1.0 + 1.0 / 1024.0);
/// ```
pub fn round_to_f16(value: f64) -> f16 {
    f16::from_f32(round_to_odd(value))
}

/// Rounds a double to a single and then to a bfloat16, each time to the nearest value. The package
/// ml_dtypes, which has this type for NumPy, does the same.
pub fn round_to_bf16(value: f64) -> bf16 {
    bf16::from_f32(value as f32)
}

/// Returns a single that rounds to the same half float as `value`: the last bit of an inexact
/// result is set. The nearest single may be halfway between two half floats although `value` is
/// not.
fn round_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let difference = f64::from(nearest).abs() - value.abs();
    if value.is_nan() || difference == 0.0 || value.is_infinite() {
        return nearest;
    }
    let bits = nearest.to_bits();
    let toward_zero = if difference > 0.0 { bits - 1 } else { bits };
    f32::from_bits(toward_zero | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_double_is_rounded_once_to_a_half_float() {
        let bits = |value: f64| round_to_f16(value).to_bits();
        // 1 + 2^-11 is halfway between two half floats.
        let tie = 1.000_488_281_25;
        assert_eq!((bits(tie), bits(-tie)), (0x3c00, 0xbc00));
        // The first number differs from the tie in the last bits of a double only.
        for above in [tie + f64::EPSILON, tie + 1e-11, tie + f64::from(f32::EPSILON)] {
            assert_eq!((bits(above), bits(-above)), (0x3c01, 0xbc01), "{above:?}");
        }
        assert_eq!(bits(tie - f64::EPSILON), 0x3c00);
        assert_eq!((bits(65_519.9), bits(65_520.0), bits(-1e300)), (0x7bff, 0x7c00, 0xfc00));
        assert_eq!((bits(6e-8), bits(1e-30), bits(-1e-300)), (1, 0, 0x8000));
        assert_eq!((bits(-0.0), bits(f64::NEG_INFINITY)), (0x8000, 0xfc00));
        assert!(round_to_f16(f64::NAN).is_nan());
    }

    #[test]
    fn a_double_is_rounded_twice_to_a_bfloat16() {
        let bits = |value: f64| round_to_bf16(value).to_bits();
        // 1 + 2^-8 is halfway between two of these floats. A single can be next to it.
        let tie = 1.003_906_25;
        assert_eq!((bits(tie), bits(tie + 1e-11)), (0x3f80, 0x3f80));
        assert_eq!(bits(tie + f64::from(f32::EPSILON)), 0x3f81);
        assert_eq!(bits(3.4e38), 0x7f80);
    }
}
