//! Queue of records in one fixed piece of memory: pushed at the head, dropped at the tail, never
//! moved.
//!
//! Eviction only needs first in, first out. In that order records of any size share a ring without
//! gaps. There are no size classes to balance, and nothing is allocated after the ring.

use super::RecordKey;

/// Alignment of entries, so that a position fits 31 bits.
pub(super) const GRAIN: usize = 8;
/// Bytes before each record: key, length, uses.
pub(super) const HEADER_BYTES: usize = 24;
/// Length that marks the rest of the ring as unused. Continue at its start.
const WRAP: u32 = u32::MAX;

/// Position of an entry: the bytes pushed before it since the ring was created. Never reused, so a
/// stale position can be detected.
pub(super) type Position = u64;

/// Ring of records, from the oldest to the newest.
#[derive(Debug)]
pub(super) struct RecordRing {
    bytes: Box<[u8]>,
    /// Positions of the next entry and of the oldest one.
    head: Position,
    tail: Position,
}

/// Values before each record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) key: RecordKey,
    pub(super) bytes: u32,
    pub(super) uses: u8,
}

/// Returns the bytes that a record of `bytes` takes.
pub(super) fn footprint(bytes: usize) -> usize {
    (HEADER_BYTES + bytes).next_multiple_of(GRAIN)
}

impl RecordRing {
    /// Creates an empty ring of at most `bytes`. Touches the memory, so that no query waits for it.
    pub(super) fn new(bytes: usize) -> RecordRing {
        let mut memory = vec![0u8; bytes / GRAIN * GRAIN].into_boxed_slice();
        // The system maps zeroed memory page by page on the first write.
        memory.iter_mut().step_by(4096).for_each(|byte| *byte = std::hint::black_box(1));
        RecordRing { bytes: memory, head: 0, tail: 0 }
    }

    pub(super) fn capacity(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    fn place(&self, at: Position) -> usize {
        (at % self.bytes.len().max(1) as u64) as usize
    }

    /// Returns a position as a 32-bit index, in grains.
    pub(super) fn grain(&self, at: Position) -> u32 {
        (self.place(at) / GRAIN) as u32
    }

    /// Returns the position of a stored entry from its index in grains.
    pub(super) fn position(&self, grain: u32) -> Position {
        let place = grain as usize * GRAIN;
        let tail = self.place(self.tail);
        let ahead = if place >= tail { place - tail } else { place + self.bytes.len() - tail };
        self.tail + ahead as u64
    }

    pub(super) fn holds(&self, at: Position) -> bool {
        (self.tail..self.head).contains(&at)
    }

    /// Returns the bytes from the head to the end of the memory, which no entry crosses.
    fn to_end(&self) -> usize {
        self.bytes.len() - self.place(self.head)
    }

    /// Returns true if `footprint` bytes can be pushed now.
    pub(super) fn has_room(&self, footprint: usize) -> bool {
        if self.is_empty() {
            return footprint <= self.bytes.len();
        }
        let skipped = if footprint > self.to_end() { self.to_end() } else { 0 };
        (self.head - self.tail) as usize + skipped + footprint <= self.bytes.len()
    }

    /// Pushes a record at the head. The caller checks for room.
    pub(super) fn push(&mut self, key: RecordKey, record: &[u8], uses: u8) -> Option<Position> {
        let footprint = footprint(record.len());
        if !self.has_room(footprint) {
            return None;
        }
        if footprint > self.to_end() {
            let place = self.place(self.head);
            // If less than a header fits there, its absence means the same.
            if let Some(mark) = self.bytes.get_mut(place + 12..place + 16) {
                mark.copy_from_slice(&WRAP.to_le_bytes());
            }
            let empty = self.is_empty();
            self.head += self.to_end() as u64;
            if empty {
                self.tail = self.head;
            }
        }
        let at = self.head;
        let place = self.place(self.head);
        let entry = self.bytes.get_mut(place..place + footprint)?;
        let (header, body) = entry.split_at_mut(HEADER_BYTES);
        header[..8].copy_from_slice(&key.file.to_le_bytes());
        header[8..12].copy_from_slice(&key.row.to_le_bytes());
        header[12..16].copy_from_slice(&(record.len() as u32).to_le_bytes());
        header[16] = uses;
        body.get_mut(..record.len())?.copy_from_slice(record);
        self.head += footprint as u64;
        Some(at)
    }

    /// Returns the header of the record at `at`.
    pub(super) fn header(&self, at: Position) -> Option<RecordHeader> {
        let place = self.place(at);
        let header = self.bytes.get(place..place + HEADER_BYTES)?;
        let word =
            |from: usize| Some(u32::from_le_bytes(header.get(from..from + 4)?.try_into().ok()?));
        let bytes = word(12)?;
        if bytes == WRAP {
            return None;
        }
        let file = u64::from_le_bytes(header.get(..8)?.try_into().ok()?);
        Some(RecordHeader { key: RecordKey { file, row: word(8)? }, bytes, uses: header[16] })
    }

    /// Returns the record at `at`.
    pub(super) fn record(&self, at: Position) -> Option<&[u8]> {
        let place = self.place(at) + HEADER_BYTES;
        let bytes = self.header(at)?.bytes as usize;
        self.bytes.get(place..place + bytes)
    }

    pub(super) fn set_uses(&mut self, at: Position, uses: u8) {
        let place = self.place(at);
        if let Some(byte) = self.bytes.get_mut(place + 16) {
            *byte = uses;
        }
    }

    /// Returns the oldest entry.
    pub(super) fn oldest(&mut self) -> Option<(Position, RecordHeader)> {
        if self.is_empty() {
            return None;
        }
        if let Some(header) = self.header(self.tail) {
            return Some((self.tail, header));
        }
        self.tail += (self.bytes.len() - self.place(self.tail)) as u64;
        if self.is_empty() {
            None
        } else {
            self.header(self.tail).map(|header| (self.tail, header))
        }
    }

    /// Drops the oldest entry.
    pub(super) fn drop_oldest(&mut self) {
        if let Some((_, header)) = self.oldest() {
            self.tail += footprint(header.bytes as usize) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn is_a_queue(capacity in 64usize..2000, sizes in proptest::collection::vec(0usize..120, 1..200)) {
            let mut ring = RecordRing::new(capacity);
            let mut queue: VecDeque<(Position, RecordKey, Vec<u8>)> = VecDeque::new();
            for (row, &size) in sizes.iter().enumerate() {
                let key = RecordKey { file: 7, row: row as u32 };
                let record = vec![row as u8; size];
                if footprint(size) > ring.capacity() {
                    continue;
                }
                while !ring.has_room(footprint(size)) {
                    let (at, header) = ring.oldest().unwrap();
                    let (wanted_at, wanted, bytes) = queue.pop_front().unwrap();
                    prop_assert_eq!((at, header.key, header.bytes as usize), (wanted_at, wanted, bytes.len()));
                    ring.drop_oldest();
                    prop_assert!(!ring.holds(at));
                }
                let at = ring.push(key, &record, 0).unwrap();
                ring.set_uses(at, 2);
                queue.push_back((at, key, record));
                for (at, key, record) in &queue {
                    prop_assert!(ring.holds(*at));
                    prop_assert_eq!(ring.position(ring.grain(*at)), *at);
                    prop_assert_eq!(ring.record(*at).unwrap(), record.as_slice());
                    prop_assert_eq!(ring.header(*at).unwrap().key, *key);
                    prop_assert_eq!(ring.header(*at).unwrap().uses, 2);
                }
            }
        }
    }
}
