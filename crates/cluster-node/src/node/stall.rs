//! Stall of a shard's local copy: the log cannot be applied, because the local disk is full.
//!
//! A stalled copy keeps all of its data and lacks later changes. The node marks it in etcd as it
//! marks a damaged one, until the copy is at the end of the log again. It is not replaced from the
//! store, which would need more space.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::copy_damage::CertainHolders;

/// Time from the mark of a stalled copy, or from the last change of its service, to the next
/// change. Other nodes have seen the mark by then: of two holders that stall at the same moment,
/// neither takes the other one for whole, and both stay in service.
pub(super) const DECISION_DELAY: Duration = Duration::from_secs(50);

/// Mark of a local copy that is stalled, or was and has not reached the end of the log since.
#[derive(Default)]
pub(super) struct CopyStall(Mutex<Option<StallMark>>);

struct StallMark {
    reason: String,
    /// Time of the mark, or of the last change of the service.
    changed: Instant,
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
            *mark = Some(StallMark { reason: reason.to_owned(), changed: now });
        }
        is_new
    }

    /// Removes the mark. Returns false if there is none.
    pub(super) fn end(&self) -> bool {
        self.0.lock().take().is_some()
    }

    /// Returns the reason of the mark, or `None` without a mark.
    pub(super) fn reason(&self) -> Option<String> {
        self.0.lock().as_ref().map(|mark| mark.reason.clone())
    }

    /// Decides on the service of the copy at `now`. `is_served` is true if it is served. Returns
    /// `None` if that stays.
    pub(super) fn decide(
        &self,
        view: &CertainHolders<'_>,
        is_served: bool,
        now: Instant,
    ) -> Option<StalledServiceChange> {
        let mut mark = self.0.lock();
        let mark = mark.as_mut()?;
        if now.saturating_duration_since(mark.changed) < DECISION_DELAY {
            return None;
        }
        let mut others =
            view.holders.iter().filter(|holder| holder.node != view.own && holder.serves);
        let change = if is_served {
            others.any(|other| !other.is_damaged).then_some(StalledServiceChange::Withdraw)
        } else {
            others.next().is_none().then_some(StalledServiceChange::Serve)
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
        let decide = |holders: &[HolderReading<'_>], is_served, now| {
            stall.decide(&CertainHolders { own: "a", holders, asked: now }, is_served, now)
        };
        let withdrawn = marked + DECISION_DELAY;
        assert_eq!(decide(&[WHOLE], true, withdrawn), Some(StalledServiceChange::Withdraw));
        assert_eq!(decide(&[OWN], false, withdrawn + DECISION_DELAY / 2), None);
        let served = withdrawn + DECISION_DELAY;
        assert_eq!(decide(&[OWN], false, served), Some(StalledServiceChange::Serve));
        assert!(stall.end());
        assert!(!stall.end());
        assert_eq!(decide(&[WHOLE], true, served + DECISION_DELAY), None, "there is no mark");
    }
}
