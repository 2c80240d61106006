//! Names of files, and numbers of open ones.

use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, Result};

/// Maximum bytes of a name.
pub const NAME_BYTES_MAX: usize = 100;

/// Checks that a name is one path component of `[a-z0-9._-]` that does not start with a dot.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn check(name: &str) -> Result<()> {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    if name.is_empty()
        || name.len() > NAME_BYTES_MAX
        || name.starts_with('.')
        || !name.bytes().all(allowed)
    {
        return Err(Error::invalid(format!(
            "{name:?} cannot name a file: 1 to {NAME_BYTES_MAX} of a-z, 0-9, '.', '_', '-', not first a dot"
        )));
    }
    Ok(())
}

pub(crate) fn missing(name: &str) -> Error {
    Error::not_found(format!("there is no file {name}"))
}

pub(crate) fn name_exists(name: &str) -> Error {
    Error::new(base::ErrorKind::AlreadyExists, format!("there is a file {name} already"))
}

/// Returns a number that no other open file of this process has.
pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Checks that `bytes` at `offset` lie in a file of `length`.
///
/// # Errors
/// `DataLoss`.
pub(crate) fn check_within(
    what: impl std::fmt::Display,
    length: u64,
    offset: u64,
    bytes: usize,
) -> Result<()> {
    match offset.checked_add(bytes as u64) {
        Some(end) if end <= length => Ok(()),
        _ => Err(Error::data_loss(format!(
            "{what}: {bytes} bytes at {offset} are past its end at {length}"
        ))),
    }
}
