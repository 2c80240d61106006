//! Requests and answers of the three protocols.

use api_qdrant::json;
use base::{DType, Dim, NamedTensor, Signature, TensorSpec};
use bytes::Bytes;
use protocol::tfs::warmup::WarmupRecord;
use protocol::{Message, inference, oip, tensorflow, tfs};
use qdrant_grpc::QdrantCall;

use crate::bounded;

/// Bytes of the repeated values that `tfs::fill` may write for one request, twice for a temporary
/// copy.
const FILLED_BYTES: usize = 2 * (64 << 20);

fn spec(name: &str, dtype: DType, shape: Option<&[Option<usize>]>) -> TensorSpec {
    let dim = |size: &Option<usize>| size.map_or(Dim::Dynamic(None), Dim::Fixed);
    let shape = shape.map(|shape| shape.iter().map(dim).collect());
    TensorSpec { name: name.to_owned(), dtype, shape, optional: name != "x" }
}

/// Returns a signature with an input of each kind that JSON encodes differently.
fn signature() -> Signature {
    Signature {
        inputs: vec![
            spec("x", DType::F32, Some(&[None, Some(2)])),
            spec("n", DType::I64, Some(&[None])),
            spec("s", DType::String, Some(&[None])),
            spec("b", DType::Bool, None),
            spec("h", DType::F16, None),
            spec("u", DType::U64, None),
            spec("d", DType::F64, None),
        ],
        outputs: vec![spec("x", DType::F32, Some(&[None])), spec("s", DType::String, None)],
    }
}

/// Returns a header length, selected by the first byte, and the body after that byte.
fn with_header(data: &[u8]) -> (Option<usize>, Bytes) {
    match data {
        [0, rest @ ..] => (Some(0), Bytes::copy_from_slice(rest)),
        [1, low, high, rest @ ..] => {
            (Some(usize::from(u16::from_le_bytes([*low, *high]))), Bytes::copy_from_slice(rest))
        }
        [2, rest @ ..] => (Some(usize::MAX - rest.len()), Bytes::copy_from_slice(rest)),
        _ => (None, Bytes::copy_from_slice(data)),
    }
}

/// Fuzzes the Open Inference Protocol over HTTP: infer requests and answers, JSON with and without
/// raw tensors.
///
/// Asserts that a parsed request, encoded with raw tensors, parses to the same request.
pub fn oip_json(data: &[u8]) {
    let signature = signature();
    let (header, body) = with_header(data);
    let _ = bounded(data, 0, || oip::json::parse_response(body.clone(), header));
    let _ = bounded(data, 0, || oip::json::parse_record(body.clone()));
    let Ok(request) = bounded(data, 0, || oip::json::parse_infer(body, header, &signature)) else {
        return;
    };
    let outputs: Vec<&str> = request.outputs.iter().map(|output| &*output.name).collect();
    let written =
        oip::json::encode_request(&request.id, &request.inputs, &outputs, true).expect("raw form");
    let again = oip::json::parse_infer(written.body, written.header_length, &signature)
        .expect("own request");
    assert_eq!(again.inputs, request.inputs);
    assert_eq!(again.id, request.id);
    let names: Vec<&str> = again.outputs.iter().map(|output| &*output.name).collect();
    assert_eq!(names, outputs);
    // JSON cannot encode some types and values. The others must survive.
    if let Ok(written) = oip::json::encode_request("", &request.inputs, &[], false) {
        let again = oip::json::parse_infer(written.body, written.header_length, &signature)
            .expect("own JSON");
        assert_eq!(shapes(&again.inputs), shapes(&request.inputs));
    }
}

/// Fuzzes files of golden requests in JSON. Asserts that errors name the form or the request.
pub fn golden_json(data: &[u8]) {
    let file = Bytes::copy_from_slice(data);
    if let Err(error) = bounded(data, 0, || oip::json::parse_golden(&file, &signature())) {
        let message = error.message();
        let named = message.contains("golden request ") || message.contains("must be a list");
        assert!(named, "{error}");
    }
}

fn shapes(tensors: &[NamedTensor]) -> Vec<(&str, DType, &[usize])> {
    tensors.iter().map(|named| (&*named.name, named.tensor.dtype(), named.tensor.shape())).collect()
}

/// Fuzzes TensorFlow Serving over HTTP: predict requests and answers in row and column form.
///
/// Asserts that a parsed request in column form with non-empty tensors, encoded, parses to the same
/// names and shapes.
pub fn tfs_json(data: &[u8]) {
    let signature = signature();
    let body = Bytes::copy_from_slice(data);
    let _ = bounded(data, 0, || tfs::json::parse_response(&body, &signature));
    let Ok(predict) = bounded(data, 0, || tfs::json::parse_predict(&body, &signature)) else {
        return;
    };
    let Ok(written) = tfs::json::encode_request(&predict.inputs, predict.form) else { return };
    if predict.inputs.iter().any(|input| input.tensor.elements() == 0) {
        return;
    }
    // A single input has no name, so the signature for parsing has only this input.
    let given = |spec: &&TensorSpec| predict.inputs.iter().any(|input| *input.name == *spec.name);
    let own = Signature {
        inputs: signature.inputs.iter().filter(given).cloned().collect(),
        ..signature.clone()
    };
    let again = tfs::json::parse_predict(&written, &own).expect("own request");
    let mut again = shapes(&again.inputs);
    let mut first = shapes(&predict.inputs);
    again.sort_unstable();
    first.sort_unstable();
    assert_eq!(again, first);
}

/// Fuzzes the Open Inference Protocol over gRPC: `ModelInferRequest` and `ModelInferResponse`.
///
/// Asserts that a parsed request, encoded, parses to the same inputs and outputs.
pub fn oip_protobuf(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    bounded(data, 0, || {
        if let Ok(response) = inference::ModelInferResponse::decode(body.clone()) {
            let _ = oip::grpc::decode_response(response);
        }
    });
    let request = bounded(data, 0, || {
        let request = inference::ModelInferRequest::decode(body).ok()?;
        oip::grpc::decode_request(request).ok()
    });
    let Some(request) = request else { return };
    let outputs: Vec<&str> = request.outputs.iter().map(|output| &**output).collect();
    let written =
        oip::grpc::encode_request("m", Some(1), &request.inputs, &outputs).expect("raw form");
    let message = inference::ModelInferRequest::decode(Bytes::from(written.encode_to_vec()))
        .expect("own message");
    let again = oip::grpc::decode_request(message).expect("own request");
    assert_eq!(again.inputs, request.inputs);
    assert_eq!(again.outputs, request.outputs);
}

/// Fuzzes TensorFlow Serving over gRPC: `PredictRequest` and `PredictResponse`.
///
/// Asserts that a parsed request, encoded, parses to the same inputs.
pub fn tfs_protobuf(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    bounded(data, FILLED_BYTES, || {
        if let Ok(response) = tensorflow::serving::PredictResponse::decode(body.clone()) {
            let _ = tfs::grpc::decode_response(response);
        }
    });
    let predict = bounded(data, FILLED_BYTES, || {
        let request = tensorflow::serving::PredictRequest::decode(body).ok()?;
        let _ = tfs::grpc::target(request.model_spec.as_ref());
        tfs::grpc::decode_predict(request).ok()
    });
    let Some(predict) = predict else { return };
    let outputs: Vec<&str> = predict.outputs.iter().map(|output| &**output).collect();
    let message =
        tfs::grpc::encode_request(&tfs::grpc::PredictTarget::default(), &predict.inputs, &outputs);
    let message = tensorflow::serving::PredictRequest::decode(Bytes::from(message.encode_to_vec()));
    let again = tfs::grpc::decode_predict(message.expect("own message")).expect("own request");
    assert_eq!(again.inputs, predict.inputs);
    assert_eq!(again.outputs, predict.outputs);
}

/// Fuzzes requests with examples: `ClassificationRequest`, JSON bodies, and the bytes as examples.
///
/// Asserts that examples are read into tensors within the memory that was reserved, and that JSON
/// makes examples that can be read.
pub fn tfs_examples(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    let specs = signature().inputs;
    let message = tensorflow::serving::ClassificationRequest::decode(body.clone()).ok();
    let message = message.and_then(|request| tfs::Examples::from_message(request.input).ok());
    let json = bounded(data, 0, || tfs::json::parse_examples(&body)).ok();
    if let Some(examples) = &json {
        let serialized = examples.serialized(&mut |_| Ok(())).expect("own examples");
        assert_eq!(serialized.elements(), examples.count());
    }
    let raw = tfs::Examples::new(vec![body.clone()], Bytes::new()).ok();
    for examples in message.into_iter().chain(json).chain(raw) {
        // Small requests take little even if each example is filled from defaults.
        let _ = bounded(data, data.len() * 1024, || {
            let defaults = [("x".to_owned(), tfs::FeatureValue::Whole(1))].into();
            examples.features(&specs, &defaults, &mut |_| Ok(()))
        });
    }
}

/// Fuzzes warm-up records of TensorFlow Serving: the input as a file, and as one record with
/// correct checksums.
///
/// Asserts that parsed requests, written to a file, parse to the same requests.
pub fn tfs_warmup(data: &[u8]) {
    let masked = |bytes: &[u8]| {
        crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let length = (data.len() as u64).to_le_bytes();
    let mended = [&length[..], &masked(&length), data, &masked(data)].concat();
    for file in [Bytes::copy_from_slice(data), Bytes::from(mended)] {
        // Values are filled in for each record.
        let records = data.len() / 16 + 1;
        let read = bounded(data, FILLED_BYTES * records, || tfs::warmup::read_records(&file));
        let Ok(read) = read else { continue };
        let inputs = |record: &base::Result<WarmupRecord>| match record {
            Ok(WarmupRecord::Predict { inputs, .. }) => Some(inputs.clone()),
            _ => None,
        };
        let requests: Vec<_> = read.iter().filter_map(inputs).collect();
        let file = Bytes::from(tfs::warmup::write_requests("m", &requests));
        let again = tfs::warmup::read_records(&file).expect("own file");
        assert_eq!(again.iter().filter_map(inputs).collect::<Vec<_>>(), requests);
    }
}

/// Fuzzes messages of Qdrant's gRPC calls. The first byte selects the call. Asserts that a request
/// has a path of the interface and JSON as its body, within the memory that was computed before.
pub fn qdrant_protobuf(data: &[u8]) {
    let Some((kind, message)) = data.split_first() else { return };
    let path = qdrant_grpc::PATHS[usize::from(*kind) % qdrant_grpc::PATHS.len()];
    let call = QdrantCall::of(path).expect("a path of a call");
    let Ok(bytes_max) = bounded(data, 0, || call.bytes_max(message)) else { return };
    // A message of a few bytes may be refused with a longer error.
    let beyond = usize::try_from(bytes_max).unwrap_or(usize::MAX).saturating_add(1 << 16);
    let request = bounded(data, beyond, || call.request(Bytes::copy_from_slice(message)));
    let Ok(request) = request else { return };
    assert!(request.path.starts_with('/') && request.path.is_ascii());
    if !request.body.is_empty() {
        serde_json::from_slice::<serde_json::Value>(&request.body).expect("JSON");
    }
}

/// Fuzzes Qdrant's REST bodies. The first byte selects the request.
pub fn qdrant_json(data: &[u8]) {
    let Some((kind, body)) = data.split_first() else { return };
    bounded(data, 0, || match kind % 17 {
        0 => drop(json::parse::<json::UpsertRequest>(body).and_then(|upsert| upsert.points(""))),
        1 => drop(json::parse::<json::UpsertRequest>(body).and_then(|upsert| upsert.points("v"))),
        2 => drop(
            json::parse::<json::PointsSelector>(body).and_then(json::PointsSelector::selection),
        ),
        3 => drop(json::parse::<json::UpdateBatch>(body)),
        4 => query(body),
        5 => drop(json::parse::<json::QueryBatchRequest>(body)),
        6 => drop(json::parse::<json::ScrollRequest>(body).map(|scroll| scroll.limit())),
        7 => drop(json::parse::<json::CountRequest>(body)),
        8 => drop(json::parse::<json::FacetRequest>(body).map(|facet| facet.limit())),
        9 => drop(json::parse::<json::RetrieveRequest>(body)),
        10 => {
            drop(json::parse::<json::CreateCollection>(body).and_then(|create| create.settings()))
        }
        11 => drop(json::parse::<json::ChangeAliases>(body)),
        12 => drop(json::parse::<json::SetPayload>(body).and_then(|mut set| set.selection())),
        13 => {
            drop(json::parse::<json::DeletePayload>(body).and_then(|mut delete| delete.selection()))
        }
        14 => drop(json::parse::<json::CreateIndex>(body).map(|index| drop(index.schema()))),
        15 => drop(
            json::parse::<json::UpdateVectorsRequest>(body).and_then(|update| update.vectors("")),
        ),
        _ => older_query(body),
    });
}

/// Converts requests of older routes and parses the queries that they become.
fn older_query(body: &[u8]) {
    use json::OlderQuery::{Discover, Recommend, Search};
    for older in [Search, Recommend, Discover] {
        let _ = older.query(body).and_then(|body| json::parse::<json::QueryRequest>(&body));
        let _ = older.batch(body).and_then(|body| json::parse::<json::QueryBatchRequest>(&body));
        let _ = older.groups(body).and_then(|body| json::parse::<json::QueryGroupsRequest>(&body));
    }
}

/// Parses a query, checks its limits, and parses its filter alone.
fn query(body: &[u8]) {
    if let Ok(query) = json::parse::<json::QueryRequest>(body) {
        let _ = (query.limit(), query.offset());
    }
    let _ = json::parse_filter(body);
}
