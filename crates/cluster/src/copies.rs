//! Copies of shards that a node holds: the decision to keep or to remove one.
//!
//! If placement gives a shard to other nodes, they restore it and announce it once they follow the
//! end of its log. The older holder keeps its copy until all of them have announced the shard, and
//! for some time after that.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Time for which a copy stays after it became unneeded. Queries that were planned with an older
/// view still find it. It must be longer than a view can be old.
pub const UNNEEDED_STAYS: Duration = Duration::from_secs(30);

/// Need of a node's copy of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyNeed {
    /// The copy stays.
    Needed,
    /// Other nodes hold the shard instead, or its collection was removed.
    Unneeded,
    /// The view may be old, or may have nodes that are dead: the copy stays.
    Unknown,
}

impl CopyNeed {
    /// Returns the need of the copy on the node `own`. `wanted` are the nodes that should hold the
    /// shard, and `serves` is true for a node that has announced a whole copy of it.
    pub fn of(own: &str, wanted: &[String], serves: impl Fn(&str) -> bool) -> CopyNeed {
        let is_wanted = wanted.iter().any(|name| name == own);
        if is_wanted || wanted.is_empty() || !wanted.iter().all(|name| serves(name)) {
            return CopyNeed::Needed;
        }
        CopyNeed::Unneeded
    }
}

/// Time since which a copy is unneeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnneededTimer {
    since: Option<Instant>,
    /// Nodes that hold the shard instead, by name.
    wanted: BTreeSet<String>,
}

impl UnneededTimer {
    /// Records the need of the copy at `now`. Returns true if the copy can be removed. It was then
    /// unneeded at each call for [`UNNEEDED_STAYS`], because the same nodes `wanted` hold the
    /// shard.
    ///
    /// If `wanted` changes, the time starts again. A new node may be about to remove its copy and
    /// its announcement, because it relied on the same nodes before.
    pub fn record(&mut self, need: CopyNeed, wanted: &[String], now: Instant) -> bool {
        if need != CopyNeed::Unneeded {
            self.since = None;
            return false;
        }
        let is_same =
            self.wanted.len() == wanted.len() && wanted.iter().all(|it| self.wanted.contains(it));
        if !is_same {
            self.since = None;
            self.wanted = wanted.iter().cloned().collect();
        }
        let since = *self.since.get_or_insert(now);
        now.saturating_duration_since(since) >= UNNEEDED_STAYS
    }
}
