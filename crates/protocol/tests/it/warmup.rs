//! Warm-up files.

use base::{ErrorKind, NamedTensor};
use bytes::Bytes;
use proptest::prelude::*;
use protocol::Message;
use protocol::tensorflow::serving::prediction_log::LogType;
use protocol::tensorflow::serving::{ClassifyLog, PredictLog, PredictionLog};
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
        prop_assert_eq!(warmup::read_requests(&file(&requests)).unwrap(), requests);
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
    assert_eq!(warmup::read_requests(&file(&vec![one.clone(); RECORDS_MAX])).unwrap().len(), RECORDS_MAX);
    assert_eq!(kind(&file(&vec![one; RECORDS_MAX + 1])), Some(ErrorKind::InvalidArgument));
}

#[test]
fn only_predict_records_are_taken() {
    let record = |log_type| {
        let record = PredictionLog { log_type }.encode_to_vec();
        // The format's masked checksum, written out once more.
        let sum =
            |bytes: &[u8]| (crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)).to_le_bytes();
        let length = (record.len() as u64).to_le_bytes();
        kind(&[&length[..], &sum(&length), &record, &sum(&record)].concat())
    };
    assert_eq!(record(Some(LogType::ClassifyLog(ClassifyLog::default()))), Some(ErrorKind::Unimplemented));
    assert_eq!(record(None), Some(ErrorKind::Unimplemented));
    assert_eq!(record(Some(LogType::PredictLog(PredictLog::default()))), Some(ErrorKind::InvalidArgument));
}
