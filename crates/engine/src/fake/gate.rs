//! A gate that a test closes to stop threads at a known point.

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct GateState {
    closed: bool,
    waiting: usize,
}

/// A gate, open at first.
#[derive(Default)]
pub struct FakeGate {
    state: Mutex<GateState>,
    changed: Condvar,
}

impl FakeGate {
    /// Makes threads stop at the gate.
    pub fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Releases all threads.
    pub fn open(&self) {
        self.state.lock().closed = false;
        self.changed.notify_all();
    }

    /// Returns the number of waiting threads.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// Blocks until at least `count` threads wait.
    pub fn wait_for(&self, count: usize) {
        let mut state = self.state.lock();
        while state.waiting < count {
            self.changed.wait(&mut state);
        }
    }

    /// Blocks until the gate is open.
    pub(crate) fn pass(&self) {
        let mut state = self.state.lock();
        if !state.closed {
            return;
        }
        state.waiting += 1;
        self.changed.notify_all();
        while state.closed {
            self.changed.wait(&mut state);
        }
        state.waiting -= 1;
    }
}
