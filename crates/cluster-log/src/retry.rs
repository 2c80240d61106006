//! Repeated requests to the store: pauses, and one line in the journal for an outage.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use base::Error;
use parking_lot::Mutex;

/// Shortest and longest pause between tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RetryPauses {
    pub(super) min: Duration,
    pub(super) max: Duration,
}

impl RetryPauses {
    /// Returns the pause after `failures` failures. It doubles with each failure after the first. A
    /// random part of up to a half is subtracted, so that many writers do not try at the same
    /// moment.
    pub(super) fn after(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(16);
        let full = self.min.saturating_mul(1 << doublings).min(self.max);
        // The hash's key is random and new in each call.
        let random = RandomState::new().hash_one(failures);
        let share = 0.5 + (random % 1024) as f64 / 2048.0;
        full.mul_f64(share)
    }
}

/// Last failure of the store, as one writer sees it.
#[derive(Debug)]
pub(super) struct StoreHealth {
    shard: String,
    error: Mutex<Option<Error>>,
}

impl StoreHealth {
    /// Creates the state of a store that works. `shard` is for messages.
    pub(super) fn new(shard: &str) -> StoreHealth {
        StoreHealth { shard: shard.to_owned(), error: Mutex::default() }
    }

    /// Records a failure. Logs the first since the store worked.
    pub(super) fn record_failure(&self, error: &Error) {
        let before = self.error.lock().replace(error.clone());
        if before.is_none() {
            let shard = &*self.shard;
            tracing::warn!(shard, %error, "the writer of a log tries a request again");
        }
    }

    /// Records that the store created an entry or listed the floors.
    pub(super) fn record_success(&self) {
        let before = self.error.lock().take();
        if before.is_some() {
            tracing::info!(shard = &*self.shard, "the writer of a log reaches the store again");
        }
    }

    /// Returns the last failure if the store has not worked since.
    pub(super) fn error(&self) -> Option<Error> {
        self.error.lock().clone()
    }
}

/// Tries of one read, which is repeated until it succeeds.
#[derive(Debug)]
pub(super) struct Retry {
    pauses: RetryPauses,
    health: Arc<StoreHealth>,
    failures: u32,
}

impl Retry {
    pub(super) fn new(pauses: RetryPauses, health: Arc<StoreHealth>) -> Retry {
        Retry { pauses, health, failures: 0 }
    }

    /// Records a failure and waits before the next try.
    pub(super) async fn pause(&mut self, error: &Error) {
        self.health.record_failure(error);
        self.failures = self.failures.saturating_add(1);
        tokio::time::sleep(self.pauses.after(self.failures)).await;
    }
}
