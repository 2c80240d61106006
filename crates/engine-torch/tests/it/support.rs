//! The engine, modules written for a test, and an arena to load them into.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{NamedTensor, Result, Tensor};
use engine::{
    Arena, Device, Engine, LibrarySearch, LoadRequest, Session, SessionOptions, SignatureFile,
    TensorText,
};
use engine_torch::TorchEngine;
use engine_torch::build::{self, TorchParameter};
use memory::{ParameterStore, PoolConfig, SlotPool, StoreConfig};
use os::Rate;

/// Path of the shim of the tests.
pub(crate) fn search() -> LibrarySearch {
    LibrarySearch {
        explicit: std::env::var_os("MILLPOND_TEST_LIBTORCH").map(PathBuf::from),
        start_dirs: vec![PathBuf::from(env!("CARGO_MANIFEST_DIR"))],
        ..LibrarySearch::default()
    }
}

/// Returns the engine, with its library found.
pub(crate) fn torch() -> TorchEngine {
    TorchEngine::find_library(&search())
        .unwrap_or_else(|e| panic!("these tests need LibTorch, run `make torch`: {e}"));
    TorchEngine::new(search())
}

/// Variable with the device that sessions are loaded to; the processor by default.
pub(crate) const DEVICE: &str = "MILLPOND_TEST_DEVICE";

/// Returns the device that sessions are loaded to; the tests in `device` run others on it.
pub(crate) fn device() -> Device {
    std::env::var(DEVICE).map_or(Device::Cpu, |device| device.parse().unwrap())
}

/// A pool of its own, so that a test counts only itself.
pub(crate) fn store(bytes_max: u64) -> Arc<ParameterStore> {
    let config = PoolConfig { bytes_max, huge_pages: false, fault_rate: Rate::unlimited() };
    let pool = SlotPool::new(config).unwrap();
    ParameterStore::new(pool, StoreConfig { read_rate: Rate::unlimited(), direct: true })
}

/// A module in a directory that is removed with it.
pub(crate) struct Written {
    pub(crate) dir: tempfile::TempDir,
}

impl Written {
    pub(crate) fn new(source: &str, parameters: Vec<TorchParameter>) -> Written {
        let written = Written { dir: tempfile::tempdir().unwrap() };
        build::module(&torch(), &written.path(), source, parameters).unwrap();
        written
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("model.pt")
    }

    pub(crate) fn load(&self) -> Box<dyn Session> {
        self.try_load(SignatureFile::default()).unwrap()
    }

    pub(crate) fn try_load(&self, signature: SignatureFile) -> Result<Box<dyn Session>> {
        load(&self.path(), signature, None)
    }

    /// Loads into an arena of `store`'s pool.
    pub(crate) fn load_into(&self, store: &Arc<ParameterStore>) -> Result<Box<dyn Session>> {
        let bytes = torch().arena_bytes(&self.path())?;
        let arena = Arena { store: store.clone(), bytes, stop: Arc::default() };
        load(&self.path(), SignatureFile::default(), Some(arena))
    }
}

pub(crate) fn load(
    graph: &Path,
    signature: SignatureFile,
    arena: Option<Arena>,
) -> Result<Box<dyn Session>> {
    let options = SessionOptions { signature, device: device(), ..SessionOptions::default() };
    torch().load(&LoadRequest { graph: graph.to_owned(), arena, options, ..LoadRequest::default() })
}

/// Returns an entry of `[signature]`; a shape of `None` is any.
pub(crate) fn text(name: &str, dtype: &str, shape: Option<&[i64]>) -> TensorText {
    TensorText { name: name.into(), dtype: Some(dtype.into()), shape: shape.map(<[i64]>::to_vec) }
}

pub(crate) fn floats(name: &str, shape: &[usize], elements: &[f32]) -> NamedTensor {
    NamedTensor::new(name, Tensor::from_vec(shape, elements.to_vec()).unwrap())
}

/// Runs with one input and one output.
pub(crate) fn answer(session: &dyn Session, input: NamedTensor) -> Vec<f32> {
    session.run(&[input], &[]).unwrap().remove(0).tensor.to_vec().unwrap()
}

/// Runs one test of this binary in a process of its own, with `key` set to `value`. The test does
/// its work only if `key` is set.
pub(crate) fn child(test: &str, key: &str, value: &std::ffi::OsStr) {
    let out = children(&["--exact", test], &[(key, value)]);
    assert!(out.contains("1 passed"), "{test}: {out}");
}

/// Runs tests of this binary in a process of their own with `environment`, and returns their
/// output.
pub(crate) fn children(which: &[&str], environment: &[(&str, &std::ffi::OsStr)]) -> String {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(which)
        .args(["--nocapture", "--test-threads=1"])
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{which:?}: {}: {out}\n{err}", output.status);
    out.into_owned()
}
