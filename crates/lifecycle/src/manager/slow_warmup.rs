//! A warm-up that takes long. A generated request may make a model loop for ever, and until the
//! time limit of the load its thread loads no other model. The same version is not loaded again
//! before such a run has ended.

use std::time::SystemTime;

use crate::WARMUP_LONG;

/// Remark in the status of a version whose warm-up takes long, and in the log.
const REMARK: &str = "its warm-up or its golden requests have run for more than a minute, and its \
                      load thread loads no other model; if they do not end, unload the model, set \
                      enabled = false in [warmup], and publish a new version or restart the server";

/// Report about the warm-up of a load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlowWarmup {
    /// True once the warm-up was reported because it did not end in time.
    reported: bool,
}

impl SlowWarmup {
    /// Returns the remark, once, if a warm-up that began at `since` has run for [`WARMUP_LONG`].
    pub(super) fn take_remark(
        &mut self,
        since: SystemTime,
        now: SystemTime,
    ) -> Option<&'static str> {
        // A clock that was set back counts as no time.
        let elapsed = now.duration_since(since).unwrap_or_default();
        if self.reported || elapsed < WARMUP_LONG {
            return None;
        }
        self.reported = true;
        Some(REMARK)
    }

    /// Returns the remark if the warm-up was reported.
    pub(super) fn note(self) -> Option<String> {
        self.reported.then(|| REMARK.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_warmup_is_reported_once() {
        let since = SystemTime::now();
        let mut slow = SlowWarmup::default();
        assert_eq!((slow.take_remark(since, since), slow.note()), (None, None));
        assert_eq!(slow.take_remark(since + WARMUP_LONG, since), None, "the clock was set back");
        assert_eq!(slow.take_remark(since, since + WARMUP_LONG), Some(REMARK));
        assert_eq!(slow.take_remark(since, since + WARMUP_LONG * 2), None, "only once");
        assert_eq!(slow.note().as_deref(), Some(REMARK));
    }
}
