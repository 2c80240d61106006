//! The plane of wavelet coefficients, filled in the order of the file.

use base::Result;

use super::tables::{Quantizer, QuantizerBins};
use super::tree::{Band, SUBBANDS_CODED, SubbandTree};
use super::{damaged, truncated};

/// Coefficients of an image. A coefficient that the file has not reached yet is zero.
pub(super) struct Coefficients {
    plane: Vec<f32>,
    width: usize,
    /// Distance of a bin's value from its outer edge, as a part of its width.
    center: f32,
    /// Subbands in the file that have coefficients.
    bands: Vec<(Band, QuantizerBins)>,
    /// Place of the next coefficient: its subband, and its number in there.
    band: usize,
    at: usize,
}

impl Coefficients {
    /// Allocates the plane. The caller has checked the size of the image.
    pub(super) fn new(tree: &SubbandTree, quantizer: &Quantizer) -> Coefficients {
        let bands = tree.subbands.iter().zip(quantizer.bins).take(SUBBANDS_CODED);
        let bands = bands.filter(|(band, bins)| bins.width != 0.0 && band.area() > 0);
        let bands = bands.map(|(band, bins)| (*band, bins)).collect();
        let image = tree.splits.first().copied().unwrap_or_default();
        Coefficients {
            plane: vec![0.0; image.area()],
            width: image.columns.length,
            center: quantizer.center,
            bands,
            band: 0,
            at: 0,
        }
    }

    /// Returns true if the last coefficient is set.
    pub(super) fn complete(&self) -> bool {
        self.band == self.bands.len()
    }

    /// Sets the next coefficient from its quantiser index.
    pub(super) fn push(&mut self, index: i32) -> Result<()> {
        let (band, bins) = self.bands.get(self.band).ok_or_else(too_many)?;
        let row = band.rows.start + self.at / band.columns.length;
        let column = band.columns.start + self.at % band.columns.length;
        if let Some(place) = self.plane.get_mut(row * self.width + column) {
            *place = bins.value(index, self.center);
        }
        self.skip(1)
    }

    /// Leaves the next `count` coefficients at zero.
    pub(super) fn skip(&mut self, mut count: usize) -> Result<()> {
        while count > 0 {
            let (band, _) = self.bands.get(self.band).ok_or_else(too_many)?;
            let left = band.area() - self.at;
            if count < left {
                self.at += count;
                return Ok(());
            }
            count -= left;
            self.band += 1;
            self.at = 0;
        }
        Ok(())
    }

    /// Returns the plane, row by row.
    ///
    /// # Errors
    /// `InvalidArgument` if coefficients are missing.
    pub(super) fn finish(self) -> Result<Vec<f32>> {
        if self.complete() { Ok(self.plane) } else { Err(truncated()) }
    }
}

fn too_many() -> base::Error {
    damaged("it has more coefficients than its size permits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_follow_rows_and_subbands() {
        let mut bins = [QuantizerBins::default(); 64];
        let coded = QuantizerBins { width: 1.0, zero_width: 0.0 };
        (bins[52], bins[59]) = (coded, coded);
        let quantizer = Quantizer { center: 0.0, bins };
        // Subband 52 has 2 x 2 coefficients at column 4, subband 59 2 x 2 at column 2 of row 6.
        let mut coefficients = Coefficients::new(&SubbandTree::of(8, 8), &quantizer);
        coefficients.push(1).unwrap();
        coefficients.push(2).unwrap();
        coefficients.push(3).unwrap();
        coefficients.skip(2).unwrap();
        coefficients.push(-4).unwrap();
        assert!(!coefficients.complete());
        coefficients.skip(2).unwrap();
        assert!(coefficients.complete());
        assert!(coefficients.skip(1).is_err() && coefficients.push(1).is_err());
        let plane = coefficients.finish().unwrap();
        let set: Vec<(usize, f32)> =
            plane.into_iter().enumerate().filter(|(_, value)| *value != 0.0).collect();
        assert_eq!(set, [(4, 1.0), (5, 2.0), (12, 3.0), (51, -4.0)]);
    }
}
