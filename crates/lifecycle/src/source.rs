//! Looking at the directories: which models and versions there are, and which of them are complete.
//!
//! A version with a manifest is complete when its files have the stated lengths: the manifest is written last.
//! A version without one has nothing that says so; it is taken as complete when two looks, at least a poll
//! apart, saw the same files. What cannot be looked at is reported as such and never as absent, so that a
//! directory that cannot be read for a moment takes nothing down.

mod files;
mod version;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base::{Error, Result};

use crate::model_file::{self, MODEL_FILE, ModelFile};
use crate::{ModelConfig, Root};

pub(crate) use files::Fingerprint;
use version::Memory;
pub(crate) use version::{Found, Kind, Parameters, VersionScan};

/// Only so many versions of a model, the highest, are looked at.
pub(crate) const VERSIONS_MAX: usize = 1024;
/// Only so many subdirectories of a root, the first by name, become models.
pub(crate) const ROOT_MODELS_MAX: usize = 4096;

/// A directory whose entries keep going while they are looked at is listed so often in one look.
const LISTINGS_MAX: usize = 3;

/// What one look saw.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The highest request for a look that this one answers.
    pub(crate) answers: u64,
    pub(crate) models: Vec<ModelScan>,
}

/// One model, as seen.
#[derive(Debug)]
pub(crate) struct ModelScan {
    /// As configured; roots give their models default settings.
    pub(crate) base: ModelConfig,
    /// Its `millpond.toml`, if it has one, or what is wrong with it.
    pub(crate) settings: Arc<Result<Option<ModelFile>, String>>,
    /// Its versions, or why they could not be looked at.
    pub(crate) versions: Result<Vec<VersionScan>>,
}

/// Looks, and remembers what it saw before.
pub(crate) struct Scanner {
    configured: Vec<ModelConfig>,
    roots: Vec<Root>,
    poll: Duration,
    kinds: Vec<Kind>,
    /// What each root held when it could last be read.
    known: HashMap<PathBuf, BTreeSet<String>>,
    unreadable: BTreeSet<PathBuf>,
    versions: HashMap<PathBuf, Memory>,
    settings: HashMap<PathBuf, SettingsMemory>,
}

/// Length, modification time and inode: what a file's content is told apart by.
type Stamp = Option<(u64, Option<SystemTime>, u64)>;

struct SettingsMemory {
    stamp: Stamp,
    settings: Arc<Result<Option<ModelFile>, String>>,
}

impl Scanner {
    pub(crate) fn new(
        configured: Vec<ModelConfig>,
        roots: Vec<Root>,
        poll: Duration,
        kinds: Vec<Kind>,
    ) -> Scanner {
        Scanner {
            configured,
            roots,
            poll,
            kinds,
            known: HashMap::new(),
            unreadable: BTreeSet::new(),
            versions: HashMap::new(),
            settings: HashMap::new(),
        }
    }

    /// One look at everything.
    pub(crate) fn look(&mut self, answers: u64, now: Instant) -> Snapshot {
        let bases = self.bases();
        let models: Vec<ModelScan> = bases.into_iter().map(|base| self.look_at(base, now)).collect();
        self.forget(&models);
        Snapshot { answers, models }
    }

    /// All models; where two have a name, the configured one and then the one of the first root.
    fn bases(&mut self) -> Vec<ModelConfig> {
        let mut bases: BTreeMap<Arc<str>, ModelConfig> = BTreeMap::new();
        for config in &self.configured {
            bases.entry(config.name.clone()).or_insert_with(|| config.clone());
        }
        for root in &self.roots {
            let known = self.known.entry(root.dir.clone()).or_default();
            match steady(&root.dir, || subdirectories(&root.dir, known)) {
                Ok(names) => {
                    *known = names;
                    self.unreadable.remove(&root.dir);
                }
                // Told once, not at every look.
                Err(error) if self.unreadable.insert(root.dir.clone()) => {
                    tracing::error!(root = %root.dir.display(), %error, "a directory of models cannot be read");
                }
                Err(_) => {}
            }
            for name in known.iter() {
                bases.entry(name.as_str().into()).or_insert_with(|| root.model(name));
            }
        }
        bases.into_values().collect()
    }

    fn look_at(&mut self, base: ModelConfig, now: Instant) -> ModelScan {
        let settings = self.settings_of(&base.base_path);
        let versions = steady(&base.base_path, || self.versions_of(&base.base_path, now));
        ModelScan { base, settings, versions }
    }

    /// As for [`steady`].
    fn versions_of(&mut self, base_path: &Path, now: Instant) -> Result<Option<Vec<VersionScan>>> {
        let look = |(version, dir): (u64, PathBuf)| {
            let memory = self.versions.entry(dir.clone()).or_default();
            version::look((version, dir), &self.kinds, memory, self.poll, now)
        };
        Ok(version_numbers(base_path)?.into_iter().map(look).collect())
    }

    fn settings_of(&mut self, base_path: &Path) -> Arc<Result<Option<ModelFile>, String>> {
        let stamp = stamp(&base_path.join(MODEL_FILE));
        if let Some(memory) = self.settings.get(base_path)
            && memory.stamp == stamp
        {
            return memory.settings.clone();
        }
        let settings = Arc::new(model_file::read(base_path));
        let memory = SettingsMemory { stamp, settings: settings.clone() };
        self.settings.insert(base_path.to_owned(), memory);
        settings
    }

    /// Drops the memory of what has gone.
    fn forget(&mut self, models: &[ModelScan]) {
        let bases: BTreeSet<&Path> = models.iter().map(|model| model.base.base_path.as_path()).collect();
        self.settings.retain(|base, _| bases.contains(base.as_path()));
        let seen: BTreeSet<&Path> = models
            .iter()
            .flat_map(|model| model.versions.iter().flatten())
            .map(|version| version.dir.as_path())
            .collect();
        let unreadable: BTreeSet<&Path> = models
            .iter()
            .filter(|model| model.versions.is_err())
            .map(|model| model.base.base_path.as_path())
            .collect();
        self.versions.retain(|dir, _| {
            seen.contains(dir.as_path()) || dir.parent().is_some_and(|base| unreadable.contains(base))
        });
    }
}

fn stamp(path: &Path) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.len(), meta.modified().ok(), meta.ino()))
}

/// What `list` sees in `dir`. It returns `None` where something that it found listed had gone when it looked there: the
/// directory is being changed, moved away or replaced by another, and what is half seen must not be taken for what is
/// there.
fn steady<T>(dir: &Path, mut list: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    for _ in 0..LISTINGS_MAX {
        if let Some(all) = list()? {
            return Ok(all);
        }
    }
    Err(Error::unavailable(format!("{}: directories come and go while they are looked at", dir.display())))
}

/// The subdirectories of `root` that are models: those that hold a version, and those that were models before. As for
/// [`steady`].
fn subdirectories(root: &Path, known: &BTreeSet<String>) -> Result<Option<BTreeSet<String>>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(root).map_err(|e| Error::io(root, &e))? {
        let entry = entry.map_err(|e| Error::io(root, &e))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = entry.path();
        let model = || known.contains(&name) || version_numbers(&path).is_ok_and(|all| !all.is_empty());
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() && model() {
            names.insert(name);
        } else if std::fs::symlink_metadata(&path).is_err_and(|e| e.kind() == ErrorKind::NotFound) {
            return Ok(None);
        }
    }
    while names.len() > ROOT_MODELS_MAX {
        names.pop_last();
    }
    Ok(Some(names))
}

/// The version directories of `base_path`, lowest first.
fn version_numbers(base_path: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(base_path).map_err(|e| Error::io(base_path, &e))? {
        let entry = entry.map_err(|e| Error::io(base_path, &e))?;
        if let Some(version) = version_number(&entry.file_name())
            && entry.file_type().is_ok_and(|kind| kind.is_dir() || kind.is_symlink())
        {
            // "7" and "007" are one version: the shorter name wins, whatever the order.
            let path = entry.path();
            let dir = found.entry(version).or_insert_with(|| path.clone());
            if path.as_os_str().len() < dir.as_os_str().len() {
                *dir = path;
            }
        }
    }
    while found.len() > VERSIONS_MAX {
        found.pop_first();
    }
    Ok(found.into_iter().collect())
}

/// A version number is decimal digits that fit an `int64`, as TensorFlow Serving has it.
fn version_number(name: &OsStr) -> Option<u64> {
    let name = name.to_str()?;
    let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| name.parse().ok()).flatten().filter(|&version| i64::try_from(version).is_ok())
}

#[cfg(test)]
mod tests;
