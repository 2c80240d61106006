//! Threads of the process, for the tests of engines.

use std::fs::DirEntry;

/// Returns the names of the threads of this process that have idle priority, without those of
/// jemalloc. It is linked if the whole workspace is built.
///
/// # Panics
/// If the system does not list the threads.
pub fn idle_threads() -> Vec<String> {
    let name_of_idle = |task: std::io::Result<DirEntry>| {
        let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (start, fields) = stat.rsplit_once(')')?;
        // The 41st field is the scheduling class; 5 is SCHED_IDLE.
        let is_idle = fields.split_whitespace().nth(38) == Some("5");
        is_idle.then(|| start.split_once('(').map(|(_, name)| name.to_owned()))?
    };
    let tasks = std::fs::read_dir("/proc/self/task").expect("the list of threads");
    let names = tasks.filter_map(name_of_idle);
    names.filter(|name| !name.starts_with("jemalloc")).collect()
}
