//! The filter of the process's log, which can change while serving.

use base::Result;

/// Longest filter in bytes.
pub const LOG_FILTER_BYTES_MAX: usize = 4096;

/// The filter of the log that the program writes.
pub trait LogFilter: Send + Sync + std::fmt::Debug {
    /// Returns the current filter.
    fn get(&self) -> String;

    /// Replaces the filter.
    ///
    /// # Errors
    /// `InvalidArgument` for a text that is no filter. The filter then stays.
    fn set(&self, filter: &str) -> Result<()>;
}
