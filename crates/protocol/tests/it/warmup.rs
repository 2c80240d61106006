//! Warm-up files.

use base::{ErrorKind, NamedTensor, Result};
use bytes::Bytes;
use proptest::prelude::*;
use protocol::Message;
use protocol::tensorflow::serving::prediction_log::LogType;
use protocol::tensorflow::serving::{
    ClassificationRequest, ClassifyLog, InferenceTask, ModelSpec, MultiInferenceLog,
    MultiInferenceRequest, PredictLog, PredictionLog, RegressLog, RegressionRequest,
};
use protocol::tfs::warmup::{self, ExampleTask, RECORDS_MAX, WarmupRecord};
use protocol::tfs::{Examples, grpc};

use crate::any;

fn file(requests: &[Vec<NamedTensor>]) -> Bytes {
    Bytes::from(warmup::write_requests("m", requests))
}

fn kind(file: &[u8]) -> Option<ErrorKind> {
    warmup::read_records(&Bytes::copy_from_slice(file)).err().map(|error| error.kind())
}

fn read(file: &[u8]) -> Vec<Result<WarmupRecord>> {
    warmup::read_records(&Bytes::copy_from_slice(file)).unwrap()
}

proptest! {
    #[test]
    fn requests_round_trip(requests in proptest::collection::vec(any::tensors(|_| true, 0, false), 0..4)) {
        let inputs = |record| match record {
            Ok(WarmupRecord::Predict { inputs, .. }) => inputs,
            other => panic!("{other:?}"),
        };
        let read: Vec<_> = read(&file(&requests)).into_iter().map(inputs).collect();
        prop_assert_eq!(read, requests);
    }

    #[test]
    fn damage_is_noticed(position in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut damaged = file(&[vec![any::floats("x", &[3], &[1.0, 2.0, 3.0])]]).to_vec();
        let position = position.index(damaged.len());
        damaged[position] ^= 1 << bit;
        prop_assert_eq!(kind(&damaged), Some(ErrorKind::DataLoss));
    }
}

#[test]
fn a_cut_file_is_refused() {
    let whole = file(&[vec![any::floats("x", &[1], &[1.0])], vec![any::floats("x", &[1], &[2.0])]]);
    let first = whole.len() / 2;
    for length in (1..whole.len()).filter(|length| *length != first) {
        assert_eq!(kind(&whole[..length]), Some(ErrorKind::DataLoss), "{length}");
    }
    assert_eq!(kind(b""), None);
}

#[test]
fn the_number_of_records_is_bounded() {
    let one = vec![any::floats("x", &[1], &[1.0])];
    assert_eq!(read(&file(&vec![one.clone(); RECORDS_MAX])).len(), RECORDS_MAX);
    assert_eq!(kind(&file(&vec![one; RECORDS_MAX + 1])), Some(ErrorKind::InvalidArgument));
}

/// Returns a file of one record. Computes the format's masked checksum independently.
fn one(record: &[u8]) -> Vec<u8> {
    let sum = |bytes: &[u8]| {
        (crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)).to_le_bytes()
    };
    let length = (record.len() as u64).to_le_bytes();
    [&length[..], &sum(&length), record, &sum(record)].concat()
}

fn predict(signature: &str) -> Vec<u8> {
    let target = grpc::PredictTarget { name: "m".into(), ..Default::default() };
    let mut request = grpc::encode_request(&target, &[any::floats("x", &[1], &[1.0])], &[]);
    request.model_spec.as_mut().unwrap().signature_name = signature.into();
    let log = LogType::PredictLog(PredictLog { request: Some(request), response: None });
    one(&PredictionLog { log_type: Some(log) }.encode_to_vec())
}

fn log(log: LogType) -> Vec<u8> {
    one(&PredictionLog { log_type: Some(log) }.encode_to_vec())
}

#[test]
fn records_of_all_kinds_are_read() {
    let spec = |signature: &str| {
        Some(ModelSpec { signature_name: signature.into(), ..ModelSpec::default() })
    };
    let examples = Examples::new(vec![Bytes::from_static(b"e")], Bytes::new()).unwrap();
    let input = Some(examples.clone().into_message());
    let classify = ClassificationRequest { model_spec: spec("c"), input: input.clone() };
    let regress = RegressionRequest { model_spec: spec(""), input: input.clone() };
    let task = |method: &str, signature: &str| InferenceTask {
        model_spec: spec(signature),
        method_name: method.into(),
    };
    let tasks = vec![task("m1", "c"), task("m2", "r")];
    let multi = MultiInferenceRequest { tasks, input };
    let records = [
        log(LogType::ClassifyLog(ClassifyLog { request: Some(classify) })),
        log(LogType::RegressLog(RegressLog { request: Some(regress) })),
        log(LogType::MultiInferenceLog(MultiInferenceLog { request: Some(multi) })),
        log(LogType::SessionRunLog(Bytes::new())),
        log(LogType::PredictStreamedLog(Bytes::new())),
        predict("p"),
    ];
    let read = read(&records.concat());
    let read: Vec<_> = read.into_iter().map(Result::unwrap).collect();
    let task = |method: &str, signature: &str| ExampleTask {
        method: method.into(),
        signature: signature.into(),
    };
    let of = |tasks| WarmupRecord::Examples { tasks, examples: examples.clone() };
    assert_eq!(
        read[..5],
        [
            of(vec![task("tensorflow/serving/classify", "c")]),
            of(vec![task("tensorflow/serving/regress", "")]),
            of(vec![task("m1", "c"), task("m2", "r")]),
            WarmupRecord::Skipped("session_run"),
            WarmupRecord::Skipped("predict_streamed"),
        ]
    );
    let WarmupRecord::Predict { signature, inputs, .. } = &read[5] else { panic!("{read:?}") };
    assert_eq!((signature.as_str(), &*inputs[0].name), ("p", "x"));
}

#[test]
fn a_wrong_record_does_not_affect_the_others() {
    let none = LogType::ClassifyLog(ClassifyLog::default());
    let empty = LogType::RegressLog(RegressLog { request: Some(RegressionRequest::default()) });
    let file = [one(&[]), log(none), log(empty), predict("")].concat();
    let read = read(&file);
    let message = |number: usize| read[number].as_ref().unwrap_err().message().to_owned();
    assert_eq!(message(0), "it is of an unknown kind");
    assert_eq!(message(1), "it has no request");
    assert_eq!(message(2), "Input is empty.");
    assert!(read[3].is_ok());
}
