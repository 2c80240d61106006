//! The flag that the first load is finished.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// True once everything chosen at the start is ready or has failed. Stays true.
#[derive(Default)]
pub(crate) struct Settled {
    is: Mutex<bool>,
    changed: Condvar,
}

impl Settled {
    pub(crate) fn get(&self) -> bool {
        *self.is.lock()
    }

    pub(crate) fn set(&self) {
        *self.is.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for at most `timeout` and returns true if it is settled.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let mut is = self.is.lock();
        self.changed.wait_while_for(&mut is, |is| !*is, timeout);
        *is
    }
}
