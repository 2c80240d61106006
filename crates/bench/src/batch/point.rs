//! What one measurement gives, and one point of an arm's curve from its rounds.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::Arm;
use super::arm::Runs;
use crate::drive::{Sample, Sink, Verdict};
use crate::samples::Faults;
use crate::stats::{Latencies, median, ratio};

/// Counts what falls between two moments of a closed loop.
///
/// Requests a second are answers that came in the window: what was asked before counts if it was answered in it,
/// as what is asked in it and answered later does not. Latencies are those of the requests sent in the window.
#[derive(Debug)]
pub(super) struct Window {
    from: Duration,
    to: Duration,
    seen: Mutex<Seen>,
}

/// What a window has seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Answers in the window.
    pub(super) answered: u64,
    /// The window's length.
    pub(super) time: Duration,
    /// Of the requests sent in the window.
    pub(super) latencies: Latencies,
    /// Of the whole run.
    pub(super) faults: Faults,
}

impl Window {
    /// From `from` to `to` after the start.
    pub(super) fn new(from: Duration, to: Duration) -> Window {
        Window { from, to, seen: Mutex::default() }
    }

    /// What was seen since the last call.
    pub(super) fn take(&self) -> Seen {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Seen { time: self.to.saturating_sub(self.from), ..std::mem::take(&mut *seen) }
    }

    fn holds(&self, moment: Duration) -> bool {
        (self.from..self.to).contains(&moment)
    }
}

impl Sink for Window {
    fn record(&self, sample: Sample, reason: Option<&str>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.faults.count(sample.verdict, reason);
        if sample.verdict == Verdict::Failed {
            return;
        }
        if self.holds(sample.due) {
            seen.latencies.record(sample.latency);
        }
        if self.holds(sample.due + sample.latency) {
            seen.answered += 1;
        }
    }
}

/// One measurement.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) arm: Arm,
    pub(super) clients: usize,
    pub(super) seen: Seen,
    pub(super) runs: Runs,
    /// Largest difference of an answer from that of the model alone.
    pub(super) drift: f32,
}

impl Round {
    /// Answers a second.
    pub(super) fn qps(&self) -> f64 {
        ratio(self.seen.answered as f64, self.seen.time.as_secs_f64())
    }
}

/// One point of an arm's curve: medians over its rounds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    pub(super) clients: usize,
    /// Answers a second.
    pub(super) qps: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// Requests whose latency was counted, all rounds together.
    pub(super) n: u64,
    pub(super) failed: u64,
    pub(super) wrong: u64,
    /// Items of a run in the mean, where the server counts them.
    pub(super) mean_batch: Option<f64>,
    /// Share of the padded inputs' elements that was padding, where the server counts them.
    pub(super) padding_share: Option<f64>,
    /// Largest difference of a number from that of the model alone, relative above 1 (ocr: of a winning score).
    pub(super) drift: f32,
    /// Of each round.
    pub(super) qps_rounds: Vec<f64>,
}

impl Point {
    /// From the rounds of `arm` at `clients`.
    pub(super) fn of(rounds: &[Round], arm: Arm, clients: usize) -> Point {
        let own: Vec<&Round> =
            rounds.iter().filter(|round| (round.arm, round.clients) == (arm, clients)).collect();
        let quantile = |share| median(own.iter().map(|round| round.seen.latencies.quantile_ms(share)));
        let runs = own.iter().fold(Runs::default(), |sum, round| sum.and(round.runs));
        let elements = runs.real_elements + runs.padding_elements;
        let qps_rounds: Vec<f64> = own.iter().map(|round| round.qps()).collect();
        Point {
            clients,
            qps: median(qps_rounds.iter().copied()),
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
            n: own.iter().map(|round| round.seen.latencies.count()).sum(),
            failed: own.iter().map(|round| round.seen.faults.failed).sum(),
            wrong: own.iter().map(|round| round.seen.faults.wrong).sum(),
            mean_batch: (runs.batches > 0.0).then(|| runs.items / runs.batches),
            padding_share: (elements > 0.0).then(|| runs.padding_elements / elements),
            drift: finite(own.iter().map(|round| round.drift).fold(0.0, f32::max)),
            qps_rounds,
        }
    }
}

/// JSON has no infinity.
fn finite(value: f32) -> f32 {
    value.min(f32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(due_ms: u64, latency_ms: u64, verdict: Verdict) -> Sample {
        let ms = Duration::from_millis;
        Sample { due: ms(due_ms), latency: ms(latency_ms), verdict, version: 1 }
    }

    #[test]
    fn a_window_counts_answers_in_it_and_latencies_of_what_was_sent_in_it() {
        let ms = Duration::from_millis;
        let window = Window::new(ms(100), ms(1100));
        window.record(sample(0, 50, Verdict::Right), None);
        window.record(sample(0, 150, Verdict::Right), None);
        window.record(sample(200, 10, Verdict::Wrong), None);
        window.record(sample(1000, 200, Verdict::Right), None);
        window.record(sample(500, 1, Verdict::Failed), Some("gone"));
        let seen = window.take();
        assert_eq!((seen.answered, seen.latencies.count()), (2, 2));
        assert_eq!((seen.faults.failed, seen.faults.wrong, seen.time), (1, 1, ms(1000)));
        assert_eq!(window.take().answered, 0);
    }

    #[test]
    fn a_point_is_the_median_of_its_own_rounds() {
        let round = |arm, clients, answered| Round {
            arm,
            clients,
            seen: Seen { answered, time: Duration::from_secs(2), ..Seen::default() },
            runs: Runs { batches: 2.0, items: 8.0, real_elements: 6.0, padding_elements: 2.0 },
            drift: 0.5,
        };
        let rounds = [
            round(Arm::Async, 5, 20),
            round(Arm::Async, 5, 60),
            round(Arm::Async, 5, 40),
            round(Arm::Sync, 5, 1000),
            round(Arm::Async, 10, 1000),
        ];
        let point = Point::of(&rounds, Arm::Async, 5);
        assert_eq!((point.qps, point.qps_rounds.as_slice()), (20.0, [10.0, 30.0, 20.0].as_slice()));
        assert_eq!((point.mean_batch, point.padding_share), (Some(4.0), Some(0.25)));
        assert_eq!(Point::of(&[], Arm::Sync, 1).mean_batch, None);
    }
}
