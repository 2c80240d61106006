//! Requests recorded for warm-up: TensorFlow Serving's file, or Open Inference Protocol bodies.
//!
//! A version directory may hold `assets.extra/tf_serving_warmup_requests` (TFRecord of
//! PredictionLog) or a folder `warmup` of `.json` files, each the body of an infer request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::units::MIB;
use base::{Error, NamedTensor, Result};
use bytes::Bytes;
use engine::Servable;
use lifecycle::{RecordedRequest, WarmupCall, WarmupSet, WarmupSource};
use protocol::tfs::Examples;
use protocol::tfs::warmup::{ExampleTask, WarmupRecord};

use crate::examples::{ExamplePlan, plan_tasks};

/// Path of TensorFlow Serving's recorded requests in a version directory.
const TF_RECORDS: &str = "assets.extra/tf_serving_warmup_requests";
/// Path of Open Inference Protocol bodies in a version directory.
const JSON_DIR: &str = "warmup";
/// Most requests that are read; TensorFlow Serving's limit.
const REQUESTS_MAX: usize = 1000;
/// Most bytes that one file of recorded requests may have.
const FILE_BYTES_MAX: u64 = 256 * MIB;

/// Reads the recorded requests of a version directory.
pub(crate) struct RecordedRequests;

impl WarmupSource for RecordedRequests {
    fn requests(&self, version_dir: &Path, servable: &Servable) -> Result<WarmupSet> {
        let records = version_dir.join(TF_RECORDS);
        if records.is_file() {
            let bytes = read(&records)?;
            let records = protocol::tfs::warmup::read_records(&bytes)
                .map_err(|error| error.context(records.display()))?;
            return Ok(replayed(servable, records));
        }
        let files = json_files(&version_dir.join(JSON_DIR))?;
        let request = |(number, path): (usize, &PathBuf)| RecordedRequest {
            number,
            call: request(path, servable),
        };
        Ok(WarmupSet { requests: files.iter().enumerate().map(request).collect(), note: None })
    }

    fn complete(&self, servable: &Servable, inputs: &mut Vec<NamedTensor>) -> Result<()> {
        schedule::fill_inputs(servable, inputs)
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
fn predict(servable: &Servable, mut call: WarmupCall) -> WarmupCall {
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
        match reserved <= FILE_BYTES_MAX {
            true => Ok(()),
            false => {
                Err(Error::too_large(format!("its inputs take more than {FILE_BYTES_MAX} bytes")))
            }
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

fn request(path: &Path, servable: &Servable) -> Result<WarmupCall> {
    let parsed = protocol::oip::json::parse_infer(read(path)?, None, servable.signature());
    parsed
        .map(|request| WarmupCall { inputs: request.inputs, ..WarmupCall::default() })
        .map_err(|error| error.context(path.display()))
}

fn read(path: &Path) -> Result<Bytes> {
    let length = std::fs::metadata(path).map_err(|e| Error::io(path, &e))?.len();
    if length > FILE_BYTES_MAX {
        return Err(Error::invalid(format!(
            "{}: larger than {FILE_BYTES_MAX} bytes",
            path.display()
        )));
    }
    std::fs::read(path).map(Bytes::from).map_err(|e| Error::io(path, &e))
}

fn json_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(dir, &error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| Error::io(dir, &e))?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    files.truncate(REQUESTS_MAX);
    Ok(files)
}
