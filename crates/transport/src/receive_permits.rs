//! The places of requests whose body is still on its way.
//!
//! A client that sends a request's head and then nothing must not hold one of the places of requests being answered: a
//! thousand of these cost it a thousand packets. A request takes such a place only once its body is complete. A request
//! whose body is there, or comes at once, needs no other place. One that has to wait for its body is one of a larger number
//! that are being received, so that requests which never end cannot keep out those that come whole. That concerns HTTP/2, where a
//! connection has many requests; over HTTP/1.1 the number of connections is the limit.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use metrics::{KindLabels, Metrics};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::app::App;

/// Requests that may be received for each one that may be answered. A request that is being received holds a stream and
/// the bytes that have come, which the memory of requests in flight bounds.
const RECEIVING_PER_ANSWERED_MAX: usize = 16;

/// How long a request may wait for its body if there is no place: a body that was sent with its head is there by then.
pub(crate) const WITHOUT_PLACE_MAX: Duration = Duration::from_secs(1);

/// The places of the requests that are being received.
pub(crate) struct ReceivePermits {
    places: Arc<Semaphore>,
    max: usize,
    metrics: Arc<Metrics>,
}

impl ReceivePermits {
    /// Makes the places for a server that answers `requests_max` requests at once.
    pub(crate) fn new(requests_max: usize, metrics: Arc<Metrics>) -> ReceivePermits {
        let max = requests_max.saturating_mul(RECEIVING_PER_ANSWERED_MAX).min(Semaphore::MAX_PERMITS);
        ReceivePermits { places: Arc::new(Semaphore::new(max)), max, metrics }
    }

    /// Takes a place for a request that waits for its body; `None` if too many requests wait for theirs.
    pub(crate) fn wait(&self) -> Option<OwnedSemaphorePermit> {
        self.places.clone().try_acquire_owned().ok()
    }

    /// Returns the error for a request that had no place for [`WITHOUT_PLACE_MAX`], and counts it.
    pub(crate) fn refusal(&self) -> Error {
        self.metrics.refused.get_or_create(&KindLabels { kind: "receiving_max" }).inc();
        Error::exhausted(format!(
            "{} requests are being received already, {RECEIVING_PER_ANSWERED_MAX} for each of --max-requests; try again later",
            self.max
        ))
        .with_retry_after(Duration::from_millis(100))
    }

    /// Requests that are being received now.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.max - self.places.available_permits()
    }
}

impl App {
    /// Refuses a request before its body is read if none could be answered now, which costs less than to receive it.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if too many requests are being answered.
    pub(crate) fn check_room(&self) -> Result<()> {
        self.admit().map(drop)
    }
}
