//! Cache of blocks of segment files: codes, payload indexes, embeddings and payloads, in the memory
//! that nothing else uses.
//!
//! Each cached block reserves its bytes in the memory budget. If another reservation finds no room,
//! the budget takes blocks back ([`FreeOnDemand`]), so the cache never makes anything fail. Blocks
//! are evicted in the order of their arrival, and a block that was used since then gets another
//! round (the clock algorithm). Threads share blocks. A block that a query uses keeps its bytes,
//! and its reservation, until that query drops it.

mod block;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::budget::{BudgetReservation, FreeOnDemand, MemoryBudget};

pub(crate) use self::block::{BlockContent, VerifiedBlock};

/// Shards of the cache, with a lock each. A full cache of 2 GiB has some 8,000 pages in each.
const SHARDS: usize = 64;
/// Bytes of a block besides its content: the entry, its key in the queue, the reservation.
const BLOCK_OVERHEAD: u64 = 192;
/// Maximum blocks evicted to make room for one.
const EVICTED_MAX: usize = 64;
/// New pages of which a full cache keeps one. It evicts other blocks for that page.
const KEPT_OF_FULL: u64 = 16;
/// Maximum used blocks that one eviction skips. The shard is locked meanwhile.
const SKIPPED_MAX: usize = 64;
/// Minimum keys of dropped files that a shard keeps before it removes them. It then removes as many
/// as it has blocks, so that a removal costs little for each dropped block.
const STALE_KEYS_MIN: usize = 64;
/// Longest wait of a query for the lock of a shard. A thread of low priority that evicts blocks may
/// hold the lock for many milliseconds on a busy machine. A read from a medium takes less.
const LOCK_WAIT_MAX: Duration = Duration::from_micros(500);
/// Longest wait for the lock of each shard if another reservation needs memory.
const FREE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Returns the bytes of memory that a block of `content` bytes takes.
pub(crate) const fn block_bytes(content: usize) -> u64 {
    content as u64 + BLOCK_OVERHEAD
}

/// Range of bytes in the file with this [`storage::Sealed::id`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SegmentCacheKey {
    pub(crate) file: u64,
    /// Offset in the file. A byte belongs to one block only.
    pub(crate) offset: u64,
}

/// Section of a segment that a cached block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachedSection {
    /// A coarse index.
    Codes,
    /// A payload index.
    PayloadIndex,
    /// The embeddings.
    Vectors,
    /// The payloads.
    Payloads,
}

/// Blocks that queries requested, and reads of missing blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockReads {
    /// Blocks that queries requested.
    pub lookups: u64,
    /// Blocks that were cached.
    pub hits: u64,
    /// Bytes of the pages read from media.
    pub read_bytes: u64,
    /// Reads from media.
    pub reads: u64,
}

/// Counts of the cache since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCacheStats {
    /// Reads of blocks with vector codes.
    pub codes: BlockReads,
    /// Reads of blocks with payload indexes.
    pub payload_index: BlockReads,
    /// Reads of pages with embeddings.
    pub vectors: BlockReads,
    /// Reads of pages with payloads.
    pub payloads: BlockReads,
    /// Blocks evicted.
    pub evicted: u64,
    /// Blocks that were not cached because memory had no room.
    pub refused: u64,
    /// Blocks cached before a request needed them.
    pub preloaded: u64,
    /// Bytes of memory that cached blocks take now.
    pub bytes: u64,
}

/// Cached blocks of the segment files of all collections.
#[derive(Debug)]
pub(crate) struct SegmentCache {
    budget: Arc<MemoryBudget>,
    shards: [Mutex<CacheShard>; SHARDS],
    /// Shard to evict from next.
    next: AtomicUsize,
    bytes: AtomicU64,
    codes: ReadCounts,
    payload_index: ReadCounts,
    vectors: ReadCounts,
    payloads: ReadCounts,
    /// Calls of [`SegmentCache::keep`] that found no room.
    full: AtomicU64,
    evicted: AtomicU64,
    refused: AtomicU64,
    preloaded: AtomicU64,
    /// Users of each file whose blocks are cached.
    files: Mutex<HashMap<u64, usize>>,
}

#[derive(Debug, Default)]
struct ReadCounts {
    lookups: AtomicU64,
    hits: AtomicU64,
    read_bytes: AtomicU64,
    reads: AtomicU64,
}

impl ReadCounts {
    fn get(&self) -> BlockReads {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        BlockReads {
            lookups: load(&self.lookups),
            hits: load(&self.hits),
            read_bytes: load(&self.read_bytes),
            reads: load(&self.reads),
        }
    }
}

/// Blocks of a file, by their offsets.
type FileBlocks = HashMap<u64, SegmentCacheEntry>;

/// Some of the blocks of the cache.
#[derive(Debug, Default)]
struct CacheShard {
    /// Blocks by file. A merge drops a file, and must not visit the blocks of all others.
    files: HashMap<u64, FileBlocks>,
    /// Number of blocks of all files.
    blocks: usize,
    /// Keys of all blocks, and some of dropped files, oldest first.
    order: VecDeque<SegmentCacheKey>,
}

/// A cached block.
#[derive(Debug)]
struct SegmentCacheEntry {
    block: Arc<VerifiedBlock>,
    bytes: u64,
    /// True if the block was used since it was last considered for eviction.
    used: bool,
}

impl CacheShard {
    fn get(&self, key: SegmentCacheKey) -> Option<&SegmentCacheEntry> {
        self.files.get(&key.file)?.get(&key.offset)
    }

    fn get_mut(&mut self, key: SegmentCacheKey) -> Option<&mut SegmentCacheEntry> {
        self.files.get_mut(&key.file)?.get_mut(&key.offset)
    }

    /// Inserts a block that is not there.
    fn insert(&mut self, key: SegmentCacheKey, entry: SegmentCacheEntry) {
        self.files.entry(key.file).or_default().insert(key.offset, entry);
        self.blocks += 1;
        self.order.push_back(key);
    }

    fn remove(&mut self, key: SegmentCacheKey) -> Option<SegmentCacheEntry> {
        let of_file = self.files.get_mut(&key.file)?;
        let removed = of_file.remove(&key.offset)?;
        if of_file.is_empty() {
            self.files.remove(&key.file);
        }
        self.blocks -= 1;
        Some(removed)
    }

    /// Removes the blocks of a file. Its keys stay in the order until they are as many as the
    /// blocks, or until an eviction finds them.
    fn remove_file(&mut self, file: u64) -> Option<FileBlocks> {
        let removed = self.files.remove(&file)?;
        self.blocks -= removed.len();
        if self.order.len() > 2 * self.blocks + STALE_KEYS_MIN {
            let mut order = std::mem::take(&mut self.order);
            order.retain(|key| self.get(*key).is_some());
            self.order = order;
        }
        Some(removed)
    }

    /// Removes one block that no query uses, if there is one.
    fn evict(&mut self) -> Option<SegmentCacheEntry> {
        let mut skipped = 0;
        // Each block gets at most one more round. Blocks in use are skipped.
        for _ in 0..2 * self.order.len() {
            let key = self.order.pop_front()?;
            // A key without a block is that of a dropped file.
            let Some(cached) = self.get_mut(key) else { continue };
            let is_skipped = std::mem::take(&mut cached.used) && skipped < SKIPPED_MAX;
            if !is_skipped && Arc::strong_count(&cached.block) == 1 {
                return self.remove(key);
            }
            skipped += usize::from(is_skipped);
            self.order.push_back(key);
        }
        None
    }
}

impl SegmentCache {
    /// Creates a cache in the free memory of `budget`, which can take it back.
    pub(crate) fn new(budget: &Arc<MemoryBudget>) -> Arc<SegmentCache> {
        let cache = Arc::new(SegmentCache {
            budget: budget.clone(),
            shards: std::array::from_fn(|_| Mutex::default()),
            next: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            codes: ReadCounts::default(),
            payload_index: ReadCounts::default(),
            vectors: ReadCounts::default(),
            payloads: ReadCounts::default(),
            full: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            preloaded: AtomicU64::new(0),
            files: Mutex::default(),
        });
        let freed: std::sync::Weak<SegmentCache> = Arc::downgrade(&cache);
        budget.set_free_on_demand(freed);
        cache
    }

    /// Locks the shard of a key. Returns `None` if that takes longer than [`LOCK_WAIT_MAX`].
    fn locked(&self, key: SegmentCacheKey) -> Option<MutexGuard<'_, CacheShard>> {
        self.shard(key).try_lock_for(LOCK_WAIT_MAX)
    }

    /// Returns the shard of a block, by a hash of its key.
    fn shard(&self, key: SegmentCacheKey) -> &Mutex<CacheShard> {
        let mixed = (key.file ^ key.offset >> 8).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(mixed >> 58) as usize % SHARDS]
    }

    fn counts(&self, section: CachedSection) -> &ReadCounts {
        match section {
            CachedSection::Codes => &self.codes,
            CachedSection::PayloadIndex => &self.payload_index,
            CachedSection::Vectors => &self.vectors,
            CachedSection::Payloads => &self.payloads,
        }
    }

    /// Returns a cached block. Also `None` if another thread holds its shard's lock for long.
    pub(crate) fn get(
        &self,
        section: CachedSection,
        key: SegmentCacheKey,
    ) -> Option<Arc<VerifiedBlock>> {
        let counts = self.counts(section);
        counts.lookups.fetch_add(1, Ordering::Relaxed);
        let mut shard = self.locked(key)?;
        let cached = shard.get_mut(key)?;
        cached.used = true;
        counts.hits.fetch_add(1, Ordering::Relaxed);
        Some(cached.block.clone())
    }

    /// Returns true if a block is cached, or if another thread holds the lock of its shard for
    /// long. Does not count a lookup.
    pub(crate) fn has(&self, key: SegmentCacheKey) -> bool {
        self.locked(key).is_none_or(|shard| shard.get(key).is_some())
    }

    /// Creates a block of `content`, and caches it if memory has room or unused blocks can be
    /// evicted. Returns the block that another thread cached meanwhile, if there is one.
    pub(crate) fn put(&self, key: SegmentCacheKey, content: BlockContent) -> Arc<VerifiedBlock> {
        let bytes = block_bytes(content.memory_bytes());
        let held = self.budget.reserve_idle(bytes).or_else(|| self.make_room(bytes));
        let is_cached = held.is_some();
        let block = Arc::new(VerifiedBlock::new(content, held));
        if is_cached {
            self.insert(key, block, bytes)
        } else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            block
        }
    }

    /// Caches a copy of `content` if memory has room. While it is full, only one of
    /// [`KEPT_OF_FULL`] calls evicts unused blocks. If a search rarely finds its pages here, copies
    /// of all of them cost more than the found pages save.
    pub(crate) fn keep(&self, key: SegmentCacheKey, content: &[u8]) {
        let bytes = block_bytes(content.len());
        let held = self.budget.reserve_idle(bytes).or_else(|| {
            let calls = self.full.fetch_add(1, Ordering::Relaxed);
            if calls.is_multiple_of(KEPT_OF_FULL) { self.make_room(bytes) } else { None }
        });
        if held.is_none() {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let content = BlockContent::Bytes(content.into());
        self.insert(key, Arc::new(VerifiedBlock::new(content, held)), bytes);
    }

    /// Caches a copy of `content`, which no request needs now, if memory has room without evicting
    /// other blocks. Returns false if it has none.
    pub(crate) fn preload(&self, key: SegmentCacheKey, content: &[u8]) -> bool {
        if self.has(key) {
            return true;
        }
        let bytes = block_bytes(content.len());
        let Some(held) = self.budget.reserve_idle(bytes) else { return false };
        let content = BlockContent::Bytes(content.into());
        self.insert(key, Arc::new(VerifiedBlock::new(content, Some(held))), bytes);
        self.preloaded.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Evicts unused blocks until `bytes` can be reserved.
    fn make_room(&self, bytes: u64) -> Option<BudgetReservation> {
        for _ in 0..EVICTED_MAX {
            // Memory that another reservation reclaims is not for new blocks.
            if self.budget.is_reclaiming() || self.evict_one(LOCK_WAIT_MAX) == 0 {
                return None;
            }
            if let Some(held) = self.budget.reserve_idle(bytes) {
                return Some(held);
            }
        }
        None
    }

    /// Inserts a block of `bytes`. Returns the one that another thread inserted meanwhile, if any.
    fn insert(
        &self,
        key: SegmentCacheKey,
        block: Arc<VerifiedBlock>,
        bytes: u64,
    ) -> Arc<VerifiedBlock> {
        let Some(mut shard) = self.locked(key) else {
            // The block stays with its query.
            self.refused.fetch_add(1, Ordering::Relaxed);
            return block;
        };
        if let Some(cached) = shard.get(key) {
            return cached.block.clone();
        }
        shard.insert(key, SegmentCacheEntry { block: block.clone(), bytes, used: false });
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        block
    }

    /// Evicts one block of the next shard that has one. Skips shards that stay locked for
    /// `wait_max`. Returns its bytes, or 0 if there is none.
    fn evict_one(&self, wait_max: Duration) -> u64 {
        for _ in 0..SHARDS {
            let at = self.next.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let shard = self.shards[at].try_lock_for(wait_max);
            let evicted = shard.and_then(|mut shard| shard.evict());
            if let Some(SegmentCacheEntry { block, bytes, .. }) = evicted {
                drop(block);
                self.bytes.fetch_sub(bytes, Ordering::Relaxed);
                self.evicted.fetch_add(1, Ordering::Relaxed);
                return bytes;
            }
        }
        0
    }

    /// Drops all blocks of a file.
    pub(crate) fn forget(&self, file: u64) {
        for shard in &self.shards {
            let removed = shard.lock().remove_file(file);
            let blocks = removed.iter().flat_map(HashMap::values);
            let bytes: u64 = blocks.map(|cached| cached.bytes).sum();
            drop(removed);
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Counts a read of `bytes` from a medium.
    pub(crate) fn count_read(&self, section: CachedSection, bytes: u64) {
        let counts = self.counts(section);
        counts.reads.fetch_add(1, Ordering::Relaxed);
        counts.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the counts.
    pub(crate) fn stats(&self) -> SegmentCacheStats {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SegmentCacheStats {
            codes: self.codes.get(),
            payload_index: self.payload_index.get(),
            vectors: self.vectors.get(),
            payloads: self.payloads.get(),
            evicted: load(&self.evicted),
            refused: load(&self.refused),
            preloaded: load(&self.preloaded),
            bytes: load(&self.bytes),
        }
    }
}

/// User of a file whose blocks are cached. The blocks of the file are dropped with its last user,
/// so they stay if a segment is opened again from the same open file.
#[derive(Debug)]
pub(crate) struct CachedFile {
    /// The [`storage::Sealed::id`] of the file.
    id: u64,
    cache: Arc<SegmentCache>,
}

impl CachedFile {
    /// Creates a user of the open file with this [`storage::Sealed::id`].
    pub(crate) fn new(cache: &Arc<SegmentCache>, id: u64) -> CachedFile {
        *cache.files.lock().entry(id).or_default() += 1;
        CachedFile { id, cache: cache.clone() }
    }

    /// Returns the [`storage::Sealed::id`] of the file.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn cache(&self) -> &Arc<SegmentCache> {
        &self.cache
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        let mut files = self.cache.files.lock();
        let left = files.get_mut(&self.id).map(|users| {
            *users -= 1;
            *users
        });
        if left == Some(0) {
            files.remove(&self.id);
            drop(files);
            self.cache.forget(self.id);
        }
    }
}

impl FreeOnDemand for SegmentCache {
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn free(&self, bytes: u64) {
        let mut freed = 0;
        while freed < bytes {
            match self.evict_one(FREE_WAIT_MAX) {
                0 => return,
                more => freed += more,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> SegmentCacheKey {
        SegmentCacheKey { file: 7, offset: number * 4096 }
    }

    fn content(number: u64) -> BlockContent {
        BlockContent::Bytes(vec![number as u8; 1000].into())
    }

    #[test]
    fn blocks_use_free_memory_and_return_it() {
        let budget = MemoryBudget::new(100_000);
        let cache = SegmentCache::new(&budget);
        for number in 0..200 {
            assert_eq!(cache.put(key(number), content(number)).bytes()[0], number as u8);
        }
        let stats = cache.stats();
        assert_eq!((stats.bytes, 0), (budget.stats().cached, budget.stats().used));
        assert!(stats.bytes > 95_000 && stats.evicted > 100 && stats.refused == 0, "{stats:?}");
        assert_eq!(budget.free(), 100_000, "the cache counts as free");
        assert!(!budget.is_short());
        // Another reservation takes what it needs at once.
        let held = budget.reserve(60_000, "a merge").unwrap();
        assert!(cache.stats().bytes <= 40_000);
        assert!(!budget.is_short());
        assert!(budget.reserve(40_001, "too much").is_err());
        assert_eq!(budget.stats().peak, 60_000, "without cached blocks");
        let more = budget.reserve(16_000, "a flush").unwrap();
        assert!(budget.is_short());
        drop(more);
        // Blocks use the remaining memory.
        cache.put(key(900), content(1));
        assert!(
            cache.get(CachedSection::Codes, key(900)).is_some()
                && cache.get(CachedSection::Codes, key(0)).is_none()
        );
        drop(held);
        cache.forget(7);
        assert_eq!((cache.stats().bytes, budget.free()), (0, 100_000));
    }

    #[test]
    fn a_dropped_file_leaves_the_blocks_of_others() {
        let budget = MemoryBudget::new(1 << 20);
        let cache = SegmentCache::new(&budget);
        for number in 0..100 {
            cache.put(key(number), content(number));
        }
        let kept = cache.stats().bytes;
        let keys = || -> usize { cache.shards.iter().map(|shard| shard.lock().order.len()).sum() };
        let put_and_forget = |file: u64| {
            for number in 0..20 {
                cache.put(SegmentCacheKey { file, offset: number * 4096 }, content(number));
            }
            cache.forget(file);
        };
        put_and_forget(8);
        assert_eq!(keys(), 120, "no key of another file is visited");
        (9..2000).for_each(put_and_forget);
        assert!(keys() <= 2 * 100 + SHARDS * STALE_KEYS_MIN, "{}", keys());
        assert_eq!((cache.stats().bytes, cache.stats().evicted), (kept, 0));
        assert!((0..100).all(|number| cache.has(key(number))));
        assert!(budget.reserve(1 << 20, "everything").is_ok());
        assert_eq!((cache.stats().bytes, cache.stats().evicted), (0, 100));
    }

    #[test]
    fn used_blocks_stay_and_pinned_ones_keep_their_bytes() {
        let budget = MemoryBudget::new(40 * (1000 + BLOCK_OVERHEAD));
        let cache = SegmentCache::new(&budget);
        let pinned = cache.put(key(1), content(1));
        for round in 0..20 {
            for number in 2..8 {
                cache.put(key(number), content(number));
                cache.get(CachedSection::Codes, key(number));
            }
            cache.put(key(100 + round * 2), content(9));
            cache.put(key(101 + round * 2), content(9));
        }
        assert!((2..8).all(|number| cache.get(CachedSection::Codes, key(number)).is_some()));
        let limit = budget.stats().limit;
        assert!(budget.reserve(limit, "everything").is_err(), "one is in use");
        assert_eq!(budget.free(), limit, "the block in use counts as free");
        let mut held = budget.reserve(0, "a reader").unwrap();
        assert!(budget.reserve_if_free(limit).is_none() && !held.grow_if_free(limit));
        held.refill(limit);
        assert_eq!((held.bytes(), budget.stats().refused), (0, 1), "these are not refusals");
        assert_eq!(pinned.bytes(), [1; 1000]);
        assert_eq!(cache.stats().bytes, 1000 + BLOCK_OVERHEAD);
        drop(pinned);
        assert!(budget.reserve(budget.stats().limit, "everything").is_ok());
    }

    #[test]
    fn a_refused_reservation_leaves_the_blocks() {
        let budget = MemoryBudget::new(100_000);
        let cache = SegmentCache::new(&budget);
        let held = budget.reserve(60_000, "a segment").unwrap();
        for number in 0..20 {
            cache.put(key(number), content(number));
        }
        let before = cache.stats();
        assert!(before.bytes > 20_000 && before.evicted == 0, "{before:?}");
        // Neither fits, even if the cache gives all its blocks back.
        assert!(budget.reserve(50_000, "a merge").is_err());
        assert!(budget.reserve_if_free(50_000).is_none());
        assert_eq!(cache.stats(), before);
        assert_eq!(budget.stats().refused, 1, "a reader can be done without");
        drop(held);
        assert!(budget.reserve_if_free(90_000).is_some());
        assert!(cache.stats().evicted > 0);
    }

    #[test]
    fn a_full_cache_keeps_few_pages() {
        let page = [7; 1000];
        let budget = MemoryBudget::new(40 * (1000 + BLOCK_OVERHEAD));
        let cache = SegmentCache::new(&budget);
        (0..40).for_each(|number| cache.keep(key(number), &page));
        assert_eq!((cache.stats().refused, cache.stats().evicted), (0, 0));
        (40..40 + 16 * 10).for_each(|number| cache.keep(key(number), &page));
        assert_eq!((cache.stats().refused, cache.stats().evicted), (150, 10));
        assert_eq!(cache.get(CachedSection::Vectors, key(40)).unwrap().bytes(), page);
        assert!(!cache.has(key(41)) && budget.stats().used == 0);
        // The same page once more takes no memory.
        cache.forget(7);
        cache.keep(key(1), &page);
        cache.keep(key(1), &page);
        assert_eq!(cache.stats().bytes, 1000 + BLOCK_OVERHEAD);
    }

    #[test]
    fn a_block_without_room_is_not_cached() {
        let budget = MemoryBudget::new(500);
        let cache = SegmentCache::new(&budget);
        let block = cache.put(key(1), content(5));
        assert_eq!(block.bytes(), [5; 1000]);
        assert_eq!((cache.stats().refused, budget.stats().used), (1, 0));
        assert!(cache.get(CachedSection::Codes, key(1)).is_none());
    }
}
