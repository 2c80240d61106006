//! Waiting until the machine runs evenly, and counting when it does not.
//!
//! A virtual machine whose balloon reports free pages hands memory that processes have freed back
//! to its host: a sixteenth of what is free every two seconds (`mm/page_reporting.c` of Linux), so
//! for about half a minute after a process with gigabytes has ended. Where the host bounds the
//! machine's processor time, that work is taken from it, and all cores stop at once: after 6 GiB
//! were freed, for 34 ms of every 100, three times every two seconds, during half a minute. A guest
//! sees neither steal nor a busy core meanwhile, only that nothing moves. An arm that comes right
//! after one which frees much would be charged for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Longer than this is a stop. Threads that share a core take turns of 3 ms.
const STOP: Duration = Duration::from_millis(10);
/// The machine is even when this much time has passed without a stop: reports are two to four
/// seconds apart.
const EVEN_FOR: Duration = Duration::from_secs(5);
/// One look.
const LOOK: Duration = Duration::from_millis(500);
/// Waits no longer than this: on some machines it never gets better.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The time between two looks of a [`StopWatch`].
const WATCH_PERIOD: Duration = Duration::from_millis(5);
/// The priority that its thread asks for, so that it waits for nobody but the machine.
const WATCH_NICE: i32 = -20;

/// How long it took until the machine was even.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SettleTime {
    /// Seconds waited.
    pub seconds: f64,
    /// The longest that a core stood still meanwhile.
    pub longest_stop_ms: f64,
    /// False where it was not even after a minute.
    pub even: bool,
}

/// Keeps all cores busy until none of them has stopped for five seconds, a minute at most.
pub fn settle() -> SettleTime {
    let cores = crate::machine::cores();
    until_even(Instant::now(), || longest_gap(cores, LOOK))
}

fn until_even(start: Instant, mut look: impl FnMut() -> Duration) -> SettleTime {
    let (mut longest, mut even_since) = (Duration::ZERO, start);
    loop {
        let gap = look();
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

/// The longest time between two looks at the clock of threads that do nothing else, one a core.
fn longest_gap(cores: usize, time: Duration) -> Duration {
    let spin = || {
        let start = Instant::now();
        let (mut last, mut longest) = (start, Duration::ZERO);
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

/// When the machine stood still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// Times that a core stood still for more than 10 ms.
    pub count: u64,
    /// The longest of them.
    pub longest: Duration,
}

/// Counts stops from its making until it is dropped: a thread of the highest ordinary priority
/// wakes every 5 ms, and is late where the machine stood still (or where the system refuses the
/// priority and all cores were busy).
#[derive(Debug)]
pub struct StopWatch {
    seen: Arc<StopCounts>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct StopCounts {
    ended: AtomicBool,
    count: AtomicU64,
    longest_ns: AtomicU64,
}

impl StopWatch {
    /// Begins to count. Where no thread can be had, nothing is counted.
    pub fn start() -> StopWatch {
        let seen = Arc::new(StopCounts::default());
        let watched = Arc::clone(&seen);
        let thread = std::thread::Builder::new()
            .name("stop-watch".into())
            .spawn(move || watched.watch())
            .ok();
        StopWatch { seen, thread }
    }

    /// What was counted so far.
    pub fn stops(&self) -> Stops {
        Stops {
            count: self.seen.count.load(Ordering::Relaxed),
            longest: Duration::from_nanos(self.seen.longest_ns.load(Ordering::Relaxed)),
        }
    }
}

impl StopCounts {
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
        let mut looks = 0;
        let settled = until_even(start, || {
            looks += 1;
            Duration::from_millis(1)
        });
        assert!(settled.even && looks == 1, "ten seconds without a stop are enough");
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
        let watch = StopWatch::start();
        std::thread::sleep(Duration::from_millis(20));
        let stops = watch.stops();
        assert_eq!(stops.count == 0, stops.longest.is_zero());
    }
}
