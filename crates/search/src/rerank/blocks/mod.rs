//! Block cache: whole aligned blocks of record files, scored in place.
//!
//! Records of one coarse cluster are neighbours, so one read serves several of them and the data in
//! between. A cache avoids the read only if it has all records of the read. With single records,
//! all of them would have to be cached. A block has them all, needs no copy, and its pages are
//! verified once. If all records are used equally often, blocks avoid that share of reads which is
//! the share of the file that they hold. The share of the [record cache](super::cache) is smaller.
//! If a few records are used again and again, the record cache holds a hundred times as many.
//!
//! A block is cached while there is room. Later it only replaces a block that is used clearly less
//! often, so without favourites nothing moves.

mod shard;
mod sketch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use storage::page::PAGE_BYTES;

use parking_lot::{Mutex, MutexGuard};

use super::hash::mix;
use shard::BlockShard;

/// Bytes of a block. A block is so much longer than a joined read that few reads lie in two blocks.
pub const BLOCK_BYTES: usize = 256 << 10;
/// Minimum blocks of a useful cache.
const BLOCKS_MIN: usize = 4;
/// Minimum blocks per shard.
const SHARD_BLOCKS_MIN: usize = 64;
/// Maximum shards of a cache.
const SHARDS_MAX: usize = 64;

/// Block `number` of the file with this [`storage::Sealed::id`]. Starts at `number * BLOCK_BYTES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BlockKey {
    pub(super) file: u64,
    pub(super) number: u64,
}

impl BlockKey {
    /// Returns the block that holds the byte at `offset`.
    pub(super) fn of(file: u64, offset: u64) -> BlockKey {
        BlockKey { file, number: offset / BLOCK_BYTES as u64 }
    }

    /// Returns its offset in the file.
    pub(super) fn start(self) -> u64 {
        self.number * BLOCK_BYTES as u64
    }

    fn hash(self) -> u64 {
        mix(self.file, self.number)
    }
}

/// Block in memory.
#[derive(Debug)]
pub(super) struct CachedBlock {
    /// Offset of the block in its file.
    start: u64,
    bytes: Box<[u8]>,
    /// Bytes used. They are fewer than the buffer has in the last block of a file.
    filled: usize,
    /// Bit for each page with a verified record at its start.
    checked: AtomicU64,
}

const _: () = assert!(BLOCK_BYTES / PAGE_BYTES <= 64, "a bit for each page");

impl CachedBlock {
    fn bit(&self, offset: u64) -> u64 {
        1 << ((offset.saturating_sub(self.start) / PAGE_BYTES as u64) % 64)
    }

    /// Returns the bytes from `offset` of the file, or `None` if the block does not hold them all.
    pub(super) fn part(&self, offset: u64, bytes: u32) -> Option<&[u8]> {
        let start = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(..self.filled)?.get(start..start.checked_add(bytes as usize)?)
    }

    /// Returns true if the page at `offset` was verified.
    pub(super) fn is_checked(&self, offset: u64) -> bool {
        self.checked.load(Ordering::Relaxed) & self.bit(offset) != 0
    }

    /// Marks the page at `offset` as verified.
    pub(super) fn set_checked(&self, offset: u64) {
        self.checked.fetch_or(self.bit(offset), Ordering::Relaxed);
    }
}

/// Result of a look-up.
#[derive(Debug)]
pub(super) enum BlockLookup {
    /// Cached block.
    Here(Arc<CachedBlock>),
    /// The block is not cached and should be read.
    Fill,
    /// The block is not cached, and should not be read into the cache.
    Absent,
}

/// Counts of the block cache since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockStats {
    /// Look-ups, one per read.
    pub lookups: u64,
    /// Look-ups that found the block.
    pub hits: u64,
    /// Blocks inserted.
    pub filled: u64,
    /// Blocks removed to make room for others.
    pub evicted: u64,
    /// Blocks cached now.
    pub blocks: u64,
    /// Maximum blocks.
    pub blocks_max: u64,
}

/// The block cache, divided into shards.
#[derive(Debug)]
pub(super) struct Blocks {
    shards: Box<[Mutex<BlockShard>]>,
    lookups: AtomicU64,
    hits: AtomicU64,
}

impl Blocks {
    /// Creates a cache of `bytes` in total. Returns `None` if that is too little.
    pub(super) fn new(bytes: u64) -> Option<Blocks> {
        let most = usize::try_from(bytes).ok()? / (BLOCK_BYTES + BlockShard::overhead(1));
        let shards = (most / SHARD_BLOCKS_MIN).clamp(1, SHARDS_MAX);
        let shard = || Mutex::new(BlockShard::new(most / shards));
        (most >= BLOCKS_MIN).then(|| Blocks {
            shards: (0..shards).map(|_| shard()).collect(),
            lookups: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        })
    }

    fn lock(&self, hash: u64) -> Option<MutexGuard<'_, BlockShard>> {
        // The sketch uses other bits. Otherwise some counters would coincide within a shard.
        let at = (hash >> 48) % self.shards.len() as u64;
        // No code under this lock can panic, because every access is checked.
        Some(self.shards.get(at as usize)?.lock())
    }

    /// Looks a block up. With `may_fill`, reports if the block should be read as a whole and passed
    /// to [`put`](Blocks::put).
    pub(super) fn lookup(&self, key: BlockKey, may_fill: bool) -> BlockLookup {
        let hash = key.hash();
        let lookup = self
            .lock(hash)
            .map_or(BlockLookup::Absent, |mut shard| shard.lookup(key, hash, may_fill));
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.hits.fetch_add(u64::from(matches!(lookup, BlockLookup::Here(_))), Ordering::Relaxed);
        lookup
    }

    /// Inserts a block with the first `filled` bytes of `buffer`, and replaces `buffer` by another
    /// one or by `None`. Does nothing if it was inserted meanwhile, or if all blocks that could be
    /// evicted are in use.
    pub(super) fn put(&self, key: BlockKey, buffer: &mut Option<Box<[u8]>>, filled: usize) {
        let hash = key.hash();
        if let Some(mut shard) = self.lock(hash) {
            shard.put(key, hash, buffer, filled);
        }
    }

    /// Drops a block with wrong content.
    pub(super) fn drop_block(&self, key: BlockKey) {
        if let Some(mut shard) = self.lock(key.hash()) {
            shard.retain(|held| held != key);
        }
    }

    /// Drops all blocks of a file.
    pub(super) fn forget(&self, file: u64) {
        for shard in &self.shards {
            shard.lock().retain(|held| held.file != file);
        }
    }

    /// Returns the counts.
    pub(super) fn stats(&self) -> BlockStats {
        let mut stats = BlockStats {
            lookups: self.lookups.load(Ordering::Relaxed),
            hits: self.hits.load(Ordering::Relaxed),
            ..BlockStats::default()
        };
        for shard in &self.shards {
            shard.lock().add_to(&mut stats);
        }
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(number: u64) -> BlockKey {
        BlockKey { file: 3, number }
    }

    /// Looks a block up like a searcher. Returns true if it was cached.
    fn look_up(blocks: &Blocks, key: BlockKey, spare: &mut Option<Box<[u8]>>) -> bool {
        match blocks.lookup(key, true) {
            BlockLookup::Here(block) => {
                assert_eq!(
                    block.part(key.start() + 4096, 2).unwrap(),
                    [key.number as u8, key.file as u8]
                );
                true
            }
            BlockLookup::Fill => {
                let mut buffer = spare.take().unwrap_or_else(|| vec![0; BLOCK_BYTES].into());
                (buffer[4096], buffer[4097]) = (key.number as u8, key.file as u8);
                *spare = Some(buffer);
                blocks.put(key, spare, BLOCK_BYTES);
                false
            }
            BlockLookup::Absent => false,
        }
    }

    /// Looks blocks of one file up. Returns the number of hits.
    fn ask_for(
        blocks: &Blocks,
        numbers: impl Iterator<Item = u64>,
        spare: &mut Option<Box<[u8]>>,
    ) -> usize {
        numbers.filter(|&number| look_up(blocks, key(number), spare)).count()
    }

    fn cache(blocks: u64) -> Blocks {
        Blocks::new(blocks * (BLOCK_BYTES + BlockShard::overhead(1)) as u64).unwrap()
    }

    /// Returns pseudo-random numbers below `below`.
    fn numbers(below: u64) -> impl FnMut() -> u64 {
        let mut state = 1u64;
        move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        }
    }

    #[test]
    fn holds_at_most_its_capacity() {
        assert!(Blocks::new(0).is_none() && Blocks::new(3 << 18).is_none());
        let blocks = cache(200);
        let mut spare = None;
        assert_eq!(ask_for(&blocks, 0..1000, &mut spare), 0);
        let stats = blocks.stats();
        assert!(stats.blocks <= 200 && stats.blocks >= 190, "{stats:?}");
        assert_eq!(stats.filled - stats.evicted, stats.blocks);
    }

    #[test]
    fn a_full_cache_keeps_equally_used_blocks() {
        let blocks = cache(64);
        let mut spare = None;
        let mut next = numbers(256);
        ask_for(&blocks, (0..2000).map(|_| next()), &mut spare);
        let before = blocks.stats();
        assert_eq!(before.blocks, 64);
        let hits = ask_for(&blocks, (0..100_000).map(|_| next()), &mut spare);
        let moved = blocks.stats().evicted - before.evicted;
        assert!(moved < 10 && (24_000..26_000).contains(&hits), "{moved} moved, {hits} hits");
    }

    #[test]
    fn a_scan_does_not_evict_favourites() {
        let blocks = cache(64);
        let mut spare = None;
        let mut next = numbers(256);
        ask_for(&blocks, (0..50_000).map(|_| next()), &mut spare);
        // Every second one is among 40 that were not used before.
        let mut favourites = numbers(40);
        for at in 0..60_000 {
            let number = if at % 2 == 0 { 1000 + favourites() } else { next() };
            look_up(&blocks, key(number), &mut spare);
        }
        let held = |blocks: &Blocks| {
            (1000..1040)
                .filter(|&number| matches!(blocks.lookup(key(number), false), BlockLookup::Here(_)))
                .count()
        };
        assert!(held(&blocks) >= 38, "{} of 40", held(&blocks));
        ask_for(&blocks, 5000..9000, &mut spare);
        assert!(held(&blocks) >= 38, "{} of 40 after a scan", held(&blocks));
    }

    #[test]
    fn blocks_in_use_keep_their_bytes() {
        let blocks = cache(4);
        let mut spare = None;
        ask_for(&blocks, 0..4, &mut spare);
        let held: Vec<_> = (0..4)
            .filter_map(|number| match blocks.lookup(key(number), false) {
                BlockLookup::Here(block) => Some((number, block)),
                _ => None,
            })
            .collect();
        assert_eq!(held.len(), 4);
        ask_for(&blocks, (0..100_000).map(|at| 100 + at % 3), &mut spare);
        for (number, block) in &held {
            assert_eq!(block.part(key(*number).start() + 4096, 1).unwrap(), [*number as u8]);
        }
        drop(held);
        ask_for(&blocks, (0..100_000).map(|at| 100 + at % 3), &mut spare);
        assert!(matches!(blocks.lookup(key(101), false), BlockLookup::Here(_)));
    }

    #[test]
    fn a_forgotten_file_leaves_no_block() {
        let blocks = cache(16);
        let mut spare = None;
        for number in 0..8 {
            look_up(&blocks, key(number), &mut spare);
            look_up(&blocks, BlockKey { file: 4, number }, &mut spare);
        }
        blocks.forget(3);
        blocks.drop_block(BlockKey { file: 4, number: 2 });
        assert_eq!(blocks.stats().blocks, 7);
        assert!(matches!(blocks.lookup(key(1), false), BlockLookup::Absent));
        assert!(matches!(
            blocks.lookup(BlockKey { file: 4, number: 1 }, false),
            BlockLookup::Here(_)
        ));
        assert!(!look_up(&blocks, key(1), &mut spare) && look_up(&blocks, key(1), &mut spare));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn returns_only_inserted_blocks(asked in proptest::collection::vec((0u64..3, 0u64..40), 1..2000)) {
            // `look_up` checks the bytes of cached blocks.
            let blocks = cache(8);
            let mut spare = None;
            for (file, number) in asked {
                look_up(&blocks, BlockKey { file, number }, &mut spare);
            }
            let stats = blocks.stats();
            prop_assert!(stats.blocks <= 8 && stats.hits <= stats.lookups);
        }
    }
}
