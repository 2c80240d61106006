//! Memory for opening a segment, and the choice of the place of its codes.

use base::Result;

use super::file::SegmentContents;
use super::layout::kind;
use crate::budget::BudgetReservation;
use crate::coarse::is_codes;
use crate::codes::CodesPlace;
use crate::deletes::Deletes;

/// Bytes of a row in the two sections of ids.
const IDS_ROW_BYTES: u64 = 12;
/// Divisor of the memory limit: the part that [`CodesPlace::Auto`] leaves for flushes, merges and
/// cached codes.
const KEPT_SHARE: u64 = 8;

/// Place of the codes, and the memory that was reserved for opening the segment.
pub(super) struct OpeningPlan {
    pub(super) codes_on_medium: bool,
    pub(super) bytes: u64,
}

impl OpeningPlan {
    /// Chooses the place of the codes and reserves memory.
    ///
    /// # Errors
    /// `ResourceExhausted` without room.
    pub(super) fn reserve(
        contents: &SegmentContents,
        place: CodesPlace,
        name: &str,
        held: &mut BudgetReservation,
    ) -> Result<OpeningPlan> {
        let what = format!("opening {name}");
        let has_codes = contents.superblock.sections.iter().any(|section| is_codes(section.kind));
        let in_memory = opening_bytes(contents, false);
        let room = held.budget().free() + held.bytes();
        let fits = room >= in_memory + held.budget().limit() / KEPT_SHARE;
        let plan = |codes_on_medium, bytes| OpeningPlan { codes_on_medium, bytes };
        if place == CodesPlace::Dram || !has_codes {
            return grow(held, in_memory, &what).map(|()| plan(false, in_memory));
        }
        // Another thread may take the room meanwhile.
        if place == CodesPlace::Auto && fits && grow(held, in_memory, &what).is_ok() {
            return Ok(plan(false, in_memory));
        }
        let on_medium = opening_bytes(contents, true);
        grow(held, on_medium, &what).map(|()| plan(true, on_medium))
    }
}

fn stays_on_medium(kind: u32) -> bool {
    matches!(kind, kind::VECTORS | kind::RECORDS | kind::PAYLOADS | kind::PAYLOAD_INDEX)
}

/// Returns the bytes of memory for opening the segment.
fn opening_bytes(contents: &SegmentContents, codes_on_medium: bool) -> u64 {
    let rows = contents.superblock.rows as u32;
    let leaves = |kind: u32| stays_on_medium(kind) || codes_on_medium && is_codes(kind);
    // A section that is being decoded exists twice: as bytes and decoded. There is one at a time,
    // and two of ids.
    let sections = contents.superblock.sections.iter();
    let resident = sections.filter(|section| !leaves(section.kind)).map(|section| section.bytes);
    let twice = resident.clone().max().unwrap_or(0).max(u64::from(rows) * IDS_ROW_BYTES);
    resident.sum::<u64>() + twice + Deletes::memory_bytes_max(rows)
}

fn grow(held: &mut BudgetReservation, bytes: u64, what: &str) -> Result<()> {
    if bytes > held.bytes() { held.resize(bytes, what) } else { Ok(()) }
}
