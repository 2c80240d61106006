//! The inverse wavelet transform.

use super::filter::{FilterBank, PhaseTaps, PolyphaseTaps, Symmetry};
use super::tree::{Band, LineSpan, SubbandTree};

/// Joins all subbands of a plane to an image, in the same memory and a second plane.
pub(super) fn image(mut plane: Vec<f32>, tree: &SubbandTree, filters: &FilterBank) -> Vec<f32> {
    let Some(image) = tree.splits.first() else { return plane };
    let mut between = vec![0.0; image.area()];
    // The innermost splits come last.
    for band in tree.splits.iter().rev().filter(|band| band.area() > 0) {
        let width = image.columns.length;
        join_rows(&plane, width, band, filters, &mut between);
        join_columns(&between, band, filters, &mut plane, width);
    }
    plane
}

/// Joins the low and high rows of `band` to the interleaved rows of `between`, which is as wide as
/// the band.
fn join_rows(plane: &[f32], width: usize, band: &Band, filters: &FilterBank, between: &mut [f32]) {
    let [low, high] = band.row_halves();
    let length = band.rows.length;
    let row_of = |half: LineSpan, row: usize| {
        let start = (half.start + row) * width + band.columns.start;
        plane.get(start..start + band.columns.length).unwrap_or_default()
    };
    let low_edges = SymmetricExtension::low(filters.symmetry, length);
    let high_edges = SymmetricExtension::high(filters.symmetry, length);
    for (at, output) in between.chunks_exact_mut(band.columns.length).take(length).enumerate() {
        output.fill(0.0);
        let PolyphaseTaps { low: low_taps, high: high_taps } = phase(filters, at);
        for (half, edges, taps) in [(low, low_edges, low_taps), (high, high_edges, high_taps)] {
            for (row, weight) in taps.places(at) {
                let Some((row, sign)) = edges.inside(row, half.length) else { continue };
                for (sum, &value) in output.iter_mut().zip(row_of(half, row)) {
                    *sum += sign * weight * value;
                }
            }
        }
    }
}

/// Joins the low and high columns of `between` to the interleaved columns of `band`.
fn join_columns(
    between: &[f32],
    band: &Band,
    filters: &FilterBank,
    plane: &mut [f32],
    width: usize,
) {
    let length = band.columns.length;
    let mut low =
        ExtendedLine::new(filters, length, SymmetricExtension::low(filters.symmetry, length));
    let mut high =
        ExtendedLine::new(filters, length, SymmetricExtension::high(filters.symmetry, length));
    let halves = band.column_halves().map(|half| {
        let start = half.start - band.columns.start;
        start..start + half.length
    });
    let rows = plane.chunks_exact_mut(width).skip(band.rows.start).take(band.rows.length);
    for (output, input) in rows.zip(between.chunks_exact(length)) {
        let [low_half, high_half] = halves.clone().map(|half| input.get(half).unwrap_or_default());
        low.set(low_half);
        high.set(high_half);
        let output = output.get_mut(band.columns.start..band.columns.start + length);
        for (at, pair) in output.unwrap_or_default().chunks_mut(2).enumerate() {
            for (value, phase) in pair.iter_mut().zip([&filters.even, &filters.odd]) {
                *value = low.sum(&phase.low, at) + high.sum(&phase.high, at);
            }
        }
    }
}

fn phase(filters: &FilterBank, at: usize) -> &PolyphaseTaps {
    if at.is_multiple_of(2) { &filters.even } else { &filters.odd }
}

impl PhaseTaps {
    /// Returns the coefficients that contribute to output `at`, with their weights.
    fn places(&self, at: usize) -> impl Iterator<Item = (isize, f32)> {
        let first = (at / 2) as isize + self.first;
        (first..).zip(self.weights.iter().copied())
    }
}

/// Continuation of the coefficients of a line beyond its ends. It follows the symmetry of the line
/// that they come from.
#[derive(Clone, Copy)]
struct SymmetricExtension {
    /// Sum of a place before the first coefficient and of the place that it mirrors.
    start: isize,
    /// The same after the last coefficient.
    end: isize,
    /// Sign of a mirrored coefficient.
    sign: f32,
}

impl SymmetricExtension {
    /// Returns the extension of the low-pass coefficients of a line of `length` pixels.
    fn low(symmetry: Symmetry, length: usize) -> SymmetricExtension {
        let end = length as isize - 1;
        match symmetry {
            Symmetry::WholeSample => SymmetricExtension { start: 0, end, sign: 1.0 },
            Symmetry::HalfSample => SymmetricExtension { start: -1, end, sign: 1.0 },
        }
    }

    /// Returns the extension of the high-pass coefficients of a line of `length` pixels.
    fn high(symmetry: Symmetry, length: usize) -> SymmetricExtension {
        let end = length as isize - 1;
        match symmetry {
            Symmetry::WholeSample => SymmetricExtension { start: -1, end: end - 1, sign: 1.0 },
            Symmetry::HalfSample => SymmetricExtension { start: -1, end, sign: -1.0 },
        }
    }

    /// Returns the coefficient that stands at `place`, and its sign, or `None` if it is zero.
    fn inside(self, mut place: isize, count: usize) -> Option<(usize, f32)> {
        let count = count as isize;
        if count == 0 {
            return None;
        }
        // A line of one pixel is constant.
        if count == 1 && self.start == self.end {
            return Some((0, 1.0));
        }
        let mut sign = 1.0;
        loop {
            let mirror = if place < 0 {
                self.start
            } else if place >= count {
                self.end
            } else {
                return Some((place as usize, sign));
            };
            // Only an antisymmetric line has a mirror on a place without a coefficient.
            if mirror - place == place {
                return None;
            }
            place = mirror - place;
            sign *= self.sign;
        }
    }
}

/// Coefficients of a line, and coefficients beyond its ends.
struct ExtendedLine {
    values: Vec<f32>,
    /// Coefficients before the first.
    before: usize,
    edges: SymmetricExtension,
}

impl ExtendedLine {
    fn new(filters: &FilterBank, length: usize, edges: SymmetricExtension) -> ExtendedLine {
        let before = filters.reach();
        ExtendedLine { values: vec![0.0; length.div_ceil(2) + 2 * before], before, edges }
    }

    /// Copies a line and continues it at both ends.
    fn set(&mut self, line: &[f32]) {
        let before = self.before;
        let places = self.values.len();
        if let Some(inside) = self.values.get_mut(before..before + line.len()) {
            inside.copy_from_slice(line);
        }
        for at in (0..before).chain(before + line.len()..places) {
            let found = self.edges.inside(at as isize - before as isize, line.len());
            let value = found.and_then(|(from, sign)| Some(sign * line.get(from)?));
            if let Some(place) = self.values.get_mut(at) {
                *place = value.unwrap_or(0.0);
            }
        }
    }

    /// Returns the sum for output `2 * at` or `2 * at + 1`.
    fn sum(&self, taps: &PhaseTaps, at: usize) -> f32 {
        let start = (self.before + at).saturating_add_signed(taps.first);
        let values = self.values.get(start..).unwrap_or_default();
        values.iter().zip(&taps.weights).map(|(value, weight)| value * weight).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_continued_by_mirrors() {
        let line = |edges: SymmetricExtension, count: usize| -> Vec<f32> {
            (-3..count as isize + 3)
                .map(|at| edges.inside(at, count).map_or(0.0, |(at, sign)| sign * (at + 1) as f32))
                .collect()
        };
        let (whole, half) = (Symmetry::WholeSample, Symmetry::HalfSample);
        assert_eq!(
            line(SymmetricExtension::low(whole, 6), 3),
            [3., 3., 2., 1., 2., 3., 3., 2., 1.]
        );
        assert_eq!(
            line(SymmetricExtension::low(whole, 5), 3),
            [2., 3., 2., 1., 2., 3., 2., 1., 2.]
        );
        assert_eq!(line(SymmetricExtension::high(whole, 5), 2), [2., 2., 1., 1., 2., 2., 1., 1.]);
        assert_eq!(line(SymmetricExtension::low(half, 5), 3), [3., 2., 1., 1., 2., 3., 2., 1., 1.]);
        assert_eq!(
            line(SymmetricExtension::high(half, 4), 2),
            [2., -2., -1., 1., 2., -2., -1., 1.]
        );
        assert_eq!(
            line(SymmetricExtension::high(half, 5), 2),
            [0., -2., -1., 1., 2., 0., -2., -1.]
        );
        assert_eq!(line(SymmetricExtension::low(whole, 1), 1), [1.; 7]);
        assert_eq!(line(SymmetricExtension::high(whole, 1), 0), [0.; 6]);
    }
}
