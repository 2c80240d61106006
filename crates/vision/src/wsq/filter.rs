//! The wavelet filters that a WSQ file contains.
//!
//! A file has the right halves of the analysis filters h0 (low-pass) and h1 (high-pass). The
//! synthesis filters follow from them, up to a delay: the low-pass is (-1)^k h1(k), the high-pass
//! (-1)^k h0(k). Filters of odd length are symmetric about their middle tap. Of even length, the
//! low-pass is symmetric and the high-pass antisymmetric about the middle between two taps.

use base::{Error, Result};

use super::damaged;
use super::tables::signed;

/// Longest filter in taps. Filters in use have 7 to 10.
const TAPS_MAX: usize = 32;
/// Bytes of a tap in the file.
const TAP_BYTES: usize = 6;

/// The synthesis filters, and the symmetry of the signals that they join.
pub(super) struct FilterBank {
    /// Filters for the even and the odd outputs.
    pub(super) even: PolyphaseTaps,
    pub(super) odd: PolyphaseTaps,
    pub(super) symmetry: Symmetry,
}

/// The taps that contribute to outputs of one parity.
pub(super) struct PolyphaseTaps {
    pub(super) low: PhaseTaps,
    pub(super) high: PhaseTaps,
}

/// Consecutive weights.
pub(super) struct PhaseTaps {
    /// Distance of the first weight's coefficient from the one at half the output's position.
    pub(super) first: isize,
    pub(super) weights: Vec<f32>,
}

/// Symmetry of a line beyond its ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Symmetry {
    /// About the outermost pixels: filters of odd length.
    WholeSample,
    /// About half a pixel beyond them: filters of even length.
    HalfSample,
}

impl FilterBank {
    /// Parses the transform table: the number of taps of each filter, and the right half of its
    /// taps.
    pub(super) fn parse(body: &[u8]) -> Result<FilterBank> {
        let too_short = || damaged("its transform table is too short");
        let &[low_taps, high_taps, ..] = body else { return Err(too_short()) };
        let low_taps = usize::from(low_taps);
        let high_taps = usize::from(high_taps);
        let lengths = 1..=TAPS_MAX;
        if !lengths.contains(&low_taps)
            || !lengths.contains(&high_taps)
            || low_taps % 2 != high_taps % 2
        {
            return Err(Error::invalid(format!(
                "this kind of wsq cannot be read: filters of {low_taps} and {high_taps} taps"
            )));
        }
        let half = |start: usize, taps: usize| -> Option<Vec<f32>> {
            (0..taps.div_ceil(2)).map(|tap| signed(body, start + tap * TAP_BYTES)).collect()
        };
        let low = half(2, low_taps).ok_or_else(too_short)?;
        let high_start = 2 + low.len() * TAP_BYTES;
        let high = half(high_start, high_taps).ok_or_else(too_short)?;
        Ok(if low_taps % 2 == 1 {
            FilterBank::odd(&low, &high)
        } else {
            FilterBank::even(&low, &high)
        })
    }

    /// Builds filters of odd length from the right halves of the analysis filters.
    fn odd(low: &[f32], high: &[f32]) -> FilterBank {
        let tap =
            |half: &[f32], at: isize| half.get(at.unsigned_abs()).map(|&tap| alternate(at) * tap);
        FilterBank::new(
            Symmetry::WholeSample,
            &|at| tap(high, at),
            // High-pass coefficients lie at odd positions.
            &|at| tap(low, at - 1),
        )
    }

    /// Builds filters of even length. They are symmetric about 1/2, one position later than the
    /// analysis filters.
    fn even(low: &[f32], high: &[f32]) -> FilterBank {
        let tap = |half: &[f32], at: isize| {
            let from_middle = if at > 0 { at - 1 } else { -at };
            half.get(from_middle.unsigned_abs()).map(|&tap| alternate(from_middle) * tap)
        };
        FilterBank::new(Symmetry::HalfSample, &|at| tap(high, at).map(|tap| -tap), &|at| {
            tap(low, at).map(|tap| if at > 0 { tap } else { -tap })
        })
    }

    /// Sorts the taps by the parity of the outputs that they contribute to. A filter is a function
    /// of the distance from a coefficient's position to the output.
    fn new(
        symmetry: Symmetry,
        low: &dyn Fn(isize) -> Option<f32>,
        high: &dyn Fn(isize) -> Option<f32>,
    ) -> FilterBank {
        let taps = |filter: &dyn Fn(isize) -> Option<f32>, parity: isize| {
            let most = TAPS_MAX as isize;
            let mut taps = PhaseTaps { first: 0, weights: Vec::new() };
            for offset in -most..=most {
                let Some(weight) = filter(parity - 2 * offset) else { continue };
                if taps.weights.is_empty() {
                    taps.first = offset;
                }
                taps.weights.push(weight);
            }
            taps
        };
        let phase = |parity| PolyphaseTaps { low: taps(low, parity), high: taps(high, parity) };
        FilterBank { even: phase(0), odd: phase(1), symmetry }
    }

    /// Returns the maximum number of coefficients beyond an end of a line that an output value
    /// needs.
    pub(super) fn reach(&self) -> usize {
        let phases = [&self.even, &self.odd];
        let taps = phases.into_iter().flat_map(|phase| [&phase.low, &phase.high]);
        taps.map(|taps| taps.first.unsigned_abs() + taps.weights.len()).max().unwrap_or(0)
    }
}

fn alternate(at: isize) -> f32 {
    if at % 2 == 0 { 1.0 } else { -1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(low: &[i32], high: &[i32], lengths: [u8; 2]) -> Vec<u8> {
        let taps = low.iter().chain(high).flat_map(|&tap| {
            let digits = tap.unsigned_abs().to_be_bytes();
            [&[u8::from(tap < 0), 3][..], &digits].concat()
        });
        lengths.into_iter().chain(taps).collect()
    }

    #[test]
    fn taps_of_the_5_3_filters() {
        let bank = FilterBank::parse(&table(&[1060, 354, -177], &[707, -354], [5, 3])).unwrap();
        assert_eq!(bank.symmetry, Symmetry::WholeSample);
        assert_eq!((bank.even.low.first, &bank.even.low.weights[..]), (0, &[0.707][..]));
        assert_eq!((bank.odd.low.first, &bank.odd.low.weights[..]), (0, &[0.354, 0.354][..]));
        assert_eq!(
            (bank.even.high.first, &bank.even.high.weights[..]),
            (-1, &[-0.354, -0.354][..])
        );
        assert_eq!(
            (bank.odd.high.first, &bank.odd.high.weights[..]),
            (-1, &[-0.177, 1.06, -0.177][..])
        );
        assert_eq!(bank.reach(), 4);
    }

    #[test]
    fn bad_tables_are_refused() {
        let whole = table(&[1060, 354, -177], &[707, -354], [5, 3]);
        for end in 0..whole.len() {
            assert!(FilterBank::parse(&whole[..end]).is_err(), "{end}");
        }
        for lengths in [[0, 0], [5, 4], [33, 3], [255, 255]] {
            assert!(FilterBank::parse(&table(&[1; 200], &[1; 200], lengths)).is_err());
        }
    }
}
