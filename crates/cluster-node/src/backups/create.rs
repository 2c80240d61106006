//! Makes a backup: copies the newest snapshot of each shard and the log from there on.
//!
//! A snapshot has changes after its position, which the log makes a second time. That leads to a
//! state of the shard only if the log is read at least to the last of these changes. So the end of
//! the log is read after the snapshot was listed.

use std::collections::BTreeMap;
use std::time::Duration;

use backup::{BackupId, BackupList, BackupStore};
use base::{Error, ErrorKind, Result};
use cluster::EntryNumber;
use cluster_log::{FollowPosition, ShardLog};

use super::log_parts::PartReader;
use super::owned_copy::OwnedCopy;
use super::set::{BackupSet, ShardBackup};
use super::{ClusterBackups, GRACE, RETRY_AFTER, ShardOfSet};
use crate::node::services::shard_log;
use crate::node::snapshot::{snapshot_store, snapshots};
use crate::types::{CollectionRecord, ShardKey};

/// Maximum number of shards whose logs or snapshots are listed at the same time.
const SHARDS_AT_ONCE_MAX: usize = 16;
/// Longest time of a backup from the write of its note. Its copies stay for longer.
const BACKUP_TIME_MAX: Duration = Duration::from_secs(20 * 3600);

/// A shard at the beginning of a backup.
#[derive(Clone, Debug)]
pub(super) struct ShardMoment {
    /// End of its log.
    pub(super) end: EntryNumber,
    /// Snapshots that were listed before that end was read. All their changes are before the end.
    pub(super) snapshots: Vec<BackupId>,
}

/// Copy of a snapshot of a shard.
struct CopiedSnapshot {
    /// Bytes of all files; `None` without a snapshot.
    bytes: Option<u64>,
    /// Position after the snapshot in the log.
    from: FollowPosition,
}

impl ClusterBackups {
    /// Backs up a collection.
    ///
    /// # Errors
    /// `ResourceExhausted` if too many backups wait; `Unavailable` if the log was shortened
    /// meanwhile; `DataLoss` if the cluster's store is a directory that is not mounted any more;
    /// the errors of the stores.
    pub async fn create(&self, record: &CollectionRecord) -> Result<BackupSet> {
        let made = self.create_until(record, std::future::pending()).await?;
        made.ok_or_else(|| Error::internal("a backup was stopped without a reason"))
    }

    /// Backs up a collection unless `stop` ends before its copies are complete. Then returns
    /// `None`. The objects that it has copied stay for a day, so that a later backup continues.
    ///
    /// # Errors
    /// As [`ClusterBackups::create`].
    pub(crate) async fn create_until(
        &self,
        record: &CollectionRecord,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<BackupSet>> {
        match self.make(record, stop).await {
            Ok(None) => Ok(None),
            made => {
                self.count("backup", &made);
                made
            }
        }
    }

    /// Makes a backup of a collection. Returns `None` if `stop` ended before the backup was
    /// complete.
    async fn make(
        &self,
        record: &CollectionRecord,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<BackupSet>> {
        let _turn = self.turn().await?;
        let id = BackupId::now();
        self.begin(record, &id).await?;
        let copied = Box::pin(async {
            if let Err(error) = self.remove_abandoned(&record.name, &id, GRACE).await {
                tracing::warn!(collection = record.name, %error, "the files of stopped backups are removed later");
            }
            self.copy_all(record, &id).await
        });
        let copied = tokio::select! {
            biased;
            () = stop => None,
            copied = tokio::time::timeout(BACKUP_TIME_MAX, copied) => Some(copied),
        };
        let Some(copied) = copied else {
            self.discard_failed(record, &id).await;
            return Ok(None);
        };
        let set = match copied.unwrap_or_else(|_| Err(too_long())) {
            Ok(set) => set,
            Err(error) => {
                self.discard_failed(record, &id).await;
                return Err(error);
            }
        };
        // After an error the description may be there, and a listed backup must be complete. So the
        // copies stay: `remove_abandoned` looks for the description first.
        self.describe(&set).await?;
        if let Err(error) = self.end(&record.name, &id).await {
            tracing::warn!(
                collection = record.name, %id, %error,
                "the record that the backup began is removed later"
            );
        }
        tracing::info!(collection = record.name, backup = %set.id, bytes = set.bytes(), "a collection was backed up");
        Ok(Some(set))
    }

    /// Copies a collection. Returns the description of its backup, which is not stored yet.
    pub(super) async fn copy_all(
        &self,
        record: &CollectionRecord,
        id: &BackupId,
    ) -> Result<BackupSet> {
        let view = self.view.current();
        let changes = view.changes.collections.get(&record.id).cloned().unwrap_or_default();
        let mut snapshots = self.snapshot_ids(record).await?;
        let ends = self.ends(record).await?;
        let mut shards = Vec::with_capacity(ends.len());
        for (key, end) in ends {
            let snapshots = snapshots.remove(&key).unwrap_or_default();
            let shard = ShardOfSet { key: &key, collection: &record.name, id };
            let backed_up = self.back_up_shard(&shard, ShardMoment { end, snapshots }).await;
            shards.push(backed_up.map_err(|error| error.context(format!("shard {key}")))?);
        }
        // An original is stored before its point is in the log, so it is there.
        let originals = match record.images {
            Some(_) => Some(self.back_up_originals(record, id).await?),
            None => None,
        };
        // The data of a removed collection is removed later, so the copy may be incomplete or
        // empty.
        if self.view.current().by_id(&record.id).is_none() {
            return Err(Error::not_found(
                "the collection was removed before its backup was complete",
            ));
        }
        self.check_begun(&record.name, id).await?;
        Ok(BackupSet::new(id.clone(), record.clone(), changes, shards, originals))
    }

    /// Returns true if the collection has changed since the backup.
    ///
    /// # Errors
    /// As [`ShardLog::end`].
    pub(crate) async fn has_changed(
        &self,
        record: &CollectionRecord,
        set: &BackupSet,
    ) -> Result<bool> {
        let ends = self.ends(record).await?;
        let same = set.record.id == record.id
            && ends.values().zip(&set.shards).all(|(end, shard)| end.0 == shard.end);
        Ok(!same)
    }

    /// Returns the ends of the logs of all shards.
    async fn ends(&self, record: &CollectionRecord) -> Result<BTreeMap<ShardKey, EntryNumber>> {
        let end_of = |key: ShardKey| {
            let log = shard_log(&self.cluster, &key);
            async move { log.end().await }
        };
        of_each_shard(record, end_of).await
    }

    /// Returns the ids of the snapshots of all shards.
    async fn snapshot_ids(
        &self,
        record: &CollectionRecord,
    ) -> Result<BTreeMap<ShardKey, Vec<BackupId>>> {
        let ids_of = |key: ShardKey| {
            let store = snapshot_store(&self.cluster, &key.collection);
            async move { store.ids(&key.local_name()).await }
        };
        of_each_shard(record, ids_of).await
    }

    /// Copies a shard into a backup: its newest snapshot, and the entries of its log from there to
    /// the end of `moment`.
    pub(super) async fn back_up_shard(
        &self,
        shard: &ShardOfSet<'_>,
        mut moment: ShardMoment,
    ) -> Result<ShardBackup> {
        let log = shard_log(&self.cluster, shard.key);
        let CopiedSnapshot { bytes, from } = self.copy_newest(shard, &log, &mut moment).await?;
        let end = moment.end;
        let mut reader = PartReader::new(log, from, end);
        let mut parts = Vec::new();
        while let Some((part, bytes)) = reader.next().await? {
            self.put(&self.part_key(shard, parts.len()), bytes).await?;
            parts.push(part);
        }
        Ok(ShardBackup { snapshot_bytes: bytes, next: from.next.0, end: end.0, log: parts })
    }

    /// Copies the newest snapshot of a shard whose position is not after the end of `moment`. If
    /// there is none, or if it was listed later, that end is read again. Snapshots stay for an
    /// hour, and a backup may take longer.
    ///
    /// The copy of one large snapshot may take longer than that too. Then a newer one is copied,
    /// and most of its files are copied already.
    ///
    /// # Errors
    /// `Unavailable` if the log begins after the snapshot; the errors of the stores.
    async fn copy_newest(
        &self,
        shard: &ShardOfSet<'_>,
        log: &ShardLog,
        moment: &mut ShardMoment,
    ) -> Result<CopiedSnapshot> {
        let store = snapshot_store(&self.cluster, &shard.key.collection);
        let mut tried: Option<BackupId> = None;
        loop {
            let known = snapshots(&store, &shard.key.local_name()).await?;
            if !known.is_empty() && known.iter().all(|known| known.position.next > moment.end) {
                moment.end = log.end().await?;
            }
            let usable = known.into_iter().filter(|known| known.position.next <= moment.end);
            let newest = usable.max_by_key(|known| known.position.next);
            if newest.as_ref().is_some_and(|newest| !moment.snapshots.contains(&newest.id)) {
                moment.end = log.end().await?;
            }
            let from = newest.as_ref().map(|newest| newest.position).unwrap_or_default();
            let id = newest.map(|newest| newest.id);
            let copied = match &id {
                Some(id) => self.copy(shard, store.clone(), id.clone()).await.map(Some),
                None => Ok(None),
            };
            let has_log = log.floor().await?.entry <= from.next;
            match copied {
                Ok(list) if has_log => {
                    return Ok(CopiedSnapshot { bytes: list.map(|list| list.bytes()), from });
                }
                Err(error) if has_log && !is_missing(&error) => return Err(error),
                // The snapshot was perhaps removed during its copy.
                _ if id.is_some() && id != tried => tried = id,
                Err(error) => return Err(error),
                Ok(_) => {
                    return Err(Error::unavailable(
                        "the log begins behind the snapshots that can be read; try again",
                    )
                    .with_retry_after(RETRY_AFTER));
                }
            }
        }
    }

    /// Copies a snapshot of a shard into the store of backups, under the id of the backup.
    async fn copy(
        &self,
        shard: &ShardOfSet<'_>,
        from: BackupStore,
        snapshot: BackupId,
    ) -> Result<BackupList> {
        let name = shard.key.local_name();
        let copy = OwnedCopy {
            from,
            collection: name.clone(),
            backup: snapshot,
            to: self.shards.clone(),
            name,
            id: shard.id.clone(),
        };
        copy.run(self.pacer.clone(), |_| ()).await
    }
}

/// Calls `read` for each shard, some shards at the same time, and returns the results.
async fn of_each_shard<T, F>(
    record: &CollectionRecord,
    read: impl Fn(ShardKey) -> F,
) -> Result<BTreeMap<ShardKey, T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let keys: Vec<ShardKey> = record.shard_keys().collect();
    let mut results = BTreeMap::new();
    for keys in keys.chunks(SHARDS_AT_ONCE_MAX) {
        let mut running = tokio::task::JoinSet::new();
        for key in keys {
            let reading = read(key.clone());
            let key = key.clone();
            running.spawn(async move { reading.await.map(|result| (key, result)) });
        }
        while let Some(done) = running.join_next().await {
            let (key, result) = done.map_err(|error| Error::internal(error.to_string()))??;
            results.insert(key, result);
        }
    }
    Ok(results)
}

/// Returns true for the error of a copy whose snapshot, or one of its objects, is missing.
fn is_missing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DataLoss)
}

fn too_long() -> Error {
    Error::deadline(format!(
        "a backup ends after {} hours; raise --backup-rate on this node",
        BACKUP_TIME_MAX.as_secs() / 3600
    ))
}
