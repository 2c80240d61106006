//! What can be seen from outside: states, reasons, events and swap reports.

use std::sync::Arc;
use std::time::SystemTime;

/// Where a version is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LifecycleState {
    /// Seen on disk; not (or not yet) chosen, not complete, or waiting for its turn.
    Discovered,
    /// Its bytes are reserved.
    Admitted,
    /// Being read and opened.
    Loading,
    /// Being exercised.
    Warming,
    /// Answers requests.
    Ready,
    /// Takes no new requests, waits for the last one.
    Draining,
    /// Its memory has been given back.
    Released,
    /// Refused or broken; the reason says why.
    Failed,
}

impl LifecycleState {
    /// The lower-case name used in messages, logs and metrics.
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

/// One version, as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionStatus {
    /// Its number.
    pub version: u64,
    /// Where it is in its life.
    pub state: LifecycleState,
    /// Why it is there, where that needs saying: why it failed, what it waits for.
    pub reason: Option<String>,
    /// Something worth knowing that does not stop it: its files changed since it was loaded, its
    /// generated warm-up was refused, it is being reloaded, it cannot take the model's new settings
    /// over.
    pub note: Option<String>,
    /// Bytes of its parameters in regions of ours; 0 while it is not loaded.
    pub parameter_bytes: u64,
    /// When it entered the state.
    pub since: SystemTime,
}

/// One model, as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelStatus {
    /// Its name.
    pub name: Arc<str>,
    /// Its versions, lowest first.
    pub versions: Vec<VersionStatus>,
    /// What is wrong with its base path or its `millpond.toml`; what serves goes on serving.
    pub error: Option<String>,
    /// An administrator unloaded it; it stays down until an administrator loads it.
    pub unloaded: bool,
}

impl ModelStatus {
    /// The version numbered `version`.
    pub fn version(&self, version: u64) -> Option<&VersionStatus> {
        self.versions.iter().find(|status| status.version == version)
    }

    /// Whether any version is ready.
    pub fn ready(&self) -> bool {
        self.versions.iter().any(|version| version.state == LifecycleState::Ready)
    }

    /// Returns why the model serves nothing although it should: no version is ready and one has
    /// failed, or its directory cannot be read. `None` for a model that serves, is being loaded, or
    /// was unloaded by an administrator.
    pub fn failure(&self) -> Option<String> {
        if self.unloaded || self.ready() {
            return None;
        }
        let failed =
            self.versions.iter().rev().find(|version| version.state == LifecycleState::Failed);
        match failed {
            Some(version) => {
                let reason = version.reason.as_deref().unwrap_or("no reason is known");
                Some(format!("version {} failed: {reason}", version.version))
            }
            None if self.versions.is_empty() => self.error.clone(),
            None => None,
        }
    }
}

/// A version changed its state.
#[derive(Clone, Debug, PartialEq)]
pub struct StateChange {
    /// The model.
    pub model: Arc<str>,
    /// The version.
    pub version: u64,
    /// The state it left; `None` when it has just been discovered.
    pub from: Option<LifecycleState>,
    /// The state it entered.
    pub to: LifecycleState,
    /// Why.
    pub reason: Option<String>,
    /// When.
    pub at: SystemTime,
}

/// What a load cost, counted on the loader thread; of one that was begun anew, since then, but for
/// `load_seconds`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadCost {
    /// From the start of the load to the end of opening the session, in seconds; conversion not
    /// included.
    pub load_seconds: f64,
    /// Warm-up, in seconds.
    pub warm_seconds: f64,
    /// Bytes read from disk.
    pub bytes_read: u64,
    /// Bytes shared with versions already loaded.
    pub bytes_shared: u64,
    /// Page faults of the loader thread that needed no disk.
    pub loader_minor_faults: u64,
    /// Processor time of the loader thread, in seconds.
    pub loader_cpu_seconds: f64,
    /// Whether it went on at ordinary priority, because at idle priority it got next to no
    /// processor time.
    pub escalated: bool,
}

/// One version became ready where another served before, and the other's memory has been given
/// back.
#[derive(Clone, Debug, PartialEq)]
pub struct SwapReport {
    /// The model.
    pub model: Arc<str>,
    /// The version that went. Equal to `to` after a reload.
    pub from: u64,
    /// The version that came.
    pub to: u64,
    /// Seconds of loading.
    pub load_seconds: f64,
    /// Seconds of warm-up.
    pub warm_seconds: f64,
    /// Seconds from the last new request of the old version to the end of its last request.
    pub drain_seconds: f64,
    /// Seconds of releasing the old version.
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

/// Something happened.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LifecycleEvent {
    /// A version changed its state.
    StateChanged(StateChange),
    /// A version was loaded and warmed.
    Loaded {
        /// The model.
        model: Arc<str>,
        /// The version.
        version: u64,
        /// What it cost.
        cost: LoadCost,
    },
    /// A swap is complete.
    Swapped(SwapReport),
    /// The last holder of a retired version took longer than [`crate::DRAIN_LONG`] to let go; it is
    /// waited for.
    DrainSlow {
        /// The model.
        model: Arc<str>,
        /// The version.
        version: u64,
    },
    /// A ready version has taken over changed settings without being loaded again.
    Settled {
        /// The model.
        model: Arc<str>,
        /// The version.
        version: u64,
    },
    /// A model's directory has gone and everything of it is released.
    Forgotten {
        /// The model.
        model: Arc<str>,
    },
}

/// Is told what happens, on the `lifecycle` thread. Must return quickly.
pub trait Observer: Send + Sync {
    /// Something happened.
    fn event(&self, event: &LifecycleEvent);
}

/// An observer that does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct SilentObserver;

impl Observer for SilentObserver {
    fn event(&self, _event: &LifecycleEvent) {}
}
