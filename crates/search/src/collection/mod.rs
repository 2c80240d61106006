//! Collections: points that are written, found, replaced and removed while segments come and go underneath.
//!
//! # A change
//! goes into the log and into memory, and is acknowledged when the log is durable; threads that write at the same time
//! share one flush. When the points in memory are many enough they become a segment, behind everything else, and the
//! log that held them is dropped. Segments of about the same size are merged, paced, at low priority.
//!
//! # A query
//! takes one state and keeps it to its end, so it sees no half of a change, and neither seal nor merge disturbs it. It
//! ranks all segments and what is not sealed by their codes, and the best of them by a scorer.
//!
//! # After a crash
//! the manifest says which files count; all others are removed; the logs are replayed. What was acknowledged is there.
//! Segments are opened afterwards, one by one; until then, and where one is damaged, answers say that they are partial.
//! Ids that are replaced or removed meanwhile wait for the segment, in a file of their own if need be. A log that is cut
//! off or gone is told from an empty one by what is recorded beside it (`progress`); points whose changes are lost are
//! unknown, not old.
//!
//! # A full disk
//! is met before it is full: changes are refused while less than a reserve is free (`room`), and what is stored is served.
//!
//! # The invariant
//! An acknowledged change is in a log that the manifest's list covers, or in a file that the list names. Nothing that
//! a list names is removed before two newer lists are durable. Memory never exceeds the budget.

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
mod threads;
mod write;

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, Result};
use storage::Medium;

use self::inner::{CollectionInner, lock};
use self::names::CollectionFile;
use self::stall::Urgency;
use self::state::{ClosedSegment, PointLocation, SegmentContent};
use self::threads::Threads;
use self::write::RoomPolicy;
use crate::budget::MemoryBudget;
use crate::coarse::CoarseScratch;
use crate::filter::Filter;
use crate::ingest::{Op, PointRef, StoredPoint};
use crate::rerank::{Scorer, SearchLimits, Searcher, SharedCaches};
use crate::segment::{PageCache, reader_options};

pub(crate) use disk::check_room_to_create;
pub use facet::{FACET_VALUES_MAX, Facet, FacetValue};
pub use filters::until;
pub use lookup::{IDS_MAX, IdList, PointCount, PointParts};
pub use options::{
    CANDIDATES_MAX, CollectionOptions, CollectionShape, Merging, PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX,
};
pub(crate) use recover::may_pass;
pub use resources::Resources;
pub use search::{CollectionQuery, QueryHit, QueryResult, SearchThread};
pub use stall::StallStats;
pub use status::{SegmentStatus, Status};
pub(crate) use threads::OPEN_AGAIN;
pub use write::Applied;

/// A set of points of one shape on one medium, shared by threads.
pub struct Collection {
    inner: Arc<CollectionInner>,
    /// Ended and joined when the collection is closed.
    _threads: Threads,
}

impl Collection {
    /// Opens the collection on `medium`, or makes an empty one where there is none. Segments are opened afterwards, on
    /// a thread of their own ([`Collection::wait_open`]). `shared` is the record cache, of one collection or several.
    ///
    /// # Errors
    /// `InvalidArgument` for options that cannot work, `FailedPrecondition` where the collection has another shape or
    /// was written by a newer program, `DataLoss` where its manifest is lost, `ResourceExhausted` where its log does not
    /// fit the memory, otherwise what the medium says.
    pub fn open(
        medium: Arc<dyn Medium>,
        options: CollectionOptions,
        shared: Arc<SharedCaches>,
    ) -> Result<Collection> {
        let options = options.resolved()?;
        let budget = MemoryBudget::new(options.memory_bytes);
        let resources = Resources::new(budget, options.memtable_bytes, options.background_rate)?;
        let inner = CollectionInner::open(medium, options, &resources, false, shared)?;
        let threads = Threads::start(&inner)?;
        Ok(Collection { inner, _threads: threads })
    }

    /// Opens a collection that shares its memory and its background work with others. It has no threads: somebody calls
    /// [`Collection::open_segments`] once, and [`Collection::flush_oldest`] and [`Collection::merge`] as long as they find
    /// something to do, on threads of low priority, [`Collection::flush_if_stalled`] and [`Collection::merge_if_behind`] on
    /// others; [`Resources::events`] says when to look. A write waits
    /// for that where it finds no room. Of the options, memory, threads and rate are those of `resources`.
    ///
    /// # Errors
    /// As [`Collection::open`].
    pub fn open_with(
        medium: Arc<dyn Medium>,
        options: CollectionOptions,
        resources: &Resources,
        shared: Arc<SharedCaches>,
    ) -> Result<Collection> {
        let memory_bytes = resources.memory().limit;
        let options = CollectionOptions {
            memory_bytes,
            memtable_bytes: resources.memtable_bytes,
            background: false,
            ..options
        };
        let inner = CollectionInner::open(medium, options.resolved()?, resources, true, shared)?;
        let threads = Threads::start(&inner)?;
        Ok(Collection { inner, _threads: threads })
    }

    /// Opens the segments, on the calling thread; queries find them one by one. Whether some could not be opened yet, for
    /// lack of memory for example, so that it is to be called again later.
    pub fn open_segments(&self) -> bool {
        self.inner.open_segments()
    }

    /// Ends background work and refuses to begin more; queries go on. For a collection whose files are about to go.
    pub fn close(&self) {
        self.inner.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.inner.record_progress_now();
        self.inner.events.notify();
    }

    /// Waits until each segment is open, or could not be opened at the first try; false where that takes longer than
    /// `patience`.
    pub fn wait_open(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            let seen = self.inner.events.count();
            let tried = |closed: &ClosedSegment| closed.reason.is_some() || closed.delayed.is_some();
            let opening = |content: &SegmentContent| matches!(content, SegmentContent::Closed(closed) if !tried(closed));
            if !self.inner.state().segments.iter().any(|slot| opening(&slot.content)) {
                return true;
            }
            if !self.inner.events.wait_past(seen, deadline) {
                return false;
            }
        }
    }

    /// Adds a point, or replaces the one of its id. Once this returns it survives a loss of power.
    ///
    /// # Errors
    /// `InvalidArgument` or `TooLarge` for a point that does not fit the collection, `ResourceExhausted` where there is
    /// no memory for it (with advice, and when to come again if that may help), `FailedPrecondition` where a segment
    /// that cannot be opened has too many ids waiting for it, otherwise what the medium says. After an error the
    /// change may have been made or not.
    pub fn upsert(&self, point: PointRef<'_>) -> Result<()> {
        self.inner.write(&[Op::Upsert(point)])
    }

    /// Removes the point of an id, if there is one.
    ///
    /// # Errors
    /// As [`Collection::upsert`].
    pub fn delete(&self, id: u64) -> Result<()> {
        self.inner.write(&[Op::Delete(id)])
    }

    /// Makes several changes in order, with one flush for all. They are no transaction: after an error or a crash those
    /// at the front may have been made without those behind.
    ///
    /// # Errors
    /// As [`Collection::upsert`]; then none of them is acknowledged.
    pub fn write(&self, changes: &[Op<'_>]) -> Result<()> {
        self.inner.write(changes)
    }

    /// The point of an id; `None` where there is none.
    ///
    /// # Errors
    /// `DataLoss` where it, or what would tell whether there is one, is damaged; `Unavailable` where a segment that may
    /// have it is still being opened.
    pub fn get(&self, id: u64) -> Result<Option<StoredPoint>> {
        let (found, doubt) = {
            let live = lock(&self.inner.live);
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

    /// Makes several changes in order, and says how to wait until they are durable. For callers who keep changes in
    /// order by a lock, which they need not hold meanwhile.
    ///
    /// # Errors
    /// As [`Collection::upsert`].
    pub fn apply(&self, changes: &[Op<'_>]) -> Result<Applied> {
        self.inner.apply(changes, RoomPolicy::Wait)
    }

    /// Waits, where points come faster than they are sealed, for as long as it takes that they do not, a second at most: many
    /// short waits instead of one of seconds when memory is full. For callers of [`Collection::apply`], before they take a
    /// lock.
    pub fn throttle(&self) {
        self.inner.throttle();
    }

    /// The same as [`Collection::apply`] for callers whom nobody waits for: where memory has no room they are refused at
    /// once, which hurries nothing. Changes before the one that is refused have been made and may survive.
    ///
    /// # Errors
    /// As [`Collection::upsert`].
    pub fn try_apply(&self, changes: &[Op<'_>]) -> Result<Applied> {
        self.inner.apply(changes, RoomPolicy::Refuse)
    }

    /// The wanted parts of several points, in the order of `ids`, all as they were at one moment; `None` for ids without
    /// a point. One that is damaged fails alone, as in [`Collection::get`].
    pub fn points(&self, ids: &[u64], parts: PointParts) -> Vec<Result<Option<StoredPoint>>> {
        self.inner.points(ids, parts)
    }

    /// The first ids from `from` on, ascending, of points that `filter` allows; at most `max`, up to [`IDS_MAX`].
    ///
    /// # Errors
    /// `InvalidArgument` for a filter or a number that is too large, otherwise what the medium says.
    pub fn ids_from(&self, from: u64, max: usize, filter: Option<&Filter>) -> Result<IdList> {
        self.inner.ids_from(from, max, filter)
    }

    /// Says whether segments are still being opened for the first time since the start, so that answers lack their
    /// points. A segment that is damaged, or is tried again later, is not waited for.
    pub fn opening(&self) -> bool {
        self.inner.opening()
    }

    /// How many points `filter` allows.
    ///
    /// # Errors
    /// As [`Collection::ids_from`].
    pub fn count_where(&self, filter: Option<&Filter>) -> Result<PointCount> {
        self.inner.count_where(filter)
    }

    /// How many of the points that `filter` allows have which value of the payload's field `key` (a path as in a filter);
    /// the `max` most frequent values. Counted exactly: every payload is read, which takes as long as the first use of a
    /// filter.
    ///
    /// # Errors
    /// As [`Collection::ids_from`]; `InvalidArgument` without a key, and for more than [`FACET_VALUES_MAX`] values;
    /// `ResourceExhausted` where the memory limit has no room for them.
    pub fn facet(&self, key: &str, filter: Option<&Filter>, max: usize) -> Result<Facet> {
        self.inner.facet(key, filter, max)
    }

    /// How alike the embeddings of the points of `ids` are to `embedding`, exactly, in the order of `ids`; `None` for
    /// points that are not there or cannot be read.
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

    /// How many points can be found.
    pub fn count(&self) -> u64 {
        self.inner.state().live()
    }

    /// What a thread that searches needs: readers of the medium and working memory.
    ///
    /// # Errors
    /// What the medium says, `InvalidArgument` for limits that cannot work.
    pub fn thread(&self, limits: SearchLimits) -> Result<SearchThread> {
        let medium = &self.inner.medium;
        let reader = medium.reader(limits.reader_options())?;
        let vectors = medium.reader(reader_options(self.inner.options.shape.dims))?;
        let searcher = Searcher::new(reader, limits, self.inner.shared.clone())?;
        Ok(SearchThread { scratch: CoarseScratch::default(), hits: Vec::new(), searcher, vectors })
    }

    /// The points whose embeddings are most alike.
    ///
    /// # Errors
    /// `InvalidArgument` for a query that does not fit the collection. What is damaged makes the answer partial.
    pub fn nearest(&self, thread: &mut SearchThread, query: &CollectionQuery<'_>) -> Result<QueryResult> {
        self.inner.nearest(thread, query)
    }

    /// The best points by `scorer`, among those whose embeddings are most alike.
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

    /// Seals the oldest part that takes no more changes; false where there is none.
    ///
    /// # Errors
    /// What the medium says; nothing is lost then.
    pub fn flush_oldest(&self) -> Result<bool> {
        self.inner.flush_oldest(Urgency::Paced)
    }

    /// The same for a thread of ordinary priority, which takes over where writers, of this collection or of another one that
    /// shares its resources, or a full part have waited for the one that gives way; false also where none have.
    ///
    /// # Errors
    /// As [`Collection::flush_oldest`].
    pub fn flush_if_stalled(&self) -> Result<bool> {
        self.inner.flush_if_stalled()
    }

    /// Bytes of memory that points take which are not sealed.
    pub fn unflushed_bytes(&self) -> u64 {
        self.inner.state().memtables.iter().map(|memtable| memtable.bytes()).sum()
    }

    /// Ends the part that takes changes, so that it can be sealed although it is not full: for when memory is short.
    /// Nothing where a part waits already.
    ///
    /// # Errors
    /// What the medium says.
    pub fn freeze(&self) -> Result<()> {
        let mut writer = lock(&self.inner.writer);
        let wait = {
            let live = lock(&self.inner.live);
            live.state.memtables.len() > 1 || live.active().rows() == 0
        };
        if wait { Ok(()) } else { self.inner.freeze(&mut writer) }
    }

    /// Makes a segment of everything that is not sealed, and waits for it.
    ///
    /// # Errors
    /// What the medium says; nothing is lost then.
    pub fn flush(&self) -> Result<()> {
        self.inner.flush_down_to(1)?;
        {
            let mut writer = lock(&self.inner.writer);
            let empty = lock(&self.inner.live).active().rows() == 0;
            let unlogged = writer.logs.last().is_none_or(|(_, log)| log.next() <= 1);
            if empty && unlogged {
                return Ok(());
            }
            self.inner.freeze(&mut writer)?;
        }
        self.inner.flush_down_to(1)
    }

    /// Merges once what is worth it most; false where nothing is. Paced, on the calling thread.
    ///
    /// # Errors
    /// What the medium says; nothing is lost then.
    pub fn merge(&self) -> Result<bool> {
        self.inner.merge_once(Urgency::Paced)
    }

    /// The same for a thread of ordinary priority, which takes over where segments pile up; false also where they do not.
    ///
    /// # Errors
    /// As [`Collection::merge`].
    pub fn merge_if_behind(&self) -> Result<bool> {
        self.inner.merge_if_behind()
    }

    /// Records how far the logs are durable, if that was not done in the last second. For threads that have nothing else
    /// to do: it takes a flush, and is what tells later that a log was cut off ([`storage::watermark`]).
    pub fn record_progress(&self) {
        self.inner.record_progress();
    }

    /// Gives up a segment that cannot be opened, or a damaged log: their points or changes are lost for good, and answers
    /// are no longer partial because of it. Its file is removed.
    ///
    /// # Errors
    /// `NotFound` where there is no such segment, `FailedPrecondition` for one that is served or is still being opened.
    pub fn abandon(&self, name: &str) -> Result<()> {
        let inner = &self.inner;
        if let Some(CollectionFile::Log(number)) = CollectionFile::of(name) {
            return inner.abandon_log(number);
        }
        {
            let mut live = lock(&inner.live);
            let slot =
                live.state.segments.iter().find(|slot| CollectionFile::Segment(slot.number).name() == name);
            let slot = slot.ok_or_else(|| Error::not_found(format!("there is no segment {name}")))?;
            let number = slot.number;
            match &slot.content {
                SegmentContent::Closed(closed) if closed.reason.is_some() => live.merged(&[number], None),
                _ => {
                    return Err(Error::precondition(format!(
                        "{name} is not damaged; nothing of it need be given up"
                    )));
                }
            }
        }
        inner.publish()?;
        tracing::warn!(name, "a damaged segment was given up; its points are lost");
        inner.quarantined_no_more(name);
        Ok(())
    }

    /// What it holds, what it uses, and what is wrong with it.
    pub fn status(&self) -> Status {
        status::of(&self.inner)
    }
}

impl std::fmt::Debug for Collection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collection").field("medium", &self.inner.medium).finish_non_exhaustive()
    }
}
