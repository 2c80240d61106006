//! A bounded first-in first-out queue with blocking consumers and refusing producers.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::Job;

/// Why a job was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The bound is reached.
    Full,
    /// No more jobs are taken.
    Closed,
}

struct State {
    jobs: VecDeque<(Job, Instant)>,
    closed: bool,
}

pub(crate) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
    capacity: usize,
}

impl Queue {
    pub(crate) fn new(capacity: usize) -> Queue {
        let state = State { jobs: VecDeque::with_capacity(capacity), closed: false };
        Queue { state: Mutex::new(state), filled: Condvar::new(), capacity }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // No code that can panic runs under this lock, so a poisoned state is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().jobs.len()
    }

    pub(crate) fn push(&self, job: Job) -> Result<(), (Job, Refusal)> {
        let now = Instant::now();
        {
            let mut state = self.lock();
            if state.closed {
                return Err((job, Refusal::Closed));
            }
            if state.jobs.len() >= self.capacity {
                return Err((job, Refusal::Full));
            }
            state.jobs.push_back((job, now));
        }
        self.filled.notify_one();
        Ok(())
    }

    /// The oldest job, waiting for one; `None` once the queue is closed and empty.
    pub(crate) fn pop(&self) -> Option<(Job, Instant)> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
    }
}
