//! Scans of the directories: which models and versions exist, and which versions are complete.
//!
//! A version with a manifest is complete if its files have the lengths in the manifest, which is
//! written last. A version without a manifest counts as complete if two scans, at least a poll
//! apart, saw the same files. A directory that cannot be read is reported as unreadable and never
//! as absent, so that a short failure unloads no version. So is one whose file system does not
//! answer. The others are scanned meanwhile.

mod calls;
mod files;
mod reader;
mod version;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use base::{Error, Result};

use crate::model_file::{MODEL_FILE, ModelFile};
use crate::{ConfigSet, ModelConfig, ModelRoot, VersionPolicy};

use calls::{CallProgress, DirectoryCalls};
pub(crate) use files::Fingerprint;
use reader::ModelReader;
use version::UNCHANGED_TIME_MAX;
pub(crate) use version::{ForeignKind, Parameters, VersionContents, VersionScan};

/// Maximum number of versions of a model that are scanned. They are the highest ones. Versions that
/// its policy names are scanned too.
pub(crate) const VERSIONS_MAX: usize = 1024;
/// Maximum number of subdirectories of a root that become models. They are the first by name.
pub(crate) const ROOT_MODELS_MAX: usize = 4096;

/// Longest time for which a missing or empty file of settings counts as being replaced. It is a
/// poll if that is shorter.
const REPLACEMENT_TIME_MAX: Duration = Duration::from_secs(2);
/// Maximum number of listings of a directory in one scan, if entries vanish meanwhile.
const LISTINGS_MAX: usize = 3;
/// Maximum directories of one root that are logged because their names are not UTF-8.
const UNNAMED_MAX: usize = 16;

/// Result of one scan.
#[derive(Debug)]
pub(crate) struct DirectoryScan {
    /// Number of the last scan request that this scan answers.
    pub(crate) answers: u64,
    pub(crate) models: Vec<ModelScan>,
    /// Number of models above [`ROOT_MODELS_MAX`], for each root that has such models.
    pub(crate) ignored_models: BTreeMap<PathBuf, usize>,
    /// Time of the last complete scan of each root that had one.
    pub(crate) scan_times: BTreeMap<PathBuf, SystemTime>,
}

/// Result of the scan of one model.
#[derive(Debug)]
pub(crate) struct ModelScan {
    /// Settings before its `millpond.toml`. Models of a root start with the root's settings.
    pub(crate) base: ModelConfig,
    /// Contents of the model's directory, or the error of reading it.
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

/// Name and directory of a model.
type ModelKey = (Arc<str>, PathBuf);

/// Result of a call into a file system.
enum ScanCall {
    /// Models of the root `dir`.
    Root { dir: PathBuf, models: Result<RootModels> },
    /// Contents of the models below a directory, and their readers by directory of the model.
    Models { readers: HashMap<PathBuf, ModelReader>, contents: Vec<(ModelKey, Result<Contents>)> },
    /// Canonical path, if there is one.
    Canonical(Option<PathBuf>),
}

/// Scanner of the directories, with the results of earlier scans.
pub(crate) struct Scanner {
    configured: Arc<ArcSwap<ConfigSet>>,
    poll: Duration,
    kinds: Arc<[ForeignKind]>,
    known: HashMap<PathBuf, Arc<RootModels>>,
    /// Maps the directory of a model that is not served to that of the served model of the same
    /// name.
    hidden: BTreeMap<PathBuf, PathBuf>,
    unreadable: BTreeSet<PathBuf>,
    /// Readers by directory of the model, except for the ones that a call has.
    readers: HashMap<PathBuf, ModelReader>,
    calls: DirectoryCalls<ScanCall>,
    /// Contents from calls that have ended after their scan. A scan without newer ones uses them.
    late: HashMap<ModelKey, Result<Contents>>,
    scan_times: BTreeMap<PathBuf, SystemTime>,
}

/// Models of a root at its last successful read.
#[derive(Default)]
struct RootModels {
    names: BTreeSet<String>,
    /// Names of models in the copy of a store that have had no version yet.
    empty: BTreeSet<String>,
    /// Number of models above [`ROOT_MODELS_MAX`], which are not among the names.
    ignored: usize,
    /// Names of directories with versions that are not UTF-8, up to [`UNNAMED_MAX`]. They are not
    /// served.
    unnamed: BTreeSet<OsString>,
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
            kinds: kinds.into(),
            known: HashMap::new(),
            hidden: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            readers: HashMap::new(),
            calls: DirectoryCalls::default(),
            late: HashMap::new(),
            scan_times: BTreeMap::new(),
        }
    }

    /// Scans all directories. `answers` is the ticket of the last request that this scan answers.
    pub(crate) fn scan(&mut self, answers: u64, now: Instant) -> DirectoryScan {
        self.begin_scan();
        let models = self.all_models();
        let models = self.scan_models(models, now);
        self.late.clear();
        self.forget(&models);
        self.note_scan_times();
        DirectoryScan {
            answers,
            models,
            ignored_models: self.ignored_models(),
            scan_times: self.scan_times.clone(),
        }
    }

    /// Stores the results of calls that ended after the scan that had begun them.
    fn begin_scan(&mut self) {
        for ended in self.calls.begin_scan() {
            match ended {
                ScanCall::Root { dir, models: Ok(models) } => {
                    self.known.insert(dir, Arc::new(models));
                }
                ScanCall::Models { readers, contents } => {
                    self.readers.extend(readers);
                    self.late.extend(contents);
                }
                ScanCall::Root { models: Err(_), .. } | ScanCall::Canonical(_) => {}
            }
        }
    }

    /// Returns the time until the next scan that is needed although no file may change. It is
    /// needed if settings are missing, if a file system does not answer, or if polls are rare and a
    /// version may be complete.
    pub(crate) fn next_check(&self) -> Option<Duration> {
        let is_missing = self.readers.values().any(ModelReader::lacks_settings);
        let missing = is_missing.then(|| self.poll.min(REPLACEMENT_TIME_MAX));
        let silent = self.calls.any_silent().then_some(self.poll);
        // After shorter polls, the usual scans find it.
        let is_rare = self.poll > UNCHANGED_TIME_MAX;
        let awaits = is_rare && self.readers.values().any(ModelReader::awaits_version);
        let version = awaits.then_some(UNCHANGED_TIME_MAX);
        missing.into_iter().chain(silent).chain(version).min()
    }

    /// Notes the time for each root whose listing and models were read.
    fn note_scan_times(&mut self) {
        let now = SystemTime::now();
        self.scan_times.retain(|root, _| self.known.contains_key(root));
        for root in self.known.keys() {
            if !self.unreadable.contains(root) && !self.calls.is_skipped(root) {
                self.scan_times.insert(root.clone(), now);
            }
        }
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
        let mut doubles = Vec::new();
        let configured = self.configured.load_full();
        let ConfigSet { models, roots } = &*configured;
        self.known.retain(|dir, _| roots.iter().any(|root| root.dir == *dir));
        for config in models {
            models_by_name.entry(config.name.clone()).or_insert_with(|| config.clone());
        }
        for root in roots {
            let known = self.list_root(root);
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
                        doubles.push((root.dir.join(name), entry.get().base_path.clone()));
                    }
                }
            }
        }
        // A model of another root serves until the copy has a version.
        for model in empty {
            models_by_name.entry(model.name.clone()).or_insert(model);
        }
        self.note_hidden(doubles);
        models_by_name.into_values().collect()
    }

    /// Lists a root. Returns the models of the last listing that succeeded.
    fn list_root(&mut self, root: &ModelRoot) -> Arc<RootModels> {
        let known = self.known.entry(root.dir.clone()).or_default().clone();
        let list = {
            let (root, known) = (root.clone(), known.clone());
            move |progress: &CallProgress| {
                let models = steady(&root.dir, || root_models(&root, &known, progress));
                ScanCall::Root { dir: root.dir, models }
            }
        };
        let listed = match self.calls.call(&root.dir, list) {
            Some(ScanCall::Root { models, .. }) => models,
            _ => Err(no_answer_error(&root.dir)),
        };
        match listed {
            Ok(models) => {
                // Logged once, not at every scan.
                for name in models.unnamed.difference(&known.unnamed) {
                    let directory = root.dir.join(name);
                    tracing::warn!(
                        directory = %directory.display(),
                        "a model is not served: its name is not UTF-8; rename it"
                    );
                }
                let models = Arc::new(models);
                self.known.insert(root.dir.clone(), models.clone());
                self.unreadable.remove(&root.dir);
                models
            }
            Err(error) => {
                // Logged once, not at every scan.
                if self.unreadable.insert(root.dir.clone()) {
                    tracing::error!(root = %root.dir.display(), %error, "a directory of models cannot be read");
                }
                known
            }
        }
    }

    /// Logs once for each model in `doubles` that it is not served. Each entry has the directory of
    /// this model, and that of the served model of the same name.
    fn note_hidden(&mut self, doubles: Vec<(PathBuf, PathBuf)>) {
        let mut hidden = BTreeMap::new();
        for (dir, served) in doubles {
            if self.hidden.get(&dir) == Some(&served) || !self.is_same_dir(&dir, &served) {
                hidden.insert(dir, served);
            }
        }
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

    /// Returns true if both paths lead to the same directory, such as `models/m` and `./models/m`,
    /// or if a file system does not answer.
    fn is_same_dir(&mut self, a: &Path, b: &Path) -> bool {
        if a == b {
            return true;
        }
        let mut canonical = |path: &Path| {
            let directory = path.parent().unwrap_or(path);
            let path = path.to_owned();
            let find = move |_: &CallProgress| ScanCall::Canonical(path.canonicalize().ok());
            match self.calls.call(directory, find) {
                Some(ScanCall::Canonical(found)) => Some(found),
                _ => None,
            }
        };
        match (canonical(a), canonical(b)) {
            (Some(Some(a)), Some(Some(b))) => a == b,
            (Some(_), Some(_)) => false,
            _ => true,
        }
    }

    /// Scans models, with one call for each directory of models.
    fn scan_models(&mut self, models: Vec<ModelConfig>, now: Instant) -> Vec<ModelScan> {
        let models: Vec<Arc<ModelConfig>> = models.into_iter().map(Arc::new).collect();
        let mut by_directory: BTreeMap<&Path, Vec<Arc<ModelConfig>>> = BTreeMap::new();
        for model in &models {
            by_directory.entry(directory_of(model)).or_default().push(model.clone());
        }
        let mut contents = HashMap::new();
        for (directory, models) in by_directory {
            contents.extend(self.read_models(directory, models, now));
        }
        let scan = |model: Arc<ModelConfig>| {
            let read = contents.remove(&model.name);
            let contents = read.unwrap_or_else(|| Err(no_answer_error(directory_of(&model))));
            ModelScan { base: Arc::unwrap_or_clone(model), contents }
        };
        models.into_iter().map(scan).collect()
    }

    /// Reads the contents of `models`, whose directories are below `directory`. If the file system
    /// does not answer in time, the result has only the contents that an earlier read returned
    /// late.
    fn read_models(
        &mut self,
        directory: &Path,
        models: Vec<Arc<ModelConfig>>,
        now: Instant,
    ) -> Vec<(Arc<str>, Result<Contents>)> {
        let keys: Vec<ModelKey> = models.iter().map(|model| key_of(model)).collect();
        if !self.calls.is_skipped(directory) {
            let mut readers = HashMap::new();
            for (_, base_path) in &keys {
                // Several models can have the same directory.
                readers.extend(self.readers.remove_entry(base_path));
            }
            let (poll, kinds) = (self.poll, self.kinds.clone());
            let read = move |progress: &CallProgress| {
                let mut contents = Vec::with_capacity(models.len());
                for model in &models {
                    let reader = readers.entry(model.base_path.clone());
                    let reader = reader.or_insert_with(|| ModelReader::new(poll, kinds.clone()));
                    contents.push((key_of(model), reader.read(model, now, progress)));
                    progress.step();
                }
                ScanCall::Models { readers, contents }
            };
            if let Some(ScanCall::Models { readers, contents }) = self.calls.call(directory, read) {
                self.readers.extend(readers);
                return contents.into_iter().map(|((name, _), read)| (name, read)).collect();
            }
        }
        let late = keys.into_iter().filter_map(|key| self.late.remove_entry(&key));
        late.map(|((name, _), read)| (name, read)).collect()
    }

    /// Drops the memory of removed models and versions.
    fn forget(&mut self, models: &[ModelScan]) {
        let bases: BTreeSet<&Path> =
            models.iter().map(|model| model.base.base_path.as_path()).collect();
        let directories: BTreeSet<&Path> = models
            .iter()
            .flat_map(|model| [Some(directory_of(&model.base)), model.base.base_path.parent()])
            .flatten()
            .chain(self.known.keys().map(PathBuf::as_path))
            .collect();
        self.calls.retain(|directory| directories.contains(directory));
        self.readers.retain(|base, _| bases.contains(base.as_path()));
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
        for (base, reader) in &mut self.readers {
            if !unreadable.contains(base.as_path()) {
                reader.versions.retain(|dir, _| seen.contains(dir.as_path()));
            }
        }
    }
}

fn key_of(model: &ModelConfig) -> ModelKey {
    (model.name.clone(), model.base_path.clone())
}

/// Returns the directory of models to which a model belongs. One call reads all models of this
/// directory.
fn directory_of(model: &ModelConfig) -> &Path {
    // There may be thousands of stores, and one file system has their copies, each at
    // DIRECTORY/STORE/models/MODEL.
    let levels = if model.store.is_some() { 3 } else { 1 };
    model.base_path.ancestors().nth(levels).unwrap_or(&model.base_path)
}

/// Returns the error of a directory whose file system does not answer, or that is not read because
/// those of too many others do not.
fn no_answer_error(dir: &Path) -> Error {
    Error::unavailable(format!(
        "{}: its file system does not answer; it is read as soon as it answers",
        dir.display()
    ))
}

/// Calls `list` until it gets a consistent view of `dir`. `list` returns `None` if an entry
/// vanished between listing and reading. The directory is then being changed or replaced, and a
/// partial view must not count.
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
fn root_models(
    root: &ModelRoot,
    known: &RootModels,
    progress: &CallProgress,
) -> Result<Option<RootModels>> {
    let is_copy = root.store.is_some();
    let root = &root.dir;
    let mut names = BTreeSet::new();
    let mut empty = BTreeSet::new();
    let mut unnamed = BTreeSet::new();
    for entry in std::fs::read_dir(root).map_err(|e| Error::io(root, &e))? {
        let entry = entry.map_err(|e| Error::io(root, &e))?;
        progress.step();
        let path = entry.path();
        let name = match entry.file_name().into_string() {
            Ok(name) => name,
            Err(name) => {
                if unnamed.len() < UNNAMED_MAX && holds_versions(&path) {
                    unnamed.insert(name);
                }
                continue;
            }
        };
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
    Ok(Some(RootModels { names, empty, ignored, unnamed }))
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
        // "7" and "007" are one version. The shorter name wins in any order of the listing.
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

/// Returns true if an entry is a directory or may be one. Returns `None` if it vanished. Some file
/// systems do not store the kind in the listing, and reading it can fail. The entry then counts as
/// a version.
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
