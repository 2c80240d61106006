use base::ErrorKind;
use engine::conformance::{Fixture, check};
use engine::{Device, Engine, LibrarySearch};
use engine_tensorflow::TensorFlowEngine;

use crate::support::{engine, saved_models};

#[test]
fn engine_conforms() {
    let Some(engine) = engine() else { return };
    // The suite measures memory, so no other test may run in its process.
    if std::env::var_os(crate::threads::CHILD).is_none() {
        return crate::threads::run_child("conformance::engine_conforms");
    }
    let scratch = tempfile::tempdir().unwrap();
    check(
        &engine,
        &Fixture {
            graphs: saved_models().join("graphs"),
            extension: "savedmodel/saved_model.pb".to_owned(),
            scratch: scratch.path().to_owned(),
            signatures: Default::default(),
            device: Device::Cpu,
        },
    );
}

#[test]
fn opening_a_missing_library_is_an_error() {
    let explicit = Some("/nonexistent/tensorflow".into());
    let engine = TensorFlowEngine::new(LibrarySearch { explicit, ..LibrarySearch::default() });
    assert_eq!(engine.open_library().unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn the_library_opens_without_a_model() {
    let Some(engine) = engine() else { return };
    engine.open_library().unwrap();
    assert_ne!(engine.version(), "not loaded");
}
