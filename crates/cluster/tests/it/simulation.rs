//! Runs a few worlds of each kind, and checks that they find planted mistakes. `make simulate` runs
//! many.

use crate::worlds::{KINDS, WorldTotals, found_within};

/// Seeds of a test of each kind.
const SEEDS: u64 = 200;

#[test]
fn no_seed_has_a_violation() {
    for kind in KINDS {
        let totals = WorldTotals::of(kind, 0..SEEDS);
        println!("{}: {:?}", kind.name, totals.figures);
        assert_eq!(totals.first, None, "{} violations", totals.violations);
        assert!(totals.idle(kind).is_empty(), "{}: {:?}", kind.name, totals.figures);
    }
}

#[test]
fn planted_mistakes_are_found() {
    for kind in KINDS {
        for planted in kind.planted {
            let found = found_within(kind, *planted);
            println!("{planted:?}: found within {found:?} seeds");
            assert!(found.is_some(), "{planted:?}");
        }
    }
}
