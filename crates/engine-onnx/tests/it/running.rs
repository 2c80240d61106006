//! Runs: strings, outputs that are inputs or parameters, errors.

use base::{DType, ErrorKind, NamedTensor, Tensor};
use bytes::Bytes;
use engine::conformance::resident_bytes;

use crate::support::{bound_floats, child, floats, load, load_with, names};

fn texts(name: &str, texts: &[&[u8]]) -> NamedTensor {
    let strings: Vec<Bytes> = texts.iter().map(|text| Bytes::copy_from_slice(text)).collect();
    NamedTensor::new(name, Tensor::from_strings([texts.len()].as_slice(), strings).unwrap())
}

#[test]
fn strings_are_joined() {
    let session = load("texts");
    let run = |a: &[&[u8]], b: &[&[u8]]| session.run(&[texts("a", a), texts("b", b)], &[]).unwrap();
    let joined = run(&[b"mill", b"", b"a\0"], &["pönd".as_bytes(), b"x", b"\0b"]);
    assert_eq!(joined, [texts("y", &["millpönd".as_bytes(), b"x", b"a\0\0b"])]);
    assert_eq!(run(&[], &[]), [texts("y", &[])]);
}

/// An output that is an input or a parameter does not point into memory that may be released.
#[test]
fn outputs_that_are_inputs_or_parameters_are_copies() {
    let half = bound_floats("half", &[1], &[0.5]);
    let parameter = half.as_slice().as_ptr() as usize;
    let session = load_with("through", vec![half]).unwrap();
    let input = floats("x", &[3], &[1.0, 2.0, 3.0]);
    let address = |tensor: &Tensor| tensor.bytes().unwrap().as_ptr() as usize;
    let sent = address(&input.tensor);
    let answers = session.run(std::slice::from_ref(&input), &[]).unwrap();
    let expected = [input, floats("twice", &[3], &[2.0, 4.0, 6.0]), floats("half", &[1], &[0.5])];
    assert_eq!(answers, expected);
    assert_ne!(address(&answers[0].tensor), sent);
    assert_ne!(address(&answers[2].tensor), parameter);
    drop((session, expected));
    assert_eq!(answers[0].tensor.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!(answers[2].tensor.to_vec::<f32>().unwrap(), [0.5]);
}

#[test]
fn inputs_come_in_any_order() {
    let session = load("symbols");
    let (a, b) = (floats("a", &[1, 2], &[1.0, 2.0]), floats("b", &[1, 2], &[10.0, 20.0]));
    let expected = [floats("y", &[1, 2], &[11.0, 22.0])];
    assert_eq!(session.run(&[a.clone(), b.clone()], &[]).unwrap(), expected);
    assert_eq!(session.run(&[b, a], &names(&["y"])).unwrap(), expected);
}

#[test]
fn a_bool_is_zero_or_one() {
    let session = load("echo-bool");
    let tensor =
        Tensor::from_bytes(DType::Bool, [2].as_slice(), Bytes::from_static(&[1, 2])).unwrap();
    let error = session.run(&[NamedTensor::new("x", tensor)], &[]).unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::InvalidArgument, "input \"x\": a bool element is neither 0 nor 1")
    );
}

#[test]
fn failures_name_the_operator() {
    let session = load("reshape");
    let shape = NamedTensor::new("shape", Tensor::from_vec([2].as_slice(), vec![2i64, 2]).unwrap());
    let error = session.run(&[floats("x", &[3], &[0.0; 3]), shape], &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(error.message().starts_with("operator Reshape \"fold\": "), "{error}");
    assert!(
        !error.message().contains("onnxruntime_src") && !error.message().contains('\n'),
        "{error}"
    );
    let wide = Tensor::from_vec([1].as_slice(), vec![0f64]).unwrap();
    let error = load("any_rank").run(&[NamedTensor::new("x", wide)], &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

/// Variable that is set in the process that measures memory.
const COUNT: &str = "MILLPOND_TEST_COUNT";

#[test]
fn nothing_leaks() {
    child("running::child_runs_often", COUNT, "1".as_ref());
}

/// Repeats successful runs, failed runs and refused requests a thousand times: if one path leaked
/// its tensors, the process would grow by more than is allowed.
#[test]
fn child_runs_often() {
    if std::env::var_os(COUNT).is_none() {
        return;
    }
    const FLOATS: usize = 16 << 10;
    const TIMES: usize = 1000;
    const GROWTH_MAX: usize = TIMES * FLOATS * 4 / 2;
    let (echo, twice, reshape) = (load("echo-float32"), load("two_outputs"), load("reshape"));
    let x = || floats("x", &[FLOATS], &vec![1.0; FLOATS]);
    let shape = NamedTensor::new("shape", Tensor::from_vec([2].as_slice(), vec![2i64, 3]).unwrap());
    let long = texts("x", &[&[b'a'; FLOATS]]);
    let strings = load("echo-string");
    let round = || {
        echo.run(&[x()], &[]).unwrap();
        assert_eq!(twice.run(&[x()], &names(&["plus"])).unwrap().len(), 1);
        assert!(twice.run(&[x()], &names(&["absent"])).is_err());
        assert!(reshape.run(&[x(), shape.clone()], &[]).is_err());
        assert_eq!(strings.run(std::slice::from_ref(&long), &[]).unwrap()[0].tensor, long.tensor);
    };
    (0..10).for_each(|_| round());
    let before = resident_bytes();
    (0..TIMES).for_each(|_| round());
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "grown by {grown} bytes in {TIMES} rounds");
}
