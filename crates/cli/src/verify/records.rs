//! Recorded requests, ready to be sent.

use std::path::{Path, PathBuf};

use base::{Error, NamedTensor, Result};
use bytes::Bytes;
use loadgen::connection::grpc_frame;
use protocol::Message;
use protocol::tensorflow::serving::prediction_log::LogType;
use protocol::tensorflow::serving::{PredictResponse, PredictionLog};
use protocol::tfs::warmup::next_record;

use crate::exit::{CommandError, CommandResult};

/// Most bytes of a file.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Most requests of all files.
const REQUESTS_MAX: usize = 100_000;
/// Method of the requests.
pub(super) const PREDICT: &str = "/tensorflow.serving.PredictionService/Predict";

/// The requests of all files.
#[derive(Default)]
pub(super) struct Records {
    pub(super) calls: Vec<RecordedCall>,
    /// Records of other kinds.
    pub(super) skipped: usize,
}

/// One request.
pub(super) struct RecordedCall {
    pub(super) model: String,
    /// The message with its gRPC prefix.
    pub(super) frame: Bytes,
}

impl Records {
    /// Reads `files`. `model` replaces the recorded models.
    pub(super) fn read(files: &[PathBuf], model: Option<&str>) -> CommandResult<Records> {
        let mut records = Records::default();
        for path in files {
            records.add(path, model).map_err(|error| error.context(path.display()))?;
        }
        if records.calls.is_empty() {
            let skipped = records.skipped;
            return Err(CommandError::failed(format!(
                "there is no predict request in --requests ({skipped} records of other kinds)"
            )));
        }
        Ok(records)
    }

    fn add(&mut self, path: &Path, model: Option<&str>) -> Result<()> {
        let io = |e: std::io::Error| Error::new(Error::io(path, &e).kind(), e.to_string());
        if std::fs::metadata(path).map_err(io)?.len() > FILE_BYTES_MAX {
            return Err(Error::invalid(format!("larger than {FILE_BYTES_MAX} bytes")));
        }
        let mut rest = Bytes::from(std::fs::read(path).map_err(io)?);
        let mut number = 0;
        while !rest.is_empty() {
            let named = |error: Error| error.context(format_args!("record {number}"));
            let record = next_record(&mut rest).map_err(named)?;
            let log = PredictionLog::decode(record)
                .map_err(|error| named(Error::data_loss(format!("no PredictionLog: {error}"))))?;
            number += 1;
            if self.calls.len() == REQUESTS_MAX {
                return Err(Error::invalid(format!("more than {REQUESTS_MAX} requests")));
            }
            let request = match log.log_type {
                Some(LogType::PredictLog(predict)) => predict.request,
                _ => None,
            };
            let Some(mut request) = request else {
                self.skipped += 1;
                continue;
            };
            let spec = request.model_spec.get_or_insert_default();
            if let Some(model) = model {
                model.clone_into(&mut spec.name);
            }
            let model = spec.name.clone();
            self.calls.push(RecordedCall { model, frame: grpc_frame(&request.encode_to_vec()) });
        }
        Ok(())
    }
}

/// Decodes an answer, with its outputs in the order of their names.
pub(super) fn outputs(answer: &Bytes) -> Result<Vec<NamedTensor>> {
    let response = PredictResponse::decode(answer.clone())
        .map_err(|error| Error::data_loss(format!("the answer is no PredictResponse: {error}")))?;
    protocol::tfs::grpc::decode_response(response)
}
