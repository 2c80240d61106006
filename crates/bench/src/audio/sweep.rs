//! Threads against threads inside an operator: each pair is measured once a round, in alternating
//! order.

use serde::Serialize;

use super::child::ThreadSetting;
use loadgen::stats::median;

/// Figures of one pair: a number of threads, and a number of threads inside an operator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SweepCell {
    pub(super) threads: usize,
    pub(super) intra: usize,
    /// Median over the rounds, without loading.
    pub(super) seconds: f64,
    /// Processor time over time, in percent of one core.
    pub(super) cpu_pct: f64,
    /// Number of cores that the run could use.
    pub(super) cores: usize,
    /// Time of each round. A pair that is far slower than others is measured once.
    pub(super) seconds_rounds: Vec<f64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SweepRun {
    pub(super) threads: ThreadSetting,
    pub(super) seconds: f64,
    pub(super) cpu_s: f64,
}

/// Returns all pairs in the order of a round. A run with no more threads than cores gets as many
/// cores as threads, so that the decoding thread has no core of its own.
pub(super) fn order(
    threads: &[usize],
    intra: &[usize],
    cores: usize,
    round: usize,
) -> Vec<ThreadSetting> {
    let pair = |intra: usize| {
        move |&threads: &usize| ThreadSetting {
            threads,
            intra,
            cores: (threads <= cores).then_some(threads),
        }
    };
    let mut pairs: Vec<ThreadSetting> =
        intra.iter().flat_map(|&intra| threads.iter().map(pair(intra))).collect();
    if round % 2 == 1 {
        pairs.reverse();
    }
    pairs
}

/// Medians over rounds, in the order of the first.
pub(super) fn cells(
    pairs: &[ThreadSetting],
    measured: &[SweepRun],
    cores: usize,
) -> Vec<SweepCell> {
    let cell = |pair: &ThreadSetting| {
        let own: Vec<&SweepRun> = measured.iter().filter(|one| one.threads == *pair).collect();
        let seconds_rounds: Vec<f64> = own.iter().map(|one| one.seconds).collect();
        SweepCell {
            threads: pair.threads,
            intra: pair.intra,
            seconds: median(seconds_rounds.iter().copied()),
            cpu_pct: median(
                own.iter().map(|one| one.cpu_s / one.seconds.max(f64::MIN_POSITIVE) * 100.0),
            ),
            cores: pair.cores.unwrap_or(cores),
            seconds_rounds,
        }
    };
    pairs.iter().map(cell).collect()
}

/// Returns true if a pair took more than `factor` times the time of the fastest in the rounds so
/// far.
pub(super) fn is_slow(measured: &[SweepRun], pair: ThreadSetting, factor: f64) -> bool {
    let fastest = measured.iter().map(|one| one.seconds).fold(f64::INFINITY, f64::min);
    measured.iter().any(|one| one.threads == pair && one.seconds > factor * fastest)
}

/// Returns the seconds that a run with `threads` and `intra` took.
pub(super) fn seconds(cells: &[SweepCell], threads: usize, intra: usize) -> Option<f64> {
    cells
        .iter()
        .find(|cell| (cell.threads, cell.intra) == (threads, intra))
        .map(|cell| cell.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_alternate_in_order_and_medians_are_computed() {
        let forth = order(&[1, 4], &[1, 2], 2, 0);
        let mut back = order(&[1, 4], &[1, 2], 2, 1);
        assert_eq!(forth[0], ThreadSetting { threads: 1, intra: 1, cores: Some(1) });
        assert_eq!(forth[3], ThreadSetting { threads: 4, intra: 2, cores: None });
        back.reverse();
        assert_eq!(back, forth);
        let measured: Vec<SweepRun> = [3.0, 1.0, 2.0]
            .into_iter()
            .map(|seconds| SweepRun { threads: forth[0], seconds, cpu_s: seconds / 2.0 })
            .collect();
        let cells = cells(&forth[..1], &measured, 2);
        assert_eq!((cells[0].seconds, cells[0].cpu_pct, cells[0].cores), (2.0, 50.0, 1));
        assert!(is_slow(&measured, forth[0], 2.5) && !is_slow(&measured, forth[0], 3.0));
        assert!(!is_slow(&measured, forth[1], 0.1), "it was not measured");
        assert_eq!((seconds(&cells, 1, 1), seconds(&cells, 2, 1)), (Some(2.0), None));
    }
}
