//! Batching parameters beside the files of versions.

use std::path::{Path, PathBuf};

use base::Result;
use engine::{ScheduleMode, ScheduleOptions};
use lifecycle::ModelConfig;
use protocol::tensorflow::serving::BatchingParameters;

use super::batching;
use crate::text;

/// Name of a version's own batching parameters.
const BATCHING_FILE: &str = "batching_params.pbtxt";

/// Batching parameters beside the files of versions.
#[derive(Clone, Copy, Debug)]
pub struct VersionBatching {
    /// Number of inference threads.
    pub threads: usize,
    /// Most concurrent runs, from the file for all models.
    pub runs: Option<usize>,
}

impl VersionBatching {
    /// Gives `models` the schedules of their newest versions. A model without the file merges
    /// nothing, as in TensorFlow Serving. Returns notes about parts that the schedules cannot
    /// express.
    ///
    /// # Errors
    /// `InvalidArgument` for a file that is wrong.
    pub fn apply(self, models: &mut [ModelConfig]) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        for model in models {
            let Some(path) = newest_file(&model.base_path) else {
                model.schedule.mode = ScheduleMode::Sync;
                continue;
            };
            let parameters: BatchingParameters = text::read(&path)?;
            let converted = batching::convert(&parameters, self.threads)
                .map_err(|error| error.context(path.display()))?;
            // The threads are shared by all models and come from the file for all.
            model.schedule = ScheduleOptions { threads: self.runs, ..converted.schedule };
            let named = |note: &String| format!("{}: {note}", path.display());
            notes.extend(converted.notes.iter().map(named));
        }
        Ok(notes)
    }
}

/// Returns the batching parameters of the highest version, if it has some.
fn newest_file(base_path: &Path) -> Option<PathBuf> {
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        Some((entry.file_name().to_str()?.parse::<u64>().ok()?, entry.path()))
    };
    let newest = std::fs::read_dir(base_path).ok()?.filter_map(number).max()?;
    Some(newest.1.join(BATCHING_FILE)).filter(|path| path.is_file())
}
