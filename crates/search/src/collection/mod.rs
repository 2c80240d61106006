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
//! codes) and of all memtables, and then ranks the best candidates with a scorer. All reads of one
//! request use one state (`in_slice`), so the score, the payload and the embedding of a hit are of
//! the same version.
//!
//! # Recovery
//! The manifest lists the files of the collection. All other files are removed and the logs are
//! replayed, so every acknowledged change is present. Segments are opened afterwards, one by one.
//! Results are marked as partial until all are open, and if one is damaged. Deletes of rows of a
//! segment that is not open are kept as pending deletes, in a file of their own if necessary.
//! `progress` records how far each log was durable, so a truncated or missing log is not mistaken
//! for an empty one. Points whose changes are lost are reported as unknown, and their old versions
//! are not served.
//!
//! # Copies
//! A backup or a copy pins the files of one published state (`pin`). Pinned files are removed only
//! after they were read. Segments and deletes are checked while they are read (`pinned_reader`).
//!
//! # Full disk
//! Changes are refused while less than a reserve is free (`disk`). Stored points are still served.
//!
//! # Invariant
//! An acknowledged change is either in a log that the published list covers or in a file that the
//! list names. A file that a list names is removed only after two newer lists are durable. Memory
//! never exceeds the budget.

mod batch;
mod best;
mod codes;
mod deferred;
mod disk;
mod edge_votes;
mod exact;
mod facet;
mod fields;
mod filters;
mod flush;
mod helpers;
mod inner;
mod live_rows;
mod lookup;
mod manifest;
mod merge;
mod names;
mod optimizer_work;
mod options;
mod order;
mod pin;
mod pinned_reader;
mod points_pass;
mod preload;
mod prints;
mod progress;
mod publish;
mod quiet;
mod random;
mod recover;
mod resources;
mod scan;
mod score_points;
mod search;
mod slice_progress;
mod stall;
mod state;
mod status;
mod walk;
mod write;

use base::{Error, Result};
use coarse::CoarseScratch;
use matching::index::EdgeScratch;
use storage::{MediumKind, ReaderGroup};

use self::names::CollectionFile;
use self::stall::Urgency;
use self::state::{PointLocation, SegmentContent};
use self::write::RoomPolicy;
use crate::ingest::{Op, PointRef, StoredPoint};
use crate::rerank::{SearchLimits, Searcher};
use crate::segment::{PageCache, reader_options};

pub use best::{QueryHit, QueryHits};
pub(crate) use disk::check_room_to_create;
pub use facet::{Facet, FacetValue};
pub use fields::{FieldType, IndexedField};
pub use filters::FilterStats;
pub(crate) use helpers::{HelpWork, Helpers};
pub use inner::Collection;
pub use lookup::{IDS_MAX, IdList, PointCount, PointParts};
pub use optimizer_work::OptimizerWork;
pub use options::{
    CANDIDATES_MAX, CollectionOptions, CollectionShape, Merging, PRINT_CANDIDATES_MAX, QuietTimes,
};
pub(crate) use options::{PAYLOAD_BYTES_MAX, SHARED_VALUES_MIN};
pub use order::{OrderValue, OrderedPoint, OrderedPoints, PointOrder};
pub use pin::{FileRole, PinnedFile, PinnedFiles};
pub(crate) use pin::{is_file_name, publish_copy};
pub use pinned_reader::PinnedReader;
pub use prints::PrintQuery;
pub use random::RandomPoints;
pub use resources::Resources;
pub use scan::{SLICE_MAX, SliceOutcome, forget_progress, ignore_deadline, in_slice, until};
pub(crate) use scan::{begin_change, keep_long_filters, on_one_state};
pub use search::{CollectionQuery, SearchThread};
pub use slice_progress::SliceProgress;
pub use stall::StallStats;
pub use status::{SegmentStatus, Status};
pub(crate) use walk::{WalkPosition, WalkStep, WalkedPoint};
pub use write::Applied;

impl Collection {
    /// Stops background work for good. Queries still work. Call this before files are removed.
    pub fn close(&self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.record_progress_now();
        self.events.notify();
    }

    /// Adds a point, or replaces the point of the same id. Durable when this returns.
    ///
    /// # Errors
    /// `InvalidArgument` or `TooLarge` for a point that does not fit the collection.
    /// `ResourceExhausted` if memory has no room, with advice, and with a retry delay if retrying
    /// may help. `FailedPrecondition` if a segment that cannot be opened has too many pending
    /// deletes. Otherwise the error of the medium. After an error the change may or may not have
    /// been made.
    pub fn upsert(&self, point: PointRef<'_>) -> Result<()> {
        self.write(&[Op::Upsert(point)])
    }

    /// Deletes the point of this id, if there is one.
    ///
    /// # Errors
    /// As [`Collection::upsert`].
    pub fn delete(&self, id: u64) -> Result<()> {
        self.write(&[Op::Delete(id)])
    }

    /// Returns the point of this id, or `None` if there is none.
    ///
    /// # Errors
    /// `DataLoss` if the point, or the data that shows if it exists, is damaged. `Unavailable` if a
    /// segment that may hold it is still being opened.
    pub fn get(&self, id: u64) -> Result<Option<StoredPoint>> {
        let state = self.read_state();
        match state.find(id) {
            None => state.unknown_existence(id).map_or(Ok(None), Err),
            Some(PointLocation::Memtable(row)) => Ok(Some(StoredPoint {
                id,
                embedding: row.embedding.to_vec(),
                record: row.record.to_vec(),
                payload: row.payload.to_vec(),
            })),
            Some(PointLocation::Segment(view, row)) => {
                let mut point = StoredPoint { id, ..StoredPoint::default() };
                let mut cache = PageCache::of_request(1);
                view.segment.vector(row, &mut point.embedding)?;
                view.segment.record(row, &mut cache, &mut point.record)?;
                view.segment.payload(row, &mut cache, &mut point.payload)?;
                Ok(Some(point))
            }
        }
    }

    /// Makes several changes in order and returns a handle that waits until they are durable. A
    /// caller that keeps changes in order with a lock can release the lock before that wait.
    ///
    /// # Errors
    /// As [`Collection::upsert`].
    pub fn apply(&self, changes: &[Op<'_>]) -> Result<Applied> {
        self.apply_in(changes, RoomPolicy::Wait)
    }

    /// Makes several changes like [`Collection::apply`], but fails at once if memory has no room,
    /// and does not escalate the flush. For background callers. Changes before the refused one
    /// have been made and are durable.
    ///
    /// # Errors
    /// As [`Collection::upsert`].
    pub fn try_apply(&self, changes: &[Op<'_>]) -> Result<Applied> {
        self.apply_in(changes, RoomPolicy::Refuse)
    }

    /// Returns the technology of its medium.
    pub fn medium_kind(&self) -> MediumKind {
        self.medium.kind()
    }

    /// Returns the number of live points.
    pub fn count(&self) -> u64 {
        self.read_state().live()
    }

    /// Returns the group of the readers of its medium.
    pub(crate) fn reader_group(&self) -> Option<ReaderGroup> {
        self.medium.reader_group()
    }

    /// Creates the readers and the working memory of one search thread.
    ///
    /// # Errors
    /// The error of the medium. `InvalidArgument` for invalid limits.
    pub fn thread(&self, limits: SearchLimits) -> Result<SearchThread> {
        let medium = &self.medium;
        let reader = medium.reader(limits.reader_options())?;
        let vectors = medium.reader(reader_options(self.options.shape.dims))?;
        let searcher = Searcher::new(reader, limits, self.caches.clone())?;
        Ok(SearchThread {
            scratch: CoarseScratch::default(),
            hits: Vec::new(),
            edges: EdgeScratch::default(),
            searcher,
            vectors,
            codes: None,
            helpers: None,
        })
    }

    /// Flushes the oldest frozen memtable. If there is none and the log has failed, freezes the
    /// active one, which the next call flushes. Returns false if there is nothing to do.
    ///
    /// # Errors
    /// The error of the medium. No point is lost.
    pub fn flush_oldest(&self) -> Result<bool> {
        self.flush_once(Urgency::Paced)
    }

    /// Returns the bytes of memory that unflushed points take.
    pub(crate) fn unflushed_bytes(&self) -> u64 {
        self.state().memtables.iter().map(|memtable| memtable.bytes()).sum()
    }

    /// Freezes the active memtable, so that it can be flushed before it is full. Used if memory is
    /// short. Returns false, and does nothing, if a frozen memtable already waits or if the active
    /// one is empty.
    ///
    /// # Errors
    /// The error of the medium.
    pub fn freeze(&self) -> Result<bool> {
        let mut writer = self.writer.lock();
        let wait = {
            let live = self.live.lock();
            live.state.memtables.len() > 1 || live.active().rows() == 0
        };
        if wait { Ok(false) } else { self.freeze_active(&mut writer).map(|()| true) }
    }

    /// Flushes all memtables and waits for the result.
    ///
    /// # Errors
    /// The error of the medium. No point is lost.
    pub fn flush(&self) -> Result<()> {
        self.flush_down_to(1)?;
        {
            let mut writer = self.writer.lock();
            let empty = self.live.lock().active().rows() == 0;
            let unlogged = writer.logs.last().is_none_or(|(_, log)| log.next() <= 1);
            if empty && unlogged {
                return Ok(());
            }
            self.freeze_active(&mut writer)?;
        }
        self.flush_down_to(1)
    }

    /// Runs the most useful merge on this thread, at a limited rate. Returns false if none is due.
    ///
    /// # Errors
    /// The error of the medium. No point is lost.
    pub fn merge(&self) -> Result<bool> {
        self.merge_once(Urgency::Paced)
    }

    /// Abandons a segment that cannot be opened or has lost pages, or a damaged log. Removes its
    /// file. Its points or changes are lost for good, and results are no longer partial for it.
    ///
    /// # Errors
    /// `NotFound` if there is no such file, `FailedPrecondition` for a segment that is whole or
    /// still being opened. Otherwise the error of the medium. After an error of the medium, a
    /// segment is dropped in memory, and the next flush makes that durable.
    pub fn abandon(&self, name: &str) -> Result<()> {
        if let Some(CollectionFile::Log(number)) = CollectionFile::of(name) {
            return self.abandon_log(number);
        }
        let served = {
            let mut live = self.live.lock();
            let slot = live
                .state
                .segments
                .iter()
                .find(|slot| CollectionFile::Segment(slot.number).name() == name);
            let slot =
                slot.ok_or_else(|| Error::not_found(format!("there is no segment {name}")))?;
            let number = slot.number;
            let served = match &slot.content {
                SegmentContent::Closed(closed) if closed.reason.is_some() => None,
                SegmentContent::Open(view) if view.loses_data() => Some(view.segment.clone()),
                _ => {
                    return Err(Error::precondition(format!(
                        "{name} is not damaged, so it cannot be dropped"
                    )));
                }
            };
            // A merge that has chosen the segment ends without effect.
            live.merged(&[number], None);
            served
        };
        let published = self.publish();
        tracing::warn!(name, "a damaged segment was dropped; its points are lost");
        if let Some(segment) = served {
            self.retire(vec![segment]);
        }
        self.unquarantine(name);
        published
    }

    /// Returns the content, resource use and damage of the collection.
    pub fn status(&self) -> Status {
        status::of(self)
    }
}

impl std::fmt::Debug for Collection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collection").field("medium", &self.medium).finish_non_exhaustive()
    }
}
