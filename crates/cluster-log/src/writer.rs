//! Handle of a shard's writer.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use base::{Error, Result};
use bytes::Bytes;
use cluster::{EntryNumber, Epoch, LogEntry, WriterId};

use super::append::{AppendOutcome, LogWrite};
use super::codec::Batch;
use super::driver::WriterDriver;
use super::options::WriterOptions;
use super::queue::QueueSignal;
use super::shared::{WriterPhase, WriterShared, WriterStatus};
use super::store::ShardLog;

/// Function that is called with an acknowledged entry. It must not block.
pub type OnEntry = Box<dyn Fn(EntryNumber, LogEntry<Batch>) + Send>;

/// Writer of a shard's log, for one ownership. Clones are handles to the same writer. It ends when
/// the ownership is lost or the last handle is dropped.
#[derive(Clone)]
pub struct ShardWriter {
    handle: Arc<WriterHandle>,
}

/// Handle of a writer. The writer's task ends when the last handle is dropped. The task itself has
/// none.
struct WriterHandle {
    shared: Arc<WriterShared>,
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        self.shared.queue.close(QueueSignal::Stopped);
    }
}

impl ShardWriter {
    /// Starts a writer for the ownership `epoch`, on the tokio runtime of the caller. It reads the
    /// log from the floor to its end and creates a fence there. Writes wait until then.
    pub fn start(log: ShardLog, epoch: Epoch, options: WriterOptions) -> ShardWriter {
        ShardWriter::start_watched(log, epoch, options, Box::new(|_, _| {}))
    }

    /// Starts a writer as [`ShardWriter::start`] does. The writer calls `on_entry` with every entry
    /// when the entry is acknowledged, in order.
    pub fn start_watched(
        log: ShardLog,
        epoch: Epoch,
        options: WriterOptions,
        on_entry: OnEntry,
    ) -> ShardWriter {
        let options = options.limited();
        let log = log.with_timeout(options.request_timeout);
        let shared = Arc::new(WriterShared::new(log.shown(), options.clone()));
        let driver = WriterDriver::new(log, epoch, options, shared.clone(), writer_id(), on_entry);
        tokio::spawn(driver.run());
        ShardWriter { handle: Arc::new(WriterHandle { shared }) }
    }

    /// Appends operations to the log without a condition, as [`ShardWriter::append`] does. Returns
    /// the number of their entry.
    ///
    /// # Errors
    /// As [`ShardWriter::append`].
    pub async fn write(&self, operations: Vec<Bytes>, deadline: Instant) -> Result<EntryNumber> {
        let write = LogWrite { operations, ..LogWrite::default() };
        match self.append(write, deadline).await? {
            AppendOutcome::Appended(entry) => Ok(entry),
            AppendOutcome::Refused(entry) => Err(Error::internal(format!(
                "a write without a condition was refused, behind entry {entry}"
            ))),
        }
    }

    /// Appends operations to the log, in one entry with the operations of other calls. Returns the
    /// number of the entry once it is durable and counts. If the future is dropped before the
    /// operations have an entry, they are not written.
    ///
    /// A condition is checked when the operations get their place in the log. So of two conditional
    /// writes of one id, the later one is refused. A refusal is returned once the entries that may
    /// be its cause are acknowledged.
    ///
    /// # Errors
    /// `InvalidArgument` without operations; `TooLarge` if no entry can have them;
    /// `ResourceExhausted` if too many writes wait; `Unavailable` if the ownership is lost or at
    /// `deadline`. [`was_not_made`](super::was_not_made) says whether the outcome is unknown.
    pub async fn append(&self, write: LogWrite, deadline: Instant) -> Result<AppendOutcome> {
        let shared = &self.handle.shared;
        shared.queue.add(write)?.wait(deadline, &shared.health).await
    }

    /// Ends the ownership, or assumes that it has ended. Entries in flight may still be
    /// acknowledged, which is safe; other writes are refused.
    pub fn expire(&self) {
        self.handle.shared.queue.close(QueueSignal::Expired);
    }

    /// Returns the state.
    pub fn state(&self) -> WriterStatus {
        *self.handle.shared.status.borrow()
    }

    /// Returns true if the last request to the store has failed, and the store has created no entry
    /// since.
    pub fn is_failing(&self) -> bool {
        self.handle.shared.health.error().is_some()
    }

    /// Waits until the writer owns the log or has lost it. Returns true if it owns the log.
    pub async fn started(&self) -> bool {
        self.phase(|phase| phase != WriterPhase::Starting).await == WriterPhase::Owning
    }

    /// Waits until the ownership is lost and no request of this writer is in flight. After
    /// [`ShardWriter::expire`] this may take until the store answers.
    pub async fn lost(&self) {
        self.phase(|phase| phase == WriterPhase::Lost).await;
    }

    async fn phase(&self, wanted: fn(WriterPhase) -> bool) -> WriterPhase {
        let mut status = self.handle.shared.status.subscribe();
        let reached = status.wait_for(|status| wanted(status.phase)).await;
        // The sender lives in the handle.
        reached.map_or(WriterPhase::Lost, |status| status.phase)
    }
}

/// Returns a random number from the system's hash keys.
fn writer_id() -> WriterId {
    let seed = (std::process::id(), SystemTime::now());
    let half = || u128::from(RandomState::new().hash_one(seed));
    WriterId((half() << 64) | half())
}
