//! Cache of generated models, and model repositories that link to it without copying.

use std::path::{Path, PathBuf};

use base::units::format_bytes;
use base::{Error, Result, VersionNumber};

/// Free disk space that making a model leaves.
const DISK_SPARE_BYTES: u64 = 1 << 30;

/// Returns the directory `key` of `cache_dir`. If it does not exist, `make` writes into an empty
/// directory beside it that is renamed when complete. So an existing directory is complete.
///
/// # Errors
/// `ResourceExhausted` if `bytes` do not fit the disk; the errors of `make`.
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
    check_space(&models, bytes)?;
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

fn check_space(dir: &Path, bytes: u64) -> Result<()> {
    let disk = rustix::fs::statvfs(dir).map_err(|e| Error::io(dir, &e.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < bytes.saturating_add(DISK_SPARE_BYTES) {
        return Err(Error::exhausted(format!(
            "{}: {} free, {} and 1 GiB to spare are needed; free some or choose a smaller model",
            dir.display(),
            format_bytes(free),
            format_bytes(bytes)
        )));
    }
    Ok(())
}

/// Creates the empty directory `path`. Removes an existing one with its content.
///
/// # Errors
/// The errors of the file system.
pub fn create_empty_dir(path: &Path) -> Result<()> {
    remove(path)?;
    std::fs::create_dir_all(path).map_err(|e| Error::io(path, &e))
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
