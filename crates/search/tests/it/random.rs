//! Random points of a collection.

use std::collections::BTreeSet;

use crate::points::{memory_medium, mix, open, options, point, stored};

#[test]
fn random_points_are_drawn_among_the_live_ones() {
    let medium = memory_medium();
    let collection = open(&medium, options());
    for id in 0..600 {
        collection.upsert(point(&stored(id, 1))).unwrap();
        if id == 400 {
            collection.flush().unwrap();
        }
    }
    (0..100).chain(500..520).for_each(|id| collection.delete(id).unwrap());
    let live: BTreeSet<u64> = (100..500).chain(520..600).collect();
    let mut at = 0;
    let mut draw = |count| {
        collection.random_points(count, || {
            at += 1;
            mix(at)
        })
    };
    let mut drawn = BTreeSet::new();
    for _ in 0..300 {
        let points = draw(40).unwrap();
        assert!(points.draws < 100 && !points.partial, "{points:?}");
        let ids: BTreeSet<u64> = points.ids.iter().copied().collect();
        assert_eq!(ids.len(), 40);
        drawn.extend(ids);
    }
    assert_eq!(drawn, live);
    assert!(draw(240).is_some() && draw(241).is_none());
}
