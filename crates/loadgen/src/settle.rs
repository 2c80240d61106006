//! Waits until the machine runs evenly, and counts its stops.
//!
//! A virtual machine whose balloon reports free pages returns freed memory to its host. That is a
//! sixteenth of the free memory every two seconds (`mm/page_reporting.c` of Linux). That takes
//! about half a minute after a process with gigabytes has ended. If the host limits the machine's
//! processor time, this work counts against it, and all cores stop at once. After 6 GiB were freed,
//! they stopped for 34 ms of every 100, three times every two seconds, for half a minute. A guest
//! sees neither steal nor a busy core meanwhile. If one arm frees much memory, the next arm would
//! be charged for this.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Minimum length of a stop. Threads that share a core take turns of 3 ms.
const STOP: Duration = Duration::from_millis(10);
/// Time without a stop after which the machine runs evenly. Reports are two to four seconds apart.
const EVEN_FOR: Duration = Duration::from_secs(5);
/// Length of one check.
const CHECK_TIME: Duration = Duration::from_millis(500);
/// Maximum wait: some machines never run evenly.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Time between two checks of a [`StopWatch`].
const WATCH_PERIOD: Duration = Duration::from_millis(5);
/// Priority of its thread, so that only the machine delays it.
const WATCH_NICE: i32 = -20;

/// Time until no core of the machine stopped any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SettleTime {
    /// Seconds waited.
    pub seconds: f64,
    /// Longest stop of a core meanwhile.
    pub longest_stop_ms: f64,
    /// False if cores still stopped after a minute.
    pub even: bool,
}

/// Keeps all cores busy until none of them has stopped for five seconds, a minute at most.
pub fn settle() -> SettleTime {
    let cores = crate::machine::cores();
    until_even(Instant::now(), || longest_gap(cores, CHECK_TIME))
}

/// Waits until `check`, which returns the longest stop since its last call, reports no long stop
/// for [`EVEN_FOR`]. Waits at most [`WAIT_MAX`].
fn until_even(start: Instant, mut check: impl FnMut() -> Duration) -> SettleTime {
    let mut longest = Duration::ZERO;
    let mut even_since = start;
    loop {
        let gap = check();
        let now = Instant::now();
        longest = longest.max(gap);
        if gap > STOP {
            even_since = now;
        }
        let even = now - even_since >= EVEN_FOR;
        if even || now - start >= WAIT_MAX {
            let longest_stop_ms = longest.as_secs_f64() * 1e3;
            return SettleTime { seconds: (now - start).as_secs_f64(), longest_stop_ms, even };
        }
    }
}

/// Returns the longest time between two readings of the clock by threads that do nothing else, one
/// a core.
fn longest_gap(cores: usize, time: Duration) -> Duration {
    let spin = || {
        let start = Instant::now();
        let mut last = start;
        let mut longest = Duration::ZERO;
        while last - start < time {
            std::hint::spin_loop();
            let now = Instant::now();
            longest = longest.max(now - last);
            last = now;
        }
        longest
    };
    std::thread::scope(|scope| {
        let spinning: Vec<_> = (0..cores).map(|_| scope.spawn(spin)).collect();
        spinning.into_iter().filter_map(|thread| thread.join().ok()).max().unwrap_or_default()
    })
}

/// Stops of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stops {
    /// Number of stops of a core for more than 10 ms.
    pub(crate) count: u64,
    /// Longest of these stops.
    pub(crate) longest: Duration,
}

/// Counter of stops, until it is dropped. Its thread of the highest ordinary priority wakes every 5
/// ms. The thread is late if the machine stopped, or if the system refuses the priority and all
/// cores were busy.
#[derive(Debug)]
pub(crate) struct StopWatch {
    seen: Arc<StopCounts>,
    thread: Option<JoinHandle<()>>,
}

/// Counts that the thread of a [`StopWatch`] updates.
#[derive(Debug, Default)]
struct StopCounts {
    ended: AtomicBool,
    count: AtomicU64,
    longest_ns: AtomicU64,
}

impl StopWatch {
    /// Starts to count. Without a thread, nothing is counted.
    pub(crate) fn start() -> StopWatch {
        let seen = Arc::new(StopCounts::default());
        let watched = Arc::clone(&seen);
        let thread = os::thread::spawn("stop-watch", move || watched.watch()).ok();
        StopWatch { seen, thread }
    }

    /// Returns the stops so far.
    pub(crate) fn stops(&self) -> Stops {
        Stops {
            count: self.seen.count.load(Ordering::Relaxed),
            longest: Duration::from_nanos(self.seen.longest_ns.load(Ordering::Relaxed)),
        }
    }
}

impl StopCounts {
    /// Counts the stops of this thread until `ended` is set. A stop is a sleep that took more than
    /// [`STOP`] longer than requested.
    fn watch(&self) {
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), WATCH_NICE);
        let mut last = Instant::now();
        while !self.ended.load(Ordering::Relaxed) {
            std::thread::sleep(WATCH_PERIOD);
            let now = Instant::now();
            let late = (now - last).saturating_sub(WATCH_PERIOD);
            if late > STOP {
                self.count.fetch_add(1, Ordering::Relaxed);
                self.longest_ns.fetch_max(late.as_nanos() as u64, Ordering::Relaxed);
            }
            last = now;
        }
    }
}

impl Drop for StopWatch {
    fn drop(&mut self) {
        self.seen.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_until_no_core_has_stopped_for_a_while() {
        let start = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let mut checks = 0;
        let settled = until_even(start, || {
            checks += 1;
            Duration::from_millis(1)
        });
        assert!(settled.even && checks == 1, "ten seconds without a stop are enough");
        assert_eq!(settled.longest_stop_ms, 1.0);
    }

    #[test]
    fn does_not_wait_for_ever() {
        let start = Instant::now().checked_sub(WAIT_MAX).unwrap();
        let settled = until_even(start, || Duration::from_millis(34));
        assert!(!settled.even);
        assert_eq!(settled.longest_stop_ms, 34.0);
        assert!(settled.seconds >= WAIT_MAX.as_secs_f64());
    }

    #[test]
    fn gaps_are_measured() {
        assert!(longest_gap(2, Duration::from_millis(20)) > Duration::ZERO);
    }

    #[test]
    fn the_watch_ends() {
        let mut watch = StopWatch::start();
        std::thread::sleep(Duration::from_millis(20));
        // The two figures are written one after the other, so they are read after the end.
        watch.seen.ended.store(true, Ordering::Relaxed);
        watch.thread.take().unwrap().join().unwrap();
        let stops = watch.stops();
        assert_eq!(stops.count == 0, stops.longest.is_zero());
    }
}
