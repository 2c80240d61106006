//! Copies of stores that were never copied. The server is not ready before they are complete.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use tokio::sync::watch;

use super::checks::{EndedCheck, RunningChecks};
use super::{MirroredStores, StoreMirror, SyncContext, SyncOutcome};
use crate::place::block_on;

/// Failures after which the server continues with the copies that it has, or fails if it has no
/// listing.
const FAILURES_MAX: u32 = 3;
/// Shortest time between two tries.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest time between two listings, since the server is not ready before the last one.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Longest time between two tries after a failure.
const FAILURE_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Time beyond [`super::MirrorConfig::settle`] for versions that change meanwhile.
const SETTLE_SLACK: Duration = Duration::from_secs(5);

/// State of the first copies of a mirror.
#[derive(Clone, Debug)]
pub enum FirstCopy {
    /// The models of this store are being copied.
    Running(Arc<str>),
    /// No store is left.
    Done,
    /// A store could not be listed.
    Failed(Error),
}

impl StoreMirror {
    /// Returns the state of the first copies, which [`StoreMirror::follow`] makes.
    pub fn first_copy(&self) -> watch::Receiver<FirstCopy> {
        self.stores.first_copy.subscribe()
    }

    /// Copies the stores that have never been copied. A model that cannot be copied is logged and
    /// left out. Blocks the thread. For tests.
    ///
    /// # Errors
    /// Returns the store's error if it cannot be listed.
    pub fn copy_first_now(&mut self) -> Result<()> {
        block_on(self.copy_first())
    }

    /// Checks several stores at the same time, so that a store that does not answer delays no other
    /// one. A version without a manifest must stay the same for a time, and thousands of stores
    /// would otherwise wait for this time one after another.
    pub(super) async fn copy_first(&mut self) -> Result<()> {
        let StoreMirror { context, stores } = self;
        let context: &SyncContext = context;
        let mut running = RunningChecks::default();
        let is_missing = |at: &usize| !stores.slots[*at].is_synced();
        let mut missing: Vec<MissingCopy> =
            (0..stores.slots.len()).filter(is_missing).map(MissingCopy::new).collect();
        loop {
            stores.start_first_copies(context, &mut running, &mut missing);
            let Some(shown) = missing.iter().find(|copy| copy.is_running).or(missing.first())
            else {
                break;
            };
            let store = stores.slots[shown.at].label.clone();
            stores.first_copy.send_replace(FirstCopy::Running(store));
            let due = missing.iter().filter(|copy| !copy.is_running).map(|copy| copy.next);
            let due = due.min().filter(|_| !running.is_full());
            let ended = tokio::select! {
                ended = running.next() => ended,
                () = wait_until(due) => continue,
            };
            let EndedCheck { follower, request, outcome } = ended;
            let at = stores.end_check(context, follower, request);
            let Some(index) = missing.iter().position(|copy| Some(copy.at) == at) else {
                continue;
            };
            match missing[index].end_check(outcome, context.config.poll) {
                Ok(true) => {
                    missing.remove(index);
                }
                Ok(false) => {}
                Err(error) => {
                    stores.first_copy.send_replace(FirstCopy::Failed(error.clone()));
                    return Err(error);
                }
            }
        }
        stores.first_copy.send_replace(FirstCopy::Done);
        stores.report(context);
        Ok(())
    }
}

impl MirroredStores {
    /// Starts checks of the stores that are due, the longest due first.
    fn start_first_copies<'a>(
        &mut self,
        context: &'a SyncContext,
        running: &mut RunningChecks<'a>,
        missing: &mut [MissingCopy],
    ) {
        let now = Instant::now();
        while !running.is_full() {
            let due = missing.iter_mut().filter(|copy| !copy.is_running && copy.next <= now);
            let Some(copy) = due.min_by_key(|copy| copy.next) else { return };
            let slot = &mut self.slots[copy.at];
            if copy.until.is_none() {
                tracing::info!(store = &*slot.label, "copying its models for the first time");
                copy.until = Some(now + context.config.settle + SETTLE_SLACK);
            }
            copy.is_running = true;
            if let Some(follower) = slot.begin_check(now) {
                running.start(follower, 0, context);
            }
        }
    }
}

/// Waits until `due`, for ever if it is `None`.
async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// A store that has not been copied.
struct MissingCopy {
    /// Position of its slot.
    at: usize,
    failures: u32,
    /// Time after which the rest is copied while the others serve, or `None` before the first
    /// check.
    until: Option<Instant>,
    /// Time of the next check.
    next: Instant,
    is_running: bool,
}

impl MissingCopy {
    fn new(at: usize) -> MissingCopy {
        MissingCopy { at, failures: 0, until: None, next: Instant::now(), is_running: false }
    }

    /// Takes the outcome of a check. Returns true if the store is copied, or if the rest is copied
    /// while the others serve. Otherwise sets the time of the next check.
    ///
    /// # Errors
    /// The error of the check if no further one is made.
    fn end_check(&mut self, outcome: Result<SyncOutcome>, poll: Duration) -> Result<bool> {
        self.is_running = false;
        let failed = match outcome {
            Ok(SyncOutcome { pending: false, .. }) => return Ok(true),
            Ok(SyncOutcome { failed, .. }) => failed,
            Err(error) => {
                if error.kind() != ErrorKind::Unavailable || self.failures + 1 == FAILURES_MAX {
                    return Err(error);
                }
                true
            }
        };
        self.failures += u32::from(failed);
        let now = Instant::now();
        self.next = now + pause_after(failed, poll);
        let is_late = self.until.is_some_and(|until| now > until);
        Ok(self.failures == FAILURES_MAX || (!failed && is_late))
    }
}

/// Returns the time to the next try. `failed` is true if the last try failed. The store then has up
/// to a minute to recover, because the last failure ends the server.
fn pause_after(failed: bool, poll: Duration) -> Duration {
    poll.clamp(PAUSE_MIN, if failed { FAILURE_PAUSE_MAX } else { PAUSE_MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_store_is_tried_again_at_the_poll() {
        let second = Duration::from_secs(1);
        assert_eq!(pause_after(true, 30 * second), 30 * second);
        assert_eq!(pause_after(true, 3600 * second), FAILURE_PAUSE_MAX);
        assert_eq!(pause_after(false, 3600 * second), second);
        for failed in [true, false] {
            assert_eq!(pause_after(failed, second), second);
            assert_eq!(pause_after(failed, Duration::ZERO), PAUSE_MIN);
        }
    }
}
