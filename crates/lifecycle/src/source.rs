//! Scans of the directories: which models and versions exist, and which versions are complete.
//!
//! A version with a manifest is complete if its files have the lengths in the manifest, which is
//! written last. A version without a manifest counts as complete if two scans, at least a poll
//! apart, saw the same files. A directory that cannot be read is reported as unreadable and never
//! as absent, so that a short failure unloads no version.

mod files;
mod version;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use base::{Error, Result};
use os::{FileStamp, RegularFile};

use crate::model_file::{self, MODEL_FILE, ModelFile};
use crate::{ConfigSet, ModelConfig, ModelRoot, VersionPolicy};

pub(crate) use files::Fingerprint;
use version::VersionMemory;
pub(crate) use version::{ForeignKind, Parameters, VersionContents, VersionScan};

/// Most versions of a model that are scanned: the highest numbers. Versions that its policy names
/// are scanned too.
pub(crate) const VERSIONS_MAX: usize = 1024;
/// Most subdirectories of a root that become models: the first by name.
pub(crate) const ROOT_MODELS_MAX: usize = 4096;

/// Longest time for which a missing or empty file of settings counts as being replaced. It is a
/// poll if that is shorter.
const REPLACEMENT_TIME_MAX: Duration = Duration::from_secs(2);
/// Most listings of a directory in one scan, if entries vanish meanwhile.
const LISTINGS_MAX: usize = 3;

/// Result of one scan.
#[derive(Debug)]
pub(crate) struct DirectoryScan {
    /// Number of the last scan request that this scan answers.
    pub(crate) answers: u64,
    pub(crate) models: Vec<ModelScan>,
    /// Number of models above [`ROOT_MODELS_MAX`], for each root that has such models.
    pub(crate) ignored_models: BTreeMap<PathBuf, usize>,
}

/// Result of the scan of one model.
#[derive(Debug)]
pub(crate) struct ModelScan {
    /// Settings before its `millpond.toml`. Models of a root start with the root's settings.
    pub(crate) base: ModelConfig,
    /// Contents of its directory, or the error of reading it.
    pub(crate) contents: Result<Contents>,
}

/// Contents of a model's directory.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) settings: Settings,
    /// True if the file of the settings is missing or empty, and may be replaced at this moment.
    pub(crate) settings_in_doubt: bool,
    pub(crate) versions: Vec<VersionScan>,
    /// Number of versions above [`VERSIONS_MAX`].
    pub(crate) ignored_versions: usize,
}

/// A model's `millpond.toml` if it has one, or the error in it.
pub(crate) type Settings = Arc<Result<Option<ModelFile>, String>>;

/// Scans the directories and remembers earlier scans.
pub(crate) struct Scanner {
    configured: Arc<ArcSwap<ConfigSet>>,
    poll: Duration,
    kinds: Vec<ForeignKind>,
    known: HashMap<PathBuf, RootModels>,
    /// Directories of models in roots that are not served, because the other directory is a model
    /// of the same name.
    hidden: BTreeMap<PathBuf, PathBuf>,
    unreadable: BTreeSet<PathBuf>,
    versions: HashMap<PathBuf, VersionMemory>,
    settings: HashMap<PathBuf, SettingsMemory>,
    /// Policy of each model by its last valid settings.
    policies: HashMap<PathBuf, VersionPolicy>,
}

/// Models of a root at its last successful read.
#[derive(Default)]
struct RootModels {
    names: BTreeSet<String>,
    /// Names of models in the copy of a store that have had no version yet.
    empty: BTreeSet<String>,
    /// Number of models above [`ROOT_MODELS_MAX`], which are not among the names.
    ignored: usize,
}

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

    /// Returns the settings of a file that is missing or empty for less than `time`: it may be
    /// replaced at this moment. `None` for a file without settings.
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
        {
            // The stamp is older than the text, so that a change during the read is seen.
            let stamp = FileStamp::read(&path);
            file.read_labels(&path, &dir, &opened)?;
            labels = Some((path, stamp.map_err(|error| error.to_string())?));
        }
        Ok(ReadSettings { parsed, labels })
    }
}

/// Relevant entries of a model's directory.
struct Listing {
    /// Version directories, lowest first.
    versions: Vec<(u64, PathBuf)>,
    /// True if there is a settings file.
    settings: bool,
}

impl Scanner {
    pub(crate) fn new(
        configured: Arc<ArcSwap<ConfigSet>>,
        poll: Duration,
        kinds: Vec<ForeignKind>,
    ) -> Scanner {
        Scanner {
            configured,
            poll,
            kinds,
            known: HashMap::new(),
            hidden: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            versions: HashMap::new(),
            settings: HashMap::new(),
            policies: HashMap::new(),
        }
    }

    pub(crate) fn scan(&mut self, answers: u64, now: Instant) -> DirectoryScan {
        let models = self.all_models();
        let models: Vec<ModelScan> =
            models.into_iter().map(|model| self.scan_model(model, now)).collect();
        self.forget(&models);
        DirectoryScan { answers, models, ignored_models: self.ignored_models() }
    }

    /// Returns the time until the next scan that missing settings need; `None` if none are missing.
    pub(crate) fn next_check(&self) -> Option<Duration> {
        let is_missing = self.settings.values().any(|memory| memory.lost_since.is_some());
        is_missing.then(|| self.poll.min(REPLACEMENT_TIME_MAX))
    }

    /// Returns the number of ignored models of each root that has such models.
    fn ignored_models(&self) -> BTreeMap<PathBuf, usize> {
        let over_limit = self.known.iter().filter(|(_, models)| models.ignored > 0);
        over_limit.map(|(root, models)| (root.clone(), models.ignored)).collect()
    }

    /// Returns all models. If two have the same name, the configured one wins, then the one of the
    /// first root. A model whose first version is still being copied comes after all others.
    fn all_models(&mut self) -> Vec<ModelConfig> {
        let mut models_by_name: BTreeMap<Arc<str>, ModelConfig> = BTreeMap::new();
        let mut empty = Vec::new();
        let mut hidden = BTreeMap::new();
        let ConfigSet { models, roots } = &*self.configured.load_full();
        self.known.retain(|dir, _| roots.iter().any(|root| root.dir == *dir));
        for config in models {
            models_by_name.entry(config.name.clone()).or_insert_with(|| config.clone());
        }
        for root in roots {
            let known = self.known.entry(root.dir.clone()).or_default();
            match steady(&root.dir, || root_models(root, known)) {
                Ok(models) => {
                    *known = models;
                    self.unreadable.remove(&root.dir);
                }
                // Logged once, not at every scan.
                Err(error) if self.unreadable.insert(root.dir.clone()) => {
                    tracing::error!(root = %root.dir.display(), %error, "a directory of models cannot be read");
                }
                Err(_) => {}
            }
            for name in &known.names {
                if known.empty.contains(name) {
                    empty.push(root.model(name));
                    continue;
                }
                match models_by_name.entry(name.as_str().into()) {
                    Entry::Vacant(entry) => {
                        entry.insert(root.model(name));
                    }
                    Entry::Occupied(entry) => {
                        let dir = root.dir.join(name);
                        let served = &entry.get().base_path;
                        if self.hidden.get(&dir) == Some(served) || !is_same_dir(&dir, served) {
                            hidden.insert(dir, served.clone());
                        }
                    }
                }
            }
        }
        // A model of another root serves until the copy has a version.
        for model in empty {
            models_by_name.entry(model.name.clone()).or_insert(model);
        }
        self.note_hidden(hidden);
        models_by_name.into_values().collect()
    }

    /// Logs each directory once while it is hidden by the same other one.
    fn note_hidden(&mut self, hidden: BTreeMap<PathBuf, PathBuf>) {
        for (dir, served) in &hidden {
            if self.hidden.get(dir) != Some(served) {
                tracing::warn!(
                    "{} is not served, because {} is a model of the same name: rename one of them",
                    dir.display(),
                    served.display()
                );
            }
        }
        self.hidden = hidden;
    }

    fn scan_model(&mut self, base: ModelConfig, now: Instant) -> ModelScan {
        let contents = steady(&base.base_path, || self.contents_of(&base, now));
        ModelScan { base, contents }
    }

    /// Reads the contents of a model's directory. `None` as in [`steady`].
    fn contents_of(&mut self, base: &ModelConfig, now: Instant) -> Result<Option<Contents>> {
        let Some(Listing { mut versions, settings }) = list(&base.base_path)? else {
            return Ok(None);
        };
        let settings = self.settings_of(&base.base_path, settings, now);
        let memory = self.settings.get(&base.base_path);
        let settings_in_doubt = memory.is_some_and(|memory| memory.lost_since.is_some());
        let ignored_versions = ignore_lowest(&mut versions, &self.policy_of(base, &settings));
        let look = |(version, dir): (u64, PathBuf)| {
            let memory = self.versions.entry(dir.clone()).or_default();
            version::scan(version, dir, &self.kinds, memory, self.poll, now)
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
            return self.policies.get(&base.base_path).unwrap_or(&base.policy).clone();
        };
        self.policies.insert(base.base_path.clone(), policy.clone());
        policy
    }

    /// Reads the settings beside the versions. They are absent only if the file cannot be found and
    /// was not `listed` either: a model must not lose its settings while its directory is moved for
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
                let memory = self.settings.get_mut(base_path);
                if let Some(kept) = memory.and_then(|it| it.while_replaced(time, now)) {
                    return kept;
                }
                self.settings.remove(base_path);
                return Arc::new(Ok(None));
            }
            Err(error) => return unreadable(&error),
        };
        if let Some(memory) = self.settings.get_mut(base_path) {
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
        // A file that could not be read is read again at the next scan: success needs no change of
        // the file.
        let ReadSettings { parsed, labels } = match ReadSettings::of(base_path) {
            Ok(read) => read,
            Err(error) => return unreadable(&error),
        };
        let parsed = parsed.map(Some).map_err(|error| format!("{}: {error}", path.display()));
        let settings = Arc::new(parsed);
        let memory = SettingsMemory { stamp, labels, settings: settings.clone(), lost_since: None };
        self.settings.insert(base_path.to_owned(), memory);
        settings
    }

    /// Drops the memory of removed models and versions.
    fn forget(&mut self, models: &[ModelScan]) {
        let bases: BTreeSet<&Path> =
            models.iter().map(|model| model.base.base_path.as_path()).collect();
        self.settings.retain(|base, _| bases.contains(base.as_path()));
        self.policies.retain(|base, _| bases.contains(base.as_path()));
        let seen: BTreeSet<&Path> = models
            .iter()
            .flat_map(|model| model.contents.iter().flat_map(|contents| &contents.versions))
            .map(|version| version.dir.as_path())
            .collect();
        let unreadable: BTreeSet<&Path> = models
            .iter()
            .filter(|model| model.contents.is_err())
            .map(|model| model.base.base_path.as_path())
            .collect();
        self.versions.retain(|dir, _| {
            seen.contains(dir.as_path())
                || dir.parent().is_some_and(|base| unreadable.contains(base))
        });
    }
}

/// Returns true if both paths lead to the same directory, such as `models/m` and `./models/m`.
fn is_same_dir(a: &Path, b: &Path) -> bool {
    a == b || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Calls `list` until it gets a consistent view of `dir`. `list` returns `None` if an entry
/// vanished between listing and reading: the directory is being changed or replaced, and a partial
/// view must not count.
fn steady<T>(dir: &Path, mut list: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    for _ in 0..LISTINGS_MAX {
        if let Some(all) = list()? {
            return Ok(all);
        }
    }
    Err(Error::unavailable(format!(
        "{}: directories were created and removed during each scan; the next poll tries again",
        dir.display()
    )))
}

/// Returns the subdirectories of `root` that are models: subdirectories with a version, and earlier
/// models. In a copy of a store, all are models, since versions can be on their way. `None` as in
/// [`steady`].
fn root_models(root: &ModelRoot, known: &RootModels) -> Result<Option<RootModels>> {
    let is_copy = root.store.is_some();
    let root = &root.dir;
    let mut names = BTreeSet::new();
    let mut empty = BTreeSet::new();
    for entry in std::fs::read_dir(root).map_err(|e| Error::io(root, &e))? {
        let entry = entry.map_err(|e| Error::io(root, &e))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = entry.path();
        if name.starts_with('.') {
            continue;
        }
        let model = match std::fs::metadata(&path) {
            Ok(meta) => {
                meta.is_dir() && (is_copy || known.names.contains(&name) || holds_versions(&path))
            }
            Err(error) if error.kind() == ErrorKind::NotFound && is_missing(&path) => {
                return Ok(None);
            }
            // It may still be there. The scan of the model reports the error.
            Err(_) => known.names.contains(&name),
        };
        if model {
            // A model that had a version keeps its place while its versions are replaced.
            let had_version = known.names.contains(&name) && !known.empty.contains(&name);
            if is_copy && !had_version && !holds_versions(&path) {
                empty.insert(name.clone());
            }
            names.insert(name);
        }
    }
    let ignored = names.len().saturating_sub(ROOT_MODELS_MAX);
    for _ in 0..ignored {
        names.pop_last();
    }
    empty.retain(|name| names.contains(name));
    Ok(Some(RootModels { names, empty, ignored }))
}

/// Returns true if `path` does not exist, not even as a dangling link.
fn is_missing(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

fn holds_versions(dir: &Path) -> bool {
    matches!(list(dir), Ok(Some(listing)) if !listing.versions.is_empty())
}

/// Lists `base_path`. `None` as in [`steady`].
fn list(base_path: &Path) -> Result<Option<Listing>> {
    let mut found = BTreeMap::new();
    let mut settings = false;
    for entry in std::fs::read_dir(base_path).map_err(|e| Error::io(base_path, &e))? {
        let entry = entry.map_err(|e| Error::io(base_path, &e))?;
        settings |= entry.file_name() == MODEL_FILE;
        let Some(version) = version_number(&entry.file_name()) else { continue };
        match perhaps_directory(entry.file_type()) {
            Some(true) => {}
            Some(false) => continue,
            None => return Ok(None),
        }
        // "7" and "007" are one version: the shorter name wins in any order of the listing.
        let path = entry.path();
        let dir = found.entry(version).or_insert_with(|| path.clone());
        if path.as_os_str().len() < dir.as_os_str().len() {
            *dir = path;
        }
    }
    Ok(Some(Listing { versions: found.into_iter().collect(), settings }))
}

/// Keeps the highest [`VERSIONS_MAX`] versions and the ones named by `policy`. A version that
/// serves must not disappear because newer ones are added. Returns the number of the others.
fn ignore_lowest(versions: &mut Vec<(u64, PathBuf)>, policy: &VersionPolicy) -> usize {
    let all = versions.len();
    let first = versions.get(all.saturating_sub(VERSIONS_MAX)).map_or(0, |(version, _)| *version);
    let is_named = |version: &u64| match policy {
        VersionPolicy::Specific(named) => named.contains(version),
        VersionPolicy::Latest(_) | VersionPolicy::All => false,
    };
    versions.retain(|(version, _)| *version >= first || is_named(version));
    all - versions.len()
}

/// Returns true if an entry is a directory or may be one; `None` if it vanished. Some file systems
/// do not store the kind in the listing, and reading it can fail. The entry then counts as a
/// version.
fn perhaps_directory(kind: std::io::Result<std::fs::FileType>) -> Option<bool> {
    match kind {
        Ok(kind) => Some(kind.is_dir() || kind.is_symlink()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(_) => Some(true),
    }
}

/// Parses decimal digits that fit an `int64`, the version numbers of TensorFlow Serving.
fn version_number(name: &OsStr) -> Option<u64> {
    let name = name.to_str()?;
    let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| name.parse().ok()).flatten().filter(|&version| i64::try_from(version).is_ok())
}

#[cfg(test)]
mod tests;
