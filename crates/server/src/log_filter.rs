//! The filter of the process's log, which can change while serving.

use std::sync::Arc;

use base::{Error, Result};

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
/// `TooLarge` for a text of more than [`LOG_FILTER_BYTES_MAX`] bytes; as [`LogFilter::set`].
pub(crate) fn change(filter: &dyn LogFilter, text: &str) -> Result<()> {
    if text.len() > LOG_FILTER_BYTES_MAX {
        return Err(Error::too_large(format!(
            "the filter has more than {LOG_FILTER_BYTES_MAX} bytes"
        )));
    }
    filter.set(text)?;
    tracing::info!(filter = filter.get(), "an administrator changed the log's filter");
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Mutex;

    use base::ErrorKind;

    use super::*;

    #[derive(Debug, Default)]
    struct KeptFilter(Mutex<String>);

    impl LogFilter for KeptFilter {
        fn get(&self) -> String {
            self.0.lock().unwrap().clone()
        }

        fn set(&self, filter: &str) -> Result<()> {
            filter.clone_into(&mut self.0.lock().unwrap());
            Ok(())
        }
    }

    #[test]
    fn a_long_filter_is_refused() {
        let filter = KeptFilter::default();
        change(&filter, "debug").unwrap();
        let long = "x".repeat(LOG_FILTER_BYTES_MAX + 1);
        assert_eq!(change(&filter, &long).unwrap_err().kind(), ErrorKind::TooLarge);
        assert_eq!(filter.get(), "debug");
    }
}
