//! Stalled copies: withdrawn only if another one is whole, and served if no other one is.

use std::time::{Duration, Instant};

use cluster::{
    AppliedReadStep, CertainHolders, DECISION_AGE_MAX, EntryNumber, FULL_SHARD_DELAY,
    FullShardTimer, HolderReading, STALL_DECISION_DELAY, StallMark, StalledServiceChange,
};

const OWN: HolderReading<'static> = HolderReading { node: "a", serves: true, is_damaged: true };
const WHOLE: HolderReading<'static> = HolderReading { node: "b", serves: true, is_damaged: false };
/// Another holder whose copy is stalled or damaged.
const MARKED: HolderReading<'static> = HolderReading { node: "b", serves: true, is_damaged: true };
const WITHDRAWN: HolderReading<'static> =
    HolderReading { node: "b", serves: false, is_damaged: true };

const NONE: &[HolderReading<'static>] = &[];

/// Returns the decision about a copy at `now` on a view that was requested then.
fn decide(
    mark: &mut StallMark,
    holders: &[HolderReading<'_>],
    is_served: bool,
    now: Instant,
) -> Option<StalledServiceChange> {
    mark.decide(&CertainHolders { own: "a", holders, requested_at: now }, is_served, now)
}

/// Returns the decision about a copy that has been marked for `since`.
fn decision(
    others: &[HolderReading<'_>],
    is_served: bool,
    since: Duration,
) -> Option<StalledServiceChange> {
    let marked = Instant::now();
    let mut mark = StallMark::new(marked);
    mark.stop(marked);
    let holders: Vec<HolderReading<'_>> = [OWN].iter().chain(others).copied().collect();
    decide(&mut mark, &holders, is_served, marked + since)
}

#[test]
fn a_stalled_copy_leaves_service_if_another_one_is_whole() {
    let withdraw = Some(StalledServiceChange::Withdraw);
    assert_eq!(decision(&[WHOLE], true, STALL_DECISION_DELAY), withdraw);
    assert_eq!(decision(&[WHOLE], true, STALL_DECISION_DELAY / 2), None, "others see it first");
    for others in [NONE, &[MARKED], &[WITHDRAWN]] {
        assert_eq!(decision(others, true, STALL_DECISION_DELAY), None, "{others:?}");
    }
}

#[test]
fn a_stalled_copy_is_served_if_no_other_is() {
    let serve = Some(StalledServiceChange::Serve);
    for others in [NONE, &[WITHDRAWN]] {
        assert_eq!(decision(others, false, STALL_DECISION_DELAY), serve, "{others:?}");
        assert_eq!(decision(others, false, STALL_DECISION_DELAY / 2), None, "{others:?}");
    }
    for others in [&[WHOLE][..], &[MARKED]] {
        assert_eq!(decision(others, false, STALL_DECISION_DELAY), None, "{others:?}");
    }
}

#[test]
fn the_delay_begins_again_after_a_change() {
    let marked = Instant::now();
    let mut mark = StallMark::new(marked);
    mark.stop(marked);
    let withdrawn = marked + STALL_DECISION_DELAY;
    assert_eq!(decide(&mut mark, &[WHOLE], true, withdrawn), None, "the mark is not seen");
    let withdraw = Some(StalledServiceChange::Withdraw);
    assert_eq!(decide(&mut mark, &[OWN, WHOLE], true, withdrawn), withdraw);
    let early = withdrawn + STALL_DECISION_DELAY / 2;
    assert_eq!(decide(&mut mark, &[OWN], false, early), None);
    let served = withdrawn + STALL_DECISION_DELAY;
    let serve = Some(StalledServiceChange::Serve);
    assert_eq!(decide(&mut mark, &[OWN], false, served), serve);
}

#[test]
fn no_stalled_copy_is_withdrawn_on_an_old_view() {
    let marked = Instant::now();
    let mut mark = StallMark::new(marked);
    let requested_at = marked + STALL_DECISION_DELAY;
    let view = CertainHolders { own: "a", holders: &[OWN, WHOLE], requested_at };
    let late = requested_at + DECISION_AGE_MAX + Duration::from_millis(1);
    assert_eq!(mark.decide(&view, true, late), None);
    let withdraw = Some(StalledServiceChange::Withdraw);
    assert_eq!(mark.decide(&view, true, requested_at + DECISION_AGE_MAX), withdraw);
}

#[test]
fn a_copy_that_applies_its_log_is_not_served_before_its_end() {
    let marked = Instant::now();
    let mut mark = StallMark::new(marked);
    let opened = marked + STALL_DECISION_DELAY;
    assert_eq!(decide(&mut mark, &[OWN], false, opened), None, "no entry waits");
    mark.stop(opened);
    mark.stop(opened + STALL_DECISION_DELAY / 2);
    assert_eq!(decide(&mut mark, &[OWN], false, opened + STALL_DECISION_DELAY / 2), None);
    mark.resume();
    let stopped = opened + STALL_DECISION_DELAY;
    assert_eq!(decide(&mut mark, &[OWN], false, stopped), None, "an entry was applied");
    mark.stop(stopped);
    let serve = Some(StalledServiceChange::Serve);
    assert_eq!(decide(&mut mark, &[OWN], false, stopped + STALL_DECISION_DELAY), serve);
}

#[test]
fn a_stalled_copy_answers_only_reads_that_need_no_later_entry() {
    let of = |next, needed, is_stalled| {
        AppliedReadStep::of(EntryNumber(next), EntryNumber(needed), is_stalled)
    };
    for is_stalled in [false, true] {
        assert_eq!(of(8, 7, is_stalled), AppliedReadStep::Answer);
    }
    assert_eq!(of(7, 7, false), AppliedReadStep::Wait);
    assert_eq!(of(7, 7, true), AppliedReadStep::Refuse);
}

#[test]
fn writes_are_refused_if_all_holders_stay_stalled() {
    let start = Instant::now();
    let later = start + FULL_SHARD_DELAY;
    let mut timer = FullShardTimer::default();
    assert!(!timer.record([true, true], start));
    assert!(!timer.record([true, true], later - Duration::from_millis(1)));
    assert!(timer.record([true, true], later));
    assert!(!timer.record([true, false], later), "one holder can apply the log");
    assert!(!timer.record([true, true], later), "the time starts again");
}

#[test]
fn no_write_is_refused_without_a_certain_view() {
    let start = Instant::now();
    let later = start + FULL_SHARD_DELAY;
    let mut timer = FullShardTimer::default();
    assert!(!timer.record([true], start));
    assert!(!timer.record([], later), "the view is not certain");
    assert!(timer.record([true], later), "the time counts on");
}
