//! Warm-up files.

use base::{ErrorKind, NamedTensor};
use bytes::Bytes;
use proptest::prelude::*;
use protocol::Message;
use protocol::tensorflow::serving::prediction_log::LogType;
use protocol::tensorflow::serving::{PredictLog, PredictionLog};
use protocol::tfs::grpc;
use protocol::tfs::warmup::{self, RECORDS_MAX};

use crate::any;

fn file(requests: &[Vec<NamedTensor>]) -> Bytes {
    Bytes::from(warmup::write_requests("m", requests))
}

fn kind(file: &[u8]) -> Option<ErrorKind> {
    warmup::read_requests(&Bytes::copy_from_slice(file)).err().map(|error| error.kind())
}

proptest! {
    #[test]
    fn requests_round_trip(requests in proptest::collection::vec(any::tensors(|_| true, 0, false), 0..4)) {
        prop_assert_eq!(warmup::read_requests(&file(&requests)).unwrap().requests, requests);
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
    assert_eq!(
        warmup::read_requests(&file(&vec![one.clone(); RECORDS_MAX])).unwrap().requests.len(),
        RECORDS_MAX
    );
    assert_eq!(kind(&file(&vec![one; RECORDS_MAX + 1])), Some(ErrorKind::InvalidArgument));
}

/// A file of one record, with the format's masked checksum written out once more.
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

#[test]
fn records_of_other_methods_are_skipped() {
    // Fields 2 to 5, each an empty message: classify, regress, multi-inference, session-run.
    let others = [0x12, 0x1a, 0x22, 0x2a].map(|key| one(&[key, 0])).concat();
    let file = Bytes::from([others, predict("")].concat());
    let recorded = warmup::read_requests(&file).unwrap();
    assert_eq!((recorded.requests.len(), recorded.skipped), (1, 4));
    assert_eq!(kind(&one(&[])), Some(ErrorKind::Unimplemented), "a record of no kind");
    let empty = PredictionLog { log_type: Some(LogType::PredictLog(PredictLog::default())) };
    assert_eq!(kind(&one(&empty.encode_to_vec())), Some(ErrorKind::InvalidArgument));
}

#[test]
fn a_record_of_another_signature_is_refused() {
    assert_eq!(kind(&predict("serving_default")), None);
    let file = Bytes::from([predict(""), predict("other")].concat());
    let error = warmup::read_requests(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(
        error.message().starts_with("warm-up record 1: there is no signature \"other\""),
        "{error}"
    );
}
