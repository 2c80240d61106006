//! TensorFlow Serving over REST.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{DType, ErrorKind, NamedTensor, Result, Signature, Tensor, VersionId};
use bytes::Bytes;
use proptest::prelude::*;
use protocol::status::{TfsState, VersionState};
use protocol::tfs::json::{self, PredictFormat};
use protocol::tfs::{self, ClassOutputs, ExampleResult, Examples};
use serde_json::{Value, json};

use crate::any;

fn predict(body: &str, signature: &Signature) -> Result<json::RestPredict> {
    json::parse_predict(&Bytes::copy_from_slice(body.as_bytes()), signature)
}

fn one() -> Signature {
    any::inputs(&[("x", DType::F32, &[-1])])
}

fn two() -> Signature {
    any::inputs(&[("x", DType::F32, &[-1]), ("s", DType::String, &[-1])])
}

proptest! {
    #[test]
    fn column_form_round_trips(inputs in any::tensors(any::has_json, 1, false)) {
        let body = json::encode_request(&inputs, PredictFormat::Column).unwrap();
        let parsed = json::parse_predict(&body, &any::signature(&inputs)).unwrap();
        prop_assert_eq!(parsed.form, PredictFormat::Column);
        prop_assert_eq!(parsed.inputs, inputs);
    }

    #[test]
    fn row_form_round_trips(inputs in any::tensors(any::has_json, 1, false), rows in 1usize..4) {
        let inputs: Vec<NamedTensor> = inputs.iter().map(|input| with_rows(input, rows)).collect();
        let body = json::encode_request(&inputs, PredictFormat::Row).unwrap();
        let parsed = json::parse_predict(&body, &any::signature(&inputs)).unwrap();
        prop_assert_eq!(parsed.form, PredictFormat::Row);
        prop_assert_eq!(&parsed.inputs, &inputs);
        let answer = json::predict_response(&inputs, PredictFormat::Row).unwrap();
        prop_assert_eq!(json::parse_response(&answer, &any::signature(&inputs)).unwrap(), inputs);
    }
}

#[test]
fn the_bound_of_a_response_in_rows_counts_every_name() {
    let names = ["probabilities_of_the_classes", "a name with \"quotes\""];
    let rows = vec![0_u8; 500];
    let outputs = names.map(|name| {
        NamedTensor::new(name, Tensor::from_vec([rows.len()].as_slice(), rows.clone()).unwrap())
    });
    for form in [PredictFormat::Row, PredictFormat::Column] {
        let text = json::predict_response(&outputs, form).unwrap().len();
        let bound = json::predict_bytes_max(&outputs, form);
        assert!((text..4 * text).contains(&bound), "{form:?}: {text} bytes, at most {bound}");
    }
    // Rows without elements are refused, so no memory is reserved for them.
    let empty = Tensor::from_vec::<f32>([1_usize << 40, 0].as_slice(), vec![]).unwrap();
    let outputs = names.map(|name| NamedTensor::new(name, empty.clone()));
    assert!(json::predict_response(&outputs, PredictFormat::Row).is_err());
    assert!(json::predict_bytes_max(&outputs, PredictFormat::Row) < 16 << 20);
}

#[test]
fn a_request_in_rows_has_an_input() {
    let error = json::encode_request(&[], PredictFormat::Row).unwrap_err();
    assert!(error.message().contains("use \"inputs\""), "{error}");
    assert_eq!(json::encode_request(&[], PredictFormat::Column).unwrap(), br#"{"inputs":{}}"#[..]);
}

/// Repeats the tensor `rows` times along a new first axis.
fn with_rows(input: &NamedTensor, rows: usize) -> NamedTensor {
    let shape = [&[rows], input.tensor.shape()].concat();
    let tensor = match input.tensor.dtype() {
        DType::String => {
            let once = input.tensor.strings().unwrap();
            Tensor::from_strings(shape.as_slice(), vec![once; rows].concat())
        }
        // Elements of half a byte cannot be repeated byte by byte.
        DType::U4 | DType::I4 => {
            let bytes = input.tensor.dtype().bytes_for(shape.iter().product()).unwrap();
            Tensor::from_bytes(input.tensor.dtype(), shape.as_slice(), vec![0; bytes].into())
        }
        dtype => Tensor::from_bytes(
            dtype,
            shape.as_slice(),
            input.tensor.bytes().unwrap().repeat(rows).into(),
        ),
    };
    NamedTensor { name: input.name.clone(), tensor: tensor.unwrap() }
}

#[test]
fn the_forms_of_the_documentation() {
    for (body, form, shape) in [
        (r#"{"instances":[1.0,2,5.0]}"#, PredictFormat::Row, vec![3]),
        (
            r#"{"instances":[[1],[2]],"signature_name":"serving_default"}"#,
            PredictFormat::Row,
            vec![2, 1],
        ),
        (r#"{"instances":[{"x":1},{"x":2}],"context":{"a":[null]}}"#, PredictFormat::Row, vec![2]),
        (r#"{"instances":[{"x":[1,2]}]}"#, PredictFormat::Row, vec![1, 2]),
        (r#"{"inputs":[1,2]}"#, PredictFormat::Column, vec![2]),
        (r#"{"inputs":{"x":[[1,2]]}}"#, PredictFormat::Column, vec![1, 2]),
        (r#"{"signature_name":"","inputs":5}"#, PredictFormat::Column, vec![]),
        (
            &format!(r#"{{"context":{}{},"inputs":5}}"#, "[".repeat(9999), "]".repeat(9999)),
            PredictFormat::Column,
            vec![],
        ),
    ] {
        let parsed = predict(body, &one()).unwrap();
        assert_eq!(
            (parsed.form, parsed.inputs[0].tensor.shape()),
            (form, shape.as_slice()),
            "{body}"
        );
    }
    let parsed =
        predict(r#"{"instances":[{"x":1,"s":"a"},{"s":{"b64":"/w=="},"x":NaN}]}"#, &two()).unwrap();
    assert_eq!(
        parsed.inputs[1].tensor.strings().unwrap(),
        [Bytes::from_static(b"a"), Bytes::from_static(&[255])]
    );
}

/// TensorFlow Serving does not read them either.
#[test]
fn more_tensors_in_columns_are_ignored() {
    let parse = |members: &str| predict(&format!(r#"{{"inputs":{{{members}}}}}"#), &two());
    let parsed = parse(r#""id":{"a":[null]},"x":[1],"s":["a"],"row":7"#).unwrap();
    let names: Vec<&str> = parsed.inputs.iter().map(|input| &*input.name).collect();
    assert_eq!(names, ["x", "s"]);
    let error = parse(r#""x":[1],"S":["a"]"#).unwrap_err();
    assert!(error.message().contains("no tensor \"S\"; it has x, s"), "{error}");
    let answer = Bytes::from_static(br#"{"outputs":{"y":[1],"z":[2]}}"#);
    let outputs = any::inputs(&[("y", DType::F32, &[-1])]).inputs;
    let error = json::parse_response(&answer, &Signature { inputs: vec![], outputs }).unwrap_err();
    assert!(error.message().contains("no tensor \"z\""), "{error}");
}

#[test]
fn base64_is_a_value_not_a_name() {
    let signature = any::inputs(&[("s", DType::String, &[-1])]);
    for body in
        [r#"{"instances":[{"b64":"YQ=="},"b"]}"#, r#"{"inputs":{"s":[{"b64":"YQ=="},"b"]}}"#]
    {
        let strings =
            predict(body, &signature).unwrap().inputs[0].tensor.strings().unwrap().to_vec();
        assert_eq!(strings, [Bytes::from_static(b"a"), Bytes::from_static(b"b")], "{body}");
    }
    let scalar = predict(r#"{"inputs":{"b64":"YQ=="}}"#, &signature).unwrap();
    assert_eq!(scalar.inputs[0].tensor.shape(), [0usize; 0]);
    // A tensor may still be called so.
    let named = any::inputs(&[("b64", DType::F32, &[-1]), ("y", DType::F32, &[-1])]);
    assert_eq!(predict(r#"{"inputs":{"b64":[1],"y":[2]}}"#, &named).unwrap().inputs.len(), 2);
}

#[test]
fn the_signature_is_found_before_the_tensors_are_read() {
    let name = |body: &str| json::signature_name(&Bytes::copy_from_slice(body.as_bytes()));
    for (body, wanted) in [
        (r#"{"instances":[1]}"#, ""),
        (r#"{"signature_name":"a","instances":"#, "a"),
        (r#"{"instances":[{"signature_name":"inner"}]}"#, ""),
        (r#"{"instances":[1],"signature_name":"b"}"#, "b"),
        (r#"{"instances":[1],"signature\u005fname":"c"}"#, "c"),
    ] {
        assert_eq!(name(body).unwrap(), wanted, "{body}");
    }
    assert!(name(r#"{"signature_name":5}"#).unwrap_err().message().contains("expected a string"));
    assert!(name(r#"{"instances":[1,"signature_name":"a"}"#).is_err());
}

fn examples(body: &str) -> Result<Examples> {
    json::parse_examples(&Bytes::copy_from_slice(body.as_bytes()))
}

#[test]
fn values_decide_the_kind_of_a_feature() {
    let body = r#"{"signature_name":"c","context":{"y":true},"examples":[
        {"x":[1.5,NaN],"n":3,"s":["a",{"b64":"/w=="}]},{"x":[-Infinity,2e0],"n":-4,"s":["","b"]}]}"#;
    let specs = [
        ("x", DType::F32, &[-1, 2][..]),
        ("n", DType::I64, &[-1]),
        ("s", DType::String, &[-1, -1]),
        ("y", DType::Bool, &[-1]),
    ];
    let specs = any::inputs(&specs).inputs;
    let tensors =
        examples(body).unwrap().features(&specs, &BTreeMap::new(), &mut |_| Ok(())).unwrap();
    let x = tensors[0].tensor.to_vec::<f32>().unwrap();
    assert!(x[0] == 1.5 && x[1].is_nan() && x[2] == f32::NEG_INFINITY && x[3] == 2.0, "{x:?}");
    assert_eq!(tensors[1].tensor.to_vec::<i64>().unwrap(), [3, -4]);
    assert_eq!(tensors[2].tensor.strings().unwrap(), [&b"a"[..], &[0xff], b"", b"b"]);
    assert_eq!(tensors[3].tensor.bytes().unwrap(), &[1u8, 1][..]);
}

#[test]
fn wrong_examples_are_named() {
    for (body, wanted) in [
        ("{}", "key 'examples' is expected and was not found"),
        (r#"{"examples":{}}"#, "Expecting 'examples' value to be an list/array"),
        (r#"{"examples":[]}"#, "'examples' value is an empty array"),
        (r#"{"examples":[{}],"examples":[{}]}"#, "\"examples\" is given twice"),
        (r#"{"examples":[{},5]}"#, "example 1: JSON at byte 16: Example must be JSON object"),
        (r#"{"examples":[{"x":[1,"a"]}]}"#, "element type in feature: x expecting type: int64"),
        (r#"{"examples":[{"x":[1,1.5]}]}"#, "expecting type: int64"),
        (r#"{"examples":[{"x":[[1]]}]}"#, "Feature: x has element with unexpected JSON type"),
        (r#"{"examples":[{"x":null}]}"#, "unexpected JSON type"),
        (r#"{"examples":[{"x":{"a":1}}]}"#, "Feature: x"),
        (r#"{"examples":[{"x":18446744073709551615}]}"#, "Only int64 is supported"),
        (r#"{"examples":[{"x":1e39}]}"#, "without loss of precision"),
        (r#"{"examples":[{"x":-1e400}]}"#, "without loss of precision"),
        (r#"{"context":1,"examples":[{}]}"#, "Example must be JSON object"),
    ] {
        let error = examples(body).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{body}");
        assert!(error.message().contains(wanted), "{body}\n{error}");
    }
}

#[test]
fn results_are_lists() {
    let scores = any::floats("scores", &[2, 2], &[0.25, 1.0, f32::NAN, -2.0]).tensor;
    let labels: [Arc<str>; 2] = ["a\"".into(), "b".into()];
    let outputs =
        ClassOutputs { scores: Some(&scores), labels: Some(&labels), ..ClassOutputs::default() };
    let classes = ExampleResult::Classes(tfs::classification(2, outputs).unwrap());
    let text = json::result_response(&classes);
    assert!(text.len() <= json::result_text_bytes_max(&classes));
    let wanted = r#"{"results":[[["a\"",0.25],["b",1.0]],[["a\"",NaN],["b",-2.0]]]}"#;
    assert_eq!(text, wanted);
    let values = tfs::regression(3, &any::floats("y", &[3, 1], &[1.0, 2.5, 1e9]).tensor).unwrap();
    let text = json::result_response(&ExampleResult::Values(values));
    assert_eq!(
        serde_json::from_slice::<Value>(&text).unwrap(),
        json!({"results": [1.0, 2.5, 1e9]})
    );
}

#[test]
fn labels_that_are_not_text_are_base64() {
    let labels = vec![Bytes::from_static(b"\xe9t\xe9"), Bytes::from_static(b"a")];
    let labels = Tensor::from_strings([1usize, 2].as_slice(), labels).unwrap();
    let outputs = ClassOutputs { classes: Some(&labels), ..ClassOutputs::default() };
    let classes = ExampleResult::Classes(tfs::classification(1, outputs).unwrap());
    let text = json::result_response(&classes);
    assert!(text.len() <= json::result_text_bytes_max(&classes));
    assert_eq!(text, r#"{"results":[[[{"b64":"6XTp"},0.0],["a",0.0]]]}"#);
}

#[test]
fn errors_name_the_fault() {
    for (body, wanted) in [
        ("{", "expected a string"),
        ("{}", "neither \"instances\" nor \"inputs\""),
        (r#"{"instances":[]}"#, "\"instances\" is empty"),
        (r#"{"instances":1}"#, "must be a list"),
        (r#"{"instances":[1,2]}"#, "the values need names; the model has x, s"),
        (r#"{"inputs":[1,2]}"#, "the values need names"),
        (r#"{"inputs":"#, "expected tensors, the text ends"),
        (r#"{"inputs":{"z":[1]}}"#, "no tensor \"z\"; it has x, s"),
        (r#"{"inputs":{"x":[1],"x":[1]}}"#, "\"x\" is given twice"),
        (r#"{"inputs":{"x":[[1],[1,2]]}}"#, "do not make a tensor"),
        (r#"{"inputs":{"x":["a"]}}"#, "expected a number"),
        (r#"{"inputs":{"x":[[1],]}}"#, "expected a number, found ']'"),
        (r#"{"inputs":{"x":[[1],1]}}"#, "do not make a tensor"),
        (r#"{"inputs":{"s":[1]}}"#, "expected a string"),
        (r#"{"inputs":{"s":[{"b64":"%"}]}}"#, "not base64"),
        (r#"{"instances":[{"x":1,"s":"a"},{"x":1}]}"#, "an instance has no \"s\""),
        (r#"{"instances":[{"x":1},{"x":1,"s":"a"}]}"#, "the first instance has no \"s\""),
        (r#"{"instances":[{"x":1,"x":2,"s":"a"}]}"#, "\"x\" is given twice"),
        (r#"{"instances":[{"x":1,"s":"a"},5]}"#, "expected an object"),
        (r#"{"instances":[{"x":1,"s":"a"},{"x":[1],"s":"a"}]}"#, "do not make a tensor"),
        (r#"{"instances":[{"x":1,"s":"a"}"#, "the text ends"),
        (r#"{"inputs":{"x":[1],"s":["a"]}}}"#, "expected the end"),
    ] {
        let error = predict(body, &two()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{body}");
        assert!(error.message().contains(wanted), "{body}\n{error}\n{wanted}");
    }
    for body in [r#"{"instances":[1],"inputs":[1]}"#, r#"{"instances":[1],"instances":[1]}"#] {
        let error = predict(body, &one()).unwrap_err();
        assert!(
            error.message().contains("give one of \"instances\" and \"inputs\", once"),
            "{error}"
        );
    }
}

#[test]
fn answers_take_the_form_of_the_request() {
    let answer = |outputs: &[NamedTensor], form| {
        json::predict_response(outputs, form).map(|body| String::from_utf8(body.to_vec()).unwrap())
    };
    let y = any::floats("y", &[2, 1], &[2.5, 3.0]);
    let text =
        Tensor::from_strings([2usize].as_slice(), vec![Bytes::from_static(b"a"); 2]).unwrap();
    let raw = NamedTensor::new("image_bytes", text);
    assert_eq!(
        answer(std::slice::from_ref(&y), PredictFormat::Row).unwrap(),
        r#"{"predictions":[[2.5],[3.0]]}"#
    );
    assert_eq!(
        answer(std::slice::from_ref(&y), PredictFormat::Column).unwrap(),
        r#"{"outputs":[[2.5],[3.0]]}"#
    );
    assert_eq!(
        answer(&[y.clone(), raw.clone()], PredictFormat::Row).unwrap(),
        r#"{"predictions":[{"y":[2.5],"image_bytes":{"b64":"YQ=="}},{"y":[3.0],"image_bytes":{"b64":"YQ=="}}]}"#
    );
    assert_eq!(
        answer(&[y.clone(), raw], PredictFormat::Column).unwrap(),
        r#"{"outputs":{"y":[[2.5],[3.0]],"image_bytes":[{"b64":"YQ=="},{"b64":"YQ=="}]}}"#
    );
    let special = any::floats("y", &[3], &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    assert_eq!(
        answer(&[special], PredictFormat::Row).unwrap(),
        r#"{"predictions":[NaN,Infinity,-Infinity]}"#
    );
    assert!(
        answer(&[y, any::floats("z", &[3], &[0.0; 3])], PredictFormat::Row)
            .unwrap_err()
            .message()
            .contains("3 rows")
    );
    assert!(
        answer(&[any::floats("y", &[], &[1.0])], PredictFormat::Row)
            .unwrap_err()
            .message()
            .contains("scalar")
    );
    assert_eq!(
        answer(&[any::floats("y", &[], &[1.0])], PredictFormat::Column).unwrap(),
        r#"{"outputs":1.0}"#
    );
    let endless = [any::floats("y", &[1 << 40, 0], &[]), any::floats("z", &[1 << 40, 0], &[])];
    assert!(answer(&endless, PredictFormat::Row).is_err());
}

#[test]
fn status_and_metadata() {
    let value = |body: Bytes| serde_json::from_slice::<Value>(&body).unwrap();
    let versions = [
        VersionState { version: 2, state: TfsState::End, error: Some("damaged".into()) },
        VersionState { version: 1, state: TfsState::Available, error: None },
    ];
    let status = value(json::status(&versions));
    assert_eq!(
        status["model_version_status"][1],
        json!({"version":"1","state":"AVAILABLE","status":{"error_code":"OK","error_message":""}})
    );
    assert_eq!(status["model_version_status"][0]["status"]["error_message"], "damaged");

    let version = VersionId { model: "half_plus_two".into(), version: 123 };
    let signature = any::inputs(&[("x", DType::F32, &[-1, 1])]);
    let metadata = value(json::metadata(&version, &[tfs::SignatureInfo::only(&signature)]));
    let wanted = json!({"model_spec":{"name":"half_plus_two","signature_name":"","version":"123"},
        "metadata":{"signature_def":{"signature_def":{"serving_default":{
            "inputs":{"x":{"dtype":"DT_FLOAT","name":"x","tensor_shape":{"unknown_rank":false,
                "dim":[{"size":"-1","name":""},{"size":"1","name":""}]}}},
            "outputs":{},"method_name":"tensorflow/serving/predict","defaults":{}}}}}});
    assert_eq!(metadata, wanted);
}
