//! The machine and its load during a run, recorded with every figure.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::settle::StopWatch;

/// The machine and the software, fixed for a run.
#[derive(Clone, Debug, Serialize)]
pub struct MachineFacts {
    /// Model name of the processor.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// Preemption model and build of the kernel.
    pub kernel_build: String,
    /// Memory in MiB.
    pub memory_mb: u64,
    /// Version of Millpond, marked if it is a debug build.
    pub millpond: String,
    /// ONNX Runtime's version, if the run used it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub onnxruntime: Option<String>,
    /// Transparent huge page setting.
    pub huge_pages: String,
}

const VERSION: &str = if cfg!(debug_assertions) {
    concat!(env!("CARGO_PKG_VERSION"), " (built for tests: figures mean nothing)")
} else {
    env!("CARGO_PKG_VERSION")
};

impl MachineFacts {
    /// Reads the facts of this machine. Facts that cannot be read are empty.
    pub fn detect(onnxruntime: Option<String>) -> MachineFacts {
        let cpuinfo = read("/proc/cpuinfo");
        MachineFacts {
            cpu: field(&cpuinfo, "model name").unwrap_or_default(),
            cores: cores(),
            kernel: read("/proc/sys/kernel/osrelease").trim().into(),
            kernel_build: read("/proc/sys/kernel/version").trim().into(),
            memory_mb: memory_bytes() >> 20,
            millpond: VERSION.into(),
            onnxruntime,
            huge_pages: read("/sys/kernel/mm/transparent_hugepage/enabled").trim().into(),
        }
    }

    /// Returns one line for people.
    pub fn line(&self) -> String {
        let onnx = self
            .onnxruntime
            .as_ref()
            .map(|version| format!(", ONNX Runtime {version}"))
            .unwrap_or_default();
        format!(
            "{}, {} cores, {} MiB, Linux {}, Millpond {}{onnx}",
            self.cpu, self.cores, self.memory_mb, self.kernel, self.millpond
        )
    }
}

/// Returns the number of cores that this process may use, at least 1.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the memory of this machine in bytes, or 0 if it cannot be read.
pub fn memory_bytes() -> u64 {
    field(&read("/proc/meminfo"), "MemTotal")
        .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        << 10
}

/// Load of the machine between two moments.
#[derive(Clone, Debug, Serialize)]
pub struct Noise {
    /// Load averages (1, 5, 15 minutes) at the start.
    pub load_before: [f64; 3],
    /// Load averages at the end.
    pub load_after: [f64; 3],
    /// Share of all cores' time in use, 0 to 1.
    pub busy: f64,
    /// Share that the hypervisor gave to other machines, 0 to 1.
    pub steal: f64,
    /// Number of stops of the machine for more than 10 ms. Steal may not show them, if the host
    /// limits a machine's processor time.
    pub stops: u64,
    /// Longest stop in milliseconds.
    pub longest_stop_ms: f64,
    /// Seconds observed.
    pub seconds: f64,
}

impl Noise {
    /// Returns one line for people.
    pub fn line(&self) -> String {
        let stops = match self.stops {
            0 => String::new(),
            count => {
                format!(", stood still {count} times, for {:.0} ms at most", self.longest_stop_ms)
            }
        };
        format!(
            "load {:.2} before, {:.2} after; cores {:.0} % busy, {:.1} % stolen{stops}",
            self.load_before[0],
            self.load_after[0],
            self.busy * 100.0,
            self.steal * 100.0
        )
    }
}

/// The machine, and its other load during a run. It is part of every report.
#[derive(Clone, Debug, Serialize)]
pub struct RunContext {
    /// The machine and the software.
    pub machine: MachineFacts,
    /// Other load during the run.
    pub noise: Noise,
}

impl std::fmt::Display for RunContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n{}", self.machine.line(), self.noise.line())
    }
}

/// Watch of the machine until [`NoiseWatch::end`].
#[derive(Debug)]
pub struct NoiseWatch {
    start: Instant,
    load: [f64; 3],
    ticks: CpuTicks,
    stops: StopWatch,
}

impl NoiseWatch {
    /// Starts the watch.
    pub fn start() -> NoiseWatch {
        let stops = StopWatch::start();
        NoiseWatch { start: Instant::now(), load: load_average(), ticks: CpuTicks::now(), stops }
    }

    /// Returns the machine with the load since the start. `onnxruntime` is the version of ONNX
    /// Runtime, if the run used it.
    pub fn context(&self, onnxruntime: Option<String>) -> RunContext {
        RunContext { machine: MachineFacts::detect(onnxruntime), noise: self.end() }
    }

    /// Returns the load since the start.
    pub fn end(&self) -> Noise {
        let now = CpuTicks::now();
        let total = now.total.saturating_sub(self.ticks.total).max(1) as f64;
        let stops = self.stops.stops();
        Noise {
            load_before: self.load,
            load_after: load_average(),
            busy: now.busy.saturating_sub(self.ticks.busy) as f64 / total,
            steal: now.steal.saturating_sub(self.ticks.steal) as f64 / total,
            stops: stops.count,
            longest_stop_ms: stops.longest.as_secs_f64() * 1e3,
            seconds: self.start.elapsed().as_secs_f64(),
        }
    }
}

/// Processor time of all cores together in clock ticks since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct CpuTicks {
    busy: u64,
    steal: u64,
    total: u64,
}

impl CpuTicks {
    fn now() -> CpuTicks {
        CpuTicks::parse(&read("/proc/stat"))
    }

    /// Sums the times in the first line of /proc/stat.
    fn parse(stat: &str) -> CpuTicks {
        let values: Vec<u64> = stat
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .filter_map(|value| value.parse().ok())
            .collect();
        // user nice system idle iowait irq softirq steal; user already includes guest time.
        let at = |index: usize| values.get(index).copied().unwrap_or(0);
        let busy = at(0) + at(1) + at(2) + at(5) + at(6);
        CpuTicks { busy, steal: at(7), total: busy + at(3) + at(4) + at(7) }
    }
}

fn load_average() -> [f64; 3] {
    let text = read("/proc/loadavg");
    let mut values = text.split_whitespace().map(|value| value.parse().unwrap_or(0.0));
    std::array::from_fn(|_| values.next().unwrap_or(0.0))
}

/// A process's use of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Usage {
    /// Processor time of all threads of the process, including ended ones.
    #[serde(rename = "cpu_s", serialize_with = "seconds")]
    pub cpu: Duration,
    /// Peak of resident memory in KiB.
    pub peak_rss_kb: u64,
}

fn seconds<S: serde::Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(value.as_secs_f64())
}

/// Clock ticks a second in /proc/PID/stat. The kernel's interface to user space fixes them.
const TICKS_PER_SECOND: u64 = 100;

/// Returns the usage of process `pid`, or zeros if it has ended.
pub fn usage_of(pid: u32) -> Usage {
    Usage {
        cpu: cpu_from_stat(&read(&format!("/proc/{pid}/stat"))),
        peak_rss_kb: field(&read(&format!("/proc/{pid}/status")), "VmHWM")
            .and_then(|value| value.split_whitespace().next()?.parse().ok())
            .unwrap_or(0),
    }
}

/// Returns true if process `pid` exists.
pub fn is_running(pid: u32) -> bool {
    std::fs::exists(format!("/proc/{pid}")).unwrap_or(false)
}

/// Returns the resident memory of process `pid` in KiB, or 0 if it has ended.
pub fn rss_kb_of(pid: u32) -> u64 {
    field(&read(&format!("/proc/{pid}/status")), "VmRSS")
        .and_then(|value| value.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Returns the number of threads of process `pid`, or 0 if it has ended.
pub fn threads_of(pid: u32) -> usize {
    entries(&format!("/proc/{pid}/task"))
}

/// Returns the number of open file descriptors of process `pid`, or 0 if it has ended or belongs to
/// another user.
pub fn descriptors_of(pid: u32) -> usize {
    entries(&format!("/proc/{pid}/fd"))
}

fn entries(dir: &str) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

fn cpu_from_stat(stat: &str) -> Duration {
    // The name in parentheses may hold any text, also spaces and parentheses. So fields are counted
    // from its end.
    let Some((_, rest)) = stat.rsplit_once(')') else { return Duration::ZERO };
    let ticks: u64 =
        rest.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_understood() {
        let ticks = CpuTicks::parse("cpu  10 1 20 100 5 2 3 9 0 0\ncpu0 1 1 1 1\n");
        assert_eq!(ticks, CpuTicks { busy: 36, steal: 9, total: 150 });
        assert_eq!(CpuTicks::parse(""), CpuTicks::default());
        let stat = "77 (a) b (c)) S 1 77 77 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 1 0 5 1 1";
        assert_eq!(cpu_from_stat(stat), Duration::from_secs(2));
        assert_eq!(cpu_from_stat("garbage"), Duration::ZERO);
        assert_eq!(field("Name:\tx\nVmHWM:\t  12 kB\n", "VmHWM"), Some("12 kB".into()));
    }

    #[test]
    fn this_process_is_seen() {
        let usage = usage_of(std::process::id());
        assert!(usage.peak_rss_kb > 0);
        assert!(rss_kb_of(std::process::id()) > 0 && rss_kb_of(u32::MAX) == 0);
        assert_eq!(usage_of(u32::MAX), Usage::default());
        assert!(is_running(std::process::id()) && !is_running(u32::MAX));
        assert!(threads_of(std::process::id()) > 0 && threads_of(u32::MAX) == 0);
        assert!(descriptors_of(std::process::id()) > 2 && descriptors_of(u32::MAX) == 0);
        let machine = MachineFacts::detect(None);
        assert!(machine.cores > 0 && machine.memory_mb > 0);
    }
}
