//! Damaged copies: served until another holder is whole, and replaced one after the other.

use std::time::Duration;

use cluster::{
    DECISION_AGE_MAX, DamagedCopyUse, DecisionAge, HolderReading, REPLACEMENT_DELAY,
    REPLACEMENT_TURN,
};

fn whole(node: &str) -> HolderReading<'_> {
    HolderReading { node, serves: true, is_damaged: false }
}

fn damaged(node: &str) -> HolderReading<'_> {
    HolderReading { node, serves: true, is_damaged: true }
}

fn replaced(node: &str) -> HolderReading<'_> {
    HolderReading { node, serves: false, is_damaged: true }
}

fn first(own: &str, holders: &[HolderReading<'_>]) -> DamagedCopyUse {
    DamagedCopyUse::default().next(own, holders)
}

/// Returns true if a copy with this use may be replaced `decided` after the decision, on a view of
/// this moment.
fn may_be_replaced(used: DamagedCopyUse, decided: Duration) -> bool {
    used.may_be_replaced(DecisionAge { decided, confirmed: Duration::ZERO })
}

#[test]
fn a_copy_is_withdrawn_if_another_holder_is_whole() {
    assert_eq!(first("a", &[damaged("a"), whole("b")]), DamagedCopyUse::Withdrawn);
    let absent = HolderReading { serves: false, ..whole("b") };
    assert_eq!(first("a", &[damaged("a"), absent]), DamagedCopyUse::Served { turns: 0 });
    assert_eq!(first("a", &[damaged("a")]), DamagedCopyUse::Served { turns: 0 });
}

#[test]
fn no_copy_is_withdrawn_before_its_mark_is_seen() {
    let undecided = first("a", &[whole("a"), whole("b")]);
    assert_eq!(undecided, DamagedCopyUse::Undecided);
    assert!(undecided.announces(true) && !undecided.announces(false));
    assert!(!may_be_replaced(undecided, Duration::MAX));
}

#[test]
fn holders_that_are_damaged_together_are_not_withdrawn() {
    let all = [damaged("a"), damaged("b"), damaged("c")];
    for (own, turns) in [("a", 0), ("b", 1), ("c", 2)] {
        let used = first(own, &all);
        assert_eq!(used, DamagedCopyUse::Served { turns });
        assert!(used.announces(false));
    }
    // The first one has left to read its log, which may take longer than a turn. Then it is whole.
    let leaves = [replaced("a"), damaged("b"), damaged("c")];
    assert_eq!(first("b", &leaves), DamagedCopyUse::Served { turns: 6 });
    let is_back = [whole("a"), damaged("b"), damaged("c")];
    assert_eq!(first("b", &is_back), DamagedCopyUse::Withdrawn);
}

/// The holder that a withdrawn copy relies on may be damaged later.
#[test]
fn a_withdrawn_copy_returns_only_if_no_other_is_served() {
    let withdrawn = DamagedCopyUse::Withdrawn;
    assert_eq!(withdrawn.next("a", &[replaced("a"), damaged("b")]), withdrawn);
    assert_eq!(first("b", &[replaced("a"), damaged("b")]), DamagedCopyUse::Served { turns: 6 });
    assert_eq!(withdrawn.next("a", &[replaced("a")]), DamagedCopyUse::Served { turns: 0 });
}

#[test]
fn served_copies_are_replaced_in_turn() {
    let first = DamagedCopyUse::Served { turns: 0 };
    assert!(!may_be_replaced(first, Duration::ZERO));
    assert!(may_be_replaced(first, REPLACEMENT_DELAY));
    // A holder that stays damaged does not hold up the others for ever.
    let second = DamagedCopyUse::Served { turns: 1 };
    assert!(!may_be_replaced(second, REPLACEMENT_TURN));
    assert!(may_be_replaced(second, REPLACEMENT_DELAY + REPLACEMENT_TURN));
}

/// The holder that it relies on may have left at the same moment, such as one that is not needed
/// any more.
#[test]
fn a_withdrawn_copy_stays_on_the_disk_for_the_delay() {
    let withdrawn = first("a", &[damaged("a"), whole("b")]);
    assert!(!may_be_replaced(withdrawn, Duration::ZERO));
    assert_eq!(withdrawn.next("a", &[damaged("a")]), DamagedCopyUse::Served { turns: 0 });
    assert!(may_be_replaced(withdrawn, REPLACEMENT_DELAY));
}

#[test]
fn no_copy_is_replaced_on_an_old_view() {
    let age = |confirmed| DecisionAge { decided: Duration::MAX, confirmed };
    for used in [DamagedCopyUse::Withdrawn, DamagedCopyUse::Served { turns: 0 }] {
        assert!(used.may_be_replaced(age(DECISION_AGE_MAX)));
        assert!(!used.may_be_replaced(age(DECISION_AGE_MAX + Duration::from_millis(1))));
    }
}
