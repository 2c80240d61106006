//! Creates and removes collections.

use std::collections::btree_map::Entry as MapEntry;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use storage::UringMedium;

use super::{RegistryCore, RegistryEntry, not_permitted, opening_error, remove_directory};
use crate::collection::check_room_to_create;
use crate::registry::aliases;
use crate::registry::files::{CollectionSettings, check_name};
use crate::registry::named::NamedCollection;
use crate::registry::options::COLLECTIONS_MAX;

impl RegistryCore {
    /// Creates a collection. It is durable when this returns.
    ///
    /// # Errors
    /// `AlreadyExists` for a name that a collection or an alias has. `InvalidArgument` for an
    /// invalid name or invalid settings. `ResourceExhausted` for too many collections. Also the
    /// errors of [`RegistryCore::check_directory`], of the file system and of
    /// [`RegistryCore::open_one`].
    pub(in crate::registry) fn create(
        &self,
        name: &str,
        settings: CollectionSettings,
    ) -> Result<Arc<NamedCollection>> {
        check_name(name)?;
        settings.check()?;
        let _changing = self.changing.lock();
        let (taken, alias, count) = {
            let map = self.map.read();
            (map.entries.contains_key(name), map.aliases.contains_key(name), map.entries.len())
        };
        if taken || alias {
            let what = if taken { "collection" } else { "alias" };
            let message =
                format!("{what} \"{name}\" already exists; remove it, or use another name");
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        if count >= self.options.collections_max {
            return Err(self.too_many(count));
        }
        let root = &self.options.directory;
        self.check_directory()?;
        check_room_to_create(&UringMedium::plain(root.clone())?, self.options.disk_reserve, 0)?;
        let layout = self.media.layout(settings.medium, root)?;
        self.make_directory(name, &settings, layout)?;
        let opened = self.open_one(name);
        if let Err(error) = &opened {
            tracing::error!(collection = name, %error, "a new collection cannot be opened and is removed");
            self.set_aside(name).map(remove_directory)?;
        }
        let named = opened?;
        self.map.write().entries.insert(name.to_owned(), RegistryEntry::Ready(named.clone()));
        Ok(named)
    }

    /// Returns the refusal of one more than `count` collections.
    pub(in crate::registry) fn too_many(&self, count: usize) -> Error {
        Error::exhausted(format!(
            "there are {count} collections, the maximum; remove some. The maximum is {COLLECTIONS_MAX}, or less if \
             the limit of open files is low (ulimit -Hn)"
        ))
    }

    /// Removes a collection, its files and its aliases. Returns false if there is none.
    ///
    /// # Errors
    /// `Unavailable` while it is being opened. Also the error of the file system.
    pub(in crate::registry) fn remove(&self, name: &str) -> Result<bool> {
        let (aside, aliases_stored) = {
            let _changing = self.changing.lock();
            let entry = {
                let mut map = self.map.write();
                match map.entries.entry(name.to_owned()) {
                    MapEntry::Vacant(_) => return Ok(false),
                    MapEntry::Occupied(entry) if matches!(entry.get(), RegistryEntry::Opening) => {
                        return Err(opening_error(name));
                    }
                    MapEntry::Occupied(entry) => entry.remove(),
                }
            };
            if let RegistryEntry::Ready(named) = &entry {
                named.retire();
            }
            let aside = match self.set_aside(name) {
                Ok(aside) => aside,
                Err(error) => {
                    let broken = error.clone().context("it could not be removed");
                    self.map.write().entries.insert(name.to_owned(), RegistryEntry::Broken(broken));
                    return Err(not_permitted(error));
                }
            };
            (aside, self.remove_aliases_of(name))
        };
        remove_directory(aside);
        if aliases_stored.is_err() {
            // A full disk has room after the removal. If it fails too, the next start drops them.
            let _changing = self.changing.lock();
            let aliases = self.map.read().aliases.clone();
            aliases::store(&self.options.directory, &aliases)?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::registry::AliasChange;
    use crate::registry::core::directories::leftovers;
    use crate::registry::core::tests::small_core;
    use coarse::Metric;

    #[test]
    fn a_collection_without_a_directory_can_be_removed() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let settings = CollectionSettings::new(2, Metric::L2);
        let named = core.create("a", settings.clone()).unwrap();
        std::fs::remove_dir_all(named.directory()).unwrap();
        assert_eq!(core.remove("a"), Ok(true));
        assert_eq!(core.get("a").map(drop).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(core.create("a", settings).is_ok(), "the name is free");
    }

    #[test]
    fn collections_and_aliases_stay_without_their_disk() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("root");
        let mounted = parent.path().join("mounted");
        let core = small_core(&root);
        drop(core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap());
        std::fs::rename(&root, &mounted).unwrap();
        // An empty mount point.
        std::fs::create_dir(&root).unwrap();
        assert_eq!(core.remove("a").unwrap_err().kind(), ErrorKind::Unavailable);
        let created = core.create("b", CollectionSettings::new(2, Metric::L2));
        assert_eq!(created.map(drop).unwrap_err().kind(), ErrorKind::Unavailable);
        let alias = AliasChange::Create { alias: "x".into(), collection: "a".into() };
        let changed = core.change_aliases(&[alias], || true);
        assert_eq!(changed.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(core.aliases().is_empty());
        // Nothing is in the mount point, which would not be empty.
        std::fs::remove_dir(&root).unwrap();
        std::fs::rename(&mounted, &root).unwrap();
        assert!(root.join("a").exists());
        assert_eq!(core.remove("a"), Ok(true));
        assert!(!root.join("a").exists());
    }

    #[test]
    fn a_removal_frees_the_disk_if_no_alias_can_be_stored() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        drop(core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap());
        let alias = AliasChange::Create { alias: "b".into(), collection: "a".into() };
        assert!(core.change_aliases(&[alias], || true).unwrap());
        // The file of aliases is written under this name.
        std::fs::create_dir(directory.path().join(".aliases.tmp")).unwrap();
        assert!(core.remove("a").is_err(), "the aliases are not stored");
        assert_eq!(leftovers(directory.path()), Vec::<PathBuf>::new());
        assert!(core.aliases().is_empty());
        assert_eq!(core.get("a").map(drop).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
