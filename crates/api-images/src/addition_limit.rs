//! Limit of the images that are being added while their clients wait. An addition continues if its
//! client disconnects, so the number of requests does not limit the additions.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum additions. While the store of originals is slow, each holds the bytes of its image.
const ADDITIONS_MAX: usize = 256;
/// Retry advice to a refused client.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Limit of the additions that run.
pub(crate) struct AdditionLimit {
    permits: Arc<Semaphore>,
}

impl Default for AdditionLimit {
    fn default() -> AdditionLimit {
        AdditionLimit { permits: Arc::new(Semaphore::new(ADDITIONS_MAX)) }
    }
}

impl AdditionLimit {
    /// Begins an addition, which ends when the permit is dropped.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if too many run.
    pub(crate) fn begin(&self) -> Result<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_owned().map_err(|_| {
            Error::exhausted(format!(
                "{ADDITIONS_MAX} images are being added already; check the store of original images, and \
                 try again later"
            ))
            .with_retry_after(RETRY_AFTER)
        })
    }

    /// Returns the number of additions that run.
    pub(crate) fn running(&self) -> usize {
        ADDITIONS_MAX - self.permits.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn an_addition_is_refused_while_too_many_run() {
        let limit = AdditionLimit::default();
        let mut permits: Vec<_> = (0..ADDITIONS_MAX).map(|_| limit.begin().unwrap()).collect();
        let error = limit.begin().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        assert_eq!((error.retry_after(), limit.running()), (Some(RETRY_AFTER), ADDITIONS_MAX));
        permits.pop();
        assert_eq!(limit.running(), ADDITIONS_MAX - 1);
        assert!(limit.begin().is_ok());
    }
}
