//! The engines' libraries.

use engine::{Engine, LibrarySearch};
use engine_onnx::OnnxEngine;
use engine_tensorflow::TensorFlowEngine;
use engine_torch::TorchEngine;

use crate::Check;

/// Finds and loads ONNX Runtime.
pub(crate) fn check(search: &LibrarySearch) -> Check {
    match OnnxEngine::open(search) {
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
pub(crate) fn torch(search: &LibrarySearch) -> Check {
    match TorchEngine::find_library(search) {
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
pub(crate) fn tensorflow(search: &LibrarySearch) -> Check {
    match TensorFlowEngine::find_library(search) {
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
