//! When background work may no longer give way to queries: sealing where writers wait for it or where it takes too long,
//! merging where segments pile up.
//!
//! Who works at low priority gets next to nothing of a machine that queries keep busy. Then nobody could write, and queries
//! would go through ever more points one by one, and through ever more segments. So there are second threads, of ordinary
//! priority, which begin anew what the first ones give up.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Writers wait so long before sealing is hurried.
const ESCALATE_AFTER: Duration = Duration::from_millis(250);
/// Sealing stays hurried for so long after a writer waited, as the next part is soon full too.
const ESCALATED_FOR: Duration = Duration::from_secs(10);

/// How a part is sealed, or segments are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Paced, and left to others as soon as it has to be hurried.
    Paced,
    /// At full speed, whether or not anybody waits.
    Escalated,
}

/// Who waits, and since when.
#[derive(Debug, Default)]
pub(super) struct WriteStall(Mutex<StallState>);

/// Writes that found no room or were slowed down, of all collections together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StallStats {
    /// Those that wait.
    pub waiting: usize,
    /// Those that have waited or still do.
    pub waited: u64,
    /// Those that were refused in the end.
    pub refused: u64,
    /// Writes that were slowed down beforehand, so that others need not wait for long.
    pub slowed: u64,
    /// Whether sealing is hurried.
    pub escalated: bool,
}

#[derive(Debug, Default)]
struct StallState {
    waiting: usize,
    waited: u64,
    refused: u64,
    slowed: u64,
    since: Option<Instant>,
    until: Option<Instant>,
}

/// A writer that waits.
pub(super) struct StalledWrite<'a>(&'a WriteStall);

impl WriteStall {
    fn lock(&self) -> std::sync::MutexGuard<'_, StallState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A writer waits, until this is dropped.
    pub(super) fn wait(&self) -> StalledWrite<'_> {
        let mut state = self.lock();
        state.waiting += 1;
        state.waited += 1;
        state.since.get_or_insert_with(Instant::now);
        StalledWrite(self)
    }

    /// A writer waited in vain.
    pub(super) fn refuse(&self) {
        self.lock().refused += 1;
    }

    /// A writer is slowed down, because together they are faster than sealing at full speed. Whether that brings hurry which was
    /// not there before.
    pub(super) fn record_slowdown(&self) -> bool {
        let fresh = !self.is_escalated();
        let mut state = self.lock();
        state.slowed += 1;
        state.until = Some(Instant::now() + ESCALATED_FOR);
        fresh
    }

    /// What there is to say of it.
    pub(super) fn stats(&self) -> StallStats {
        let escalated = self.is_escalated();
        let state = self.lock();
        let StallState { waiting, waited, refused, slowed, .. } = *state;
        StallStats { waiting, waited, refused, slowed, escalated }
    }

    /// Whether a writer waits.
    pub(super) fn is_awaited(&self) -> bool {
        self.lock().waiting > 0
    }

    /// Whether sealing is hurried.
    pub(super) fn is_escalated(&self) -> bool {
        let (mut state, now) = (self.lock(), Instant::now());
        if state.since.is_some_and(|since| now - since >= ESCALATE_AFTER) {
            state.until = Some(now + ESCALATED_FOR);
        }
        state.until.is_some_and(|until| now < until)
    }
}

impl Drop for StalledWrite<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.waiting -= 1;
        if state.waiting == 0 {
            state.since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_long_brings_hurry_which_lasts() {
        let stall = WriteStall::default();
        let (first, second) = (stall.wait(), stall.wait());
        assert!(stall.is_awaited() && !stall.is_escalated());
        std::thread::sleep(ESCALATE_AFTER);
        assert!(stall.is_escalated());
        drop((first, second));
        assert!(!stall.is_awaited() && stall.is_escalated());
        assert_eq!(stall.stats(), StallStats { waited: 2, escalated: true, ..StallStats::default() });
    }

    #[test]
    fn short_waits_bring_none() {
        let stall = WriteStall::default();
        drop(stall.wait());
        std::thread::sleep(ESCALATE_AFTER);
        let _again = stall.wait();
        assert!(!stall.is_escalated());
    }
}
