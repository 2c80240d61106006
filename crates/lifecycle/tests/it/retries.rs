//! Loads that fail for a temporary reason are tried again, at most a fixed number of times.

use std::time::Duration;

use lifecycle::{LifecycleEvent, LifecycleState, LoadSpec};

use crate::world::{MIB, Setting, World, eventually};

fn world(retries: fn(&mut lifecycle::LifecycleConfig), failures: u64) -> World {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    world.fake.fail_loads(failures);
    world.start(Setting { change: retries, ..Setting::default() });
    world
}

#[test]
fn a_load_is_tried_again() {
    let retries = |config: &mut lifecycle::LifecycleConfig| {
        (config.retries, config.retry_interval) = (3, Duration::from_millis(5));
    };
    let world = world(retries, 2);
    world.until_ready("m", 1);
    assert_eq!((world.fake.counters().failed_loads(), world.fake.counters().loads()), (2, 1));
    let events = world.events.all();
    let reported = events.iter().filter_map(|event| match event {
        LifecycleEvent::LoadRetried { reason, .. } => Some(reason.as_str()),
        _ => None,
    });
    let tried = |number| format!("this fake fails loads (try {number} of 4; the next in 0.005 s)");
    assert_eq!(reported.collect::<Vec<_>>(), [tried(1), tried(2)]);
}

#[test]
fn tries_end() {
    let retries = |config: &mut lifecycle::LifecycleConfig| {
        (config.retries, config.retry_interval) = (2, Duration::from_millis(5));
    };
    let world = world(retries, 100);
    let status = world.until("m", 1, LifecycleState::Failed);
    assert_eq!(status.reason.as_deref(), Some("this fake fails loads (after 3 tries)"));
    world.looks();
    assert_eq!(world.fake.counters().failed_loads(), 3);
    world.fake.fail_loads(0);
    world.load("m", LoadSpec::default()).unwrap();
    assert_eq!(world.state("m", 1), Some(LifecycleState::Ready));
}

#[test]
fn between_tries_the_reason_shows() {
    let retries = |config: &mut lifecycle::LifecycleConfig| {
        (config.retries, config.retry_interval) = (1, Duration::from_secs(1000));
    };
    let world = world(retries, 1);
    assert!(
        world.lifecycle().wait_settled(Duration::from_secs(30)),
        "a first try that failed ends the first load"
    );
    let status = world.version("m", 1).unwrap();
    assert_eq!(status.state, LifecycleState::Discovered);
    assert_eq!(
        status.reason.as_deref(),
        Some("this fake fails loads (try 1 of 2; the next in 1000 s)")
    );
    let failures = world.lifecycle().catalog().failures();
    // The server is not ready meanwhile.
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].1, "version 1 failed and is tried again: this fake fails loads");
    let error = world.load("m", LoadSpec { version: Some(7), ..LoadSpec::default() }).unwrap_err();
    assert_eq!(error.kind(), base::ErrorKind::NotFound);
    world.until_ready("m", 1);
    assert!(world.lifecycle().catalog().failures().is_empty());
}

#[test]
fn a_policy_ends_the_tries_of_other_versions() {
    let retries = |config: &mut lifecycle::LifecycleConfig| {
        (config.retries, config.retry_interval) = (1, Duration::from_secs(1000));
    };
    let world = world(retries, 1);
    let failure = || world.status("m").and_then(|status| status.failure());
    eventually("the first try fails", || failure().is_some());
    world.settings("m", "policy = \"7\"");
    let wanted = "its policy selects 7, and its directory holds 1; ";
    eventually("the policy is the reason", || {
        failure().is_some_and(|reason| reason.starts_with(wanted))
    });
    assert_eq!(world.fake.counters().failed_loads(), 1);
}

#[test]
fn a_removed_model_is_not_missing_during_a_try() {
    let retries = |config: &mut lifecycle::LifecycleConfig| {
        (config.retries, config.retry_interval) = (1_000_000, Duration::from_millis(20));
    };
    let world = world(retries, 1_000_000);
    let failure = || world.status("m").and_then(|status| status.failure());
    eventually("the first try fails", || failure().is_some());
    world.fake.load_gate().close();
    world.fake.load_gate().wait_for(1);
    assert!(failure().is_some(), "the next try runs");
    std::fs::rename(world.model_dir("m"), world.root.path().join(".m")).unwrap();
    world.looks();
    assert_eq!(failure(), None);
    world.fake.load_gate().open();
    eventually("it is removed", || world.status("m").is_none());
}

#[test]
fn a_broken_model_is_not_tried_again() {
    let mut world = World::prepare(64 * MIB);
    world.place("m", 1, |dir| {
        engine::fake::publish::publish(dir, "millpond-fake 1\nfail-load broken\n", &[]).unwrap();
    });
    world.start(Setting {
        change: |config| (config.retries, config.retry_interval) = (5, Duration::from_millis(1)),
        ..Setting::default()
    });
    assert_eq!(world.until("m", 1, LifecycleState::Failed).reason.as_deref(), Some("broken"));
    world.looks();
    assert_eq!(world.fake.counters().failed_loads(), 1);
}
