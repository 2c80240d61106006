//! Writes the data of a new collection from a backup.

use std::time::Duration;

use base::{Error, Result};
use bytes::Bytes;
use cluster_log::{LogFloor, ShardLog};
use object_store::path::Path as Key;
use search::registry::CollectionSettings;

use super::log_parts::{self, PART_BYTES_MAX};
use super::owned_copy::OwnedCopy;
use super::set::{BackupSet, LogPart, ShardBackup};
use super::{ClusterBackups, ShardOfSet};
use crate::node::local::set_position;
use crate::node::snapshot::snapshot_store;
use crate::types::{CollectionRecord, ShardKey, new_id};

/// Longest time of a restore. After an hour, data without a record are removed.
pub(super) const RESTORE_TIME_MAX: Duration = Duration::from_secs(50 * 60);

impl ClusterBackups {
    /// Writes the data of a new collection of the name `name`. Returns its record, which is not in
    /// the catalog yet.
    ///
    /// # Errors
    /// `DataLoss` for a damaged backup; `ResourceExhausted` if too many wait; `StorageFull` if all
    /// holders of a shard would have full disks; `DeadlineExceeded` after `RESTORE_TIME_MAX`; the
    /// errors of the stores. Written data is removed an hour later.
    pub async fn restore(&self, set: &BackupSet, name: &str) -> Result<CollectionRecord> {
        let restored = self.restore_in_time(set, name).await;
        self.count("restore", &restored);
        restored
    }

    async fn restore_in_time(&self, set: &BackupSet, name: &str) -> Result<CollectionRecord> {
        let _turn = self.turn().await?;
        let restored = tokio::time::timeout(RESTORE_TIME_MAX, self.restore_shards(set, name));
        restored.await.map_err(|_| restore_too_long())?
    }

    /// Restores all shards and the originals of a backup as a new collection `name`. No catalog has
    /// it yet.
    async fn restore_shards(&self, set: &BackupSet, name: &str) -> Result<CollectionRecord> {
        let name = name.to_owned();
        let id = new_id();
        let record = CollectionRecord { name, id, ..set.record.clone() };
        self.prepare(&record).await?;
        let sources = set.record.shard_keys().zip(record.shard_keys());
        for ((from, to), backup) in sources.zip(&set.shards) {
            let shard = ShardOfSet { key: &from, collection: &set.record.name, id: &set.id };
            let space = record.images.is_some().then(|| record.originals_space());
            let restored = self.restore_shard(&shard, &to, backup, space).await;
            restored.map_err(|error| error.context(format!("backup {}, shard {from}", set.id)))?;
        }
        if let Some(originals) = &set.originals {
            self.restore_originals(originals, &set.record, &set.id, &record).await?;
        }
        Ok(record)
    }

    /// Writes the data of a shard. `originals` is the space of the originals of a collection of
    /// images.
    async fn restore_shard(
        &self,
        shard: &ShardOfSet<'_>,
        to: &ShardKey,
        backup: &ShardBackup,
        originals: Option<String>,
    ) -> Result<()> {
        let log = ShardLog::new(self.cluster.place(), to);
        let position = backup.position();
        if backup.snapshot_bytes.is_some() {
            let copy = OwnedCopy {
                from: self.shards.clone(),
                collection: shard.key.local_name(),
                backup: shard.id.clone(),
                to: snapshot_store(&self.cluster, &to.collection),
                name: to.local_name(),
                id: shard.id.clone(),
            };
            let change = move |settings: &mut CollectionSettings| {
                set_position(&mut settings.extra, position);
                if let Some(space) = originals {
                    api_images::set_originals_space(settings, &space);
                }
            };
            copy.run(self.pacer.clone(), change).await?;
            log.raise_floor(LogFloor { entry: position.next, epoch: position.epoch }).await?;
        }
        let mut next = position.next;
        for (number, part) in backup.log.iter().enumerate() {
            let bytes = self.read_part(&self.part_key(shard, number), part).await?;
            let entries = log_parts::entries(part, &bytes)?;
            next = log_parts::write(&log, next, &entries).await?;
        }
        Ok(())
    }

    pub(super) async fn read_part(&self, key: &Key, part: &LogPart) -> Result<Bytes> {
        let missing = || Error::data_loss(format!("object {key}: it is missing"));
        let bytes = self.objects.read(key, PART_BYTES_MAX).await?.ok_or_else(missing)?;
        if bytes.len() as u64 == part.bytes {
            Ok(bytes)
        } else {
            Err(Error::data_loss(format!(
                "object {key}: it has {} bytes, and the description says {}",
                bytes.len(),
                part.bytes
            )))
        }
    }
}

pub(super) fn restore_too_long() -> Error {
    Error::deadline(format!(
        "a restore ends after {} minutes, before its data count as those of a removed collection; raise \
         --backup-rate on this node",
        RESTORE_TIME_MAX.as_secs() / 60
    ))
}
