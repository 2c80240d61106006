//! Warm-up files: TFRecord of `PredictionLog`, as TensorFlow Serving reads them from a model's
//! directory.
//!
//! A record has its length (8 bytes, little-endian), a checksum of those 8 bytes, its bytes, and a
//! checksum of them. Checksums are masked CRC-32C of 4 bytes.

use std::sync::Arc;

use base::{Error, NamedTensor, Result, VersionId};
use bytes::Bytes;
use prost::Message;

use super::check_signature;
use super::grpc::{self, PredictTarget};
use super::tensor::encode_tensor;
use crate::tensorflow::serving::model_spec::VersionChoice;
use crate::tensorflow::serving::prediction_log::LogType;
use crate::tensorflow::serving::{ModelSpec, PredictLog, PredictResponse, PredictionLog};

/// Most records of one file; TensorFlow Serving's limit.
pub const RECORDS_MAX: usize = 1000;

const LENGTH_BYTES: usize = 8;
const CHECKSUM_BYTES: usize = 4;
/// Mask of the format, which keeps checksums of data with checksums strong.
const MASK_DELTA: u32 = 0xa282_ead8;

fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK_DELTA)
}

/// The contents of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarmupRequests {
    /// The inputs of each predict request.
    pub requests: Vec<Vec<NamedTensor>>,
    /// Number of records of other kinds (classify, regress, multi-inference, session-run), which
    /// are not replayed.
    pub skipped: usize,
}

/// Reads the recorded predict requests. Their tensors share `file`. Records of other methods are
/// counted and left out.
///
/// # Errors
/// `DataLoss` for a truncated or damaged file; `InvalidArgument` for more than [`RECORDS_MAX`]
/// records or a malformed request; `FailedPrecondition` for a request of another signature than the
/// only one. The message has the record's number.
pub fn read_requests(file: &Bytes) -> Result<WarmupRequests> {
    let mut rest = file.clone();
    let mut recorded = WarmupRequests::default();
    while !rest.is_empty() {
        let number = recorded.requests.len() + recorded.skipped;
        if number == RECORDS_MAX {
            return Err(Error::invalid(format!("more than {RECORDS_MAX} warm-up records")));
        }
        let record = next_record(&mut rest).and_then(request);
        match record.map_err(|error| error.context(format_args!("warm-up record {number}")))? {
            Some(inputs) => recorded.requests.push(inputs),
            None => recorded.skipped += 1,
        }
    }
    Ok(recorded)
}

fn next_record(rest: &mut Bytes) -> Result<Bytes> {
    let cut = || Error::data_loss("the file ends in the middle of it");
    if rest.len() < LENGTH_BYTES + CHECKSUM_BYTES {
        return Err(cut());
    }
    let header = rest.split_to(LENGTH_BYTES);
    verify(&header, rest)?;
    let length = header.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).ok_or_else(cut)?;
    let length = usize::try_from(length).map_err(|_| cut())?;
    if rest.len().checked_sub(CHECKSUM_BYTES).is_none_or(|most| length > most) {
        return Err(cut());
    }
    let record = rest.split_to(length);
    verify(&record, rest)?;
    Ok(record)
}

/// Takes the checksum off the start of `rest` and compares it.
fn verify(bytes: &[u8], rest: &mut Bytes) -> Result<()> {
    let stored = rest.split_to(CHECKSUM_BYTES);
    if checksum(bytes).to_le_bytes() != *stored {
        return Err(Error::data_loss("its checksum is wrong"));
    }
    Ok(())
}

/// Returns the inputs of a predict request; `None` for a record of another kind.
fn request(record: Bytes) -> Result<Option<Vec<NamedTensor>>> {
    let log = PredictionLog::decode(record.clone())
        .map_err(|error| Error::data_loss(format!("no PredictionLog: {error}")))?;
    match log.log_type {
        Some(LogType::PredictLog(PredictLog { request: Some(request), .. })) => {
            let signature = request.model_spec.as_ref().map(|spec| spec.signature_name.as_str());
            check_signature(signature.unwrap_or_default())?;
            grpc::decode_predict(request).map(|predict| Some(predict.inputs))
        }
        Some(LogType::PredictLog(_)) => Err(Error::invalid("it has no request")),
        None if is_skipped(record) => Ok(None),
        None => Err(Error::unimplemented("it is of an unknown kind")),
    }
}

/// Returns true if `record` is of a known kind that is not replayed. The messages of those kinds
/// are not compiled in.
fn is_skipped(record: Bytes) -> bool {
    #[derive(Clone, PartialEq, Message)]
    struct SkippedLog {
        #[prost(bytes = "bytes", optional, tag = "2")]
        classify: Option<Bytes>,
        #[prost(bytes = "bytes", optional, tag = "3")]
        regress: Option<Bytes>,
        #[prost(bytes = "bytes", optional, tag = "4")]
        multi_inference: Option<Bytes>,
        #[prost(bytes = "bytes", optional, tag = "5")]
        session_run: Option<Bytes>,
    }
    SkippedLog::decode(record).is_ok_and(|record| record != SkippedLog::default())
}

/// Writes a file of predict requests, as the inverse of [`read_requests`].
pub fn write_requests(model: &str, requests: &[Vec<NamedTensor>]) -> Vec<u8> {
    let target = PredictTarget { name: model.into(), ..PredictTarget::default() };
    let mut file = Vec::new();
    for inputs in requests {
        let request = Some(grpc::encode_request(&target, inputs, &[]));
        let log = LogType::PredictLog(PredictLog { request, response: None });
        append(&mut file, &PredictionLog { log_type: Some(log) }.encode_to_vec());
    }
    file
}

/// Encodes a record of an answered request. Neither request nor model_spec names a version, so that
/// a later version can replay it; the response does.
pub fn encode_log(
    version: &VersionId,
    signature: &str,
    inputs: &[NamedTensor],
    requested: &[Arc<str>],
    outputs: Vec<NamedTensor>,
) -> Vec<u8> {
    let target = PredictTarget { name: version.model.to_string(), ..PredictTarget::default() };
    let requested: Vec<&str> = requested.iter().map(|name| &**name).collect();
    let mut request = grpc::encode_request(&target, inputs, &requested);
    let mut spec = request.model_spec.take().unwrap_or_default();
    signature.clone_into(&mut spec.signature_name);
    let response = PredictResponse {
        outputs: outputs
            .into_iter()
            .map(|output| (output.name.to_string(), encode_tensor(&output.tensor)))
            .collect(),
        model_spec: Some(ModelSpec {
            version_choice: Some(VersionChoice::Version(version.version as i64)),
            ..spec.clone()
        }),
    };
    request.model_spec = Some(spec);
    let log = PredictLog { request: Some(request), response: Some(response) };
    PredictionLog { log_type: Some(LogType::PredictLog(log)) }.encode_to_vec()
}

/// Returns the bytes in a file of a record of `length` bytes.
pub fn record_bytes(length: u64) -> u64 {
    length.saturating_add((LENGTH_BYTES + 2 * CHECKSUM_BYTES) as u64)
}

/// Appends a record with its length and checksums to `file`.
pub fn append(file: &mut Vec<u8>, record: &[u8]) {
    let length = (record.len() as u64).to_le_bytes();
    for part in [length.as_slice(), record] {
        file.extend_from_slice(part);
        file.extend_from_slice(&checksum(part).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_the_published_one() {
        // An empty record: eight zero bytes of length and no data. Their masked checksums were
        // computed bit by bit elsewhere.
        let mut file = Vec::new();
        append(&mut file, b"");
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(file.len(), 16);
        assert_eq!(file[8..12], 0x0798_0329u32.to_le_bytes());
        assert_eq!(file[12..], 0xa282_ead8u32.to_le_bytes());
    }
}
