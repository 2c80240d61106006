use std::path::{Path, PathBuf};

use base::{NamedTensor, Tensor};
use engine::{Engine, LibrarySearch, LoadRequest, Session, SessionOptions};
use engine_tensorflow::TensorFlowEngine;

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
