//! Collections made of copied files: restored from a backup, or cloned from another collection.
//!
//! The files go to a temporary directory, which gets the collection's name at the end. A later
//! start removes the remains after a crash. If the name is taken, both directories are exchanged in
//! one step, so that after a crash either the old collection exists or the new one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::units::format_bytes;
use base::{Error, ErrorKind, Result};
use os::private;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use storage::{Medium, UringMedium, Writer};

use super::core::{RegistryCore, RegistryEntry, SETTINGS, SETTINGS_KIND, random, remove_directory};
use super::files::{self, CollectionSettings, StoredSettings};
use super::media::FileLayout;
use super::named::NamedCollection;
use crate::collection::{CollectionOptions, is_file_name, publish_copy};

/// Maximum attempts to open all segments of a restored collection before the restore ends.
const OPEN_TRIES_MAX: u32 = 12;
/// Bytes of one read when a file is copied within this machine.
const COPY_BYTES: usize = 1 << 20;

/// Collection whose files are being written. Dropping it removes them.
pub struct RestoringCollection {
    core: Arc<RegistryCore>,
    name: String,
    settings: CollectionSettings,
    directory: PathBuf,
    points: String,
    layout: FileLayout,
    medium: Arc<dyn Medium>,
    replaces: bool,
}

impl RestoringCollection {
    /// Creates the temporary directory. `bytes` is the length of all files together. `replaces` is
    /// true if an existing collection `name` is to be replaced.
    pub(super) fn begin(
        core: &Arc<RegistryCore>,
        name: &str,
        settings: CollectionSettings,
        bytes: u64,
        replaces: bool,
    ) -> Result<RestoringCollection> {
        settings.check()?;
        core.check_free(name, replaces)?;
        core.check_room(bytes)?;
        let layout = core.media.layout(settings.medium, &core.options.directory)?;
        let directory = core.aside("new");
        let points = format!("points-{:016x}", random());
        let made = private::create_dir(&directory)
            .and_then(|()| private::create_dir(&directory.join(&points)))
            .map_err(|error| Error::io(&directory, &error))
            .and_then(|()| core.media.open(settings.medium, layout, &directory.join(&points)));
        let medium = made.inspect_err(|_| remove_directory(directory.clone()))?;
        core.restoring.lock().insert(points.clone(), settings.clone());
        let core = core.clone();
        let name = name.to_owned();
        Ok(RestoringCollection {
            core,
            name,
            settings,
            directory,
            points,
            layout,
            medium,
            replaces,
        })
    }

    /// Returns the temporary directory, where an API may put its files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Creates a file with the name that it has in the list.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that no file of a collection has, `AlreadyExists` for a second
    /// file of the name. Otherwise the error of the medium.
    pub fn create(&self, file: &str) -> Result<Box<dyn Writer>> {
        if !is_file_name(file) {
            return Err(Error::invalid(format!("{file:?} is not the name of a collection's file")));
        }
        self.medium.create(file)
    }

    /// Links an immutable file of `from`. Returns false if the file system cannot, or if files of
    /// this collection have another layout.
    pub(super) fn link(&self, from: &NamedCollection, file: &str) -> bool {
        if from.layout() != self.layout {
            return false;
        }
        let source = from.points_directory().join(file);
        std::fs::hard_link(source, self.directory.join(&self.points).join(file)).is_ok()
    }

    /// Makes the files a collection that is served. `list` comes from
    /// [`crate::collection::PinnedFiles::list`].
    ///
    /// # Errors
    /// `DataLoss` if the list is damaged or a file is missing. `AlreadyExists` if the name was
    /// taken meanwhile. `FailedPrecondition` for the list of a newer program, or if the file system
    /// cannot exchange directories. Otherwise the error of the file system. After an error of the
    /// last step, opening, the name stands for the restored collection, which the next start opens.
    pub fn finish(mut self, list: &[u8]) -> Result<Arc<NamedCollection>> {
        let options = CollectionOptions::new(self.settings.dims, self.settings.metric);
        publish_copy(&self.medium, list, &options.shape)?;
        let stored = StoredSettings::new(&self.settings, &self.points, self.layout);
        files::replace(SETTINGS_KIND, &self.directory.join(SETTINGS), &stored)?;
        // Finds a collection that cannot be opened before it gets its name. Also replays its logs.
        drop(self.core.open_at(&self.name, &self.directory)?);
        let core = self.core.clone();
        let named = core.publish_directory(&self.name, &mut self.directory, self.replaces)?;
        core.open_restored(&named);
        Ok(named)
    }
}

impl Drop for RestoringCollection {
    /// Removes the files that were written, or the files of the collection that was replaced.
    fn drop(&mut self) {
        self.core.restoring.lock().remove(&self.points);
        if !self.directory.as_os_str().is_empty() {
            remove_directory(std::mem::take(&mut self.directory));
        }
    }
}

impl RegistryCore {
    /// Copies a collection within this machine. Segments are linked and take no room.
    pub(super) fn clone_collection(
        self: &Arc<Self>,
        from: &str,
        to: &str,
    ) -> Result<Arc<NamedCollection>> {
        let source = self.get(from)?;
        let settings = CollectionSettings::clone(&source.settings());
        self.check_free(to, false)?;
        let pinned = source.collection().pin()?;
        let copy = RestoringCollection::begin(self, to, settings, 0, false)?;
        for file in pinned.files() {
            let grows = file.role == crate::collection::FileRole::Log;
            if grows || !copy.link(&source, &file.name) {
                self.check_room(file.bytes)?;
                copy_file(&pinned.open(file)?, &mut *copy.create(&file.name)?)?;
            }
        }
        let list = pinned.list()?;
        copy.finish(&list)
    }

    /// Checks that `name` can be given to a restored collection. A collection of this name may
    /// exist if `replaces` is true.
    fn check_free(&self, name: &str, replaces: bool) -> Result<()> {
        files::check_name(name)?;
        let map = self.map.read();
        if map.aliases.contains_key(name) {
            return Err(name_exists("alias", name));
        }
        match map.entries.get(name) {
            None if map.entries.len() >= self.options.collections_max => {
                Err(self.too_many(map.entries.len()))
            }
            Some(entry) if entry.is_opening() => Err(super::core::opening_error(name)),
            Some(_) if !replaces => Err(name_exists("collection", name)),
            _ => Ok(()),
        }
    }

    /// Checks that the disk is there, and has room for `bytes` more and the reserve.
    pub(super) fn check_room(&self, bytes: u64) -> Result<()> {
        self.check_directory()?;
        let medium = UringMedium::plain(self.options.directory.clone())?;
        crate::collection::check_room_to_create(&medium, self.options.disk_reserve, bytes)?;
        // Without a reserve, that checks nothing.
        match medium.space()? {
            Some(space) if space.free < bytes => Err(Error::storage_full(format!(
                "the disk of the collections has {} left, and the copy needs {}; free space",
                format_bytes(space.free),
                format_bytes(bytes)
            ))),
            _ => Ok(()),
        }
    }

    /// Gives `directory` the name of the collection and serves it. Afterwards `directory` is the
    /// path of the collection that was replaced, or empty.
    fn publish_directory(
        self: &Arc<Self>,
        name: &str,
        directory: &mut PathBuf,
        replaces: bool,
    ) -> Result<Arc<NamedCollection>> {
        let _changing = self.changing.lock();
        self.check_free(name, replaces)?;
        let place = self.options.directory.join(name);
        let (exists, old) = match self.map.read().entries.get(name) {
            Some(RegistryEntry::Ready(named)) => (true, Some(named.clone())),
            entry => (entry.is_some(), None),
        };
        if exists {
            // Before the old collection ends, so that an error changes nothing.
            let exchange = || {
                let exchanged = renameat_with(CWD, &*directory, CWD, &place, RenameFlags::EXCHANGE);
                exchanged.map_err(|error| {
                    Error::precondition(format!(
                        "{}: the directories cannot be exchanged ({error}); remove the collection first",
                        place.display()
                    ))
                    .with_source(error)
                })
            };
            match &old {
                Some(named) => named.replaced_by(exchange)?,
                None => exchange()?,
            }
            self.retire(name);
        } else {
            rename_to_free(directory, &place, || {
                renameat_with(CWD, &*directory, CWD, &place, RenameFlags::NOREPLACE)
            })?;
            *directory = PathBuf::new();
        }
        let synced = files::sync(&self.options.directory);
        let opened = synced.and_then(|()| self.open_one(name));
        self.insert(name, &opened);
        opened
    }

    /// Opens the segments of a restored collection, and retries for a limited time. The thread that
    /// opens collections continues.
    fn open_restored(&self, named: &Arc<NamedCollection>) {
        for _ in 0..OPEN_TRIES_MAX {
            if !named.collection().open_segments() || named.removed() || self.stopped() {
                return;
            }
            if named.collection().lacks_memory() {
                self.move_codes();
            }
            self.pause(super::core::OPEN_AGAIN);
        }
        tracing::warn!(
            collection = named.name(),
            "segments of a restored collection could not be opened yet, and are tried again"
        );
        self.unopened.lock().push(named.clone());
    }
}

/// Gives `from` the path `to`, which nothing must have. `rename` does this in one step. Some file
/// systems cannot, such as NFS and ZFS before 2.2. There the path is looked up first. The registry
/// has locked its directory, so no other server takes the path in between.
fn rename_to_free(
    from: &Path,
    to: &Path,
    rename: impl FnOnce() -> rustix::io::Result<()>,
) -> Result<()> {
    let fail = |error: std::io::Error| Error::io(to, &error);
    match rename() {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        renamed => return renamed.map_err(|error| fail(error.into())),
    }
    match std::fs::symlink_metadata(to) {
        Ok(_) => Err(fail(Errno::EXIST.into())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            std::fs::rename(from, to).map_err(fail)
        }
        Err(error) => Err(fail(error)),
    }
}

fn name_exists(what: &str, name: &str) -> Error {
    let message = format!("{what} \"{name}\" already exists; remove it, or use another name");
    Error::new(ErrorKind::AlreadyExists, message)
}

fn copy_file(from: &crate::collection::PinnedReader<'_>, to: &mut dyn Writer) -> Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut done = 0;
    while done < from.bytes() {
        let part = (from.bytes() - done).min(COPY_BYTES as u64) as usize;
        from.read_at(done, &mut buffer[..part])?;
        to.append(&buffer[..part])?;
        done += part as u64;
    }
    to.persist()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_name_needs_no_special_file_system() {
        let root = tempfile::tempdir().unwrap();
        let [from, to] = ["new", "a"].map(|name| root.path().join(name));
        let rename = |error| rename_to_free(&from, &to, || Err(error));
        std::fs::create_dir(&from).unwrap();
        assert_eq!(rename(Errno::ACCESS).unwrap_err().kind(), ErrorKind::PermissionDenied);
        rename(Errno::INVAL).unwrap();
        assert!(to.is_dir() && !from.exists());
        std::fs::create_dir(&from).unwrap();
        assert!(rename(Errno::INVAL).is_err(), "the name is taken");
        assert!(from.is_dir());
    }
}
