//! Runs worlds with faults from seeds, and checks that they find planted mistakes.
//!
//! `MILLPOND_SIMULATION_SEEDS` sets the number of seeds, `MILLPOND_SIMULATION_FIRST` the first
//! (`make simulate`).

use std::collections::HashMap;

use crate::world::{Outcome, Planted, World};

/// Seeds of a test.
const SEEDS: u64 = 10_000;
/// Seeds within which a planted mistake must be found.
const SEEDS_PLANTED: u64 = 1_000;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: {text}")))
}

/// Checks one world and returns an explanation of the first violation.
fn violation(outcome: &Outcome) -> Option<String> {
    let mut position = HashMap::new();
    for (at, write) in outcome.log.iter().enumerate() {
        if position.insert(*write, at).is_some() {
            return Some(format!("write {write} is twice in the log"));
        }
    }
    for write in &outcome.acknowledged {
        if !position.contains_key(&write.write) {
            return Some(format!("acknowledged write {} is lost", write.write));
        }
    }
    if let Some(write) = outcome.seen.iter().find(|write| !position.contains_key(write)) {
        return Some(format!("write {write} was seen by a reader and is gone"));
    }
    // The log orders all writes. It is a linearization if no write comes before one that was
    // acknowledged before it was sent.
    let mut by_position: Vec<_> = outcome.acknowledged.iter().collect();
    by_position.sort_by_key(|write| position[&write.write]);
    let mut latest_sent = 0;
    for write in by_position {
        if write.acknowledged < latest_sent {
            return Some(format!("write {} comes after one that was sent later", write.write));
        }
        latest_sent = latest_sent.max(write.sent);
    }
    None
}

#[test]
fn no_seed_loses_a_write() {
    let first = variable("MILLPOND_SIMULATION_FIRST", 0);
    let seeds = variable("MILLPOND_SIMULATION_SEEDS", SEEDS);
    let mut totals = Outcome::default();
    for seed in first..first + seeds {
        let outcome = World::new(seed, None).run();
        if let Some(why) = violation(&outcome) {
            panic!("seed {seed}: {why}");
        }
        totals.add(&outcome);
    }
    println!("{seeds} seeds: {}", totals.line());
    // A simulation in which nothing happens finds nothing.
    assert!(totals.writes_acknowledged > 10 * seeds, "{}", totals.line());
    assert!(totals.owners > 2 * seeds, "{}", totals.line());
    assert!(totals.removed > seeds, "{}", totals.line());
}

#[test]
fn planted_mistakes_are_found() {
    for planted in [Planted::NoFence, Planted::NoFloor, Planted::OldEntriesCount] {
        let found = (0..SEEDS_PLANTED)
            .find(|seed| violation(&World::new(*seed, Some(planted)).run()).is_some());
        println!("{planted:?}: found by seed {found:?}");
        assert!(found.is_some(), "{planted:?}");
    }
}
