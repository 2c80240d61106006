//! The fast Walsh-Hadamard transform: after random signs, a rotation in n log n steps.

/// Transforms `values` in place and divides by the square root of their number. This map is
/// orthogonal and its own inverse. Panics if the number is not a power of two.
pub fn transform(values: &mut [f32]) {
    assert!(values.len().is_power_of_two(), "a length that is not a power of two");
    #[cfg(target_arch = "x86_64")]
    if crate::cpu::avx2() {
        // SAFETY: the processor has AVX2 and FMA.
        return unsafe { transform_avx2(values) };
    }
    transform_any(values);
}

/// Transforms `values` in place. Every variant has this body, and the compiler uses the widest
/// instructions that the variant permits. It neither reorders nor fuses operations, so all variants
/// give the same bits.
#[inline(always)]
fn transform_any(values: &mut [f32]) {
    let length = values.len();
    if length >= 8 {
        for eight in values.as_chunks_mut::<8>().0 {
            *eight = transform_eight(*eight);
        }
    }
    let mut half = if length >= 8 { 8 } else { 1 };
    while half < length {
        for pair in values.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (low, high) in low.iter_mut().zip(high) {
                (*low, *high) = (*low + *high, *low - *high);
            }
        }
        half *= 2;
    }
    let scale = 1.0 / (length as f32).sqrt();
    values.iter_mut().for_each(|value| *value *= scale);
}

/// Transforms eight values without the division by the square root of their number.
#[inline(always)]
fn transform_eight(v: [f32; 8]) -> [f32; 8] {
    let v = [
        v[0] + v[1],
        v[0] - v[1],
        v[2] + v[3],
        v[2] - v[3],
        v[4] + v[5],
        v[4] - v[5],
        v[6] + v[7],
        v[6] - v[7],
    ];
    let v = [
        v[0] + v[2],
        v[1] + v[3],
        v[0] - v[2],
        v[1] - v[3],
        v[4] + v[6],
        v[5] + v[7],
        v[4] - v[6],
        v[5] - v[7],
    ];
    [
        v[0] + v[4],
        v[1] + v[5],
        v[2] + v[6],
        v[3] + v[7],
        v[0] - v[4],
        v[1] - v[5],
        v[2] - v[6],
        v[3] - v[7],
    ]
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn transform_avx2(values: &mut [f32]) {
    transform_any(values);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Multiplies by the matrix of the definition. The sign of an element is the parity of the bits
    /// that row and column share.
    fn naive(values: &[f32]) -> Vec<f32> {
        let scale = 1.0 / (values.len() as f32).sqrt();
        let sign = |row: usize, column: usize| {
            if (row & column).count_ones().is_multiple_of(2) { scale } else { -scale }
        };
        (0..values.len())
            .map(|row| {
                values.iter().enumerate().map(|(column, value)| value * sign(row, column)).sum()
            })
            .collect()
    }

    proptest! {
        #[test]
        fn is_the_matrix_and_its_own_inverse(
            values in (0u32..10).prop_flat_map(|bits| prop::collection::vec(-1f32..1.0, 1usize << bits))
        ) {
            let mut turned = values.clone();
            transform(&mut turned);
            let mut scalar = values.clone();
            transform_any(&mut scalar);
            prop_assert_eq!(&turned, &scalar);
            for (value, expected) in turned.iter().zip(naive(&values)) {
                prop_assert!((value - expected).abs() < 1e-4);
            }
            transform(&mut turned);
            for (value, expected) in turned.iter().zip(&values) {
                prop_assert!((value - expected).abs() < 1e-4);
            }
        }
    }
}
