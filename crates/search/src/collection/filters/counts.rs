//! Counts of filters that were evaluated on a segment.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of filters that were evaluated on a segment, by the source of the result.
#[derive(Debug, Default)]
pub(crate) struct FilterCounts {
    pub(super) indexed: AtomicU64,
    pub(super) verified: AtomicU64,
    pub(super) scanned: AtomicU64,
    pub(super) paused: AtomicU64,
    pub(super) late: AtomicU64,
}

/// Counts of filters evaluated on a segment since the start. A cached result is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterStats {
    /// Decided by the payload index alone.
    pub indexed: u64,
    /// Some payloads were read, of rows that the index left undecided.
    pub verified: u64,
    /// All payloads were read.
    pub scanned: u64,
    /// Times that reading payloads was paused to let other requests run.
    pub paused: u64,
    /// Ended by a deadline before all payloads were read.
    pub late: u64,
}

impl FilterCounts {
    /// Returns the counts.
    pub(crate) fn stats(&self) -> FilterStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FilterStats {
            indexed: count(&self.indexed),
            verified: count(&self.verified),
            scanned: count(&self.scanned),
            paused: count(&self.paused),
            late: count(&self.late),
        }
    }
}
