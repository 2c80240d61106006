//! Time between the listings of a store.

use std::time::Duration;

/// Longest time between two listings, unless `--poll` is longer.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Longest `--poll` that has an effect. The clock has no end of a much longer one.
const POLL_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Returns the time to the next listing. `pause` is the time before this one, `poll` the shortest
/// time, and `changed` is true if the listing differed from the one before.
pub(super) fn next_pause(pause: Duration, poll: Duration, changed: bool) -> Duration {
    let poll = poll.min(POLL_MAX);
    let next = if changed { poll } else { pause.saturating_mul(2) };
    next.min(PAUSE_MAX.max(poll))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    /// Counts the listings of a day in which `changes` versions arrive at equal distances.
    fn listings(poll: Duration, changes: u32) -> u32 {
        let mut now = Duration::ZERO;
        let mut pause = poll;
        let mut count = 0;
        let mut seen = 0;
        while now < DAY {
            count += 1;
            let arrived = (now.as_secs_f64() / DAY.as_secs_f64() * f64::from(changes + 1)) as u32;
            pause = next_pause(pause, poll, arrived > seen);
            seen = arrived;
            now += pause;
        }
        count
    }

    #[test]
    fn a_day_has_at_most_1500_listings() {
        let second = Duration::from_secs(1);
        assert_eq!(listings(second, 0), 1444);
        assert!(listings(second, 8) <= 1500, "{}", listings(second, 8));
        assert!(listings(Duration::from_millis(5), 0) <= 1460);
        // A longer poll is kept.
        assert_eq!(listings(Duration::from_secs(300), 0), 288);
    }

    /// TensorFlow Serving's flag takes any 64-bit number of seconds.
    #[test]
    fn the_longest_poll_ends_within_the_clock() {
        let poll = Duration::from_secs(i64::MAX.unsigned_abs());
        for changed in [true, false] {
            let pause = next_pause(poll, poll, changed);
            assert_eq!(pause, POLL_MAX);
            assert!(std::time::Instant::now().checked_add(pause).is_some());
        }
    }

    #[test]
    fn a_change_is_followed_at_the_poll() {
        let poll = Duration::from_secs(2);
        assert_eq!(next_pause(PAUSE_MAX, poll, true), poll);
        assert_eq!(next_pause(poll, poll, false), 2 * poll);
        assert_eq!(next_pause(PAUSE_MAX, poll, false), PAUSE_MAX);
    }
}
