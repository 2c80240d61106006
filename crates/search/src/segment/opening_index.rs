//! Opens the payload index of a segment.

use std::sync::Arc;

use base::Result;
use storage::Sealed;
use storage::page::PAGE_BYTES;
use storage::superblock::Section;

use super::damage::DamagedPages;
use super::file::SegmentContents;
use super::index_section::IndexSection;
use crate::budget::BudgetReservation;
use crate::payload_index::PayloadIndex;
use crate::segment_cache::SegmentCache;

/// Memory for opening a payload index, as a multiple of the size of its directory. It is for the
/// bytes of the directory, and for its fields with their allocations.
const DIRECTORY_COPIES: u64 = 8;

/// Parts that a payload index is opened from.
pub(super) struct OpenPayloadIndex<'a> {
    pub(super) contents: &'a SegmentContents,
    pub(super) section: &'a Section,
    pub(super) file: &'a dyn Sealed,
    pub(super) damaged: &'a Arc<DamagedPages>,
    pub(super) cache: &'a Arc<SegmentCache>,
    /// Memory of all other parts of the segment.
    pub(super) others_bytes: u64,
}

impl OpenPayloadIndex<'_> {
    /// Opens the payload index. A damaged index is named and left out. Payloads have the same data.
    ///
    /// # Errors
    /// `ResourceExhausted` if `held` cannot grow. Otherwise the error of the medium.
    pub(super) fn open(&self, held: &mut BudgetReservation) -> Result<Option<PayloadIndex>> {
        match self.try_open(held) {
            Ok(index) => Ok(Some(index)),
            Err(error) if error.kind() == base::ErrorKind::DataLoss => {
                let page = self.section.offset / PAGE_BYTES as u64;
                let _ = self.damaged.record_derived_page(page, error.message());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the index, and raises the reservation `held` to the memory that this takes.
    fn try_open(&self, held: &mut BudgetReservation) -> Result<PayloadIndex> {
        let OpenPayloadIndex { contents, section, file, .. } = *self;
        let checks = contents.checks_of(section)?;
        let damaged = self.damaged.clone();
        let index = IndexSection::new(file, section, checks, damaged, self.cache);
        let directory_bytes = PayloadIndex::directory_bytes(file, &index)?;
        let needed = self.others_bytes + DIRECTORY_COPIES * directory_bytes + index.memory_bytes();
        if needed > held.bytes() {
            held.resize(needed, "opening a payload index")?;
        }
        PayloadIndex::open(file, index, contents.superblock.rows as u32)
    }
}
