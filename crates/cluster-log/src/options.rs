//! Settings of a shard's writer.

use std::time::Duration;

use super::codec::ENTRY_BYTES_MAX;
use super::retry::RetryPauses;
use super::store::REQUEST_TIMEOUT_DEFAULT;

/// Longest time in which writes are gathered into an entry.
pub const GATHER_MAX: Duration = Duration::from_millis(50);

/// Bytes of an entry besides its operations, with a margin.
const ENTRY_ROOM: usize = 1 << 10;

/// Settings of a [`ShardWriter`](super::ShardWriter).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    /// Time for which the first write of an entry waits for more, at most [`GATHER_MAX`].
    pub gather: Duration,
    /// Bytes from which an entry takes no more writes. One larger write has an entry of its own.
    pub batch_bytes_max: usize,
    /// Longest time of a request to the store.
    pub request_timeout: Duration,
    /// Pause after the first failure of a request. It is doubled for each further failure.
    pub retry_pause_min: Duration,
    /// Longest pause after a failure.
    pub retry_pause_max: Duration,
    /// Maximum writes without an answer. More are refused.
    pub waiting_max: usize,
    /// Maximum bytes of writes without an answer. More are refused.
    pub waiting_bytes_max: usize,
}

impl Default for WriterOptions {
    fn default() -> WriterOptions {
        WriterOptions {
            gather: Duration::from_millis(5),
            batch_bytes_max: 4 << 20,
            request_timeout: REQUEST_TIMEOUT_DEFAULT,
            retry_pause_min: Duration::from_millis(50),
            retry_pause_max: Duration::from_secs(2),
            waiting_max: 4096,
            waiting_bytes_max: 32 << 20,
        }
    }
}

impl WriterOptions {
    /// Returns the settings with each value within its limit.
    pub(super) fn limited(mut self) -> WriterOptions {
        self.gather = self.gather.min(GATHER_MAX);
        self.batch_bytes_max = self.batch_bytes_max.min(ENTRY_BYTES_MAX - ENTRY_ROOM);
        self
    }

    pub(super) fn pauses(&self) -> RetryPauses {
        RetryPauses { min: self.retry_pause_min, max: self.retry_pause_max }
    }

    /// Returns the maximum bytes of one write.
    pub(super) fn write_bytes_max(&self) -> usize {
        self.waiting_bytes_max.min(ENTRY_BYTES_MAX - ENTRY_ROOM)
    }
}
