//! Damage of a shard's local copy, which the follower and the announcement share.

use std::time::Instant;

use cluster::{CertainHolders, DamagedCopyUse, DecisionAge};
use parking_lot::Mutex;

/// Mark of a local copy that is damaged or being replaced.
#[derive(Default)]
pub(super) struct CopyDamage(Mutex<Option<DamageMark>>);

#[derive(Debug)]
struct DamageMark {
    reason: String,
    since: Instant,
    used: DamagedCopyUse,
    decision: Option<DecisionTimes>,
}

/// Times of a decision about a copy.
#[derive(Clone, Copy, Debug)]
struct DecisionTimes {
    /// Time of the decision to serve, or to withdraw, the copy.
    decided: Instant,
    /// Time of the request for the last view that showed the mark.
    confirmed: Instant,
}

impl CopyDamage {
    /// Marks the copy as damaged at `now`. Returns false if it has a mark, which then stays.
    pub(super) fn mark(&self, reason: &str, now: Instant) -> bool {
        let mut mark = self.0.lock();
        let is_new = mark.is_none();
        if is_new {
            let reason = reason.to_owned();
            let used = DamagedCopyUse::Undecided;
            *mark = Some(DamageMark { reason, since: now, used, decision: None });
        }
        is_new
    }

    /// Removes the mark. Returns false if there is none.
    pub(super) fn clear(&self) -> bool {
        self.0.lock().take().is_some()
    }

    /// Returns the reason of the mark, or `None` without a mark.
    pub(super) fn reason(&self) -> Option<String> {
        self.0.lock().as_ref().map(|mark| mark.reason.clone())
    }

    /// Returns the use of the copy, or `None` without a mark.
    pub(super) fn used(&self) -> Option<DamagedCopyUse> {
        self.0.lock().as_ref().map(|mark| mark.used)
    }

    /// Decides on the use of the copy at `now`. Returns true if the use changes.
    pub(super) fn decide(&self, view: &CertainHolders<'_>, now: Instant) -> bool {
        let mut mark = self.0.lock();
        // An older view may show the mark of earlier damage.
        let Some(mark) = mark.as_mut().filter(|mark| view.requested_at > mark.since) else {
            return false;
        };
        if !view.holders.iter().any(|holder| holder.is_mark_of(view.own)) {
            return false;
        }
        let before = mark.used;
        mark.used = before.next(view.own, view.holders);
        let is_switched = mark.used.is_served() != before.is_served();
        let decided = mark.decision.filter(|_| !is_switched).map_or(now, |times| times.decided);
        mark.decision = Some(DecisionTimes { decided, confirmed: view.requested_at });
        mark.used != before
    }

    /// Returns true if the copy has a mark and may be replaced at `now`.
    pub(super) fn may_be_replaced(&self, now: Instant) -> bool {
        let mark = self.0.lock();
        let Some(mark) = mark.as_ref() else { return false };
        let age = mark.decision.map(|times| DecisionAge {
            decided: now.saturating_duration_since(times.decided),
            confirmed: now.saturating_duration_since(times.confirmed),
        });
        age.is_some_and(|age| mark.used.may_be_replaced(age))
    }
}

#[cfg(test)]
mod tests {
    use cluster::{DECISION_AGE_MAX, HolderReading, REPLACEMENT_DELAY};

    use super::*;

    const DAMAGED: HolderReading<'static> =
        HolderReading { node: "a", serves: true, is_damaged: true };
    const WHOLE: HolderReading<'static> =
        HolderReading { node: "b", serves: true, is_damaged: false };

    fn decide(damage: &CopyDamage, holders: &[HolderReading<'_>], requested_at: Instant) -> bool {
        damage.decide(&CertainHolders { own: "a", holders, requested_at }, requested_at)
    }

    #[test]
    fn the_delay_counts_from_the_first_decision() {
        let start = Instant::now();
        let later = start + REPLACEMENT_DELAY;
        let end = later + REPLACEMENT_DELAY;
        let damage = CopyDamage::default();
        assert!(!decide(&damage, &[DAMAGED], later), "there is no mark");
        assert!(damage.mark("first", start));
        assert!(!damage.mark("second", start));
        assert_eq!(damage.reason().as_deref(), Some("first"));
        assert!(!decide(&damage, &[], later), "the view does not show the mark");
        assert!(!damage.may_be_replaced(later));
        assert!(decide(&damage, &[DAMAGED], later));
        assert!(!damage.may_be_replaced(later));
        assert!(!damage.may_be_replaced(end), "the view is old");
        assert!(!decide(&damage, &[DAMAGED], end), "nothing changes");
        assert!(damage.may_be_replaced(end));
        assert!(damage.clear());
        assert!(!damage.clear());
        assert_eq!(damage.used(), None);
    }

    #[test]
    fn the_delay_begins_again_if_the_copy_is_withdrawn() {
        let start = Instant::now();
        let later = start + REPLACEMENT_DELAY;
        let damage = CopyDamage::default();
        damage.mark("a page", start);
        assert!(decide(&damage, &[DAMAGED], later));
        let withdrawn = later + REPLACEMENT_DELAY;
        assert!(decide(&damage, &[DAMAGED, WHOLE], withdrawn));
        assert!(!damage.may_be_replaced(withdrawn));
        assert!(!decide(&damage, &[DAMAGED, WHOLE], withdrawn + REPLACEMENT_DELAY));
        assert!(damage.may_be_replaced(withdrawn + REPLACEMENT_DELAY));
    }

    /// Other nodes may rely on a copy whose mark they cannot see.
    #[test]
    fn a_view_without_the_mark_does_not_confirm_a_decision() {
        let start = Instant::now();
        let end = start + REPLACEMENT_DELAY * 2;
        let damage = CopyDamage::default();
        damage.mark("a page", start);
        decide(&damage, &[DAMAGED], start + DECISION_AGE_MAX);
        decide(&damage, &[WHOLE], end);
        assert!(!damage.may_be_replaced(end));
        decide(&damage, &[DAMAGED], end);
        assert!(damage.may_be_replaced(end));
    }

    #[test]
    fn the_mark_of_earlier_damage_does_not_count() {
        let start = Instant::now();
        let damage = CopyDamage::default();
        damage.mark("second damage", start + REPLACEMENT_DELAY);
        assert!(!decide(&damage, &[DAMAGED], start));
        assert_eq!(damage.used(), Some(DamagedCopyUse::Undecided));
    }
}
