//! Bytes of a segment's payload index, read from the medium and checked page by page. Blocks that
//! were read stay in the segment cache while memory is free: each new filter on a field reads the
//! same dictionary and often the same rows.

use std::ops::Range;
use std::sync::Arc;

use base::{Error, Result};
use storage::Sealed;
use storage::page::PAGE_BYTES;
use storage::superblock::Section;

use super::damage::DamagedPages;
use crate::segment_cache::{
    BlockContent, CachedFile, CachedSection, SegmentCache, SegmentCacheKey,
};

/// Pages of a cached block: two blocks of a dictionary, or the rows of 8,192 values.
const BLOCK_PAGES: u64 = 8;
/// Bytes of a cached block.
const BLOCK_BYTES: u64 = BLOCK_PAGES * PAGE_BYTES as u64;

/// Section of the payload index.
#[derive(Debug)]
pub(crate) struct IndexSection {
    file: CachedFile,
    offset: u64,
    bytes: u64,
    /// Checksum of each page.
    checks: Vec<u32>,
    damaged: Arc<DamagedPages>,
}

impl IndexSection {
    pub(super) fn new(
        file: &dyn Sealed,
        section: &Section,
        checks: Vec<u32>,
        damaged: Arc<DamagedPages>,
        cache: &Arc<SegmentCache>,
    ) -> IndexSection {
        let Section { offset, bytes, .. } = *section;
        let file = CachedFile::new(cache, file.id());
        IndexSection { file, offset, bytes, checks, damaged }
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
        if file.in_place().is_some() {
            return self.read_once(file, start, bytes, out);
        }
        let Range { start: mut at, end } = self.range(start, bytes)?;
        out.clear();
        while at < end {
            let block = at / BLOCK_BYTES;
            let next = match self.file.cache().get(CachedSection::PayloadIndex, self.key(block)) {
                Some(cached) => {
                    let first = block * BLOCK_BYTES;
                    let to = end.min(first + BLOCK_BYTES);
                    let part = (at - first) as usize..(to - first) as usize;
                    let part = cached.bytes().get(part);
                    out.extend(part.ok_or_else(|| Error::internal("a cached block is short"))?);
                    to
                }
                None => {
                    let is_missing = |block: &u64| !self.file.cache().has(self.key(*block));
                    let last = end.div_ceil(BLOCK_BYTES);
                    let missing = (block + 1..last).take_while(is_missing).count() as u64;
                    let to = end.min((block + 1 + missing) * BLOCK_BYTES);
                    self.read_blocks(file, at..to, out)?;
                    to
                }
            };
            at = next;
        }
        Ok(())
    }

    /// Reads bytes that are needed only once, as [`IndexSection::read`] does.
    ///
    /// # Errors
    /// As [`IndexSection::read`].
    pub(crate) fn read_once(
        &self,
        file: &dyn Sealed,
        start: u64,
        bytes: u64,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let range = self.range(start, bytes)?;
        out.clear();
        self.read_pages(file, range, out)
    }

    fn range(&self, start: u64, bytes: u64) -> Result<Range<u64>> {
        let end = start.checked_add(bytes).filter(|end| *end <= self.bytes);
        end.map(|end| start..end).ok_or_else(|| Error::data_loss("the payload index is cut off"))
    }

    fn key(&self, block: u64) -> SegmentCacheKey {
        SegmentCacheKey { file: self.file.id(), offset: self.offset + block * BLOCK_BYTES }
    }

    /// Appends `range` to `out`, and caches the blocks that hold it.
    fn read_blocks(&self, file: &dyn Sealed, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let blocks = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        let first = blocks.start * BLOCK_BYTES;
        let pages = self.bytes.div_ceil(PAGE_BYTES as u64);
        let end = (blocks.end * BLOCK_PAGES).min(pages) * PAGE_BYTES as u64;
        let mut bytes = vec![0; (end - first) as usize];
        let is_sound = |page: u64, bytes: &[u8]| {
            self.checks.get(page as usize).is_some_and(|check| crc32c::crc32c(bytes) == *check)
        };
        let read = file.read_at(self.offset + first, &mut bytes);
        let mut numbered = (first / PAGE_BYTES as u64..).zip(bytes.chunks(PAGE_BYTES));
        if read.is_err() || !numbered.all(|(page, bytes)| is_sound(page, bytes)) {
            // The damage may be in pages that were not requested.
            return self.read_pages(file, range, out);
        }
        self.file.cache().count_read(CachedSection::PayloadIndex, end - first);
        out.extend(&bytes[(range.start - first) as usize..(range.end - first) as usize]);
        for (block, bytes) in blocks.zip(bytes.chunks(BLOCK_BYTES as usize)) {
            self.file.cache().put(self.key(block), BlockContent::Bytes(bytes.into()));
        }
        Ok(())
    }

    /// Appends `range` to `out`, and reads only the pages that hold it.
    fn read_pages(&self, file: &dyn Sealed, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let page_bytes = PAGE_BYTES as u64;
        let first = range.start / page_bytes;
        let pages = first as usize..range.end.div_ceil(page_bytes) as usize;
        let before = out.len();
        out.resize(before + pages.len() * PAGE_BYTES, 0);
        let read = &mut out[before..];
        let offset = self.offset + first * page_bytes;
        self.damaged.check_derived_read(offset / page_bytes, file.read_at(offset, read))?;
        let checks = self.checks.get(pages.clone()).unwrap_or(&[]);
        for ((page, bytes), check) in pages.zip(read.chunks(PAGE_BYTES)).zip(checks) {
            if crc32c::crc32c(bytes) != *check {
                let page = self.offset / page_bytes + page as u64;
                return Err(self
                    .damaged
                    .record_derived_page(page, "payload index: it does not match its checksum"));
            }
        }
        let skipped = (range.start - first * page_bytes) as usize;
        out.drain(before..before + skipped);
        out.truncate(before + (range.end - range.start) as usize);
        Ok(())
    }
}
