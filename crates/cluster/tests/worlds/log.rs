//! One shard, three writers, a store and a coordinator in simulated time, with faults from a seed.
//!
//! Faults: requests take milliseconds to minutes. Answers get lost although the request arrives.
//! Processes stop for up to two minutes, or restart without memory. Some believe for too long that
//! they own the shard, and some learn late that they do. Time is in milliseconds.
//!
//! Some clients add ids on a condition, as uploads of images do: they look an id up, some of them
//! in an old reading of the log, and write it later. The owner refuses a write if an entry that the
//! lookup may not have seen has added the id.
//!
//! Some readers search for the end of the log, as strong reads do while entries arrive.

use std::collections::BTreeMap;
use std::rc::Rc;

use cluster::{
    EndSearch, EntryBody, EntryNumber, Epoch, LogEntry, LogReplay, LogWriter, RecentWrites,
    RequestId, Ticket, WriterAction, WriterEvent, WriterId, WriterState,
};

use super::log_outcome::{AcknowledgedWrite, EarlyEnd, IdChange, LogOutcome};
use super::numbers::Numbers;
use super::schedule::Schedule;
use super::{Planted, WorldOutcome};

const NODES: usize = 3;
/// Time in which clients write.
const LENGTH: u64 = 240_000;
/// Time between two checks of a node's lease.
const TICK: u64 = 700;
/// Time of a lease at the coordinator.
const LEASE: u64 = 10_000;
/// Time between two reads of the whole log.
const READ: u64 = 15_000;
/// Mean time between two batches of clients.
const PAUSE_OF_CLIENTS: u64 = 800;
/// Time after which a node stops waiting for an answer.
const TIMEOUT: u64 = 400;
/// Ids that clients add and remove.
const IDS: u64 = 4;
/// Mean time between two clients that change an id.
const PAUSE_OF_UPLOADS: u64 = 2_000;
/// Maximum writes of a client that the owner refuses. A lookup of the log follows each.
const REFUSALS_MAX: u32 = 3;
/// Acknowledged writes of ids that an owner remembers: so few that it forgets some.
const RECENT_MAX: usize = 8;
/// Mean time between two readers that search for the end of the log.
const PAUSE_OF_SEARCHES: u64 = 1_000;
/// Entries by which such a reader may be behind the last reading of the log.
const BEHIND_MAX: u64 = 40;

/// Writes of a client.
#[derive(Clone, Debug)]
struct Batch {
    writes: Vec<u64>,
    /// Change of an id by the only write.
    change: Option<IdChange>,
}

/// A client that changes an id.
#[derive(Clone, Copy, Debug)]
struct IdUpload {
    id: u64,
    /// True if the client looks the id up in the log, and not in an old reading of the log.
    is_strong: bool,
    refusals: u32,
}

/// A reader that searches for the end of the log.
#[derive(Clone, Copy)]
struct SearchingReader {
    search: EndSearch,
    /// Last entry that was acknowledged before the search began.
    acknowledged: Option<EntryNumber>,
}

/// A batch without an answer.
struct SentBatch {
    time: u64,
    writes: Vec<u64>,
    upload: Option<IdUpload>,
}

/// A list of segments, which a reader publishes: all writes before an entry.
#[derive(Clone, Debug, Default)]
struct List {
    through: EntryNumber,
    epoch: Epoch,
    writes: Vec<u64>,
}

struct Node {
    writer: LogWriter<Batch>,
    incarnation: u64,
    stopped_until: u64,
    /// Time until which the node believes that it owns the shard.
    owner_until: u64,
    /// Time by which it believes so for too long.
    overconfidence: u64,
    /// Latest writes of ids in the present ownership.
    recent: RecentWrites,
    /// Next order in `recent` after each batch in flight that adds an id.
    orders: BTreeMap<Ticket, u64>,
}

impl Node {
    /// Forgets the writes of ids, at the start of an ownership.
    fn forget_writes(&mut self) {
        self.recent = RecentWrites::new(RECENT_MAX);
        self.orders.clear();
    }
}

#[derive(Default)]
struct Coordinator {
    epoch: Epoch,
    owner: Option<usize>,
    until: u64,
    list: Rc<List>,
}

#[derive(Default)]
struct Store {
    entries: BTreeMap<EntryNumber, LogEntry<Batch>>,
    /// First entry that is not removed, and the largest epoch below.
    floor: (EntryNumber, Epoch),
}

/// Something that happens at a time.
enum Item {
    Arrives(WriterAction<Batch>, Sender),
    Answer(WriterEvent<Batch>, Sender),
    /// A node learns of its ownership.
    Granted(Epoch, Sender),
    Client,
    /// Clients begin to change an id.
    Uploads,
    /// A client looks an id up.
    Lookup(IdUpload),
    /// A client writes a change after its lookup.
    Change(IdUpload, IdChange),
    Reader,
    /// Another reader begins to search for the end of the log.
    Searches,
    /// A reader looks for the entry of its search.
    SearchEntry(SearchingReader),
    /// A reader that has found no entry reads the floor.
    SearchFloor(SearchingReader),
    Tick(usize),
    RaiseFloor(EntryNumber, Epoch),
    Remove(EntryNumber),
}

#[derive(Clone, Copy)]
struct Sender {
    node: usize,
    incarnation: u64,
}

/// Runs the world of a seed.
pub(super) fn run(seed: u64, planted: Option<Planted>) -> WorldOutcome {
    World::new(seed, planted).run().into()
}

struct World {
    random: Numbers,
    /// Numbers of the searches for the end, which change no other event of a seed.
    search_random: Numbers,
    planted: Option<Planted>,
    schedule: Schedule<Item>,
    nodes: Vec<Node>,
    coordinator: Coordinator,
    store: Store,
    /// Last reading of the log, in which clients look ids up.
    replica: List,
    /// Last entry that was acknowledged.
    acknowledged: Option<EntryNumber>,
    /// Batches of clients by ticket.
    sent: BTreeMap<Ticket, SentBatch>,
    numbers: u64,
    outcome: LogOutcome,
}

impl World {
    fn new(seed: u64, planted: Option<Planted>) -> World {
        let mut world = World {
            random: Numbers::new(seed),
            search_random: Numbers::new(!seed),
            planted,
            schedule: Schedule::new(),
            nodes: Vec::new(),
            coordinator: Coordinator::default(),
            store: Store::default(),
            replica: List::default(),
            acknowledged: None,
            sent: BTreeMap::new(),
            numbers: 0,
            outcome: LogOutcome::default(),
        };
        for node in 0..NODES {
            let overconfidence = if world.random.percent(30) { 60_000 } else { 0 };
            let id = WriterId(u128::from(world.number()));
            world.nodes.push(Node {
                writer: LogWriter::new(id),
                incarnation: 0,
                stopped_until: 0,
                owner_until: 0,
                overconfidence,
                recent: RecentWrites::new(RECENT_MAX),
                orders: BTreeMap::new(),
            });
            world.at(node as u64, Item::Tick(node));
        }
        world.at(0, Item::Client);
        world.at(0, Item::Uploads);
        world.at(READ, Item::Reader);
        world.at(READ, Item::Searches);
        world
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn at(&mut self, delay: u64, item: Item) {
        self.schedule.at(delay, item);
    }

    /// Runs to the end and reads the log as a new owner would.
    fn run(mut self) -> LogOutcome {
        while let Some(item) = self.schedule.next() {
            self.happens(item);
        }
        self.outcome.log = self.whole_log(self.counts_old_entries()).writes;
        self.outcome
    }

    fn counts_old_entries(&self) -> bool {
        self.planted == Some(Planted::OldEntriesCount)
    }

    /// Returns all writes that a reader finds: those of the newest list, then of the log.
    /// `counts_old` is a mistake: entries of an older owner after a fence count.
    fn whole_log(&self, counts_old: bool) -> List {
        let list = &self.coordinator.list;
        let mut replay = LogReplay::new(list.through, list.epoch);
        let mut writes = list.writes.clone();
        while let Some(entry) = self.store.entries.get(&replay.next()) {
            let counts = replay.take(entry) || counts_old;
            if let (true, EntryBody::Writes(batch)) = (counts, &entry.body) {
                writes.extend(&batch.writes);
            }
        }
        List { through: replay.next(), epoch: replay.epoch(), writes }
    }

    /// A reader publishes a list of all of the log, which is removed later.
    fn publish(&mut self) {
        let list = self.whole_log(false);
        let delay = self.random.below(5_000);
        self.at(delay, Item::RaiseFloor(list.through, list.epoch));
        self.outcome.lists += 1;
        self.coordinator.list = Rc::new(list);
    }

    fn happens(&mut self, item: Item) {
        match item {
            Item::Client => self.client(),
            Item::Uploads => self.uploads(),
            Item::Lookup(upload) => self.look_up(upload),
            Item::Change(upload, change) => self.write_change(upload, change),
            Item::Reader => {
                self.replica = self.whole_log(self.counts_old_entries());
                self.outcome.seen.extend(&self.replica.writes);
                if self.schedule.now() < LENGTH {
                    self.at(READ, Item::Reader);
                }
            }
            Item::Searches => self.begin_search(),
            Item::SearchEntry(reader) => self.search_entry(reader),
            Item::SearchFloor(reader) => self.search_floor(reader),
            Item::Tick(node) => self.tick(node),
            Item::Arrives(action, sender) => self.arrives(action, sender),
            Item::Answer(event, sender) => self.answer(event, sender),
            Item::Granted(epoch, sender) => self.granted(epoch, sender),
            Item::RaiseFloor(through, epoch) => {
                self.store.floor = self.store.floor.max((through, epoch));
                let delay = self.random.below(20_000);
                self.at(delay, Item::Remove(through));
            }
            Item::Remove(through) => {
                let kept = self.store.entries.split_off(&through);
                self.outcome.removed += self.store.entries.len() as u64;
                self.store.entries = kept;
            }
        }
    }

    /// A reader begins to search for the end of the log from its position, which is old or new.
    fn begin_search(&mut self) {
        let from = if self.search_random.percent(50) {
            self.whole_log(false).through
        } else {
            let behind = self.search_random.below(BEHIND_MAX);
            EntryNumber(self.replica.through.0.saturating_sub(behind))
        };
        let search = EndSearch::new(from);
        self.search_later(Item::SearchEntry(SearchingReader {
            search,
            acknowledged: self.acknowledged,
        }));
        let delay = self.search_random.below(2 * PAUSE_OF_SEARCHES);
        if self.schedule.now() + delay < LENGTH {
            self.at(delay, Item::Searches);
        }
    }

    /// Sends a request of a search. It arrives soon or late.
    fn search_later(&mut self, request: Item) {
        let is_late = self.search_random.percent(10);
        let delay = self.search_random.below(if is_late { 30_000 } else { 40 }) + 1;
        self.at(delay, request);
    }

    fn search_entry(&mut self, mut reader: SearchingReader) {
        if !self.store.entries.contains_key(&reader.search.number()) {
            self.search_later(Item::SearchFloor(reader));
        } else if reader.search.pass_by() {
            self.search_later(Item::SearchEntry(reader));
        }
    }

    fn search_floor(&mut self, reader: SearchingReader) {
        let hidden = self.planted == Some(Planted::EndWithoutFloor);
        let floor = if hidden { EntryNumber::default() } else { self.store.floor.0 };
        let Some(end) = reader.search.end(floor) else { return };
        self.outcome.ends += 1;
        if let Some(acknowledged) = reader.acknowledged.filter(|number| *number >= end) {
            self.outcome.early_end = Some(EarlyEnd { end, acknowledged });
        }
    }

    /// A client sends a batch to a node, mostly to the owner.
    fn client(&mut self) {
        let node = self.node_of_client();
        let count = self.random.below(3) + 1;
        let writes = (0..count).map(|_| self.number()).collect();
        self.submit(node, Batch { writes, change: None }, None);
        let delay = self.random.below(2 * PAUSE_OF_CLIENTS);
        if self.schedule.now() + delay < LENGTH {
            self.at(delay, Item::Client);
        }
    }

    fn node_of_client(&mut self) -> usize {
        let any = self.random.below(NODES as u64) as usize;
        if self.random.percent(70) { self.coordinator.owner.unwrap_or(any) } else { any }
    }

    fn submit(&mut self, node: usize, batch: Batch, upload: Option<IdUpload>) {
        let ticket = Ticket(self.number());
        let time = self.schedule.now();
        let writes = batch.writes.clone();
        self.sent.insert(ticket, SentBatch { time, writes, upload });
        let sender = self.sender(node);
        self.at(0, Item::Answer(WriterEvent::Submitted(ticket, batch), sender));
    }

    /// A client changes an id, or two do at the same moment.
    fn uploads(&mut self) {
        let id = self.random.below(IDS);
        let upload = IdUpload { id, is_strong: self.random.percent(30), refusals: 0 };
        let clients = if self.random.percent(50) { 2 } else { 1 };
        for _ in 0..clients {
            self.look_up(upload);
        }
        let delay = self.random.below(2 * PAUSE_OF_UPLOADS);
        if self.schedule.now() + delay < LENGTH {
            self.at(delay, Item::Uploads);
        }
    }

    /// A client looks an id up. It will add an absent id and remove one that is there. A client of
    /// an earlier version adds without a condition.
    fn look_up(&mut self, upload: IdUpload) {
        let IdUpload { id, is_strong, .. } = upload;
        let whole = is_strong.then(|| self.whole_log(self.counts_old_entries()));
        let list = whole.as_ref().unwrap_or(&self.replica);
        // Entry 0 is a fence, so each lookup has seen it.
        let seen = EntryNumber(list.through.0.saturating_sub(1));
        let adds = !self.outcome.has_id(&list.writes, id);
        let is_conditional = adds && self.random.percent(90);
        let change = IdChange { id, adds, unless_after: is_conditional.then_some(seen) };
        let is_slow = self.random.percent(15);
        let delay = self.random.below(if is_slow { 60_000 } else { 1_000 });
        self.at(delay, Item::Change(upload, change));
    }

    fn write_change(&mut self, upload: IdUpload, change: IdChange) {
        let node = self.node_of_client();
        let write = self.number();
        self.outcome.changes.insert(write, change);
        let batch = Batch { writes: vec![write], change: Some(change) };
        self.submit(node, batch, Some(upload));
    }

    fn sender(&self, node: usize) -> Sender {
        Sender { node, incarnation: self.nodes[node].incarnation }
    }

    /// A node checks its lease, and sometimes stops, restarts or publishes a list.
    fn tick(&mut self, node: usize) {
        if self.schedule.now() < LENGTH {
            self.at(TICK, Item::Tick(node));
        }
        if self.schedule.now() < self.nodes[node].stopped_until {
            return;
        }
        match self.random.below(300) {
            0..3 => {
                let stop = self.random.below(120_000);
                self.nodes[node].stopped_until = self.schedule.now() + stop;
            }
            3..5 => self.restart(node),
            5..20 => self.publish(),
            _ => self.look_at_lease(node),
        }
    }

    fn restart(&mut self, node: usize) {
        let id = WriterId(u128::from(self.number()));
        let node = &mut self.nodes[node];
        node.writer = LogWriter::new(id);
        node.incarnation += 1;
        node.owner_until = 0;
    }

    fn look_at_lease(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let owns = node.writer.state() != WriterState::Idle;
        let expired = self.schedule.now() >= self.coordinator.until;
        if owns
            && self.coordinator.owner == Some(at)
            && self.coordinator.epoch == node.writer.epoch()
        {
            if !expired && self.random.percent(95) {
                self.coordinator.until = self.schedule.now() + LEASE;
                node.owner_until = self.schedule.now() + LEASE + node.overconfidence;
            }
        } else if !owns && expired {
            self.coordinator.epoch.0 += 1;
            self.coordinator.owner = Some(at);
            self.coordinator.until = self.schedule.now() + LEASE;
            node.owner_until = self.schedule.now() + LEASE + node.overconfidence;
            self.outcome.owners += 1;
            let late = self.random.percent(10);
            let delay = self.random.below(if late { 120_000 } else { 40 });
            let granted = Item::Granted(self.coordinator.epoch, self.sender(at));
            return self.at(delay, granted);
        }
        if owns && self.schedule.now() > self.nodes[at].owner_until {
            self.handle(at, WriterEvent::Expired);
        }
    }

    /// A node begins an ownership with the newest list of segments.
    fn granted(&mut self, epoch: Epoch, sender: Sender) {
        let node = &mut self.nodes[sender.node];
        if node.incarnation != sender.incarnation || node.writer.state() != WriterState::Idle {
            return;
        }
        if self.schedule.now() < node.stopped_until {
            let rest = node.stopped_until - self.schedule.now();
            return self.at(rest, Item::Granted(epoch, sender));
        }
        node.forget_writes();
        let list = &self.coordinator.list;
        let event = WriterEvent::Granted { epoch, from: list.through, covered: list.epoch };
        self.handle(sender.node, event);
    }

    fn answer(&mut self, event: WriterEvent<Batch>, sender: Sender) {
        let node = &self.nodes[sender.node];
        if node.incarnation != sender.incarnation {
            return;
        }
        if self.schedule.now() < node.stopped_until {
            let rest = node.stopped_until - self.schedule.now();
            return self.at(rest, Item::Answer(event, sender));
        }
        if let WriterEvent::Submitted(ticket, batch) = &event
            && !self.is_taken(sender.node, *ticket, batch)
        {
            return self.refused(*ticket);
        }
        self.handle(sender.node, event);
    }

    /// Returns true unless the owner refuses a batch because of its condition. The writer gives the
    /// batches that it takes their entries in the same order.
    fn is_taken(&mut self, at: usize, ticket: Ticket, batch: &Batch) -> bool {
        let node = &mut self.nodes[at];
        let Some(change) = batch.change else { return true };
        // A writer that does not own the log fails the batch.
        if node.writer.state() != WriterState::Owning {
            return true;
        }
        let added = change.adds.then(|| u128::from(change.id).to_be_bytes());
        let is_taken = node.recent.take(added.as_slice(), change.unless_after);
        if is_taken {
            node.orders.insert(ticket, node.recent.next_order());
        }
        is_taken
    }

    /// A client looks an id up in the log and writes again, or ends.
    fn refused(&mut self, ticket: Ticket) {
        self.outcome.refused += 1;
        let upload = self.sent.remove(&ticket).and_then(|sent| sent.upload);
        if let Some(IdUpload { id, refusals, .. }) = upload
            && refusals + 1 < REFUSALS_MAX
        {
            let again = IdUpload { id, is_strong: true, refusals: refusals + 1 };
            let delay = self.random.below(500);
            self.at(delay, Item::Lookup(again));
        }
    }

    fn handle(&mut self, at: usize, event: WriterEvent<Batch>) {
        let mut actions = Vec::new();
        self.nodes[at].writer.handle(event, &mut actions);
        let mut applied = EntryNumber::default();
        for action in actions {
            match action {
                // Readers apply the log. The number belongs to the acknowledgement, which follows.
                WriterAction::Apply(number, _) => applied = number,
                WriterAction::Acknowledge(ticket) => self.acknowledged(at, ticket, applied),
                WriterAction::Fail(_) => self.outcome.failed += 1,
                WriterAction::Lost => self.nodes[at].owner_until = 0,
                request => {
                    self.begin_memory(at, &request);
                    self.send(request, self.sender(at));
                }
            }
        }
    }

    /// Creates the memory of an owner after its fence.
    fn begin_memory(&mut self, at: usize, request: &WriterAction<Batch>) {
        if let WriterAction::Create(_, number, entry) = request
            && matches!(entry.body, EntryBody::Fence)
            && self.planted != Some(Planted::OldLookupsCount)
        {
            self.nodes[at].recent.begin_behind(*number);
        }
    }

    fn acknowledged(&mut self, at: usize, ticket: Ticket, entry: EntryNumber) {
        self.acknowledged = self.acknowledged.max(Some(entry));
        let node = &mut self.nodes[at];
        if let Some(order) = node.orders.remove(&ticket) {
            node.recent.acknowledge(order, entry);
        }
        if let Some(SentBatch { time: sent, writes, .. }) = self.sent.remove(&ticket) {
            let acknowledged = self.schedule.now();
            let done = |write| AcknowledgedWrite { write, sent, acknowledged };
            self.outcome.acknowledged.extend(writes.into_iter().map(done));
        }
    }

    /// Sends a request. It arrives soon, late or after the sender stopped waiting.
    fn send(&mut self, request: WriterAction<Batch>, sender: Sender) {
        if let (WriterAction::Create(id, _, entry), Some(Planted::NoFence)) =
            (&request, self.planted)
            && matches!(entry.body, EntryBody::Fence)
        {
            return self.at(1, Item::Answer(WriterEvent::Created(*id), sender));
        }
        let delay = match self.random.below(100) {
            0 => self.random.below(100_000),
            1..5 => self.random.below(3 * TIMEOUT),
            _ => self.random.below(40) + 1,
        };
        if let (true, WriterAction::Create(id, ..)) = (delay > TIMEOUT, &request) {
            self.at(TIMEOUT, Item::Answer(WriterEvent::NotCreated(*id), sender));
        }
        self.at(delay, Item::Arrives(request, sender));
    }

    /// The store does what is requested and answers, if the answer does not get lost.
    fn arrives(&mut self, request: WriterAction<Batch>, sender: Sender) {
        let event = match request {
            WriterAction::Create(id, number, entry) => self.create(id, number, entry),
            WriterAction::Read(id, number) => {
                WriterEvent::Found(id, self.store.entries.get(&number).cloned())
            }
            WriterAction::ReadFloor(request) => {
                let hidden = self.planted == Some(Planted::NoFloor);
                let (entry, epoch) = if hidden { Default::default() } else { self.store.floor };
                WriterEvent::Floor { request, entry, epoch }
            }
            _ => return,
        };
        let mut delay = self.random.below(40) + 1;
        let lost = self.random.percent(3);
        match &event {
            WriterEvent::Created(id) if lost => {
                let unknown = WriterEvent::NotCreated(*id);
                return self.at(TIMEOUT, Item::Answer(unknown, sender));
            }
            // The sender repeats the request, so its answer is late.
            _ if lost => delay += TIMEOUT,
            _ => {}
        }
        self.at(delay, Item::Answer(event, sender));
    }

    fn create(
        &mut self,
        id: RequestId,
        number: EntryNumber,
        entry: LogEntry<Batch>,
    ) -> WriterEvent<Batch> {
        if self.store.entries.contains_key(&number) {
            return WriterEvent::NotCreated(id);
        }
        self.store.entries.insert(number, entry);
        WriterEvent::Created(id)
    }
}
