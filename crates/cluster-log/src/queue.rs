//! Writes that wait for an entry, between the callers and the task of a writer.
//!
//! A write leaves the queue once. The task takes it for an entry, or the queue closes, or its
//! caller takes it back. The caller does so at its deadline, or when its future is dropped. So a
//! caller knows whether its write was not made or may have been made.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use cluster::{EntryNumber, PIPELINE_MAX, RECENT_WRITES_MAX, RecentWrites};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::append::{AppendOutcome, LogWrite};
use super::codec::{Batch, ENTRY_OPERATIONS_MAX};
use super::options::WriterOptions;
use super::retry::StoreHealth;

/// Bytes counted for an operation besides its text: its length in the entry, and memory.
const OPERATION_BYTES: usize = 64;
/// Advice to a client whose write was not made.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// Returns true if an error of [`ShardWriter::append`](super::ShardWriter::append) says that the
/// write was not made and never will be. Otherwise its outcome is unknown, because the write may be
/// in the log already, or arrive there later. Such an error has no advice to retry.
pub fn was_not_made(error: &Error) -> bool {
    error.kind() != ErrorKind::Unavailable || error.retry_after().is_some()
}

/// State of a queue. A state is replaced only by a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum QueueSignal {
    /// Takes writes.
    Open,
    /// The ownership ended.
    Expired,
    /// The writer has ended or must end now.
    Stopped,
}

type WriteAnswer = oneshot::Sender<Result<AppendOutcome>>;

/// A write that is in no entry yet.
struct WaitingWrite {
    write: LogWrite,
    bytes: usize,
    arrived: Instant,
    answer: WriteAnswer,
}

/// Number and size of writes.
#[derive(Clone, Copy, Debug, Default)]
struct WriteAmount {
    writes: usize,
    operations: usize,
    bytes: usize,
}

impl WriteAmount {
    fn add(&mut self, write: &WaitingWrite) {
        self.writes += 1;
        self.operations += write.write.operations.len();
        self.bytes += write.bytes;
    }

    fn join(&mut self, other: WriteAmount) {
        self.writes += other.writes;
        self.operations += other.operations;
        self.bytes += other.bytes;
    }

    fn subtract(&mut self, other: WriteAmount) {
        self.writes -= other.writes;
        self.operations -= other.operations;
        self.bytes -= other.bytes;
    }

    fn of(write: &WaitingWrite) -> WriteAmount {
        let mut amount = WriteAmount::default();
        amount.add(write);
        amount
    }
}

/// Writes that share an entry, and refused ones that are answered with them.
#[derive(Default)]
pub(super) struct TakenBatch {
    answers: Vec<WriteAnswer>,
    /// Answers to writes that their conditions refuse. The entry does not have their operations.
    refused: Vec<WriteAnswer>,
    amount: WriteAmount,
    /// Order of the next write after these, as [`RecentWrites::next_order`] returns it.
    order: u64,
}

impl TakenBatch {
    /// Adds a batch whose writes were all refused.
    pub(super) fn join(&mut self, refused: TakenBatch) {
        self.refused.extend(refused.refused);
        self.amount.join(refused.amount);
    }
}

/// Next step of the writer with the queue.
pub(super) enum QueueStep {
    /// Writes for an entry.
    Take(Batch, TakenBatch),
    /// Writes that were all refused. They need no entry, and are answered once all entries before
    /// them are acknowledged.
    Refuse(TakenBatch),
    /// Nothing to do before this time, if there is one, or before the queue or the store wakes the
    /// task.
    Wait(Option<Instant>),
}

struct QueueState {
    signal: QueueSignal,
    /// Number of the next write.
    next: u64,
    /// Writes without an entry, by number and so in order.
    waiting: BTreeMap<u64, WaitingWrite>,
    waiting_amount: WriteAmount,
    /// Writes whose entries are in flight.
    taken_amount: WriteAmount,
    /// Ids of the writes taken so far, which decide on conditions.
    recent: RecentWrites,
}

/// Bounded queue of writes.
pub(super) struct WriteQueue {
    shard: String,
    options: WriterOptions,
    state: Mutex<QueueState>,
    woken: Notify,
}

impl WriteQueue {
    /// Creates an open queue. `shard` is for messages.
    pub(super) fn new(shard: &str, options: WriterOptions) -> WriteQueue {
        WriteQueue {
            shard: shard.to_owned(),
            options,
            state: Mutex::new(QueueState {
                signal: QueueSignal::Open,
                next: 0,
                waiting: BTreeMap::new(),
                waiting_amount: WriteAmount::default(),
                taken_amount: WriteAmount::default(),
                recent: RecentWrites::new(RECENT_WRITES_MAX),
            }),
            woken: Notify::new(),
        }
    }

    /// Adds a write.
    ///
    /// # Errors
    /// `InvalidArgument` without operations; `TooLarge` for a write that no entry can have;
    /// `ResourceExhausted` if the queue is full; `Unavailable` if it is closed.
    pub(super) fn add(self: &Arc<WriteQueue>, write: LogWrite) -> Result<QueuedWrite> {
        let bytes = self.check_size(&write.operations)?;
        let (sender, receiver) = oneshot::channel();
        let write = WaitingWrite { write, bytes, arrived: Instant::now(), answer: sender };
        let mut state = self.state.lock();
        if state.signal != QueueSignal::Open {
            return Err(self.closed());
        }
        let writes = state.waiting_amount.writes + state.taken_amount.writes;
        let held = state.waiting_amount.bytes + state.taken_amount.bytes;
        if writes >= self.options.waiting_max || held + bytes > self.options.waiting_bytes_max {
            return Err(self.full(writes, held));
        }
        let number = state.next;
        state.next += 1;
        state.waiting_amount.add(&write);
        state.waiting.insert(number, write);
        drop(state);
        self.woken.notify_one();
        Ok(QueuedWrite { queue: self.clone(), number, answer: receiver })
    }

    /// Checks the size of a write and returns its bytes.
    ///
    /// # Errors
    /// `InvalidArgument` without operations; `TooLarge` for too many bytes or operations.
    fn check_size(&self, operations: &[Bytes]) -> Result<usize> {
        let bytes = operations.iter().map(|operation| OPERATION_BYTES + operation.len()).sum();
        let bytes_max = self.options.write_bytes_max();
        if operations.is_empty() {
            return Err(Error::invalid("a write without operations"));
        }
        if bytes > bytes_max || operations.len() > ENTRY_OPERATIONS_MAX {
            return Err(Error::too_large(format!(
                "{bytes} bytes in {} operations for shard {}; one write has at most {bytes_max} \
                 bytes and {ENTRY_OPERATIONS_MAX} operations: send several",
                operations.len(),
                self.shard
            )));
        }
        Ok(bytes)
    }

    /// Takes writes for an entry if there are enough for a full entry. Also takes them if the first
    /// has waited for others long enough and no entry is in flight. `on_way` is the number of
    /// entries without an answer.
    pub(super) fn next_step(&self, on_way: usize) -> QueueStep {
        let mut state = self.state.lock();
        let Some((_, first)) = state.waiting.first_key_value() else {
            return QueueStep::Wait(None);
        };
        let due = first.arrived + self.options.gather;
        let amount = state.waiting_amount;
        let full = amount.bytes >= self.options.batch_bytes_max
            || amount.operations >= ENTRY_OPERATIONS_MAX;
        if full && on_way < PIPELINE_MAX || on_way == 0 && Instant::now() >= due {
            return state.take(self.options.batch_bytes_max);
        }
        QueueStep::Wait((on_way == 0).then_some(due))
    }

    /// Sets the entry of the fence, before the first write is taken.
    pub(super) fn begin_behind(&self, fence: EntryNumber) {
        self.state.lock().recent.begin_behind(fence);
    }

    /// Answers the writes of an entry and frees their space in the queue.
    pub(super) fn answer(&self, batch: TakenBatch, answer: &Result<EntryNumber>) {
        let mut state = self.state.lock();
        state.taken_amount.subtract(batch.amount);
        if let Ok(entry) = answer {
            state.recent.acknowledge(batch.order, *entry);
        }
        drop(state);
        for sender in batch.answers {
            // The caller may have dropped the receiver.
            let _ = sender.send(answer.clone().map(AppendOutcome::Appended));
        }
        for sender in batch.refused {
            // Refused writes were not made, even if the outcome of the entry is unknown.
            let refusal = answer.as_ref().map(|entry| AppendOutcome::Refused(*entry));
            let _ = sender.send(refusal.map_err(|_| self.closed()));
        }
    }

    /// Returns the error of a write whose outcome is unknown.
    pub(super) fn unknown(&self, reason: &str) -> Error {
        Error::unavailable(format!(
            "{reason}; a write of shard {} may be made or not: send it again",
            self.shard
        ))
    }

    /// Withdraws a write. Returns false if it has left the queue.
    fn withdraw(&self, number: u64) -> bool {
        let mut state = self.state.lock();
        let Some(write) = state.waiting.remove(&number) else { return false };
        state.waiting_amount.subtract(WriteAmount::of(&write));
        true
    }

    /// Refuses the waiting writes and all later ones.
    pub(super) fn close(&self, signal: QueueSignal) {
        let mut state = self.state.lock();
        state.signal = state.signal.max(signal);
        state.waiting_amount = WriteAmount::default();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for write in waiting.into_values() {
            let _ = write.answer.send(Err(self.closed()));
        }
        self.woken.notify_one();
    }

    pub(super) fn signal(&self) -> QueueSignal {
        self.state.lock().signal
    }

    /// Waits for a write or a signal. Only the writer's task waits.
    pub(super) async fn wait_for_wake(&self) {
        self.woken.notified().await;
    }

    /// Returns the error of a write that came after the end of the ownership.
    fn closed(&self) -> Error {
        Error::unavailable(format!(
            "this node no longer writes the log of shard {}; the write was not made: send it to \
             the new owner",
            self.shard
        ))
        .with_retry_after(RETRY_AFTER)
    }

    /// Returns the error of a write that the queue has no room for.
    fn full(&self, writes: usize, bytes: usize) -> Error {
        Error::exhausted(format!(
            "{writes} writes with {bytes} bytes of shard {} wait for the store; the write was not \
             made: send fewer at the same time",
            self.shard
        ))
        .with_retry_after(RETRY_AFTER)
    }
}

impl QueueState {
    /// Takes the first write, and the writes after it that fit into the same entry. Decides on
    /// their conditions, because from here on their order is that of the log.
    fn take(&mut self, bytes_max: usize) -> QueueStep {
        let mut operations = Vec::new();
        let mut batch = TakenBatch::default();
        while let Some(first) = self.waiting.first_entry() {
            let bytes = first.get().bytes;
            let count = first.get().write.operations.len();
            let fits = batch.amount.bytes + bytes <= bytes_max
                && batch.amount.operations + count <= ENTRY_OPERATIONS_MAX;
            if batch.amount.writes > 0 && !fits {
                break;
            }
            let waiting = first.remove();
            batch.amount.add(&waiting);
            let WaitingWrite { write, answer, .. } = waiting;
            if self.recent.take(&write.ids, write.unless_after) {
                operations.extend(write.operations);
                batch.answers.push(answer);
            } else {
                batch.refused.push(answer);
            }
        }
        batch.order = self.recent.next_order();
        self.waiting_amount.subtract(batch.amount);
        self.taken_amount.join(batch.amount);
        if batch.answers.is_empty() {
            return QueueStep::Refuse(batch);
        }
        QueueStep::Take(Batch::from(operations), batch)
    }
}

/// A write in the queue or in an entry. Dropping it withdraws the write if it has no entry yet.
pub(super) struct QueuedWrite {
    queue: Arc<WriteQueue>,
    number: u64,
    answer: oneshot::Receiver<Result<AppendOutcome>>,
}

impl QueuedWrite {
    /// Waits for the answer.
    ///
    /// # Errors
    /// The answer's; `Unavailable` at `deadline`, with advice to retry if the write was not made.
    pub(super) async fn wait(
        mut self,
        deadline: Instant,
        health: &StoreHealth,
    ) -> Result<AppendOutcome> {
        match tokio::time::timeout_at(deadline.into(), &mut self.answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(self.queue.unknown("the writer ended")),
            Err(_) if self.queue.withdraw(self.number) => Err(self.not_in_time(health)),
            // The answer may have come at the last moment.
            Err(_) => self.answer.try_recv().unwrap_or_else(|_| Err(self.unanswered(health))),
        }
    }

    fn not_in_time(&self, health: &StoreHealth) -> Error {
        let error = Error::unavailable(format!(
            "{}; the write of shard {} was not made: send it again",
            reason(health),
            self.queue.shard
        ));
        error.with_retry_after(RETRY_AFTER)
    }

    fn unanswered(&self, health: &StoreHealth) -> Error {
        self.queue.unknown(&reason(health))
    }
}

fn reason(health: &StoreHealth) -> String {
    match health.error() {
        Some(error) => {
            format!("the log was not written in time, because the store fails ({error})")
        }
        None => "the log was not written in time".to_owned(),
    }
}

impl Drop for QueuedWrite {
    fn drop(&mut self) {
        self.queue.withdraw(self.number);
    }
}
