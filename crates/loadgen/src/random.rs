//! Seeded numbers that are the same on every machine, and can be computed at any position.

/// Returns a well-mixed 64-bit value of `index` in the stream `seed` (the finaliser of SplitMix64).
pub fn at(seed: u64, index: u64) -> u64 {
    let mut z = seed
        .wrapping_mul(0xD134_2543_DE82_EF95)
        .wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns the number at `index` of the stream `seed`, uniform in -1 to 1, exact in single
/// precision.
pub fn signed_unit(seed: u64, index: u64) -> f32 {
    let bits = (at(seed, index) >> 40) as i32;
    (bits - (1 << 23)) as f32 / (1 << 23) as f32
}

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub struct RandomSequence {
    seed: u64,
    index: u64,
}

impl RandomSequence {
    /// Starts the stream `seed`.
    pub fn new(seed: u64) -> RandomSequence {
        RandomSequence { seed, index: 0 }
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.index += 1;
        at(self.seed, self.index)
    }

    /// Returns the next number in 0 to 1, 1 excluded.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns the next index below `count`. The index is the cube of a uniform number, so low ones
    /// are frequent, as with popular items.
    pub fn skewed(&mut self, count: u64) -> u64 {
        let u = self.unit();
        ((u * u * u * count as f64) as u64).min(count.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_range_and_are_spread() {
        let mut random = RandomSequence::new(3);
        let mean: f64 = (0..10_000).map(|_| random.unit()).sum::<f64>() / 10_000.0;
        assert!((0.49..0.51).contains(&mean), "{mean}");
        let mean: f32 = (0..10_000).map(|i| signed_unit(9, i)).sum::<f32>() / 10_000.0;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((0..10_000).all(|i| (-1.0..1.0).contains(&signed_unit(1, i))));
        assert!((0..1000).all(|_| random.skewed(7) < 7));
        assert_eq!(random.skewed(1), 0);
        let low = (0..10_000).filter(|_| random.skewed(1000) < 125).count();
        assert!((4800..5200).contains(&low), "half of the draws are in the first eighth: {low}");
    }
}
