//! A reader of a shard's log.

use std::collections::VecDeque;

use base::Result;
use cluster::{EntryBody, EntryNumber, Epoch, LogEntry, LogReplay, WriterId};

use super::codec::Batch;
use super::read_ahead::ReadAhead;
use super::store::{LogFloor, ShardLog};

/// Maximum number of entries that a follower reads at the same time while it is behind.
const FOLLOW_AHEAD_MAX: usize = 8;

/// Step of a [`LogFollower`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowStep {
    /// The next entry.
    Entry {
        /// Number of the entry.
        number: EntryNumber,
        /// Operations of the entry; `None` for a fence and for an entry that does not count.
        batch: Option<Batch>,
    },
    /// The next entry does not exist. Every write that was acknowledged before the call of
    /// [`LogFollower::next`] has been returned.
    End,
    /// The next entry is below the floor and may be removed. A snapshot must be restored.
    Removed(LogFloor),
}

/// Position in a log, from which a follower can continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowPosition {
    /// Number of the entry to read next. All entries before it were applied.
    pub next: EntryNumber,
    /// Largest epoch of the entries before.
    pub epoch: Epoch,
}

/// Reader of a log in order. A follower that is behind reads up to 8 entries at the same time.
#[derive(Clone, Debug)]
pub struct LogFollower {
    log: ShardLog,
    replay: LogReplay,
    ahead: ReadAhead,
    /// Entries from the position on, which the floor did not exceed after they were read.
    ready: VecDeque<LogEntry<Batch>>,
    /// Owner that wrote the last entry that counts, once one was read from the log. Only this
    /// writer's entries are taken without a read, because its number is random, and only its log
    /// has it.
    writer: Option<WriterId>,
}

impl LogFollower {
    /// Creates a reader of the log from `from` on. `epoch` is the largest epoch before `from`.
    pub fn new(log: ShardLog, from: EntryNumber, epoch: Epoch) -> LogFollower {
        LogFollower {
            log,
            replay: LogReplay::new(from, epoch),
            ahead: ReadAhead::new(FOLLOW_AHEAD_MAX),
            ready: VecDeque::new(),
            writer: None,
        }
    }

    /// Returns the position after the last returned entry.
    pub fn position(&self) -> FollowPosition {
        FollowPosition { next: self.replay.next(), epoch: self.replay.epoch() }
    }

    /// Returns the next step. If the future is dropped or fails, the position stays, and a later
    /// call continues from there.
    ///
    /// # Errors
    /// `DataLoss` for a damaged entry and `Unimplemented` for one of a newer program, both with its
    /// key; otherwise the store's error, after which another call may succeed.
    pub async fn next(&mut self) -> Result<FollowStep> {
        if let Some(step) = self.take() {
            return Ok(step);
        }
        let from = self.replay.next();
        let run = match self.ahead.read(&self.log, from).await {
            // A snapshot may cover a damaged entry: the floor decides.
            Err(error) if error.is_retryable() => return Err(error),
            run => run,
        };
        // A removed number looks like the end, and a process that slept may create it again. A
        // directory that is not mounted any more may have entries that are in no log.
        let ((), floor) = tokio::try_join!(self.log.check_marker(), self.log.floor())?;
        if floor.entry > from {
            return Ok(FollowStep::Removed(floor));
        }
        self.ready.extend(run?);
        Ok(self.take().unwrap_or(FollowStep::End))
    }

    /// Takes an entry from its writer, so that the next call of [`LogFollower::next`] reads
    /// nothing. It must be the entry at the present position, and its writer must have acknowledged
    /// it. Then it is in the log, and the floor was not above it. Returns false for an entry at
    /// another number. Also returns false if its writer is not the writer of the last entry that
    /// was read from the log and counts. Such an entry changes nothing, and the log is read.
    pub fn offer(&mut self, number: EntryNumber, entry: LogEntry<Batch>) -> bool {
        let is_next = number == self.replay.next() && self.ready.is_empty();
        // Any client with a key of the role write can send an entry. One with a large epoch would
        // make all later entries of the log invalid for this copy.
        let is_of_writer = self.writer == Some(entry.writer) && entry.epoch == self.replay.epoch();
        let is_taken = is_next && is_of_writer;
        if is_taken {
            self.ready.push_back(entry);
        }
        is_taken
    }

    /// Takes the next entry that was read. An entry that does not count has no batch.
    fn take(&mut self) -> Option<FollowStep> {
        let entry = self.ready.pop_front()?;
        let number = self.replay.next();
        let counts = self.replay.take(&entry);
        if counts {
            // Entries of a restored backup have the epoch 0, and a writer that is not random.
            self.writer = (entry.epoch != Epoch::default()).then_some(entry.writer);
        }
        let batch = match entry.body {
            EntryBody::Writes(batch) if counts => Some(batch),
            EntryBody::Writes(_) | EntryBody::Fence => None,
        };
        Some(FollowStep::Entry { number, batch })
    }
}
