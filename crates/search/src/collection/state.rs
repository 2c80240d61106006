//! What a collection is at one moment, and how a change changes it.
//!
//! A query takes the current [`State`] and keeps it: whatever is written, sealed or merged meanwhile, it sees the points
//! that were there when it began. Whoever changes the state copies what somebody else still holds, which is a list of
//! pointers and at most one chunk of a bitmap.
//!
//! The rule behind everything: an id is alive in at most one place, and the newest change decides where.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{Error, ErrorKind};

use super::names::File;
use crate::budget::Reservation;
use crate::deletes::{Deletes, WAITING_MAX};
use crate::filter::RowSet;
use crate::ingest::{Block, Part, Row};
use crate::segment::{Ids, Quarantined, Segment};

/// When a caller is advised to come again while segments are being opened.
const OPENING_RETRY: Duration = Duration::from_secs(1);

/// The points of a collection as they were at one moment.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) segments: Vec<Slot>,
    /// Points that are not sealed, oldest part first; the last takes what is written.
    pub(super) parts: Vec<Arc<Part>>,
}

/// One segment of a state.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) number: u64,
    pub(super) uuid: [u8; 16],
    pub(super) rows: u32,
    pub(super) content: Content,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Open(View),
    /// Still to be opened, or never to be.
    Closed(Closed),
}

/// An open segment and what is gone of it.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) segment: Arc<Segment>,
    pub(super) deletes: Arc<Deletes>,
    /// The rows that are not gone, made when it is first asked for.
    allowed: Arc<OnceLock<Option<Arc<RowSet>>>>,
}

/// A segment that cannot be asked for its rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Closed {
    /// Why; `None` while it is being opened.
    pub(super) reason: Option<Quarantined>,
    /// Why it could not be opened yet; it is tried again.
    pub(super) delayed: Option<Error>,
    /// Ids that were replaced or removed since.
    pub(super) waiting: Arc<HashSet<u64>>,
    /// The ids it has, where it cannot be opened and they can be read.
    pub(super) known: Option<Arc<KnownIds>>,
}

/// The ids of a segment that is not served.
#[derive(Debug)]
pub(super) struct KnownIds {
    pub(super) ids: Ids,
    /// The memory they take.
    pub(super) _held: Reservation,
}

impl Closed {
    /// Whether the segment may have a point of this id.
    fn may_have(&self, id: u64) -> bool {
        self.known.as_ref().is_none_or(|known| known.ids.find(id).is_some())
    }

    /// Why its points cannot be asked for.
    fn unseen(&self, slot: &Slot) -> Error {
        let name = File::Segment(slot.number).name();
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
        if self.may_have(id) && !self.waiting.contains(&id) {
            Arc::make_mut(&mut self.waiting).insert(id);
        }
    }
}

impl View {
    pub(super) fn new(segment: Arc<Segment>, deletes: Arc<Deletes>) -> View {
        View { segment, deletes, allowed: Arc::default() }
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
    pub(super) fn bury(&mut self, row: u32) {
        Arc::make_mut(&mut self.deletes).insert(row);
        // Others may still use the old filter.
        self.allowed = Arc::default();
    }

    /// Whether something of it is not served.
    pub(super) fn is_damaged(&self) -> bool {
        self.deletes.has_unknown() || !self.segment.damaged().is_empty()
    }
}

impl Slot {
    pub(super) fn view(&self) -> Option<&View> {
        match &self.content {
            Content::Open(view) => Some(view),
            Content::Closed(_) => None,
        }
    }
}

impl State {
    /// The open segments, with their places in the list.
    pub(super) fn open(&self) -> impl Iterator<Item = (usize, &Slot, &View)> {
        let slots = self.segments.iter().enumerate();
        slots.filter_map(|(place, slot)| slot.view().map(|view| (place, slot, view)))
    }

    /// Points that can be found.
    pub(super) fn live(&self) -> u64 {
        let sealed: u64 = self.open().map(|(_, _, view)| u64::from(view.live())).sum();
        let fresh: u64 = self.parts.iter().map(|part| u64::from(part.rows() - part.dead())).sum();
        sealed + fresh
    }

    /// Why there may be points that cannot be asked for now.
    pub(super) fn unseen(&self) -> Option<Error> {
        let closed = |slot: &Slot| match &slot.content {
            Content::Closed(closed) => Some(closed.unseen(slot)),
            Content::Open(_) => None,
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
pub(super) enum Found {
    Fresh(Arc<Row>),
    Sealed(View, u32),
}

/// The current state, and the tables that only writers and look-ups by id need.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) state: Arc<State>,
    /// For each part of the state: the newest row of an id.
    pub(super) tables: Vec<HashMap<u64, u32>>,
    /// Points of which a change is lost, and the log that lost it. They are removed as well: an older state of theirs is
    /// served nowhere. Whoever writes or removes such a point ends the doubt.
    pub(super) unknown: HashMap<u64, u64>,
    /// Logs that lost changes of points that are not known.
    pub(super) doubtful: BTreeSet<u64>,
}

impl Live {
    pub(super) fn new(segments: Vec<Slot>, log: u64) -> Live {
        let state = State { segments, parts: vec![Arc::new(Part::new(log))] };
        let (unknown, doubtful) = (HashMap::new(), BTreeSet::new());
        Live { state: Arc::new(state), tables: vec![HashMap::new()], unknown, doubtful }
    }

    /// The part that takes what is written.
    pub(super) fn active(&self) -> &Part {
        // There is always at least one: sealing removes only those before it.
        &self.state.parts[self.state.parts.len() - 1]
    }

    /// Whether a segment that is not open has no room for more ids.
    pub(super) fn waiting_is_full(&self) -> Option<&Slot> {
        let full = |slot: &&Slot| match &slot.content {
            Content::Closed(closed) => closed.waiting.len() >= WAITING_MAX,
            Content::Open(_) => false,
        };
        self.state.segments.iter().find(full)
    }

    /// A new point takes the place of the one of its id. Gives the block that it completed, for [`Block::sketch`], which need not
    /// be done under a lock that queries wait for.
    pub(super) fn upsert(&mut self, row: Row) -> Option<Arc<Block>> {
        self.delete(row.id);
        let id = row.id;
        let state = Arc::make_mut(&mut self.state);
        let (part, table) = (state.parts.last_mut()?, self.tables.last_mut()?);
        let part = Arc::make_mut(part);
        table.insert(id, part.push(Arc::new(row)));
        part.completed()
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
        if let Some((part, row)) = fresh {
            Arc::make_mut(&mut state.parts[part]).bury(row);
            return;
        }
        let sealed = state.segments.iter_mut().find_map(|slot| match &mut slot.content {
            Content::Open(view) => view.find(id).map(|row| (view, row)),
            Content::Closed(_) => None,
        });
        if let Some((view, row)) = sealed {
            view.bury(row);
            return;
        }
        for slot in &mut state.segments {
            if let Content::Closed(closed) = &mut slot.content {
                closed.forget(id);
            }
        }
    }

    fn fresh(&self, id: u64) -> Option<(usize, u32)> {
        let tables = self.tables.iter().enumerate().rev();
        let mut rows = tables.filter_map(|(part, table)| table.get(&id).map(|&row| (part, row)));
        rows.find(|&(part, row)| !self.state.parts[part].is_dead(row))
    }

    /// Where the point of an id is.
    pub(super) fn find(&self, id: u64) -> Option<Found> {
        if let Some((part, row)) = self.fresh(id) {
            return self.state.parts[part].row(row).cloned().map(Found::Fresh);
        }
        let mut views = self.state.open().map(|(_, _, view)| view);
        views.find_map(|view| view.find(id).map(|row| Found::Sealed(view.clone(), row)))
    }

    /// Why nobody can say whether there is a point of an id that [`Live::find`] does not know; `None` where there is
    /// surely none.
    pub(super) fn doubt(&self, id: u64) -> Option<Error> {
        if let Some(&log) = self.unknown.get(&id) {
            let name = File::Log(log).name();
            return Some(Error::data_loss(format!(
                "{name}: a change of point {id} is lost; write the point again, or give the log up"
            )));
        }
        self.doubt_of_segments(id).or_else(|| {
            let name = File::Log(*self.doubtful.first()?).name();
            Some(Error::data_loss(format!(
                "{name}: changes of unknown points are lost, {id} may be one of them; write the point again, or give the \
                 log up"
            )))
        })
    }

    fn doubt_of_segments(&self, id: u64) -> Option<Error> {
        self.state.segments.iter().find_map(|slot| {
            let name = || File::Segment(slot.number).name();
            match &slot.content {
                Content::Open(view) => {
                    let unknown = view.segment.ids().find(id).is_some_and(|row| view.deletes.is_unknown(row));
                    unknown
                        .then(|| Error::data_loss(format!("{}: whether it has point {id} is lost", name())))
                }
                Content::Closed(closed) if closed.waiting.contains(&id) || !closed.may_have(id) => None,
                Content::Closed(closed) => Some(closed.unseen(slot).context(format_args!("point {id}"))),
            }
        })
    }

    /// Starts a new part; the one before takes no more changes.
    pub(super) fn freeze(&mut self, log: u64) {
        Arc::make_mut(&mut self.state).parts.push(Arc::new(Part::new(log)));
        self.tables.push(HashMap::new());
    }

    /// Puts a segment in the place of the oldest part, or nothing where none of its rows was alive.
    pub(super) fn sealed(&mut self, slot: Option<Slot>) {
        let state = Arc::make_mut(&mut self.state);
        state.segments.extend(slot);
        state.parts.remove(0);
        self.tables.remove(0);
    }

    /// Puts one segment, or none, in the place of those with the numbers `old`.
    pub(super) fn merged(&mut self, old: &[u64], slot: Option<Slot>) {
        let state = Arc::make_mut(&mut self.state);
        let place = state.segments.iter().position(|slot| old.contains(&slot.number)).unwrap_or(0);
        state.segments.retain(|slot| !old.contains(&slot.number));
        if let Some(slot) = slot {
            state.segments.insert(place.min(state.segments.len()), slot);
        }
    }

    /// Ids that a segment which is not open shall forget when it is.
    pub(super) fn waits(&mut self, number: u64, waiting: Arc<HashSet<u64>>) {
        if let Some(closed) = self.closed(number) {
            closed.waiting = waiting;
        }
    }

    /// A segment could not be opened yet.
    pub(super) fn delayed(&mut self, number: u64, error: Error) {
        if let Some(closed) = self.closed(number) {
            closed.delayed = Some(error);
        }
    }

    fn closed(&mut self, number: u64) -> Option<&mut Closed> {
        let state = Arc::make_mut(&mut self.state);
        let slot = state.segments.iter_mut().find(|slot| slot.number == number)?;
        match &mut slot.content {
            Content::Closed(closed) => Some(closed),
            Content::Open(_) => None,
        }
    }

    /// A segment was opened, or will never be: why, and the ids it has if they are known. Ids that waited for it are looked up
    /// now.
    pub(super) fn opened(
        &mut self,
        number: u64,
        outcome: Result<View, (Quarantined, Option<Arc<KnownIds>>)>,
    ) {
        let state = Arc::make_mut(&mut self.state);
        let Some(slot) = state.segments.iter_mut().find(|slot| slot.number == number) else { return };
        let Content::Closed(closed) = &mut slot.content else { return };
        match outcome {
            Err((reason, known)) => {
                closed.reason = Some(reason);
                closed.known = known;
                if let Some(known) = &closed.known
                    && closed.waiting.iter().any(|id| known.ids.find(*id).is_none())
                {
                    Arc::make_mut(&mut closed.waiting).retain(|id| known.ids.find(*id).is_some());
                }
            }
            Ok(mut view) => {
                for &id in closed.waiting.iter() {
                    if let Some(row) = view.find(id) {
                        view.bury(row);
                    }
                }
                slot.content = Content::Open(view);
            }
        }
    }
}
