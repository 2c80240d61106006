//! A load that was requested to stop. A thread inside an engine sees the request after the engine
//! has returned, and no thread can be ended from outside. Until then the load keeps its memory, and
//! the version is not loaded a second time. The load thread waits at most a minute for it.

use std::time::{Instant, SystemTime};

use base::UtcTime;

use crate::LOAD_STOP_LONG;

/// Request to a load thread to end its load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadStop {
    at: Instant,
    /// The same as wall-clock time, for display.
    at_time: SystemTime,
    /// True once the load was reported because it did not end in time.
    reported: bool,
}

impl LoadStop {
    /// Returns a request of this moment.
    pub(super) fn now() -> LoadStop {
        LoadStop { at: Instant::now(), at_time: SystemTime::now(), reported: false }
    }

    /// Returns true, once, if the load has not ended for [`LOAD_STOP_LONG`].
    pub(super) fn take_slow(&mut self, now: Instant) -> bool {
        let slow = !self.reported && now.saturating_duration_since(self.at) >= LOAD_STOP_LONG;
        self.reported |= slow;
        slow
    }

    /// Returns the remark in the status of the version.
    pub(super) fn note(&self) -> String {
        format!(
            "its load was stopped at {} and has not ended; it keeps its memory until the engine \
             returns",
            UtcTime::of(self.at_time)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_does_not_stop_is_reported_once() {
        let mut stop = LoadStop::now();
        let note = stop.note();
        assert!(note.starts_with("its load was stopped at 2"), "{note}");
        let at = stop.at;
        assert!(!stop.take_slow(at));
        assert!(stop.take_slow(at + LOAD_STOP_LONG));
        assert!(!stop.take_slow(at + LOAD_STOP_LONG * 2), "only once");
    }
}
