//! Warm-up files: TFRecord of `PredictionLog`, as TensorFlow Serving reads them from a model's
//! directory.
//!
//! A record has its length (8 bytes, little-endian), a checksum of those 8 bytes, its bytes, and a
//! checksum of them. Checksums are masked CRC-32C of 4 bytes.

use std::sync::Arc;

use base::{Error, NamedTensor, Result, VersionId};
use bytes::Bytes;
use prost::Message;

use super::example::Examples;
use super::grpc::{self, PredictTarget};
use super::tensor::encode_tensor;
use super::{CLASSIFY_METHOD, REGRESS_METHOD, TASKS_MAX};
use crate::tensorflow::serving::model_spec::VersionChoice;
use crate::tensorflow::serving::prediction_log::LogType;
use crate::tensorflow::serving::{
    ClassifyLog, InferenceTask, ModelSpec, MultiInferenceLog, PredictLog, PredictResponse,
    PredictionLog, RegressLog,
};

/// Maximum records of one file, as in TensorFlow Serving.
pub const RECORDS_MAX: usize = 1000;

const LENGTH_BYTES: usize = 8;
const CHECKSUM_BYTES: usize = 4;
/// Mask of the format, which keeps checksums of data with checksums strong.
const MASK_DELTA: u32 = 0xa282_ead8;

fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK_DELTA)
}

/// One record of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WarmupRecord {
    /// A request with tensors.
    Predict {
        /// The signature. Empty for the model's default.
        signature: String,
        /// The inputs.
        inputs: Vec<NamedTensor>,
        /// The requested outputs. Empty for all.
        outputs: Vec<Arc<str>>,
    },
    /// A request with examples: Classify, Regress, or MultiInference with several tasks.
    Examples {
        /// Method and signature of each task.
        tasks: Vec<ExampleTask>,
        /// The examples of all tasks.
        examples: Examples,
    },
    /// A record that is not replayed: the name of its kind.
    Skipped(&'static str),
}

/// One task of a request with examples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExampleTask {
    /// Method by TensorFlow Serving's name, such as `tensorflow/serving/classify`.
    pub method: String,
    /// The signature. Empty for the model's default.
    pub signature: String,
}

/// Reads the records, of which each may be wrong by itself. Their tensors share `file`.
///
/// # Errors
/// `DataLoss` for a truncated or damaged file. `InvalidArgument` for more than [`RECORDS_MAX`]
/// records. The message has the record's number. A record in the list has an error of its own. It
/// is `InvalidArgument` for a malformed request, `DataLoss` for bytes that are not a record, and
/// `Unimplemented` for an unknown kind.
pub fn read_records(file: &Bytes) -> Result<Vec<Result<WarmupRecord>>> {
    let mut rest = file.clone();
    let mut records = Vec::new();
    while !rest.is_empty() {
        let number = records.len();
        if number == RECORDS_MAX {
            return Err(Error::invalid(format!("more than {RECORDS_MAX} warm-up records")));
        }
        let named = |error: Error| error.context(format_args!("warm-up record {number}"));
        records.push(record(next_record(&mut rest).map_err(named)?));
    }
    Ok(records)
}

/// A recorded request with its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnsweredRecord {
    /// The signature. Empty for the model's default.
    pub signature: String,
    /// Inputs by the names of the signature.
    pub inputs: Vec<NamedTensor>,
    /// The requested outputs. Empty for all.
    pub requested: Vec<Arc<str>>,
    /// The answer.
    pub outputs: Vec<NamedTensor>,
}

/// Reads records of Predict that have an answer. Their tensors share `file`.
///
/// # Errors
/// As [`read_records`] for the file. `InvalidArgument` for a record of another kind or without an
/// answer.
pub fn read_answered(file: &Bytes) -> Result<Vec<AnsweredRecord>> {
    let mut rest = file.clone();
    let mut records = Vec::new();
    while !rest.is_empty() {
        let number = records.len();
        if number == RECORDS_MAX {
            return Err(Error::invalid(format!("more than {RECORDS_MAX} records")));
        }
        let read = next_record(&mut rest).and_then(answered);
        records.push(read.map_err(|error| error.context(format_args!("record {number}")))?);
    }
    Ok(records)
}

/// Parses a record of Predict with its response.
fn answered(record: Bytes) -> Result<AnsweredRecord> {
    let log = PredictionLog::decode(record)
        .map_err(|error| Error::data_loss("no PredictionLog").caused_by(error))?;
    let Some(LogType::PredictLog(PredictLog { request: Some(mut request), response })) =
        log.log_type
    else {
        return Err(Error::invalid("it is not a Predict request; only those can be compared"));
    };
    let response = response.ok_or_else(|| Error::invalid("it has no response to compare with"))?;
    let signature = request.model_spec.take().unwrap_or_default().signature_name;
    let grpc::GrpcPredict { inputs, outputs: requested } = grpc::decode_predict(request)?;
    let outputs = grpc::decode_response(response)?;
    Ok(AnsweredRecord { signature, inputs, requested, outputs })
}

/// Takes the first record off `rest`, and checks its length and checksums.
///
/// # Errors
/// `DataLoss` if it is cut or damaged.
pub fn next_record(rest: &mut Bytes) -> Result<Bytes> {
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

/// Decodes one record: a `PredictionLog` with the request of any method.
fn record(record: Bytes) -> Result<WarmupRecord> {
    let log = PredictionLog::decode(record)
        .map_err(|error| Error::data_loss("no PredictionLog").caused_by(error))?;
    let no_request = || Error::invalid("it has no request");
    let signature = |spec: Option<ModelSpec>| spec.unwrap_or_default().signature_name;
    let one = |method: &str, spec, input| {
        let tasks = vec![ExampleTask { method: method.to_owned(), signature: signature(spec) }];
        Ok(WarmupRecord::Examples { tasks, examples: Examples::from_message(input)? })
    };
    match log.log_type {
        Some(LogType::PredictLog(PredictLog { request, .. })) => {
            let mut request = request.ok_or_else(no_request)?;
            let signature = signature(request.model_spec.take());
            let predict = grpc::decode_predict(request)?;
            let grpc::GrpcPredict { inputs, outputs } = predict;
            Ok(WarmupRecord::Predict { signature, inputs, outputs })
        }
        Some(LogType::ClassifyLog(ClassifyLog { request })) => {
            let request = request.ok_or_else(no_request)?;
            one(CLASSIFY_METHOD, request.model_spec, request.input)
        }
        Some(LogType::RegressLog(RegressLog { request })) => {
            let request = request.ok_or_else(no_request)?;
            one(REGRESS_METHOD, request.model_spec, request.input)
        }
        Some(LogType::MultiInferenceLog(MultiInferenceLog { request })) => {
            let request = request.ok_or_else(no_request)?;
            if request.tasks.len() > TASKS_MAX {
                return Err(Error::invalid(format!("it has more than {TASKS_MAX} tasks")));
            }
            let task = |task: InferenceTask| ExampleTask {
                method: task.method_name,
                signature: signature(task.model_spec),
            };
            Ok(WarmupRecord::Examples {
                tasks: request.tasks.into_iter().map(task).collect(),
                examples: Examples::from_message(request.input)?,
            })
        }
        Some(LogType::SessionRunLog(_)) => Ok(WarmupRecord::Skipped("session_run")),
        Some(LogType::PredictStreamedLog(_)) => Ok(WarmupRecord::Skipped("predict_streamed")),
        None => Err(Error::unimplemented("it is of an unknown kind")),
    }
}

/// Writes a file of predict requests, as the inverse of [`read_records`].
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
/// a later version can replay it. The response does.
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
