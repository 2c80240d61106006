//! Backups of objects that never change, such as original images.
//!
//! A directory of objects is backed up as a collection is. Each backup has one list, and the
//! backups share the objects that they have in common. [`crate::delete`] removes such a backup.

use std::collections::BTreeMap;

use base::{Error, ErrorKind, Result};
use object_store::ObjectStoreExt;
use object_store::path::Path as Key;
use search::Metric;
use search::registry::CollectionSettings;

use crate::copy::copy_object;
use crate::list::{BackupFile, BackupId, BackupList, FILES_MAX};
use crate::marks::{Mark, MarkKind};
use crate::store::BackupStore;
use crate::transfer::{BackupContext, STEP_BYTES};
use crate::upload_source::{StoredSource, UploadSource};

/// A directory of objects that never change.
#[derive(Clone, Copy, Debug)]
pub struct ObjectDirectory<'a> {
    /// Store that the directory is in.
    pub store: &'a BackupStore,
    /// Name of the directory in the store.
    pub name: &'a str,
}

impl ObjectDirectory<'_> {
    fn key(&self, object: &str) -> Key {
        self.store.place().key(&format!("{}/{object}", self.name))
    }

    /// Returns true if the object has been removed.
    async fn lacks(&self, object: &str) -> Result<bool> {
        match self.store.raw().head(&self.key(object)).await {
            Ok(_) => Ok(false),
            Err(object_store::Error::NotFound { .. }) => Ok(true),
            Err(error) => Err(self.store.failed(error)),
        }
    }
}

/// Backs up the objects of a directory. Copies objects that the store of `context` lacks, and then
/// writes the list. An object that is removed meanwhile is left out. Returns the list, which has
/// neither state nor settings.
///
/// # Errors
/// `TooLarge` for more than 1,048,576 objects, `Cancelled` if the progress was stopped; otherwise
/// the errors of the stores. The backup is not listed then, and a later one continues.
pub async fn back_up_objects(
    context: &BackupContext<'_>,
    from: ObjectDirectory<'_>,
    name: &str,
    id: &BackupId,
) -> Result<BackupList> {
    let mark = Mark::put(context.store, name, MarkKind::Backup, id).await?;
    let work = async {
        mark.wait_for_removals(context.progress).await?;
        let known = stored_files(context.store, name).await?;
        let mut files = Vec::new();
        for (object, found) in from.store.names_below(from.name).await? {
            if files.len() == FILES_MAX {
                return Err(Error::too_large(format!("it has more than {FILES_MAX} objects")));
            }
            match known.get(&object).filter(|file| file.bytes == found.bytes) {
                Some(file) => files.push(file.clone()),
                None => files.extend(back_up(context, from, name, &object, found.bytes).await?),
            }
        }
        let list = BackupList {
            id: id.clone(),
            collection: name.to_owned(),
            source: from.name.to_owned(),
            points: files.len() as u64,
            settings: CollectionSettings::new(0, Metric::Dot),
            state: String::new(),
            files,
        };
        mark.put_list_unless_stopped(&list, context.progress).await?;
        Ok(list)
    };
    let outcome = mark.during(work).await;
    mark.remove().await;
    outcome.map_err(|error| error.context(from.name))
}

/// Returns the files of the newest backup that are in the store, by the name of the object.
async fn stored_files(store: &BackupStore, name: &str) -> Result<BTreeMap<String, BackupFile>> {
    let Some(newest) = store.ids(name).await?.into_iter().max() else {
        return Ok(BTreeMap::new());
    };
    let list = match store.list(name, &newest).await {
        // It was removed since, or it is damaged: all objects are copied again.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DataLoss) => {
            return Ok(BTreeMap::new());
        }
        list => list?,
    };
    let stored = store.objects(name).await?;
    let is_there =
        |file: &BackupFile| stored.get(&file.object).is_some_and(|found| found.bytes == file.bytes);
    let files = list.files.into_iter().filter(is_there);
    Ok(files.map(|file| (file.object.clone(), file)).collect())
}

/// Copies an object into the store of `context`; `None` if it was removed since it was listed.
async fn back_up(
    context: &BackupContext<'_>,
    from: ObjectDirectory<'_>,
    name: &str,
    object: &str,
    bytes: u64,
) -> Result<Option<BackupFile>> {
    let key = context.store.object_key(name, object);
    let copied = match StoredSource::open(from.store, from.key(object), bytes, STEP_BYTES) {
        Ok(source) => context.upload(&UploadSource::Object(source), &key).await,
        Err(error) => Err(error),
    };
    match copied {
        Ok(blake3) => {
            let name = object.to_owned();
            let object = object.to_owned();
            Ok(Some(BackupFile { name, object, bytes, blake3 }))
        }
        Err(error) if from.lacks(object).await? => {
            tracing::debug!(object, %error, "an object was removed during a backup");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Writes the objects of a backup into a directory.
///
/// # Errors
/// `NotFound` if there is no such backup, `DataLoss` that names an object that is missing,
/// shortened or changed, `Cancelled` if the progress was stopped; otherwise the errors of the
/// stores.
pub async fn restore_objects(
    context: &BackupContext<'_>,
    name: &str,
    id: &BackupId,
    to: ObjectDirectory<'_>,
) -> Result<BackupList> {
    let list = context.store.list(name, id).await?;
    let target = BackupContext { store: to.store, ..*context };
    for file in &list.files {
        let key = to.key(&file.object);
        let restored = copy_object(context, name, file, &target, &key).await;
        restored.map_err(|error| error.context(format!("backup {id} of {name:?}")))?;
    }
    Ok(list)
}
