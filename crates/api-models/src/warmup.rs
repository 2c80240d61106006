//! Requests recorded for warm-up: TensorFlow Serving's file, or Open Inference Protocol bodies.
//!
//! A version directory may hold `assets.extra/tf_serving_warmup_requests` (TFRecord of
//! PredictionLog) or a folder `warmup`. In this folder, each `.json` file is the body of an infer
//! request. Each line of a `.jsonl` file is one too, as in the files of a request log in JSON. For
//! a version directory with neither, the folder `warmup` of the model's directory is used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::units::MIB;
use base::{Error, NamedTensor, Result};
use bytes::Bytes;
use engine::Servable;
use lifecycle::{GoldenCase, RecordedRequest, WarmupCall, WarmupSet, WarmupSource};
use protocol::oip;
use protocol::tfs::Examples;
use protocol::tfs::warmup::{ExampleTask, WarmupRecord};

use crate::examples::{ExamplePlan, plan_tasks};
use crate::golden;

/// Path of TensorFlow Serving's recorded requests in a version directory.
const TF_RECORDS: &str = "assets.extra/tf_serving_warmup_requests";
/// Path of Open Inference Protocol bodies in the directory of a version or a model.
const JSON_DIR: &str = "warmup";
/// Extension of files with one body.
const BODY: &str = "json";
/// Extension of files with one body on each line.
const LINES: &str = "jsonl";
/// Maximum requests that are read; TensorFlow Serving's limit.
const REQUESTS_MAX: usize = 1000;
/// Maximum bytes that one file of recorded requests may have.
const FILE_BYTES_MAX: u64 = 256 * MIB;

/// Reader of the recorded requests in a version directory.
pub struct RecordedRequests;

impl WarmupSource for RecordedRequests {
    fn requests(&self, version_dir: &Path, servable: &Servable) -> Result<WarmupSet> {
        let records = version_dir.join(TF_RECORDS);
        if records.is_file() {
            let bytes = read(&records)?;
            let records = protocol::tfs::warmup::read_records(&bytes)
                .map_err(|error| error.context(records.display()))?;
            return Ok(replayed(servable, records));
        }
        let own = recorded_bodies(&version_dir.join(JSON_DIR), servable)?;
        match model_dir(version_dir) {
            Some(model) if own.requests.is_empty() => {
                recorded_bodies(&model.join(JSON_DIR), servable)
            }
            _ => Ok(own),
        }
    }

    fn golden(&self, file: &Path, servable: &Servable) -> Result<Vec<GoldenCase>> {
        golden::read_cases(file, servable)
    }

    fn complete(&self, servable: &Servable, inputs: &mut Vec<NamedTensor>) -> Result<()> {
        schedule::fill_inputs(servable, inputs)
    }

    fn run(
        &self,
        servable: &Servable,
        inputs: &[NamedTensor],
        outputs: &[Arc<str>],
    ) -> Result<Vec<NamedTensor>> {
        schedule::run_alone(servable, inputs, outputs)
    }
}

/// Turns records into requests to the version that `servable` runs.
fn replayed(servable: &Servable, records: Vec<Result<WarmupRecord>>) -> WarmupSet {
    let mut set = WarmupSet::default();
    let mut skipped: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, record) in records.into_iter().enumerate() {
        let calls = match record {
            Ok(WarmupRecord::Skipped(kind)) => {
                *skipped.entry(kind).or_default() += 1;
                continue;
            }
            Ok(WarmupRecord::Predict { signature, inputs, outputs }) => {
                Ok(vec![predict(servable, WarmupCall { signature, inputs, outputs })])
            }
            Ok(WarmupRecord::Examples { tasks, examples }) => {
                example_calls(servable, &tasks, &examples)
            }
            Err(error) => Err(error),
        };
        match calls {
            Ok(calls) => set
                .requests
                .extend(calls.into_iter().map(|call| RecordedRequest { number, call: Ok(call) })),
            Err(error) => set.requests.push(RecordedRequest { number, call: Err(error) }),
        }
    }
    let skipped = skipped.iter().map(|(kind, count)| format!("{count} {kind} records"));
    let skipped: Vec<String> = skipped.collect();
    if !skipped.is_empty() {
        set.note = Some(format!("{} of the warm-up file are not replayed", skipped.join(" and ")));
    }
    set
}

/// Adds the axes that a recorded Predict request may lack, as for a client's request.
pub(crate) fn predict(servable: &Servable, mut call: WarmupCall) -> WarmupCall {
    let name = if call.signature.is_empty() { servable.signature_name() } else { &call.signature };
    if let Ok(run) = servable.signature_servable(name) {
        protocol::tfs::adapt_ranks(run.signature(), &mut call.inputs);
    }
    call
}

/// Returns a request for each task of a record with examples.
fn example_calls(
    servable: &Servable,
    tasks: &[ExampleTask],
    examples: &Examples,
) -> Result<Vec<WarmupCall>> {
    let mut reserved = 0u64;
    let reserve = &mut |bytes: u64| {
        reserved = reserved.saturating_add(bytes);
        if reserved <= FILE_BYTES_MAX {
            Ok(())
        } else {
            Err(Error::too_large(format!("its inputs take more than {FILE_BYTES_MAX} bytes")))
        }
    };
    let plans = plan_tasks(servable, tasks, false)?;
    let call = |plan: &ExamplePlan| {
        let run = servable.signature_servable(&plan.signature)?;
        Ok(WarmupCall {
            signature: plan.signature.clone(),
            inputs: plan.inputs(examples, run.signature(), reserve)?,
            outputs: plan.outputs(),
        })
    };
    plans.iter().map(call).collect()
}

/// Returns the directory of the model, if `version_dir` is named by the version's number.
fn model_dir(version_dir: &Path) -> Option<&Path> {
    let name = version_dir.file_name()?.to_str()?;
    name.parse::<u64>().ok()?;
    version_dir.parent()
}

/// Reads the bodies in a folder, which may be missing.
fn recorded_bodies(dir: &Path, servable: &Servable) -> Result<WarmupSet> {
    let mut set = WarmupSet::default();
    let mut unanswered = 0;
    for path in body_files(dir)? {
        let room = REQUESTS_MAX - set.requests.len().min(REQUESTS_MAX);
        let first = set.requests.len();
        if path.extension().is_some_and(|extension| extension == LINES) {
            let lines = recorded_lines(&path, room)?;
            unanswered += lines.unanswered;
            set.requests.extend(lines.calls.into_iter().zip(first..).map(|(call, number)| {
                let call = call.map_err(|error| error.context(path.display()));
                RecordedRequest { number, call }
            }));
        } else if room > 0 {
            set.requests.push(RecordedRequest { number: first, call: request(&path, servable) });
        }
    }
    if unanswered > 0 {
        set.note = Some(format!(
            "{unanswered} requests of the request log are not replayed, because they had failed"
        ));
    }
    Ok(set)
}

/// The requests of a file with one on each line.
struct RecordedLines {
    calls: Vec<Result<WarmupCall>>,
    /// Number of requests that had failed when they were recorded.
    unanswered: usize,
}

fn recorded_lines(path: &Path, room: usize) -> Result<RecordedLines> {
    let mut rest = read(path)?;
    let mut lines = RecordedLines { calls: Vec::new(), unanswered: 0 };
    while lines.calls.len() < room
        && let Some(line) = oip::json::next_line(&mut rest)
    {
        match oip::json::parse_record(line) {
            Ok(record) if !record.answered() => lines.unanswered += 1,
            record => lines.calls.push(record.map(|record| call(record.request))),
        }
    }
    Ok(lines)
}

fn request(path: &Path, servable: &Servable) -> Result<WarmupCall> {
    let parsed = oip::json::parse_infer(read(path)?, None, servable.signature());
    parsed.map(call).map_err(|error| error.context(path.display()))
}

fn call(request: oip::json::RestInferRequest) -> WarmupCall {
    let outputs = request.outputs.into_iter().map(|output| output.name).collect();
    WarmupCall { signature: request.signature, inputs: request.inputs, outputs }
}

/// Reads a file of recorded requests.
///
/// # Errors
/// `InvalidArgument` for more than [`FILE_BYTES_MAX`] bytes; I/O errors.
pub(crate) fn read(path: &Path) -> Result<Bytes> {
    let length = std::fs::metadata(path).map_err(|e| Error::io(path, &e))?.len();
    if length > FILE_BYTES_MAX {
        return Err(Error::invalid(format!(
            "{}: larger than {FILE_BYTES_MAX} bytes",
            path.display()
        )));
    }
    os::read_regular_file(path, FILE_BYTES_MAX).map(Bytes::from).map_err(|e| Error::io(path, &e))
}

/// Returns the files with recorded requests in `dir`, sorted, at most [`REQUESTS_MAX`]. There are
/// none if the directory does not exist.
fn body_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(dir, &error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| Error::io(dir, &e))?.path();
        if path.extension().is_some_and(|extension| extension == BODY || extension == LINES) {
            files.push(path);
        }
    }
    files.sort();
    files.truncate(REQUESTS_MAX);
    Ok(files)
}
