//! The list of models while serving: `--model_config_file`, and each model's own batching.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use base::{Error, Result};
use import::text;
use import::tfs::{ModelListRules, VersionBatching};
use lifecycle::{Catalog, ConfigSet};
use os::WatchedFiles;
use protocol::tensorflow::serving::ModelServerConfig;
use server::ConfigSource;

/// The files that decide which models are served.
pub(super) struct ListSource {
    /// `--model_config_file`.
    pub(super) file: Option<PathBuf>,
    /// That file, or none.
    pub(super) watched: WatchedFiles,
    pub(super) rules: ModelListRules,
    pub(super) version_batching: Option<VersionBatching>,
    /// Newest version that serves, by model.
    pub(super) serving: BTreeMap<Arc<str>, u64>,
    /// True if the last poll has read a new list.
    pub(super) is_new: bool,
    /// Notes that were logged.
    pub(super) noted: Vec<String>,
    /// Mistakes in the files of versions that were reported.
    pub(super) reported: Vec<String>,
}

impl ListSource {
    /// Returns the first of `mistakes` that was not reported yet.
    fn new_mistake(&mut self, mistakes: Vec<Error>) -> Option<Error> {
        self.reported.retain(|text| mistakes.iter().any(|mistake| mistake.to_string() == *text));
        let is_new = |mistake: &Error| !self.reported.contains(&mistake.to_string());
        let mistake = mistakes.into_iter().find(is_new)?;
        self.reported.push(mistake.to_string());
        Some(mistake)
    }
}

impl ConfigSource for ListSource {
    fn see_versions(&mut self, catalog: &Catalog) {
        if self.version_batching.is_none() {
            return;
        }
        let newest = |name: Arc<str>| {
            let newest = catalog.ready(&name)?.last().copied()?;
            Some((name, newest))
        };
        self.serving = catalog.names().into_iter().filter_map(newest).collect();
    }

    fn poll(&mut self, current: &ConfigSet, forced: bool) -> Result<Option<ConfigSet>> {
        let mut set = current.clone();
        self.is_new = false;
        if forced {
            self.reported.clear();
        }
        if let Some(file) = &self.file {
            let read = || text::read::<ModelServerConfig>(file);
            if let Some(list) = self.watched.read_changed(forced, read) {
                let list = list?;
                // An empty file changes nothing, as in TensorFlow Serving.
                if list.config.is_some() {
                    set.models = self.rules.models(&list, &current.models)?;
                    let unlogged = self.rules.unlogged(&list);
                    unlogged.iter().for_each(|note| tracing::warn!("{note}"));
                    self.is_new = true;
                }
            }
        }
        if let Some(batching) = self.version_batching {
            let remarks = batching.apply(&mut set.models, &self.serving);
            let new = remarks.notes.iter().filter(|note| !self.noted.contains(note));
            new.for_each(|note| tracing::warn!("{note}"));
            self.noted = remarks.notes;
            // A mistake of one model must not delay the list. The next poll reports it.
            if set == *current
                && let Some(mistake) = self.new_mistake(remarks.mistakes)
            {
                return Err(mistake);
            }
        }
        Ok((set != *current).then_some(set))
    }

    fn not_applied(&mut self) {
        if self.is_new {
            self.watched.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::ScheduleMode;
    use lifecycle::ModelConfig;

    use super::*;

    /// Name of a version's own batching parameters.
    const BATCHING_FILE: &str = "batching_params.pbtxt";

    fn source(file: Option<PathBuf>) -> ListSource {
        let mut watched = WatchedFiles::new(file.iter().cloned().collect());
        watched.forget();
        ListSource {
            watched,
            file,
            rules: ModelListRules::default(),
            version_batching: None,
            serving: BTreeMap::new(),
            is_new: false,
            noted: Vec::new(),
            reported: Vec::new(),
        }
    }

    /// Polls until a file that was just changed counts as complete.
    fn poll_changed(source: &mut ListSource, set: &ConfigSet) -> Result<Option<ConfigSet>> {
        match source.poll(set, false) {
            Ok(None) => source.poll(set, false),
            result => result,
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
        let error = poll_changed(&mut source, &set).unwrap_err();
        assert!(error.message().contains("ModelServerConfig: line 2: "), "{error}");
        assert_eq!(source.poll(&set, false).unwrap(), None, "a mistake is told once");
        list("second_name");
        let set = poll_changed(&mut source, &set).unwrap().unwrap();
        assert_eq!(&*set.models[0].name, "second_name");
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
        source.serving = BTreeMap::from([("m".into(), 11)]);
        assert!(source.poll(&set, false).is_err());
        assert_eq!(source.poll(&set, false).unwrap(), None, "it keeps the schedule of version 10");
    }

    #[test]
    fn a_version_that_is_being_copied_changes_no_batching() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("m");
        std::fs::create_dir_all(model.join("1")).unwrap();
        std::fs::write(model.join("1").join(BATCHING_FILE), "max_batch_size { value: 4 }").unwrap();
        let mut source = source(None);
        source.version_batching = Some(VersionBatching { threads: 8, runs: None });
        let set = ConfigSet { models: vec![ModelConfig::new("m", &model)], ..ConfigSet::default() };
        let set = source.poll(&set, false).unwrap().unwrap();
        source.serving = BTreeMap::from([("m".into(), 1)]);
        std::fs::create_dir(model.join("2")).unwrap();
        assert_eq!(source.poll(&set, false).unwrap(), None, "version 2 does not serve yet");
        let away = dir.path().join("away");
        std::fs::rename(&model, &away).unwrap();
        assert_eq!(source.poll(&set, false).unwrap(), None, "the directory is away for a moment");
        std::fs::rename(&away, &model).unwrap();
        source.serving = BTreeMap::from([("m".into(), 2)]);
        let set = source.poll(&set, false).unwrap().unwrap();
        assert_eq!(set.models[0].schedule.mode, ScheduleMode::Sync);
    }

    /// A request has replaced the models during a poll.
    #[test]
    fn only_a_changed_list_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("models.config");
        let text = "model_config_list { config { name: 'm' base_path: '/m' model_platform: 'tensorflow' } }";
        std::fs::write(&file, text).unwrap();
        let version = dir.path().join("sent/1");
        std::fs::create_dir_all(&version).unwrap();
        std::fs::write(version.join(BATCHING_FILE), "max_batch_size { value: 4 }").unwrap();
        let sent = ModelConfig::new("sent", dir.path().join("sent"));
        let sent = ConfigSet { models: vec![sent], ..ConfigSet::default() };
        let mut source = source(Some(file));
        let list = source.poll(&ConfigSet::default(), false).unwrap();
        source.not_applied();
        assert_eq!(source.poll(&sent, false).unwrap(), list);
        source.version_batching = Some(VersionBatching { threads: 8, runs: None });
        let batching = source.poll(&sent, false).unwrap();
        assert_eq!(&*batching.as_ref().unwrap().models[0].name, "sent");
        source.not_applied();
        assert_eq!(source.poll(&sent, false).unwrap(), batching, "the list has not changed");
    }

    #[test]
    fn a_mistake_in_a_version_delays_no_new_list() {
        let dir = tempfile::tempdir().unwrap();
        let version = dir.path().join("m/1");
        std::fs::create_dir_all(&version).unwrap();
        std::fs::write(version.join(BATCHING_FILE), "max_batch_size { value: 0 }").unwrap();
        let file = dir.path().join("models.config");
        let text = format!(
            "model_config_list {{ config {{ name: 'm' base_path: '{}' model_platform: 'tensorflow' }} }}",
            dir.path().join("m").display()
        );
        std::fs::write(&file, text).unwrap();
        let mut source = source(Some(file));
        source.version_batching = Some(VersionBatching { threads: 8, runs: None });
        let set = source.poll(&ConfigSet::default(), false).unwrap().unwrap();
        assert_eq!(&*set.models[0].name, "m");
        assert_eq!(set.models[0].schedule.mode, ScheduleMode::Sync);
        let error = source.poll(&set, false).unwrap_err();
        assert!(error.message().contains(BATCHING_FILE), "{error}");
        assert_eq!(source.poll(&set, false).unwrap(), None, "it is reported once");
        assert!(source.poll(&set, true).is_err(), "and again after SIGHUP");
        std::fs::write(version.join(BATCHING_FILE), "max_batch_size { value: 4 }").unwrap();
        let set = source.poll(&set, false).unwrap().unwrap();
        assert_eq!(set.models[0].schedule.max_batch, 4);
    }
}
