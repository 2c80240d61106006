//! Merge: rewrites several segments as one, in the background.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Error, ErrorKind, Result};
use coarse::{BuildThreads, BuildVectors};

use super::inner::{Collection, PendingFile};
use super::manifest::new_uuid;
use super::names::CollectionFile;
use super::options::{Merging, headroom_bytes};
use super::stall::Urgency;
use super::state::{CollectionState, SegmentContent, SegmentSlot, SegmentView};
use crate::budget::BudgetReservation;
use crate::codes::CodesPlace;
use crate::deletes::Deletes;
use crate::payload_index::SpareIndexMemory;
use crate::rerank::Records;
use crate::segment::{PageCache, RowSource, Segment};

/// Pages cached while records are copied in a new order.
const CACHED_PAGES: usize = 256;

/// Values of vectors that [`BuildVectors::scan`] collects before it passes them on.
const SCANNED_VALUES: usize = 128 << 10;
/// Bytes per row of [`MergeSource::rows`].
const PLACE_BYTES: u64 = 8;
/// A merge takes at most this part of the free memory for a payload index. The rest is for the
/// merged segment.
const SPARE_SHARE: u64 = 2;

/// Merging is behind if `BEHIND_FACTOR * fan_in` segments of similar size wait. The merge is then
/// escalated. If it lacks memory, codes of open segments move to the medium.
const BEHIND_FACTOR: usize = 2;

/// Flag that is true until this is dropped. If a merge panics, the other thread must not wait for
/// its end.
struct RaisedFlag<'a>(&'a AtomicBool);

impl RaisedFlag<'_> {
    fn raise(flag: &AtomicBool) -> RaisedFlag<'_> {
        flag.store(true, Ordering::Relaxed);
        RaisedFlag(flag)
    }
}

impl Drop for RaisedFlag<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Rows of a segment that may be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SegmentSize {
    number: u64,
    rows: u32,
    live: u32,
    /// True if codes, or other parts of the file that a merge writes anew, are damaged.
    has_damaged_codes: bool,
}

/// Returns true if a segment has lost so many rows, or codes, that it is rewritten.
fn needs_rewrite(size: &SegmentSize, merging: &Merging) -> bool {
    size.has_damaged_codes
        || f64::from(size.rows - size.live) > f64::from(size.rows) * merging.deleted_share
}

/// Chooses the segments to rewrite as one. They are one segment that has lost many rows or codes,
/// or several of similar size, small ones first. `rows_max` limits the live rows of the result.
fn choose(sizes: &[SegmentSize], merging: &Merging, rows_max: u32) -> Option<Vec<SegmentSize>> {
    let worn = |size: &&SegmentSize| needs_rewrite(size, merging) && size.live <= rows_max;
    if let Some(size) = sizes.iter().find(worn) {
        return Some(vec![*size]);
    }
    let mut sorted = sizes.to_vec();
    sorted.sort_by_key(|size| (size.live, size.number));
    let factor = merging.fan_in.max(2) as u32;
    for (first, smallest) in sorted.iter().enumerate() {
        let similar =
            sorted[first..].iter().take_while(|size| is_similar(smallest.live, size.live, factor));
        let mut total = 0_u32;
        let fits = |size: &&SegmentSize| {
            total = total.saturating_add(size.live);
            total <= rows_max
        };
        let chosen: Vec<SegmentSize> = similar.take_while(fits).copied().collect();
        if chosen.len() >= merging.fan_in {
            return Some(chosen);
        }
    }
    None
}

/// Returns true if a segment of `live` rows is less than about `factor` times as large as one of
/// `smallest` rows.
fn is_similar(smallest: u32, live: u32, factor: u32) -> bool {
    live / factor <= smallest.max(1)
}

/// Returns the largest number of segments of similar size that wait to be merged. Segments that are
/// too large to be merged do not count.
fn merge_backlog(sizes: &[SegmentSize], merging: &Merging) -> usize {
    let factor = merging.fan_in.max(2) as u32;
    let mut live: Vec<u32> = sizes
        .iter()
        .map(|size| size.live)
        .filter(|live| live.saturating_mul(factor) <= merging.rows_max)
        .collect();
    live.sort_unstable();
    let similar = |first: usize| {
        live[first..].iter().take_while(|size| is_similar(live[first], **size, factor)).count()
    };
    (0..live.len()).map(similar).max().unwrap_or(0)
}

/// Returns true if at least `BEHIND_FACTOR * fan_in` segments of similar size wait. Segments that
/// are too large to be merged do not count. A large collection has many of them, and its merges
/// would never be paced. Returns false if a segment has lost many rows or codes, since that segment
/// is rewritten first.
fn is_behind(sizes: &[SegmentSize], merging: &Merging) -> bool {
    !sizes.iter().any(|size| needs_rewrite(size, merging))
        && merge_backlog(sizes, merging) >= BEHIND_FACTOR * merging.fan_in
}

/// Place of a row of the source in one of the merged segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SegmentRow {
    /// Index in the list of views.
    view: u32,
    /// Row in the segment of that view.
    row: u32,
}

/// Returns the places of all live rows, ascending.
fn live_rows(views: &[SegmentView]) -> Vec<SegmentRow> {
    (0..)
        .zip(views)
        .flat_map(|(at, view)| (0..view.segment.rows()).map(move |row| (at, view, row)))
        .filter(|(_, view, row)| !view.deletes.contains(*row))
        .map(|(view, _, row)| SegmentRow { view, row })
        .collect()
}

/// Gives the working memory of a merge back to `headroom`, the memory of flushes, or to the budget.
/// The merge may have failed. If the memory of flushes were free for a moment, writers that wait
/// would take it, and later flushes would fail.
fn give_back(working: BudgetReservation, headroom: Option<&mut BudgetReservation>) {
    match headroom {
        Some(headroom) => headroom.join(working),
        None => drop(working),
    }
}

/// Live rows of several segments, as the source of a merged one.
struct MergeSource<'a> {
    collection: &'a Collection,
    views: Vec<SegmentView>,
    /// Place in `views` of each row of the source, ascending.
    rows: Vec<SegmentRow>,
    cache: PageCache,
    urgency: Urgency,
}

impl MergeSource<'_> {
    /// Returns the view that has a row of the source, and the row in that view.
    fn place(&self, row: u32) -> Result<(&SegmentView, u32)> {
        let SegmentRow { view, row } = self.locate(row)?;
        Ok((&self.views[view as usize], row))
    }

    /// Returns the place of a row of the source.
    ///
    /// # Errors
    /// `Internal` if the source has no such row.
    fn locate(&self, row: u32) -> Result<SegmentRow> {
        let found = self.rows.get(row as usize).filter(|at| (at.view as usize) < self.views.len());
        found.copied().ok_or_else(|| Error::internal(format!("there is no row {row} to merge")))
    }

    /// Returns the rows of the merged segment that were deleted since the merge began. `now` has
    /// the current views of the old segments. `places` maps the source's rows to merged ones.
    fn deletes_since(&self, now: &[&SegmentView], places: &[u32]) -> Deletes {
        let mut deletes = Deletes::none(self.rows.len() as u32);
        for (view, (before, now)) in (0..).zip(self.views.iter().zip(now)) {
            for row in now.deletes.since(&before.deletes) {
                let from = self.rows.binary_search(&SegmentRow { view, row }).ok();
                if let Some(&row) = from.and_then(|from| places.get(from)) {
                    deletes.insert(row);
                }
            }
        }
        deletes
    }
}

impl BuildVectors for MergeSource<'_> {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn scan(&self, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let step = |bytes| self.collection.merge_step(bytes, self.urgency);
        let mut vectors = Vec::with_capacity(SCANNED_VALUES);
        for view in &self.views {
            view.segment.vectors(&step, &mut |row, vector| {
                if view.deletes.contains(row) {
                    return Ok(());
                }
                vectors.extend_from_slice(vector);
                if vectors.len() >= SCANNED_VALUES {
                    each(&vectors)?;
                    vectors.clear();
                }
                Ok(())
            })?;
        }
        if vectors.is_empty() { Ok(()) } else { each(&vectors) }
    }

    fn gather(&self, rows: &[u32], out: &mut Vec<f32>) -> Result<()> {
        let step = |bytes| self.collection.merge_step(bytes, self.urgency);
        let dims = self.collection.options.shape.dims;
        let start = out.len();
        out.resize(start + rows.len() * dims, 0.0);
        // In the order of the segments, so that neighbours are read together.
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_unstable_by_key(|&at| rows[at]);
        let mut left = &order[..];
        while let Some(&first) = left.first() {
            let index = self.locate(rows[first])?.view;
            let view = &self.views[index as usize];
            let in_view = |at: &usize| self.locate(rows[*at]).ok().filter(|it| it.view == index);
            let view_rows: Vec<u32> = left.iter().map_while(|at| Some(in_view(at)?.row)).collect();
            let (now, later) = left.split_at(view_rows.len());
            view.segment.vectors_of(&view_rows, &step, &mut |place, vector| {
                let target = start + now[place] * dims;
                out[target..target + dims].copy_from_slice(vector);
            })?;
            left = later;
        }
        Ok(())
    }

    fn id(&self, row: u32) -> u64 {
        let place = self.place(row).ok();
        place.and_then(|(view, row)| view.segment.ids().id(row)).unwrap_or(u64::MAX)
    }
}

impl RowSource for MergeSource<'_> {
    fn record(&mut self, row: u32, out: &mut Vec<u8>) -> Result<()> {
        let (view, row) = self.place(row)?;
        let segment = view.segment.clone();
        segment.record(row, &mut self.cache, out)
    }

    fn payload(&mut self, row: u32, out: &mut Vec<u8>) -> Result<()> {
        let (view, row) = self.place(row)?;
        let segment = view.segment.clone();
        segment.payload(row, &mut self.cache, out)
    }
}

impl Collection {
    /// Returns true while segments are merged, or chosen for a merge.
    pub(crate) fn is_merging(&self) -> bool {
        self.merging.is_locked()
    }

    /// Runs the most useful merge at full speed if merging is behind. Returns true if it merged
    /// segments. For a thread of ordinary priority.
    ///
    /// # Errors
    /// As [`Collection::merge`].
    pub fn merge_if_behind(&self) -> Result<bool> {
        if !is_behind(&self.mergeable(&self.state(), &BTreeSet::new()), &self.options.merging) {
            return Ok(false);
        }
        let _escalated = RaisedFlag::raise(&self.merging_escalated);
        self.merge_once(Urgency::Escalated)
    }

    /// Runs the most useful merge. Returns false if there is none, if there is no memory for it, or
    /// if an escalated merge takes over.
    ///
    /// # Errors
    /// The error of the medium. A damaged page ends the merge, and the segment is not merged again.
    /// A copy without the page would make the loss permanent. Damaged codes are computed anew.
    pub(super) fn merge_once(&self, urgency: Urgency) -> Result<bool> {
        let mut damaged = self.merging.lock();
        let state = self.state();
        let Some(chosen) = self.chosen(&state, &damaged) else { return Ok(false) };
        self.merge_chosen(&chosen, state, &mut damaged, urgency, None)
    }

    /// Rewrites the smallest segment that has lost many rows, if free memory is not enough for it
    /// and the memory of flushes is. Otherwise deletions would free no memory once it is full.
    /// Flushes wait meanwhile. Returns true if it rewrote a segment. For a thread of ordinary
    /// priority.
    ///
    /// # Errors
    /// As [`Collection::merge`].
    pub(crate) fn rewrite_if_full(&self) -> Result<bool> {
        // A flush or a merge in progress gives its memory back.
        let Some(mut headroom) = self.flushing.try_lock() else { return Ok(false) };
        let Some(mut damaged) = self.merging.try_lock() else { return Ok(false) };
        let state = self.state();
        let mut sizes = self.mergeable(&state, &damaged);
        sizes.retain(|size| needs_rewrite(size, &self.options.merging));
        let Some(smallest) = sizes.iter().min_by_key(|size| size.live) else { return Ok(false) };
        let fits = |bytes| smallest.live <= self.rows_max(bytes);
        if fits(self.budget.free()) || !fits(headroom.bytes()) {
            return Ok(false);
        }
        let chosen = [smallest.number];
        let memory: &mut BudgetReservation = &mut headroom;
        let urgency = Urgency::Escalated;
        let rewritten = self.merge_chosen(&chosen, state, &mut damaged, urgency, Some(memory));
        headroom.refill(headroom_bytes(self.memtable_bytes));
        rewritten
    }

    /// Merges the segments `chosen` of `state`. `headroom` is the memory of flushes, if the merge
    /// takes its memory from there. Returns false if it was stopped. A segment that would lose data
    /// is added to `damaged`.
    ///
    /// # Errors
    /// As [`Collection::merge`].
    fn merge_chosen(
        &self,
        chosen: &[u64],
        state: Arc<CollectionState>,
        damaged: &mut BTreeSet<u64>,
        urgency: Urgency,
        headroom: Option<&mut BudgetReservation>,
    ) -> Result<bool> {
        let views: Vec<SegmentView> = state
            .open()
            .filter(|(_, slot, _)| chosen.contains(&slot.number))
            .map(|(_, _, view)| view.clone())
            .collect();
        drop(state);
        if !self.may_merge(urgency) {
            return self.check_open().map(|()| false);
        }
        let outcome = {
            let _runs = RaisedFlag::raise(&self.optimizer.merge_runs);
            self.merge_segments(chosen, views.clone(), urgency, headroom)
        };
        self.update_merge_backlog();
        if outcome.is_err() && !self.may_merge(urgency) {
            return self.check_open().map(|()| false);
        }
        for (view, number) in views.iter().zip(chosen) {
            if view.loses_data() {
                damaged.insert(*number);
            }
        }
        let mut health = self.health.lock();
        health.merges += u64::from(outcome.is_ok());
        health.merge_error = outcome.as_ref().err().cloned();
        drop(health);
        self.events.notify();
        if outcome.is_ok() {
            // Queries that still used a segment may have cached parts of its file again.
            self.retire(views.into_iter().map(|view| view.segment).collect());
        }
        outcome.map(|()| true)
    }

    /// Returns the bytes that a merge needs, if merging is behind because fewer are free. `movable`
    /// returns the bytes of codes that can move to the medium for it. It reads every collection,
    /// so it is called only if the bytes matter. Returns `None` if the free memory is enough, or if
    /// the movable memory would not be enough.
    pub(crate) fn missing_for_merge(&self, movable: impl FnOnce() -> u64) -> Option<u64> {
        // A merge in progress gives its memory back.
        let damaged = self.merging.try_lock()?;
        let sizes = self.mergeable(&self.state(), &damaged);
        let merging = &self.options.merging;
        if !is_behind(&sizes, merging) {
            return None;
        }
        let choose = |bytes| choose(&sizes, merging, self.rows_max(bytes));
        let free = self.budget.free();
        if choose(free).is_some() {
            return None;
        }
        let chosen = choose(free.saturating_add(movable()))?;
        // Fewer codes may be enough, since the smallest segments are merged first.
        let rows = chosen.iter().take(merging.fan_in).map(|size| u64::from(size.live)).sum();
        Some(self.merge_bytes(rows))
    }

    /// Counts the segments that wait to be merged, after a flush or a merge. The count is 0 if the
    /// next merge has no memory, because slower writes would not help that merge.
    pub(super) fn update_merge_backlog(&self) {
        let damaged = self.merging.try_lock();
        let runs = damaged.is_none();
        let sizes = self.mergeable(&self.state(), damaged.as_deref().unwrap_or(&BTreeSet::new()));
        let merging = &self.options.merging;
        let can_continue =
            runs || choose(&sizes, merging, self.rows_max(self.budget.free())).is_some();
        let count = if can_continue { merge_backlog(&sizes, merging) } else { 0 };
        self.merge_backlog.store(count, Ordering::Relaxed);
    }

    /// Returns true while searches will soon be faster. Then points are being flushed, segments are
    /// being merged, or a merge is due and the last one did not fail. Does not count work that
    /// waits until no points arrive.
    pub fn is_optimizing(&self) -> bool {
        let state = self.state();
        if self.optimizer.merge_runs.load(Ordering::Relaxed) || state.memtables.len() > 1 {
            return true;
        }
        if self.health.lock().merge_error.is_some() {
            return false;
        }
        // Another thread holds the lock while it looks for a merge. That does not count as work.
        let damaged = self.merging.try_lock().map(|damaged| damaged.clone()).unwrap_or_default();
        let sizes = self.mergeable(&state, &damaged);
        choose(&sizes, &self.options.merging, self.rows_max(self.budget.free())).is_some()
    }

    /// Returns true if segments wait to be merged, also if the memory for it is missing. `damaged`
    /// are the segments that are not merged.
    pub(super) fn merge_waits(&self, state: &CollectionState, damaged: &BTreeSet<u64>) -> bool {
        let merging = &self.options.merging;
        choose(&self.mergeable(state, damaged), merging, merging.rows_max).is_some()
    }

    /// Returns the segments that can be merged.
    fn mergeable(&self, state: &CollectionState, damaged: &BTreeSet<u64>) -> Vec<SegmentSize> {
        let mergeable = |slot: &SegmentSlot, view: &SegmentView| {
            !damaged.contains(&slot.number) && !view.loses_data()
        };
        state
            .open()
            .filter(|(_, slot, view)| mergeable(slot, view))
            .map(|(_, slot, view)| SegmentSize {
                number: slot.number,
                rows: slot.rows,
                live: view.live(),
                has_damaged_codes: view.is_damaged(),
            })
            .collect()
    }

    /// Returns the numbers of the segments to merge, in the order of the state.
    fn chosen(&self, state: &CollectionState, damaged: &BTreeSet<u64>) -> Option<Vec<u64>> {
        let rows_max = self.rows_max(self.budget.free());
        let sizes = self.mergeable(state, damaged);
        let chosen = choose(&sizes, &self.options.merging, rows_max).or_else(|| {
            let chosen = choose(&sizes, &self.quiet_merging()?, rows_max)?;
            // Searches work without this merge, so a disk without room for it is not a failure.
            self.has_room_to_merge(state, &chosen).then_some(chosen)
        })?;
        let wanted = |slot: &&SegmentSlot| chosen.iter().any(|size| size.number == slot.number);
        Some(state.segments.iter().filter(wanted).map(|slot| slot.number).collect())
    }

    /// Returns true if the disk has room to merge `chosen` segments.
    fn has_room_to_merge(&self, state: &CollectionState, chosen: &[SegmentSize]) -> bool {
        let is_chosen = |slot: &SegmentSlot| chosen.iter().any(|size| size.number == slot.number);
        let views = state.open().filter(|(_, slot, _)| is_chosen(slot));
        self.check_room_to_merge(views.map(|(_, _, view)| view.segment.file_bytes()).sum()).is_ok()
    }

    /// Returns the bytes that merging segments into one of `rows` rows needs. They are for building
    /// it, or for opening it while the old ones are open.
    fn merge_bytes(&self, rows: u64) -> u64 {
        let form = self.options.segment_form();
        let building = rows * PLACE_BYTES + form.working_bytes(rows);
        match self.options.codes {
            // Without room for them, codes stay on the medium; the rest takes less than the
            // building did.
            CodesPlace::Auto | CodesPlace::Medium if form.codes_can_move(rows) => building,
            _ => building.max(form.opening_bytes(rows)),
        }
    }

    /// Returns the rows of the largest segment that a merge may write with `bytes` of memory. More
    /// rows need more bytes, so this is a binary search.
    fn rows_max(&self, bytes: u64) -> u32 {
        let mut fits = 0_u32;
        let mut beyond = u32::MAX;
        while fits + 1 < beyond {
            let middle = fits + (beyond - fits) / 2;
            if self.merge_bytes(u64::from(middle)) <= bytes {
                fits = middle
            } else {
                beyond = middle
            }
        }
        fits.min(self.options.merging.rows_max)
    }

    /// Writes the live rows of the segments `numbers`, whose views are `views`, as one segment, and
    /// publishes it in their place. `headroom` is the memory of flushes, if the merge takes its
    /// memory from there.
    ///
    /// # Errors
    /// `Cancelled` if one of the segments was dropped meanwhile. Also the errors of the medium and
    /// the memory budget.
    fn merge_segments(
        &self,
        numbers: &[u64],
        views: Vec<SegmentView>,
        urgency: Urgency,
        mut headroom: Option<&mut BudgetReservation>,
    ) -> Result<()> {
        let rows = live_rows(&views);
        if rows.is_empty() {
            self.live.lock().merged(numbers, None);
            return self.publish();
        }
        self.check_room_to_merge(views.iter().map(|view| view.segment.file_bytes()).sum())?;
        let count = rows.len() as u64;
        let needed = self.options.segment_form().working_bytes(count) + count * PLACE_BYTES;
        let what = format!("merging {} segments", numbers.len());
        let working = match headroom.as_deref_mut() {
            Some(headroom) => headroom.split(needed, &what)?,
            None => self.budget.reserve(needed, &what)?,
        };
        let spare = SpareIndexMemory::new(&self.budget, SPARE_SHARE);
        let number = self.new_file_number();
        let pending = self.pending_file(CollectionFile::Segment(number));
        let uuid = new_uuid();
        let mut source = MergeSource {
            collection: self,
            views,
            rows,
            cache: PageCache::new(CACHED_PAGES),
            urgency,
        };
        let threads = BuildThreads {
            count: self.options.build_threads,
            should_continue: &|| self.may_merge(urgency),
        };
        let written =
            self.write_segment(&pending, uuid, &mut source, spare.as_ref(), threads, &|bytes| {
                self.merge_step(bytes, urgency)
            });
        drop(spare);
        give_back(working, headroom.as_deref_mut());
        let written = written?;
        let opened = self.open_merged(&pending, count, headroom)?;
        self.filters.warm(&opened, &self.budget);
        self.preload_new(&opened, &source.views, &|bytes| self.merge_step(bytes, urgency));
        let segment = Arc::new(opened);
        let places = written.rows();
        // Queries wait for this lock and this thread may have low priority, so only new deletes are
        // processed under it.
        let mut live = self.live.lock();
        let deletes = live.state.views(numbers).map(|now| source.deletes_since(&now, &places));
        let Some(deletes) = deletes else {
            // Queries wait for the lock, and the removal of a large file can take long.
            drop(live);
            pending.remove();
            return Err(Error::new(
                ErrorKind::Cancelled,
                "a segment was dropped while it was merged",
            ));
        };
        let view = SegmentView::new(segment, Arc::new(deletes));
        let rows = view.segment.rows();
        live.merged(
            numbers,
            Some(SegmentSlot { number, uuid, rows, content: SegmentContent::Open(view) }),
        );
        drop(live);
        source.views.iter().for_each(|view| self.caches.forget(view.segment.file().id()));
        self.publish()
    }

    /// Opens a merged segment of `rows` rows. `headroom` is the memory of flushes, if the merge
    /// takes its memory from there.
    ///
    /// # Errors
    /// As [`Collection::open_written`].
    fn open_merged(
        &self,
        pending: &PendingFile<'_>,
        rows: u64,
        headroom: Option<&mut BudgetReservation>,
    ) -> Result<Segment> {
        let Some(headroom) = headroom else {
            return self.open_written(pending, || self.budget.reserve(0, &pending.name));
        };
        // No more than it needs, so that its codes do not count the memory of flushes as room.
        let needed = self.options.segment_form().opening_bytes(rows).min(headroom.bytes());
        let opened = self.open_written(pending, || headroom.split(needed, &pending.name));
        headroom.refill(headroom_bytes(self.memtable_bytes));
        opened
    }
}

#[cfg(test)]
mod tests {
    use coarse::Metric;
    use os::Rate;
    use storage::UringMedium;

    use super::*;
    use crate::budget::MemoryBudget;
    use crate::collection::{CollectionOptions, Resources};
    use crate::ingest::PointRef;
    use crate::rerank::SharedCaches;

    fn sizes(live: &[u32]) -> Vec<SegmentSize> {
        live.iter()
            .zip(0..)
            .map(|(&live, number)| SegmentSize {
                number,
                rows: live,
                live,
                has_damaged_codes: false,
            })
            .collect()
    }

    fn chosen(sizes: &[SegmentSize], rows_max: u32) -> Option<Vec<u64>> {
        choose(sizes, &Merging::default(), rows_max)
            .map(|chosen| chosen.iter().map(|size| size.number).collect())
    }

    #[test]
    fn similar_small_segments_come_first() {
        assert_eq!(chosen(&sizes(&[10, 10, 10]), 1000), None);
        assert_eq!(chosen(&sizes(&[10, 10, 900, 10, 12]), 1000), Some(vec![0, 1, 3, 4]));
        assert_eq!(chosen(&sizes(&[1, 100, 100, 100, 100]), 1000), Some(vec![1, 2, 3, 4]));
        assert_eq!(chosen(&sizes(&[100, 100, 100, 100]), 399), None, "memory decides");
        assert_eq!(chosen(&sizes(&[100, 100, 100, 100, 100]), 450), Some(vec![0, 1, 2, 3]));
        assert_eq!(chosen(&sizes(&[1, 10, 100, 1000]), 10_000), None);
    }

    /// Otherwise writers that wait for memory take it, and flushes fail until a restart.
    #[test]
    fn a_failed_rewrite_keeps_the_memory_of_flushes() {
        let root = tempfile::tempdir().unwrap();
        let medium = Arc::new(UringMedium::plain(root.path().to_owned()).unwrap());
        let shape = CollectionOptions::new(2, Metric::L2);
        let options = CollectionOptions { disk_reserve: Some(0), ..shape };
        let budget = MemoryBudget::new(32 << 20);
        let resources = Resources::new(budget, 64 << 10, Rate::unlimited()).unwrap();
        let caches = Arc::new(SharedCaches::new(0, 512));
        let collection = Collection::open(medium, options, &resources, caches).unwrap();
        let point = PointRef { id: 1, embedding: &[1.0, 0.0], record: b"", payload: b"{}" };
        collection.upsert(point).unwrap();
        collection.flush().unwrap();
        let state = collection.state();
        let (numbers, views): (Vec<u64>, Vec<SegmentView>) =
            state.open().map(|(_, slot, view)| (slot.number, view.clone())).unzip();
        // Ends the rewrite while it writes.
        collection.close();
        let mut headroom = collection.flushing.lock();
        let before = headroom.bytes();
        let memory: &mut BudgetReservation = &mut headroom;
        let urgency = Urgency::Escalated;
        let outcome = collection.merge_segments(&numbers, views, urgency, Some(memory));
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(headroom.bytes(), before);
    }

    #[test]
    fn a_panic_ends_the_flags_of_a_merge() {
        let flag = AtomicBool::new(false);
        let merge = std::panic::catch_unwind(|| {
            let _raised = RaisedFlag::raise(&flag);
            assert!(flag.load(Ordering::Relaxed));
            panic!("on purpose");
        });
        assert!(merge.is_err());
        assert!(!flag.load(Ordering::Relaxed));
    }

    #[test]
    fn many_similar_segments_are_behind() {
        let behind = |live: &[u32]| is_behind(&sizes(live), &Merging::default());
        assert!(!behind(&[10; 7]) && behind(&[10; 8]));
        assert!(behind(&[900, 10, 10, 10, 12, 12, 12, 39, 39, 900]));
        assert!(!behind(&[10, 10, 10, 10, 100, 100, 100, 100]), "two sizes");
        let mut worn = sizes(&[10; 8]);
        worn[0].live = 1;
        assert!(!is_behind(&worn, &Merging::default()));
        let large = Merging::default().rows_max / 2;
        assert!(!behind(&[large; 48]), "they are never merged");
        assert!(!behind(&[&[large; 48][..], &[10; 4][..]].concat()));
    }

    #[test]
    fn similar_segments_pile_up() {
        let merge_backlog = |live: &[u32]| merge_backlog(&sizes(live), &Merging::default());
        assert_eq!((merge_backlog(&[]), merge_backlog(&[10])), (0, 1));
        assert_eq!(merge_backlog(&[10, 900, 11, 10, 12]), 4);
        assert_eq!(merge_backlog(&[10, 10, 100, 100, 100, 10_000]), 3);
        let large = Merging::default().rows_max;
        assert_eq!(merge_backlog(&[large; 9]), 0, "they are never merged");
    }

    #[test]
    fn worn_segments_are_rewritten() {
        let mut all = sizes(&[100, 1000]);
        all[1].rows = 1400;
        assert_eq!(chosen(&all, 1000), Some(vec![1]));
        assert_eq!(chosen(&all, 999), None);
        all[0].live = 0;
        assert_eq!(chosen(&all, 0), Some(vec![0]), "an empty one costs nothing");
    }

    #[test]
    fn damaged_codes_are_computed_anew() {
        let mut all = sizes(&[100, 1000]);
        assert_eq!(chosen(&all, 1000), None);
        all[1].has_damaged_codes = true;
        assert_eq!(chosen(&all, 1000), Some(vec![1]));
        assert_eq!(chosen(&all, 999), None, "memory decides");
    }
}
