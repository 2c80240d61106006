//! Collection with a name: reads of its points. Changes are in `write`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use storage::MediumKind;

use super::core::{SETTINGS, SETTINGS_KIND};
use super::files::{self, CollectionSettings, StoredSettings};
use super::media::FileLayout;
use crate::collection::{
    Collection, Facet, IDS_MAX, OrderedPoints, PointCount, PointOrder, PointParts, on_one_state,
};
use crate::filter::Filter;
use crate::ingest::StoredPoint;
use crate::points::{self, FetchedPoint, NUMBERS_MAX, PointId};

/// First delay before the next try after a failure of background work. Doubled after each failure.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// Longest delay before the next try.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Delay after which freed space lets a flush run again that failed because the disk was full.
const RETRY_WITH_ROOM: Duration = Duration::from_secs(1);
/// Bytes of freed space that end the delay of such a flush.
const ROOM_FREED_MIN: u64 = 1 << 20;

/// Maximum payloads that are in memory at once if only their ids are wanted. One request may name
/// 200,000 UUIDs, each with a payload of up to 64 KiB.
const PAYLOADS_AT_ONCE_MAX: usize = 4096;

/// Points in the order of their internal ids: numbers, then UUIDs by their hash.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScrollPage {
    /// Live points of this page.
    pub points: Vec<FetchedPoint>,
    /// Id to continue with, or `None` after the last page.
    pub next: Option<PointId>,
    /// True if points are missing because data is damaged or a segment is not open yet.
    pub partial: bool,
    /// Reason why points may be missing although they may still exist, as in
    /// [`crate::collection::IdList::unseen`].
    pub unseen: Option<Error>,
}

/// Collection with a name, and points with the ids of clients.
pub struct NamedCollection {
    name: String,
    directory: PathBuf,
    /// Name of the directory of its points.
    points: String,
    /// Current settings. No file is written while they are locked, because each query reads them.
    settings: Mutex<Arc<CollectionSettings>>,
    /// Locked while settings are changed and written, before `settings`.
    storing: Mutex<()>,
    collection: Collection,
    /// Returns the internal id of a UUID.
    hash: fn(&[u8; 16]) -> u64,
    /// Unique number among the collections that this process opens.
    serial: u64,
    /// Locked from a read of points until they are changed, but not while the log is synced.
    changing: Mutex<()>,
    removed: AtomicBool,
    generation: AtomicU64,
    retries: Mutex<RetryDelays>,
}

/// Delays of background tasks that have failed.
#[derive(Default)]
struct RetryDelays {
    flush: Option<RetryDelay>,
    merge: Option<RetryDelay>,
}

impl RetryDelays {
    fn of(&mut self, task: BackgroundTask) -> &mut Option<RetryDelay> {
        match task {
            BackgroundTask::Flush => &mut self.flush,
            BackgroundTask::Merge => &mut self.merge,
        }
    }
}

/// Delay of a task that has failed.
#[derive(Clone, Copy)]
struct RetryDelay {
    /// Time of the next try.
    next: Instant,
    /// Time from the failure to the next try.
    delay: Duration,
    /// Free bytes after the failure, if the disk was full during a flush.
    free: Option<u64>,
    /// Time from which freed space ends the delay.
    with_room: Instant,
}

/// Kind of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackgroundTask {
    Flush,
    Merge,
}

/// Writes the name of the task for the log.
impl std::fmt::Display for BackgroundTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BackgroundTask::Flush => "flush",
            BackgroundTask::Merge => "merge",
        })
    }
}

/// Collection that was opened, and what its name adds to it.
pub(super) struct CollectionParts {
    /// Directory of the collection.
    pub(super) directory: PathBuf,
    /// Name of the directory of its points.
    pub(super) points: String,
    pub(super) settings: CollectionSettings,
    pub(super) collection: Collection,
    /// Returns the internal id of a UUID.
    pub(super) hash: fn(&[u8; 16]) -> u64,
    /// Unique number among the collections that this process opens.
    pub(super) serial: u64,
}

impl NamedCollection {
    pub(super) fn new(name: &str, parts: CollectionParts) -> NamedCollection {
        let CollectionParts { directory, points, settings, collection, hash, serial } = parts;
        NamedCollection {
            name: name.to_owned(),
            directory,
            points,
            settings: Mutex::new(Arc::new(settings)),
            storing: Mutex::new(()),
            collection,
            hash,
            serial,
            changing: Mutex::new(()),
            removed: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            retries: Mutex::default(),
        }
    }

    /// Returns its name, not an alias.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its directory, where an API may keep files. The directory is removed with the
    /// collection.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn points_directory(&self) -> PathBuf {
        self.directory.join(&self.points)
    }

    /// Checks that files of `bytes` bytes beside `path` leave the reserve of the disk free. Returns
    /// no error if `path` is on another disk than the collection.
    ///
    /// # Errors
    /// `StorageFull` if less than the reserve would be free afterwards.
    pub fn check_room_beside(&self, path: &Path, bytes: u64) -> Result<()> {
        let disk = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
        let own = disk(&self.directory);
        if own.is_none() || own != disk(path) {
            return Ok(());
        }
        self.collection.check_room_for(bytes)
    }

    /// Returns the name of the directory of its points, which no other collection ever has.
    pub fn points_name(&self) -> &str {
        &self.points
    }

    /// Returns the current settings. Later changes make a new copy.
    pub fn settings(&self) -> Arc<CollectionSettings> {
        self.settings.lock().clone()
    }

    /// Changes the data that an API keeps with the collection. One caller changes it at a time.
    /// Durable when this returns.
    ///
    /// # Errors
    /// The error of `change`, after which nothing is changed. `NotFound` if the collection was
    /// removed. Otherwise the error of the file system.
    pub fn change_extra(&self, change: impl FnOnce(&mut Value) -> Result<()>) -> Result<()> {
        let _storing = self.storing.lock();
        self.check_there()?;
        let mut new = CollectionSettings::clone(&self.settings());
        change(&mut new.extra)?;
        files::replace(
            SETTINGS_KIND,
            &self.directory.join(SETTINGS),
            &StoredSettings::new(&new, &self.points, self.layout()),
        )?;
        *self.settings.lock() = Arc::new(new);
        Ok(())
    }

    /// Returns the layout of its files.
    pub(super) fn layout(&self) -> FileLayout {
        match self.collection.medium_kind() {
            MediumKind::Dax => FileLayout::Dax,
            _ => FileLayout::Plain,
        }
    }

    /// Returns the collection, which uses internal ids.
    pub fn collection(&self) -> &Collection {
        &self.collection
    }

    /// Returns a number that grows with every change of a point. Equal numbers mean equal points.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the internal id of a point.
    pub fn internal(&self, id: &PointId) -> u64 {
        id.internal_by(self.hash)
    }

    /// Returns the client's id of an internal id. Reads the payload for a UUID or a large number.
    ///
    /// # Errors
    /// `NotFound` if the point was removed. Otherwise as [`NamedCollection::get`].
    pub fn external(&self, internal: u64) -> Result<PointId> {
        if internal < NUMBERS_MAX {
            return Ok(PointId::Number(internal));
        }
        let mut found = self.resolve(&[internal], PointParts::NONE).into_iter();
        let found = found.next().unwrap_or(Ok(None))?;
        found.map(|point| point.id).ok_or_else(|| Error::not_found("the point was removed since"))
    }

    /// Returns the point of an id.
    ///
    /// # Errors
    /// `DataLoss` if the point, or the data that shows if it exists, is damaged. `Unavailable` if a
    /// segment that may hold it is still being opened.
    pub fn get(&self, id: &PointId) -> Result<Option<FetchedPoint>> {
        self.get_parts(std::slice::from_ref(id), PointParts::ALL)
            .into_iter()
            .next()
            .unwrap_or(Ok(None))
    }

    /// Returns the requested parts of several points, in the order of `ids` and all from one state.
    /// A damaged point fails alone.
    pub fn get_parts(
        &self,
        ids: &[PointId],
        parts: PointParts,
    ) -> Vec<Result<Option<FetchedPoint>>> {
        let internal: Vec<u64> = ids.iter().map(|id| self.internal(id)).collect();
        let mut found = self.resolve(&internal, parts);
        for (found, id) in found.iter_mut().zip(ids) {
            // Another id with the same internal id.
            if matches!(found, Ok(Some(point)) if point.id != *id) {
                *found = Ok(None);
            }
        }
        found
    }

    /// Returns the requested parts of the points of internal ids, such as hits of a search, in
    /// their order. Has `None` for a point that was removed. Neighbours share reads.
    pub fn resolve(
        &self,
        internal: &[u64],
        parts: PointParts,
    ) -> Vec<Result<Option<FetchedPoint>>> {
        let hashed = internal.iter().any(|&id| id >= NUMBERS_MAX);
        let read = |ids: &[u64]| -> Vec<Result<Option<FetchedPoint>>> {
            let read = PointParts { payload: parts.payload || hashed, ..parts };
            let points = self.collection.points(ids, read).into_iter();
            points.map(|point| point?.map(|point| given(point, parts)).transpose()).collect()
        };
        if hashed && !parts.payload {
            on_one_state(|| in_parts(internal, PAYLOADS_AT_ONCE_MAX, read))
        } else {
            read(internal)
        }
    }

    /// Returns at most `limit` points from `from` on that match `filter`, with the requested parts,
    /// all from one state. Damaged points are skipped.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid filter or a limit that is too large. Otherwise the error of
    /// the medium.
    pub fn scroll(
        &self,
        from: Option<&PointId>,
        limit: usize,
        filter: Option<&Filter>,
        parts: PointParts,
    ) -> Result<ScrollPage> {
        if limit >= IDS_MAX {
            return Err(Error::invalid(format!(
                "{limit} points are more than the {} of one page",
                IDS_MAX - 1
            )));
        }
        on_one_state(|| self.page_from(from, limit, filter, parts))
    }

    /// Reads points until the page is full or the collection ends. Unreadable points make it
    /// partial.
    fn page_from(
        &self,
        from: Option<&PointId>,
        limit: usize,
        filter: Option<&Filter>,
        parts: PointParts,
    ) -> Result<ScrollPage> {
        let mut scrolled = ScrollPage::default();
        let mut from = from.map_or(0, |id| self.internal(id));
        loop {
            let list = self.collection.ids_from(from, limit - scrolled.points.len(), filter)?;
            scrolled.partial |= list.partial;
            scrolled.unseen = scrolled.unseen.or(list.unseen);
            for point in self.resolve(&list.ids, parts) {
                match point {
                    Ok(point) => scrolled.points.extend(point),
                    Err(error) if is_lost(&error) => {
                        scrolled.partial = true;
                        scrolled.unseen.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            let last = list.ids.last().filter(|_| list.more);
            let Some(after) = last.and_then(|last| last.checked_add(1)) else {
                return Ok(scrolled);
            };
            if scrolled.points.len() >= limit {
                scrolled.next = self.first_from(after, filter, &mut scrolled.partial)?;
                return Ok(scrolled);
            }
            // Some were damaged, so there is room for more.
            from = after;
        }
    }

    /// Returns the first point from `from` on whose id can be read.
    fn first_from(
        &self,
        mut from: u64,
        filter: Option<&Filter>,
        partial: &mut bool,
    ) -> Result<Option<PointId>> {
        loop {
            let list = self.collection.ids_from(from, 1, filter)?;
            let Some(&first) = list.ids.first() else { return Ok(None) };
            match self.external(first) {
                Ok(id) => return Ok(Some(id)),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if is_lost(&error) => *partial = true,
                Err(error) => return Err(error),
            }
            let Some(after) = first.checked_add(1) else { return Ok(None) };
            from = after;
        }
    }

    /// Counts the points that match `filter`.
    ///
    /// # Errors
    /// As [`NamedCollection::scroll`].
    pub fn count(&self, filter: Option<&Filter>) -> Result<PointCount> {
        self.collection.count_where(filter)
    }

    /// Counts the points with a value of the field `path`. A new point is read for the first count
    /// only.
    ///
    /// # Errors
    /// As [`NamedCollection::scroll`].
    pub fn count_filled(&self, path: &str) -> Result<PointCount> {
        self.collection.count_filled(path)
    }

    /// Counts the points that match `filter` by their value of the field `key`, and returns the
    /// `max` most frequent values.
    ///
    /// # Errors
    /// As [`Collection::facet`]. `InvalidArgument` for the reserved field.
    pub fn facet(&self, key: &str, filter: Option<&Filter>, max: usize) -> Result<Facet> {
        if key == points::RESERVED_KEY {
            return Err(Error::invalid(format!(
                "\"{key}\" is Millpond's own and not counted; use another field"
            )));
        }
        self.collection.facet(key, filter, max)
    }

    /// Returns the first `limit` points that match `filter`, in the order of a payload field. Their
    /// ids are internal.
    ///
    /// # Errors
    /// As [`Collection::ordered`]. `InvalidArgument` for the reserved field.
    pub fn ordered(
        &self,
        order: &PointOrder<'_>,
        filter: Option<&Filter>,
        limit: usize,
    ) -> Result<OrderedPoints> {
        if order.key == points::RESERVED_KEY {
            return Err(Error::invalid(format!(
                "\"{}\" is Millpond's own and gives no order; use another field",
                order.key
            )));
        }
        self.collection.ordered(order, filter, limit)
    }

    /// Locks out other changes until the guard is dropped.
    ///
    /// # Errors
    /// `NotFound` if the collection was removed.
    pub(super) fn lock_changes(&self) -> Result<MutexGuard<'_, ()>> {
        let guard = self.changing.lock();
        self.check_there()?;
        Ok(guard)
    }

    pub(super) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    fn check_there(&self) -> Result<()> {
        if self.removed() {
            Err(Error::not_found(format!("collection \"{}\" was removed", self.name)))
        } else {
            Ok(())
        }
    }

    /// Runs `replace`, which puts another directory in the place of this one, while no settings are
    /// written. If it succeeds, no settings are written any more.
    ///
    /// # Errors
    /// The error of `replace`.
    pub(super) fn replaced_by(&self, replace: impl FnOnce() -> Result<()>) -> Result<()> {
        let _storing = self.storing.lock();
        replace()?;
        self.removed.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends all changes, because the collection is about to be removed.
    pub(super) fn retire(&self) {
        self.removed.store(true, Ordering::Release);
        self.collection.close();
        // A caller that checked before has finished once these locks can be taken.
        drop((self.changing.lock(), self.storing.lock()));
    }

    /// Returns true if the collection was removed or replaced, so that its points do not change any
    /// more.
    pub fn removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns true if no earlier failure delays the task.
    pub(super) fn may_run(&self, task: BackgroundTask) -> bool {
        let retry = *self.retries.lock().of(task);
        let is_due = |retry: RetryDelay| Instant::now() >= retry.next || self.has_room(retry);
        !self.removed() && retry.is_none_or(is_due)
    }

    /// Returns true if the disk was full at the failure, and space was freed since. Otherwise
    /// writes would be refused for the rest of a long delay.
    fn has_room(&self, retry: RetryDelay) -> bool {
        let Some(before) = retry.free.filter(|_| Instant::now() >= retry.with_room) else {
            return false;
        };
        let wanted = before.saturating_add(ROOM_FREED_MIN);
        self.collection.free_disk().is_some_and(|free| free >= wanted)
    }

    /// Records the outcome of a task. `Ok(false)` is a task without work.
    pub(super) fn record_outcome(&self, task: BackgroundTask, outcome: &Result<bool>) {
        // A merge can wait for days for more room than a flush frees with each old log.
        let is_full = task == BackgroundTask::Flush
            && outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::StorageFull);
        let free = if is_full { self.collection.free_disk() } else { None };
        let mut retries = self.retries.lock();
        let retry = retries.of(task);
        match outcome {
            // A thread without work does not clear the failure of another thread.
            Ok(false) => {}
            Ok(true) => *retry = None,
            Err(error) => {
                let delay = retry.map_or(RETRY_MIN, |retry| (retry.delay * 2).min(RETRY_MAX));
                let now = Instant::now();
                let with_room = now + delay.min(RETRY_WITH_ROOM);
                *retry = Some(RetryDelay { next: now + delay, delay, free, with_room });
                if !self.removed() && error.kind() != ErrorKind::Cancelled {
                    tracing::error!(
                        collection = self.name, %task, %error,
                        "background work has failed and is tried again"
                    );
                }
            }
        }
    }
}

/// Returns true if the error only excludes a point from a result.
fn is_lost(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::DataLoss | ErrorKind::Unavailable)
}

/// Calls `read` with at most `max` of `ids` at a time, and returns all results.
fn in_parts<T>(ids: &[u64], max: usize, read: impl FnMut(&[u64]) -> Vec<T>) -> Vec<T> {
    ids.chunks(max).flat_map(read).collect()
}

/// Converts a point to the client's form.
fn given(point: StoredPoint, parts: PointParts) -> Result<FetchedPoint> {
    let StoredPoint { id, embedding, record, payload } = point;
    let (id, payload) = points::decode(id, &payload)?;
    let payload = if parts.payload { payload } else { serde_json::Map::new() };
    Ok(FetchedPoint { id, embedding, record, payload })
}

impl std::fmt::Debug for NamedCollection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Named").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use coarse::Metric;
    use serde_json::json;

    use super::super::core::tests::small_core;
    use super::*;

    #[test]
    fn queries_read_settings_while_others_are_stored() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        let before = named.settings();
        let change = |extra: &mut Value| {
            // A query on another thread.
            assert!(named.settings.try_lock().is_some_and(|now| *now == before));
            *extra = json!({"n": 1});
            Ok(())
        };
        named.change_extra(change).unwrap();
        assert_eq!(named.settings().extra, json!({"n": 1}));
    }

    #[test]
    fn freed_space_ends_the_delay_after_a_full_disk() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        // The delay grows to 25 s.
        for _ in 0..8 {
            named.record_outcome(BackgroundTask::Flush, &Err(Error::storage_full("no room")));
        }
        assert!(named.retries.lock().flush.unwrap().free.is_some());
        named.record_outcome(BackgroundTask::Merge, &Err(Error::storage_full("no room")));
        assert_eq!(named.retries.lock().merge.unwrap().free, None);
        let may_run = |free| {
            if let Some(retry) = &mut named.retries.lock().flush {
                retry.free = free;
                retry.with_room = Instant::now();
            }
            named.may_run(BackgroundTask::Flush)
        };
        assert!(!may_run(Some(u64::MAX)), "no space was freed");
        assert!(may_run(Some(0)));
        named.record_outcome(BackgroundTask::Flush, &Err(Error::internal("another failure")));
        assert_eq!(named.retries.lock().flush.unwrap().free, None);
        assert!(!may_run(None));
    }

    #[test]
    fn tasks_have_plain_names_in_the_log() {
        assert_eq!(BackgroundTask::Flush.to_string(), "flush");
        assert_eq!(BackgroundTask::Merge.to_string(), "merge");
    }

    #[test]
    fn payloads_of_many_uuids_are_read_in_parts() {
        let ids: Vec<u64> = (0..10).collect();
        let mut parts = Vec::new();
        let read = in_parts(&ids, 4, |part| {
            parts.push(part.len());
            part.to_vec()
        });
        assert_eq!((read, parts), (ids, vec![4, 4, 2]));
    }
}
