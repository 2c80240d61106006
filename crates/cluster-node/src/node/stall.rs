//! Stall of a shard's local copy: the log cannot be applied, because the local disk is full.
//!
//! A stalled copy keeps all of its data and lacks later changes. The node marks it in etcd as it
//! marks a damaged one, until the copy is at the end of the log again. It is not replaced from the
//! store, which would need more space.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::copy_damage::CertainHolders;

/// Time from the mark of a stalled copy, or from the last change of its service, to the next
/// change. Other nodes have seen the mark by then: if two holders stall at the same moment, each
/// sees the mark of the other, and both stay in service. A copy that is out of service is served
/// only if no entry was applied for this time.
pub(super) const DECISION_DELAY: Duration = Duration::from_secs(50);

/// Mark of a local copy that stalled and has not reached the end of the log since.
#[derive(Default)]
pub(super) struct CopyStall(Mutex<Option<StallMark>>);

struct StallMark {
    reason: String,
    /// Time of the mark, or of the last change of the service.
    changed: Instant,
    /// Time since which the next entry waits for space. `None` if the copy applies its log, or if
    /// none is open.
    stopped: Option<Instant>,
}

/// Change of the service of a stalled copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StalledServiceChange {
    /// Another holder is whole.
    Withdraw,
    /// No other node serves the shard.
    Serve,
}

impl CopyStall {
    /// Marks the copy as stalled at `now`. Returns false if it has a mark, which then stays.
    pub(super) fn begin(&self, reason: &str, now: Instant) -> bool {
        let mut mark = self.0.lock();
        let is_new = mark.is_none();
        if is_new {
            *mark = Some(StallMark { reason: reason.to_owned(), changed: now, stopped: None });
        }
        is_new
    }

    /// Records at `now` that the next entry of a marked copy waits for space.
    pub(super) fn stop(&self, now: Instant) {
        if let Some(mark) = self.0.lock().as_mut() {
            mark.stopped.get_or_insert(now);
        }
    }

    /// Records that no entry waits for space. The mark stays until the end of the log.
    pub(super) fn resume(&self) {
        if let Some(mark) = self.0.lock().as_mut() {
            mark.stopped = None;
        }
    }

    /// Removes the mark. Returns false if there is none.
    pub(super) fn end(&self) -> bool {
        self.0.lock().take().is_some()
    }

    /// Returns the reason of the mark, or `None` without a mark.
    pub(super) fn reason(&self) -> Option<String> {
        self.0.lock().as_ref().map(|mark| mark.reason.clone())
    }

    /// Decides on the service of the copy at `now`. `is_served` is true if the copy is served.
    /// Returns `None` for no change, also while `view` does not show the mark. A copy that applies
    /// its log is not served before the end of the log.
    pub(super) fn decide(
        &self,
        view: &CertainHolders<'_>,
        is_served: bool,
        now: Instant,
    ) -> Option<StalledServiceChange> {
        let mut mark = self.0.lock();
        let mark = mark.as_mut()?;
        let is_over = |since: Instant| now.saturating_duration_since(since) >= DECISION_DELAY;
        let is_seen = view.holders.iter().any(|holder| holder.is_mark_of(view.own));
        if !is_over(mark.changed) || !is_seen {
            return None;
        }
        let mut others =
            view.holders.iter().filter(|holder| holder.node != view.own && holder.serves);
        let change = if is_served {
            others.any(|other| !other.is_damaged).then_some(StalledServiceChange::Withdraw)
        } else {
            let is_stopped = mark.stopped.is_some_and(is_over);
            (is_stopped && others.next().is_none()).then_some(StalledServiceChange::Serve)
        };
        if change.is_some() {
            mark.changed = now;
        }
        change
    }
}

#[cfg(test)]
mod tests {
    use cluster::HolderReading;

    use super::*;

    const OWN: HolderReading<'static> = HolderReading { node: "a", serves: true, is_damaged: true };
    const WHOLE: HolderReading<'static> =
        HolderReading { node: "b", serves: true, is_damaged: false };
    /// Another holder whose copy is stalled or damaged.
    const MARKED: HolderReading<'static> =
        HolderReading { node: "b", serves: true, is_damaged: true };
    const WITHDRAWN: HolderReading<'static> =
        HolderReading { node: "b", serves: false, is_damaged: true };

    const NONE: &[HolderReading<'static>] = &[];

    /// Returns the decision about a copy that has been marked for `since`.
    fn decision(
        others: &[HolderReading<'_>],
        is_served: bool,
        since: Duration,
    ) -> Option<StalledServiceChange> {
        let marked = Instant::now();
        let now = marked + since;
        let stall = CopyStall::default();
        stall.begin("the disk is full", marked);
        stall.stop(marked);
        let holders: Vec<HolderReading<'_>> = [OWN].iter().chain(others).copied().collect();
        stall.decide(&CertainHolders { own: "a", holders: &holders, asked: now }, is_served, now)
    }

    #[test]
    fn a_stalled_copy_leaves_service_if_another_one_is_whole() {
        let withdraw = Some(StalledServiceChange::Withdraw);
        assert_eq!(decision(&[WHOLE], true, DECISION_DELAY), withdraw);
        assert_eq!(decision(&[WHOLE], true, DECISION_DELAY / 2), None, "others see the mark first");
        for others in [NONE, &[MARKED], &[WITHDRAWN]] {
            assert_eq!(decision(others, true, DECISION_DELAY), None, "{others:?}");
        }
    }

    #[test]
    fn a_stalled_copy_is_served_if_no_other_is() {
        let serve = Some(StalledServiceChange::Serve);
        for others in [NONE, &[WITHDRAWN]] {
            assert_eq!(decision(others, false, DECISION_DELAY), serve, "{others:?}");
            assert_eq!(decision(others, false, DECISION_DELAY / 2), None, "{others:?}");
        }
        for others in [&[WHOLE][..], &[MARKED]] {
            assert_eq!(decision(others, false, DECISION_DELAY), None, "{others:?}");
        }
    }

    #[test]
    fn the_delay_counts_anew_after_a_change() {
        let marked = Instant::now();
        let stall = CopyStall::default();
        assert!(stall.begin("first", marked));
        assert!(!stall.begin("second", marked + DECISION_DELAY));
        assert_eq!(stall.reason().as_deref(), Some("first"));
        stall.stop(marked);
        let decide = |holders: &[HolderReading<'_>], is_served, now| {
            stall.decide(&CertainHolders { own: "a", holders, asked: now }, is_served, now)
        };
        let withdrawn = marked + DECISION_DELAY;
        assert_eq!(decide(&[WHOLE], true, withdrawn), None, "the view does not show the mark");
        let withdraw = Some(StalledServiceChange::Withdraw);
        assert_eq!(decide(&[OWN, WHOLE], true, withdrawn), withdraw);
        assert_eq!(decide(&[OWN], false, withdrawn + DECISION_DELAY / 2), None);
        let served = withdrawn + DECISION_DELAY;
        assert_eq!(decide(&[OWN], false, served), Some(StalledServiceChange::Serve));
        assert!(stall.end());
        assert!(!stall.end());
        assert_eq!(decide(&[OWN, WHOLE], true, served + DECISION_DELAY), None, "it has no mark");
    }

    #[test]
    fn a_copy_that_applies_its_log_is_not_served_before_its_end() {
        let marked = Instant::now();
        let stall = CopyStall::default();
        stall.stop(marked);
        assert!(stall.begin("a restored copy has no space", marked));
        let decide = |now| {
            stall.decide(&CertainHolders { own: "a", holders: &[OWN], asked: now }, false, now)
        };
        let opened = marked + DECISION_DELAY;
        assert_eq!(decide(opened), None, "no entry waits");
        stall.stop(opened);
        stall.stop(opened + DECISION_DELAY / 2);
        assert_eq!(decide(opened + DECISION_DELAY / 2), None);
        stall.resume();
        assert_eq!(decide(opened + DECISION_DELAY), None, "an entry was applied");
        let stopped = opened + DECISION_DELAY;
        stall.stop(stopped);
        assert_eq!(decide(stopped + DECISION_DELAY), Some(StalledServiceChange::Serve));
    }
}
