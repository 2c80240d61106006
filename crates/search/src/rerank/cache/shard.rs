//! Shard of the record cache, behind one lock.

use super::RecordKey;
use super::index::RecordIndex;
use super::ring::{Position, RecordRing, footprint};

/// Maximum counted uses of a record.
const USES_MAX: u8 = 3;
/// Maximum records that one insertion moves to the head of the queue. Bounds its time.
const REINSERTED_MAX: usize = 32;
/// Divisor of a shard's bytes for the largest cached record.
const RECORD_SHARE: usize = 4;

/// Cache shard with CLOCK eviction and an admission filter. Once the cache is full, a record is
/// inserted only if it is offered again while its hash is remembered. A scan therefore leaves only
/// hashes, and uniform reads cost almost nothing. This is S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi:
/// "FIFO queues are all you need for cache eviction", SOSP 2023) without its small queue. A record
/// that waits there for its second use costs as much as it saves, because a read is cheap.
#[derive(Debug)]
pub(super) struct RecordShard {
    ring: RecordRing,
    index: RecordIndex,
    /// Hashes of records that were offered and not inserted. Each stays until another takes its
    /// entry.
    ghosts: Box<[u32]>,
    /// False until the first eviction. All records are inserted until then.
    full_once: bool,
    /// Buffer for a record that moves.
    moved: Vec<u8>,
    pub(super) inserted: u64,
    pub(super) evicted: u64,
}

impl RecordShard {
    /// Creates a shard of `bytes` in total, with its index, for records of about `record_bytes`.
    pub(super) fn new(bytes: usize, record_bytes: usize) -> RecordShard {
        let record = footprint(record_bytes);
        // Each record takes its bytes, an entry of the index and one of the ghosts.
        let mut entries = bytes / (record + 20);
        while entries > 8 && entries * record + overhead(entries) > bytes {
            entries -= entries.div_ceil(64);
        }
        let ring = RecordRing::new(bytes.saturating_sub(overhead(entries)));
        let index = RecordIndex::new(entries);
        let ghosts = vec![0; ghost_entries(entries)].into_boxed_slice();
        RecordShard {
            ring,
            index,
            ghosts,
            full_once: false,
            moved: Vec::new(),
            inserted: 0,
            evicted: 0,
        }
    }

    /// Looks a record up. Counts as a use.
    pub(super) fn find(&mut self, hash: u32, key: RecordKey) -> Option<Position> {
        let ring = &self.ring;
        let is =
            |grain: u32| ring.header(ring.position(grain)).is_some_and(|header| header.key == key);
        let position = self.ring.position(self.index.find(hash, is)?);
        let uses = self.ring.header(position)?.uses;
        if uses < USES_MAX {
            self.ring.set_uses(position, uses + 1);
        }
        Some(position)
    }

    /// Returns the record at a position, unless it was evicted.
    pub(super) fn record(&self, at: Position) -> Option<&[u8]> {
        if self.ring.holds(at) { self.ring.record(at) } else { None }
    }

    /// Inserts a record if it should be cached. An existing one is unchanged.
    pub(super) fn insert(&mut self, hash: u32, key: RecordKey, record: &[u8]) {
        if footprint(record.len()) > self.ring.capacity() / RECORD_SHARE {
            return;
        }
        if (!self.take_ghost(hash) && self.full_once) || self.find(hash, key).is_some() {
            return;
        }
        let mut reinserted = 0;
        while !self.ring.has_room(footprint(record.len())) && self.evict(&mut reinserted) {}
        // For records smaller than expected the index is full before the ring is.
        while !self.index.has_room() && self.evict(&mut reinserted) {}
        self.inserted += u64::from(self.put(hash, key, record, 0));
    }

    /// Adds a record to the ring and the index. Returns false if one has no room.
    fn put(&mut self, hash: u32, key: RecordKey, record: &[u8], uses: u8) -> bool {
        if !self.index.has_room() {
            return false;
        }
        let Some(position) = self.ring.push(key, record, uses) else { return false };
        self.index.insert(hash, self.ring.grain(position));
        true
    }

    /// Moves the oldest record to the head again, or drops it. Returns false if there is no record.
    fn evict(&mut self, reinserted: &mut usize) -> bool {
        let Some((position, header)) = self.ring.oldest() else { return false };
        let keeps = *reinserted < REINSERTED_MAX && header.uses > 0;
        let mut moved = std::mem::take(&mut self.moved);
        moved.clear();
        if keeps {
            moved.extend_from_slice(self.ring.record(position).unwrap_or(&[]));
        }
        let hash = header.key.hash_low();
        let grain = self.ring.grain(position);
        self.ring.drop_oldest();
        self.index.remove(hash, grain);
        // At the end of the ring's memory it may no longer fit; then it is dropped.
        if keeps && self.put(hash, header.key, &moved, header.uses - 1) {
            *reinserted += 1;
        } else {
            self.full_once = true;
            self.evicted += 1;
        }
        self.moved = moved;
        true
    }

    /// Returns true and forgets the hash if it is remembered. Otherwise remembers it.
    fn take_ghost(&mut self, hash: u32) -> bool {
        // 0 means none; a hash of 0, one in 2^32, has no ghost.
        let mask = self.ghosts.len() - 1;
        let Some(entry) = self.ghosts.get_mut(hash as usize & mask) else { return false };
        let came_back = *entry == hash && hash != 0;
        *entry = if came_back { 0 } else { hash };
        came_back
    }
}

fn ghost_entries(entries: usize) -> usize {
    entries.max(8).next_power_of_two()
}

/// Returns the overhead bytes of `entries` records, without their content.
fn overhead(entries: usize) -> usize {
    RecordIndex::footprint(entries) + ghost_entries(entries) * size_of::<u32>()
}
