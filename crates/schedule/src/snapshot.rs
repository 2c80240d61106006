//! What the scheduler has done and is doing: read by the exporter and the live page.

use std::sync::Arc;

use engine::ScheduleMode;

/// Bounds of [`ModelSnapshot::batch_sizes`]: the last bucket holds everything above 2048.
pub const BATCH_SIZE_BOUNDS: [usize; 12] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048];
/// Shape classes that a snapshot shows of a model.
pub const CLASSES_SHOWN_MAX: usize = 16;

/// The scheduler at one moment. Counts are since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SchedulerSnapshot {
    /// Inference threads.
    pub workers: usize,
    /// Of these, how many run a model.
    pub busy: usize,
    /// Requests waiting.
    pub queued: usize,
    /// How many may wait.
    pub queue_max: usize,
    /// Models that have had a request and still serve.
    pub models: Vec<ModelSnapshot>,
}

/// One model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSnapshot {
    /// Its name.
    pub model: Arc<str>,
    /// Whether its requests are merged.
    pub mode: ScheduleMode,
    /// Requests waiting.
    pub queued: usize,
    /// Requests waiting by priority level, level 1 first.
    pub queued_by_priority: Vec<usize>,
    /// Runs in progress.
    pub running: usize,
    /// Requests answered by a run.
    pub requests: u64,
    /// Runs.
    pub batches: u64,
    /// Items of all runs.
    pub items: u64,
    /// Runs by batch size: up to and including each of [`BATCH_SIZE_BOUNDS`], then all larger.
    pub batch_sizes: [u64; BATCH_SIZE_BOUNDS.len() + 1],
    /// Elements of padded inputs that were real.
    pub real_elements: u64,
    /// Elements of padded inputs that were padding.
    pub padding_elements: u64,
    /// Requests refused because a queue was full.
    pub refused: u64,
    /// Requests whose deadline passed in the queue.
    pub expired: u64,
    /// Requests whose client had gone before they ran.
    pub cancelled: u64,
    /// Merged runs that failed and were run again one request at a time.
    pub reruns: u64,
    /// What was learned about the shapes seen most, at most [`CLASSES_SHOWN_MAX`].
    pub classes: Vec<ClassSnapshot>,
}

/// What was learned about requests of one shape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassSnapshot {
    /// The shapes without axis 0, for people: "x[3,48,320]".
    pub shape: String,
    /// Runs measured.
    pub runs: u64,
    /// Median microseconds an item by batch size, where measured, smallest size first.
    pub item_us: Vec<(usize, f64)>,
    /// The batch size that pays best so far.
    pub best: usize,
}
