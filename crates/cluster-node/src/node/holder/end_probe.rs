//! Read of the log's end beside the entries that its writer passes on.
//!
//! A follower drops its read of the next entry if the writer passes that entry on. If entries
//! arrive faster than the store answers, none of these reads finds the end. A probe is not dropped,
//! and it delays no entry. It finds a number above all entries that were acknowledged before it
//! began. A copy that has applied all entries below this number has reached the end of that moment.
//!
//! An entry that was passed on proves less: it may arrive late, and entries behind it may have been
//! acknowledged before, also by a later owner.

use std::time::Instant;

use base::{Error, Result};
use cluster::EntryNumber;
use cluster_log::ShardLog;
use tokio::task::{JoinError, JoinSet};

use super::PAUSE_MIN;
use crate::types::ShardKey;

/// Probes of the log's end. At most one runs. Dropping them ends it.
#[derive(Default)]
pub(super) struct EndProbe {
    running: JoinSet<Result<ProbedEnd>>,
    /// End that the copy has not reached yet.
    found: Option<ProbedEnd>,
    /// Time of the last failure, if no later probe succeeded.
    failed: Option<Instant>,
}

/// End of a log at the moment at which a probe began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProbedEnd {
    /// Number of the newest read of the end that was requested before.
    end_read: u64,
    /// Number above all entries that were acknowledged before.
    next: EntryNumber,
}

impl EndProbe {
    /// Begins a probe for the read `end_read` of the end, and for all earlier ones. Does nothing if
    /// a probe runs, the copy has not reached the last probed end, or a probe failed a moment ago.
    /// `from` is the next entry that the copy applies.
    pub(super) fn begin(&mut self, log: &ShardLog, from: EntryNumber, end_read: u64) {
        let is_paused = self.failed.is_some_and(|failed| failed.elapsed() < PAUSE_MIN);
        if is_paused || self.found.is_some() || !self.running.is_empty() {
            return;
        }
        let log = log.clone();
        self.running.spawn(async move {
            let next = log.acknowledged_end(from).await?;
            Ok(ProbedEnd { end_read, next })
        });
    }

    /// Returns the read of the end that a probe was for, once, if the copy has reached the probed
    /// end. `next` is the next entry that the copy applies.
    pub(super) fn take_reached(&mut self, shard: &ShardKey, next: EntryNumber) -> Option<u64> {
        while let Some(ended) = self.running.try_join_next() {
            self.record(shard, ended);
        }
        let reached = self.found.take_if(|found| found.next <= next)?;
        Some(reached.end_read)
    }

    fn record(&mut self, shard: &ShardKey, ended: Result<Result<ProbedEnd>, JoinError>) {
        let outcome = ended.unwrap_or_else(|error| {
            Err(Error::internal(format!("the read of the log's end ended early: {error}")))
        });
        match outcome {
            Ok(found) => {
                self.found = Some(found);
                self.failed = None;
            }
            Err(error) => {
                // One message for failures without a success between them.
                if self.failed.replace(Instant::now()).is_none() {
                    tracing::warn!(%shard, %error, "the log's end cannot be read and is tried again");
                } else {
                    tracing::debug!(%shard, %error, "the log's end cannot be read and is tried again");
                }
            }
        }
    }
}
