//! Recorded requests, ready to be sent.

use std::path::{Path, PathBuf};

use base::{Error, Result};
use bytes::Bytes;
use loadgen::connection::grpc_frame;
use protocol::Message;
use protocol::oip::json::{RecordedInfer, next_line, parse_record};
use protocol::tensorflow::serving::prediction_log::LogType;
use protocol::tensorflow::serving::{ModelSpec, PredictionLog};
use protocol::tfs::grpc::{PredictTarget, encode_request};
use protocol::tfs::warmup::next_record;

use crate::answer::RecordedMethod;

/// Maximum bytes of a file.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// End of the names of request logs in JSON.
const LINES: &str = "jsonl";
/// Maximum number of requests of all files.
const REQUESTS_MAX: usize = 100_000;

/// The requests of all files.
#[derive(Default)]
pub(crate) struct RecordedCalls {
    pub(crate) calls: Vec<RecordedCall>,
    /// Records without a request that can be compared. They are runs of a session, streams, and
    /// requests that had failed when they were logged.
    pub(crate) skipped: usize,
}

/// One request.
pub(crate) struct RecordedCall {
    pub(crate) method: RecordedMethod,
    pub(crate) model: String,
    /// The message with its gRPC prefix.
    pub(crate) frame: Bytes,
}

impl RecordedCalls {
    /// Reads `files`. `model` replaces the recorded models.
    ///
    /// # Errors
    /// Errors of the files. `InvalidArgument` if they hold no request.
    pub(crate) fn read(files: &[PathBuf], model: Option<&str>) -> Result<RecordedCalls> {
        let mut records = RecordedCalls::default();
        for path in files {
            records.add(path, model).map_err(|error| error.context(path.display()))?;
        }
        if records.calls.is_empty() {
            let skipped = records.skipped;
            return Err(Error::invalid(format!(
                "there is no request in --requests ({skipped} records of session runs, streams or failed requests)"
            )));
        }
        Ok(records)
    }

    /// Adds the requests of one file: a log in JSON, or a warm-up file of TensorFlow Serving.
    fn add(&mut self, path: &Path, model: Option<&str>) -> Result<()> {
        let io = |e: std::io::Error| Error::new(Error::io(path, &e).kind(), e.to_string());
        if std::fs::metadata(path).map_err(io)?.len() > FILE_BYTES_MAX {
            return Err(Error::invalid(format!("larger than {FILE_BYTES_MAX} bytes")));
        }
        let mut rest = Bytes::from(std::fs::read(path).map_err(io)?);
        if path.extension().is_some_and(|extension| extension == LINES) {
            return self.add_lines(rest, model);
        }
        let mut number = 0;
        while !rest.is_empty() {
            let named = |error: Error| error.context(format_args!("record {number}"));
            let record = next_record(&mut rest).map_err(named)?;
            let log = PredictionLog::decode(record)
                .map_err(|error| named(Error::data_loss("no PredictionLog").caused_by(error)))?;
            number += 1;
            self.check_room()?;
            match log.log_type.and_then(|log| RecordedCall::new(log, model)) {
                Some(call) => self.calls.push(call),
                None => self.skipped += 1,
            }
        }
        Ok(())
    }
}

impl RecordedCalls {
    /// Adds the requests of a log in JSON, as calls of Predict.
    fn add_lines(&mut self, mut rest: Bytes, model: Option<&str>) -> Result<()> {
        let mut number = 0;
        while let Some(line) = next_line(&mut rest) {
            let record = parse_record(line)
                .map_err(|error| error.context(format_args!("record {number}")))?;
            number += 1;
            self.check_room()?;
            if record.answered() {
                self.calls.push(RecordedCall::of_record(record, model));
            } else {
                self.skipped += 1;
            }
        }
        Ok(())
    }

    fn check_room(&self) -> Result<()> {
        if self.calls.len() < REQUESTS_MAX {
            Ok(())
        } else {
            Err(Error::invalid(format!("more than {REQUESTS_MAX} requests")))
        }
    }
}

impl RecordedCall {
    /// Returns a logged request as a call of Predict to `model`, or to the recorded model.
    fn of_record(record: RecordedInfer, model: Option<&str>) -> RecordedCall {
        let name = model.map_or(record.model, str::to_owned);
        let request = record.request;
        let target = PredictTarget {
            name: name.clone(),
            signature: request.signature,
            ..PredictTarget::default()
        };
        let outputs: Vec<&str> = request.outputs.iter().map(|output| &*output.name).collect();
        let message = encode_request(&target, &request.inputs, &outputs);
        RecordedCall::encoded(RecordedMethod::Predict, name, &message)
    }

    /// Returns the request of `log`, or `None` if it has none that can be sent. `model` replaces
    /// the recorded model.
    fn new(log: LogType, model: Option<&str>) -> Option<RecordedCall> {
        match log {
            LogType::PredictLog(log) => {
                let mut request = log.request?;
                let model = named(request.model_spec.get_or_insert_default(), model);
                Some(RecordedCall::encoded(RecordedMethod::Predict, model, &request))
            }
            LogType::ClassifyLog(log) => {
                let mut request = log.request?;
                let model = named(request.model_spec.get_or_insert_default(), model);
                Some(RecordedCall::encoded(RecordedMethod::Classify, model, &request))
            }
            LogType::RegressLog(log) => {
                let mut request = log.request?;
                let model = named(request.model_spec.get_or_insert_default(), model);
                Some(RecordedCall::encoded(RecordedMethod::Regress, model, &request))
            }
            LogType::MultiInferenceLog(log) => {
                let mut request = log.request?;
                let specs = request.tasks.iter_mut().map(|task| &mut task.model_spec);
                let names = specs.map(|spec| named(spec.get_or_insert_default(), model));
                let model = names.last().unwrap_or_default();
                Some(RecordedCall::encoded(RecordedMethod::MultiInference, model, &request))
            }
            LogType::SessionRunLog(_) | LogType::PredictStreamedLog(_) => None,
        }
    }

    fn encoded(method: RecordedMethod, model: String, request: &impl Message) -> RecordedCall {
        RecordedCall { method, model, frame: grpc_frame(&request.encode_to_vec()) }
    }
}

/// Replaces the model's name if `model` is given. Returns the name.
fn named(spec: &mut ModelSpec, model: Option<&str>) -> String {
    if let Some(model) = model {
        model.clone_into(&mut spec.name);
    }
    spec.name.clone()
}
