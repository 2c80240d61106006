//! Task of a shard's writer: carries out the actions of `cluster::LogWriter`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use base::{Error, ErrorKind};
use cluster::{
    EntryBody, EntryNumber, Epoch, LogEntry, LogWriter, RequestId, Ticket, WriterAction,
    WriterEvent, WriterId, WriterState,
};
use tokio::task::{JoinError, JoinSet};

use super::codec::Batch;
use super::options::WriterOptions;
use super::queue::{QueueSignal, QueueStep, TakenBatch};
use super::read_ahead::ReadAhead;
use super::retry::Retry;
use super::shared::{WriterPhase, WriterShared, WriterStatus};
use super::store::{CreateOutcome, LogFloor, ShardLog};
use super::writer::OnEntry;

/// Maximum number of entries that a new owner reads at the same time. Writes of the shard wait
/// meanwhile, so it reads more than a follower does.
const REPLAY_AHEAD_MAX: usize = 32;

/// Answer of the store to a request.
enum StoreAnswer {
    /// Floor from which a new owner reads.
    Begin(LogFloor),
    /// Entries from the position after the last ones; none if the first is absent.
    Entries {
        request: RequestId,
        entries: Vec<LogEntry<Batch>>,
        ahead: ReadAhead,
    },
    /// One entry; `None` if it is absent.
    Entry(RequestId, Option<LogEntry<Batch>>),
    Created(RequestId, CreateOutcome),
    Floor(RequestId, LogFloor),
    /// The store lacks its marker. Entries that were created since may be in another directory.
    Unmarked(Error),
}

/// Task of a writer, from its start to the loss of the ownership.
pub(super) struct WriterDriver {
    log: ShardLog,
    epoch: Epoch,
    options: WriterOptions,
    shared: Arc<WriterShared>,
    writer: LogWriter<Batch>,
    requests: JoinSet<StoreAnswer>,
    ahead: ReadAhead,
    /// Entries that were read ahead of the writer while it reads the log.
    entries: VecDeque<LogEntry<Batch>>,
    /// Batches that the writer has neither acknowledged nor failed.
    batches: BTreeMap<Ticket, TakenBatch>,
    tickets: u64,
    /// Number after the fence or the last applied entry.
    next: EntryNumber,
    /// Writes of the last applied entry, until they are acknowledged.
    applied: Option<Batch>,
    id: WriterId,
    on_entry: OnEntry,
    /// Number of failures of creates since the last success.
    create_failures: u32,
    ended: bool,
}

/// Guard that ends the writer for its handles, even if its task is aborted.
struct EndGuard(Arc<WriterShared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl WriterDriver {
    pub(super) fn new(
        log: ShardLog,
        epoch: Epoch,
        options: WriterOptions,
        shared: Arc<WriterShared>,
        id: WriterId,
        on_entry: OnEntry,
    ) -> WriterDriver {
        WriterDriver {
            log,
            epoch,
            options,
            shared,
            writer: LogWriter::new(id),
            requests: JoinSet::new(),
            ahead: ReadAhead::new(REPLAY_AHEAD_MAX),
            entries: VecDeque::new(),
            batches: BTreeMap::new(),
            tickets: 0,
            next: EntryNumber::default(),
            applied: None,
            id,
            on_entry,
            create_failures: 0,
            ended: false,
        }
    }

    /// Runs until the ownership is lost or no handle is left.
    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        let _end = EndGuard(shared.clone());
        self.begin();
        loop {
            self.handle_signal();
            let wake_at = self.submit();
            if self.ended {
                return;
            }
            tokio::select! {
                () = shared.queue.wait_for_wake() => {}
                () = sleep_until(wake_at) => {}
                Some(answer) = self.requests.join_next() => self.answered(answer),
            }
        }
    }

    /// Takes the signal of the handles: the ownership expired, or no handle is left.
    fn handle_signal(&mut self) {
        match self.shared.queue.signal() {
            QueueSignal::Open => {}
            QueueSignal::Expired => {
                self.handle(WriterEvent::Expired);
                // Before the floor is read, the writer does not know of its ownership.
                self.ended |= self.writer.state() == WriterState::Idle;
            }
            QueueSignal::Stopped => self.ended = true,
        }
    }

    /// Passes waiting writes to the writer. Returns the time of the next call, or `None` if only an
    /// event causes it.
    fn submit(&mut self) -> Option<Instant> {
        while !self.ended && self.writer.state() == WriterState::Owning {
            match self.shared.queue.next_step(self.batches.len()) {
                QueueStep::Wait(until) => return until,
                QueueStep::Take(batch, taken) => {
                    self.tickets += 1;
                    let ticket = Ticket(self.tickets);
                    self.batches.insert(ticket, taken);
                    self.handle(WriterEvent::Submitted(ticket, batch));
                }
                QueueStep::Refuse(refused) => self.refuse(refused),
            }
        }
        None
    }

    /// Answers refused writes once all entries before them are acknowledged. The answer names the
    /// last of these entries. A lookup that has seen this entry has seen the cause of the refusal.
    fn refuse(&mut self, refused: TakenBatch) {
        let last = EntryNumber(self.next.0.saturating_sub(1));
        match self.batches.last_entry() {
            Some(mut batch) => batch.get_mut().join(refused),
            None => self.shared.queue.answer(refused, &Ok(last)),
        }
    }

    /// Reports the answer of a request to the store to the writer.
    fn answered(&mut self, joined: Result<StoreAnswer, JoinError>) {
        match joined {
            Ok(StoreAnswer::Begin(floor)) => {
                let epoch = self.epoch;
                self.handle(WriterEvent::Granted {
                    epoch,
                    from: floor.entry,
                    covered: floor.epoch,
                });
                // The writer refuses an epoch of 0, which no owner has.
                self.ended |= self.writer.state() == WriterState::Idle;
            }
            Ok(StoreAnswer::Entries { request, entries, ahead }) => {
                self.ahead = ahead;
                self.entries = entries.into();
                let first = self.entries.pop_front();
                self.handle(WriterEvent::Found(request, first));
            }
            Ok(StoreAnswer::Entry(request, entry)) => {
                self.handle(WriterEvent::Found(request, entry))
            }
            Ok(StoreAnswer::Created(request, outcome)) => self.created(request, outcome),
            Ok(StoreAnswer::Floor(request, floor)) => {
                self.shared.health.record_success();
                let LogFloor { entry, epoch } = floor;
                self.handle(WriterEvent::Floor { request, entry, epoch });
            }
            Ok(StoreAnswer::Unmarked(error)) => {
                let shard = self.log.shown();
                tracing::error!(shard, %error, "the writer of a log ends: it found another store");
                self.ended = true;
            }
            Err(error) => {
                let shard = self.log.shown();
                tracing::error!(shard, %error, "a log's writer ends: a request panicked");
                self.ended = true;
            }
        }
    }

    /// Reports the outcome of a create to the writer.
    fn created(&mut self, request: RequestId, outcome: CreateOutcome) {
        match outcome {
            CreateOutcome::Created => {
                self.create_failures = 0;
                self.shared.health.record_success();
                self.handle(WriterEvent::Created(request));
            }
            CreateOutcome::NotCreated => self.handle(WriterEvent::NotCreated(request)),
            CreateOutcome::Unknown(_) => {
                self.create_failures = self.create_failures.saturating_add(1);
                self.handle(WriterEvent::NotCreated(request));
            }
        }
    }

    /// Passes an event to the writer and carries out its actions. Actions can cause further events,
    /// which follow.
    fn handle(&mut self, event: WriterEvent<Batch>) {
        let mut events = VecDeque::from([event]);
        let mut actions = Vec::new();
        while let Some(event) = events.pop_front() {
            self.writer.handle(event, &mut actions);
            for action in actions.drain(..) {
                events.extend(self.act(action));
            }
        }
        self.publish();
    }

    /// Carries out an action. Returns its event if it is known at once.
    fn act(&mut self, action: WriterAction<Batch>) -> Option<WriterEvent<Batch>> {
        match action {
            WriterAction::Read(request, number) => return self.read(request, number),
            WriterAction::Create(request, number, entry) => self.create(request, number, entry),
            WriterAction::ReadFloor(request) => self.read_floor(request),
            // Holders apply the log. The number belongs to the acknowledgement, which follows.
            WriterAction::Apply(number, batch) => {
                self.next = number.plus(1);
                self.applied = Some(batch);
            }
            WriterAction::Acknowledge(ticket) => {
                let number = EntryNumber(self.next.0.saturating_sub(1));
                self.pass_on(number);
                self.answer(ticket, &Ok(number));
            }
            WriterAction::Fail(ticket) => {
                let error = self.shared.queue.unknown("this node no longer owns the log");
                self.answer(ticket, &Err(error));
            }
            WriterAction::Lost => self.ended = true,
        }
        None
    }

    /// Passes the acknowledged entry to the caller of `start_watched`.
    fn pass_on(&mut self, number: EntryNumber) {
        if let Some(batch) = self.applied.take() {
            let epoch = self.epoch;
            let writer = self.id;
            let body = EntryBody::Writes(batch);
            (self.on_entry)(number, LogEntry { epoch, writer, body });
        }
    }

    fn answer(&mut self, ticket: Ticket, answer: &base::Result<EntryNumber>) {
        if let Some(batch) = self.batches.remove(&ticket) {
            self.shared.queue.answer(batch, answer);
        }
    }

    /// Shows the phase of the ownership and the next entry to the handles.
    fn publish(&self) {
        let phase = match self.writer.state() {
            _ if self.ended => WriterPhase::Draining,
            WriterState::Owning => WriterPhase::Owning,
            WriterState::Draining => WriterPhase::Draining,
            _ => WriterPhase::Starting,
        };
        self.shared.set_status(WriterStatus { phase, next: self.next });
    }

    fn retry(&self) -> Retry {
        Retry::new(self.options.pauses(), self.shared.health.clone())
    }

    /// Reads the floor, from which the log is read.
    fn begin(&mut self) {
        let log = self.log.clone();
        let mut retry = self.retry();
        self.requests.spawn(async move {
            loop {
                match marked_floor(&log).await {
                    Ok(floor) => return StoreAnswer::Begin(floor),
                    Err(error) => retry.pause(&error).await,
                }
            }
        });
    }

    /// Starts a read of the log's floor. Errors of the store are retried.
    fn read_floor(&mut self, request: RequestId) {
        let log = self.log.clone();
        let mut retry = self.retry();
        self.requests.spawn(async move {
            loop {
                match marked_floor(&log).await {
                    Ok(floor) => return StoreAnswer::Floor(request, floor),
                    Err(error) if error.kind() == ErrorKind::DataLoss => {
                        return StoreAnswer::Unmarked(error);
                    }
                    Err(error) => retry.pause(&error).await,
                }
            }
        });
    }

    /// Reads an entry in a task, which repeats a read that fails. Entries of a replay are returned
    /// at once if they were read ahead.
    fn read(&mut self, request: RequestId, number: EntryNumber) -> Option<WriterEvent<Batch>> {
        if self.writer.state() == WriterState::Reading {
            return self.replay(request, number);
        }
        let log = self.log.clone();
        let mut retry = self.retry();
        self.requests.spawn(async move {
            loop {
                match log.read(number).await {
                    Ok(entry) => return StoreAnswer::Entry(request, entry),
                    Err(error) => retry.pause(&error).await,
                }
            }
        });
        None
    }

    /// Reads the log to its end. The writer asks for one entry after the other, so entries that
    /// were read ahead are the next ones.
    fn replay(&mut self, request: RequestId, from: EntryNumber) -> Option<WriterEvent<Batch>> {
        if let Some(entry) = self.entries.pop_front() {
            return Some(WriterEvent::Found(request, Some(entry)));
        }
        let log = self.log.clone();
        let mut retry = self.retry();
        let mut ahead = self.ahead.clone();
        self.requests.spawn(async move {
            loop {
                match replayed(&log, &mut ahead, from).await {
                    Ok(entries) => return StoreAnswer::Entries { request, entries, ahead },
                    Err(error) => retry.pause(&error).await,
                }
            }
        });
        None
    }

    /// Creates an entry in a task.
    fn create(&mut self, request: RequestId, number: EntryNumber, entry: LogEntry<Batch>) {
        if matches!(entry.body, EntryBody::Fence) {
            self.next = number.plus(1);
            self.shared.queue.begin_behind(number);
        }
        let log = self.log.clone();
        let health = self.shared.health.clone();
        let pause = self.options.pauses().after(self.create_failures.saturating_add(1));
        self.requests.spawn(async move {
            let outcome = log.create(number, &entry).await;
            if let CreateOutcome::Unknown(error) = &outcome {
                // The entry is read next. If reads succeed and creates fail, only this pause keeps
                // the writer from trying without end at full speed.
                health.record_failure(error);
                tokio::time::sleep(pause).await;
            }
            StoreAnswer::Created(request, outcome)
        });
    }
}

/// Reads the floor of a log whose store has its marker.
///
/// # Errors
/// `DataLoss` without the marker; the store's error.
async fn marked_floor(log: &ShardLog) -> base::Result<LogFloor> {
    // At the same time: a write is acknowledged after both.
    let ((), floor) = tokio::try_join!(log.check_marker(), log.floor())?;
    Ok(floor)
}

/// Reads entries from `from` on. Returns none if the log ends there.
///
/// # Errors
/// As [`ShardLog::read`] and [`ShardLog::check_end`].
async fn replayed(
    log: &ShardLog,
    ahead: &mut ReadAhead,
    from: EntryNumber,
) -> base::Result<Vec<LogEntry<Batch>>> {
    let entries = ahead.read(log, from).await?;
    if entries.is_empty() {
        log.check_end(from).await?;
    }
    Ok(entries)
}

/// Waits until a time, or for ever without one.
async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
