//! The time that a thread ran, and the time that it waited for a core.

use std::path::PathBuf;
use std::time::Duration;

/// Scheduling statistics of one thread, readable from any thread (`proc_pid_schedstat(5)`).
#[derive(Clone, Debug)]
pub struct SchedStat {
    path: PathBuf,
}

/// Times since a thread began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedTimes {
    /// Time on a core.
    pub ran: Duration,
    /// Time in the run queue of a core, up to the last time that the thread got it.
    pub waited: Duration,
}

impl SchedStat {
    /// Returns the statistics of the calling thread. `None` if the system has no `/proc`.
    pub(crate) fn of_this_thread() -> Option<SchedStat> {
        // "PID/task/TID", as the reader itself is named there.
        let link = std::fs::read_link("/proc/thread-self").ok()?;
        Some(SchedStat { path: PathBuf::from("/proc").join(link).join("schedstat") })
    }

    /// Returns the statistics of the first thread of a process.
    pub fn of_process(id: u32) -> SchedStat {
        SchedStat { path: PathBuf::from(format!("/proc/{id}/schedstat")) }
    }

    /// Reads the times. `None` once the thread has ended, or if the kernel does not count them.
    pub fn read(&self) -> Option<SchedTimes> {
        parse(&std::fs::read_to_string(&self.path).ok()?)
    }
}

/// Parses the text of a file "schedstat".
pub(crate) fn parse(text: &str) -> Option<SchedTimes> {
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    let mut next = || Some(Duration::from_nanos(numbers.next()?.ok()?));
    let ran = next()?;
    let waited = next()?;
    Some(SchedTimes { ran, waited })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_time_is_counted() {
        let (send, stat) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let began = crate::thread::cpu_time();
            while crate::thread::cpu_time() - began < Duration::from_millis(50) {}
            send.send(SchedStat::of_this_thread().unwrap()).unwrap();
            ends.recv().ok();
        });
        let stat: SchedStat = stat.recv().unwrap();
        let ran = stat.read().unwrap().ran;
        // The kernel counts whole ticks late.
        assert!(ran >= Duration::from_millis(25), "{ran:?}");
        drop(end);
        thread.join().unwrap();
        // It may be listed for a moment longer than it can be joined.
        while stat.read().is_some() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(SchedStat::of_process(std::process::id()).read().is_some());
    }
}
