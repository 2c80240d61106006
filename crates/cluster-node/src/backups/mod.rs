//! Backups of whole collections of a cluster, made from its store only: no holder takes part, so no
//! search is slower.
//!
//! A backup has the newest snapshot of each shard and the log from there on. Before anything is
//! copied, the ends of all logs are read. So the backup has every write that was acknowledged
//! before it began. Snapshots that the backup names stay for an hour in the store, and so does the
//! log behind them.
//!
//! # Objects
//! Below `cluster` in the store of backups:
//!
//! | key | content |
//! |---|---|
//! | `sets/COLLECTION/ID` | description of a backup; a backup exists once it is there |
//! | `begun/COLLECTION/ID` | note of a backup that has no description yet |
//! | `abandoned/COLLECTION/ID` | note of a removal of the copies of such a backup |
//! | `shards/SHARD/...` | snapshots of shards, as [`backup`] stores them |
//! | `logs/COLLECTION/ID/SSSS-NNNN` | parts of the log of a shard |
//! | `originals/COLLECTION-ID/...` | original images of a collection |

mod begun;
mod export;
mod import;
pub(crate) mod log_parts;
mod originals;
pub(crate) mod prepared;
mod set;
mod staged;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use backup::{BackupContext, BackupCopy, BackupId, BackupList, BackupProgress, BackupStore};
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use cluster::EntryNumber;
use cluster_log::{FollowPosition, LogFloor, ShardLog};
use metrics::{BackupMetrics, BackupWorkLabels, KindLabels};
use model_store::SmallObjects;
use object_store::path::Path as Key;
use os::{Pacer, Rate};
use search::registry::CollectionSettings;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio_stream::StreamExt;

pub use self::export::ExportedCollection;
pub use self::import::{ImportTarget, ImportedCollection};
use self::log_parts::{PART_BYTES_MAX, PartReader};
pub use self::originals::OriginalsBackup;
pub use self::set::BackupSet;
use self::set::{LogPart, SET_BYTES_MAX, ShardBackup};
use crate::node::local::{LocalCollections, at_low_priority, blocking, set_position};
use crate::node::snapshot::{StopOnDrop, snapshot_store, snapshots};
use crate::types::{CollectionRecord, ShardKey, ViewSource, new_id};

/// Directory of the backups of clusters in the store of backups.
const DIRECTORY: &str = "cluster";
/// Maximum backups and restores that wait for their turn on this node.
const WAITING_MAX: usize = 16;
/// Retry advice if more wait.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Maximum backups of one collection that are listed.
const SETS_MAX: usize = 10_000;
/// Logs whose ends are read at the same time.
const ENDS_AT_ONCE_MAX: usize = 16;
/// Time for which an object of a failed backup is kept after it was written, so that the next
/// backup continues, and the copies of a backup without a description after it was begun.
const GRACE: Duration = Duration::from_secs(24 * 3600);
/// Longest time of a backup. Its copies stay for longer.
const BACKUP_TIME_MAX: Duration = Duration::from_secs(20 * 3600);
/// Longest time of a restore. After an hour, data without a record are removed.
const RESTORE_TIME_MAX: Duration = Duration::from_secs(50 * 60);
/// Archives that are received or sent at the same time.
const TRANSFERS_MAX: usize = 1;
/// Longest wait for the end of another transfer.
const TRANSFER_WAIT_MAX: Duration = Duration::from_secs(2);
/// Longest time of one request to the store.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Settings of the backups of collections.
pub struct ClusterBackupSettings {
    /// Store of the backups.
    pub store: BackupStore,
    /// Limit of the bytes per second that are copied.
    pub rate: Rate,
    /// Backups that are made without a request; `None` makes none.
    pub schedule: Option<BackupSchedule>,
}

/// The cluster whose collections are backed up, and the settings.
pub(crate) struct ClusterBackupOptions {
    pub(crate) view: ViewSource,
    /// The cluster's store.
    pub(crate) cluster: BackupStore,
    /// Collections of this node, where archives are received.
    pub(crate) local: LocalCollections,
    pub(crate) settings: ClusterBackupSettings,
    pub(crate) metrics: BackupMetrics,
}

/// Backups of all collections that are made without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupSchedule {
    /// Interval.
    pub every: Duration,
    /// Newest backups of a collection that stay; `None` keeps all.
    pub keep_newest: Option<usize>,
}

/// Backups of the cluster's collections.
pub struct ClusterBackups {
    view: ViewSource,
    cluster: BackupStore,
    local: LocalCollections,
    /// Descriptions and logs.
    objects: SmallObjects,
    /// Snapshots of shards.
    shards: BackupStore,
    /// Original images.
    originals: BackupStore,
    pacer: Arc<Pacer>,
    metrics: BackupMetrics,
    schedule: Option<BackupSchedule>,
    turn: Semaphore,
    waiting: AtomicUsize,
    transfers: Arc<Semaphore>,
}

/// A shard of a backup.
struct ShardOfSet<'a> {
    key: &'a ShardKey,
    collection: &'a str,
    id: &'a BackupId,
}

/// Copy of a snapshot of a shard.
struct CopiedSnapshot {
    /// Bytes of all files; `None` without a snapshot.
    bytes: Option<u64>,
    /// Position behind the snapshot in the log.
    from: FollowPosition,
}

impl ClusterBackups {
    /// Creates the backups of a cluster. Does not connect.
    pub(crate) fn new(options: ClusterBackupOptions) -> Arc<ClusterBackups> {
        let ClusterBackupSettings { store, rate, schedule } = options.settings;
        let store = store.below(DIRECTORY);
        Arc::new(ClusterBackups {
            view: options.view,
            cluster: options.cluster,
            local: options.local,
            objects: SmallObjects::new(store.place().clone(), REQUEST_TIMEOUT),
            shards: store.below("shards"),
            originals: store.below("originals"),
            pacer: Arc::new(Pacer::new(rate)),
            metrics: options.metrics,
            schedule,
            turn: Semaphore::new(1),
            waiting: AtomicUsize::new(0),
            transfers: Arc::new(Semaphore::new(TRANSFERS_MAX)),
        })
    }

    /// Returns the backups of a collection, oldest first. One that cannot be read is logged.
    ///
    /// # Errors
    /// The store's error, with a remedy.
    pub async fn list(&self, collection: &str) -> Result<Vec<BackupSet>> {
        let ids = self.ids(&format!("sets/{collection}")).await?;
        let mut sets = Vec::with_capacity(ids.len());
        for id in ids {
            match self.get(collection, &id).await {
                Ok(set) => sets.push(set),
                Err(error) if error.is_retryable() => return Err(error),
                Err(error) => tracing::warn!(%id, %error, "a backup is left out of the list"),
            }
        }
        Ok(sets)
    }

    /// Returns the ids of the backups that have an object in `directory`, oldest first.
    async fn ids(&self, directory: &str) -> Result<Vec<BackupId>> {
        let prefix = self.objects.key(directory);
        let place = self.objects.place();
        let mut listing = place.objects().list(Some(&prefix));
        let mut ids: Vec<BackupId> = Vec::new();
        while let Some(object) = self.objects.within(listing.next()).await? {
            let key = object.map_err(|error| place.failed(&error))?.location;
            ids.extend(key.filename().and_then(|name| name.parse().ok()));
            if ids.len() > SETS_MAX {
                return Err(Error::exhausted(format!(
                    "{prefix} has more than {SETS_MAX} backups; remove some of them in the store"
                )));
            }
        }
        ids.sort();
        Ok(ids)
    }

    /// Returns a backup of a collection.
    ///
    /// # Errors
    /// `NotFound` if there is none; as `BackupSet::decode`; the store's error.
    pub async fn get(&self, collection: &str, id: &BackupId) -> Result<BackupSet> {
        let missing = || Error::not_found(format!("there is no backup {id} of {collection:?}"));
        let bytes = self.objects.read(&self.set_key(collection, id), SET_BYTES_MAX).await?;
        let set = BackupSet::decode(&bytes.ok_or_else(missing)?)?;
        if set.id == *id {
            Ok(set)
        } else {
            Err(Error::data_loss(format!("backup {id}: it is that of {}", set.id)))
        }
    }

    /// Backs up a collection.
    ///
    /// # Errors
    /// `ResourceExhausted` if too many backups wait; `Unavailable` if the log moved on meanwhile;
    /// the errors of the stores.
    pub async fn create(&self, record: &CollectionRecord) -> Result<BackupSet> {
        let made = self.make(record).await;
        self.count("backup", &made);
        made
    }

    async fn make(&self, record: &CollectionRecord) -> Result<BackupSet> {
        let _turn = self.turn().await?;
        if let Err(error) = self.remove_abandoned(&record.name, GRACE).await {
            tracing::warn!(collection = record.name, %error, "the files of stopped backups are removed later");
        }
        let id = BackupId::now();
        self.begin(record, &id).await?;
        let copied = tokio::time::timeout(BACKUP_TIME_MAX, self.copy_all(record, &id)).await;
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
            tracing::warn!(collection = record.name, %id, %error, "the note of a backup is removed later");
        }
        tracing::info!(collection = record.name, backup = %set.id, bytes = set.bytes(), "a collection was backed up");
        Ok(set)
    }

    /// Copies a collection. Returns the description of its backup, which is not stored yet.
    async fn copy_all(&self, record: &CollectionRecord, id: &BackupId) -> Result<BackupSet> {
        let view = self.view.current();
        let changes = view.changes.collections.get(&record.id).cloned().unwrap_or_default();
        let ends = self.ends(record).await?;
        let mut shards = Vec::with_capacity(ends.len());
        for (key, end) in ends {
            let shard = ShardOfSet { key: &key, collection: &record.name, id };
            let backed_up = self.back_up_shard(&shard, end).await;
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

    /// Returns the schedule.
    pub(crate) fn schedule(&self) -> Option<BackupSchedule> {
        self.schedule
    }

    /// Returns true if the collection has changed since the backup.
    ///
    /// # Errors
    /// The store's error.
    pub(crate) async fn has_changed(
        &self,
        record: &CollectionRecord,
        set: &BackupSet,
    ) -> Result<bool> {
        let ends = self.ends(record).await?;
        let same = set.record.id == record.id
            && ends.iter().zip(&set.shards).all(|((_, end), shard)| end.0 == shard.end);
        Ok(!same)
    }

    /// Returns the ends of the logs of all shards.
    async fn ends(&self, record: &CollectionRecord) -> Result<Vec<(ShardKey, EntryNumber)>> {
        let keys: Vec<ShardKey> = record.shard_keys().collect();
        let mut ends = Vec::with_capacity(keys.len());
        for keys in keys.chunks(ENDS_AT_ONCE_MAX) {
            let mut running = tokio::task::JoinSet::new();
            for key in keys {
                let log = ShardLog::new(self.cluster.place(), key);
                let key = key.clone();
                running.spawn(async move { log.end().await.map(|end| (key, end)) });
            }
            while let Some(done) = running.join_next().await {
                ends.push(done.map_err(|error| Error::internal(error.to_string()))??);
            }
        }
        ends.sort();
        Ok(ends)
    }

    async fn back_up_shard(
        &self,
        shard: &ShardOfSet<'_>,
        mut end: EntryNumber,
    ) -> Result<ShardBackup> {
        let log = ShardLog::new(self.cluster.place(), shard.key);
        let CopiedSnapshot { bytes, from } = self.copy_newest(shard, &log, &mut end).await?;
        let mut reader = PartReader::new(log, from, end);
        let mut parts = Vec::new();
        while let Some((part, bytes)) = reader.next().await? {
            self.put(&self.part_key(shard, parts.len()), bytes).await?;
            parts.push(part);
        }
        Ok(ShardBackup { snapshot_bytes: bytes, next: from.next.0, end: end.0, log: parts })
    }

    /// Copies the newest snapshot of a shard that is not behind `end`. If all are, `end` becomes
    /// the end of the log: snapshots stay for an hour, and a backup may take longer.
    ///
    /// The copy of one large snapshot may take longer than that too. Then a newer one is copied,
    /// and most of its files are there already.
    ///
    /// # Errors
    /// `Unavailable` if the log begins behind the snapshot; the errors of the stores.
    async fn copy_newest(
        &self,
        shard: &ShardOfSet<'_>,
        log: &ShardLog,
        end: &mut EntryNumber,
    ) -> Result<CopiedSnapshot> {
        let store = snapshot_store(&self.cluster, &shard.key.collection);
        let mut tried: Option<BackupId> = None;
        loop {
            let known = snapshots(&store, &shard.key.local_name()).await?;
            if !known.is_empty() && known.iter().all(|known| known.position.next > *end) {
                *end = log.end().await?;
            }
            let usable = known.into_iter().filter(|known| known.position.next <= *end);
            let newest = usable.max_by_key(|known| known.position.next);
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

    /// Writes the data of a new collection of the name `name`. Returns its record, which is not in
    /// the catalog yet.
    ///
    /// # Errors
    /// `DataLoss` for a damaged backup; `ResourceExhausted` if too many wait; `DeadlineExceeded`
    /// after `RESTORE_TIME_MAX`; the errors of the stores. Written data is removed an hour later.
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

    async fn read_part(&self, key: &Key, part: &LogPart) -> Result<Bytes> {
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

    /// Removes a backup of a collection, and objects that no other one needs.
    ///
    /// # Errors
    /// `NotFound` if there is none; the store's error.
    pub async fn delete(&self, collection: &str, id: &BackupId) -> Result<()> {
        let removed = self.remove(collection, id).await;
        self.count("delete", &removed);
        removed
    }

    async fn remove(&self, collection: &str, id: &BackupId) -> Result<()> {
        let _turn = self.turn().await?;
        let set = self.get(collection, id).await?;
        // If the removal stops, a later backup finds the rest.
        self.begin(&set.record, id).await?;
        // First, so that no half of a backup is listed.
        self.objects.remove(&self.set_key(collection, id)).await?;
        self.discard(&set.record, id, Duration::ZERO).await?;
        self.end(&set.record.name, id).await
    }

    async fn delete_snapshot(&self, shard: &ShardOfSet<'_>, grace: Duration) -> Result<()> {
        let store = self.shards.clone();
        let name = shard.key.local_name();
        let id = shard.id.clone();
        let removed = blocking(move || {
            // Removals are not paced.
            let pacer = Pacer::new(Rate::unlimited());
            let progress = BackupProgress::default();
            let context = BackupContext { store: &store, pacer: &pacer, progress: &progress };
            backup::block_on(delete_if_there(&context, &name, &id, grace))
        });
        removed.await
    }

    /// Waits for the turn of this node's next backup or restore.
    async fn turn(&self) -> Result<SemaphorePermit<'_>> {
        let waiting = WaitingCount::begin(&self.waiting)?;
        let turn = self.turn.acquire().await;
        drop(waiting);
        turn.map_err(|_| Error::unavailable("the server is shutting down"))
    }

    /// Returns the permit of a transfer of an archive. Waits for a moment only, because the client
    /// sends or reads meanwhile. The last transfer returns its permit a moment after its answer.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if another archive is being transferred.
    async fn transfer(&self) -> Result<OwnedSemaphorePermit> {
        let permit = self.transfers.clone().acquire_owned();
        match tokio::time::timeout(TRANSFER_WAIT_MAX, permit).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(Error::unavailable("the server is shutting down")),
            Err(_) => Err(Error::exhausted(format!(
                "this node transfers {TRANSFERS_MAX} snapshot already; try again later, or ask another root"
            ))
            .with_retry_after(RETRY_AFTER)),
        }
    }

    fn count<T>(&self, work: &'static str, result: &Result<T>) {
        let outcome = if result.is_ok() { "ok" } else { "failed" };
        self.metrics.work.get_or_create(&BackupWorkLabels { work, outcome }).inc();
        if work == "backup" {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            self.metrics.time.get_or_create(&KindLabels { kind: outcome }).set(now.as_secs_f64());
        }
    }

    fn set_key(&self, collection: &str, id: &BackupId) -> Key {
        self.objects.key(&format!("sets/{collection}/{id}"))
    }

    fn part_key(&self, shard: &ShardOfSet<'_>, part: usize) -> Key {
        let ShardOfSet { key, collection, id } = shard;
        self.objects.key(&format!("logs/{collection}/{id}/{:04}-{part:04}", key.shard.0))
    }

    /// Creates an object.
    async fn put(&self, key: &Key, bytes: Vec<u8>) -> Result<()> {
        if self.objects.create_own(key, bytes).await? {
            Ok(())
        } else {
            Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("object {key} is in the store of backups already; try again"),
            ))
        }
    }
}

/// Removes a backup if it is there, and objects that no other one needs. An object stays for
/// `grace` after it was written.
///
/// # Errors
/// As [`backup::delete`].
async fn delete_if_there(
    context: &BackupContext<'_>,
    name: &str,
    id: &BackupId,
    grace: Duration,
) -> Result<()> {
    match backup::delete(context, name, id, grace).await {
        // A backup that was stopped has objects and no list.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            backup::remove_unused(context, name, grace).await.map(drop)
        }
        removed => removed.map(drop),
    }
}

/// Returns true for the error of a copy whose snapshot, or one of its objects, is missing.
fn is_missing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DataLoss)
}

fn restore_too_long() -> Error {
    Error::deadline(format!(
        "a restore ends after {} minutes, before its data count as those of a removed collection; raise \
         --backup-rate on this node",
        RESTORE_TIME_MAX.as_secs() / 60
    ))
}

fn too_long() -> Error {
    Error::deadline(format!(
        "a backup ends after {} hours; raise --backup-rate on this node",
        BACKUP_TIME_MAX.as_secs() / 3600
    ))
}

/// A [`BackupCopy`] for another thread.
struct OwnedCopy {
    from: BackupStore,
    collection: String,
    backup: BackupId,
    to: BackupStore,
    name: String,
    id: BackupId,
}

impl OwnedCopy {
    /// Copies the backup on a thread of its own. If the future is dropped, the thread ends at its
    /// next step.
    async fn run(
        self,
        pacer: Arc<Pacer>,
        change: impl FnOnce(&mut CollectionSettings) + Send + 'static,
    ) -> Result<BackupList> {
        let progress = Arc::new(BackupProgress::default());
        let _stop = StopOnDrop(progress.clone());
        at_low_priority("copying a snapshot", move || {
            let context = BackupContext { store: &self.from, pacer: &pacer, progress: &progress };
            let copy = BackupCopy {
                collection: &self.collection,
                backup: &self.backup,
                to: &self.to,
                name: &self.name,
                id: &self.id,
            };
            backup::block_on(backup::copy(&context, &copy, change))
        })
        .await
    }
}

/// A request that waits for its turn.
struct WaitingCount<'a>(&'a AtomicUsize);

impl WaitingCount<'_> {
    fn begin(waiting: &AtomicUsize) -> Result<WaitingCount<'_>> {
        let count = WaitingCount(waiting);
        if waiting.fetch_add(1, Ordering::AcqRel) >= WAITING_MAX {
            return Err(Error::exhausted(format!("{WAITING_MAX} backups and restores wait"))
                .with_retry_after(RETRY_AFTER));
        }
        Ok(count)
    }
}

impl Drop for WaitingCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
