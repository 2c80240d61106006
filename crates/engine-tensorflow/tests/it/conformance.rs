use engine::Device;
use engine::conformance::{Fixture, check};

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
