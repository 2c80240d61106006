//! Removed collections whose originals are still to be removed, and their records on disk.
//!
//! Before a collection is removed, a file in the directory of the collections records the removal.
//! This record is removed once all originals are checked, so a restarted server continues. After
//! the collection is removed, the record gets the time by the clock of the store. Until then,
//! uploads could write originals. Originals that are written later stay: an administrator copies
//! originals back before the restored points are there.
//!
//! An original of a deleted image that could not be removed is in a record of its own, with other
//! such originals of its collection. Other originals of the collection are not checked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base::{Error, Result};
use image_features::collection::ImageCollection;
use metrics::{KindLabels, Metrics};
use parking_lot::Mutex;
use search::registry::Registry;
use tokio::sync::Notify;

use super::originals::StoredOriginal;
use super::removal_records::{
    LeftRecord, LeftRecords, RemovalRecord, RemovalRecords, remove_record,
};

/// Maximum removed collections whose originals are not all checked. A further removal is refused.
const PENDING_MAX: usize = 1000;
/// Retry advice to a client whose removal is refused.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Delay after the first failed attempt to remove originals. Each further failure doubles it.
const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Maximum delay between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(3600);
/// Maximum attempts before the next start of the server. The last one is made after about a day.
const ATTEMPTS_MAX: u32 = 36;

/// Removed collection whose originals are not all checked.
#[derive(Clone, Debug)]
pub(crate) struct PendingRemoval {
    number: u64,
    pub(crate) record: RemovalRecord,
    /// File of the record, if there is one.
    pub(crate) file: Option<PathBuf>,
    attempts: u32,
    /// Time of the next attempt.
    pub(crate) due: Instant,
}

/// Collection that was just removed.
#[derive(Debug)]
pub(crate) struct CollectionRemoval {
    record: RemovalRecord,
    /// File of the record, if there is one.
    file: Result<Option<PathBuf>>,
    /// Result of [`Registry::remove`]. If it is an error, the points are removed, but a part of the
    /// cleanup has failed.
    outcome: Result<()>,
}

#[derive(Default)]
struct PendingRemovals {
    by_number: BTreeMap<u64, PendingRemoval>,
    last_number: u64,
    /// Number of recorded removals that this process does not complete, because the originals are
    /// in another store or all attempts have failed.
    kept: usize,
    /// True while a task removes originals.
    is_running: bool,
    /// Number of the removal whose attempt the task has begun.
    begun: Option<u64>,
}

/// Removed collections whose originals are not all checked.
pub(crate) struct RemovedCollections {
    records: RemovalRecords,
    /// Name of the store of originals.
    store: String,
    metrics: Arc<Metrics>,
    pending: Mutex<PendingRemovals>,
    /// Held while the record of a check is changed or removed, so that an older record does not
    /// replace a newer one or come back. `pending` is not held during the writes.
    checks: Mutex<()>,
    /// Notified when a collection is removed.
    added: Notify,
}

impl RemovedCollections {
    /// Creates a list without removals. `collections` is the directory of the collections, `store`
    /// the name of the store of originals.
    pub(crate) fn new(
        collections: Option<&Path>,
        store: String,
        metrics: Arc<Metrics>,
    ) -> RemovedCollections {
        RemovedCollections {
            records: RemovalRecords::new(collections),
            store,
            metrics,
            pending: Mutex::default(),
            checks: Mutex::default(),
            added: Notify::new(),
        }
    }

    /// Counts originals that were checked.
    pub(crate) fn count_checked(&self, count: usize) {
        self.count("checked", count as u64);
    }

    /// Counts directories of originals that belong to no collection.
    pub(crate) fn count_unused(&self, count: usize) {
        self.count("unused", count as u64);
    }

    /// Returns the directories of the originals that wait.
    pub(crate) fn spaces(&self) -> Vec<String> {
        let pending = self.pending.lock();
        pending.by_number.values().map(|removal| removal.record.space.clone()).collect()
    }

    fn count(&self, kind: &'static str, count: u64) {
        self.metrics.images.removals.get_or_create(&KindLabels { kind }).inc_by(count);
    }

    /// Records that the originals of a collection are to be removed, then removes the collection.
    /// The record has no time, because uploads write originals until the collection is removed. The
    /// caller passes the result to [`RemovedCollections::add_removed`].
    ///
    /// # Errors
    /// Returns the errors of [`Registry::remove`] if the collection is not removed.
    pub(crate) fn remove(
        &self,
        registry: &Registry,
        target: &ImageCollection,
    ) -> Result<CollectionRemoval> {
        let store = Some(self.store.clone());
        let space = target.space.clone();
        let record = RemovalRecord { space, store, until: None, originals: None };
        let file = self.records.write(&record);
        let outcome = registry.remove(target.named.name()).map(drop);
        if target.named.removed() {
            return Ok(CollectionRemoval { record, file, outcome });
        }
        if outcome.is_err()
            && let Ok(Some(file)) = &file
        {
            remove_record(file);
        }
        outcome.map(|()| CollectionRemoval { record, file, outcome: Ok(()) })
    }

    /// Records the time of a removal, and adds the removal to those whose originals are to be
    /// removed. `until` is a time of the store after the removal.
    ///
    /// # Errors
    /// Returns the outcome of the removal of the collection.
    pub(crate) fn add_removed(
        &self,
        removal: CollectionRemoval,
        until: Option<SystemTime>,
    ) -> Result<()> {
        let CollectionRemoval { record, file, outcome } = removal;
        let record = RemovalRecord { until, ..record };
        let space = record.space.as_str();
        let written = match file {
            Ok(file) => {
                self.record_time(file.as_deref(), &record);
                Ok(file)
            }
            Err(error) => {
                tracing::warn!(space, %error, "the removal of originals is recorded late");
                // The removal may have freed space on a full disk.
                self.records.write(&record)
            }
        };
        let file = written.unwrap_or_else(|error| {
            tracing::error!(
                space,
                %error,
                "the removal of originals is not recorded: some stay if the server ends before all are removed"
            );
            None
        });
        self.add(record, file);
        outcome
    }

    /// Writes the time of a removal into its record, so that the next start does not remove
    /// originals that were copied back meanwhile.
    pub(crate) fn record_time(&self, file: Option<&Path>, record: &RemovalRecord) {
        let Some(file) = file.filter(|_| record.until.is_some()) else { return };
        if let Err(error) = self.records.replace(file, record) {
            let space = record.space.as_str();
            tracing::warn!(
                space,
                %error,
                "the time of a removal is not recorded: copy no originals back before all are removed"
            );
        }
    }

    /// Adds the removals that the last process has left, at most [`PENDING_MAX`]. Leaves the others
    /// to the next start. Keeps and reports removals whose originals are in another store.
    pub(crate) fn read(&self) {
        for LeftRecord { record, file } in self.read_left_records().records {
            let store = record.store.as_deref().unwrap_or(&self.store);
            if store == self.store {
                self.add(record, Some(file));
                continue;
            }
            tracing::warn!(
                space = record.space.as_str(),
                store,
                path = %file.display(),
                "the originals of a removed collection stay, because they are in another store: start the server once with --originals set to that store, or without it for .originals; if the originals were moved, correct \"store\" in this file"
            );
            self.count_kept();
        }
    }

    /// Keeps and reports the removals that the last process has left. For a node of a cluster,
    /// whose store of originals is that of the cluster.
    pub(crate) fn report(&self) {
        for LeftRecord { record, file } in self.read_left_records().records {
            tracing::warn!(
                space = record.space.as_str(),
                store = record.store.as_deref().unwrap_or_default(),
                path = %file.display(),
                "the originals of a removed collection stay, because a node of a cluster does not remove them: start this directory once without --cluster-store, or remove the originals and then this file"
            );
            self.count_kept();
        }
    }

    /// Reads the records that the last process has left.
    fn read_left_records(&self) -> LeftRecords {
        let left = self.records.read(PENDING_MAX).unwrap_or_else(|error| {
            tracing::warn!(%error, "originals of removed collections stay until the next start");
            LeftRecords::default()
        });
        self.count("damaged", left.damaged);
        left
    }

    fn count_kept(&self) {
        let mut pending = self.pending.lock();
        pending.kept += 1;
        self.set_gauge(&pending);
    }

    /// Queues the removal of a collection's originals. `file` is the file of the record, if it has
    /// one.
    fn add(&self, record: RemovalRecord, file: Option<PathBuf>) {
        let mut pending = self.pending.lock();
        pending.last_number += 1;
        let number = pending.last_number;
        let due = Instant::now();
        let removal = PendingRemoval { number, record, file, attempts: 0, due };
        pending.by_number.insert(number, removal);
        self.set_gauge(&pending);
    }

    /// Records originals in the directory `space` that no image names and that could not be
    /// removed. Extends a record of such originals that waits. Other originals are not checked,
    /// because some may have been copied back for images that are restored later.
    pub(crate) fn check_later(&self, space: &str, originals: &[StoredOriginal]) {
        let _changing = self.checks.lock();
        if let Some(waiting) = self.extend_check(space, originals) {
            self.rewrite(&waiting);
            return;
        }
        if let Err(error) = self.check_room() {
            tracing::error!(space, %error, "originals that no image names stay");
            return;
        }
        let store = Some(self.store.clone());
        let owned = space.to_owned();
        let mut record = RemovalRecord { space: owned, store, until: None, originals: None };
        add_originals(&mut record, originals);
        let file = self.records.write(&record).unwrap_or_else(|error| {
            tracing::error!(
                space,
                %error,
                "a check of originals is not recorded: some stay if the server ends before it is complete"
            );
            None
        });
        self.add(record, file);
    }

    /// Adds originals to a check of the directory `space` that waits. Returns the extended check.
    fn extend_check(&self, space: &str, originals: &[StoredOriginal]) -> Option<PendingRemoval> {
        let mut pending = self.pending.lock();
        let begun = pending.begun;
        let waiting = pending.by_number.values_mut().find(|removal| {
            removal.record.originals.is_some()
                && removal.record.space == space
                && Some(removal.number) != begun
        })?;
        add_originals(&mut waiting.record, originals);
        Some(waiting.clone())
    }

    /// Writes the record of a removal again.
    fn rewrite(&self, removal: &PendingRemoval) {
        let Some(file) = &removal.file else { return };
        if let Err(error) = self.records.replace(file, &removal.record) {
            let space = removal.record.space.as_str();
            tracing::warn!(space, %error, "the record of a removal is not up to date");
        }
    }

    /// Wakes the task that removes originals. Returns true if the caller has to start it.
    pub(crate) fn begin(&self) -> bool {
        let mut pending = self.pending.lock();
        let begins = !pending.is_running && !pending.by_number.is_empty();
        pending.is_running |= begins;
        self.added.notify_one();
        begins
    }

    /// Returns the removal whose attempt is due first. If it is due at `now`, its attempt begins.
    /// If this returns `None`, the task ends.
    pub(crate) fn first_due(&self, now: Instant) -> Option<PendingRemoval> {
        let mut pending = self.pending.lock();
        let first = pending.by_number.values().min_by_key(|removal| removal.due).cloned();
        pending.is_running = first.is_some();
        let begun = first.as_ref().filter(|removal| removal.due <= now);
        pending.begun = begun.map(|removal| removal.number);
        first
    }

    /// Waits until a collection is removed, at most `wait_max`.
    pub(crate) async fn wait_for_removal(&self, wait_max: Duration) {
        // The caller continues in both cases.
        let _ = tokio::time::timeout(wait_max, self.added.notified()).await;
    }

    /// Ends a removal after all originals were checked. Runs on a thread that may block.
    pub(crate) fn end(&self, removal: &PendingRemoval) {
        let _changing = self.checks.lock();
        if let Some(file) = &removal.file {
            remove_record(file);
        }
        let mut pending = self.pending.lock();
        pending.begun = None;
        pending.by_number.remove(&removal.number);
        self.set_gauge(&pending);
    }

    /// Delays a removal after an attempt that failed, or leaves it to the next start.
    pub(crate) fn delay(&self, removal: PendingRemoval, error: &Error) {
        let space = removal.record.space.as_str();
        self.count("failed", 1);
        let attempts = removal.attempts + 1;
        let mut pending = self.pending.lock();
        pending.begun = None;
        if attempts >= ATTEMPTS_MAX {
            tracing::error!(space, %error, "originals that no image names stay until the next start");
            pending.by_number.remove(&removal.number);
            // Counted, because originals that are copied back now may be removed at the next start.
            pending.kept += usize::from(removal.file.is_some());
        } else {
            tracing::warn!(space, %error, "originals that no image names are removed later");
            let due = Instant::now() + retry_delay(attempts);
            pending.by_number.insert(removal.number, PendingRemoval { attempts, due, ..removal });
        }
        self.set_gauge(&pending);
    }

    /// Checks that a further collection can be removed.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice.
    pub(crate) fn check_room(&self) -> Result<()> {
        if self.pending.lock().by_number.len() < PENDING_MAX {
            return Ok(());
        }
        Err(Error::exhausted(format!(
            "the originals of {PENDING_MAX} removed collections are still being removed; check the store of \
             original images, and try again later"
        ))
        .with_retry_after(RETRY_AFTER))
    }

    fn set_gauge(&self, pending: &PendingRemovals) {
        let waiting = i64::try_from(pending.by_number.len() + pending.kept).unwrap_or(i64::MAX);
        self.metrics.images.removals_waiting.set(waiting);
    }
}

/// Adds originals to a record. Logs the number of originals that do not fit.
fn add_originals(record: &mut RemovalRecord, originals: &[StoredOriginal]) {
    let count = record.add_originals(originals);
    if count > 0 {
        tracing::error!(
            space = record.space.as_str(),
            count,
            "originals that no image names stay, because too many could not be removed: remove them as docs/images.md says"
        );
    }
}

/// Returns the delay before the next attempt if `attempts` have failed.
fn retry_delay(attempts: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(attempts.saturating_sub(1));
    RETRY_FIRST.saturating_mul(doubled).min(RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use image_features::collection::CollectionSpec;
    use search::points::PointId;
    use search::registry::RegistryOptions;

    use crate::removal_records::tests::record;

    use super::*;

    /// Returns an original of the collection "photos".
    fn original(number: u8) -> StoredOriginal {
        StoredOriginal { id: PointId::Uuid([number; 16]), key: format!("photos/{number:02}.png") }
    }

    fn checked(removal: &PendingRemoval) -> Vec<StoredOriginal> {
        removal.record.originals.iter().flatten().cloned().collect()
    }

    fn removed(directory: &Path) -> RemovedCollections {
        RemovedCollections::new(Some(directory), ".originals".to_owned(), Arc::default())
    }

    fn waiting(removed: &RemovedCollections) -> i64 {
        removed.metrics.images.removals_waiting.get()
    }

    fn count(removed: &RemovedCollections, kind: &'static str) -> u64 {
        removed.metrics.images.removals.get_or_create(&KindLabels { kind }).get()
    }

    #[test]
    fn records_are_read_by_the_next_process() {
        let dir = tempfile::tempdir().unwrap();
        let first = removed(dir.path());
        let file = first.records.write(&record()).unwrap().unwrap();
        let cut = file.with_file_name("removal-cut");
        std::fs::write(&cut, r#"{"space":"pho"#).unwrap();
        let second = removed(dir.path());
        second.read();
        assert_eq!((waiting(&second), count(&second, "damaged")), (1, 1));
        assert!(second.begin() && !second.begin());
        let removal = second.first_due(Instant::now()).unwrap();
        assert_eq!((&removal.record, &removal.file), (&record(), &Some(file.clone())));
        second.end(&removal);
        assert_eq!((waiting(&second), second.first_due(Instant::now()).is_none()), (0, true));
        assert!(!file.exists() && !cut.exists(), "the damaged record has another name");
        assert!(!second.begin(), "none is left");
    }

    #[test]
    fn a_removal_is_timed_after_the_collection_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(RegistryOptions::for_tests(dir.path())).unwrap();
        let wanted =
            CollectionSpec { name: "photos".to_owned(), kind: None, model: None, quality_min: 0 };
        let target = ImageCollection::make(&registry, &wanted, 4, "m").unwrap();
        let removed = removed(dir.path());
        let left = || {
            let left = removed.records.read(9).unwrap().records;
            left.into_iter().map(|stored| stored.record).collect::<Vec<_>>()
        };
        let removal = removed.remove(&registry, &target).unwrap();
        // If the server ends here, the next start takes a later time.
        assert!(target.named.removed());
        assert_eq!(left(), [RemovalRecord { until: None, ..record() }]);
        removed.add_removed(removal, record().until).unwrap();
        assert_eq!((left(), waiting(&removed)), (vec![record()], 1));
        let pending = removed.first_due(Instant::now()).unwrap();
        assert_eq!(pending.record, record());
        removed.end(&pending);
        assert!(left().is_empty());
    }

    #[test]
    fn a_removal_in_another_store_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = removed(dir.path()).records.write(&record()).unwrap().unwrap();
        let store = "s3://bucket/originals".to_owned();
        let other = RemovedCollections::new(Some(dir.path()), store, Arc::default());
        other.read();
        assert_eq!((waiting(&other), other.first_due(Instant::now()).is_none()), (1, true));
        let own = removed(dir.path());
        own.read();
        let removal = own.first_due(Instant::now()).unwrap();
        assert_eq!(removal.record, record());
        own.end(&removal);
        assert!(waiting(&own) == 0 && !file.exists());
    }

    #[test]
    fn a_removal_is_kept_by_a_node_of_a_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let record = RemovalRecord { store: None, ..record() };
        let file = removed(dir.path()).records.write(&record).unwrap().unwrap();
        let node = removed(dir.path());
        node.report();
        assert_eq!((waiting(&node), node.first_due(Instant::now()).is_none()), (1, true));
        assert!(file.exists());
    }

    #[test]
    fn a_failed_removal_lets_others_go_first_and_ends() {
        let dir = tempfile::tempdir().unwrap();
        let removed = removed(dir.path());
        let file = removed.records.write(&record()).unwrap().unwrap();
        removed.add(record(), Some(file.clone()));
        removed.add(record(), None);
        let error = Error::unavailable("no store");
        let failed = removed.first_due(Instant::now()).unwrap();
        removed.delay(failed.clone(), &error);
        let other = removed.first_due(Instant::now()).unwrap();
        assert_ne!(other.number, failed.number);
        removed.end(&other);
        for _ in 1..ATTEMPTS_MAX {
            assert_eq!(waiting(&removed), 1);
            removed.delay(removed.first_due(Instant::now()).unwrap(), &error);
        }
        assert!(removed.first_due(Instant::now()).is_none());
        // The next start continues.
        assert_eq!((waiting(&removed), file.exists()), (1, true));
    }

    #[test]
    fn a_check_that_waits_is_extended() {
        let dir = tempfile::tempdir().unwrap();
        let removed = removed(dir.path());
        let recorded = || {
            let left = removed.records.read(9).unwrap().records;
            let mut sizes: Vec<usize> =
                left.iter().map(|left| left.record.originals.iter().flatten().count()).collect();
            sizes.sort_unstable();
            sizes
        };
        for number in [1, 2, 2] {
            removed.check_later("photos", &[original(number)]);
        }
        assert_eq!((waiting(&removed), recorded()), (1, vec![2]));
        // An attempt that has begun does not see the new original.
        let first = removed.first_due(Instant::now()).unwrap();
        assert_eq!(checked(&first), [original(1), original(2)]);
        removed.check_later("photos", &[original(3)]);
        assert_eq!((waiting(&removed), recorded()), (2, vec![1, 2]));
        removed.end(&first);
        assert_eq!((waiting(&removed), recorded()), (1, vec![1]));
        removed.delay(removed.first_due(Instant::now()).unwrap(), &Error::unavailable("no store"));
        // The next start extends it too.
        let next = self::removed(dir.path());
        next.read();
        next.check_later("photos", &[original(4)]);
        let extended = next.first_due(Instant::now()).unwrap();
        assert_eq!((waiting(&next), recorded()), (1, vec![2]));
        assert_eq!(checked(&extended), [original(3), original(4)]);
    }

    #[test]
    fn checks_at_the_same_time_are_all_recorded() {
        const THREADS: u8 = 4;
        for _ in 0..10 {
            let dir = tempfile::tempdir().unwrap();
            let removed = removed(dir.path());
            std::thread::scope(|scope| {
                for number in 0..THREADS {
                    let removed = &removed;
                    scope.spawn(move || removed.check_later("photos", &[original(number)]));
                }
            });
            let left = removed.records.read(9).unwrap().records;
            let all: Vec<StoredOriginal> = (0..THREADS).map(original).collect();
            let recorded: Vec<StoredOriginal> = left
                .iter()
                .flat_map(|left| left.record.originals.iter().flatten())
                .cloned()
                .collect();
            assert_eq!((waiting(&removed), left.len(), recorded), (1, 1, all));
        }
    }

    #[test]
    fn a_check_does_not_extend_a_removal() {
        let dir = tempfile::tempdir().unwrap();
        let removed = removed(dir.path());
        removed.add(record(), None);
        removed.check_later("photos", &[original(1)]);
        removed.check_later("prints", &[original(2)]);
        let pending = removed.pending.lock();
        let all: Vec<Vec<StoredOriginal>> = pending.by_number.values().map(checked).collect();
        assert_eq!(all, [vec![], vec![original(1)], vec![original(2)]]);
    }

    #[test]
    fn attempts_become_rare() {
        assert_eq!(retry_delay(1), RETRY_FIRST);
        assert_eq!(retry_delay(3), RETRY_FIRST * 4);
        assert_eq!(retry_delay(ATTEMPTS_MAX), RETRY_MAX);
    }

    #[test]
    fn a_removal_is_refused_while_too_many_wait() {
        let removed = RemovedCollections::new(None, String::new(), Arc::default());
        (1..PENDING_MAX).for_each(|_| removed.add(record(), None));
        assert!(removed.check_room().is_ok());
        removed.add(record(), None);
        let error = removed.check_room().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        assert_eq!(error.retry_after(), Some(RETRY_AFTER));
    }
}
