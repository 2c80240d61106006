//! Directories of collections: made, renamed, listed and removed.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};
use os::private;

use super::{RegistryCore, SETTINGS, SETTINGS_KIND};
use crate::registry::files::{self, CollectionSettings, StoredSettings, check_name};
use crate::registry::media::FileLayout;

impl RegistryCore {
    /// Creates the directory of a collection under a temporary name and renames it.
    ///
    /// # Errors
    /// `AlreadyExists` if there is such a directory. Also the error of the file system.
    pub(super) fn make_directory(
        &self,
        name: &str,
        settings: &CollectionSettings,
        layout: FileLayout,
    ) -> Result<()> {
        let root = &self.options.directory;
        let aside = self.aside("new");
        let place = root.join(name);
        if place.exists() {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("{} is not a collection; move it to another directory", place.display()),
            ));
        }
        let points = format!("points-{:016x}", random());
        let made = private::create_dir(&aside)
            .and_then(|()| private::create_dir(&aside.join(&points)))
            .map_err(|error| Error::io(&aside, &error))
            .and_then(|()| {
                files::replace(
                    SETTINGS_KIND,
                    &aside.join(SETTINGS),
                    &StoredSettings::new(settings, &points, layout),
                )
            })
            .and_then(|()| {
                std::fs::rename(&aside, &place).map_err(|error| Error::io(&place, &error))
            });
        if made.is_err() {
            remove_directory(aside);
        }
        made?;
        files::sync(root)
    }

    /// Checks that the directory of the collections is the one that was locked at the start. In an
    /// empty mount point, a new collection or alias would be hidden once the disk is mounted.
    ///
    /// # Errors
    /// `Unavailable` if it is another directory, or missing.
    pub(in crate::registry) fn check_directory(&self) -> Result<()> {
        files::check_locked(&self.options.directory, &self.lock)
    }

    /// Returns the path of a temporary directory that is hidden and has a new name.
    pub(in crate::registry) fn aside(&self, what: &str) -> PathBuf {
        self.options.directory.join(format!(".{what}-{:016x}", random()))
    }

    /// Renames a collection's directory away, durably. A directory that is missing, because an
    /// operator or an earlier attempt removed it, is not an error.
    ///
    /// # Errors
    /// `Unavailable` if the directory is missing because the disk of all collections is. Otherwise
    /// the error of the file system.
    pub(super) fn set_aside(&self, name: &str) -> Result<PathBuf> {
        let place = self.options.directory.join(name);
        let aside = self.aside("gone");
        match std::fs::rename(&place, &aside) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.check_directory()?;
            }
            Err(error) => return Err(Error::io(&place, &error)),
        }
        files::sync(&self.options.directory)?;
        Ok(aside)
    }
}

/// Returns the names of directories that may be collections, ascending. Links to collections are
/// among them, and links whose targets are missing, such as those on a disk that is not mounted. So
/// opening them reports the links, and their aliases stay.
///
/// # Errors
/// The error of the file system.
pub(super) fn collections(directory: &Path) -> Result<Vec<String>> {
    let fail = |error: std::io::Error| Error::io(directory, &error);
    let is_directory = |entry: &DirEntry| {
        let linked = || {
            let path = entry.path();
            path.join(SETTINGS).exists() || !path.exists()
        };
        entry.file_type().is_ok_and(|kind| kind.is_dir() || (kind.is_symlink() && linked()))
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if check_name(&name).is_ok() && is_directory(&entry) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the directories that the last process was creating or removing. They only cost space.
pub(super) fn leftovers(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let is_left = |name: &str| name.starts_with(".new-") || name.starts_with(".gone-");
    let left = entries.flatten().filter(|entry| is_left(&entry.file_name().to_string_lossy()));
    left.map(|entry| entry.path()).collect()
}

/// Removes a directory with its files. A failure is only logged, since the next start tries again.
pub(in crate::registry) fn remove_directory(path: PathBuf) {
    if let Err(error) = std::fs::remove_dir_all(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %path.display(), "the remaining files of a collection stay until the next start");
    }
}

/// Returns a random number. It is a hash with a key drawn by the system.
pub(in crate::registry) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now()))
}
