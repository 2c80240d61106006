//! Direct reads past the page cache, and io_uring.

use std::fs::DirEntry;
use std::io::Write;
use std::path::{Path, PathBuf};

use os::{DIRECT_ALIGNMENT, DirectFile};

use crate::{Check, read};

/// Maximum depth of the search for a file to read.
const DEPTH_MAX: usize = 3;
/// Maximum number of entries in that search.
const ENTRIES_MAX: usize = 1000;

/// Runs one check per directory, then the check of io_uring.
pub(crate) fn checks(
    directories: &[(&'static str, PathBuf)],
    collections: Option<&Path>,
) -> Vec<Check> {
    let mut checks: Vec<Check> =
        directories.iter().map(|(what, dir)| direct(what, dir, try_direct(dir))).collect();
    checks.push(io_uring(read("/proc/sys/kernel/io_uring_disabled").as_deref()));
    checks.push(persistent_memory(collections, search::registry::probe_dax));
    checks
}

fn direct(what: &str, dir: &Path, tried: Result<Option<String>, String>) -> Check {
    let name = "direct reads";
    let shown = format!("{what} {}", dir.display());
    match tried {
        Ok(None) => Check::ok(
            name,
            shown,
            "O_DIRECT works here: weights are read without the page cache and displace nothing in it.",
        ),
        Ok(Some(refusal)) => Check::warn(
            name,
            shown,
            format!(
                "Read through the page cache instead ({refusal}): loads slow requests more. Keep models on ext4, xfs or \
                 btrfs."
            ),
        ),
        Err(why) => Check::warn(name, shown, format!("Not tried: {why}.")),
    }
}

/// Reads one block of a real file in `dir`, which is written first if possible. Returns the file
/// system's refusal, if it refused direct reads.
fn try_direct(dir: &Path) -> Result<Option<String>, String> {
    let place = nearest_existing(dir);
    let own = place.join(format!(".millpond-doctor-{}.tmp", std::process::id()));
    let written = write_new(&own);
    let path = match &written {
        Ok(()) => own.clone(),
        Err(error) => match find_file(&place, DEPTH_MAX, &mut ENTRIES_MAX.clone()) {
            Some(path) => path,
            None => {
                return Err(format!(
                    "nothing can be written there ({error}) and it holds no file to read"
                ));
            }
        },
    };
    let outcome = read_block(&path);
    if written.is_ok() {
        // Best effort: a file left behind is a kilobyte with a telling name.
        let _ = std::fs::remove_file(&own);
    }
    outcome
}

/// Writes one block to a new file. Another user of the directory can predict its name, so a link
/// there is not followed.
fn write_new(path: &Path) -> std::io::Result<()> {
    // A killed process with the same ID can have left this file: in a container, IDs repeat. If it
    // cannot be removed, the next step fails.
    let _ = std::fs::remove_file(path);
    let mut file = os::private::options().write(true).create_new(true).open(path)?;
    file.write_all(&[1; DIRECT_ALIGNMENT])
}

fn read_block(path: &Path) -> Result<Option<String>, String> {
    let text = |error: base::Error| error.message().to_owned();
    let mut file = DirectFile::open_direct(path).map_err(text)?;
    // A vector has no alignment, so take the aligned block inside one of twice the size.
    let mut buffer = vec![0u8; 2 * DIRECT_ALIGNMENT];
    let start = buffer.as_ptr().align_offset(DIRECT_ALIGNMENT);
    let bytes = file.bytes().min(DIRECT_ALIGNMENT as u64) as usize;
    file.read_exact_at(&mut buffer[start..start + DIRECT_ALIGNMENT], 0, bytes).map_err(text)?;
    Ok(file.refusal().map(str::to_owned))
}

/// Returns `dir` or its nearest existing ancestor, since the cache directory is created on demand.
fn nearest_existing(dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    absolute.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

/// Finds a file of at least one block.
fn find_file(dir: &Path, depth: usize, entries_left: &mut usize) -> Option<PathBuf> {
    let entries: Vec<DirEntry> =
        std::fs::read_dir(dir).ok()?.filter_map(Result::ok).take(*entries_left).collect();
    *entries_left -= entries.len();
    let large = |entry: &&DirEntry| {
        entry.metadata().is_ok_and(|meta| meta.is_file() && meta.len() >= DIRECT_ALIGNMENT as u64)
    };
    if let Some(entry) = entries.iter().find(large) {
        return Some(entry.path());
    }
    if depth == 0 {
        return None;
    }
    let is_dir = |entry: &&DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries
        .iter()
        .filter(is_dir)
        .find_map(|entry| find_file(&entry.path(), depth - 1, entries_left))
}

fn io_uring(disabled: Option<&str>) -> Check {
    let found = match disabled {
        Some("0") => "allowed",
        Some("1") => "for privileged processes only",
        Some(_) => "switched off",
        None => "unknown (Linux before 6.6)",
    };
    let meaning = "Collections on NVMe are read through it; serving models does not use it.";
    Check::ok("io_uring", found, meaning)
}

/// Tests if collections in `directory` can be used in place.
fn persistent_memory(directory: Option<&Path>, probe: impl Fn(&Path) -> base::Result<()>) -> Check {
    let name = "persistent memory";
    let Some(directory) = directory else {
        return Check::ok(
            name,
            "no directory for collections",
            "Without a directory of collections there is nothing to test.",
        );
    };
    let existing = nearest_existing(directory);
    let shown = format!("collections {}", directory.display());
    match probe(&existing) {
        Ok(()) => Check::ok(
            name,
            shown,
            "DAX works here: new collections are used in place (--search-medium auto or dax).",
        ),
        Err(error) if error.kind() == base::ErrorKind::Unimplemented => Check::ok(
            name,
            format!("{shown}: none"),
            "Collections are read through io_uring. docs/persistent-memory.md says how to set up \
             persistent memory, and CXL memory.",
        ),
        Err(error) => Check::ok(name, shown, format!("Not tested: {}.", error.message())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CheckVerdict;

    #[test]
    fn a_real_directory_is_tried_and_left_clean() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("not/yet");
        assert!(try_direct(&missing).is_ok());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_at_the_name_of_the_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "content").unwrap();
        let name = format!(".millpond-doctor-{}.tmp", std::process::id());
        let own = dir.path().join(name);
        std::os::unix::fs::symlink(&file, &own).unwrap();
        write_new(&own).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "content");
        // The file of a killed process with the same ID is replaced.
        std::fs::write(&own, "half").unwrap();
        write_new(&own).unwrap();
        assert_eq!(std::fs::read(&own).unwrap(), [1u8; DIRECT_ALIGNMENT]);
    }

    #[test]
    fn a_file_is_found_below() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("ctr/3")).unwrap();
        std::fs::write(dir.path().join("small"), b"x").unwrap();
        assert_eq!(find_file(dir.path(), DEPTH_MAX, &mut 100), None);
        let weights = dir.path().join("ctr/3/weights.bin");
        std::fs::write(&weights, vec![0; DIRECT_ALIGNMENT]).unwrap();
        assert_eq!(find_file(dir.path(), DEPTH_MAX, &mut 100), Some(weights.clone()));
        assert_eq!(find_file(dir.path(), 1, &mut 100), None);
        assert!(read_block(&weights).is_ok());
    }

    #[test]
    fn persistent_memory_is_reported() {
        let found = |outcome: base::Result<()>| {
            persistent_memory(Some(Path::new("/x")), |_| outcome.clone()).meaning
        };
        assert!(found(Ok(())).contains("in place"));
        assert!(found(Err(base::Error::unimplemented("no DAX"))).contains("io_uring"));
        assert!(found(Err(base::Error::internal("broken"))).contains("broken"));
        assert_eq!(persistent_memory(None, |_| Ok(())).verdict, CheckVerdict::Ok);
    }

    #[test]
    fn a_directory_without_direct_io_is_a_finding() {
        assert_eq!(direct("d", Path::new("/x"), Ok(None)).verdict, CheckVerdict::Ok);
        assert_eq!(
            direct("d", Path::new("/x"), Ok(Some("EINVAL".into()))).verdict,
            CheckVerdict::Warn
        );
        assert_eq!(direct("d", Path::new("/x"), Err("no".into())).verdict, CheckVerdict::Warn);
    }
}
