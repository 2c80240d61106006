//! Figures of the scheduler, for metrics and the live page.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::ScheduleMode;

/// Bounds of [`ModelSnapshot::batch_sizes`]. The last bucket holds everything above 2048.
pub const BATCH_SIZE_BOUNDS: [usize; 12] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048];
/// Maximum number of shape classes of a model in a snapshot.
pub const CLASSES_SHOWN_MAX: usize = 16;

/// Figures of the scheduler. The models are read one after another. Counts are since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SchedulerSnapshot {
    /// Inference threads.
    pub workers: usize,
    /// Inference threads that run a model.
    pub busy: usize,
    /// Waiting requests.
    pub queued: usize,
    /// Maximum number of waiting requests of one model.
    pub queue_max: usize,
    /// Models that have had a request and still serve.
    pub models: Vec<ModelSnapshot>,
}

/// Figures of one model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSnapshot {
    /// Name of the model.
    pub model: Arc<str>,
    /// Mode that decides if its requests are merged.
    pub mode: ScheduleMode,
    /// Waiting requests.
    pub queued: usize,
    /// Waiting requests by priority level, level 1 first.
    pub queued_by_priority: Vec<usize>,
    /// Runs in progress.
    pub running: usize,
    /// Requests answered by a run.
    pub requests: u64,
    /// Number of runs.
    pub batches: u64,
    /// Items of all runs, without added ones.
    pub items: u64,
    /// Copies of items that were added up to an allowed batch size.
    pub added_items: u64,
    /// Runs by batch size: up to and including each of [`BATCH_SIZE_BOUNDS`], then all larger.
    pub batch_sizes: [u64; BATCH_SIZE_BOUNDS.len() + 1],
    /// Runs by batch size with added items, in the buckets of `batch_sizes`.
    pub run_sizes: [u64; BATCH_SIZE_BOUNDS.len() + 1],
    /// Runs of a model with allowed batch sizes, by batch size with added items.
    pub filled: BTreeMap<usize, FilledRuns>,
    /// Real elements of padded inputs.
    pub real_elements: u64,
    /// Padding elements of padded inputs.
    pub padding_elements: u64,
    /// Requests refused because a queue was full.
    pub refused: u64,
    /// Requests whose deadline passed in the queue.
    pub expired: u64,
    /// Requests whose client disconnected before they ran.
    pub cancelled: u64,
    /// Merged runs that failed and were run again one request at a time.
    pub reruns: u64,
    /// Versions, by signature, whose requests are not merged or padded any more, because runs have
    /// shown that this changes answers.
    pub unjoined_versions: u64,
    /// Measurements of the most frequent shapes, at most [`CLASSES_SHOWN_MAX`].
    pub classes: Vec<ClassSnapshot>,
}

/// Runs that were filled up to one allowed batch size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FilledRuns {
    /// Items that were added to all these runs.
    pub added_items: u64,
    /// Runs by added items, in the buckets of [`ModelSnapshot::batch_sizes`].
    pub runs: [u64; BATCH_SIZE_BOUNDS.len() + 1],
}

/// Measurements of requests of one shape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassSnapshot {
    /// Shapes without axis 0, for people: `x[3,48,320]`.
    pub shape: String,
    /// Number of measured runs.
    pub runs: u64,
    /// Median microseconds per item by batch size, smallest measured size first.
    pub item_us: Vec<(usize, f64)>,
    /// Batch size that pays best so far.
    pub best: usize,
}
