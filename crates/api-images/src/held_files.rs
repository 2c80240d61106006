//! Files of bulk work in memory, which are counted apart from the bytes of requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use transport::ByteBudget;

/// Divisor of the budget of request memory. The files of bulk work may take the quotient in
/// addition to that budget.
const FILES_SHARE: u64 = 8;
/// Time between two checks whether the next file fits.
pub(crate) const FILES_RETRY: Duration = Duration::from_millis(20);

/// Counter of the bytes of files that are queued or processed, from archives, folders and rebuilds.
pub(crate) struct HeldFiles {
    /// The budget of request memory.
    memory: Arc<ByteBudget>,
    held: Arc<AtomicU64>,
}

/// Bytes of a file in bulk work, counted until this is dropped.
pub(crate) struct CountedBytes {
    all: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl HeldFiles {
    pub(crate) fn new(memory: Arc<ByteBudget>) -> HeldFiles {
        HeldFiles { memory, held: Arc::default() }
    }

    /// Waits until the files in bulk work leave space for `bytes` more. A single file always fits.
    pub(crate) fn hold(&self, bytes: u64) -> CountedBytes {
        // The work on the other files does not wait for this thread.
        loop {
            if let Some(held) = self.try_hold(bytes) {
                return held;
            }
            std::thread::sleep(FILES_RETRY);
        }
    }

    /// Counts `bytes` more, or returns `None` if the files in bulk work leave no space for them. A
    /// single file always fits.
    pub(crate) fn try_hold(&self, bytes: u64) -> Option<CountedBytes> {
        let most = self.memory.max() / FILES_SHARE;
        let room =
            |all: u64| (all == 0 || all.saturating_add(bytes) <= most).then_some(all + bytes);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()?;
        Some(CountedBytes { all: self.held.clone(), bytes })
    }

    /// Returns the number of bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}
