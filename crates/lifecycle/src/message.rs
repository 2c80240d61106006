//! Messages between the threads of the lifecycle.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use base::{Error, Result, VersionId};
use engine::{ExampleSettings, ScheduleOptions, Servable, SessionOptions};

use crate::admission::Releasing;
use crate::convert::Converted;
use crate::golden::GoldenFile;
use crate::source::{DirectoryScan, Fingerprint, ForeignKind};
use crate::status::LoadCost;
use crate::{ConfigSet, LifecycleState, RolloutStart, Transition, WarmupConfig};

/// Maximum messages in the channel to the `lifecycle` thread. Beyond it, senders that must not wait
/// are refused.
pub(crate) const MESSAGES_MAX: usize = 1024;
/// Maximum number of retired versions in the channel to the unload threads. The `lifecycle` thread
/// keeps others.
pub(crate) const RETIRED_MAX: usize = 256;

/// Origin of a change of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigurationOrigin {
    /// A client requested the change. Its new versions do not wait for a turn in the fleet.
    Client,
    /// A source that all processes of a fleet may follow, such as a file.
    Source,
}

/// Versions that an administrator's request loads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadSpec {
    /// True to load ready versions again, from the files as they are now.
    pub reload: bool,
    /// Version to load and to keep, besides the policy's choice, until it is unloaded or its
    /// directory is removed. `None`: the versions that the policy chooses.
    pub version: Option<u64>,
}

/// State of the copies from which models are served, if their directories mirror other places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceReport {
    /// True once every directory has its first content.
    pub complete: bool,
    /// Problems by name of the model. They become part of its status.
    pub errors: BTreeMap<Arc<str>, String>,
    /// Reasons why versions are not copied yet although nothing failed, by name of the model.
    pub unfinished: BTreeMap<Arc<str>, String>,
    /// Errors of stores that cannot be opened or listed, by URL. `errors` has them for the models
    /// of the store.
    pub unlisted: BTreeMap<Arc<str>, String>,
}

impl SourceReport {
    /// Returns why a version or a file of `model` cannot be copied. `None` if its only problem is
    /// that its store cannot be opened or listed.
    pub(crate) fn copy_error(&self, model: &str) -> Option<&str> {
        let error = self.errors.get(model)?;
        let is_of_store = self.unlisted.values().any(|unlisted| unlisted == error);
        (!is_of_store).then_some(error.as_str())
    }
}

/// Request of an administrator about a rollout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RolloutAction {
    /// Starts a rollout, or changes the share of the running one.
    Start(RolloutStart),
    /// Makes the candidate stable. A given version must be the candidate.
    Promote(Option<u64>),
    /// Withdraws the candidate. Without a running rollout, withdraws the stable version if another
    /// one can take its place. A given version must be the one to withdraw.
    RollBack(Option<u64>),
}

/// Callback for the end of an administrator's request. Runs on the `lifecycle` thread, or on the
/// caller's thread if the request cannot be queued.
pub type AdminCallback = Box<dyn FnOnce(Result<()>) + Send>;

/// Messages to the `lifecycle` thread.
pub(crate) enum Message {
    /// Result of a scan of the directories.
    Scanned(DirectoryScan),
    Stage {
        id: VersionId,
        state: LifecycleState,
        reason: Option<String>,
    },
    LoadEnded {
        id: VersionId,
        outcome: LoadOutcome,
    },
    /// A load was stopped, or took too long, and has not ended. Its thread was abandoned.
    LoadAbandoned {
        id: VersionId,
    },
    /// A retired version is in use for longer than [`crate::DRAIN_LONG`].
    DrainSlow {
        id: VersionId,
    },
    /// The memory of a retired version is released.
    Released {
        id: VersionId,
        drain: Duration,
        unload: Duration,
    },
    /// The pool is faulted in up to `bytes`, or as far as possible.
    Prefaulted {
        bytes: u64,
    },
    /// Request of an administrator to load a model.
    Load {
        name: String,
        spec: LoadSpec,
        done: AdminCallback,
    },
    /// Request of an administrator to unload a model.
    Unload {
        name: String,
        done: AdminCallback,
    },
    /// Request of an administrator about a rollout.
    Rollout {
        name: String,
        action: RolloutAction,
        done: AdminCallback,
    },
    /// Replaces the models and roots.
    Configure {
        set: Arc<ConfigSet>,
        origin: ConfigurationOrigin,
        done: AdminCallback,
    },
    Sources(SourceReport),
    Stop,
}

/// A converted version, and the files that it was made of.
#[derive(Clone)]
pub(crate) struct ConvertedVersion {
    /// Fingerprint of the files.
    pub(crate) files: Fingerprint,
    pub(crate) converted: Converted,
}

/// Work for a load thread.
#[derive(Clone)]
pub(crate) struct LoadJob {
    pub(crate) id: VersionId,
    pub(crate) dir: PathBuf,
    /// Kind of a version without a manifest, or `None` if there is a manifest.
    pub(crate) kind: Option<ForeignKind>,
    pub(crate) fingerprint: Fingerprint,
    /// Conversion of an earlier try.
    pub(crate) conversion: Option<ConvertedVersion>,
    /// True if the job ends after the conversion.
    pub(crate) converts_only: bool,
    pub(crate) session: SessionOptions,
    pub(crate) schedule: ScheduleOptions,
    pub(crate) warmup: WarmupConfig,
    pub(crate) golden: Option<GoldenFile>,
    pub(crate) recogniser: Option<Arc<str>>,
    pub(crate) has_section: bool,
    pub(crate) request_log_rate: Option<f64>,
    pub(crate) examples: Option<Arc<ExampleSettings>>,
    pub(crate) transition: Transition,
    /// Request to end the load early.
    pub(crate) stop: Arc<AtomicBool>,
}

impl LoadJob {
    /// Returns the directory with the manifest: the conversion's directory, if there is one.
    pub(crate) fn artifact_dir(&self) -> &Path {
        self.conversion.as_ref().map_or(&self.dir, |conversion| conversion.converted.dir())
    }
}

/// Outcome of a load job.
pub(crate) enum LoadOutcome {
    Ready(Box<LoadedVersion>),
    /// The pool has no room yet. The next try reuses the conversion.
    Deferred {
        reason: String,
        conversion: Option<ConvertedVersion>,
    },
    /// The version was converted, and the job requested no more.
    Converted(ConvertedVersion),
    Failed {
        error: Error,
        fingerprint: Fingerprint,
    },
}

/// A version that was loaded and warmed up.
pub(crate) struct LoadedVersion {
    pub(crate) servable: Arc<Servable>,
    pub(crate) converted: Option<Converted>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) cost: LoadCost,
    pub(crate) note: Option<String>,
}

/// Work for an unload thread.
pub(crate) struct Retired {
    pub(crate) id: VersionId,
    pub(crate) servable: Arc<Servable>,
    /// `None` if the session continues to serve with other settings.
    pub(crate) release: Option<Release>,
    pub(crate) since: Instant,
}

/// Resources that are released together with a session.
pub(crate) struct Release {
    pub(crate) converted: Option<Converted>,
    pub(crate) releasing: Releasing,
}
