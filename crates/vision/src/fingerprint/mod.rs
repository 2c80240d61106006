//! Minutiae of fingerprints: the points at which ridges end and fork.
//!
//! 1. The image is brought to 500 dots per inch and to even brightness and contrast. Padding around
//!    the scanned area is left out.
//! 2. The structure tensor gives the direction of the ridges, a bank of filters their distance.
//!    Filtered accordingly, ridges become waves, and most breaks and scratches close. This is done
//!    twice. The second pass takes the directions from the first one's result.
//! 3. The share of the variance that passes is the quality. Quality and contrast decide which parts
//!    are fingerprint.
//! 4. Ridges, and the valleys between them, are thinned to lines. The end of a ridge is an ending,
//!    the end of a valley a bifurcation. Both are found in the same way, and their directions are
//!    defined as in ISO/IEC 19794-2. Ends at the border, of spurs, of short pieces and of broken
//!    lines are left out.
//!
//! Sums are single-precision floats in a fixed order. Directions use the platform's arc tangent, so
//! two kinds of machine may rarely differ in a minutia. Costs about 0.2 Gflop for 388 x 374 pixels.

mod choose;
mod gabor;
mod padding;
mod plane;
mod ridges;
mod thin;
mod trace;

use base::{Error, Result};
use matching::{Graph, VERTICES_MAX};

use crate::Gray;
use choose::{Area, candidates, contrast_min, select_minutiae};
use gabor::{Bank, filtered};
use padding::PaddingMask;
use plane::Plane;
use ridges::{CELL, EvenImage, Flow, distances, evened};
use thin::BinaryImage;

/// Minimum score (of [`matching::score`]) that accepts two fingerprints as the same finger.
///
/// Of 12,160 pairs of different fingers of FVC2002's DB1_B and DB2_B the highest score is 187, the
/// next one 157. Of 113,216 pairs of the six other B sets of FVC2002 and FVC2004 it is 190, and
/// three have 160. DB2_B taken at its true 569 dots per inch instead of 500 has one pair of 188.
///
/// Of the pairs of the same finger, 2.0 % stay below the value in the first two databases. In the
/// six others, whose fingers were pressed, turned, dried and wetted on purpose, 12.6 % do.
/// Extraction and matching are tuned on fingers 101 to 105 of all eight.
/// `docs/measurements/image-search.md` has the rates of each half.
pub const ACCEPT: f32 = 200.0;
/// Number of fingerprints up to which [`ACCEPT`] holds for a search among them.
const ACCEPT_PRINTS: f32 = 1500.0;
/// Growth of the score for ten times as many fingerprints. It is that of the highest score of
/// another finger from 100,000 to a million prints, as the mean of 640 searches
/// (`docs/measurements/fingerprint-index.md`).
const ACCEPT_GROWTH: f32 = 20.0;

/// Returns the minimum score that accepts a fingerprint that was searched among `prints` others. It
/// is a whole number, and at least [`ACCEPT`].
///
/// Of 640 searches for fingers that were not among 100,000 and a million synthetic prints, none
/// accepted another finger.
#[must_use]
pub fn accept_among(prints: u64) -> f32 {
    let times = (prints as f32 / ACCEPT_PRINTS).max(1.0);
    (ACCEPT + ACCEPT_GROWTH * times.log10()).round()
}

/// Resolution of keypoint graphs, in dots per inch.
const RESOLUTION: f32 = 500.0;
/// Minimum resolution of an image in dots per inch.
const RESOLUTION_MIN: f32 = 100.0;
/// Maximum resolution of an image in dots per inch.
const RESOLUTION_MAX: f32 = 2_500.0;
/// Minimum side of an image in pixels at 500 dots per inch. Fewer than three ridges are not a
/// fingerprint.
const SIDE_MIN: f32 = 32.0;
/// Maximum side of an image in pixels at 500 dots per inch. Coordinates have 15 bits.
const SIDE_MAX: f32 = 16_000.0;
/// Maximum pixels at 500 dots per inch. Four fingers side by side have two and a half million. As
/// many need 150 MB and less than 2 s of a core.
const PIXELS_MAX: f32 = 4e6;

/// Properties of a fingerprint image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinutiaeOptions {
    /// Resolution in dots per inch, 100 to 2,500.
    pub dots_per_inch: f32,
}

impl Default for MinutiaeOptions {
    fn default() -> MinutiaeOptions {
        MinutiaeOptions { dots_per_inch: RESOLUTION }
    }
}

/// Result of [`minutiae`].
#[derive(Clone, Debug, PartialEq)]
pub struct Extraction {
    /// Minutiae, the best first, at 500 dots per inch, without descriptors. Empty if there is no
    /// fingerprint.
    pub graph: Graph,
    /// Quality, 0 to 255, of each square of 4 by 4 pixels at 500 dots per inch, row by row. It is
    /// the share of the variance that is ridges, and 0 outside of the fingerprint.
    pub quality: Vec<u8>,
}

impl Extraction {
    /// Returns the quality of the print, 0 to 100. It is the mean quality of its area, less if the
    /// area or the minutiae are too few to identify a finger. The measure is simple and our own,
    /// not NFIQ 2.
    #[must_use]
    pub fn score(&self) -> u8 {
        let inside = self.quality.iter().filter(|&&quality| quality > 0);
        let cells = inside.clone().count();
        let sum: u32 = inside.map(|&quality| u32::from(quality)).sum();
        let mean = sum as f32 / (255 * cells.max(1)) as f32;
        let area = (cells * CELL * CELL) as f32;
        let part = |value: f32, enough: f32| (value / enough).min(1.0);
        let minutiae = self.graph.vertices.len() as f32;
        let score =
            part(mean, QUALITY_FULL) * part(area, AREA_FULL) * part(minutiae, MINUTIAE_FULL);
        (score * 100.0).round() as u8
    }
}

/// Mean quality from which a print cannot get better. It is that of a clear print.
const QUALITY_FULL: f32 = 0.5;
/// Area in pixels from which a print cannot get better. It is about 10 by 10 mm.
const AREA_FULL: f32 = 40_000.0;
/// Number of minutiae from which a print cannot get better. A clear print of that area has as many.
const MINUTIAE_FULL: f32 = 24.0;

/// Largest resolution that the bound of memory covers, in dots per inch.
const SCAN_RESOLUTION_MAX: u64 = 1_200;
/// Bytes per pixel of the scanned image: brightness, its floats, and their smoothed copies.
const SCANNED_BYTES: u64 = 16;
/// Bytes per pixel at 500 dots per inch: planes that are evened and filtered twice, and lines.
const PLANE_BYTES: u64 = 80;

/// Returns an upper bound of the bytes that [`minutiae`] allocates at once. `width` and `height`
/// are the pixels of a scan of 250 to 1,200 dots per inch.
#[must_use]
pub fn work_bytes(width: u32, height: u32, options: &MinutiaeOptions) -> u64 {
    let pixels = u64::from(width) * u64::from(height);
    let most = PIXELS_MAX as u64;
    // Larger scans than `most` allows are refused.
    let scanned = pixels.min(most * SCAN_RESOLUTION_MAX.pow(2) / (RESOLUTION as u64).pow(2));
    let factor = RESOLUTION / options.dots_per_inch;
    let side = |length: u32| (length as f32 * factor).ceil() as u64;
    let plane = side(width).saturating_mul(side(height)).min(most);
    scanned * SCANNED_BYTES + plane * PLANE_BYTES
}

/// Finds the minutiae of an image with dark ridges.
///
/// # Errors
/// `InvalidArgument` if the resolution is implausible or the pixels are not width times height.
/// Also if the image at 500 dots per inch is too small or too large for a fingerprint.
pub fn minutiae(image: &Gray, options: &MinutiaeOptions) -> Result<Extraction> {
    let plane = Plane::scaled(image, factor(image, options)?);
    let EvenImage { even, contrast } = evened(&plane, &PaddingMask::of(&plane));
    let least = contrast_min(&contrast);
    let wanted = |cell: usize| contrast.values[cell] > least;
    let bank = Bank::shared();
    let pass =
        |flow: &Flow| filtered(&even, flow, &distances(&even, flow, bank, wanted), bank, wanted);
    let first = pass(&Flow::of(&even));
    let ridges = pass(&Flow::of(&first));
    let area = Area::of(&even, &ridges, &contrast, least);

    let mut found = Vec::new();
    for (kind, sign) in [(1, 1.0), (2, -1.0)] {
        let is_line = |x: usize, y: usize| {
            area.holds(x, y) && ridges.values[y * ridges.width + x] * sign > 0.0
        };
        let mut lines = BinaryImage::new(ridges.width, ridges.height, is_line);
        lines.thin();
        candidates(&trace::ends(&lines), kind, &area, &mut found);
    }
    let graph = Graph {
        width: ridges.width as u16,
        height: ridges.height as u16,
        vertices: select_minutiae(found),
        descriptors: Vec::new(),
    };
    Ok(Extraction { graph, quality: area.map() })
}

/// Returns the enlargement to 500 dots per inch, or an error if the image is not valid.
fn factor(image: &Gray, options: &MinutiaeOptions) -> Result<f32> {
    let resolution = options.dots_per_inch;
    if !(RESOLUTION_MIN..=RESOLUTION_MAX).contains(&resolution) {
        return Err(Error::invalid(format!(
            "a fingerprint of {resolution} dots per inch: it must be {RESOLUTION_MIN} to {RESOLUTION_MAX}"
        )));
    }
    if image.pixels.len() as u64 != u64::from(image.width) * u64::from(image.height) {
        return Err(Error::invalid(format!(
            "an image of {} x {} with {} pixels",
            image.width,
            image.height,
            image.pixels.len()
        )));
    }
    let factor = RESOLUTION / resolution;
    let (width, height) = (image.width as f32 * factor, image.height as f32 * factor);
    if width.min(height) < SIDE_MIN || width.max(height) > SIDE_MAX || width * height > PIXELS_MAX {
        return Err(Error::invalid(format!(
            "a fingerprint of {width:.0} x {height:.0} pixels at 500 dots per inch (the image has {} x {} at \
             {resolution}): each side must be at least {SIDE_MIN}, and together at most {PIXELS_MAX} pixels",
            image.width, image.height
        )));
    }
    Ok(factor)
}

const _: () = assert!(choose::KEPT_MAX <= VERTICES_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quality_needs_clear_ridges_area_and_minutiae() {
        let print = |quality: u8, cells: usize, minutiae: usize| {
            let vertices = vec![matching::Vertex::default(); minutiae];
            let graph = Graph { vertices, ..Graph::default() };
            Extraction { graph, quality: vec![quality; cells] }.score()
        };
        let cells = AREA_FULL as usize / (CELL * CELL);
        assert_eq!(print(200, cells, 40), 100);
        assert_eq!(print(200, cells / 2, 40), 50);
        assert_eq!(print(200, cells, 12), 50);
        assert_eq!(print(64, cells, 40), 50);
        assert_eq!(print(0, cells, 0), 0);
    }
}
