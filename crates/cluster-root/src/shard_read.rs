//! A read of some shards of a collection, and the results of the shards that answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, Result};
use cluster_node::CollectionRecord;
use serde_json::value::RawValue;
use transport::Reservation;

use super::envelope::ReadCoverage;
use super::split::IdsBody;

/// Retry advice for a read that too few shards answered.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Body of a read.
pub enum ReadBody {
    /// One body for all shards.
    Same(Box<RawValue>),
    /// A body for each node, with the ids of the requested shards only.
    Ids(IdsBody),
}

/// Work that a read belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPriority {
    /// A request of a client, which waits.
    Client,
    /// Background work. Nodes answer it at low priority, so its latencies say nothing about other
    /// requests.
    Background,
}

/// A read of some shards of a collection.
pub struct ShardRead {
    /// Record of the collection.
    pub record: Arc<CollectionRecord>,
    /// Shards to read.
    pub shards: Vec<u32>,
    /// Path below the collection.
    pub path: &'static str,
    /// Body of the request to the route at `path`.
    pub body: ReadBody,
    /// Time at which the read ends with the answers that it has.
    pub deadline: Instant,
    /// True if holders must have applied the whole log.
    pub strong: bool,
    /// Work that the read belongs to.
    pub priority: ReadPriority,
}

/// Results of the shards that answered, as JSON text, by shard.
pub type ResultTexts = BTreeMap<u32, Box<RawValue>>;

/// Returns the length of all results together.
pub fn result_bytes(results: &ResultTexts) -> usize {
    results.values().map(|result| result.get().len()).sum()
}

/// Answers of the shards that answered.
pub struct ShardAnswers {
    /// Results by shard.
    pub results: ResultTexts,
    /// Names of the nodes that answered, by shard.
    pub nodes: BTreeMap<u32, String>,
    /// Shards that answered.
    pub coverage: ReadCoverage,
    /// Error of a shard that did not answer.
    pub failure: Option<Error>,
    /// Bytes of the results, and of answers that arrived too late to count.
    pub reservation: Reservation,
}

impl ShardAnswers {
    /// Replaces the answers of `shards` by the answers of a second read.
    pub(super) fn replace(&mut self, shards: &[u32], again: ShardAnswers) {
        for shard in shards {
            self.results.remove(shard);
            self.nodes.remove(shard);
        }
        self.results.extend(again.results);
        self.nodes.extend(again.nodes);
        self.coverage.shards = self.results.len();
        self.failure = self.failure.take().or(again.failure);
        self.reservation.join(again.reservation);
    }

    /// Checks that enough shards answered.
    ///
    /// # Errors
    /// `Unavailable` with retry advice if no shard answered, or if less than the part
    /// `min_coverage` answered.
    pub fn check(&self, min_coverage: f64) -> Result<()> {
        check_coverage(self.coverage, min_coverage, self.failure.as_ref())
    }
}

/// Checks that enough shards answered. `failure` is the error of a shard that did not.
///
/// # Errors
/// As [`ShardAnswers::check`].
pub fn check_coverage(
    coverage: ReadCoverage,
    min_coverage: f64,
    failure: Option<&Error>,
) -> Result<()> {
    let ReadCoverage { shards, of } = coverage;
    let enough = shards as f64 >= min_coverage * of as f64 && (shards > 0 || of == 0);
    if enough {
        return Ok(());
    }
    let reason = failure.map_or("no reason is known", Error::message);
    let message = format!(
        "{shards} of {of} shards answered, which are too few; one did not because: {reason}"
    );
    Err(Error::unavailable(message).with_retry_after(RETRY_AFTER))
}
