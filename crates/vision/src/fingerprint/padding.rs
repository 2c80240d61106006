//! Padding: areas of one brightness that a sensor or a program added around the scanned area.
//!
//! The edge of padding is a step of brightness. Without the mask the filters treat it as ridges,
//! and the ridges of the print as lines that end there.

use super::plane::Plane;
use super::ridges::CELL;

/// Maximum difference of brightness within a cell of padding. Scaling rounds.
const DIFFERENCE_MAX: f32 = 0.01;
/// Cells from the middle of a square of padding to its border. The side of such a square is 3
/// cells. Valleys between ridges are narrower.
const REACH: usize = 1;
/// Minimum weight of the pixels that a smoothed value is the mean of.
const WEIGHT_MIN: f32 = 1e-3;

/// The pixels of an image without its padding.
#[derive(Clone, Debug)]
pub(super) struct PaddingMask {
    /// 0 for padding, 1 for other pixels, or `None` if the image has no padding.
    pixels: Option<Plane>,
}

impl PaddingMask {
    /// Finds the padding: the squares of constant cells. This is a morphological opening of the
    /// constant cells (Serra, "Image Analysis and Mathematical Morphology", 1982).
    ///
    /// Constant areas that do not reach the border of the image count too, because they show no
    /// ridges. A saturated wet part of the print is an example. 45 of the 640 images of the B sets
    /// of FVC2002 and FVC2004 have such areas.
    pub(super) fn of(image: &Plane) -> PaddingMask {
        let constant = constant_cells(image);
        let eroded = constant.neighbourhoods(|cells| cells.iter().all(|&cell| cell));
        let padding = eroded.neighbourhoods(|cells| cells.iter().any(|&cell| cell));
        if !padding.cells.contains(&true) {
            return PaddingMask { pixels: None };
        }
        let mut pixels = Plane::new(image.width, image.height);
        for (y, row) in pixels.values.chunks_exact_mut(image.width).enumerate() {
            for (x, pixel) in row.iter_mut().enumerate() {
                let is_padding = padding.cells[y / CELL * padding.width + x / CELL];
                *pixel = if is_padding { 0.0 } else { 1.0 };
            }
        }
        PaddingMask { pixels: Some(pixels) }
    }

    /// Sets padding to 0.
    pub(super) fn applied(&self, plane: Plane) -> Plane {
        match &self.pixels {
            Some(pixels) => plane.with(pixels, |value, pixel| value * pixel),
            None => plane,
        }
    }

    /// Smooths by a Gaussian of this deviation. Padding has no weight. This is a normalised
    /// convolution (Knutsson and Westin, "Normalized and differential convolution", 1993).
    pub(super) fn smoothed(&self, plane: &Plane, deviation: f32) -> Plane {
        let Some(pixels) = &self.pixels else { return plane.smoothed(deviation) };
        let sum = plane.with(pixels, |value, pixel| value * pixel).smoothed(deviation);
        sum.with(&pixels.smoothed(deviation), |sum, weight| sum / weight.max(WEIGHT_MIN))
    }
}

/// A truth value for each cell, row by row.
struct CellSet {
    width: usize,
    cells: Vec<bool>,
}

impl CellSet {
    /// Applies `of` to the cells around each cell, itself included. Cells outside of the image are
    /// left out.
    fn neighbourhoods(&self, of: impl Fn(&[bool]) -> bool) -> CellSet {
        let height = self.cells.len() / self.width;
        let near =
            |at: usize, length: usize| at.saturating_sub(REACH)..(at + REACH + 1).min(length);
        let mut around = Vec::new();
        let cells = (0..self.cells.len())
            .map(|at| {
                around.clear();
                for row in near(at / self.width, height) {
                    let columns = near(at % self.width, self.width);
                    around.extend_from_slice(&self.cells[row * self.width..][columns]);
                }
                of(&around)
            })
            .collect();
        CellSet { width: self.width, cells }
    }
}

/// Returns the cells in which all pixels have the same brightness.
fn constant_cells(image: &Plane) -> CellSet {
    let width = image.width.div_ceil(CELL);
    let mut cells = Vec::with_capacity(width * image.height.div_ceil(CELL));
    for band in image.values.chunks(CELL * image.width) {
        for left in (0..image.width).step_by(CELL) {
            let right = (left + CELL).min(image.width);
            let first = band[left];
            let same = |value: &f32| (value - first).abs() <= DIFFERENCE_MAX;
            let mut rows = band.chunks_exact(image.width);
            cells.push(rows.all(|row| row[left..right].iter().all(same)));
        }
    }
    CellSet { width, cells }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plane(width: usize, height: usize, of: impl Fn(usize, usize) -> f32) -> Plane {
        let values = (0..width * height).map(|at| of(at % width, at / width)).collect();
        Plane { width, height, values }
    }

    fn masked(image: &Plane) -> usize {
        let pixels = PaddingMask::of(image).pixels;
        pixels.map_or(0, |pixels| pixels.values.iter().filter(|&&pixel| pixel == 0.0).count())
    }

    #[test]
    fn padding_is_constant_and_wide() {
        let texture = |x: usize, y: usize| ((x * 7 + y * 3) % 5) as f32;
        let beside = |columns: usize| {
            plane(50, 30, move |x, y| if x < columns { 255.0 } else { texture(x, y) })
        };
        assert_eq!(masked(&beside(0)), 0);
        // At the border of the image two cells suffice, as what lies beyond is not known.
        assert_eq!(masked(&beside(20)), 20 * 30);
        assert_eq!(masked(&beside(4)), 0);
        // A valley of two cells is not padding.
        let valley =
            plane(48, 32, |x, y| if (16..24).contains(&x) { 255.0 } else { texture(x, y) });
        assert_eq!(masked(&valley), 0);
        // The last column and row of cells are narrower.
        assert_eq!(masked(&plane(50, 30, |_, _| 255.0)), 50 * 30);
    }

    #[test]
    fn a_saturated_part_of_the_print_is_left_out_too() {
        let texture = |x: usize, y: usize| ((x * 7 + y * 3) % 5) as f32;
        let with_hole = |side: usize| {
            let hole = 16..16 + side;
            plane(48, 48, move |x, y| {
                if hole.contains(&x) && hole.contains(&y) { 0.0 } else { 10.0 + texture(x, y) }
            })
        };
        assert_eq!(masked(&with_hole(12)), 12 * 12);
        assert_eq!(masked(&with_hole(8)), 0);
    }

    #[test]
    fn an_image_without_padding_is_smoothed_as_before() {
        // One row of padding is not found.
        let image = plane(32, 32, |x, y| if y == 0 { 255.0 } else { ((x * 7 + y * 3) % 5) as f32 });
        let mask = PaddingMask::of(&image);
        assert!(mask.pixels.is_none());
        assert_eq!(mask.smoothed(&image, 10.0), image.smoothed(10.0));
        assert_eq!(mask.applied(image.clone()), image);
    }

    #[test]
    fn padding_has_no_weight() {
        let image = plane(60, 40, |x, y| if x < 20 { 255.0 } else { 100.0 + ((x + y) % 2) as f32 });
        let mask = PaddingMask::of(&image);
        let smooth = mask.smoothed(&image, 4.0);
        assert!((20..60).all(|x| (smooth.values[20 * 60 + x] - 100.5).abs() < 0.5));
        let rest = mask.applied(image.clone());
        assert_eq!(rest.values[20 * 60 + 5], 0.0);
        assert_eq!(rest.values[20 * 60 + 30], image.values[20 * 60 + 30]);
    }
}
