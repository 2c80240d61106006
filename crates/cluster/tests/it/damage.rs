//! Damaged copies: served until another holder is whole, and replaced one after the other.

use std::time::Duration;

use cluster::{DamagedCopyUse, HolderReading, REPLACEMENT_DELAY, REPLACEMENT_TURN};

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

#[test]
fn a_copy_is_withdrawn_if_another_holder_is_whole() {
    assert_eq!(first("a", &[damaged("a"), whole("b")]), DamagedCopyUse::Withdrawn);
    let absent = HolderReading { serves: false, ..whole("b") };
    assert_eq!(first("a", &[damaged("a"), absent]), DamagedCopyUse::Served { ahead: 0 });
    assert_eq!(first("a", &[damaged("a")]), DamagedCopyUse::Served { ahead: 0 });
}

#[test]
fn no_copy_is_withdrawn_before_its_mark_is_seen() {
    let undecided = first("a", &[whole("a"), whole("b")]);
    assert_eq!(undecided, DamagedCopyUse::Undecided);
    assert!(undecided.announces(true) && !undecided.announces(false));
    assert!(!undecided.may_be_replaced(Duration::MAX));
}

#[test]
fn holders_that_are_damaged_together_are_not_withdrawn() {
    let all = [damaged("a"), damaged("b"), damaged("c")];
    for (own, ahead) in [("a", 0), ("b", 1), ("c", 2)] {
        let used = first(own, &all);
        assert_eq!(used, DamagedCopyUse::Served { ahead });
        assert!(used.announces(false));
    }
    // The first one has left to read its log, and then it is whole.
    let leaves = [replaced("a"), damaged("b"), damaged("c")];
    assert_eq!(first("b", &leaves), DamagedCopyUse::Served { ahead: 1 });
    let is_back = [whole("a"), damaged("b"), damaged("c")];
    assert_eq!(first("b", &is_back), DamagedCopyUse::Withdrawn);
}

/// The holder that a withdrawn copy relies on may be damaged later.
#[test]
fn a_withdrawn_copy_returns_only_if_no_other_is_served() {
    let withdrawn = DamagedCopyUse::Withdrawn;
    assert_eq!(withdrawn.next("a", &[replaced("a"), damaged("b")]), withdrawn);
    assert_eq!(first("b", &[replaced("a"), damaged("b")]), DamagedCopyUse::Served { ahead: 1 });
    assert_eq!(withdrawn.next("a", &[replaced("a")]), DamagedCopyUse::Served { ahead: 0 });
}

#[test]
fn served_copies_are_replaced_in_turn() {
    assert!(DamagedCopyUse::Withdrawn.may_be_replaced(Duration::ZERO));
    let first = DamagedCopyUse::Served { ahead: 0 };
    assert!(!first.may_be_replaced(Duration::ZERO));
    assert!(first.may_be_replaced(REPLACEMENT_DELAY));
    // A holder that stays damaged does not hold up the others for ever.
    let second = DamagedCopyUse::Served { ahead: 1 };
    assert!(!second.may_be_replaced(REPLACEMENT_TURN));
    assert!(second.may_be_replaced(REPLACEMENT_DELAY + REPLACEMENT_TURN));
}
