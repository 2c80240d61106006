//! Percentiles over the last seconds: a ring of one histogram a second, merged when somebody looks.
//!
//! Recording takes one uncontended lock and no allocation; the merge is paid by the reader, once a scrape.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// The longest window a [`SlidingHistogram`] may have, in seconds.
pub const WINDOW_SECONDS_MAX: usize = 60;
/// Longest latency that is told apart, in microseconds (100 s); longer ones count as this.
const LATENCY_US_MAX: u64 = 100_000_000;
/// Two significant digits: a p999 is known to 1 %.
const DIGITS: u8 = 2;

/// What a window held.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Percentiles {
    /// Requests in the window.
    pub count: u64,
    /// Requests a second.
    pub rate: f64,
    /// Median latency.
    pub p50: Duration,
    /// 80th percentile.
    pub p80: Duration,
    /// 90th percentile.
    pub p90: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// 99.9th percentile.
    pub p999: Duration,
    /// Slowest.
    pub max: Duration,
}

struct Slot {
    second: u64,
    histogram: Histogram<u32>,
}

/// Latencies of the last `window` seconds.
pub struct SlidingHistogram {
    start: Instant,
    slots: Mutex<Vec<Slot>>,
}

fn histogram() -> Histogram<u32> {
    // The bounds are constants that the constructor accepts; a failure here would be our bug.
    Histogram::new_with_bounds(1, LATENCY_US_MAX, DIGITS).expect("constant histogram bounds are valid")
}

impl SlidingHistogram {
    /// A window of `seconds` (at most [`WINDOW_SECONDS_MAX`], at least 1), starting at `now`.
    pub fn new(seconds: usize, now: Instant) -> SlidingHistogram {
        let count = seconds.clamp(1, WINDOW_SECONDS_MAX);
        let slots = (0..count).map(|_| Slot { second: u64::MAX, histogram: histogram() }).collect();
        SlidingHistogram { start: now, slots: Mutex::new(slots) }
    }

    /// Records one latency that ended at `now`.
    pub fn record(&self, latency: Duration, now: Instant) {
        let second = now.saturating_duration_since(self.start).as_secs();
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let index = second as usize % slots.len();
        let slot = &mut slots[index];
        if slot.second != second {
            slot.histogram.reset();
            slot.second = second;
        }
        slot.histogram.saturating_record((latency.as_micros() as u64).clamp(1, LATENCY_US_MAX));
    }

    /// The percentiles of the window that ends at `now`.
    pub fn percentiles(&self, now: Instant) -> Percentiles {
        let second = now.saturating_duration_since(self.start).as_secs();
        let mut merged = histogram();
        let window = {
            let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            for slot in
                slots.iter().filter(|slot| slot.second <= second && slot.second + slots.len() as u64 > second)
            {
                // Equal bounds: adding cannot fail.
                let _ = merged.add(&slot.histogram);
            }
            slots.len() as f64
        };
        if merged.is_empty() {
            return Percentiles::default();
        }
        let at = |quantile| Duration::from_micros(merged.value_at_quantile(quantile));
        Percentiles {
            count: merged.len(),
            rate: merged.len() as f64 / window.min(second as f64 + 1.0),
            p50: at(0.5),
            p80: at(0.8),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: Duration::from_micros(merged.max()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_seconds_fall_out() {
        let start = Instant::now();
        let sliding = SlidingHistogram::new(10, start);
        let at = |s: f64| start + Duration::from_secs_f64(s);
        for i in 0..1000 {
            sliding.record(Duration::from_millis(1), at(i as f64 / 1000.0));
        }
        sliding.record(Duration::from_millis(500), at(1.5));
        let seen = sliding.percentiles(at(1.9));
        assert_eq!(seen.count, 1001);
        assert!(seen.max >= Duration::from_millis(495) && seen.p50 < Duration::from_micros(1100));
        assert_eq!(sliding.percentiles(at(10.5)).count, 1, "the first second has left the window");
        assert_eq!(sliding.percentiles(at(12.0)).count, 0);
        sliding.record(Duration::from_millis(2), at(20.2));
        assert_eq!(sliding.percentiles(at(20.3)).count, 1, "a reused slot starts empty");
    }
}
