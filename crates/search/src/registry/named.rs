//! A collection with a name: looking at its points. Changing them is in `write`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use super::core::{SETTINGS, SETTINGS_KIND};
use super::files::{self, CollectionSettings, StoredSettings};
use crate::collection::{Collection, Facet, IDS_MAX, PointCount, PointParts, SearchThread};
use crate::filter::Filter;
use crate::ingest::StoredPoint;
use crate::points::{self, FetchedPoint, NUMBERS_MAX, PointId};

/// After a failure of background work, how long before the next try: from this, doubled each time,
const RETRY_MIN: Duration = Duration::from_millis(200);
/// up to this.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Some points in the order of their internal ids: numbers, then UUIDs by their hash.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScrollPage {
    /// The points.
    pub points: Vec<FetchedPoint>,
    /// The one after the last, to begin with the next time.
    pub next: Option<PointId>,
    /// Whether points that belong here are missing, because something is damaged or not open yet.
    pub partial: bool,
    /// Why points that belong here may be missing although they are not lost for good, as in
    /// [`crate::collection::IdList::unseen`].
    pub unseen: Option<Error>,
}

/// A collection with a name, and points called by what clients call them by.
pub struct NamedCollection {
    name: String,
    directory: PathBuf,
    points: String,
    settings: Mutex<Arc<CollectionSettings>>,
    collection: Collection,
    hash: fn(&[u8; 16]) -> u64,
    serial: u64,
    /// Held from looking at points to changing them, so that nothing comes between. Not while the log is flushed.
    changing: Mutex<()>,
    removed: AtomicBool,
    generation: AtomicU64,
    /// When background work may try again after a failure, by kind.
    retry: Mutex<[Option<(Instant, Duration)>; 2]>,
}

/// Background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackgroundTask {
    Flush = 0,
    Merge = 1,
}

impl NamedCollection {
    pub(super) fn new(
        name: &str,
        directory: PathBuf,
        settings: CollectionSettings,
        points: String,
        collection: Collection,
        hash: fn(&[u8; 16]) -> u64,
        serial: u64,
    ) -> NamedCollection {
        NamedCollection {
            name: name.to_owned(),
            directory,
            points,
            settings: Mutex::new(Arc::new(settings)),
            collection,
            hash,
            serial,
            changing: Mutex::new(()),
            removed: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            retry: Mutex::default(),
        }
    }

    /// Its name, whatever alias it was asked for by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its directory, where doors may keep files of theirs; goes with the collection.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What it is.
    pub fn settings(&self) -> Arc<CollectionSettings> {
        self.settings.lock().clone()
    }

    /// Replaces what doors keep with it; durable once this returns.
    ///
    /// # Errors
    /// `NotFound` where the collection was removed, otherwise what the file system says.
    pub fn set_extra(&self, extra: Value) -> Result<()> {
        self.change_extra(|old| {
            *old = extra;
            Ok(())
        })
    }

    /// Changes what doors keep with it, one caller after the other; durable once this returns.
    ///
    /// # Errors
    /// What `change` returns, and nothing is changed then; as [`NamedCollection::set_extra`].
    pub fn change_extra(&self, change: impl FnOnce(&mut Value) -> Result<()>) -> Result<()> {
        let mut settings = self.settings.lock();
        self.check_there()?;
        let mut new = CollectionSettings::clone(&settings);
        change(&mut new.extra)?;
        files::replace(
            SETTINGS_KIND,
            &self.directory.join(SETTINGS),
            &StoredSettings::new(&new, &self.points),
        )?;
        *settings = Arc::new(new);
        Ok(())
    }

    /// The collection itself, which knows points by their internal ids.
    pub fn collection(&self) -> &Collection {
        &self.collection
    }

    /// A number that grows with every change of a point; the same number means the same points.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The id that the collection knows a point by.
    pub fn internal(&self, id: &PointId) -> u64 {
        id.internal_by(self.hash)
    }

    /// What clients call the point of an internal id by. For a UUID its payload is read.
    ///
    /// # Errors
    /// `NotFound` where there is no such point any more, otherwise as [`NamedCollection::get`].
    pub fn external(&self, internal: u64) -> Result<PointId> {
        if internal < NUMBERS_MAX {
            return Ok(PointId::Number(internal));
        }
        let mut found = self.resolve(&[internal], PointParts::NONE).into_iter();
        let found = found.next().unwrap_or(Ok(None))?;
        found.map(|point| point.id).ok_or_else(|| Error::not_found("the point was removed since"))
    }

    /// The point of an id.
    ///
    /// # Errors
    /// `DataLoss` where it, or what would tell whether there is one, is damaged; `Unavailable` where a segment that may
    /// have it is still being opened.
    pub fn get(&self, id: &PointId) -> Result<Option<FetchedPoint>> {
        self.get_parts(std::slice::from_ref(id), PointParts::ALL).into_iter().next().unwrap_or(Ok(None))
    }

    /// The wanted parts of several points, in the order of `ids`, as they were at one moment. One that is damaged fails
    /// alone.
    pub fn get_parts(&self, ids: &[PointId], parts: PointParts) -> Vec<Result<Option<FetchedPoint>>> {
        let internal: Vec<u64> = ids.iter().map(|id| self.internal(id)).collect();
        let mut found = self.resolve(&internal, parts);
        for (found, id) in found.iter_mut().zip(ids) {
            // Another UUID of the same hash.
            if matches!(found, Ok(Some(point)) if point.id != *id) {
                *found = Ok(None);
            }
        }
        found
    }

    /// The wanted parts of the points of internal ids, such as a search's hits, in their order: `None` for a point that
    /// was removed since. Neighbours share reads.
    pub fn resolve(&self, internal: &[u64], parts: PointParts) -> Vec<Result<Option<FetchedPoint>>> {
        let hashed = internal.iter().any(|&id| id >= NUMBERS_MAX);
        let read = PointParts { payload: parts.payload || hashed, ..parts };
        let points = self.collection.points(internal, read);
        points.into_iter().map(|point| point?.map(|point| given(point, parts)).transpose()).collect()
    }

    /// How alike the embeddings of points are to `embedding`, exactly, in the order of `internal`: for ranking what
    /// another search found. `None` for points that are not there or cannot be read.
    ///
    /// # Errors
    /// `InvalidArgument` for an embedding that does not fit the collection.
    pub fn scores(
        &self,
        thread: &mut SearchThread,
        embedding: &[f32],
        internal: &[u64],
    ) -> Result<Vec<Option<f32>>> {
        self.collection.scores(thread, embedding, internal)
    }

    /// At most `limit` points from `from` on that `filter` allows, with the wanted parts.
    ///
    /// # Errors
    /// `InvalidArgument` for a filter or a limit that is too large, otherwise what the medium says. Points that are
    /// damaged are left out.
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
            let Some(after) = last.and_then(|last| last.checked_add(1)) else { return Ok(scrolled) };
            if scrolled.points.len() >= limit {
                scrolled.next = self.first_from(after, filter, &mut scrolled.partial)?;
                return Ok(scrolled);
            }
            // Some were damaged, or removed meanwhile: there is room for more.
            from = after;
        }
    }

    /// The first point from `from` on whose id can be told.
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

    /// How many points `filter` allows.
    ///
    /// # Errors
    /// As [`NamedCollection::scroll`].
    pub fn count(&self, filter: Option<&Filter>) -> Result<PointCount> {
        self.collection.count_where(filter)
    }

    /// How many of the points that `filter` allows have which value of the field `key`; the `max` most frequent.
    ///
    /// # Errors
    /// As [`Collection::facet`]; `InvalidArgument` for the field that is not the client's.
    pub fn facet(&self, key: &str, filter: Option<&Filter>, max: usize) -> Result<Facet> {
        if key == points::RESERVED_KEY {
            return Err(Error::invalid(format!(
                "\"{key}\" is Millpond's own and not counted; use another field"
            )));
        }
        self.collection.facet(key, filter, max)
    }

    /// The ids of the first points that `filter` allows, at most `max`.
    ///
    /// # Errors
    /// As [`NamedCollection::scroll`].
    pub fn ids_where(&self, filter: Option<&Filter>, max: usize) -> Result<Vec<PointId>> {
        let list = self.collection.ids_from(0, max, filter)?;
        let found = self.resolve(&list.ids, PointParts::NONE).into_iter();
        found.filter_map(|point| point.map(|point| point.map(|point| point.id)).transpose()).collect()
    }

    /// Keeps changes of others away until the guard is dropped.
    ///
    /// # Errors
    /// `NotFound` where the collection was removed.
    pub(super) fn lock_changes(&self) -> Result<MutexGuard<'_, ()>> {
        let guard = self.changing.lock();
        self.check_there()?;
        Ok(guard)
    }

    pub(super) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    fn check_there(&self) -> Result<()> {
        match self.removed() {
            true => Err(Error::not_found(format!("collection \"{}\" was removed", self.name))),
            false => Ok(()),
        }
    }

    /// Nothing is changed any more: the collection is about to be removed.
    pub(super) fn retire(&self) {
        self.removed.store(true, Ordering::Release);
        self.collection.close();
        // Whoever looked before has finished once these can be had.
        drop((self.changing.lock(), self.settings.lock()));
    }

    pub(super) fn removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Whether a chore may be tried, as far as earlier failures are concerned.
    pub(super) fn may(&self, chore: BackgroundTask) -> bool {
        !self.removed() && self.retry.lock()[chore as usize].is_none_or(|(when, _)| Instant::now() >= when)
    }

    /// Remembers how a chore went.
    pub(super) fn tried(&self, chore: BackgroundTask, outcome: &Result<bool>) {
        let place = &mut self.retry.lock()[chore as usize];
        match outcome {
            // One thread that finds nothing to do says nothing of how another fares.
            Ok(false) => {}
            Ok(true) => *place = None,
            Err(error) => {
                let wait = place.map_or(RETRY_MIN, |(_, wait)| (wait * 2).min(RETRY_MAX));
                *place = Some((Instant::now() + wait, wait));
                if !self.removed() && error.kind() != ErrorKind::Cancelled {
                    tracing::error!(collection = self.name, ?chore, %error, "failed, and is tried again");
                }
            }
        }
    }
}

/// Whether a point is left out of an answer for this, rather than failing it.
fn is_lost(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::DataLoss | ErrorKind::Unavailable)
}

/// A point as clients see it.
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
