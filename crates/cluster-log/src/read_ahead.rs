//! Reads of several entries at the same time by a reader that is behind.

use base::{Error, Result};
use cluster::{EntryBody, EntryNumber, LogEntry};
use tokio::task::JoinSet;

use super::codec::Batch;
use super::store::ShardLog;

/// Bytes of entries that are read at the same time, estimated from the entries before.
const READ_AHEAD_BYTES_MAX: usize = 32 << 20;

/// Number of entries to read at once: doubled while all of them exist, and 1 at the end of the log.
#[derive(Clone, Debug)]
pub(super) struct ReadAhead {
    window: usize,
    window_max: usize,
}

impl ReadAhead {
    pub(super) fn new(window_max: usize) -> ReadAhead {
        ReadAhead { window: 1, window_max }
    }

    /// Reads entries from `from` on, until the first that is absent or fails.
    ///
    /// # Errors
    /// The error of the first entry, as [`ShardLog::read`].
    pub(super) async fn read(
        &mut self,
        log: &ShardLog,
        from: EntryNumber,
    ) -> Result<Vec<LogEntry<Batch>>> {
        let requested = self.window;
        let run = if requested == 1 {
            log.read(from).await?.into_iter().collect()
        } else {
            read_run(log, from, requested).await?
        };
        self.learn(requested, &run);
        Ok(run)
    }

    /// Sets the number of entries of the next read. It doubles while all requested entries exist
    /// and fit into memory, and is 1 after the end of the log.
    fn learn(&mut self, requested: usize, run: &[LogEntry<Batch>]) {
        let bytes = |entry: &LogEntry<Batch>| match &entry.body {
            EntryBody::Fence => 0,
            EntryBody::Writes(batch) => batch.bytes(),
        };
        let largest = run.iter().map(bytes).max().unwrap_or(0).max(1);
        let fitting = (READ_AHEAD_BYTES_MAX / largest).clamp(1, self.window_max);
        self.window = if run.len() == requested { (2 * requested).min(fitting) } else { 1 };
    }
}

/// Reads `count` entries from `from` on at once. Returns the entries before the first one that is
/// absent or cannot be read.
///
/// # Errors
/// The error of the first entry, which the next call would meet again.
async fn read_run(log: &ShardLog, from: EntryNumber, count: usize) -> Result<Vec<LogEntry<Batch>>> {
    let mut reads = JoinSet::new();
    for at in 0..count {
        let log = log.clone();
        let number = from.plus(at as u64);
        reads.spawn(async move { (at, log.read(number).await) });
    }
    let mut answers: Vec<Result<Option<LogEntry<Batch>>>> = vec![Ok(None); count];
    while let Some(joined) = reads.join_next().await {
        let failed = |error| Error::internal(format!("a read of {}", log.shown())).caused_by(error);
        let (at, answer) = joined.map_err(failed)?;
        answers[at] = answer;
    }
    let mut run = Vec::with_capacity(count);
    for answer in answers {
        match answer {
            Ok(Some(entry)) => run.push(entry),
            Ok(None) => break,
            Err(error) if run.is_empty() => return Err(error),
            // The next call reads this entry first.
            Err(_) => break,
        }
    }
    Ok(run)
}
