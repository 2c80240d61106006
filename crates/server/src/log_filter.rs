//! The filter of the process's log, which can change while serving.

use std::sync::Arc;

use base::{Error, Result};

/// Describes changes of the log in the errors of the access check.
pub(crate) const LOG_ADMIN_CALL: &str = "the log is changed";
/// The call in the log of admin calls.
pub(crate) const LOG_ADMIN_ACTION: &str = "change the log's filter";

/// Longest filter in a request, in bytes.
pub(crate) const LOG_FILTER_BYTES_MAX: usize = 4096;

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

/// Returns the filter of a program whose log can change.
///
/// # Errors
/// `Unimplemented` for another program.
pub(crate) fn changeable(filter: &Option<Arc<dyn LogFilter>>) -> Result<&dyn LogFilter> {
    let missing = || Error::unimplemented("this program's log cannot change while it runs");
    filter.as_deref().ok_or_else(missing)
}

/// Replaces the filter for an administrator, and logs that.
///
/// # Errors
/// As [`LogFilter::set`].
pub(crate) fn change(filter: &dyn LogFilter, text: &str) -> Result<()> {
    filter.set(text)?;
    tracing::info!(filter = filter.get(), "an administrator changed the log's filter");
    Ok(())
}
