//! Converted models give the outputs of their sources, through the engine and with parameters bound
//! from the weights file. Needs the library, as the tests of sessions do.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use base::{DType, Dim, NamedTensor, Tensor};
use engine::layout::{Artifact, LayoutManifest};
use engine::{BoundTensor, Engine, LibrarySearch, LoadRequest, Session};
use memory::{Chunk, ParameterStore, PoolConfig, SlotPool, StoreConfig};
use os::Rate;

use super::super::build::{ModelBuilder, Node};
use super::super::{WriteOptions, convert_into, encode};
use super::scratch;
use crate::OnnxEngine;

const SIDE: usize = 64;

fn onnx() -> OnnxEngine {
    let search = LibrarySearch {
        explicit: std::env::var_os("MILLPOND_TEST_ONNXRUNTIME").map(PathBuf::from),
        start_dirs: vec![PathBuf::from(env!("CARGO_MANIFEST_DIR"))],
        ..LibrarySearch::default()
    };
    OnnxEngine::open(&search).unwrap_or_else(|e| panic!("these tests need ONNX Runtime: {e}"))
}

/// Reads the parameters of a version as the server does.
fn parameters(dir: &Path, manifest: &LayoutManifest) -> Vec<BoundTensor> {
    let Some(file) = Artifact::open(dir).unwrap().weights() else { return vec![] };
    let config =
        PoolConfig { bytes_max: 256 << 20, huge_pages: false, fault_rate: Rate::unlimited() };
    let pool = SlotPool::new(config).unwrap();
    let store =
        ParameterStore::new(pool, StoreConfig { read_rate: Rate::unlimited(), direct: true });
    let chunk = |tensor: &engine::layout::TensorEntry| Chunk {
        hash: tensor.hash().unwrap(),
        offset: tensor.offset,
        bytes: tensor.bytes,
    };
    let chunks: Vec<Chunk> = manifest.tensors.iter().map(chunk).collect();
    let loaded = store.load(&file, &chunks, &AtomicBool::new(false)).unwrap();
    let bind = |(tensor, placed): (&engine::layout::TensorEntry, memory::Placement)| BoundTensor {
        name: tensor.name.clone(),
        dtype: tensor.dtype().unwrap(),
        dims: tensor.dims.clone(),
        region: placed.region,
        offset: placed.offset,
        bytes: placed.bytes,
    };
    manifest.tensors.iter().zip(loaded.placed).map(bind).collect()
}

/// Returns inputs for a signature, with size `dynamic` for every dynamic axis.
fn inputs(session: &dyn Session, dynamic: usize) -> Vec<NamedTensor> {
    let make = |spec: &base::TensorSpec| {
        let size = |dim: &Dim| match dim {
            Dim::Fixed(size) => *size,
            Dim::Dynamic(_) => dynamic,
        };
        let shape: Vec<usize> = spec.shape.iter().flatten().map(size).collect();
        let count = shape.iter().product::<usize>();
        let tensor = match spec.dtype {
            DType::F32 => Tensor::from_vec(
                &shape[..],
                (0..count).map(|at| (at as f32 * 0.37).sin()).collect(),
            ),
            DType::I64 => Tensor::from_vec(&shape[..], vec![16_000i64; count]),
            other => panic!("no made-up values of type {other}"),
        };
        NamedTensor::new(spec.name.as_str(), tensor.unwrap())
    };
    session.signature().inputs.iter().filter(|spec| !spec.optional).map(make).collect()
}

/// Converts the model at `source` and compares the outputs of both. Returns the number of bound
/// parameters.
fn compare(source: &Path, dynamic: usize) -> usize {
    let out = scratch();
    let manifest = convert_into(source, out.path(), WriteOptions::default(), &mut |_| {}).unwrap();
    let engine = onnx();
    let load = |graph: PathBuf, parameters| {
        engine.load(&LoadRequest { graph, parameters, ..LoadRequest::default() }).unwrap()
    };
    let before = load(source.to_owned(), vec![]);
    let after = load(out.path().join("model.onnx"), parameters(out.path(), &manifest));
    let inputs = inputs(before.as_ref(), dynamic);
    assert_eq!(
        after.run(&inputs, &[]).unwrap(),
        before.run(&inputs, &[]).unwrap(),
        "{}",
        source.display()
    );
    manifest.tensors.len()
}

fn weights(seed: usize) -> Vec<f32> {
    (0..SIDE * SIDE).map(|at| ((at * 31 + seed) % 17) as f32 * 0.01).collect()
}

fn axes() -> [Dim; 2] {
    [Dim::Dynamic(Some("batch".to_owned())), Dim::Fixed(SIDE)]
}

fn multiply(ir_version: i64) -> ModelBuilder {
    ModelBuilder::new("multiply", 9)
        .ir_version(ir_version)
        .input("x", DType::F32, &axes())
        .output("y", DType::F32, &axes())
        .node(Node::new("MatMul", &["x", "w"], &["y"]))
}

fn save(dir: &Path, model: &[u8]) -> PathBuf {
    let path = dir.join("model.onnx");
    std::fs::write(&path, model).unwrap();
    path
}

#[test]
fn bound_parameters_answer_as_embedded_ones() {
    let dir = scratch();
    // Before version 4 of the format every parameter is listed among the inputs too. Since then a
    // parameter that is listed there is one that a request may replace.
    for (ir_version, listed) in [(3, true), (3, false), (4, true), (8, true), (8, false)] {
        let mut model =
            multiply(ir_version).floats("w", &[SIDE, SIDE], &weights(ir_version as usize));
        if listed {
            model = model.input("w", DType::F32, &[Dim::Fixed(SIDE), Dim::Fixed(SIDE)]);
        }
        let path = save(dir.path(), &model.encode());
        assert_eq!(compare(&path, 3), 1, "format {ir_version}, listed {listed}");
    }
}

#[test]
fn constants_are_bound_too() {
    let dir = scratch();
    for ir_version in [3, 8] {
        // The node must precede the one that uses it, so the model is assembled by hand.
        let mut node = Vec::new();
        encode::bytes(&mut node, 2, b"w");
        encode::bytes(&mut node, 4, b"Constant");
        encode::message(&mut node, 5, |attribute| {
            encode::bytes(attribute, 1, b"value");
            encode::message(attribute, 5, |tensor| {
                [SIDE, SIDE].iter().for_each(|&side| encode::int(tensor, 1, side as i64));
                encode::int(tensor, 2, 1);
                for value in weights(5) {
                    encode::float(tensor, 4, value);
                }
            });
            encode::int(attribute, 20, 4);
        });
        let mut graph = Vec::new();
        encode::bytes(&mut graph, 1, &node);
        let mut model = multiply(ir_version).encode();
        // A second graph field is merged with the first by every reader of protobuf; ours comes
        // first.
        let mut whole = Vec::new();
        encode::bytes(&mut whole, 7, &graph);
        whole.append(&mut model);
        let path = save(dir.path(), &whole);
        assert_eq!(compare(&path, 2), 1, "format {ir_version}");
    }
}

#[test]
fn real_models_answer_the_same() {
    let Ok(root) = std::env::var("MILLPOND_TEST_MODELS") else {
        eprintln!(
            "skipped: set MILLPOND_TEST_MODELS to a directory of .onnx files to run them too"
        );
        return;
    };
    // Names, and a size for the dynamic axes with which they run.
    let known =
        [("rec_infer", 48), ("det_infer", 64), ("cls_infer", 48), ("silero_vad_16k_op15", 512)];
    let mut compared = 0;
    for path in super::models_below(Path::new(&root)) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let Some((_, size)) = known.iter().find(|(known, _)| name.ends_with(known)) else {
            continue;
        };
        eprintln!("{name}: {} parameters bound", compare(&path, *size));
        compared += 1;
    }
    assert!(compared > 0, "none of the known models below MILLPOND_TEST_MODELS");
}
