//! Status of a collection for the operator.

use base::Error;

use super::inner::{Collection, CollectionHealth};
use super::names::CollectionFile;
use super::state::{ClosedSegment, SegmentContent, SegmentSlot};
use crate::budget::BudgetStats;
use crate::ingest::row_bytes;
use crate::segment::Quarantined;

/// Status of a collection at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// Live points.
    pub points: u64,
    /// Live points that are not flushed.
    pub unflushed: u64,
    /// Open segments, and segments that are not open yet.
    pub segments: Vec<SegmentStatus>,
    /// Damaged items that are not served, by name.
    pub quarantined: Vec<Quarantined>,
    /// Number of damaged items. May exceed the named ones.
    pub quarantined_count: u64,
    /// True if results may lack points.
    pub partial: bool,
    /// True if acknowledged changes are lost because a log was damaged.
    pub log_damaged: bool,
    /// Damage that was repaired when the collection was opened.
    pub repairs: Vec<String>,
    /// Use of memory.
    pub memory: BudgetStats,
    /// True while searches will soon be faster, as [`Collection::is_optimizing`].
    pub optimizing: bool,
    /// Flushes since the start.
    pub flushes: u64,
    /// Merges since the start.
    pub merges: u64,
    /// Error of the last flush, if it failed.
    pub flush_error: Option<String>,
    /// Error of the last merge, if it failed.
    pub merge_error: Option<String>,
    /// Reason why changes are refused if the free disk space is less than the reserve. Cleared once
    /// there is room.
    pub low_disk: Option<String>,
    /// Reason why new points are refused if the memory for all collections is full. Cleared once a
    /// point without a payload fits.
    pub low_memory: Option<String>,
    /// Reason why the log accepts no changes, or `None` if it accepts them.
    pub write_error: Option<String>,
    /// Changes refused since the start because of `low_disk`.
    pub disk_refused: u64,
}

/// Rows, bytes and codes of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentStatus {
    /// Name of its file.
    pub name: String,
    /// Rows, live or deleted.
    pub rows: u32,
    /// Deleted rows, or 0 if not known.
    pub deleted: u32,
    /// Length of the file, or 0 while it is not open.
    pub bytes: u64,
    /// Bytes of the codes that queries read from the medium, or 0 if they are in memory.
    pub codes_on_medium: u64,
    /// True if the segment is searched.
    pub open: bool,
}

impl Collection {
    /// Returns damage because of which points or changes are lost, or `None` without such damage.
    /// Damage of codes, of payload indexes and of data that an open segment has in memory does not
    /// count, because a merge repairs it.
    pub fn loss(&self) -> Option<Quarantined> {
        let log = self.health.lock().damaged_logs.iter().next().map(|(log, reasons)| Quarantined {
            file: CollectionFile::Log(*log).name(),
            page: None,
            reason: reasons.first().cloned().unwrap_or_default(),
        });
        log.or_else(|| self.state().segments.iter().find_map(lost_rows))
    }
}

/// Returns the damage because of which rows of a segment are lost.
fn lost_rows(slot: &SegmentSlot) -> Option<Quarantined> {
    match &slot.content {
        SegmentContent::Closed(closed) => closed.reason.clone(),
        SegmentContent::Open(view) if view.loses_data() => {
            let file = CollectionFile::Segment(slot.number).name();
            let reason = "some of its rows, or its list of deleted rows, cannot be read".to_owned();
            Some(Quarantined { file, page: None, reason })
        }
        SegmentContent::Open(_) => None,
    }
}

/// Returns the problem of a segment that could not be opened yet.
fn delayed(slot: &SegmentSlot) -> Option<Quarantined> {
    let SegmentContent::Closed(ClosedSegment { reason: None, delayed: Some(error), .. }) =
        &slot.content
    else {
        return None;
    };
    let reason = format!("{}; it is tried again", error.message());
    Some(Quarantined { file: CollectionFile::Segment(slot.number).name(), page: None, reason })
}

/// Returns the error of the last log. The next change starts another log if there is room.
fn write_error(collection: &Collection, health: &CollectionHealth) -> Option<Error> {
    let (number, log) = collection.writer.lock().logs.last().cloned()?;
    log.failure().filter(|_| !health.damaged_logs.contains_key(&number))
}

/// Returns the status of a collection.
pub(super) fn of(collection: &Collection) -> Status {
    let state = collection.state();
    let segments = state.segments.iter().map(|slot| {
        let view = slot.view();
        SegmentStatus {
            name: CollectionFile::Segment(slot.number).name(),
            rows: slot.rows,
            deleted: view.map_or(0, |view| view.deletes.count()),
            bytes: view.map_or(0, |view| view.segment.file_bytes()),
            codes_on_medium: view.map_or(0, |view| view.segment.codes_on_medium()),
            open: matches!(slot.content, SegmentContent::Open(_)),
        }
    });
    let segments = segments.collect();
    let pages: Vec<Quarantined> =
        state.open().flat_map(|(_, _, view)| view.segment.damaged()).collect();
    let health = collection.health.lock().clone();
    let write_error = health.write_error.clone().or_else(|| write_error(collection, &health));
    let log_damaged = health.log_damaged();
    let delayed: Vec<Quarantined> = state.segments.iter().filter_map(delayed).collect();
    let quarantined_count = health.quarantined_count + (pages.len() + delayed.len()) as u64;
    let quarantined: Vec<Quarantined> =
        health.quarantined.into_iter().chain(pages).chain(delayed).collect();
    let unflushed = state
        .memtables
        .iter()
        .map(|memtable| u64::from(memtable.rows() - memtable.deleted()))
        .sum();
    let least = row_bytes(collection.options.shape.dims, 0, 0);
    Status {
        points: state.live(),
        unflushed,
        segments,
        partial: state.is_partial() || log_damaged || !quarantined.is_empty(),
        quarantined,
        quarantined_count,
        log_damaged,
        repairs: health.repairs,
        memory: collection.budget.stats(),
        optimizing: collection.is_optimizing(),
        flushes: health.flushes,
        merges: health.merges,
        flush_error: health.flush_error.map(|error| error.to_string()),
        merge_error: health.merge_error.map(|error| error.to_string()),
        low_disk: collection.low_disk(),
        low_memory: collection.budget.lacks_for_point(least),
        write_error: write_error.map(|error| error.to_string()),
        disk_refused: collection.disk.refused(),
    }
}
