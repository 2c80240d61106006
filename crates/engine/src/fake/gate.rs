//! A door that a test closes to stop threads at a known place.

use std::sync::{Condvar, Mutex, MutexGuard};

#[derive(Default)]
struct GateState {
    closed: bool,
    waiting: usize,
}

/// Open at first.
#[derive(Default)]
pub struct FakeGate {
    inside: Mutex<GateState>,
    changed: Condvar,
}

impl FakeGate {
    /// From now on threads stop here.
    pub fn close(&self) {
        self.lock().closed = true;
    }

    /// Lets all threads go on.
    pub fn open(&self) {
        self.lock().closed = false;
        self.changed.notify_all();
    }

    /// How many threads stand before it.
    pub fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// Returns when at least `count` threads stand before it.
    pub fn wait_for(&self, count: usize) {
        let mut inside = self.lock();
        while inside.waiting < count {
            inside = self.changed.wait(inside).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Goes through, as soon as it is open.
    pub(crate) fn pass(&self) {
        let mut inside = self.lock();
        if !inside.closed {
            return;
        }
        inside.waiting += 1;
        self.changed.notify_all();
        while inside.closed {
            inside = self.changed.wait(inside).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        inside.waiting -= 1;
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.inside.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
