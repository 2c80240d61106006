//! Approximate frequencies of recent uses, in fixed memory.

/// Counters per estimate. The estimate is their minimum.
const ROWS: usize = 4;
/// Counters from which a hash chooses each counter of its estimate.
const ROW_COUNTERS: usize = 8;
/// Counters of a line. They fit a cache line, so an estimate is one access to memory.
const LINE_COUNTERS: usize = ROWS * ROW_COUNTERS;
/// Counts per counter after which all counters are halved, so that old uses fade.
const PERIOD: u32 = 4;

/// Count-min sketch with conservative update and ageing, as in TinyLFU (Einziger, Friedman, Manes:
/// "TinyLFU: A Highly Efficient Cache Admission Policy", ACM Transactions on Storage 13, 2017). It
/// is blocked, so that a look-up is one access to memory. With more items than counters all
/// estimates rise equally, so an average item does not seem frequent.
#[derive(Debug)]
pub(super) struct FrequencySketch {
    lines: Box<[[u16; LINE_COUNTERS]]>,
    /// Counts since the counters were halved.
    counted: u32,
}

fn lines(counters: usize) -> usize {
    counters.div_ceil(LINE_COUNTERS).next_power_of_two()
}

impl FrequencySketch {
    /// Creates a sketch of at least `counters` counters.
    pub(super) fn new(counters: usize) -> FrequencySketch {
        FrequencySketch { lines: vec![[0; LINE_COUNTERS]; lines(counters)].into(), counted: 0 }
    }

    /// Returns the bytes of memory of a sketch that [`FrequencySketch::new`] creates.
    pub(super) fn footprint(counters: usize) -> usize {
        lines(counters) * LINE_COUNTERS * size_of::<u16>()
    }

    /// Returns the line of a hash, and its counters in the line.
    fn places(&self, hash: u64) -> (usize, [usize; ROWS]) {
        let within =
            |row: usize| row * ROW_COUNTERS + (hash >> (32 + 3 * row)) as usize % ROW_COUNTERS;
        (hash as usize & (self.lines.len() - 1), std::array::from_fn(within))
    }

    /// Returns an upper bound of the count of a hash.
    pub(super) fn estimate(&self, hash: u64) -> u32 {
        let (line, places) = self.places(hash);
        places.iter().map(|&at| u32::from(self.lines[line][at])).min().unwrap_or(0)
    }

    /// Counts a use. All counters are halved from time to time, so that old uses count less.
    pub(super) fn count(&mut self, hash: u64) {
        let (least, (line, places)) = (self.estimate(hash) as u16, self.places(hash));
        for at in places {
            let counter = &mut self.lines[line][at];
            if *counter == least {
                *counter = least.saturating_add(1);
            }
        }
        self.counted += 1;
        if self.counted >= PERIOD * (self.lines.len() * LINE_COUNTERS) as u32 {
            self.counted /= 2;
            self.lines.iter_mut().flatten().for_each(|counter| *counter /= 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hash(of: u64) -> u64 {
        super::super::super::hash::mix(7, of)
    }

    proptest! {
        #[test]
        fn an_estimate_is_never_below_the_count(counted in proptest::collection::vec(0u64..60, 0..200)) {
            let mut sketch = FrequencySketch::new(64);
            counted.iter().for_each(|&of| sketch.count(hash(of)));
            for of in 0..60 {
                let truly = counted.iter().filter(|&&other| other == of).count() as u32;
                prop_assert!(sketch.estimate(hash(of)) >= truly);
            }
        }
    }

    #[test]
    fn favourites_stand_out_and_fade() {
        let mut sketch = FrequencySketch::new(1024);
        for at in 0..3000u64 {
            sketch.count(hash(if at % 3 == 0 { 5 } else { 1000 + at }));
        }
        let favourite = sketch.estimate(hash(5));
        let other = sketch.estimate(hash(4000));
        assert!(favourite >= 1000 && other < 50, "{favourite} {other}");
        for at in 0..40_000u64 {
            sketch.count(hash(10_000 + at));
        }
        let left = sketch.estimate(hash(5));
        let other = sketch.estimate(hash(4000));
        assert!(left < 2 * other, "{left} {other}");
    }
}
