//! Feeds foreign bytes to every parser: each returns a value or an error, and accepted values are
//! consistent.

use std::collections::BTreeMap;

use base::{DType, NamedTensor, Signature};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use protocol::inference::{ModelInferRequest, ModelInferResponse};
use protocol::tensorflow::TensorProto;
use protocol::tensorflow::serving::{ClassificationRequest, PredictRequest, PredictResponse};
use protocol::tfs::json::PredictFormat;
use protocol::{Message, oip, tfs};

use crate::any;

fn sound(tensors: &[NamedTensor]) {
    for NamedTensor { tensor, .. } in tensors {
        match tensor.dtype().bytes_for(tensor.elements()) {
            Some(bytes) => assert_eq!(tensor.bytes().unwrap().len(), bytes),
            None => assert_eq!(tensor.strings().unwrap().len(), tensor.elements()),
        }
    }
}

fn oip_grpc(body: Bytes) {
    if let Ok(request) = ModelInferRequest::decode(body.clone())
        && let Ok(request) = oip::grpc::decode_request(request)
    {
        sound(&request.inputs);
    }
    if let Ok(response) = ModelInferResponse::decode(body)
        && let Ok(response) = oip::grpc::decode_response(response)
    {
        sound(&response.outputs);
    }
}

fn oip_json(body: Bytes, header: Option<usize>, signature: &Signature) {
    if let Ok(request) = oip::json::parse_infer(body.clone(), header, signature) {
        sound(&request.inputs);
        // A value that was read can be written.
        let _ = oip::json::encode_request(&request.id, &request.inputs, &[], true).unwrap();
    }
    if let Ok(response) = oip::json::parse_response(body, header) {
        sound(&response.outputs);
    }
}

fn tfs_grpc(body: Bytes) {
    if let Ok(request) = PredictRequest::decode(body.clone()) {
        let _ = tfs::grpc::target(request.model_spec.as_ref());
        if let Ok(predict) = tfs::grpc::decode_predict(request) {
            sound(&predict.inputs);
        }
    }
    if let Ok(response) = PredictResponse::decode(body.clone())
        && let Ok(outputs) = tfs::grpc::decode_response(response)
    {
        sound(&outputs);
    }
    if let Ok(message) = TensorProto::decode(body)
        && let Ok(tensor) = tfs::decode_tensor("x", message)
    {
        sound(&[NamedTensor::new("x", tensor)]);
    }
}

fn tfs_json(body: &Bytes, signature: &Signature) {
    if let Ok(predict) = tfs::json::parse_predict(body, signature) {
        sound(&predict.inputs);
        let _ = tfs::json::predict_response(&predict.inputs, predict.form);
        let _ = tfs::json::predict_response(&predict.inputs, PredictFormat::Column).unwrap();
    }
    let _ = tfs::json::parse_response(body, signature);
}

fn tfs_examples(body: &Bytes, signature: &Signature) {
    let message = ClassificationRequest::decode(body.clone()).ok();
    let message = message.and_then(|request| tfs::Examples::from_message(request.input).ok());
    let json = tfs::json::parse_examples(body).ok();
    let _ = tfs::json::signature_name(body);
    let raw = tfs::Examples::new(vec![body.clone(), body.clone()], body.clone()).ok();
    for examples in message.into_iter().chain(json).chain(raw) {
        let defaults = BTreeMap::from([("x".to_owned(), tfs::FeatureValue::Whole(1))]);
        if let Ok(inputs) = examples.features(&signature.inputs, &defaults, &mut |_| Ok(())) {
            sound(&inputs);
        }
        examples.serialized(&mut |_| Ok(())).unwrap();
    }
}

/// One small change to a body.
#[derive(Clone, Debug)]
enum Change {
    Flip(prop::sample::Index, u8),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
    Repeat(prop::sample::Index, usize),
    Cut(prop::sample::Index),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>;
    let token = prop_oneof![
        vec(any::<u8>(), 1..4),
        proptest::sample::select(vec![
            "[",
            "]",
            "{",
            "}",
            ",",
            ":",
            "\"",
            "\\u",
            "null",
            "NaN",
            "-",
            "1e999",
            "0",
            "-1",
            "{\"b64\":",
            "\\",
            "9223372036854775808",
            "\"data\":",
            "\"shape\":",
            "\"inputs\":",
            "\"instances\":",
        ])
        .prop_map(|token| token.as_bytes().to_vec()),
    ];
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, bits)| Change::Flip(at, bits)),
        (at(), token).prop_map(|(at, token)| Change::Insert(at, token)),
        (at(), 1..9usize).prop_map(|(at, length)| Change::Remove(at, length)),
        (at(), 1..20usize).prop_map(|(at, length)| Change::Repeat(at, length)),
        at().prop_map(Change::Cut),
    ]
}

fn changed(body: &[u8], changes: &[Change]) -> Bytes {
    let mut body = body.to_vec();
    for change in changes {
        if body.is_empty() {
            break;
        }
        match change {
            Change::Flip(at, bits) => {
                let at = at.index(body.len());
                body[at] ^= bits;
            }
            Change::Insert(at, token) => {
                let at = at.index(body.len());
                drop(body.splice(at..at, token.iter().copied()));
            }
            Change::Remove(at, length) => {
                let at = at.index(body.len());
                drop(body.drain(at..(at + length).min(body.len())));
            }
            Change::Repeat(at, length) => {
                let at = at.index(body.len());
                body.extend_from_within(at..(at + length).min(body.len()));
            }
            Change::Cut(at) => body.truncate(at.index(body.len())),
        }
    }
    body.into()
}

fn some_signature() -> Signature {
    any::inputs(&[
        ("t0", DType::F32, &[-1, 2]),
        ("t1", DType::String, &[-1]),
        ("t2", DType::I64, &[]),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes(body in vec(any::<u8>(), 0..300), header in proptest::option::of(0..320usize)) {
        let body = Bytes::from(body);
        let signature = some_signature();
        oip_grpc(body.clone());
        tfs_grpc(body.clone());
        oip_json(body.clone(), header, &signature);
        oip_json(body.clone(), Some(0), &any::inputs(&[("x", DType::F32, &[-1, 3])]));
        tfs_json(&body, &signature);
        tfs_examples(&body, &signature);
        let _ = tfs::warmup::read_records(&body);
    }

    #[test]
    fn any_text(body in "[\\[\\]{}:,\"a-z0-9.\\\\ -]{0,80}") {
        let body = Bytes::from(body);
        oip_json(body.clone(), None, &some_signature());
        tfs_json(&body, &some_signature());
        for member in ["inputs", "instances", "outputs", "examples"] {
            let inside = Bytes::from([b"{\"", member.as_bytes(), b"\":", &body, b"}"].concat());
            oip_json(inside.clone(), None, &some_signature());
            tfs_json(&inside, &some_signature());
            tfs_examples(&inside, &some_signature());
        }
    }

    #[test]
    fn damaged_bodies(
        inputs in any::tensors(any::has_json, 1, false),
        changes in vec(change(), 1..5),
        shift in 0..8usize,
    ) {
        let signature = any::signature(&inputs);
        let message = oip::grpc::encode_request("m", Some(1), &inputs, &["y"]).unwrap();
        oip_grpc(changed(&message.encode_to_vec(), &changes));
        let version = base::VersionId { model: "m".into(), version: 1 };
        let message = oip::grpc::encode_response(&version, "id".into(), inputs.clone()).unwrap();
        oip_grpc(changed(&message.encode_to_vec(), &changes));
        let binary = oip::json::encode_request("id", &inputs, &["y"], true).unwrap();
        let header = binary.header_length.map(|length| (length + shift).saturating_sub(4));
        oip_json(changed(&binary.body, &changes), binary.header_length, &signature);
        oip_json(changed(&binary.body, &changes), header, &signature);
        if let Ok(plain) = oip::json::encode_request("id", &inputs, &[], false) {
            oip_json(changed(&plain.body, &changes), None, &signature);
        }
        let target = tfs::grpc::PredictTarget { name: "m".into(), ..Default::default() };
        tfs_grpc(changed(&tfs::grpc::encode_request(&target, &inputs, &["y"]).encode_to_vec(), &changes));
        for form in [PredictFormat::Row, PredictFormat::Column] {
            if let Ok(body) = tfs::json::encode_request(&inputs, form) {
                tfs_json(&changed(&body, &changes), &signature);
            }
        }
        let file = tfs::warmup::write_requests("m", std::slice::from_ref(&inputs));
        let _ = tfs::warmup::read_records(&changed(&file, &changes));
    }
}

fn configuration(text: &str) {
    use protocol::tensorflow::serving::{ModelServerConfig, PlatformConfigMap};
    if let Err(error) = tfs::text::parse::<ModelServerConfig>(text).map(drop) {
        assert!(error.message().starts_with("line "), "{error}");
    }
    let _ = tfs::text::parse::<PlatformConfigMap>(text);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Tokens of the text format in any order.
    #[test]
    fn configuration_files(tokens in vec(proptest::sample::select(vec![
        "model_config_list", "config", "name", "version_labels", "key", "value", "model_type",
        "model_version_policy", "specific", "versions", "platform_configs",
        "source_adapter_config", "[type.googleapis.com/tensorflow.serving.PlatformConfig]",
        "{", "}", "<", ">", "[", "]", ":", ",", ";", "'a'", "\"\\x6\"", "'\\777'", "'\\u12'", "'",
        "-", "1", "0x", "09", "1e999", "-1.5f", "TENSORFLOW", "# x", "\n", "\u{e9}",
    ]), 0..60)) {
        configuration(&tokens.concat());
        configuration(&tokens.join(" "));
    }
}
