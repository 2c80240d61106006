//! Doors give way while requests pile up.
//!
//! A door thread that wakes takes the core from the worker that runs on it. That is right while the
//! queue is short: somebody waits for exactly that wake-up. When many requests are queued already,
//! the worker has enough to do, and each interruption only costs two context switches and cold
//! caches (at 64 clients on 2 cores: 4.7 context switches a request against 0.7; ADR 0005). So
//! under pressure door threads wait for the worker's turn to end, which also lets them handle
//! several requests at once.

use std::cell::Cell;

thread_local! {
    /// Whether this door thread gives way.
    static YIELDING: Cell<bool> = const { Cell::new(false) };
}

/// Queued requests a worker from which doors give way, and below which they stop.
const HIGH: usize = 4;
const LOW: usize = 1;

/// Called on a door thread after each submission.
pub(crate) fn adjust(queued: usize, workers: usize) {
    YIELDING.with(|yielding| {
        let wanted = if yielding.get() { queued > LOW * workers } else { queued >= HIGH * workers };
        // A refusal costs only the gain; it is not tried again until the pressure changes.
        if wanted != yielding.replace(wanted)
            && let Err(error) = os::thread::set_yielding(wanted)
        {
            tracing::debug!(%error, "door threads keep their scheduling class");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_give_way_above_high_until_below_low() {
        let after = |queued| {
            adjust(queued, 2);
            YIELDING.get()
        };
        assert_eq!([7, 8, 3, 2, 7].map(after), [false, true, true, false, false]);
    }
}
