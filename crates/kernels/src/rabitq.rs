//! Scans of the binary and four-bit codes of `RaBitQ` (J. Gao, C. Long, "RaBitQ: Quantizing
//! High-Dimensional Vectors with a Theoretical Error Bound for Approximate Nearest Neighbor
//! Search", SIGMOD 2024, and its extension of 2025).
//!
//! Binary codes lie in blocks of 32 vectors. Four bits of a code choose one of sixteen sums of
//! query values. A register holds these sums, so one shuffle looks up 32 of them. A sum has six
//! bits, so four of them fit into a byte. The conversion to 16 bits is the most expensive step of
//! such scans, and is done once for four look-ups. A block also has three factors for each vector,
//! from which [`scan`] computes lower bounds of distances. The `search` crate computes and explains
//! these factors.

use crate::cpu::{self, SimdLevel};

/// Vectors of a block.
pub const BLOCK: usize = 32;
/// Divisor of the number of dimensions.
pub const DIMS_STEP: usize = 64;
/// Maximum dimensions: sums of look-ups have 16 bits.
pub const DIMS_MAX: usize = 4096;
/// Largest entry of a look-up table.
const ENTRY_MAX: f32 = 63.0;
/// Smallest sum of four absolute values that the step of a table is made for. The reciprocal of a
/// smaller step could be infinite.
const REACH_MIN: f32 = 1e-36;
/// Factors of a block: `add`, `scale` and `error`, 32 of each.
pub const FACTORS: usize = 3 * BLOCK;
const _: () = assert!(DIMS_MAX / 4 * 63 <= u16::MAX as usize);

/// Returns the bytes of the codes of a block of vectors with `dims` dimensions.
pub const fn block_bytes(dims: usize) -> usize {
    dims / 8 * BLOCK
}

/// Writes the signs of `vector` to `slot` (0 to 31) of a block. The bits of the slot must be zero.
pub fn pack_signs(vector: &[f32], slot: usize, block: &mut [u8]) {
    assert!(
        slot < BLOCK && block.len() == block_bytes(vector.len()),
        "a block of other dimensions"
    );
    for (group, values) in vector.as_chunks::<4>().0.iter().enumerate() {
        let bits = (0..4).fold(0u8, |bits, at| bits | (u8::from(values[at] >= 0.0) << at));
        block[group * 16 + slot % 16] |= if slot < 16 { bits } else { bits << 4 };
    }
}

/// The look-up table of a query. It has sixteen entries for each four dimensions. The factors
/// convert a sum of entries to the product of the query with the signs (each +1 or -1) of a vector.
#[derive(Clone, Debug, Default)]
pub struct SignTable {
    entries: Vec<u8>,
    step: f32,
    total: f32,
}

impl SignTable {
    /// Fills the table for a rotated query. Panics if the dimensions are not a multiple of
    /// [`DIMS_STEP`], or are over [`DIMS_MAX`].
    pub fn fill(&mut self, query: &[f32]) {
        assert!(
            query.len().is_multiple_of(DIMS_STEP) && query.len() <= DIMS_MAX,
            "unsuitable dimensions"
        );
        let groups = query.as_chunks::<4>().0;
        let reach = |group: &[f32; 4]| group.iter().map(|value| value.abs()).sum::<f32>();
        let largest = groups.iter().map(reach).fold(REACH_MIN, f32::max);
        self.step = 2.0 * largest / ENTRY_MAX;
        self.total = groups.iter().map(reach).sum();
        self.entries.clear();
        let inverse = 1.0 / self.step;
        for group in groups {
            let middle = reach(group);
            self.entries.extend((0..16u8).map(|bits| {
                let sign = |at: usize| if bits >> at & 1 == 1 { group[at] } else { -group[at] };
                // A half is added because the conversion rounds down.
                ((sign(0) + sign(1) + sign(2) + sign(3) + middle) * inverse + 0.5) as u8
            }));
        }
    }

    /// Returns the value of one unit of a sum.
    pub fn step(&self) -> f32 {
        self.step
    }

    /// Returns the value that is subtracted from a sum at the end: `product = step * sum - total`.
    pub fn total(&self) -> f32 {
        self.total
    }
}

/// Conversion of sums to lower bounds, for one query and one cluster. With
/// `product = step * sum - total`, the bound is `offset + add + scale * product - radius * error`.
#[derive(Clone, Copy, Debug)]
pub struct BoundGate {
    /// Added to every bound.
    pub offset: f32,
    /// Multiplies the `error` of every vector.
    pub radius: f32,
    /// Vectors whose bound is below this pass.
    pub limit: f32,
}

/// Scans one block. Writes the lower bounds of its vectors, and returns a mask of the bounds below
/// the gate's limit (bit `i` for vector `i`). Panics if the lengths do not fit.
pub fn scan(
    table: &SignTable,
    codes: &[u8],
    factors: &[f32; FACTORS],
    gate: &BoundGate,
    bounds: &mut [f32; BLOCK],
) -> u32 {
    scan_at(cpu::level(), table, codes, factors, gate, bounds)
}

/// Writes the lower bounds of the costs of one block to `bounds`. Returns a mask with a bit for
/// each row that passes `gate`.
#[inline]
fn scan_at(
    level: SimdLevel,
    table: &SignTable,
    codes: &[u8],
    factors: &[f32; FACTORS],
    gate: &BoundGate,
    bounds: &mut [f32; BLOCK],
) -> u32 {
    assert_eq!(table.entries.len(), codes.len(), "a block of other dimensions");
    match level {
        // SAFETY: the processor has AVX2 and FMA, and the lengths fit.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 | SimdLevel::Avx512 => unsafe {
            avx2::scan(table, codes, factors, gate, bounds)
        },
        _ => scalar::scan(table, codes, factors, gate, bounds),
    }
}

/// Returns the bytes of the four-bit code of a vector with `dims` dimensions.
pub const fn nibble_bytes(dims: usize) -> usize {
    dims / 2
}

/// Writes values of 0 to 15 as a four-bit code. In each 32 bytes, the lower halves are 32
/// dimensions and the upper halves are the next 32.
pub fn pack_nibbles(values: &[u8], code: &mut [u8]) {
    assert!(
        values.len().is_multiple_of(DIMS_STEP) && code.len() == nibble_bytes(values.len()),
        "unsuitable dimensions"
    );
    for (values, code) in values.chunks_exact(64).zip(code.chunks_exact_mut(32)) {
        for at in 0..32 {
            code[at] = values[at] & 15 | values[at + 32] << 4;
        }
    }
}

/// Returns the product of a four-bit code and an 8-bit query (codes of [`crate::integer`]). Panics
/// if the lengths do not fit.
pub fn nibble_dot(code: &[u8], query: &[i8]) -> i32 {
    nibble_dot_at(cpu::level(), code, query)
}

/// Returns the inner product of a code of 4 bits a dimension and a query, with the instructions of
/// `level`.
#[inline]
fn nibble_dot_at(level: SimdLevel, code: &[u8], query: &[i8]) -> i32 {
    assert!(
        query.len().is_multiple_of(DIMS_STEP) && code.len() * 2 == query.len(),
        "unsuitable dimensions"
    );
    match level {
        // SAFETY: the processor has AVX-512 with VNNI.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 => unsafe { avx512::nibble_dot(code, query) },
        // SAFETY: the processor has AVX2, and the lengths fit.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => unsafe { avx2::nibble_dot(code, query) },
        _ => scalar::nibble_dot(code, query),
    }
}

mod scalar {
    use super::{BLOCK, BoundGate, FACTORS, SignTable};

    pub(super) fn sums(table: &SignTable, codes: &[u8]) -> [u16; BLOCK] {
        let mut sums = [0; BLOCK];
        for (entries, codes) in table.entries.chunks_exact(16).zip(codes.chunks_exact(16)) {
            for (at, code) in codes.iter().enumerate() {
                sums[at] += u16::from(entries[usize::from(code & 15)]);
                sums[at + 16] += u16::from(entries[usize::from(code >> 4)]);
            }
        }
        sums
    }

    pub(super) fn scan(
        table: &SignTable,
        codes: &[u8],
        factors: &[f32; FACTORS],
        gate: &BoundGate,
        bounds: &mut [f32; BLOCK],
    ) -> u32 {
        let mut passed = 0;
        for (at, sum) in sums(table, codes).into_iter().enumerate() {
            let product = table.step * f32::from(sum) - table.total;
            let estimate = gate.offset + factors[at] + factors[BLOCK + at] * product;
            bounds[at] = estimate - gate.radius * factors[2 * BLOCK + at];
            passed |= u32::from(bounds[at] < gate.limit) << at;
        }
        passed
    }

    pub(super) fn nibble_dot(code: &[u8], query: &[i8]) -> i32 {
        let chunks = code.chunks_exact(32).zip(query.chunks_exact(64));
        let product = |value: u8, query: i8| i32::from(value) * i32::from(query);
        chunks
            .flat_map(|(code, query)| {
                (0..32).map(move |at| {
                    product(code[at] & 15, query[at]) + product(code[at] >> 4, query[at + 32])
                })
            })
            .sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{BLOCK, BoundGate, FACTORS, SignTable};
    use std::arch::x86_64::*;

    /// Look-ups whose sum fits into a byte.
    const LOOKUPS_PER_BYTE: usize = 4;

    /// Returns the sums of look-ups of vectors 0 to 7, 8 to 15, 16 to 23 and 24 to 31.
    ///
    /// # Safety
    /// The processor has AVX2, and the table has as many entries as the block has bytes, a multiple
    /// of 128.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn sums(entries: &[u8], codes: &[u8]) -> [__m128i; 4] {
        let low = _mm256_set1_epi8(15);
        let mask = _mm256_set1_epi16(255);
        // The even and the odd vectors of the lower and of the upper halves.
        let mut wide = [_mm256_setzero_si256(); 4];
        for start in (0..codes.len() / 32).step_by(LOOKUPS_PER_BYTE) {
            let (mut first, mut second) = (_mm256_setzero_si256(), _mm256_setzero_si256());
            for pair in start..start + LOOKUPS_PER_BYTE {
                // SAFETY: a pair of groups has 32 bytes of codes and 32 entries, and the lengths
                // fit.
                let (code, table) = unsafe {
                    (
                        _mm256_loadu_si256(codes.as_ptr().add(pair * 32).cast()),
                        _mm256_loadu_si256(entries.as_ptr().add(pair * 32).cast()),
                    )
                };
                let upper = _mm256_and_si256(_mm256_srli_epi16(code, 4), low);
                first =
                    _mm256_add_epi8(first, _mm256_shuffle_epi8(table, _mm256_and_si256(code, low)));
                second = _mm256_add_epi8(second, _mm256_shuffle_epi8(table, upper));
            }
            wide[0] = _mm256_add_epi16(wide[0], _mm256_and_si256(first, mask));
            wide[1] = _mm256_add_epi16(wide[1], _mm256_srli_epi16(first, 8));
            wide[2] = _mm256_add_epi16(wide[2], _mm256_and_si256(second, mask));
            wide[3] = _mm256_add_epi16(wide[3], _mm256_srli_epi16(second, 8));
        }
        fold(wide)
    }

    /// Adds the two lanes of each of `wide`, which hold two groups of look-ups. `wide` has the even
    /// and the odd vectors 0 to 15, and then those of 16 to 31. Returns the sums in the order of
    /// vectors.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn fold(wide: [__m256i; 4]) -> [__m128i; 4] {
        let folded = wide.map(|sum| {
            _mm_add_epi16(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1))
        });
        [
            _mm_unpacklo_epi16(folded[0], folded[1]),
            _mm_unpackhi_epi16(folded[0], folded[1]),
            _mm_unpacklo_epi16(folded[2], folded[3]),
            _mm_unpackhi_epi16(folded[2], folded[3]),
        ]
    }

    /// # Safety
    /// The table has as many entries as the block has bytes, a multiple of 128.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn scan(
        table: &SignTable,
        codes: &[u8],
        factors: &[f32; FACTORS],
        gate: &BoundGate,
        bounds: &mut [f32; BLOCK],
    ) -> u32 {
        let step = _mm256_set1_ps(table.step);
        let total = _mm256_set1_ps(table.total);
        let offset = _mm256_set1_ps(gate.offset);
        let radius = _mm256_set1_ps(gate.radius);
        let limit = _mm256_set1_ps(gate.limit);
        let mut passed = 0;
        // SAFETY: the caller's promise.
        let sums = unsafe { sums(&table.entries, codes) };
        for (part, sums) in sums.into_iter().enumerate() {
            let sums = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(sums));
            let product = _mm256_fmsub_ps(sums, step, total);
            // SAFETY: eight values from `8 * part` are inside each of the three arrays of 32.
            let (add, scale, error) = unsafe {
                let start = factors.as_ptr().add(8 * part);
                (
                    _mm256_loadu_ps(start),
                    _mm256_loadu_ps(start.add(BLOCK)),
                    _mm256_loadu_ps(start.add(2 * BLOCK)),
                )
            };
            let estimate = _mm256_fmadd_ps(scale, product, _mm256_add_ps(offset, add));
            let bound = _mm256_fnmadd_ps(radius, error, estimate);
            // SAFETY: eight values from `8 * part` are inside the output.
            unsafe { _mm256_storeu_ps(bounds.as_mut_ptr().add(8 * part), bound) };
            let below = _mm256_movemask_ps(_mm256_cmp_ps(bound, limit, _CMP_LT_OQ));
            passed |= (below as u32) << (8 * part);
        }
        passed
    }

    /// # Safety
    /// The processor has AVX2. The query has twice the code's length, a multiple of 64.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn nibble_dot(code: &[u8], query: &[i8]) -> i32 {
        // A product of pairs is at most 2 * 15 * 127, so eight of them fit into 16 bits.
        const STEPS: usize = 8;
        let low = _mm256_set1_epi8(15);
        let mut total = _mm256_setzero_si256();
        let steps = code.len() / 32;
        let mut at = 0;
        while at < steps {
            let (mut first, mut second) = (_mm256_setzero_si256(), _mm256_setzero_si256());
            let end = steps.min(at + STEPS);
            while at < end {
                // SAFETY: step `at` has 32 bytes of code and 64 of the query.
                let (values, one, other) = unsafe {
                    (
                        _mm256_loadu_si256(code.as_ptr().add(at * 32).cast()),
                        _mm256_loadu_si256(query.as_ptr().add(at * 64).cast()),
                        _mm256_loadu_si256(query.as_ptr().add(at * 64 + 32).cast()),
                    )
                };
                let upper = _mm256_and_si256(_mm256_srli_epi16(values, 4), low);
                first = _mm256_add_epi16(
                    first,
                    _mm256_maddubs_epi16(_mm256_and_si256(values, low), one),
                );
                second = _mm256_add_epi16(second, _mm256_maddubs_epi16(upper, other));
                at += 1;
            }
            let ones = _mm256_set1_epi16(1);
            let pairs =
                _mm256_add_epi32(_mm256_madd_epi16(first, ones), _mm256_madd_epi16(second, ones));
            total = _mm256_add_epi32(total, pairs);
        }
        let half = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
        let quarter = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0b01_00_11_10));
        _mm_cvtsi128_si32(_mm_add_epi32(quarter, _mm_shuffle_epi32(quarter, 0b10_11_00_01)))
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    /// Returns the dot product of the half bytes of `code` with `query`. The length of `query` is
    /// twice that of `code` and a multiple of 64.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) fn nibble_dot(code: &[u8], query: &[i8]) -> i32 {
        let low = _mm256_set1_epi8(15);
        let mut sum = _mm512_setzero_si512();
        for (code, query) in code.as_chunks::<32>().0.iter().zip(query.as_chunks::<64>().0) {
            // SAFETY: arrays of 32 and of 64 bytes are one register each.
            let (code, query) = unsafe {
                (
                    _mm256_loadu_si256(code.as_ptr().cast()),
                    _mm512_loadu_si512(query.as_ptr().cast()),
                )
            };
            let lower = _mm256_and_si256(code, low);
            let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(code), low);
            let values = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(lower), upper);
            sum = _mm512_dpbusd_epi32(sum, values, query);
        }
        _mm512_reduce_add_epi32(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vectors(count: usize) -> impl Strategy<Value = Vec<Vec<f32>>> {
        (1usize..6).prop_flat_map(move |steps| {
            prop::collection::vec(prop::collection::vec(-1f32..1.0, steps * DIMS_STEP), count)
        })
    }

    fn signed(query: &[f32], vector: &[f32]) -> f32 {
        query
            .iter()
            .zip(vector)
            .map(|(query, value)| if *value >= 0.0 { *query } else { -query })
            .sum()
    }

    proptest! {
        #[test]
        fn a_scan_bounds_the_products(vectors in vectors(BLOCK + 1), factor in -1f32..1.0, limit in -5f32..5.0) {
            let (query, rows) = vectors.split_last().unwrap();
            let mut block = vec![0; block_bytes(query.len())];
            rows.iter().enumerate().for_each(|(slot, row)| pack_signs(row, slot, &mut block));
            let mut table = SignTable::default();
            table.fill(query);
            let factors: [f32; FACTORS] = std::array::from_fn(|at| factor * (at % 7) as f32);
            let gate = BoundGate { offset: factor, radius: 0.5, limit };
            let mut expected = [0.0; BLOCK];
            scalar::scan(&table, &block, &factors, &gate, &mut expected);
            for level in cpu::levels() {
                let mut bounds = [0.0; BLOCK];
                let passed = scan_at(level, &table, &block, &factors, &gate, &mut bounds);
                for at in 0..BLOCK {
                    prop_assert!((bounds[at] - expected[at]).abs() < 1e-2);
                    prop_assert_eq!(passed >> at & 1 == 1, bounds[at] < limit);
                }
            }
            for (at, row) in rows.iter().enumerate() {
                let product = table.step() * f32::from(scalar::sums(&table, &block)[at]) - table.total();
                // Each of the groups is rounded by half a step at most.
                let slack = table.step() * (query.len() as f32 / 8.0) + 1e-3;
                prop_assert!((product - signed(query, row)).abs() <= slack);
            }
        }

        #[test]
        fn nibbles_multiply_as_the_reference(
            pairs in (1usize..20).prop_flat_map(|steps| {
                prop::collection::vec((0u8..16, -127i8..=127), steps * DIMS_STEP)
            })
        ) {
            let (values, query): (Vec<u8>, Vec<i8>) = pairs.into_iter().unzip();
            let mut code = vec![0; nibble_bytes(values.len())];
            pack_nibbles(&values, &mut code);
            let naive: i32 = values.iter().zip(&query).map(|(&value, &query)| i32::from(value) * i32::from(query)).sum();
            for level in cpu::levels() {
                prop_assert_eq!(nibble_dot_at(level, &code, &query), naive);
            }
        }
    }

    #[test]
    fn entries_of_a_tiny_query_are_in_range() {
        for value in [0.0, f32::from_bits(1), 1e-39, 1e-38, 1e-37] {
            let query = [value; DIMS_STEP];
            let mut table = SignTable::default();
            table.fill(&query);
            assert!(table.entries.iter().all(|&entry| f32::from(entry) <= ENTRY_MAX), "{value:e}");
            let mut block = vec![0; block_bytes(DIMS_STEP)];
            (0..BLOCK).for_each(|slot| pack_signs(&query, slot, &mut block));
            for sum in scalar::sums(&table, &block) {
                let product = table.step() * f32::from(sum) - table.total();
                assert!((product - value * DIMS_STEP as f32).abs() <= 1e-36, "{value:e}");
            }
        }
    }

    #[test]
    fn the_largest_codes_do_not_overflow() {
        for extreme in [-127, 127] {
            let mut code = vec![0; nibble_bytes(DIMS_MAX)];
            pack_nibbles(&vec![15; DIMS_MAX], &mut code);
            let query = vec![extreme; DIMS_MAX];
            for level in cpu::levels() {
                assert_eq!(
                    nibble_dot_at(level, &code, &query),
                    i32::from(extreme) * 15 * DIMS_MAX as i32
                );
            }
        }
        let query = vec![1.0; DIMS_MAX];
        let mut block = vec![0; block_bytes(DIMS_MAX)];
        (0..BLOCK).for_each(|slot| pack_signs(&query, slot, &mut block));
        let mut table = SignTable::default();
        table.fill(&query);
        let gate = BoundGate { offset: 0.0, radius: 0.0, limit: 0.0 };
        let factors =
            std::array::from_fn(|at| if (BLOCK..2 * BLOCK).contains(&at) { 1.0 } else { 0.0 });
        for level in cpu::levels() {
            let mut bounds = [0.0; BLOCK];
            assert_eq!(scan_at(level, &table, &block, &factors, &gate, &mut bounds), 0);
            assert!(bounds.iter().all(|bound| (bound - DIMS_MAX as f32).abs() < 1.0));
        }
    }
}
