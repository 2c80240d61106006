//! The library, the graphs, and parameters in a pool.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use base::{DType, NamedTensor, Result, Tensor};
use engine::{BoundTensor, Engine, LibrarySearch, LoadRequest, Session};
use engine_onnx::OnnxEngine;
use memory::{PoolConfig, SlotPool};
use os::Rate;

/// Variable with the path of the library of the tests.
pub(crate) const NAMED: &str = "MILLPOND_TEST_ONNXRUNTIME";

/// Path of the library of the tests.
pub(crate) fn search() -> LibrarySearch {
    LibrarySearch {
        explicit: std::env::var_os(NAMED).map(PathBuf::from),
        start_dirs: vec![PathBuf::from(env!("CARGO_MANIFEST_DIR"))],
        ..LibrarySearch::default()
    }
}

pub(crate) fn onnx() -> OnnxEngine {
    OnnxEngine::open(&search()).unwrap_or_else(|e| panic!("these tests need ONNX Runtime: {e}"))
}

pub(crate) fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

pub(crate) fn load_with(name: &str, parameters: Vec<BoundTensor>) -> Result<Box<dyn Session>> {
    let graph = models().join(format!("{name}.onnx"));
    onnx().load(&LoadRequest { graph, parameters, ..LoadRequest::default() })
}

pub(crate) fn load(name: &str) -> Box<dyn Session> {
    load_with(name, vec![]).unwrap()
}

/// Returns the message of a load that must fail.
#[track_caller]
pub(crate) fn refusal(loaded: Result<Box<dyn Session>>) -> base::Error {
    let error = loaded.err().expect("the load must fail");
    assert!(!error.message().contains(['\n', '\r']), "not one line: {error:?}");
    error
}

pub(crate) fn pool() -> Arc<SlotPool> {
    static POOL: OnceLock<Arc<SlotPool>> = OnceLock::new();
    let config =
        || PoolConfig { bytes_max: 256 << 20, huge_pages: false, fault_rate: Rate::unlimited() };
    POOL.get_or_init(|| SlotPool::new(config()).unwrap()).clone()
}

pub(crate) fn bound_floats(name: &str, dims: &[usize], elements: &[f32]) -> BoundTensor {
    let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
    let mut region = pool().allocate(bytes.len()).unwrap();
    region.as_mut_slice().copy_from_slice(&bytes);
    let region = Arc::new(region.freeze());
    BoundTensor {
        name: name.into(),
        dtype: DType::F32,
        dims: dims.into(),
        region,
        offset: 0,
        bytes: bytes.len(),
    }
}

pub(crate) fn floats(name: &str, shape: &[usize], elements: &[f32]) -> NamedTensor {
    NamedTensor::new(name, Tensor::from_vec(shape, elements.to_vec()).unwrap())
}

pub(crate) fn names(names: &[&str]) -> Vec<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

/// Runs one test of this binary in a process of its own, with `key` set to `value`, and returns its
/// output. The test does its work only if `key` is set.
pub(crate) fn child(test: &str, key: &str, value: &std::ffi::OsStr) -> String {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(key, value)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{test}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}
