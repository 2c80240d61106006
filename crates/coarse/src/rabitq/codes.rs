//! Codes of the rows of one list, and their error bounds.
//!
//! A row `o` of a list with centre `c` has the rotated residual `r = P(o - c)`. It is stored as
//! another vector `x` of few bits: the signs of `r` (one bit per dimension), and `r` rounded to
//! sixteen levels (four bits). For a query `q` the product of residuals is estimated:
//! `<r, P(q - c)> ~ |r|^2 / <x, r> * <x, P(q - c)>`.
//!
//! The estimate is unbiased over random rotations `P`. Its error is at most `e * |q - c| * |r| *
//! sqrt((1 - s^2) / s^2) / sqrt(D - 1)` with `s = <x, r> / (|x| |r|)`, except with a probability
//! that falls with `exp(-e^2 / 2)`. For the signs, this is theorem 3.2 of the RaBitQ paper (see
//! [`kernels::rabitq`]). Its extension of 2025 has the same estimator for more bits. `<x, P(q -
//! c)>` is `<x, Pq> - <x, Pc>`, and the second product is known beforehand. So one table serves all
//! lists.
//!
//! Costs are squared distances, or minus inner products for [`Metric::Dot`]: lower is nearer. The
//! cost of a row is `offset + add + scale * <x, Pq>`, with the offset of the query and the list.
//! Its lower bound is `radius * error` less. The tables of the query round `Pq`. The error of a
//! row by that, `scale * <x, rounding>`, is a constant of the query times `error`, so the radius
//! includes it.

use kernels::float;
use kernels::rabitq::{BLOCK, FACTORS, block_bytes, nibble_bytes, pack_nibbles, pack_signs};

use super::Metric;

/// Step sizes of the sixteen levels, in standard deviations of a residual's values. A residual
/// takes the step with the smallest angle. For normally distributed values 0.335 is best (J. Max,
/// "Quantizing for minimum distortion", 1960).
const STEPS: [f32; 5] = [0.27, 0.305, 0.335, 0.365, 0.41];
/// Middle of the levels 0 to 15, subtracted to centre them.
pub(super) const MIDDLE: f32 = 7.5;

/// `add`, `scale` and `error` of a row.
type Factors = [f32; 3];

/// Codes and factors of rows, block by block.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RabitqCodes {
    /// One-bit codes in blocks of 32 rows.
    pub(super) signs: Vec<u8>,
    /// Factors of the one-bit codes: 32 times `add`, 32 times `scale`, 32 times `error` per block.
    pub(super) factors: Vec<f32>,
    /// Four-bit codes, row by row, without gaps after incomplete blocks.
    pub(super) levels: Vec<u8>,
    /// Factors of the four-bit codes.
    pub(super) level_factors: Vec<Factors>,
}

/// Row to encode: the rotated residual, and the metric's addition to its cost.
pub(super) struct CodeRow<'a> {
    pub(super) residual: &'a [f32],
    pub(super) constant: f32,
}

impl RabitqCodes {
    /// Creates empty codes with room for exactly the lists that start at `starts`.
    pub(super) fn with_capacity(starts: &[u32], dims: usize) -> RabitqCodes {
        let rows = starts.last().copied().unwrap_or(0) as usize;
        let lists = starts.windows(2).map(|pair| (pair[1] - pair[0]) as usize);
        let blocks = lists.map(|rows| rows.div_ceil(BLOCK)).sum::<usize>();
        RabitqCodes {
            signs: Vec::with_capacity(blocks * block_bytes(dims)),
            factors: Vec::with_capacity(blocks * FACTORS),
            levels: Vec::with_capacity(rows * nibble_bytes(dims)),
            level_factors: Vec::with_capacity(rows),
        }
    }

    /// Appends the rows of one list, starting with a new block.
    pub(super) fn extend<'a>(
        &mut self,
        rows: impl Iterator<Item = CodeRow<'a>>,
        centre: &[f32],
        metric: Metric,
    ) {
        let dims = centre.len();
        let mut levels = vec![0; dims];
        for (at, row) in rows.enumerate() {
            if at % BLOCK == 0 {
                self.signs.resize(self.signs.len() + block_bytes(dims), 0);
                self.factors.resize(self.factors.len() + FACTORS, 0.0);
            }
            let block = self.signs.len() - block_bytes(dims);
            pack_signs(row.residual, at % BLOCK, &mut self.signs[block..]);
            let block = self.factors.len() - FACTORS;
            for (kind, factor) in sign_factors(&row, centre, metric).into_iter().enumerate() {
                self.factors[block + kind * BLOCK + at % BLOCK] = factor;
            }
            self.level_factors.push(choose_levels(&row, centre, metric, &mut levels));
            let start = self.levels.len();
            self.levels.resize(start + nibble_bytes(dims), 0);
            pack_nibbles(&levels, &mut self.levels[start..]);
        }
    }

    pub(super) fn append(&mut self, other: &mut RabitqCodes) {
        self.signs.append(&mut other.signs);
        self.factors.append(&mut other.factors);
        self.levels.append(&mut other.levels);
        self.level_factors.append(&mut other.level_factors);
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        (self.signs.len()
            + self.levels.len()
            + self.factors.len() * 4
            + self.level_factors.len() * 12) as u64
    }
}

fn sign_factors(row: &CodeRow, centre: &[f32], metric: Metric) -> Factors {
    let mut code_residual = 0.0;
    let mut code_centre = 0.0;
    for (value, centre) in row.residual.iter().zip(centre) {
        let sign = if *value >= 0.0 { 1.0 } else { -1.0 };
        code_residual += sign * value;
        code_centre += sign * centre;
    }
    factors(row, metric, Products { code_code: centre.len() as f32, code_residual, code_centre })
}

/// Products of a code with itself, with the residual and with the centre.
struct Products {
    code_code: f32,
    code_residual: f32,
    code_centre: f32,
}

/// Returns the factors that turn the product of a row's code and a query into a cost, and the error
/// of that cost.
fn factors(row: &CodeRow, metric: Metric, products: Products) -> Factors {
    let square = float::dot(row.residual, row.residual);
    let stretch = square / products.code_residual;
    if !(products.code_residual > 0.0 && stretch.is_finite()) {
        // The row is equal to the centre, or nearly.
        return [row.constant, 0.0, 0.0];
    }
    let cosine_squared =
        (products.code_residual / products.code_code * products.code_residual / square).min(1.0);
    let dims = row.residual.len().max(2) as f32;
    let error = (square * (1.0 - cosine_squared) / cosine_squared / (dims - 1.0)).sqrt();
    match metric {
        Metric::Dot => [row.constant + stretch * products.code_centre, -stretch, error],
        _ => [
            row.constant + square + 2.0 * stretch * products.code_centre,
            -2.0 * stretch,
            2.0 * error,
        ],
    }
}

/// Rounds the residual to sixteen levels with the best of the steps.
fn choose_levels(row: &CodeRow, centre: &[f32], metric: Metric, levels: &mut [u8]) -> Factors {
    let deviation = (float::dot(row.residual, row.residual) / centre.len() as f32).sqrt();
    let mut best = (f32::NEG_INFINITY, STEPS[0]);
    for step in STEPS {
        let inverse = 1.0 / (step * deviation);
        let mut code_code = 0.0;
        let mut code_residual = 0.0;
        for value in row.residual {
            let code = level(value * inverse) - MIDDLE;
            code_code += code * code;
            code_residual += code * value;
        }
        let cosine = code_residual / code_code.sqrt();
        if cosine > best.0 {
            best = (cosine, step);
        }
    }
    let inverse = 1.0 / (best.1 * deviation);
    let mut products = Products { code_code: 0.0, code_residual: 0.0, code_centre: 0.0 };
    for ((value, centre), out) in row.residual.iter().zip(centre).zip(levels) {
        let level = level(value * inverse);
        *out = level as u8;
        products.code_code += (level - MIDDLE) * (level - MIDDLE);
        products.code_residual += (level - MIDDLE) * value;
        products.code_centre += (level - MIDDLE) * centre;
    }
    factors(row, metric, products)
}

/// Returns the level, 0 to 15, of a value in steps. A zero residual gives NaN, which [`factors`]
/// handles.
fn level(value: f32) -> f32 {
    (value + MIDDLE + 0.5).floor().clamp(0.0, 15.0)
}
