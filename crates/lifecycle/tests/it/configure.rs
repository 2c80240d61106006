//! Models and roots that change while others serve.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use base::{ErrorKind, Result};
use lifecycle::{ConfigSet, ModelConfig, ModelRoot, VersionPolicy};

use crate::world::{MIB, POLL, Setting, World, cold, eventually};

const WAIT_MAX: Duration = Duration::from_secs(60);

fn named(world: &World, name: &str, dir: &Path) -> ModelConfig {
    ModelConfig { base_path: dir.to_owned(), ..cold(world, name) }
}

fn configure(world: &World, models: Vec<ModelConfig>, roots: Vec<ModelRoot>) -> Result<()> {
    let receiver = configure_later(world, ConfigSet { models, roots });
    receiver.recv_timeout(WAIT_MAX).expect("an answer")
}

fn configure_later(world: &World, set: ConfigSet) -> mpsc::Receiver<Result<()>> {
    let (sender, receiver) = mpsc::channel();
    world.lifecycle().configure(set, Box::new(move |result| drop(sender.send(result))));
    receiver
}

/// Starts a lifecycle with the models "a" and "b", without the root.
fn two_models() -> World {
    let mut world = World::prepare(64 * MIB);
    world.publish("a", 1);
    world.publish("b", 1);
    let models = vec![cold(&world, "a"), cold(&world, "b")];
    world.start(Setting { models, change: |config| config.roots.clear(), ..Setting::default() });
    world.until_ready("a", 1);
    world.until_ready("b", 1);
    world
}

#[test]
fn models_come_and_go_and_others_stay() {
    let world = two_models();
    let kept = world.lifecycle().catalog().get("a", None).unwrap();
    world.publish("c", 4);
    configure(&world, vec![cold(&world, "a"), cold(&world, "c")], Vec::new()).unwrap();
    assert_eq!(world.ask("c").unwrap(), 4.0, "it serves once the change is answered");
    // It is unavailable while it unloads.
    eventually("b is not known any more", || {
        world.ask("b").is_err_and(|error| error.kind() == ErrorKind::NotFound)
    });
    let now = world.lifecycle().catalog().get("a", None).unwrap();
    assert!(std::sync::Arc::ptr_eq(&kept, &now), "an unchanged model is not loaded again");
    configure(&world, Vec::new(), vec![ModelRoot::new(world.root.path())]).unwrap();
    eventually("the root's models", || world.ready("b") == "1");
}

#[test]
fn policies_and_labels_change_without_a_load() {
    let world = two_models();
    let loads = world.threads.loads.lock().unwrap().len();
    let mut labelled = cold(&world, "a");
    labelled.labels.insert("stable".to_owned(), 1);
    configure(&world, vec![labelled.clone(), cold(&world, "b")], Vec::new()).unwrap();
    assert_eq!(world.lifecycle().catalog().by_label("a", "stable").unwrap().id.version, 1);
    assert_eq!(world.threads.loads.lock().unwrap().len(), loads);
    world.publish("a", 2);
    labelled.policy = VersionPolicy::All;
    configure(&world, vec![labelled, cold(&world, "b")], Vec::new()).unwrap();
    assert_eq!(world.ready("a"), "1 2");
}

/// Requests by label would fail from the change until the end of the load.
#[test]
fn a_label_moves_once_its_new_version_is_ready() {
    let world = two_models();
    let label = |version: u64| {
        let mut model = ModelConfig { policy: VersionPolicy::All, ..cold(&world, "a") };
        model.labels.insert("stable".to_owned(), version);
        configure(&world, vec![model], Vec::new()).unwrap();
    };
    let labelled = || world.lifecycle().catalog().by_label("a", "stable").unwrap().id.version;
    label(1);
    label(2);
    assert_eq!(labelled(), 1, "version 2 is not there yet");
    world.publish("a", 2);
    eventually("the label moves", || labelled() == 2);
}

#[test]
fn a_moved_model_loads_from_its_new_directory() {
    let world = two_models();
    world.publish_tables("other", 1, &[1.0]);
    let moved = named(&world, "a", &world.model_dir("other"));
    configure(&world, vec![moved], Vec::new()).unwrap();
    let bytes = || world.lifecycle().catalog().get("a", Some(1)).map(|it| it.parameter_bytes);
    assert!(bytes().unwrap() > 2 * MIB, "version 1 is the other directory's");
}

/// A list of TensorFlow Serving may have `specific {}`.
#[test]
fn a_policy_without_versions_is_the_reason() {
    let world = two_models();
    let none = ModelConfig { policy: VersionPolicy::Specific([].into()), ..cold(&world, "a") };
    // The answer depends on the state of version 1, which is unloaded.
    let _ = configure(&world, vec![none], Vec::new());
    let failure = || world.status("a").and_then(|status| status.failure()).unwrap_or_default();
    eventually("the reason shows", || {
        failure().contains("its policy selects no version, and its directory holds 1;")
    });
}

/// The earlier version serves meanwhile, so a client would take its answers for those of the new
/// directory.
#[test]
fn a_moved_model_is_awaited_while_its_files_may_change() {
    let world = two_models();
    let graph = "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = affine x 7 0\n";
    world.place("other", 7, |dir| std::fs::write(dir.join("model.onnx"), graph).unwrap());
    let moved = named(&world, "a", &world.model_dir("other"));
    configure(&world, vec![moved], Vec::new()).unwrap();
    assert_eq!(world.ask("a").unwrap(), 7.0);
}

#[test]
fn failures_are_answered_and_mistakes_change_nothing() {
    let world = two_models();
    world.place("bad", 1, |dir| std::fs::write(dir.join("millpond.json"), "{").unwrap());
    let set = || vec![cold(&world, "a"), cold(&world, "bad"), cold(&world, "gone")];
    let error = configure(&world, set(), Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    let text = error.message();
    assert!(text.starts_with("2 model(s) did not become available: \"bad\": "), "{text}");
    assert!(text.contains("\"gone\": "), "{text}");
    assert_eq!(world.ask("a").unwrap(), 1.0);
    let twice = vec![cold(&world, "b"), cold(&world, "b")];
    let error = configure(&world, twice, Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(world.ask("a").unwrap(), 1.0, "nothing changed");
}

/// One broken model must not make every later change fail.
#[test]
fn models_that_stay_as_they_were_are_not_awaited() {
    let world = two_models();
    world.place("bad", 1, |dir| std::fs::write(dir.join("millpond.json"), "{").unwrap());
    let change = |names: &[&str]| {
        let models = names.iter().map(|name| cold(&world, name)).collect();
        configure(&world, models, Vec::new())
    };
    assert!(change(&["a", "bad"]).is_err());
    world.publish("c", 1);
    change(&["a", "bad", "c"]).unwrap();
    assert_eq!(world.ask("c").unwrap(), 1.0);
    assert!(change(&["c", "bad", "a"]).is_err(), "a repeated change awaits all models");
    change(&["a", "bad"]).unwrap();
}

#[test]
fn a_change_is_in_effect_although_many_others_wait() {
    let world = two_models();
    world.publish("c", 1);
    *world.threads.hanging.lock().unwrap() = Some("c".to_owned());
    let change = |names: &[&str]| {
        let models = names.iter().map(|name| cold(&world, name)).collect();
        configure_later(&world, ConfigSet { models, roots: Vec::new() })
    };
    let mut changes: Vec<_> = (0..16).map(|_| change(&["a", "b", "c"])).collect();
    changes.push(change(&["a", "c"]));
    let first = changes.remove(0).recv_timeout(WAIT_MAX).expect("an answer");
    assert_eq!(first.unwrap_err().kind(), ErrorKind::Cancelled);
    eventually("b is not known any more", || {
        world.ask("b").is_err_and(|error| error.kind() == ErrorKind::NotFound)
    });
    *world.threads.hanging.lock().unwrap() = None;
    for answer in changes {
        answer.recv_timeout(WAIT_MAX).expect("an answer").unwrap();
    }
}

/// Directories that are scanned once are scanned again on request only.
#[test]
fn versions_after_the_start_wait_for_a_request() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    world.start(Setting { change: |config| config.poll_once = true, ..Setting::default() });
    world.until_ready("m", 1);
    assert!(world.lifecycle().wait_settled(WAIT_MAX));
    // The scans after the start end. Then nothing is scanned. On a busy machine, the last scan may
    // be late and find the first of these versions.
    std::thread::sleep(20 * POLL);
    let waits = |version: u64| {
        world.publish("m", version);
        std::thread::sleep(20 * POLL);
        !world.ready("m").ends_with(&version.to_string())
    };
    let version = (2..5).find(|version| waits(*version)).unwrap();
    world.load("m", lifecycle::LoadSpec::default()).unwrap();
    world.until_ready("m", version);
}
