//! Copies of shards: kept until all wanted holders have announced the shard for a while.

use std::time::{Duration, Instant};

use cluster::{CopyNeed, UNNEEDED_STAYS, UnneededTimer};

#[test]
fn a_copy_is_needed_until_all_wanted_holders_serve() {
    let wanted = ["b".to_owned(), "c".to_owned()];
    let need = |own: &str, wanted: &[String], serving: &[&str]| {
        CopyNeed::of(own, wanted, |name| serving.contains(&name))
    };
    assert_eq!(need("a", &wanted, &["a", "b", "c"]), CopyNeed::Unneeded);
    assert_eq!(need("a", &wanted, &["a", "b"]), CopyNeed::Needed);
    assert_eq!(need("b", &wanted, &["a", "b", "c"]), CopyNeed::Needed);
    assert_eq!(need("a", &[], &["a"]), CopyNeed::Needed, "no node may hold it");
}

#[test]
fn a_copy_is_removed_if_it_is_unneeded_at_each_check() {
    let start = Instant::now();
    let second = Duration::from_secs(1);
    let wanted = ["b".to_owned(), "c".to_owned()];
    let mut timer = UnneededTimer::default();
    let mut look = |need, time| timer.record(need, &wanted, start + time);
    assert!(!look(CopyNeed::Unneeded, Duration::ZERO));
    assert!(!look(CopyNeed::Unneeded, UNNEEDED_STAYS - second));
    for interruption in [CopyNeed::Needed, CopyNeed::Unknown] {
        assert!(!look(interruption, UNNEEDED_STAYS));
        assert!(!look(CopyNeed::Unneeded, UNNEEDED_STAYS));
        assert!(!look(CopyNeed::Unneeded, 2 * UNNEEDED_STAYS - second));
    }
    assert!(look(CopyNeed::Unneeded, 2 * UNNEEDED_STAYS));
}

/// Found by the simulation: `a` and `b` rely on `c`, which ends. `b` does not see that and removes
/// its copy. `a` sees it and relies on `b`, whose announcement is still there.
#[test]
fn other_holders_start_the_time_again() {
    let start = Instant::now();
    let mut timer = UnneededTimer::default();
    let mut look = |wanted: &[&str], time| {
        let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        timer.record(CopyNeed::Unneeded, &wanted, start + time)
    };
    assert!(!look(&["c", "d"], Duration::ZERO));
    assert!(!look(&["b"], UNNEEDED_STAYS));
    assert!(!look(&["b", "d"], UNNEEDED_STAYS));
    assert!(look(&["d", "b"], 2 * UNNEEDED_STAYS), "the order has no effect");
}
