//! Dot products of 8-bit integer codes.
//!
//! Codes are symmetric: they lie in -127..=127, never -128. AVX2's multiplication of bytes takes
//! one unsigned operand and saturates at 16 bits. So the sign of one operand is moved to the other,
//! and two products of at most 127 * 127 fit. AVX-512 VNNI adds four products to 32 bits at once
//! and takes an unsigned operand too.

use crate::cpu::{self, SimdLevel};

/// Smallest code that the kernels accept. -128 has no positive counterpart.
pub const CODE_MIN: i8 = -127;
/// Maximum dimensions of a vector. With more, the 32-bit sum of products could overflow.
pub const DIMS_MAX: usize = (i32::MAX as usize) / (127 * 127);
/// Queries that [`dot_block`] multiplies with one row before it goes to the next row.
const QUERIES_PER_PASS: usize = 4;

/// Returns the dot product of two codes of the same length. Panics if the lengths differ.
#[inline]
pub fn dot(left: &[i8], right: &[i8]) -> i32 {
    dot_at(cpu::level(), left, right)
}

/// Returns the inner product of two codes, with the instructions of `level`.
#[inline]
fn dot_at(level: SimdLevel, left: &[i8], right: &[i8]) -> i32 {
    assert_eq!(left.len(), right.len(), "codes of different lengths");
    match level {
        // SAFETY: the processor has AVX-512 with VNNI.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 => unsafe { avx512::dot(left, right) },
        // SAFETY: the processor has AVX2, and the lengths are equal.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => unsafe { avx2::dot(left, right) },
        _ => scalar::dot(left, right),
    }
}

/// Computes the dot products of one query with `out.len()` consecutive rows of the query's length.
fn dot_many_at(level: SimdLevel, query: &[i8], rows: &[i8], out: &mut [i32]) {
    assert_eq!(rows.len(), query.len() * out.len(), "rows do not fill the output");
    if query.is_empty() {
        return out.fill(0);
    }
    for (row, out) in rows.chunks_exact(query.len()).zip(out) {
        *out = dot_at(level, query, row);
    }
}

/// Computes the dot products of several queries with a tile of rows: `out[q * rows + r]`. A row is
/// loaded once for four queries, so a tile that fits the cache is limited by arithmetic and not by
/// memory. Panics if the lengths do not fit.
pub fn dot_block(queries: &[i8], rows: &[i8], dims: usize, out: &mut [i32]) {
    dot_block_at(cpu::level(), queries, rows, dims, out);
}

/// Writes the inner product of each of `queries` with each of `rows` to `out[query * rows + row]`.
/// Vectors have `dims` values.
fn dot_block_at(level: SimdLevel, queries: &[i8], rows: &[i8], dims: usize, out: &mut [i32]) {
    assert!(
        dims > 0 && queries.len().is_multiple_of(dims) && rows.len().is_multiple_of(dims),
        "not whole vectors"
    );
    let query_count = queries.len() / dims;
    let row_count = rows.len() / dims;
    assert_eq!(out.len(), query_count * row_count, "products do not fill the output");
    let mut start = 0;
    while start < query_count {
        let taken = (query_count - start).min(QUERIES_PER_PASS);
        let queries = &queries[start * dims..(start + taken) * dims];
        let out = &mut out[start * row_count..(start + taken) * row_count];
        if taken < QUERIES_PER_PASS {
            for (query, out) in
                queries.chunks_exact(dims).zip(out.chunks_exact_mut(row_count.max(1)))
            {
                dot_many_at(level, query, rows, out);
            }
        } else {
            for (row, code) in rows.chunks_exact(dims).enumerate() {
                for (query, sum) in dot_four(level, queries, code).into_iter().enumerate() {
                    out[query * row_count + row] = sum;
                }
            }
        }
        start += taken;
    }
}

/// Computes the dot products of four consecutive queries with one row.
#[inline]
fn dot_four(level: SimdLevel, queries: &[i8], row: &[i8]) -> [i32; QUERIES_PER_PASS] {
    assert_eq!(queries.len(), QUERIES_PER_PASS * row.len(), "not four queries");
    match level {
        // SAFETY: the processor has AVX-512 with VNNI.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 => unsafe { avx512::dot_four(queries, row) },
        // SAFETY: the processor has AVX2; there are four queries of the row's length.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => unsafe { avx2::dot_four(queries, row) },
        _ => std::array::from_fn(|query| {
            scalar::dot(&queries[query * row.len()..][..row.len()], row)
        }),
    }
}

/// Quantises `values` to symmetric codes and returns the scale: `value = code * scale`. A vector of
/// zeros, or one with NaN or an infinite value, becomes zeros with scale 0.
pub fn quantise(values: &[f32], codes: &mut [i8]) -> f32 {
    assert_eq!(values.len(), codes.len(), "one code for each value");
    let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    let inverse = 127.0 / largest;
    if !(largest.is_finite() && inverse.is_finite()) || values.iter().any(|value| value.is_nan()) {
        codes.fill(0);
        return 0.0;
    }
    for (value, code) in values.iter().zip(codes) {
        *code = (value * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
    }
    largest / 127.0
}

mod scalar {
    pub(super) fn dot(left: &[i8], right: &[i8]) -> i32 {
        left.iter().zip(right).map(|(&left, &right)| i32::from(left) * i32::from(right)).sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::QUERIES_PER_PASS;
    use std::arch::x86_64::*;

    /// Multiplies 32 codes and returns eight partial sums.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn products(left: __m256i, right: __m256i) -> __m256i {
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(left), _mm256_sign_epi8(right, left));
        _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
    }

    /// Adds eight 32-bit lanes.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn sum(lanes: __m256i) -> i32 {
        let half = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
        let quarter = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0b01_00_11_10));
        _mm_cvtsi128_si32(_mm_add_epi32(quarter, _mm_shuffle_epi32(quarter, 0b10_11_00_01)))
    }

    /// # Safety
    /// The processor has AVX2, and both slices have the same length.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn dot(left: &[i8], right: &[i8]) -> i32 {
        let (mut first, mut second) = (_mm256_setzero_si256(), _mm256_setzero_si256());
        let mut at = 0;
        while at + 64 <= left.len() {
            // SAFETY: 64 codes from `at` are inside both slices, by the condition and the caller's
            // promise.
            let (l0, r0, l1, r1) = unsafe {
                (
                    _mm256_loadu_si256(left.as_ptr().add(at).cast()),
                    _mm256_loadu_si256(right.as_ptr().add(at).cast()),
                    _mm256_loadu_si256(left.as_ptr().add(at + 32).cast()),
                    _mm256_loadu_si256(right.as_ptr().add(at + 32).cast()),
                )
            };
            first = _mm256_add_epi32(first, products(l0, r0));
            second = _mm256_add_epi32(second, products(l1, r1));
            at += 64;
        }
        sum(_mm256_add_epi32(first, second)) + super::scalar::dot(&left[at..], &right[at..])
    }

    /// # Safety
    /// The processor has AVX2, and `queries` holds four vectors of the length of `row`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn dot_four(queries: &[i8], row: &[i8]) -> [i32; QUERIES_PER_PASS] {
        let dims = row.len();
        let mut sums = [_mm256_setzero_si256(); QUERIES_PER_PASS];
        let mut at = 0;
        while at + 32 <= dims {
            // SAFETY: 32 codes from `at` are inside the row.
            let code = unsafe { _mm256_loadu_si256(row.as_ptr().add(at).cast()) };
            let size = _mm256_abs_epi8(code);
            for (query, sum) in sums.iter_mut().enumerate() {
                // SAFETY: 32 codes from `at` are inside each of the four queries.
                let other =
                    unsafe { _mm256_loadu_si256(queries.as_ptr().add(query * dims + at).cast()) };
                let pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(other, code));
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
            at += 32;
        }
        let mut out = [0; QUERIES_PER_PASS];
        for (query, out) in out.iter_mut().enumerate() {
            let rest = &queries[query * dims + at..(query + 1) * dims];
            *out = sum(sums[query]) + super::scalar::dot(rest, &row[at..]);
        }
        out
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::QUERIES_PER_PASS;
    use std::arch::x86_64::*;

    /// Codes of a register.
    const LANES: usize = 64;

    /// Loads codes from `at` on, and zeros after their end.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn load(codes: &[i8], at: usize) -> __m512i {
        let left = codes.len().saturating_sub(at);
        let mask = if left < LANES { (1 << left) - 1 } else { u64::MAX };
        // SAFETY: the mask excludes all bytes beyond the codes, so they are not read.
        unsafe { _mm512_maskz_loadu_epi8(mask, codes.as_ptr().wrapping_add(at)) }
    }

    /// Returns `sum` plus the products of two blocks of codes. `size` has the absolute values of
    /// one block and `negative` has a bit for each of its negative codes. `other` is the other
    /// block.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    #[inline]
    fn add(sum: __m512i, size: __m512i, negative: __mmask64, other: __m512i) -> __m512i {
        let other = _mm512_mask_sub_epi8(other, negative, _mm512_setzero_si512(), other);
        _mm512_dpbusd_epi32(sum, size, other)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) fn dot(left: &[i8], right: &[i8]) -> i32 {
        let mut sums = [_mm512_setzero_si512(); 2];
        for start in (0..left.len()).step_by(2 * LANES) {
            for (half, sum) in sums.iter_mut().enumerate() {
                let at = start + half * LANES;
                let one = load(left, at);
                *sum = add(*sum, _mm512_abs_epi8(one), _mm512_movepi8_mask(one), load(right, at));
            }
        }
        _mm512_reduce_add_epi32(_mm512_add_epi32(sums[0], sums[1]))
    }

    /// Returns the dot products of four queries with `row`. `queries` holds the four vectors one
    /// after the other, each of the length of `row`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) fn dot_four(queries: &[i8], row: &[i8]) -> [i32; QUERIES_PER_PASS] {
        let dims = row.len();
        let mut sums = [_mm512_setzero_si512(); QUERIES_PER_PASS];
        for at in (0..dims).step_by(LANES) {
            let code = load(row, at);
            let size = _mm512_abs_epi8(code);
            let negative = _mm512_movepi8_mask(code);
            for (query, sum) in sums.iter_mut().enumerate() {
                let other = load(&queries[query * dims..(query + 1) * dims], at);
                *sum = add(*sum, size, negative, other);
            }
        }
        let mut out = [0; QUERIES_PER_PASS];
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = _mm512_reduce_add_epi32(sum);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn codes(length: usize) -> impl Strategy<Value = Vec<i8>> {
        prop::collection::vec(CODE_MIN..=127, length)
    }

    fn scene() -> impl Strategy<Value = (usize, Vec<i8>, Vec<i8>)> {
        (1usize..150, 0usize..10, 0usize..6).prop_flat_map(|(dims, queries, rows)| {
            (Just(dims), codes(dims * queries), codes(dims * rows))
        })
    }

    proptest! {
        #[test]
        fn every_way_gives_the_reference(scene in scene()) {
            let (dims, queries, rows) = scene;
            let row_count = rows.len() / dims;
            let naive: Vec<i32> = queries
                .chunks_exact(dims)
                .flat_map(|query| rows.chunks_exact(dims).map(|row| scalar::dot(query, row)).collect::<Vec<_>>())
                .collect();
            for level in cpu::levels() {
                let mut block = vec![0; naive.len()];
                dot_block_at(level, &queries, &rows, dims, &mut block);
                prop_assert_eq!(&block, &naive);
                for (query, expected) in queries.chunks_exact(dims).zip(naive.chunks_exact(row_count.max(1))) {
                    let mut many = vec![0; row_count];
                    dot_many_at(level, query, &rows, &mut many);
                    prop_assert_eq!(&many[..], expected);
                    for (row, expected) in rows.chunks_exact(dims).zip(expected) {
                        prop_assert_eq!(dot_at(level, query, row), *expected);
                    }
                }
            }
        }

        #[test]
        fn a_code_is_within_half_a_step(values in prop::collection::vec(-1e3f32..1e3, 0..80)) {
            let mut codes = vec![0; values.len()];
            let scale = quantise(&values, &mut codes);
            for (value, code) in values.iter().zip(&codes) {
                prop_assert!((value - f32::from(*code) * scale).abs() <= scale * 0.5001 + 1e-6);
                prop_assert!(*code >= CODE_MIN);
            }
        }
    }

    #[test]
    fn extremes_do_not_saturate() {
        for (left, right) in [(127, 127), (-127, 127), (-127, -127)] {
            let (left, right) = (vec![left; 4096], vec![right; 4096]);
            for level in cpu::levels() {
                assert_eq!(dot_at(level, &left, &right), scalar::dot(&left, &right));
            }
        }
    }

    #[test]
    fn odd_values_become_zeros() {
        let mut codes = [5; 2];
        for values in [[0.0, 0.0], [f32::NAN, 1.0], [f32::INFINITY, 1.0], [1e-45, 0.0]] {
            assert_eq!(quantise(&values, &mut codes), 0.0);
            assert_eq!(codes, [0, 0]);
        }
    }
}
