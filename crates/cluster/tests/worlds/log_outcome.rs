//! Result of a world of the log, and its check.

use std::collections::{BTreeSet, HashMap};

use super::WorldOutcome;

/// A write that a client was told is durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcknowledgedWrite {
    pub(crate) write: u64,
    pub(crate) sent: u64,
    pub(crate) acknowledged: u64,
}

/// Result of a world.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogOutcome {
    /// All writes that a reader finds at the end, in order.
    pub(crate) log: Vec<u64>,
    pub(crate) acknowledged: Vec<AcknowledgedWrite>,
    /// Writes that a reader found before the end.
    pub(crate) seen: BTreeSet<u64>,
    pub(crate) failed: u64,
    pub(crate) owners: u64,
    pub(crate) lists: u64,
    pub(crate) removed: u64,
}

impl From<LogOutcome> for WorldOutcome {
    fn from(outcome: LogOutcome) -> WorldOutcome {
        let figures = [
            ("writes_acknowledged", outcome.acknowledged.len() as u64),
            ("batches_failed", outcome.failed),
            ("owners", outcome.owners),
            ("lists", outcome.lists),
            ("entries_removed", outcome.removed),
        ];
        WorldOutcome { violation: violation(&outcome), figures: figures.into() }
    }
}

/// Checks one world and returns an explanation of the first violation.
fn violation(outcome: &LogOutcome) -> Option<String> {
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
    None
}
