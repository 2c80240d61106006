//! A compiled package. It holds native code for one machine, so it is not among the tests' files:
//! `make test-rust` compiles one (`scripts/compile_package.py`), and `MILLPOND_TEST_PACKAGE` names
//! it. It has `relu(linear(x)), x.sum(1)` for x of [n, 4], all weights 0.5 and biases 1, and then
//! writes zeros to x. Without it these tests do nothing.

use base::ErrorKind;
use engine::{Device, Engine, LoadRequest, SessionOptions, SignatureFile};

use crate::support::{floats, text, torch};

#[test]
fn a_trusted_package_runs() {
    let Some(graph) = std::env::var_os("MILLPOND_TEST_PACKAGE") else {
        eprintln!("SKIPPED: MILLPOND_TEST_PACKAGE names no compiled package; run make test-rust");
        return;
    };
    let load = |trusted, signature| {
        let options = SessionOptions { trusted, signature, ..SessionOptions::default() };
        torch().load(&LoadRequest {
            graph: graph.clone().into(),
            options,
            ..LoadRequest::default()
        })
    };
    let file = || SignatureFile {
        inputs: vec![text("x", "float32", Some(&[-1, 4]))],
        outputs: vec![text("y", "float32", Some(&[-1, 3])), text("sum", "float32", Some(&[-1]))],
    };
    assert_eq!(load(false, file()).err().unwrap().kind(), ErrorKind::PermissionDenied);
    let silent = load(true, SignatureFile::default()).err().unwrap();
    assert!(silent.message().contains("[signature]"), "{silent}");
    let session = load(true, file()).unwrap();
    for rows in [1, 3] {
        let x = floats("x", &[rows, 4], &vec![1.0; rows * 4]);
        let got = session.run(std::slice::from_ref(&x), &[]).unwrap();
        assert_eq!(
            got,
            [
                floats("y", &[rows, 3], &vec![3.0; rows * 3]),
                floats("sum", &[rows], &vec![4.0; rows])
            ]
        );
        assert_eq!(x, floats("x", &[rows, 4], &vec![1.0; rows * 4]), "the input is as before");
    }
    let options = SessionOptions {
        trusted: true,
        signature: file(),
        device: Device::Cuda(0),
        ..SessionOptions::default()
    };
    let elsewhere = torch().load(&LoadRequest {
        graph: graph.clone().into(),
        options,
        ..LoadRequest::default()
    });
    let error = elsewhere.err().unwrap();
    assert!(error.message().contains("compiled for the device \"cpu\""), "{error}");
    let vague = SignatureFile { inputs: vec![text("x", "float32", None)], ..file() };
    let error = load(true, vague).err().unwrap();
    assert!(error.message().contains("dtype and shape"), "{error}");
}
