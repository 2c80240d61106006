//! Makes the names of files durable.

use std::fs::File;
use std::path::Path;

use base::{Error, Result};

/// Waits until the entries of a directory are durable. Then files that were created, renamed or
/// removed in it stay so after a loss of power.
///
/// # Errors
/// The error of the file system.
pub fn sync_directory(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| Error::io(path, &error))
}
