//! The writer of a shard's log: from the grant of the ownership to its loss.
//!
//! Rules, and their reasons:
//! * An entry is created only if it is absent. Two writers can therefore not write one number.
//! * A new owner reads the log to its end and creates a fence there. The create of a slower, older
//!   owner at that number fails, and its later entries do not count ([`LogReplay`]).
//! * Batches are acknowledged in the order of their entries. The first [`PIPELINE_MAX`] entries
//!   after a fence are created one at a time: entries of the older owner may lie there.
//! * If the outcome of a create is unknown, the entry is read. The writer recognises its own.
//! * Old entries are removed once a list of segments covers them. A create at a removed number
//!   succeeds, so an owner that slept longer than the log is kept would not see the fence. A
//!   removed entry also looks like the end of the log to a slow reader. Before entries are removed,
//!   the log's floor is raised above them. A fence and a batch count only if the floor, read after
//!   the create, is not above their entry.
//! * If the fence of a newer owner is removed, only the floor has its epoch. An owner that slept
//!   meanwhile finds no fence: at its first read, or because late entries of older owners lie at
//!   the removed numbers. So an owner below the epoch of the floor has lost the ownership.

use std::collections::VecDeque;

use crate::entry::{EntryBody, EntryNumber, Epoch, LogEntry, LogReplay, WriterId};

/// Maximum entries of one writer that are created at the same time.
pub const PIPELINE_MAX: usize = 4;
/// Maximum batches that wait for a number. More are refused.
const BATCHES_WAITING_MAX: usize = 64;

/// The caller's number of a batch of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Number of a request to the store. An answer carries the number of its request, so that a late
/// answer to an abandoned request changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Event that is reported to the writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterEvent<B> {
    /// The coordinator made this process the owner. The log is read from `from`, where the largest
    /// epoch so far is `covered`, as given by the newest list of segments. The writer stays
    /// without ownership if `covered` is above `epoch`.
    Granted {
        /// Number of this ownership.
        epoch: Epoch,
        /// First entry that no segment covers.
        from: EntryNumber,
        /// Largest epoch before `from`.
        covered: Epoch,
    },
    /// The ownership ended or must be assumed to have ended. Requests in flight may still succeed.
    Expired,
    /// A client's batch of writes.
    Submitted(Ticket, B),
    /// The entry was created.
    Created(RequestId),
    /// The entry existed, or the outcome is unknown: an error or no answer in time.
    NotCreated(RequestId),
    /// The entry was read; `None` if it is absent. After a failure, the caller reads again.
    Found(RequestId, Option<LogEntry<B>>),
    /// The log's floor was read. Entries below `entry` may be removed, and `epoch` is the largest
    /// epoch of them.
    Floor {
        /// The read.
        request: RequestId,
        /// First entry that is not removed.
        entry: EntryNumber,
        /// Largest epoch of the entries below.
        epoch: Epoch,
    },
}

/// Action that the caller carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterAction<B> {
    /// Read the entry and report [`WriterEvent::Found`].
    Read(RequestId, EntryNumber),
    /// Create the entry if it is absent and report [`WriterEvent::Created`] or
    /// [`WriterEvent::NotCreated`].
    Create(RequestId, EntryNumber, LogEntry<B>),
    /// Read the log's floor and report [`WriterEvent::Floor`]. The read must start after this
    /// action.
    ReadFloor(RequestId),
    /// Apply writes, in this order. Writes before the fence may come from removed entries. So
    /// snapshots need a reader of their own, which compares each position with the floor.
    Apply(EntryNumber, B),
    /// Tell the client that its batch is durable.
    Acknowledge(Ticket),
    /// Tell the client that its batch may be lost, and that it must send it again.
    Fail(Ticket),
    /// The ownership is lost. Forget the writes that are not in a segment, and ask the coordinator
    /// again.
    Lost,
}

/// Progress of an ownership from the first read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterState {
    /// No ownership.
    Idle,
    /// Reads the log to its end.
    Reading,
    /// Creates an entry that ends the ownership of older writers.
    Fencing,
    /// Reads the floor, because the log may have been cut while it was read.
    Checking,
    /// Owns the shard and writes.
    Owning,
    /// The ownership ended. Waits for requests in flight.
    Draining,
}

/// A batch whose entry is in flight, or durable but not acknowledged.
#[derive(Clone, Debug)]
struct PendingBatch<B> {
    number: EntryNumber,
    ticket: Ticket,
    writes: B,
    /// Request whose result is awaited. It shows if the entry is durable, or reads the floor before
    /// the entry gets another number. `None` if the entry is durable.
    request: Option<RequestId>,
}

/// Batches whose entries are durable and wait for the floor.
#[derive(Clone, Debug)]
struct FloorCheck {
    request: RequestId,
    /// Pending batches, from the first, that the floor decides.
    batches: usize,
}

/// Decision that waits for a read of the floor.
#[derive(Clone, Copy, Debug)]
enum FloorUse {
    /// Decides if this writer's fence counts, so that it owns the log.
    Fence,
    /// Decides if this many pending batches, from the first, are acknowledged.
    Batches(usize),
    /// Decides if the pending batch at this position gets the next number. An entry of an older
    /// owner has its present number.
    OlderEntry(usize),
}

/// Writer of one shard's log. It does nothing by itself: [`LogWriter::handle`] turns events into
/// actions.
#[derive(Clone, Debug)]
pub struct LogWriter<B> {
    id: WriterId,
    state: WriterState,
    epoch: Epoch,
    replay: LogReplay,
    /// Number of the next entry.
    next: EntryNumber,
    /// Number of the fence.
    fence: EntryNumber,
    /// Batches without a number.
    waiting: VecDeque<(Ticket, B)>,
    /// Batches with a number, in order.
    pending: VecDeque<PendingBatch<B>>,
    /// Read of the floor that is in flight.
    check: Option<FloorCheck>,
    /// Latest request.
    request: RequestId,
    /// Request whose answer is awaited in the states before [`WriterState::Owning`].
    expected: RequestId,
}

impl<B: Clone> LogWriter<B> {
    /// Creates a writer without ownership. `id` must be new: random, from the system.
    pub fn new(id: WriterId) -> LogWriter<B> {
        LogWriter {
            id,
            state: WriterState::Idle,
            epoch: Epoch::default(),
            replay: LogReplay::new(EntryNumber::default(), Epoch::default()),
            next: EntryNumber::default(),
            fence: EntryNumber::default(),
            waiting: VecDeque::new(),
            pending: VecDeque::new(),
            check: None,
            request: RequestId::default(),
            expected: RequestId::default(),
        }
    }

    /// Returns the progress of the current ownership.
    pub fn state(&self) -> WriterState {
        self.state
    }

    /// Returns the number of the current or last ownership.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Handles an event and appends the resulting actions, in order. Late answers have no effect.
    pub fn handle(&mut self, event: WriterEvent<B>, actions: &mut Vec<WriterAction<B>>) {
        match event {
            WriterEvent::Granted { epoch, from, covered } => {
                self.granted(epoch, from, covered, actions)
            }
            WriterEvent::Expired => self.expired(actions),
            WriterEvent::Submitted(ticket, writes) => self.submitted(ticket, writes, actions),
            WriterEvent::Created(request) => self.created(request, actions),
            WriterEvent::NotCreated(request) => self.not_created(request, actions),
            WriterEvent::Found(request, entry) => self.found(request, entry, actions),
            WriterEvent::Floor { request, entry, epoch } => {
                self.floor(request, entry, epoch, actions)
            }
        }
    }

    fn new_request(&mut self) -> RequestId {
        self.request.0 += 1;
        self.request
    }

    /// Begins to read the log as the new owner. `covered` is the largest epoch of the entries
    /// before `from`.
    fn granted(
        &mut self,
        epoch: Epoch,
        from: EntryNumber,
        covered: Epoch,
        actions: &mut Vec<WriterAction<B>>,
    ) {
        if self.state != WriterState::Idle || epoch <= self.epoch || epoch < covered {
            return;
        }
        self.epoch = epoch;
        self.replay = LogReplay::new(from, covered);
        self.state = WriterState::Reading;
        self.read_next(actions);
    }

    /// Ends the ownership. If batches are in flight, waits for them and fails the queued ones.
    fn expired(&mut self, actions: &mut Vec<WriterAction<B>>) {
        match self.state {
            WriterState::Owning if !self.pending.is_empty() => {
                self.state = WriterState::Draining;
                self.fail_waiting(actions);
            }
            WriterState::Idle | WriterState::Draining => {}
            _ => self.end_ownership(actions),
        }
    }

    fn submitted(&mut self, ticket: Ticket, writes: B, actions: &mut Vec<WriterAction<B>>) {
        if self.state != WriterState::Owning || self.waiting.len() >= BATCHES_WAITING_MAX {
            return actions.push(WriterAction::Fail(ticket));
        }
        self.waiting.push_back((ticket, writes));
        self.start_waiting(actions);
    }

    /// Starts as many creates as the pipeline takes.
    fn start_waiting(&mut self, actions: &mut Vec<WriterAction<B>>) {
        while self.state == WriterState::Owning && self.pending.len() < self.depth() {
            let Some((ticket, writes)) = self.waiting.pop_front() else { return };
            let batch = PendingBatch { number: self.next, ticket, writes, request: None };
            self.pending.push_back(batch);
            self.create_at_next(self.pending.len() - 1, actions);
        }
    }

    /// Returns the number of entries that may be created at once.
    fn depth(&self) -> usize {
        let behind_fence = self.next.0.saturating_sub(self.fence.0);
        if behind_fence <= PIPELINE_MAX as u64 { 1 } else { PIPELINE_MAX }
    }

    /// Gives the pending batch at `at` the next number and creates its entry.
    fn create_at_next(&mut self, at: usize, actions: &mut Vec<WriterAction<B>>) {
        self.pending[at].number = self.next;
        self.next = self.next.plus(1);
        self.create_batch(at, actions);
    }

    fn create_batch(&mut self, at: usize, actions: &mut Vec<WriterAction<B>>) {
        let request = self.new_request();
        let batch = &mut self.pending[at];
        batch.request = Some(request);
        let number = batch.number;
        let body = EntryBody::Writes(batch.writes.clone());
        actions.push(WriterAction::Create(request, number, self.entry(body)));
    }

    fn create_fence(&mut self, actions: &mut Vec<WriterAction<B>>) {
        self.state = WriterState::Fencing;
        self.fence = self.replay.next();
        self.expected = self.new_request();
        let entry = self.entry(EntryBody::Fence);
        actions.push(WriterAction::Create(self.expected, self.fence, entry));
    }

    fn entry(&self, body: EntryBody<B>) -> LogEntry<B> {
        LogEntry { epoch: self.epoch, writer: self.id, body }
    }

    fn is_own(&self, entry: &LogEntry<B>) -> bool {
        entry.writer == self.id && entry.epoch == self.epoch
    }

    /// Returns the position of the batch that waits for the answer to `request`.
    fn waits_for(&self, request: RequestId) -> Option<usize> {
        self.pending.iter().position(|batch| batch.request == Some(request))
    }

    /// Handles the creation of the fence or of the entry of a batch.
    fn created(&mut self, request: RequestId, actions: &mut Vec<WriterAction<B>>) {
        if self.state == WriterState::Fencing && request == self.expected {
            self.fenced(actions);
        } else if let Some(at) = self.waits_for(request) {
            self.pending[at].request = None;
            self.check_floor(actions);
        }
    }

    fn fenced(&mut self, actions: &mut Vec<WriterAction<B>>) {
        self.state = WriterState::Checking;
        self.next = self.fence.plus(1);
        self.expected = self.new_request();
        actions.push(WriterAction::ReadFloor(self.expected));
    }

    fn not_created(&mut self, request: RequestId, actions: &mut Vec<WriterAction<B>>) {
        if self.state == WriterState::Fencing && request == self.expected {
            self.expected = self.new_request();
            actions.push(WriterAction::Read(self.expected, self.fence));
        } else if let Some(at) = self.waits_for(request) {
            let request = self.new_request();
            self.pending[at].request = Some(request);
            actions.push(WriterAction::Read(request, self.pending[at].number));
        }
    }

    /// Passes the entry that a read has found to the state that waits for it.
    fn found(
        &mut self,
        request: RequestId,
        entry: Option<LogEntry<B>>,
        actions: &mut Vec<WriterAction<B>>,
    ) {
        match self.state {
            WriterState::Reading if request == self.expected => self.read(entry, actions),
            WriterState::Fencing if request == self.expected => self.fence_found(entry, actions),
            WriterState::Owning | WriterState::Draining => {
                if let Some(at) = self.waits_for(request) {
                    self.batch_found(at, entry, actions);
                }
            }
            _ => {}
        }
    }

    fn read_next(&mut self, actions: &mut Vec<WriterAction<B>>) {
        self.expected = self.new_request();
        actions.push(WriterAction::Read(self.expected, self.replay.next()));
    }

    /// Takes the next entry of the log. The fence gets the first absent number.
    fn read(&mut self, entry: Option<LogEntry<B>>, actions: &mut Vec<WriterAction<B>>) {
        let Some(entry) = entry else { return self.create_fence(actions) };
        if entry.epoch > self.epoch {
            return self.end_ownership(actions);
        }
        let number = self.replay.next();
        let counts = self.replay.take(&entry);
        if counts && let EntryBody::Writes(writes) = entry.body {
            actions.push(WriterAction::Apply(number, writes));
        }
        self.read_next(actions);
    }

    fn fence_found(&mut self, entry: Option<LogEntry<B>>, actions: &mut Vec<WriterAction<B>>) {
        match entry {
            None => self.create_fence(actions),
            Some(entry) if self.is_own(&entry) => self.fenced(actions),
            // Another writer was faster: its entry is one more of the log.
            Some(entry) => {
                self.state = WriterState::Reading;
                self.read(Some(entry), actions);
            }
        }
    }

    /// Continues after the read of the entry of the pending batch `at`. `entry` is `None` if there
    /// is none yet.
    fn batch_found(
        &mut self,
        at: usize,
        entry: Option<LogEntry<B>>,
        actions: &mut Vec<WriterAction<B>>,
    ) {
        match entry {
            None => self.create_batch(at, actions),
            Some(entry) if self.is_own(&entry) => {
                self.pending[at].request = None;
                self.check_floor(actions);
            }
            Some(entry) if entry.epoch > self.epoch => self.end_ownership(actions),
            // An older owner's entry after the fence does not count, and the batch gets the next
            // number. If this one is removed, the batch may have counted here before. Only one
            // batch is in flight in this part of the log.
            Some(_) => {
                let request = self.new_request();
                self.pending[at].request = Some(request);
                actions.push(WriterAction::ReadFloor(request));
            }
        }
    }

    /// Reads the floor for the batches whose entries are durable up to the first that is not.
    fn check_floor(&mut self, actions: &mut Vec<WriterAction<B>>) {
        let batches = self.pending.iter().take_while(|batch| batch.request.is_none()).count();
        if self.check.is_none() && batches > 0 {
            let request = self.new_request();
            self.check = Some(FloorCheck { request, batches });
            actions.push(WriterAction::ReadFloor(request));
        }
    }

    /// Returns the decision that waits for a read of the floor; `None` if no decision waits for it.
    fn floor_use(&self, request: RequestId) -> Option<FloorUse> {
        if self.state == WriterState::Checking {
            return (request == self.expected).then_some(FloorUse::Fence);
        }
        match &self.check {
            Some(check) if check.request == request => Some(FloorUse::Batches(check.batches)),
            _ => self.waits_for(request).map(FloorUse::OlderEntry),
        }
    }

    /// Continues after a read of the floor. The ownership is lost if the entry that needed the read
    /// is below the floor, or if a newer owner has written below the floor.
    fn floor(
        &mut self,
        request: RequestId,
        floor: EntryNumber,
        newest: Epoch,
        actions: &mut Vec<WriterAction<B>>,
    ) {
        let Some(floor_use) = self.floor_use(request) else { return };
        let number = match floor_use {
            FloorUse::Fence => self.fence,
            FloorUse::Batches(_) => self.pending[0].number,
            FloorUse::OlderEntry(at) => self.pending[at].number,
        };
        if newest > self.epoch || number < floor {
            return self.end_ownership(actions);
        }
        match floor_use {
            FloorUse::Fence => self.state = WriterState::Owning,
            FloorUse::Batches(batches) => self.acknowledge(batches, actions),
            FloorUse::OlderEntry(at) => self.create_at_next(at, actions),
        }
    }

    /// Acknowledges the first `batches` pending batches, and starts others.
    fn acknowledge(&mut self, batches: usize, actions: &mut Vec<WriterAction<B>>) {
        self.check = None;
        for batch in self.pending.drain(..batches) {
            actions.push(WriterAction::Apply(batch.number, batch.writes));
            actions.push(WriterAction::Acknowledge(batch.ticket));
        }
        self.check_floor(actions);
        self.start_waiting(actions);
        if self.state == WriterState::Draining && self.pending.is_empty() {
            self.end_ownership(actions);
        }
    }

    fn fail_waiting(&mut self, actions: &mut Vec<WriterAction<B>>) {
        actions.extend(self.waiting.drain(..).map(|(ticket, _)| WriterAction::Fail(ticket)));
    }

    /// Ends the ownership, and fails all writes that are not acknowledged.
    fn end_ownership(&mut self, actions: &mut Vec<WriterAction<B>>) {
        self.state = WriterState::Idle;
        self.check = None;
        actions.extend(self.pending.drain(..).map(|batch| WriterAction::Fail(batch.ticket)));
        self.fail_waiting(actions);
        actions.push(WriterAction::Lost);
    }
}
