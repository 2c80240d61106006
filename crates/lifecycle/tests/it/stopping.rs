//! Loads that were stopped while their engine does not notice it.

use std::time::Duration;

use lifecycle::{LifecycleEvent, LifecycleState, LoadSpec};

use crate::world::{MIB, Setting, World, eventually};

#[test]
fn a_removed_model_shows_its_load_until_the_load_ends() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    world.fake.load_gate().close();
    world.start(Setting::default());
    world.fake.load_gate().wait_for(1);
    world.remove("m", 1);
    std::fs::remove_dir(world.model_dir("m")).unwrap();
    let note = || world.version("m", 1).and_then(|version| version.note).unwrap_or_default();
    eventually("the note", || note().starts_with("its load was stopped at 2"));
    assert_eq!(world.state("m", 1), Some(LifecycleState::Loading));
    // The model comes back while the engine still has its first load.
    world.publish("m", 1);
    world.looks();
    assert_eq!(world.threads.loads.lock().unwrap().len(), 1, "a second load has not begun");
    world.fake.load_gate().open();
    world.until_ready("m", 1);
    assert_eq!(world.threads.loads.lock().unwrap().len(), 2);
    assert_eq!(world.fake.counters().live(), 1);
    assert!(!note().contains("stopped"), "{}", note());
}

#[test]
fn a_load_that_hangs_fails_and_frees_its_load_thread() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    *world.threads.hanging.lock().unwrap() = Some("m".to_owned());
    world.start(Setting {
        change: |config| {
            config.load_timeout = Duration::from_secs(1);
            // The load of the other model must not wait for a core for long.
            config.background = false;
        },
        ..Setting::default()
    });
    let reason = world.until("m", 1, LifecycleState::Failed).reason.unwrap();
    assert!(reason.starts_with("loading m/1 took longer than 1 s; "), "{reason}");
    assert!(reason.ends_with("or raise --load-timeout"), "{reason}");
    let abandoned = LifecycleEvent::LoadAbandoned { model: "m".into(), version: 1 };
    let count = |wanted: &LifecycleEvent| {
        world.events.all().iter().filter(|event| *event == wanted).count()
    };
    assert_eq!(count(&abandoned), 1);
    // The only load thread loads another model while the engine has not returned. A load that the
    // machine pauses for a second fails too. Only such a load is requested again.
    let reason = |model: &str| {
        world.version(model, 1).and_then(|version| version.reason).unwrap_or_default()
    };
    let serves = |model: &str| {
        let was_late = || reason(model).contains("/1 took longer than 1 s; ");
        world.ready(model) == "1" || was_late() && world.load(model, LoadSpec::default()).is_ok()
    };
    world.publish("n", 1);
    eventually("the other model serves", || serves("n"));
    world.lifecycle().load("m", LoadSpec::default(), Box::new(|_| {}));
    eventually("the reason", || reason("m").contains("was stopped and has not ended"));
    assert_eq!(count(&abandoned), 1);
    *world.threads.hanging.lock().unwrap() = None;
    eventually("the model serves", || serves("m"));
}

#[test]
fn shutdown_abandons_a_load_that_does_not_stop() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    world.fake.load_gate().close();
    world.start(Setting::default());
    world.fake.load_gate().wait_for(1);
    world.lifecycle().shutdown();
    assert_eq!(world.fake.load_gate().waiting(), 1, "the load has not ended");
    let note = world.version("m", 1).unwrap().note.unwrap();
    assert!(note.starts_with("its load was stopped at 2"), "{note}");
    world.fake.load_gate().open();
}
