//! Requests recorded for warm-up: TensorFlow Serving's file, or Open Inference Protocol bodies.
//!
//! A version directory may hold `assets.extra/tf_serving_warmup_requests` (TFRecord of
//! PredictionLog) or a folder `warmup` of `.json` files, each the body of an infer request.

use std::path::{Path, PathBuf};

use base::units::MIB;
use base::{Error, NamedTensor, Result, Signature};
use bytes::Bytes;
use engine::Servable;
use lifecycle::{WarmupSet, WarmupSource};

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
    fn requests(&self, version_dir: &Path, signature: &Signature) -> Result<WarmupSet> {
        let records = version_dir.join(TF_RECORDS);
        if records.is_file() {
            let bytes = read(&records)?;
            let recorded = protocol::tfs::warmup::read_requests(&bytes)
                .map_err(|error| error.context(records.display()))?;
            let skipped = recorded.skipped;
            let note = (skipped > 0).then(|| {
                format!(
                    "only predict records are replayed: {skipped} warm-up records were left out"
                )
            });
            return Ok(WarmupSet { requests: recorded.requests, note });
        }
        let files = json_files(&version_dir.join(JSON_DIR))?;
        let requests: Result<Vec<_>> = files.iter().map(|path| request(path, signature)).collect();
        requests.map(WarmupSet::from)
    }

    fn complete(&self, servable: &Servable, inputs: &mut Vec<NamedTensor>) -> Result<()> {
        schedule::fill_inputs(servable, inputs)
    }
}

fn request(path: &Path, signature: &Signature) -> Result<Vec<NamedTensor>> {
    let parsed = protocol::oip::json::parse_infer(read(path)?, None, signature);
    parsed.map(|request| request.inputs).map_err(|error| error.context(path.display()))
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
