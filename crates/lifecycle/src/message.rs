//! What the threads tell each other.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use base::{Error, Result, VersionId};
use engine::{ScheduleOptions, Servable, SessionOptions};

use crate::admission::Releasing;
use crate::convert::Converted;
use crate::source::{DirectoryScan, Fingerprint, ForeignKind};
use crate::status::LoadCost;
use crate::{LifecycleState, Transition, WarmupConfig};

/// Messages that may wait for the `lifecycle` thread. Senders that may not wait are refused beyond
/// it.
pub(crate) const MESSAGES_MAX: usize = 1024;
/// Retired versions that may wait for an unload thread; more are kept by the `lifecycle` thread.
pub(crate) const RETIRED_MAX: usize = 256;

/// Versions that an administrator's request loads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadSpec {
    /// Loads ready versions again, from the files as they are now.
    pub reload: bool,
    /// Version to load and to keep beside those that the policy chooses, until it is unloaded or
    /// its directory is removed. `None`: the versions that the policy chooses.
    pub version: Option<u64>,
}

/// Callback for the end of an administrator's request. Runs on the `lifecycle` thread, or on the
/// caller's thread if the request cannot be queued.
pub type AdminCallback = Box<dyn FnOnce(Result<()>) + Send>;

/// To the `lifecycle` thread.
pub(crate) enum Message {
    /// The directories were looked at.
    Scanned(DirectoryScan),
    /// A load reached another state.
    Stage { id: VersionId, state: LifecycleState, reason: Option<String> },
    /// A load ended.
    LoadEnded { id: VersionId, outcome: Outcome },
    /// A retired version takes long to drain.
    DrainSlow { id: VersionId },
    /// A retired version's memory has been given back.
    Released { id: VersionId, drain: Duration, unload: Duration },
    /// The pool was backed as far as asked, or as far as it goes.
    Prefaulted { bytes: u64 },
    /// An administrator wants a model loaded.
    Load { name: String, spec: LoadSpec, done: AdminCallback },
    /// An administrator wants a model unloaded.
    Unload { name: String, done: AdminCallback },
    /// Everything is to end.
    Stop,
}

/// To a load thread.
#[derive(Clone)]
pub(crate) struct LoadJob {
    pub(crate) id: VersionId,
    pub(crate) dir: PathBuf,
    /// What the directory without a manifest is a version of; `None` for one with a manifest.
    pub(crate) kind: Option<ForeignKind>,
    pub(crate) fingerprint: Fingerprint,
    /// What an earlier try converted the files of that fingerprint to.
    pub(crate) converted: Option<(Fingerprint, Converted)>,
    /// Whether it ends once they are converted.
    pub(crate) converts_only: bool,
    pub(crate) session: SessionOptions,
    pub(crate) schedule: ScheduleOptions,
    pub(crate) warmup: WarmupConfig,
    pub(crate) recogniser: Option<Arc<str>>,
    pub(crate) transition: Transition,
    /// Set to end the load early.
    pub(crate) stop: Arc<AtomicBool>,
}

/// How a load ended.
pub(crate) enum Outcome {
    Ready(Box<Fresh>),
    /// There is no room yet; what was converted is kept for the next try.
    Deferred {
        reason: String,
        converted: Option<(Fingerprint, Converted)>,
    },
    /// It was to be converted, and no more.
    Converted(Fingerprint, Converted),
    Failed {
        error: Error,
        fingerprint: Fingerprint,
    },
}

/// A version that has just become able to answer.
pub(crate) struct Fresh {
    pub(crate) servable: Arc<Servable>,
    pub(crate) converted: Option<Converted>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) cost: LoadCost,
    pub(crate) note: Option<String>,
}

/// To an unload thread.
pub(crate) struct Retired {
    pub(crate) id: VersionId,
    pub(crate) servable: Arc<Servable>,
    /// `None` where its session serves on under other settings.
    pub(crate) release: Option<Release>,
    pub(crate) since: Instant,
}

/// What goes with a session.
pub(crate) struct Release {
    pub(crate) converted: Option<Converted>,
    pub(crate) releasing: Releasing,
}
