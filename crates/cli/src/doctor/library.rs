//! The engines' libraries.

use std::path::PathBuf;

use engine::Engine;
use engine_onnx::OnnxEngine;

use super::{Check, Verdict};
use crate::serve::library_search;

/// Finds and really loads ONNX Runtime.
pub(super) fn check(explicit: Option<PathBuf>) -> Check {
    match OnnxEngine::open(&library_search(explicit)) {
        Ok(engine) => Check::new(
            "ONNX Runtime",
            Verdict::Ok,
            format!("{} in {}", engine.version(), engine.library().display()),
            "It loads; ONNX models can be served.",
        ),
        Err(error) => Check::new(
            "ONNX Runtime",
            Verdict::Fail,
            "not usable",
            format!("No model can be served: {error}."),
        ),
    }
}
