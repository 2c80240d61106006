//! Reads of points without ranking: by id, in the order of ids, by a filter, and scores against one
//! embedding.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use coarse::{Exact, RowSet};

use super::filters::MemtableFilter;
use super::inner::Collection;
use super::search::SearchThread;
use super::state::{CollectionState, PointLocation, SegmentContent, SegmentView};
use crate::filter::{Condition, Filter, Match, MatchValues};
use crate::ingest::{MemtableRow, StoredPoint};
use crate::segment::{PageCache, similarity};

/// Pages cached while several points are read, because neighbouring rows share pages.
const CACHED_PAGES: usize = 16;
/// Maximum ids of one list.
pub const IDS_MAX: usize = 65_536;

/// Parts of a point to read. The others stay empty and cost no read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointParts {
    /// True to read the embedding.
    pub embedding: bool,
    /// True to read the record.
    pub record: bool,
    /// True to read the payload.
    pub payload: bool,
}

impl PointParts {
    /// All parts of a point.
    pub const ALL: PointParts = PointParts { embedding: true, record: true, payload: true };
    /// No part: only shows if the point exists.
    pub const NONE: PointParts = PointParts { embedding: false, record: false, payload: false };
    /// The payload only.
    pub const PAYLOAD: PointParts = PointParts { embedding: false, record: false, payload: true };
}

/// Ids in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdList {
    /// Internal ids of live points.
    pub ids: Vec<u64>,
    /// True if there may be more after the last one.
    pub more: bool,
    /// True if points may be missing because data is damaged or a segment is not open yet.
    pub partial: bool,
    /// Reason why points may be missing although they may still exist: `Unavailable` while segments
    /// are being opened, else `DataLoss`. A caller that changes the listed points misses some.
    pub unseen: Option<Error>,
}

/// Number of live points, which may be partial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointCount {
    /// Live points that were seen.
    pub count: u64,
    /// True if points may be missing because data is damaged or a segment is not open yet.
    pub partial: bool,
}

impl Collection {
    /// Returns the ids from `from` on, ascending, of points that match `filter`: at most `max`, up
    /// to [`IDS_MAX`].
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid filter or too large a `max`. Otherwise the error of the
    /// medium.
    pub fn ids_from(&self, from: u64, max: usize, filter: Option<&Filter>) -> Result<IdList> {
        if max > IDS_MAX {
            return Err(Error::invalid(format!(
                "{max} ids are more than the {IDS_MAX} that one call gives"
            )));
        }
        let state = self.read_state();
        let partial = self.is_partial(&state);
        let unseen = state.unreadable_points_error();
        let mut list = IdList { partial, unseen, ..IdList::default() };
        // One more than requested shows if there are more.
        let take = max + 1;
        for (_, _, view) in state.open() {
            let mut lost = false;
            let filtered = self.filtered(filter, view, &mut lost)?;
            if lost {
                list.partial = true;
                list.unseen.get_or_insert_with(|| unreadable(view));
            }
            let allow = filtered.as_ref().or(view.allowed().map(|allowed| &**allowed));
            let rows = view.segment.ids().from(from).iter();
            let allowed = rows.filter(|&&row| allow.is_none_or(|allow| allow.contains(row)));
            list.ids.extend(allowed.take(take).filter_map(|&row| view.segment.ids().id(row)));
        }
        let mut matching = MemtableFilter::new(filter);
        for memtable in &state.memtables {
            // In the order of ids, a request reads only the rows of its own page.
            let mut left = take;
            let mut next = Some(from);
            while let Some(first) = next.filter(|_| left > 0) {
                let page = memtable.page(first);
                let allowed = page.rows.into_iter().filter(|row| matching.allows(row));
                let before = list.ids.len();
                list.ids.extend(allowed.take(left).map(|row| row.id));
                left -= list.ids.len() - before;
                next = page.next;
            }
        }
        matching.check()?;
        if list.ids.len() > take {
            list.ids.select_nth_unstable(take - 1);
            list.ids.truncate(take);
        }
        list.ids.sort_unstable();
        list.more = list.ids.len() > max;
        list.ids.truncate(max);
        Ok(list)
    }

    /// Counts the points that match `filter`.
    ///
    /// # Errors
    /// As [`Collection::ids_from`].
    pub(crate) fn count_where(&self, filter: Option<&Filter>) -> Result<PointCount> {
        let state = self.read_state();
        let Some(filter) = filter else {
            return Ok(PointCount { count: state.live(), partial: self.is_partial(&state) });
        };
        let mut counted = self.count_flushed(&state, filter)?;
        let mut matching = MemtableFilter::new(Some(filter));
        for memtable in &state.memtables {
            let rows = memtable.live().filter(|(_, row)| matching.allows(row));
            counted.count += rows.count() as u64;
        }
        matching.check()?;
        Ok(counted)
    }

    /// Counts the points with a value of the field `path`. A new point is read for the first count
    /// only.
    ///
    /// # Errors
    /// As [`Collection::ids_from`].
    pub(crate) fn count_filled(&self, path: &str) -> Result<PointCount> {
        let matching = Match::Except(MatchValues::default());
        let filled = Condition::Match { key: path.to_owned(), matching };
        let filled = Filter { must: vec![filled], ..Filter::default() };
        let state = self.read_state();
        let mut counted = self.count_flushed(&state, &filled)?;
        let mut matching = MemtableFilter::new(Some(&filled));
        for memtable in &state.memtables {
            let count = memtable.count_filled(path, |row| matching.decide(row));
            counted.count += count.unwrap_or(0);
        }
        matching.check()?;
        Ok(counted)
    }

    /// Counts the points in segments that match `filter`.
    fn count_flushed(&self, state: &CollectionState, filter: &Filter) -> Result<PointCount> {
        let mut counted = PointCount { count: 0, partial: self.is_partial(state) };
        for (_, _, view) in state.open() {
            let allowed = self.filtered(Some(filter), view, &mut counted.partial)?;
            counted.count += allowed.map_or(0, |allowed| u64::from(allowed.count()));
        }
        Ok(counted)
    }

    /// Returns true while segments are opened for the first time since the start, so that results
    /// lack their points. Segments that are damaged or wait for another try do not count.
    pub fn opening(&self) -> bool {
        self.state().segments.iter().any(|slot| match &slot.content {
            SegmentContent::Closed(closed) => closed.reason.is_none() && closed.delayed.is_none(),
            SegmentContent::Open(_) => false,
        })
    }

    pub(super) fn is_partial(&self, state: &CollectionState) -> bool {
        state.is_partial() || self.health.lock().log_damaged()
    }

    /// Returns the live rows of a segment that match `filter`, or `None` without a filter.
    pub(super) fn filtered(
        &self,
        filter: Option<&Filter>,
        view: &SegmentView,
        partial: &mut bool,
    ) -> Result<Option<RowSet>> {
        let Some(filter) = filter else { return Ok(None) };
        filter.check()?;
        // A condition that excludes a few ids is rarely used again, but the others may be.
        let (rest, excluded) = filter.without_ids();
        let mut rows = if rest.is_empty() {
            RowSet::all(view.segment.rows())
        } else {
            self.selected(&rest, view, partial)?
        };
        for row in excluded.iter().filter_map(|&id| view.segment.ids().find(id)) {
            rows.remove(row);
        }
        if let Some(allowed) = view.allowed() {
            rows.intersect(allowed);
        }
        Ok(Some(rows))
    }

    /// Returns the rows of a segment that match `filter`. Frees cached filters and tries again if
    /// memory is short. Sets `partial` if rows could not be read.
    fn selected(&self, filter: &Filter, view: &SegmentView, partial: &mut bool) -> Result<RowSet> {
        let selected = match self.filters.select(&view.segment, filter, &self.budget) {
            Ok(selected) => selected,
            Err(error) if error.kind() == ErrorKind::ResourceExhausted => {
                self.filters.clear();
                // After a pause, the filters of this work would be read again, without end.
                super::scan::disable_pauses();
                self.filters.select(&view.segment, filter, &self.budget)?
            }
            Err(error) => return Err(error),
        };
        *partial |= selected.lost > 0;
        Ok(selected.rows.clone())
    }

    /// Locates the points of `ids`, all in one state.
    pub(super) fn places(&self, ids: &[u64]) -> Vec<Result<Option<PointLocation>>> {
        let state = self.read_state();
        let place = |&id: &u64| match state.find(id) {
            Some(found) => Ok(Some(found)),
            None => state.unknown_existence(id).map_or(Ok(None), Err),
        };
        ids.iter().map(place).collect()
    }

    /// Returns the requested parts of several points, in the order of `ids` and all from one state.
    /// Has `None` for ids without a point. A damaged point fails alone, as in [`Collection::get`].
    pub fn points(&self, ids: &[u64], parts: PointParts) -> Vec<Result<Option<StoredPoint>>> {
        let places = self.places(ids);
        // Neighbouring rows lie in the same pages.
        let mut order: Vec<usize> = (0..ids.len()).collect();
        order.sort_by_key(|&at| match &places[at] {
            Ok(Some(PointLocation::Segment(view, row))) => (view.segment.uuid(), *row),
            _ => ([0; 16], 0),
        });
        let mut records = PageCache::new(CACHED_PAGES);
        let mut payloads = PageCache::of_request(CACHED_PAGES);
        let mut points: Vec<Result<Option<StoredPoint>>> = ids.iter().map(|_| Ok(None)).collect();
        for at in order {
            points[at] = match &places[at] {
                Err(error) => Err(error.clone()),
                Ok(None) => Ok(None),
                Ok(Some(PointLocation::Memtable(row))) => Ok(Some(memtable_point(row, parts))),
                Ok(Some(PointLocation::Segment(view, row))) => {
                    segment_point(ids[at], view, *row, parts, &mut records, &mut payloads).map(Some)
                }
            };
        }
        points
    }

    /// Returns the exact similarity of `query` to the embedding of each point of `ids`, in their
    /// order. Has `None` for points that do not exist or cannot be read.
    ///
    /// # Errors
    /// `InvalidArgument` for an embedding that does not fit the collection.
    pub fn scores(
        &self,
        thread: &mut SearchThread,
        query: &[f32],
        ids: &[u64],
    ) -> Result<Vec<Option<f32>>> {
        coarse::check_query(query, self.options.shape.dims, 0)?;
        let places = self.places(ids);
        let mut scores = vec![None; ids.len()];
        let mut flushed: Vec<(usize, &SegmentView, u32)> = Vec::new();
        for (at, place) in places.iter().enumerate() {
            match place {
                Ok(Some(PointLocation::Memtable(row))) => {
                    scores[at] = Some(similarity(self.options.shape.metric, query, &row.embedding));
                }
                Ok(Some(PointLocation::Segment(view, row))) => flushed.push((at, view, *row)),
                Ok(None) | Err(_) => {}
            }
        }
        flushed.sort_by_key(|(_, view, row)| (view.segment.uuid(), *row));
        for group in flushed.chunk_by(|a, b| Arc::ptr_eq(&a.1.segment, &b.1.segment)) {
            let Some((_, view, _)) = group.first() else { continue };
            let rows: Vec<u32> = group.iter().map(|(_, _, row)| *row).collect();
            let exact = view.segment.exact(&mut *thread.vectors);
            let mut out = Vec::new();
            exact.scores(query, &rows, &mut out)?;
            for ((at, _, _), score) in group.iter().zip(out) {
                scores[*at] = (score > f32::NEG_INFINITY).then_some(score);
            }
        }
        Ok(scores)
    }
}

/// Returns the error for a filter on a segment with unreadable payloads.
fn unreadable(view: &SegmentView) -> Error {
    Error::data_loss(format!("{}: some payloads cannot be read", view.segment.name()))
}

fn memtable_point(row: &MemtableRow, parts: PointParts) -> StoredPoint {
    StoredPoint {
        id: row.id,
        embedding: if parts.embedding { row.embedding.to_vec() } else { Vec::new() },
        record: if parts.record { row.record.to_vec() } else { Vec::new() },
        payload: if parts.payload { row.payload.to_vec() } else { Vec::new() },
    }
}

/// Reads the requested parts of a point from `row` of a segment. `records` and `payloads` keep the
/// last pages that the caller has read.
fn segment_point(
    id: u64,
    view: &SegmentView,
    row: u32,
    parts: PointParts,
    records: &mut PageCache,
    payloads: &mut PageCache,
) -> Result<StoredPoint> {
    let mut point = StoredPoint { id, ..StoredPoint::default() };
    if parts.embedding {
        view.segment.vector(row, &mut point.embedding)?;
    }
    if parts.record {
        view.segment.record(row, records, &mut point.record)?;
    }
    if parts.payload {
        view.segment.payload(row, payloads, &mut point.payload)?;
    }
    Ok(point)
}
