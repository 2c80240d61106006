//! Pacing of background work, so that it never takes a burst of memory bandwidth, disk or page
//! clearing.
//!
//! A pause earns no credit, unlike in a token bucket, because pacing exists to prevent the burst
//! after a pause.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A rate in bytes per second, or no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(f64);

impl Rate {
    /// Returns the rate without a limit.
    pub fn unlimited() -> Rate {
        Rate(f64::INFINITY)
    }

    /// Returns a rate of `bytes` per second. 0 means no limit.
    pub fn per_second(bytes: u64) -> Rate {
        if bytes == 0 { Rate::unlimited() } else { Rate(bytes as f64) }
    }

    /// Returns the time of `bytes` at this rate.
    fn duration_of(self, bytes: u64) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.0).unwrap_or(Duration::MAX)
    }
}

/// Schedules work at a [`Rate`]. Shared by all threads whose work counts against the same rate.
#[derive(Debug)]
pub struct Pacer {
    rate: Rate,
    /// Earliest start of the next work.
    next: Mutex<Instant>,
}

impl Pacer {
    /// Creates a pacer whose first work starts at once.
    pub fn new(rate: Rate) -> Pacer {
        Pacer { rate, next: Mutex::new(Instant::now()) }
    }

    /// Sleeps until the calling thread may do work of `bytes`. Call it before the work. The next
    /// work starts `bytes / rate` after this one, or at once if this one takes longer.
    pub fn wait(&self, bytes: u64) {
        let now = Instant::now();
        let turn = self.turn(bytes, now);
        if turn > now {
            std::thread::sleep(turn - now);
        }
    }

    /// Reserves the start of work of `bytes` and returns it, for callers that must not block.
    /// Otherwise as [`Pacer::wait`].
    pub fn reserve(&self, bytes: u64) -> Instant {
        self.turn(bytes, Instant::now())
    }

    /// Reserves the next start and returns it. It is never before `now`, so that lost time is not
    /// caught up.
    fn turn(&self, bytes: u64, now: Instant) -> Instant {
        let mut next = self.next.lock();
        let turn = (*next).max(now);
        *next = turn.checked_add(self.rate.duration_of(bytes)).unwrap_or(turn);
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn turns_follow_the_rate() {
        let pacer = Pacer::new(Rate::per_second(100));
        let now = Instant::now() + SECOND;
        assert_eq!(pacer.turn(50, now), now);
        assert_eq!(pacer.turn(100, now), now + SECOND / 2);
        assert_eq!(pacer.turn(1, now), now + SECOND * 3 / 2);
    }

    #[test]
    fn a_pause_earns_no_burst() {
        let pacer = Pacer::new(Rate::per_second(100));
        let late = Instant::now() + 1000 * SECOND;
        assert_eq!(pacer.turn(100, late), late);
        assert_eq!(pacer.turn(100, late), late + SECOND);
    }

    #[test]
    fn no_limit_never_waits() {
        for rate in [Rate::unlimited(), Rate::per_second(0)] {
            let pacer = Pacer::new(rate);
            let now = Instant::now() + SECOND;
            assert_eq!(pacer.turn(u64::MAX, now), now);
            assert_eq!(pacer.turn(u64::MAX, now), now);
        }
    }
}
