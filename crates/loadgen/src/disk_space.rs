//! Free disk space for the files of a run.

use std::path::Path;

use base::units::{GIB, format_bytes};
use base::{Error, Result};

/// Maximum bytes that must stay free beside the files of a run. A small run needs twice its own
/// bytes.
const SPARE_BYTES_MAX: u64 = GIB;

/// Types of tmpfs and ramfs (statfs(2)).
const MEMORY_TYPES: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Checks that `bytes` fit on the file system of `directory`, which need not exist yet. `remedy`
/// names the options for a smaller run or another directory.
///
/// # Errors
/// `ResourceExhausted` if they do not fit.
pub fn check_space(directory: &Path, bytes: u64, remedy: &str) -> Result<()> {
    let free = free_bytes(directory)?;
    let needed = bytes.saturating_add(bytes.min(SPARE_BYTES_MAX));
    if needed <= free {
        return Ok(());
    }
    Err(Error::exhausted(format!(
        "{}: {} free, about {} are needed; {remedy}",
        directory.display(),
        format_bytes(free),
        format_bytes(needed)
    )))
}

/// Returns the free bytes of the file system of `directory`, which need not exist yet.
///
/// # Errors
/// The errors of the file system.
pub fn free_bytes(directory: &Path) -> Result<u64> {
    let found = directory.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."));
    let disk = rustix::fs::statvfs(found).map_err(|e| Error::io(found, &e.into()))?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Returns true if the file system of `directory` keeps files in memory, as /tmp does on some
/// systems. `directory` need not exist yet.
pub fn is_in_memory(directory: &Path) -> bool {
    let found = directory.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."));
    rustix::fs::statfs(found).is_ok_and(|disk| MEMORY_TYPES.contains(&(disk.f_type as u64)))
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn files_that_do_not_fit_are_refused_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("not/there/yet");
        let refused = check_space(&new, u64::MAX / 2, "choose fewer --rows").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
        assert!(refused.message().ends_with("choose fewer --rows"), "{}", refused.message());
        assert!(!new.exists());
        assert!(check_space(&new, 1, "").is_ok());
    }

    #[test]
    fn a_tmpfs_is_in_memory() {
        assert!(!is_in_memory(Path::new("/proc")));
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let tmpfs = mounts.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[2] == "tmpfs" && Path::new(words[1]).is_dir()).then_some(words[1])
        });
        assert!(tmpfs.is_none_or(|path| is_in_memory(Path::new(path))), "{tmpfs:?}");
    }
}
