//! Rollouts: roles of versions, and limits.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use base::{Error, NamedTensor, Result, Tensor};
use engine::Servable;
use engine::fake::publish;
use lifecycle::{
    AnsweredRun, GoldenCase, LifecycleEvent, LifecycleState, Promotion, RequestKey, RolloutAction,
    RolloutPart, RolloutReport, RolloutState, WarmupCall, WarmupSet, WarmupSource,
};

use crate::world::{MIB, Setting, World, eventually, input};

pub(crate) const HALF: &str = "[rollout]\ntraffic = 0.5\npromote = \"hand\"\n";

/// Starts a lifecycle with model "m" at version 1 and these settings.
pub(crate) fn world(settings: &str) -> World {
    let mut world = World::prepare(64 * MIB);
    world.settings("m", settings);
    world.publish("m", 1);
    world.start(Setting::default());
    world.until_ready("m", 1);
    world
}

pub(crate) fn report(world: &World) -> RolloutReport {
    world.lifecycle().catalog().rollout("m").unwrap()
}

#[track_caller]
pub(crate) fn until_state(world: &World, state: RolloutState) -> RolloutReport {
    eventually(&format!("{state:?}"), || report(world).state == state);
    report(world)
}

/// Returns the time of a run: version 9 is slow.
fn run(version: u64) -> Duration {
    Duration::from_millis(if version == 9 { 12 } else { 2 })
}

/// Routes a request and answers it by `respond`. Returns the version.
pub(crate) fn request(world: &World, respond: impl Fn(u64) -> Result<Vec<NamedTensor>>) -> u64 {
    let route = world.lifecycle().catalog().route("m", None).unwrap();
    let version = route.servable.id.version;
    if let Some(part) = &route.rollout {
        let pending = part.start();
        match respond(version) {
            Ok(outputs) => {
                let time = run(version);
                pending.answered(&outputs, AnsweredRun { time, occupied: time });
            }
            Err(error) => pending.failed(&error, true),
        }
    }
    version
}

pub(crate) fn y(value: f32) -> Vec<NamedTensor> {
    vec![NamedTensor::new("y", Tensor::from_vec([1usize].as_slice(), vec![value]).unwrap())]
}

pub(crate) fn admin(world: &World, action: RolloutAction) -> Result<()> {
    let (sender, receiver) = mpsc::channel();
    let done = Box::new(move |result| drop(sender.send(result)));
    world.lifecycle().rollout("m", action, done);
    receiver.recv_timeout(Duration::from_secs(60)).expect("an answer")
}

/// Returns the ends of rollouts as "promoted reason" or "withdrawn reason".
pub(crate) fn ends(world: &World) -> Vec<String> {
    let end = |event| match event {
        LifecycleEvent::RolloutEnded { promoted, reason, .. } => {
            Some(format!("{} {reason}", if promoted { "promoted" } else { "withdrawn" }))
        }
        _ => None,
    };
    world.events.all().into_iter().filter_map(end).collect()
}

#[test]
fn requests_are_split_until_a_promotion_by_hand() {
    let world = world(HALF);
    let before = report(&world);
    assert_eq!((before.state, before.traffic), (RolloutState::None, 0.0));
    assert_eq!((before.defaults.traffic, before.defaults.promote), (0.5, Promotion::Hand));
    world.publish("m", 2);
    let running = until_state(&world, RolloutState::Running);
    assert_eq!((running.stable, running.candidate, running.traffic), (Some(1), Some(2), 0.5));
    let count = (0..1000).filter(|_| request(&world, |_| Ok(y(1.0))) == 2).count();
    assert!((499..=501).contains(&count), "{count}");
    let figures = report(&world);
    assert_eq!(figures.of_candidate.requests, count as u64);
    assert_eq!(figures.of_stable.requests, 1000 - count as u64);
    let catalog = world.lifecycle().catalog();
    assert_eq!(catalog.get("m", None).unwrap().id.version, 1, "metadata is that of stable");
    assert_eq!(catalog.get("m", Some(2)).unwrap().id.version, 2);
    let key = |text: &str| RequestKey::new(text.as_bytes()).unwrap();
    for user in 0..100 {
        let key = key(&user.to_string());
        let version = || catalog.route("m", key.as_ref()).unwrap().servable.id.version;
        assert_eq!(version(), version(), "a key stays with its version");
    }
    let candidate = world.version("m", 2).unwrap();
    assert_eq!(candidate.note.unwrap(), "rollout: it gets 50 % of the requests");
    assert!(candidate.candidate && !world.version("m", 1).unwrap().candidate);
    admin(&world, RolloutAction::Promote(Some(2))).unwrap();
    world.until("m", 1, LifecycleState::Released);
    let promoted = report(&world);
    assert_eq!((promoted.state, promoted.stable), (RolloutState::Promoted, Some(2)));
    assert_eq!(request(&world, |_| Ok(y(1.0))), 2);
    assert_eq!(ends(&world), ["promoted hand"]);
}

#[test]
fn a_failing_version_is_withdrawn_and_stays_so() {
    let world = world(HALF);
    world.publish("m", 2);
    until_state(&world, RolloutState::Running);
    // 2000 requests are enough, even if the rollout is judged late.
    let mut requests = 0;
    eventually("a rollback", || {
        for _ in 0..20 {
            if requests == 2000 {
                break;
            }
            requests += u64::from(
                2 == request(&world, |version| match version {
                    2 => Err(Error::internal("broken")),
                    _ => Ok(y(1.0)),
                }),
            );
        }
        report(&world).state == RolloutState::RolledBack
    });
    let failed = world.until("m", 2, LifecycleState::Failed);
    let reason = failed.reason.unwrap();
    assert!(
        reason.starts_with("withdrawn by a rollout: ") && reason.contains("failed"),
        "{reason}"
    );
    assert_eq!(world.ready("m"), "1");
    world.looks();
    assert_eq!(world.state("m", 2), Some(LifecycleState::Failed), "not tried again");
    assert_eq!(world.ask("m").unwrap(), 1.0);
    assert_eq!(ends(&world), ["withdrawn errors"]);
    // Changed files are another version.
    world.remove("m", 2);
    world.looks();
    world.publish("m", 2);
    assert_eq!(until_state(&world, RolloutState::Running).candidate, Some(2));
    let history = report(&world).history;
    assert_eq!((history.len(), history[0].candidate), (1, 2));
    assert!(history[0].reason.starts_with("errors: "), "{}", history[0].reason);
}

#[test]
fn a_slow_version_is_withdrawn() {
    let world = world(HALF);
    world.publish("m", 9);
    until_state(&world, RolloutState::Running);
    eventually("a rollback", || {
        for _ in 0..50 {
            request(&world, |_| Ok(y(1.0)));
        }
        report(&world).state == RolloutState::RolledBack
    });
    assert_eq!(ends(&world), ["withdrawn latency"]);
}

#[test]
fn a_slow_version_overflows_to_stable_and_is_withdrawn() {
    let late = "[rollout]\ntraffic = 0.5\n[rollout.rollback]\nlatency-samples = 1000000\n";
    let world = world(late);
    world.publish("m", 9);
    until_state(&world, RolloutState::Running);
    let catalog = world.lifecycle().catalog();
    let in_flight = || (0..20).map(|_| catalog.route("m", None).unwrap()).collect::<Vec<_>>();
    let held = in_flight();
    let versions = |version: u64| held.iter().filter(|r| r.servable.id.version == version).count();
    assert_eq!((versions(1), versions(9)), (19, 1), "one worker: room for one request");
    assert_eq!(report(&world).overflowed, 9);
    assert!(held.iter().filter_map(|route| route.rollout.as_ref()).any(RolloutPart::overflowed));
    drop(held);
    eventually("a rollback", || {
        drop(in_flight());
        for _ in 0..4 {
            request(&world, |_| Ok(y(1.0)));
        }
        report(&world).state == RolloutState::RolledBack
    });
    assert_eq!(ends(&world), ["withdrawn overflow"]);
}

#[test]
fn drifting_outputs_withdraw_a_version() {
    let drift = "[rollout]\ntraffic = 0.5\n[rollout.rollback]\ndrift = 0.05\n";
    let world = world(drift);
    world.publish("m", 2);
    until_state(&world, RolloutState::Running);
    let mut requests = 0;
    eventually("a rollback", || {
        requests += 1;
        request(&world, |version| Ok(y(requests as f32 % 10.0 + 3.0 * version as f32)));
        report(&world).state != RolloutState::Running
    });
    assert_eq!(ends(&world), ["withdrawn drift"]);
}

#[test]
fn a_good_version_is_promoted_after_its_requests() {
    let world = world("[rollout]\ntraffic = 0.5\npromote = \"requests:100\"\n");
    world.publish("m", 2);
    until_state(&world, RolloutState::Running);
    eventually("a promotion", || {
        request(&world, |_| Ok(y(1.0)));
        report(&world).state == RolloutState::Promoted
    });
    world.until("m", 1, LifecycleState::Released);
    assert!(report(&world).history[0].requests >= 100);
    assert_eq!(ends(&world), ["promoted no_limit_reached"]);
}

#[test]
fn copies_go_to_the_candidate() {
    let world = world("[rollout]\nshadow = 1.0\npromote = \"hand\"\nrollback = { drift = 0.01 }\n");
    world.publish("m", 2);
    until_state(&world, RolloutState::Running);
    let catalog = world.lifecycle().catalog();
    let ended = || report(&world).state == RolloutState::RolledBack;
    // As every answer differs, 99 requests are enough, even if the rollout is judged late.
    let mut requests = 0;
    eventually("a rollback", || {
        let route = catalog.route("m", None).unwrap();
        assert_eq!(route.servable.id.version, 1, "clients see stable");
        // The routes change before the report does.
        let Some(part) = route.rollout.filter(|_| requests < 99) else { return ended() };
        requests += 1;
        let expected = route.servable.run(&[input(1.0)], &[]).unwrap();
        part.start().answered(&expected, AnsweredRun { time: run(1), occupied: run(1) });
        let shadow = part.shadow.as_ref().unwrap();
        assert_eq!(shadow.id.version, 2);
        let answered = shadow.run(&[input(1.0)], &[]).unwrap();
        part.measures().copy_answered(part.measures().matches(&expected, &answered));
        ended()
    });
    assert_eq!(ends(&world), ["withdrawn drift"]);
    assert!(report(&world).history[0].requests < 100, "a copy counts once");
}

#[test]
fn other_inputs_withdraw_a_version_before_its_first_request() {
    let world = world(HALF);
    let graph = "millpond-fake 1\ninput z float32 n\noutput y float32 n\ny = echo z\n";
    world.place("m", 2, |dir| publish::publish(dir, graph, &[]).unwrap());
    let ended = until_state(&world, RolloutState::RolledBack);
    assert_eq!(ended.history[0].requests, 0);
    assert!(ended.reason.unwrap().contains("it has no input \"x\""));
    world.until("m", 2, LifecycleState::Failed);
    assert_eq!(ends(&world), ["withdrawn signature"]);
}

const SHADOW: &str = "[rollout]\nshadow = 1.0\npromote = \"hand\"\n";

#[test]
fn a_version_that_changes_its_state_gets_no_copies() {
    let world = world(SHADOW);
    world.publish_changing("m", 2);
    let ended = until_state(&world, RolloutState::RolledBack);
    assert_eq!(ended.history[0].requests, 0);
    let reason = ended.reason.unwrap();
    assert!(reason.contains("set traffic instead of shadow"), "{reason}");
    world.until("m", 2, LifecycleState::Failed);
    assert_eq!(ends(&world), ["withdrawn state"]);
    let route = world.lifecycle().catalog().route("m", None).unwrap();
    assert!(route.rollout.is_none());
    // Each request goes to one of the two versions, so a share of the requests is fine.
    world.settings("m", HALF);
    world.load("m", lifecycle::LoadSpec::default()).unwrap();
    assert_eq!(until_state(&world, RolloutState::Running).traffic, 0.5);
}

#[test]
fn changed_files_of_the_candidate_begin_new_figures() {
    let world = world(HALF);
    world.publish("m", 2);
    until_state(&world, RolloutState::Running);
    for _ in 0..20 {
        request(&world, |_| Ok(y(1.0)));
    }
    let requests = || report(&world).of_stable.requests + report(&world).of_candidate.requests;
    let load = |reload| world.load("m", lifecycle::LoadSpec { reload, version: Some(2) });
    load(true).unwrap();
    assert_eq!(requests(), 20, "the same files were loaded again");
    let manifest =
        std::fs::File::options().write(true).open(world.dir("m", 2).join("millpond.json"));
    let later = std::time::SystemTime::now() + Duration::from_secs(10);
    manifest.unwrap().set_modified(later).unwrap();
    load(false).unwrap();
    assert_eq!((report(&world).state, requests()), (RolloutState::Running, 0));
}

#[test]
fn a_newer_version_takes_the_candidates_place() {
    let world = world(HALF);
    world.publish("m", 2);
    until_state(&world, RolloutState::Running);
    world.publish("m", 3);
    eventually("version 3", || report(&world).candidate == Some(3));
    world.until("m", 2, LifecycleState::Released);
    assert_eq!(world.ready("m"), "1 3");
    assert_eq!(ends(&world), ["withdrawn unloaded"]);
}

#[test]
fn an_unload_of_the_model_promotes_no_version() {
    let world = world(HALF);
    world.publish("m", 2);
    until_state(&world, RolloutState::Running);
    world.unload("m").unwrap();
    assert_eq!(report(&world).state, RolloutState::RolledBack);
    assert_eq!(ends(&world), ["withdrawn unloaded"]);
}

#[test]
fn removed_settings_end_a_rollout() {
    let world = world(HALF);
    world.publish("m", 2);
    until_state(&world, RolloutState::Running);
    world.settings("m", "");
    assert_eq!(until_state(&world, RolloutState::Promoted).stable, Some(2));
    world.until("m", 1, LifecycleState::Released);
}

/// Expects the answer of version 1 to the request 1.
struct Golden;

impl WarmupSource for Golden {
    fn requests(&self, _version_dir: &Path, _servable: &Servable) -> Result<WarmupSet> {
        Ok(WarmupSet::default())
    }

    fn golden(&self, file: &Path, _servable: &Servable) -> Result<Vec<GoldenCase>> {
        assert!(file.ends_with("m/golden.json"));
        let call = WarmupCall { inputs: vec![input(1.0)], ..WarmupCall::default() };
        Ok(vec![GoldenCase { call, expected: y(1.0) }])
    }
}

#[test]
fn golden_requests_must_be_answered_before_a_version_serves() {
    let mut world = World::prepare(64 * MIB);
    world.settings("m", "[rollout]\ngolden = \"golden.json\"\n");
    world.publish("m", 1);
    world.start(Setting { warmup: std::sync::Arc::new(Golden), ..Setting::default() });
    world.until_ready("m", 1);
    world.publish("m", 2);
    let failed = world.until("m", 2, LifecycleState::Failed);
    let reason = failed.reason.unwrap();
    assert_eq!(
        reason,
        "golden request 0: output \"y\" element 0 is 2 instead of 1 (tolerance 0.001)"
    );
    assert_eq!(world.ready("m"), "1");
    assert!(!world.events.states("m").contains("2:ready"));
}
