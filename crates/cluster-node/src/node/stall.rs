//! Stall of a shard's local copy: the log cannot be applied, because the local disk is full.
//!
//! `cluster::StallMark` decides on the service of the copy. The follower of the log and the
//! announcement of shards share the mark.

use std::time::Instant;

use cluster::{CertainHolders, StallMark, StalledServiceChange};
use parking_lot::Mutex;

/// Mark of a local copy that stalled and has not reached the end of the log since.
#[derive(Default)]
pub(super) struct CopyStall(Mutex<Option<StallWithReason>>);

struct StallWithReason {
    reason: String,
    mark: StallMark,
}

impl CopyStall {
    /// Marks the copy as stalled at `now`. Returns false if it has a mark, which then stays.
    pub(super) fn begin(&self, reason: &str, now: Instant) -> bool {
        let mut stall = self.0.lock();
        let is_new = stall.is_none();
        if is_new {
            *stall = Some(StallWithReason { reason: reason.to_owned(), mark: StallMark::new(now) });
        }
        is_new
    }

    /// Records at `now` that the next entry of a marked copy waits for space.
    pub(super) fn stop(&self, now: Instant) {
        if let Some(stall) = self.0.lock().as_mut() {
            stall.mark.stop(now);
        }
    }

    /// Records that no entry waits for space. The mark stays until the end of the log.
    pub(super) fn resume(&self) {
        if let Some(stall) = self.0.lock().as_mut() {
            stall.mark.resume();
        }
    }

    /// Removes the mark. Returns false if there is none.
    pub(super) fn end(&self) -> bool {
        self.0.lock().take().is_some()
    }

    /// Returns true if the copy has a mark.
    pub(super) fn is_marked(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Returns the reason of the mark, or `None` without a mark.
    pub(super) fn reason(&self) -> Option<String> {
        self.0.lock().as_ref().map(|stall| stall.reason.clone())
    }

    /// Decides on the service of the copy at `now`, as [`StallMark::decide`]. Returns `None` also
    /// without a mark.
    pub(super) fn decide(
        &self,
        view: &CertainHolders<'_>,
        is_served: bool,
        now: Instant,
    ) -> Option<StalledServiceChange> {
        self.0.lock().as_mut()?.mark.decide(view, is_served, now)
    }
}

#[cfg(test)]
mod tests {
    use cluster::{HolderReading, STALL_DECISION_DELAY};

    use super::*;

    #[test]
    fn the_first_reason_stays_until_the_end() {
        let marked = Instant::now();
        let stall = CopyStall::default();
        assert!(stall.begin("first", marked));
        assert!(!stall.begin("second", marked + STALL_DECISION_DELAY));
        assert_eq!(stall.reason().as_deref(), Some("first"));
        let own = HolderReading { node: "a", serves: true, is_damaged: true };
        let whole = HolderReading { node: "b", serves: true, is_damaged: false };
        let decide = |now| {
            let holders = [own, whole];
            stall.decide(&CertainHolders { own: "a", holders: &holders, asked: now }, true, now)
        };
        let withdrawn = marked + STALL_DECISION_DELAY;
        assert_eq!(decide(withdrawn), Some(StalledServiceChange::Withdraw), "since the first mark");
        assert!(stall.end());
        assert!(!stall.end());
        assert_eq!(decide(withdrawn + STALL_DECISION_DELAY), None, "it has no mark");
    }

    #[test]
    fn a_restored_copy_without_a_mark_is_not_stopped() {
        let marked = Instant::now();
        let stall = CopyStall::default();
        stall.stop(marked);
        assert!(stall.begin("a restored copy has no space", marked));
        let own = HolderReading { node: "a", serves: true, is_damaged: true };
        let now = marked + STALL_DECISION_DELAY;
        let view = CertainHolders { own: "a", holders: &[own], asked: now };
        assert_eq!(stall.decide(&view, false, now), None, "no entry waits");
    }
}
