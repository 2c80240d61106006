//! The states and statistics of versions that all protocols show, before each writes them in its own form.

use std::sync::Arc;
use std::time::Duration;

use base::VersionId;

use crate::tensorflow::serving::model_version_status::State;

/// The state of a version in the words of TensorFlow Serving, which the numbers on its wire are in step with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TfsState {
    /// Found, not yet being loaded.
    Start,
    /// Being loaded or warmed up.
    Loading,
    /// Answers.
    Available,
    /// Answers nothing new; on its way out.
    Unloading,
    /// Gone, or failed.
    End,
}

impl TfsState {
    /// The state of the message.
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
    /// Its number.
    pub version: u64,
    /// Its state.
    pub state: TfsState,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// One line of the repository index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The model.
    pub name: Arc<str>,
    /// The version; none for a model without any.
    pub version: Option<u64>,
    /// "READY", "LOADING", "UNLOADING" or "UNAVAILABLE".
    pub state: &'static str,
    /// Why it is in this state; may be empty.
    pub reason: String,
}

/// How often something happened and how long it took in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// How often.
    pub count: u64,
    /// Nanoseconds in all.
    pub nanos: u64,
}

/// What is counted of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatisticsEntry {
    /// Which version.
    pub id: VersionId,
    /// Milliseconds since the epoch of the last answer; 0 before the first.
    pub last_ms: u64,
    /// Answered.
    pub success: Total,
    /// Not answered, for any reason.
    pub fail: Total,
    /// Waited for a worker.
    pub queue: Total,
    /// Was computed; of a merged run each request has the whole time.
    pub compute: Total,
    /// Items of the answered requests.
    pub items: u64,
    /// Runs that answered them.
    pub executions: u64,
    /// The runs by size, smallest first.
    pub batches: Vec<BatchTotal>,
}

/// What is counted of one version's runs of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchTotal {
    /// Items of each run.
    pub size: u64,
    /// The runs.
    pub compute: Total,
}

/// How a model's requests are merged, as its configuration shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batching {
    /// Items of a merged batch at most; 0 where requests are not joined along axis 0.
    pub batch_max: u32,
    /// Sizes that do not linger.
    pub preferred: Vec<u32>,
    /// How long the oldest request waits for company.
    pub delay: Duration,
    /// Limits of a request without a level.
    pub limits: QueueLimits,
    /// Limits of each priority level, level 1 first; empty where there is only one.
    pub levels: Vec<QueueLimits>,
    /// Level of a request that names none.
    pub default_level: u32,
}

/// Limits of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLimits {
    /// Requests that may wait; 0 is the server's bound.
    pub queue_max: u32,
    /// Deadline of a request without one of its own; zero is the server's.
    pub timeout: Duration,
}
