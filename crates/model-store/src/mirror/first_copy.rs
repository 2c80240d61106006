//! Copies of stores that were never copied. The server is not ready before they are complete.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use tokio::sync::watch;

use super::{StoreMirror, SyncOutcome};
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

    /// Checks the stores in turn. A version without a manifest must stay the same for a time, and
    /// thousands of stores would otherwise wait for this time one after another.
    pub(super) async fn copy_first(&mut self) -> Result<()> {
        let is_missing = |at: &usize| !self.stores.slots[*at].is_synced();
        let mut missing: Vec<MissingCopy> =
            (0..self.stores.slots.len()).filter(is_missing).map(MissingCopy::new).collect();
        // The first of those with the same time, so that each store is checked before any again.
        while let Some(next) = (0..missing.len()).min_by_key(|&index| missing[index].next) {
            let mut copy = missing.remove(next);
            tokio::time::sleep_until(copy.next.into()).await;
            let store = self.stores.slots[copy.at].label.clone();
            self.stores.first_copy.send_replace(FirstCopy::Running(store));
            match self.first_copy_of(&mut copy).await {
                Ok(true) => {}
                Ok(false) => missing.push(copy),
                Err(error) => {
                    self.stores.first_copy.send_replace(FirstCopy::Failed(error.clone()));
                    return Err(error);
                }
            }
        }
        self.stores.first_copy.send_replace(FirstCopy::Done);
        self.stores.report(&self.context);
        Ok(())
    }

    /// Checks a store once. Returns true if it is copied, or if the rest is copied while the others
    /// serve. Otherwise sets the time of the next check.
    async fn first_copy_of(&mut self, copy: &mut MissingCopy) -> Result<bool> {
        let until = *copy.until.get_or_insert_with(|| {
            let store = &*self.stores.slots[copy.at].label;
            tracing::info!(store, "copying its models for the first time");
            Instant::now() + self.context.config.settle + SETTLE_SLACK
        });
        let failed = match self.sync(copy.at).await {
            Ok(SyncOutcome { pending: false, .. }) => return Ok(true),
            Ok(SyncOutcome { failed, .. }) => failed,
            Err(error) => {
                if error.kind() != ErrorKind::Unavailable || copy.failures + 1 == FAILURES_MAX {
                    return Err(error);
                }
                true
            }
        };
        copy.failures += u32::from(failed);
        copy.next = Instant::now() + pause_after(failed, self.context.config.poll);
        Ok(copy.failures == FAILURES_MAX || (!failed && Instant::now() > until))
    }
}

/// A store that has not been copied.
struct MissingCopy {
    /// Position of its follower.
    at: usize,
    failures: u32,
    /// Time after which the rest is copied while the others serve; `None` before the first check.
    until: Option<Instant>,
    /// Time of the next check.
    next: Instant,
}

impl MissingCopy {
    fn new(at: usize) -> MissingCopy {
        MissingCopy { at, failures: 0, until: None, next: Instant::now() }
    }
}

/// Returns the time to the next try. A store that fails has up to a minute to recover, because the
/// last failure ends the server.
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
