//! A collection made from a backup.

use std::time::Instant;

use base::{Error, Result};
use search::registry::{Registry, RestoringCollection};
use serde::Serialize;

use crate::list::{BackupId, BackupList};
use crate::transfer::BackupContext;

/// The collection that a backup becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreTarget {
    /// Name of the new collection, which may be another name than that of the backup.
    pub name: String,
    /// True to replace the collection of this name, if there is one.
    pub replaces: bool,
}

/// Outcome of a restore.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RestoreReport {
    /// Name of the restored collection.
    pub collection: String,
    /// Backup it was made from.
    pub backup: BackupId,
    /// Live points of the restored collection.
    pub points: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Restores a backup of `collection`: downloads its files to a temporary directory, compares their
/// checksums, and then gives the directory its name.
///
/// # Errors
/// `NotFound` if there is no such backup, `AlreadyExists` if the name is taken, `DataLoss` that
/// names the object if one is missing, shortened or changed, `StorageFull` without enough space;
/// otherwise the errors of the store and of the registry. The collection of the name stays as it
/// was.
pub async fn restore(
    context: &BackupContext<'_>,
    registry: &Registry,
    collection: &str,
    backup: Option<&BackupId>,
    target: &RestoreTarget,
) -> Result<RestoreReport> {
    let began = Instant::now();
    let id = match backup {
        Some(id) => id.clone(),
        None => context.store.newest(collection).await?,
    };
    let list = context.store.list(collection, &id).await?;
    context.progress.set_total(list.bytes());
    let restoring = begin(registry, &list, target)?;
    for file in &list.files {
        let mut writer = restoring.create(&file.name)?;
        let received =
            context.download(collection, file, |piece| writer.append(piece).map(drop)).await;
        received.map_err(|error| error.context(format!("backup {id} of {collection:?}")))?;
        writer.persist()?;
    }
    finish(restoring, &list, began)
}

/// Creates the temporary directory of a restored collection.
pub(crate) fn begin(
    registry: &Registry,
    list: &BackupList,
    target: &RestoreTarget,
) -> Result<RestoringCollection> {
    registry.restore(&target.name, list.settings.clone(), list.bytes(), target.replaces)
}

/// Gives the restored collection its name, and checks its number of points.
pub(crate) fn finish(
    restoring: RestoringCollection,
    list: &BackupList,
    began: Instant,
) -> Result<RestoreReport> {
    let named = restoring
        .finish(list.state.as_bytes())
        .map_err(|error| error.context(format!("backup {}", list.id)))?;
    let points = named.collection().count();
    if points < list.points {
        // The files match the backup, so this is a warning and not an error.
        tracing::warn!(
            collection = named.name(),
            points,
            listed = list.points,
            "the restored collection has fewer points than were counted at the time of the backup, perhaps because of \
             writes at that moment"
        );
    }
    Ok(RestoreReport {
        collection: named.name().to_owned(),
        backup: list.id.clone(),
        points,
        bytes: list.bytes(),
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// Returns the error of a file that the list does not have, or has twice.
pub(crate) fn unexpected(name: &str) -> Error {
    Error::data_loss(format!("{name}: the list of the backup has no such file"))
}
