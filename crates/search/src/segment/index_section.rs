//! Bytes of a segment's payload index, read from the medium and checked page by page.

use std::sync::Arc;

use base::{Error, Result};
use storage::Sealed;
use storage::page::PAGE_BYTES;
use storage::superblock::Section;

use super::damage::Damaged;

/// Section of the payload index.
#[derive(Clone, Debug)]
pub(crate) struct IndexSection {
    offset: u64,
    bytes: u64,
    /// Checksum of each page.
    checks: Vec<u32>,
    damaged: Arc<Damaged>,
}

impl IndexSection {
    pub(super) fn new(section: &Section, checks: Vec<u32>, damaged: Arc<Damaged>) -> IndexSection {
        IndexSection { offset: section.offset, bytes: section.bytes, checks, damaged }
    }

    /// Returns its length.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of the file that hold it.
    #[cfg(test)]
    pub(crate) fn file_range(&self) -> std::ops::Range<u64> {
        self.offset..self.offset + self.bytes
    }

    /// Returns the bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.checks.len() * 4) as u64
    }

    /// Writes `bytes` bytes from `start` on to `out`, which is cleared first.
    ///
    /// # Errors
    /// `DataLoss` beyond the end, or with the name of a damaged page; otherwise the error of the
    /// medium.
    pub(crate) fn read(
        &self,
        file: &dyn Sealed,
        start: u64,
        bytes: u64,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let page_bytes = PAGE_BYTES as u64;
        let end = start.checked_add(bytes).filter(|end| *end <= self.bytes);
        let end = end.ok_or_else(|| Error::data_loss("the payload index is cut off"))?;
        out.clear();
        if bytes == 0 {
            return Ok(());
        }
        let first = start / page_bytes;
        let pages = first as usize..end.div_ceil(page_bytes) as usize;
        out.resize(pages.len() * PAGE_BYTES, 0);
        let offset = self.offset + first * page_bytes;
        self.damaged.read(offset / page_bytes, file.read_at(offset, out))?;
        let checks = self.checks.get(pages.clone()).unwrap_or(&[]);
        for ((page, bytes), check) in pages.zip(out.chunks(PAGE_BYTES)).zip(checks) {
            if crc32c::crc32c(bytes) != *check {
                let page = self.offset / page_bytes + page as u64;
                return Err(self
                    .damaged
                    .page(page, "payload index: it does not match its checksum"));
            }
        }
        out.drain(..(start - first * page_bytes) as usize);
        out.truncate(bytes as usize);
        Ok(())
    }
}
