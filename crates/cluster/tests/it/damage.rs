//! Damaged copies: served until another holder is whole, and replaced one after the other.

use std::collections::BTreeMap;
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
        assert!(used.is_served() && used.announces(false));
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
    // A holder that stays damaged does not block the others for ever.
    let second = DamagedCopyUse::Served { turns: 1 };
    assert!(!may_be_replaced(second, REPLACEMENT_TURN));
    assert!(may_be_replaced(second, REPLACEMENT_DELAY + REPLACEMENT_TURN));
}

/// The holder that it relies on may have left at the same moment, for example because it was not
/// needed.
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

/// A holder of a shard in simulated time, in seconds.
struct SimulatedHolder {
    name: &'static str,
    /// Age of its views.
    lag: u64,
    damaged_at: u64,
    used: DamagedCopyUse,
    /// Time of the decision to serve, or to withdraw, the copy.
    decided_at: Option<u64>,
    /// Time at which its replacement began.
    replaced_at: Option<u64>,
}

/// Times of a replacement, in seconds.
#[derive(Clone, Copy, Debug)]
struct ReplacementTimes {
    restore: u64,
    replay: u64,
}

impl SimulatedHolder {
    fn new(name: &'static str, lag: u64, damaged_at: u64) -> SimulatedHolder {
        let used = DamagedCopyUse::default();
        SimulatedHolder { name, lag, damaged_at, used, decided_at: None, replaced_at: None }
    }

    fn is_whole(&self, now: u64, times: ReplacementTimes) -> bool {
        let end = self.replaced_at.map(|began| began + times.restore + times.replay);
        now < self.damaged_at || end.is_some_and(|end| end <= now)
    }

    fn reading(&self, now: u64, times: ReplacementTimes) -> HolderReading<'static> {
        let is_whole = self.is_whole(now, times);
        let is_behind = self.replaced_at.is_some_and(|began| began + times.restore <= now);
        let serves = is_whole || (!is_behind && self.used.announces(true));
        HolderReading { node: self.name, serves, is_damaged: !is_whole }
    }

    /// Decides on the view of `asked`, and begins the replacement if it is due.
    fn look(&mut self, view: &[HolderReading<'_>], asked: u64, now: u64) {
        if asked <= self.damaged_at || !view.iter().any(|holder| holder.is_mark_of(self.name)) {
            return;
        }
        let before = self.used;
        self.used = before.next(self.name, view);
        if self.used.is_served() != before.is_served() {
            self.decided_at = None;
        }
        let decided_at = *self.decided_at.get_or_insert(now);
        let age = DecisionAge {
            decided: Duration::from_secs(now - decided_at),
            confirmed: Duration::from_secs(now - asked),
        };
        if self.replaced_at.is_none() && self.used.may_be_replaced(age) {
            self.replaced_at = Some(now);
        }
    }
}

/// Damages the copies of two holders, and checks that one of them serves the shard at any time.
fn replace_both(mut holders: [SimulatedHolder; 2], times: ReplacementTimes) {
    let shown = holders.each_ref().map(|holder| (holder.lag, holder.damaged_at));
    let end = 1_000 + 2 * (times.restore + times.replay);
    let mut views: BTreeMap<u64, [HolderReading<'static>; 2]> = BTreeMap::new();
    for now in 0..end {
        let view = holders.each_ref().map(|holder| holder.reading(now, times));
        assert!(view.iter().any(|holder| holder.serves), "{shown:?}, {times:?}, at {now} s");
        views.insert(now, view);
        for holder in &mut holders {
            let Some(asked) = now.checked_sub(holder.lag) else { continue };
            if !holder.is_whole(now, times)
                && let Some(view) = views.get(&asked)
            {
                holder.look(view, asked, now);
            }
        }
    }
    let are_whole = holders.iter().all(|holder| holder.is_whole(end, times));
    assert!(are_whole, "{shown:?}, {times:?}");
}

#[test]
fn one_of_two_damaged_holders_serves_at_any_time() {
    for [first_lag, second_lag] in [[0, 0], [0, 5], [5, 0], [5, 5]] {
        for [first_damage, second_damage] in [[1, 1], [1, 4], [4, 1], [1, 40], [40, 1]] {
            for [restore, replay] in [[0, 1], [0, 2_900], [590, 1], [590, 2_900]] {
                let first = SimulatedHolder::new("a", first_lag, first_damage);
                let second = SimulatedHolder::new("b", second_lag, second_damage);
                replace_both([first, second], ReplacementTimes { restore, replay });
            }
        }
    }
}
