//! Figures of one measurement, and one point of an arm's curve from its turns.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::BatchArm;
use super::arm::ModelCounts;
use loadgen::drive::{Judgement, RequestSample, SampleSink};
use loadgen::samples::Faults;
use loadgen::stats::{Latencies, median, ratio};

/// Counter of the requests of a closed loop between two moments.
///
/// The rate counts answers that came in the window, also to requests sent before it. Latencies are
/// those of the requests sent in the window.
#[derive(Debug)]
pub(super) struct BatchWindow {
    from: Duration,
    to: Duration,
    seen: Mutex<WindowCounts>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct WindowCounts {
    /// Number of answers in the window.
    pub(super) answered: u64,
    /// Length of the window.
    pub(super) time: Duration,
    /// Latencies of the requests sent in the window.
    pub(super) latencies: Latencies,
    /// Faults of the whole run.
    pub(super) faults: Faults,
}

impl BatchWindow {
    /// Counts from `from` to `to` after the start.
    pub(super) fn new(from: Duration, to: Duration) -> BatchWindow {
        BatchWindow { from, to, seen: Mutex::default() }
    }

    /// Returns the counts since the last call.
    pub(super) fn take(&self) -> WindowCounts {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        WindowCounts { time: self.to.saturating_sub(self.from), ..std::mem::take(&mut *seen) }
    }

    fn holds(&self, moment: Duration) -> bool {
        (self.from..self.to).contains(&moment)
    }
}

impl SampleSink for BatchWindow {
    fn record(&self, sample: RequestSample, reason: Option<&str>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.faults.count(sample.verdict, reason);
        if sample.verdict == Judgement::Failed {
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

#[derive(Clone, Debug)]
pub(super) struct BatchTurn {
    pub(super) arm: BatchArm,
    pub(super) clients: usize,
    pub(super) round: usize,
    pub(super) seen: WindowCounts,
    pub(super) runs: ModelCounts,
    /// Largest difference of an answer from that of the model alone.
    pub(super) drift: f32,
}

/// Adds failures and wrong answers before the measurement to the first turn of their arm: each
/// answer is checked.
pub(super) fn add_faults(turns: &mut [BatchTurn], before: &[(BatchArm, Faults)]) {
    for (arm, faults) in before {
        if let Some(turn) = turns.iter_mut().find(|turn| turn.arm == *arm) {
            turn.seen.faults.add(faults);
        }
    }
}

impl BatchTurn {
    /// Returns answers a second.
    fn qps(&self) -> f64 {
        ratio(self.seen.answered as f64, self.seen.time.as_secs_f64())
    }
}

/// One point of an arm's curve. Each figure is the mean over the rounds of the median over a
/// round's turns. The median removes short disturbances of the machine. Each round has a server of
/// its own, and so its own session in memory.
#[derive(Clone, Debug, Serialize)]
pub(super) struct BatchPoint {
    pub(super) clients: usize,
    /// Answers a second.
    pub(super) qps: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// Number of requests whose latency was counted, in all turns together.
    pub(super) n: u64,
    pub(super) failed: u64,
    pub(super) wrong: u64,
    /// Mean number of items in a run, if the server counts them.
    pub(super) mean_batch: Option<f64>,
    /// Share of padding in the elements of the padded inputs, if the server counts them.
    pub(super) padding_share: Option<f64>,
    /// Largest difference of a value from the answer of a run alone. It is relative for values
    /// above 1. For ocr, only winning scores count.
    pub(super) drift: f32,
    /// Rate of each turn, in order.
    pub(super) qps_turns: Vec<f64>,
}

impl BatchPoint {
    /// Summarises the turns of `arm` at `clients`.
    pub(super) fn of(turns: &[BatchTurn], arm: BatchArm, clients: usize) -> BatchPoint {
        let own: Vec<&BatchTurn> =
            turns.iter().filter(|turn| (turn.arm, turn.clients) == (arm, clients)).collect();
        let quantile = |share| settled(&own, |turn| turn.seen.latencies.quantile_ms(share));
        let runs = own.iter().fold(ModelCounts::default(), |sum, turn| sum.and(turn.runs));
        let elements = runs.real_elements + runs.padding_elements;
        BatchPoint {
            clients,
            qps: settled(&own, BatchTurn::qps),
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
            n: own.iter().map(|turn| turn.seen.latencies.count()).sum(),
            failed: own.iter().map(|turn| turn.seen.faults.failed).sum(),
            wrong: own.iter().map(|turn| turn.seen.faults.wrong).sum(),
            mean_batch: (runs.batches > 0.0).then(|| runs.items / runs.batches),
            padding_share: (elements > 0.0).then(|| runs.padding_elements / elements),
            drift: finite(own.iter().map(|turn| turn.drift).fold(0.0, f32::max)),
            qps_turns: own.iter().map(|turn| turn.qps()).collect(),
        }
    }

    /// Returns the uncertainty of the ratio of this arm's rate to that of `other`. It is the
    /// standard error of the mean of the ratios of consecutive turns.
    pub(super) fn ratio_error(&self, other: &BatchPoint) -> f64 {
        let ratios: Vec<f64> =
            self.qps_turns.iter().zip(&other.qps_turns).map(|(a, b)| ratio(*a, *b)).collect();
        let count = ratios.len() as f64;
        if count < 2.0 {
            return 0.0;
        }
        let mean = ratios.iter().sum::<f64>() / count;
        let variance =
            ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (variance / count).sqrt()
    }
}

/// Returns the mean over rounds of the median over a round's turns.
fn settled(turns: &[&BatchTurn], of: impl Fn(&BatchTurn) -> f64) -> f64 {
    let rounds: BTreeSet<usize> = turns.iter().map(|turn| turn.round).collect();
    let round = |round: &usize| {
        median(turns.iter().filter(|turn| turn.round == *round).map(|turn| of(turn)))
    };
    ratio(rounds.iter().map(round).sum(), rounds.len() as f64)
}

/// Limits infinity, which JSON does not have.
fn finite(value: f32) -> f32 {
    value.min(f32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(due_ms: u64, latency_ms: u64, verdict: Judgement) -> RequestSample {
        let ms = Duration::from_millis;
        RequestSample { due: ms(due_ms), latency: ms(latency_ms), verdict, version: 1 }
    }

    #[test]
    fn a_window_counts_answers_and_sent_requests() {
        let ms = Duration::from_millis;
        let window = BatchWindow::new(ms(100), ms(1100));
        window.record(sample(0, 50, Judgement::Right), None);
        window.record(sample(0, 150, Judgement::Right), None);
        window.record(sample(200, 10, Judgement::Wrong), None);
        window.record(sample(1000, 200, Judgement::Right), None);
        window.record(sample(500, 1, Judgement::Failed), Some("gone"));
        let seen = window.take();
        assert_eq!((seen.answered, seen.latencies.count()), (2, 2));
        assert_eq!((seen.faults.failed, seen.faults.wrong, seen.time), (1, 1, ms(1000)));
        assert_eq!(window.take().answered, 0);
    }

    #[test]
    fn a_point_is_the_mean_of_its_rounds_medians() {
        let turn = |arm, clients, round, answered| BatchTurn {
            arm,
            clients,
            round,
            seen: WindowCounts {
                answered,
                time: Duration::from_secs(2),
                ..WindowCounts::default()
            },
            runs: ModelCounts {
                batches: 2.0,
                items: 8.0,
                real_elements: 6.0,
                padding_elements: 2.0,
            },
            drift: 0.5,
        };
        let asynchronous = |round, answered| turn(BatchArm::Async, 5, round, answered);
        let turns = [
            asynchronous(0, 20),
            asynchronous(0, 2000),
            asynchronous(0, 40),
            asynchronous(1, 80),
            turn(BatchArm::Sync, 5, 0, 20),
            turn(BatchArm::Sync, 5, 0, 2000),
            turn(BatchArm::Async, 10, 0, 1000),
        ];
        let point = BatchPoint::of(&turns, BatchArm::Async, 5);
        assert_eq!(
            (point.qps, point.qps_turns.as_slice()),
            (30.0, [10.0, 1000.0, 20.0, 40.0].as_slice())
        );
        assert_eq!((point.mean_batch, point.padding_share), (Some(4.0), Some(0.25)));
        assert_eq!(point.ratio_error(&BatchPoint::of(&turns, BatchArm::Sync, 5)), 0.0);
        assert_eq!(BatchPoint::of(&[], BatchArm::Sync, 1).mean_batch, None);
        let mut later = turns.to_vec();
        let before = Faults { failed: 2, wrong: 3, ..Faults::default() };
        add_faults(&mut later, &[(BatchArm::Async, before)]);
        let counted = BatchPoint::of(&later, BatchArm::Async, 5);
        assert_eq!((counted.failed, counted.wrong, point.wrong), (2, 3, 0));
        let (a, b) = (
            BatchPoint { qps_turns: vec![3.0, 5.0], ..point.clone() },
            BatchPoint { qps_turns: vec![2.0, 2.0], ..point },
        );
        assert_eq!(a.ratio_error(&b), 0.5);
    }
}
