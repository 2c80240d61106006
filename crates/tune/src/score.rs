//! Scores of points, computed from slices.

use std::collections::BTreeMap;

use serde::Serialize;

use super::journal::Slice;
use super::space::TunePoint;
use loadgen::stats::median;

/// One slice of one point, with its throughput corrected for the machine's speed.
#[derive(Clone, Debug)]
pub(super) struct SliceReading {
    pub(super) pass: usize,
    pub(super) clients: usize,
    /// Answers a second, after [`level`].
    pub(super) qps: f64,
    pub(super) slice: Slice,
}

/// Summary of several slices at one number of clients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct ClientStep {
    /// Clients that waited for their answers.
    pub(super) clients: usize,
    /// Answers a second, median.
    pub(super) qps: f64,
    /// Median latency in milliseconds, median of the slices.
    pub(super) p50_ms: f64,
    /// 99th percentile in milliseconds, median of the slices.
    pub(super) p99_ms: f64,
    /// Requests without an answer.
    pub(super) failed: u64,
}

impl ClientStep {
    /// Returns true if every request was answered and the 99th percentile is within `target_ms`.
    pub(super) fn meets(&self, target_ms: f64) -> bool {
        self.failed == 0 && self.qps > 0.0 && self.p99_ms <= target_ms
    }
}

/// A point with its score.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ScoredTunePoint {
    pub(super) point: TunePoint,
    /// Best step. It has the highest throughput within the target, or if there is none, the lowest
    /// 99th percentile.
    pub(super) best: ClientStep,
    /// True if the best step is within the target.
    pub(super) within: bool,
    /// All steps by clients.
    pub(super) steps: Vec<ClientStep>,
    /// Reason for which the server does not serve it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
    /// Reason of the first failed request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<String>,
}

impl ScoredTunePoint {
    /// Scores `readings`. Returns `None` if there are none.
    pub(super) fn new(
        point: TunePoint,
        readings: &[SliceReading],
        target_ms: f64,
    ) -> Option<ScoredTunePoint> {
        let mut by_clients: BTreeMap<usize, Vec<&SliceReading>> = BTreeMap::new();
        readings
            .iter()
            .for_each(|reading| by_clients.entry(reading.clients).or_default().push(reading));
        let steps: Vec<ClientStep> =
            by_clients.into_iter().map(|(clients, all)| step(clients, &all)).collect();
        let (best, within) = best_step(&steps, target_ms)?;
        let first = |of: fn(&Slice) -> &Option<String>| {
            readings.iter().find_map(|reading| of(&reading.slice).clone())
        };
        let refused = first(|slice| &slice.refused);
        let failure = first(|slice| &slice.failure);
        Some(ScoredTunePoint { point, best, within, steps, refused, failure })
    }

    /// Returns the same point, scored for the target `target_ms`.
    pub(super) fn rescored(self, target_ms: f64) -> ScoredTunePoint {
        match best_step(&self.steps, target_ms) {
            Some((best, within)) => ScoredTunePoint { best, within, ..self },
            None => self,
        }
    }

    /// Sorts the best first. Equal ones keep the order of points, so that a repeated search decides
    /// as before.
    pub(super) fn rank(all: &mut [ScoredTunePoint]) {
        all.sort_by(|a, b| {
            let infeasible = |s: &ScoredTunePoint| s.best.failed > 0 || s.best.qps == 0.0;
            b.within
                .cmp(&a.within)
                .then(infeasible(a).cmp(&infeasible(b)))
                .then_with(|| {
                    if a.within {
                        b.best.qps.total_cmp(&a.best.qps)
                    } else {
                        a.best.p99_ms.total_cmp(&b.best.p99_ms)
                    }
                })
                .then(a.point.cmp(&b.point))
        });
    }
}

/// Returns the step with the highest throughput within `target_ms`, and true. If there is none,
/// returns the step with the lowest 99th percentile, and false.
fn best_step(steps: &[ClientStep], target_ms: f64) -> Option<(ClientStep, bool)> {
    let fastest = steps
        .iter()
        .filter(|step| step.meets(target_ms))
        .max_by(|a, b| a.qps.total_cmp(&b.qps).then(b.clients.cmp(&a.clients)));
    // A step without any answer has a percentile of 0 and is the worst, not the best.
    let latency = |step: &ClientStep| {
        if step.failed > 0 || step.qps == 0.0 { f64::INFINITY } else { step.p99_ms }
    };
    let quickest = steps.iter().min_by(|a, b| latency(a).total_cmp(&latency(b)));
    Some((*fastest.or(quickest)?, fastest.is_some()))
}

/// Joins the readings of several passes at one number of clients. Takes medians, and the sum of
/// failures.
fn step(clients: usize, readings: &[&SliceReading]) -> ClientStep {
    let middle = |of: fn(&SliceReading) -> f64| median(readings.iter().map(|reading| of(reading)));
    ClientStep {
        clients,
        qps: middle(|reading| reading.qps),
        p50_ms: middle(|reading| reading.slice.p50_ms),
        p99_ms: middle(|reading| reading.slice.p99_ms),
        failed: readings.iter().map(|reading| reading.slice.failed).sum(),
    }
}

/// Removes the machine's changes between passes from throughput. Each pass is scaled so that its
/// geometric mean over the points of all passes equals the geometric mean of all passes. A pass on
/// a slow machine then does not decide between points, as each was measured in it. Passes without
/// an answer for one of these points are not scaled.
pub(super) fn level(all: &mut BTreeMap<TunePoint, Vec<SliceReading>>) {
    let mut logs: BTreeMap<(TunePoint, usize), BTreeMap<usize, f64>> = BTreeMap::new();
    for (point, readings) in all.iter() {
        for reading in readings.iter().filter(|reading| reading.qps > 0.0) {
            logs.entry((*point, reading.clients))
                .or_default()
                .insert(reading.pass, reading.qps.ln());
        }
    }
    let passes = logs.values().map(BTreeMap::len).max().unwrap_or(0);
    let common: Vec<_> = logs.values().filter(|by_pass| by_pass.len() == passes).collect();
    let mut by_pass: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for (pass, log) in common.iter().copied().flatten() {
        by_pass.entry(*pass).or_default().push(*log);
    }
    by_pass.retain(|_, logs| logs.len() == common.len());
    if by_pass.len() < 2 {
        return;
    }
    let mean = |logs: &Vec<f64>| logs.iter().sum::<f64>() / logs.len() as f64;
    let means: BTreeMap<usize, f64> =
        by_pass.iter().map(|(pass, logs)| (*pass, mean(logs))).collect();
    let overall = means.values().sum::<f64>() / means.len() as f64;
    for reading in all.values_mut().flatten() {
        if let Some(own) = means.get(&reading.pass) {
            reading.qps *= (overall - own).exp();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(pass: usize, clients: usize, qps: f64, p99_ms: f64) -> SliceReading {
        let slice = Slice { qps, p50_ms: p99_ms / 2.0, p99_ms, n: 100, ..Slice::default() };
        SliceReading { pass, clients, qps, slice }
    }

    #[test]
    fn the_fastest_step_within_the_target_counts() {
        let readings =
            [reading(0, 1, 100.0, 1.0), reading(0, 4, 300.0, 9.0), reading(0, 8, 500.0, 11.0)];
        let score =
            |target| ScoredTunePoint::new(TunePoint::sync(1, 1), &readings, target).unwrap();
        assert_eq!((score(10.0).best.clients, score(10.0).within), (4, true));
        assert_eq!((score(12.0).best.clients, score(12.0).within), (8, true));
        assert_eq!(
            (score(0.5).best.clients, score(0.5).within),
            (1, false),
            "the lowest percentile"
        );
        assert!(ScoredTunePoint::new(TunePoint::sync(1, 1), &[], 1.0).is_none());
    }

    #[test]
    fn failures_are_never_within_the_target_and_rank_last() {
        let mut failing = reading(0, 1, 900.0, 0.1);
        failing.slice.failed = 1;
        let score = |threads, reading: &SliceReading| {
            ScoredTunePoint::new(TunePoint::sync(threads, 1), std::slice::from_ref(reading), 5.0)
                .unwrap()
        };
        let mut all = [
            score(1, &failing),
            score(2, &reading(0, 1, 10.0, 80.0)),
            score(3, &reading(0, 1, 10.0, 60.0)),
            score(4, &reading(0, 1, 5.0, 4.0)),
        ];
        ScoredTunePoint::rank(&mut all);
        assert_eq!(all.map(|scored| scored.point.threads), [4, 3, 2, 1]);
    }

    #[test]
    fn a_pass_on_a_slow_machine_decides_nothing() {
        // In the second pass everything takes twice as long.
        let both = |qps: f64| vec![reading(0, 1, qps, 1.0), reading(1, 1, qps / 2.0, 2.0)];
        let mut all = BTreeMap::from([
            (TunePoint::sync(1, 1), both(100.0)),
            (TunePoint::sync(2, 1), both(110.0)),
        ]);
        level(&mut all);
        let level =
            |threads| all[&TunePoint::sync(threads, 1)].iter().map(|r| r.qps).collect::<Vec<_>>();
        assert!(
            (level(1)[0] - level(1)[1]).abs() < 1e-9
                && (level(2)[0] / level(1)[0] - 1.1).abs() < 1e-9
        );
    }

    #[test]
    fn a_slice_without_answers_does_not_change_the_scale() {
        let readings = |qps: [f64; 3]| -> Vec<SliceReading> {
            qps.into_iter().enumerate().map(|(pass, qps)| reading(pass, 1, qps, 1.0)).collect()
        };
        let mut all = BTreeMap::from([
            (TunePoint::sync(1, 1), readings([0.0, 100.0, 90.0])),
            (TunePoint::sync(2, 1), readings([110.0, 100.0, 0.0])),
        ]);
        level(&mut all);
        let highest = all.values().flatten().map(|reading| reading.qps).fold(0.0, f64::max);
        assert_eq!(highest, 110.0, "only one pass has answers for both");
    }
}
