//! Planes of numbers: smoothing, shrinking, resizing.

use crate::Gray;

/// Deviations at which a Gaussian is cut off.
const GAUSSIAN_CUTOFF: f32 = 2.5;

/// Numbers on a grid, row by row. Neither side is 0.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plane {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) values: Vec<f32>,
}

impl Plane {
    /// Returns a plane of zeros.
    pub(super) fn new(width: usize, height: usize) -> Plane {
        Plane { width, height, values: vec![0.0; width * height] }
    }

    /// Returns the brightness of an image, enlarged by `factor` with linear interpolation. An image
    /// that shrinks much is smoothed first.
    pub(super) fn scaled(image: &Gray, factor: f32) -> Plane {
        let source = Plane {
            width: image.width as usize,
            height: image.height as usize,
            values: image.pixels.iter().map(|&value| f32::from(value)).collect(),
        };
        let side = |length: usize| ((length as f32 * factor).round() as usize).max(1);
        let (width, height) = (side(source.width), side(source.height));
        if (width, height) == (source.width, source.height) {
            return source;
        }
        let source = if factor < 0.7 { source.smoothed(0.4 / factor) } else { source };
        let mut out = Plane::new(width, height);
        let place = |at: usize| {
            let from = (at as f32 + 0.5) / factor - 0.5;
            (from.floor() as isize, from - from.floor())
        };
        for (y, row) in out.values.chunks_exact_mut(width).enumerate() {
            let (top, down) = place(y);
            for (x, value) in row.iter_mut().enumerate() {
                let (left, right) = place(x);
                let between =
                    |y: isize| source.at(left, y) * (1.0 - right) + source.at(left + 1, y) * right;
                *value = between(top) * (1.0 - down) + between(top + 1) * down;
            }
        }
        out
    }

    /// Combines the values of two planes of the same size.
    pub(super) fn with(&self, other: &Plane, of: impl Fn(f32, f32) -> f32) -> Plane {
        let values = self.values.iter().zip(&other.values).map(|(&a, &b)| of(a, b)).collect();
        Plane { width: self.width, height: self.height, values }
    }

    /// Squares each value.
    pub(super) fn squared(&self) -> Plane {
        self.with(self, |a, b| a * b)
    }

    /// Returns the value at a position. Outside the plane, returns the value of the nearest pixel.
    fn at(&self, x: isize, y: isize) -> f32 {
        let inside = |place: isize, length: usize| place.clamp(0, length as isize - 1) as usize;
        self.values[inside(y, self.height) * self.width + inside(x, self.width)]
    }

    /// Smooths by a Gaussian of this deviation. Beyond the border the outermost values continue.
    pub(super) fn smoothed(&self, deviation: f32) -> Plane {
        let radius = (deviation * GAUSSIAN_CUTOFF).ceil() as usize;
        let mut weights: Vec<f32> =
            (0..=radius).map(|at| (-0.5 * (at as f32 / deviation).powi(2)).exp()).collect();
        let sum = 2.0 * weights.iter().sum::<f32>() - 1.0;
        weights.iter_mut().for_each(|weight| *weight /= sum);
        // The middle is added twice below.
        weights[0] *= 0.5;
        self.across(&weights).down(&weights)
    }

    /// Filters each row. `weights` begin with half the weight of the middle. The border values are
    /// repeated.
    fn across(&self, weights: &[f32]) -> Plane {
        let radius = weights.len() - 1;
        let mut out = Plane::new(self.width, self.height);
        let mut padded = vec![0.0; self.width + 2 * radius];
        for (row, sums) in
            self.values.chunks_exact(self.width).zip(out.values.chunks_exact_mut(self.width))
        {
            padded[..radius].fill(row[0]);
            padded[radius..radius + self.width].copy_from_slice(row);
            padded[radius + self.width..].fill(row[self.width - 1]);
            for (distance, weight) in weights.iter().enumerate() {
                let (left, right) = (&padded[radius - distance..], &padded[radius + distance..]);
                for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
                    *sum += weight * (left + right);
                }
            }
        }
        out
    }

    /// Filters each column as [`Plane::across`] filters rows.
    fn down(&self, weights: &[f32]) -> Plane {
        let mut out = Plane::new(self.width, self.height);
        let row = |y: isize| {
            let start = y.clamp(0, self.height as isize - 1) as usize * self.width;
            &self.values[start..start + self.width]
        };
        for (y, sums) in out.values.chunks_exact_mut(self.width).enumerate() {
            for (distance, weight) in weights.iter().enumerate() {
                let above = y as isize - distance as isize;
                let below = y as isize + distance as isize;
                for ((sum, above), below) in sums.iter_mut().zip(row(above)).zip(row(below)) {
                    *sum += weight * (above + below);
                }
            }
        }
        out
    }

    /// Returns the mean of each square of `side` pixels. Squares at the right and lower border may
    /// be smaller.
    pub(super) fn cells(&self, side: usize) -> Plane {
        let across = self.width.div_ceil(side);
        let mut out = Plane::new(across, self.height.div_ceil(side));
        for (band, sums) in
            self.values.chunks(side * self.width).zip(out.values.chunks_exact_mut(across))
        {
            let rows = band.len() / self.width;
            for row in band.chunks_exact(self.width) {
                for (part, sum) in row.chunks(side).zip(sums.iter_mut()) {
                    *sum += part.iter().sum::<f32>() / (part.len() * rows) as f32;
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripes(width: usize, height: usize) -> Plane {
        let values = (0..width * height).map(|at| (at % width % 7) as f32).collect();
        Plane { width, height, values }
    }

    #[test]
    fn smoothing_keeps_even_parts_and_levels_the_others() {
        let even = Plane { width: 9, height: 5, values: vec![3.0; 45] };
        assert!(even.smoothed(2.0).values.iter().all(|value| (value - 3.0).abs() < 1e-5));
        let level = stripes(63, 5).smoothed(6.0);
        assert!((level.values[2 * 63 + 31] - 3.0).abs() < 0.05, "{:?}", level.values[2 * 63 + 31]);
    }

    #[test]
    fn cells_at_the_border_are_means_too() {
        let cells = stripes(10, 5).cells(4);
        assert_eq!((cells.width, cells.height), (3, 2));
        // Columns 0 to 3, 4 to 7 (4, 5, 6, 0), 8 and 9 (1, 2).
        assert_eq!(cells.values, [1.5, 3.75, 1.5, 1.5, 3.75, 1.5]);
    }

    #[test]
    fn a_scaled_image_has_the_same_slope() {
        let image =
            Gray { width: 40, height: 3, pixels: (0..120).map(|at| (at % 40 * 5) as u8).collect() };
        let twice = Plane::scaled(&image, 2.0);
        assert_eq!((twice.width, twice.height), (80, 6));
        assert!((twice.values[41] - twice.values[40] - 2.5).abs() < 1e-4);
        let half = Plane::scaled(&image, 0.5);
        assert_eq!((half.width, half.height), (20, 2));
        assert!((half.values[11] - half.values[10] - 10.0).abs() < 0.01);
    }
}
