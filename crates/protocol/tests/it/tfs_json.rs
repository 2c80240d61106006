//! TensorFlow Serving over REST.

use base::{DType, ErrorKind, NamedTensor, Result, Signature, Tensor, VersionId};
use bytes::Bytes;
use proptest::prelude::*;
use protocol::status::{TfsState, VersionState};
use protocol::tfs::json::{self, PredictFormat};
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

/// The same tensor `rows` times, along a new first axis.
fn with_rows(input: &NamedTensor, rows: usize) -> NamedTensor {
    let shape = [&[rows], input.tensor.shape()].concat();
    let tensor = match input.tensor.dtype() {
        DType::String => {
            let once = input.tensor.strings().unwrap();
            Tensor::from_strings(shape.as_slice(), vec![once; rows].concat())
        }
        // Half a byte does not repeat by the byte.
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
fn errors_name_the_fault() {
    for (body, wanted) in [
        ("{", "expected a string"),
        ("{}", "neither \"instances\" nor \"inputs\""),
        (r#"{"instances":[]}"#, "\"instances\" is empty"),
        (r#"{"instances":1}"#, "must be a list"),
        (r#"{"signature_name":5,"instances":[1]}"#, "expected a string"),
        (r#"{"instances":[1,2]}"#, "the values need names; the model has x, s"),
        (r#"{"inputs":[1,2]}"#, "the values need names"),
        (r#"{"inputs":{"z":[1]}}"#, "no tensor \"z\"; it has x, s"),
        (r#"{"inputs":{"x":[1],"x":[1]}}"#, "\"x\" is given twice"),
        (r#"{"inputs":{"x":[[1],[1,2]]}}"#, "do not make a tensor"),
        (r#"{"inputs":{"x":["a"]}}"#, "expected a number"),
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
    let error = predict(r#"{"signature_name":"other","instances":[1]}"#, &one()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(error.message().contains("no signature \"other\""), "{error}");
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
    let metadata = value(json::metadata(&version, &any::inputs(&[("x", DType::F32, &[-1, 1])])));
    let wanted = json!({"model_spec":{"name":"half_plus_two","signature_name":"","version":"123"},
        "metadata":{"signature_def":{"signature_def":{"serving_default":{
            "inputs":{"x":{"dtype":"DT_FLOAT","name":"x","tensor_shape":{"unknown_rank":false,
                "dim":[{"size":"-1","name":""},{"size":"1","name":""}]}}},
            "outputs":{},"method_name":"tensorflow/serving/predict","defaults":{}}}}}});
    assert_eq!(metadata, wanted);
}
