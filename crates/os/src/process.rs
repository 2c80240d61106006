//! Memory of the process and the machine, read from /proc and, in a container, from its cgroup.

use std::path::{Path, PathBuf};

use base::{Error, Result};

use crate::control_group;

/// Memory of this process. All sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Resident memory (VmRSS).
    pub rss: u64,
    /// Peak of resident memory (VmHWM).
    pub rss_peak: u64,
    /// Resident pages of files (RssFile).
    pub file: u64,
}

/// Memory that this process may use. All sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// Memory of the machine, or the limit of the container if that is less.
    pub total: u64,
    /// Memory available without evicting pages in use.
    pub available: u64,
}

/// Returns the number of the user whose rights this process has.
pub fn effective_user() -> u32 {
    // SAFETY: takes nothing and returns a number; the call cannot fail.
    unsafe { libc::geteuid() }
}

/// Makes this process ignore SIGTERM and SIGINT. For a child process that serves its parent until
/// the parent has finished its requests, even if a signal goes to all processes of a service.
pub fn ignore_termination() {
    for number in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: takes two numbers; ignoring a signal runs no handler. It cannot fail for a valid
        // number.
        unsafe { libc::signal(number, libc::SIG_IGN) };
    }
}

/// Makes a write beyond the limit of a file's size (`ulimit -f`, `LimitFSIZE=`) an error of that
/// write. By default, SIGXFSZ ends the process. Child processes inherit this.
pub fn refuse_writes_beyond_file_limit() {
    // SAFETY: takes two numbers; ignoring a signal runs no handler. It cannot fail for a valid
    // number.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Makes SIGSEGV and SIGBUS end this process at once. The standard library's handler looks for
/// overflows of the stack, and ignores the first signal that another process sends.
pub fn end_on_faults() {
    for number in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: takes two numbers; the default action runs no handler. It cannot fail for a valid
        // number.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
}

/// Ends this process at once, without destructors, because other threads may run foreign code that
/// still uses its static data.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: takes a number; no destructor or handler of the process runs.
    unsafe { libc::_exit(status) }
}

/// Limits the private memory of this process to what it has reserved now (VmData) and `more` bytes.
/// Allocations beyond fail. A C++ library then throws `std::bad_alloc`, and the allocator of Rust
/// ends the process. Files that are mapped and shared memory do not count (setrlimit(2),
/// RLIMIT_DATA).
///
/// # Errors
/// If /proc cannot be read, or the limit cannot be set.
pub fn limit_growth(more: u64) -> Result<()> {
    let path = Path::new("/proc/self/status");
    let reserved = kib_field(&read(path)?, "VmData:")
        .ok_or_else(|| Error::internal(format!("{} has no VmData", path.display())))?;
    let bytes = reserved.saturating_add(more);
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: reads a value that lives until the call returns.
    if unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Error::internal("the limit of memory cannot be set").caused_by(error))
}

/// Returns the resident memory of the process `pid` in bytes, or `None` if it has ended.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    kib_field(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS:")
}

/// Returns the memory of this process.
///
/// # Errors
/// If /proc cannot be read.
pub fn memory() -> Result<ProcessMemory> {
    let text = read(Path::new("/proc/self/status"))?;
    let field = |name| kib_field(&text, name).unwrap_or(0);
    Ok(ProcessMemory { rss: field("VmRSS:"), rss_peak: field("VmHWM:"), file: field("RssFile:") })
}

/// Figures of this process since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessUsage {
    /// Processor time of all threads, in user and kernel mode.
    pub cpu_seconds: f64,
    /// Start in seconds since the epoch.
    pub start_time: f64,
    /// Threads at the time of the reading.
    pub threads: u64,
    /// Virtual memory in bytes.
    pub virtual_bytes: u64,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
}

/// Returns the figures of this process.
///
/// # Errors
/// If /proc cannot be read.
pub fn usage() -> Result<ProcessUsage> {
    let path = Path::new("/proc/self/stat");
    let boot = read(Path::new("/proc/stat"))?;
    let boot = boot.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
    // SAFETY: asks for a constant of the system.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let units = UsageUnits {
        ticks_per_second: ticks.max(1) as f64,
        page_bytes: page_bytes() as u64,
        boot_time: boot.unwrap_or(0.0),
    };
    parse_usage(&read(path)?, &units)
        .ok_or_else(|| Error::internal(format!("{} has another form", path.display())))
}

/// Returns the ids of the child processes of this process. The list is empty if the kernel does not
/// list them.
pub fn children() -> Vec<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let listed = tasks.filter_map(|task| {
        // Each thread has its own list. One that has just ended has none.
        std::fs::read_to_string(task.path().join("children")).ok()
    });
    let ids = |list: String| -> Vec<u32> {
        list.split_whitespace().filter_map(|id| id.parse().ok()).collect()
    };
    listed.flat_map(ids).collect()
}

/// Units of the figures in /proc.
struct UsageUnits {
    ticks_per_second: f64,
    page_bytes: u64,
    /// Start of the machine in seconds since the epoch.
    boot_time: f64,
}

/// Parses a line of /proc, "12 (name) S ...". The name may hold spaces and brackets.
fn parse_usage(stat: &str, units: &UsageUnits) -> Option<ProcessUsage> {
    let (_, tail) = stat.rsplit_once(") ")?;
    // The tail begins with field 3 (proc_pid_stat(5)).
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let user = field(14)?;
    let system = field(15)?;
    Some(ProcessUsage {
        cpu_seconds: (user + system) as f64 / units.ticks_per_second,
        start_time: units.boot_time + field(22)? as f64 / units.ticks_per_second,
        threads: field(20)?,
        virtual_bytes: field(23)?,
        resident_bytes: field(24)? * units.page_bytes,
    })
}

/// Returns the memory that the machine, or the cgroup of this process (version 2 or 1), allows.
///
/// # Errors
/// If /proc cannot be read.
pub fn machine() -> Result<MachineMemory> {
    let path = Path::new("/proc/meminfo");
    let text = read(path)?;
    let field = |name| {
        kib_field(&text, name)
            .ok_or_else(|| Error::internal(format!("{} lacks {name}", path.display())))
    };
    let machine = MachineMemory { total: field("MemTotal:")?, available: field("MemAvailable:")? };
    let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Ok(within_cgroup(machine, Path::new(control_group::ROOT), &group))
}

/// Returns the bytes of a page of the kernel: 4096 on x86-64, up to 65536 on arm64.
pub fn page_bytes() -> usize {
    // SAFETY: asks for a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// Lowers `machine` to the limits of the groups named in `membership` (the text of
/// /proc/self/cgroup) and of their ancestors.
fn within_cgroup(machine: MachineMemory, root: &Path, membership: &str) -> MachineMemory {
    let second =
        control_group::directories(root, control_group::path(membership, "").unwrap_or_default());
    let version_1 = root.join("memory");
    let first = control_group::path(membership, "memory")
        .into_iter()
        .flat_map(|path| control_group::directories(&version_1, path));
    second
        .iter()
        .filter_map(|group| group_limit(group, &VERSION_2))
        .chain(first.filter_map(|group| group_limit(&group, &VERSION_1)))
        .fold(machine, |memory, limit| MachineMemory {
            total: memory.total.min(limit.total),
            available: memory.available.min(limit.available),
        })
}

/// Names of the figures of a group's memory.
struct MemoryFiles {
    /// File of the limit. Version 1 has a huge number for no limit.
    limit: &'static str,
    /// File of the bytes in use.
    used: &'static str,
    /// Beginning of the line of `memory.stat` with the page cache that is not in use.
    cache: &'static str,
}

const VERSION_2: MemoryFiles =
    MemoryFiles { limit: "memory.max", used: "memory.current", cache: "inactive_file " };
const VERSION_1: MemoryFiles = MemoryFiles {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cache: "total_inactive_file ",
};

/// Returns a group's own limit, and the bytes that are left of it, or `None` without a limit.
fn group_limit(group: &Path, files: &MemoryFiles) -> Option<MachineMemory> {
    let number =
        |name: &str| std::fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let total = number(files.limit)?;
    // The page cache counts as use, and the kernel drops it before it enforces the limit.
    let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cache = stat
        .lines()
        .find_map(|line| line.strip_prefix(files.cache)?.parse::<u64>().ok())
        .unwrap_or(0);
    let used = number(files.used).unwrap_or(0).saturating_sub(cache);
    Some(MachineMemory { total, available: total.saturating_sub(used) })
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(PathBuf::from(path)).map_err(|error| Error::io(path, &error))
}

/// Returns the value of "Name:   123 kB" in bytes.
fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: MachineMemory = MachineMemory { total: 1000, available: 900 };

    fn group(dir: &Path, max: &str, current: &str) {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("memory.max"), max).unwrap();
        std::fs::write(dir.join("memory.current"), current).unwrap();
    }

    #[test]
    fn this_process_has_memory() {
        let memory = memory().unwrap();
        assert!(memory.rss > 0 && memory.rss <= memory.rss_peak);
    }

    #[test]
    fn figures_of_a_process_are_parsed() {
        let stat = "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 13 14 20 0 7 0 1000 8192 3 99\n";
        let units = UsageUnits { ticks_per_second: 100.0, page_bytes: 4096, boot_time: 1e9 };
        let parsed = parse_usage(stat, &units).unwrap();
        let expected = ProcessUsage {
            cpu_seconds: 2.0,
            start_time: 1e9 + 10.0,
            threads: 7,
            virtual_bytes: 8192,
            resident_bytes: 3 * 4096,
        };
        assert_eq!(parsed, expected);
        assert_eq!(parse_usage("12 (a) S 1 2", &units), None);
        let own = usage().unwrap();
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        assert!(own.threads > 0 && own.resident_bytes > 0, "{own:?}");
        assert!(own.start_time > now - 86_400.0 && own.start_time < now + 2.0, "{own:?} {now}");
    }

    #[test]
    fn this_machine_has_memory() {
        let machine = machine().unwrap();
        assert!(machine.total > 0 && machine.available <= machine.total);
    }

    #[test]
    fn the_tightest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        group(&root.path().join("pod"), "500\n", "100\n");
        group(&root.path().join("pod/box"), "max\n", "50\n");
        std::fs::write(root.path().join("pod/memory.stat"), "anon 1\ninactive_file 30\n").unwrap();
        let limited = within_cgroup(MACHINE, root.path(), "12:cpu:/x\n0::/pod/box\n");
        assert_eq!(limited, MachineMemory { total: 500, available: 430 });
    }

    #[test]
    fn a_group_of_version_1_limits_the_memory() {
        let root = tempfile::tempdir().unwrap();
        let pod = root.path().join("memory/pod");
        std::fs::create_dir_all(&pod).unwrap();
        std::fs::write(pod.join("memory.limit_in_bytes"), "400\n").unwrap();
        std::fs::write(pod.join("memory.usage_in_bytes"), "150\n").unwrap();
        let stat = "inactive_file 5\ntotal_inactive_file 50\n";
        std::fs::write(pod.join("memory.stat"), stat).unwrap();
        // The group above has no limit.
        let unlimited = root.path().join("memory/memory.limit_in_bytes");
        std::fs::write(unlimited, "9223372036854771712\n").unwrap();
        let limited = within_cgroup(MACHINE, root.path(), "4:memory:/pod\n1:cpu:/\n0::/\n");
        assert_eq!(limited, MachineMemory { total: 400, available: 300 });
        let elsewhere = within_cgroup(MACHINE, root.path(), "4:memory:/other\n");
        assert_eq!(elsewhere, MACHINE);
    }

    #[test]
    fn no_group_is_no_limit() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(within_cgroup(MACHINE, root.path(), ""), MACHINE);
        assert_eq!(within_cgroup(MACHINE, root.path(), "0::/gone\n"), MACHINE);
    }

    #[test]
    fn a_container_sees_its_group_as_the_root() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "300", "299");
        assert_eq!(
            within_cgroup(MACHINE, root.path(), "0::/\n"),
            MachineMemory { total: 300, available: 1 }
        );
    }
}
