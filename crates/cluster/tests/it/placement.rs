//! Placement: even, stable, and independent of the order of servers.

use cluster::{SHARDS_MAX, SearchServer, holders, shard_of};
use proptest::prelude::*;

const SEGMENTS: u32 = 20_000;

fn segment(number: u32) -> [u8; 16] {
    let mut name = [0; 16];
    name[..4].copy_from_slice(&number.to_le_bytes());
    name
}

fn searchers(weights: &[u32]) -> Vec<SearchServer> {
    let named =
        |(at, weight): (usize, &u32)| SearchServer { name: format!("n{at}"), weight: *weight };
    weights.iter().enumerate().map(named).collect()
}

#[test]
fn servers_hold_shares_by_weight() {
    let all = searchers(&[1, 2, 4, 0]);
    let mut counts = [0_u32; 4];
    for number in 0..SEGMENTS {
        let holders = holders(&segment(number), &all, 1);
        counts[holders[0]] += 1;
    }
    for (count, weight) in counts.iter().zip([1, 2, 4, 0]) {
        let expected = f64::from(SEGMENTS * weight) / 7.0;
        assert!((f64::from(*count) - expected).abs() <= 0.05 * expected, "{counts:?}");
    }
}

#[test]
fn copies_lie_on_different_servers() {
    let all = searchers(&[1, 1, 1]);
    for number in 0..100 {
        let two = holders(&segment(number), &all, 2);
        assert!(two.len() == 2 && two[0] != two[1]);
        assert_eq!(holders(&segment(number), &all, 5).len(), 3);
    }
}

proptest! {
    /// A server that joins takes segments from others, and moves none between them.
    #[test]
    fn only_a_new_server_gets_segments(
        weights in prop::collection::vec(1_u32..9, 2..8),
        added in 1_u32..9,
    ) {
        let mut weights = weights;
        let before = searchers(&weights);
        weights.push(added);
        let after = searchers(&weights);
        let new = after.len() - 1;
        for number in 0..200 {
            let old = holders(&segment(number), &before, 2);
            for holder in holders(&segment(number), &after, 2) {
                prop_assert!(holder == new || old.contains(&holder));
            }
        }
    }

    #[test]
    fn the_order_of_servers_has_no_effect(
        weights in prop::collection::vec(0_u32..9, 1..8),
        turn in 0_usize..8,
    ) {
        let all = searchers(&weights);
        let mut turned = all.clone();
        turned.rotate_left(turn % all.len());
        for number in 0..50 {
            let name = |list: &[SearchServer], at: usize| list[at].name.clone();
            let names = |list: &[SearchServer]| -> Vec<String> {
                holders(&segment(number), list, 3).into_iter().map(|at| name(list, at)).collect()
            };
            prop_assert_eq!(names(&all), names(&turned));
        }
    }

    #[test]
    fn shards_are_below_their_number(
        id in prop::collection::vec(any::<u8>(), 0..20),
        count in 0_u32..2000,
    ) {
        match shard_of(&id, count) {
            Some(shard) => prop_assert!(shard.0 < count && count <= SHARDS_MAX),
            None => prop_assert!(count == 0 || count > SHARDS_MAX),
        }
    }
}

#[test]
fn ids_are_spread_evenly() {
    let mut counts = [0_u32; 64];
    for id in 0..64_000_u64 {
        counts[shard_of(&id.to_le_bytes(), 64).unwrap().0 as usize] += 1;
    }
    assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
}
