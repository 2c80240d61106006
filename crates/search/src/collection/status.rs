//! What an operator sees of a collection.

use base::Error;

use super::inner::{CollectionHealth, CollectionInner, lock};
use super::names::CollectionFile;
use super::state::{ClosedSegment, SegmentContent, SegmentSlot};
use crate::budget::BudgetStats;
use crate::segment::Quarantined;

/// A collection at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// Points that can be found.
    pub points: u64,
    /// Points of them that are not sealed yet.
    pub unflushed: u64,
    /// Its segments.
    pub segments: Vec<SegmentStatus>,
    /// What is not served, by name.
    pub quarantined: Vec<Quarantined>,
    /// How many such things there were; more than are named where there are many.
    pub quarantined_count: u64,
    /// Whether answers may lack something.
    pub partial: bool,
    /// Whether acknowledged changes are lost, because a log was damaged.
    pub log_damaged: bool,
    /// What was damaged when it was opened, and could be put right.
    pub mended: Vec<String>,
    /// Memory.
    pub memory: BudgetStats,
    /// Segments made since the start.
    pub flushes: u64,
    /// Merges since the start.
    pub merges: u64,
    /// Why sealing failed the last time, where it did.
    pub flush_error: Option<String>,
    /// Why merging failed the last time, where it did.
    pub merge_error: Option<String>,
    /// Why changes are refused: the disk has less space left than is kept free. Gone once there is room.
    pub low_disk: Option<String>,
    /// Why the log takes no changes, if it does not.
    pub write_error: Option<String>,
    /// Changes refused since the start because of `low_disk`.
    pub disk_refused: u64,
}

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentStatus {
    /// Its file.
    pub name: String,
    /// Its rows.
    pub rows: u32,
    /// Its rows that are gone; 0 where that is not known.
    pub deleted: u32,
    /// The file's length; 0 while it is not open.
    pub bytes: u64,
    /// Whether it is searched.
    pub open: bool,
}

/// A segment that could not be opened yet.
fn delayed(slot: &SegmentSlot) -> Option<Quarantined> {
    let SegmentContent::Closed(ClosedSegment { reason: None, delayed: Some(error), .. }) = &slot.content
    else {
        return None;
    };
    let reason = format!("{}; it is tried again", error.message());
    Some(Quarantined { file: CollectionFile::Segment(slot.number).name(), page: None, reason })
}

/// Why the last log takes no more changes. The next change begins another one, if there is room.
fn write_error(inner: &CollectionInner, health: &CollectionHealth) -> Option<Error> {
    let (number, log) = lock(&inner.writer).logs.last().cloned()?;
    log.failure().filter(|_| !health.damaged_logs.contains_key(&number))
}

pub(super) fn of(inner: &CollectionInner) -> Status {
    let state = inner.state();
    let segments = state.segments.iter().map(|slot| {
        let view = slot.view();
        SegmentStatus {
            name: CollectionFile::Segment(slot.number).name(),
            rows: slot.rows,
            deleted: view.map_or(0, |view| view.deletes.count()),
            bytes: view.map_or(0, |view| view.segment.file_bytes()),
            open: matches!(slot.content, SegmentContent::Open(_)),
        }
    });
    let segments = segments.collect();
    let pages: Vec<Quarantined> = state.open().flat_map(|(_, _, view)| view.segment.damaged()).collect();
    let health = lock(&inner.health).clone();
    let write_error = health.write_error.clone().or_else(|| write_error(inner, &health));
    let log_damaged = health.log_damaged();
    let delayed: Vec<Quarantined> = state.segments.iter().filter_map(delayed).collect();
    let quarantined_count = health.quarantined_count + (pages.len() + delayed.len()) as u64;
    let quarantined: Vec<Quarantined> = health.quarantined.into_iter().chain(pages).chain(delayed).collect();
    let unflushed =
        state.memtables.iter().map(|memtable| u64::from(memtable.rows() - memtable.deleted())).sum();
    Status {
        points: state.live(),
        unflushed,
        segments,
        partial: state.is_partial() || log_damaged || !quarantined.is_empty(),
        quarantined,
        quarantined_count,
        log_damaged,
        mended: health.mended,
        memory: inner.budget.stats(),
        flushes: health.flushes,
        merges: health.merges,
        flush_error: health.flush_error.map(|error| error.to_string()),
        merge_error: health.merge_error.map(|error| error.to_string()),
        low_disk: inner.low_disk(),
        write_error: write_error.map(|error| error.to_string()),
        disk_refused: inner.disk.refused(),
    }
}
