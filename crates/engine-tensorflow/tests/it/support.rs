use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::{NamedTensor, Tensor};
use engine::layout::{Artifact, TensorEntry};
use engine::publish::WriteOptions;
use engine::{BoundTensor, Engine, LibrarySearch, LoadRequest, Session, SessionOptions};
use engine_tensorflow::TensorFlowEngine;
use engine_tensorflow::publish::{SavedModelGraph, convert_into};
use memory::{Chunk, ParameterStore, PoolConfig, SlotPool, StoreConfig};
use os::Rate;

/// Returns the engine, or `None`, with a note, if TensorFlow is not installed.
pub(crate) fn engine() -> Option<TensorFlowEngine> {
    let explicit = std::env::var_os("MILLPOND_TEST_TENSORFLOW").map(PathBuf::from);
    let search = LibrarySearch::around_process(explicit, None);
    match TensorFlowEngine::find_library(&search) {
        Ok(_) => Some(TensorFlowEngine::new(search)),
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

/// Directory that `make saved-models` writes.
pub(crate) fn saved_models() -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/saved-models");
    assert!(dir.join("ready").exists(), "`make saved-models` makes {}", dir.display());
    dir
}

pub(crate) fn model(name: &str) -> PathBuf {
    saved_models().join("models").join(name)
}

/// Opens a SavedModel as it is.
pub(crate) fn load(engine: &dyn Engine, dir: &Path) -> base::Result<Box<dyn Session>> {
    engine.load(&LoadRequest {
        graph: dir.join("saved_model.pb"),
        options: SessionOptions::default(),
        ..LoadRequest::default()
    })
}

pub(crate) fn floats(name: &str, elements: &[f32]) -> NamedTensor {
    NamedTensor::new(
        name,
        Tensor::from_vec([elements.len()].as_slice(), elements.to_vec()).unwrap(),
    )
}

pub(crate) fn words(name: &str, words: &[&str]) -> NamedTensor {
    let strings: Vec<bytes::Bytes> =
        words.iter().map(|word| bytes::Bytes::copy_from_slice(word.as_bytes())).collect();
    NamedTensor::new(name, Tensor::from_strings([words.len()].as_slice(), strings).unwrap())
}

/// Runs the signature `name`.
pub(crate) fn run(session: &dyn Session, name: &str, inputs: &[NamedTensor]) -> Vec<NamedTensor> {
    let number = session.signatures().iter().position(|named| &*named.name == name);
    let number = number.unwrap_or_else(|| panic!("there is no signature {name}"));
    session.signatures()[number].signature.check_inputs(inputs).unwrap();
    session.run_signature(number, inputs, &[]).unwrap()
}

/// Returns the output `name` of singles.
pub(crate) fn output(outputs: &[NamedTensor], name: &str) -> Vec<f32> {
    let found = outputs.iter().find(|output| &*output.name == name);
    found.unwrap_or_else(|| panic!("there is no output {name}")).tensor.to_vec().unwrap()
}

/// A pool of its own, so that a test counts only itself.
pub(crate) fn store(bytes_max: u64) -> Arc<ParameterStore> {
    let config = PoolConfig { bytes_max, huge_pages: false, fault_rate: Rate::unlimited() };
    let pool = SlotPool::new(config).unwrap();
    ParameterStore::new(pool, StoreConfig { read_rate: Rate::unlimited(), direct: true })
}

/// Publishes the model `name` in a directory that is removed with the result.
pub(crate) fn publish(engine: &TensorFlowEngine, source: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let options = WriteOptions::default();
    let graph = SavedModelGraph { source, tags: &[] };
    convert_into(engine, graph, dir.path(), options, &mut |_| {}).unwrap();
    dir
}

/// A published version that is loaded as the server loads it.
pub(crate) struct Bound {
    pub(crate) session: Box<dyn Session>,
    /// Bytes read from the disk and bytes that another version had in memory.
    pub(crate) bytes_read: u64,
    pub(crate) bytes_shared: u64,
    pub(crate) names: Vec<String>,
}

pub(crate) fn bind(engine: &TensorFlowEngine, store: &Arc<ParameterStore>, dir: &Path) -> Bound {
    let artifact = Artifact::open(dir).unwrap();
    let tensors = &artifact.manifest.tensors;
    let chunk = |tensor: &TensorEntry| Chunk {
        hash: tensor.hash().unwrap(),
        offset: tensor.offset,
        bytes: tensor.bytes,
    };
    let chunks: Vec<Chunk> = tensors.iter().map(chunk).collect();
    let loaded = artifact
        .weights()
        .map(|weights| store.load(&weights, &chunks, &AtomicBool::new(false)).unwrap());
    let (mut bytes_read, mut bytes_shared) = (0, 0);
    let mut parameters = Vec::new();
    if let Some(loaded) = loaded {
        bytes_read = loaded.report.bytes_read;
        bytes_shared = loaded.report.bytes_shared;
        let bound = |(tensor, placed): (&TensorEntry, memory::Placement)| BoundTensor {
            name: tensor.name.clone(),
            dtype: tensor.dtype().unwrap(),
            dims: tensor.dims.clone(),
            region: placed.region,
            offset: placed.offset,
            bytes: placed.bytes,
        };
        parameters = tensors.iter().zip(loaded.placed).map(bound).collect();
    }
    let names = tensors.iter().map(|tensor| tensor.name.clone()).collect();
    let request = LoadRequest { graph: artifact.graph(), parameters, ..LoadRequest::default() };
    let session = engine.load(&request).unwrap();
    Bound { session, bytes_read, bytes_shared, names }
}
