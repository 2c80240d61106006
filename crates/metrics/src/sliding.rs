//! Percentiles over the last seconds: a ring of one histogram a second, merged by the reader.
//!
//! Recording takes one uncontended lock, and no allocation once a window had requests in each
//! second. The reader does the merge, once a scrape. The histograms of an idle window are freed,
//! also without a scrape. A server may have thousands of models, of which most have no requests
//! now.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parking_lot::Mutex;

/// Longest window of a [`SlidingHistogram`], in seconds.
pub const WINDOW_SECONDS_MAX: usize = 60;
/// Longest latency in microseconds (100 s). Longer ones count as this one.
const LATENCY_US_MAX: u64 = 100_000_000;
/// Two significant digits, so a p999 is known to 1 %.
const DIGITS: u8 = 2;

/// Figures of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Percentiles {
    /// Requests in the window.
    pub count: u64,
    /// Requests per second.
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
    /// Longest latency.
    pub max: Duration,
}

/// Latencies of one second.
struct SecondSlot {
    /// `u64::MAX` before the first latency.
    second: u64,
    /// About 11 KB. `None` before the first latency, and after an idle window.
    histogram: Option<Histogram<u32>>,
}

impl SecondSlot {
    /// Returns true if no window of `seconds` that ends at `second` or later has this slot.
    fn is_over(&self, second: u64, seconds: u64) -> bool {
        self.second == u64::MAX || self.second.saturating_add(seconds) <= second
    }
}

/// Latencies of the last `window` seconds.
pub struct SlidingHistogram {
    start: Instant,
    slots: Mutex<Vec<SecondSlot>>,
}

fn histogram() -> Histogram<u32> {
    // The bounds are constants that the constructor accepts; a failure here would be our bug.
    Histogram::new_with_bounds(1, LATENCY_US_MAX, DIGITS)
        .expect("constant histogram bounds are valid")
}

/// Frees the histograms if the window that ends at `second` has no latency.
fn free_if_idle(slots: &mut [SecondSlot], second: u64) {
    let seconds = slots.len() as u64;
    if slots.iter().all(|slot| slot.is_over(second, seconds)) {
        slots.iter_mut().for_each(|slot| slot.histogram = None);
    }
}

impl SlidingHistogram {
    /// Creates a window of `seconds` (at most [`WINDOW_SECONDS_MAX`], at least 1) that starts at
    /// `now`.
    pub fn new(seconds: usize, now: Instant) -> SlidingHistogram {
        let count = seconds.clamp(1, WINDOW_SECONDS_MAX);
        let slots = (0..count).map(|_| SecondSlot { second: u64::MAX, histogram: None }).collect();
        SlidingHistogram { start: now, slots: Mutex::new(slots) }
    }

    /// Records one latency that ended at `now`.
    pub fn record(&self, latency: Duration, now: Instant) {
        let second = now.saturating_duration_since(self.start).as_secs();
        let mut slots = self.slots.lock();
        let index = second as usize % slots.len();
        let slot = &mut slots[index];
        let counts = slot.histogram.get_or_insert_with(histogram);
        if slot.second != second {
            counts.reset();
            slot.second = second;
        }
        counts.saturating_record((latency.as_micros() as u64).clamp(1, LATENCY_US_MAX));
    }

    /// Frees the histograms if the window that ends at `now` has no latency.
    pub fn free_if_idle(&self, now: Instant) {
        let second = now.saturating_duration_since(self.start).as_secs();
        free_if_idle(&mut self.slots.lock(), second);
    }

    /// Returns the number of histograms in memory.
    pub fn histograms(&self) -> usize {
        self.slots.lock().iter().filter(|slot| slot.histogram.is_some()).count()
    }

    /// Returns the percentiles of the window that ends at `now`. It has the running second and the
    /// finished seconds before it, one less than the window's length.
    pub fn percentiles(&self, now: Instant) -> Percentiles {
        let elapsed = now.saturating_duration_since(self.start);
        let second = elapsed.as_secs();
        let mut merged = histogram();
        let window = {
            let mut slots = self.slots.lock();
            let seconds = slots.len() as u64;
            free_if_idle(&mut slots, second);
            let in_window =
                slots.iter().filter(|slot| slot.second <= second && !slot.is_over(second, seconds));
            for counts in in_window.filter_map(|slot| slot.histogram.as_ref()) {
                // Equal bounds: adding cannot fail.
                let _ = merged.add(counts);
            }
            slots.len() as f64
        };
        // The running second is incomplete, so a rate over it would be up to 10 % too low.
        let running = f64::from(elapsed.subsec_nanos()) / 1e9;
        let seconds = (window - 1.0).min(second as f64) + running;
        // The first requests of a window do not give a rate yet.
        Percentiles::of(&merged, seconds.max(1.0))
    }
}

impl Percentiles {
    /// Returns the percentiles of a histogram collected in `seconds`.
    fn of(histogram: &Histogram<u32>, seconds: f64) -> Percentiles {
        if histogram.is_empty() {
            return Percentiles::default();
        }
        let at = |quantile| Duration::from_micros(histogram.value_at_quantile(quantile));
        Percentiles {
            count: histogram.len(),
            rate: histogram.len() as f64 / seconds,
            p50: at(0.5),
            p80: at(0.8),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: Duration::from_micros(histogram.max()),
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

    #[test]
    fn an_idle_window_has_no_histograms() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let sliding = SlidingHistogram::new(10, start);
        let made = || sliding.histograms();
        assert_eq!(made(), 0);
        for second in [0, 1, 11] {
            sliding.record(Duration::from_millis(1), at(second));
        }
        assert_eq!(made(), 2, "seconds 1 and 11 share a slot");
        assert_eq!(sliding.percentiles(at(20)).count, 1);
        sliding.free_if_idle(at(20));
        assert_eq!(made(), 2, "second 11 is in the window");
        assert_eq!(sliding.percentiles(at(21)).count, 0);
        assert_eq!(made(), 0);
        sliding.record(Duration::from_millis(1), at(22));
        assert_eq!(sliding.percentiles(at(22)).count, 1);
        // A request may have ended after the reader took the time.
        assert_eq!(sliding.percentiles(at(21)).count, 0);
        assert_eq!(made(), 1);
        sliding.free_if_idle(at(32));
        assert_eq!(made(), 0);
    }

    #[test]
    fn the_rate_is_that_of_the_time_that_has_passed() {
        let start = Instant::now();
        let sliding = SlidingHistogram::new(10, start);
        let at = |ms: u64| start + Duration::from_millis(ms);
        for tenth in 0..125 {
            sliding.record(Duration::from_millis(1), at(100 * tenth));
            if tenth == 4 {
                assert_eq!(sliding.percentiles(at(450)).rate, 5.0, "of the first second");
            }
            if tenth == 119 {
                assert_eq!(sliding.percentiles(at(12_000)).rate, 10.0, "the second has just begun");
            }
        }
        assert_eq!(sliding.percentiles(at(12_500)).rate, 10.0);
    }
}
