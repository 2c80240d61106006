//! Versions that serve, and the order in which they are loaded and unloaded.

use std::fs;
use std::time::Duration;

use lifecycle::{LifecycleEvent, LifecycleState, LoadSpec};

use crate::world::{MIB, Setting, World, cold, eventually};

#[test]
fn the_latest_two_serve() {
    let mut world = World::prepare(64 * MIB);
    world.settings("m", "policy = { latest = 2 }");
    (1..=3).for_each(|version| world.publish("m", version));
    world.start(Setting::default());
    eventually("2 and 3", || world.ready("m") == "2 3");
    world.publish("m", 4);
    eventually("3 and 4", || world.ready("m") == "3 4");
    assert_eq!(world.lifecycle().catalog().get("m", Some(3)).unwrap().id.version, 3);
    assert_eq!(world.lifecycle().catalog().get("m", None).unwrap().id.version, 4);
    let error = world.lifecycle().catalog().get("m", Some(2)).unwrap_err();
    assert_eq!(error.kind(), base::ErrorKind::Unavailable);
    // It is on disk, and the policy does not select it.
    let error = world.lifecycle().catalog().get("m", Some(1)).unwrap_err();
    assert_eq!(error.message(), "model \"m\" has no version 1; it serves 3, 4");
}

#[test]
fn policies_change_while_serving() {
    let world = World::with_model();
    world.settings("m", "policy = \"all\"");
    world.publish("m", 2);
    world.publish("m", 7);
    eventually("all three", || world.ready("m") == "1 2 7");
    world.settings("m", "policy = { specific = [2, 5] }");
    eventually("only 2", || world.ready("m") == "2");
    fs::remove_file(world.model_dir("m").join("millpond.toml")).unwrap();
    eventually("the latest", || world.ready("m") == "7");
}

/// A scan alone does not know if the file is being replaced.
#[test]
fn a_load_waits_until_removed_settings_count() {
    let mut world = World::prepare(64 * MIB);
    world.settings("m", "policy = \"1\"");
    world.publish("m", 1);
    world.publish("m", 2);
    let change: fn(&mut lifecycle::LifecycleConfig) =
        |config| config.poll = std::time::Duration::from_millis(200);
    world.start(Setting { change, ..Setting::default() });
    world.until_ready("m", 1);
    fs::remove_file(world.model_dir("m").join("millpond.toml")).unwrap();
    world.load("m", LoadSpec::default()).unwrap();
    assert_eq!(world.ask("m").unwrap(), 2.0);
}

#[test]
fn a_policy_that_selects_nothing_is_the_reason() {
    let world = World::with_model();
    world.publish("m", 2);
    world.until("m", 1, LifecycleState::Released);
    world.settings("m", "policy = \"7, 9\"");
    let failure = || world.status("m").and_then(|status| status.failure());
    eventually("the reason shows", || failure().is_some());
    assert_eq!(world.ready("m"), "");
    let wanted = "its policy selects 7, 9, and its directory holds 1, 2; change the policy";
    assert!(failure().unwrap().starts_with(wanted), "{:?}", failure());
    let error = world.load("m", LoadSpec::default()).unwrap_err();
    assert!(error.message().contains(wanted), "{error}");
    let error = world.lifecycle().catalog().get("m", None).unwrap_err();
    assert!(error.message().contains(wanted), "{error}");
    world.publish("m", 9);
    world.until_ready("m", 9);
    eventually("the reason goes", || world.status("m").unwrap().error.is_none());
}

#[test]
fn deleting_the_newest_version_goes_back() {
    let world = World::with_model();
    world.publish("m", 2);
    world.until("m", 1, LifecycleState::Released);
    world.remove("m", 2);
    eventually("back at 1", || world.ready("m") == "1");
    assert_eq!(world.ask("m").unwrap(), 1.0);
    eventually("2 is forgotten", || world.version("m", 2).is_none());
    let states = world.events.states("m");
    let (ready, draining) = (states.rfind("1:ready").unwrap(), states.rfind("2:draining").unwrap());
    assert!(ready < draining, "1 was ready before 2 went: {states}");
}

#[test]
fn resource_preserving_unloads_first() {
    let mut world = World::prepare(8 * MIB);
    world.settings("m", "transition = \"resource-preserving\"");
    world.publish_tables("m", 1, &[1.0, 2.0]);
    world.start(Setting::default());
    world.until_ready("m", 1);
    world.publish_tables("m", 2, &[3.0, 4.0]);
    world.until_ready("m", 2);
    let states = world.events.states("m");
    assert!(states.find("1:released").unwrap() < states.find("2:loading").unwrap(), "{states}");
    eventually("the swap is reported", || {
        let is = |event: &LifecycleEvent| matches!(event, LifecycleEvent::Swapped(report) if (report.from, report.to) == (1, 2));
        world.events.all().iter().any(is)
    });
}

#[test]
fn resource_preserving_goes_back_when_the_new_version_fails() {
    let mut world = World::prepare(64 * MIB);
    world.settings("m", "transition = \"resource-preserving\"");
    world.publish("m", 1);
    world.start(Setting {
        change: |config| (config.retries, config.retry_interval) = (5, Duration::from_millis(1)),
        ..Setting::default()
    });
    world.until_ready("m", 1);
    world.place("m", 2, |dir| {
        engine::fake::publish::publish(dir, "millpond-fake 1\nfail-load broken\n", &[]).unwrap();
    });
    world.until("m", 2, LifecycleState::Failed);
    world.until_ready("m", 1);
    assert_eq!(world.ask("m").unwrap(), 1.0);
    // Another try of a load that failed for a temporary reason would unload version 1 again.
    world.fake.fail_loads(1);
    world.publish("m", 3);
    world.until("m", 3, LifecycleState::Failed);
    world.until_ready("m", 1);
    world.looks();
    assert_eq!((world.ready("m").as_str(), world.fake.counters().failed_loads()), ("1", 2));
}

#[test]
fn an_unreadable_directory_unloads_nothing() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    world.publish("m", 2);
    world.settings("m", "policy = \"all\"\n[labels]\nstable = 1");
    let models = vec![cold(&world, "m")];
    world.start(Setting { models, change: |config| config.roots.clear(), ..Setting::default() });
    eventually("both", || world.ready("m") == "1 2");
    let aside = world.root.path().join("aside");
    fs::rename(world.model_dir("m"), &aside).unwrap();
    eventually("the error shows", || world.status("m").unwrap().error.is_some());
    world.looks();
    let stable =
        || world.lifecycle().catalog().by_label("m", "stable").map(|servable| servable.id.version);
    assert_eq!((world.ready("m").as_str(), stable()), ("1 2", Ok(1)), "its settings hold as well");
    fs::rename(&aside, world.model_dir("m")).unwrap();
    eventually("the error goes", || world.status("m").unwrap().error.is_none());
    assert_eq!((world.ready("m").as_str(), stable()), ("1 2", Ok(1)));
    assert_eq!(world.fake.counters().loads(), 2);
}

/// Another try would unload the version that serves once more.
#[test]
fn a_broken_version_stays_broken_while_unreadable() {
    let mut world = World::prepare(64 * MIB);
    world.settings("m", "transition = \"resource-preserving\"");
    world.publish("m", 1);
    world.start(Setting::default());
    world.until_ready("m", 1);
    let graph = "millpond-fake 1\nfail-load broken\n";
    world.place("m", 7, |dir| engine::fake::publish::publish(dir, graph, &[]).unwrap());
    world.until("m", 7, LifecycleState::Failed);
    world.until_ready("m", 1);
    // From now on its name leads to another directory, changed in one step each time.
    let real = world.model_dir("m").join("real");
    let lead_to = |to: &std::path::Path| {
        let next = world.model_dir("m").join("next");
        std::os::unix::fs::symlink(to, &next).unwrap();
        fs::rename(next, world.dir("m", 2)).unwrap();
    };
    world.remove("m", 7);
    fs::create_dir(&real).unwrap();
    engine::fake::publish::publish(&real, graph, &[]).unwrap();
    lead_to(&real);
    world.until("m", 2, LifecycleState::Failed);
    world.until_ready("m", 1);
    let counted = || (world.fake.counters().loads(), world.fake.counters().failed_loads());
    let before = counted();
    lead_to(std::path::Path::new("2"));
    world.looks();
    lead_to(&real);
    world.looks();
    assert_eq!((world.state("m", 1), counted()), (Some(LifecycleState::Ready), before));
    assert_eq!(world.version("m", 2).unwrap().reason.as_deref(), Some("broken"));
}

#[test]
fn models_of_a_root_come_and_go() {
    let world = World::with_model();
    world.publish("n", 4);
    world.until_ready("n", 4);
    // A rename to a hidden name removes it in one step.
    fs::rename(world.model_dir("n"), world.root.path().join(".n")).unwrap();
    eventually("n is forgotten", || world.status("n").is_none());
    assert_eq!(
        world.lifecycle().catalog().get("n", None).unwrap_err().kind(),
        base::ErrorKind::NotFound
    );
    eventually("that is told", || {
        world
            .events
            .all()
            .iter()
            .any(|event| matches!(event, LifecycleEvent::Forgotten { model } if &**model == "n"))
    });
    assert_eq!(world.fake.counters().live(), 1);
    assert_eq!(world.ask("m").unwrap(), 1.0);
    fs::rename(world.root.path().join(".n"), world.model_dir("n")).unwrap();
    world.until_ready("n", 4);
}

#[test]
fn versions_above_the_limit_of_a_model_are_reported_once() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    for version in 2..=1026 {
        std::os::unix::fs::symlink("1", world.dir("m", version)).unwrap();
    }
    world.start(Setting::default());
    world.until_ready("m", 1026);
    world.looks();
    let mut reports = world.events.all();
    reports.retain(|event| matches!(event, LifecycleEvent::VersionsIgnored { .. }));
    let expected =
        LifecycleEvent::VersionsIgnored { model: "m".into(), count: 2, versions_max: 1024 };
    assert_eq!(reports, [expected]);
}

#[test]
fn a_version_serves_while_its_successor_is_incomplete() {
    let world = World::with_model();
    fs::create_dir(world.dir("m", 2)).unwrap();
    world.remove("m", 1);
    world.looks();
    assert_eq!(world.ask("m").unwrap(), 1.0, "1 has gone from disk and 2 is not there yet");
    engine::fake::publish::affine(&world.dir("m", 2), 2.0, 0.0).unwrap();
    world.until_ready("m", 2);
    eventually("1 is forgotten", || world.version("m", 1).is_none());
}

#[test]
fn overtaken_versions_are_not_loaded() {
    let world = World::with_model();
    world.fake.load_gate().close();
    world.publish("m", 2);
    world.fake.load_gate().wait_for(1);
    (3..=6).for_each(|version| world.publish("m", version));
    world.looks();
    world.fake.load_gate().open();
    eventually("only 6", || world.ready("m") == "6");
    assert_eq!(world.fake.counters().loads(), 3, "1, 2 which was under way, and 6");
    assert!(world.load("m", LoadSpec::default()).is_ok());
}
