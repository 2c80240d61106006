//! A complete version directory opens; a damaged one is refused with the reason.

use std::path::Path;

use base::{DType, ErrorKind};
use engine::fake::publish::{self, FakeParameter, GRAPH_NAME, HALF_PLUS_TWO};
use engine::layout::{Artifact, MANIFEST_NAME, TENSOR_ALIGNMENT, WEIGHTS_NAME};
use tempfile::TempDir;

fn published() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    publish::affine(dir.path(), 0.5, 2.0).unwrap();
    dir
}

/// Replaces `from`, which must be there, in the manifest.
fn edit(dir: &Path, from: &str, to: &str) {
    let path = dir.join(MANIFEST_NAME);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
}

#[track_caller]
fn refused(dir: &Path, kind: ErrorKind, word: &str) {
    let error = Artifact::open(dir).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.message().contains(word), "\"{word}\" is not in: {error}");
    assert!(!error.message().contains('\n'), "{error}");
}

#[track_caller]
fn refused_after(from: &str, to: &str, word: &str) {
    let dir = published();
    edit(dir.path(), from, to);
    refused(dir.path(), ErrorKind::DataLoss, word);
}

#[test]
fn a_complete_directory_opens() {
    let dir = published();
    let artifact = Artifact::open(dir.path()).unwrap();
    assert_eq!(artifact.graph(), dir.path().join(GRAPH_NAME));
    assert_eq!(artifact.weights(), Some(dir.path().join(WEIGHTS_NAME)));
    assert_eq!(artifact.parameter_bytes(), 8);
    let [half, two] = &artifact.manifest.tensors[..] else { panic!("two tensors") };
    assert_eq!((half.offset, two.offset), (0, TENSOR_ALIGNMENT));
    assert_eq!(half.dtype(), Ok(DType::F32));
    assert_eq!(half.hash().unwrap(), blake3::hash(&0.5f32.to_le_bytes()));
}

#[test]
fn a_graph_without_weights_opens() {
    let dir = tempfile::tempdir().unwrap();
    publish::publish(dir.path(), HALF_PLUS_TWO, &[]).unwrap();
    let artifact = Artifact::open(dir.path()).unwrap();
    assert_eq!((artifact.weights(), artifact.parameter_bytes()), (None, 0));
}

#[test]
fn zero_elements_take_no_space() {
    let dir = tempfile::tempdir().unwrap();
    let empty = FakeParameter::floats("empty", &[0, 3], &[]);
    publish::publish(
        dir.path(),
        HALF_PLUS_TWO,
        &[empty, FakeParameter::floats("half", &[1], &[0.5])],
    )
    .unwrap();
    assert_eq!(Artifact::open(dir.path()).unwrap().parameter_bytes(), 4);
}

#[test]
fn no_manifest_is_not_found() {
    let dir = published();
    std::fs::remove_file(dir.path().join(MANIFEST_NAME)).unwrap();
    refused(dir.path(), ErrorKind::NotFound, MANIFEST_NAME);
    refused(&dir.path().join("absent"), ErrorKind::NotFound, "absent");
}

#[test]
fn files_must_have_the_stated_lengths() {
    let dir = published();
    std::fs::write(dir.path().join(WEIGHTS_NAME), [0; 8191]).unwrap();
    refused(dir.path(), ErrorKind::DataLoss, "8191 bytes");
    let dir = published();
    std::fs::write(dir.path().join(GRAPH_NAME), b"short").unwrap();
    refused(dir.path(), ErrorKind::DataLoss, "5 bytes");
    let dir = published();
    std::fs::remove_file(dir.path().join(WEIGHTS_NAME)).unwrap();
    refused(dir.path(), ErrorKind::NotFound, WEIGHTS_NAME);
}

#[test]
fn devices_are_no_files_of_a_version() {
    for name in [MANIFEST_NAME, WEIGHTS_NAME, GRAPH_NAME] {
        let dir = published();
        let path = dir.path().join(name);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        refused(dir.path(), ErrorKind::DataLoss, "not a regular file");
    }
}

#[test]
fn contradictions_in_the_manifest_are_refused() {
    refused_after("{", "{{", MANIFEST_NAME);
    refused_after("\"format\": 1", "\"format\": 2", "format 2");
    refused_after(GRAPH_NAME, "../model.fake", "plain name");
    refused_after(WEIGHTS_NAME, "..", "plain name");
    refused_after("\"dtype\": \"float32\"", "\"dtype\": \"float33\"", "float33");
    refused_after("\"dtype\": \"float32\"", "\"dtype\": \"string\"", "do not fit");
    refused_after("\"bytes\": 4", "\"bytes\": 8", "8 bytes do not fit");
    refused_after("\"offset\": 4096", "\"offset\": 4", "outside its place");
    refused_after("\"offset\": 4096", "\"offset\": 0", "outside its place");
    refused_after("\"offset\": 4096", "\"offset\": 8192", "outside its place");
    refused_after("\"offset\": 4096", "\"offset\": 18446744073709547520", "outside its place");
}

#[test]
fn a_malformed_tensor_hash_is_named() {
    let dir = published();
    let hash = blake3::hash(&0.5f32.to_le_bytes()).to_hex().to_string();
    edit(dir.path(), &hash, &hash[1..]);
    refused(dir.path(), ErrorKind::DataLoss, "\"half\" has a malformed hash");
}
