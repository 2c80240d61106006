//! Reads of a model's directory, and the results of earlier reads.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Result;
use os::{FileStamp, RegularFile};

use super::calls::CallProgress;
use super::version::{self, ScanContext, VersionMemory};
use super::{
    Contents, ForeignKind, Listing, REPLACEMENT_TIME_MAX, Settings, ignore_lowest, list, steady,
};
use crate::model_file::{self, MODEL_FILE, ModelFile};
use crate::{ModelConfig, VersionPolicy};

/// Settings of a file that could be read.
struct SettingsMemory {
    stamp: FileStamp,
    /// Path and stamp of the file of labels that the settings name.
    labels: Option<(PathBuf, FileStamp)>,
    settings: Settings,
    /// Time since which the file is missing or empty.
    lost_since: Option<Instant>,
}

impl SettingsMemory {
    /// Returns true if the files are still the ones that were read.
    fn is_current(&self, stamp: FileStamp) -> bool {
        let same = |(path, read): &(PathBuf, FileStamp)| FileStamp::of(path) == Some(*read);
        self.stamp == stamp && self.labels.as_ref().is_none_or(same)
    }

    /// Returns the last settings of a file that is missing or empty for less than `time`, because a
    /// program may be replacing it. Returns `None` for a file without settings.
    fn while_replaced(&mut self, time: Duration, now: Instant) -> Option<Settings> {
        let since = *self.lost_since.get_or_insert(now);
        // A little less than the time, because timers are not exact.
        let is_new = now.duration_since(since) < time.mul_f64(0.9);
        let has_settings = self.stamp.bytes() > 0 && matches!(*self.settings, Ok(Some(_)));
        (is_new && has_settings).then(|| self.settings.clone())
    }
}

/// Settings that were read, and the file of labels that they name.
struct ReadSettings {
    parsed: Result<ModelFile, String>,
    /// Path below the directory as it is configured, whose links can change, and stamp of the file.
    labels: Option<(PathBuf, FileStamp)>,
}

impl ReadSettings {
    /// Reads the settings in `base_path`.
    ///
    /// # Errors
    /// The reason why a file cannot be read, or why the labels must not be read.
    fn of(base_path: &Path) -> Result<ReadSettings, String> {
        // Both files are those of one directory, even if a link to it changes meanwhile.
        let dir = base_path.canonicalize().map_err(|error| error.to_string())?;
        let opened = RegularFile::open(&dir.join(MODEL_FILE)).map_err(|error| error.to_string())?;
        let mut parsed = ModelFile::parse(&model_file::read(&opened)?);
        let mut labels = None;
        if let Ok(file) = &mut parsed
            && let Some(path) = file.labels_path(&dir)
            && let Some(configured) = file.labels_path(base_path)
        {
            // The stamp is older than the text, so that a change during the read is seen.
            let stamp = FileStamp::read(&path);
            file.read_labels(&path, &dir, &opened)?;
            labels = Some((configured, stamp.map_err(|error| error.to_string())?));
        }
        Ok(ReadSettings { parsed, labels })
    }
}

/// Reader of a model's directory, with the results of earlier reads.
pub(super) struct ModelReader {
    poll: Duration,
    kinds: Arc<[ForeignKind]>,
    pub(super) versions: HashMap<PathBuf, VersionMemory>,
    settings: Option<SettingsMemory>,
    /// Policy by its last valid settings.
    policy: Option<VersionPolicy>,
}

impl ModelReader {
    pub(super) fn new(poll: Duration, kinds: Arc<[ForeignKind]>) -> ModelReader {
        ModelReader { poll, kinds, versions: HashMap::new(), settings: None, policy: None }
    }

    /// Reads the contents of the directory.
    ///
    /// # Errors
    /// The error of the directory. `Unavailable` if it changes during each read.
    pub(super) fn read(
        &mut self,
        base: &ModelConfig,
        now: Instant,
        progress: &CallProgress,
    ) -> Result<Contents> {
        steady(&base.base_path, || self.contents_of(base, now, progress))
    }

    /// Returns true if the settings are missing or empty, and may be replaced at this moment.
    pub(super) fn lacks_settings(&self) -> bool {
        self.settings.as_ref().is_some_and(|memory| memory.lost_since.is_some())
    }

    /// Returns true if a version may count as complete at the next scan, although no file changes.
    pub(super) fn awaits_version(&self) -> bool {
        self.versions.values().any(VersionMemory::may_be_complete)
    }

    /// Returns true if settings are remembered.
    #[cfg(test)]
    pub(super) fn has_settings(&self) -> bool {
        self.settings.is_some()
    }

    /// Reads the contents of a model's directory. `None` as in [`steady`].
    fn contents_of(
        &mut self,
        base: &ModelConfig,
        now: Instant,
        progress: &CallProgress,
    ) -> Result<Option<Contents>> {
        let Some(Listing { mut versions, settings }) = list(&base.base_path)? else {
            return Ok(None);
        };
        let settings = self.settings_of(&base.base_path, settings, now);
        let settings_in_doubt = self.lacks_settings();
        let ignored_versions = ignore_lowest(&mut versions, &self.policy_of(base, &settings));
        let context = ScanContext { kinds: &self.kinds, poll: self.poll, now, progress };
        let look = |(version, dir): (u64, PathBuf)| {
            progress.step();
            let memory = self.versions.entry(dir.clone()).or_default();
            version::scan(version, dir, &context, memory)
        };
        let Some(versions) = versions.into_iter().map(look).collect() else {
            return Ok(None);
        };
        Ok(Some(Contents { settings, settings_in_doubt, versions, ignored_versions }))
    }

    /// Returns the policy that selects the versions. Wrong settings change nothing, so the one of
    /// the last valid settings stays.
    fn policy_of(&mut self, base: &ModelConfig, settings: &Settings) -> VersionPolicy {
        let valid = match &**settings {
            Ok(None) => Some(base.policy.clone()),
            Ok(Some(file)) => file.apply(base).ok().map(|config| config.policy),
            Err(_) => None,
        };
        let Some(policy) = valid else {
            return self.policy.as_ref().unwrap_or(&base.policy).clone();
        };
        self.policy = Some(policy.clone());
        policy
    }

    /// Reads the settings beside the versions. They are absent only if the file cannot be found and
    /// was not `listed` either. A model must not lose its settings while its directory is moved for
    /// a moment. A file that was there must be missing or empty for the time of a replacement,
    /// since some programs replace a file in two steps.
    fn settings_of(&mut self, base_path: &Path, listed: bool, now: Instant) -> Settings {
        let path = base_path.join(MODEL_FILE);
        let time = self.poll.min(REPLACEMENT_TIME_MAX);
        let unreadable =
            |error: &dyn std::fmt::Display| Arc::new(Err(format!("{}: {error}", path.display())));
        let stamp = match FileStamp::read(&path) {
            Ok(stamp) => stamp,
            Err(error) if error.kind() == ErrorKind::NotFound && !listed => {
                let memory = self.settings.as_mut();
                if let Some(kept) = memory.and_then(|it| it.while_replaced(time, now)) {
                    return kept;
                }
                self.settings = None;
                return Arc::new(Ok(None));
            }
            Err(error) => return unreadable(&error),
        };
        if let Some(memory) = &mut self.settings {
            if memory.is_current(stamp) {
                memory.lost_since = None;
                return memory.settings.clone();
            }
            if stamp.bytes() == 0
                && let Some(kept) = memory.while_replaced(time, now)
            {
                return kept;
            }
        }
        // A file that could not be read is read again at the next scan, because success needs no
        // change of the file.
        let ReadSettings { parsed, labels } = match ReadSettings::of(base_path) {
            Ok(read) => read,
            Err(error) => return unreadable(&error),
        };
        let parsed = parsed.map(Some).map_err(|error| format!("{}: {error}", path.display()));
        let settings = Arc::new(parsed);
        let memory = SettingsMemory { stamp, labels, settings: settings.clone(), lost_since: None };
        self.settings = Some(memory);
        settings
    }
}
