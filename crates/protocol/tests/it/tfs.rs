//! TensorFlow Serving over gRPC.

use base::{DType, ErrorKind, VersionId};
use bytes::Bytes;
use proptest::prelude::*;
use protocol::Message;
use protocol::status::{TfsState, VersionState};
use protocol::tensorflow::serving::model_spec::VersionChoice;
use protocol::tensorflow::serving::{ModelSpec, PredictRequest, PredictResponse, SignatureDefMap};
use protocol::tensorflow::{DataType, TensorProto};
use protocol::tfs::{self, grpc};

use crate::any;

fn version() -> VersionId {
    VersionId { model: "m".into(), version: 7 }
}

fn target() -> grpc::Target {
    grpc::Target { name: "m".into(), version: Some(7), label: None }
}

proptest! {
    #[test]
    fn requests_round_trip(inputs in any::tensors(|_| true, 0, false)) {
        let wire = Bytes::from(grpc::encode_request(&target(), &inputs, &["y"]).encode_to_vec());
        let request = PredictRequest::decode(wire.clone()).unwrap();
        prop_assert_eq!(grpc::target(request.model_spec.as_ref()).unwrap(), target());
        let decoded = grpc::decode_predict(request).unwrap();
        prop_assert_eq!(&decoded.inputs, &inputs);
        prop_assert_eq!(decoded.outputs, ["y".into()]);
        let whole = decoded.inputs.iter().filter(|input| input.tensor.dtype().bits().is_some_and(|bits| bits > 4));
        for bytes in whole.filter_map(|input| input.tensor.bytes()).filter(|b| !b.is_empty()) {
            prop_assert!(wire.as_ptr_range().contains(&bytes.as_ptr()));
        }
    }

    #[test]
    fn answers_round_trip(outputs in any::tensors(|_| true, 0, false)) {
        let response = grpc::encode_predict(&version(), outputs.clone()).unwrap();
        let spec = response.model_spec.clone().unwrap();
        prop_assert_eq!(spec.version_choice, Some(VersionChoice::Version(7)));
        let response = PredictResponse::decode(Bytes::from(response.encode_to_vec())).unwrap();
        prop_assert_eq!(grpc::decode_response(response).unwrap(), outputs);
    }

    #[test]
    fn typed_values_mean_the_same(values in proptest::collection::vec(any::<i16>(), 1..20)) {
        let dim = protocol::tensorflow::tensor_shape_proto::Dim { size: values.len() as i64, name: String::new() };
        let message = |dtype: DataType| TensorProto {
            dtype: dtype.into(),
            tensor_shape: Some(protocol::tensorflow::TensorShapeProto { dim: vec![dim.clone()], unknown_rank: false }),
            ..TensorProto::default()
        };
        let ints = TensorProto { int_val: values.iter().map(|v| i32::from(*v)).collect(), ..message(DataType::DtInt16) };
        prop_assert_eq!(&tfs::decode_tensor("x", ints).unwrap().to_vec::<i16>().unwrap(), &values);
        let content = values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let content = TensorProto { tensor_content: content.into(), ..message(DataType::DtInt16) };
        prop_assert_eq!(&tfs::decode_tensor("x", content).unwrap().to_vec::<i16>().unwrap(), &values);
        let halves: Vec<i32> = values.iter().map(|v| i32::from(*v as u16)).collect();
        let halves = tfs::decode_tensor("x", TensorProto { half_val: halves, ..message(DataType::DtBfloat16) }).unwrap();
        let wanted = values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        prop_assert_eq!(halves.bytes().unwrap(), &wanted);
        let bytes: Vec<u8> = values.iter().map(|v| *v as u8).collect();
        let floats = TensorProto { float8_val: bytes.clone().into(), ..message(DataType::DtFloat8E5m2) };
        let floats = tfs::decode_tensor("x", floats).unwrap();
        prop_assert_eq!(floats.bytes().unwrap(), &bytes);
    }
}

#[test]
fn targets() {
    let spec = |choice, signature: &str| ModelSpec {
        name: "m".into(),
        signature_name: signature.into(),
        version_choice: choice,
    };
    let target = |spec: ModelSpec| grpc::target(Some(&spec));
    assert_eq!(target(spec(None, "")).unwrap().version, None);
    assert_eq!(target(spec(None, "serving_default")).unwrap().name, "m");
    let label = VersionChoice::VersionLabel("stable".into());
    assert_eq!(target(spec(Some(label), "")).unwrap().label.as_deref(), Some("stable"));
    assert_eq!(target(spec(Some(VersionChoice::Version(0)), "")).unwrap().version, Some(0));
    for wrong in [spec(Some(VersionChoice::Version(-1)), ""), spec(None, "classify"), ModelSpec::default()] {
        assert_eq!(target(wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert!(grpc::target(None).is_err());
}

#[test]
fn metadata_is_a_packed_signature() {
    let signature = any::inputs(&[("x", DType::F32, &[-1, 3])]);
    let fields = ["signature_def".to_owned()];
    let response = grpc::model_metadata(&version(), &signature, &fields).unwrap();
    let packed = &response.metadata["signature_def"];
    assert_eq!(packed.type_url, "type.googleapis.com/tensorflow.serving.SignatureDefMap");
    let map = SignatureDefMap::decode(packed.value.as_slice()).unwrap();
    let info = &map.signature_def["serving_default"].inputs["x"];
    assert_eq!(info.dtype, i32::from(DataType::DtFloat));
    let dims: Vec<i64> = info.tensor_shape.as_ref().unwrap().dim.iter().map(|dim| dim.size).collect();
    assert_eq!(dims, [-1, 3]);
    assert!(grpc::model_metadata(&version(), &signature, &[]).is_err());
    assert!(grpc::model_metadata(&version(), &signature, &["weights".into()]).is_err());
}

#[test]
fn status_has_the_published_numbers() {
    let states =
        [TfsState::Start, TfsState::Loading, TfsState::Available, TfsState::Unloading, TfsState::End];
    let versions = states.map(|state| VersionState { version: 1, state, error: None });
    let status = grpc::model_status(&versions);
    let numbers: Vec<i32> = status.model_version_status.iter().map(|status| status.state).collect();
    assert_eq!(numbers, [10, 20, 30, 40, 50]);
    let failed = VersionState { version: 2, state: TfsState::End, error: Some("no".into()) };
    let status = grpc::model_status(&[failed]).model_version_status[0].status.clone().unwrap();
    assert_ne!(status.error_code, 0);
    assert_eq!(status.error_message, "no");
}
