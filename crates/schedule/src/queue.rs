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
    /// Workers that wait, the one that worked last on top: its core still has the model in its cache.
    idle: Vec<usize>,
    closed: bool,
}

pub(crate) struct Queue {
    state: Mutex<State>,
    /// One a worker, so that it can be chosen who wakes.
    wakers: Vec<Condvar>,
    capacity: usize,
}

impl Queue {
    pub(crate) fn new(capacity: usize, workers: usize) -> Queue {
        let (jobs, idle) = (VecDeque::with_capacity(capacity), Vec::with_capacity(workers));
        let state = Mutex::new(State { jobs, idle, closed: false });
        Queue { state, wakers: (0..workers).map(|_| Condvar::new()).collect(), capacity }
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
        let woken = {
            let mut state = self.lock();
            if state.closed {
                return Err((job, Refusal::Closed));
            }
            if state.jobs.len() >= self.capacity {
                return Err((job, Refusal::Full));
            }
            state.jobs.push_back((job, now));
            state.idle.pop()
        };
        if let Some(worker) = woken {
            self.wakers[worker].notify_one();
        }
        Ok(())
    }

    /// The oldest job, waiting for one; `None` once the queue is closed and empty.
    pub(crate) fn pop(&self, worker: usize) -> Option<(Job, Instant)> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.idle.retain(|&idle| idle != worker);
                return Some(job);
            }
            if state.closed {
                return None;
            }
            if !state.idle.contains(&worker) {
                state.idle.push(worker);
            }
            state = self.wakers[worker].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wakers.iter().for_each(Condvar::notify_one);
    }
}
