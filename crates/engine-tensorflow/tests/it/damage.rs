//! Damaged SavedModels are refused with TensorFlow's reason, and no process aborts.

use std::path::{Path, PathBuf};

use base::{Error, ErrorKind};
use engine::publish::WriteOptions;
use engine::{Engine, LoadRequest, SessionOptions};
use engine_tensorflow::TensorFlowEngine;
use engine_tensorflow::publish::{SavedModelGraph, convert_into};

use crate::support::{engine, load, model};

/// Copies a model, so that it can be damaged.
fn copy(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_into(&model(name), dir.path());
    dir
}

fn copy_into(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_into(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// Refuses to load it as it is and to publish it, with one line that says `reason`.
#[track_caller]
fn refused(engine: &TensorFlowEngine, dir: &Path, kind: ErrorKind, reason: &str) {
    let check = |error: Error| {
        let message = error.message();
        assert_eq!(error.kind(), kind, "{message}");
        assert!(message.contains(reason) && !message.contains('\n'), "{message}");
    };
    check(load(engine, dir).err().expect("a damaged model loads"));
    let to = tempfile::tempdir().unwrap();
    let graph = SavedModelGraph { source: dir, tags: &[] };
    let options = WriteOptions::default();
    check(convert_into(engine, graph, to.path(), options, &mut |_| {}).unwrap_err());
    assert!(!to.path().join("millpond.json").exists());
}

fn shard(dir: &Path) -> PathBuf {
    dir.join("variables/variables.data-00000-of-00001")
}

#[test]
fn an_unknown_operator_is_refused() {
    let Some(engine) = engine() else { return };
    refused(&engine, &model("unknown"), ErrorKind::InvalidArgument, "'NegOfTheFuture'");
}

#[test]
fn a_missing_shard_is_refused() {
    let Some(engine) = engine() else { return };
    let dir = copy("dense_1");
    std::fs::remove_file(shard(dir.path())).unwrap();
    refused(&engine, dir.path(), ErrorKind::DataLoss, "variables.data-00000-of-00001");
}

#[test]
fn a_shard_that_ends_early_is_refused() {
    let Some(engine) = engine() else { return };
    let dir = copy("dense_1");
    let file = std::fs::OpenOptions::new().write(true).open(shard(dir.path())).unwrap();
    file.set_len(1000).unwrap();
    refused(&engine, dir.path(), ErrorKind::DataLoss, "Read less bytes than requested");
}

#[test]
fn a_shard_with_other_bytes_is_refused() {
    let Some(engine) = engine() else { return };
    let dir = copy("dense_1");
    let mut bytes = std::fs::read(shard(dir.path())).unwrap();
    bytes[1 << 20] ^= 1;
    std::fs::write(shard(dir.path()), bytes).unwrap();
    refused(&engine, dir.path(), ErrorKind::DataLoss, "hecksum");
}

#[test]
fn a_damaged_index_is_refused() {
    let Some(engine) = engine() else { return };
    for damage in [0usize, 40, 100] {
        let dir = copy("dense_1");
        let path = dir.path().join("variables/variables.index");
        let mut bytes = std::fs::read(&path).unwrap();
        let at = damage.min(bytes.len() - 1);
        bytes[at] ^= 0x55;
        std::fs::write(&path, bytes).unwrap();
        refused(&engine, dir.path(), ErrorKind::DataLoss, "variables");
    }
}

#[test]
fn a_truncated_graph_is_refused() {
    let Some(engine) = engine() else { return };
    let dir = copy("dense_1");
    let path = dir.path().join("saved_model.pb");
    let bytes = std::fs::read(&path).unwrap();
    for length in [1, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        refused(&engine, dir.path(), ErrorKind::DataLoss, "saved_model.pb");
    }
}

#[test]
fn a_missing_asset_is_refused() {
    let Some(engine) = engine() else { return };
    let dir = copy("lookup");
    std::fs::remove_file(dir.path().join("assets/vocabulary.txt")).unwrap();
    refused(&engine, dir.path(), ErrorKind::DataLoss, "vocabulary.txt");
}

/// Replaces the tag "serve" of a model's graph.
fn set_tag(dir: &Path, tag: &[u8; 5]) {
    let path = dir.join("saved_model.pb");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(5).position(|part| part == b"serve").unwrap();
    bytes[at..at + 5].copy_from_slice(tag);
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn a_graph_is_selected_by_its_tags() {
    let Some(engine) = engine() else { return };
    let dir = copy("sparse");
    set_tag(dir.path(), b"train");
    let opened = |dir: &Path, tags: &[String]| {
        let options = SessionOptions { graph_tags: tags.to_vec(), ..SessionOptions::default() };
        let graph = dir.join("saved_model.pb");
        engine.load(&LoadRequest { graph, options, ..LoadRequest::default() })
    };
    let tags = ["train".to_owned()];
    assert!(opened(dir.path(), &tags).is_ok());
    let error = opened(dir.path(), &["train".into(), "gpu".into()]).err().unwrap();
    assert!(error.message().contains("{train, gpu}"), "{error}");

    let published = tempfile::tempdir().unwrap();
    let graph = SavedModelGraph { source: dir.path(), tags: &tags };
    let options = WriteOptions::default();
    convert_into(&engine, graph, published.path(), options, &mut |_| {}).unwrap();
    let error = opened(published.path(), &[]).err().unwrap();
    assert!(error.message().contains("{train}"), "{error}");

    let copied = tempfile::tempdir().unwrap();
    let of_published = |tags| SavedModelGraph { source: published.path(), tags };
    convert_into(&engine, of_published(&[]), copied.path(), options, &mut |_| {}).unwrap();
    let other = tempfile::tempdir().unwrap();
    let wrong = ["serve".to_owned()];
    let error = convert_into(&engine, of_published(&wrong), other.path(), options, &mut |_| {});
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_model_without_a_graph_for_serving_is_refused() {
    let Some(engine) = engine() else { return };
    let dir = copy("sparse");
    set_tag(dir.path(), b"train");
    refused(&engine, dir.path(), ErrorKind::InvalidArgument, "{train}");
}

/// Without TensorFlow: only the parsers and the rewriting of this crate.
#[test]
fn any_change_of_a_byte_is_read_or_refused() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/saved_model");
    let mut read = 0;
    for seed in std::fs::read_dir(seeds).unwrap() {
        let whole = std::fs::read(seed.unwrap().path()).unwrap();
        assert!(engine_tensorflow::fuzzing::saved_model(&whole).unwrap() > 0);
        for at in (0..whole.len()).step_by(7) {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                read += u32::from(engine_tensorflow::fuzzing::saved_model(&damaged).is_ok());
            }
            let cut = engine_tensorflow::fuzzing::saved_model(&whole[..at]);
            assert!(cut.is_err(), "a graph that ends after {at} bytes is read");
        }
    }
    assert!(read > 0, "some bytes are names");
}
