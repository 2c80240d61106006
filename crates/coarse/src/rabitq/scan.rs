//! Scan of lists: one-bit bounds first, then four-bit costs of the rows that pass.

use std::ops::Range;

use kernels::float;
use kernels::integer;
use kernels::rabitq::{
    BLOCK, BoundGate, FACTORS, SignTable, block_bytes, nibble_bytes, nibble_dot, scan,
};

use super::codes::{MIDDLE, RabitqCodes};
use crate::RowSet;

/// Standard deviations between a one-bit estimate and its bound. A row exactly as far away as the
/// worst row kept is lost about once in thirty times. The paper proves that 1.9 is nearly always
/// enough.
const SIGN_DEVIATIONS: f32 = 1.9;
/// Standard deviations of four-bit bounds.
pub(super) const LEVEL_DEVIATIONS: f32 = 1.9;
/// Factor of these deviations in a search that should miss no row: about four of them. A row
/// exactly as far away as the worst row kept is then lost about once in 30,000 times.
pub(super) const EXACT_ERRORS: f32 = 2.1;
/// Squared sine of the angle between a residual and its signs: 1 - 2 / pi for normally distributed
/// values.
const SIGN_SINE_SQUARED: f32 = 0.363;
/// Squared sine of the angle between a residual and its sixteen levels (J. Max, "Quantizing for
/// minimum distortion", 1960).
const LEVEL_SINE_SQUARED: f32 = 0.0115;

/// Rotated query.
#[derive(Default)]
pub(super) struct RabitqQuery {
    pub(super) rotated: Vec<f32>,
    /// Factor of all errors: 1, or [`EXACT_ERRORS`].
    pub(super) error_factor: f32,
    table: SignTable,
    bytes: Vec<i8>,
    byte_scale: f32,
    byte_middle: f32,
    /// Squared radii that the rounding of the tables adds for signs and for levels.
    sign_square: f32,
    level_square: f32,
}

/// Factors of the errors of the codes around one centre.
#[derive(Clone, Copy, Debug)]
pub(super) struct ErrorRadii {
    pub(super) signs: f32,
    pub(super) levels: f32,
}

impl RabitqQuery {
    /// Prepares the tables from `self.rotated`.
    pub(super) fn prepare(&mut self) {
        self.table.fill(&self.rotated);
        self.bytes.resize(self.rotated.len(), 0);
        self.byte_scale = integer::quantise(&self.rotated, &mut self.bytes);
        self.byte_middle =
            MIDDLE * self.bytes.iter().map(|byte| i32::from(*byte)).sum::<i32>() as f32;
        let dims = self.rotated.len().max(2) as f32;
        // Variance of the rounding error of one value: a table rounds sums of four values.
        let sign_variance = self.table.step() * self.table.step() / 48.0;
        let level_variance = self.byte_scale * self.byte_scale / 12.0;
        self.sign_square = sign_variance * (dims - 1.0) / SIGN_SINE_SQUARED;
        self.level_square = level_variance * (dims - 1.0) / LEVEL_SINE_SQUARED;
    }

    /// Returns the factors of the errors of the codes around a centre with the squared distance
    /// `square`: this distance, and the rounding of the query. The latter depends on the length of
    /// the whole query, so it decides if rows lie close together.
    pub(super) fn radii(&self, square: f32) -> ErrorRadii {
        let radius = |rounding: f32| (square + rounding).sqrt() * self.error_factor;
        ErrorRadii { signs: radius(self.sign_square), levels: radius(self.level_square) }
    }
}

/// Row and its cost by four bits.
#[derive(Clone, Copy, Debug)]
pub struct RabitqCandidate {
    pub(super) cost: f32,
    /// Lower bound of the cost, rarely exceeded.
    pub(super) bound: f32,
    pub(super) row: u32,
}

/// Smallest costs seen, ascending: few enough for insertion to be faster than a heap, and the limit
/// falls at once.
#[derive(Default)]
pub(super) struct Smallest {
    wanted: usize,
    costs: Vec<f32>,
}

impl Smallest {
    pub(super) fn reset(&mut self, wanted: usize) {
        self.wanted = wanted;
        self.costs.clear();
    }

    /// Returns the largest cost kept; infinite while there are too few.
    #[inline]
    pub(super) fn limit(&self) -> f32 {
        if self.costs.len() < self.wanted {
            f32::INFINITY
        } else {
            self.costs.last().copied().unwrap_or(f32::INFINITY)
        }
    }

    /// Keeps a cost if it is one of the smallest.
    #[inline]
    pub(super) fn push(&mut self, cost: f32) {
        if self.costs.len() == self.wanted {
            if cost >= self.limit() {
                return;
            }
            self.costs.pop();
        }
        let place = self.costs.partition_point(|other| *other <= cost);
        self.costs.insert(place, cost);
    }
}

/// List prepared for a query.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScannedList {
    pub(super) first_row: u32,
    /// Row after the last.
    pub(super) end_row: u32,
    pub(super) first_block: usize,
    /// Addition to the cost of every row.
    pub(super) offset: f32,
    /// Factors of the errors of costs.
    pub(super) radii: ErrorRadii,
}

impl ScannedList {
    /// Returns the number of its blocks.
    pub(super) fn blocks(&self) -> usize {
        ((self.end_row - self.first_row) as usize).div_ceil(BLOCK)
    }

    fn gate(&self, limit: f32) -> BoundGate {
        BoundGate { offset: self.offset, radius: SIGN_DEVIATIONS * self.radii.signs, limit }
    }
}

/// Results of a scan.
#[derive(Default)]
pub(super) struct RabitqScan {
    pub(super) smallest: Smallest,
    pub(super) candidates: Vec<RabitqCandidate>,
    /// Rows that passed their one-bit bounds and wait for their four-bit codes to be prefetched.
    waiting: Vec<(u32, f32)>,
    /// Number of rows compared by four bits.
    pub(super) compared: u64,
}

impl RabitqScan {
    pub(super) fn reset(&mut self, wanted: usize) {
        self.smallest.reset(wanted);
        self.candidates.clear();
        self.waiting.clear();
        self.compared = 0;
    }

    /// Scans a list. Skips rows that are not allowed, and blocks without an allowed row.
    pub(super) fn scan_list(
        &mut self,
        codes: &RabitqCodes,
        query: &RabitqQuery,
        list: &ScannedList,
        allow: Option<&RowSet>,
    ) {
        self.scan_blocks(codes, query, list, 0..list.blocks(), allow);
        self.end_list(codes, query, list);
    }

    /// Scans the blocks `numbers` of a list, counted from its first one.
    pub(super) fn scan_blocks(
        &mut self,
        codes: &impl RowCodes,
        query: &RabitqQuery,
        list: &ScannedList,
        numbers: Range<usize>,
        allow: Option<&RowSet>,
    ) {
        let bytes = block_bytes(query.rotated.len());
        let mut gate = list.gate(f32::INFINITY);
        let mut bounds = [0.0; BLOCK];
        for number in numbers {
            let first = list.first_row + (number * BLOCK) as u32;
            let mask = allowed(first, list.end_row, allow);
            if mask == 0 {
                continue;
            }
            let Some((signs, factors)) = codes.block(list.first_block + number, bytes) else {
                return;
            };
            gate.limit = self.smallest.limit();
            let mut passed = scan(&query.table, signs, factors, &gate, &mut bounds) & mask;
            let before = self.waiting.len();
            while passed != 0 {
                let slot = passed.trailing_zeros();
                passed &= passed - 1;
                self.waiting.push((first + slot, bounds[slot as usize]));
                codes.prefetch(first + slot, query.rotated.len());
            }
            self.compare_first(before, codes, query, list);
        }
    }

    /// Compares the rows that still wait at the end of a list.
    pub(super) fn end_list(
        &mut self,
        codes: &impl RowCodes,
        query: &RabitqQuery,
        list: &ScannedList,
    ) {
        self.compare_first(self.waiting.len(), codes, query, list);
    }

    /// Adds to `rows` the rows of these blocks that can pass their one-bit bounds. These are all
    /// rows that [`RabitqScan::scan_blocks`] will compare, since the limit only falls. Waiting rows
    /// come first.
    pub(super) fn add_passing_rows(
        &self,
        codes: &impl RowCodes,
        query: &RabitqQuery,
        list: &ScannedList,
        numbers: Range<usize>,
        allow: Option<&RowSet>,
        rows: &mut Vec<u32>,
    ) {
        let bytes = block_bytes(query.rotated.len());
        let gate = list.gate(self.smallest.limit());
        let mut bounds = [0.0; BLOCK];
        for number in numbers {
            let first = list.first_row + (number * BLOCK) as u32;
            let mask = allowed(first, list.end_row, allow);
            if mask == 0 {
                continue;
            }
            let Some((signs, factors)) = codes.block(list.first_block + number, bytes) else {
                return;
            };
            let mut passed = scan(&query.table, signs, factors, &gate, &mut bounds) & mask;
            while passed != 0 {
                rows.push(first + passed.trailing_zeros());
                passed &= passed - 1;
            }
        }
    }

    /// Returns the rows that wait for their four-bit codes.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u32> + '_ {
        self.waiting.iter().map(|(row, _)| *row)
    }

    /// Compares the first `count` waiting rows, which were prefetched one block ago.
    fn compare_first(
        &mut self,
        count: usize,
        codes: &impl RowCodes,
        query: &RabitqQuery,
        list: &ScannedList,
    ) {
        for at in 0..count {
            let (row, bound) = self.waiting[at];
            if bound < self.smallest.limit() {
                self.compare(row, codes, query, list);
            }
        }
        self.waiting.drain(..count);
    }

    /// Estimates the cost of `row` from its four-bit codes. Keeps the row as a candidate if its
    /// cost can be among the smallest.
    #[inline]
    pub(super) fn compare(
        &mut self,
        row: u32,
        codes: &impl RowCodes,
        query: &RabitqQuery,
        list: &ScannedList,
    ) {
        let bytes = nibble_bytes(query.rotated.len());
        let Some((code, [add, scale, error])) = codes.row(row, bytes) else { return };
        let product =
            query.byte_scale * (nibble_dot(code, &query.bytes) as f32 - query.byte_middle);
        let cost = list.offset + add + scale * product;
        let slack = LEVEL_DEVIATIONS * list.radii.levels * error;
        self.compared += 1;
        if cost - slack < self.smallest.limit() {
            self.candidates.push(RabitqCandidate { cost, bound: cost - slack, row });
            self.smallest.push(cost + slack);
        }
    }
}

/// Codes of rows, as scans read them.
pub(super) trait RowCodes {
    /// Returns the one-bit codes of a block, `bytes` bytes, and its factors. `None` if there are
    /// none, or if they are damaged.
    fn block(&self, block: usize, bytes: usize) -> Option<(&[u8], &[f32; FACTORS])>;

    /// Returns the four-bit code of a row, `bytes` bytes, and its factors. `None` as for
    /// [`RowCodes::block`].
    fn row(&self, row: u32, bytes: usize) -> Option<(&[u8], &[f32; 3])>;

    /// Prefetches the four-bit code of a row of `dims` dimensions.
    fn prefetch(&self, row: u32, dims: usize);
}

impl RowCodes for RabitqCodes {
    #[inline]
    fn block(&self, block: usize, bytes: usize) -> Option<(&[u8], &[f32; FACTORS])> {
        let signs = self.signs.get(block * bytes..(block + 1) * bytes)?;
        Some((signs, self.factors.as_chunks::<FACTORS>().0.get(block)?))
    }

    #[inline]
    fn row(&self, row: u32, bytes: usize) -> Option<(&[u8], &[f32; 3])> {
        let code = self.levels.get(row as usize * bytes..(row as usize + 1) * bytes)?;
        Some((code, self.level_factors.get(row as usize)?))
    }

    #[inline]
    fn prefetch(&self, row: u32, dims: usize) {
        let bytes = nibble_bytes(dims);
        if let Some(code) = self.levels.get(row as usize * bytes..(row as usize + 1) * bytes) {
            kernels::prefetch(code);
        }
        if let Some(factors) = self.level_factors.get(row as usize) {
            kernels::prefetch(factors);
        }
    }
}

/// Returns a mask of the allowed rows among the up to 32 rows from `first` to `end`.
fn allowed(first: u32, end: u32, allow: Option<&RowSet>) -> u32 {
    let count = (end - first).min(BLOCK as u32);
    let whole = u32::MAX >> (BLOCK as u32 - count);
    // Lists start anywhere, so the rows lie in two aligned blocks of the filter.
    allow.map_or(whole, |allow| {
        let aligned = first & !31;
        let both = u64::from(allow.block(aligned))
            | u64::from(allow.block(aligned.saturating_add(32))) << 32;
        (both >> (first - aligned)) as u32 & whole
    })
}

/// Returns the squared distance of a rotated query to a centre.
pub(super) fn squared_distance(query: &RabitqQuery, centre: &[f32]) -> f32 {
    float::l2(&query.rotated, centre)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn smallest_equals_sorting(costs in prop::collection::vec(-9i8..9, 0..60), wanted in 1usize..9) {
            let mut smallest = Smallest::default();
            smallest.reset(wanted);
            let mut all = Vec::new();
            for cost in costs {
                smallest.push(cost.into());
                all.push(f32::from(cost));
                all.sort_by(f32::total_cmp);
                let limit = all.get(wanted - 1).copied().unwrap_or(f32::INFINITY);
                prop_assert_eq!(smallest.limit(), limit);
            }
        }

        #[test]
        fn blocks_are_masked_as_rows_are(first in 0u32..100, count in 1u32..70, rows: Vec<u8>) {
            let filter = RowSet::from_rows(160, rows.iter().map(|row| u32::from(*row)));
            let end = first + count;
            let naive = (first..end.min(first + 32)).filter(|row| filter.contains(*row));
            prop_assert_eq!(allowed(first, end, Some(&filter)), naive.fold(0, |bits, row| bits | 1 << (row - first)));
            prop_assert_eq!(allowed(first, end, None).count_ones(), count.min(32));
        }
    }
}
