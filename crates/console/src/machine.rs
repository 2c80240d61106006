//! Figures of the process and the machine: processors, memory, disks, GPU, connections, threads.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::KindLabels;
use observe::{ObservedParts, RegistryReader};
use os::CpuQuota;
use parking_lot::Mutex;
use search::budget::BudgetStats;
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
    processor: Option<ProcessorReading>,
}

/// Processor time of the process at one moment.
struct ProcessorReading {
    at: Instant,
    /// Seconds since the start of the process, of all cores together.
    seconds: f64,
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

/// Open connections by protocol, at all ports and Unix sockets.
#[derive(Debug, PartialEq, Serialize)]
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
    /// Number of queries that the processor answered because the GPU failed.
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

    /// Returns the figures at `now`.
    pub(crate) fn read(&self, now: Instant) -> Machine {
        let parts = &self.parts;
        let scheduler = parts.scheduler.snapshot();
        // Does not make series of listeners that this server does not have.
        let open = |kind: &'static str| {
            parts.metrics.connections.get(&KindLabels { kind }).map_or(0, |count| count.get())
        };
        let (threads, used) = self.since_last(now);
        Machine {
            workers: scheduler.workers,
            busy: scheduler.busy,
            queued: scheduler.queued,
            queue_max: scheduler.queue_max,
            connections: connections(open),
            processor: processor(used),
            memory: self.memory(),
            disks: self.disks(),
            gpu: self.gpu.then(gpu),
            threads,
        }
    }

    /// Returns the threads, and the number of cores in use since the last reading. The number is
    /// `None` if there was no reading, or if it is too old or too new to compare with.
    fn since_last(&self, now: Instant) -> (Vec<Threads>, Option<f64>) {
        let mut last = self.last.lock();
        let threads = last.threads.scan(now);
        let Ok(usage) = os::process::usage() else { return (threads, None) };
        let reading = ProcessorReading { at: now, seconds: usage.cpu_seconds };
        let used = last.processor.replace(reading).and_then(|before| {
            let apart = now.saturating_duration_since(before.at);
            let fits = apart <= APART_MAX && apart > Duration::from_millis(100);
            fits.then(|| (usage.cpu_seconds - before.seconds).max(0.0) / apart.as_secs_f64())
        });
        (threads, used)
    }

    /// Lists the uses of memory that the page shows.
    fn memory(&self) -> Vec<MemoryUse> {
        let parts = &self.parts;
        let of = |kind, used, max| MemoryUse { kind, used, max };
        let pool = parts.memory.pool().stats();
        let budget = &self.requests.memory;
        let in_pool = parts.parameters_in_pool.then_some(pool.used);
        let limit = parts.parameters_in_pool.then_some(pool.bytes_max);
        let models = parts.lifecycle.status();
        let versions = models.iter().flat_map(|model| &model.versions);
        let parameters = parameter_bytes(in_pool, versions.map(|version| version.parameter_bytes));
        let mut memory = vec![of("parameters of models", parameters, limit)];
        if parts.parameters_in_pool {
            memory.push(of("parameter memory kept for reuse", pool.backed - pool.used, None));
        }
        memory.push(of("requests in flight", budget.used(), Some(budget.max())));
        if let Some(registry) = (self.registry)() {
            memory.extend(collections(&registry.stats().memory));
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

/// Returns the open connections by protocol. `open` returns those of a listener.
fn connections(open: impl Fn(&'static str) -> i64) -> ConnectionCounts {
    ConnectionCounts {
        http: open("http") + open("http-unix") + open("admin"),
        grpc: open("grpc") + open("grpc-unix"),
    }
}

/// Returns the number of bytes of all parameters. `versions` are those of each version. Versions
/// share equal parameters, which are in the pool only once, so the sum can be larger than the pool.
fn parameter_bytes(in_pool: Option<u64>, versions: impl Iterator<Item = u64>) -> u64 {
    in_pool.unwrap_or_else(|| versions.sum())
}

/// Returns the memory of collections. Cached parts are released on demand, so only the bytes in use
/// are compared with the limit.
fn collections(memory: &BudgetStats) -> [MemoryUse; 2] {
    let max = Some(memory.limit);
    [
        MemoryUse { kind: "collections", used: memory.used, max },
        MemoryUse { kind: "cached parts of collections", used: memory.cached, max: None },
    ]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_all_listeners_count() {
        let open = |kind: &'static str| match kind {
            "http" => 1,
            "http-unix" => 2,
            "admin" => 4,
            "grpc" => 8,
            "grpc-unix" => 16,
            _ => 1000,
        };
        assert_eq!(connections(open), ConnectionCounts { http: 7, grpc: 24 });
    }

    #[test]
    fn shared_parameters_count_once() {
        let versions = || [30, 10].into_iter();
        assert_eq!(parameter_bytes(Some(32), versions()), 32);
        assert_eq!(parameter_bytes(None, versions()), 40, "the heap has no other figure");
    }

    #[test]
    fn cached_parts_of_collections_are_shown() {
        let memory = BudgetStats { limit: 100, used: 20, cached: 70, peak: 30, refused: 0 };
        let shown = collections(&memory).map(|one| (one.used, one.max));
        assert_eq!(shown, [(20, Some(100)), (70, None)]);
    }
}
