//! Ownership: the process that acquires, keeps or releases a shard.

use cluster::{
    Epoch, KnownOwnership, OwnerReading, OwnershipStep, SeenOwner, keeps_ownership, ownership_step,
};

fn seen(node: &str, epoch: u64) -> Option<SeenOwner<'_>> {
    Some(SeenOwner { node, epoch: Epoch(epoch) })
}

#[test]
fn an_owner_stays_until_another_is_seen_or_wanted() {
    let keeps = |seen, wanted| keeps_ownership("a", Epoch(5), seen, wanted);
    assert!(keeps(seen("a", 5), Some("a")));
    assert!(keeps(None, Some("a")), "the view may be older than the ownership");
    assert!(keeps(seen("a", 4), None), "no node is wanted");
    assert!(!keeps(seen("a", 6), Some("a")), "the key was created again");
    assert!(!keeps(seen("b", 4), Some("a")));
    assert!(!keeps(seen("a", 5), Some("b")));
}

#[test]
fn a_wanted_owner_acquires_once_no_other_owns() {
    let step = |seen, wanted| ownership_step("a", seen, wanted);
    assert_eq!(step(None, Some("a")), OwnershipStep::Acquire);
    assert_eq!(step(seen("b", 3), Some("a")), OwnershipStep::Wait);
    assert_eq!(step(None, Some("b")), OwnershipStep::Wait);
    assert_eq!(step(seen("a", 3), Some("a")), OwnershipStep::Release(Epoch(3)));
}

/// Found by the simulation: after an outage of etcd a node creates its keys again, although another
/// node should own the shard now. Without the release, that node waits forever.
#[test]
fn an_ownership_without_a_writer_is_released_for_another_node() {
    assert_eq!(ownership_step("a", seen("a", 3), Some("b")), OwnershipStep::Release(Epoch(3)));
    assert_eq!(ownership_step("a", seen("a", 3), None), OwnershipStep::Release(Epoch(3)));
}

#[test]
fn keys_of_owners_are_own_of_others_or_leftovers() {
    let known = KnownOwnership { node: "a", lease: 7, epoch: Some(Epoch(5)) };
    let read = |node, epoch, lease: i32| {
        let seen = SeenOwner { node, epoch: Epoch(epoch) };
        OwnerReading::of(&known, seen, Some(&lease))
    };
    assert_eq!(read("b", 6, 8), OwnerReading::Other);
    assert_eq!(read("a", 5, 7), OwnerReading::Own);
    assert_eq!(read("a", 6, 7), OwnerReading::Orphan);
    assert_eq!(read("a", 4, 3), OwnerReading::Earlier);
}
