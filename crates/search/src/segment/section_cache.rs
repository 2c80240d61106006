//! Cached pages of one section of a segment, in memory that nothing else uses. All are verified.

use std::ops::Range;
use std::sync::Arc;

use storage::page::PAGE_BYTES;

use super::preload::PreloadState;
use crate::segment_cache::{CachedFile, CachedSection, SegmentCacheKey, VerifiedBlock};

/// Cached pages of one segment's section of embeddings or payloads.
#[derive(Debug)]
pub(super) struct SectionCache {
    file: CachedFile,
    section: CachedSection,
    /// Offset of the section in the file.
    offset: u64,
    preload: PreloadState,
}

/// Bytes of neighbouring pages.
pub(super) enum CachedPages {
    /// A block that other queries use too.
    One(Arc<VerifiedBlock>),
    /// A copy of several pages.
    Joined(Vec<u8>),
}

impl CachedPages {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            CachedPages::One(block) => block.bytes(),
            CachedPages::Joined(bytes) => bytes,
        }
    }
}

impl SectionCache {
    /// Creates the cache of a section that begins at `offset` of the file.
    pub(super) fn new(file: CachedFile, section: CachedSection, offset: u64) -> SectionCache {
        SectionCache { file, section, offset, preload: PreloadState::default() }
    }

    fn key(&self, page: usize) -> SegmentCacheKey {
        SegmentCacheKey { file: self.file.id(), offset: self.offset + (page * PAGE_BYTES) as u64 }
    }

    /// Returns `pages` of the section if all of them are cached, a block each.
    pub(super) fn get(&self, pages: &Range<usize>) -> Option<CachedPages> {
        if pages.len() == 1 {
            return self.block(pages.start).map(CachedPages::One);
        }
        let mut joined = Vec::with_capacity(pages.len() * PAGE_BYTES);
        for number in pages.clone() {
            joined.extend_from_slice(self.block(number)?.bytes());
        }
        Some(CachedPages::Joined(joined))
    }

    /// Returns the block that begins with `page` if it is cached.
    pub(super) fn block(&self, page: usize) -> Option<Arc<VerifiedBlock>> {
        self.file.cache().get(self.section, self.key(page))
    }

    /// Returns true if the block that begins with `page` is cached. Does not count a look-up.
    pub(super) fn has(&self, page: usize) -> bool {
        self.file.cache().has(self.key(page))
    }

    /// Caches `pages` of the section, which a request read as `bytes` and verified, a block each.
    pub(super) fn put(&self, pages: &Range<usize>, bytes: &[u8]) {
        self.count_read(bytes);
        for (page, bytes) in pages.clone().zip(bytes.chunks_exact(PAGE_BYTES)) {
            self.file.cache().keep(self.key(page), bytes);
        }
    }

    /// Caches the block that begins with `page`, which a request read and verified.
    pub(super) fn put_block(&self, page: usize, bytes: &[u8]) {
        self.count_read(bytes);
        self.file.cache().keep(self.key(page), bytes);
    }

    fn count_read(&self, bytes: &[u8]) {
        self.preload.count_missed();
        self.file.cache().count_read(self.section, bytes.len() as u64);
    }

    /// Caches the block that begins with `page`, which was verified, before a request needs it.
    /// Returns false if memory has no room without evicting other blocks.
    pub(super) fn preload(&self, page: usize, bytes: &[u8]) -> bool {
        self.file.cache().preload(self.key(page), bytes)
    }

    /// Returns what was preloaded, and what requests have missed since then.
    pub(super) fn preload_state(&self) -> &PreloadState {
        &self.preload
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::MemoryBudget;
    use crate::segment_cache::SegmentCache;

    fn section(cache: &Arc<SegmentCache>) -> SectionCache {
        SectionCache::new(CachedFile::new(cache, 7), CachedSection::Vectors, 0)
    }

    #[test]
    fn a_closed_file_leaves_no_pages() {
        let budget = MemoryBudget::new(1 << 20);
        let cache = SegmentCache::new(&budget);
        let first = section(&cache);
        first.put(&(0..2), &[3; 2 * PAGE_BYTES]);
        // The segment is opened again from the same file.
        let second = section(&cache);
        drop(first);
        assert_eq!(second.get(&(0..2)).unwrap().bytes(), [3; 2 * PAGE_BYTES]);
        drop(second);
        assert_eq!((cache.stats().bytes, budget.free()), (0, 1 << 20));
    }

    #[test]
    fn reads_of_requests_are_counted_until_a_preload() {
        let cache = SegmentCache::new(&MemoryBudget::new(1 << 20));
        let section = section(&cache);
        section.put(&(0..2), &[3; 2 * PAGE_BYTES]);
        section.put_block(2, &[4; 3 * PAGE_BYTES]);
        assert_eq!((section.preload.missed(), cache.stats().vectors.reads), (2, 2));
        section.preload.begin();
        assert!(section.preload(5, &[5; PAGE_BYTES]) && section.has(5) && !section.has(6));
        assert_eq!((section.preload.missed(), cache.stats().vectors.reads), (0, 2));
        assert_eq!(section.block(2).unwrap().bytes(), [4; 3 * PAGE_BYTES]);
    }
}
