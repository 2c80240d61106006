//! The public view of the lifecycle: states, reasons, events and swap reports.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

/// Maximum number of versions that a message names.
const LISTED_MAX: usize = 8;

/// Stage in the life of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LifecycleState {
    /// On disk, and not chosen yet, not complete, or waiting for its turn.
    Discovered,
    /// Memory is reserved.
    Admitted,
    /// Being read and opened.
    Loading,
    /// Being warmed up.
    Warming,
    /// Answers requests.
    Ready,
    /// Takes no new requests and waits for the last one.
    Draining,
    /// The memory of the version is released.
    Released,
    /// Refused or broken. The reason says why.
    Failed,
}

impl LifecycleState {
    /// Returns the lower-case name used in messages, logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            LifecycleState::Discovered => "discovered",
            LifecycleState::Admitted => "admitted",
            LifecycleState::Loading => "loading",
            LifecycleState::Warming => "warming",
            LifecycleState::Ready => "ready",
            LifecycleState::Draining => "draining",
            LifecycleState::Released => "released",
            LifecycleState::Failed => "failed",
        }
    }
}

impl std::fmt::Display for LifecycleState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Reason why a version that replaces an older one is not loaded yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateStatus {
    /// The version waits for its turn.
    Waiting {
        /// End of the version's wait in the window (`--update-window`). `None` if that has ended
        /// and the version waits until fewer other processes load.
        until: Option<SystemTime>,
    },
    /// The version did not load in another process of the fleet, so it is not loaded here.
    HeldBack,
}

/// Public status of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionStatus {
    /// Number of the version: the name of its directory.
    pub version: u64,
    /// Current stage.
    pub state: LifecycleState,
    /// Reason for the failure or the wait.
    pub reason: Option<String>,
    /// A remark that does not stop the version. Its files may have changed since it was loaded, its
    /// generated warm-up may have been refused, or it may be reloading. Its load may have been
    /// stopped and not have ended, its warm-up may take long, or it cannot apply the model's new
    /// settings.
    pub note: Option<String>,
    /// Error of the last load, if that failed and is tried again.
    pub retried: Option<String>,
    /// Wait for its turn in the fleet, or `None` if it does not wait. The reason describes it.
    pub update: Option<UpdateStatus>,
    /// True if it is the candidate of a running rollout. The stable version serves beside it.
    pub candidate: bool,
    /// Bytes of the version's parameters in the pool, or 0 while it is not loaded.
    pub parameter_bytes: u64,
    /// Time at which the version entered the state.
    pub since: SystemTime,
}

/// Public status of one model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelStatus {
    /// Name that requests use.
    pub name: Arc<str>,
    /// Versions, lowest first.
    pub versions: Vec<VersionStatus>,
    /// Problem with the base path, the `millpond.toml` or the policy of the model. Versions that
    /// serve continue.
    pub error: Option<String>,
    /// Reason why the model served nothing before the next version or the next load began. `None`
    /// once a version is ready.
    pub last_failure: Option<String>,
    /// True if an administrator unloaded it. It stays unloaded until an administrator loads it.
    pub unloaded: bool,
}

impl ModelStatus {
    /// Returns the status of a version number.
    pub fn version(&self, version: u64) -> Option<&VersionStatus> {
        self.versions.iter().find(|status| status.version == version)
    }

    /// Returns true if a version is ready.
    pub fn ready(&self) -> bool {
        self.versions.iter().any(|version| version.state == LifecycleState::Ready)
    }

    /// Returns why the model serves nothing although it should. No version may be ready while one
    /// has failed or is tried again, its directory may be unreadable, or its policy may select no
    /// version. While a version is loaded after such a failure, the reason stays. `None` for a
    /// model that serves, is loaded for the first time, or was unloaded by an administrator.
    pub fn failure(&self) -> Option<String> {
        if self.unloaded || self.ready() {
            return None;
        }
        let failed =
            self.versions.iter().rev().find(|version| version.state == LifecycleState::Failed);
        let is_released = |version: &VersionStatus| version.state == LifecycleState::Released;
        let failure = match failed {
            Some(version) => {
                let reason = version.reason.as_deref().unwrap_or("no reason is known");
                Some(format!("version {} failed: {reason}", version.version))
            }
            None if self.versions.iter().all(is_released) => self.error.clone(),
            None => self.versions.iter().rev().find_map(|version| {
                let error = version.retried.as_ref()?;
                Some(format!("version {} failed and is tried again: {error}", version.version))
            }),
        };
        failure.or_else(|| {
            let last = self.last_failure.as_ref()?;
            Some(format!("its next version does not serve yet; the last failure: {last}"))
        })
    }
}

/// Returns the highest of `versions` in a message.
pub(crate) fn version_list(versions: &BTreeSet<u64>) -> String {
    let left_out = versions.len().saturating_sub(LISTED_MAX);
    let listed: Vec<String> = versions.iter().skip(left_out).map(ToString::to_string).collect();
    let listed = listed.join(", ");
    if left_out == 0 { listed } else { format!("{listed} and {left_out} lower ones") }
}

/// Change of a version's state.
#[derive(Clone, Debug, PartialEq)]
pub struct StateChange {
    /// Model that the version belongs to.
    pub model: Arc<str>,
    /// Number of the version: the name of its directory.
    pub version: u64,
    /// Previous state, or `None` for a version that was just discovered.
    pub from: Option<LifecycleState>,
    /// State after the change.
    pub to: LifecycleState,
    /// Reason for the new state.
    pub reason: Option<String>,
    /// True for a version that has failed because it is withdrawn. Its load did not fail.
    pub withdrawn: bool,
    /// Moment of the change, by the system's clock.
    pub at: SystemTime,
}

/// Cost of a load, counted on the loader thread. After an escalation only the second attempt
/// counts, except in `load_seconds`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadCost {
    /// Seconds from the start of the load until the session is open, without conversion.
    pub load_seconds: f64,
    /// Seconds of warm-up.
    pub warm_seconds: f64,
    /// Recorded requests of the warm-up.
    pub warm_records: u64,
    /// Bytes read from disk.
    pub bytes_read: u64,
    /// Bytes shared with versions already loaded.
    pub bytes_shared: u64,
    /// Page faults of the loader thread that needed no disk.
    pub loader_minor_faults: u64,
    /// Processor time of the loader thread, in seconds.
    pub loader_cpu_seconds: f64,
    /// True if the load starved at idle priority and ran again at ordinary priority.
    pub escalated: bool,
}

/// Report of a swap. One version became ready in place of another, whose memory is released.
#[derive(Clone, Debug, PartialEq)]
pub struct SwapReport {
    /// Model whose version was replaced.
    pub model: Arc<str>,
    /// Old version. Equal to `to` after a reload.
    pub from: u64,
    /// New version.
    pub to: u64,
    /// Seconds of loading the new version.
    pub load_seconds: f64,
    /// Seconds of the warm-up.
    pub warm_seconds: f64,
    /// Seconds from the last new request of the old version to the end of its last request.
    pub drain_seconds: f64,
    /// Seconds that the release of the old version took.
    pub unload_seconds: f64,
    /// Bytes read from disk.
    pub bytes_read: u64,
    /// Bytes shared with versions already loaded.
    pub bytes_shared: u64,
    /// Page faults of the loader thread that needed no disk.
    pub loader_minor_faults: u64,
    /// Processor time of the loader thread, in seconds.
    pub loader_cpu_seconds: f64,
}

/// Events that an observer of the lifecycle receives.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LifecycleEvent {
    /// A version changed its state.
    StateChanged(StateChange),
    /// A version was loaded and warmed up.
    Loaded {
        /// Name of the model.
        model: Arc<str>,
        /// Version number.
        version: u64,
        /// Cost of the load.
        cost: LoadCost,
    },
    /// A swap is complete.
    Swapped(SwapReport),
    /// The last user of a retired version needs longer than [`crate::DRAIN_LONG`]. The wait
    /// continues.
    DrainSlow {
        /// Name of the model.
        model: Arc<str>,
        /// Version number.
        version: u64,
    },
    /// A load that was stopped has not ended after [`crate::LOAD_STOP_LONG`]. The wait continues.
    LoadStopSlow {
        /// Name of the model.
        model: Arc<str>,
        /// Version number.
        version: u64,
    },
    /// A load was stopped, or took too long, and did not end. Its thread was abandoned.
    LoadAbandoned {
        /// Name of the model.
        model: Arc<str>,
        /// Version number.
        version: u64,
    },
    /// A load failed, and is tried again. The version is discovered again afterwards.
    LoadRetried {
        /// Name of the model.
        model: Arc<str>,
        /// Version number.
        version: u64,
        /// Reason of the failure.
        reason: String,
    },
    /// A ready version took over changed settings without a load.
    SettingsApplied {
        /// Name of the model.
        model: Arc<str>,
        /// Version number.
        version: u64,
    },
    /// A ready version could not be loaded again. It serves as it was.
    ReloadFailed {
        /// Name of the model.
        model: Arc<str>,
        /// Version number.
        version: u64,
        /// Reason of the failure.
        reason: String,
    },
    /// A version is not loaded, because it did not load in another process of the fleet.
    UpdateHeldBack {
        /// Name of the model.
        model: Arc<str>,
        /// Version number.
        version: u64,
        /// The process and its error.
        reason: String,
    },
    /// A rollout of a new version began.
    RolloutStarted {
        /// Name of the model.
        model: Arc<str>,
        /// The new version.
        candidate: u64,
    },
    /// A rollout ended, or the stable version was withdrawn by hand.
    RolloutEnded {
        /// Name of the model.
        model: Arc<str>,
        /// True if the new version is stable now.
        promoted: bool,
        /// Kind of the reason: the limit that was reached, "signature", "state", "hand",
        /// "unloaded", or the kind of a promotion.
        reason: &'static str,
    },
    /// A directory of models has more models than are served, or their number has changed.
    ModelsIgnored {
        /// The directory.
        root: PathBuf,
        /// Number of models that are not served: the last ones by name.
        count: usize,
        /// Maximum models of a directory.
        models_max: usize,
    },
    /// A directory of models was scanned completely.
    RootScanned {
        /// The directory.
        root: PathBuf,
        /// Time of the scan, or `None` once the directory is not configured any more.
        at: Option<SystemTime>,
    },
    /// A store that a directory mirrors cannot be listed.
    StoreUnlisted {
        /// URL of the store.
        store: Arc<str>,
        /// Error of the listing.
        reason: String,
    },
    /// A version or a file of a model cannot be copied from its store.
    CopyFailed {
        /// Name of the model.
        model: Arc<str>,
        /// The version and its error.
        reason: String,
    },
    /// A model has more versions than are scanned, or their number has changed.
    VersionsIgnored {
        /// Name of the model.
        model: Arc<str>,
        /// Number of versions that are ignored: the lowest ones.
        count: usize,
        /// Maximum versions of a model.
        versions_max: usize,
    },
    /// The directory of a model was removed, and all its versions are released.
    Forgotten {
        /// Name of the model.
        model: Arc<str>,
    },
    /// The status of models may have changed, and the catalogue shows it.
    Reported,
}

/// Receiver of events, called on the `lifecycle` thread.
pub trait Observer: Send + Sync {
    /// Handles an event. Must return quickly.
    fn event(&self, event: &LifecycleEvent);
}
