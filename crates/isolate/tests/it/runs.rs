//! Runs that succeed or fail as in the server's own process.

use std::sync::Arc;

use base::{DType, ErrorKind, NamedTensor, Tensor};
use bytes::Bytes;
use engine::{Engine, LoadRequest};

use crate::support::{ECHO, Host, vector};

#[test]
fn facts_and_answers_are_the_engines_own() {
    let host = Host::new();
    let text = format!("{ECHO}metadata author a test\n");
    let session = host.load(&text);
    let graph = host.graph(&text);
    let own = host.engine.load(&LoadRequest { graph, ..LoadRequest::default() }).unwrap();
    assert_eq!(session.signature(), own.signature());
    assert_eq!(session.metadata(), own.metadata());
    let x = vector(&[1.0, -2.5]);
    let wanted: [Arc<str>; 1] = ["y".into()];
    assert_eq!(session.run(&x, &wanted).unwrap(), own.run(&x, &wanted).unwrap());
    let refused = session.run(&x, &["z".into()]).unwrap_err();
    assert_eq!(refused, own.run(&x, &["z".into()]).unwrap_err());
}

#[test]
fn every_element_type_crosses_the_process() {
    let host = Host::new();
    for dtype in DType::ALL {
        let text = ECHO.replace("float32", dtype.name());
        let session = host.load(&text);
        let tensor = match dtype.bytes_for(5) {
            Some(count) => {
                let bytes: Vec<u8> = (0..count as u8).map(|byte| byte & 1).collect();
                Tensor::from_bytes(dtype, [5].as_slice(), bytes.into()).unwrap()
            }
            None => {
                let strings = ["", "a", "bc", "\0", "é"].map(|text| Bytes::from(text.to_owned()));
                Tensor::from_strings([5].as_slice(), strings.to_vec()).unwrap()
            }
        };
        let x = [NamedTensor::new("x", tensor)];
        assert_eq!(session.run(&x, &[]).unwrap()[0].tensor, x[0].tensor, "{dtype}");
    }
}

/// Requests have at most 64 axes, but a model may reshape to more.
#[test]
fn tensors_of_many_axes_cross_the_process() {
    let host = Host::new();
    let session = host.load(&ECHO.replace("float32 n", "float32 *"));
    let x = [NamedTensor::new("x", Tensor::from_vec(vec![1usize; 100], vec![7f32]).unwrap())];
    assert_eq!(session.run(&x, &[]).unwrap()[0].tensor, x[0].tensor);
}

/// The maximum of a message is 1024. `column` adds an axis.
#[test]
fn an_output_of_too_many_axes_is_an_error_of_its_run() {
    let host = Host::new();
    let text = "millpond-fake 1\ninput x float32 *\noutput y float32 *\ny = column x\n";
    let session = host.load(text);
    let run = |rank: usize| {
        let tensor = Tensor::from_vec(vec![1usize; rank], vec![7f32]).unwrap();
        session.run(&[NamedTensor::new("x", tensor)], &[])
    };
    let error = run(1024).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.message().contains("\"y\" has 1025 axes"), "{error}");
    assert_eq!(run(1023).unwrap()[0].tensor.shape().len(), 1024);
    assert_eq!(host.restarts(), 0);
}

#[test]
fn large_tensors_cross_from_many_threads() {
    let host = Host::new();
    let session = host.load(ECHO);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let session = &session;
            scope.spawn(move || {
                for round in 0..5 {
                    let x = vector(&vec![(thread * 100 + round) as f32; 1 << 20]);
                    assert_eq!(session.run(&x, &[]).unwrap()[0].tensor, x[0].tensor);
                }
            });
        }
    });
    assert!(host.isolation.resident_bytes() > 0);
}

#[test]
fn published_parameters_are_loaded_by_the_process() {
    let host = Host::new();
    let dir = host.dir().join("1");
    engine::fake::publish::affine(&dir, 0.5, 2.0).unwrap();
    let artifact = engine::layout::Artifact::open(&dir).unwrap();
    let session = host.open(artifact.graph()).unwrap();
    let outputs = session.run(&vector(&[3.0]), &[]).unwrap();
    assert_eq!(outputs[0].tensor.to_vec::<f32>().unwrap(), [3.5]);
}

#[test]
fn a_refused_load_has_the_engines_reason() {
    let host = Host::new();
    let refused = host.open(host.graph(&format!("{ECHO}fail-load no such operator\n")));
    let error = refused.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().ends_with("no such operator"), "{error}");
    let missing = host.open(host.dir().join("none")).err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

#[test]
fn streams_of_an_isolated_model_are_refused() {
    let host = Host::new();
    let refused = host.load(ECHO).fork().err().unwrap();
    assert!(refused.message().contains("isolate = false"), "{refused}");
}
