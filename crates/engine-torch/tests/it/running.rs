//! Inputs and outputs.

use base::{DType, Dim, ErrorKind, NamedTensor, Tensor};
use engine::{Session, SignatureFile};
use engine_torch::build::TorchParameter;

use crate::support::{Written, answer, floats, text};

fn names(session: &dyn Session) -> Vec<String> {
    session.signature().outputs.iter().map(|spec| spec.name.clone()).collect()
}

fn shaped(shape: &[i64]) -> SignatureFile {
    SignatureFile { inputs: vec![text("x", "float32", Some(shape))], outputs: vec![] }
}

#[track_caller]
fn output_names(source: &str, expected: &[&str]) -> Box<dyn Session> {
    let session = Written::new(source, vec![]).try_load(shaped(&[-1])).unwrap();
    assert_eq!(names(&*session), expected);
    let got = session.run(&[floats("x", &[2], &[1.0, 2.0])], &[]).unwrap();
    assert_eq!(got.iter().map(|output| &*output.name).collect::<Vec<_>>(), expected);
    session
}

#[test]
fn outputs_are_named_after_what_forward_returns() {
    output_names("def forward(self, x):\n    return x + 1.0\n", &["output"]);
    output_names(
        "def forward(self, x):\n    return x, (x, x)\n",
        &["output_0", "output_1_0", "output_1_1"],
    );
    output_names("def forward(self, x):\n    return [x, x * 2.0]\n", &["output_0", "output_1"]);
    output_names("def forward(self, x):\n    return {'b': x, 'a': x * 2.0}\n", &["b", "a"]);
    let scalars = output_names(
        "def forward(self, x):\n    return x.sum(), 3, 2.5, True\n",
        &["output_0", "output_1", "output_2", "output_3"],
    );
    let dtypes: Vec<DType> = scalars.signature().outputs.iter().map(|spec| spec.dtype).collect();
    assert_eq!(dtypes, [DType::F32, DType::I64, DType::F64, DType::Bool]);
    assert!(scalars.signature().outputs.iter().all(|spec| spec.shape.as_deref() == Some(&[])));
}

#[test]
fn a_trial_run_determines_type_and_rank() {
    let source = "def forward(self, x):\n    return x.argmax(1), x.unsqueeze(0)\n";
    let session = Written::new(source, vec![]).try_load(shaped(&[-1, 3])).unwrap();
    let told: Vec<(DType, usize)> = session
        .signature()
        .outputs
        .iter()
        .map(|spec| (spec.dtype, spec.shape.as_ref().unwrap().len()))
        .collect();
    assert_eq!(told, [(DType::I64, 1), (DType::F32, 3)]);
    assert!(session.metadata()["forward"].contains("Tensor x"));
}

#[test]
fn an_output_that_the_trial_run_did_not_give_is_not_lost() {
    let source = "def forward(self, x):\n    return [x[i] for i in range(x.size(0))]\n";
    let written = Written::new(source, vec![]);
    let two = [floats("x", &[2], &[1.0, 2.0])];
    let session = written.try_load(shaped(&[-1])).unwrap();
    assert_eq!(names(&*session), ["output_0"]);
    assert_eq!(session.run(&[floats("x", &[1], &[1.0])], &[]).unwrap().len(), 1);
    let error = session.run(&two, &[]).unwrap_err();
    assert!(error.message().contains("\"output_1\""), "{error}");
    assert_eq!(session.run(&two, &["output_0".into()]).unwrap().len(), 1);

    let mut signature = shaped(&[-1]);
    signature.outputs.push(text("first", "float32", Some(&[])));
    assert_eq!(written.try_load(signature).unwrap().run(&two, &[]).unwrap().len(), 1);
}

#[test]
fn without_shapes_the_types_state_the_outputs() {
    let session = Written::new("def forward(self, x):\n    return x, x\n", vec![]).load();
    assert_eq!(names(&*session), ["output_0", "output_1"]);
    assert_eq!(session.signature().inputs[0].shape, None);
    let list = Written::new("def forward(self, x):\n    return [x]\n", vec![]);
    let error = list.try_load(SignatureFile::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("[signature]"), "{error}");
}

#[test]
fn the_settings_name_inputs_and_outputs() {
    let module =
        Written::new("def forward(self, a, b):\n    return a - b, {'sum': a + b}\n", vec![]);
    let file = |inputs: &[&str], outputs: &[&str]| SignatureFile {
        inputs: inputs.iter().map(|name| text(name, "float32", Some(&[-1]))).collect(),
        outputs: outputs.iter().map(|name| text(name, "float32", Some(&[-1]))).collect(),
    };
    let run = |file, inputs: [(&str, f32); 2]| {
        let session = module.try_load(file).unwrap();
        let inputs = inputs.map(|(name, value)| floats(name, &[1], &[value]));
        let outputs = session.run(&inputs, &[]).unwrap();
        outputs
            .iter()
            .map(|o| (o.name.to_string(), o.tensor.to_vec::<f32>().unwrap()[0]))
            .collect::<Vec<_>>()
    };
    let by_name = run(file(&["b", "a"], &[]), [("a", 5.0), ("b", 2.0)]);
    assert_eq!(by_name, [("output_0".to_owned(), 3.0), ("output_1_sum".to_owned(), 7.0)]);
    let renamed = run(file(&["left", "right"], &["less", "more"]), [("left", 5.0), ("right", 2.0)]);
    assert_eq!(renamed, [("less".to_owned(), 3.0), ("more".to_owned(), 7.0)]);
    let error = module.try_load(file(&["a", "c"], &[])).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("forward takes a, b"), "{error}");
}

#[test]
fn a_dictionary_is_read_by_its_keys() {
    let module = Written::new("def forward(self, x):\n    return {'b': x, 'a': x * 2.0}\n", vec![]);
    let file = |names: &[&str]| SignatureFile {
        outputs: names.iter().map(|name| text(name, "float32", None)).collect(),
        ..shaped(&[-1])
    };
    let run = |names| module.try_load(file(names)).unwrap().run(&[floats("x", &[1], &[3.0])], &[]);
    assert_eq!(run(&["a"]).unwrap(), [floats("a", &[1], &[6.0])]);
    let error = run(&["a", "c"]).unwrap_err();
    assert!(error.message().contains("b, a"), "{error}");
}

#[test]
fn scalars_are_inputs_and_defaults_are_optional() {
    let source = "def forward(self, x, n: int, f: float = 0.5, flag: bool = False, \
                  extra: Optional[Tensor] = None):\n    y = x * n + f\n    if flag:\n        y = -y\n    \
                  if extra is not None:\n        y = y + extra\n    return y\n";
    let session = Written::new(source, vec![]).load();
    let inputs = &session.signature().inputs;
    let told: Vec<_> = inputs.iter().map(|s| (s.name.as_str(), s.dtype, s.optional)).collect();
    assert_eq!(
        told,
        [
            ("x", DType::F32, false),
            ("n", DType::I64, false),
            ("f", DType::F64, true),
            ("flag", DType::Bool, true),
            ("extra", DType::F32, true)
        ]
    );
    assert_eq!(inputs[1].shape, Some(vec![]));
    let x = floats("x", &[1], &[2.0]);
    let n = NamedTensor::new("n", Tensor::from_vec([].as_slice(), vec![3i64]).unwrap());
    let flag = |byte| {
        let tensor =
            Tensor::from_bytes(DType::Bool, [].as_slice(), bytes::Bytes::from(vec![byte])).unwrap();
        NamedTensor::new("flag", tensor)
    };
    let run = |inputs: &[NamedTensor]| {
        session.run(inputs, &[]).map(|o| o[0].tensor.to_vec::<f32>().unwrap()[0])
    };
    assert_eq!(run(&[x.clone(), n.clone()]).unwrap(), 6.5);
    assert_eq!(run(&[n.clone(), flag(1), x.clone()]).unwrap(), -6.5);
    assert_eq!(run(&[x.clone(), n.clone(), floats("extra", &[1], &[1.0])]).unwrap(), 7.5);
    let two = NamedTensor::new("n", Tensor::from_vec([2].as_slice(), vec![3i64, 4]).unwrap());
    let single = floats("n", &[], &[3.0]);
    for wrong in [
        vec![x.clone(), n.clone(), flag(2)],
        vec![x.clone(), two],
        vec![x.clone(), single],
        vec![x],
    ] {
        assert_eq!(run(&wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn unsupported_inputs_are_refused_at_the_load() {
    let error = Written::new("def forward(self, x, words: List[str]):\n    return x\n", vec![])
        .try_load(SignatureFile::default())
        .err()
        .unwrap();
    assert!(error.message().contains("List[str]"), "{error}");
    // A request may omit an argument with a default.
    let source = "def forward(self, x, word: str = 'a'):\n    return x\n";
    assert_eq!(Written::new(source, vec![]).load().signature().inputs.len(), 1);
    let error = Written::new("def other(self, x):\n    return x\n", vec![])
        .try_load(SignatureFile::default())
        .err()
        .unwrap();
    assert!(error.message().contains("no method forward"), "{error}");
}

#[test]
fn errors_are_one_line() {
    let weight = TorchParameter::floats("weight", &[2, 2], vec![1.0; 4]);
    let session =
        Written::new("def forward(self, x):\n    return x @ self.weight\n", vec![weight]).load();
    let error = session.run(&[floats("x", &[1, 3], &[0.0; 3])], &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(
        error.message().contains("mat1 and mat2 shapes cannot be multiplied (1x3 and 2x2)"),
        "{error}"
    );
    assert!(!error.message().contains(['\n', '\r']));
    let raising =
        "def forward(self, x):\n    assert bool(x.sum() > 0), 'must be positive'\n    return x\n";
    let error =
        Written::new(raising, vec![]).load().run(&[floats("x", &[1], &[-1.0])], &[]).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidArgument, "must be positive"));
}

#[test]
fn an_input_is_never_written_to() {
    let source = "def forward(self, x):\n    x.add_(1.0)\n    return x.view(-1), x[0:1]\n";
    let session = Written::new(source, vec![]).load();
    assert!(!session.stateful());
    let input = floats("x", &[2], &[1.0, 2.0]);
    for _ in 0..3 {
        let got = session.run(std::slice::from_ref(&input), &[]).unwrap();
        assert_eq!(got[0].tensor.to_vec::<f32>().unwrap(), [2.0, 3.0]);
        assert_eq!(got[1].tensor.to_vec::<f32>().unwrap(), [2.0]);
    }
    assert_eq!(input, floats("x", &[2], &[1.0, 2.0]));
}

#[test]
fn outputs_may_be_strided_or_empty() {
    let source = "def forward(self, x):\n    return x.t(), x.expand(2, 2, 3), x[0:0]\n";
    let session = Written::new(source, vec![]).try_load(shaped(&[-1, 3])).unwrap();
    let got = session.run(&[floats("x", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])], &[]).unwrap();
    assert_eq!(got[0].tensor.to_vec::<f32>().unwrap(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(
        (got[1].tensor.shape(), got[2].tensor.shape()),
        ([2, 2, 3].as_slice(), [0, 3].as_slice())
    );
    assert!(matches!(
        session.signature().outputs[0].shape.as_deref(),
        Some([Dim::Dynamic(_), Dim::Dynamic(_)])
    ));
    let sparse = Written::new("def forward(self, x):\n    return x.to_sparse()\n", vec![]).load();
    assert!(
        sparse.run(&[floats("x", &[1], &[1.0])], &[]).unwrap_err().message().contains("sparse")
    );
    assert_eq!(answer(&*session, floats("x", &[1, 3], &[1.0, 2.0, 3.0])), [1.0, 2.0, 3.0]);
}
