//! Rollouts that an administrator starts or ends.

use std::time::Duration;

use base::{Error, ErrorKind};
use lifecycle::{LifecycleState, RolloutAction, RolloutStart, RolloutState};

use crate::rollouts::{HALF, admin, ends, report, request, until_state, world, y};

#[test]
fn a_refused_rollout_by_hand_keeps_no_version_stable() {
    let world = world("policy = \"all\"\n");
    world.place("m", 2, |dir| std::fs::write(dir.join("notes.txt"), "").unwrap());
    world.until("m", 2, LifecycleState::Failed);
    let start = RolloutStart { version: Some(2), traffic: Some(0.5), shadow: None };
    admin(&world, RolloutAction::Start(start)).unwrap_err();
    world.publish("m", 3);
    world.until_ready("m", 3);
    assert_eq!((world.ready("m").as_str(), world.ask("m").unwrap()), ("1 3", 3.0));
}

#[test]
fn an_unload_ends_a_rollout_by_hand() {
    let world = world("policy = \"1\"\n");
    world.publish("m", 2);
    world.looks();
    let start = RolloutStart { version: Some(2), traffic: Some(0.5), shadow: None };
    admin(&world, RolloutAction::Start(start)).unwrap();
    until_state(&world, RolloutState::Running);
    world.unload("m").unwrap();
    world.settings("m", "policy = \"1, 3\"\n");
    world.load("m", lifecycle::LoadSpec::default()).unwrap();
    world.publish("m", 3);
    world.until_ready("m", 3);
    assert_eq!((world.ready("m").as_str(), world.ask("m").unwrap()), ("1 3", 3.0));
}

#[test]
fn copies_by_hand_for_a_version_that_changes_its_state() {
    let world = world("policy = \"1\"\n");
    world.publish_changing("m", 2);
    world.looks();
    let start =
        |traffic, shadow| RolloutAction::Start(RolloutStart { version: Some(2), traffic, shadow });
    let refused = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
        assert!(error.message().contains("set traffic instead of shadow"), "{error}");
    };
    // The state is known once the version is loaded.
    refused(admin(&world, start(None, Some(0.5))).unwrap_err());
    assert_eq!(ends(&world), ["withdrawn state"]);
    world.until("m", 2, LifecycleState::Failed);
    admin(&world, start(Some(0.5), None)).unwrap();
    refused(admin(&world, start(None, Some(0.5))).unwrap_err());
    let now = report(&world);
    assert_eq!((now.state, now.traffic), (RolloutState::Running, 0.5), "the rollout goes on");
}

#[test]
fn a_rollout_by_hand_needs_no_settings() {
    let world = world("policy = \"1\"\n");
    world.publish("m", 2);
    world.looks();
    let start = |version, traffic| {
        RolloutAction::Start(RolloutStart { version: Some(version), traffic, shadow: None })
    };
    let refused = |action, kind| assert_eq!(admin(&world, action).unwrap_err().kind(), kind);
    refused(RolloutAction::Promote(None), ErrorKind::FailedPrecondition);
    refused(start(2, None), ErrorKind::InvalidArgument);
    refused(start(2, Some(1.5)), ErrorKind::InvalidArgument);
    refused(start(1, Some(0.5)), ErrorKind::FailedPrecondition);
    refused(start(7, Some(0.5)), ErrorKind::NotFound);
    admin(&world, start(2, Some(0.5))).unwrap();
    let running = report(&world);
    assert_eq!((running.state, running.candidate), (RolloutState::Running, Some(2)));
    request(&world, |_| Ok(y(1.0)));
    admin(&world, start(2, Some(0.75))).unwrap();
    let changed = report(&world);
    assert_eq!(changed.traffic, 0.75);
    assert_eq!(changed.of_stable.requests + changed.of_candidate.requests, 1, "figures are kept");
    refused(RolloutAction::RollBack(Some(1)), ErrorKind::FailedPrecondition);
    admin(&world, RolloutAction::RollBack(Some(2))).unwrap();
    assert_eq!(report(&world).state, RolloutState::RolledBack);
    world.until("m", 2, LifecycleState::Failed);
    assert_eq!(world.ready("m"), "1");
    // An administrator's load tries it again.
    admin(&world, start(2, Some(0.25))).unwrap();
    assert_eq!(report(&world).traffic, 0.25);
    assert_eq!(ends(&world), ["withdrawn hand"]);
}

/// The load of the candidate would unload the stable version first.
#[test]
fn a_rollout_by_hand_needs_memory_for_both_versions() {
    let world = world("transition = \"resource-preserving\"\n");
    world.publish("m", 2);
    world.until_ready("m", 2);
    admin(&world, RolloutAction::RollBack(Some(2))).unwrap();
    world.until("m", 2, LifecycleState::Failed);
    world.until_ready("m", 1);
    let start = RolloutStart { version: Some(2), traffic: Some(0.05), shadow: None };
    let error = admin(&world, RolloutAction::Start(start)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(error.message().contains("availability-preserving"), "{error}");
    world.looks();
    assert_eq!((world.ready("m").as_str(), world.ask("m").unwrap()), ("1", 1.0));
}

#[test]
fn a_rollback_ends_a_reload_of_the_candidate() {
    let world = world(HALF);
    world.publish("m", 2);
    until_state(&world, RolloutState::Running);
    world.fake.load_gate().close();
    let spec = lifecycle::LoadSpec { reload: true, version: Some(2) };
    let reload = world.load_later("m", spec);
    world.fake.load_gate().wait_for(1);
    admin(&world, RolloutAction::RollBack(Some(2))).unwrap();
    world.looks();
    assert_eq!(world.ask("m").unwrap(), 1.0);
    world.fake.load_gate().open();
    // Any result is right.
    let _ = reload.recv_timeout(Duration::from_secs(60));
    world.looks();
    assert_eq!((world.ready("m").as_str(), world.ask("m").unwrap()), ("1", 1.0));
}

#[test]
fn a_failed_reload_does_not_end_a_rollout_by_hand() {
    let world = world("policy = \"1\"\n");
    world.publish("m", 2);
    world.looks();
    let start = RolloutStart { version: Some(2), traffic: Some(0.25), shadow: None };
    admin(&world, RolloutAction::Start(start)).unwrap();
    world.until_ready("m", 2);
    until_state(&world, RolloutState::Running);
    world.fake.fail_loads(1);
    let spec = lifecycle::LoadSpec { reload: true, version: Some(2) };
    world.load("m", spec).unwrap_err();
    world.settings("m", "policy = \"1\"\nrequest-log-rate = 0.5\n");
    world.looks();
    let now = report(&world);
    assert_eq!((now.state, now.stable), (RolloutState::Running, Some(1)));
}

#[test]
fn the_version_before_replaces_a_bad_one_by_hand() {
    let world = world("");
    world.publish("m", 2);
    world.until("m", 1, LifecycleState::Released);
    admin(&world, RolloutAction::RollBack(None)).unwrap();
    world.until_ready("m", 1);
    world.until("m", 2, LifecycleState::Failed);
    assert_eq!(world.ask("m").unwrap(), 1.0);
    let error = admin(&world, RolloutAction::RollBack(None)).unwrap_err();
    assert!(error.message().contains("no other version on disk"), "{error}");
}

#[test]
fn a_withdrawn_version_serves_until_another_one_does() {
    let world = world("");
    world.publish("m", 2);
    world.until("m", 1, LifecycleState::Released);
    world.fake.fail_loads(1);
    admin(&world, RolloutAction::RollBack(None)).unwrap();
    world.until("m", 1, LifecycleState::Failed);
    assert_eq!(world.ask("m").unwrap(), 2.0);
    // As a job that cleans up old versions.
    world.remove("m", 1);
    world.looks();
    assert_eq!((world.ready("m").as_str(), world.ask("m").unwrap()), ("2", 2.0));
    world.publish("m", 3);
    world.until("m", 2, LifecycleState::Failed);
    assert_eq!((world.ready("m").as_str(), world.ask("m").unwrap()), ("3", 3.0));
}
