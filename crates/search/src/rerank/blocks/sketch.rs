//! How often things were asked for of late, roughly, in fixed memory.

/// Estimates are the least of so many counters.
const ROWS: usize = 4;
/// All counters are halved after so many counts for each counter of a row: what was frequent long ago fades.
const PERIOD: u32 = 16;

/// A count-min sketch with conservative update and ageing, as in TinyLFU (Einziger, Friedman, Manes: "TinyLFU: A Highly
/// Efficient Cache Admission Policy", ACM Transactions on Storage 13, 2017). Where more things are counted than there
/// are counters, all estimates rise alike, so that what is asked for no more often than others does not look like a
/// favourite.
#[derive(Debug)]
pub(super) struct Sketch {
    /// The rows, one after the other, each a power of two long.
    counters: Box<[u16]>,
    counted: u32,
}

impl Sketch {
    /// With at least `width` counters in each row.
    pub(super) fn new(width: usize) -> Sketch {
        Sketch { counters: vec![0; ROWS * width.max(16).next_power_of_two()].into(), counted: 0 }
    }

    /// Bytes that `new(width)` takes.
    pub(super) fn footprint(width: usize) -> usize {
        ROWS * width.max(16).next_power_of_two() * size_of::<u16>()
    }

    fn width(&self) -> usize {
        self.counters.len() / ROWS
    }

    /// Where in each row the hash is counted (double hashing; Kirsch and Mitzenmacher, "Less Hashing, Same
    /// Performance", 2008).
    fn places(&self, hash: u64) -> [usize; ROWS] {
        let (mask, step) = (self.width() - 1, (hash >> 32) | 1);
        std::array::from_fn(|row| {
            let place = hash.wrapping_add(step.wrapping_mul(row as u64)) as usize & mask;
            row * self.width() + place
        })
    }

    /// How often it was counted, or more.
    pub(super) fn estimate(&self, hash: u64) -> u32 {
        self.places(hash).iter().map(|&at| u32::from(self.counters[at])).min().unwrap_or(0)
    }

    /// Counts it once.
    pub(super) fn count(&mut self, hash: u64) {
        let least = self.estimate(hash) as u16;
        for at in self.places(hash) {
            if self.counters[at] == least {
                self.counters[at] = least.saturating_add(1);
            }
        }
        self.counted += 1;
        if self.counted >= PERIOD * self.width() as u32 {
            self.counted /= 2;
            self.counters.iter_mut().for_each(|counter| *counter /= 2);
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
        fn never_says_less_than_was_counted(counted in proptest::collection::vec(0u64..60, 0..200)) {
            let mut sketch = Sketch::new(16);
            counted.iter().for_each(|&of| sketch.count(hash(of)));
            for of in 0..60 {
                let truly = counted.iter().filter(|&&other| other == of).count() as u32;
                prop_assert!(sketch.estimate(hash(of)) >= truly);
            }
        }
    }

    #[test]
    fn favourites_stand_out_and_fade() {
        let mut sketch = Sketch::new(256);
        for at in 0..3000u64 {
            sketch.count(hash(if at % 3 == 0 { 5 } else { 1000 + at }));
        }
        let (favourite, other) = (sketch.estimate(hash(5)), sketch.estimate(hash(4000)));
        assert!(favourite >= 1000 && other < 50, "{favourite} {other}");
        for at in 0..40_000u64 {
            sketch.count(hash(10_000 + at));
        }
        let (left, other) = (sketch.estimate(hash(5)), sketch.estimate(hash(4000)));
        assert!(left < 2 * other, "{left} {other}");
    }
}
