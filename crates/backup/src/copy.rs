//! A copy of a backup in another store, or under another name.

use base::{Error, ErrorKind, Result};
use object_store::path::Path as Key;
use search::registry::CollectionSettings;

use crate::list::{BackupFile, BackupId, BackupList};
use crate::marks::{Mark, MarkKind};
use crate::store::BackupStore;
use crate::transfer::{BackupContext, STEP_BYTES};
use crate::upload_source::{StoredSource, UploadSource};

/// A backup and the names of its copy.
#[derive(Clone, Copy, Debug)]
pub struct BackupCopy<'a> {
    /// Name of the collection that was backed up.
    pub collection: &'a str,
    /// Id of the backup in the store of the context.
    pub backup: &'a BackupId,
    /// Store that receives the copy.
    pub to: &'a BackupStore,
    /// Name of the collection in the store that receives the copy.
    pub name: &'a str,
    /// Id under which the other store lists the copy.
    pub id: &'a BackupId,
}

/// Copies a backup of the store of `context`: objects that the other store lacks, and then the
/// list. `change` changes the settings that a collection restored from the copy has. Returns the
/// list of the copy.
///
/// # Errors
/// `NotFound` if there is no such backup, `DataLoss` that names an object that is missing,
/// shortened or changed, `Cancelled` if the progress was stopped; otherwise the errors of the
/// stores. The copy then does not exist, and a later copy under the same name continues.
pub async fn copy(
    context: &BackupContext<'_>,
    copy: &BackupCopy<'_>,
    change: impl FnOnce(&mut CollectionSettings),
) -> Result<BackupList> {
    let BackupCopy { collection, backup, to, name, id } = *copy;
    let mut list = context.store.list(collection, backup).await?;
    context.progress.set_total(list.bytes());
    let target = BackupContext { store: to, ..*context };
    let mark = Mark::put(to, name, MarkKind::Backup, id).await?;
    let work = async {
        mark.wait_for_removals(context.progress).await?;
        let stored = to.objects(name).await?;
        for file in &list.files {
            let is_there = stored.get(&file.object).is_some_and(|found| found.bytes == file.bytes);
            if is_there {
                context.progress.add_done(file.bytes);
            } else {
                let key = to.object_key(name, &file.object);
                copy_object(context, collection, file, &target, &key).await?;
            }
        }
        list.id = id.clone();
        list.collection = name.to_owned();
        change(&mut list.settings);
        mark.put_list_unless_stopped(&list, context.progress).await?;
        Ok(list)
    };
    let outcome = mark.during(work).await;
    mark.remove().await;
    outcome.map_err(|error| error.context(format!("backup {backup} of {collection:?}")))
}

/// Copies the object of a backup's file from the store of `context` to the key `to` in the store of
/// `target`, and compares its checksum.
///
/// # Errors
/// `DataLoss` that names an object that is missing, shortened or changed; the errors of the stores.
pub(crate) async fn copy_object(
    context: &BackupContext<'_>,
    collection: &str,
    file: &BackupFile,
    target: &BackupContext<'_>,
    to: &Key,
) -> Result<()> {
    let from = context.store.object_key(collection, &file.object);
    let source = StoredSource::open(context.store, from, file.bytes, STEP_BYTES);
    let source = source.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::data_loss(format!("object {}: it is missing", file.object)),
        _ => error,
    })?;
    let hash = target.upload(&UploadSource::Object(source), to).await?;
    if hash == file.blake3 {
        return Ok(());
    }
    target.store.remove(to).await?;
    Err(Error::data_loss(format!("object {}: it does not match its checksum", file.object)))
}
