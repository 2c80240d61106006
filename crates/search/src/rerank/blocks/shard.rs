//! Shard of the block cache, behind one lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::sketch::FrequencySketch;
use super::{BlockKey, BlockLookup, BlockStats, CachedBlock};

/// Blocks picked at random, of which the least used one is evicted.
const EVICTION_SAMPLE: usize = 5;
/// A block replaces another one only if it is used this many times as often.
const TIMES_OFTEN: u32 = 2;
/// The block also needs this many more uses than the other one. Fewer are not significant.
const TIMES_MORE: u32 = 4;
/// Lookups of absent blocks per comparison with cached blocks. Bounds the cost of a load whose most
/// used blocks change all the time.
const LOOKUPS_PER_COMPARISON: u32 = 32;
/// Counters of the sketch per cached block. Files may have a hundred times as many blocks.
const COUNTERS: usize = 256;

/// Some of the blocks of the cache, and the use of their keys.
#[derive(Debug)]
pub(super) struct BlockShard {
    places: HashMap<BlockKey, usize>,
    held: Vec<(BlockKey, Arc<CachedBlock>)>,
    held_max: usize,
    sketch: FrequencySketch,
    /// Lookups of absent blocks since the last comparison.
    lookups: u32,
    /// State of the pseudo-random numbers that choose blocks for eviction.
    random: u64,
    filled: u64,
    evicted: u64,
}

impl BlockShard {
    /// Creates a shard of at most `held_max` blocks.
    pub(super) fn new(held_max: usize) -> BlockShard {
        BlockShard {
            places: HashMap::with_capacity(held_max),
            held: Vec::with_capacity(held_max),
            held_max,
            sketch: FrequencySketch::new(held_max * COUNTERS),
            lookups: 0,
            random: 0x9E37_79B9_7F4A_7C15,
            filled: 0,
            evicted: 0,
        }
    }

    /// Returns the overhead bytes of `blocks` blocks, without their content.
    pub(super) fn overhead(blocks: usize) -> usize {
        const ENTRY: usize =
            2 * size_of::<(BlockKey, usize)>() + size_of::<(BlockKey, Arc<CachedBlock>)>() + 64;
        FrequencySketch::footprint(blocks * COUNTERS) + blocks * ENTRY
    }

    /// Looks a block up, and counts the access. `may_fill` is true if the caller can read a missing
    /// block into the cache.
    pub(super) fn lookup(&mut self, key: BlockKey, hash: u64, may_fill: bool) -> BlockLookup {
        self.sketch.count(hash);
        if let Some((_, block)) = self.places.get(&key).and_then(|&at| self.held.get(at)) {
            return BlockLookup::Here(block.clone());
        }
        if may_fill
            && (self.held.len() < self.held_max
                || (self.is_time() && self.block_to_evict(hash).is_some()))
        {
            return BlockLookup::Fill;
        }
        BlockLookup::Absent
    }

    fn is_time(&mut self) -> bool {
        self.lookups = (self.lookups + 1) % LOOKUPS_PER_COMPARISON;
        self.lookups == 0
    }

    /// Returns the position of a block to evict for a block of this hash.
    fn block_to_evict(&mut self, hash: u64) -> Option<usize> {
        let wanted = self.sketch.estimate(hash);
        let (at, least) = (0..EVICTION_SAMPLE)
            .filter_map(|_| {
                let at = self.pick()?;
                let (key, block) = self.held.get(at)?;
                // A block that is being scored keeps its bytes.
                (Arc::strong_count(block) == 1).then(|| (at, self.sketch.estimate(key.hash())))
            })
            .min_by_key(|&(_, uses)| uses)?;
        (wanted >= TIMES_OFTEN * least + TIMES_MORE).then_some(at)
    }

    /// Returns a random position (xorshift; Marsaglia, "Xorshift RNGs", 2003).
    fn pick(&mut self) -> Option<usize> {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16).checked_rem(self.held.len() as u64).map(|at| at as usize)
    }

    /// Inserts a block. See [`super::Blocks::put`].
    pub(super) fn put(
        &mut self,
        key: BlockKey,
        hash: u64,
        buffer: &mut Option<Box<[u8]>>,
        filled: usize,
    ) {
        if self.places.contains_key(&key) {
            return;
        }
        let block =
            |bytes| CachedBlock { start: key.start(), bytes, filled, checked: AtomicU64::new(0) };
        if self.held.len() < self.held_max {
            let Some(bytes) = buffer.take() else { return };
            self.places.insert(key, self.held.len());
            self.held.push((key, Arc::new(block(bytes))));
            self.filled += 1;
            return;
        }
        let Some(at) = self.block_to_evict(hash) else { return };
        // Its bytes become the next buffer. No other reference exists, and none can be taken while
        // the shard is locked.
        if let Some((old, place)) = self.held.get_mut(at)
            && let Some(held) = Arc::get_mut(place)
            && let Some(bytes) = buffer.take()
        {
            *buffer = Some(std::mem::replace(held, block(bytes)).bytes);
            self.places.remove(old);
            *old = key;
            self.places.insert(key, at);
            self.filled += 1;
            self.evicted += 1;
        }
    }

    /// Drops the other blocks. Queries that score one keep its bytes until they are done.
    pub(super) fn retain(&mut self, keeps: impl Fn(BlockKey) -> bool) {
        let before = self.held.len();
        self.held.retain(|(key, _)| keeps(*key));
        if self.held.len() < before {
            self.evicted += (before - self.held.len()) as u64;
            self.places = self.held.iter().enumerate().map(|(at, (key, _))| (*key, at)).collect();
        }
    }

    pub(super) fn add_to(&self, stats: &mut BlockStats) {
        stats.filled += self.filled;
        stats.evicted += self.evicted;
        stats.blocks += self.held.len() as u64;
        stats.blocks_max += self.held_max as u64;
    }
}
