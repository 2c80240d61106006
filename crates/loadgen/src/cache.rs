//! Cache of generated models, and model repositories that link to it without copying.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use base::{Error, Result, VersionNumber};

use crate::disk_space::check_space;
use crate::run_folder::RunFolder;

/// Remedy of a full disk for [`check_space`].
pub const REMEDY: &str = "free some, choose a smaller model, or another directory with --cache-dir";

/// Returns the directory `key` of `cache_dir`. If it does not exist, `make` writes into an empty
/// directory beside it that is renamed when complete. So an existing directory is complete.
///
/// # Errors
/// `ResourceExhausted` if `bytes` do not fit the disk. Also the errors of `make`.
pub fn ensure(
    cache_dir: &Path,
    key: &str,
    bytes: u64,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let models = cache_dir.join("models");
    let dir = models.join(key);
    if dir.is_dir() {
        return Ok(dir);
    }
    std::fs::create_dir_all(&models).map_err(|e| Error::io(&models, &e))?;
    check_space(&models, bytes, REMEDY)?;
    let part = models.join(format!("{key}.part"));
    remove(&part)?;
    std::fs::create_dir(&part).map_err(|e| Error::io(&part, &e))?;
    if let Err(error) = make(&part) {
        // The first error is reported; the next run removes the rest.
        let _ = remove(&part);
        return Err(error);
    }
    std::fs::rename(&part, &dir).map_err(|e| Error::io(&dir, &e))?;
    Ok(dir)
}

/// Creates the empty directory `path`. Removes an existing one with its content.
///
/// # Errors
/// The errors of the file system.
pub fn create_empty_dir(path: &Path) -> Result<()> {
    remove(path)?;
    std::fs::create_dir_all(path).map_err(|e| Error::io(path, &e))
}

/// [`RunFolder`] that other processes know to be in use. A killed process leaves it, and the next
/// process removes it.
#[derive(Debug)]
pub struct TemporaryDir {
    folder: RunFolder,
    /// Shows other processes that this one uses the directory.
    _lock: File,
}

impl TemporaryDir {
    /// Creates the empty directory `path`. Removes an existing one with its content.
    ///
    /// # Errors
    /// The errors of the file system, and `FailedPrecondition` if another process uses the
    /// directory.
    pub fn create(path: PathBuf) -> Result<TemporaryDir> {
        if in_use(&path).unwrap_or(false) {
            return Err(Error::precondition(format!(
                "{}: another process uses it; wait for its end, or give another --cache-dir",
                path.display()
            )));
        }
        create_empty_dir(&path)?;
        let lock = File::open(&path).map_err(|e| Error::io(&path, &e))?;
        // Without locks, as on some network file systems, the directory works as well.
        let _ = lock.try_lock();
        Ok(TemporaryDir { folder: RunFolder::new(path), _lock: lock })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Removes the directories of killed processes in `parent`. No process uses them, and
    /// `is_temporary` accepts their names.
    pub fn remove_abandoned(parent: &Path, is_temporary: impl Fn(&str) -> bool) {
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let path = entry.path();
            let wanted = entry.file_name().to_str().is_some_and(&is_temporary);
            if wanted && matches!(in_use(&path), Ok(false)) {
                // The next one tries again.
                let _ = remove(&path);
            }
        }
    }
}

/// Returns true if a process has locked the directory `path`.
///
/// # Errors
/// The errors of the file system, for example if it has no locks of directories.
fn in_use(path: &Path) -> std::io::Result<bool> {
    match File::open(path) {
        Ok(dir) => match dir.try_lock() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a directory with its content, if the directory exists.
///
/// # Errors
/// The errors of the file system.
pub fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path, &error)),
        _ => Ok(()),
    }
}

/// Publishes version `version` of the model at `model_dir` in one step, as hard links to the files
/// of `cached`.
///
/// # Errors
/// The errors of the file system.
pub fn publish_link(cached: &Path, model_dir: &Path, version: VersionNumber) -> Result<()> {
    let part = model_dir.join(format!(".part-{version}"));
    create_empty_dir(&part)?;
    link_files(cached, &part)?;
    let place = model_dir.join(version.to_string());
    std::fs::rename(&part, &place).map_err(|e| Error::io(&place, &e))
}

/// Fills the empty directory `to` with directories like those of `from` and hard links to its
/// files.
fn link_files(from: &Path, to: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from).map_err(|e| Error::io(from, &e))? {
        let entry = entry.map_err(|e| Error::io(from, &e))?;
        let source = entry.path();
        let target = to.join(entry.file_name());
        if source.is_dir() {
            std::fs::create_dir(&target).map_err(|e| Error::io(&target, &e))?;
            link_files(&source, &target)?;
        } else {
            std::fs::hard_link(&source, &target).map_err(|e| Error::io(&target, &e))?;
        }
    }
    Ok(())
}

/// Returns the bytes of all files below `dir`. A file that disappears during the call counts as 0.
pub fn disk_bytes(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(file) if file.is_dir() => disk_bytes(&entry.path()),
        Ok(file) => file.len(),
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}

/// Removes all but the newest `keep` versions of a model's directory, so that a long run does not
/// fill the disk.
pub fn prune(model_dir: &Path, newest: VersionNumber, keep: u64) -> Result<()> {
    match newest.checked_sub(keep) {
        Some(old) if old > 0 => remove(&model_dir.join(old.to_string())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_made_once_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        let failed = ensure(dir.path(), "m", 0, |part| {
            std::fs::write(part.join("half"), b"x").unwrap();
            Err(Error::internal("no"))
        });
        assert!(failed.is_err());
        let made = ensure(dir.path(), "m", 0, |part| {
            std::fs::write(part.join("a"), b"x").unwrap();
            Ok(())
        })
        .unwrap();
        assert_eq!(std::fs::read_dir(&made).unwrap().count(), 1);
        assert_eq!(ensure(dir.path(), "m", 0, |_| panic!("made twice")).unwrap(), made);
        assert!(ensure(dir.path(), "huge", u64::MAX / 2, |_| Ok(())).is_err());
    }

    #[test]
    fn abandoned_directories_are_removed_and_used_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let used = TemporaryDir::create(dir.path().join("tmp-1")).unwrap();
        std::fs::create_dir_all(dir.path().join("tmp-2/inner")).unwrap();
        std::fs::create_dir(dir.path().join("other")).unwrap();
        TemporaryDir::remove_abandoned(dir.path(), |name| name.starts_with("tmp-"));
        let names = || {
            let entries = std::fs::read_dir(dir.path()).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(), ["other", "tmp-1"]);
        let error = TemporaryDir::create(used.path().to_owned()).unwrap_err();
        assert!(error.message().contains("another process uses it"), "{error}");
        drop(used);
        assert_eq!(names(), ["other"]);
    }

    #[test]
    fn versions_are_links_and_old_ones_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (cached, model) = (dir.path().join("c"), dir.path().join("m"));
        std::fs::create_dir(&cached).unwrap();
        std::fs::create_dir(cached.join("inner")).unwrap();
        std::fs::write(cached.join("f"), b"x").unwrap();
        std::fs::write(cached.join("inner/g"), b"yz").unwrap();
        for version in 1..=3 {
            publish_link(&cached, &model, version).unwrap();
            prune(&model, version, 2).unwrap();
        }
        let mut names: Vec<_> =
            std::fs::read_dir(&model).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["2", "3"]);
        assert_eq!(std::fs::read(model.join("3/f")).unwrap(), b"x");
        assert_eq!(std::fs::read(model.join("3/inner/g")).unwrap(), b"yz");
        assert_eq!((disk_bytes(&model), disk_bytes(&model.join("4"))), (6, 0));
    }
}
