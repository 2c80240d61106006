//! Rollouts and withdrawals that a restart continues.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use base::{Error, Result};
use engine::Servable;
use lifecycle::{
    LifecycleState, ModelConfig, RolloutAction, RolloutStart, RolloutState, WarmupSet, WarmupSource,
};

use crate::rollouts::{HALF, admin, ends, report, until_state};
use crate::world::{MIB, Setting, World, eventually};

#[test]
fn a_restart_keeps_a_withdrawal() {
    let change: fn(&mut lifecycle::LifecycleConfig) =
        |config| config.withdrawn_file = Some(config.cache_dir.join("withdrawn.toml"));
    let setting = || Setting { change, ..Setting::default() };
    let mut world = World::prepare(64 * MIB);
    world.settings("m", HALF);
    world.publish("m", 1);
    world.start(setting());
    world.until_ready("m", 1);
    world.publish("m", 2);
    until_state(&world, RolloutState::Running);
    admin(&world, RolloutAction::RollBack(None)).unwrap();
    world.until("m", 2, LifecycleState::Failed);
    world.lifecycle().shutdown();
    world.start(setting());
    world.until_ready("m", 1);
    let failed = world.until("m", 2, LifecycleState::Failed);
    assert!(failed.reason.unwrap().contains("an administrator withdrew it"));
    world.looks();
    assert_eq!(world.ready("m"), "1");
    // An administrator's load clears it for good.
    world.load("m", lifecycle::LoadSpec::default()).unwrap();
    world.until_ready("m", 2);
    world.lifecycle().shutdown();
    world.start(setting());
    world.until_ready("m", 2);
}

/// A file system may be mounted after the start of the server.
#[test]
fn a_withdrawal_outlives_a_start_without_versions() {
    let change: fn(&mut lifecycle::LifecycleConfig) =
        |config| config.withdrawn_file = Some(config.cache_dir.join("withdrawn.toml"));
    let mut world = World::prepare(64 * MIB);
    let models = vec![ModelConfig::new("m", world.model_dir("m"))];
    let setting = || Setting { models: models.clone(), change, ..Setting::default() };
    world.settings("m", HALF);
    world.publish("m", 1);
    world.start(setting());
    world.until_ready("m", 1);
    world.publish("m", 2);
    until_state(&world, RolloutState::Running);
    admin(&world, RolloutAction::RollBack(None)).unwrap();
    world.until("m", 2, LifecycleState::Failed);
    world.lifecycle().shutdown();
    let aside = |version: u64| world.root.path().join(format!(".aside-{version}"));
    for version in [1, 2] {
        std::fs::rename(world.dir("m", version), aside(version)).unwrap();
    }
    let moved = [(2, aside(2)), (1, aside(1))];
    world.start(setting());
    world.looks();
    for (version, from) in moved {
        std::fs::rename(from, world.dir("m", version)).unwrap();
        world.looks();
    }
    world.until_ready("m", 1);
    let failed = world.until("m", 2, LifecycleState::Failed);
    assert!(failed.reason.unwrap().contains("an administrator withdrew it"));
    assert_eq!(world.ready("m"), "1");
}

#[test]
fn a_withdrawal_outlives_a_change_of_the_directory() {
    let mut world = World::prepare(64 * MIB);
    let change: fn(&mut lifecycle::LifecycleConfig) = |config| {
        config.withdrawn_file = Some(config.cache_dir.join("withdrawn.toml"));
        config.roots.clear();
    };
    world.publish("m", 1);
    let models = vec![ModelConfig::new("m", world.model_dir("m"))];
    world.start(Setting { models, change, ..Setting::default() });
    world.until_ready("m", 1);
    world.publish("m", 2);
    world.until("m", 1, LifecycleState::Released);
    admin(&world, RolloutAction::RollBack(None)).unwrap();
    world.until_ready("m", 1);
    world.until("m", 2, LifecycleState::Failed);
    let configure = |dir: &str| {
        let models = vec![ModelConfig::new("m", world.model_dir(dir))];
        let set = lifecycle::ConfigSet { models, roots: Vec::new() };
        world.lifecycle().configure(set, Box::new(drop));
    };
    world.publish("other", 2);
    configure("other");
    eventually("the other version 2", || world.ready("m") == "2");
    configure("m");
    eventually("version 1 again", || world.ready("m") == "1");
    let failed = world.until("m", 2, LifecycleState::Failed);
    assert!(failed.reason.unwrap().contains("an administrator withdrew it"));
}

#[test]
fn models_of_one_directory_have_their_own_withdrawals() {
    let mut world = World::prepare(64 * MIB);
    let change: fn(&mut lifecycle::LifecycleConfig) = |config| {
        config.withdrawn_file = Some(config.cache_dir.join("withdrawn.toml"));
        config.roots.clear();
    };
    world.publish("m", 1);
    world.publish("m", 2);
    let models = ["alias", "m"].map(|name| ModelConfig::new(name, world.model_dir("m")));
    let setting = || Setting { models: models.to_vec(), change, ..Setting::default() };
    world.start(setting());
    world.until_ready("alias", 2);
    world.until_ready("m", 2);
    admin(&world, RolloutAction::RollBack(None)).unwrap();
    world.until_ready("m", 1);
    world.until("m", 2, LifecycleState::Failed);
    world.looks();
    world.lifecycle().shutdown();
    world.start(setting());
    world.until_ready("m", 1);
    world.until("m", 2, LifecycleState::Failed);
    world.until_ready("alias", 2);
    assert_eq!(world.ready("m"), "1");
}

/// Another model may change the file before the file system of this one is mounted.
#[test]
fn a_withdrawal_of_an_earlier_build_gets_a_name_at_once() {
    let mut world = World::prepare(64 * MIB);
    let change: fn(&mut lifecycle::LifecycleConfig) = |config| {
        config.withdrawn_file = Some(config.cache_dir.join("withdrawn.toml"));
        config.roots.clear();
    };
    let dir = world.model_dir("unmounted");
    std::fs::create_dir(&dir).unwrap();
    let file = world.cache.path().join("withdrawn.toml");
    // An earlier build wrote the directory as the key.
    let entry = format!("[[\"{}\"]]\nversion = 2\nfiles = \"f\"\nreason = \"r\"\n", dir.display());
    std::fs::write(&file, entry).unwrap();
    world.publish("n", 1);
    let models = vec![ModelConfig::new("m", dir), ModelConfig::new("n", world.model_dir("n"))];
    world.start(Setting { models, change, ..Setting::default() });
    world.until_ready("n", 1);
    let has_name = || std::fs::read_to_string(&file).unwrap().contains("unmounted/#m");
    eventually("the key with the name", has_name);
}

/// Keeps rollouts over a restart.
fn keeping() -> Setting {
    let change: fn(&mut lifecycle::LifecycleConfig) =
        |config| config.rollouts_file = Some(config.cache_dir.join("rollouts.toml"));
    Setting { change, ..Setting::default() }
}

/// Returns a stopped lifecycle in which version 2 of model "m" was being rolled out.
fn stopped_rollout(settings: &str, start: Option<RolloutStart>) -> World {
    let mut world = World::prepare(64 * MIB);
    world.settings("m", settings);
    world.publish("m", 1);
    world.start(keeping());
    world.until_ready("m", 1);
    world.publish("m", 2);
    world.looks();
    start.into_iter().for_each(|start| admin(&world, RolloutAction::Start(start)).unwrap());
    until_state(&world, RolloutState::Running);
    world.lifecycle().shutdown();
    world
}

#[test]
fn a_restart_resumes_a_rollout() {
    let mut world = stopped_rollout(HALF, None);
    world.start(keeping());
    world.until_ready("m", 2);
    let running = until_state(&world, RolloutState::Running);
    assert_eq!((running.stable, running.candidate), (Some(1), Some(2)));
    assert_eq!(world.ready("m"), "1 2");
    admin(&world, RolloutAction::Promote(None)).unwrap();
    world.until("m", 1, LifecycleState::Released);
    world.lifecycle().shutdown();
    // The ended rollout is not resumed.
    world.start(keeping());
    world.until_ready("m", 2);
    assert_eq!((world.ready("m"), report(&world).state), ("2".into(), RolloutState::None));
}

#[test]
fn a_restart_resumes_a_rollout_by_hand() {
    let start = RolloutStart { version: Some(2), traffic: Some(0.25), shadow: None };
    let mut world = stopped_rollout("policy = \"1\"\n", Some(start));
    world.start(keeping());
    world.until_ready("m", 2);
    let running = until_state(&world, RolloutState::Running);
    assert_eq!((running.stable, running.candidate), (Some(1), Some(2)));
    assert_eq!(running.traffic, 0.25);
}

/// A source of warm-up requests that refuses version 2.
struct RefusesTwo;

impl WarmupSource for RefusesTwo {
    fn requests(&self, _version_dir: &Path, servable: &Servable) -> Result<WarmupSet> {
        if servable.id.version == 2 {
            return Err(Error::precondition("not this version"));
        }
        Ok(WarmupSet::default())
    }
}

/// A newer version appears while the server is stopped.
#[test]
fn a_resumed_rollout_ends_if_its_candidate_fails() {
    let start = RolloutStart { version: Some(2), traffic: Some(0.25), shadow: None };
    let mut world = stopped_rollout("policy = \"1\"\n", Some(start));
    world.publish("m", 3);
    world.settings("m", "policy = \"1, 3\"\n");
    world.start(Setting { warmup: std::sync::Arc::new(RefusesTwo), ..keeping() });
    world.until("m", 2, LifecycleState::Failed);
    world.until_ready("m", 3);
    eventually("version 3 is stable", || report(&world).stable == Some(3));
    assert_eq!((world.ready("m").as_str(), world.ask("m").unwrap()), ("1 3", 3.0));
}

/// The server may be killed during the load, for example because memory is short. It may be
/// restarted with more memory before the next try.
#[test]
fn a_rollout_is_kept_from_the_load_on() {
    let change: fn(&mut lifecycle::LifecycleConfig) = |config| {
        config.rollouts_file = Some(config.cache_dir.join("rollouts.toml"));
        (config.retries, config.retry_interval) = (1, Duration::from_secs(3600));
    };
    let mut world = World::prepare(64 * MIB);
    world.settings("m", HALF);
    world.publish("m", 1);
    world.start(Setting { change, ..Setting::default() });
    world.until_ready("m", 1);
    let kept = || std::fs::read_to_string(world.cache.path().join("rollouts.toml")).unwrap();
    world.fake.load_gate().close();
    world.fake.fail_loads(1);
    world.publish("m", 2);
    world.fake.load_gate().wait_for(1);
    let during_load = kept();
    assert!(during_load.contains("candidate"), "{during_load}");
    world.fake.load_gate().open();
    let is_tried_again = || world.version("m", 2).is_some_and(|status| status.retried.is_some());
    eventually("another try is due", is_tried_again);
    world.looks();
    assert_eq!(during_load, kept());
}

/// The server may be killed right after the answer.
#[test]
fn files_have_a_change_by_hand_before_its_answer() {
    let change: fn(&mut lifecycle::LifecycleConfig) = |config| {
        config.rollouts_file = Some(config.cache_dir.join("rollouts.toml"));
        config.withdrawn_file = Some(config.cache_dir.join("withdrawn.toml"));
    };
    let mut world = World::prepare(64 * MIB);
    world.settings("m", HALF);
    world.publish("m", 1);
    world.start(Setting { change, ..Setting::default() });
    world.until_ready("m", 1);
    world.publish("m", 2);
    until_state(&world, RolloutState::Running);
    let files = ["rollouts.toml", "withdrawn.toml"].map(|name| world.cache.path().join(name));
    let (sender, receiver) = mpsc::channel();
    let done = Box::new(move |result: Result<()>| {
        let kept = files.map(|file| std::fs::read_to_string(file).unwrap_or_default());
        drop(sender.send(result.map(|()| kept)));
    });
    world.lifecycle().rollout("m", RolloutAction::RollBack(None), done);
    let answer = receiver.recv_timeout(Duration::from_secs(60)).expect("an answer");
    let [rollouts, withdrawn] = answer.unwrap();
    assert!(!rollouts.contains("candidate"), "{rollouts}");
    assert!(withdrawn.contains("version = 2"), "{withdrawn}");
}

#[test]
fn a_rollout_of_changed_versions_is_not_resumed() {
    let mut world = stopped_rollout(HALF, None);
    world.remove("m", 1);
    world.start(keeping());
    world.until_ready("m", 2);
    assert_eq!((world.ready("m"), report(&world).state), ("2".into(), RolloutState::None));
}

#[test]
fn a_stop_of_the_server_ends_no_rollout() {
    let world = stopped_rollout(HALF, None);
    assert_eq!(ends(&world), Vec::<String>::new());
}
