//! State that the handles of a writer share with its task.

use std::sync::Arc;

use cluster::EntryNumber;
use tokio::sync::watch;

use super::options::WriterOptions;
use super::queue::{QueueSignal, WriteQueue};
use super::retry::StoreHealth;

/// Phase of a [`ShardWriter`](super::ShardWriter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterPhase {
    /// Reads the log to its end and creates its fence. Writes wait.
    Starting,
    /// Owns the shard: appends entries and acknowledges them.
    Owning,
    /// The ownership ended. Waits for the entries in flight. New writes are refused.
    Draining,
    /// The ownership is lost, and the writer has ended.
    Lost,
}

/// State of a [`ShardWriter`](super::ShardWriter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterStatus {
    /// Phase of the ownership.
    pub phase: WriterPhase,
    /// Next number after the fence or the last acknowledged entry. Meaningful from
    /// [`WriterPhase::Owning`] on.
    pub next: EntryNumber,
}

/// State that the handles of a writer share with its task.
pub(super) struct WriterShared {
    pub(super) queue: Arc<WriteQueue>,
    pub(super) health: Arc<StoreHealth>,
    pub(super) status: watch::Sender<WriterStatus>,
}

impl WriterShared {
    pub(super) fn new(shard: &str, options: WriterOptions) -> WriterShared {
        let status = WriterStatus { phase: WriterPhase::Starting, next: EntryNumber::default() };
        WriterShared {
            queue: Arc::new(WriteQueue::new(shard, options)),
            health: Arc::new(StoreHealth::new(shard)),
            status: watch::Sender::new(status),
        }
    }

    pub(super) fn set_status(&self, new: WriterStatus) {
        self.status.send_if_modified(|status| {
            let differs = *status != new;
            *status = new;
            differs
        });
    }

    /// Ends the writer: refuses writes and reports the loss.
    pub(super) fn end(&self) {
        self.queue.close(QueueSignal::Stopped);
        let next = self.status.borrow().next;
        self.set_status(WriterStatus { phase: WriterPhase::Lost, next });
    }
}
