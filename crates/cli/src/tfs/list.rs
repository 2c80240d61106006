//! The list of models while serving: `--model_config_file`, and each model's own batching.

use std::path::{Path, PathBuf};

use base::Result;
use engine::{ScheduleMode, ScheduleOptions};
use lifecycle::{ConfigSet, ModelConfig};
use protocol::tensorflow::serving as pb;
use protocol::tensorflow::serving::{BatchingParameters, ModelServerConfig};
use server::{ConfigSource, ModelListRules};

use super::{batching, text};
use crate::serve::reload::{FileStamp, stamp};

/// Name of a version's own batching parameters.
const BATCHING_FILE: &str = "batching_params.pbtxt";

/// Batching parameters beside the files of versions.
#[derive(Clone, Copy, Debug)]
pub(super) struct VersionBatching {
    /// Number of inference threads.
    pub(super) threads: usize,
    /// Most concurrent runs, from the file for all models.
    pub(super) runs: Option<usize>,
}

impl VersionBatching {
    /// Gives `models` the schedules of their newest versions. A model without the file merges
    /// nothing, as in TensorFlow Serving. Returns what the schedules do not express.
    ///
    /// # Errors
    /// `InvalidArgument` for a file that is wrong.
    pub(super) fn apply(self, models: &mut [ModelConfig]) -> Result<Vec<String>> {
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

/// Returns the directory of a model's `logging_config`, if it names one.
pub(super) fn log_dir(model: &pb::ModelConfig) -> Option<PathBuf> {
    let collector = model.logging_config.as_ref()?.log_collector_config.as_ref()?;
    let dir = Path::new(&collector.filename_prefix).parent()?;
    (!dir.as_os_str().is_empty()).then(|| dir.to_owned())
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

/// The files that decide which models are served.
pub(super) struct ListSource {
    /// `--model_config_file`.
    pub(super) file: Option<PathBuf>,
    pub(super) seen: Option<FileStamp>,
    pub(super) rules: ModelListRules,
    pub(super) version_batching: Option<VersionBatching>,
    /// Notes that were logged.
    pub(super) noted: Vec<String>,
}

impl ConfigSource for ListSource {
    fn poll(&mut self, current: &ConfigSet, forced: bool) -> Result<Option<ConfigSet>> {
        let mut set = current.clone();
        if let Some(file) = &self.file {
            let stamp = stamp(file);
            if forced || stamp != self.seen {
                self.seen = stamp;
                let list: ModelServerConfig = text::read(file)?;
                // An empty file changes nothing, as in TensorFlow Serving.
                if list.config.is_some() {
                    set.models = self.rules.models(&list, &current.models)?;
                }
            }
        }
        if let Some(batching) = self.version_batching {
            let notes = batching.apply(&mut set.models)?;
            let new = notes.iter().filter(|note| !self.noted.contains(note));
            new.for_each(|note| tracing::warn!("{note}"));
            self.noted = notes;
        }
        Ok((set != *current).then_some(set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(file: Option<PathBuf>) -> ListSource {
        ListSource {
            seen: None,
            file,
            rules: ModelListRules::default(),
            version_batching: None,
            noted: Vec::new(),
        }
    }

    #[test]
    fn the_list_follows_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("models.config");
        let list = |name: &str| {
            let text = format!(
                "model_config_list {{ config {{ name: '{name}' base_path: '/m' model_platform: 'tensorflow' }} }}"
            );
            std::fs::write(&file, text).unwrap();
        };
        list("first");
        let mut source = source(Some(file.clone()));
        let set = source.poll(&ConfigSet::default(), false).unwrap().unwrap();
        assert_eq!(&*set.models[0].name, "first");
        assert_eq!(source.poll(&set, false).unwrap(), None, "nothing changed");
        // A list that a client sent stays until the file changes.
        let other = ConfigSet { models: vec![ModelConfig::new("sent", "/m")], ..set.clone() };
        assert_eq!(source.poll(&other, false).unwrap(), None);
        assert_eq!(source.poll(&other, true).unwrap(), Some(set.clone()), "but not at SIGHUP");
        std::fs::write(&file, "model_config_list {\n  nfig {} }").unwrap();
        let error = source.poll(&set, false).unwrap_err();
        assert!(error.message().contains("ModelServerConfig: line 2: "), "{error}");
        assert_eq!(source.poll(&set, false).unwrap(), None, "a mistake is told once");
        list("second_name");
        assert_eq!(&*source.poll(&set, false).unwrap().unwrap().models[0].name, "second_name");
    }

    #[test]
    fn versions_have_batching_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let write = |version: &str, text: &str| {
            let version = dir.path().join("m").join(version);
            std::fs::create_dir_all(&version).unwrap();
            std::fs::write(version.join(BATCHING_FILE), text).unwrap();
        };
        write("2", "max_batch_size { value: 4 }");
        write("10", "max_batch_size { value: 16 } num_batch_threads { value: 9 }");
        let mut source = source(None);
        source.version_batching = Some(VersionBatching { threads: 8, runs: Some(3) });
        let models = vec![
            ModelConfig::new("m", dir.path().join("m")),
            ModelConfig::new("plain", dir.path().join("plain")),
        ];
        let set = ConfigSet { models, ..ConfigSet::default() };
        let set = source.poll(&set, false).unwrap().unwrap();
        let schedule = &set.models[0].schedule;
        assert_eq!((schedule.max_batch, schedule.threads), (16, Some(3)));
        assert_eq!(set.models[1].schedule.mode, ScheduleMode::Sync);
        write("11", "max_batch_size { value: 0 }");
        assert!(source.poll(&set, false).is_err());
    }
}
