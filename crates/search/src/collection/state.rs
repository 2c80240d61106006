//! State of a collection at one moment, and the changes that modify it.
//!
//! A query takes the current [`CollectionState`] and keeps it, so it sees the points that existed
//! when it began. A writer copies only data that others still hold, which is a list of pointers and
//! at most one chunk of a bitmap.
//!
//! Rule: an id is live in at most one place, and the newest change decides where.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind};
use coarse::RowSet;

use super::live_rows::LiveRows;
use super::names::CollectionFile;
use crate::budget::BudgetReservation;
use crate::deletes::{Deletes, PENDING_DELETES_MAX};
use crate::ingest::{Memtable, MemtableRow, RowBlock};
use crate::segment::{Quarantined, Segment, SegmentIds};

/// Retry delay for callers while segments are being opened.
const OPENING_RETRY: Duration = Duration::from_secs(1);

/// Points of a collection at one moment.
#[derive(Clone, Debug)]
pub(super) struct CollectionState {
    pub(super) segments: Vec<SegmentSlot>,
    /// Memtables with unflushed points, oldest first. The last one takes new points.
    pub(super) memtables: Vec<Arc<Memtable>>,
    /// Points of which a change is lost, with the log that lost it. They are deleted too, so that
    /// no older version is served. Writing or deleting such a point makes it known again.
    pub(super) unknown: Arc<HashMap<u64, u64>>,
    /// Logs that lost changes of unknown points.
    pub(super) doubtful: Arc<BTreeSet<u64>>,
}

/// Segment of a state, open or not.
#[derive(Clone, Debug)]
pub(super) struct SegmentSlot {
    pub(super) number: u64,
    pub(super) uuid: [u8; 16],
    pub(super) rows: u32,
    pub(super) content: SegmentContent,
}

/// Data of a segment in a state.
#[derive(Clone, Debug)]
pub(super) enum SegmentContent {
    Open(SegmentView),
    /// Not open yet, or cannot be opened.
    Closed(ClosedSegment),
}

/// Open segment and its deleted rows.
#[derive(Clone, Debug)]
pub(super) struct SegmentView {
    pub(super) segment: Arc<Segment>,
    pub(super) deletes: Arc<Deletes>,
    live_rows: Arc<LiveRows>,
}

/// Segment whose rows cannot be read.
#[derive(Clone, Debug, Default)]
pub(super) struct ClosedSegment {
    /// Reason why the segment is not served, or `None` while it is being opened.
    pub(super) reason: Option<Quarantined>,
    /// Error of the last attempt to open the segment. Opening is retried.
    pub(super) delayed: Option<Error>,
    /// Ids that were replaced or deleted since it was last open.
    pub(super) pending_deletes: Arc<HashSet<u64>>,
    /// Ids of the rows, if the segment cannot be opened but its ids can be read.
    pub(super) known: Option<Arc<KnownIds>>,
}

/// Ids of a segment that is not served.
#[derive(Debug)]
pub(super) struct KnownIds {
    pub(super) ids: SegmentIds,
    pub(super) _held: BudgetReservation,
}

impl ClosedSegment {
    /// Returns true if the segment may hold a point of this id.
    fn may_have(&self, id: u64) -> bool {
        self.known.as_ref().is_none_or(|known| known.ids.find(id).is_some())
    }

    /// Returns the error for a read of its points.
    fn unreadable_error(&self, slot: &SegmentSlot) -> Error {
        let name = CollectionFile::Segment(slot.number).name();
        let later = |why: String| {
            Error::unavailable(format!("{name} {why}")).with_retry_after(OPENING_RETRY)
        };
        match (&self.reason, &self.delayed) {
            (Some(reason), _) => {
                Error::data_loss(format!("points may be in data that is not served: {reason}"))
            }
            (None, Some(error)) => later(format!("cannot be opened yet: {error}")),
            (None, None) => later("is still being opened".into()),
        }
    }

    /// Records the delete of a point that the segment may hold.
    fn add_pending_delete(&mut self, id: u64) {
        // Other states may share the ids, and copying them is slow.
        if self.may_have(id) && !self.pending_deletes.contains(&id) {
            Arc::make_mut(&mut self.pending_deletes).insert(id);
        }
    }
}

impl SegmentView {
    pub(super) fn new(segment: Arc<Segment>, deletes: Arc<Deletes>) -> SegmentView {
        let live_rows = Arc::new(LiveRows::new(segment.budget().clone()));
        SegmentView { segment, deletes, live_rows }
    }

    /// Returns the live rows, or `None` if no row is deleted.
    pub(super) fn allowed(&self) -> Option<&Arc<RowSet>> {
        (self.deletes.count() > 0).then(|| self.live_rows.get(&self.deletes))
    }

    /// Frees spare bitmaps of live rows if no query requested one for `age`.
    pub(super) fn drop_unused_rows(&self, age: Duration) {
        self.live_rows.drop_unused(age);
    }

    pub(super) fn live(&self) -> u32 {
        self.deletes.rows() - self.deletes.count()
    }

    /// Returns the live row of an id.
    pub(super) fn find(&self, id: u64) -> Option<u32> {
        self.segment.ids().find(id).filter(|&row| !self.deletes.contains(row))
    }

    pub(super) fn mark_deleted(&mut self, row: u32) {
        if Arc::make_mut(&mut self.deletes).insert(row) {
            LiveRows::delete(&mut self.live_rows, row, &self.deletes);
        }
    }

    /// Returns true if part of the segment is not served.
    pub(super) fn is_damaged(&self) -> bool {
        self.deletes.has_unknown() || !self.segment.damaged().is_empty()
    }

    /// Returns true if a copy of the segment would make a loss permanent.
    pub(super) fn loses_data(&self) -> bool {
        self.deletes.has_unknown() || self.segment.loses_data()
    }
}

impl SegmentSlot {
    pub(super) fn view(&self) -> Option<&SegmentView> {
        match &self.content {
            SegmentContent::Open(view) => Some(view),
            SegmentContent::Closed(_) => None,
        }
    }
}

impl CollectionState {
    /// Returns the open segments with their positions in the list.
    pub(super) fn open(&self) -> impl Iterator<Item = (usize, &SegmentSlot, &SegmentView)> {
        let slots = self.segments.iter().enumerate();
        slots.filter_map(|(place, slot)| slot.view().map(|view| (place, slot, view)))
    }

    /// Returns the views of the segments `numbers`, in their order, or `None` if one is not open.
    pub(super) fn views(&self, numbers: &[u64]) -> Option<Vec<&SegmentView>> {
        let view = |number: &u64| {
            self.segments.iter().find(|slot| slot.number == *number).and_then(SegmentSlot::view)
        };
        numbers.iter().map(view).collect()
    }

    /// Counts the live points.
    pub(super) fn live(&self) -> u64 {
        let flushed: u64 = self.open().map(|(_, _, view)| u64::from(view.live())).sum();
        let unflushed: u64 = self
            .memtables
            .iter()
            .map(|memtable| u64::from(memtable.rows() - memtable.deleted()))
            .sum();
        flushed + unflushed
    }

    /// Returns the reason why some points may not be readable now.
    pub(super) fn unreadable_points_error(&self) -> Option<Error> {
        let closed = |slot: &SegmentSlot| match &slot.content {
            SegmentContent::Closed(closed) => Some(closed.unreadable_error(slot)),
            SegmentContent::Open(_) => None,
        };
        let mut errors = self.segments.iter().filter_map(closed);
        let first = errors.next()?;
        // A temporary error is reported only if there is no permanent one.
        let lasting = errors.find(|error| error.kind() == ErrorKind::DataLoss);
        Some(if first.kind() == ErrorKind::DataLoss { first } else { lasting.unwrap_or(first) })
    }

    /// Returns true if points may be missing.
    pub(super) fn is_partial(&self) -> bool {
        self.segments.iter().any(|slot| slot.view().is_none_or(|view| view.deletes.has_unknown()))
    }

    /// Returns the memtable and the row of an unflushed point.
    fn find_unflushed(&self, id: u64) -> Option<(usize, u32)> {
        let memtables = self.memtables.iter().enumerate().rev();
        let mut rows = memtables.filter_map(|(at, memtable)| Some((at, memtable.find(id)?)));
        rows.next()
    }

    /// Returns the place of a point.
    pub(super) fn find(&self, id: u64) -> Option<PointLocation> {
        if let Some((memtable, row)) = self.find_unflushed(id) {
            return self.memtables[memtable].row(row).cloned().map(PointLocation::Memtable);
        }
        let mut views = self.open().map(|(_, _, view)| view);
        views.find_map(|view| view.find(id).map(|row| PointLocation::Segment(view.clone(), row)))
    }

    /// Returns the reason why a point that [`CollectionState::find`] does not return may still
    /// exist, or `None` if it certainly does not exist.
    pub(super) fn unknown_existence(&self, id: u64) -> Option<Error> {
        if let Some(&log) = self.unknown.get(&id) {
            let name = CollectionFile::Log(log).name();
            return Some(Error::data_loss(format!(
                "{name}: a change of point {id} is lost; write the point again, or drop the log with \
                 DELETE /collections/NAME/segments/{name}"
            )));
        }
        self.unknown_existence_in_segments(id).or_else(|| {
            let name = CollectionFile::Log(*self.doubtful.first()?).name();
            Some(Error::data_loss(format!(
                "{name}: changes of unknown points are lost, {id} may be one of them; write the \
                 point again, or drop the log with DELETE /collections/NAME/segments/{name}"
            )))
        })
    }

    /// Returns the reason why a segment that is not open or is damaged may have the point.
    fn unknown_existence_in_segments(&self, id: u64) -> Option<Error> {
        self.segments.iter().find_map(|slot| {
            let name = || CollectionFile::Segment(slot.number).name();
            match &slot.content {
                SegmentContent::Open(view) => {
                    let unknown =
                        view.segment.ids().find(id).is_some_and(|row| view.deletes.is_unknown(row));
                    unknown.then(|| {
                        Error::data_loss(format!(
                            "{}: it is not known if it has point {id}",
                            name()
                        ))
                    })
                }
                SegmentContent::Closed(closed)
                    if closed.pending_deletes.contains(&id) || !closed.may_have(id) =>
                {
                    None
                }
                SegmentContent::Closed(closed) => {
                    Some(closed.unreadable_error(slot).context(format_args!("point {id}")))
                }
            }
        })
    }
}

/// Place of a point.
pub(super) enum PointLocation {
    Memtable(Arc<MemtableRow>),
    Segment(SegmentView, u32),
}

/// Current state, and its changes.
#[derive(Debug)]
pub(super) struct LiveState {
    pub(super) state: Arc<CollectionState>,
}

impl LiveState {
    pub(super) fn new(segments: Vec<SegmentSlot>, log: u64) -> LiveState {
        let state = CollectionState {
            segments,
            memtables: vec![Arc::new(Memtable::new(log))],
            unknown: Arc::default(),
            doubtful: Arc::default(),
        };
        LiveState { state: Arc::new(state) }
    }

    /// Replaces the only memtable, which is empty, by one whose changes are in the log `log`.
    pub(super) fn restart(&mut self, log: u64) {
        Arc::make_mut(&mut self.state).memtables = vec![Arc::new(Memtable::new(log))];
    }

    /// Returns the memtable that takes new points.
    pub(super) fn active(&self) -> &Memtable {
        // There is always one, because a flush removes only frozen memtables.
        &self.state.memtables[self.state.memtables.len() - 1]
    }

    /// Returns a segment that is not open and has room for no more pending deletes.
    pub(super) fn full_pending_deletes(&self) -> Option<&SegmentSlot> {
        let full = |slot: &&SegmentSlot| match &slot.content {
            SegmentContent::Closed(closed) => closed.pending_deletes.len() >= PENDING_DELETES_MAX,
            SegmentContent::Open(_) => false,
        };
        self.state.segments.iter().find(full)
    }

    /// Replaces the point of the row's id. Returns the block that the row completed, for
    /// [`RowBlock::sketch`], which should not run under a lock that queries wait for.
    pub(super) fn upsert(&mut self, row: MemtableRow) -> Option<Arc<RowBlock>> {
        self.delete(row.id);
        let state = Arc::make_mut(&mut self.state);
        let memtable = Arc::make_mut(state.memtables.last_mut()?);
        memtable.push(Arc::new(row));
        memtable.completed()
    }

    /// Marks a point as unknown because a change of it is lost with `log`.
    pub(super) fn mark_unknown(&mut self, id: u64, log: u64) {
        self.delete(id);
        self.change_unknown(|unknown| {
            unknown.insert(id, log);
        });
    }

    /// Changes the points of which a change is lost.
    pub(super) fn change_unknown(&mut self, change: impl FnOnce(&mut HashMap<u64, u64>)) {
        change(Arc::make_mut(&mut Arc::make_mut(&mut self.state).unknown));
    }

    /// Changes the logs that lost changes of unknown points.
    pub(super) fn change_doubtful(&mut self, change: impl FnOnce(&mut BTreeSet<u64>)) {
        change(Arc::make_mut(&mut Arc::make_mut(&mut self.state).doubtful));
    }

    /// Deletes a point. If it is in no memtable and no open segment, it becomes a pending delete of
    /// each segment that is not open.
    pub(super) fn delete(&mut self, id: u64) {
        if self.state.unknown.contains_key(&id) {
            self.change_unknown(|unknown| {
                unknown.remove(&id);
            });
        }
        let unflushed = self.state.find_unflushed(id);
        let state = Arc::make_mut(&mut self.state);
        if let Some((memtable, row)) = unflushed {
            Arc::make_mut(&mut state.memtables[memtable]).mark_deleted(row);
            return;
        }
        let flushed = state.segments.iter_mut().find_map(|slot| match &mut slot.content {
            SegmentContent::Open(view) => view.find(id).map(|row| (view, row)),
            SegmentContent::Closed(_) => None,
        });
        if let Some((view, row)) = flushed {
            view.mark_deleted(row);
            return;
        }
        for slot in &mut state.segments {
            if let SegmentContent::Closed(closed) = &mut slot.content {
                closed.add_pending_delete(id);
            }
        }
    }

    /// Freezes the active memtable and starts a new one.
    pub(super) fn freeze(&mut self, log: u64) {
        Arc::make_mut(&mut self.state).memtables.push(Arc::new(Memtable::new(log)));
    }

    /// Replaces the oldest memtable by a segment, or by nothing if it had no live rows.
    pub(super) fn flushed(&mut self, slot: Option<SegmentSlot>) {
        let state = Arc::make_mut(&mut self.state);
        state.segments.extend(slot);
        state.memtables.remove(0);
    }

    /// Replaces the segments with the numbers `old` by one segment, or by none.
    pub(super) fn merged(&mut self, old: &[u64], slot: Option<SegmentSlot>) {
        let state = Arc::make_mut(&mut self.state);
        let place = state.segments.iter().position(|slot| old.contains(&slot.number)).unwrap_or(0);
        state.segments.retain(|slot| !old.contains(&slot.number));
        if let Some(slot) = slot {
            state.segments.insert(place.min(state.segments.len()), slot);
        }
    }

    /// Replaces an open segment by the same one with its codes in another place. Returns false if
    /// it is not in the state any more.
    pub(super) fn replaced(&mut self, old: &Arc<Segment>, new: Arc<Segment>) -> bool {
        let state = Arc::make_mut(&mut self.state);
        let mut views = state.segments.iter_mut().filter_map(|slot| match &mut slot.content {
            SegmentContent::Open(view) => Some(view),
            SegmentContent::Closed(_) => None,
        });
        let view = views.find(|view| Arc::ptr_eq(&view.segment, old));
        view.map(|view| view.segment = new).is_some()
    }

    /// Sets the ids to delete from a segment once it is open.
    pub(super) fn set_pending_deletes(&mut self, number: u64, pending_deletes: Arc<HashSet<u64>>) {
        if let Some(closed) = self.closed(number) {
            closed.pending_deletes = pending_deletes;
        }
    }

    /// Records that a segment could not be opened yet.
    pub(super) fn delayed(&mut self, number: u64, error: Error) {
        if let Some(closed) = self.closed(number) {
            closed.delayed = Some(error);
        }
    }

    fn closed(&mut self, number: u64) -> Option<&mut ClosedSegment> {
        let state = Arc::make_mut(&mut self.state);
        let slot = state.segments.iter_mut().find(|slot| slot.number == number)?;
        match &mut slot.content {
            SegmentContent::Closed(closed) => Some(closed),
            SegmentContent::Open(_) => None,
        }
    }

    /// Records that a segment was opened, or the reason why it never will be, with its ids if
    /// known. Applies its pending deletes.
    pub(super) fn opened(
        &mut self,
        number: u64,
        outcome: Result<SegmentView, (Quarantined, Option<Arc<KnownIds>>)>,
    ) {
        let state = Arc::make_mut(&mut self.state);
        let Some(slot) = state.segments.iter_mut().find(|slot| slot.number == number) else {
            return;
        };
        let SegmentContent::Closed(closed) = &mut slot.content else { return };
        match outcome {
            Err((reason, known)) => {
                closed.reason = Some(reason);
                closed.known = known;
                if let Some(known) = &closed.known
                    && closed.pending_deletes.iter().any(|id| known.ids.find(*id).is_none())
                {
                    Arc::make_mut(&mut closed.pending_deletes)
                        .retain(|id| known.ids.find(*id).is_some());
                }
            }
            Ok(mut view) => {
                for &id in closed.pending_deletes.iter() {
                    if let Some(row) = view.find(id) {
                        view.mark_deleted(row);
                    }
                }
                slot.content = SegmentContent::Open(view);
            }
        }
    }
}
