//! Loads whose engine does not notice that they were stopped.

use lifecycle::LifecycleState;

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
fn shutdown_leaves_a_load_behind_that_does_not_stop() {
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
