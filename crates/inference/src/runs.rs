//! How many runs answered a version's requests, and of what sizes: put together from what each
//! request knows of the run that answered it, because the run itself is counted by model and not by
//! version.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Sizes told apart; runs of further sizes are counted, but not by size. Clients choose the sizes
/// of what is not merged, so there must be an end to them.
const SIZES_MAX: usize = 512;

/// One answered request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    /// Its items.
    pub(crate) items: usize,
    /// Items of the run that answered it, or of the largest of those that did.
    pub(crate) batch: usize,
    /// Items that a run may have; requests with more are split.
    pub(crate) batch_max: usize,
    /// Time of the run.
    pub(crate) compute: Duration,
}

impl Answered {
    /// How much of a run it was, or how many runs: batch-mates' shares add up to 1.
    fn runs(&self) -> f64 {
        if self.batch == 0 {
            return 0.0;
        }
        let share = self.items as f64 / self.batch as f64;
        // A request that could not be joined runs whole, as a batch of 1, however many items it
        // has.
        if self.items > self.batch_max { share } else { share.min(1.0) }
    }
}

/// Runs of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    runs: f64,
    nanos: f64,
}

/// The runs of one version.
#[derive(Debug, Default)]
pub(crate) struct Runs(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    items: u64,
    runs: f64,
    sizes: BTreeMap<usize, Sum>,
}

/// What was counted, in whole numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunCounts {
    /// Items of all answered requests.
    pub(crate) items: u64,
    /// Runs.
    pub(crate) runs: u64,
    /// Size, runs and their nanoseconds, smallest size first.
    pub(crate) sizes: Vec<(u64, u64, u64)>,
}

impl Runs {
    pub(crate) fn record(&self, answered: &Answered) {
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

    pub(crate) fn read(&self) -> RunCounts {
        let counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let size = |(&size, sum): (&usize, &Sum)| {
            (size as u64, sum.runs.round() as u64, sum.nanos.round() as u64)
        };
        RunCounts {
            items: counted.items,
            runs: counted.runs.round() as u64,
            sizes: counted.sizes.iter().map(size).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(requests: &[(usize, usize)]) -> RunCounts {
        let runs = Runs::default();
        for &(items, batch) in requests {
            runs.record(&Answered {
                items,
                batch,
                batch_max: 32,
                compute: Duration::from_nanos(60),
            });
        }
        runs.read()
    }

    #[test]
    fn batch_mates_make_one_run() {
        let counts = count(&[(1, 6), (2, 6), (3, 6)]);
        assert_eq!(counts, RunCounts { items: 6, runs: 1, sizes: vec![(6, 1, 60)] });
        let thirds = count(&[(1, 3); 3000]);
        assert_eq!((thirds.items, thirds.runs), (3000, 1000));
        assert_eq!(thirds.sizes, [(3, 1000, 60_000)]);
    }

    #[test]
    fn what_runs_alone_is_one_run() {
        assert_eq!(count(&[(1, 1), (1, 1)]).runs, 2);
        assert_eq!(count(&[(8, 1)]), RunCounts { items: 8, runs: 1, sizes: vec![(1, 1, 60)] });
        assert_eq!(count(&[(64, 32)]).runs, 2, "a split request took two");
        assert_eq!(count(&[(4, 0)]).runs, 0);
    }

    #[test]
    fn sizes_are_bounded() {
        let counts = count(&(1..=1000).map(|size| (size, size)).collect::<Vec<_>>());
        assert_eq!((counts.sizes.len(), counts.runs), (SIZES_MAX, 1000));
    }
}
