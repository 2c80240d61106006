//! Bytes of a segment's payload index, read from the medium and checked page by page. Blocks that
//! were read stay in the segment cache while memory is free. Each new filter on a field reads the
//! same dictionary, and often the same rows.

use std::ops::Range;
use std::sync::Arc;

use base::{Error, Result};
use storage::Sealed;
use storage::page::PAGE_BYTES;
use storage::superblock::Section;

use super::damage::DamagedPages;
use super::file::IoStep;
use super::preload::{CacheableSection, PreloadState, sampled_share};
use crate::segment_cache::{
    BlockContent, CachedFile, CachedSection, SegmentCache, SegmentCacheKey, block_bytes,
};

/// Pages of a cached block: two blocks of a dictionary, or the rows of 8,192 values.
const BLOCK_PAGES: u64 = 8;
/// Bytes of a cached block.
const BLOCK_BYTES: u64 = BLOCK_PAGES * PAGE_BYTES as u64;
/// Blocks that a preload reads together.
const PRELOADED_BLOCKS: u64 = 32;

/// Section of the payload index.
#[derive(Debug)]
pub(crate) struct IndexSection {
    file: CachedFile,
    offset: u64,
    bytes: u64,
    /// Checksum of each page.
    checks: Vec<u32>,
    damaged: Arc<DamagedPages>,
    preload: PreloadState,
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
        let preload = PreloadState::default();
        IndexSection { file, offset, bytes, checks, damaged, preload }
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
    /// `DataLoss` beyond the end, or naming a damaged page. Otherwise the error of the medium.
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
        let end = self.end_of(blocks.end);
        let mut bytes = vec![0; (end - first) as usize];
        self.preload.count_missed();
        let read = file.read_at(self.offset + first, &mut bytes);
        if read.is_err() || !self.is_sound(first, &bytes) {
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

    /// Returns the end of the last page of the blocks before `block`.
    fn end_of(&self, block: u64) -> u64 {
        let pages = self.bytes.div_ceil(PAGE_BYTES as u64);
        (block * BLOCK_PAGES).min(pages) * PAGE_BYTES as u64
    }

    /// Returns true if the pages from `start` on have their checksums.
    fn is_sound(&self, start: u64, bytes: &[u8]) -> bool {
        let checks = self.checks.get((start / PAGE_BYTES as u64) as usize..).unwrap_or(&[]);
        let pages = bytes.chunks(PAGE_BYTES);
        pages.len() <= checks.len()
            && pages.zip(checks).all(|(page, check)| crc32c::crc32c(page) == *check)
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

impl CacheableSection for IndexSection {
    fn cached_bytes_max(&self) -> u64 {
        let blocks = self.bytes.div_ceil(BLOCK_BYTES);
        self.end_of(blocks) + blocks * block_bytes(0)
    }

    fn cached_share(&self) -> f64 {
        let blocks = self.bytes.div_ceil(BLOCK_BYTES) as usize;
        let has = |block| self.file.cache().has(self.key(block as u64));
        sampled_share(blocks, |block| block, has)
    }

    fn preload_state(&self) -> &PreloadState {
        &self.preload
    }

    fn preload(&self, file: &dyn Sealed, step: IoStep<'_>) -> Result<()> {
        self.preload.begin();
        let end = self.bytes.div_ceil(BLOCK_BYTES);
        let mut buffer = Vec::new();
        for block in (0..end).step_by(PRELOADED_BLOCKS as usize) {
            let blocks = block..end.min(block + PRELOADED_BLOCKS);
            if blocks.clone().all(|block| self.file.cache().has(self.key(block))) {
                continue;
            }
            let first = block * BLOCK_BYTES;
            let bytes = self.end_of(blocks.end) - first;
            step(bytes)?;
            buffer.resize(bytes as usize, 0);
            file.read_at(self.offset + first, &mut buffer)?;
            for (block, bytes) in blocks.zip(buffer.chunks(BLOCK_BYTES as usize)) {
                let is_sound = self.is_sound(block * BLOCK_BYTES, bytes);
                if is_sound && !self.file.cache().preload(self.key(block), bytes) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
