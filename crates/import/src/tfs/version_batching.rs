//! Batching parameters beside the files of versions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, Result};
use engine::{ScheduleMode, ScheduleOptions};
use lifecycle::ModelConfig;
use protocol::tensorflow::serving::BatchingParameters;

use super::batching::{self, ConvertedBatching};
use crate::text;

/// Name of a version's own batching parameters.
const BATCHING_FILE: &str = "batching_params.pbtxt";

/// Batching parameters beside the files of versions.
#[derive(Clone, Copy, Debug)]
pub struct VersionBatching {
    /// Number of inference threads.
    pub threads: usize,
    /// Maximum concurrent runs, from the file for all models.
    pub runs: Option<usize>,
}

/// Remarks about the files that were applied.
#[derive(Debug, Default)]
pub struct BatchingRemarks {
    /// Parts that the schedules cannot express.
    pub notes: Vec<String>,
    /// Files that are wrong, as `InvalidArgument`.
    pub mistakes: Vec<Error>,
}

impl VersionBatching {
    /// Gives `models` the schedules of the versions in `serving`, or of their newest versions on
    /// disk. A version without the file merges nothing, as in TensorFlow Serving. If the file is
    /// wrong, a model in `serving` keeps its schedule, and another one merges nothing.
    pub fn apply(
        self,
        models: &mut [ModelConfig],
        serving: &BTreeMap<Arc<str>, u64>,
    ) -> BatchingRemarks {
        let mut remarks = BatchingRemarks::default();
        for model in models {
            let serves = serving.get(&model.name).copied();
            let dir = version_dir(&model.base_path, serves);
            if dir.is_none() && serves.is_some() {
                // Its directory is being replaced, or cannot be read for a moment.
                continue;
            }
            let path = dir.map(|dir| dir.join(BATCHING_FILE)).filter(|path| path.is_file());
            let Some(path) = path else {
                model.schedule.mode = ScheduleMode::Sync;
                continue;
            };
            match self.read(&path) {
                Ok(converted) => {
                    model.schedule = converted.schedule;
                    let named = |note: &String| format!("{}: {note}", path.display());
                    remarks.notes.extend(converted.notes.iter().map(named));
                }
                Err(mistake) => {
                    if serves.is_none() {
                        model.schedule.mode = ScheduleMode::Sync;
                    }
                    remarks.mistakes.push(mistake);
                }
            }
        }
        remarks
    }

    /// Reads the file of a version.
    ///
    /// # Errors
    /// `InvalidArgument` for a file that is wrong.
    fn read(self, path: &Path) -> Result<ConvertedBatching> {
        let parameters: BatchingParameters = text::read(path)?;
        let converted = batching::convert(&parameters, self.threads)
            .map_err(|error| error.context(path.display()))?;
        // The threads are shared by all models and come from the file for all.
        let schedule = ScheduleOptions { threads: self.runs, ..converted.schedule };
        Ok(ConvertedBatching { schedule, notes: converted.notes })
    }
}

/// Returns the directory of the version that `serves`, or of the highest one. A version that is
/// being copied does not count while another one serves, because it may lack the file until the
/// end.
fn version_dir(base_path: &Path, serves: Option<u64>) -> Option<PathBuf> {
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        Some((entry.file_name().to_str()?.parse::<u64>().ok()?, entry.path()))
    };
    let versions = std::fs::read_dir(base_path).ok()?.filter_map(number);
    let chosen = versions.filter(|(version, _)| serves.is_none_or(|serves| *version == serves));
    chosen.max().map(|(_, dir)| dir)
}
