//! The store of backups: keys, lists and objects.

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use chrono::{DateTime, Utc};
use model_store::{StorePlace, is_url};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};
use search::registry::is_version_of;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;

use crate::list::{BackupId, BackupList, BackupProblem, LIST_BYTES_MAX};

/// Directory of lists.
const LISTS: &str = "backups";
/// Directory of objects.
const OBJECTS: &str = "objects";
/// Maximum number of lists that are read at the same time. A collection may have thousands of
/// backups.
const LISTS_AT_ONCE_MAX: usize = 16;

/// Collection of which a store has objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredCollection {
    /// Name of the collection, which this server need not have.
    pub collection: String,
    /// Number of complete backups.
    pub backups: usize,
    /// Id of the newest backup, or `None` without backups.
    pub newest: Option<BackupId>,
    /// Bytes of all objects.
    pub stored_bytes: u64,
}

/// Lists of a collection's backups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredLists {
    /// Readable lists, oldest first.
    pub lists: Vec<BackupList>,
    /// Backups whose lists are damaged or of a newer program, oldest first.
    pub unreadable: Vec<BackupProblem>,
}

/// An object of a collection in the store.
#[derive(Clone, Debug)]
pub(crate) struct StoredObject {
    pub(crate) bytes: u64,
    pub(crate) modified: DateTime<Utc>,
}

/// A directory or an object store that holds backups.
#[derive(Clone, Debug)]
pub struct BackupStore {
    place: StorePlace,
    /// The directory of this machine, if it is one.
    local: Option<Arc<LocalFileSystem>>,
}

impl BackupStore {
    /// Opens the store at a path of this machine, which is created if missing, or at a URL.
    /// `options` are names and values of the provider's variables, in lower case. Does not connect.
    ///
    /// # Errors
    /// `InvalidArgument` for a URL that no store has, `FailedPrecondition` if this program has no
    /// support for the store; the error of the file system.
    pub fn open(place: &str, options: &[(String, String)]) -> Result<BackupStore> {
        let local = match place.strip_prefix("file://") {
            Some(path) => Some(path),
            None if is_url(place) => None,
            None => Some(place),
        };
        match local {
            Some(path) => open_directory(FilePath::new(path)),
            None => Ok(BackupStore { place: StorePlace::open(place, options)?, local: None }),
        }
    }

    /// Returns the store of backups in the directory `name` of this one.
    #[must_use]
    pub fn below(&self, name: &str) -> BackupStore {
        BackupStore { place: self.place.below(name), local: self.local.clone() }
    }

    /// Returns the same store for requests of clients, as [`StorePlace::for_clients`].
    #[must_use]
    pub fn for_clients(self) -> BackupStore {
        BackupStore { place: self.place.for_clients(), ..self }
    }

    /// Returns true if the store is a directory of this machine, which may be a mounted one.
    pub fn is_directory(&self) -> bool {
        self.local.is_some()
    }

    /// Returns the directory or object store.
    pub fn place(&self) -> &StorePlace {
        &self.place
    }

    /// Returns the URL or path without secrets, for messages.
    pub fn shown(&self) -> &str {
        self.place.shown()
    }

    /// Returns the collections of which there are backups.
    ///
    /// # Errors
    /// The store's error, with a remedy.
    pub async fn collections(&self) -> Result<Vec<StoredCollection>> {
        let mut found: BTreeMap<String, StoredCollection> = BTreeMap::new();
        for object in self.place.list().await? {
            let Some((collection, rest)) = self.relative(&object.location) else { continue };
            let Some((kind, name)) = rest.split_once('/') else { continue };
            let entry = found.entry(collection.clone()).or_insert_with(|| StoredCollection {
                collection,
                backups: 0,
                newest: None,
                stored_bytes: 0,
            });
            match (kind, name.parse::<BackupId>()) {
                (LISTS, Ok(id)) => {
                    entry.backups += 1;
                    entry.newest = entry.newest.take().max(Some(id));
                }
                (OBJECTS, _) => entry.stored_bytes += object.size,
                _ => {}
            }
        }
        Ok(found.into_values().filter(|entry| entry.backups > 0).collect())
    }

    /// Returns the first part below the root and the rest of a key.
    fn relative(&self, key: &Key) -> Option<(String, String)> {
        let root = self.place.key("x");
        let depth = root.parts().count() - 1;
        let parts: Vec<String> = key.parts().map(|part| part.as_ref().to_owned()).collect();
        let (collection, rest) = parts.get(depth..)?.split_first()?;
        Some((collection.clone(), rest.join("/")))
    }

    /// Returns the ids of a collection's backups, oldest first.
    ///
    /// # Errors
    /// The store's error, with a remedy.
    pub async fn ids(&self, collection: &str) -> Result<Vec<BackupId>> {
        Ok(self.list_times(collection).await?.into_keys().collect())
    }

    /// Returns the ids of a collection's backups, each with the time at which its list was written.
    ///
    /// # Errors
    /// The store's error, with a remedy.
    pub(crate) async fn list_times(
        &self,
        collection: &str,
    ) -> Result<BTreeMap<BackupId, DateTime<Utc>>> {
        let names = self.names(collection, LISTS).await?;
        let dated = |(name, stored): (String, StoredObject)| {
            Some((name.parse::<BackupId>().ok()?, stored.modified))
        };
        Ok(names.into_iter().filter_map(dated).collect())
    }

    /// Returns a collection's newest backup.
    ///
    /// # Errors
    /// `NotFound` if there is none; the store's error.
    pub async fn newest(&self, collection: &str) -> Result<BackupId> {
        match self.ids(collection).await?.pop() {
            Some(id) => Ok(id),
            None => Err(self.no_newest(collection).await?),
        }
    }

    /// Returns the error for a collection without a backup to restore. The error names a version of
    /// a collection of images that has backups: if "photos" is removed, the backups are of
    /// "photos.v1".
    async fn no_newest(&self, collection: &str) -> Result<Error> {
        let error = self.no_backup(collection);
        let stored = self.collections().await?;
        let versions = stored.iter().filter(|stored| is_version_of(&stored.collection, collection));
        let newest = versions.max_by(|a, b| a.newest.cmp(&b.newest));
        let Some(version) = newest else { return Ok(error) };
        let remedy = format!(
            "a collection of images has a number in its name: restore {:?}",
            version.collection
        );
        Ok(Error::not_found(format!("{}; {remedy}", error.message())))
    }

    /// Returns the error for a collection without a backup.
    pub(crate) fn no_backup(&self, collection: &str) -> Error {
        Error::not_found(format!("{}: no backup of {collection:?}", self.shown()))
    }

    /// Reads a list.
    ///
    /// # Errors
    /// `NotFound`, `DataLoss` for a damaged list, `FailedPrecondition` for one of a newer program;
    /// otherwise the store's error.
    pub async fn list(&self, collection: &str, id: &BackupId) -> Result<BackupList> {
        let key = self.list_key(collection, id);
        let what = || format!("backup {id} of {collection:?}");
        let got = self.place.objects().get(&key).await.map_err(|error| match error {
            object_store::Error::NotFound { .. } => {
                Error::not_found(format!("{}: there is no {}", self.shown(), what()))
            }
            error => self.failed(error),
        })?;
        if got.meta.size > LIST_BYTES_MAX {
            return Err(Error::data_loss(format!("{}: its list is too long", what())));
        }
        let bytes = got.bytes().await.map_err(|error| self.failed(error))?;
        let list = BackupList::decode(&bytes).map_err(|error| error.context(what()))?;
        if list.id != *id {
            return Err(Error::data_loss(format!("{}: its list is that of {}", what(), list.id)));
        }
        Ok(list)
    }

    /// Reads all lists of a collection, oldest first.
    ///
    /// # Errors
    /// As [`BackupStore::list`].
    pub async fn lists(&self, collection: &str) -> Result<Vec<BackupList>> {
        let mut lists = Vec::new();
        self.each_list(collection, |list| lists.push(list)).await?;
        Ok(lists)
    }

    /// Calls `each` with all lists of a collection, oldest first, without keeping them.
    ///
    /// # Errors
    /// As [`BackupStore::list`].
    pub(crate) async fn each_list(
        &self,
        collection: &str,
        mut each: impl FnMut(BackupList),
    ) -> Result<()> {
        let ids = self.ids(collection).await?;
        self.read_lists(collection, &ids, |_, list| match list {
            // It was removed after it was listed.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) if error.kind() == ErrorKind::DataLoss => Err(Error::data_loss(format!(
                "{}; files without a backup stay until this backup is removed by its id",
                error.message()
            ))),
            list => list.map(&mut each),
        })
        .await
    }

    /// Reads all lists of a collection, oldest first, and names the unreadable ones.
    ///
    /// # Errors
    /// The store's error, with a remedy.
    pub async fn readable_lists(&self, collection: &str) -> Result<StoredLists> {
        let mut stored = StoredLists::default();
        let ids = self.ids(collection).await?;
        self.read_lists(collection, &ids, |id, list| {
            match list {
                Ok(list) => stored.lists.push(list),
                Err(error) => match error.kind() {
                    // Removed since it was listed.
                    ErrorKind::NotFound => {}
                    ErrorKind::DataLoss | ErrorKind::FailedPrecondition => {
                        let problem = error.message().to_owned();
                        stored.unreadable.push(BackupProblem { backups: vec![id], problem });
                    }
                    _ => return Err(error),
                },
            }
            Ok(())
        })
        .await?;
        Ok(stored)
    }

    /// Reads the lists `ids`, some at the same time, and calls `each` with the outcomes in the
    /// order of ids.
    ///
    /// # Errors
    /// The first error of `each`.
    pub(crate) async fn read_lists(
        &self,
        collection: &str,
        ids: &[BackupId],
        mut each: impl FnMut(BackupId, Result<BackupList>) -> Result<()>,
    ) -> Result<()> {
        for ids in ids.chunks(LISTS_AT_ONCE_MAX) {
            let mut running = JoinSet::new();
            for id in ids {
                let store = self.clone();
                let collection = collection.to_owned();
                let id = id.clone();
                running.spawn(async move {
                    let list = store.list(&collection, &id).await;
                    (id, list)
                });
            }
            let mut read = BTreeMap::new();
            while let Some(one) = running.join_next().await {
                let (id, list) = one.map_err(|error| Error::internal(error.to_string()))?;
                read.insert(id, list);
            }
            read.into_iter().try_for_each(|(id, list)| each(id, list))?;
        }
        Ok(())
    }

    /// Writes the list of a backup.
    pub(crate) async fn put_list(&self, list: &BackupList) -> Result<()> {
        self.put(&self.list_key(&list.collection, &list.id), list.encode()?.into()).await
    }

    /// Returns the objects of a collection by name.
    pub(crate) async fn objects(&self, collection: &str) -> Result<BTreeMap<String, StoredObject>> {
        self.names(collection, OBJECTS).await
    }

    /// Returns the objects in a directory of a collection, by name.
    pub(crate) async fn names(
        &self,
        collection: &str,
        directory: &str,
    ) -> Result<BTreeMap<String, StoredObject>> {
        self.names_below(&format!("{collection}/{directory}")).await
    }

    /// Returns the objects in a directory of the store and in the directories below it, by name.
    pub(crate) async fn names_below(
        &self,
        directory: &str,
    ) -> Result<BTreeMap<String, StoredObject>> {
        let prefix = self.place.key(directory);
        let depth = prefix.parts().count();
        let mut listing = self.place.objects().list(Some(&prefix));
        let mut found = BTreeMap::new();
        while let Some(object) = listing.next().await {
            let ObjectMeta { location, size, last_modified, .. } =
                object.map_err(|error| self.failed(error))?;
            let rest: Vec<String> =
                location.parts().skip(depth).map(|part| part.as_ref().to_owned()).collect();
            found.insert(rest.join("/"), StoredObject { bytes: size, modified: last_modified });
        }
        Ok(found)
    }

    pub(crate) fn list_key(&self, collection: &str, id: &BackupId) -> Key {
        self.place.key(&format!("{collection}/{LISTS}/{id}"))
    }

    pub(crate) fn object_key(&self, collection: &str, object: &str) -> Key {
        self.place.key(&format!("{collection}/{OBJECTS}/{object}"))
    }

    pub(crate) fn mark_key(&self, collection: &str, directory: &str, id: &BackupId) -> Key {
        self.place.key(&format!("{collection}/{directory}/{id}"))
    }

    /// Returns the file of an object if the store is a directory of this machine.
    ///
    /// # Errors
    /// The store's error if the key is not the name of a file.
    pub(crate) fn local_path(&self, key: &Key) -> Result<Option<PathBuf>> {
        let path = self.local.as_ref().map(|local| local.path_to_filesystem(key)).transpose();
        path.map_err(|error| self.failed(error))
    }

    pub(crate) fn raw(&self) -> &Arc<dyn ObjectStore> {
        self.place.objects()
    }

    pub(crate) async fn put(&self, key: &Key, payload: PutPayload) -> Result<()> {
        let put = self.place.objects().put(key, payload).await;
        put.map(drop).map_err(|error| self.failed(error))
    }

    /// Removes an object if it exists.
    pub(crate) async fn remove(&self, key: &Key) -> Result<()> {
        match self.place.objects().delete(key).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Converts an error of the store.
    pub(crate) fn failed(&self, error: object_store::Error) -> Error {
        self.place.failed(error)
    }
}

/// Opens a directory of this machine, in which objects are durable once written.
fn open_directory(directory: &FilePath) -> Result<BackupStore> {
    let fail = |error: std::io::Error| Error::io(directory, &error);
    os::private::create_dir_all(directory).map_err(fail)?;
    let directory = directory.canonicalize().map_err(fail)?;
    let store = LocalFileSystem::new_with_prefix(&directory)
        .map_err(|error| Error::invalid(directory.display().to_string()).caused_by(error))?
        .with_fsync(true);
    let local = Arc::new(store);
    let place = StorePlace::new(local.clone(), "", &directory.display().to_string());
    Ok(BackupStore { place, local: Some(local) })
}
