//! Limits of readers, checked the same way by all of them.

use base::{Error, Result};

use crate::medium::{Read, ReaderOptions};
use crate::page::PAGE_BYTES;

/// Maximum reads in flight of one reader.
pub const DEPTH_MAX: usize = 4096;
/// Maximum bytes of buffers of one reader.
const BUFFER_BYTES_MAX: usize = 256 << 20;

/// Checks a reader's options.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn check(options: &ReaderOptions) -> Result<()> {
    let ReaderOptions { depth, read_bytes_max } = *options;
    let buffers = depth.checked_mul(read_bytes_max).filter(|&bytes| bytes <= BUFFER_BYTES_MAX);
    let aligned = read_bytes_max > 0 && read_bytes_max.is_multiple_of(PAGE_BYTES);
    if depth == 0 || depth > DEPTH_MAX || !aligned || buffers.is_none() {
        return Err(Error::invalid(format!(
            "a reader of {depth} reads of {read_bytes_max} bytes: wanted are 1 to {DEPTH_MAX} reads of whole pages, \
             {BUFFER_BYTES_MAX} bytes together at most"
        )));
    }
    Ok(())
}

/// Checks one read.
///
/// # Errors
/// `ResourceExhausted` without room, `InvalidArgument` for a misplaced read.
pub(crate) fn check_read(options: &ReaderOptions, read: &Read<'_>, room: usize) -> Result<()> {
    let Read { file, offset, bytes, .. } = *read;
    if room == 0 {
        return Err(Error::exhausted(format!("{} reads are in flight already", options.depth)));
    }
    let aligned = offset.is_multiple_of(PAGE_BYTES as u64) && bytes.is_multiple_of(PAGE_BYTES);
    let inside = offset.checked_add(bytes as u64).is_some_and(|end| end <= file.bytes());
    if !aligned || !inside || bytes == 0 || bytes > options.read_bytes_max {
        return Err(Error::invalid(format!(
            "a read of {bytes} bytes at {offset} is misplaced: whole pages, at most {}, in a file of {}",
            options.read_bytes_max,
            file.bytes()
        )));
    }
    Ok(())
}

/// Returns the number of completions that one call passes on. It is the number that the call waits
/// for, or a quarter of the depth if that is more. So the caller can submit new reads before the
/// queue runs dry.
pub(crate) fn handed_at_once(options: &ReaderOptions, wait: usize) -> usize {
    wait.max(options.depth.div_ceil(4))
}
