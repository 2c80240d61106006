//! Runs connection threads as batch work while requests queue.
//!
//! A connection thread that wakes takes the core from the worker that runs on it. That is right
//! while the queue is short, because a client waits for exactly that wake-up. If many requests are
//! queued, the worker has enough to do, and each interruption costs two context switches and cold
//! caches. At 64 clients on 2 cores, a request had 4.7 context switches instead of 0.7 (ADR 0005).
//! So under pressure connection threads wait for the end of the worker's time slice, and then
//! handle several requests at once.

use std::cell::Cell;

thread_local! {
    /// True if this connection thread runs as batch work.
    static BATCH: Cell<bool> = const { Cell::new(false) };
}

/// Queued requests per worker from which connection threads run as batch work.
const HIGH: usize = 4;
/// Queued requests per worker down to which connection threads remain batch work.
const LOW: usize = 1;

/// Adapts the scheduling class of the calling connection thread after a submission.
pub(crate) fn adjust(queued: usize, workers: usize) {
    BATCH.with(|batch| {
        let wanted = if batch.get() { queued > LOW * workers } else { queued >= HIGH * workers };
        // If the system refuses, it is tried again once the pressure changes.
        if wanted != batch.replace(wanted)
            && let Err(error) = os::thread::set_batch_scheduling(wanted)
        {
            tracing::debug!(%error, "connection threads keep their scheduling class");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_work_starts_at_high_and_ends_at_low() {
        let after = |queued| {
            adjust(queued, 2);
            BATCH.get()
        };
        assert_eq!([7, 8, 3, 2, 7].map(after), [false, true, true, false, false]);
    }
}
