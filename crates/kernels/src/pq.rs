//! Product quantisation with 4-bit codes: sums of table entries for 32 rows at a time.
//!
//! A vector is cut into parts. Each part has a codebook of 16 values, and its code is the index of
//! the nearest value. A cost that is a sum over parts is then a sum of table look-ups. A table of
//! 16 bytes fits the byte shuffle of the processor, which looks up 32 codes in one instruction
//! (André, Kermarrec, Le Scouarnec, "Cache locality is not enough", VLDB 2015). The block layout is
//! the published layout of the 4-bit "fast scan".
//!
//! # Layout
//! A block holds 32 rows. For every pair of parts it has 32 bytes. The low half of a byte is the
//! code of the first part, and the high half is the code of the second. Byte `2 i` belongs to row
//! `i` and byte `2 i + 1` to row `i + 16`. So the even and the odd bytes, summed as 16-bit numbers,
//! are rows in order.

use crate::cpu::{self, SimdLevel};
use crate::topk::TopK;

/// Rows of a block.
pub const BLOCK: usize = 32;
/// Values in the codebook of one part.
pub const VALUES: usize = 16;
/// Maximum parts. The sums of so many pairs, each at most 255, fit 16 bits.
const PARTS_MAX: usize = 512;
/// Largest sum of the two table entries of a pair. Rounding both adds at most one.
const PAIR_SUM: f32 = 254.0;

/// Returns the bytes of a block of `parts` parts.
pub const fn block_bytes(parts: usize) -> usize {
    parts.div_ceil(2) * BLOCK
}

/// Packs the codes of up to 32 rows (`parts` values below 16 each, row by row) into `block`.
/// Missing rows get code 0.
///
/// # Panics
/// If `block` is not [`block_bytes`] long, or if `codes` is not a whole number of at most 32 rows.
pub fn pack(codes: &[u8], parts: usize, block: &mut [u8]) {
    assert!(
        codes.len().is_multiple_of(parts) && codes.len() <= BLOCK * parts,
        "codes that are not a block"
    );
    assert_eq!(block.len(), block_bytes(parts), "a block of another size");
    block.fill(0);
    for (row, codes) in codes.chunks_exact(parts).enumerate() {
        let place = if row < BLOCK / 2 { 2 * row } else { 2 * row - BLOCK + 1 };
        for (part, code) in codes.iter().enumerate() {
            block[part / 2 * BLOCK + place] |= (code & 0xF) << (part % 2 * 4);
        }
    }
}

/// Returns the code of `row` (0 to 31) of a block for `part`.
///
/// # Panics
/// If the block has no such row or part.
fn code(block: &[u8], row: usize, part: usize) -> u8 {
    let place = if row < BLOCK / 2 { 2 * row } else { 2 * row - BLOCK + 1 };
    block[part / 2 * BLOCK + place] >> (part % 2 * 4) & 0xF
}

/// Tables of the costs of one query: a byte for each code of each part. `step` and `bias` convert a
/// sum of these bytes to a cost.
#[derive(Clone, Debug, Default)]
pub struct CostTable {
    /// 16 bytes a part, an even number of parts.
    bytes: Vec<u8>,
    /// Costs before they are rounded. Kept between queries to reuse its memory.
    costs: Vec<f32>,
    step: f32,
    bias: f32,
}

impl CostTable {
    /// Fills the tables of `query`. The cost of an encoded vector is then `factor` times its inner
    /// product with the query. A part of a vector has `part_dims` dimensions. `books` holds 16
    /// values for each dimension of each part. Dimensions that the query lacks count as zero.
    ///
    /// # Panics
    /// If `books` ends within a part, has more than 512 parts, or has fewer dimensions than the
    /// query.
    pub fn fill(&mut self, query: &[f32], books: &[f32], part_dims: usize, factor: f32) {
        let parts = books.len() / (VALUES * part_dims);
        assert!(
            parts <= PARTS_MAX && books.len() == parts * VALUES * part_dims,
            "books that are not whole"
        );
        assert!(query.len() <= parts * part_dims, "a query longer than the books");
        self.costs.clear();
        self.costs.resize(parts.next_multiple_of(2) * VALUES, 0.0);
        self.bytes.resize(self.costs.len(), 0);
        #[cfg(target_arch = "x86_64")]
        if crate::cpu::avx2() {
            // SAFETY: the processor has AVX2 and FMA.
            unsafe { wide::fill(self, query, books, part_dims, factor) };
            return;
        }
        self.fill_scalar(query, books, part_dims, factor);
    }

    /// Fills the tables as [`CostTable::fill`], without instructions of a certain processor.
    fn fill_scalar(&mut self, query: &[f32], books: &[f32], part_dims: usize, factor: f32) {
        let books = books.chunks_exact(VALUES * part_dims);
        for ((costs, book), query) in
            self.costs.chunks_exact_mut(VALUES).zip(books).zip(query.chunks(part_dims))
        {
            for (value, column) in query.iter().zip(book.chunks_exact(VALUES)) {
                for (cost, entry) in costs.iter_mut().zip(column) {
                    *cost += factor * value * entry;
                }
            }
        }
        self.bias = 0.0;
        let mut widest: f32 = 0.0;
        for pair in self.costs.chunks_exact_mut(2 * VALUES) {
            let mut width = 0.0;
            for costs in pair.chunks_exact_mut(VALUES) {
                let least = costs.iter().copied().fold(f32::INFINITY, f32::min);
                let most = costs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                costs.iter_mut().for_each(|cost| *cost -= least);
                self.bias += least;
                width += most - least;
            }
            widest = widest.max(width);
        }
        let scale = self.set_scale(widest);
        for (byte, cost) in self.bytes.iter_mut().zip(&self.costs) {
            *byte = (cost * scale).round_ties_even() as u8;
        }
    }

    /// Returns the factor from costs to bytes, from the widest pair.
    fn set_scale(&mut self, widest: f32) -> f32 {
        let scale = if widest > 0.0 { PAIR_SUM / widest } else { 0.0 };
        // If the range is so small or so large that its scale is not finite, all rows cost the
        // same.
        let scale = if scale.is_finite() { scale } else { 0.0 };
        self.step = if scale > 0.0 { scale.recip() } else { 0.0 };
        scale
    }
}

/// Scans blocks of codes. The cost of a row is `base` plus its term plus its looked-up sum. A row
/// whose cost is at most `top`'s threshold and that `accept` returns true for is pushed with
/// `first_row` plus its index. Rows with an infinite term are skipped.
///
/// # Panics
/// If `codes` and `terms` are not the same number of whole blocks for this table.
#[inline]
pub fn scan(
    table: &CostTable,
    codes: &[u8],
    terms: &[f32],
    base: f32,
    first_row: u32,
    top: &mut TopK,
    accept: impl Fn(u32) -> bool,
) {
    let bytes = table.bytes.len() / VALUES / 2 * BLOCK;
    assert!(terms.len().is_multiple_of(BLOCK), "terms that are not blocks");
    assert_eq!(codes.len(), terms.len() / BLOCK * bytes, "codes that do not fit their terms");
    scan_at(cpu::level(), table, PqBlocks { codes, terms, base, first_row }, top, accept);
}

/// Whole blocks of codes with their terms.
#[derive(Clone, Copy)]
struct PqBlocks<'a> {
    codes: &'a [u8],
    terms: &'a [f32],
    /// Added to the cost of every row.
    base: f32,
    /// Number of the first row of the first block.
    first_row: u32,
}

/// Scans as [`scan`] does, after its checks of sizes.
#[inline]
fn scan_at(
    level: SimdLevel,
    table: &CostTable,
    blocks: PqBlocks<'_>,
    top: &mut TopK,
    accept: impl Fn(u32) -> bool,
) {
    match level {
        // SAFETY: the processor has AVX2 and FMA; the sizes fit.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 | SimdLevel::Avx512 => unsafe { wide::scan(table, blocks, top, accept) },
        _ => scan_scalar(table, blocks, top, accept),
    }
}

/// Scans `blocks` as [`scan`] does, without SIMD.
fn scan_scalar(
    table: &CostTable,
    blocks: PqBlocks<'_>,
    top: &mut TopK,
    accept: impl Fn(u32) -> bool,
) {
    let PqBlocks { codes, terms, base, first_row } = blocks;
    let parts = table.bytes.len() / VALUES;
    for (number, (block, terms)) in
        codes.chunks_exact(block_bytes(parts)).zip(terms.chunks_exact(BLOCK)).enumerate()
    {
        for (place, term) in terms.iter().enumerate() {
            let sum: u32 = (0..parts)
                .map(|part| {
                    u32::from(table.bytes[part * VALUES + usize::from(code(block, place, part))])
                })
                .sum();
            let cost = table.step.mul_add(sum as f32, base + table.bias + term);
            let row = first_row.wrapping_add((number * BLOCK + place) as u32);
            if cost <= top.threshold() && accept(row) {
                top.push(cost, row);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::*;

    use super::{BLOCK, CostTable, PqBlocks, VALUES};
    use crate::topk::TopK;

    #[target_feature(enable = "avx2,fma")]
    fn least(values: __m256) -> f32 {
        let halves = _mm_min_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps::<1>(values));
        let pairs = _mm_min_ps(halves, _mm_movehl_ps(halves, halves));
        _mm_cvtss_f32(_mm_min_ss(pairs, _mm_movehdup_ps(pairs)))
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn fill(
        table: &mut CostTable,
        query: &[f32],
        books: &[f32],
        part_dims: usize,
        factor: f32,
    ) {
        let mut bias = 0.0;
        let mut widest: f32 = 0.0;
        let mut books = books.chunks_exact(VALUES * part_dims);
        let mut query = query.chunks(part_dims);
        for pair in table.costs.chunks_exact_mut(2 * VALUES) {
            let mut width = 0.0;
            for costs in pair.chunks_exact_mut(VALUES) {
                let (mut low, mut high) = (_mm256_setzero_ps(), _mm256_setzero_ps());
                let book = books.next().unwrap_or(&[]);
                let values = query.next().unwrap_or(&[]);
                for (value, column) in values.iter().zip(book.as_chunks::<VALUES>().0) {
                    let value = _mm256_set1_ps(factor * value);
                    // SAFETY: a column has 16 values, two registers.
                    unsafe {
                        low = _mm256_fmadd_ps(value, _mm256_loadu_ps(column.as_ptr()), low);
                        high =
                            _mm256_fmadd_ps(value, _mm256_loadu_ps(column.as_ptr().add(8)), high);
                    }
                }
                let bottom = least(_mm256_min_ps(low, high));
                let negated = _mm256_sub_ps(_mm256_setzero_ps(), _mm256_max_ps(low, high));
                width += -least(negated) - bottom;
                bias += bottom;
                let bottom = _mm256_set1_ps(bottom);
                // SAFETY: the costs of a part are 16 values, two registers.
                unsafe {
                    _mm256_storeu_ps(costs.as_mut_ptr(), _mm256_sub_ps(low, bottom));
                    _mm256_storeu_ps(costs.as_mut_ptr().add(8), _mm256_sub_ps(high, bottom));
                }
            }
            widest = if width > widest { width } else { widest };
        }
        table.bias = bias;
        let scale = _mm256_set1_ps(table.set_scale(widest));
        for (bytes, costs) in
            table.bytes.chunks_exact_mut(VALUES).zip(table.costs.chunks_exact(VALUES))
        {
            // SAFETY: 16 values are read as two registers, 16 bytes written as one of half the
            // width.
            unsafe {
                let low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(costs.as_ptr()), scale));
                let high = _mm256_cvtps_epi32(_mm256_mul_ps(
                    _mm256_loadu_ps(costs.as_ptr().add(8)),
                    scale,
                ));
                let words =
                    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
                let packed = _mm_packus_epi16(
                    _mm256_castsi256_si128(words),
                    _mm256_extracti128_si256::<1>(words),
                );
                _mm_storeu_si128(bytes.as_mut_ptr().cast(), packed);
            }
        }
    }

    /// Returns the sums of the 32 rows of each of `N` blocks: rows 0 to 15 and rows 16 to 31,
    /// sixteen bits each. Two blocks at a time load each table once.
    ///
    /// # Safety
    /// From `first` on there must be `N` blocks with 32 bytes for every 32 bytes of `tables`.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    unsafe fn sums<const N: usize>(first: *const u8, tables: &[u8]) -> [[__m256i; 2]; N] {
        let nibble = _mm256_set1_epi8(0xF);
        let block_bytes = tables.len();
        let mut all = [_mm256_setzero_si256(); N];
        let mut odd = [_mm256_setzero_si256(); N];
        let mut step = |at: usize| {
            // SAFETY: two tables are 32 bytes from `at` on, and so are a block's codes for this
            // pair, by the caller's promise.
            unsafe {
                let low_table =
                    _mm256_broadcastsi128_si256(_mm_loadu_si128(tables.as_ptr().add(at).cast()));
                let high_table = _mm256_broadcastsi128_si256(_mm_loadu_si128(
                    tables.as_ptr().add(at + VALUES).cast(),
                ));
                for block in 0..N {
                    let codes = _mm256_loadu_si256(first.add(block * block_bytes + at).cast());
                    let low = _mm256_shuffle_epi8(low_table, _mm256_and_si256(codes, nibble));
                    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble);
                    // Entries of a pair are scaled so that their sum fits a byte.
                    let sum = _mm256_add_epi8(low, _mm256_shuffle_epi8(high_table, high));
                    all[block] = _mm256_add_epi16(all[block], sum);
                    odd[block] = _mm256_add_epi16(odd[block], _mm256_srli_epi16::<8>(sum));
                }
            }
        };
        let mut at = 0;
        while at + 2 * BLOCK <= block_bytes {
            step(at);
            step(at + BLOCK);
            at += 2 * BLOCK;
        }
        if at < block_bytes {
            step(at);
        }
        // `all` counted the odd bytes 256-fold on top of the even ones; their share is
        // subtracted again.
        std::array::from_fn(|block| {
            [_mm256_sub_epi16(all[block], _mm256_slli_epi16::<8>(odd[block])), odd[block]]
        })
    }

    /// Returns a mask of the 32 rows of a block that cost at most the threshold, and the costs.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn below(
        [early, late]: [__m256i; 2],
        terms: &[f32; BLOCK],
        base: __m256,
        step: __m256,
        threshold: f32,
        costs: &mut [f32; BLOCK],
    ) -> u32 {
        let threshold = _mm256_set1_ps(threshold);
        let quarters = [
            _mm256_castsi256_si128(early),
            _mm256_extracti128_si256::<1>(early),
            _mm256_castsi256_si128(late),
            _mm256_extracti128_si256::<1>(late),
        ];
        let mut mask = 0;
        for (quarter, sums) in quarters.into_iter().enumerate() {
            let sums = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(sums));
            // SAFETY: a quarter of 32 terms, or of 32 costs, is one register.
            let cost = unsafe {
                let term = _mm256_loadu_ps(terms.as_ptr().add(8 * quarter));
                let cost = _mm256_fmadd_ps(step, sums, _mm256_add_ps(base, term));
                _mm256_storeu_ps(costs.as_mut_ptr().add(8 * quarter), cost);
                cost
            };
            mask |= (_mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LE_OQ>(cost, threshold)) as u32)
                << (8 * quarter);
        }
        mask
    }

    /// # Safety
    /// There must be a block of codes for this table for every 32 terms.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn scan(
        table: &CostTable,
        blocks: PqBlocks<'_>,
        top: &mut TopK,
        accept: impl Fn(u32) -> bool,
    ) {
        let PqBlocks { codes, terms, base, first_row } = blocks;
        let block_bytes = table.bytes.len();
        let base = _mm256_set1_ps(base + table.bias);
        let step = _mm256_set1_ps(table.step);
        let mut costs = [0.0_f32; BLOCK];
        let mut keep = |sums: [__m256i; 2], terms: &[f32; BLOCK], first_row: u32| {
            let mut mask = below(sums, terms, base, step, top.threshold(), &mut costs);
            while mask != 0 {
                let place = mask.trailing_zeros();
                mask &= mask - 1;
                let row = first_row.wrapping_add(place);
                if accept(row) {
                    top.push(costs[place as usize], row);
                }
            }
        };
        let (pairs, rest) = terms.as_chunks::<BLOCK>().0.as_chunks::<2>();
        let mut row = first_row;
        let mut block = codes.as_ptr();
        for [first, second] in pairs {
            // SAFETY: there is a block for every 32 terms, by the caller's promise.
            let [early, late] = unsafe { sums::<2>(block, &table.bytes) };
            keep(early, first, row);
            keep(late, second, row.wrapping_add(BLOCK as u32));
            row = row.wrapping_add(2 * BLOCK as u32);
            // SAFETY: two blocks more, at most the end of `codes`.
            block = unsafe { block.add(2 * block_bytes) };
        }
        for last in rest {
            // SAFETY: the last block, if their number is odd.
            let [sums] = unsafe { sums::<1>(block, &table.bytes) };
            keep(sums, last, row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn noise(seed: u32, at: usize) -> f32 {
        let mixed = (at as u32 ^ seed).wrapping_mul(2_654_435_761);
        ((mixed ^ mixed >> 15).wrapping_mul(2_246_822_519) >> 8) as f32 / (1 << 24) as f32 - 0.5
    }

    /// Returns the largest error of a looked-up sum: half a step for every part.
    fn error_max(table: &CostTable) -> f32 {
        table.step * 0.5 * (table.bytes.len() / VALUES) as f32
    }

    proptest! {
        #[test]
        fn codes_survive_packing(parts in 1_usize..9, rows in 0_usize..=BLOCK, seed in any::<u32>()) {
            let codes: Vec<u8> = (0..rows * parts).map(|at| (noise(seed, at).to_bits() >> 7) as u8 & 0xF).collect();
            let mut block = vec![0xAA; block_bytes(parts)];
            pack(&codes, parts, &mut block);
            for (row, codes) in codes.chunks_exact(parts).enumerate() {
                for (part, expected) in codes.iter().enumerate() {
                    prop_assert_eq!(code(&block, row, part), *expected);
                }
            }
        }

        #[test]
        fn every_variant_is_near_the_true_costs(
            parts in 1_usize..70, part_dims in 1_usize..4, blocks in 0_usize..4, k in 1_usize..40,
            large in any::<bool>(), seed in any::<u32>(),
        ) {
            let scale = if large { 1e6 } else { 1.0 };
            let dims = (parts * part_dims).saturating_sub(1).max(1);
            let query: Vec<f32> = (0..dims).map(|at| scale * noise(seed, at)).collect();
            let books: Vec<f32> = (0..parts * part_dims * VALUES).map(|at| noise(seed, at + 9000)).collect();
            let codes: Vec<u8> =
                (0..blocks * block_bytes(parts)).map(|at| (noise(seed, at + 70_000) * 4e4) as i32 as u8).collect();
            let mut terms: Vec<f32> = (0..blocks * BLOCK).map(|at| scale * noise(seed, at + 5_000)).collect();
            terms.iter_mut().skip(7).step_by(11).for_each(|term| *term = f32::INFINITY);
            let mut chosen = CostTable::default();
            chosen.fill(&query, &books, part_dims, -2.0);
            let mut scalar = chosen.clone();
            scalar.costs.fill(0.0);
            scalar.fill_scalar(&query, &books, part_dims, -2.0);
            let accept = |row: u32| row % 3 != 1;
            let all = PqBlocks { codes: &codes, terms: &terms, base: 3.0, first_row: 100 };
            let mut reference = TopK::new(k);
            scan_scalar(&chosen, all, &mut reference, accept);
            let reference: Vec<_> = reference.sorted().collect();
            for level in cpu::levels() {
                let mut top = TopK::new(k);
                scan_at(level, &chosen, all, &mut top, accept);
                prop_assert_eq!(&top.sorted().collect::<Vec<_>>(), &reference);
            }
            let (ours, theirs) = (error_max(&chosen), error_max(&scalar));
            prop_assert!((ours - theirs).abs() <= 1e-3 * theirs.max(1e-30));
            let mut all = TopK::new(blocks * BLOCK + 1);
            scan(&chosen, &codes, &terms, 3.0, 0, &mut all, |_| true);
            for (cost, row) in all.sorted() {
                let row = row as usize;
                let block = &codes[row / BLOCK * block_bytes(parts)..][..block_bytes(parts)];
                let product: f32 = query.iter().enumerate().map(|(at, value)| {
                    let code = usize::from(code(block, row % BLOCK, at / part_dims));
                    value * books[at * VALUES + code]
                }).sum();
                let error = (cost - (3.0 + terms[row] - 2.0 * product)).abs();
                prop_assert!(error <= error_max(&chosen) * 1.01 + 1e-3 * scale, "{error}");
            }
        }
    }

    #[test]
    fn the_longest_sums_do_not_overflow() {
        // Every pair has its maximum cost, so the sums reach their largest value.
        let books: Vec<f32> =
            (0..PARTS_MAX * VALUES).map(|at| (at % VALUES) as f32 / 15.0).collect();
        let mut table = CostTable::default();
        table.fill(&[1.0; PARTS_MAX], &books, 1, 1.0);
        let codes = vec![0xFF; block_bytes(PARTS_MAX)];
        let codes = codes.repeat(3);
        let blocks = PqBlocks { codes: &codes, terms: &[0.0; 3 * BLOCK], base: 0.0, first_row: 0 };
        for level in cpu::levels() {
            let mut top = TopK::new(3 * BLOCK);
            scan_at(level, &table, blocks, &mut top, |_| true);
            let costs: Vec<f32> = top.sorted().map(|(cost, _)| cost).collect();
            assert_eq!(costs.len(), 3 * BLOCK);
            assert!(costs.iter().all(|cost| (cost - PARTS_MAX as f32).abs() < 1.0), "{costs:?}");
        }
    }

    #[test]
    fn a_query_of_zeros_costs_nothing() {
        let mut table = CostTable::default();
        table.fill(&[0.0; 4], &[0.5; 4 * VALUES], 1, -2.0);
        let mut top = TopK::new(2);
        scan(&table, &[0x37; 2 * BLOCK], &[1.0; BLOCK], 0.0, 5, &mut top, |_| true);
        assert_eq!(top.sorted().collect::<Vec<_>>(), [(1.0, 5), (1.0, 6)]);
    }
}
