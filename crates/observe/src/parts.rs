//! Handles of the parts of the server whose state is read.

use std::sync::Arc;

use inference::InferenceStats;
use isolate::Isolation;
use lifecycle::Lifecycle;
use memory::ParameterStore;
use metrics::Metrics;
use schedule::Scheduler;
use search::registry::Registry;

/// Models, workers, their memory and their counters.
#[derive(Clone)]
pub struct ObservedParts {
    /// Versions and their states.
    pub lifecycle: Arc<Lifecycle>,
    /// Queues and workers.
    pub scheduler: Arc<Scheduler>,
    /// Exported numbers.
    pub metrics: Arc<Metrics>,
    /// Latencies and outcomes of each version.
    pub stats: Arc<InferenceStats>,
    /// Parameters of all loaded versions, with the slot pool.
    pub memory: Arc<ParameterStore>,
    /// Worker processes of isolated models.
    pub isolation: Arc<Isolation>,
    /// True if parameters live in the slot pool, false if in malloc.
    pub parameters_in_pool: bool,
}

/// Returns the registry of collections if it is open. It never opens one.
pub type RegistryReader = Arc<dyn Fn() -> Option<Arc<Registry>> + Send + Sync>;

/// Work in progress of the endpoints besides models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointLoad {
    /// Recordings in progress.
    pub recordings: usize,
    /// Images of searches that wait to be decoded.
    pub interactive_images: usize,
    /// Images of bulk work that wait to be decoded.
    pub bulk_images: usize,
}
