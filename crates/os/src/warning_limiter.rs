//! A limit on the warnings about one kind of event.

use std::time::{Duration, Instant};

/// Shortest time between two warnings of the same kind.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Counter of events that are logged at most once in 10 seconds.
#[derive(Debug, Default)]
pub struct WarningLimiter {
    count: u64,
    last: Option<Instant>,
}

impl WarningLimiter {
    /// Counts an event at `now`. Returns the number of events since the last warning if it is time
    /// for the next.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < WARNING_INTERVAL) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_counted_and_limited() {
        let start = Instant::now();
        let mut warnings = WarningLimiter::default();
        assert_eq!(warnings.count(start), Some(1));
        for _ in 0..500 {
            assert_eq!(warnings.count(start + WARNING_INTERVAL / 2), None);
        }
        assert_eq!(warnings.count(start + WARNING_INTERVAL), Some(501));
    }
}
