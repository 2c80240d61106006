//! The k smallest of a stream of costs.
//!
//! A heap moves log k entries for every accepted cost. Here an accepted cost is only appended. When
//! the list holds `2 * k` costs, most of the worse half is dropped and the threshold falls. A small
//! sample gives the new threshold, and one pass without data-dependent branches drops the rest.
//! Exact selection happens once, at the end. A scan skips whole blocks whose costs are above the
//! threshold.

/// Minimum capacity beyond `k`, so that a small `k` does not prune after every other push.
const ROOM_MIN: usize = 32;
/// Keys sampled to find the new threshold.
const SAMPLE: usize = 16;
/// Index in the sorted sample of the new threshold. It is a little above the middle, so about half
/// of the keys are kept. To keep fewer than `k` would need an exact selection.
const SAMPLE_KEPT: usize = 10;

/// The `k` smallest costs that were pushed, with their rows. Equal costs are ordered by row.
#[derive(Clone, Debug)]
pub struct TopK {
    /// Keys: the cost's bits, mapped to keep their order, above the bits of the row.
    keys: Vec<u64>,
    k: usize,
    threshold: f32,
}

impl Default for TopK {
    fn default() -> TopK {
        TopK { keys: Vec::new(), k: 0, threshold: f32::NAN }
    }
}

impl TopK {
    /// Returns an empty list for the `k` smallest.
    pub fn new(k: usize) -> TopK {
        let mut top = TopK::default();
        top.reset(k);
        top
    }

    /// Empties the list and sets a new `k`, and keeps the memory.
    pub fn reset(&mut self, k: usize) {
        self.keys.clear();
        self.keys.reserve(Self::capacity(k));
        self.k = k;
        // No cost is at most NaN.
        self.threshold = if k == 0 { f32::NAN } else { f32::MAX };
    }

    /// Returns the largest cost that is accepted. It is the largest float until `k` costs were
    /// accepted, and NaN if `k` is 0.
    #[inline]
    pub fn threshold(&self) -> f32 {
        self.threshold
    }

    /// Adds a cost if it is at most the threshold. Equal costs are accepted, so the result does not
    /// depend on the order of pushes. Infinity and NaN are never accepted.
    #[inline]
    pub fn push(&mut self, cost: f32, row: u32) {
        if cost <= self.threshold {
            self.keys.push(key(cost, row));
            if self.keys.len() >= Self::capacity(self.k) {
                self.prune();
            }
        }
    }

    /// Returns the `k` smallest costs with their rows, smallest first.
    pub fn sorted(&mut self) -> impl ExactSizeIterator<Item = (f32, u32)> + '_ {
        self.shrink();
        self.keys.sort_unstable();
        self.keys.iter().map(|key| parts(*key))
    }

    /// Returns the `k` smallest costs with their rows, in no particular order.
    pub fn unsorted(&mut self) -> impl ExactSizeIterator<Item = (f32, u32)> + '_ {
        self.shrink();
        self.keys.iter().map(|key| parts(*key))
    }

    fn capacity(k: usize) -> usize {
        k + k.max(ROOM_MIN)
    }

    /// Drops about the worse half, and none of the `k` smallest.
    fn prune(&mut self) {
        let stride = self.keys.len() / SAMPLE;
        let mut sample: [u64; SAMPLE] = std::array::from_fn(|at| self.keys[at * stride]);
        sample.sort_unstable();
        let pivot = sample[SAMPLE_KEPT];
        let kept: usize = self.keys.iter().map(|key| usize::from(*key <= pivot)).sum();
        if kept < self.k || kept > self.keys.len() - ROOM_MIN / 4 {
            return self.shrink();
        }
        let mut place = 0;
        for at in 0..self.keys.len() {
            let key = self.keys[at];
            self.keys[place] = key;
            place += usize::from(key <= pivot);
        }
        self.keys.truncate(kept);
        self.threshold = parts(pivot).0;
    }

    fn shrink(&mut self) {
        if self.k > 0 && self.keys.len() >= self.k {
            let (_, worst, _) = self.keys.select_nth_unstable(self.k - 1);
            self.threshold = parts(*worst).0;
            self.keys.truncate(self.k);
        }
    }
}

#[inline]
fn key(cost: f32, row: u32) -> u64 {
    // Adding zero turns -0 into 0, so that the two are equal here as well.
    let bits = (cost + 0.0).to_bits();
    let ordered = if bits >> 31 == 1 { !bits } else { bits | (1 << 31) };
    (u64::from(ordered) << 32) | u64::from(row)
}

#[inline]
fn parts(key: u64) -> (f32, u32) {
    let ordered = (key >> 32) as u32;
    let bits = if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered };
    (f32::from_bits(bits), key as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_keeps_the_costs_that_sorting_keeps(
            costs in prop::collection::vec(-50_i32..50, 0..400), k in 0_usize..60, stride in 1_u32..400,
        ) {
            // Rows that are not in ascending order, with many equal costs.
            let row = |at: u32| at.wrapping_mul(2 * stride + 1) % 1021;
            let mut all: Vec<(f32, u32)> =
                costs.iter().zip(0..).map(|(cost, at)| (*cost as f32 / 4.0, row(at))).collect();
            let mut top = TopK::new(k);
            for &(cost, row) in &all {
                top.push(cost, row);
            }
            all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            all.truncate(k);
            prop_assert_eq!(top.sorted().collect::<Vec<_>>(), all);
        }
    }

    #[test]
    fn infinity_and_nan_are_never_accepted() {
        let mut top = TopK::new(3);
        for cost in [f32::NAN, f32::INFINITY, 1.0, -0.0, f32::NEG_INFINITY] {
            top.push(cost, 7);
        }
        assert_eq!(
            top.sorted().map(|(cost, _)| cost).collect::<Vec<_>>(),
            [f32::NEG_INFINITY, 0.0, 1.0]
        );
    }
}
