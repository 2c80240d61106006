//! The error of a conversion.

use base::Error;

/// Error of a conversion, with a hint if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportError {
    /// Fault, and the flag or the file with the line.
    pub message: String,
    /// Remedy.
    pub hint: Option<String>,
    /// True if flags or files are wrong, false if the conversion failed.
    pub is_usage: bool,
}

impl ImportError {
    /// Returns an error of flags or files.
    pub(crate) fn usage(message: impl Into<String>) -> ImportError {
        ImportError { message: message.into(), hint: None, is_usage: true }
    }

    /// Returns an error that flags and files did not cause.
    pub(crate) fn internal(message: impl Into<String>) -> ImportError {
        ImportError { is_usage: false, ..ImportError::usage(message) }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> ImportError {
        self.hint = Some(hint.into());
        self
    }
}

impl From<Error> for ImportError {
    fn from(error: Error) -> ImportError {
        ImportError::usage(error.message())
    }
}
