//! A corpus of hostile bodies: each is refused, quickly and in little memory.

use base::{DType, ErrorKind, Signature};
use bytes::Bytes;
use protocol::tensorflow::tensor_shape_proto::Dim;
use protocol::tensorflow::{TensorProto, TensorShapeProto};
use protocol::{oip, tfs};

use crate::any;

fn infer(body: impl Into<Bytes>) -> ErrorKind {
    oip::json::parse_infer(body.into(), None, &Signature::default()).unwrap_err().kind()
}

fn predict(body: impl Into<Bytes>, dtype: DType) -> ErrorKind {
    tfs::json::parse_predict(&body.into(), &any::inputs(&[("x", dtype, &[-1])])).unwrap_err().kind()
}

#[test]
fn nesting_without_end() {
    let deep = "[".repeat(1 << 20);
    let objects = "{\"a\":".repeat(1 << 18);
    assert_eq!(infer(deep.clone()), ErrorKind::InvalidArgument);
    for value in [&deep, &objects] {
        assert_eq!(infer(format!("{{\"other\":{value}")), ErrorKind::InvalidArgument);
        assert_eq!(infer(format!("{{\"parameters\":{{\"a\":{value}")), ErrorKind::InvalidArgument);
        assert_eq!(infer(format!("{{\"inputs\":[{{\"data\":{value}")), ErrorKind::InvalidArgument);
        assert_eq!(
            predict(format!("{{\"inputs\":{value}"), DType::F32),
            ErrorKind::InvalidArgument
        );
        assert_eq!(
            predict(format!("{{\"instances\":{value}"), DType::F32),
            ErrorKind::InvalidArgument
        );
        assert_eq!(
            predict(format!("{{\"instances\":[{value}"), DType::String),
            ErrorKind::InvalidArgument
        );
    }
    let typed = format!(
        "{{\"inputs\":[{{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[1],\"data\":{deep}"
    );
    assert_eq!(infer(typed), ErrorKind::InvalidArgument);
    assert_eq!(
        infer(format!("{{\"inputs\":[{{\"shape\":[{}1]}}]}}", "1,".repeat(1 << 16))),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn more_tensors_than_permitted() {
    let inputs = vec![r#"{"name":"x","datatype":"FP32","shape":[1],"data":[1]}"#; 2000].join(",");
    assert_eq!(infer(format!("{{\"inputs\":[{inputs}]}}")), ErrorKind::InvalidArgument);
    let outputs = vec![r#"{"name":"y"}"#; 2000].join(",");
    assert_eq!(
        infer(format!("{{\"inputs\":[],\"outputs\":[{outputs}]}}")),
        ErrorKind::InvalidArgument
    );
    let sizes = [r#"{"name":"x","datatype":"UINT8","shape":[1],"parameters":{"binary_data_size":9223372036854775807}}"#;
        3];
    assert_eq!(infer(format!("{{\"inputs\":[{}]}}", sizes.join(","))), ErrorKind::InvalidArgument);
}

#[test]
fn bytes_that_are_not_json() {
    for body in [
        &b"{\"inputs\":[\xff]}"[..],
        b"\xef\xbb\xbf\xef\xbb\xbf{\"inputs\":[]}",
        b"{\"inputs\":[{\"name\":\"\xc3\x28\"}]}",
        b"{\"inputs\":[{\"name\":\"\\ud800\"}]}",
        b"{\"inputs\":[{\"name\":\"\0\"}]}",
        b"{\"inputs\":[{\"name\":\"x\\",
        b"{\"inputs\":[{\"name\":\"x\\u12",
        b"{'inputs':[]}",
        b"{\"inputs\":[],}",
        b"\0",
        b"null",
    ] {
        assert_eq!(infer(body), ErrorKind::InvalidArgument, "{}", body.escape_ascii());
        assert_eq!(
            predict(body, DType::F32),
            ErrorKind::InvalidArgument,
            "{}",
            body.escape_ascii()
        );
    }
    for body in [r#"{"id":1,"inputs":[]}"#, r#"{"inputs":{}}"#, r#"{"inputs":[[]]}"#] {
        assert_eq!(infer(body), ErrorKind::InvalidArgument, "{body}");
    }
}

#[test]
fn shapes_that_contradict_the_values() {
    let message = |size: i64| {
        let shape =
            TensorShapeProto { dim: vec![Dim { size, name: String::new() }], unknown_rank: false };
        TensorProto {
            dtype: 1,
            tensor_shape: Some(shape),
            float_val: vec![1.0],
            ..TensorProto::default()
        }
    };
    assert_eq!(tfs::decode_tensor("x", message(1 << 50)).unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(tfs::decode_tensor("x", message(0)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let unknown = TensorShapeProto { dim: vec![], unknown_rank: true };
    let unknown = TensorProto { tensor_shape: Some(unknown), ..message(1) };
    assert_eq!(tfs::decode_tensor("x", unknown).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let axes = TensorShapeProto {
        dim: vec![Dim { size: 1, name: String::new() }; 65],
        unknown_rank: false,
    };
    let axes = TensorProto { tensor_shape: Some(axes), ..message(1) };
    assert_eq!(tfs::decode_tensor("x", axes).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn messages_do_not_repeat_megabytes() {
    let long = "1".repeat(1 << 20);
    let bodies = [
        format!(r#"{{"inputs":[{{"name":"{long}","datatype":"FP33","shape":[1],"data":[1]}}]}}"#),
        format!(r#"{{"inputs":[{{"name":"x","datatype":"{long}","shape":[1],"data":[1]}}]}}"#),
        format!(r#"{{"inputs":[{{"name":"x","datatype":"INT8","shape":[1],"data":[{long}]}}]}}"#),
        format!(r#"{{"inputs":[{{"name":"x","datatype":"INT8","shape":[{long}],"data":[1]}}]}}"#),
        format!(r#"{{"inputs":[],"outputs":[{{"name":"{long}"}}]}}"#),
        format!(r#"{{"inputs":{{"{long}":1}}}}"#),
        format!(r#"{{"signature_name":"{long}"}}"#),
    ];
    let signature = any::inputs(&[("x", DType::F32, &[-1])]);
    for body in bodies {
        let body = Bytes::from(body);
        let errors = [
            oip::json::parse_infer(body.clone(), None, &signature).err(),
            tfs::json::parse_predict(&body, &signature).err(),
        ];
        assert_ne!(errors, [None, None]);
        for error in errors.into_iter().flatten() {
            assert!(error.message().len() < 2048, "{} bytes", error.message().len());
        }
    }
    let message = protocol::inference::ModelInferRequest {
        inputs: vec![protocol::inference::model_infer_request::InferInputTensor {
            name: long.clone(),
            ..Default::default()
        }],
        ..Default::default()
    };
    assert!(oip::grpc::decode_request(message).unwrap_err().message().len() < 2048);
    let inputs = [(long, TensorProto::default())].into();
    let message = protocol::tensorflow::serving::PredictRequest { inputs, ..Default::default() };
    assert!(tfs::grpc::decode_predict(message).unwrap_err().message().len() < 2048);
}
