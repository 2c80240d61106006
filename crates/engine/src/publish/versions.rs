//! The directory of a model's versions: numbers, hidden directories of unfinished versions, and the
//! rename that publishes one.
//!
//! A version is written in a hidden sibling and renamed when it is complete, so no reader sees a
//! partial one. The writer holds a lock on its hidden directory. A hidden directory without a lock
//! was left by a publisher that was killed; the next publisher removes it. The model's directory
//! itself is locked only while names are chosen.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base::{Error, ErrorKind, Result};
use os::sync_directory;

/// Prefix of the names of unfinished versions. Never numeric, so that no server serves one as a
/// version.
const HIDDEN_PREFIX: &str = ".tmp-";
/// Highest version number. The protocols carry version numbers as `int64`.
pub const VERSION_MAX: u64 = i64::MAX as u64;

/// A hidden directory to write a version in. Dropping it without [`VersionClaim::commit`] removes
/// everything that was written.
pub struct VersionClaim {
    root: PathBuf,
    made_root: bool,
    hidden: PathBuf,
    wanted: Option<u64>,
    committed: bool,
    /// Shows other publishers that this one still runs.
    _lock: File,
}

impl VersionClaim {
    /// Makes the model's directory if needed, removes what stopped publishers left there, and makes
    /// a hidden directory in it.
    ///
    /// # Errors
    /// `AlreadyExists` if the version `wanted` exists; I/O errors.
    pub fn new(root: &Path, wanted: Option<u64>) -> Result<VersionClaim> {
        if wanted.is_some_and(|version| version > VERSION_MAX) {
            return Err(Error::invalid(format!("version numbers end at {VERSION_MAX}")));
        }
        let made_root = make_root(root)?;
        let outcome = VersionClaim::make(root, wanted, made_root);
        if outcome.is_err() && made_root {
            let _ = std::fs::remove_dir(root);
        }
        outcome
    }

    /// Makes the hidden directory, and removes those of programs that ended. `made_root` is true
    /// if the caller made `root`.
    fn make(root: &Path, wanted: Option<u64>, made_root: bool) -> Result<VersionClaim> {
        let gate = DirectoryLock::enter(root)?;
        if let Some(version) = wanted {
            check_free(root, version)?;
        }
        if gate.locked {
            remove_abandoned(root)?;
        }
        let age = base::unix_time(SystemTime::now()).as_nanos();
        let hidden = root.join(format!("{HIDDEN_PREFIX}{}-{age}", std::process::id()));
        std::fs::create_dir(&hidden).map_err(|e| Error::io(&hidden, &e))?;
        let lock = File::open(&hidden).map_err(|e| Error::io(&hidden, &e))?;
        // If locks are not supported, no publisher removes directories of others.
        let _ = lock.try_lock();
        Ok(VersionClaim {
            root: root.to_owned(),
            made_root,
            hidden,
            wanted,
            committed: false,
            _lock: lock,
        })
    }

    /// Returns the directory to write to.
    pub fn dir(&self) -> &Path {
        &self.hidden
    }

    /// Makes the version visible. Returns its number and directory.
    ///
    /// # Errors
    /// `AlreadyExists` if another program made the version; I/O errors.
    pub fn commit(mut self) -> Result<(u64, PathBuf)> {
        let _gate = DirectoryLock::enter(&self.root)?;
        let version = match self.wanted {
            Some(version) => version,
            None => next_version(&self.root)?,
        };
        check_free(&self.root, version)?;
        let dir = self.root.join(version.to_string());
        std::fs::rename(&self.hidden, &dir).map_err(|e| match e.kind() {
            std::io::ErrorKind::DirectoryNotEmpty | std::io::ErrorKind::AlreadyExists => {
                version_exists(&self.root, version)
            }
            _ => Error::io(&dir, &e),
        })?;
        self.committed = true;
        sync_directory(&self.root)?;
        Ok((version, dir))
    }
}

impl Drop for VersionClaim {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        if let Err(error) = std::fs::remove_dir_all(&self.hidden) {
            tracing::warn!(dir = %self.hidden.display(), %error, "an unfinished version could not be removed");
        }
        if self.made_root {
            // This fails, as it should, if another publisher uses the directory by now.
            let _ = std::fs::remove_dir(&self.root);
        }
    }
}

/// The model's directory, locked while names are chosen in it.
struct DirectoryLock {
    _dir: File,
    locked: bool,
}

impl DirectoryLock {
    fn enter(root: &Path) -> Result<DirectoryLock> {
        let dir = File::open(root).map_err(|e| Error::io(root, &e))?;
        let locked = dir.lock().is_ok();
        Ok(DirectoryLock { _dir: dir, locked })
    }
}

/// Makes a model's directory. Returns true if it was missing.
fn make_root(root: &Path) -> Result<bool> {
    match std::fs::metadata(root) {
        Ok(meta) if meta.is_dir() => return Ok(false),
        Ok(_) => return Err(Error::invalid(format!("{}: not a directory", root.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(Error::io(root, &error)),
    }
    let missing = root.ancestors().take_while(|dir| !dir.exists()).count();
    std::fs::create_dir_all(root).map_err(|e| Error::io(root, &e))?;
    // The entry of each new directory is durable once its parent is.
    for dir in root.ancestors().take(missing) {
        match dir.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent)?,
            Some(_) => sync_directory(Path::new("."))?,
            None => {}
        }
    }
    Ok(true)
}

/// Returns the numbers of the existing versions.
fn versions(root: &Path) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root).map_err(|e| Error::io(root, &e))? {
        let entry = entry.map_err(|e| Error::io(root, &e))?;
        found.extend(entry.file_name().to_str().and_then(number));
    }
    Ok(found)
}

/// Returns the version of a directory of this name. "007" counts as 7, as in TensorFlow Serving.
fn number(name: &str) -> Option<u64> {
    let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|&version| digits && version <= VERSION_MAX)
}

fn next_version(root: &Path) -> Result<u64> {
    let highest = versions(root)?.into_iter().max().unwrap_or(0);
    if highest >= VERSION_MAX {
        return Err(Error::precondition(format!(
            "{}: version {highest} is the last there can be; give a free number with --version",
            root.display()
        )));
    }
    Ok(highest + 1)
}

fn check_free(root: &Path, version: u64) -> Result<()> {
    if versions(root)?.contains(&version) { Err(version_exists(root, version)) } else { Ok(()) }
}

fn version_exists(root: &Path, version: u64) -> Error {
    Error::new(
        ErrorKind::AlreadyExists,
        format!(
            "{}: version {version} exists; versions never change, publish under another number",
            root.display()
        ),
    )
}

/// Removes hidden directories of publishers that have ended.
fn remove_abandoned(root: &Path) -> Result<()> {
    for entry in std::fs::read_dir(root).map_err(|e| Error::io(root, &e))? {
        let entry = entry.map_err(|e| Error::io(root, &e))?;
        let hidden = entry.file_name().to_str().is_some_and(|name| name.starts_with(HIDDEN_PREFIX));
        if !hidden || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = entry.path();
        let Ok(dir) = File::open(&path) else { continue };
        if dir.try_lock().is_err() {
            continue;
        }
        match std::fs::remove_dir_all(&path) {
            Ok(()) => {
                tracing::info!(dir = %path.display(), "removed the files of an interrupted publish")
            }
            Err(error) => {
                tracing::warn!(dir = %path.display(), %error, "an interrupted publish left this")
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(root: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(root)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn numbers_follow_the_highest() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("deep/model");
        assert_eq!(VersionClaim::new(&root, None).unwrap().commit().unwrap(), (1, root.join("1")));
        std::fs::create_dir(root.join("0041")).unwrap();
        std::fs::create_dir(root.join("50x")).unwrap();
        assert_eq!(VersionClaim::new(&root, None).unwrap().commit().unwrap().0, 42);
        assert_eq!(VersionClaim::new(&root, Some(7)).unwrap().commit().unwrap().0, 7);
        for taken in [1, 7, 41, 42] {
            let error = VersionClaim::new(&root, Some(taken)).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        }
        assert!(VersionClaim::new(&root, Some(u64::MAX)).is_err());
        assert_eq!(names(&root), ["0041", "1", "42", "50x", "7"]);
    }

    #[test]
    fn a_version_that_appears_meanwhile_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let claim = VersionClaim::new(dir.path(), Some(3)).unwrap();
        let other = VersionClaim::new(dir.path(), None).unwrap();
        std::fs::write(other.dir().join("file"), b"theirs").unwrap();
        std::fs::create_dir(dir.path().join("2")).unwrap();
        assert_eq!(other.commit().unwrap().0, 3);
        assert_eq!(claim.commit().unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(names(dir.path()), ["2", "3"]);
        assert_eq!(std::fs::read(dir.path().join("3/file")).unwrap(), b"theirs");
    }

    #[test]
    fn only_directories_of_ended_publishers_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(".tmp-1-1")).unwrap();
        std::fs::write(dir.path().join(".tmp-1-1/weights.bin"), b"half").unwrap();
        let living = VersionClaim::new(dir.path(), None).unwrap();
        assert_eq!(names(dir.path()).len(), 1, "the dead one is gone");
        let second = VersionClaim::new(dir.path(), None).unwrap();
        assert!(living.dir().exists() && second.dir().exists());
        drop((living, second));
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn a_failure_removes_the_new_directory() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("model");
        drop(VersionClaim::new(&root, None).unwrap());
        assert!(!root.exists());
        std::fs::write(&root, b"file").unwrap();
        assert!(VersionClaim::new(&root, None).is_err());
        assert!(root.exists());
    }
}
