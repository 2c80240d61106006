//! Writes to append to a log, with or without a condition.

use bytes::Bytes;
use cluster::EntryNumber;

/// Operations for one entry of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogWrite {
    /// Operations, in order.
    pub operations: Vec<Bytes>,
    /// Ids that the operations write. An id that no other write has in a condition may be left out.
    pub ids: Vec<[u8; 16]>,
    /// Refuses the write if an entry after this one may have written one of `ids`.
    pub unless_after: Option<EntryNumber>,
}

/// Outcome of a [`LogWrite`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// The operations are in this entry, which is durable and part of the log.
    Appended(EntryNumber),
    /// The condition refused the write. No entry has, or will have, the operations. Entries up to
    /// this one may have written the ids.
    Refused(EntryNumber),
}
