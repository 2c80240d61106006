//! The delay before a worker process is started again.

use std::time::Duration;

/// Delay before the first start after an end. Doubled with every further one.
const DELAY_MIN: Duration = Duration::from_millis(50);
/// Longest delay before a start.
const DELAY_MAX: Duration = Duration::from_secs(10);
/// A process that ran for this long is started again without a longer delay.
const STABLE_TIME: Duration = Duration::from_secs(30);

/// Delay that grows with every start.
#[derive(Debug)]
pub(crate) struct RestartDelay(Duration);

impl RestartDelay {
    pub(crate) fn new() -> RestartDelay {
        RestartDelay(DELAY_MIN)
    }

    /// Returns the delay before the next start.
    pub(crate) fn get(&self) -> Duration {
        self.0
    }

    /// Doubles the delay, because of a start.
    pub(crate) fn double(&mut self) {
        self.0 = (self.0 * 2).min(DELAY_MAX);
    }

    /// Raises the delay to its maximum.
    pub(crate) fn raise(&mut self) {
        self.0 = DELAY_MAX;
    }

    /// Resets the delay if a process that has run for `time` was stable.
    pub(crate) fn note_run(&mut self, time: Duration) {
        if time >= STABLE_TIME {
            self.0 = DELAY_MIN;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_until_a_process_is_stable() {
        let mut delay = RestartDelay::new();
        delay.double();
        assert_eq!(delay.get(), 2 * DELAY_MIN);
        (0..20).for_each(|_| delay.double());
        assert_eq!(delay.get(), DELAY_MAX);
        delay.note_run(STABLE_TIME - Duration::from_millis(1));
        assert_eq!(delay.get(), DELAY_MAX);
        delay.note_run(STABLE_TIME);
        assert_eq!(delay.get(), DELAY_MIN);
    }
}
