//! Space of file systems.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Space of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Free bytes for unprivileged users.
    pub free: u64,
    /// Bytes of the whole file system.
    pub total: u64,
    /// Files that can still be created, or `None` if their number has no limit.
    pub files_free: Option<u64>,
}

/// Returns the space of the file system of `path`.
///
/// # Errors
/// The error of the system, such as that of a path that does not exist.
pub fn space(path: &Path) -> io::Result<DiskSpace> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut found = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `path` ends with a zero byte and `found` has room for what the call writes.
    let code = unsafe { libc::statvfs(path.as_ptr(), found.as_mut_ptr()) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, and zeros are a valid value too.
    let found = unsafe { found.assume_init() };
    // File systems without a fixed number of files report 0.
    let files_free = (found.f_files > 0).then_some(found.f_favail);
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(DiskSpace { free: bytes(found.f_bavail), total: bytes(found.f_blocks), files_free })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_space() {
        let found = space(Path::new("/")).unwrap();
        assert!(found.total > 0 && found.free <= found.total, "{found:?}");
        let error = space(Path::new("/no/such/path")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
