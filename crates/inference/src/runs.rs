//! Counts the runs that answered a version's requests, by batch size. Each request adds its share
//! of its run, because the scheduler counts runs by model and not by version.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Maximum batch sizes with a count of their own. Clients choose the sizes of requests that are not
/// merged, so the number needs a limit. Runs of further sizes count only in the total.
const SIZES_MAX: usize = 512;

/// A request with a result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnsweredRequest {
    pub(crate) items: usize,
    /// Number of items of the run that answered it, or of the largest run if it was split.
    pub(crate) batch: usize,
    /// Maximum items of a run. Requests with more are split.
    pub(crate) batch_max: usize,
    /// Time of the run.
    pub(crate) compute: Duration,
}

impl AnsweredRequest {
    /// Returns the request's share of its run, or the number of its runs if it was split. The
    /// shares of one batch add up to 1.
    fn runs(&self) -> f64 {
        if self.batch == 0 {
            return 0.0;
        }
        let share = self.items as f64 / self.batch as f64;
        // A request that cannot be merged or split runs whole, as a batch of 1, with any number of
        // items. The first part of a split request is a full batch.
        let split = self.items > self.batch_max && self.batch >= self.batch_max;
        if split { share } else { share.min(1.0) }
    }
}

/// Runs of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct SizeSum {
    runs: f64,
    nanos: f64,
}

#[derive(Debug, Default)]
pub(crate) struct VersionRuns(Mutex<CountedRuns>);

#[derive(Debug, Default)]
struct CountedRuns {
    items: u64,
    runs: f64,
    sizes: BTreeMap<usize, SizeSum>,
}

/// Counts of runs, rounded to whole numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunCounts {
    /// Number of items of all requests.
    pub items: u64,
    /// Number of runs.
    pub runs: u64,
    /// Runs by batch size, smallest size first.
    pub sizes: Vec<RunSize>,
}

/// Runs of one batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSize {
    /// Number of items of the batch.
    pub size: u64,
    /// Number of runs.
    pub runs: u64,
    /// Total time of the runs in nanoseconds.
    pub nanos: u64,
}

impl VersionRuns {
    pub(crate) fn record(&self, answered: &AnsweredRequest) {
        let runs = answered.runs();
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counted.items += answered.items as u64;
        counted.runs += runs;
        if counted.sizes.len() < SIZES_MAX || counted.sizes.contains_key(&answered.batch) {
            let sum = counted.sizes.entry(answered.batch).or_default();
            sum.runs += runs;
            // The parts of a split request report the time of all their runs.
            sum.nanos += answered.compute.as_nanos() as f64 * runs.min(1.0);
        }
    }

    /// Returns the present counts, rounded.
    pub(crate) fn read(&self) -> RunCounts {
        let counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sizes = counted.sizes.iter().map(|(&size, sum)| RunSize {
            size: size as u64,
            runs: sum.runs.round() as u64,
            nanos: sum.nanos.round() as u64,
        });
        RunCounts {
            items: counted.items,
            runs: counted.runs.round() as u64,
            sizes: sizes.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(requests: &[(usize, usize)]) -> RunCounts {
        let runs = VersionRuns::default();
        for &(items, batch) in requests {
            runs.record(&AnsweredRequest {
                items,
                batch,
                batch_max: 32,
                compute: Duration::from_nanos(60),
            });
        }
        runs.read()
    }

    fn sized(size: u64, runs: u64, nanos: u64) -> RunSize {
        RunSize { size, runs, nanos }
    }

    #[test]
    fn batch_mates_make_one_run() {
        let counts = count(&[(1, 6), (2, 6), (3, 6)]);
        assert_eq!(counts, RunCounts { items: 6, runs: 1, sizes: vec![sized(6, 1, 60)] });
        let thirds = count(&[(1, 3); 3000]);
        assert_eq!((thirds.items, thirds.runs), (3000, 1000));
        assert_eq!(thirds.sizes, [sized(3, 1000, 60_000)]);
    }

    #[test]
    fn an_unmerged_request_is_one_run() {
        assert_eq!(count(&[(1, 1), (1, 1)]).runs, 2);
        assert_eq!(count(&[(8, 1)]), RunCounts { items: 8, runs: 1, sizes: vec![sized(1, 1, 60)] });
        assert_eq!(count(&[(64, 32)]).runs, 2, "a split request took two");
        assert_eq!(count(&[(64, 1)]).runs, 1, "it cannot be split");
        assert_eq!(count(&[(4, 0)]).runs, 0);
    }

    #[test]
    fn sizes_are_bounded() {
        let counts = count(&(1..=1000).map(|size| (size, size)).collect::<Vec<_>>());
        assert_eq!((counts.sizes.len(), counts.runs), (SIZES_MAX, 1000));
    }
}
