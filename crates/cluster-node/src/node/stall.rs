//! Stall of a shard's local copy. The log cannot be applied if the local disk is full, or if the
//! next entry is damaged or of a newer version.
//!
//! `cluster::StallMark` decides on the service of the copy. The follower of the log and the
//! announcement of shards share the mark.

use std::time::Instant;

use base::{Error, ErrorKind};
use cluster::{CertainHolders, StallMark, StalledServiceChange};
use parking_lot::Mutex;

/// Cause of the stall of a local copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StallCause {
    /// The local disk is full.
    FullDisk,
    /// The log has an operation, or a format of an entry, that only a newer version of this program
    /// knows.
    UnknownOperation,
    /// The next entry of the log is damaged or lost, or the store is not the cluster's.
    UnreadableLog,
}

impl StallCause {
    /// Returns the cause that the error of an operation of the log shows. Returns `None` for an
    /// error that stalls no copy.
    pub(super) fn of(error: &Error) -> Option<StallCause> {
        match error.kind() {
            ErrorKind::StorageFull => Some(StallCause::FullDisk),
            ErrorKind::Unimplemented => Some(StallCause::UnknownOperation),
            _ => None,
        }
    }

    /// Returns the text of the log line for a new mark.
    pub(super) fn text(self) -> &'static str {
        match self {
            StallCause::FullDisk => {
                "the local disk is full, and the shard follows its log once there is space"
            }
            StallCause::UnknownOperation => {
                "the log has an entry of a newer version: upgrade this node, which then follows the log again"
            }
            StallCause::UnreadableLog => {
                "the log in the store is damaged: once the object is restored, the shard follows its log again"
            }
        }
    }
}

/// Cause of the mark of a local copy, and the message of the error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StallReport {
    pub(super) cause: StallCause,
    pub(super) reason: String,
}

/// Mark of a local copy that stalled and has not reached the end of the log since.
#[derive(Default)]
pub(super) struct CopyStall(Mutex<Option<StallWithReason>>);

struct StallWithReason {
    report: StallReport,
    mark: StallMark,
}

impl CopyStall {
    /// Marks the copy as stalled at `now`. Returns false if it has a mark of the same cause, which
    /// then stays. A mark of another cause gets this cause and keeps its times.
    pub(super) fn begin(&self, cause: StallCause, reason: &str, now: Instant) -> bool {
        let mut stall = self.0.lock();
        if stall.as_ref().is_some_and(|stall| stall.report.cause == cause) {
            return false;
        }
        let report = StallReport { cause, reason: reason.to_owned() };
        let mark = stall.take().map_or_else(|| StallMark::new(now), |stall| stall.mark);
        *stall = Some(StallWithReason { report, mark });
        true
    }

    /// Records at `now` that the next entry of a marked copy cannot be applied.
    pub(super) fn stop(&self, now: Instant) {
        if let Some(stall) = self.0.lock().as_mut() {
            stall.mark.stop(now);
        }
    }

    /// Records that no entry is tried again. The mark stays until the end of the log.
    pub(super) fn resume(&self) {
        if let Some(stall) = self.0.lock().as_mut() {
            stall.mark.resume();
        }
    }

    /// Removes the mark of a stalled copy. Returns false if the copy has none.
    pub(super) fn end(&self) -> bool {
        self.0.lock().take().is_some()
    }

    /// Returns true if the copy has a mark.
    pub(super) fn is_marked(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Returns the reason of the mark, or `None` without a mark.
    pub(super) fn reason(&self) -> Option<String> {
        self.report().map(|report| report.reason)
    }

    /// Returns the cause of the mark and its reason, or `None` without a mark.
    pub(super) fn report(&self) -> Option<StallReport> {
        self.0.lock().as_ref().map(|stall| stall.report.clone())
    }

    /// Decides on the service of the copy at `now`, as [`StallMark::decide`]. Returns `None` also
    /// without a mark.
    pub(super) fn decide(
        &self,
        view: &CertainHolders<'_>,
        is_served: bool,
        now: Instant,
    ) -> Option<StalledServiceChange> {
        self.0.lock().as_mut()?.mark.decide(view, is_served, now)
    }
}

#[cfg(test)]
mod tests {
    use cluster::{HolderReading, STALL_DECISION_DELAY};

    use super::*;

    #[test]
    fn the_first_reason_stays_until_the_end() {
        let marked = Instant::now();
        let stall = CopyStall::default();
        let full = StallCause::FullDisk;
        assert!(stall.begin(full, "first", marked));
        assert!(!stall.begin(full, "second", marked + STALL_DECISION_DELAY));
        assert_eq!(stall.reason().as_deref(), Some("first"));
        let own = HolderReading { node: "a", serves: true, is_damaged: true };
        let whole = HolderReading { node: "b", serves: true, is_damaged: false };
        let decide = |now| {
            let holders = [own, whole];
            stall.decide(
                &CertainHolders { own: "a", holders: &holders, requested_at: now },
                true,
                now,
            )
        };
        let withdrawn = marked + STALL_DECISION_DELAY;
        assert_eq!(decide(withdrawn), Some(StalledServiceChange::Withdraw), "since the first mark");
        assert!(stall.end());
        assert!(!stall.end());
        assert_eq!(decide(withdrawn + STALL_DECISION_DELAY), None, "it has no mark");
    }

    #[test]
    fn a_restored_copy_without_a_mark_is_not_stopped() {
        let marked = Instant::now();
        let stall = CopyStall::default();
        stall.stop(marked);
        assert!(stall.begin(StallCause::FullDisk, "a restored copy has no space", marked));
        let own = HolderReading { node: "a", serves: true, is_damaged: true };
        let now = marked + STALL_DECISION_DELAY;
        let view = CertainHolders { own: "a", holders: &[own], requested_at: now };
        assert_eq!(stall.decide(&view, false, now), None, "no entry waits");
    }

    #[test]
    fn another_cause_keeps_the_times_of_the_mark() {
        let marked = Instant::now();
        let stall = CopyStall::default();
        assert!(stall.begin(StallCause::FullDisk, "full", marked));
        let later = marked + STALL_DECISION_DELAY;
        assert!(stall.begin(StallCause::UnknownOperation, "unknown", later));
        let unknown =
            StallReport { cause: StallCause::UnknownOperation, reason: "unknown".to_owned() };
        assert_eq!(stall.report(), Some(unknown));
        let own = HolderReading { node: "a", serves: true, is_damaged: true };
        let whole = HolderReading { node: "b", serves: true, is_damaged: false };
        let view = CertainHolders { own: "a", holders: &[own, whole], requested_at: later };
        assert_eq!(stall.decide(&view, true, later), Some(StalledServiceChange::Withdraw));
    }

    #[test]
    fn errors_of_this_version_stall_no_copy() {
        let stalling = [Error::storage_full("x"), Error::unimplemented("x")];
        let causes = stalling.each_ref().map(StallCause::of);
        assert_eq!(causes, [Some(StallCause::FullDisk), Some(StallCause::UnknownOperation)]);
        for other in [Error::invalid("x"), Error::data_loss("x"), Error::internal("x")] {
            assert_eq!(StallCause::of(&other), None);
        }
    }
}
