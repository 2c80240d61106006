//! Pages of embeddings that queries have read, in the memory that nothing else uses.

use std::ops::Range;
use std::sync::Arc;

use storage::page::PAGE_BYTES;

use crate::segment_cache::{CachedSection, SegmentCache, SegmentCacheKey, VerifiedBlock};

/// Cached pages of one segment's section of embeddings. All of them are verified.
#[derive(Debug)]
pub(super) struct VectorCache {
    /// The [`storage::Sealed::id`] of the file.
    file: u64,
    /// Offset of the section in the file.
    offset: u64,
    cache: Arc<SegmentCache>,
}

/// Bytes of neighbouring pages.
pub(super) enum CachedPages {
    /// A page that other queries use too.
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

impl Drop for VectorCache {
    fn drop(&mut self) {
        self.cache.forget(self.file);
    }
}

impl VectorCache {
    pub(super) fn new(file: u64, offset: u64, cache: Arc<SegmentCache>) -> VectorCache {
        VectorCache { file, offset, cache }
    }

    fn key(&self, page: usize) -> SegmentCacheKey {
        SegmentCacheKey { file: self.file, offset: self.offset + (page * PAGE_BYTES) as u64 }
    }

    /// Returns `pages` of the section if all of them are cached.
    pub(super) fn get(&self, pages: &Range<usize>) -> Option<CachedPages> {
        let page = |page| self.cache.get(CachedSection::Vectors, self.key(page));
        if pages.len() == 1 {
            return page(pages.start).map(CachedPages::One);
        }
        let mut joined = Vec::with_capacity(pages.len() * PAGE_BYTES);
        for number in pages.clone() {
            joined.extend_from_slice(page(number)?.bytes());
        }
        Some(CachedPages::Joined(joined))
    }

    /// Caches `pages` of the section, which were read as `bytes` and verified.
    pub(super) fn put(&self, pages: &Range<usize>, bytes: &[u8]) {
        self.cache.count_read(CachedSection::Vectors, bytes.len() as u64);
        for (page, bytes) in pages.clone().zip(bytes.chunks_exact(PAGE_BYTES)) {
            self.cache.keep(self.key(page), bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::MemoryBudget;

    #[test]
    fn a_closed_section_leaves_no_pages() {
        let budget = MemoryBudget::new(1 << 20);
        let cache = SegmentCache::new(&budget);
        let section = VectorCache::new(7, 0, cache.clone());
        section.put(&(0..2), &[3; 2 * PAGE_BYTES]);
        assert_eq!(section.get(&(0..2)).unwrap().bytes(), [3; 2 * PAGE_BYTES]);
        drop(section);
        assert_eq!((cache.stats().bytes, budget.free()), (0, 1 << 20));
    }
}
