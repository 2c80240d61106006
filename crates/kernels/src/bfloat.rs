//! Dot products of f32 queries with rows of bfloat16.
//!
//! A bfloat16 is the upper half of an f32, so a shift converts it. AVX512-BF16 is not used, because
//! it would round the query to eight bits too. Sums are in f32. Their order depends on the variant,
//! so variants agree within rounding and not to the bit.

use half::bf16;

use crate::cpu::{self, SimdLevel};

/// Queries that [`dot_block`] multiplies with one row before it goes to the next row.
const QUERIES_PER_PASS: usize = 4;

/// Computes the dot products of `N` consecutive queries with one row.
#[inline]
fn dots_at<const N: usize>(level: SimdLevel, queries: &[f32], row: &[bf16]) -> [f32; N] {
    assert_eq!(queries.len(), N * row.len(), "vectors of different lengths");
    match level {
        // SAFETY: the processor has AVX2 and FMA, and the lengths fit.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 | SimdLevel::Avx512 => unsafe { avx2::dot(queries, row) },
        _ => std::array::from_fn(|query| {
            scalar::dot(&queries[query * row.len()..][..row.len()], row)
        }),
    }
}

/// Computes the dot products of one query with `out.len()` consecutive rows.
fn dot_many_at(level: SimdLevel, query: &[f32], rows: &[bf16], out: &mut [f32]) {
    assert_eq!(rows.len(), query.len() * out.len(), "rows do not fill the output");
    if query.is_empty() {
        return out.fill(0.0);
    }
    for (row, out) in rows.chunks_exact(query.len()).zip(out) {
        [*out] = dots_at(level, query, row);
    }
}

/// Computes the dot products of several queries with a tile of rows: `out[q * rows + r]`. A row is
/// converted once for four queries. Panics if the lengths do not fit.
pub fn dot_block(queries: &[f32], rows: &[bf16], dims: usize, out: &mut [f32]) {
    dot_block_at(cpu::level(), queries, rows, dims, out);
}

/// Writes the inner product of each of `queries` with each of `rows` to `out[query * rows + row]`.
/// Vectors have `dims` values.
fn dot_block_at(level: SimdLevel, queries: &[f32], rows: &[bf16], dims: usize, out: &mut [f32]) {
    assert!(
        dims > 0 && queries.len().is_multiple_of(dims) && rows.len().is_multiple_of(dims),
        "not whole vectors"
    );
    let query_count = queries.len() / dims;
    let row_count = rows.len() / dims;
    assert_eq!(out.len(), query_count * row_count, "products do not fill the output");
    let whole = query_count - query_count % QUERIES_PER_PASS;
    for start in (0..whole).step_by(QUERIES_PER_PASS) {
        let queries = &queries[start * dims..(start + QUERIES_PER_PASS) * dims];
        for (row, values) in rows.chunks_exact(dims).enumerate() {
            let sums = dots_at::<QUERIES_PER_PASS>(level, queries, values);
            for (query, sum) in sums.into_iter().enumerate() {
                out[(start + query) * row_count + row] = sum;
            }
        }
    }
    for query in whole..query_count {
        let out = &mut out[query * row_count..(query + 1) * row_count];
        dot_many_at(level, &queries[query * dims..(query + 1) * dims], rows, out);
    }
}

mod scalar {
    use half::bf16;

    pub(super) fn dot(query: &[f32], row: &[bf16]) -> f32 {
        query.iter().zip(row).map(|(query, row)| query * row.to_f32()).sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use half::bf16;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2")]
    #[inline]
    fn sum(lanes: __m256) -> f32 {
        let half = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
        let quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
        _mm_cvtss_f32(_mm_add_ss(quarter, _mm_shuffle_ps(quarter, quarter, 1)))
    }

    /// Computes the dot products of `N` consecutive queries with one row.
    ///
    /// # Safety
    /// The processor has AVX2 and FMA, and `queries` holds `N` vectors of the length of `row`.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn dot<const N: usize>(queries: &[f32], row: &[bf16]) -> [f32; N] {
        let dims = row.len();
        let mut sums = [[_mm256_setzero_ps(); 2]; N];
        let mut at = 0;
        while at + 16 <= dims {
            let mut wide = [_mm256_setzero_ps(); 2];
            for (half, wide) in wide.iter_mut().enumerate() {
                // SAFETY: eight values from `at + 8 * half` are inside the row.
                let narrow = unsafe { _mm_loadu_si128(row.as_ptr().add(at + 8 * half).cast()) };
                *wide = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
            }
            for (query, sums) in sums.iter_mut().enumerate() {
                for half in 0..2 {
                    // SAFETY: eight values from there are inside the query, whose length is the
                    // row's.
                    let value = unsafe {
                        _mm256_loadu_ps(queries.as_ptr().add(query * dims + at + 8 * half))
                    };
                    sums[half] = _mm256_fmadd_ps(value, wide[half], sums[half]);
                }
            }
            at += 16;
        }
        let mut out = [0.0; N];
        for (query, out) in out.iter_mut().enumerate() {
            let rest = &queries[query * dims + at..(query + 1) * dims];
            *out = sum(_mm256_add_ps(sums[query][0], sums[query][1]))
                + super::scalar::dot(rest, &row[at..]);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(length: usize) -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec(-10f32..10.0, length)
    }

    proptest! {
        #[test]
        fn every_way_is_near_the_reference(
            (dims, queries, rows) in (1usize..100, 0usize..10, 0usize..6)
                .prop_flat_map(|(dims, queries, rows)| (Just(dims), values(dims * queries), values(dims * rows)))
        ) {
            let codes: Vec<bf16> = rows.iter().map(|&value| bf16::from_f32(value)).collect();
            let row_count = rows.len() / dims;
            for level in cpu::levels() {
                let mut block = vec![0.0; queries.len() / dims * row_count];
                dot_block_at(level, &queries, &codes, dims, &mut block);
                for (at, query) in queries.chunks_exact(dims).enumerate() {
                    let mut many = vec![0.0; row_count];
                    dot_many_at(level, query, &codes, &mut many);
                    for (row, code) in codes.chunks_exact(dims).enumerate() {
                        let naive = scalar::dot(query, code);
                        prop_assert!((block[at * row_count + row] - naive).abs() <= 1e-2);
                        prop_assert!((many[row] - naive).abs() <= 1e-2);
                    }
                }
            }
        }
    }
}
