//! The life of a version: found on disk, chosen by policy, admitted, loaded, warmed up, published,
//! drained, released.
//!
//! `source` scans the directories and `source-read` reads them. `lifecycle` decides. `load-N` load
//! and warm up, and `unload-N` wait for the last user and release. `prefault` faults the pool in.
//! `load-N` and `prefault` run their work on threads of idle priority (`load-N-idle`,
//! `prefault-idle`), and on threads of ordinary priority (`load-N-hi`, `prefault-hi`) if it
//! starves. When the lifecycle stops, `unload-stop` takes the place of `unload-N`. A thread that
//! does not return from an engine or a file system is abandoned, and a new one takes its place.
//! One bounded channel leads to `lifecycle`, which owns all state and never waits for another
//! thread. It sends the other threads their work, and they report the outcome. Requests use none of
//! these threads. They read the [`Catalog`] by two atomic loads.
//!
//! The next step is a pure function (`policy`) of the versions on disk and in memory. A version
//! that serves continues until its successor is ready, unless the model is configured to free
//! memory first.
//!
//! # Modules
//! * Handle and messages: `lifecycle`, `message`, `config`, `status`.
//! * Reading directories: `source`, `source_thread`, `model_file`, `ignored_settings`,
//!   `changed_settings`.
//! * Deciding: `policy` is pure, `manager` owns the state, `updates` takes turns in a fleet.
//!   `millpond-rollout` splits requests between versions and counts their outcomes.
//! * Loading: `loader`, `admission`, `convert`, `threads`, `warmup`, `golden`, `activity`;
//!   `unfinished` counts loads that never return.
//! * Serving and releasing: `catalog` is read by requests, `unloader` releases, `settled` is set
//!   after the first load.
//! * State across restarts: `kept_state`, `withdrawals`.

mod activity;
mod admission;
mod catalog;
mod changed_settings;
mod config;
mod convert;
mod golden;
mod ignored_settings;
mod kept_state;
mod lifecycle;
mod loader;
mod manager;
mod message;
mod model_file;
mod policy;
mod settled;
mod source;
mod source_thread;
mod status;
mod threads;
mod unfinished;
mod unloader;
mod updates;
mod warmup;
mod withdrawals;

use std::time::Duration;

pub use activity::{ActivityMark, LoadActivity};
pub use catalog::{Catalog, Route};
pub use config::{
    ConfigSet, Converter, LOAD_TIMEOUT_DEFAULT, LifecycleConfig, ModelConfig, ModelRoot,
    ParameterPlacement, Transition, VersionPolicy, WarmupConfig,
};
pub use golden::GoldenCase;
pub use lifecycle::{Lifecycle, THREADS_MAX};
pub use message::{AdminCallback, LoadSpec, RolloutAction, SourceReport};
pub use model_file::{check_model_settings, version_policy};
pub use rollout::{
    AnsweredRun, ArmFigures, CandidatePermit, LimitText, PendingRequest, Promotion, RequestKey,
    RollbackFile, RolloutDefaults, RolloutFile, RolloutHistory, RolloutMeasures, RolloutPart,
    RolloutReport, RolloutStart, RolloutState,
};
pub use status::{
    LifecycleEvent, LifecycleState, LoadCost, ModelStatus, Observer, StateChange, SwapReport,
    UpdateStatus, VersionStatus,
};
pub use updates::{TurnState, UpdateConfig, UpdateEnd, UpdateTurns};
pub use warmup::{RecordedRequest, WarmupCall, WarmupSet, WarmupSource};

/// Exposes parsers to the fuzz targets. Not part of the API.
#[doc(hidden)]
pub mod fuzzing {
    /// Parses the text of a `millpond.toml` in a model's directory, and drops the result.
    ///
    /// # Errors
    /// The message of the parser, in one line.
    pub fn model_file(text: &str) -> Result<(), String> {
        crate::model_file::ModelFile::parse(text).map(drop)
    }
}

/// Time after which a retired version that is still in use is reported. The wait continues.
pub const DRAIN_LONG: Duration = Duration::from_secs(30);
/// Time after which a load that was stopped and has not ended is reported. The wait continues.
pub const LOAD_STOP_LONG: Duration = Duration::from_secs(30);
/// Time after which a warm-up that has not ended is reported. The load continues.
pub const WARMUP_LONG: Duration = Duration::from_secs(60);
/// Longest wait of a shutdown for running requests and loads.
pub const SHUTDOWN_WAIT_MAX: Duration = Duration::from_secs(10);
