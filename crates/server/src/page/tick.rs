//! JSON of the page's events. `page.js` is its only reader.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use engine::ScheduleMode;
use lifecycle::{ModelStatus, VersionStatus};
use metrics::KindLabels;
use schedule::{ClassSnapshot, ModelSnapshot};
use serde::Serialize;

use super::history::{History, MODELS_SHOWN_MAX, Mark, Point, Window, batch_size_names};
use super::threads::Threads;
use super::{HISTORY_SECONDS_MAX, Page};
use crate::core::Core;

/// Points of a model in a tick: a viewer that missed a few ticks still gets every second.
const POINTS_TICK: usize = 5;

/// The first event: constants of the server, and the whole history.
#[derive(Serialize)]
struct Past {
    server: Server,
    #[serde(flatten)]
    now: Now,
}

#[derive(Serialize)]
struct Server {
    name: &'static str,
    version: &'static str,
    engine: String,
    /// Length of the history in seconds.
    seconds: usize,
    /// Labels of the buckets of `window.batch_sizes`.
    batch_sizes: Vec<String>,
    /// "dram" (the slot pool) or "heap".
    home: &'static str,
}

/// State of the server at one time.
#[derive(Serialize)]
struct Now {
    /// Seconds since the start.
    at: f64,
    /// True if every model that should serve does, and the server is not stopping.
    ready: bool,
    machine: Machine,
    models: Vec<Model>,
    /// Number of models beyond [`MODELS_SHOWN_MAX`], which are not shown.
    more: usize,
}

#[derive(Serialize)]
struct Machine {
    workers: usize,
    busy: usize,
    queued: usize,
    queue_max: usize,
    threads: Vec<Threads>,
    connections: [i64; 2],
    /// Bytes, as are all below.
    pool_used: u64,
    pool_backed: u64,
    pool_max: u64,
    rss: u64,
    rss_peak: u64,
    heap_allocated: Option<u64>,
    heap_resident: Option<u64>,
}

#[derive(Serialize)]
struct Model {
    name: String,
    error: Option<String>,
    unloaded: bool,
    versions: Vec<Version>,
    points: Vec<Point>,
    marks: Vec<Mark>,
    /// Absent before the model's first request.
    schedule: Option<Schedule>,
}

#[derive(Serialize)]
struct Version {
    version: u64,
    state: &'static str,
    /// Reason of a failure or a wait, or a note.
    reason: Option<String>,
    /// Bytes of its parameters.
    bytes: u64,
    /// Time at which it entered the state, in milliseconds since the epoch.
    since: u64,
}

#[derive(Serialize)]
struct Schedule {
    mode: &'static str,
    queued: usize,
    queued_by_priority: Vec<usize>,
    running: usize,
    window: Window,
    classes: Vec<Class>,
}

/// Learned costs of requests of one shape.
#[derive(Serialize)]
struct Class {
    shape: String,
    runs: u64,
    best: usize,
    /// Batch size and microseconds per item.
    item_us: Vec<(usize, f64)>,
}

/// Returns the JSON of the `history` event.
pub(super) fn past(page: &Page) -> String {
    let server = Server {
        name: crate::NAME,
        version: crate::VERSION,
        engine: page.core.engine_version.clone(),
        seconds: HISTORY_SECONDS_MAX,
        batch_sizes: batch_size_names(),
        home: if page.core.parameters_in_pool { "dram" } else { "heap" },
    };
    json(&Past { server, now: now(page, HISTORY_SECONDS_MAX) })
}

/// Returns the JSON of the `tick` event.
pub(super) fn tick(page: &Page) -> String {
    json(&now(page, POINTS_TICK))
}

/// Serialises structs with string keys, which cannot fail.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| {
        tracing::error!(%error, "the page's figures cannot be written");
        "{}".into()
    })
}

fn now(page: &Page, points_max: usize) -> Now {
    let instant = Instant::now();
    let threads = page.threads(instant);
    let statuses = page.core.lifecycle.status();
    let history = page.core.history.lock();
    let shown = statuses.iter().take(MODELS_SHOWN_MAX);
    Now {
        at: page.core.history.seconds(instant),
        ready: page.readiness.check().is_ok(),
        models: shown.map(|status| model(status, &history, points_max)).collect(),
        more: statuses.len().saturating_sub(MODELS_SHOWN_MAX),
        machine: machine(&page.core, threads),
    }
}

fn machine(core: &Core, threads: Vec<Threads>) -> Machine {
    let scheduler = core.scheduler.snapshot();
    let pool = core.memory.pool().stats();
    let process = os::process::memory().unwrap_or_default();
    let heap = os::jemalloc::stats();
    let connections = |kind| core.metrics.connections.get_or_create(&KindLabels { kind }).get();
    Machine {
        workers: scheduler.workers,
        busy: scheduler.busy,
        queued: scheduler.queued,
        queue_max: scheduler.queue_max,
        threads,
        connections: [connections("http"), connections("grpc")],
        pool_used: pool.used,
        pool_backed: pool.backed,
        pool_max: pool.bytes_max,
        rss: process.rss,
        rss_peak: process.rss_peak,
        heap_allocated: heap.as_ref().map(|heap| heap.allocated),
        heap_resident: heap.as_ref().map(|heap| heap.resident),
    }
}

fn model(status: &ModelStatus, history: &History, points_max: usize) -> Model {
    let track = history.track(&status.name);
    Model {
        name: status.name.to_string(),
        error: status.error.clone(),
        unloaded: status.unloaded,
        versions: status.versions.iter().rev().map(version).collect(),
        points: track.map(|track| track.points(points_max)).unwrap_or_default(),
        marks: track.map(|track| track.marks().iter().cloned().collect()).unwrap_or_default(),
        schedule: track
            .and_then(|track| track.window())
            .map(|(window, counters)| schedule(window, counters)),
    }
}

fn version(status: &VersionStatus) -> Version {
    Version {
        version: status.version,
        state: status.state.name(),
        reason: status.reason.clone().or_else(|| status.note.clone()),
        bytes: status.parameter_bytes,
        since: epoch_ms(status.since),
    }
}

fn epoch_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

fn schedule(window: Window, counters: &ModelSnapshot) -> Schedule {
    let class = |class: &ClassSnapshot| Class {
        shape: class.shape.clone(),
        runs: class.runs,
        best: class.best,
        item_us: class.item_us.clone(),
    };
    Schedule {
        mode: match counters.mode {
            ScheduleMode::Sync => "sync",
            ScheduleMode::Async => "async",
        },
        queued: counters.queued,
        queued_by_priority: counters.queued_by_priority.clone(),
        running: counters.running,
        window,
        classes: counters.classes.iter().map(class).collect(),
    }
}
