//! Random rotation in O(n log n): rounds of random signs and Walsh-Hadamard transforms.
//!
//! If the number of dimensions is not a power of two, a round transforms the largest power of two
//! that fits. Rounds begin alternately at the front and at the back. The round then mixes the two
//! halves (the Kac walk), so that every value reaches every other.

use base::Result;
use kernels::{hadamard, rabitq};

use crate::kmeans::RandomDraws;

/// Number of rounds of signs and transform.
const ROUNDS: usize = 4;

/// Rotation of vectors that are first padded with zeros.
#[derive(Clone, Debug)]
pub(super) struct Rotation {
    dims: usize,
    padded: usize,
    /// +1 or -1: `padded` values per round.
    signs: Vec<f32>,
}

impl Rotation {
    /// Creates the rotation of a seed, for vectors of `dims` values.
    pub(super) fn new(dims: usize, seed: u64) -> Rotation {
        let padded = padded(dims);
        let mut draw = RandomDraws::new(seed);
        let signs =
            (0..ROUNDS * padded).map(|_| if draw.bits() >> 63 == 0 { 1.0 } else { -1.0 }).collect();
        Rotation { dims, padded, signs }
    }

    /// Returns the values of a rotated vector.
    pub(super) fn padded(&self) -> usize {
        self.padded
    }

    /// Returns the number of stored values.
    pub(super) fn values(&self) -> usize {
        self.signs.len()
    }

    /// Rotates `vector` (`dims` values) into `out` (`padded` values). Keeps lengths and products.
    pub(super) fn rotate(&self, vector: &[f32], out: &mut [f32]) {
        out[..self.dims].copy_from_slice(&vector[..self.dims]);
        out[self.dims..].fill(0.0);
        let whole = 1 << self.padded.ilog2();
        for (round, signs) in self.signs.chunks_exact(self.padded).enumerate() {
            out.iter_mut().zip(signs).for_each(|(value, sign)| *value *= sign);
            if round % 2 == 0 {
                hadamard::transform(&mut out[..whole]);
            } else {
                hadamard::transform(&mut out[self.padded - whole..]);
            }
            if whole != self.padded {
                mix_halves(out);
            }
        }
    }

    /// Returns the rotated `vector`.
    pub(super) fn rotated(&self, vector: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; self.padded];
        self.rotate(vector, &mut out);
        out
    }

    /// Rotates several vectors.
    pub(super) fn rotate_all(&self, vectors: &[f32], out: &mut [f32]) {
        for (vector, out) in vectors.chunks_exact(self.dims).zip(out.chunks_exact_mut(self.padded))
        {
            self.rotate(vector, out);
        }
    }
}

/// Rounds `dims` up to the unit of the codes.
pub(super) fn padded(dims: usize) -> usize {
    dims.next_multiple_of(rabitq::DIMS_STEP)
}

fn mix_halves(values: &mut [f32]) {
    let (low, high) = values.split_at_mut(values.len() / 2);
    for (low, high) in low.iter_mut().zip(high) {
        let sum = *low + *high;
        let difference = *low - *high;
        *low = sum * std::f32::consts::FRAC_1_SQRT_2;
        *high = difference * std::f32::consts::FRAC_1_SQRT_2;
    }
}

/// Checks that the codes support `dims`.
///
/// # Errors
/// `InvalidArgument`.
pub(super) fn check_dims(dims: usize) -> Result<()> {
    if dims == 0 || padded(dims) > rabitq::DIMS_MAX {
        Err(base::Error::invalid(format!(
            "one-bit codes have 1 to {} dimensions, not {dims}",
            rabitq::DIMS_MAX
        )))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::float::{dot, l2};

    #[test]
    fn rotation_keeps_lengths_and_spreads_values() {
        for dims in [1, 3, 64, 100, 128, 384, 768, 1280, 1536] {
            let rotation = Rotation::new(dims, 5);
            // The hardest case: one value holds everything.
            let mut one = vec![0.0; dims];
            one[dims / 2] = 1.0;
            let other: Vec<f32> = (0..dims).map(|at| (at as f32).sin()).collect();
            let mut rotated = [vec![9.0; rotation.padded()], vec![9.0; rotation.padded()]];
            rotation.rotate(&one, &mut rotated[0]);
            rotation.rotate(&other, &mut rotated[1]);
            let tolerance = 1e-4 * (1.0 + l2(&one, &other));
            assert!((dot(&rotated[0], &rotated[1]) - dot(&one, &other)).abs() < tolerance);
            assert!((l2(&rotated[0], &rotated[1]) - l2(&one, &other)).abs() < tolerance);
            let largest = rotated[0].iter().fold(0f32, |largest, value| largest.max(value.abs()));
            assert!(largest < 6.0 / (rotation.padded() as f32).sqrt(), "{dims}: {largest}");
        }
    }

    #[test]
    fn dimensions_are_bounded() {
        assert!(check_dims(0).is_err() && check_dims(4097).is_err());
        assert!(check_dims(1).is_ok() && check_dims(4096).is_ok());
    }
}
