//! Permits of requests that wait for their body.
//!
//! A client that sends a request's head and then nothing must not hold one of the permits of
//! requests being answered. Otherwise it could take a thousand of them with a thousand packets. So
//! a request takes such a permit only once its body is complete. A request that waits for its body
//! takes a receive permit. There are more of these, so that requests which never end cannot keep
//! out complete ones. A body that arrives at once needs no receive permit. Only HTTP/2 needs them,
//! as a connection has many requests. Over HTTP/1.1 the number of connections is the limit.

use std::sync::Arc;
use std::time::Duration;

use base::Error;
use metrics::{KindLabels, Metrics};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Receive permits for each request that may be answered at once. A request with a permit holds a
/// stream and the bytes that have arrived. The memory of requests in flight bounds these bytes.
const RECEIVING_PER_ANSWERED_MAX: usize = 16;

/// Longest wait for a body without a permit. A body that was sent with its head arrives within it.
pub(crate) const UNPERMITTED_WAIT_MAX: Duration = Duration::from_secs(1);

/// Limit of the requests that wait for their body.
pub struct ReceivePermits {
    permits: Arc<Semaphore>,
    max: usize,
    metrics: Arc<Metrics>,
}

impl ReceivePermits {
    /// Creates the permits of a server that answers `requests_max` requests at once.
    pub fn new(requests_max: usize, metrics: Arc<Metrics>) -> ReceivePermits {
        let max =
            requests_max.saturating_mul(RECEIVING_PER_ANSWERED_MAX).min(Semaphore::MAX_PERMITS);
        ReceivePermits { permits: Arc::new(Semaphore::new(max)), max, metrics }
    }

    /// Takes a permit. Returns `None` if too many requests wait for their bodies.
    pub fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_owned().ok()
    }

    /// Returns the error for a request without a permit whose body did not arrive within
    /// [`UNPERMITTED_WAIT_MAX`], and counts it.
    pub(crate) fn refusal(&self) -> Error {
        self.metrics.refused.get_or_create(&KindLabels { kind: "receiving_max" }).inc();
        Error::exhausted(format!(
            "{} requests are being received already, {RECEIVING_PER_ANSWERED_MAX} for each of --max-requests; try \
             again later",
            self.max
        ))
        .with_retry_after(Duration::from_millis(100))
    }

    /// Returns the permits in use.
    pub fn taken(&self) -> usize {
        self.max - self.permits.available_permits()
    }
}
