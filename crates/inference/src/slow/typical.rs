//! The typical times of a model's requests, and the limit above which a request is slow.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use base::RequestTimeline;

use super::phases::{PHASES, PhaseTimes};
use super::window::LatencyWindow;

/// Fewest requests of the window for a limit.
const REQUESTS_MIN: u64 = 20;
/// Minimum time above the median, so that a fast model does not report noise.
const EXCESS_MIN: Duration = Duration::from_millis(1);
/// Minimum ratio of the limit and the median.
const RATIO_MIN: u32 = 2;
/// Weight of a request in the means.
const WEIGHT: f32 = 1.0 / 32.0;
/// Position of the mean number of items, after the means of the phases.
const ITEMS: usize = PHASES;
/// Position of the mean number of page faults.
const FAULTS: usize = PHASES + 1;
/// Number of means.
const MEANS: usize = PHASES + 2;

/// Typical times of a model, recorded without a lock.
pub(crate) struct ModelTypical {
    pub(crate) window: LatencyWindow,
    /// Nanoseconds above which a request is slow.
    limit: AtomicU64,
    median: AtomicU64,
    /// Moving means of the requests that were not slow, as bits of floats. If two requests are
    /// recorded at the same time, one of them may be lost.
    means: [AtomicU32; MEANS],
}

/// A copy of the typical times.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Typical {
    pub(crate) median: Duration,
    pub(crate) phases: PhaseTimes,
    pub(crate) items: f64,
    pub(crate) minor_faults: f64,
}

impl Default for ModelTypical {
    fn default() -> ModelTypical {
        ModelTypical {
            window: LatencyWindow::default(),
            limit: AtomicU64::new(u64::MAX),
            median: AtomicU64::new(0),
            means: std::array::from_fn(|_| AtomicU32::new(f32::NAN.to_bits())),
        }
    }
}

impl ModelTypical {
    /// Counts a request. Returns true if it is slow.
    pub(crate) fn record(&self, timeline: &RequestTimeline) -> bool {
        let total = timeline.total();
        self.window.record(total);
        if total.as_nanos() as u64 > self.limit.load(Ordering::Relaxed) {
            return true;
        }
        let phases = PhaseTimes::of(timeline);
        let run = timeline.run.as_ref();
        let more =
            [run.map_or(0, |run| run.items) as f32, run.map_or(0, |run| run.minor_faults) as f32];
        let values = phases.0.iter().map(|ms| *ms as f32).chain(more);
        for (mean, value) in self.means.iter().zip(values) {
            let old = f32::from_bits(mean.load(Ordering::Relaxed));
            let new = if old.is_nan() { value } else { old + (value - old) * WEIGHT };
            mean.store(new.to_bits(), Ordering::Relaxed);
        }
        false
    }

    /// Recomputes the limit from the window. Keeps the last limit if there are too few requests.
    pub(crate) fn update_limit(&self) {
        let quantiles = self.window.quantiles();
        if quantiles.count < REQUESTS_MIN {
            return;
        }
        let floor = (quantiles.p50 * RATIO_MIN).max(quantiles.p50 + EXCESS_MIN);
        let limit = quantiles.p99.max(floor);
        self.median.store(quantiles.p50.as_nanos() as u64, Ordering::Relaxed);
        self.limit.store(limit.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Returns a copy of the typical times.
    pub(crate) fn typical(&self) -> Typical {
        let mean = |index: usize| {
            let value = f32::from_bits(self.means[index].load(Ordering::Relaxed));
            if value.is_nan() { 0.0 } else { f64::from(value) }
        };
        Typical {
            median: Duration::from_nanos(self.median.load(Ordering::Relaxed)),
            phases: PhaseTimes(std::array::from_fn(mean)),
            items: mean(ITEMS),
            minor_faults: mean(FAULTS),
        }
    }
}
