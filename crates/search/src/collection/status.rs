//! What an operator sees of a collection.

use base::Error;

use super::inner::{Inner, Noted, lock};
use super::names::File;
use super::state::{Closed, Content, Slot};
use crate::budget::BudgetStats;
use crate::segment::Quarantined;

/// A collection at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// Points that can be found.
    pub points: u64,
    /// Points of them that are not sealed yet.
    pub unsealed: u64,
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
    pub seals: u64,
    /// Merges since the start.
    pub merges: u64,
    /// Why sealing failed the last time, where it did.
    pub seal_error: Option<String>,
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
fn delayed(slot: &Slot) -> Option<Quarantined> {
    let Content::Closed(Closed { reason: None, delayed: Some(error), .. }) = &slot.content else {
        return None;
    };
    let reason = format!("{}; it is tried again", error.message());
    Some(Quarantined { file: File::Segment(slot.number).name(), page: None, reason })
}

/// Why the last log takes no more changes. The next change begins another one, if there is room.
fn write_error(inner: &Inner, noted: &Noted) -> Option<Error> {
    let (number, log) = lock(&inner.writer).logs.last().cloned()?;
    log.failure().filter(|_| !noted.damaged_logs.contains_key(&number))
}

pub(super) fn of(inner: &Inner) -> Status {
    let state = inner.state();
    let segments = state.segments.iter().map(|slot| {
        let view = slot.view();
        SegmentStatus {
            name: File::Segment(slot.number).name(),
            rows: slot.rows,
            deleted: view.map_or(0, |view| view.deletes.count()),
            bytes: view.map_or(0, |view| view.segment.file_bytes()),
            open: matches!(slot.content, Content::Open(_)),
        }
    });
    let segments = segments.collect();
    let pages: Vec<Quarantined> = state.open().flat_map(|(_, _, view)| view.segment.damaged()).collect();
    let noted = lock(&inner.noted).clone();
    let write_error = noted.write_error.clone().or_else(|| write_error(inner, &noted));
    let log_damaged = noted.log_damaged();
    let delayed: Vec<Quarantined> = state.segments.iter().filter_map(delayed).collect();
    let quarantined_count = noted.quarantined_count + (pages.len() + delayed.len()) as u64;
    let quarantined: Vec<Quarantined> = noted.quarantined.into_iter().chain(pages).chain(delayed).collect();
    let unsealed = state.parts.iter().map(|part| u64::from(part.rows() - part.dead())).sum();
    Status {
        points: state.live(),
        unsealed,
        segments,
        partial: state.is_partial() || log_damaged || !quarantined.is_empty(),
        quarantined,
        quarantined_count,
        log_damaged,
        mended: noted.mended,
        memory: inner.budget.stats(),
        seals: noted.seals,
        merges: noted.merges,
        seal_error: noted.seal_error.map(|error| error.to_string()),
        merge_error: noted.merge_error.map(|error| error.to_string()),
        low_disk: inner.low_disk(),
        write_error: write_error.map(|error| error.to_string()),
        disk_refused: inner.disk.refused(),
    }
}
