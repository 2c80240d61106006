//! The publisher against a second, naive reader of ONNX that holds everything in memory.

mod bound;
mod damage;
mod generate;
mod naive;
mod round_trip;
mod whole;

use std::path::{Path, PathBuf};

use engine::layout::{Artifact, LayoutManifest};

use super::{EXTERNALISE_MIN, WriteOptions, convert_into};
use naive::{Reading, read};

/// Directory for scratch files: in memory if possible, because these tests sync very often.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    dir.unwrap()
}

/// Converts the model at `source` and checks that only locations changed.
fn check(source: &Path) -> LayoutManifest {
    let out = scratch();
    let manifest = convert_into(source, out.path(), WriteOptions::default(), &mut |_| {}).unwrap();
    check_converted(source, out.path(), &manifest);
    manifest
}

/// Checks the layout in `out` against the model at `source`.
fn check_converted(source: &Path, out: &Path, manifest: &LayoutManifest) {
    let artifact = Artifact::open(out).unwrap();
    assert_eq!(&artifact.manifest, manifest);
    let before = read(source);
    let after = read(&artifact.graph());
    assert_eq!(before.rest, after.rest, "bytes outside tensors must not change");
    assert_eq!(
        sorted(&before),
        sorted(&after),
        "every tensor must keep its place, type, shape and bytes"
    );
    let graph = std::fs::read(artifact.graph()).unwrap();
    assert_eq!(manifest.graph.blake3.as_deref(), Some(blake3::hash(&graph).to_hex().as_str()));
    let weights = artifact.weights().map(|path| std::fs::read(path).unwrap()).unwrap_or_default();
    assert!(weights.len().is_multiple_of(4096));
    assert_eq!(after.external.len(), manifest.tensors.len());
    for (tensor, external) in manifest.tensors.iter().zip(&after.external) {
        let bytes = &weights[tensor.offset as usize..(tensor.offset + tensor.bytes) as usize];
        assert_eq!(blake3::hash(bytes), tensor.hash().unwrap());
        assert!(tensor.bytes >= EXTERNALISE_MIN);
        assert_eq!(
            (&tensor.name, tensor.offset, tensor.bytes),
            (&external.0, external.1, external.2)
        );
    }
}

fn sorted(reading: &Reading) -> Vec<String> {
    let mut lines: Vec<String> = reading.tensors.iter().map(ToString::to_string).collect();
    lines.sort();
    lines
}

/// Lists all models below a directory.
fn models_below(root: &Path) -> Vec<PathBuf> {
    let (mut stack, mut found) = (vec![root.to_owned()], Vec::new());
    while let Some(dir) = stack.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                stack.push(path);
            } else if path.extension().is_some_and(|extension| extension == "onnx") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
