//! Open Inference Protocol over REST.

use base::{DType, ErrorKind, NamedTensor, Result, Signature, Tensor, VersionId};
use bytes::Bytes;
use proptest::prelude::*;
use protocol::oip::json::{self, OutputEncoding, RestInferRequest};

use crate::any;

fn parse(text: &str) -> Result<RestInferRequest> {
    json::parse_infer(Bytes::copy_from_slice(text.as_bytes()), None, &Signature::default())
}

fn input(tensor: &str) -> Result<Tensor> {
    let request = parse(&format!("{{\"inputs\":[{{\"name\":\"x\",{tensor}}}]}}"))?;
    Ok(request.inputs[0].tensor.clone())
}

fn version() -> VersionId {
    VersionId { model: "m".into(), version: 7 }
}

proptest! {
    #[test]
    fn binary_requests_round_trip(inputs in any::tensors(|_| true, 0, false)) {
        let sent = json::encode_request("id", &inputs, &["y"], true).unwrap();
        let parsed = json::parse_infer(sent.body.clone(), sent.header_length, &Signature::default()).unwrap();
        prop_assert_eq!(&parsed.inputs, &inputs);
        prop_assert_eq!((parsed.id.as_str(), parsed.binary_output), ("id", true));
        for bytes in parsed.inputs.iter().filter_map(|input| input.tensor.bytes()).filter(|b| !b.is_empty()) {
            prop_assert!(sent.body.as_ptr_range().contains(&bytes.as_ptr()));
        }
    }

    #[test]
    fn plain_requests_round_trip(inputs in any::tensors(any::has_json, 0, true)) {
        let sent = json::encode_request("", &inputs, &[], false).unwrap();
        prop_assert_eq!(sent.header_length, None);
        // Other parsers accept the output as JSON too.
        prop_assert!(serde_json::from_slice::<serde_json::Value>(&sent.body).is_ok());
        let parsed = json::parse_infer(sent.body, None, &Signature::default()).unwrap();
        prop_assert_eq!(parsed.inputs, inputs);
    }

    #[test]
    fn answers_round_trip(outputs in any::tensors(any::has_json, 0, true), mask in any::<u8>()) {
        let except = outputs.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1).map(|(_, o)| o.name.clone());
        let encoding = OutputEncoding { binary: mask >= 128, except: except.collect() };
        let body = json::infer_response(&version(), "id", &outputs, &encoding).unwrap();
        let size = json::response_bytes_max("id", &outputs, &encoding);
        let text = body.header_length.unwrap_or(body.body.len());
        prop_assert!(text <= size.text, "{} {}", text, size.text);
        prop_assert!(body.body.len() - text <= size.raw);
        let answer = json::parse_response(body.body, body.header_length).unwrap();
        prop_assert_eq!(answer.outputs, outputs);
        prop_assert_eq!((answer.model.as_str(), answer.version.as_str(), answer.id.as_str()), ("m", "7", "id"));
    }
}

#[test]
fn an_unreadable_response_keeps_its_cause() {
    let body = Bytes::from_static(b"{\"id\":\"\xff\"}");
    let error = json::parse_response(body, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    let source = std::error::Error::source(&error);
    assert!(source.is_some_and(|source| source.is::<std::str::Utf8Error>()), "{error}");
}

#[test]
fn data_may_be_nested_and_come_first() {
    let wanted = any::floats("x", &[2, 2], &[1.0, 2.0, 3.0, 4.0]).tensor;
    for tensor in [
        r#""datatype":"FP32","shape":[2,2],"data":[1,2,3,4]"#,
        r#""datatype":"FP32","shape":[2,2],"data":[[1,2],[3,4.0]]"#,
        r#""data":[[1e0,2],[3,4]],"shape":[2,2],"datatype":"FP32""#,
        r#""datatype":"FP32","shape":[2,2],"data":[[[1],[2]],[[3],[4]]]"#,
        r#""datatype":"FP32","shape":[2,2],"data":[[[1,2,3,4]]]"#,
        r#""shape":[2,2],"data":[1,2,3,4],"parameters":{"content_type":"np"},"datatype":"FP32""#,
    ] {
        assert_eq!(input(tensor).unwrap(), wanted, "{tensor}");
    }
    let scalar = input(r#""datatype":"INT64","shape":[],"data":5"#).unwrap();
    assert_eq!((scalar.shape(), scalar.to_vec::<i64>().unwrap()), (&[][..], vec![5]));
    let bare = input(r#""datatype":"FP64","shape":[3],"data":[NaN,Infinity,-Infinity]"#).unwrap();
    let bare = bare.to_vec::<f64>().unwrap();
    assert!(bare[0].is_nan() && bare[1..] == [f64::INFINITY, f64::NEG_INFINITY]);
}

/// KServe's client sends an array without elements so, without the length of the JSON.
#[test]
fn data_that_is_null_is_absent() {
    let empty = r#""datatype":"FP32","shape":[0,4],"data":null"#;
    let tensor = input(&format!(r#"{empty},"parameters":{{"binary_data_size":0}}"#)).unwrap();
    assert_eq!((tensor.dtype(), tensor.shape()), (DType::F32, &[0, 4][..]));
    let error = input(empty).unwrap_err();
    assert!(error.message().contains("has no \"data\""), "{error}");
}

#[test]
fn strings_may_have_the_content_type_of_text() {
    let tensor = r#""parameters":{"content_type":"str"},"shape":[2,1],"data":["a","b"]"#;
    let strings = input(&format!(r#"{tensor},"datatype":"BYTES""#)).unwrap();
    assert_eq!(strings.strings().unwrap(), [Bytes::from("a"), Bytes::from("b")]);
    let numbers = r#""parameters":{"content_type":"str"},"shape":[1],"data":[1]"#;
    let error = input(&format!(r#"{numbers},"datatype":"FP32""#)).unwrap_err();
    assert!(error.message().contains("content type str, which is for the datatype BYTES"));
}

#[test]
fn base64_is_for_strings_in_json() {
    let tensor = r#""parameters":{"content_type":"base64"},"datatype":"BYTES","shape":[1]"#;
    let strings = input(&format!(r#"{tensor},"data":["AP8="]"#)).unwrap();
    assert_eq!(strings.strings().unwrap(), [Bytes::from_static(&[0, 255])]);
    let parameters = r#""parameters":{"content_type":"base64","binary_data_size":8}"#;
    let tensor = format!(r#""name":"x","datatype":"BYTES","shape":[1],{parameters}"#);
    let header = format!(r#"{{"inputs":[{{{tensor}}}]}}"#);
    let body = [header.as_bytes(), b"\x04\0\0\0AP8="].concat();
    let parsed = json::parse_infer(body.into(), Some(header.len()), &Signature::default());
    let error = parsed.unwrap_err();
    assert!(error.message().contains("without the content type"), "{error}");
}

#[test]
fn outputs_and_parameters_are_understood() {
    let request = parse(
        r#"{"id":"a\"b","parameters":{"binary_data_output":true,"timeout":2000,"priority":3},"inputs":[],
            "outputs":[{"name":"y","parameters":{"binary_data":false}},{"name":"z"}],"unknown":[null]}"#,
    )
    .unwrap();
    assert_eq!((request.id.as_str(), request.binary_output), ("a\"b", true));
    assert_eq!(request.timeout, Some(std::time::Duration::from_millis(2)));
    assert_eq!(request.priority, 3);
    let names: Vec<&str> = request.outputs.iter().map(|output| &*output.name).collect();
    assert_eq!(names, ["y", "z"]);
    let outputs = [any::floats("y", &[1], &[1.5]), any::floats("z", &[1], &[2.5])];
    let body =
        json::infer_response(&version(), &request.id, &outputs, &request.encoding()).unwrap();
    let text = concat!(
        r#"{"id":"a\"b","model_name":"m","model_version":"7","outputs":["#,
        r#"{"name":"y","datatype":"FP32","shape":[1],"data":[1.5]},"#,
        r#"{"name":"z","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}"#
    );
    assert_eq!(body.header_length, Some(text.len()));
    assert_eq!(body.body, [text.as_bytes(), &2.5f32.to_le_bytes()].concat());
    let nulls = parse(r#"{"id":null,"outputs":null,"parameters":null,"inputs":[]}"#).unwrap();
    assert_eq!(nulls, RestInferRequest::default());
}

#[test]
fn errors_name_the_fault() {
    for (body, wanted) in [
        ("", "expected an object"),
        ("{}", "no \"inputs\""),
        ("[]", "expected an object"),
        (r#"{"inputs":[]} x"#, "expected the end"),
        (r#"{"inputs":[],"inputs":[]}"#, "given twice"),
        (r#"{"inputs":[{}]}"#, "no \"name\""),
        (r#"{"inputs":[{"name":"x"}]}"#, "no \"datatype\""),
        (r#"{"inputs":[{"name":"x","datatype":"FP32"}]}"#, "no \"shape\""),
        (r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1]}]}"#, "no \"data\""),
        (
            r#"{"inputs":[{"name":"x","datatype":"FP99","shape":[1],"data":[1]}]}"#,
            "unknown datatype",
        ),
        (
            r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1]}]}"#,
            "data of shape [1]",
        ),
        (
            r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":[[1,2],[3]]}]}"#,
            "do not make a tensor",
        ),
        (
            r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[4,1],"data":[[1,2],[3,4],[5,6]]}]}"#,
            "give 4 elements",
        ),
        (r#"{"inputs":[],"parameters":{"other":{}}}"#, "the parameter \"other\""),
        (r#"{"inputs":[{"name":"x","parameters":{"other":1}}]}"#, "the parameter \"other\""),
        (
            r#"{"inputs":[],"outputs":[{"parameters":{"other":1},"name":"y"}]}"#,
            "output \"y\" has the parameter",
        ),
        (
            r#"{"inputs":[{"name":"x","datatype":"INT32","shape":[1],"data":[1.5]}]}"#,
            "1.5 is not a valid int32 value",
        ),
        (
            r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":["1"]}]}"#,
            "expected a number",
        ),
        (
            r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[-1],"data":[1]}]}"#,
            "axis of size -1",
        ),
        (
            r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1],"parameters":{"binary_data_size":4}}]}"#,
            "give one of them",
        ),
        (
            r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}"#,
            "0 bytes of binary data follow the JSON, the tensors announce 4",
        ),
        (
            r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}abcd"#,
            "Inference-Header-Content-Length must be the length of the JSON",
        ),
        (
            r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":-4}}]}"#,
            "not a length",
        ),
        (
            r#"{"inputs":[{"name":"x","datatype":"COMPLEX64","shape":[1],"data":[1]}]}"#,
            "send it as binary data",
        ),
        (r#"{"inputs":[],"outputs":[{}]}"#, "no \"name\""),
    ] {
        let error = parse(body).unwrap_err();
        assert_eq!(error.kind(), base::ErrorKind::InvalidArgument, "{body}");
        assert!(error.message().contains(wanted), "{body}\n{error}\n{wanted}");
    }
}

#[test]
fn missing_features_are_refused_by_name() {
    for body in [
        r#"{"inputs":[{"name":"x","parameters":{"shared_memory_region":"r"}}]}"#,
        r#"{"inputs":[],"outputs":[{"name":"y","parameters":{"classification":3}}]}"#,
        r#"{"inputs":[],"outputs":[{"name":"y","parameters":{"shared_memory_region":"r"}}]}"#,
    ] {
        assert_eq!(parse(body).unwrap_err().kind(), base::ErrorKind::Unimplemented, "{body}");
    }
}

#[test]
fn binary_lengths_must_agree() {
    let sent = json::encode_request("", &[any::floats("x", &[2], &[1.0, 2.0])], &[], true).unwrap();
    let header = sent.header_length.unwrap();
    let parse = |body: Bytes, header| json::parse_infer(body, Some(header), &Signature::default());
    assert!(parse(sent.body.clone(), header).is_ok());
    assert!(parse(sent.body.slice(..sent.body.len() - 1), header).is_err());
    assert!(parse(Bytes::from([&sent.body[..], b"x"].concat()), header).is_err());
    assert!(parse(sent.body.clone(), header - 1).is_err());
    assert!(parse(sent.body.clone(), header + 1).is_err());
    let error = parse(sent.body.clone(), sent.body.len() + 1).unwrap_err();
    assert!(error.message().contains("the body has only"), "{error}");
}

#[test]
fn a_raw_body_is_the_only_input() {
    let raw = |specs: &[(&str, DType, &[i64])], body: &'static [u8]| {
        let request = json::parse_infer(Bytes::from_static(body), Some(0), &any::inputs(specs))?;
        assert!(request.binary_output);
        Ok::<_, base::Error>(request.inputs[0].tensor.clone())
    };
    let shape = |specs: &[(&str, DType, &[i64])]| {
        raw(specs, &[0; 24]).map(|tensor| tensor.shape().to_vec())
    };
    assert_eq!(shape(&[("x", DType::F32, &[2, 3])]), Ok(vec![2, 3]));
    assert_eq!(shape(&[("x", DType::F32, &[-1, 3])]), Ok(vec![2, 3]));
    assert_eq!(shape(&[("x", DType::F32, &[-1, 3, -1])]), Ok(vec![1, 3, 2]));
    assert!(shape(&[("x", DType::F32, &[3, -1, -1])]).is_err());
    assert!(shape(&[("x", DType::F32, &[-1, 5])]).is_err());
    assert!(shape(&[("x", DType::F32, &[-1, 0])]).is_err());
    assert!(shape(&[("x", DType::F32, &[6]), ("y", DType::F32, &[6])]).is_err());
    let mut filled = any::inputs(&[("x", DType::F32, &[6]), ("mask", DType::F32, &[6])]);
    filled.inputs[1].optional = true;
    let request = json::parse_infer(Bytes::from_static(&[0; 24]), Some(0), &filled).unwrap();
    assert_eq!(&*request.inputs[0].name, "x", "the other need not be given");
    let text = raw(&[("x", DType::String, &[-1, 1])], b"whole").unwrap();
    assert_eq!(
        (text.shape(), text.strings().unwrap()),
        (&[1, 1][..], &[Bytes::from_static(b"whole")][..])
    );
}

#[test]
fn bytes_that_are_no_text_need_binary() {
    let tensor =
        Tensor::from_strings([1usize].as_slice(), vec![Bytes::from_static(&[0xff])]).unwrap();
    let outputs = [NamedTensor::new("y", tensor)];
    let error =
        json::infer_response(&version(), "", &outputs, &OutputEncoding::default()).unwrap_err();
    assert!(error.message().contains("ask for binary data"), "{error}");
    let binary = OutputEncoding { binary: true, except: Vec::new() };
    assert!(json::infer_response(&version(), "", &outputs, &binary).is_ok());
}

#[test]
fn a_huge_shape_takes_no_memory() {
    let error = input(r#""datatype":"FP32","shape":[1000000000000],"data":[1]"#).unwrap_err();
    assert!(error.message().contains("1000000000000"), "{error}");
}
