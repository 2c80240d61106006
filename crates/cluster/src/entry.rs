//! Entries of a shard's log, and the rule by which everyone reads them.

use std::fmt;

/// Number of an ownership. The coordinator (etcd) gives each new owner of a shard a larger one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// Position of an entry in a shard's log. Entries are stored as `wal/SHARD/NUMBER`, each created
/// only if it is absent, so a number has one content forever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryNumber(pub u64);

impl EntryNumber {
    /// Returns the position `count` later.
    #[must_use]
    pub fn plus(self, count: u64) -> EntryNumber {
        EntryNumber(self.0.saturating_add(count))
    }
}

impl fmt::Display for EntryNumber {
    /// Writes 16 hexadecimal digits, so that names sort as numbers do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Random number of a writer, drawn when it is created. A writer recognises its own entries by it,
/// after a request whose outcome it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriterId(pub u128);

/// Content of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryBody<B> {
    /// First entry of an owner. Entries of earlier owners after it do not count.
    Fence,
    /// Writes of clients.
    Writes(B),
}

/// One entry of a shard's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry<B> {
    /// Ownership under which it was written.
    pub epoch: Epoch,
    /// Process that wrote it.
    pub writer: WriterId,
    /// Content.
    pub body: EntryBody<B>,
}

/// Position of a reader in a log, which decides for each entry in order if it counts.
///
/// An entry counts unless an earlier one has a larger epoch. An owner may have several entries in
/// flight at once. Entries that arrive after the fence of its successor must not count, because it
/// can acknowledge none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogReplay {
    next: EntryNumber,
    epoch: Epoch,
}

impl LogReplay {
    /// Starts at the entry `from`. `epoch` is the largest epoch of all earlier entries. A list of
    /// segments states it.
    pub fn new(from: EntryNumber, epoch: Epoch) -> LogReplay {
        LogReplay { next: from, epoch }
    }

    /// Returns the number of the entry that is read next.
    pub fn next(&self) -> EntryNumber {
        self.next
    }

    /// Returns the largest epoch so far.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Takes the entry at [`LogReplay::next`]. Returns true if it counts.
    pub fn take<B>(&mut self, entry: &LogEntry<B>) -> bool {
        self.next = self.next.plus(1);
        let counts = entry.epoch >= self.epoch;
        self.epoch = self.epoch.max(entry.epoch);
        counts
    }
}
