//! Loads and unloads that an administrator requests.

use std::time::Duration;

use base::ErrorKind;
use lifecycle::{LifecycleEvent, LifecycleState, LoadSpec};

use crate::world::{World, eventually};

fn version(number: u64) -> LoadSpec {
    LoadSpec { version: Some(number), ..LoadSpec::default() }
}

const RELOAD: LoadSpec = LoadSpec { reload: true, version: None };

#[test]
fn an_unloaded_model_stays_down_until_it_is_loaded() {
    let world = World::with_model();
    world.unload("m").unwrap();
    assert_eq!(world.fake.counters().live(), 0);
    assert_eq!(world.used(), 0, "the memory was given back before the answer");
    let error = world.lifecycle().catalog().get("m", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("it was unloaded by a request"), "{error}");
    world.publish("m", 2);
    world.looks();
    assert_eq!(world.ready("m"), "");
    assert!(world.status("m").unwrap().unloaded);
    world.load("m", LoadSpec::default()).unwrap();
    assert_eq!(world.ask("m").unwrap(), 2.0);
    assert!(!world.status("m").unwrap().unloaded);
}

#[test]
fn unknown_names_are_not_found() {
    let world = World::with_model();
    assert_eq!(world.unload("x").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(world.load("x", LoadSpec::default()).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(world.load("m", version(9)).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_load_sees_a_version_published_just_before() {
    let world = World::with_model();
    world.publish("m", 2);
    world.load("m", LoadSpec::default()).unwrap();
    assert_eq!(world.ask("m").unwrap(), 2.0);
    world.publish("n", 1);
    world.load("n", LoadSpec::default()).unwrap();
    assert_eq!(world.ask("n").unwrap(), 1.0);
}

#[test]
fn loads_at_the_same_time_are_one() {
    let world = World::with_model();
    world.fake.load_gate().close();
    let answers: Vec<_> = (0..8).map(|_| world.load_later("m", RELOAD)).collect();
    world.fake.load_gate().wait_for(1);
    let more: Vec<_> = (0..8).map(|_| world.load_later("m", RELOAD)).collect();
    world.looks();
    assert_eq!(world.version("m", 1).unwrap().note.as_deref(), Some("being loaded again"));
    assert_eq!(world.ask("m").unwrap(), 1.0);
    world.fake.load_gate().open();
    for answer in answers.into_iter().chain(more) {
        answer.recv().unwrap().unwrap();
    }
    assert_eq!(world.fake.counters().loads(), 2, "the first and one more");
    eventually("the first instance is released", || world.fake.counters().live() == 1);
}

#[test]
fn a_changed_version_is_loaded_again_on_request() {
    let world = World::with_model();
    // The same number with another content: y = x + 5.
    engine::fake::publish::affine(&world.dir("m", 1), 1.0, 5.0).unwrap();
    let changed =
        || world.version("m", 1).unwrap().note.is_some_and(|note| note.contains("changed since"));
    eventually("a note", changed);
    assert_eq!(world.fake.counters().loads(), 1);
    world.looks();
    assert_eq!(world.fake.counters().loads(), 1, "it goes on as it is");
    world.load("m", LoadSpec::default()).unwrap();
    world.load("m", LoadSpec::default()).unwrap();
    assert_eq!(world.fake.counters().loads(), 2, "what has not changed is left alone");
    assert!(!changed());
    let servable = world.lifecycle().catalog().get("m", None).unwrap();
    let answer = servable.run(&[crate::world::input(1.0)], &[]).unwrap();
    assert_eq!(answer[0].tensor.to_vec::<f32>().unwrap(), [6.0]);
    assert_eq!(world.state("m", 1), Some(LifecycleState::Ready));
}

/// The running load has read the files from before the change.
#[test]
fn a_version_that_changes_during_its_load_is_loaded_again() {
    let world = World::with_model();
    world.fake.load_gate().close();
    let first = world.load_later("m", RELOAD);
    world.fake.load_gate().wait_for(1);
    // The same number with another content: y = x + 5.
    engine::fake::publish::affine(&world.dir("m", 1), 1.0, 5.0).unwrap();
    let second = world.load_later("m", LoadSpec::default());
    world.looks();
    world.fake.load_gate().open();
    first.recv().unwrap().unwrap();
    second.recv().unwrap().unwrap();
    assert_eq!(world.fake.counters().loads(), 3);
    let servable = world.lifecycle().catalog().get("m", None).unwrap();
    let answer = servable.run(&[crate::world::input(1.0)], &[]).unwrap();
    assert_eq!(answer[0].tensor.to_vec::<f32>().unwrap(), [6.0]);
    assert_eq!(world.version("m", 1).unwrap().note, None);
}

/// The changed version would be loaded again, but a newer one takes its place first.
#[test]
fn a_load_ends_if_a_newer_version_replaces_its_version() {
    let world = World::with_model();
    world.fake.load_gate().close();
    let first = world.load_later("m", RELOAD);
    world.fake.load_gate().wait_for(1);
    engine::fake::publish::affine(&world.dir("m", 1), 1.0, 5.0).unwrap();
    let second = world.load_later("m", LoadSpec::default());
    world.looks();
    world.publish("m", 2);
    world.looks();
    world.fake.load_gate().open();
    for answer in [first, second] {
        answer.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
    }
    assert_eq!(world.ready("m"), "2");
}

#[test]
fn a_reload_that_fails_changes_nothing() {
    let world = World::with_model();
    world.fake.fail_loads(1);
    let error = world.load("m", RELOAD).unwrap_err();
    assert!(error.message().contains("this fake fails loads"), "{error}");
    assert_eq!(world.ask("m").unwrap(), 1.0);
    let status = world.version("m", 1).unwrap();
    assert_eq!(status.state, LifecycleState::Ready);
    assert!(status.note.unwrap().contains("loading it again failed"));
    let reasons = world.events.all().into_iter().filter_map(|event| match event {
        LifecycleEvent::ReloadFailed { version: 1, reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(reasons.collect::<Vec<_>>(), ["this fake fails loads"]);
    world.load("m", RELOAD).unwrap();
    assert_eq!(world.version("m", 1).unwrap().note, None);
}

#[test]
fn a_reload_of_a_removed_version_is_refused() {
    let world = World::with_model();
    let manifest = world.dir("m", 1).join("millpond.json");
    let good = std::fs::read(&manifest).unwrap();
    std::fs::write(&manifest, "{").unwrap();
    for spec in [RELOAD, LoadSpec::default(), version(1)] {
        let error = world.load("m", spec).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
        assert!(error.message().contains("millpond.json"), "{error}");
    }
    std::fs::write(&manifest, &good).unwrap();
    world.load("m", RELOAD).unwrap();
    // The same while the load waits for its turn.
    world.fake.load_gate().close();
    world.publish("n", 1);
    world.fake.load_gate().wait_for(1);
    let answer = world.load_later("m", RELOAD);
    let again =
        || world.version("m", 1).unwrap().note.is_some_and(|note| note == "being loaded again");
    eventually("it is queued", again);
    std::fs::write(&manifest, "{").unwrap();
    let error = answer.recv().unwrap().unwrap_err();
    assert!(error.message().contains("millpond.json"), "{error}");
    assert_eq!((world.ask("m").unwrap(), again()), (1.0, false));
    std::fs::write(&manifest, &good).unwrap();
    let answer = world.load_later("m", RELOAD);
    world.fake.load_gate().open();
    answer.recv().unwrap().unwrap();
    assert_eq!(world.version("m", 1).unwrap().note, None);
}

#[test]
fn a_failed_reload_does_not_prevent_a_rollback() {
    let world = World::with_model();
    world.publish("m", 2);
    world.until_ready("m", 2);
    world.until("m", 1, LifecycleState::Released);
    world.fake.fail_loads(1);
    assert!(world.load("m", RELOAD).is_err());
    world.publish("m", 3);
    world.until("m", 2, LifecycleState::Released);
    world.remove("m", 3);
    eventually("back at 2", || world.ready("m") == "2");
}

/// A swap that began by unloading is finished by the load after it; one that needs nothing unloaded
/// has its own end.
#[test]
fn an_unload_thread_releases_the_replaced_instance() {
    let mut world = World::prepare(64 * crate::world::MIB);
    world.settings("m", "transition = \"resource-preserving\"\npolicy = \"all\"");
    (1..=3).for_each(|version| world.publish("m", version));
    world.start(crate::world::Setting::default());
    eventually("all", || world.ready("m") == "1 2 3");
    for version in 1..=2 {
        world.remove("m", version);
        eventually("it is forgotten", || world.version("m", version).is_none());
    }
    world.settings("m", "policy = \"all\"");
    world.looks();
    world.load("m", RELOAD).unwrap();
    eventually("the first instance is released", || world.fake.counters().live() == 1);
    let releases = world.threads.releases.lock().unwrap().clone();
    assert!(
        releases.len() == 3 && releases.iter().all(|name| name.starts_with("unload-")),
        "{releases:?}"
    );
}

#[test]
fn a_named_version_stays_beside_the_latest() {
    let world = World::with_model();
    world.publish("m", 2);
    world.until("m", 1, LifecycleState::Released);
    world.load("m", version(1)).unwrap();
    assert_eq!(world.ready("m"), "1 2");
    world.publish("m", 3);
    eventually("1 and 3", || world.ready("m") == "1 3");
    world.unload("m").unwrap();
    world.load("m", LoadSpec::default()).unwrap();
    assert_eq!(world.ready("m"), "3", "an unload forgets what was named");
}

#[test]
fn a_failed_load_has_its_reason() {
    let world = World::with_model();
    world.unload("m").unwrap();
    world.fake.fail_loads(1);
    let error = world.load("m", LoadSpec::default()).unwrap_err();
    assert!(error.message().contains("this fake fails loads"), "{error}");
    std::fs::create_dir(world.dir("m", 2)).unwrap();
    let error = world.load("m", version(2)).unwrap_err();
    assert!(error.message().contains("holds neither"), "{error}");
}

#[test]
fn an_unload_stops_a_load() {
    let world = World::with_model();
    world.fake.load_gate().close();
    world.publish("m", 2);
    let load = world.load_later("m", LoadSpec::default());
    world.fake.load_gate().wait_for(1);
    world.looks();
    std::thread::scope(|scope| {
        let unload = scope.spawn(|| world.unload("m"));
        assert_eq!(load.recv().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
        world.fake.load_gate().open();
        unload.join().unwrap().unwrap();
    });
    assert_eq!((world.fake.counters().live(), world.used()), (0, 0));
    assert!(!world.events.states("m").contains("2:ready"), "{}", world.events.states("m"));
}

#[test]
fn a_refused_unload_changes_nothing() {
    let world = World::with_model();
    *world.threads.hanging.lock().unwrap() = Some("slow".to_owned());
    world.publish("slow", 1);
    // As many as may wait.
    let loads: Vec<_> = (0..256).map(|_| world.load_later("slow", LoadSpec::default())).collect();
    assert_eq!(world.unload("m").unwrap_err().kind(), ErrorKind::ResourceExhausted);
    world.looks();
    assert!(!world.status("m").unwrap().unloaded);
    assert_eq!(world.ready("m"), "1");
    *world.threads.hanging.lock().unwrap() = None;
    for load in loads {
        load.recv().unwrap().unwrap();
    }
    world.unload("m").unwrap();
}
