//! Duplicates of a whole collection: pairs of similar points, verified by keypoints, and the groups
//! that they form.
//!
//! A job walks through all points in the order of the coarse clusters. For each point it searches
//! the nearest clusters for neighbours above a threshold. Neighbours are few, so only their
//! embeddings are read. If both points have a record, the matcher compares the keypoints. A pair of
//! points without records counts by its similarity alone.
//!
//! The job keeps its pairs and its position in the directory `duplicates` of the collection, so it
//! continues after a restart. It runs at low priority and at a limited rate. Its memory is the
//! memory of one step, [`NEIGHBOURS_MAX`] candidates a thread, and the pairs, at most
//! [`PAIRS_MAX`].
//!
//! A collection of a cluster has shards on several nodes. A root runs its job there, and uses
//! [`NeighbourSearch`] and [`PairVerifier`] on the nodes that hold the shards.

mod groups;
mod job;
mod near;
mod progress;
mod scan;
mod store;
mod verify;

pub use groups::{DuplicateGroup, groups};
pub use job::{DuplicateControl, run};
pub use near::{NearPoint, NearPoints, NeighbourSearch};
pub use progress::{DuplicateProgress, DuplicateState};
pub use store::{DuplicatePair, DuplicateStore};
pub use verify::{PairOutcome, PairVerifier};

use base::{Error, Result};
use coarse::Metric;
use serde::{Deserialize, Serialize};

/// Maximum neighbours of a point that are compared. More copies of one image than this are still
/// joined, because each of them finds others.
pub const NEIGHBOURS_MAX: usize = 32;
/// Maximum pairs of a job.
pub const PAIRS_MAX: usize = 2_000_000;
/// Maximum threads of a job.
pub const THREADS_MAX: usize = 64;
/// Highest rate of a job, in points per second.
const RATE_MAX: u64 = 1_000_000;

/// Options of a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DuplicateOptions {
    /// Minimum similarity of the embeddings of a pair, in the collection's metric.
    pub threshold: f32,
    /// Minimum score of the matcher for a pair whose points both have records. `None` does not
    /// compare keypoints.
    pub accept: Option<f32>,
    /// Maximum points per second. 0 means no limit.
    pub points_per_second: u64,
    /// Threads that scan, the calling one included.
    pub threads: usize,
}

impl DuplicateOptions {
    /// Checks the options for a collection with this metric.
    ///
    /// # Errors
    /// `InvalidArgument` for values that cannot work.
    pub fn check(&self, metric: Metric) -> Result<()> {
        let cosine = metric != Metric::Cosine || (-1.0..=1.0).contains(&self.threshold);
        if !self.threshold.is_finite() || !cosine {
            return Err(Error::invalid(format!(
                "the threshold is {}; it must be a number, and -1 to 1 for cosines",
                self.threshold
            )));
        }
        if !(1..=THREADS_MAX).contains(&self.threads) || self.points_per_second > RATE_MAX {
            return Err(Error::invalid(format!(
                "a search for duplicates has 1 to {THREADS_MAX} threads and at most {RATE_MAX} points per second"
            )));
        }
        match self.accept {
            Some(accept) if !accept.is_finite() || accept < 0.0 => {
                Err(Error::invalid("the score of a verified pair must be a number from 0"))
            }
            _ => Ok(()),
        }
    }
}
