//! Opens the collections of a registry, at the start and again after a failure.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::{Error, Result};

use super::{OPEN_AGAIN, RegistryCore, RegistryEntry, SETTINGS, SETTINGS_KIND, remove_directory};
use crate::collection::{Collection, CollectionOptions};
use crate::registry::files::{self, StoredSettings};
use crate::registry::named::{CollectionParts, NamedCollection};

/// A broken collection is retried after this many [`OPEN_AGAIN`]. That reads its whole log.
const BROKEN_ROUNDS: u32 = 6;
/// Time between checks for segments to read into memory.
const PRELOAD_CHECK: Duration = Duration::from_millis(500);

impl RegistryCore {
    /// Opens all collections one after the other, and retries failed ones later. Reads codes,
    /// embeddings and payloads into memory if it has room for them, until the registry stops.
    pub(in crate::registry) fn open_all(&self) {
        let names = std::mem::take(&mut *self.waiting.lock());
        let mut again = Vec::new();
        let mut broken = Vec::new();
        self.open_each(names, &mut again, &mut broken);
        if self.stopped() {
            return;
        }
        self.opened.store(true, Ordering::Relaxed);
        self.resources.notify();
        // Last, because there may be a million files.
        let leftovers = std::mem::take(&mut *self.leftovers.lock());
        leftovers.into_iter().take_while(|_| !self.stopped()).for_each(remove_directory);
        let mut round = 0u32;
        while !self.stopped() {
            let next = Instant::now() + OPEN_AGAIN;
            let complete = !again.iter().any(lacks_memory);
            while !self.stopped() && Instant::now() < next {
                let did = (complete && self.load_codes()) || self.preload();
                if !did {
                    let left = next.saturating_duration_since(Instant::now());
                    self.pause(left.min(PRELOAD_CHECK));
                }
            }
            self.open_again(&mut again);
            round += 1;
            if round.is_multiple_of(BROKEN_ROUNDS) {
                let names = std::mem::take(&mut broken)
                    .into_iter()
                    .filter(|name| self.mark_opening(name))
                    .collect();
                self.open_each(names, &mut again, &mut broken);
            }
        }
    }

    /// Opens collections. Collections with segments to retry are added to `again`, collections to
    /// retry as a whole to `broken`.
    fn open_each(
        &self,
        names: Vec<String>,
        again: &mut Vec<Arc<NamedCollection>>,
        broken: &mut Vec<String>,
    ) {
        for name in names {
            if self.stopped() {
                return;
            }
            let opened = self.open_one(&name);
            self.insert(&name, &opened);
            match opened {
                Ok(named) if named.collection().open_segments() => again.push(named),
                Err(error) if error.is_retryable() => broken.push(name),
                _ => {}
            }
        }
    }

    /// Tries again to open segments of the collections in `again`, and of restored ones. Keeps the
    /// collections whose segments are not all open.
    fn open_again(&self, again: &mut Vec<Arc<NamedCollection>>) {
        again.append(&mut self.unopened.lock());
        if again.iter().any(lacks_memory) {
            self.move_codes();
        }
        again.retain(|named| !named.removed() && named.collection().open_segments());
    }

    /// Marks a broken collection as being opened. Returns false if it is no longer broken, for
    /// example because it was removed.
    fn mark_opening(&self, name: &str) -> bool {
        // A restore replaces the directory under this lock. A collection that this thread opened
        // meanwhile would be open twice.
        let _changing = self.changing.lock();
        match self.map.write().entries.get_mut(name) {
            Some(entry @ RegistryEntry::Broken(_)) => {
                *entry = RegistryEntry::Opening;
                true
            }
            _ => false,
        }
    }

    /// Opens the collection in the directory with its name.
    ///
    /// # Errors
    /// `FailedPrecondition` for a symbolic link. Also as [`RegistryCore::open_at`].
    pub(in crate::registry) fn open_one(&self, name: &str) -> Result<Arc<NamedCollection>> {
        let directory = self.options.directory.join(name);
        check_no_link(&directory)?;
        self.open_at(name, &directory)
    }

    /// Opens the collection in `directory`.
    ///
    /// # Errors
    /// `DataLoss` if settings or points are missing. Also the errors of the file system, of the
    /// medium and of [`Collection::open`].
    pub(in crate::registry) fn open_at(
        &self,
        name: &str,
        directory: &Path,
    ) -> Result<Arc<NamedCollection>> {
        let directory = directory.to_owned();
        let stored: Option<StoredSettings> = files::read(SETTINGS_KIND, &directory.join(SETTINGS))?;
        let stored = stored.ok_or_else(|| {
            Error::data_loss(format!(
                "{} has no settings; restore them from a copy",
                directory.display()
            ))
        })?;
        let settings = stored.settings()?;
        let points = directory.join(&stored.points);
        check_points(&points)?;
        let medium = self.media.open(settings.medium, stored.layout(), &points)?;
        let options = CollectionOptions {
            records: settings.records,
            codes: self.options.codes,
            build_threads: self.options.build_threads,
            merging: self.options.merging,
            quiet: self.options.quiet,
            shared_values_min: self.options.shared_values_min,
            payload_bytes_max: self.options.payload_bytes_max,
            disk_reserve: self.options.disk_reserve,
            ..CollectionOptions::new(settings.dims, settings.metric)
        };
        let collection = Collection::open(medium, options, &self.resources, self.caches.clone())?;
        let parts = CollectionParts {
            directory,
            points: stored.points,
            settings,
            collection,
            hash: self.options.uuid_hash,
            serial: self.serial.fetch_add(1, Ordering::Relaxed),
        };
        Ok(Arc::new(NamedCollection::new(name, parts)))
    }
}

/// Returns true if segments of a collection could not be opened because memory had no room.
fn lacks_memory(named: &Arc<NamedCollection>) -> bool {
    named.collection().lacks_memory()
}

/// Checks that a collection's directory is not a symbolic link. Two links could name one
/// collection, which would be open twice, and a removal would leave its files.
///
/// # Errors
/// `FailedPrecondition` for a link.
fn check_no_link(directory: &Path) -> Result<()> {
    if std::fs::symlink_metadata(directory).is_ok_and(|found| found.is_symlink()) {
        return Err(Error::precondition(format!(
            "{} is a symbolic link; replace it by the directory, or move all collections to the \
             other disk and name it with --collections-dir",
            directory.display()
        )));
    }
    Ok(())
}

/// Checks that the directory of points exists. A medium would create an empty directory, and the
/// points would be missing without an error.
///
/// # Errors
/// `DataLoss` if the directory is missing. Also the error of the file system.
fn check_points(points: &Path) -> Result<()> {
    match std::fs::metadata(points) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::data_loss(
            format!("{} is missing; restore it from a copy", points.display()),
        )),
        Err(error) => Err(Error::io(points, &error)),
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use coarse::Metric;

    use super::*;
    use crate::ingest::PointRef;
    use crate::registry::CollectionSettings;
    use crate::registry::core::tests::small_core;

    #[test]
    fn a_missing_points_directory_is_damage() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        std::fs::remove_dir_all(named.points_directory()).unwrap();
        let error = core.open_one("a").map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataLoss);
        core.retire("a");
        let error = core.get("a").map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "it is being replaced");
    }

    #[test]
    fn a_link_to_a_collection_is_reported() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("collections");
        let core = small_core(&directory);
        drop(core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap());
        drop(core);
        let moved = root.path().join("moved");
        std::fs::rename(directory.join("a"), &moved).unwrap();
        std::os::unix::fs::symlink(&moved, directory.join("a")).unwrap();
        std::os::unix::fs::symlink(root.path(), directory.join("other")).unwrap();
        let missing = root.path().join("missing");
        std::os::unix::fs::symlink(missing, directory.join("unmounted")).unwrap();
        let core = small_core(&directory);
        assert_eq!(*core.waiting.lock(), ["a", "unmounted"]);
        let error = core.open_one("a").map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
        assert!(error.message().contains("a is a symbolic link; replace it"), "{error}");
    }

    #[test]
    fn a_collection_that_was_created_is_not_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let created = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        // The thread that opens collections may start later.
        let names = std::mem::take(&mut *core.waiting.lock());
        core.open_each(names, &mut Vec::new(), &mut Vec::new());
        assert!(Arc::ptr_eq(&core.get("a").unwrap(), &created));
        drop((core, created));
        let core = small_core(directory.path());
        assert_eq!(*core.waiting.lock(), ["a"]);
    }

    #[test]
    fn a_stopped_registry_opens_no_more_segments() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        let point = PointRef { id: 1, embedding: &[1.0, 0.0], record: &[], payload: b"" };
        named.collection().upsert(point).unwrap();
        named.collection().flush().unwrap();
        drop((core, named));
        let core = small_core(directory.path());
        // The log is still being read when the registry stops.
        let opened = core.open_one("a");
        core.stop();
        core.insert("a", &opened);
        let named = opened.unwrap();
        assert!(!named.collection().open_segments());
        let segments = named.collection().status().segments;
        assert_eq!((segments.len(), segments.iter().any(|segment| segment.open)), (1, false));
    }

    #[test]
    fn segments_of_a_restored_collection_are_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        let point = PointRef { id: 1, embedding: &[1.0, 0.0], record: &[], payload: b"" };
        named.collection().upsert(point).unwrap();
        named.collection().flush().unwrap();
        drop((core, named));
        let core = small_core(directory.path());
        let named = core.open_one("a").unwrap();
        let budget = core.resources.budget();
        let others = budget.reserve(budget.free(), "other data").unwrap();
        assert!(named.collection().open_segments(), "no memory");
        // The restore has ended without them.
        core.unopened.lock().push(named.clone());
        let mut again = Vec::new();
        core.open_again(&mut again);
        assert_eq!(again.len(), 1);
        drop(others);
        core.open_again(&mut again);
        assert!(again.is_empty());
        assert!(named.collection().status().segments.iter().all(|segment| segment.open));
    }

    #[test]
    fn a_broken_collection_is_retried() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        drop(core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap());
        assert!(!core.mark_opening("a"), "it is served");
        core.map
            .write()
            .entries
            .insert("a".into(), RegistryEntry::Broken(Error::exhausted("no memory")));
        let error = core.get("a").map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        assert!(core.mark_opening("a") && !core.mark_opening("a"), "once");
        assert_eq!(
            core.remove("a").unwrap_err().kind(),
            ErrorKind::Unavailable,
            "not while it is opened"
        );
        let mut again = Vec::new();
        let mut broken = Vec::new();
        core.open_each(vec!["a".into()], &mut again, &mut broken);
        assert!(core.get("a").is_ok() && again.is_empty() && broken.is_empty());
        assert!(core.remove("a").unwrap());
        assert!(!core.mark_opening("a"));
    }

    #[test]
    fn files_without_permission_are_no_lack_of_rights() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let refused: std::io::Error = std::io::ErrorKind::PermissionDenied.into();
        let error = Error::io(Path::new("/c/a/settings"), &refused);
        assert!(error.kind() == ErrorKind::PermissionDenied && error.is_retryable());
        core.map.write().entries.insert("a".into(), RegistryEntry::Broken(error));
        let shown = core.get("a").map(drop).unwrap_err();
        // Without a delay, which would mean that the collection is being opened.
        assert_eq!((shown.kind(), shown.retry_after()), (ErrorKind::Unavailable, None));
        assert!(shown.message().starts_with("collection \"a\": /c/a/settings: "), "{shown}");
        assert!(shown.message().contains("give the user of the server"), "{shown}");
    }
}
