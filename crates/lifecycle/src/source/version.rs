//! Scan of one version directory: is it complete, and of which kind?

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{ErrorKind, Result};
use engine::layout::{Artifact, MANIFEST_NAME, TENSOR_ALIGNMENT};
use engine::{Engine, ParameterUse};
use memory::{SHARE_MIN, SlotPool};

use super::calls::CallProgress;
use super::files::{self, Fingerprint, ScannedFile};

/// Scans that must agree before a directory without a manifest counts as complete.
const SCANS_MIN: u32 = 2;
/// Longest time between the scans that must agree. Polls may be minutes or hours apart.
pub(super) const UNCHANGED_TIME_MAX: Duration = Duration::from_secs(2);
/// Changes of a version in a row after which its next scan waits for a poll. A program may write
/// into a directory for days, and each scan reads all models.
pub(super) const EARLY_CHANGES_MAX: u32 = 300;

/// A kind of model file that makes a directory without a manifest a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForeignKind {
    /// File that must exist.
    pub(crate) file: &'static str,
    /// Name of the engine that loads it.
    pub(crate) engine: &'static str,
    /// True if files of this kind are converted to the mappable layout first. Otherwise the engine
    /// opens them as they are.
    pub(crate) converted: bool,
}

impl ForeignKind {
    /// Returns the kinds that `engines` open, in the order of the engines.
    pub(crate) fn all(engines: &[Arc<dyn Engine>]) -> Vec<ForeignKind> {
        let kinds = |engine: &Arc<dyn Engine>| {
            let capabilities = engine.capabilities();
            let engine = engine.name();
            let converted = capabilities.parameters == ParameterUse::Bound;
            capabilities.files.into_iter().map(move |file| ForeignKind { file, engine, converted })
        };
        engines.iter().flat_map(kinds).collect()
    }
}

/// Result of the scan of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VersionScan {
    pub(crate) version: u64,
    pub(crate) dir: PathBuf,
    /// Fingerprint of the files that make the version.
    pub(crate) fingerprint: Fingerprint,
    pub(crate) found: VersionContents,
}

/// Contents of a version directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VersionContents {
    /// The mappable layout, complete.
    Published(Arc<Parameters>),
    /// A model file without a manifest that has not changed for some seconds. `bytes` is the length
    /// of all its files.
    Foreign { bytes: u64, kind: ForeignKind },
    /// Perhaps still being written, with the reason.
    Changing(String),
    /// Complete, but not a version, with the reason.
    Unusable(String),
    /// The directory cannot be read, for this reason. Its contents are unknown.
    Unreadable(String),
}

impl VersionContents {
    /// Returns the kind of a version without a manifest.
    pub(crate) fn kind(&self) -> Option<ForeignKind> {
        match self {
            VersionContents::Foreign { kind, .. } => Some(*kind),
            _ => None,
        }
    }
}

/// Pool memory that the parameters of a published version take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters {
    /// Hash and bytes of the parameters that versions can share.
    pub(crate) large: Vec<(blake3::Hash, u64)>,
    /// Bytes of all other parameters.
    pub(crate) packed: u64,
}

impl Parameters {
    fn of(artifact: &Artifact) -> Result<Parameters> {
        let mut parameters = Parameters::default();
        for tensor in &artifact.manifest.tensors {
            if tensor.bytes >= SHARE_MIN {
                parameters.large.push((tensor.hash()?, tensor.bytes));
            } else {
                parameters.packed += tensor.bytes.next_multiple_of(TENSOR_ALIGNMENT);
            }
        }
        Ok(parameters)
    }

    /// Returns the bytes of the pool if nothing is shared.
    pub(crate) fn footprint(&self) -> u64 {
        let large: u64 = self.large.iter().map(|(_, bytes)| SlotPool::footprint(*bytes)).sum();
        large + SlotPool::footprint(self.packed)
    }
}

/// Files that earlier scans of a version found, and the result if it is final.
#[derive(Default)]
pub(crate) struct VersionMemory {
    last: Option<SeenFiles>,
}

/// Files of a version that some scans in a row have found.
struct SeenFiles {
    files: Fingerprint,
    /// Time of the first scan that found these files.
    since: Instant,
    /// Number of scans in a row that found these files.
    scans: u32,
    /// True once the files have stopped changing.
    unchanged: bool,
    /// Number of scans in a row that found other files than the scan before.
    changes: u32,
    /// Result, once it is final for these files.
    answer: Option<(Fingerprint, VersionContents)>,
}

/// Values that the scans of all versions of a model share.
pub(super) struct ScanContext<'a> {
    pub(super) kinds: &'a [ForeignKind],
    pub(super) poll: Duration,
    pub(super) now: Instant,
    pub(super) progress: &'a CallProgress,
}

/// Scans `dir`, the directory of `version`. `None` if it was just removed.
pub(super) fn scan(
    version: u64,
    dir: PathBuf,
    context: &ScanContext<'_>,
    memory: &mut VersionMemory,
) -> Option<VersionScan> {
    let ScanContext { kinds, poll, now, progress } = *context;
    let files = match super::steady(&dir, || files::list(&dir, progress)) {
        Ok(files) => files,
        Err(_) if super::is_missing(&dir) => return None,
        Err(error) => {
            memory.last = None;
            let fingerprint = files::fingerprint(&[], |_| true);
            let found = VersionContents::Unreadable(error.to_string());
            return Some(VersionScan { version, dir, fingerprint, found });
        }
    };
    let seen = memory.record_scan(files::fingerprint(&files, |_| true), now);
    // A little less than the time, because timers are not exact.
    let time = poll.min(UNCHANGED_TIME_MAX).mul_f64(0.9);
    let unchanged = seen.scans >= SCANS_MIN && now.duration_since(seen.since) >= time;
    seen.unchanged = unchanged;
    let (fingerprint, found) = seen.answer.clone().unwrap_or_else(|| {
        let classified = classify(&dir, kinds, &files, unchanged);
        let fingerprint = classified.fingerprint.unwrap_or(seen.files);
        let answer = (fingerprint, classified.contents);
        if classified.is_final {
            seen.answer = Some(answer.clone());
        }
        answer
    });
    Some(VersionScan { version, dir, fingerprint, found })
}

impl VersionMemory {
    /// Returns true if the version may count as complete at the next scan without a change, and
    /// this scan need not wait for a poll.
    pub(super) fn may_be_complete(&self) -> bool {
        let is_awaited = |seen: &SeenFiles| {
            seen.answer.is_none() && !seen.unchanged && seen.changes < EARLY_CHANGES_MAX
        };
        self.last.as_ref().is_some_and(is_awaited)
    }

    /// Returns true if a final result is kept.
    #[cfg(test)]
    pub(crate) fn knows(&self) -> bool {
        self.last.as_ref().is_some_and(|seen| seen.answer.is_some())
    }

    /// Stores the files of a scan. Returns the state since these files were first found.
    fn record_scan(&mut self, files: Fingerprint, now: Instant) -> &mut SeenFiles {
        let seen = match self.last.take() {
            Some(seen) if seen.files == files => {
                SeenFiles { scans: seen.scans.saturating_add(1), ..seen }
            }
            before => {
                let changing = before.filter(|seen| !seen.unchanged);
                let changes = changing.map_or(0, |seen| seen.changes.saturating_add(1));
                SeenFiles { files, since: now, scans: 1, unchanged: false, changes, answer: None }
            }
        };
        self.last.insert(seen)
    }
}

/// Contents of a version directory, and for how long they are known.
struct Classified {
    contents: VersionContents,
    /// Fingerprint of the files that make the version. `None` stands for all files.
    fingerprint: Option<Fingerprint>,
    /// True if the contents stay the same until a file changes.
    is_final: bool,
}

impl Classified {
    /// Creates the result for a version whose fingerprint is that of all its files. `is_final` is
    /// true if the contents stay the same until a file changes.
    fn of_all(contents: VersionContents, is_final: bool) -> Classified {
        Classified { contents, fingerprint: None, is_final }
    }
}

/// Classifies `files`. `unchanged` is true if they have stopped changing.
fn classify(
    dir: &Path,
    kinds: &[ForeignKind],
    files: &[ScannedFile],
    unchanged: bool,
) -> Classified {
    let has = |name: &str| files.iter().any(|file| file.path == Path::new(name));
    let sizes = files.iter().map(|file| (file.path.as_path(), file.bytes));
    let no_version = |reason: String| {
        if unchanged {
            VersionContents::Unusable(reason)
        } else {
            VersionContents::Changing(reason)
        }
    };
    if let Some(pointer) = engine::foreign::pointer_in(dir, sizes) {
        return Classified::of_all(no_version(pointer), unchanged);
    }
    if has(MANIFEST_NAME) {
        return match Artifact::open(dir).and_then(|it| Ok((Parameters::of(&it)?, it))) {
            Ok((parameters, artifact)) => Classified {
                contents: VersionContents::Published(Arc::new(parameters)),
                fingerprint: Some(files::fingerprint(files, |path| is_of(&artifact, path))),
                is_final: true,
            },
            Err(error) => match error.kind() {
                ErrorKind::DataLoss | ErrorKind::InvalidArgument => {
                    Classified::of_all(no_version(error.to_string()), unchanged)
                }
                // Never there, or moved away for a moment.
                ErrorKind::NotFound => Classified::of_all(no_version(error.to_string()), false),
                // The same files may be readable another time.
                _ => Classified::of_all(VersionContents::Unreadable(error.to_string()), false),
            },
        };
    }
    let Some(&kind) = kinds.iter().find(|kind| has(kind.file)) else {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.file).collect();
        let mut reason = format!("holds neither {MANIFEST_NAME} nor {}", names.join(" nor "));
        let paths = files.iter().map(|file| file.path.as_path());
        if let Some(foreign) = engine::foreign::identify_in(dir, paths) {
            reason = format!("{reason}: {foreign}");
        }
        return Classified::of_all(no_version(reason), unchanged);
    };
    let contents = if unchanged {
        VersionContents::Foreign { bytes: files.iter().map(|file| file.bytes).sum(), kind }
    } else {
        VersionContents::Changing("waiting for its files to stop changing".into())
    };
    Classified::of_all(contents, unchanged)
}

fn is_of(artifact: &Artifact, path: &Path) -> bool {
    let manifest = &artifact.manifest;
    path == Path::new(MANIFEST_NAME)
        || path == Path::new(&manifest.graph.name)
        || manifest.weights.as_ref().is_some_and(|weights| path == Path::new(&weights.name))
}
