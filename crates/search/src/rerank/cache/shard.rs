//! One part of the cache, behind one lock.

use super::Key;
use super::index::{Index, Place};
use super::ring::{Header, Position, Ring, footprint};

/// Uses that are counted of a record at most.
const USES_MAX: u8 = 3;
/// A record in the small queue with so many uses is promoted when its time comes.
const PROMOTED_FROM: u8 = 2;
/// One part in so many is the small queue.
const SMALL_SHARE: usize = 10;
/// Records that one insertion moves to the head of the main queue at most: a bound on its time.
const SPARED_MAX: usize = 32;
/// Records of more than one part in so many of a shard are not cached.
const RECORD_SHARE: usize = 4;

/// Where a record was found. It may be gone when it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub(super) main: bool,
    pub(super) position: Position,
}

/// S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction", SOSP 2023): new records
/// pass through a small queue, which those that are not used again leave soon, so a scan does not push out what is in
/// use; a record that comes back soon after that, or was used meanwhile, goes to the main queue, where what was used
/// gets another round.
#[derive(Debug)]
pub(super) struct Shard {
    small: Ring,
    main: Ring,
    index: Index,
    /// Hashes of records that left the small queue unused. A table in place of the paper's queue: a hash stays until
    /// another takes its entry, which is on average as long.
    ghosts: Box<[u32]>,
    /// Until something was dropped for the first time, new records may go to the main queue directly.
    full_once: bool,
    /// Holds a record while it moves.
    moved: Vec<u8>,
    pub(super) evicted: u64,
}

impl Shard {
    /// A shard of `bytes` in all, index included, for records of about `record_bytes`.
    pub(super) fn new(bytes: usize, record_bytes: usize) -> Shard {
        let record = footprint(record_bytes);
        // Each record takes its bytes, an entry of the index and one of the ghosts.
        let mut entries = bytes / (record + 20);
        while entries > 8 && entries * record + overhead(entries) > bytes {
            entries -= entries.div_ceil(64);
        }
        let records = bytes.saturating_sub(overhead(entries));
        let small = Ring::new(records / SMALL_SHARE);
        let main = Ring::new(records - records / SMALL_SHARE);
        let index = Index::new(entries);
        let ghosts = vec![0; ghost_entries(entries)].into_boxed_slice();
        Shard { small, main, index, ghosts, full_once: false, moved: Vec::new(), evicted: 0 }
    }

    fn ring(&self, main: bool) -> &Ring {
        if main { &self.main } else { &self.small }
    }

    fn place(&self, at: At) -> Place {
        Place { main: at.main, grain: self.ring(at.main).grain(at.position) }
    }

    /// Where the record is, if it is in. Counts as a use.
    pub(super) fn find(&mut self, hash: u32, key: Key) -> Option<At> {
        let is = |place: Place| {
            let ring = self.ring(place.main);
            ring.header(ring.position(place.grain)).is_some_and(|header| header.key == key)
        };
        let place = self.index.find(hash, is)?;
        let ring = if place.main { &mut self.main } else { &mut self.small };
        let position = ring.position(place.grain);
        let uses = ring.header(position)?.uses;
        if uses < USES_MAX {
            ring.set_uses(position, uses + 1);
        }
        Some(At { main: place.main, position })
    }

    /// The record at a place where it was found, unless it has left it.
    pub(super) fn record(&self, at: At) -> Option<&[u8]> {
        let ring = self.ring(at.main);
        if ring.holds(at.position) { ring.record(at.position) } else { None }
    }

    /// Takes a record in. One that is in already stays as it is.
    pub(super) fn insert(&mut self, hash: u32, key: Key, record: &[u8]) {
        if footprint(record.len()) > (self.small.capacity() + self.main.capacity()) / RECORD_SHARE
            || self.find(hash, key).is_some()
        {
            return;
        }
        let came_back = self.take_ghost(hash);
        let fits_small = self.small.has_room(footprint(record.len()));
        let direct = !self.full_once && !fits_small && self.main.has_room(footprint(record.len()));
        let main = came_back || direct || footprint(record.len()) > self.small.capacity();
        self.push(hash, key, record, main, 0);
    }

    fn push(&mut self, hash: u32, key: Key, record: &[u8], main: bool, uses: u8) {
        let mut spared = 0;
        if main {
            self.make_room_in_main(footprint(record.len()), &mut spared);
        } else {
            while !self.small.has_room(footprint(record.len())) && self.evict_small(&mut spared) {}
        }
        // Records smaller than expected: the index is full before the rings are.
        while !self.index.has_room() && (self.evict_main(&mut spared) || self.evict_small(&mut spared)) {}
        self.put(hash, key, record, main, uses);
    }

    /// Puts a record into a ring and the index. False where one of them has no room.
    fn put(&mut self, hash: u32, key: Key, record: &[u8], main: bool, uses: u8) -> bool {
        if !self.index.has_room() {
            return false;
        }
        let ring = if main { &mut self.main } else { &mut self.small };
        let Some(position) = ring.push(key, record, uses) else { return false };
        let place = self.place(At { main, position });
        self.index.insert(hash, place);
        true
    }

    fn make_room_in_main(&mut self, footprint: usize, spared: &mut usize) {
        while !self.main.has_room(footprint) && self.evict_main(spared) {}
    }

    /// Takes the oldest record out of a queue, and keeps a copy where it shall move.
    fn take_oldest(&mut self, main: bool, moves: impl Fn(Header) -> bool) -> Option<(u32, Header)> {
        let ring = if main { &mut self.main } else { &mut self.small };
        let (position, header) = ring.oldest()?;
        if moves(header) {
            self.moved.clear();
            self.moved.extend_from_slice(ring.record(position).unwrap_or(&[]));
        }
        ring.drop_oldest();
        let hash = header.key.hash_low();
        let place = self.place(At { main, position });
        self.index.replace(hash, place, None);
        Some((hash, header))
    }

    /// Makes the oldest record of the main queue go round again, or drops it. False where there is none.
    fn evict_main(&mut self, spared: &mut usize) -> bool {
        let spares = *spared < SPARED_MAX;
        let moves = |header: Header| spares && header.uses > 0;
        let Some((hash, header)) = self.take_oldest(true, moves) else { return false };
        let moved = std::mem::take(&mut self.moved);
        // At the end of the ring's memory it may not fit where it just was; then it goes.
        if moves(header) && self.put(hash, header.key, &moved, true, header.uses - 1) {
            *spared += 1;
        } else {
            self.drop_one();
        }
        self.moved = moved;
        true
    }

    /// Promotes the oldest record of the small queue, or drops it. False where there is none.
    fn evict_small(&mut self, spared: &mut usize) -> bool {
        let spares = *spared < SPARED_MAX;
        let moves = |header: Header| spares && header.uses >= PROMOTED_FROM;
        let Some((hash, header)) = self.take_oldest(false, moves) else { return false };
        if !moves(header) {
            self.leave_ghost(hash);
            self.drop_one();
            return true;
        }
        *spared += 1;
        let moved = std::mem::take(&mut self.moved);
        self.make_room_in_main(footprint(moved.len()), spared);
        if !self.put(hash, header.key, &moved, true, 0) {
            self.drop_one();
        }
        self.moved = moved;
        true
    }

    fn drop_one(&mut self) {
        self.full_once = true;
        self.evicted += 1;
    }

    fn ghost(&mut self, hash: u32) -> Option<&mut u32> {
        let mask = self.ghosts.len().checked_sub(1)?;
        self.ghosts.get_mut(hash as usize & mask)
    }

    fn leave_ghost(&mut self, hash: u32) {
        if let Some(entry) = self.ghost(hash) {
            *entry = hash;
        }
    }

    fn take_ghost(&mut self, hash: u32) -> bool {
        // 0 stands for none; the one hash in 2^32 that is 0 has no ghost.
        match self.ghost(hash) {
            Some(entry) if *entry == hash && hash != 0 => {
                *entry = 0;
                true
            }
            _ => false,
        }
    }
}

fn ghost_entries(entries: usize) -> usize {
    entries.max(8).next_power_of_two()
}

/// Bytes of what `entries` records need beside themselves.
fn overhead(entries: usize) -> usize {
    Index::footprint(entries) + ghost_entries(entries) * size_of::<u32>()
}
