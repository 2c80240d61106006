//! Versions without a manifest.

use std::fs;
use std::io::Write;

use lifecycle::{LifecycleState, LoadSpec, ParameterPlacement};

use crate::world::{MIB, NEVER, Setting, World, cold, eventually};

const GRAPH: &str = "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = affine x 1 0\n";

fn foreign(world: &World, version: u64, text: &str) {
    world.place("m", version, |dir| fs::write(dir.join("model.onnx"), text).unwrap());
}

/// Returns the number of converted versions in the cache of this run.
fn cached(world: &World) -> usize {
    let run = fs::read_dir(world.cache.path()).unwrap().next().unwrap().unwrap().path();
    fs::read_dir(run).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
}

/// Returns the scheduling policies at which the versions in the cache were converted.
fn policies(world: &World) -> Vec<String> {
    let run = fs::read_dir(world.cache.path()).unwrap().next().unwrap().unwrap().path();
    let said = fs::read_dir(run)
        .unwrap()
        .filter_map(|entry| fs::read_to_string(entry.unwrap().path().join("policy")).ok());
    said.map(|policy| policy.trim().to_owned()).collect()
}

fn start() -> World {
    let mut world = World::prepare(64 * MIB);
    foreign(&world, 1, GRAPH);
    world.start(Setting::default());
    world
}

#[test]
fn foreign_versions_are_converted_and_served() {
    let world = start();
    assert!(world.lifecycle().wait_settled(std::time::Duration::from_secs(30)));
    assert_eq!(world.ask("m").unwrap(), 1.0);
    assert_eq!(cached(&world), 1);
    world.publish("m", 2);
    world.until("m", 1, LifecycleState::Released);
    assert_eq!(cached(&world), 0, "removed with the version");
    world.lifecycle().shutdown();
}

/// At idle priority the first load would make almost no progress if other programs use all cores.
/// Later loads must not take time from requests.
#[test]
fn only_the_first_load_runs_at_ordinary_priority() {
    let (ordinary, idle) = (["0"], ["5"]);
    let mut world = World::prepare(64 * MIB);
    foreign(&world, 1, GRAPH);
    world.start(Setting { change: |config| config.starvation_limit = NEVER, ..Setting::default() });
    assert!(world.lifecycle().wait_settled(std::time::Duration::from_secs(30)));
    assert_eq!(policies(&world), ordinary);
    foreign(&world, 2, &GRAPH.replace("affine x 1", "affine x 2"));
    world.until("m", 1, LifecycleState::Released);
    assert_eq!(policies(&world), idle);
}

#[test]
fn a_failed_conversion_has_its_reason() {
    let world = start();
    world.until_ready("m", 1);
    foreign(&world, 2, "bad");
    let status = world.until("m", 2, LifecycleState::Failed);
    assert_eq!(status.reason.as_deref(), Some("conversion failed: no operator bad"));
    assert_eq!(world.ask("m").unwrap(), 1.0);
    assert_eq!(cached(&world), 1);
    foreign_again(&world);
}

#[test]
fn a_failed_load_names_the_file_of_the_version() {
    let mut world = World::prepare(64 * MIB);
    foreign(&world, 1, "not a graph");
    world.start(Setting::default());
    let reason = world.until("m", 1, LifecycleState::Failed).reason.unwrap();
    let copy = world.dir("m", 1).join("model.fake");
    assert!(reason.starts_with(&format!("{}: not a fake graph", copy.display())), "{reason}");
}

#[test]
fn an_unusable_cache_directory_is_named_and_tried_again() {
    let mut world = World::prepare(64 * MIB);
    foreign(&world, 1, GRAPH);
    world.start(Setting {
        change: |config| {
            let file = config.cache_dir.join("file");
            fs::write(&file, "").unwrap();
            config.cache_dir = file.join("cache");
        },
        ..Setting::default()
    });
    let reason = world.until("m", 1, LifecycleState::Failed).reason.unwrap();
    let cache = world.cache.path().join("file/cache");
    assert!(reason.contains(&format!("cannot be used ({}: ", cache.display())), "{reason}");
    fs::remove_file(world.cache.path().join("file")).unwrap();
    world.load("m", LoadSpec::default()).unwrap();
    assert_eq!(world.ask("m").unwrap(), 1.0);
}

/// Files that changed are tried again.
fn foreign_again(world: &World) {
    fs::write(world.dir("m", 2).join("model.onnx"), GRAPH.replace("affine x 1", "affine x 2"))
        .unwrap();
    world.until_ready("m", 2);
    assert_eq!(world.ask("m").unwrap(), 2.0);
}

/// The old version is not unloaded for one that cannot be converted.
#[test]
fn resource_preserving_converts_first() {
    let mut world = World::prepare(64 * MIB);
    world.settings("m", "transition = \"resource-preserving\"");
    foreign(&world, 1, GRAPH);
    world.start(Setting::default());
    world.until_ready("m", 1);
    foreign(&world, 2, "bad");
    world.until("m", 2, LifecycleState::Failed);
    assert!(!world.events.states("m").contains("1:draining"));
    foreign_again(&world);
    world.until("m", 1, LifecycleState::Released);
    let states = world.events.states("m");
    assert!(states.find("1:released").unwrap() < states.find("2:loading").unwrap(), "{states}");
    assert_eq!(
        (cached(&world), world.fake.counters().loads()),
        (1, 2),
        "converted once, loaded once"
    );
    // The same for a load of changed files.
    fs::write(world.dir("m", 2).join("model.onnx"), "bad").unwrap();
    world.looks();
    assert!(world.load("m", LoadSpec::default()).is_err());
    assert_eq!((world.ready("m").as_str(), world.ask("m").unwrap()), ("2", 2.0));
    fs::write(world.dir("m", 2).join("model.onnx"), GRAPH.replace("affine x 1", "affine x 2"))
        .unwrap();
    world.load("m", LoadSpec::default()).unwrap();
    assert_eq!((world.fake.counters().loads(), world.ask("m").unwrap()), (3, 2.0));
    eventually("what it replaced is removed", || cached(&world) == 1);
}

#[test]
fn a_file_that_grows_is_never_loaded() {
    let mut world = World::prepare(64 * MIB);
    foreign(&world, 1, GRAPH);
    let models = vec![cold(&world, "m")];
    world.start(Setting { models, ..Setting::default() });
    world.until_ready("m", 1);
    fs::create_dir(world.dir("m", 2)).unwrap();
    let mut file = fs::File::create(world.dir("m", 2).join("model.onnx")).unwrap();
    let text = GRAPH.replace("affine x 1", "affine x 2");
    // Without the changes, any part of the file would count as complete within this time.
    for (at, byte) in text.bytes().enumerate() {
        file.write_all(&[byte]).unwrap();
        if at % 16 == 0 {
            assert_eq!(
                world.load("no such model", LoadSpec::default()).unwrap_err().kind(),
                base::ErrorKind::NotFound
            );
        }
    }
    drop(file);
    world.until_ready("m", 2);
    assert_eq!(world.ask("m").unwrap(), 2.0);
    assert_eq!(world.fake.counters().failed_loads(), 0);
}

/// Returns a converter that copies the directory "published" of the version. At its end it writes
/// the content that "model.onnx" had at its start into the file [`CONVERTED`] of the root.
fn copying() -> lifecycle::Converter {
    let script = format!(
        "graph=$(cat \"$1\"/model.onnx); cp \"$1\"/published/* \"$2\"/; \
         printf %s \"$graph\" > \"$1\"/../../{CONVERTED}"
    );
    let args = vec!["-c".into(), script, "sh".into()];
    lifecycle::Converter { program: "/bin/sh".into(), args }
}

/// The lifecycle ignores hidden names.
const CONVERTED: &str = ".converted";

/// The files of a conversion that waits for memory may be replaced meanwhile.
#[test]
fn replaced_files_are_converted_again() {
    let mut world = World::prepare(8 * MIB);
    world.publish_tables("big", 1, &[1.0, 2.0]);
    world.start(Setting { change: |config| config.converter = copying(), ..Setting::default() });
    world.until_ready("big", 1);
    let held = world.lifecycle().catalog().get("big", None).unwrap();
    fs::rename(world.model_dir("big"), world.root.path().join(".big")).unwrap();
    eventually("it drains", || world.state("big", 1) == Some(LifecycleState::Draining));
    let fill = |dir: &std::path::Path, factor: f32| {
        world.publish_tables("scratch", factor as u64, &[3.0, 4.0]);
        let _ = fs::remove_dir_all(dir.join("published"));
        fs::rename(world.dir("scratch", factor as u64), dir.join("published")).unwrap();
        fs::write(dir.join("model.onnx"), factor.to_string()).unwrap();
    };
    let waits = |graph: &str| {
        let converted = fs::read_to_string(world.root.path().join(CONVERTED)).unwrap_or_default();
        let reason = world.version("m", 5).and_then(|version| version.reason).unwrap_or_default();
        converted == graph
            && cached(&world) == 1
            && !reason.contains("converted")
            && !reason.contains("stop changing")
    };
    world.place("m", 5, |dir| fill(dir, 6.0));
    eventually("it is converted and waits", || waits("6"));
    fill(&world.dir("m", 5), 7.0);
    eventually("it is converted again and waits", || waits("7"));
    drop(held);
    world.until_ready("m", 5);
    let servable = world.lifecycle().catalog().get("m", None).unwrap();
    let answer = servable.run(&[crate::world::input(1.0)], &[]).unwrap();
    assert_eq!(answer[0].tensor.to_vec::<f32>().unwrap(), [7.0]);
    assert_eq!(world.version("m", 5).unwrap().note, None, "it serves what is there");
}

#[test]
fn a_load_waits_until_files_stop_changing() {
    let world = start();
    world.until_ready("m", 1);
    foreign(&world, 2, &GRAPH.replace("affine x 1", "affine x 2"));
    world.load("m", LoadSpec::default()).unwrap();
    assert_eq!(world.ask("m").unwrap(), 2.0);
}

#[test]
fn the_heap_opens_foreign_versions_as_they_are() {
    let mut world = World::prepare(64 * MIB);
    foreign(&world, 1, GRAPH);
    world.publish("n", 1);
    world.start(Setting {
        change: |config| config.placement = ParameterPlacement::Heap,
        ..Setting::default()
    });
    world.until_ready("m", 1);
    assert_eq!(world.ask("m").unwrap(), 1.0);
    assert_eq!(world.version("m", 1).unwrap().parameter_bytes, 0);
    assert_eq!(world.used(), 0);
    assert_eq!(fs::read_dir(world.cache.path()).unwrap().count(), 0);
    let status = world.until("n", 1, LifecycleState::Failed);
    assert!(status.reason.unwrap().contains("a model file"));
    foreign(&world, 2, &GRAPH.replace("affine x 1", "affine x 2"));
    world.until("m", 1, LifecycleState::Released);
    eventually("2 answers", || world.ask("m") == Ok(2.0));
}
