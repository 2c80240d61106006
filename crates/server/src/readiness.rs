//! Readiness of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Error, Result};
use lifecycle::Lifecycle;

/// Knows if the server is ready for requests.
pub(crate) struct Readiness {
    lifecycle: Arc<Lifecycle>,
    stopping: AtomicBool,
}

impl Readiness {
    pub(crate) fn new(lifecycle: Arc<Lifecycle>) -> Readiness {
        Readiness { lifecycle, stopping: AtomicBool::new(false) }
    }

    /// Checks that every model that should serve does, and that the server is not stopping. A model
    /// whose old version serves while a new one failed counts as serving.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(crate) fn check(&self) -> Result<()> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(Error::unavailable("the server is shutting down"));
        }
        if !self.lifecycle.settled() {
            return Err(Error::unavailable("the first load is not finished"));
        }
        match self.lifecycle.catalog().failure() {
            Some((model, reason)) => {
                Err(Error::unavailable(format!("model \"{model}\" does not serve: {reason}")))
            }
            None => Ok(()),
        }
    }

    /// Makes all further checks fail.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}
