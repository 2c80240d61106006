//! The life of a version: found on disk, chosen by policy, admitted, loaded, warmed, published,
//! drained, released.
//!
//! Threads: `source` looks at the directories, `lifecycle` decides, `load-N` load and warm,
//! `unload-N` wait for the last user and release, `backing` faults the pool in; `load-N` and
//! `backing` have that done by threads of idle priority (`load-N-idle`, `backing-idle`) while those
//! get on. One bounded channel leads to `lifecycle`, which owns all state and never waits for
//! another thread; the others are told what to do and report what became of it. Requests meet none
//! of them: they read the [`Catalog`], two atomic loads.
//!
//! What to do next is a pure function (`policy`) of what is on disk and what is loaded. Whatever
//! goes wrong on the way to ready, the version that serves goes on serving.

mod admission;
mod catalog;
mod config;
mod convert;
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
mod unloader;
mod warmup;

use std::time::Duration;

pub use catalog::Catalog;
pub use config::{
    Converter, LifecycleConfig, ModelConfig, ModelRoot, ParameterPlacement, Transition,
    VersionPolicy, WarmupConfig,
};
pub use lifecycle::{Lifecycle, POLL_MIN, THREADS_MAX};
pub use message::{AdminCallback, LoadSpec};
pub use status::{
    LifecycleEvent, LifecycleState, LoadCost, ModelStatus, Observer, SilentObserver, StateChange,
    SwapReport, VersionStatus,
};
pub use warmup::{
    NoRecordedRequests, WARMUP_REQUESTS_MAX, WARMUP_RUNS_MIN, WARMUP_TIME_MAX, WarmupSet,
    WarmupSource,
};

/// Exposes parsers to the fuzz targets. Not part of the API.
#[doc(hidden)]
pub mod fuzzing {
    /// Parses the text of a `millpond.toml` in a model's directory, and drops what it says.
    ///
    /// # Errors
    /// Says in one line what is wrong.
    pub fn model_file(text: &str) -> Result<(), String> {
        crate::model_file::ModelFile::parse(text).map(drop)
    }
}

/// A retired version that is still in use after this long is reported, and waited for further.
pub const DRAIN_LONG: Duration = Duration::from_secs(30);
/// Shutdown waits so long for requests that still run.
pub const SHUTDOWN_WAIT_MAX: Duration = Duration::from_secs(10);
