//! How a thread fares: the time it ran, and the time it waited for a core.

use std::path::PathBuf;
use std::time::Duration;

/// A thread whose turns on the cores the kernel counts, to be looked at by others.
#[derive(Clone, Debug)]
pub struct Turns {
    path: PathBuf,
}

impl Turns {
    /// Of the calling thread; `None` where the system has no `/proc`.
    pub fn of_this_thread() -> Option<Turns> {
        // "PID/task/TID", as the reader itself is named there.
        let link = std::fs::read_link("/proc/thread-self").ok()?;
        Some(Turns { path: PathBuf::from("/proc").join(link).join("schedstat") })
    }

    /// Of the first thread of a process.
    pub fn of_process(id: u32) -> Turns {
        Turns { path: PathBuf::from(format!("/proc/{id}/schedstat")) }
    }

    /// How long it has run and how long it has waited for a core since it began, the latter up to
    /// its last turn. `None` once it has ended, or where the kernel does not count this
    /// (`proc_pid_schedstat(5)`).
    pub fn read(&self) -> Option<(Duration, Duration)> {
        let text = std::fs::read_to_string(&self.path).ok()?;
        let mut numbers = text.split_whitespace().map(str::parse::<u64>);
        let mut next = || Some(Duration::from_nanos(numbers.next()?.ok()?));
        Some((next()?, next()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_runs_is_seen_to_run() {
        let (send, turns) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let began = crate::thread::cpu_time();
            while crate::thread::cpu_time() - began < Duration::from_millis(50) {}
            send.send(Turns::of_this_thread().unwrap()).unwrap();
            ends.recv().ok();
        });
        let turns: Turns = turns.recv().unwrap();
        let (ran, _) = turns.read().unwrap();
        // The kernel counts whole ticks late.
        assert!(ran >= Duration::from_millis(25), "{ran:?}");
        drop(end);
        thread.join().unwrap();
        // It may be listed for a moment longer than it can be joined.
        while turns.read().is_some() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(Turns::of_process(std::process::id()).read().is_some());
    }
}
