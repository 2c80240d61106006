//! Files and directories that other users of the machine cannot read: mode 0640 and 0750, reduced
//! by the process's umask.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Mode of a file that the server creates.
pub const FILE_MODE: u32 = 0o640;
/// Mode of a directory that the server creates.
pub const DIRECTORY_MODE: u32 = 0o750;
/// Permissions that the server's umask removes: write for the group, everything for others.
const UMASK: libc::mode_t = 0o027;

/// Returns options that create files with [`FILE_MODE`]. The caller chooses how the file is opened.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE);
    options
}

/// Creates a directory with [`DIRECTORY_MODE`].
///
/// # Errors
/// The error of the file system. An existing directory is an error too.
pub fn create_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIRECTORY_MODE).create(path)
}

/// Creates a directory and its missing parents with [`DIRECTORY_MODE`]. Existing directories keep
/// their mode.
///
/// # Errors
/// The error of the file system.
pub fn create_dir_all(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Adds 0027 to the process's umask, which child processes inherit. A stricter umask stays. Call it
/// before the process has threads that create files.
pub fn restrict_umask() {
    // SAFETY: takes and returns numbers; the call cannot fail.
    unsafe {
        let before = libc::umask(UMASK);
        libc::umask(before | UMASK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn others_can_read_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (outer, inner) = (root.path().join("a"), root.path().join("a/b"));
        create_dir_all(&inner).unwrap();
        create_dir(&root.path().join("c")).unwrap();
        let file = inner.join("f");
        options().write(true).create_new(true).open(&file).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for path in [&outer, &inner, &root.path().join("c")] {
            assert_eq!(mode(path) & !DIRECTORY_MODE, 0, "{}", path.display());
            assert_eq!(mode(path) & 0o700, 0o700);
        }
        assert_eq!(mode(&file) & !FILE_MODE, 0);
        assert_eq!(mode(&file) & 0o600, 0o600);
    }
}
