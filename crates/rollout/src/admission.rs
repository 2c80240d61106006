//! Limit of the requests that a slow candidate has in flight.
//!
//! Both versions share the workers. A candidate that takes longer than stable occupies more of them
//! than its share of the requests, until the queue is full and clients get errors. Such a candidate
//! has a maximum of requests that wait or run. A request above it overflows: stable answers it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::measures::RolloutMeasures;

/// Runs of a version after which its mean time is known.
const KNOWN_RUNS_MIN: u64 = 16;
/// Mean time of the candidate, as a multiple of stable's, up to which it has no limit of its own.
/// Until then the limits of the queue are enough.
pub const SLOWER_RATIO: f64 = 1.5;
/// Requests per worker that may be in flight in addition to half of the workers, counted in runs of
/// the stable version. A candidate that takes ten times as long may have a tenth of them.
const STABLE_RUNS_PER_WORKER_MAX: f64 = 16.0;

/// Runs of a version, and their times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunCost {
    /// Number of runs.
    pub runs: u64,
    /// Wall time. Each request of a batch counts the whole run.
    pub time: Duration,
    /// Time for which workers were occupied. A request of a batch has its share of the run.
    pub occupied: Duration,
}

impl RunCost {
    /// Returns the mean time of a run in seconds, or `None` after few runs.
    pub fn mean_time(self) -> Option<f64> {
        self.mean(self.time)
    }

    fn mean(self, sum: Duration) -> Option<f64> {
        (self.runs >= KNOWN_RUNS_MIN).then(|| sum.as_secs_f64() / self.runs as f64)
    }
}

/// Returns the mean cost of the candidate's requests as a multiple of stable's, or `None` after few
/// runs.
///
/// The candidate gets fewer requests, so its batches are smaller and each request occupies a worker
/// for longer. That alone is not slow, because a slower version has longer runs too.
pub fn slowdown(stable: RunCost, candidate: RunCost) -> Option<f64> {
    let ratio = |stable: f64, candidate: f64| candidate / stable.max(f64::MIN_POSITIVE);
    let time = ratio(stable.mean_time()?, candidate.mean_time()?);
    let occupied = ratio(stable.mean(stable.occupied)?, candidate.mean(candidate.occupied)?);
    Some(if time > SLOWER_RATIO { occupied } else { occupied.min(time) })
}

/// Returns the maximum of the candidate's requests in flight. `None` means no limit. Before the
/// means are known, it is half of the workers.
fn in_flight_max(stable: RunCost, candidate: RunCost, workers: u64) -> Option<u64> {
    let floor = (workers / 2).max(1);
    match slowdown(stable, candidate) {
        None => Some(floor),
        Some(ratio) if ratio <= SLOWER_RATIO => None,
        Some(ratio) => Some(floor + (STABLE_RUNS_PER_WORKER_MAX * workers as f64 / ratio) as u64),
    }
}

/// Requests in flight of a candidate.
pub struct CandidateAdmission {
    workers: u64,
    in_flight: AtomicU64,
    overflowed: AtomicU64,
}

impl CandidateAdmission {
    pub fn new(workers: usize) -> CandidateAdmission {
        CandidateAdmission {
            workers: workers as u64,
            in_flight: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
        }
    }

    /// Returns the requests that stable answered because the candidate had no room.
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }
}

/// Room for one request of the candidate, until it is dropped.
pub struct CandidatePermit(Arc<RolloutMeasures>);

impl CandidatePermit {
    /// Reserves room for one request, or counts an overflow.
    pub fn take(measures: &Arc<RolloutMeasures>) -> Option<CandidatePermit> {
        let admission = measures.admission();
        let before = admission.in_flight.fetch_add(1, Ordering::Relaxed);
        let permit = CandidatePermit(measures.clone());
        let max =
            || in_flight_max(measures.stable_cost(), measures.candidate_cost(), admission.workers);
        if before > 0 && max().is_some_and(|max| before >= max) {
            admission.overflowed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(permit)
    }
}

impl Drop for CandidatePermit {
    fn drop(&mut self) {
        self.0.admission().in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cost(runs: u64, micros: u64) -> RunCost {
        let time = Duration::from_micros(runs * micros);
        RunCost { runs, time, occupied: time }
    }

    #[test]
    fn smaller_batches_are_not_slow() {
        // Stable runs 8 requests at once in 400 us, the same version as candidate one in 150 us.
        let stable = RunCost { occupied: Duration::from_micros(1000 * 50), ..cost(1000, 400) };
        assert_eq!(in_flight_max(stable, cost(1000, 150), 2), None);
        assert_eq!(in_flight_max(stable, cost(1000, 10_000), 2), Some(1));
    }

    #[test]
    fn only_a_slower_candidate_has_a_limit() {
        let stable = cost(1000, 100);
        assert_eq!(in_flight_max(stable, cost(1000, 100), 8), None);
        assert_eq!(in_flight_max(stable, cost(1000, 149), 8), None);
        assert_eq!(in_flight_max(stable, cost(1000, 1_000), 8), Some(4 + 12));
        assert_eq!(in_flight_max(stable, cost(1000, 100_000), 8), Some(4));
        assert_eq!(in_flight_max(stable, cost(1000, 10_000), 2), Some(1));
    }

    #[test]
    fn a_version_without_runs_has_half_of_the_workers() {
        assert_eq!(in_flight_max(cost(1000, 100), cost(KNOWN_RUNS_MIN - 1, 100), 8), Some(4));
        assert_eq!(in_flight_max(cost(0, 0), cost(1000, 100), 1), Some(1));
    }

    #[test]
    fn requests_above_the_maximum_overflow() {
        let measures = Arc::new(RolloutMeasures::new(1e-3, None, 4));
        let take = || CandidatePermit::take(&measures);
        let held = [take(), take()];
        assert!(held.iter().all(Option::is_some));
        assert!(take().is_none() && take().is_none());
        assert_eq!(measures.admission().overflowed(), 2);
        drop(held);
        assert!(take().is_some());
        assert_eq!(measures.admission().in_flight.load(Ordering::Relaxed), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_slower_candidate_has_less_room(
            stable in 1u64..1_000_000, candidate in 1u64..1_000_000, more in 0u64..1_000_000, workers in 1u64..256,
        ) {
            let max = |micros| in_flight_max(cost(100, stable), cost(100, micros), workers).unwrap_or(u64::MAX);
            prop_assert!(max(candidate) >= max(candidate + more));
            prop_assert!(max(candidate + more) >= 1);
        }
    }
}
