//! A collection: points that are written, searched, replaced and deleted while segments are built
//! and merged in the background.
//!
//! # Writes
//! A change goes to the log and to the active memtable. It is acknowledged once the log is
//! durable. Threads that write at the same time share one sync of the log. A full memtable is
//! flushed to a segment in the background, and its log is then removed. Segments of similar size
//! are merged in the background, at a limited rate and at low priority.
//!
//! # Queries
//! A query takes one immutable state and keeps it until it ends. It therefore never sees half of a
//! change, and flushes and merges do not disturb it. It ranks the rows of all segments (by their
//! codes) and of all memtables, and then ranks the best candidates with a scorer.
//!
//! # Recovery
//! The manifest lists the files of the collection. All other files are removed and the logs are
//! replayed, so every acknowledged change is present. Segments are opened afterwards, one by one.
//! Results are marked as partial until all are open, and if one is damaged. Deletes of rows of a
//! segment that is not open are kept as pending deletes, in a file of their own if necessary.
//! `progress` records how far each log was durable, so a truncated or missing log is not mistaken
//! for an empty one. Points whose changes are lost are reported as unknown; their old versions are
//! not served.
//!
//! # Full disk
//! Changes are refused while less than a reserve is free (`disk`). Stored points are still served.
//!
//! # Invariant
//! An acknowledged change is either in a log that the published list covers or in a file that the
//! list names. A file that a list names is removed only after two newer lists are durable. Memory
//! never exceeds the budget.

mod disk;
mod facet;
mod filters;
mod flush;
mod inner;
mod lookup;
mod manifest;
mod merge;
mod names;
mod options;
mod progress;
mod publish;
mod recover;
mod resources;
mod search;
mod stall;
mod state;
mod status;
mod write;

use std::sync::Arc;

use base::{Error, Result};
use storage::Medium;

use self::inner::CollectionInner;
use self::names::CollectionFile;
use self::stall::Urgency;
use self::state::{PointLocation, SegmentContent};
use self::write::RoomPolicy;
use crate::coarse::CoarseScratch;
use crate::filter::Filter;
use crate::ingest::{Op, PointRef, StoredPoint};
use crate::rerank::{Scorer, SearchLimits, Searcher, SharedCaches};
use crate::segment::{PageCache, reader_options};

pub(crate) use disk::check_room_to_create;
pub use facet::{Facet, FacetValue};
pub use filters::until;
pub use lookup::{IDS_MAX, IdList, PointCount, PointParts};
pub use options::{CANDIDATES_MAX, CollectionOptions, CollectionShape, Merging};
pub use resources::Resources;
pub use search::{CollectionQuery, QueryHit, QueryResult, SearchThread};
pub use stall::StallStats;
pub use status::{SegmentStatus, Status};
pub use write::Applied;

/// Points of one shape on one medium. Shared by threads.
pub struct Collection {
    inner: Arc<CollectionInner>,
}

impl Collection {
    /// Opens the collection on `medium`, or creates an empty one. It starts no threads and shares
    /// `resources` with other collections. `shared` holds the record caches.
    ///
    /// The caller calls [`Collection::open_segments`] once. It calls [`Collection::flush_oldest`]
    /// and [`Collection::merge`] on threads of low priority while they return true, and
    /// [`Collection::flush_if_stalled`] and [`Collection::merge_if_behind`] on threads of ordinary
    /// priority. [`Resources`] counts an event when there is new work. A write that finds no room
    /// waits for this work.
    ///
    /// # Errors
    /// `InvalidArgument` for invalid options, `FailedPrecondition` if the collection has another
    /// shape or was written by a newer program, `DataLoss` if its manifest is lost,
    /// `ResourceExhausted` if its log does not fit the memory; otherwise the error of the medium.
    pub fn open(
        medium: Arc<dyn Medium>,
        options: CollectionOptions,
        resources: &Resources,
        shared: Arc<SharedCaches>,
    ) -> Result<Collection> {
        options.check(resources.memory().limit, resources.memtable_bytes)?;
        Ok(Collection { inner: CollectionInner::open(medium, options, resources, shared)? })
    }

    /// Opens the segments on the calling thread; each is searched as soon as it is open. Returns
    /// true if some segments could not be opened yet, for lack of memory for example, so the
    /// caller should call this again later.
    pub fn open_segments(&self) -> bool {
        self.inner.open_segments()
    }

    /// Stops background work for good; queries still work. Call this before the files are removed.
    pub fn close(&self) {
        self.inner.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.inner.record_progress_now();
        self.inner.events.notify();
    }

    /// Adds a point, or replaces the point of the same id. Durable when this returns.
    ///
    /// # Errors
    /// `InvalidArgument` or `TooLarge` for a point that does not fit the collection,
    /// `ResourceExhausted` if memory has no room (with advice, and a retry delay if retrying may
    /// help), `FailedPrecondition` if a segment that cannot be opened has too many pending
    /// deletes; otherwise the error of the medium. After an error the change may or may not have
    /// been made.
    pub fn upsert(&self, point: PointRef<'_>) -> Result<()> {
        self.inner.write(&[Op::Upsert(point)])
    }

    /// Deletes the point of this id, if there is one.
    ///
    /// # Errors
    /// As [`Collection::upsert`].
    pub fn delete(&self, id: u64) -> Result<()> {
        self.inner.write(&[Op::Delete(id)])
    }

    /// Makes several changes in order, with one sync of the log. Not a transaction: after an error
    /// or a crash, the first changes may have been made without the later ones.
    ///
    /// # Errors
    /// As [`Collection::upsert`]; no change is then acknowledged.
    pub fn write(&self, changes: &[Op<'_>]) -> Result<()> {
        self.inner.write(changes)
    }

    /// Returns the point of this id, or `None` if there is none.
    ///
    /// # Errors
    /// `DataLoss` if the point, or the data that shows if it exists, is damaged; `Unavailable` if
    /// a segment that may hold it is still being opened.
    pub fn get(&self, id: u64) -> Result<Option<StoredPoint>> {
        let (found, doubt) = {
            let live = self.inner.live.lock();
            let found = live.find(id);
            let doubt = if found.is_none() { live.doubt(id) } else { None };
            (found, doubt)
        };
        match found {
            None => doubt.map_or(Ok(None), Err),
            Some(PointLocation::Memtable(row)) => Ok(Some(StoredPoint {
                id,
                embedding: row.embedding.to_vec(),
                record: row.record.to_vec(),
                payload: row.payload.to_vec(),
            })),
            Some(PointLocation::Segment(view, row)) => {
                let mut point = StoredPoint { id, ..StoredPoint::default() };
                let mut cache = PageCache::new(1);
                view.segment.vector(row, &mut point.embedding)?;
                view.segment.record(row, &mut cache, &mut point.record)?;
                view.segment.payload(row, &mut cache, &mut point.payload)?;
                Ok(Some(point))
            }
        }
    }

    /// Makes several changes in order and returns a handle that waits until they are durable. For
    /// callers that keep changes in order with a lock: they need not hold the lock during that
    /// wait.
    ///
    /// # Errors
    /// As [`Collection::upsert`].
    pub fn apply(&self, changes: &[Op<'_>]) -> Result<Applied> {
        self.inner.apply(changes, RoomPolicy::Wait)
    }

    /// Slows the caller down, for at most one second, while memtables fill faster than they are
    /// flushed. Many short waits replace one wait of seconds once memory is full. Call this before
    /// [`Collection::apply`] and before taking a lock.
    pub fn throttle(&self) {
        self.inner.throttle();
    }

    /// Makes several changes like [`Collection::apply`], but fails at once if memory has no room,
    /// and does not escalate the flush. For background callers. Changes before the refused one
    /// have been made and may survive.
    ///
    /// # Errors
    /// As [`Collection::upsert`].
    pub fn try_apply(&self, changes: &[Op<'_>]) -> Result<Applied> {
        self.inner.apply(changes, RoomPolicy::Refuse)
    }

    /// Returns the requested parts of several points, in the order of `ids` and all from one
    /// state; `None` for ids without a point. A damaged point fails alone, as in
    /// [`Collection::get`].
    pub fn points(&self, ids: &[u64], parts: PointParts) -> Vec<Result<Option<StoredPoint>>> {
        self.inner.points(ids, parts)
    }

    /// Returns the ids from `from` on, ascending, of points that match `filter`: at most `max`, up
    /// to [`IDS_MAX`].
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid filter or a `max` that is too large; otherwise the error
    /// of the medium.
    pub fn ids_from(&self, from: u64, max: usize, filter: Option<&Filter>) -> Result<IdList> {
        self.inner.ids_from(from, max, filter)
    }

    /// Returns true while segments are opened for the first time since the start, so that results
    /// lack their points. Segments that are damaged or wait for another try do not count.
    pub fn opening(&self) -> bool {
        self.inner.opening()
    }

    /// Counts the points that match `filter`.
    ///
    /// # Errors
    /// As [`Collection::ids_from`].
    pub(crate) fn count_where(&self, filter: Option<&Filter>) -> Result<PointCount> {
        self.inner.count_where(filter)
    }

    /// Counts the points that match `filter` by the value of the payload field `key` (a path as in
    /// a filter) and returns the `max` most frequent values. Counts are exact: every payload is
    /// read, which is as slow as the first use of a filter.
    ///
    /// # Errors
    /// As [`Collection::ids_from`]; `InvalidArgument` for an empty key or more than
    /// [`FACET_VALUES_MAX`] values; `ResourceExhausted` if the memory limit has no room for the
    /// values.
    pub fn facet(&self, key: &str, filter: Option<&Filter>, max: usize) -> Result<Facet> {
        self.inner.facet(key, filter, max)
    }

    /// Returns the exact similarity of `embedding` to the embedding of each point of `ids`, in
    /// their order; `None` for points that do not exist or cannot be read.
    ///
    /// # Errors
    /// `InvalidArgument` for an embedding that does not fit the collection.
    pub fn scores(
        &self,
        thread: &mut SearchThread,
        embedding: &[f32],
        ids: &[u64],
    ) -> Result<Vec<Option<f32>>> {
        self.inner.scores(thread, embedding, ids)
    }

    /// Returns the number of live points.
    pub fn count(&self) -> u64 {
        self.inner.state().live()
    }

    /// Creates the readers and the working memory of one search thread.
    ///
    /// # Errors
    /// The error of the medium; `InvalidArgument` for invalid limits.
    pub fn thread(&self, limits: SearchLimits) -> Result<SearchThread> {
        let medium = &self.inner.medium;
        let reader = medium.reader(limits.reader_options())?;
        let vectors = medium.reader(reader_options(self.inner.options.shape.dims))?;
        let searcher = Searcher::new(reader, limits, self.inner.shared.clone())?;
        Ok(SearchThread { scratch: CoarseScratch::default(), hits: Vec::new(), searcher, vectors })
    }

    /// Returns the points whose embeddings are most similar to the query.
    ///
    /// # Errors
    /// `InvalidArgument` for a query that does not fit the collection. Damaged data makes the
    /// result partial.
    pub fn nearest(
        &self,
        thread: &mut SearchThread,
        query: &CollectionQuery<'_>,
    ) -> Result<QueryResult> {
        self.inner.nearest(thread, query)
    }

    /// Returns the best points by `scorer` among those with the most similar embeddings.
    ///
    /// # Errors
    /// As [`Collection::nearest`].
    pub fn search<S: Scorer>(
        &self,
        thread: &mut SearchThread,
        query: &CollectionQuery<'_>,
        scorer: &S,
    ) -> Result<QueryResult> {
        self.inner.search(thread, query, scorer)
    }

    /// Flushes the oldest frozen memtable. Returns false if there is none.
    ///
    /// # Errors
    /// The error of the medium; no point is lost.
    pub fn flush_oldest(&self) -> Result<bool> {
        self.inner.flush_oldest(Urgency::Paced)
    }

    /// Flushes at full speed if writers or a full memtable have waited too long for the flush of
    /// low priority. Writers of other collections with the same [`Resources`] count too. Returns
    /// false if there was no such wait. For a thread of ordinary priority.
    ///
    /// # Errors
    /// As [`Collection::flush_oldest`].
    pub fn flush_if_stalled(&self) -> Result<bool> {
        self.inner.flush_if_stalled()
    }

    /// Returns the bytes of memory that unflushed points take.
    pub(crate) fn unflushed_bytes(&self) -> u64 {
        self.inner.state().memtables.iter().map(|memtable| memtable.bytes()).sum()
    }

    /// Freezes the active memtable, so that it can be flushed before it is full. Used if memory is
    /// short. Does nothing if a frozen memtable already waits.
    ///
    /// # Errors
    /// The error of the medium.
    pub fn freeze(&self) -> Result<()> {
        let mut writer = self.inner.writer.lock();
        let wait = {
            let live = self.inner.live.lock();
            live.state.memtables.len() > 1 || live.active().rows() == 0
        };
        if wait { Ok(()) } else { self.inner.freeze(&mut writer) }
    }

    /// Flushes all memtables and waits for the result.
    ///
    /// # Errors
    /// The error of the medium; no point is lost.
    pub fn flush(&self) -> Result<()> {
        self.inner.flush_down_to(1)?;
        {
            let mut writer = self.inner.writer.lock();
            let empty = self.inner.live.lock().active().rows() == 0;
            let unlogged = writer.logs.last().is_none_or(|(_, log)| log.next() <= 1);
            if empty && unlogged {
                return Ok(());
            }
            self.inner.freeze(&mut writer)?;
        }
        self.inner.flush_down_to(1)
    }

    /// Runs the most useful merge, at a limited rate, on the calling thread. Returns false if no
    /// merge is due.
    ///
    /// # Errors
    /// The error of the medium; no point is lost.
    pub fn merge(&self) -> Result<bool> {
        self.inner.merge_once(Urgency::Paced)
    }

    /// Merges at full speed if segments pile up; otherwise returns false. For a thread of ordinary
    /// priority.
    ///
    /// # Errors
    /// As [`Collection::merge`].
    pub fn merge_if_behind(&self) -> Result<bool> {
        self.inner.merge_if_behind()
    }

    /// Records how far the logs are durable, at most once a second. The record later shows that a
    /// log was truncated ([`storage::watermark`]). It costs a sync, so idle threads should call
    /// this.
    pub fn record_progress(&self) {
        self.inner.record_progress();
    }

    /// Abandons a segment that cannot be opened, or a damaged log: removes its file. Its points or
    /// changes are lost for good, and results are no longer partial because of it.
    ///
    /// # Errors
    /// `NotFound` if there is no such file, `FailedPrecondition` for a segment that is served or
    /// still being opened.
    pub fn abandon(&self, name: &str) -> Result<()> {
        let inner = &self.inner;
        if let Some(CollectionFile::Log(number)) = CollectionFile::of(name) {
            return inner.abandon_log(number);
        }
        {
            let mut live = inner.live.lock();
            let slot = live
                .state
                .segments
                .iter()
                .find(|slot| CollectionFile::Segment(slot.number).name() == name);
            let slot =
                slot.ok_or_else(|| Error::not_found(format!("there is no segment {name}")))?;
            let number = slot.number;
            match &slot.content {
                SegmentContent::Closed(closed) if closed.reason.is_some() => {
                    live.merged(&[number], None)
                }
                _ => {
                    return Err(Error::precondition(format!(
                        "{name} is not damaged; nothing of it need be given up"
                    )));
                }
            }
        }
        inner.publish()?;
        tracing::warn!(name, "a damaged segment was given up; its points are lost");
        inner.unquarantine(name);
        Ok(())
    }

    /// Returns the content, resource use and damage of the collection.
    pub fn status(&self) -> Status {
        status::of(&self.inner)
    }
}

impl std::fmt::Debug for Collection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collection").field("medium", &self.inner.medium).finish_non_exhaustive()
    }
}
