//! Probes: searches for the end of a log (`cluster::EndSearch`) that run while a follower applies
//! entries.
//!
//! A follower drops its read of the next entry if the writer passes that entry on. If entries
//! arrive faster than the store answers, none of these reads finds the end. Large entries are not
//! passed on: each of these reads may then find one more entry. A probe is not dropped, and it
//! delays no entry. It finds a number above all entries that were acknowledged before it began. A
//! copy that has applied all entries below this number has reached the end of that moment.
//!
//! An entry that was passed on does not prove the end. It may arrive late, and later entries may
//! have been acknowledged before, also by a later owner.

use std::time::{Duration, Instant};

use base::{Error, Result};
use cluster::EntryNumber;
use cluster_log::ShardLog;
use tokio::task::{JoinError, JoinSet};

use super::{PAUSE_MIN, POLL_INTERVAL};
use crate::types::ShardKey;

/// Probes of the log's end. At most one runs. Dropping them ends it.
#[derive(Default)]
pub(super) struct EndProbe {
    running: JoinSet<Result<Option<ProbedEnd>>>,
    /// End that the copy has not reached yet.
    found: Option<ProbedEnd>,
    /// Time until which no probe begins.
    paused_until: Option<Instant>,
    /// True if the last probe failed.
    has_failed: bool,
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
    /// a probe runs, the copy has not reached the last probed end, or the last probe found no end a
    /// moment ago. `from` is the next entry that the copy applies.
    pub(super) fn begin(&mut self, log: &ShardLog, from: EntryNumber, end_read: u64) {
        let is_paused = self.paused_until.is_some_and(|until| Instant::now() < until);
        if is_paused || self.is_active() {
            return;
        }
        let log = log.clone();
        self.running.spawn(async move {
            let next = log.acknowledged_end(from).await?;
            Ok(next.map(|next| ProbedEnd { end_read, next }))
        });
    }

    /// Returns true if a probe runs, or the copy has not reached the last probed end.
    pub(super) fn is_active(&self) -> bool {
        self.found.is_some() || !self.running.is_empty()
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

    /// Records the outcome of a probe, and sets the pause before the next one.
    fn record(&mut self, shard: &ShardKey, ended: Result<Result<Option<ProbedEnd>>, JoinError>) {
        let outcome = ended.unwrap_or_else(|error| {
            Err(Error::internal("the search for the log's end ended early").caused_by(error))
        });
        match outcome {
            Ok(found) => {
                if found.is_none() {
                    // The copy is far behind, and reads many entries before the next probe.
                    self.pause(POLL_INTERVAL);
                }
                self.found = found;
                self.has_failed = false;
            }
            Err(error) => {
                self.pause(PAUSE_MIN);
                // One message for failures without a success between them.
                if self.has_failed {
                    tracing::debug!(%shard, %error, "the log's end cannot be read and is tried again");
                } else {
                    tracing::warn!(%shard, %error, "the log's end cannot be read and is tried again");
                }
                self.has_failed = true;
            }
        }
    }

    fn pause(&mut self, time: Duration) {
        self.paused_until = Some(Instant::now() + time);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cluster::{EntryBody, Epoch, LogEntry, WriterId};
    use cluster_log::{CreateOutcome, LogFloor};
    use model_store::StorePlace;
    use object_store::memory::InMemory;

    use super::*;

    /// A log with the entries 0 to 4, and probes of its end.
    struct ProbedLog {
        log: ShardLog,
        probe: EndProbe,
    }

    impl ProbedLog {
        async fn new() -> ProbedLog {
            let place = StorePlace::new(Arc::new(InMemory::new()), "", "the store");
            let log = ShardLog::new(&place, &shard());
            for number in 0..5 {
                let entry =
                    LogEntry { epoch: Epoch(1), writer: WriterId(1), body: EntryBody::Fence };
                assert_eq!(log.create(EntryNumber(number), &entry).await, CreateOutcome::Created);
            }
            ProbedLog { log, probe: EndProbe::default() }
        }

        fn begin(&mut self, from: u64, end_read: u64) {
            self.probe.begin(&self.log, EntryNumber(from), end_read);
        }

        /// Waits until no probe runs, and returns the read of the end that `next` reaches.
        async fn reached(&mut self, next: u64) -> Option<u64> {
            loop {
                let is_running = !self.probe.running.is_empty();
                let reached = self.probe.take_reached(&shard(), EntryNumber(next));
                if reached.is_some() || !is_running {
                    return reached;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    fn shard() -> ShardKey {
        ShardKey::new("1", 0)
    }

    #[tokio::test]
    async fn a_probe_confirms_only_earlier_reads() {
        let mut probed = ProbedLog::new().await;
        probed.begin(0, 1);
        // A read that is requested while a probe runs, or waits for its end, needs another one.
        probed.begin(0, 2);
        assert_eq!(probed.reached(7).await, None, "the number 8 is the first absent one");
        probed.begin(7, 2);
        assert_eq!(probed.reached(8).await, Some(1));
        assert_eq!(probed.reached(8).await, None);
        probed.begin(8, 2);
        assert_eq!(probed.reached(11).await, None);
        assert_eq!(probed.reached(12).await, Some(2));
    }

    #[tokio::test]
    async fn a_probe_without_an_end_pauses_the_next_one() {
        let mut probed = ProbedLog::new().await;
        let floor = LogFloor { entry: EntryNumber(9), epoch: Epoch(1) };
        probed.log.raise_floor(floor).await.unwrap();
        probed.begin(0, 1);
        assert_eq!(probed.reached(u64::MAX).await, None);
        probed.begin(5, 1);
        assert!(!probed.probe.is_active());
    }
}
