//! Conditional writes: the owner refuses one if a later entry may have written its id.

use cluster::{EntryNumber, RecentWrites};
use proptest::prelude::*;

/// Acknowledged writes that the owner of these tests remembers.
const WRITES_MAX: usize = 4;
const FENCE: u64 = 3;

fn owner() -> RecentWrites {
    let mut recent = RecentWrites::new(WRITES_MAX);
    recent.begin_behind(EntryNumber(FENCE));
    recent
}

/// Takes a write of an id on the condition that no entry after the entry `after` has written the
/// id.
fn take(recent: &mut RecentWrites, id: u8, after: u64) -> bool {
    recent.take(&[[id; 16]], Some(EntryNumber(after)))
}

/// Acknowledges all writes so far with the entry `entry`.
fn acknowledge(recent: &mut RecentWrites, entry: u64) {
    recent.acknowledge(recent.next_order(), EntryNumber(entry));
}

#[test]
fn of_two_writes_of_an_id_the_later_one_is_refused() {
    let mut recent = owner();
    assert!(take(&mut recent, 1, 3));
    assert!(!take(&mut recent, 1, 3), "both share an entry");
    assert!(!take(&mut recent, 1, 99), "no lookup has seen an entry without a number");
    assert!(take(&mut recent, 2, 3));
    acknowledge(&mut recent, 4);
    assert!(!take(&mut recent, 1, 3));
    assert!(take(&mut recent, 1, 4), "the lookup has seen the entry");
    acknowledge(&mut recent, 5);
    assert!(!take(&mut recent, 1, 4));
    assert!(recent.take(&[[1; 16]], None), "a write without a condition");
    acknowledge(&mut recent, 6);
    assert!(!take(&mut recent, 1, 5));
}

#[test]
fn entries_before_the_fence_are_not_known() {
    let mut recent = owner();
    assert!(!take(&mut recent, 1, FENCE - 1));
    assert!(take(&mut recent, 1, FENCE));
}

#[test]
fn a_forgotten_entry_refuses_older_lookups() {
    let mut recent = owner();
    for number in 0..=WRITES_MAX as u8 {
        assert!(take(&mut recent, number, FENCE));
        acknowledge(&mut recent, FENCE + 1 + u64::from(number));
    }
    assert_eq!(recent.remembered(), WRITES_MAX);
    assert!(!take(&mut recent, 0, FENCE), "its entry is forgotten");
    assert!(!take(&mut recent, 100, FENCE), "the owner does not know that it is another id");
    assert!(take(&mut recent, 100, FENCE + 1));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write {
        id: u8,
        unless_after: Option<u64>,
    },
    /// Acknowledges this many of the oldest writes with one entry.
    Acknowledge(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let write = (0_u8..6, prop::option::of(0_u64..60));
    prop_oneof![
        4 => write.prop_map(|(id, unless_after)| Step::Write { id, unless_after }),
        2 => (1_usize..4).prop_map(Step::Acknowledge),
    ]
}

/// A write of the reference, which forgets nothing.
struct KnownWrite {
    id: u8,
    entry: Option<u64>,
}

proptest! {
    #[test]
    fn refused_writes_are_those_of_a_reference(steps in prop::collection::vec(step(), 0..200)) {
        let mut recent = owner();
        let mut writes: Vec<KnownWrite> = Vec::new();
        let mut acknowledged = 0;
        let mut next = FENCE + 1;
        for step in steps {
            match step {
                Step::Acknowledge(count) => {
                    let end = writes.len().min(acknowledged + count);
                    writes[acknowledged..end].iter_mut().for_each(|write| write.entry = Some(next));
                    acknowledged = end;
                    recent.acknowledge(end as u64, EntryNumber(next));
                    next += 1;
                }
                Step::Write { id, unless_after } => {
                    let forgotten = acknowledged.checked_sub(WRITES_MAX + 1);
                    let forgotten = forgotten.and_then(|at| writes[at].entry).unwrap_or(FENCE);
                    let refused = unless_after.is_some_and(|after| {
                        let is_later = |entry: Option<u64>| entry.is_none_or(|it| it > after);
                        let mut same = writes.iter().filter(|write| write.id == id);
                        after < forgotten || same.any(|write| is_later(write.entry))
                    });
                    let taken = recent.take(&[[id; 16]], unless_after.map(EntryNumber));
                    prop_assert_eq!(taken, !refused);
                    if taken {
                        writes.push(KnownWrite { id, entry: None });
                    }
                }
            }
            prop_assert!(recent.remembered() <= WRITES_MAX + writes.len() - acknowledged);
        }
    }
}
