//! The places of requests whose body is still on its way.
//!
//! A client that sends a request's head and then nothing must not hold one of the places of requests being answered: a
//! thousand of these cost it a thousand packets. A request takes such a place only once its body is complete. Until
//! then it is one of a larger number that are being received.

use std::sync::Arc;

use base::{Error, Result};
use metrics::KindLabels;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::app::App;

/// Requests that may be received for each one that may be answered. A request that is being received holds a stream and
/// the bytes that have come, which the memory of requests in flight bounds.
const RECEIVING_PER_ANSWERED_MAX: usize = 16;

/// The places of the requests that are being received.
pub(crate) struct Receiving {
    places: Arc<Semaphore>,
    max: usize,
}

/// A request that is being received.
pub(crate) struct Incomplete(#[expect(dead_code, reason = "held until it is dropped")] OwnedSemaphorePermit);

impl Receiving {
    /// Makes the places for a server that answers `requests_max` requests at once.
    pub(crate) fn new(requests_max: usize) -> Receiving {
        let max = requests_max.saturating_mul(RECEIVING_PER_ANSWERED_MAX).min(Semaphore::MAX_PERMITS);
        Receiving { places: Arc::new(Semaphore::new(max)), max }
    }
}

impl App {
    /// Begins to receive a request. It is refused now if none could be answered now, which costs less than to receive it.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if too many requests are being answered or received.
    pub(crate) fn receive(&self) -> Result<Incomplete> {
        drop(self.admit()?);
        let Receiving { places, max } = &self.receiving;
        places.clone().try_acquire_owned().map(Incomplete).map_err(|_| {
            self.metrics.refused.get_or_create(&KindLabels { kind: "receiving_max" }).inc();
            Error::exhausted(format!(
                "{max} requests are being received already, {RECEIVING_PER_ANSWERED_MAX} for each of --max-requests; try \
                 again later"
            ))
            .with_retry_after(std::time::Duration::from_millis(100))
        })
    }

    /// Requests that are being received now.
    #[cfg(test)]
    pub(crate) fn being_received(&self) -> usize {
        self.receiving.max - self.receiving.places.available_permits()
    }

    /// Takes a place among the requests being answered, now that the request is complete.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if there is none.
    pub(crate) fn complete(&self, incomplete: Incomplete) -> Result<OwnedSemaphorePermit> {
        drop(incomplete);
        self.admit()
    }
}
