//! A version that cannot be served is refused with the reason, and the version that serves
//! continues.

use std::fs;

use engine::layout::MANIFEST_NAME;
use lifecycle::LifecycleState;

use crate::world::{MIB, Setting, World};

/// Checks that version 2 is refused with a reason that contains `reason`, and that version 1
/// serves.
#[track_caller]
fn refused(world: &World, reason: &str) {
    let status = world.until("m", 2, LifecycleState::Failed);
    let told = status.reason.unwrap_or_default();
    assert!(told.contains(reason), "{told}");
    assert_eq!(world.ready("m"), "1");
    assert_eq!(world.ask("m").unwrap(), 1.0);
    let error = world.lifecycle().catalog().get("m", Some(2)).unwrap_err();
    assert!(error.message().contains(reason), "{error}");
}

fn damage(world: &World, damage: impl FnOnce(&std::path::Path)) {
    world.place("m", 2, |dir| {
        engine::fake::publish::affine(dir, 2.0, 0.0).unwrap();
        damage(dir);
    });
}

#[test]
fn corrupt_weights() {
    let world = World::with_model();
    let used = world.used();
    damage(&world, |dir| {
        let path = dir.join("weights.bin");
        let mut bytes = fs::read(&path).unwrap();
        bytes[0] ^= 1;
        fs::write(path, bytes).unwrap();
    });
    refused(&world, "does not match its hash");
    assert_eq!(world.used(), used, "nothing stays behind");
}

#[test]
fn a_corrupt_graph() {
    let world = World::with_model();
    damage(&world, |dir| {
        let path = dir.join("model.fake");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, text.replace("half", "flah")).unwrap();
    });
    refused(&world, "does not match its hash");
}

#[test]
fn a_graph_the_engine_refuses() {
    let world = World::with_model();
    world.place("m", 2, |dir| {
        engine::fake::publish::publish(
            dir,
            "millpond-fake 1\nfail-load operator Foo is unknown\n",
            &[],
        )
        .unwrap();
    });
    refused(&world, "operator Foo is unknown");
}

#[test]
fn truncated_weights() {
    let world = World::with_model();
    damage(&world, |dir| fs::write(dir.join("weights.bin"), [0; 100]).unwrap());
    refused(&world, "100 bytes, the manifest says 8192");
}

#[test]
fn a_half_copied_version() {
    let world = World::with_model();
    damage(&world, |dir| fs::remove_file(dir.join("weights.bin")).unwrap());
    refused(&world, "weights.bin");
}

#[test]
fn a_malformed_manifest() {
    let world = World::with_model();
    damage(&world, |dir| fs::write(dir.join(MANIFEST_NAME), "{").unwrap());
    refused(&world, "millpond.json");
}

#[test]
fn an_unknown_engine() {
    let world = World::with_model();
    damage(&world, |dir| {
        let path = dir.join(MANIFEST_NAME);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, text.replace("\"fake\"", "\"tensorflow\"")).unwrap();
    });
    refused(
        &world,
        "needs engine \"tensorflow\", and this server has fake, allocating; publish it for",
    );
}

#[test]
fn an_empty_directory() {
    let world = World::with_model();
    fs::create_dir(world.dir("m", 2)).unwrap();
    refused(&world, "holds neither");
}

#[test]
fn a_model_of_another_program_is_recognised() {
    let world = World::with_model();
    world.place("m", 2, |dir| fs::write(dir.join("frozen.pb"), b"\x08\x01").unwrap());
    refused(
        &world,
        "frozen.pb is a frozen TensorFlow graph: convert it with python -m tf2onnx.convert",
    );
    assert!(world.lifecycle().catalog().failures().is_empty(), "version 1 serves");
}

#[test]
fn a_device_that_the_engine_does_not_have() {
    let world = World::with_model();
    world.settings("m", "device = \"cuda:1\"");
    world.publish("m", 2);
    refused(
        &world,
        "device = \"cuda:1\" in the model's settings: engine fake has the device \"cpu\" only; \
         set device = \"cpu\", or export the model as TorchScript to run it on a GPU",
    );
}

#[test]
fn settings_of_triton_are_a_note() {
    let world = World::with_model();
    let model = world.dir("m", 1).parent().unwrap().to_owned();
    fs::write(model.join("config.pbtxt"), "name: \"m\"\nmax_batch_size: 8\n").unwrap();
    world.publish("m", 2);
    let note = world.until("m", 2, LifecycleState::Ready).note.unwrap();
    assert!(
        note.contains("config.pbtxt is not read (max_batch_size)")
            && note.contains("import triton"),
        "{note}"
    );
    world.settings("m", "");
    world.publish("m", 3);
    assert_eq!(world.until("m", 3, LifecycleState::Ready).note, None);
}

#[test]
fn a_pointer_in_place_of_a_file_is_recognised() {
    let world = World::with_model();
    world.place("m", 2, |dir| {
        fs::write(dir.join("model.onnx"), b"version https://git-lfs.github.com/spec/v1\n").unwrap();
    });
    refused(&world, "model.onnx is a Git LFS pointer");
}

#[test]
fn an_unreadable_directory() {
    // No user can read a link to itself, not even root.
    let world = World::with_model();
    std::os::unix::fs::symlink("2", world.dir("m", 2)).unwrap();
    refused(&world, "symbolic links");
}

#[test]
fn more_threads_than_the_server_has() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    world.start(Setting { change: |config| config.threads_max = 2, ..Setting::default() });
    world.until_ready("m", 1);
    world.settings("m", "intra-op-threads = 4");
    world.looks();
    world.publish("m", 2);
    refused(&world, "intra-op-threads = 4, but the server has 2 inference threads");
    world.settings("m", "intra-op-threads = 2\n[schedule]\nthreads = 2");
    world.looks();
    assert!(world.load("m", lifecycle::LoadSpec::default()).is_err());
    refused(&world, "takes 4 threads, but the server has 2");
    // The advice works.
    world.settings("m", "intra-op-threads = 2\n[schedule]\nthreads = 1");
    world.looks();
    world.load("m", lifecycle::LoadSpec::default()).unwrap();
    assert_eq!(world.ready("m"), "2");
}

#[test]
fn a_schedule_that_does_not_fit_the_model() {
    let world = World::with_model();
    world.settings("m", "[schedule]\nmode = \"async\"\n[schedule.inputs.x]\naxes = [7]");
    world.looks();
    world.publish("m", 2);
    refused(&world, "inputs.x: axes names an axis that the input does not have");
}

#[test]
fn a_version_larger_than_the_pool() {
    let mut world = World::prepare(8 * MIB);
    world.publish_tables("m", 1, &[1.0]);
    world.start(Setting::default());
    world.until_ready("m", 1);
    world.publish_tables("m", 2, &[1.5, 2.5, 3.5, 4.5, 5.5]);
    refused(&world, "needs 12.0 MiB, the pool has 4.00 MiB free of 8.00 MiB; raise --pool");
}

#[test]
fn a_version_that_does_not_fit_beside_the_old() {
    let mut world = World::prepare(8 * MIB);
    world.publish_tables("m", 1, &[1.0, 2.0]);
    world.start(Setting::default());
    world.until_ready("m", 1);
    world.publish_tables("m", 2, &[3.0, 4.0]);
    refused(&world, "use transition = \"resource-preserving\"");
    // The remedy works, and files that failed before are tried again once an administrator asks.
    world.settings("m", "transition = \"resource-preserving\"");
    world.looks();
    world.load("m", lifecycle::LoadSpec::default()).unwrap();
    world.until_ready("m", 2);
    assert_eq!(world.ready("m"), "2");
}

#[test]
fn a_broken_version_is_tried_again_when_its_files_change() {
    let world = World::with_model();
    damage(&world, |dir| fs::write(dir.join("weights.bin"), vec![7; 8192]).unwrap());
    refused(&world, "does not match its hash");
    let failed = world.events.states("m").matches("2:failed").count();
    world.looks();
    assert_eq!(
        world.events.states("m").matches("2:failed").count(),
        failed,
        "not tried again unchanged"
    );
    engine::fake::publish::affine(&world.dir("m", 2), 2.0, 0.0).unwrap();
    world.until_ready("m", 2);
    assert_eq!(world.ask("m").unwrap(), 2.0);
}

#[test]
fn the_version_before_a_broken_one_serves_from_the_start() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    damage(&world, |dir| fs::write(dir.join("weights.bin"), vec![7; 8192]).unwrap());
    world.start(Setting::default());
    assert!(world.lifecycle().wait_settled(std::time::Duration::from_secs(30)));
    refused(&world, "does not match its hash");
}

#[test]
fn a_model_without_a_ready_version_has_a_reason() {
    let mut world = World::prepare(64 * MIB);
    damage(&world, |dir| fs::write(dir.join("weights.bin"), vec![7; 8192]).unwrap());
    world.start(Setting::default());
    world.until("m", 2, LifecycleState::Failed);
    let catalog = world.lifecycle().catalog();
    let error = catalog.get("m", None).unwrap_err();
    assert_eq!(error.kind(), base::ErrorKind::Unavailable);
    assert!(error.message().contains("no ready version: version 2 failed: "), "{error}");
    let error = catalog.get("m", Some(9)).unwrap_err();
    assert_eq!(error.kind(), base::ErrorKind::NotFound);
    assert_eq!(error.message(), "model \"m\" has no version 9; it serves none");
    assert_eq!(catalog.get("x", None).unwrap_err().kind(), base::ErrorKind::NotFound);
}
