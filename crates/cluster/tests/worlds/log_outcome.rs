//! Result of a world of the log, and its check.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cluster::EntryNumber;

use super::WorldOutcome;

/// A write that was acknowledged to a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcknowledgedWrite {
    pub(crate) write: u64,
    pub(crate) sent: u64,
    pub(crate) acknowledged: u64,
}

/// Change of an id by a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdChange {
    pub(crate) id: u64,
    /// True if the write adds the id. Otherwise it removes the id.
    pub(crate) adds: bool,
    /// Last entry that the client's lookup has seen. The lookup did not find the id. `None` for a
    /// write without a condition.
    pub(crate) unless_after: Option<EntryNumber>,
}

/// End of the log that a search found too early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyEnd {
    pub(crate) end: EntryNumber,
    /// Entry at or after the end that was acknowledged before the search began.
    pub(crate) acknowledged: EntryNumber,
}

/// Result of a world.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogOutcome {
    /// All writes that a reader finds at the end, in order.
    pub(crate) log: Vec<u64>,
    pub(crate) acknowledged: Vec<AcknowledgedWrite>,
    /// Writes that a reader found before the end.
    pub(crate) seen: BTreeSet<u64>,
    /// Changes of ids by the writes that clients sent.
    pub(crate) changes: BTreeMap<u64, IdChange>,
    /// Writes that the owner refused because of their condition.
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) owners: u64,
    pub(crate) lists: u64,
    pub(crate) removed: u64,
    /// Ends of the log that searches found.
    pub(crate) ends: u64,
    /// The last one that was too early.
    pub(crate) early_end: Option<EarlyEnd>,
}

impl LogOutcome {
    /// Returns true if the last of `writes` that changes the id adds it.
    pub(crate) fn has_id(&self, writes: &[u64], id: u64) -> bool {
        let mut changes = writes.iter().rev().filter_map(|write| self.changes.get(write));
        changes.find(|change| change.id == id).is_some_and(|change| change.adds)
    }

    /// Returns the number of acknowledged writes with a condition.
    fn conditional(&self) -> u64 {
        let changes = self.acknowledged.iter().filter_map(|done| self.changes.get(&done.write));
        changes.filter(|change| change.unless_after.is_some()).count() as u64
    }
}

impl From<LogOutcome> for WorldOutcome {
    fn from(outcome: LogOutcome) -> WorldOutcome {
        let figures = [
            ("writes_acknowledged", outcome.acknowledged.len() as u64),
            ("conditional_acknowledged", outcome.conditional()),
            ("conditional_refused", outcome.refused),
            ("batches_failed", outcome.failed),
            ("owners", outcome.owners),
            ("lists", outcome.lists),
            ("entries_removed", outcome.removed),
            ("ends_found", outcome.ends),
        ];
        WorldOutcome { violation: violation(&outcome), figures: figures.into() }
    }
}

/// Checks one world and returns an explanation of the first violation.
fn violation(outcome: &LogOutcome) -> Option<String> {
    if let Some(EarlyEnd { end, acknowledged }) = outcome.early_end {
        return Some(format!("a search found the end {end}, but {acknowledged} was acknowledged"));
    }
    let mut position = HashMap::new();
    for (at, write) in outcome.log.iter().enumerate() {
        if position.insert(*write, at).is_some() {
            return Some(format!("write {write} is twice in the log"));
        }
    }
    for write in &outcome.acknowledged {
        if !position.contains_key(&write.write) {
            return Some(format!("acknowledged write {} is lost", write.write));
        }
    }
    if let Some(write) = outcome.seen.iter().find(|write| !position.contains_key(write)) {
        return Some(format!("write {write} was seen by a reader and is gone"));
    }
    // The log orders all writes. It is a linearization if no write comes before one that was
    // acknowledged before it was sent.
    let mut by_position: Vec<_> = outcome.acknowledged.iter().collect();
    by_position.sort_by_key(|write| position[&write.write]);
    let mut latest_sent = 0;
    for write in by_position {
        if write.acknowledged < latest_sent {
            return Some(format!("write {} comes after one that was sent later", write.write));
        }
        latest_sent = latest_sent.max(write.sent);
    }
    added_twice(outcome)
}

/// Checks that no write with a condition adds an id that is there. So of such writes of one id, at
/// most one is in the log between two removals.
fn added_twice(outcome: &LogOutcome) -> Option<String> {
    let mut present = BTreeSet::new();
    for write in &outcome.log {
        let Some(IdChange { id, adds, unless_after }) = outcome.changes.get(write) else {
            continue;
        };
        let was_present = if *adds { !present.insert(*id) } else { present.remove(id) };
        if let (true, Some(after)) = (was_present, unless_after) {
            return Some(format!("write {write} adds id {id} again, unless after entry {after}"));
        }
    }
    None
}
