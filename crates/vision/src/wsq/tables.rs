//! The frame header and the quantisation table.

use base::Result;

use super::damaged;
use super::tree::SUBBANDS;
use crate::bytes::{be16, be32};

/// Size of the image, and the scaling of its pixels.
pub(super) struct WsqFrame {
    pub(super) width: u16,
    pub(super) height: u16,
    /// Value that encoders subtract from each pixel (M).
    pub(super) shift: f32,
    /// Value that encoders divide each pixel by (R).
    pub(super) scale: f32,
}

impl WsqFrame {
    pub(super) fn parse(body: &[u8]) -> Result<WsqFrame> {
        let parse = || {
            // The first two bytes are the grey levels of black and white, which do not matter.
            Some(WsqFrame {
                height: be16(body, 2)?,
                width: be16(body, 4)?,
                shift: scaled(body, 6)?,
                scale: scaled(body, 9)?,
            })
        };
        parse().ok_or_else(|| damaged("its frame header is too short"))
    }
}

/// Quantisation of all subbands.
#[derive(PartialEq)]
pub(super) struct Quantizer {
    /// Place of a reconstructed value in its bin: 0 at the outer edge, 1 at the inner edge.
    pub(super) center: f32,
    pub(super) bins: [QuantizerBins; SUBBANDS],
}

/// Quantisation of a subband.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) struct QuantizerBins {
    /// Width of a bin (Q), or 0 if the subband is not in the file.
    pub(super) width: f32,
    /// Width of the bin around zero (Z).
    pub(super) zero_width: f32,
}

impl Quantizer {
    pub(super) fn parse(body: &[u8]) -> Result<Quantizer> {
        let too_short = || damaged("its quantisation table is too short");
        let center = scaled(body, 0).ok_or_else(too_short)?;
        let mut bins = [QuantizerBins::default(); SUBBANDS];
        for (at, bin) in (3..).step_by(6).zip(&mut bins) {
            let width = scaled(body, at).ok_or_else(too_short)?;
            let zero_width = scaled(body, at + 3).ok_or_else(too_short)?;
            *bin = QuantizerBins { width, zero_width };
        }
        Ok(Quantizer { center, bins })
    }
}

impl QuantizerBins {
    /// Returns the value that a quantiser index represents.
    pub(super) fn value(self, index: i32, center: f32) -> f32 {
        let index = index as f32;
        if index > 0.0 {
            self.width * (index - center) + self.zero_width / 2.0
        } else if index < 0.0 {
            self.width * (index + center) - self.zero_width / 2.0
        } else {
            0.0
        }
    }
}

/// Reads a decimal number: the count of digits after the point in one byte, the digits in two.
fn scaled(bytes: &[u8], at: usize) -> Option<f32> {
    Some(decimal(*bytes.get(at)?, be16(bytes, at + 1)?.into()))
}

/// Reads a decimal number with a sign: the sign in one byte, the count of digits after the point in
/// one, the digits in four.
pub(super) fn signed(bytes: &[u8], at: usize) -> Option<f32> {
    let magnitude = decimal(*bytes.get(at + 1)?, be32(bytes, at + 2)?);
    Some(if *bytes.get(at)? == 0 { magnitude } else { -magnitude })
}

fn decimal(places: u8, digits: u32) -> f32 {
    (f64::from(digits) / 10_f64.powi(places.into())) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_numbers() {
        assert_eq!(scaled(&[2, 0, 44], 0), Some(0.44));
        assert_eq!(scaled(&[0, 1, 0], 0), Some(256.0));
        assert_eq!(scaled(&[255, 255, 255], 0), Some(0.0));
        assert_eq!(scaled(&[2, 0], 0), None);
        assert_eq!(signed(&[1, 1, 0, 0, 0, 25], 0), Some(-2.5));
        assert_eq!(signed(&[0, 1, 0, 0, 0], 0), None);
    }

    #[test]
    fn values_lie_inside_their_bins() {
        let bins = QuantizerBins { width: 2.0, zero_width: 3.0 };
        assert_eq!(
            [-2, -1, 0, 1, 2].map(|index| bins.value(index, 0.5)),
            [-4.5, -2.5, 0.0, 2.5, 4.5]
        );
    }
}
