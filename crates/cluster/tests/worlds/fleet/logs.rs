//! Logs of the shards, and the writers that owners start.

use std::collections::{BTreeMap, BTreeSet, btree_map};

use cluster::{
    EntryBody, EntryNumber, Epoch, LogEntry, LogReplay, LogWriter, Ticket, WriterAction,
    WriterEvent, WriterId, WriterState,
};

use super::{Fleet, FleetItem, Sender};

/// Time after which a writer stops waiting for a create.
pub(super) const TIMEOUT: u64 = 400;
/// Entries that a new writer reads.
const ENTRIES_READ: u64 = 8;

/// Number of a client's write.
pub(super) type Write = u64;

/// Log of one shard in the store.
#[derive(Default)]
pub(super) struct ShardLog {
    entries: BTreeMap<EntryNumber, LogEntry<Write>>,
    /// Writer that acknowledged writes, by epoch.
    acknowledged_by: BTreeMap<Epoch, u64>,
    acknowledged: BTreeSet<Write>,
    /// Time of the last acknowledgement.
    pub(super) acknowledged_at: u64,
    /// Last entry with an acknowledged write.
    pub(super) acknowledged_entry: Option<EntryNumber>,
}

impl ShardLog {
    /// Returns a position before the end and the largest epoch before it.
    fn start(&self) -> LogReplay {
        let mut replay = LogReplay::new(EntryNumber::default(), Epoch::default());
        let read = (self.entries.len() as u64).saturating_sub(ENTRIES_READ);
        for entry in self.entries.values().take(read as usize) {
            replay.take(entry);
        }
        replay
    }

    /// Returns the first absent entry from `next` on.
    pub(super) fn end_from(&self, mut next: EntryNumber) -> EntryNumber {
        while self.entries.contains_key(&next) {
            next = next.plus(1);
        }
        next
    }

    /// Takes an acknowledgement. Returns an explanation if another writer acknowledged in the same
    /// epoch.
    fn acknowledge(&mut self, writer: &ShardWriter, number: u64, now: u64) -> Option<String> {
        self.acknowledged_at = now;
        let first = *self.acknowledged_by.entry(writer.epoch).or_insert(number);
        let epoch = writer.epoch.0;
        (first != number).then(|| {
            format!("writers {first} and {number} acknowledge in epoch {epoch} of {}", writer.shard)
        })
    }

    /// Returns an acknowledged write that is not in the log, or is there twice.
    fn wrong_write(&self) -> Option<Write> {
        let mut replay = LogReplay::new(EntryNumber::default(), Epoch::default());
        let mut counts: BTreeMap<Write, u32> = BTreeMap::new();
        while let Some(entry) = self.entries.get(&replay.next()) {
            if let (true, EntryBody::Writes(write)) = (replay.take(entry), &entry.body) {
                *counts.entry(*write).or_default() += 1;
            }
        }
        let wrong = |write: &&Write| counts.get(write).copied() != Some(1);
        self.acknowledged.iter().find(wrong).copied()
    }
}

/// A writer that a process has started.
pub(super) struct ShardWriter {
    pub(super) shard: u32,
    pub(super) epoch: Epoch,
    pub(super) writer: LogWriter<Write>,
    /// True once the log refused it.
    pub(super) is_lost: bool,
}

/// A writer of a process, which gets an answer.
#[derive(Clone, Copy)]
pub(super) struct WriterAddress {
    pub(super) sender: Sender,
    pub(super) number: u64,
}

impl Fleet {
    /// Starts a writer of an ownership.
    pub(super) fn start_writer(&mut self, at: usize, shard: u32, epoch: Epoch) {
        let number = self.number();
        let writer = LogWriter::new(WriterId(u128::from(number)));
        let start = self.logs[shard as usize].start();
        let process = &mut self.processes[at];
        process.active.insert(shard, number);
        let writer = ShardWriter { shard, epoch, writer, is_lost: false };
        process.writers.insert(number, writer);
        let address = WriterAddress { sender: process.sender(), number };
        let granted = WriterEvent::Granted { epoch, from: start.next(), covered: start.epoch() };
        self.handle(address, granted);
    }

    /// Ends the writer of an ownership, whose requests in flight may still succeed.
    pub(super) fn end_writer(&mut self, at: usize, shard: u32) {
        let process = &mut self.processes[at];
        if let Some(number) = process.active.remove(&shard) {
            let address = WriterAddress { sender: process.sender(), number };
            self.handle(address, WriterEvent::Expired);
        }
    }

    /// Sends a client's write to each writer of a process.
    pub(super) fn write(&mut self, at: usize) {
        let process = &self.processes[at];
        let active: Vec<u64> = process.active.values().copied().collect();
        let sender = process.sender();
        for number in active {
            if self.refuses_write(at, number) {
                self.figures.writes_refused += 1;
                continue;
            }
            let write = self.number();
            let submitted = WriterEvent::Submitted(Ticket(write), write);
            self.handle(WriterAddress { sender, number }, submitted);
        }
    }

    /// Returns true if a process writes the shard's log.
    pub(super) fn is_writing(&self, at: usize, shard: u32) -> bool {
        let process = &self.processes[at];
        let writer = process.active.get(&shard).and_then(|number| process.writers.get(number));
        writer.is_some_and(|writer| writer.writer.state() == WriterState::Owning)
    }

    pub(super) fn handle(&mut self, address: WriterAddress, event: WriterEvent<Write>) {
        let now = self.schedule.now();
        let process = &mut self.processes[address.sender.node];
        let Some(writer) = process.writers.get_mut(&address.number) else { return };
        let mut actions = Vec::new();
        writer.writer.handle(event, &mut actions);
        let shard = writer.shard;
        let mut applied = None;
        for action in actions {
            match action {
                WriterAction::Fail(_) => {}
                // An acknowledgement follows the entry of its write.
                WriterAction::Apply(entry, _) => applied = Some(entry),
                WriterAction::Acknowledge(ticket) => {
                    let log = &mut self.logs[shard as usize];
                    log.acknowledged.insert(ticket.0);
                    log.acknowledged_entry = log.acknowledged_entry.max(applied);
                    self.figures.writes_acknowledged += 1;
                    let process = &self.processes[address.sender.node];
                    let Some(writer) = process.writers.get(&address.number) else { continue };
                    let wrong = log.acknowledge(writer, address.number, now);
                    self.violation = self.violation.take().or(wrong);
                }
                WriterAction::Lost => {
                    let process = &mut self.processes[address.sender.node];
                    let is_active = process.active.get(&shard) == Some(&address.number);
                    match process.writers.get_mut(&address.number) {
                        Some(writer) if is_active => writer.is_lost = true,
                        _ => drop(process.writers.remove(&address.number)),
                    }
                }
                request => self.send_to_store(address, shard, request),
            }
        }
    }

    fn send_to_store(&mut self, address: WriterAddress, shard: u32, request: WriterAction<Write>) {
        // A read is repeated after a while. A create may arrive after its sender stopped waiting.
        let late = if matches!(request, WriterAction::Create(..)) { 60_000 } else { 3 * TIMEOUT };
        let delay = match self.random.below(100) {
            0 => self.random.below(late),
            1..4 => self.random.below(3 * TIMEOUT),
            _ => self.random.between(1, 40),
        };
        if let (true, WriterAction::Create(id, ..)) = (delay > TIMEOUT, &request) {
            let unknown = WriterEvent::NotCreated(*id);
            self.schedule.at(TIMEOUT, FleetItem::StoreAnswer(address, unknown));
        }
        self.schedule.at(delay, FleetItem::Store(address, shard, request));
    }

    /// The store carries out a request of a writer.
    pub(super) fn store(
        &mut self,
        address: WriterAddress,
        shard: u32,
        request: WriterAction<Write>,
    ) {
        let Some(request) = self.unless_cut(address, shard, request) else { return };
        let entries = &mut self.logs[shard as usize].entries;
        let event = match request {
            WriterAction::Create(id, number, entry) => {
                if let btree_map::Entry::Vacant(vacant) = entries.entry(number) {
                    vacant.insert(entry);
                    WriterEvent::Created(id)
                } else {
                    WriterEvent::NotCreated(id)
                }
            }
            WriterAction::Read(id, number) => WriterEvent::Found(id, entries.get(&number).cloned()),
            WriterAction::ReadFloor(request) => WriterEvent::Floor {
                request,
                entry: EntryNumber::default(),
                epoch: Epoch::default(),
            },
            _ => return,
        };
        let mut delay = self.random.between(1, 40);
        let event = match event {
            WriterEvent::Created(id) if self.random.percent(3) => {
                delay += TIMEOUT;
                WriterEvent::NotCreated(id)
            }
            event => event,
        };
        self.schedule.at(delay, FleetItem::StoreAnswer(address, event));
    }

    /// Returns an explanation if an acknowledged write is lost.
    pub(super) fn wrong_log(&self) -> Option<String> {
        self.logs.iter().enumerate().find_map(|(shard, log)| {
            let write = log.wrong_write()?;
            Some(format!("write {write} of shard {shard} is not once in the log"))
        })
    }
}
