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
        self.first_copy.subscribe()
    }

    /// Copies the stores that have never been copied. A model that cannot be copied is logged and
    /// left out. Blocks the thread. For tests.
    ///
    /// # Errors
    /// Returns the store's error if it cannot be listed.
    pub fn copy_first_now(&mut self) -> Result<()> {
        block_on(self.copy_first())
    }

    pub(super) async fn copy_first(&mut self) -> Result<()> {
        for at in 0..self.followers.len() {
            if self.followers[at].cache.is_synced() {
                continue;
            }
            self.first_copy.send_replace(FirstCopy::Running(self.followers[at].label()));
            if let Err(error) = self.first_copy_of(at).await {
                self.first_copy.send_replace(FirstCopy::Failed(error.clone()));
                return Err(error);
            }
        }
        self.first_copy.send_replace(FirstCopy::Done);
        self.report();
        Ok(())
    }

    async fn first_copy_of(&mut self, at: usize) -> Result<()> {
        let store = self.followers[at].label();
        tracing::info!(store = &*store, "copying its models for the first time");
        let until = Instant::now() + self.config.settle + SETTLE_SLACK;
        let mut failures = 0;
        loop {
            let failed = match self.sync(at).await {
                Ok(SyncOutcome { pending: false, .. }) => return Ok(()),
                Ok(SyncOutcome { failed, .. }) => failed,
                Err(error) => {
                    if error.kind() != ErrorKind::Unavailable || failures + 1 == FAILURES_MAX {
                        return Err(error);
                    }
                    true
                }
            };
            failures += u32::from(failed);
            // The rest is copied while the others serve.
            if failures == FAILURES_MAX || (!failed && Instant::now() > until) {
                return Ok(());
            }
            tokio::time::sleep(pause_after(failed, self.config.poll)).await;
        }
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
