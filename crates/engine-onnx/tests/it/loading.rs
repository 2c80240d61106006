//! Signatures and metadata of models, and models that are refused.

use std::sync::Arc;
use std::time::Duration;

use base::{DType, Dim, ErrorKind};
use engine::threads::idle_threads;
use engine::{BoundTensor, Engine, LoadRequest, SessionOptions};
use engine_onnx::publish::build::{ModelBuilder, Node, OnnxParameter};
use os::background::{Attempt, BackgroundRunner};

use crate::support::{bound_floats, child, floats, load, load_with, models, onnx, pool, refusal};

fn dynamic(name: &str) -> Dim {
    Dim::Dynamic((!name.is_empty()).then(|| name.to_owned()))
}

#[test]
fn axes_have_their_symbols() {
    let session = load("symbols");
    let signature = session.signature();
    assert_eq!(signature.inputs[0].shape, Some(vec![dynamic("rows"), dynamic("columns")]));
    assert_eq!(signature.inputs[1].shape, Some(vec![dynamic(""), dynamic("columns")]));
    let (a, b) = (floats("a", &[2, 2], &[1.0, 2.0, 3.0, 4.0]), floats("b", &[1, 3], &[0.0; 3]));
    let error = signature.check_inputs(&[a, b]).unwrap_err();
    assert!(error.message().contains("axis \"columns\""), "{error}");
}

#[test]
fn any_rank_is_accepted() {
    let session = load("any_rank");
    assert_eq!(session.signature().inputs[0].shape, None);
    for shape in [&[][..], &[1], &[1, 1, 1]] {
        let input = floats("x", shape, &[2.0]);
        session.signature().check_inputs(std::slice::from_ref(&input)).unwrap();
        assert_eq!(session.run(&[input], &[]).unwrap(), [floats("y", shape, &[-2.0])]);
    }
}

#[test]
fn an_initialiser_that_is_an_input_is_optional() {
    let session = load("default");
    let specs = &session.signature().inputs;
    assert_eq!(
        [("x", false), ("bias", true)],
        [0, 1].map(|at| (specs[at].name.as_str(), specs[at].optional))
    );
    let (x, bias) = (floats("x", &[1], &[1.0]), floats("bias", &[1], &[5.0]));
    session.signature().check_inputs(std::slice::from_ref(&x)).unwrap();
    assert_eq!(session.run(std::slice::from_ref(&x), &[]).unwrap(), [floats("y", &[1], &[11.0])]);
    assert_eq!(session.run(&[x.clone(), bias], &[]).unwrap(), [floats("y", &[1], &[6.0])]);
    // Bound, it is a parameter.
    let session = load_with("default", vec![bound_floats("bias", &[1], &[20.0])]).unwrap();
    assert_eq!(session.signature().inputs.len(), 1);
    assert_eq!(session.run(&[x], &[]).unwrap(), [floats("y", &[1], &[21.0])]);
}

#[test]
fn metadata_comes_from_the_model() {
    let parameters = vec![bound_floats("half", &[1], &[0.5]), bound_floats("two", &[1], &[2.0])];
    let session = load_with("half_plus_two", parameters).unwrap();
    let get = |key: &str| session.metadata().get(key).map(String::as_str);
    assert_eq!(get("onnx.producer"), Some("millpond tests"));
    assert_eq!(get("onnx.graph"), Some("half_plus_two"));
    assert_eq!(get("onnx.description"), Some("half of x plus two"));
    assert_eq!(get("labels"), Some("none"));
    assert_eq!(get("onnx.domain"), None);
}

#[test]
fn only_tensors_are_served() {
    let error = refusal(load_with("sequence_in", vec![]));
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("input \"list\" is a sequence"), "{error}");
    let session = load("sequence_out");
    assert_eq!(
        session.signature().outputs.iter().map(|spec| &spec.name).collect::<Vec<_>>(),
        ["y"]
    );
    assert_eq!(
        session.run(&[floats("x", &[1], &[1.0])], &[]).unwrap(),
        [floats("y", &[1], &[-1.0])]
    );
    let error = refusal(load_with("only_sequence_out", vec![]));
    assert!(error.message().contains("no output"), "{error}");
}

#[test]
fn a_refusal_names_the_error_of_the_model() {
    let error = refusal(load_with("unknown_operator", vec![]));
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("NoSuchOperator"), "{error}");
    assert!(error.message().ends_with("or install a newer ONNX Runtime"), "{error}");
    assert_eq!(error.message().matches("unknown_operator.onnx").count(), 1, "{error}");
    let error = refusal(load_with("absent", vec![]));
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("absent.onnx"), "{error}");
    let options = SessionOptions { intra_op_threads: 0, ..Default::default() };
    let graph = models().join("default.onnx");
    let error = refusal(onnx().load(&LoadRequest { graph, options, ..LoadRequest::default() }));
    assert!(error.message().contains("threads"), "{error}");
}

#[test]
fn a_parameter_that_contradicts_the_graph_is_refused() {
    let (half, two) = (bound_floats("half", &[1], &[0.5]), bound_floats("two", &[1], &[2.0]));
    let with = |other: BoundTensor| {
        refusal(load_with("half_plus_two", vec![half.clone(), two.clone(), other]))
    };
    let nul = BoundTensor { name: "ha\0lf".into(), ..half.clone() };
    for (error, why) in [
        (with(half.clone()), "\"half\" is given twice"),
        (with(bound_floats("third", &[1], &[3.0])), "no parameter \"third\""),
        (with(nul), "no parameter \"ha\\0lf\""),
        (
            refusal(load_with("half_plus_two", vec![half.clone()])),
            "\"two\" of the graph is missing",
        ),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
        assert!(error.message().contains(why), "{why} is not in {error:?}");
    }
    let wide = bound_floats("half", &[2], &[0.5, 0.5]);
    let misaligned = BoundTensor { offset: 1, bytes: 4, dims: vec![1], ..wide };
    let error = refusal(load_with("half_plus_two", vec![misaligned, two.clone()]));
    assert!(error.message().contains("not aligned"), "{error}");
}

#[test]
fn threads_inside_a_run_are_as_configured() {
    let options = SessionOptions { intra_op_threads: 2, inter_op_threads: 2, ..Default::default() };
    let graph = models().join("two_outputs.onnx");
    let session = onnx().load(&LoadRequest { graph, options, ..LoadRequest::default() }).unwrap();
    let answer = session.run(&[floats("x", &[1], &[4.0])], &[]).unwrap();
    assert_eq!(answer, [floats("half", &[1], &[2.0]), floats("plus", &[1], &[6.0])]);
}

/// Variable that is set in the process that lists its threads.
const THREADS: &str = "MILLPOND_TEST_THREADS";

/// On a busy machine, a run would wait for threads of idle priority.
#[test]
fn a_background_load_starts_ordinary_threads() {
    child("loading::child_loads_in_the_background", THREADS, "1".as_ref());
}

#[test]
fn child_loads_in_the_background() {
    if std::env::var_os(THREADS).is_none() {
        return;
    }
    let mut runner = BackgroundRunner::new("test", "loading", Duration::from_secs(3600));
    let engine = onnx();
    let load = move |_: &Attempt| {
        let options = SessionOptions { intra_op_threads: 3, ..Default::default() };
        let graph = models().join("two_outputs.onnx");
        engine.load(&LoadRequest { graph, options, ..LoadRequest::default() })
    };
    let session = runner.run("test", &Arc::default(), load).unwrap();
    assert_eq!(idle_threads(), ["test-idle"]);
    session.run(&[floats("x", &[1], &[4.0])], &[]).unwrap();
}

/// The optimiser folds the normalisation into the convolution. It reads the weights file for that,
/// which a published version has beside its graph. The output is that of an ordinary load.
#[test]
fn folding_optimisers_see_bound_parameters() {
    let dir = tempfile::tempdir().unwrap();
    let graph = dir.path().join("folding.onnx");
    std::fs::copy(models().join("folding.onnx"), &graph).unwrap();
    let shapes: [(&str, &[usize]); 6] = [
        ("weight", &[8, 4, 3, 3]),
        ("bias", &[8]),
        ("scale", &[8]),
        ("shift", &[8]),
        ("mean", &[8]),
        ("variance", &[8]),
    ];
    let (mut weights, mut parameters) = (Vec::new(), Vec::new());
    for (at, (name, dims)) in shapes.into_iter().enumerate() {
        let count: usize = dims.iter().product();
        let elements: Vec<f32> =
            (0..count).map(|i| 0.1 + ((i * 7 + at * 3) % 11) as f32 / 11.0).collect();
        weights.resize(at * 4096, 0);
        weights.extend(elements.iter().flat_map(|element| element.to_le_bytes()));
        parameters.push(bound_floats(name, dims, &elements));
    }
    std::fs::write(dir.path().join("weights.bin"), weights).unwrap();
    let load = |parameters| {
        onnx()
            .load(&LoadRequest { graph: graph.clone(), parameters, ..LoadRequest::default() })
            .unwrap()
    };
    let x: Vec<f32> = (0..100).map(|i| i as f32 / 50.0 - 1.0).collect();
    let run = |session: &dyn engine::Session| {
        session.run(&[floats("x", &[1, 4, 5, 5], &x)], &[]).unwrap()[0]
            .tensor
            .to_vec::<f32>()
            .unwrap()
    };
    let used_before = pool().stats().used;
    let (ours, ordinary) = (run(&*load(parameters)), run(&*load(vec![])));
    assert_eq!(ours, ordinary);
    assert!(ours.iter().any(|value| value.abs() > 0.1), "{ours:?}");
    assert!(pool().stats().used <= used_before, "the regions went back");
}

/// The optimiser moves one transpose past the sum to the other one. Then it transposes the
/// parameter, whose name stays.
#[test]
fn a_parameter_between_transposes_keeps_its_layout() {
    let dir = tempfile::tempdir().unwrap();
    let graph = dir.path().join("graph.onnx");
    let shift = [1.0, 2.0, 3.0, 4.0];
    let bytes: Vec<u8> = shift.iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
    std::fs::write(dir.path().join("weights.bin"), bytes).unwrap();
    let turn = |from, to| Node::new("Transpose", &[from], &[to]).ints("perm", &[1, 0]);
    let square = [Dim::Fixed(2), Dim::Fixed(2)];
    let model = || {
        ModelBuilder::new("turned", 17)
            .node(turn("x", "a"))
            .node(Node::new("Add", &["a", "shift"], &["b"]))
            .node(turn("b", "y"))
            .input("x", DType::F32, &square)
            .output("y", DType::F32, &square)
    };
    let parameter = OnnxParameter::new("shift", DType::F32, [2usize, 2]);
    let beside = model().external(&parameter, "weights.bin", 0).unwrap();
    for model in [beside, model().floats("shift", &[2, 2], &shift)] {
        std::fs::write(&graph, model.encode()).unwrap();
        let parameters = vec![bound_floats("shift", &[2, 2], &shift)];
        let request = LoadRequest { graph: graph.clone(), parameters, ..LoadRequest::default() };
        let session = onnx().load(&request).unwrap();
        let x = floats("x", &[2, 2], &[10.0, 20.0, 30.0, 40.0]);
        let expected = floats("y", &[2, 2], &[11.0, 23.0, 32.0, 44.0]);
        assert_eq!(session.run(&[x], &[]).unwrap(), [expected]);
    }
}
