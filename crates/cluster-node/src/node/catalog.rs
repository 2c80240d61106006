//! The collections of the cluster, as objects in the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api_qdrant::BoxFuture;
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use cluster::{COPIES_MAX, SHARDS_MAX};
use model_store::{SmallObjects, StorePlace};
use object_store::ObjectMeta;
use object_store::path::Path as Key;
use parking_lot::Mutex;
use search::registry::check_name;
use tokio::sync::{Notify, watch};
use tokio_stream::StreamExt;

use super::change_log::{ChangeLog, ChangesVersion};
use crate::changes::CatalogChanges;
use crate::collection_catalog::CollectionCatalog;
use crate::membership::{IDENTITY, IDENTITY_BYTES_MAX};
use crate::types::{CollectionRecord, ShardKey, ViewUpdater};

/// Directory of the records.
const RECORDS: &str = "collections";
/// Maximum bytes of a record.
const RECORD_BYTES_MAX: u64 = 1 << 20;
/// Maximum collections of a cluster.
const COLLECTIONS_MAX: usize = 10_000;
/// Time between two reads of the records, if no request waits for one.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between two reads of the records.
const READ_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Longest time of one request to the store.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The records of the cluster's collections.
pub struct StoreCatalog {
    objects: SmallObjects,
    view: ViewUpdater,
    /// True once the records were read.
    loaded: AtomicBool,
    /// True if the last reading had every record, so that a collection without one was removed.
    whole: AtomicBool,
    /// Number of changes by this process. Records that were read before a change are ignored.
    changes: AtomicU64,
    log: ChangeLog,
    /// Newest version of the aliases and changes that this process knows.
    known_changes: Mutex<ChangesVersion>,
    /// Wakes [`StoreCatalog::run`] before the interval ends.
    read_wanted: Notify,
    readings: watch::Sender<ReadingCounts>,
    /// Identity of the store, once it was read.
    identity: Mutex<Option<Bytes>>,
    /// Objects of the last reading whose record cannot be read. Each is logged once.
    unreadable: Mutex<BTreeMap<Key, ObjectMeta>>,
    /// Time of the first failed reading since the last one that succeeded.
    failing_since: Mutex<Option<Instant>>,
}

/// Readings of the records in this process.
#[derive(Clone, Copy, Default)]
struct ReadingCounts {
    begun: u64,
    ended: u64,
}

/// Records that were read.
struct RecordsReading {
    records: KnownRecords,
    /// True if no record is missing.
    whole: bool,
}

/// A record that was read, and its object.
#[derive(Clone)]
struct KnownRecord {
    object: ObjectMeta,
    record: CollectionRecord,
}

type KnownRecords = BTreeMap<Key, KnownRecord>;

impl StoreCatalog {
    /// Creates the catalog of the cluster in `place`, which keeps the collections of `view`.
    pub fn new(place: StorePlace, view: ViewUpdater) -> StoreCatalog {
        let objects = SmallObjects::new(place.for_clients(), REQUEST_TIMEOUT);
        StoreCatalog {
            log: ChangeLog::new(objects.clone()),
            objects,
            view,
            loaded: AtomicBool::new(false),
            whole: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            known_changes: Mutex::default(),
            read_wanted: Notify::new(),
            readings: watch::Sender::default(),
            identity: Mutex::default(),
            unreadable: Mutex::default(),
            failing_since: Mutex::default(),
        }
    }

    /// Returns the time for which all readings have failed; `None` if the last one succeeded.
    pub(super) fn failing_for(&self) -> Option<Duration> {
        self.failing_since.lock().map(|since| since.elapsed())
    }

    /// Returns true if every record was read, so that a collection without a record was removed.
    pub fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Acquire)
    }

    /// Reads the ids of all collections. Ignores earlier reads.
    ///
    /// # Errors
    /// The store's error; `DataLoss` for a record that cannot be read; as
    /// [`StoreCatalog::check_identity`].
    pub(super) async fn all_ids(&self) -> Result<BTreeSet<String>> {
        let prefix = self.objects.key(RECORDS);
        let mut listing = self.objects.place().objects().list(Some(&prefix));
        let mut ids = BTreeSet::new();
        while let Some(object) = self.objects.within(listing.next()).await? {
            let key = object.map_err(|error| self.objects.place().failed(error))?.location;
            ids.extend(self.record(&key).await?.map(|record| record.id));
        }
        self.check_identity().await?;
        Ok(ids)
    }

    /// Creates a collection. Returns false if there is one of this name.
    ///
    /// # Errors
    /// As [`StoreCatalog::put_record`].
    async fn create_record(&self, record: &CollectionRecord) -> Result<bool> {
        if self.view.source().current().collections.len() >= COLLECTIONS_MAX {
            return Err(Error::precondition(format!(
                "the cluster has {COLLECTIONS_MAX} collections, which is the maximum; remove one first"
            )));
        }
        self.check_no_alias(&record.name).await?;
        self.put_record(record).await
    }

    /// Checks that there is no alias of this name. The view may lack an alias that another root
    /// made a moment ago, and a collection of its name would take its place.
    ///
    /// # Errors
    /// `InvalidArgument` for an alias; the store's error.
    async fn check_no_alias(&self, name: &str) -> Result<()> {
        let known = self.known_changes.lock().clone();
        let version = self.log.newest(&known).await?;
        let is_alias = version.changes.aliases.contains_key(name);
        self.take_changes(version);
        if is_alias {
            return Err(Error::invalid(format!(
                "\"{name}\" is an alias, so no collection can have this name; use another name"
            )));
        }
        Ok(())
    }

    /// Creates a record. Returns false if there is one of its name.
    ///
    /// # Errors
    /// As [`StoreCatalog::check_no_alias`]: the record is removed then. As
    /// [`StoreCatalog::check_identity`]: the record may stay then.
    async fn put_record(&self, record: &CollectionRecord) -> Result<bool> {
        let bytes = serde_json::to_vec(record)
            .map_err(|error| Error::internal("a record of a collection").caused_by(error))?;
        // Its id makes a record unique.
        if !self.objects.create_own(&self.key(&record.name), bytes).await? {
            return Ok(false);
        }
        // No other root sees a record in a directory that is not mounted any more.
        self.check_identity().await?;
        // Another root may have made an alias of this name since the first check. One that makes
        // it from here on sees the record.
        if let Err(error) = self.check_no_alias(&record.name).await {
            self.take_record_back(record).await;
            return Err(error);
        }
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.view.update(|view| {
            view.collections.insert(record.name.clone(), record.clone());
        });
        Ok(true)
    }

    /// Removes a record that this root has created. Keeps another record of the same name.
    async fn take_record_back(&self, record: &CollectionRecord) {
        let name = record.name.as_str();
        if let Err(error) = self.remove_record_of(name, Some(&record.id)).await {
            tracing::warn!(
                collection = name, %error,
                "a collection may have the name of an alias; remove one of the two"
            );
        }
    }

    /// Removes a collection. Its data stays in the store. Returns false if there is none. Aliases
    /// of a collection without a record are removed too, since an earlier removal may have ended
    /// before it removed them.
    ///
    /// # Errors
    /// The store's error.
    async fn remove_record(&self, name: &str) -> Result<bool> {
        self.remove_record_of(name, None).await
    }

    /// Does the same as [`StoreCatalog::remove_record`]. If `only` is an id, a collection of
    /// another id stays. So does a record that cannot be read, because it may have any id.
    async fn remove_record_of(&self, name: &str, only: Option<&str>) -> Result<bool> {
        let key = self.key(name);
        // The view may lack the record, or have the record of an earlier collection.
        let id = match self.record(&key).await {
            Ok(Some(record)) if only.is_some_and(|only| only != record.id) => return Ok(false),
            Ok(Some(record)) => Some(record.id),
            Ok(None) => {
                if only.is_none() {
                    self.forget(name, None).await;
                }
                return Ok(false);
            }
            Err(error) if error.kind() == ErrorKind::DataLoss && only.is_none() => None,
            Err(error) => return Err(error),
        };
        // No store compares the content of an object before it removes it. So the removal follows
        // at once, and a read whose answer came late is an error.
        self.objects.remove(&key).await?;
        self.changes.fetch_add(1, Ordering::AcqRel);
        let mut removed = None;
        self.view.update(|view| removed = view.collections.remove(name));
        let id = id.or(removed.map(|record| record.id));
        self.forget(name, id.as_deref()).await;
        Ok(true)
    }

    /// Removes the aliases and changes of a removed collection.
    async fn forget(&self, name: &str, id: Option<&str>) {
        let id = id.unwrap_or_default();
        let forgotten = async {
            let aliases = self.aliases_of_removed(name).await?;
            self.make_change(&|changes| Ok(changes.without(name, id, &aliases))).await
        };
        if let Err(error) = forgotten.await {
            tracing::warn!(
                collection = name, %error,
                "aliases of a removed collection stay; remove the collection again to remove them"
            );
        }
    }

    /// Returns the aliases of a collection that was removed. If there is another collection of its
    /// name already, they may belong to that one, and none is returned.
    ///
    /// # Errors
    /// The store's error.
    async fn aliases_of_removed(&self, name: &str) -> Result<BTreeSet<String>> {
        let known = self.known_changes.lock().clone();
        let version = self.log.newest(&known).await?;
        // Read after the aliases: without a record, none of them belongs to a newer collection.
        if self.has_record(name).await? {
            return Ok(BTreeSet::new());
        }
        let of_name = version.changes.aliases.iter().filter(|alias| alias.1 == name);
        Ok(of_name.map(|alias| alias.0.clone()).collect())
    }

    /// Changes aliases, or collections after their creation. Returns the number of the version.
    ///
    /// # Errors
    /// As [`ChangeLog::change`], [`StoreCatalog::check_identity`] and
    /// [`StoreCatalog::check_aliases`]. No alias is changed then, except perhaps after an error of
    /// the store.
    async fn make_change(
        &self,
        change: &(dyn Fn(&CatalogChanges) -> Result<CatalogChanges> + Send + Sync),
    ) -> Result<u64> {
        let known = self.known_changes.lock().clone();
        // An error says nothing yet: there may be newer changes.
        if let Ok(changed) = change(&known.changes) {
            self.check_aliases(&known.changes, &changed).await?;
        }
        let base = Mutex::new(CatalogChanges::default());
        let recorded = |changes: &CatalogChanges| -> Result<CatalogChanges> {
            let changed = change(changes)?;
            base.lock().clone_from(changes);
            Ok(changed)
        };
        let version = self.log.change(&known, &recorded).await?;
        // No other root sees a version in a directory that is not mounted any more.
        self.check_identity().await?;
        let base = base.into_inner();
        // Another root may have created or removed a collection since the first check. One that
        // does it from here on sees the aliases.
        if let Err(error) = self.check_aliases(&base, &version.changes).await {
            self.take_aliases_back(&base, version).await;
            return Err(error);
        }
        let number = version.number;
        self.take_changes(version);
        Ok(number)
    }

    /// Undoes a change of aliases from `base` to `made`. Later changes of other roots stay.
    async fn take_aliases_back(&self, base: &CatalogChanges, made: ChangesVersion) {
        let back = |changes: &CatalogChanges| -> Result<CatalogChanges> {
            Ok(changes.with_aliases_back(base, &made.changes))
        };
        match self.log.change(&made, &back).await {
            Ok(version) => self.take_changes(version),
            Err(error) => {
                tracing::warn!(%error, "aliases of a refused change stay; remove them");
            }
        }
    }

    /// Compares new aliases with the records in the store. The view of this root may lack a
    /// collection that another root made a moment ago, or have one that it removed.
    ///
    /// # Errors
    /// `AlreadyExists` for an alias that is the name of a collection, `NotFound` for a missing
    /// collection; the store's error.
    async fn check_aliases(&self, old: &CatalogChanges, new: &CatalogChanges) -> Result<()> {
        let is_new = |alias: &(&String, &String)| old.aliases.get(alias.0) != Some(alias.1);
        let added: Vec<(&String, &String)> = new.aliases.iter().filter(is_new).collect();
        for (alias, collection) in added {
            if !old.aliases.contains_key(alias) && self.has_record(alias).await? {
                return Err(Error::new(
                    ErrorKind::AlreadyExists,
                    format!(
                        "\"{alias}\" is a collection, so it cannot be an alias; use another name"
                    ),
                ));
            }
            if !self.has_record(collection).await? {
                return Err(Error::not_found(format!("there is no collection \"{collection}\"")));
            }
        }
        Ok(())
    }

    /// Returns true if the store has a record of this name, which may be damaged.
    async fn has_record(&self, name: &str) -> Result<bool> {
        match self.record(&self.key(name)).await {
            Err(error) if error.kind() == ErrorKind::DataLoss => Ok(true),
            record => record.map(|record| record.is_some()),
        }
    }

    /// Returns true if the store has the record of this collection. A damaged record may be it.
    ///
    /// # Errors
    /// As [`StoreCatalog::check_identity`]; `Unavailable` at once if the last reading failed.
    async fn has_record_of(&self, record: &CollectionRecord) -> Result<bool> {
        if self.failing_for().is_some() {
            return Err(Error::unavailable("the last reading of the collections failed"));
        }
        match self.record(&self.key(&record.name)).await {
            Ok(Some(found)) if found.id == record.id => Ok(true),
            // A directory that is not mounted any more has no records.
            Ok(_) => self.check_identity().await.map(|()| false),
            Err(error) if error.kind() == ErrorKind::DataLoss => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Puts a version of aliases and changes into the view, unless that has a newer one.
    fn take_changes(&self, version: ChangesVersion) {
        let mut known = self.known_changes.lock();
        if version.number > known.number {
            *known = version;
            let changes = known.changes.clone();
            self.view.update(|view| view.changes = changes);
        }
    }

    /// Reads the newest aliases and changes. Damage is logged, and the known versions stay.
    ///
    /// # Errors
    /// The store's error.
    async fn read_changes(&self) -> Result<()> {
        let known = self.known_changes.lock().clone();
        match self.log.newest(&known).await {
            Ok(version) => self.take_changes(version),
            Err(error) if error.kind() == ErrorKind::DataLoss => {
                tracing::error!(%error, "the aliases of the cluster stay as they were");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Keeps the collections of the view until the task is dropped.
    pub async fn run(&self) {
        let mut known = KnownRecords::new();
        loop {
            self.readings.send_modify(|counts| counts.begun += 1);
            let changes = self.changes.load(Ordering::Acquire);
            match self.read_all(&known).await {
                Ok(reading) => {
                    known = reading.records;
                    *self.failing_since.lock() = None;
                    self.take(&known, changes);
                    self.whole.store(reading.whole, Ordering::Release);
                }
                Err(error) => self.note_failure(&error),
            }
            self.readings.send_modify(|counts| counts.ended = counts.begun);
            tokio::time::sleep(READ_INTERVAL_MIN).await;
            let rest = READ_INTERVAL.saturating_sub(READ_INTERVAL_MIN);
            // An error means that the interval has ended and no request waits.
            let _ = tokio::time::timeout(rest, self.read_wanted.notified()).await;
        }
    }

    /// Records a failed reading. Logs the first since the last one that succeeded.
    fn note_failure(&self, error: &Error) {
        let mut since = self.failing_since.lock();
        if since.is_none() {
            tracing::warn!(%error, "the collections of the cluster stay as they were");
            *since = Some(Instant::now());
        }
    }

    /// Waits for the end of the next reading, which begins after this call.
    async fn next_reading(&self) {
        let mut readings = self.readings.subscribe();
        let next = readings.borrow_and_update().begun + 1;
        self.read_wanted.notify_one();
        // The wait cannot fail, because `self` holds the sender.
        let _ = readings.wait_for(|counts| counts.ended >= next).await;
    }

    /// Reads the changed records, and the aliases and changes.
    async fn read_all(&self, known: &KnownRecords) -> Result<RecordsReading> {
        // First, so that the view never has the collections without the aliases.
        self.read_changes().await?;
        let reading = self.read(known).await?;
        let is_missing = |key: &Key| !reading.records.contains_key(key);
        let is_unknown = self.identity.lock().is_none();
        if is_unknown || known.keys().any(is_missing) {
            self.check_identity().await?;
        }
        Ok(reading)
    }

    /// Checks that the store has the identity that this process has read before, or else remembers
    /// it. A directory that is not mounted any more, or an emptied bucket, looks like a cluster
    /// whose collections were removed.
    ///
    /// # Errors
    /// `Unavailable` if the identity is missing or another one; the store's error.
    async fn check_identity(&self) -> Result<()> {
        let known = self.identity.lock().clone();
        let key = self.objects.key(IDENTITY);
        let found = self.objects.read(&key, IDENTITY_BYTES_MAX).await?;
        if known.is_some() && known != found {
            return Err(Error::unavailable(format!(
                "{} may lack collections: its object {key} is missing or another one; check that \
                 the directory is mounted, or restore the objects of the store",
                self.objects.place().shown()
            )));
        }
        *self.identity.lock() = found;
        Ok(())
    }

    /// Puts records into the view, unless this process has changed one since they were read.
    fn take(&self, records: &KnownRecords, changes: u64) {
        self.view.update(|view| {
            if self.changes.load(Ordering::Acquire) == changes {
                let named = records.values().map(|known| known.record.clone());
                view.collections = named.map(|record| (record.name.clone(), record)).collect();
            }
        });
        self.loaded.store(true, Ordering::Release);
    }

    /// Reads the records whose objects have changed.
    async fn read(&self, known: &KnownRecords) -> Result<RecordsReading> {
        let mut records = KnownRecords::new();
        let objects = self.objects.within(self.list()).await??;
        let mut whole = objects.len() <= COLLECTIONS_MAX;
        let mut unreadable = BTreeMap::new();
        for object in objects.into_iter().take(COLLECTIONS_MAX) {
            let key = object.location.clone();
            let same = known.get(&key).filter(|known| known.object == object);
            if let Some(same) = same {
                records.insert(key, same.clone());
                continue;
            }
            match self.record(&key).await {
                Ok(Some(record)) => {
                    records.insert(key, KnownRecord { object, record });
                }
                Ok(None) => {}
                // One unreadable record must not stop the others.
                Err(error) if error.kind() == ErrorKind::DataLoss => {
                    if self.unreadable.lock().get(&key) != Some(&object) {
                        tracing::error!(%error, "a record of a collection cannot be read");
                    }
                    unreadable.insert(key.clone(), object);
                    whole = false;
                    records.extend(known.get(&key).map(|known| (key, known.clone())));
                }
                Err(error) => return Err(error),
            }
        }
        *self.unreadable.lock() = unreadable;
        Ok(RecordsReading { records, whole })
    }

    async fn list(&self) -> Result<Vec<ObjectMeta>> {
        let prefix = self.objects.key(RECORDS);
        let place = self.objects.place();
        let mut objects = place.objects().list(Some(&prefix));
        let mut found = Vec::new();
        while let Some(object) = objects.next().await {
            found.push(object.map_err(|error| place.failed(error))?);
            if found.len() > COLLECTIONS_MAX {
                break;
            }
        }
        Ok(found)
    }

    /// Reads the record of a collection. Returns `None` if it was removed.
    async fn record(&self, key: &Key) -> Result<Option<CollectionRecord>> {
        let bytes = self.objects.read(key, RECORD_BYTES_MAX).await?;
        let record = bytes.map(|bytes| decode_record(&bytes)).transpose();
        let record = record.map_err(|error| error.context(key))?;
        // A copy under another name would take the place of the collection that it names.
        if let Some(CollectionRecord { name, .. }) = &record
            && self.key(name) != *key
        {
            return Err(Error::data_loss(format!(
                "{key}: it is the record of the collection \"{name}\"; remove this object"
            )));
        }
        Ok(record)
    }

    fn key(&self, name: &str) -> Key {
        self.objects.key(&format!("{RECORDS}/{name}"))
    }
}

impl CollectionCatalog for StoreCatalog {
    fn create<'a>(&'a self, record: &'a CollectionRecord) -> BoxFuture<'a, Result<bool>> {
        Box::pin(self.create_record(record))
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool>> {
        Box::pin(self.remove_record(name))
    }

    fn remove_own<'a>(&'a self, record: &'a CollectionRecord) -> BoxFuture<'a, Result<bool>> {
        Box::pin(self.remove_record_of(&record.name, Some(&record.id)))
    }

    fn is_current<'a>(&'a self, record: &'a CollectionRecord) -> BoxFuture<'a, Result<bool>> {
        Box::pin(self.has_record_of(record))
    }

    fn change<'a>(
        &'a self,
        change: &'a (dyn Fn(&CatalogChanges) -> Result<CatalogChanges> + Send + Sync),
    ) -> BoxFuture<'a, Result<u64>> {
        Box::pin(self.make_change(change))
    }

    fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    fn read_again(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.next_reading())
    }
}

/// Reads the record of a collection.
///
/// # Errors
/// `DataLoss` for another text than the JSON of a record, and for a record that no root writes: the
/// number of shards or copies, or the names of local collections, are not permitted.
pub(crate) fn decode_record(bytes: &[u8]) -> Result<CollectionRecord> {
    let lost = |reason: String| Error::data_loss(format!("the record of a collection: {reason}"));
    let record: CollectionRecord =
        serde_json::from_slice(bytes).map_err(|error| lost(error.to_string()))?;
    check_record(&record)?;
    Ok(record)
}

/// Checks the record of a collection, which may come from anywhere.
///
/// # Errors
/// As [`decode_record`].
pub(crate) fn check_record(record: &CollectionRecord) -> Result<()> {
    let lost = |reason: String| Error::data_loss(format!("the record of a collection: {reason}"));
    let &CollectionRecord { shards, copies, .. } = record;
    if !(1..=SHARDS_MAX).contains(&shards) || !(1..=COPIES_MAX as u32).contains(&copies) {
        return Err(lost(format!(
            "{shards} shards with {copies} copies; there are 1 to {SHARDS_MAX} shards with 1 to {COPIES_MAX} copies"
        )));
    }
    check_name(&record.name).map_err(|error| lost(error.to_string()))?;
    check_name(&ShardKey::new(&record.id, 0).local_name()).map_err(|error| lost(error.to_string()))
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;
