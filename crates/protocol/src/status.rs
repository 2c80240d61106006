//! The states and statistics of versions that all protocols show, before each writes them in its
//! own form.

use std::sync::Arc;
use std::time::Duration;

use base::VersionId;

use crate::tensorflow::serving::model_version_status::State;

/// The state of a version by TensorFlow Serving's names, in the order of its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TfsState {
    /// Found, and not loading yet.
    Start,
    /// Loading or warming up.
    Loading,
    /// Serving.
    Available,
    /// Unloading: accepts no new requests.
    Unloading,
    /// Unloaded or failed.
    End,
}

impl TfsState {
    /// Returns the state in messages.
    pub fn message(self) -> State {
        match self {
            TfsState::Start => State::Start,
            TfsState::Loading => State::Loading,
            TfsState::Available => State::Available,
            TfsState::Unloading => State::Unloading,
            TfsState::End => State::End,
        }
    }
}

/// The state of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionState {
    /// Number of the version: the name of its directory.
    pub version: u64,
    /// State in the words of TensorFlow Serving.
    pub state: TfsState,
    /// Reason of a failure.
    pub error: Option<String>,
}

/// An entry of the repository index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Name of the model.
    pub name: Arc<str>,
    /// Number of the version, or `None` for a model without versions.
    pub version: Option<u64>,
    /// "READY", "LOADING", "UNLOADING" or "UNAVAILABLE".
    pub state: &'static str,
    /// Reason of the state. May be empty.
    pub reason: String,
}

/// A number of events and their total duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Number of events.
    pub count: u64,
    /// Total duration in nanoseconds.
    pub nanos: u64,
}

/// Counters of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatisticsEntry {
    /// Version that the numbers are about.
    pub id: VersionId,
    /// Time of the last response in milliseconds since the epoch, or 0 before the first.
    pub last_ms: u64,
    /// Requests with a response.
    pub success: Total,
    /// Failed requests.
    pub fail: Total,
    /// Waits for a worker.
    pub queue: Total,
    /// Computing. Each request of a merged run counts the whole run.
    pub compute: Total,
    /// Items of the requests with a response.
    pub items: u64,
    /// Runs of these requests.
    pub executions: u64,
    /// Runs by size, smallest first.
    pub batches: Vec<BatchTotal>,
}

/// Counters of one version's runs of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchTotal {
    /// Items of each run.
    pub size: u64,
    /// Number and duration of the runs.
    pub compute: Total,
}

/// Batching of a model's requests, as its configuration shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batching {
    /// Maximum items of a merged batch, or 0 if requests are not joined along axis 0.
    pub batch_max: u32,
    /// Sizes that do not linger.
    pub preferred: Vec<u32>,
    /// Longest wait of the oldest request for others.
    pub delay: Duration,
    /// Limits of a request without a level.
    pub limits: QueueLimits,
    /// Limits of each priority level, level 1 first. Empty if there is one level.
    pub levels: Vec<QueueLimits>,
    /// Level of a request without one.
    pub default_level: u32,
}

/// Limits of the requests that wait in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLimits {
    /// Maximum waiting requests, or 0 for the server's limit.
    pub queue_max: u32,
    /// Deadline of a request that states none. Zero stands for the deadline of the server.
    pub timeout: Duration,
}
