//! One part of the block cache, behind one lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::sketch::FrequencySketch;
use super::{BlockKey, BlockLookup, BlockStats, CachedBlock};

/// Of so many blocks, picked at random, the one that is asked for least makes room.
const PICKED: usize = 5;
/// A block takes another's place if it is asked for so many times as often,
const TIMES_OFTEN: u32 = 2;
/// and so many times more: what is asked for hardly ever says nothing.
const TIMES_MORE: u32 = 4;
/// One of so many looks for an absent block compares it with those that are in: a bound on what a load that changes its
/// favourites all the time can cost.
const LOOKS_APART: u32 = 32;
/// Counters of the sketch for each block: files may have a hundred times as many blocks.
const COUNTERS: usize = 256;

#[derive(Debug)]
pub(super) struct BlockShard {
    places: HashMap<BlockKey, usize>,
    held: Vec<(BlockKey, Arc<CachedBlock>)>,
    held_max: usize,
    sketch: FrequencySketch,
    /// Looks for absent blocks since one was compared.
    looks: u32,
    random: u64,
    filled: u64,
    evicted: u64,
}

impl BlockShard {
    /// For so many blocks.
    pub(super) fn new(held_max: usize) -> BlockShard {
        BlockShard {
            places: HashMap::with_capacity(held_max),
            held: Vec::with_capacity(held_max),
            held_max,
            sketch: FrequencySketch::new(held_max * COUNTERS),
            looks: 0,
            random: 0x9E37_79B9_7F4A_7C15,
            filled: 0,
            evicted: 0,
        }
    }

    /// Bytes that so many blocks take beside their own.
    pub(super) fn overhead(blocks: usize) -> usize {
        const ENTRY: usize =
            2 * size_of::<(BlockKey, usize)>() + size_of::<(BlockKey, Arc<CachedBlock>)>() + 64;
        FrequencySketch::footprint(blocks * COUNTERS) + blocks * ENTRY
    }

    pub(super) fn lookup(&mut self, key: BlockKey, hash: u64, may_fill: bool) -> BlockLookup {
        self.sketch.count(hash);
        if let Some((_, block)) = self.places.get(&key).and_then(|&at| self.held.get(at)) {
            return BlockLookup::Here(block.clone());
        }
        if may_fill && (self.held.len() < self.held_max || (self.is_time() && self.weaker(hash).is_some())) {
            return BlockLookup::Fill;
        }
        BlockLookup::Absent
    }

    fn is_time(&mut self) -> bool {
        self.looks = (self.looks + 1) % LOOKS_APART;
        self.looks == 0
    }

    /// Where a block is that shall make room for one with this hash.
    fn weaker(&mut self, hash: u64) -> Option<usize> {
        let wanted = self.sketch.estimate(hash);
        let (at, least) = (0..PICKED)
            .filter_map(|_| {
                let at = self.pick()?;
                let (key, block) = self.held.get(at)?;
                // One that is being scored keeps its bytes.
                (Arc::strong_count(block) == 1).then(|| (at, self.sketch.estimate(key.hash())))
            })
            .min_by_key(|&(_, asked)| asked)?;
        (wanted >= TIMES_OFTEN * least + TIMES_MORE).then_some(at)
    }

    /// A random place (xorshift; Marsaglia, "Xorshift RNGs", 2003).
    fn pick(&mut self) -> Option<usize> {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16).checked_rem(self.held.len() as u64).map(|at| at as usize)
    }

    /// See [`super::Blocks::put`].
    pub(super) fn put(&mut self, key: BlockKey, hash: u64, buffer: &mut Option<Box<[u8]>>, filled: usize) {
        if self.places.contains_key(&key) {
            return;
        }
        let block = |bytes| CachedBlock { start: key.start(), bytes, filled, checked: AtomicU64::new(0) };
        if self.held.len() < self.held_max {
            let Some(bytes) = buffer.take() else { return };
            self.places.insert(key, self.held.len());
            self.held.push((key, Arc::new(block(bytes))));
            self.filled += 1;
            return;
        }
        let Some(at) = self.weaker(hash) else { return };
        // Its bytes become the next buffer. Nobody else has it, and nobody gets it while this part is locked.
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

    /// Drops the others. Those that are being scored end with that.
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
