//! Figures of the process and the machine: processors, memory, disks, GPU, connections, threads.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::KindLabels;
use observe::{ObservedParts, RegistryReader};
use os::CpuQuota;
use parking_lot::Mutex;
use serde::Serialize;
use transport::RequestResources;

use crate::threads::{ThreadWatch, Threads};

/// Longest time between two readings whose difference describes the current load.
const APART_MAX: Duration = Duration::from_secs(5);

/// A directory whose disk is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownDirectory {
    /// Use of the directory, as the page shows it.
    pub name: &'static str,
    /// Path in the server's file system.
    pub path: PathBuf,
}

/// Sources of the figures.
pub(crate) struct MachineWatch {
    parts: ObservedParts,
    requests: Arc<RequestResources>,
    registry: RegistryReader,
    directories: Vec<ShownDirectory>,
    gpu: bool,
    last: Mutex<LastReading>,
}

#[derive(Default)]
struct LastReading {
    threads: ThreadWatch,
    /// Time, and processor seconds of the process until then.
    processor: Option<(Instant, f64)>,
}

/// Figures of one moment. Sizes are in bytes.
#[derive(Serialize)]
pub(crate) struct Machine {
    workers: usize,
    busy: usize,
    queued: usize,
    queue_max: usize,
    connections: ConnectionCounts,
    processor: Processor,
    memory: Vec<MemoryUse>,
    disks: Vec<DiskUse>,
    gpu: Option<GpuCounters>,
    threads: Vec<Threads>,
}

#[derive(Serialize)]
struct ConnectionCounts {
    http: i64,
    grpc: i64,
}

#[derive(Serialize)]
struct Processor {
    /// Cores in use; `None` if the last reading was too long ago.
    used: Option<f64>,
    /// Cores that this process may use.
    cores: f64,
    /// True if a limit of the container set that number.
    limited: bool,
}

#[derive(Serialize)]
struct MemoryUse {
    kind: &'static str,
    used: u64,
    /// Limit; `None` if there is none.
    max: Option<u64>,
}

#[derive(Serialize)]
struct DiskUse {
    name: &'static str,
    path: String,
    free: u64,
    total: u64,
}

#[derive(Serialize)]
struct GpuCounters {
    device_bytes: u64,
    pinned_bytes: u64,
    queries: u64,
    /// Queries that the processor answered because the GPU failed.
    fallbacks: u64,
}

impl MachineWatch {
    pub(crate) fn new(
        parts: ObservedParts,
        requests: Arc<RequestResources>,
        registry: RegistryReader,
        directories: Vec<ShownDirectory>,
        gpu: bool,
    ) -> MachineWatch {
        let last = Mutex::default();
        MachineWatch { parts, requests, registry, directories, gpu, last }
    }

    /// Returns the figures of now.
    pub(crate) fn read(&self, now: Instant) -> Machine {
        let parts = &self.parts;
        let scheduler = parts.scheduler.snapshot();
        let count = |kind| parts.metrics.connections.get_or_create(&KindLabels { kind }).get();
        let (threads, used) = self.since_last(now);
        Machine {
            workers: scheduler.workers,
            busy: scheduler.busy,
            queued: scheduler.queued,
            queue_max: scheduler.queue_max,
            connections: ConnectionCounts { http: count("http"), grpc: count("grpc") },
            processor: processor(used),
            memory: self.memory(),
            disks: self.disks(),
            gpu: self.gpu.then(gpu),
            threads,
        }
    }

    /// Returns the threads, and the cores in use since the last reading.
    fn since_last(&self, now: Instant) -> (Vec<Threads>, Option<f64>) {
        let mut last = self.last.lock();
        let threads = last.threads.scan(now);
        let Ok(usage) = os::process::usage() else { return (threads, None) };
        let before = last.processor.replace((now, usage.cpu_seconds));
        let used = before.and_then(|(at, seconds)| {
            let apart = now.saturating_duration_since(at);
            let fits = apart <= APART_MAX && apart > Duration::from_millis(100);
            fits.then(|| (usage.cpu_seconds - seconds).max(0.0) / apart.as_secs_f64())
        });
        (threads, used)
    }

    fn memory(&self) -> Vec<MemoryUse> {
        let parts = &self.parts;
        let of = |kind, used, max| MemoryUse { kind, used, max };
        let pool = parts.memory.pool().stats();
        let parameters: u64 = parts
            .lifecycle
            .status()
            .iter()
            .flat_map(|model| &model.versions)
            .map(|version| version.parameter_bytes)
            .sum();
        let limit = parts.parameters_in_pool.then_some(pool.bytes_max);
        let budget = &self.requests.memory;
        let mut memory = vec![of("parameters of models", parameters, limit)];
        if parts.parameters_in_pool {
            memory.push(of("parameter memory kept for reuse", pool.backed - pool.used, None));
        }
        memory.push(of("requests in flight", budget.used(), Some(budget.max())));
        if let Some(registry) = (self.registry)() {
            let collections = registry.stats().memory;
            memory.push(of("collections", collections.used, Some(collections.limit)));
        }
        if let Some(heap) = os::jemalloc::stats() {
            memory.push(of("heap", heap.allocated, None));
        }
        let workers = parts.isolation.resident_bytes();
        if workers > 0 {
            memory.push(of("worker processes of isolated models", workers, None));
        }
        if let Ok(process) = os::process::memory() {
            let machine = os::process::machine().ok().map(|machine| machine.total);
            memory.push(of("process in total", process.rss, machine));
            memory.push(of("highest of the process so far", process.rss_peak, machine));
        }
        memory
    }

    fn disks(&self) -> Vec<DiskUse> {
        let disk = |shown: &ShownDirectory| {
            let space = os::disk::space(&shown.path).ok()?;
            Some(DiskUse {
                name: shown.name,
                path: shown.path.display().to_string(),
                free: space.free,
                total: space.total,
            })
        };
        self.directories.iter().filter_map(disk).collect()
    }
}

fn processor(used: Option<f64>) -> Processor {
    let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
    let quota = CpuQuota::of_this_process().map(|quota| quota.cores).filter(|quota| *quota < cores);
    Processor { used, cores: quota.unwrap_or(cores), limited: quota.is_some() }
}

fn gpu() -> GpuCounters {
    let counters = coarse::device::counters();
    GpuCounters {
        device_bytes: counters.device_bytes,
        pinned_bytes: counters.pinned_bytes,
        queries: counters.queries,
        fallbacks: counters.fallbacks,
    }
}
