//! Pauses before a shard is opened again.

use std::time::Duration;

use base::{Error, ErrorKind};

use super::{PAUSE_MAX, PAUSE_MIN};

/// Longest pause while the store does not have all data of the shard, or while the local disk is
/// full, which does not change soon. Each try may transfer a snapshot.
pub(super) const LASTING_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Pauses before a shard is opened again.
pub(super) struct ReopenPauses {
    next: Duration,
    /// Error of the last try.
    last: Option<Error>,
}

impl ReopenPauses {
    pub(super) fn new() -> ReopenPauses {
        ReopenPauses { next: PAUSE_MIN, last: None }
    }

    /// Records the error of a try, which followed the log for `followed`. Returns true if it has to
    /// be logged, because the error of the try before was another one.
    pub(super) fn record(&mut self, error: &Error, followed: Duration) -> bool {
        if followed > PAUSE_MAX {
            *self = ReopenPauses::new();
        }
        let is_new = self.last.as_ref() != Some(error);
        self.last = Some(error.clone());
        is_new
    }

    /// Returns the next pause.
    pub(super) fn take(&mut self) -> Duration {
        let lasts =
            |error: &Error| matches!(error.kind(), ErrorKind::DataLoss | ErrorKind::StorageFull);
        let is_lasting = self.last.as_ref().is_some_and(lasts);
        let longest = if is_lasting { LASTING_PAUSE_MAX } else { PAUSE_MAX };
        let pause = self.next.min(longest);
        self.next = pause * 2;
        pause
    }
}
