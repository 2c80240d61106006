//! Open Inference Protocol over gRPC.

use base::{DType, NamedTensor, Tensor, VersionId};
use bytes::Bytes;
use proptest::prelude::*;
use protocol::Message;
use protocol::inference::infer_parameter::ParameterChoice;
use protocol::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use protocol::inference::{
    InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse,
};
use protocol::oip::grpc;

use crate::any;

fn version() -> VersionId {
    VersionId { model: "m".into(), version: 7 }
}

proptest! {
    #[test]
    fn requests_round_trip_and_share_the_message(inputs in any::tensors(|_| true, 0, false)) {
        let sent = grpc::encode_request("m", Some(7), &inputs, &["y"]).unwrap();
        let wire = Bytes::from(sent.encode_to_vec());
        let request = ModelInferRequest::decode(wire.clone()).unwrap();
        prop_assert_eq!((request.model_name.as_str(), request.model_version.as_str()), ("m", "7"));
        let decoded = grpc::decode_request(request).unwrap();
        prop_assert_eq!(&decoded.inputs, &inputs);
        prop_assert_eq!(decoded.outputs, ["y".into()]);
        for bytes in decoded.inputs.iter().filter_map(|input| input.tensor.bytes()).filter(|b| !b.is_empty()) {
            prop_assert!(wire.as_ptr_range().contains(&bytes.as_ptr()));
        }
    }

    #[test]
    fn answers_round_trip_and_share_the_outputs(outputs in any::tensors(|_| true, 0, false)) {
        let response = grpc::encode_response(&version(), "id".into(), outputs.clone()).unwrap();
        for (raw, output) in response.raw_output_contents.iter().zip(&outputs) {
            if let Some(bytes) = output.tensor.bytes() {
                prop_assert_eq!(raw.as_ptr(), bytes.as_ptr());
            }
        }
        let wire = Bytes::from(response.encode_to_vec());
        let answer = grpc::decode_response(ModelInferResponse::decode(wire).unwrap()).unwrap();
        prop_assert_eq!(answer.outputs, outputs);
        prop_assert_eq!((answer.model.as_str(), answer.version.as_str(), answer.id.as_str()), ("m", "7", "id"));
    }

    #[test]
    fn typed_contents_mean_the_same(inputs in any::tensors(has_field, 0, false)) {
        let mut request = grpc::encode_request("m", None, &inputs, &[]).unwrap();
        request.raw_input_contents.clear();
        for (message, input) in request.inputs.iter_mut().zip(&inputs) {
            message.contents = Some(contents(&input.tensor));
        }
        prop_assert_eq!(grpc::decode_request(request).unwrap().inputs, inputs);
    }
}

fn has_field(dtype: DType) -> bool {
    any::has_json(dtype) && !matches!(dtype, DType::F16 | DType::BF16 | DType::U4 | DType::I4)
}

fn contents(tensor: &Tensor) -> InferTensorContents {
    let mut contents = InferTensorContents::default();
    match tensor.dtype() {
        DType::Bool => {
            contents.bool_contents = tensor.bytes().unwrap().iter().map(|byte| *byte == 1).collect()
        }
        DType::I8 => {
            contents.int_contents =
                tensor.to_vec::<i8>().unwrap().into_iter().map(i32::from).collect()
        }
        DType::I16 => {
            contents.int_contents =
                tensor.to_vec::<i16>().unwrap().into_iter().map(i32::from).collect()
        }
        DType::I32 => contents.int_contents = tensor.to_vec().unwrap(),
        DType::I64 => contents.int64_contents = tensor.to_vec().unwrap(),
        DType::U8 => {
            contents.uint_contents =
                tensor.to_vec::<u8>().unwrap().into_iter().map(u32::from).collect()
        }
        DType::U16 => {
            contents.uint_contents =
                tensor.to_vec::<u16>().unwrap().into_iter().map(u32::from).collect()
        }
        DType::U32 => contents.uint_contents = tensor.to_vec().unwrap(),
        DType::U64 => contents.uint64_contents = tensor.to_vec().unwrap(),
        DType::F32 => contents.fp32_contents = tensor.to_vec().unwrap(),
        DType::F64 => contents.fp64_contents = tensor.to_vec().unwrap(),
        DType::String => contents.bytes_contents = tensor.strings().unwrap().to_vec(),
        other => panic!("{other} has no field"),
    }
    contents
}

fn valid() -> ModelInferRequest {
    let inputs =
        [any::floats("x", &[2], &[1.0, 2.0]), NamedTensor::new("s", strings(&[b"ab", b""]))];
    grpc::encode_request("m", None, &inputs, &[]).unwrap()
}

fn strings(strings: &[&'static [u8]]) -> Tensor {
    let elements: Vec<Bytes> = strings.iter().map(|string| Bytes::from_static(string)).collect();
    Tensor::from_strings([strings.len()].as_slice(), elements).unwrap()
}

fn refusal(change: impl FnOnce(&mut ModelInferRequest)) -> String {
    let mut request = valid();
    change(&mut request);
    let error = grpc::decode_request(request).unwrap_err();
    format!("{:?}: {}", error.kind(), error.message())
}

fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(choice) }
}

#[test]
fn errors_name_the_fault() {
    let typed = InferTensorContents { fp32_contents: vec![1.0, 2.0], ..Default::default() };
    let cases = [
        (refusal(|r| r.raw_input_contents.truncate(1)), "2 inputs but 1 raw contents"),
        (
            refusal(|r| r.inputs[0].contents = Some(typed.clone())),
            "\"x\" has contents and raw contents",
        ),
        (refusal(|r| r.inputs[0].datatype = "FP31".into()), "unknown datatype \"FP31\""),
        (
            refusal(|r| r.inputs[0].shape = vec![3]),
            "\"x\": float32 of shape [3] takes 12 bytes, got 8",
        ),
        (refusal(|r| r.inputs[0].shape = vec![-2]), "\"x\" has an axis of size -2"),
        (refusal(|r| r.inputs[0].shape = vec![1; 65]), "\"x\" has 65 axes"),
        (refusal(|r| r.inputs[0].shape = vec![i64::MAX; 3]), "more elements than fit memory"),
        (refusal(|r| r.inputs[1].shape = vec![1]), "\"s\" has 4 bytes after its 1 strings"),
        (refusal(|r| r.inputs[1].shape = vec![3]), "\"s\" ends inside string 2 of 3"),
        (
            refusal(|r| r.raw_input_contents[1] = Bytes::from_static(&[255, 255, 255, 255])),
            "inside string 0",
        ),
        (refusal(|r| r.raw_input_contents.clear()), "shape [2] takes 2 elements, got 0"),
        (
            refusal(|r| {
                r.raw_input_contents.clear();
                r.inputs[0].datatype = "INT64".into();
                r.inputs[0].contents = Some(typed.clone());
            }),
            "belongs in int64_contents, not in fp32_contents",
        ),
        (
            refusal(|r| {
                r.raw_input_contents.clear();
                r.inputs[0].datatype = "FP16".into();
            }),
            "FP16 travels in raw_input_contents only",
        ),
        (
            refusal(|r| {
                r.inputs.truncate(1);
                r.raw_input_contents = vec![Bytes::from_static(&[0, 2])];
                r.inputs[0].datatype = "BOOL".into();
            }),
            "bytes other than 0 and 1",
        ),
        (refusal(|r| r.inputs = vec![r.inputs[0].clone(); 1025]), "1025 inputs, at most 1024"),
    ];
    for (refusal, wanted) in cases {
        assert!(
            refusal.starts_with("InvalidArgument: ") && refusal.contains(wanted),
            "{refusal}\n{wanted}"
        );
    }
}

#[test]
fn narrow_integers_must_fit() {
    let request = |datatype: &str, value| {
        let contents = InferTensorContents { int_contents: vec![value], ..Default::default() };
        let input = InferInputTensor {
            name: "x".into(),
            datatype: datatype.into(),
            shape: vec![1],
            contents: Some(contents),
            ..Default::default()
        };
        grpc::decode_request(ModelInferRequest { inputs: vec![input], ..Default::default() })
    };
    assert!(request("INT8", -128).is_ok());
    assert!(request("INT8", 128).unwrap_err().message().contains("128 is not a valid int8 value"));
}

#[test]
fn missing_features_are_refused_by_name() {
    let shared = parameter(ParameterChoice::StringParam("region".into()));
    let refused =
        refusal(|r| drop(r.inputs[0].parameters.insert("shared_memory_region".into(), shared)));
    assert!(refused.starts_with("Unimplemented: \"x\" is in shared memory"), "{refused}");
    let sequence = parameter(ParameterChoice::StringParam("a".into()));
    let refused = refusal(|r| drop(r.parameters.insert("sequence_id".into(), sequence)));
    assert!(refused.starts_with("Unimplemented: sequences are not offered"), "{refused}");
    let other = || parameter(ParameterChoice::DoubleParam(0.5));
    let refused = refusal(|r| drop(r.parameters.insert("temperature".into(), other())));
    assert!(refused.contains("the parameter \"temperature\""), "{refused}");
    let refused = refusal(|r| drop(r.inputs[0].parameters.insert("layout".into(), other())));
    assert!(refused.contains("input \"x\" has the parameter \"layout\""), "{refused}");
    let classes = parameter(ParameterChoice::Int64Param(3));
    let output = InferRequestedOutputTensor {
        name: "y".into(),
        parameters: [("classification".to_owned(), classes)].into(),
    };
    let refused = refusal(|r| r.outputs = vec![output]);
    assert!(refused.starts_with("Unimplemented: classification of \"y\""), "{refused}");
}

#[test]
fn the_timeout_is_in_microseconds() {
    let timeout = |choice| {
        let mut request = valid();
        request.parameters.insert("timeout".into(), parameter(choice));
        grpc::decode_request(request).map(|request| request.timeout)
    };
    let micros = |micros| Ok(Some(std::time::Duration::from_micros(micros)));
    assert_eq!(timeout(ParameterChoice::Int64Param(1500)), micros(1500));
    assert_eq!(timeout(ParameterChoice::Uint64Param(1500)), micros(1500));
    assert_eq!(timeout(ParameterChoice::Int64Param(0)), Ok(None));
    for wrong in [ParameterChoice::Int64Param(-1), ParameterChoice::StringParam("soon".into())] {
        assert!(
            timeout(wrong).unwrap_err().message().contains("\"timeout\" must be a whole number")
        );
    }
}

#[test]
fn the_priority_is_a_level() {
    let priority = |choice| {
        let mut request = valid();
        request.parameters.insert("priority".into(), parameter(choice));
        grpc::decode_request(request).map(|request| request.priority)
    };
    assert_eq!(grpc::decode_request(valid()).unwrap().priority, 0);
    assert_eq!(priority(ParameterChoice::Uint64Param(2)), Ok(2));
    assert_eq!(priority(ParameterChoice::Int64Param(1)), Ok(1));
    for wrong in [ParameterChoice::Int64Param(-1), ParameterChoice::StringParam("high".into())] {
        assert!(
            priority(wrong).unwrap_err().message().contains("\"priority\" must be a whole number")
        );
    }
}
