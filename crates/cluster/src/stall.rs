//! Decisions about stalled copies of a shard: when one is withdrawn or serves again, when it
//! answers a read, and when writes are refused because all holders have full disks.
//!
//! A copy stalls if its holder cannot apply the next entry of the log. The reason is a full disk, a
//! damaged entry, or an operation of a newer version. A stalled copy keeps all of its data and
//! lacks later changes. Its node marks it in etcd as it marks a damaged one, until the copy is at
//! the end of the log again. The copy is not replaced from the store, which would need more space.

use std::time::{Duration, Instant};

use crate::damage::{DECISION_AGE_MAX, HolderReading};
use crate::entry::EntryNumber;

/// Time from the mark of a stalled copy, or from the last change of its service, to the next
/// change. Other nodes have seen the mark by then. If two holders stall at the same moment, each
/// sees the mark of the other, and both stay in service. A copy that is out of service is served
/// only if no entry was applied for this time.
pub const STALL_DECISION_DELAY: Duration = Duration::from_secs(50);
/// Time for which all holders of a shard are stalled before its owner refuses writes. Until then
/// the log takes them. A disk may get space again soon, for example after a merge of segments.
pub const FULL_SHARD_DELAY: Duration = Duration::from_secs(60);

/// Holders of a shard in a certain view.
#[derive(Clone, Copy, Debug)]
pub struct CertainHolders<'a> {
    /// Name of the node that decides.
    pub own: &'a str,
    /// Nodes that serve the shard or have marked their copy of it.
    pub holders: &'a [HolderReading<'a>],
    /// Time of the request for the view.
    pub requested_at: Instant,
}

/// Change of the service of a stalled copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StalledServiceChange {
    /// Another holder is whole.
    Withdraw,
    /// No other node serves the shard.
    Serve,
}

/// Mark of a copy that stalled and has not reached the end of the log since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StallMark {
    /// Time of the mark, or of the last time at which the copy began or stopped to serve.
    changed: Instant,
    /// Time since which the next entry cannot be applied. `None` if the copy applies its log, or if
    /// none is open.
    stopped: Option<Instant>,
}

impl StallMark {
    /// Creates the mark of a copy that stalls at `now`.
    pub fn new(now: Instant) -> StallMark {
        StallMark { changed: now, stopped: None }
    }

    /// Records at `now` that the next entry cannot be applied.
    pub fn stop(&mut self, now: Instant) {
        self.stopped.get_or_insert(now);
    }

    /// Records that no entry is tried again. The mark stays until the end of the log.
    pub fn resume(&mut self) {
        self.stopped = None;
    }

    /// Decides on the service of the copy at `now`. `is_served` is true if the copy is served.
    /// Returns `None` for no change, also if `view` does not show the mark or is older than
    /// [`DECISION_AGE_MAX`]. A copy that applies its log is not served before the end of the log.
    pub fn decide(
        &mut self,
        view: &CertainHolders<'_>,
        is_served: bool,
        now: Instant,
    ) -> Option<StalledServiceChange> {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= STALL_DECISION_DELAY;
        let is_seen = view.holders.iter().any(|holder| holder.is_mark_of(view.own));
        // The holder that an older view shows as whole may have left.
        let is_current = now.saturating_duration_since(view.requested_at) <= DECISION_AGE_MAX;
        if !is_over(self.changed) || !is_seen || !is_current {
            return None;
        }
        let mut others =
            view.holders.iter().filter(|holder| holder.node != view.own && holder.serves);
        let change = if is_served {
            others.any(|other| !other.is_damaged).then_some(StalledServiceChange::Withdraw)
        } else {
            let is_stopped = self.stopped.is_some_and(is_over);
            (is_stopped && others.next().is_none()).then_some(StalledServiceChange::Serve)
        };
        if change.is_some() {
            self.changed = now;
        }
        change
    }
}

/// Step of a read that needs an entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppliedReadStep {
    /// The copy has the entry.
    Answer,
    /// The copy applies its log and will have the entry.
    Wait,
    /// The copy is stalled. Another holder may have the entry.
    Refuse,
}

impl AppliedReadStep {
    /// Returns the step of a read that needs the entry `needed`. `next` is the next entry that the
    /// copy applies. `is_stalled` is true if the copy has a [`StallMark`].
    pub fn of(next: EntryNumber, needed: EntryNumber, is_stalled: bool) -> AppliedReadStep {
        if next > needed {
            AppliedReadStep::Answer
        } else if is_stalled {
            AppliedReadStep::Refuse
        } else {
            AppliedReadStep::Wait
        }
    }
}

/// Time since which all holders of a shard are stalled by full disks, as the owner of its log sees
/// it.
///
/// A write that no holder can apply is durable and not visible. Each such write makes the log
/// longer, and no snapshot shortens it. The root that sent it can then not read the shard, because
/// its reads wait for its own write. So the owner refuses writes after [`FULL_SHARD_DELAY`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FullShardTimer {
    since: Option<Instant>,
}

impl FullShardTimer {
    /// Records a view at `now`. `stalled` has an item for each node that should hold the shard or
    /// serves it: true if the node has marked its copy as stalled. It is empty if the view is not
    /// certain. Then no write is refused, because disks may have space again, and the timer
    /// continues. Returns true if writes are refused.
    ///
    /// A holder without a mark that does not serve the shard yet may be restoring its copy. So it
    /// counts as a holder that can apply the log.
    pub fn record(&mut self, stalled: impl IntoIterator<Item = bool>, now: Instant) -> bool {
        let mut stalled = stalled.into_iter().peekable();
        if stalled.peek().is_none() {
            return false;
        }
        if !stalled.all(|is_stalled| is_stalled) {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        now.saturating_duration_since(since) >= FULL_SHARD_DELAY
    }
}
