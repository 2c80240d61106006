//! Quantiles of the last minute without a lock: a ring of histograms of atomic counters.
//!
//! A bucket is an eighth of an octave, so a quantile is known to 13 %. That is enough for a limit,
//! and takes 6 KiB a model.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// Bits of a bucket's number within its octave.
const FRACTION_BITS: u32 = 3;
/// Number of buckets of an octave.
const PARTS: usize = 1 << FRACTION_BITS;
/// Number of octaves of microseconds: up to 134 s.
const OCTAVES: usize = 27;
/// Number of buckets.
const BUCKETS: usize = OCTAVES * PARTS;
/// Number of histograms of the ring. One of them is being filled.
const SLOTS: usize = 6;
/// Time after which the next histogram is filled.
pub(crate) const SLOT_TIME: Duration = Duration::from_secs(10);

/// Latencies of the last minute.
pub(crate) struct LatencyWindow {
    slots: Box<[[AtomicU32; BUCKETS]; SLOTS]>,
    filling: AtomicUsize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WindowQuantiles {
    pub(crate) count: u64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

impl Default for LatencyWindow {
    fn default() -> LatencyWindow {
        let slot = || std::array::from_fn(|_| AtomicU32::new(0));
        LatencyWindow {
            slots: Box::new(std::array::from_fn(|_| slot())),
            filling: AtomicUsize::new(0),
        }
    }
}

impl LatencyWindow {
    /// Counts one latency.
    pub(crate) fn record(&self, latency: Duration) {
        let slot = &self.slots[self.filling.load(Ordering::Relaxed) % SLOTS];
        slot[bucket(latency)].fetch_add(1, Ordering::Relaxed);
    }

    /// Clears the oldest histogram and fills it again. A latency that is recorded at the same time
    /// may be lost.
    pub(crate) fn rotate(&self) {
        let next = (self.filling.load(Ordering::Relaxed) + 1) % SLOTS;
        self.slots[next].iter().for_each(|count| count.store(0, Ordering::Relaxed));
        self.filling.store(next, Ordering::Relaxed);
    }

    /// Returns the quantiles of all histograms: the upper end of the bucket of each.
    pub(crate) fn quantiles(&self) -> WindowQuantiles {
        let mut counts = [0u64; BUCKETS];
        for slot in self.slots.iter() {
            for (sum, count) in counts.iter_mut().zip(slot) {
                *sum += u64::from(count.load(Ordering::Relaxed));
            }
        }
        let count: u64 = counts.iter().sum();
        let at = |hundredths: u64| {
            let wanted = (count * hundredths).div_ceil(100).max(1);
            let mut before = 0;
            let reached = |bucket: &usize| {
                before += counts[*bucket];
                before >= wanted
            };
            (0..BUCKETS).find(reached).map_or(Duration::ZERO, upper)
        };
        WindowQuantiles { count, p50: at(50), p99: at(99) }
    }
}

/// Returns the bucket of a latency.
fn bucket(latency: Duration) -> usize {
    let us = (latency.as_micros() as u64).clamp(1, (1 << OCTAVES) - 1);
    let octave = us.ilog2();
    let fraction = (us << FRACTION_BITS >> octave) as usize & (PARTS - 1);
    octave as usize * PARTS + fraction
}

/// Returns the upper end of a bucket.
fn upper(bucket: usize) -> Duration {
    let octave = bucket / PARTS;
    let fraction = bucket % PARTS;
    let us = (((PARTS + fraction + 1) as u64) << octave).div_ceil(PARTS as u64);
    Duration::from_micros(us)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn old_latencies_leave_the_window() {
        let window = LatencyWindow::default();
        assert_eq!(window.quantiles(), WindowQuantiles::default());
        window.record(Duration::from_millis(70));
        for _ in 0..SLOTS - 1 {
            window.rotate();
            window.record(Duration::from_millis(1));
        }
        assert_eq!(window.quantiles().count, SLOTS as u64);
        assert!(window.quantiles().p99 >= Duration::from_millis(70));
        window.rotate();
        assert_eq!(window.quantiles().count, SLOTS as u64 - 1);
        assert!(window.quantiles().p99 < Duration::from_millis(2));
    }

    proptest! {
        #[test]
        fn quantiles_are_those_of_a_sorted_list(
            mut list in prop::collection::vec(1u64..200_000_000, 1..400)
        ) {
            let window = LatencyWindow::default();
            list.iter().for_each(|us| window.record(Duration::from_micros(*us)));
            list.sort_unstable();
            let quantiles = window.quantiles();
            prop_assert_eq!(quantiles.count, list.len() as u64);
            for (hundredths, found) in [(50, quantiles.p50), (99, quantiles.p99)] {
                let rank = (list.len() * hundredths).div_ceil(100).max(1);
                let exact = list[rank - 1].min((1 << OCTAVES) - 1) as f64;
                let found = found.as_micros() as f64;
                prop_assert!(found >= exact && found <= exact * 1.13 + 1.0, "{} {}", found, exact);
            }
        }
    }
}
