//! The engines' libraries.

use std::path::PathBuf;

use engine::Engine;
use engine_onnx::OnnxEngine;
use engine_tensorflow::TensorFlowEngine;
use engine_torch::TorchEngine;

use super::Check;
use crate::environment::{library_search, tensorflow_search, torch_search};

/// Finds and loads ONNX Runtime.
pub(super) fn check(explicit: Option<PathBuf>) -> Check {
    match OnnxEngine::open(&library_search(explicit)) {
        Ok(engine) => Check::ok(
            "ONNX Runtime",
            format!("{} in {}", engine.version(), engine.library().display()),
            "It loads; ONNX models can be served.",
        ),
        Err(error) => {
            Check::fail("ONNX Runtime", "not usable", format!("No model can be served: {error}."))
        }
    }
}

/// Finds the LibTorch shim without opening it, which takes some seconds and hundreds of megabytes.
/// The server opens it with the first TorchScript model.
pub(super) fn torch(explicit: Option<PathBuf>) -> Check {
    match TorchEngine::find_library(&torch_search(explicit)) {
        Ok(path) => Check::ok(
            "LibTorch",
            format!("shim in {}", path.display()),
            "TorchScript models can be served; the library is opened when the first of them loads.",
        ),
        Err(error) => Check::warn(
            "LibTorch",
            "not there",
            format!(
                "TorchScript models (model.pt) cannot be served; ONNX models can. {}.",
                capitalised(error.message())
            ),
        ),
    }
}

/// Finds TensorFlow without opening it, which takes hundreds of megabytes. The server opens it with
/// the first SavedModel.
pub(super) fn tensorflow(explicit: Option<PathBuf>) -> Check {
    match TensorFlowEngine::find_library(&tensorflow_search(explicit)) {
        Ok(path) => Check::ok(
            "TensorFlow",
            format!("library in {}", path.display()),
            "SavedModels can be served; the library is opened when the first of them loads.",
        ),
        Err(error) => Check::warn(
            "TensorFlow",
            "not there",
            format!(
                "SavedModels cannot be served; ONNX models can. {}.",
                capitalised(error.message())
            ),
        ),
    }
}

/// Returns `text` with a capital first letter, as a sentence.
fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
