//! Reading configuration files of TensorFlow Serving and Triton.

use std::path::Path;

use base::{Error, Result};
use protocol::tfs::text::{self, TEXT_BYTES_MAX, TextMessage};

/// Reads a message as text.
///
/// # Errors
/// `InvalidArgument` that names file and line.
pub fn read<M: TextMessage>(path: &Path) -> Result<M> {
    let wrong = |why: &dyn std::fmt::Display| Error::invalid(format!("{}: {why}", path.display()));
    let meta = std::fs::metadata(path).map_err(|error| wrong(&error))?;
    if !meta.is_file() {
        return Err(wrong(&"is not a file"));
    }
    if meta.len() > TEXT_BYTES_MAX as u64 {
        return Err(wrong(&format!("is larger than {TEXT_BYTES_MAX} bytes")));
    }
    let content = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    // The words of TensorFlow Serving, for which scripts search.
    let malformed = |error: Error| {
        wrong(&format!("Error parsing text-format {}: {}", M::NAME, error.message()))
    };
    text::parse(&content).map_err(malformed)
}
