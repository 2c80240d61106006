//! Pacing background work, so that it never takes a burst of memory bandwidth, disk or page
//! clearing at once.
//!
//! There is no bucket that fills while nobody works: a pause earns no credit, because a burst after
//! a pause is exactly what pacing is there to prevent.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Bytes per second, or no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(f64);

impl Rate {
    /// No limit.
    pub fn unlimited() -> Rate {
        Rate(f64::INFINITY)
    }

    /// At most so many bytes a second; 0 means no limit.
    pub fn per_second(bytes: u64) -> Rate {
        if bytes == 0 { Rate::unlimited() } else { Rate(bytes as f64) }
    }

    /// Bytes a second; infinite without a limit.
    pub fn bytes_per_second(self) -> f64 {
        self.0
    }

    /// How long `bytes` take at this rate.
    pub fn duration_of(self, bytes: u64) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.0).unwrap_or(Duration::MAX)
    }
}

/// Hands out turns at a [`Rate`]. Shared by all threads whose work counts against the same rate.
#[derive(Debug)]
pub struct Pacer {
    rate: Rate,
    /// When the next turn may start.
    next: Mutex<Instant>,
}

impl Pacer {
    /// A pacer whose first turn is free.
    pub fn new(rate: Rate) -> Pacer {
        Pacer { rate, next: Mutex::new(Instant::now()) }
    }

    /// Sleeps until the calling thread may do work of `bytes`; call it before the work. The time
    /// that the work itself takes counts: the next turn starts `bytes / rate` after this one, or at
    /// once if that has passed.
    pub fn wait(&self, bytes: u64) {
        let now = Instant::now();
        let turn = self.turn(bytes, now);
        if turn > now {
            std::thread::sleep(turn - now);
        }
    }

    /// Takes the next turn and says when it starts. Not before `now`, so that nothing is ever
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
