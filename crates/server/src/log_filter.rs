//! The filter of the process's log, which can change while serving.

use base::Result;

/// Describes changes of the log in the errors of the access check.
pub(crate) const LOG_ADMIN_CALL: &str = "the log is changed";
/// The call in the log of admin calls.
pub(crate) const LOG_ADMIN_ACTION: &str = "change the log's filter";

/// Longest filter in bytes.
pub const LOG_FILTER_BYTES_MAX: usize = 4096;

/// The filter of the log that the program writes.
pub trait LogFilter: Send + Sync + std::fmt::Debug {
    /// Returns the current filter.
    fn get(&self) -> String;

    /// Replaces the filter.
    ///
    /// # Errors
    /// `InvalidArgument` for a text that is not a filter. The filter then stays.
    fn set(&self, filter: &str) -> Result<()>;
}
