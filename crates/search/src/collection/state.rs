//! What a collection is at one moment, and how a change changes it.
//!
//! A query takes the current [`CollectionState`] and keeps it: whatever is written, sealed or merged meanwhile, it sees the points
//! that were there when it began. Whoever changes the state copies what somebody else still holds, which is a list of
//! pointers and at most one chunk of a bitmap.
//!
//! The rule behind everything: an id is alive in at most one place, and the newest change decides where.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{Error, ErrorKind};

use super::names::CollectionFile;
use crate::budget::BudgetReservation;
use crate::deletes::{Deletes, PENDING_DELETES_MAX};
use crate::filter::RowSet;
use crate::ingest::{Memtable, MemtableRow, RowBlock};
use crate::segment::{Quarantined, Segment, SegmentIds};

/// When a caller is advised to come again while segments are being opened.
const OPENING_RETRY: Duration = Duration::from_secs(1);

/// The points of a collection as they were at one moment.
#[derive(Clone, Debug)]
pub(super) struct CollectionState {
    pub(super) segments: Vec<SegmentSlot>,
    /// Points that are not sealed, oldest part first; the last takes what is written.
    pub(super) memtables: Vec<Arc<Memtable>>,
}

/// One segment of a state.
#[derive(Clone, Debug)]
pub(super) struct SegmentSlot {
    pub(super) number: u64,
    pub(super) uuid: [u8; 16],
    pub(super) rows: u32,
    pub(super) content: SegmentContent,
}

#[derive(Clone, Debug)]
pub(super) enum SegmentContent {
    Open(SegmentView),
    /// Still to be opened, or never to be.
    Closed(ClosedSegment),
}

/// An open segment and what is gone of it.
#[derive(Clone, Debug)]
pub(super) struct SegmentView {
    pub(super) segment: Arc<Segment>,
    pub(super) deletes: Arc<Deletes>,
    /// The rows that are not gone, made when it is first asked for.
    allowed: Arc<OnceLock<Option<Arc<RowSet>>>>,
}

/// A segment that cannot be asked for its rows.
#[derive(Clone, Debug, Default)]
pub(super) struct ClosedSegment {
    /// Why; `None` while it is being opened.
    pub(super) reason: Option<Quarantined>,
    /// Why it could not be opened yet; it is tried again.
    pub(super) delayed: Option<Error>,
    /// Ids that were replaced or removed since.
    pub(super) pending_deletes: Arc<HashSet<u64>>,
    /// The ids it has, where it cannot be opened and they can be read.
    pub(super) known: Option<Arc<KnownIds>>,
}

/// The ids of a segment that is not served.
#[derive(Debug)]
pub(super) struct KnownIds {
    pub(super) ids: SegmentIds,
    /// The memory they take.
    pub(super) _held: BudgetReservation,
}

impl ClosedSegment {
    /// Whether the segment may have a point of this id.
    fn may_have(&self, id: u64) -> bool {
        self.known.as_ref().is_none_or(|known| known.ids.find(id).is_some())
    }

    /// Why its points cannot be asked for.
    fn unseen(&self, slot: &SegmentSlot) -> Error {
        let name = CollectionFile::Segment(slot.number).name();
        let later = |why: String| Error::unavailable(format!("{name} {why}")).with_retry_after(OPENING_RETRY);
        match (&self.reason, &self.delayed) {
            (Some(reason), _) => Error::data_loss(format!("points may be in what is not served: {reason}")),
            (None, Some(error)) => later(format!("cannot be opened yet: {error}")),
            (None, None) => later("is still being opened".into()),
        }
    }

    /// The point of this id, should the segment have one, is gone.
    fn forget(&mut self, id: u64) {
        // Others may hold the ids as they are, and to copy them takes long.
        if self.may_have(id) && !self.pending_deletes.contains(&id) {
            Arc::make_mut(&mut self.pending_deletes).insert(id);
        }
    }
}

impl SegmentView {
    pub(super) fn new(segment: Arc<Segment>, deletes: Arc<Deletes>) -> SegmentView {
        SegmentView { segment, deletes, allowed: Arc::default() }
    }

    /// The rows that are not gone; `None` where that is all of them.
    pub(super) fn allowed(&self) -> Option<&Arc<RowSet>> {
        let make = || {
            let gone = &self.deletes;
            let words = || gone.words().map(|word| !word).collect();
            (gone.count() > 0).then(|| Arc::new(RowSet::from_words(gone.rows(), words())))
        };
        self.allowed.get_or_init(make).as_ref()
    }

    pub(super) fn live(&self) -> u32 {
        self.deletes.rows() - self.deletes.count()
    }

    /// The row of an id, where it is not gone.
    pub(super) fn find(&self, id: u64) -> Option<u32> {
        self.segment.ids().find(id).filter(|&row| !self.deletes.contains(row))
    }

    /// Marks a row as gone.
    pub(super) fn mark_deleted(&mut self, row: u32) {
        Arc::make_mut(&mut self.deletes).insert(row);
        // Others may still use the old filter.
        self.allowed = Arc::default();
    }

    /// Whether something of it is not served.
    pub(super) fn is_damaged(&self) -> bool {
        self.deletes.has_unknown() || !self.segment.damaged().is_empty()
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
    /// The open segments, with their places in the list.
    pub(super) fn open(&self) -> impl Iterator<Item = (usize, &SegmentSlot, &SegmentView)> {
        let slots = self.segments.iter().enumerate();
        slots.filter_map(|(place, slot)| slot.view().map(|view| (place, slot, view)))
    }

    /// Points that can be found.
    pub(super) fn live(&self) -> u64 {
        let sealed: u64 = self.open().map(|(_, _, view)| u64::from(view.live())).sum();
        let fresh: u64 =
            self.memtables.iter().map(|memtable| u64::from(memtable.rows() - memtable.deleted())).sum();
        sealed + fresh
    }

    /// Why there may be points that cannot be asked for now.
    pub(super) fn unseen(&self) -> Option<Error> {
        let closed = |slot: &SegmentSlot| match &slot.content {
            SegmentContent::Closed(closed) => Some(closed.unseen(slot)),
            SegmentContent::Open(_) => None,
        };
        let mut errors = self.segments.iter().filter_map(closed);
        let first = errors.next()?;
        // What passes by itself is said only where nothing does not.
        let lasting = errors.find(|error| error.kind() == ErrorKind::DataLoss);
        Some(if first.kind() == ErrorKind::DataLoss { first } else { lasting.unwrap_or(first) })
    }

    /// Whether some points may be missing from it.
    pub(super) fn is_partial(&self) -> bool {
        self.segments.iter().any(|slot| slot.view().is_none_or(|view| view.deletes.has_unknown()))
    }
}

/// Where a point is.
pub(super) enum PointLocation {
    Memtable(Arc<MemtableRow>),
    Segment(SegmentView, u32),
}

/// The current state, and the tables that only writers and look-ups by id need.
#[derive(Debug)]
pub(super) struct LiveState {
    pub(super) state: Arc<CollectionState>,
    /// For each part of the state: the newest row of an id.
    pub(super) tables: Vec<HashMap<u64, u32>>,
    /// Points of which a change is lost, and the log that lost it. They are removed as well: an older state of theirs is
    /// served nowhere. Whoever writes or removes such a point ends the doubt.
    pub(super) unknown: HashMap<u64, u64>,
    /// Logs that lost changes of points that are not known.
    pub(super) doubtful: BTreeSet<u64>,
}

impl LiveState {
    pub(super) fn new(segments: Vec<SegmentSlot>, log: u64) -> LiveState {
        let state = CollectionState { segments, memtables: vec![Arc::new(Memtable::new(log))] };
        let (unknown, doubtful) = (HashMap::new(), BTreeSet::new());
        LiveState { state: Arc::new(state), tables: vec![HashMap::new()], unknown, doubtful }
    }

    /// The part that takes what is written.
    pub(super) fn active(&self) -> &Memtable {
        // There is always at least one: sealing removes only those before it.
        &self.state.memtables[self.state.memtables.len() - 1]
    }

    /// Whether a segment that is not open has no room for more ids.
    pub(super) fn full_pending_deletes(&self) -> Option<&SegmentSlot> {
        let full = |slot: &&SegmentSlot| match &slot.content {
            SegmentContent::Closed(closed) => closed.pending_deletes.len() >= PENDING_DELETES_MAX,
            SegmentContent::Open(_) => false,
        };
        self.state.segments.iter().find(full)
    }

    /// A new point takes the place of the one of its id. Gives the block that it completed, for [`RowBlock::sketch`], which need not
    /// be done under a lock that queries wait for.
    pub(super) fn upsert(&mut self, row: MemtableRow) -> Option<Arc<RowBlock>> {
        self.delete(row.id);
        let id = row.id;
        let state = Arc::make_mut(&mut self.state);
        let (memtable, table) = (state.memtables.last_mut()?, self.tables.last_mut()?);
        let memtable = Arc::make_mut(memtable);
        table.insert(id, memtable.push(Arc::new(row)));
        memtable.completed()
    }

    /// A change of the point of an id is lost with a part of `log`.
    pub(super) fn lose(&mut self, id: u64, log: u64) {
        self.delete(id);
        self.unknown.insert(id, log);
    }

    /// The point of an id is gone.
    pub(super) fn delete(&mut self, id: u64) {
        self.unknown.remove(&id);
        let fresh = self.fresh(id);
        let state = Arc::make_mut(&mut self.state);
        if let Some((memtable, row)) = fresh {
            Arc::make_mut(&mut state.memtables[memtable]).mark_deleted(row);
            return;
        }
        let sealed = state.segments.iter_mut().find_map(|slot| match &mut slot.content {
            SegmentContent::Open(view) => view.find(id).map(|row| (view, row)),
            SegmentContent::Closed(_) => None,
        });
        if let Some((view, row)) = sealed {
            view.mark_deleted(row);
            return;
        }
        for slot in &mut state.segments {
            if let SegmentContent::Closed(closed) = &mut slot.content {
                closed.forget(id);
            }
        }
    }

    fn fresh(&self, id: u64) -> Option<(usize, u32)> {
        let tables = self.tables.iter().enumerate().rev();
        let mut rows = tables.filter_map(|(memtable, table)| table.get(&id).map(|&row| (memtable, row)));
        rows.find(|&(memtable, row)| !self.state.memtables[memtable].is_deleted(row))
    }

    /// Where the point of an id is.
    pub(super) fn find(&self, id: u64) -> Option<PointLocation> {
        if let Some((memtable, row)) = self.fresh(id) {
            return self.state.memtables[memtable].row(row).cloned().map(PointLocation::Memtable);
        }
        let mut views = self.state.open().map(|(_, _, view)| view);
        views.find_map(|view| view.find(id).map(|row| PointLocation::Segment(view.clone(), row)))
    }

    /// Why nobody can say whether there is a point of an id that [`LiveState::find`] does not know; `None` where there is
    /// surely none.
    pub(super) fn doubt(&self, id: u64) -> Option<Error> {
        if let Some(&log) = self.unknown.get(&id) {
            let name = CollectionFile::Log(log).name();
            return Some(Error::data_loss(format!(
                "{name}: a change of point {id} is lost; write the point again, or give the log up"
            )));
        }
        self.doubt_of_segments(id).or_else(|| {
            let name = CollectionFile::Log(*self.doubtful.first()?).name();
            Some(Error::data_loss(format!(
                "{name}: changes of unknown points are lost, {id} may be one of them; write the point again, or give the \
                 log up"
            )))
        })
    }

    fn doubt_of_segments(&self, id: u64) -> Option<Error> {
        self.state.segments.iter().find_map(|slot| {
            let name = || CollectionFile::Segment(slot.number).name();
            match &slot.content {
                SegmentContent::Open(view) => {
                    let unknown = view.segment.ids().find(id).is_some_and(|row| view.deletes.is_unknown(row));
                    unknown
                        .then(|| Error::data_loss(format!("{}: whether it has point {id} is lost", name())))
                }
                SegmentContent::Closed(closed)
                    if closed.pending_deletes.contains(&id) || !closed.may_have(id) =>
                {
                    None
                }
                SegmentContent::Closed(closed) => {
                    Some(closed.unseen(slot).context(format_args!("point {id}")))
                }
            }
        })
    }

    /// Starts a new part; the one before takes no more changes.
    pub(super) fn freeze(&mut self, log: u64) {
        Arc::make_mut(&mut self.state).memtables.push(Arc::new(Memtable::new(log)));
        self.tables.push(HashMap::new());
    }

    /// Puts a segment in the place of the oldest part, or nothing where none of its rows was alive.
    pub(super) fn flushed(&mut self, slot: Option<SegmentSlot>) {
        let state = Arc::make_mut(&mut self.state);
        state.segments.extend(slot);
        state.memtables.remove(0);
        self.tables.remove(0);
    }

    /// Puts one segment, or none, in the place of those with the numbers `old`.
    pub(super) fn merged(&mut self, old: &[u64], slot: Option<SegmentSlot>) {
        let state = Arc::make_mut(&mut self.state);
        let place = state.segments.iter().position(|slot| old.contains(&slot.number)).unwrap_or(0);
        state.segments.retain(|slot| !old.contains(&slot.number));
        if let Some(slot) = slot {
            state.segments.insert(place.min(state.segments.len()), slot);
        }
    }

    /// Ids that a segment which is not open shall forget when it is.
    pub(super) fn stall_stats(&mut self, number: u64, pending_deletes: Arc<HashSet<u64>>) {
        if let Some(closed) = self.closed(number) {
            closed.pending_deletes = pending_deletes;
        }
    }

    /// A segment could not be opened yet.
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

    /// A segment was opened, or will never be: why, and the ids it has if they are known. Ids that waited for it are looked up
    /// now.
    pub(super) fn opened(
        &mut self,
        number: u64,
        outcome: Result<SegmentView, (Quarantined, Option<Arc<KnownIds>>)>,
    ) {
        let state = Arc::make_mut(&mut self.state);
        let Some(slot) = state.segments.iter_mut().find(|slot| slot.number == number) else { return };
        let SegmentContent::Closed(closed) = &mut slot.content else { return };
        match outcome {
            Err((reason, known)) => {
                closed.reason = Some(reason);
                closed.known = known;
                if let Some(known) = &closed.known
                    && closed.pending_deletes.iter().any(|id| known.ids.find(*id).is_none())
                {
                    Arc::make_mut(&mut closed.pending_deletes).retain(|id| known.ids.find(*id).is_some());
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
