//! Snapshots of a shard: the decision which of them may be removed.
//!
//! The log is removed below the oldest snapshot that stays, so a snapshot at or above the floor of
//! the log must always exist. Holders remove snapshots by age, and each of them may have been
//! stopped since it read the store.

use crate::entry::EntryNumber;

/// Number of snapshots with the newest positions that stay.
pub const SNAPSHOTS_KEPT: usize = 2;

/// A snapshot that a holder has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotRead<'a, I> {
    /// Id by which the store lists the snapshot.
    pub id: &'a I,
    /// Next entry of the log after the snapshot.
    pub next: EntryNumber,
}

/// Returns the snapshots that may be removed because of their age: all of `listed` but those of
/// `read` with the newest positions. `listed` are the ids of all snapshots. They were listed before
/// `read`, which lacks snapshots that cannot be read.
///
/// Ids go by time. A holder that was stopped before its snapshot lists an old position under a new
/// id. So ids alone could leave only snapshots below the floor of the log. A snapshot that is not
/// in `listed` was listed later, and stays.
pub fn replaced_snapshots<I: Clone + PartialEq>(
    listed: &[I],
    read: &[SnapshotRead<'_, I>],
) -> Vec<I> {
    let mut newest: Vec<&SnapshotRead<'_, I>> = read.iter().collect();
    newest.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.next));
    newest.truncate(SNAPSHOTS_KEPT);
    let is_newest = |id: &I| newest.iter().any(|snapshot| snapshot.id == id);
    listed.iter().filter(|id| !is_newest(id)).cloned().collect()
}
