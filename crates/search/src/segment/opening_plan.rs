//! Memory for opening a segment, and the choice of the place of its codes.

use std::sync::Arc;

use base::Result;
use coarse::is_codes;

use super::file::SegmentContents;
use super::id_filter::IdFilter;
use super::layout::kind;
use crate::budget::BudgetReservation;
use crate::codes::CodesPlace;
use crate::deletes::Deletes;
use crate::segment_cache::SegmentCache;

/// Divisor of the memory limit. It gives the part that [`CodesPlace::Auto`] leaves for flushes,
/// merges and cached blocks.
const KEPT_SHARE: u64 = 8;
/// Bytes of a segment's codes that are read while the segment is opened, if memory has room. Larger
/// codes are read after all segments are open, so that a start does not wait for them. Queries read
/// them from the medium until then.
const CODES_AT_ONCE_MAX: u64 = 4 << 20;

/// Places of codes when segments are opened.
#[derive(Clone, Debug)]
pub(crate) struct CodesOptions {
    /// Setting.
    pub(crate) place: CodesPlace,
    /// Cache of blocks of segment files.
    pub(crate) cache: Arc<SegmentCache>,
    /// Rows of other segments that are to be opened later, and need memory too.
    pub(crate) rows_later: u64,
    /// Bytes of a segment's codes up to which [`CodesPlace::Auto`] reads them at once. Larger codes
    /// stay on the medium first.
    pub(crate) at_once_max: u64,
}

impl CodesOptions {
    /// Creates the options of a collection.
    pub(crate) fn new(place: CodesPlace, cache: &Arc<SegmentCache>) -> CodesOptions {
        let at_once_max = CODES_AT_ONCE_MAX;
        CodesOptions { place, cache: cache.clone(), rows_later: 0, at_once_max }
    }
}

/// Place of the codes of an open segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenedCodes {
    /// In memory.
    InMemory,
    /// On the medium.
    OnMedium,
}

/// Place of the codes, and the memory that was reserved for opening the segment.
pub(super) struct OpeningPlan {
    pub(super) codes: OpenedCodes,
    pub(super) bytes: u64,
}

impl OpeningPlan {
    /// Chooses the place of the codes and reserves memory.
    ///
    /// # Errors
    /// `ResourceExhausted` without room.
    pub(super) fn reserve(
        contents: &SegmentContents,
        options: &CodesOptions,
        name: &str,
        held: &mut BudgetReservation,
    ) -> Result<OpeningPlan> {
        let what = format!("opening {name}");
        let place = options.place;
        let codes = code_bytes(contents);
        let has_codes = codes > 0;
        let in_memory = opening_bytes(contents, OpenedCodes::InMemory);
        let room = held.budget().free() + held.bytes();
        // Codes must not take the memory that other segments need to be opened at all.
        let later = bytes_of_rows(contents, options.rows_later);
        let kept = later.saturating_add(kept_bytes(held.budget().limit()));
        let fits = room >= in_memory.saturating_add(kept) && codes <= options.at_once_max;
        let memory_plan = OpeningPlan { codes: OpenedCodes::InMemory, bytes: in_memory };
        if place == CodesPlace::Dram || !has_codes {
            return grow(held, in_memory, &what).map(|()| memory_plan);
        }
        // Another thread may take the room meanwhile.
        if place == CodesPlace::Auto && fits && grow(held, in_memory, &what).is_ok() {
            return Ok(memory_plan);
        }
        let bytes = opening_bytes(contents, OpenedCodes::OnMedium);
        grow(held, bytes, &what).map(|()| OpeningPlan { codes: OpenedCodes::OnMedium, bytes })
    }
}

/// Returns the bytes of a memory limit that [`CodesPlace::Auto`] leaves free.
pub(crate) fn kept_bytes(limit: u64) -> u64 {
    limit / KEPT_SHARE
}

fn stays_on_medium(kind: u32) -> bool {
    matches!(kind, kind::VECTORS | kind::RECORDS | kind::PAYLOADS | kind::PAYLOAD_INDEX)
}

/// Returns the bytes of the sections of codes that can stay on the medium.
pub(super) fn code_bytes(contents: &SegmentContents) -> u64 {
    let sections = contents.superblock.sections.iter();
    sections.filter(|section| is_codes(section.kind)).map(|section| section.bytes).sum()
}

/// Returns kind and length of the sections that are read into memory.
fn resident(contents: &SegmentContents, codes: OpenedCodes) -> impl Iterator<Item = (u32, u64)> {
    let leaves =
        move |kind: u32| stays_on_medium(kind) || codes == OpenedCodes::OnMedium && is_codes(kind);
    let sections = contents.superblock.sections.iter();
    let resident = sections.filter(move |section| !leaves(section.kind));
    resident.map(|section| (section.kind, section.bytes))
}

fn resident_bytes(contents: &SegmentContents, codes: OpenedCodes) -> u64 {
    let sections: u64 = resident(contents, codes).map(|(_, bytes)| bytes).sum();
    sections + IdFilter::bytes_of(contents.superblock.rows as u32)
}

/// Returns the bytes of memory for opening the segment.
pub(super) fn opening_bytes(contents: &SegmentContents, codes: OpenedCodes) -> u64 {
    let rows = contents.superblock.rows as u32;
    // A section that is being decoded exists twice, as bytes and decoded. There is one at a time.
    // Ids are read in steps.
    let is_ids = |kind: u32| matches!(kind, kind::IDS | kind::ID_ORDER);
    let decoded = resident(contents, codes).filter(|(kind, _)| !is_ids(*kind));
    let twice = decoded.map(|(_, bytes)| bytes).max().unwrap_or(0);
    resident_bytes(contents, codes) + twice + Deletes::memory_bytes_max(rows)
}

/// Returns the bytes of memory of `rows` rows in segments like this one, with codes on the medium.
fn bytes_of_rows(contents: &SegmentContents, rows: u64) -> u64 {
    let own = contents.superblock.rows;
    let bytes =
        resident_bytes(contents, OpenedCodes::OnMedium) + Deletes::memory_bytes_max(own as u32);
    let all = u128::from(bytes) * u128::from(rows) / u128::from(own.max(1));
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// Raises a reservation to `bytes`, if it has fewer.
fn grow(held: &mut BudgetReservation, bytes: u64, what: &str) -> Result<()> {
    if bytes > held.bytes() { held.resize(bytes, what) } else { Ok(()) }
}
