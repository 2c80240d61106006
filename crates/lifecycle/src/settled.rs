//! "The first load is finished", for those who wait for it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Becomes true once and stays so.
#[derive(Default)]
pub(crate) struct Settled {
    is: Mutex<bool>,
    changed: Condvar,
}

impl Settled {
    pub(crate) fn get(&self) -> bool {
        *self.lock()
    }

    pub(crate) fn set(&self) {
        *self.lock() = true;
        self.changed.notify_all();
    }

    /// Whether it is, after waiting for at most `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, |is| !*is);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
