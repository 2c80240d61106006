//! New versions wait for their turn in a fleet, which a fake decides.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, SystemTime};

use base::VersionId;
use engine::fake::publish;
use lifecycle::{
    ConfigSet, LifecycleConfig, LifecycleEvent, LifecycleState, LoadSpec, TurnState, UpdateConfig,
    UpdateEnd, UpdateStatus, UpdateTurns,
};

use crate::world::{MIB, Setting, World, cold, eventually};

const HOUR: Duration = Duration::from_secs(3600);
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A fleet whose other processes are the test.
#[derive(Default)]
struct FakeTurns {
    states: Mutex<BTreeMap<u64, TurnState>>,
    asked: Mutex<Vec<(u64, bool)>>,
    ended: Mutex<Vec<(u64, UpdateEnd)>>,
}

impl UpdateTurns for FakeTurns {
    fn request(&self, id: &VersionId, due: bool) -> TurnState {
        self.asked.lock().unwrap().push((id.version, due));
        let states = self.states.lock().unwrap();
        states.get(&id.version).cloned().unwrap_or(TurnState::Waiting("b loads it".to_owned()))
    }

    fn end(&self, id: &VersionId, end: UpdateEnd) {
        self.ended.lock().unwrap().push((id.version, end));
    }
}

impl FakeTurns {
    fn set(&self, version: u64, state: TurnState) {
        self.states.lock().unwrap().insert(version, state);
    }

    fn asked(&self, version: u64) -> bool {
        self.asked.lock().unwrap().iter().any(|(asked, _)| *asked == version)
    }

    fn ended(&self) -> Vec<(u64, UpdateEnd)> {
        self.ended.lock().unwrap().clone()
    }

    fn config(self: &Arc<Self>, window: Duration) -> UpdateConfig {
        UpdateConfig { window, process: "a".into(), turns: Some(self.clone()) }
    }
}

/// Returns a fleet, and a process of it that serves version 1 of "m".
fn fleet(window: Duration, change: fn(&mut LifecycleConfig)) -> (World, Arc<FakeTurns>) {
    let turns = Arc::new(FakeTurns::default());
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    world.start(Setting { updates: turns.config(window), change, ..Setting::default() });
    world.until_ready("m", 1);
    (world, turns)
}

/// Publishes version 2 and waits until it waits for its turn.
fn publish_waiting(world: &World, turns: &FakeTurns) {
    world.publish("m", 2);
    eventually("version 2 waits", || {
        turns.asked(2) && world.version("m", 2).is_some_and(|version| version.update.is_some())
    });
}

const LOADED: UpdateEnd = UpdateEnd::Loaded { by_hand: false };
const LOADED_BY_HAND: UpdateEnd = UpdateEnd::Loaded { by_hand: true };

#[test]
fn an_update_waits_for_its_turn() {
    let (world, turns) = fleet(Duration::ZERO, |_| {});
    assert!(turns.asked.lock().unwrap().is_empty(), "a first load takes no turn");
    publish_waiting(&world, &turns);
    world.looks();
    let status = world.version("m", 2).unwrap();
    assert_eq!(status.state, LifecycleState::Discovered);
    assert_eq!(status.update, Some(UpdateStatus::Waiting { until: None }));
    assert_eq!(status.reason.as_deref(), Some("waits for its turn in the fleet: b loads it"));
    assert_eq!((world.ready("m").as_str(), world.fake.counters().loads()), ("1", 1));
    turns.set(2, TurnState::Granted);
    world.until("m", 1, LifecycleState::Released);
    assert_eq!(world.ready("m"), "2");
    assert_eq!(turns.ended(), [(2, LOADED)]);
    assert_eq!(world.version("m", 2).unwrap().update, None);
}

#[test]
fn a_version_that_is_held_back_is_not_tried() {
    let (world, turns) = fleet(HOUR, |_| {});
    turns.set(2, TurnState::HeldBack("it failed at b".to_owned()));
    publish_waiting(&world, &turns);
    world.looks();
    let status = world.version("m", 2).unwrap();
    assert_eq!(
        (status.state, status.update),
        (LifecycleState::Discovered, Some(UpdateStatus::HeldBack))
    );
    let reason = "held back: it failed at b; `millpond models load m` tries it here";
    assert_eq!(status.reason.as_deref(), Some(reason));
    let held =
        LifecycleEvent::UpdateHeldBack { model: "m".into(), version: 2, reason: reason.to_owned() };
    assert_eq!(world.events.all().iter().filter(|event| **event == held).count(), 1);
    assert_eq!((world.ready("m").as_str(), world.fake.counters().loads()), ("1", 1));
    // Within its window, it is watched and requests no turn.
    assert!(turns.asked.lock().unwrap().iter().all(|(_, due)| !due));
    world.load("m", LoadSpec::default()).unwrap();
    assert_eq!(world.ready("m").split(' ').next_back(), Some("2"));
    assert_eq!(turns.ended(), [(2, LOADED_BY_HAND)]);
}

#[test]
fn an_update_continues_when_its_hold_ends() {
    let (world, turns) = fleet(Duration::ZERO, |_| {});
    turns.set(2, TurnState::HeldBack("it failed at b".to_owned()));
    publish_waiting(&world, &turns);
    turns.set(2, TurnState::Granted);
    world.until_ready("m", 2);
    assert_eq!(turns.ended(), [(2, LOADED)]);
}

#[test]
fn a_bad_version_is_reported_once_its_tries_end() {
    let (world, turns) = fleet(Duration::ZERO, |config| {
        (config.retries, config.retry_interval) = (2, Duration::from_millis(5));
    });
    turns.set(2, TurnState::Granted);
    world.fake.fail_loads(3);
    world.publish("m", 2);
    world.until("m", 2, LifecycleState::Failed);
    let failed = UpdateEnd::Failed("this fake fails loads (after 3 tries)".to_owned());
    assert_eq!(turns.ended(), [(2, failed)], "the turn is kept between the tries");
    assert_eq!(world.fake.counters().failed_loads(), 3);
    assert_eq!(world.ready("m"), "1");
}

#[test]
fn a_failed_first_load_holds_no_fleet_back() {
    let turns = Arc::new(FakeTurns::default());
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    world.place("m", 2, |dir| {
        publish::publish(dir, "millpond-fake 1\nfail-load broken\n", &[]).unwrap();
    });
    world.start(Setting { updates: turns.config(HOUR), ..Setting::default() });
    world.until("m", 2, LifecycleState::Failed);
    world.until_ready("m", 1);
    world.looks();
    assert!(turns.ended().is_empty() && turns.asked.lock().unwrap().is_empty());
}

#[test]
fn the_window_shows_its_end_and_a_request_skips_it() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    let updates = UpdateConfig { window: HOUR, process: "a".into(), turns: None };
    world.start(Setting { updates, ..Setting::default() });
    world.until_ready("m", 1);
    let before = SystemTime::now();
    world.publish("m", 2);
    eventually("version 2 waits", || {
        world.version("m", 2).is_some_and(|version| version.update.is_some())
    });
    let status = world.version("m", 2).unwrap();
    let Some(UpdateStatus::Waiting { until: Some(until) }) = status.update else {
        panic!("{status:?}")
    };
    // The part of this name and version.
    assert!((before..before + HOUR + WAIT_MAX).contains(&until), "{until:?}");
    let reason = format!(
        "waits until {} for its part of --update-window; `millpond models load m` loads it now",
        base::UtcTime::of(until)
    );
    assert_eq!(status.reason, Some(reason));
    world.load("m", LoadSpec::default()).unwrap();
    world.until("m", 1, LifecycleState::Released);
    assert_eq!(world.ready("m"), "2");
}

#[test]
fn the_window_ends() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    let window = Duration::from_millis(20);
    let updates = UpdateConfig { window, process: "a".into(), turns: None };
    world.start(Setting { updates, ..Setting::default() });
    world.until_ready("m", 1);
    world.publish("m", 2);
    world.until_ready("m", 2);
}

#[test]
fn a_newer_version_takes_the_place_of_one_that_waits() {
    let (world, turns) = fleet(Duration::ZERO, |_| {});
    publish_waiting(&world, &turns);
    turns.set(3, TurnState::Granted);
    world.publish("m", 3);
    world.until("m", 1, LifecycleState::Released);
    assert_eq!(world.ready("m"), "3");
    assert_eq!(turns.ended(), [(2, UpdateEnd::Dropped), (3, LOADED)]);
    assert_eq!(world.version("m", 2), None, "it is passed over");
}

#[test]
fn resources_are_kept_until_the_turn() {
    let (world, turns) = fleet(Duration::ZERO, |_| {});
    world.settings("m", "transition = \"resource-preserving\"");
    publish_waiting(&world, &turns);
    world.looks();
    assert_eq!(world.ready("m"), "1");
    turns.set(2, TurnState::Granted);
    world.until_ready("m", 2);
    assert_eq!(turns.ended(), [(2, LOADED)]);
    let states = world.events.states("m");
    assert!(states.find("1:released").unwrap() < states.find("2:loading").unwrap(), "{states}");
}

#[test]
fn an_unloaded_model_waits_for_nothing() {
    let (world, turns) = fleet(Duration::ZERO, |_| {});
    publish_waiting(&world, &turns);
    world.unload("m").unwrap();
    assert_eq!(turns.ended(), [(2, UpdateEnd::Dropped)]);
    world.load("m", LoadSpec::default()).unwrap();
    assert_eq!(world.ready("m"), "2", "no older version serves");
    assert!(turns.ended().iter().all(|(_, end)| *end == UpdateEnd::Dropped));
}

#[test]
fn a_request_during_the_first_load_waits_for_no_turn() {
    let turns = Arc::new(FakeTurns::default());
    let mut world = World::prepare(64 * MIB);
    world.fake.load_gate().close();
    world.publish("m", 1);
    world.start(Setting { updates: turns.config(HOUR), ..Setting::default() });
    world.fake.load_gate().wait_for(1);
    world.publish("m", 2);
    let answer = world.load_later("m", LoadSpec::default());
    // The request has chosen its version.
    world.looks();
    world.fake.load_gate().open();
    answer.recv_timeout(WAIT_MAX).unwrap().unwrap();
    assert_eq!(world.ready("m").split(' ').next_back(), Some("2"));
    assert!(turns.asked.lock().unwrap().is_empty());
    assert_eq!(turns.ended(), [(2, LOADED_BY_HAND)]);
}

#[test]
fn a_first_load_by_hand_that_fails_holds_no_fleet_back() {
    let (world, turns) = fleet(HOUR, |_| {});
    world.unload("m").unwrap();
    world.fake.fail_loads(1);
    world.publish("m", 2);
    world.load("m", LoadSpec { version: Some(2), reload: false }).unwrap_err();
    world.until("m", 2, LifecycleState::Failed);
    assert!(turns.ended().iter().all(|(_, end)| *end == UpdateEnd::Dropped), "{:?}", turns.ended());
}

#[test]
fn requested_settings_skip_the_wait_and_files_do_not() {
    let turns = Arc::new(FakeTurns::default());
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    world.publish("m", 2);
    let at = |version: u64| {
        let mut config = cold(&world, "m");
        config.policy = lifecycle::VersionPolicy::Specific([version].into());
        ConfigSet { models: vec![config], roots: Vec::new() }
    };
    let (first, second) = (at(1), at(2));
    world.start(Setting {
        models: first.models.clone(),
        updates: turns.config(HOUR),
        change: |config| config.roots.clear(),
        ..Setting::default()
    });
    world.until_ready("m", 1);
    let (sender, receiver) = mpsc::channel();
    let answer = |sender: mpsc::Sender<_>| Box::new(move |result| drop(sender.send(result)));
    let lifecycle = world.lifecycle();
    lifecycle.follow_configuration(second.clone(), answer(sender.clone()));
    receiver.recv_timeout(WAIT_MAX).unwrap().unwrap();
    assert_eq!(world.ready("m"), "1");
    assert!(turns.asked(2) && world.version("m", 2).unwrap().update.is_some());
    lifecycle.configure(first, answer(sender.clone()));
    receiver.recv_timeout(WAIT_MAX).unwrap().unwrap();
    assert_eq!(turns.ended(), [(2, UpdateEnd::Dropped)]);
    lifecycle.configure(second, answer(sender));
    receiver.recv_timeout(WAIT_MAX).unwrap().unwrap();
    assert_eq!(world.ready("m").split(' ').next_back(), Some("2"));
    assert_eq!(turns.ended()[1..], [(2, LOADED_BY_HAND)]);
}

/// The server was killed during the load. Meanwhile the version failed at another one.
#[test]
fn a_candidate_that_has_not_served_takes_a_turn() {
    let turns = Arc::new(FakeTurns::default());
    turns.set(2, TurnState::Granted);
    let setting = || {
        let change: fn(&mut LifecycleConfig) =
            |config| config.rollouts_file = Some(config.cache_dir.join("rollouts.toml"));
        Setting { updates: turns.config(Duration::ZERO), change, ..Setting::default() }
    };
    let mut world = World::prepare(64 * MIB);
    world.settings("m", "[rollout]\ntraffic = 0.5\npromote = \"hand\"\n");
    world.publish("m", 1);
    world.start(setting());
    world.until_ready("m", 1);
    world.fake.load_gate().close();
    world.publish("m", 2);
    world.fake.load_gate().wait_for(1);
    let file = world.cache.path().join("rollouts.toml");
    let kept = std::fs::read(&file).unwrap();
    world.fake.load_gate().open();
    world.until_ready("m", 2);
    world.lifecycle().shutdown();
    std::fs::write(&file, kept).unwrap();
    turns.set(2, TurnState::HeldBack("it failed at b".to_owned()));
    world.start(setting());
    let update = || world.version("m", 2).and_then(|version| version.update);
    eventually("version 2 is held back", || update() == Some(UpdateStatus::HeldBack));
    assert_eq!(world.ready("m"), "1");
    turns.set(2, TurnState::Granted);
    world.until_ready("m", 2);
    assert_eq!(world.ready("m"), "1 2");
}

/// The server is stopped while the version waits for its part of the window.
#[test]
fn a_candidate_waits_for_its_window_after_a_restart() {
    let setting = || {
        let change: fn(&mut LifecycleConfig) =
            |config| config.rollouts_file = Some(config.cache_dir.join("rollouts.toml"));
        let updates = UpdateConfig { window: HOUR, process: "a".into(), turns: None };
        Setting { updates, change, ..Setting::default() }
    };
    let mut world = World::prepare(64 * MIB);
    world.settings("m", "[rollout]\ntraffic = 0.5\npromote = \"hand\"\n");
    world.publish("m", 1);
    world.start(setting());
    world.until_ready("m", 1);
    world.publish("m", 2);
    let until_it_waits = |world: &World| {
        eventually("version 2 waits", || {
            world.version("m", 2).is_some_and(|version| version.update.is_some())
        });
    };
    until_it_waits(&world);
    world.lifecycle().shutdown();
    world.start(setting());
    world.until_ready("m", 1);
    until_it_waits(&world);
    assert_eq!((world.ready("m").as_str(), world.ask("m").unwrap()), ("1", 1.0));
}
