//! Finer vectors for candidates: one byte per dimension, and the exact vectors.

use base::{Error, Result};
use kernels::float;

use super::section;
use super::source::VectorProfile;
use super::{Exact, Metric};

/// Number of rows to prefetch ahead: enough to keep the memory busy, few enough for its queue.
const AHEAD: usize = 8;
/// Bound of the rounding error of a sum of products, as a share of the largest product; far above
/// the real error.
const ROUNDING: f32 = 1e-5;
/// Bound of the rounding error of one value of [`ByteVectors`], as a share of the largest value of
/// its dimension. It includes the errors of the step, the code and their product.
const VALUE_ROUNDING: f32 = 1e-6;
/// Largest code.
const CODE_MAX: f32 = 255.0;
/// Bound of the error of a sum of values, in units of the root of the sum of their squared maximum
/// errors. It is more than three standard deviations.
const ERRORS: f32 = 2.0;

/// Returns true for a zero vector.
pub(crate) fn is_zero(vector: &[f32]) -> bool {
    vector.iter().all(|value| *value == 0.0)
}

/// Vectors of one byte per dimension, with a scale per dimension. Exact for vectors of whole
/// numbers from 0 to 255.
#[derive(Clone, Debug)]
pub(crate) struct ByteVectors {
    dims: usize,
    low: Vec<f32>,
    step: Vec<f32>,
    codes: Vec<u8>,
    lossless: bool,
    /// Maximum distance of a vector from the values of its bytes.
    distance_error: f32,
    /// Bound of the part of this distance in any one direction, which few vectors exceed.
    part_error: f32,
}

/// Query prepared for [`ByteVectors`].
#[derive(Clone, Debug, Default)]
pub(crate) struct ByteQuery {
    values: Vec<f32>,
    offset: f32,
    dot: bool,
    /// Bound of the quantisation error: the maximum length of the difference to a vector, or with
    /// `dot` the maximum product with it.
    error_bound: f32,
    /// Bound of the error of a length, or of a product with `dot`, which few rows exceed.
    spread: f32,
}

impl ByteQuery {
    /// Returns the lowest and the highest cost of a row with the byte cost `cost`. Each value of a
    /// vector differs from its byte's value by at most half a step and a rounding error.
    pub(crate) fn bounds(&self, cost: f32) -> (f32, f32) {
        if self.dot {
            return (cost - self.error_bound, cost + self.error_bound);
        }
        let length = cost.max(0.0).sqrt();
        let least = (length * (1.0 - ROUNDING) - self.error_bound).max(0.0);
        let most = length * (1.0 + ROUNDING) + self.error_bound;
        (least * least * (1.0 - ROUNDING), most * most * (1.0 + ROUNDING))
    }

    /// Returns the highest byte cost of a row that can be nearer than one with the byte cost
    /// `lower`. With `always`, no row exceeds the bounds. Otherwise few rows do.
    pub(crate) fn highest_nearer(&self, lower: f32, always: bool) -> f32 {
        let error_bound = if always { self.error_bound } else { self.spread };
        if self.dot {
            return lower + 2.0 * error_bound;
        }
        let length = lower.max(0.0).sqrt() * (1.0 + ROUNDING) + 2.0 * error_bound;
        let length = length / (1.0 - ROUNDING);
        length * length
    }
}

/// Returns the maximum error of each value of a vector.
fn value_errors(low: &[f32], step: &[f32]) -> impl Iterator<Item = f32> {
    let error =
        |(low, step): (&f32, &f32)| 0.5 * step + VALUE_ROUNDING * largest_value(*low, *step);
    low.iter().zip(step).map(error)
}

/// Returns a bound of the magnitude of values between `low` and `CODE_MAX` steps above it.
fn largest_value(low: f32, step: f32) -> f32 {
    low.abs() + CODE_MAX * step
}

impl ByteVectors {
    /// Chooses the scale of each dimension for vectors of this profile. Holds no rows yet.
    pub(super) fn scaled(profile: &VectorProfile) -> ByteVectors {
        let dims = profile.low.len();
        let lossless = profile.whole_bytes;
        let mut low = vec![0.0; dims];
        let mut step = vec![1.0; dims];
        if !lossless {
            low.copy_from_slice(&profile.low);
            for ((step, low), high) in step.iter_mut().zip(&low).zip(&profile.high) {
                *step = (high / CODE_MAX - low / CODE_MAX).max(0.0);
            }
        }
        ByteVectors::without_rows(low, step, lossless)
    }

    /// Creates vectors of a scale, without rows.
    fn without_rows(low: Vec<f32>, step: Vec<f32>, lossless: bool) -> ByteVectors {
        let square = value_errors(&low, &step).map(|error| error * error).sum::<f32>();
        let distance_error = if lossless { 0.0 } else { square.sqrt() };
        // The errors of the values are independent, so a part deviates as the largest of them.
        let largest = value_errors(&low, &step).fold(0.0, f32::max);
        let part_error = distance_error.min(ERRORS * largest);
        let codes = Vec::new();
        ByteVectors { dims: low.len(), low, step, codes, lossless, distance_error, part_error }
    }

    /// Reserves memory for exactly `rows` rows.
    pub(super) fn reserve(&mut self, rows: usize) {
        self.codes.reserve_exact(rows * self.dims);
    }

    /// Appends rows.
    pub(crate) fn extend(&mut self, vectors: &[f32]) {
        for vector in vectors.chunks_exact(self.dims) {
            let scaled = vector.iter().zip(self.low.iter().zip(&self.step));
            self.codes.extend(scaled.map(|(value, (low, step))| {
                // A float saturates when it is converted to a byte; NaN becomes 0.
                if *step > 0.0 { ((value - low) / step).round() as u8 } else { 0 }
            }));
        }
    }

    /// Decodes `rows` rows of `dims` values from their two sections.
    ///
    /// # Errors
    /// `DataLoss` if a section has another length.
    pub(crate) fn open(
        scale: &[u8],
        codes: Vec<u8>,
        rows: usize,
        dims: usize,
    ) -> Result<ByteVectors> {
        if codes.len() != rows * dims {
            return Err(Error::data_loss(
                "the coarse index's byte vectors have another size than its header says",
            ));
        }
        Ok(ByteVectors { codes, ..ByteVectors::open_scale(scale, dims)? })
    }

    /// Decodes the scale of `dims` dimensions, for rows that stay on the medium.
    ///
    /// # Errors
    /// `DataLoss` if the section has another length or a value that is not finite.
    pub(crate) fn open_scale(scale: &[u8], dims: usize) -> Result<ByteVectors> {
        let scale = section::floats(scale, 1 + 2 * dims)?;
        if !scale.iter().all(|value| value.is_finite()) {
            return Err(Error::data_loss(
                "the scale of the coarse index's byte vectors is not finite",
            ));
        }
        let lossless = scale[0] == 1.0;
        let low = scale[1..=dims].to_vec();
        let step = scale[1 + dims..].to_vec();
        Ok(ByteVectors::without_rows(low, step, lossless))
    }

    /// Encodes the section of the scale: a flag for exact codes, the lowest values, the steps.
    pub(crate) fn scale_bytes(&self) -> Vec<u8> {
        let lossless = if self.lossless { 1.0 } else { 0.0 };
        section::from_floats(&[&[lossless], &self.low[..], &self.step[..]].concat())
    }

    /// Returns the section of codes.
    pub(crate) fn code_bytes(&self) -> &[u8] {
        &self.codes
    }

    /// Returns true if costs are exact.
    pub(crate) fn lossless(&self) -> bool {
        self.lossless
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.codes.len() + (self.low.len() + self.step.len()) * 4) as u64
    }

    /// Prepares `query`. Costs are squared distances, or minus inner products with `dot`.
    pub(crate) fn prepare(&self, query: &[f32], dot: bool, prepared: &mut ByteQuery) {
        prepared.dot = dot;
        prepared.values.clear();
        prepared.offset = 0.0;
        if dot {
            let half = if self.lossless { 0.0 } else { 0.5 };
            let most =
                self.low.iter().zip(&self.step).map(|(low, step)| largest_value(*low, *step));
            let parts = query.iter().zip(&self.step).zip(most);
            prepared.error_bound = parts
                .map(|((value, step), most)| value.abs() * (half * step + ROUNDING * most))
                .sum();
            let products = query.iter().zip(&self.step).map(|(value, step)| half * value * step);
            let error = products.map(|product| product * product).sum::<f32>().sqrt();
            let largest =
                self.low.iter().zip(&self.step).map(|(low, step)| largest_value(*low, *step));
            let sums = query.iter().zip(largest).map(|(value, largest)| value.abs() * largest);
            let rounding = ROUNDING * sums.sum::<f32>();
            prepared.spread = prepared.error_bound.min(ERRORS * error + rounding);
            prepared.offset = -float::dot(query, &self.low);
            prepared.values.extend(query.iter().zip(&self.step).map(|(value, step)| -value * step));
        } else {
            prepared.error_bound = self.distance_error;
            prepared.spread = self.part_error;
            prepared.values.extend(query.iter().zip(&self.low).map(|(value, low)| value - low));
        }
    }

    /// Returns the cost of one row; infinite if the row does not exist.
    #[inline]
    pub(crate) fn cost(&self, query: &ByteQuery, row: u32) -> f32 {
        match self.codes.get(row as usize * self.dims..(row as usize + 1) * self.dims) {
            Some(codes) => self.cost_of(query, codes),
            None => f32::INFINITY,
        }
    }

    /// Returns the cost of a row with these codes, one for each dimension.
    #[inline]
    pub(crate) fn cost_of(&self, query: &ByteQuery, codes: &[u8]) -> f32 {
        if query.dot {
            query.offset + float::dot_bytes(&query.values, codes)
        } else {
            float::l2_bytes(&query.values, &self.step, codes)
        }
    }

    /// Calls `give(row, cost)` for each of `rows`.
    #[inline]
    pub(crate) fn costs(&self, query: &ByteQuery, rows: &[u32], mut give: impl FnMut(u32, f32)) {
        rows.iter().take(AHEAD).for_each(|row| self.prefetch(*row));
        for (at, row) in rows.iter().enumerate() {
            if let Some(later) = rows.get(at + AHEAD) {
                self.prefetch(*later);
            }
            give(*row, self.cost(query, *row));
        }
    }

    #[inline]
    fn prefetch(&self, row: u32) {
        if let Some(codes) =
            self.codes.get(row as usize * self.dims..(row as usize + 1) * self.dims)
        {
            kernels::prefetch(codes);
        }
    }
}

/// Exact vectors in memory; of unit length for the cosine.
#[derive(Clone, Debug)]
pub struct DenseVectors {
    values: Vec<f32>,
    dims: usize,
    metric: Metric,
}

impl DenseVectors {
    /// Copies `vectors` (`dims` values each) in the order of an index.
    ///
    /// # Errors
    /// `InvalidArgument` if a row of `order` does not exist.
    pub fn new(
        vectors: &[f32],
        dims: usize,
        metric: Metric,
        order: &[u32],
    ) -> Result<DenseVectors> {
        let mut values = Vec::with_capacity(order.len() * dims);
        for row in order {
            let vector = vectors
                .get(*row as usize * dims..(*row as usize + 1) * dims)
                .ok_or_else(|| Error::invalid(format!("there is no vector {row}")))?;
            values.extend_from_slice(vector);
            if metric == Metric::Cosine {
                let start = values.len() - dims;
                normalise(&mut values[start..]);
            }
        }
        Ok(DenseVectors { values, dims, metric })
    }

    fn vector(&self, row: u32) -> Option<&[f32]> {
        self.values.get(row as usize * self.dims..(row as usize + 1) * self.dims)
    }
}

impl Exact for DenseVectors {
    fn scores(&self, query: &[f32], rows: &[u32], out: &mut Vec<f32>) -> Result<()> {
        if query.len() != self.dims {
            return Err(Error::invalid(format!(
                "the query has {} dimensions, the vectors {}",
                query.len(),
                self.dims
            )));
        }
        out.clear();
        let scale = if self.metric == Metric::Cosine { inverse_length(query) } else { 1.0 };
        for (at, row) in rows.iter().enumerate() {
            if let Some(later) = rows.get(at + AHEAD).and_then(|row| self.vector(*row)) {
                kernels::prefetch(later);
            }
            let vector = self
                .vector(*row)
                .ok_or_else(|| Error::invalid(format!("there is no row {row}")))?;
            out.push(match self.metric {
                Metric::L2 => -float::l2(query, vector),
                _ => scale * float::dot(query, vector),
            });
        }
        Ok(())
    }
}

/// Returns 1 / length of a vector; 0 for a zero vector, or one so short that this is not finite.
pub(crate) fn inverse_length(vector: &[f32]) -> f32 {
    // In f64, so that neither tiny nor huge values lose the length.
    let square: f64 = vector.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    let inverse = square.sqrt().recip() as f32;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// Scales a vector to length 1. Leaves a zero vector unchanged.
pub(crate) fn normalise(vector: &mut [f32]) {
    let scale = inverse_length(vector);
    vector.iter_mut().for_each(|value| *value *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SliceVectors;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_are_close_and_whole_numbers_exact(
            values in prop::collection::vec(0_i32..=255, 3..60), whole in any::<bool>(), dot in any::<bool>(),
        ) {
            let (scale, shift) = if whole { (1.0, 0.0) } else { (0.37, -20.0) };
            let vectors: Vec<f32> =
                values[..values.len() / 3 * 3].iter().map(|value| *value as f32 * scale + shift).collect();
            let profile = VectorProfile::of(&SliceVectors { values: &vectors, dims: 3 }, 3).unwrap();
            let mut bytes = ByteVectors::scaled(&profile);
            bytes.extend(&vectors);
            prop_assert_eq!(bytes.lossless(), whole);
            let query = [12.5, 90.0, -3.0];
            let mut prepared = ByteQuery::default();
            bytes.prepare(&query, dot, &mut prepared);
            let again = ByteVectors::open(&bytes.scale_bytes(), bytes.code_bytes().to_vec(), vectors.len() / 3, 3).unwrap();
            for (row, vector) in vectors.chunks_exact(3).enumerate() {
                let truth = if dot { -float::dot(&query, vector) } else { float::l2(&query, vector) };
                let cost = bytes.cost(&prepared, row as u32);
                let (least, most) = prepared.bounds(cost);
                prop_assert!(least <= truth && truth <= most, "{least} {truth} {most}");
                prop_assert_eq!(cost, again.cost(&prepared, row as u32));
                // Each value is off by at most half a step.
                let parts = query.iter().zip(vector).zip(&bytes.step);
                let room: f32 = parts.map(|((query, value), step)| {
                    let off = if whole { 0.0 } else { 0.5 * step };
                    if dot { query.abs() * off } else { 2.0 * (query - value).abs() * off + off * off }
                }).sum();
                prop_assert!((cost - truth).abs() <= 1.01 * room + 1e-5 * (300.0 + truth.abs()), "{cost} {truth}");
            }
            prop_assert_eq!(bytes.cost(&prepared, values.len() as u32), f32::INFINITY);
        }
    }

    #[test]
    fn bounds_hold_for_values_far_from_zero() {
        // The step has a rounding error of one half of a percent, so the last code is too small.
        let vectors: Vec<f32> = (0..100_u8).map(|at| 1e7 + f32::from(at)).collect();
        let profile = VectorProfile::of(&SliceVectors { values: &vectors, dims: 1 }, 1).unwrap();
        let mut bytes = ByteVectors::scaled(&profile);
        bytes.extend(&vectors);
        let mut prepared = ByteQuery::default();
        for (row, value) in (0..).zip(&vectors) {
            bytes.prepare(&[*value], false, &mut prepared);
            let (least, _) = prepared.bounds(bytes.cost(&prepared, row));
            assert_eq!(least, 0.0, "the distance of {value} to itself");
        }
    }

    #[test]
    fn exact_scores_are_those_of_the_metric() {
        let vectors = [3.0, 4.0, 0.0, 0.0, 1.0, 1.0];
        let scores = |metric| {
            let exact = DenseVectors::new(&vectors, 2, metric, &[2, 0, 1]).unwrap();
            let mut out = vec![9.0];
            exact.scores(&[2.0, 0.0], &[0, 1, 2], &mut out).unwrap();
            assert!(exact.scores(&[2.0, 0.0], &[3], &mut Vec::new()).is_err());
            assert!(exact.scores(&[2.0], &[0], &mut Vec::new()).is_err());
            out
        };
        assert_eq!(scores(Metric::L2), [-2.0, -17.0, -4.0]);
        assert_eq!(scores(Metric::Dot), [2.0, 6.0, 0.0]);
        let cosine = scores(Metric::Cosine);
        assert!(
            (cosine[0] - 0.5_f32.sqrt()).abs() < 1e-6
                && (cosine[1] - 0.6).abs() < 1e-6
                && cosine[2] == 0.0
        );
    }
}
