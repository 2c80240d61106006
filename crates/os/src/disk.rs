//! Space of file systems.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Space of a file system in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Free bytes for unprivileged users.
    pub free: u64,
    /// Size.
    pub total: u64,
}

/// Returns the space of the file system of `path`; `None` if it cannot be read.
pub fn space(path: &Path) -> Option<DiskSpace> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut found = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `path` ends with a zero byte and `found` has room for what the call writes.
    let code = unsafe { libc::statvfs(path.as_ptr(), found.as_mut_ptr()) };
    if code != 0 {
        return None;
    }
    // SAFETY: the call succeeded, and zeros are a valid value too.
    let found = unsafe { found.assume_init() };
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Some(DiskSpace { free: bytes(found.f_bavail), total: bytes(found.f_blocks) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_space() {
        let found = space(Path::new("/")).unwrap();
        assert!(found.total > 0 && found.free <= found.total, "{found:?}");
        assert_eq!(space(Path::new("/no/such/path")), None);
    }
}
