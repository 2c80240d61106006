//! Backups of a cluster's collections as archives in the format of one server's snapshots.
//!
//! The snapshot and the log of each shard are restored to a local collection under a temporary
//! name. Its points are copied to a second collection, which gets the points of all shards. So a
//! backup needs as much space on the disk of this node as the collection and its largest shard
//! together. The archive has the moment of the backup.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use api_images::{ImageSettings, without_original};
use api_qdrant::json::CreateCollection;
use api_qdrant::set_portable;
use backup::{ArchiveLabel, BackupContext, BackupId, BackupProgress, RestoreTarget};
use base::{Error, Result};
use cluster::EntryBody;
use search::collection::PointParts;
use search::points::{FetchedPoint, NewPoint, PointId};
use search::registry::{CollectionSettings, NamedCollection};
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;

use super::import::page_points;
use super::set::{BackupSet, ShardBackup};
use super::staged::{self, StagedCollection};
use super::{ClusterBackups, ShardOfSet, log_parts};
use crate::node::apply::{ApplyPriority, apply};
use crate::node::local::at_low_priority;
use crate::node::snapshot::StopTransferOnDrop;

/// Maximum bytes of a backup, without original images, that becomes an archive.
const ARCHIVE_BYTES_MAX: u64 = 1 << 40;
/// Longest time in which the shards of a backup are copied.
const EXPORT_TIME_MAX: Duration = Duration::from_secs(6 * 3600);

/// The points of a backup in a local collection, which is removed when this is dropped.
pub struct ExportedCollection {
    backups: Arc<ClusterBackups>,
    named: Arc<NamedCollection>,
    /// Name of the collection that was backed up.
    collection: String,
    id: BackupId,
    _staged: StagedCollection,
    /// Released last, because the next transfer removes collections that earlier ones left.
    _transfer: OwnedSemaphorePermit,
}

impl ExportedCollection {
    /// Writes the archive. Calls `begin` with its bytes before the first of them is written. Blocks
    /// the thread, which must have no runtime.
    ///
    /// # Errors
    /// As [`backup::write_collection`].
    pub fn write(&self, begin: impl FnOnce(u64), out: &mut dyn Write) -> Result<()> {
        let progress = BackupProgress::default();
        let context = BackupContext {
            store: &self.backups.shards,
            pacer: &self.backups.pacer,
            progress: &progress,
        };
        let label = ArchiveLabel { collection: &self.collection, id: &self.id };
        backup::block_on(backup::write_collection(&context, &self.named, label, begin, out))
    }
}

impl ClusterBackups {
    /// Copies the points of a backup to a local collection. If the future is dropped, the copy
    /// ends at its next step and is removed.
    ///
    /// # Errors
    /// `ResourceExhausted` if another archive is being transferred; `TooLarge` for more than 1 TiB;
    /// `StorageFull` if this node has not enough space; `DataLoss` for a damaged backup;
    /// `DeadlineExceeded` after [`EXPORT_TIME_MAX`]; the store's error.
    pub async fn export(self: &Arc<Self>, set: &BackupSet) -> Result<ExportedCollection> {
        let exported = Box::pin(self.export_staged(set)).await;
        self.count("download", &exported);
        exported
    }

    /// Copies the shards of a backup to a temporary collection of this node.
    async fn export_staged(self: &Arc<Self>, set: &BackupSet) -> Result<ExportedCollection> {
        let originals = set.originals.as_ref().map_or(0, |originals| originals.bytes);
        let bytes = set.bytes().saturating_sub(originals);
        if bytes > ARCHIVE_BYTES_MAX {
            return Err(Error::too_large(format!(
                "the snapshot has {bytes} bytes; a download has at most {ARCHIVE_BYTES_MAX}; recover it in another \
                 cluster with the same --backup-dir"
            )));
        }
        let settings = exported_settings(set)?;
        let transfer = self.transfer().await?;
        let registry = self.local.registry()?;
        StagedCollection::remove_all(&registry).await;
        let staged = StagedCollection::new(&registry);
        let named = staged.create(settings.clone()).await?;
        let copied = Box::pin(self.copy_shards(set, &settings, &named, &staged));
        tokio::time::timeout(EXPORT_TIME_MAX, copied).await.map_err(|_| {
            Error::deadline(format!(
                "the shards of the snapshot were not copied in {} hours; raise --backup-rate on this node",
                EXPORT_TIME_MAX.as_secs() / 3600
            ))
        })??;
        Ok(ExportedCollection {
            backups: self.clone(),
            named,
            collection: set.record.name.clone(),
            id: set.id.clone(),
            _staged: staged,
            _transfer: transfer,
        })
    }

    /// Copies the points of all shards to `to`, one shard after the other.
    async fn copy_shards(
        &self,
        set: &BackupSet,
        settings: &CollectionSettings,
        to: &Arc<NamedCollection>,
        beside: &StagedCollection,
    ) -> Result<()> {
        for (key, backup) in set.record.shard_keys().zip(&set.shards) {
            let shard = ShardOfSet { key: &key, collection: &set.record.name, id: &set.id };
            let staged = StagedCollection::new(beside.registry());
            let restored = match backup.snapshot_bytes {
                Some(_) => self.restore_staged(&shard, &staged).await,
                None => staged.create(settings.clone()).await,
            };
            let copied = match restored {
                Ok(from) => self.copy_shard(&shard, backup, &from, to).await,
                Err(error) => Err(error),
            };
            staged.remove().await;
            copied.map_err(|error| error.context(format!("backup {}, shard {key}", set.id)))?;
        }
        Ok(())
    }

    /// Restores the snapshot of a shard as a local collection.
    async fn restore_staged(
        &self,
        shard: &ShardOfSet<'_>,
        staged: &StagedCollection,
    ) -> Result<Arc<NamedCollection>> {
        let store = self.shards.clone();
        let pacer = self.pacer.clone();
        let registry = staged.registry().clone();
        let name = staged.name().to_owned();
        let collection = shard.key.local_name();
        let id = shard.id.clone();
        let progress = Arc::new(BackupProgress::default());
        let _stop = StopTransferOnDrop(progress.clone());
        at_low_priority("restoring a snapshot", move || {
            let context = BackupContext { store: &store, pacer: &pacer, progress: &progress };
            let target = RestoreTarget { name, replaces: false };
            let restored = backup::restore(&context, &registry, &collection, Some(&id), &target);
            backup::block_on(restored)
        })
        .await?;
        staged.registry().get(staged.name())
    }

    /// Applies the log of a shard to `from`, and copies its points to `to`.
    async fn copy_shard(
        &self,
        shard: &ShardOfSet<'_>,
        backup: &ShardBackup,
        from: &Arc<NamedCollection>,
        to: &Arc<NamedCollection>,
    ) -> Result<()> {
        for (number, part) in backup.log.iter().enumerate() {
            let bytes = self.read_part(&self.part_key(shard, number), part).await?;
            for entry in log_parts::entries(part, &bytes)? {
                if let EntryBody::Writes(batch) = &entry.body {
                    apply(from, batch, ApplyPriority::Low).await?;
                }
            }
        }
        let mut next: Option<PointId> = None;
        loop {
            let source = from.clone();
            let target = to.clone();
            let page = at_low_priority("copying a snapshot", move || {
                copy_page(&source, &target, next.as_ref())
            });
            next = page.await?;
            if next.is_none() {
                return Ok(());
            }
        }
    }
}

/// Returns the settings that the collection of a backup has on one server.
fn exported_settings(set: &BackupSet) -> Result<CollectionSettings> {
    let BackupSet { record, changes, .. } = set;
    let wrong = |why: String| {
        Error::data_loss(format!("the record of collection \"{}\": {why}", record.name))
    };
    let create =
        CreateCollection::deserialize(&record.create).map_err(|error| wrong(error.to_string()))?;
    let mut settings = match &record.images {
        Some(images) => {
            let dims = record.image_dims();
            let dims = dims.ok_or_else(|| wrong("it has no size of embeddings".to_owned()))?;
            images.stored(dims, &record.name)
        }
        None => create.settings()?,
    };
    let mut hints = create.hints()?;
    hints.extend(changes.hints.clone());
    let metadata = changes.metadata_over(create.metadata);
    set_portable(&mut settings, metadata, changes.payload_schema.clone(), hints);
    Ok(settings)
}

/// Copies the points of a page. Images lose their originals, which no archive has. Returns the id
/// to continue with.
fn copy_page(
    from: &NamedCollection,
    to: &NamedCollection,
    at: Option<&PointId>,
) -> Result<Option<PointId>> {
    let settings = from.settings();
    let has_images = ImageSettings::of(&settings).is_some();
    let page = from.scroll(at, page_points(settings.dims), None, PointParts::ALL)?;
    let mut page = staged::check_complete(page)?;
    if has_images {
        for point in &mut page.points {
            point.payload = without_original(std::mem::take(&mut point.payload));
        }
    }
    let new = page.points.iter().map(|point: &FetchedPoint| NewPoint {
        id: point.id,
        embedding: &point.embedding,
        record: &point.record,
        payload: &point.payload,
    });
    let new: Vec<NewPoint<'_>> = new.collect();
    if !new.is_empty() {
        to.upsert(&new)?;
    }
    Ok(page.next)
}
