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
    /// Error that was logged last.
    logged: Option<Error>,
}

impl ReopenPauses {
    pub(super) fn new() -> ReopenPauses {
        ReopenPauses { next: PAUSE_MIN, last: None, logged: None }
    }

    /// Records the error of a try, which followed the log for `followed`. Returns true if it has to
    /// be logged, because the error that was logged last is another one. At each start, the
    /// collections of this machine are opened one after the other. The errors of tries that did not
    /// open the collection are logged only if that takes long.
    pub(super) fn record(&mut self, error: &Error, followed: Duration) -> bool {
        if followed > PAUSE_MAX {
            *self = ReopenPauses::new();
        }
        self.last = Some(error.clone());
        let is_new = self.logged.as_ref() != Some(error);
        let is_early = followed.is_zero() && is_opening(error) && self.next < PAUSE_MAX;
        let is_due = is_new && !is_early;
        if is_due {
            self.logged = Some(error.clone());
        }
        is_due
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

/// Returns true for the error of a local collection that is being opened. Such an error has retry
/// advice.
fn is_opening(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && error.retry_after().is_some()
}
