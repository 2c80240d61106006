//! Publishing as a whole: versions, failure in the middle, and published versions as sources.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use base::{DType, ErrorKind};
use engine::layout::Artifact;
use os::Rate;

use super::super::build::{ModelBuilder, OnnxParameter};
use super::super::{PublishOptions, WriteOptions, inspect, layout_writer, publish};
use super::{check_converted, scratch};

fn options(source: &Path, root: &Path) -> PublishOptions {
    PublishOptions {
        source: source.to_owned(),
        dest_root: root.to_owned(),
        version: None,
        rate: Rate::unlimited(),
        direct: true,
    }
}

fn model(dir: &Path) {
    let wide = OnnxParameter::new("w", DType::U8, [9000]);
    let bytes: Vec<u8> = (0..9000).map(|at| at as u8).collect();
    std::fs::write(
        dir.join("model.onnx"),
        ModelBuilder::new("m", 18).initializer(&wide, &bytes).encode(),
    )
    .unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn versions_appear_one_after_another() {
    let (source, root) = (scratch(), scratch());
    model(source.path());
    let mut seen = Vec::new();
    let first =
        publish(&options(source.path(), root.path()), &mut |progress| seen.push(progress)).unwrap();
    assert_eq!((first.version, first.dir.clone()), (1, root.path().join("1")));
    check_converted(source.path(), &first.dir, &first.manifest);
    let last = seen.last().unwrap();
    assert_eq!(
        (last.bytes_done, last.bytes_total),
        (9000 + first.manifest.graph.bytes, last.bytes_done)
    );
    let chosen = PublishOptions { version: Some(7), ..options(source.path(), root.path()) };
    assert_eq!(publish(&chosen, &mut |_| {}).unwrap().version, 7);
    assert_eq!(publish(&chosen, &mut |_| {}).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(publish(&options(source.path(), root.path()), &mut |_| {}).unwrap().version, 8);
    assert_eq!(names(root.path()), ["1", "7", "8"]);
    assert_eq!(names(&first.dir), ["millpond.json", "model.onnx", "weights.bin"]);
}

#[test]
fn a_failure_in_the_middle_leaves_nothing() {
    let (source, outer) = (scratch(), scratch());
    model(source.path());
    let root = outer.path().join("model");
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        publish(&options(source.path(), &root), &mut |_| panic!("stopped in the middle"))
    }));
    assert!(outcome.is_err());
    assert!(!root.exists());
    // A source whose damage only shows while it is copied.
    let mut model = Vec::new();
    super::super::encode::message(&mut model, 7, |graph| {
        super::super::encode::message(graph, 5, |out| {
            super::super::encode::int(out, 1, 5000);
            super::super::encode::int(out, 2, 2);
            super::super::encode::bytes(out, 8, b"w");
            super::super::encode::bytes(out, 5, &[1; 4999]);
        });
    });
    std::fs::write(source.path().join("model.onnx"), model).unwrap();
    let error = publish(&options(source.path(), &root), &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(!root.exists());
    std::fs::create_dir(&root).unwrap();
    assert!(publish(&options(source.path(), &root), &mut |_| {}).is_err());
    assert!(names(&root).is_empty());
}

#[test]
fn wrong_sources_have_clear_errors() {
    let (empty, root) = (scratch(), scratch());
    let error = publish(&options(empty.path(), root.path()), &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("model.onnx"), "{error}");
    let error =
        publish(&options(&empty.path().join("absent"), root.path()), &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(publish(&options(Path::new("/dev/null"), root.path()), &mut |_| {}).is_err());
    assert!(names(root.path()).is_empty());
}

#[test]
fn a_published_version_publishes_again_unless_it_is_damaged() {
    let (source, root) = (scratch(), scratch());
    model(source.path());
    let first = publish(&options(source.path(), root.path()), &mut |_| {}).unwrap();
    let second = publish(&options(&first.dir, root.path()), &mut |_| {}).unwrap();
    assert_eq!(first.manifest, second.manifest);
    let summary = inspect(&first.dir).unwrap();
    assert_eq!(
        (summary.published, summary.embedded_bytes, summary.external_bytes),
        (true, 0, 9000)
    );
    for file in ["model.onnx", "weights.bin"] {
        let path = second.dir.join(file);
        let whole = std::fs::read(&path).unwrap();
        let mut damaged = whole.clone();
        damaged[20] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        let error = publish(&options(&second.dir, root.path()), &mut |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataLoss, "{error}");
        std::fs::write(&path, whole).unwrap();
    }
    std::fs::write(second.dir.join("millpond.json"), b"{").unwrap();
    assert_eq!(
        publish(&options(&second.dir, root.path()), &mut |_| {}).unwrap_err().kind(),
        ErrorKind::DataLoss
    );
    assert_eq!(names(root.path()), ["1", "2"]);
}

#[test]
fn small_parameters_of_a_handmade_version_stay_bound() {
    let (source, root) = (scratch(), scratch());
    let mut writer = layout_writer(source.path(), WriteOptions::default()).unwrap();
    let small = OnnxParameter::new("small", DType::U8, [3]);
    let entry = writer.tensor("small", DType::U8, &[3], [[1u8, 2, 3]]).unwrap();
    let graph = ModelBuilder::new("m", 18).external(&small, "weights.bin", entry.offset).unwrap();
    let manifest = writer.finish(&graph.encode()).unwrap();
    let again = publish(&options(source.path(), root.path()), &mut |_| {}).unwrap();
    assert_eq!(again.manifest.tensors, manifest.tensors);
    assert_eq!(Artifact::open(&again.dir).unwrap().parameter_bytes(), 3);
}

#[test]
fn a_manifest_that_disagrees_with_its_graph_is_refused() {
    let (source, root) = (scratch(), scratch());
    let mut writer = layout_writer(source.path(), WriteOptions::default()).unwrap();
    writer.tensor("unknown to the graph", DType::U8, &[3], [[1u8, 2, 3]]).unwrap();
    writer.finish(&ModelBuilder::new("m", 18).encode()).unwrap();
    let error = publish(&options(source.path(), root.path()), &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
}
