//! ONNX Runtime conforms to the suite of engines.

use base::DType;
use engine::conformance::{Fixture, check};
use engine::{Device, Engine};

use crate::support::{child, models, onnx};

/// Variable that is set in the process that runs the suite. The suite measures memory, so no other
/// test may run in that process.
const CHILD: &str = "MILLPOND_TEST_CONFORMS";

#[test]
fn onnxruntime_conforms() {
    if std::env::var_os(CHILD).is_none() {
        let text = child("conformance::onnxruntime_conforms", CHILD, "1".as_ref());
        assert!(text.contains("1 passed"), "{text}");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let engine = onnx();
    let dtypes = engine.capabilities().dtypes;
    assert_eq!(
        dtypes.len(),
        DType::ALL.len() - 2,
        "all but complex numbers, which the library has no tensors of"
    );
    check(
        &engine,
        &Fixture {
            graphs: models(),
            extension: "onnx".into(),
            scratch: scratch.path().to_owned(),
            signatures: Default::default(),
            device: Device::Cpu,
        },
    );
}
