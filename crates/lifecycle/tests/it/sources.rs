//! Directories that mirror other places.

use std::fs::File;
use std::time::{Duration, SystemTime};

use lifecycle::{
    ConfigSet, LifecycleEvent, LifecycleState, LoadSpec, ModelConfig, ModelRoot, SourceReport,
};

use crate::world::{MIB, Setting, World, eventually};

/// Maximum models of a root.
const ROOT_MODELS_MAX: usize = 4096;

/// Starts a lifecycle whose root mirrors a store and is empty.
fn mirrored() -> World {
    let mut world = World::prepare(64 * MIB);
    start_mirrored(&mut world);
    world
}

/// Starts a lifecycle whose root mirrors a store.
fn start_mirrored(world: &mut World) {
    world.start(Setting {
        change: |config| {
            config.awaits_sources = true;
            let root = ModelRoot::new(&config.roots[0].dir);
            config.roots = vec![ModelRoot { store: Some("s3://b/models".into()), ..root }];
        },
        ..Setting::default()
    });
}

/// In a mirrored root, a directory without a version is a model, and nothing is loaded.
#[test]
fn models_above_the_limit_of_a_root_are_reported() {
    let mut world = World::prepare(64 * MIB);
    for number in 0..ROOT_MODELS_MAX + 2 {
        std::fs::create_dir(world.model_dir(&format!("m{number:04}"))).unwrap();
    }
    start_mirrored(&mut world);
    let expected = LifecycleEvent::ModelsIgnored {
        root: world.root.path().to_owned(),
        count: 2,
        models_max: ROOT_MODELS_MAX,
    };
    eventually("the event", || world.events.all().contains(&expected));
}

#[test]
fn the_first_load_waits_for_the_copies() {
    let world = mirrored();
    world.publish("m", 1);
    world.until_ready("m", 1);
    world.looks();
    assert!(!world.lifecycle().settled(), "another version can be on its way");
    world.publish("n", 1);
    world.lifecycle().report_sources(SourceReport { complete: true, ..SourceReport::default() });
    eventually("the first load is finished", || world.lifecycle().settled());
    assert_eq!(world.state("n", 1), Some(LifecycleState::Ready), "it was part of the first load");
}

#[test]
fn a_new_configuration_waits_for_its_copies() {
    let world = mirrored();
    world.lifecycle().report_sources(SourceReport { complete: true, ..SourceReport::default() });
    let configure = |name: &str| {
        let model = ModelConfig {
            store: Some("s3://b/m".into()),
            ..ModelConfig::new(name, world.model_dir(name))
        };
        std::fs::create_dir(world.model_dir(name)).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let set = ConfigSet { models: vec![model], roots: Vec::new() };
        world.lifecycle().configure(set, Box::new(move |result| drop(sender.send(result))));
        receiver
    };
    let applied = configure("m");
    eventually("it is known", || world.status("m").is_some());
    world.looks();
    assert!(applied.try_recv().is_err(), "its version is on its way");
    world.publish("m", 1);
    assert_eq!(applied.recv().unwrap(), Ok(()));
    let applied = configure("n");
    eventually("it is known", || world.status("n").is_some());
    let errors = [("n".into(), "no credentials".to_owned())].into();
    world.lifecycle().report_sources(SourceReport {
        complete: true,
        errors,
        ..SourceReport::default()
    });
    let error = applied.recv().unwrap().unwrap_err();
    assert!(error.message().contains("\"n\": no credentials"), "{error}");
}

#[test]
fn a_version_serves_until_the_selected_one_is_copied() {
    let world = mirrored();
    world.publish("m", 3);
    world.until_ready("m", 3);
    world.settings("m", "policy = \"2\"\n");
    let wanted = "its policy selects 2, and its directory holds 3; ";
    let error = || world.status("m").and_then(|status| status.error);
    eventually("the reason shows", || error().is_some_and(|text| text.starts_with(wanted)));
    world.looks();
    assert_eq!((world.ready("m").as_str(), world.ask("m").unwrap()), ("3", 3.0));
    world.publish("m", 2);
    eventually("the selected version serves", || world.ready("m") == "2");
    eventually("the reason goes", || error().is_none());
}

#[test]
fn problems_of_a_source_are_part_of_the_status() {
    let world = mirrored();
    // A model whose first version is on its way.
    std::fs::create_dir(world.model_dir("m")).unwrap();
    eventually("it is known", || world.status("m").is_some());
    let report = |reason: &str| SourceReport {
        complete: true,
        errors: [("m".into(), reason.to_owned()), ("unknown".into(), "no".to_owned())].into(),
        ..SourceReport::default()
    };
    world.lifecycle().report_sources(report("no credentials"));
    let error = || world.status("m").unwrap().error;
    eventually("the reason shows", || error().as_deref() == Some("no credentials"));
    assert_eq!(world.status("m").unwrap().failure().as_deref(), Some("no credentials"));
    assert!(world.status("unknown").is_none());
    world.publish("m", 1);
    world.until_ready("m", 1);
    assert_eq!(error().as_deref(), Some("no credentials"), "it stays until it is withdrawn");
    assert_eq!(world.status("m").unwrap().failure(), None, "a copy serves");
    world.lifecycle().report_sources(SourceReport { complete: true, ..SourceReport::default() });
    eventually("the reason goes", || error().is_none());
}

#[test]
fn a_repaired_copy_is_a_failure_until_it_serves() {
    let world = mirrored();
    world.fake.fail_loads(1);
    world.publish("m", 1);
    world.until("m", 1, LifecycleState::Failed);
    let failures = || world.lifecycle().catalog().failures();
    let gate = world.fake.load_gate();
    gate.close();
    // The copy is fetched again.
    let later = SystemTime::now() + Duration::from_secs(10);
    for file in std::fs::read_dir(world.dir("m", 1)).unwrap() {
        File::open(file.unwrap().path()).unwrap().set_modified(later).unwrap();
    }
    gate.wait_for(1);
    // The load begins before its status is written.
    let words = "the last failure: version 1 failed: this fake";
    eventually("the reason stays", || failures().iter().any(|(_, reason)| reason.contains(words)));
    gate.open();
    world.until_ready("m", 1);
    eventually("it serves", || failures().is_empty());
}

#[test]
fn a_removed_version_is_no_failure() {
    let world = mirrored();
    world.fake.fail_loads(1);
    world.publish("m", 1);
    world.until("m", 1, LifecycleState::Failed);
    world.remove("m", 1);
    eventually("it is forgotten", || world.lifecycle().catalog().failures().is_empty());
}

#[test]
fn a_load_fails_if_the_newest_version_is_not_copied() {
    let world = mirrored();
    let url = "s3://b/models";
    let report = |errors: &[&str], unlisted: &[&str]| {
        let errors = errors.iter().map(|it| ("m".into(), (*it).to_owned())).collect();
        let unlisted = unlisted.iter().map(|it| (url.into(), (*it).to_owned())).collect();
        let report = SourceReport { complete: true, errors, unlisted, ..SourceReport::default() };
        world.lifecycle().report_sources(report);
    };
    std::fs::create_dir(world.model_dir("m")).unwrap();
    report(&["version 1 cannot be copied: 403"], &[]);
    let error = world.load("m", LoadSpec::default()).unwrap_err();
    assert!(error.message().contains("version 1 cannot be copied: 403"), "{error}");
    report(&[], &[]);
    world.publish("m", 1);
    world.until_ready("m", 1);
    report(&["version 2 cannot be copied: 403"], &[]);
    let load = |version| world.load("m", LoadSpec { version, ..LoadSpec::default() });
    let error = load(None).unwrap_err();
    assert!(error.message().starts_with("version 2 cannot be copied: 403; "), "{error}");
    assert_eq!(world.state("m", 1), Some(LifecycleState::Ready));
    assert_eq!(load(Some(1)), Ok(()), "it is copied");
    let error = load(Some(2)).unwrap_err();
    assert!(error.message().contains("version 2 cannot be copied: 403"), "{error}");
    // Copies can be loaded without the store.
    report(&["refused"], &["refused"]);
    assert_eq!(load(None), Ok(()));
}

#[test]
fn a_load_from_a_directory_ignores_failed_copies() {
    let world = World::with_model();
    // A store has another model of this name, which does not serve.
    let errors = [("m".into(), "version 2 cannot be copied: 403".to_owned())].into();
    let report = SourceReport { complete: true, errors, ..SourceReport::default() };
    world.lifecycle().report_sources(report);
    eventually("the report", || world.status("m").unwrap().error.is_some());
    assert_eq!(world.load("m", LoadSpec::default()), Ok(()));
}

#[test]
fn a_refused_load_names_an_unfinished_upload() {
    let world = mirrored();
    std::fs::create_dir(world.model_dir("m")).unwrap();
    let unfinished = [("m".into(), "version 1 is not complete".to_owned())].into();
    let report = SourceReport { complete: true, unfinished, ..SourceReport::default() };
    world.lifecycle().report_sources(report);
    for version in [None, Some(1)] {
        let error = world.load("m", LoadSpec { version, ..LoadSpec::default() }).unwrap_err();
        assert!(error.message().ends_with(": version 1 is not complete"), "{error}");
    }
    assert_eq!(world.status("m").unwrap().failure(), None, "an upload is no failure");
}
