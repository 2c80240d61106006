//! One part of the cache, behind one lock.

use super::RecordKey;
use super::index::RecordIndex;
use super::ring::{Position, RecordRing, footprint};

/// Uses that are counted of a record at most.
const USES_MAX: u8 = 3;
/// Records that one insertion moves to the head of the queue at most: a bound on its time.
const SPARED_MAX: usize = 32;
/// Records of more than one part in so many of a shard are not cached.
const RECORD_SHARE: usize = 4;

/// A queue in which what was used since it came to the head goes round again (CLOCK), behind a door: once it is full, a
/// record gets in when it is asked for again while it is remembered that it was asked for, so that a scan leaves nothing
/// but hashes, and a load without favourites costs next to nothing. This is S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO
/// queues are all you need for cache eviction", SOSP 2023) with its small queue left out: a record that is kept for its
/// second use only costs as much as it spares, since a read is cheap.
#[derive(Debug)]
pub(super) struct RecordShard {
    ring: RecordRing,
    index: RecordIndex,
    /// Hashes of records that were asked for and not kept. A hash stays until another takes its entry.
    ghosts: Box<[u32]>,
    /// Until something was dropped for the first time, all may come in.
    full_once: bool,
    /// Holds a record while it moves.
    moved: Vec<u8>,
    pub(super) inserted: u64,
    pub(super) evicted: u64,
}

impl RecordShard {
    /// A shard of `bytes` in all, index included, for records of about `record_bytes`.
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
        RecordShard { ring, index, ghosts, full_once: false, moved: Vec::new(), inserted: 0, evicted: 0 }
    }

    /// Where the record is, if it is in. Counts as a use.
    pub(super) fn find(&mut self, hash: u32, key: RecordKey) -> Option<Position> {
        let ring = &self.ring;
        let is = |grain: u32| ring.header(ring.position(grain)).is_some_and(|header| header.key == key);
        let position = self.ring.position(self.index.find(hash, is)?);
        let uses = self.ring.header(position)?.uses;
        if uses < USES_MAX {
            self.ring.set_uses(position, uses + 1);
        }
        Some(position)
    }

    /// The record at a place where it was found, unless it has left it.
    pub(super) fn record(&self, at: Position) -> Option<&[u8]> {
        if self.ring.holds(at) { self.ring.record(at) } else { None }
    }

    /// Takes a record in, if it shall be. One that is in already stays as it is.
    pub(super) fn insert(&mut self, hash: u32, key: RecordKey, record: &[u8]) {
        if footprint(record.len()) > self.ring.capacity() / RECORD_SHARE {
            return;
        }
        if (!self.take_ghost(hash) && self.full_once) || self.find(hash, key).is_some() {
            return;
        }
        let mut spared = 0;
        while !self.ring.has_room(footprint(record.len())) && self.evict(&mut spared) {}
        // Records smaller than expected: the index is full before the ring is.
        while !self.index.has_room() && self.evict(&mut spared) {}
        self.inserted += u64::from(self.put(hash, key, record, 0));
    }

    /// Puts a record into the ring and the index. False where one of them has no room.
    fn put(&mut self, hash: u32, key: RecordKey, record: &[u8], uses: u8) -> bool {
        if !self.index.has_room() {
            return false;
        }
        let Some(position) = self.ring.push(key, record, uses) else { return false };
        self.index.insert(hash, self.ring.grain(position));
        true
    }

    /// Makes the oldest record go round again, or drops it. False where there is none.
    fn evict(&mut self, spared: &mut usize) -> bool {
        let Some((position, header)) = self.ring.oldest() else { return false };
        let spares = *spared < SPARED_MAX && header.uses > 0;
        let mut moved = std::mem::take(&mut self.moved);
        moved.clear();
        if spares {
            moved.extend_from_slice(self.ring.record(position).unwrap_or(&[]));
        }
        let hash = header.key.hash_low();
        let grain = self.ring.grain(position);
        self.ring.drop_oldest();
        self.index.remove(hash, grain);
        // At the end of the ring's memory it may not fit where it just was; then it goes.
        if spares && self.put(hash, header.key, &moved, header.uses - 1) {
            *spared += 1;
        } else {
            self.full_once = true;
            self.evicted += 1;
        }
        self.moved = moved;
        true
    }

    /// Whether the hash is remembered, which then is forgotten; if not, from now on it is.
    fn take_ghost(&mut self, hash: u32) -> bool {
        // 0 stands for none; the one hash in 2^32 that is 0 has no ghost.
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

/// Bytes of what `entries` records need beside themselves.
fn overhead(entries: usize) -> usize {
    RecordIndex::footprint(entries) + ghost_entries(entries) * size_of::<u32>()
}
