//! Backups of whole collections of a cluster. They are made from its store only. No holder takes
//! part, so no search is slower.
//!
//! A backup has the newest snapshot of each shard and the log from there on. Before anything is
//! copied, the ends of all logs are read. So the backup has every write that was acknowledged
//! before it began. Snapshots that the backup names stay for an hour in the store, and so does the
//! log after them.
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
mod create;
mod export;
mod import;
pub(crate) mod log_parts;
mod originals;
mod owned_copy;
pub(crate) mod prepared;
mod remove;
mod restore;
mod set;
mod staged;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, SystemTime};

use backup::{BackupId, BackupStore};
use base::{Error, ErrorKind, Result};
use metrics::{BackupMetrics, BackupWorkLabels, KindLabels};
use model_store::SmallObjects;
use object_store::path::Path as Key;
use os::{Pacer, Rate};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;

pub use self::export::ExportedCollection;
pub use self::import::{ImagesCheck, ImportTarget, ImportedCollection};
pub use self::originals::OriginalsBackup;
pub use self::set::BackupSet;
use self::set::SET_BYTES_MAX;
use self::turns::TRANSFERS_MAX;
use crate::node::local::LocalCollections;
use crate::types::{CollectionRecord, ShardKey, ViewSource};

/// Directory of the backups of clusters in the store of backups.
const DIRECTORY: &str = "cluster";
/// Retry advice if more wait.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Maximum backups of one collection that are listed: one an hour for more than five years.
const SETS_MAX: usize = 50_000;
/// Maximum number of descriptions of backups that are read at the same time.
const SETS_AT_ONCE_MAX: usize = 16;
/// Time for which an object of a failed backup is kept after it was written, so that the next
/// backup continues. The copies of a backup without a description are kept as long after its note
/// was written. Both ages are by the store's clock.
const GRACE: Duration = Duration::from_secs(24 * 3600);
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
    /// Interval between two backups of a collection.
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

impl ClusterBackups {
    /// Creates the backups of a cluster. Does not connect.
    pub(crate) fn new(options: ClusterBackupOptions) -> Arc<ClusterBackups> {
        let ClusterBackupSettings { store, rate, schedule } = options.settings;
        let store = store.below(DIRECTORY).for_clients();
        Arc::new(ClusterBackups {
            view: options.view,
            cluster: options.cluster.for_clients(),
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
        let ids = self.set_ids(collection).await?;
        let mut sets = BTreeMap::new();
        self.read_sets(collection, &ids, |set| drop(sets.insert(set.id.clone(), set))).await?;
        Ok(sets.into_values().collect())
    }

    /// Returns the ids of the backups of a collection, oldest first. Reads no description.
    ///
    /// # Errors
    /// The store's error, with a remedy.
    pub(crate) async fn set_ids(&self, collection: &str) -> Result<Vec<BackupId>> {
        self.ids(&format!("sets/{collection}")).await
    }

    /// Returns the ids of the backups of the collection of a record, oldest first. Other
    /// collections may have backups under its name, such as earlier ones, or collections of other
    /// clusters with the same store of backups.
    ///
    /// # Errors
    /// As [`ClusterBackups::list`].
    pub(crate) async fn own_ids(&self, record: &CollectionRecord) -> Result<Vec<BackupId>> {
        let ids = self.set_ids(&record.name).await?;
        let mut own = Vec::new();
        let keep = |set: BackupSet| {
            if set.record.id == record.id {
                own.push(set.id);
            }
        };
        self.read_sets(&record.name, &ids, keep).await?;
        own.sort_unstable();
        Ok(own)
    }

    /// Returns the first backup of `ids` that is one of the collection of a record. Reads no
    /// description after it. One that cannot be read is logged.
    ///
    /// # Errors
    /// As [`ClusterBackups::list`].
    pub(crate) async fn first_own(
        &self,
        record: &CollectionRecord,
        ids: &[BackupId],
    ) -> Result<Option<BackupSet>> {
        for id in ids {
            let set = readable(&record.name, id, self.get(&record.name, id).await)?;
            if let Some(set) = set.filter(|set| set.record.id == record.id) {
                return Ok(Some(set));
            }
        }
        Ok(None)
    }

    /// Calls `each` with the backups `ids` of a collection, in any order. Reads some of them at the
    /// same time. One that cannot be read is logged.
    ///
    /// # Errors
    /// As [`ClusterBackups::list`].
    async fn read_sets(
        &self,
        collection: &str,
        ids: &[BackupId],
        mut each: impl FnMut(BackupSet),
    ) -> Result<()> {
        for ids in ids.chunks(SETS_AT_ONCE_MAX) {
            let mut running = JoinSet::new();
            for id in ids {
                let objects = self.objects.clone();
                let collection = collection.to_owned();
                let id = id.clone();
                running.spawn(async move {
                    let set = read_set(&objects, &collection, &id).await;
                    readable(&collection, &id, set)
                });
            }
            while let Some(read) = running.join_next().await {
                let set = read.map_err(|error| Error::internal(error.to_string()))??;
                set.into_iter().for_each(&mut each);
            }
        }
        Ok(())
    }

    /// Returns the ids of the backups that have an object in `directory`, oldest first.
    async fn ids(&self, directory: &str) -> Result<Vec<BackupId>> {
        Ok(self.written_times(directory).await?.into_keys().collect())
    }

    /// Returns the backups that have an object in `directory`, each with the time at which the
    /// store wrote the object.
    async fn written_times(&self, directory: &str) -> Result<BTreeMap<BackupId, SystemTime>> {
        let prefix = self.objects.key(directory);
        let place = self.objects.place();
        let mut listing = place.objects().list(Some(&prefix));
        let mut times: BTreeMap<BackupId, SystemTime> = BTreeMap::new();
        while let Some(object) = self.objects.within(listing.next()).await? {
            let object = object.map_err(|error| place.failed(error))?;
            let id: Option<BackupId> =
                object.location.filename().and_then(|name| name.parse().ok());
            times.extend(id.map(|id| (id, SystemTime::from(object.last_modified))));
            if times.len() > SETS_MAX {
                return Err(Error::exhausted(format!(
                    "{prefix} has more than {SETS_MAX} backups; remove some of them in the store"
                )));
            }
        }
        Ok(times)
    }

    /// Returns a backup of a collection.
    ///
    /// # Errors
    /// `NotFound` if there is none; as `BackupSet::decode`; `DataLoss` for the description of
    /// another backup; the store's error.
    pub async fn get(&self, collection: &str, id: &BackupId) -> Result<BackupSet> {
        read_set(&self.objects, collection, id).await
    }

    pub(crate) fn schedule(&self) -> Option<BackupSchedule> {
        self.schedule
    }

    /// Counts finished work in the metrics.
    fn count<T>(&self, work: &'static str, result: &Result<T>) {
        let outcome = if result.is_ok() { "ok" } else { "failed" };
        self.metrics.work.get_or_create(&BackupWorkLabels { work, outcome }).inc();
        if work == "backup" {
            let now = base::unix_time(SystemTime::now());
            self.metrics.time.get_or_create(&KindLabels { kind: outcome }).set(now.as_secs_f64());
        }
    }

    fn set_key(&self, collection: &str, id: &BackupId) -> Key {
        set_key(&self.objects, collection, id)
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

fn set_key(objects: &SmallObjects, collection: &str, id: &BackupId) -> Key {
    objects.key(&format!("sets/{collection}/{id}"))
}

/// Reads a backup of a collection.
///
/// # Errors
/// As [`ClusterBackups::get`].
async fn read_set(objects: &SmallObjects, collection: &str, id: &BackupId) -> Result<BackupSet> {
    let missing = || Error::not_found(format!("there is no backup {id} of {collection:?}"));
    let key = set_key(objects, collection, id);
    let bytes = objects.read(&key, SET_BYTES_MAX).await?.ok_or_else(missing)?;
    let set = decode_set(&bytes, collection, id);
    set.map_err(|error| match error.kind() {
        ErrorKind::DataLoss => Error::data_loss(format!(
            "object {key}: {}; restore the object from its earlier version, or delete the snapshot",
            error.message()
        ))
        .with_source(error),
        _ => error.context(format!("object {key}")),
    })
}

/// Returns a backup; `None`, after a line in the log, if it cannot be read.
///
/// # Errors
/// An error that a later read may not have.
fn readable(collection: &str, id: &BackupId, set: Result<BackupSet>) -> Result<Option<BackupSet>> {
    match set {
        Ok(set) => Ok(Some(set)),
        Err(error) if error.is_retryable() => Err(error),
        Err(error) => {
            tracing::warn!(collection, %id, %error, "a snapshot is left out of the list");
            Ok(None)
        }
    }
}

/// Decodes the description of the backup `id` of a collection.
///
/// # Errors
/// As [`BackupSet::decode`], and `DataLoss` for the description of another backup.
fn decode_set(bytes: &[u8], collection: &str, id: &BackupId) -> Result<BackupSet> {
    let set = BackupSet::decode(bytes)?;
    if set.id == *id && set.record.name == collection {
        return Ok(set);
    }
    Err(Error::data_loss(format!("it describes backup {} of {:?}", set.id, set.record.name)))
}
