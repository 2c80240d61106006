//! ONNX Runtime conforms to the suite of engines.

use base::DType;
use engine::conformance::{Fixture, check};
use engine::{Device, Engine};

use crate::support::{models, onnx};

#[test]
fn onnxruntime_conforms() {
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
