//! What LibTorch says when it throws, as one line and a kind.
//!
//! An exception inside a module comes wrapped in a listing of the module's source; what went wrong is on the last
//! line that names an exception.

use base::{Error, ErrorKind};

/// A message is cut here: some repeat whole graphs.
const MESSAGE_BYTES_MAX: usize = 500;

/// The error for `text`.
pub(crate) fn error(text: &str) -> Error {
    let kind = if text.contains("INTERNAL ASSERT FAILED") || text.contains("Please report a bug") {
        ErrorKind::Internal
    } else if text.contains("std::bad_alloc") || text.contains("can't allocate memory") {
        ErrorKind::ResourceExhausted
    } else {
        ErrorKind::InvalidArgument
    };
    Error::new(kind, line(text))
}

/// The line that says what is wrong.
fn line(text: &str) -> String {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    // One may be raised for another: "RuntimeError: AssertionError: ...".
    let innermost = |line| std::iter::successors(after_exception(line), |rest| after_exception(rest)).last();
    let last_exception = lines().filter_map(innermost).next_back();
    let said = last_exception.or_else(|| lines().next()).unwrap_or("LibTorch failed and does not say why");
    let end = said.char_indices().map(|(at, _)| at).find(|&at| at >= MESSAGE_BYTES_MAX);
    said[..end.unwrap_or(said.len())].to_owned()
}

/// What follows "RuntimeError: " or another exception's name at the start of a line.
fn after_exception(line: &str) -> Option<&str> {
    let (name, rest) = line.split_once(": ")?;
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_'));
    let is_exception = name.ends_with("Error") || name.ends_with("Exception");
    (is_name && is_exception && !rest.is_empty()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_exception_speaks() {
        let text = "The following operation failed in the TorchScript interpreter.\n\
            Traceback of TorchScript (most recent call last):\n  File \"x.py\", line 2, in forward\n\
            \x20   return self.a @ x\n           ~~~~~~~~ <--- HERE\n\
            RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)\n";
        let error = error(text);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.message(), "mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)");
    }

    #[test]
    fn other_texts() {
        assert_eq!(error("\n  one\ntwo").message(), "one");
        assert_eq!(error("std::bad_alloc").kind(), ErrorKind::ResourceExhausted);
        assert_eq!(error("x INTERNAL ASSERT FAILED at y").kind(), ErrorKind::Internal);
        assert!(!error("").message().is_empty());
        assert!(error(&"ü".repeat(2000)).message().len() <= MESSAGE_BYTES_MAX + 1);
    }
}
