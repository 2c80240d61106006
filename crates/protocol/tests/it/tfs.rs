//! TensorFlow Serving over gRPC.

use base::{DType, ErrorKind, VersionId};
use bytes::Bytes;
use proptest::prelude::*;
use protocol::Message;
use protocol::status::{TfsState, VersionState};
use protocol::tensorflow::serving::model_spec::VersionChoice;
use protocol::tensorflow::serving::{ModelSpec, PredictRequest, PredictResponse, SignatureDefMap};
use protocol::tensorflow::tensor_info::Encoding;
use protocol::tensorflow::{DataType, TensorProto};
use protocol::tfs::{self, grpc};

use crate::any;

fn version() -> VersionId {
    VersionId { model: "m".into(), version: 7 }
}

fn target() -> grpc::PredictTarget {
    grpc::PredictTarget { name: "m".into(), version: Some(7), label: None, signature: "s".into() }
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
        for elements in [tfs::TensorFields::Typed, tfs::TensorFields::Content] {
            let response = grpc::encode_predict(&version(), "serving_default", outputs.clone(), elements);
            let spec = response.model_spec.clone().unwrap();
            prop_assert_eq!(spec.version_choice, Some(VersionChoice::Version(7)));
            let encoded = Bytes::from(response.encode_to_vec());
            prop_assert_eq!(encoded.len(), response.encoded_len());
            let response = PredictResponse::decode(encoded).unwrap();
            let contents = response.outputs.values().filter(|output| !output.tensor_content.is_empty()).count();
            prop_assert!(elements == tfs::TensorFields::Content || contents == 0);
            prop_assert_eq!(grpc::decode_response(response).unwrap(), outputs.clone());
        }
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
fn an_error_of_raw_elements_names_the_input_once() {
    let dim = protocol::tensorflow::tensor_shape_proto::Dim { size: 3, name: String::new() };
    let shape = protocol::tensorflow::TensorShapeProto { dim: vec![dim], unknown_rank: false };
    let message = |dtype: DataType| TensorProto {
        dtype: dtype.into(),
        tensor_shape: Some(shape.clone()),
        tensor_content: b"ab".to_vec().into(),
        ..TensorProto::default()
    };
    for (dtype, wanted) in [
        (DataType::DtFloat, "\"x\": float32 of shape [3] takes 12 bytes, got 2"),
        (DataType::DtInt4, "\"x\": 3 4-bit elements take a byte each, got 2"),
        (DataType::DtString, "\"x\": tensor_content does not hold 3 strings"),
    ] {
        assert_eq!(tfs::decode_tensor("x", message(dtype)).unwrap_err().message(), wanted);
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
    assert_eq!(target(spec(None, "classify")).unwrap().signature, "classify");
    let long = "n".repeat(2000);
    assert_eq!(target(spec(None, &long)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    for wrong in [spec(Some(VersionChoice::Version(-1)), ""), ModelSpec::default()] {
        assert_eq!(target(wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert!(grpc::target(None).is_err());
}

#[test]
fn metadata_packs_all_signatures() {
    let signature = any::inputs(&[("x", DType::F32, &[-1, 3])]);
    let fields = ["signature_def".to_owned()];
    let tensors = ["graph/x:0".to_owned()];
    let infos = [
        tfs::SignatureInfo::only(&signature),
        tfs::SignatureInfo {
            name: "other",
            method: tfs::REGRESS_METHOD,
            signature: &signature,
            input_tensors: &tensors,
            output_tensors: &[],
        },
    ];
    let response = grpc::model_metadata(&version(), &infos, &fields).unwrap();
    let packed = &response.metadata["signature_def"];
    assert_eq!(packed.type_url, "type.googleapis.com/tensorflow.serving.SignatureDefMap");
    let map = SignatureDefMap::decode(packed.value.as_slice()).unwrap();
    let info = &map.signature_def["serving_default"].inputs["x"];
    assert_eq!(info.dtype, i32::from(DataType::DtFloat));
    let dims: Vec<i64> =
        info.tensor_shape.as_ref().unwrap().dim.iter().map(|dim| dim.size).collect();
    assert_eq!(dims, [-1, 3]);
    assert_eq!(info.encoding, Some(Encoding::Name("x".into())));
    let other = &map.signature_def["other"];
    assert_eq!(other.method_name, "tensorflow/serving/regress");
    assert_eq!(other.inputs["x"].encoding, Some(Encoding::Name("graph/x:0".into())));
    assert!(grpc::model_metadata(&version(), &infos, &[]).is_err());
    assert!(grpc::model_metadata(&version(), &infos, &["weights".into()]).is_err());
}

#[test]
fn status_has_the_published_numbers() {
    let states = [
        TfsState::Start,
        TfsState::Loading,
        TfsState::Available,
        TfsState::Unloading,
        TfsState::End,
    ];
    let versions = states.map(|state| VersionState { version: 1, state, error: None });
    let status = grpc::model_status(&versions);
    let numbers: Vec<i32> = status.model_version_status.iter().map(|status| status.state).collect();
    assert_eq!(numbers, [10, 20, 30, 40, 50]);
    let failed = VersionState { version: 2, state: TfsState::End, error: Some("no".into()) };
    let status = grpc::model_status(&[failed]).model_version_status[0].status.clone().unwrap();
    assert_ne!(status.error_code, 0);
    assert_eq!(status.error_message, "no");
}

#[test]
fn answers_fill_the_fields_that_tensorflow_serving_fills() {
    let bytes = |dtype: DType, bytes: &[u8]| {
        let count = bytes.len() * 8 / dtype.bits().unwrap();
        base::Tensor::from_bytes(dtype, [count].as_slice(), Bytes::copy_from_slice(bytes)).unwrap()
    };
    let message = |tensor: base::Tensor| {
        let outputs = vec![base::NamedTensor::new("y", tensor)];
        let answer =
            grpc::encode_predict(&version(), "serving_default", outputs, tfs::TensorFields::Typed);
        let response = PredictResponse::decode(answer.encode_to_vec().as_slice()).unwrap();
        response.outputs["y"].clone()
    };
    assert_eq!(message(bytes(DType::F32, &1.5f32.to_le_bytes())).float_val, [1.5]);
    assert_eq!(message(bytes(DType::F64, &1.5f64.to_le_bytes())).double_val, [1.5]);
    assert_eq!(message(bytes(DType::I32, &(-7i32).to_le_bytes())).int_val, [-7]);
    assert_eq!(message(bytes(DType::I16, &(-7i16).to_le_bytes())).int_val, [-7]);
    assert_eq!(message(bytes(DType::U16, &7u16.to_le_bytes())).int_val, [7]);
    assert_eq!(message(bytes(DType::I8, &[0xf9])).int_val, [-7]);
    assert_eq!(message(bytes(DType::U8, &[0xf9])).int_val, [0xf9]);
    assert_eq!(message(bytes(DType::I4, &[0x78])).int_val, [-8, 7]);
    assert_eq!(message(bytes(DType::I64, &(-7i64).to_le_bytes())).int64_val, [-7]);
    assert_eq!(message(bytes(DType::U32, &u32::MAX.to_le_bytes())).uint32_val, [u32::MAX]);
    assert_eq!(message(bytes(DType::U64, &u64::MAX.to_le_bytes())).uint64_val, [u64::MAX]);
    assert_eq!(message(bytes(DType::Bool, &[1, 0])).bool_val, [true, false]);
    assert_eq!(message(bytes(DType::F16, &[0, 0x3c])).half_val, [0x3c00]);
    assert_eq!(message(bytes(DType::BF16, &[0x80, 0xbf])).half_val, [0xbf80]);
    assert_eq!(message(bytes(DType::F8E5M2, &[0x3c])).float8_val, &[0x3c][..]);
    let pair = [1f32, -1.0].map(f32::to_le_bytes).concat();
    assert_eq!(message(bytes(DType::Complex64, &pair)).scomplex_val, [1.0, -1.0]);
    let pair = [1f64, -1.0].map(f64::to_le_bytes).concat();
    assert_eq!(message(bytes(DType::Complex128, &pair)).dcomplex_val, [1.0, -1.0]);
    let text =
        base::Tensor::from_strings([1usize].as_slice(), vec![Bytes::from_static(b"a")]).unwrap();
    assert_eq!(message(text).string_val, [Bytes::from_static(b"a")]);
}
