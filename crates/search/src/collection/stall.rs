//! Write stalls: decides when background work no longer yields to queries. A flush escalates if
//! writers wait for it or if it takes too long. A merge escalates if too many segments wait.
//!
//! A thread of low priority gets almost no time on a machine that queries keep busy. Writers would
//! then block, and queries would scan ever more unflushed points and segments. Therefore threads of
//! ordinary priority take over the work and start it again.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Wait of a writer after which flushes are escalated.
const ESCALATE_AFTER: Duration = Duration::from_millis(250);
/// Flushes stay escalated this long after a writer waited. The next memtable will be full soon.
const ESCALATED_FOR: Duration = Duration::from_secs(10);

/// Speed of a flush or merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// At a limited rate. It ends as soon as the work is escalated.
    Paced,
    /// At full speed, until the work is done.
    Escalated,
}

/// Writers that wait for a flush. Decides when flushes are escalated.
#[derive(Debug, Default)]
pub(super) struct WriteStall(Mutex<StallState>);

/// Writes that found no room or were slowed down, in all collections together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StallStats {
    /// Writes that wait now.
    pub waiting: usize,
    /// Writes that have waited since the start, including waiting ones.
    pub waited: u64,
    /// Writes that were refused after waiting, or because another one had waited in vain.
    pub refused: u64,
    /// Writes that were slowed down to avoid longer waits.
    pub slowed: u64,
    /// True if flushes are escalated.
    pub escalated: bool,
}

/// State of the writers that wait for room.
#[derive(Debug, Default)]
struct StallState {
    waiting: usize,
    waited: u64,
    refused: u64,
    slowed: u64,
    /// Number of events when the last writer was refused after waiting.
    vain: Option<u64>,
    since: Option<Instant>,
    until: Option<Instant>,
}

/// Guard of a waiting writer.
pub(super) struct StalledWrite<'a>(&'a WriteStall);

impl WriteStall {
    /// Counts a waiting writer until the guard is dropped.
    pub(super) fn wait(&self) -> StalledWrite<'_> {
        let mut state = self.0.lock();
        state.waiting += 1;
        state.waited += 1;
        state.since.get_or_insert_with(Instant::now);
        StalledWrite(self)
    }

    /// Counts a writer that is refused. This or another writer has waited in vain for an event
    /// after the first `seen` ones.
    pub(super) fn refuse(&self, seen: u64) {
        let mut state = self.0.lock();
        state.refused += 1;
        state.vain = Some(seen);
    }

    /// Returns true if a writer has waited in vain for an event after the first `seen` ones.
    pub(super) fn waited_in_vain(&self, seen: u64) -> bool {
        self.0.lock().vain == Some(seen)
    }

    /// Counts a writer that is slowed down, and escalates flushes if it waits for one. Returns true
    /// if they were not escalated before.
    pub(super) fn record_slowdown(&self, waits_for_flush: bool) -> bool {
        let escalates = waits_for_flush && !self.is_escalated();
        let mut state = self.0.lock();
        state.slowed += 1;
        if !waits_for_flush {
            return false;
        }
        state.until = Some(Instant::now() + ESCALATED_FOR);
        escalates
    }

    pub(super) fn stats(&self) -> StallStats {
        let escalated = self.is_escalated();
        let state = self.0.lock();
        let StallState { waiting, waited, refused, slowed, .. } = *state;
        StallStats { waiting, waited, refused, slowed, escalated }
    }

    /// Returns true if a writer waits.
    pub(super) fn has_waiting(&self) -> bool {
        self.0.lock().waiting > 0
    }

    /// Returns true if flushes are escalated.
    pub(super) fn is_escalated(&self) -> bool {
        let mut state = self.0.lock();
        let now = Instant::now();
        if state.since.is_some_and(|since| now - since >= ESCALATE_AFTER) {
            state.until = Some(now + ESCALATED_FOR);
        }
        state.until.is_some_and(|until| now < until)
    }
}

impl Drop for StalledWrite<'_> {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
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
    fn long_waits_escalate() {
        let stall = WriteStall::default();
        let before = Instant::now();
        let first = stall.wait();
        let second = stall.wait();
        assert!(stall.has_waiting() && stall.0.lock().since >= Some(before));
        // The test sets the start of the wait, because its thread may be paused at any time.
        stall.0.lock().since = Some(Instant::now() + Duration::from_secs(3600));
        assert!(!stall.is_escalated());
        stall.0.lock().since = Some(before);
        std::thread::sleep(ESCALATE_AFTER);
        assert!(stall.is_escalated());
        drop((first, second));
        assert!(!stall.has_waiting() && stall.is_escalated());
        assert_eq!(
            stall.stats(),
            StallStats { waited: 2, escalated: true, ..StallStats::default() }
        );
    }

    #[test]
    fn short_waits_do_not_escalate() {
        let stall = WriteStall::default();
        drop(stall.wait());
        assert!(!stall.is_escalated() && stall.0.lock().since.is_none());
        std::thread::sleep(ESCALATE_AFTER);
        let before = Instant::now();
        let _again = stall.wait();
        // Only the second wait counts.
        assert!(stall.0.lock().since >= Some(before));
    }
}
