//! Settings that a version takes over while it serves.

use std::sync::atomic::{AtomicBool, Ordering};

use engine::ScheduleMode;
use engine::fake::publish;
use lifecycle::{LifecycleEvent, LifecycleState, LoadSpec};

use crate::world::{MIB, Setting, World, cold, eventually, input};

const ASYNC: &str = "[schedule]\nmode = \"async\"\nmax-batch = 16";

fn mode(world: &World) -> ScheduleMode {
    world.lifecycle().catalog().get("m", None).unwrap().schedule().mode
}

fn loads(world: &World) -> usize {
    world.threads.loads.lock().unwrap().len()
}

fn releases(world: &World) -> Vec<String> {
    world.threads.releases.lock().unwrap().clone()
}

#[test]
fn a_schedule_is_taken_over_without_a_load() {
    let world = World::with_model();
    let (held, used) = (world.lifecycle().catalog().get("m", None).unwrap(), world.used());
    world.settings("m", ASYNC);
    eventually("the new schedule", || mode(&world) == ScheduleMode::Async);
    world.looks();
    let new = world.lifecycle().catalog().get("m", None).unwrap();
    assert_ne!(held.instance(), new.instance());
    assert_eq!((held.ready_at, &held.id), (new.ready_at, &new.id));
    // A request from before the change ends with the earlier settings.
    assert_eq!((held.schedule().mode, held.plan().batchable), (ScheduleMode::Sync, false));
    assert_eq!((new.schedule().mode, new.plan().batchable), (ScheduleMode::Async, true));
    assert_eq!(held.run(&[input(3.0)], &[]).unwrap()[0].tensor.to_vec::<f32>().unwrap(), [3.0]);
    assert_eq!((loads(&world), releases(&world).len(), world.used()), (1, 0, used));
    assert_eq!(world.version("m", 1).unwrap().note, None);
    assert!(
        world
            .events
            .all()
            .contains(&LifecycleEvent::SettingsApplied { model: "m".into(), version: 1 })
    );
    assert!(world.events.states("m").ends_with("1:ready"), "{}", world.events.states("m"));
}

#[test]
fn a_section_for_recordings_is_taken_over_as_well() {
    let world = World::with_model();
    let recogniser = || world.lifecycle().catalog().get("m", None).unwrap().recogniser.clone();
    assert_eq!(recogniser(), None);
    world.settings("m", "[recogniser]\nrate = 8000");
    eventually("the section", || recogniser().is_some_and(|text| text.contains("8000")));
    world.settings("m", "");
    eventually("no section", || recogniser().is_none());
    assert_eq!(loads(&world), 1);
}

#[test]
fn requests_under_earlier_settings_delay_the_release() {
    let world = World::with_model();
    let held = world.lifecycle().catalog().get("m", None).unwrap();
    world.settings("m", ASYNC);
    eventually("the new schedule", || mode(&world) == ScheduleMode::Async);
    world.publish("m", 2);
    world.until_ready("m", 2);
    world.until("m", 1, LifecycleState::Draining);
    world.looks();
    assert_eq!((world.state("m", 1), releases(&world).len()), (Some(LifecycleState::Draining), 0));
    assert_eq!(held.run(&[input(3.0)], &[]).unwrap()[0].tensor.to_vec::<f32>().unwrap(), [3.0]);
    drop(held);
    world.until("m", 1, LifecycleState::Released);
    let releases = releases(&world);
    assert_eq!(releases.len(), 1);
    assert!(releases[0].starts_with("unload-0 "), "{releases:?}");
}

#[test]
fn refused_settings_are_noted_and_the_version_serves() {
    let world = World::with_model();
    world.settings("m", "[schedule]\nmode = \"async\"\n[schedule.inputs.x]\naxes = [7]");
    eventually("a note", || world.version("m", 1).unwrap().note.is_some());
    let note = world.version("m", 1).unwrap().note.unwrap();
    assert!(
        note.starts_with("serves with the settings that it was loaded with: inputs.x: axes"),
        "{note}"
    );
    assert_eq!((mode(&world), world.ask("m").unwrap()), (ScheduleMode::Sync, 1.0));
    world.settings("m", ASYNC);
    eventually("the new schedule", || mode(&world) == ScheduleMode::Async);
    eventually("no note", || world.version("m", 1).unwrap().note.is_none());
    assert_eq!(loads(&world), 1);
}

#[test]
fn more_runs_than_there_are_threads_are_not_taken_over() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    world.start(Setting { change: |config| config.threads_max = 2, ..Setting::default() });
    world.until_ready("m", 1);
    world.settings("m", "[schedule]\nthreads = 3");
    eventually("a note", || world.version("m", 1).unwrap().note.is_some());
    let note = world.version("m", 1).unwrap().note.unwrap();
    assert!(note.contains("takes 3 threads, but the server has 2"), "{note}");
}

#[test]
fn settings_changed_during_a_load_hold_at_once() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    let models = vec![cold(&world, "m")];
    world.fake.load_gate().close();
    world.start(Setting { models, ..Setting::default() });
    world.fake.load_gate().wait_for(1);
    world.settings("m", ASYNC);
    world.looks();
    world.fake.load_gate().open();
    world.until_ready("m", 1);
    assert_eq!((mode(&world), loads(&world)), (ScheduleMode::Async, 1));
}

#[test]
fn settings_that_change_all_the_time_fail_no_request() {
    let world = World::with_model();
    let (stop, used) = (AtomicBool::new(false), world.used());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    world.ask("m").expect("an answer at any time");
                    std::thread::yield_now();
                }
            });
        }
        for weight in 2..=20 {
            world.settings("m", &format!("[schedule]\nweight = {weight}"));
            let taken =
                || world.lifecycle().catalog().get("m", None).unwrap().schedule().weight == weight;
            eventually("the new weight", taken);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!((loads(&world), releases(&world).len(), world.used()), (1, 0, used));
    // A load of the same version starts from the current settings, and releases all earlier ones.
    world.load("m", LoadSpec { reload: true, ..LoadSpec::default() }).unwrap();
    eventually("the release", || releases(&world).len() == 1);
    assert_eq!(world.lifecycle().catalog().get("m", None).unwrap().schedule().weight, 20);
}

/// NaN is equal to itself here. Otherwise such settings would count as new at each scan.
#[test]
fn settings_that_stay_are_taken_over_once() {
    let mut world = World::prepare(64 * MIB);
    let graph = "millpond-fake 1\ninput x float32 n w\noutput y float32 n w\ny = echo x\n";
    world.place("m", 1, |dir| publish::publish(dir, graph, &[]).unwrap());
    world.start(Setting::default());
    world.until_ready("m", 1);
    world.settings(
        "m",
        "[schedule]\n[schedule.inputs.x]\naxes = [1]\nvalue = nan\n\
         [[schedule.outputs.y]]\naxis = 1\ninput = \"x\"\ninput-axis = 1\n",
    );
    for _ in 0..4 {
        world.looks();
    }
    let told = world
        .events
        .all()
        .iter()
        .filter(|event| matches!(event, LifecycleEvent::SettingsApplied { .. }))
        .count();
    assert_eq!((told, world.version("m", 1).unwrap().note), (1, None));
}
