//! `millpond.toml` and labels.

use std::time::Duration;

use engine::{ScheduleMode, ScheduleOptions};
use lifecycle::{LifecycleState, LoadSpec};

use crate::world::{MIB, Setting, World, cold, eventually};

#[test]
fn mistakes_show_and_change_nothing() {
    let world = World::with_model();
    world.settings("m", "policy = \"all\"");
    world.publish("m", 2);
    eventually("both", || world.ready("m") == "1 2");
    world.settings("m", "policy = { latest = 1 }\ntransitions = \"resource-preserving\"");
    eventually("the error shows", || world.status("m").unwrap().error.is_some());
    let error = world.status("m").unwrap().error.unwrap();
    assert!(
        error.contains(
            "millpond.toml: line 2: unknown key `transitions`; did you mean `transition`?"
        ),
        "{error}"
    );
    assert_eq!(world.ready("m"), "1 2", "the last good settings hold");
    world.settings("m", "policy = { latest = 1 }");
    eventually("the latest", || world.ready("m") == "2");
    eventually("the error goes", || world.status("m").unwrap().error.is_none());
}

#[test]
fn labels_name_versions() {
    let world = World::with_model();
    let by_label = |label: &str| {
        world.lifecycle().catalog().by_label("m", label).map(|servable| servable.id.version)
    };
    let unlabelled = by_label("stable").unwrap_err();
    assert_eq!(unlabelled.kind(), base::ErrorKind::InvalidArgument);
    assert!(unlabelled.message().contains("set it in [labels]"), "{unlabelled}");
    world.settings("m", "policy = \"all\"\n[labels]\nstable = 1\ncanary = 2");
    eventually("stable", || by_label("stable") == Ok(1));
    assert_eq!(by_label("canary").unwrap_err().kind(), base::ErrorKind::NotFound);
    world.publish("m", 2);
    eventually("canary", || by_label("canary") == Ok(2));
    assert_eq!(by_label("stable"), Ok(1));
    assert_eq!(
        world.lifecycle().catalog().by_label("x", "stable").unwrap_err().kind(),
        base::ErrorKind::NotFound
    );
}

#[test]
fn a_models_schedule_is_laid_over_the_servers() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    let schedule =
        ScheduleOptions { max_batch: 8, queue_max: Some(7), ..ScheduleOptions::default() };
    let models = vec![lifecycle::ModelConfig { schedule, ..cold(&world, "m") }];
    world.settings("m", "[schedule]\nmode = \"async\"\nmax-batch = 16\nmax-queue-delay = \"2ms\"");
    world.start(Setting { models, ..Setting::default() });
    world.until_ready("m", 1);
    let schedule = || world.lifecycle().catalog().get("m", None).unwrap().schedule().clone();
    let wanted = ScheduleOptions {
        mode: ScheduleMode::Async,
        max_batch: 16,
        max_queue_delay: Duration::from_millis(2),
        queue_max: Some(7),
        ..ScheduleOptions::default()
    };
    assert_eq!(schedule(), wanted);
    // Contradictory settings are reported and change nothing. Corrected settings hold from the next
    // scan.
    world.settings("m", "[schedule]\npreferred-batch-sizes = [9]");
    eventually("the error shows", || world.status("m").unwrap().error.is_some());
    let error = world.status("m").unwrap().error.unwrap();
    assert!(
        error.contains("millpond.toml: schedule: preferred-batch-sizes: 9 is not 1 to max-batch"),
        "{error}"
    );
    let again = || LoadSpec { reload: true, ..LoadSpec::default() };
    world.load("m", again()).unwrap();
    assert_eq!(schedule(), wanted);
    world.settings("m", "[schedule]\nweight = 3");
    eventually("the error goes", || world.status("m").unwrap().error.is_none());
    assert_eq!(
        (schedule().weight, schedule().max_batch, schedule().mode),
        (3, 8, ScheduleMode::Sync)
    );
    world.load("m", again()).unwrap();
    assert_eq!(
        (schedule().weight, schedule().max_batch, schedule().mode),
        (3, 8, ScheduleMode::Sync)
    );
}

#[test]
fn isolated_models_take_no_memory_of_the_pool() {
    let mut world = World::prepare(64 * MIB);
    world.settings("m", "isolate = true\n");
    world.publish_tables("m", 1, &[1.0, 2.0]);
    world.start(Setting::default());
    // No worker process loads the parameters here, and the engine refuses a graph without them.
    world.until("m", 1, LifecycleState::Failed);
    // The first load ends once the requested memory is faulted in.
    eventually("the first load is finished", || world.lifecycle().settled());
    assert_eq!(world.store.pool().stats().backed, 0);
}
