//! Record cache: a fixed amount of memory, shared by all search threads, not flushed by a scan.
//!
//! It holds records and not pages. A page has eight to sixteen records, of which a query uses one
//! or two, so cached pages would mostly hold unused records. All memory, including the index, is
//! allocated when the cache is created.

mod index;
mod ring;
mod shard;

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::hash::mix;
use shard::RecordShard;

/// Maximum shards, each with its own lock. A lock is held for one copy, a fraction of a
/// microsecond.
const SHARDS_MAX: usize = 64;
/// Minimum bytes of a shard, so that a record is a small part of it.
const SHARD_BYTES_MIN: usize = 256 << 10;
/// Maximum bytes of a shard. Positions have 31 bits and count 8 bytes each.
const SHARD_BYTES_MAX: usize = 8 << 30;

/// Key of a record: the file's [`storage::Sealed::id`] and the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RecordKey {
    /// Id of the file.
    pub(crate) file: u64,
    /// Row in its segment.
    pub(crate) row: u32,
}

impl RecordKey {
    fn hash(self) -> u64 {
        mix(self.file, u64::from(self.row))
    }

    fn hash_low(self) -> u32 {
        self.hash() as u32
    }
}

/// Position of a record. The record may be evicted before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordPosition {
    shard: u32,
    at: ring::Position,
}

/// Counts of the record cache since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Look-ups.
    pub lookups: u64,
    /// Look-ups that found the record.
    pub hits: u64,
    /// Records inserted.
    pub inserted: u64,
    /// Records evicted.
    pub evicted: u64,
    /// Bytes of memory.
    pub bytes: u64,
}

/// Cache of single records.
#[derive(Debug)]
pub(crate) struct RecordCache {
    shards: Box<[Mutex<RecordShard>]>,
    bytes: u64,
    lookups: AtomicU64,
    hits: AtomicU64,
}

impl RecordCache {
    /// Creates a cache of `bytes` in total, for records of about `record_bytes`. Returns `None` if
    /// that is too little for one.
    pub(crate) fn new(bytes: u64, record_bytes: u32) -> Option<RecordCache> {
        let bytes = usize::try_from(bytes).ok()?;
        let least = SHARD_BYTES_MIN.max(record_bytes as usize * 64);
        if bytes < least {
            return None;
        }
        let shards = (bytes / least).clamp(1, SHARDS_MAX).max(bytes.div_ceil(SHARD_BYTES_MAX));
        let shard = || Mutex::new(RecordShard::new(bytes / shards, record_bytes as usize));
        Some(RecordCache {
            shards: (0..shards).map(|_| shard()).collect(),
            bytes: bytes as u64,
            lookups: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        })
    }

    fn shard(&self, hash: u64) -> u32 {
        ((hash >> 32) % self.shards.len() as u64) as u32
    }

    fn lock(&self, shard: u32) -> Option<MutexGuard<'_, RecordShard>> {
        // No code under this lock can panic, because every access is checked.
        Some(self.shards.get(shard as usize)?.lock())
    }

    /// Looks a record up. Counts as a use.
    pub(crate) fn find(&self, key: RecordKey) -> Option<RecordPosition> {
        let hash = key.hash();
        let shard = self.shard(hash);
        let found = self.lock(shard)?.find(hash as u32, key).map(|at| RecordPosition { shard, at });
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.hits.fetch_add(u64::from(found.is_some()), Ordering::Relaxed);
        found
    }

    /// Copies the record to `out`. Returns false and leaves `out` as it is if it was evicted.
    pub(crate) fn copy(&self, found: RecordPosition, out: &mut Vec<u8>) -> bool {
        let Some(shard) = self.lock(found.shard) else { return false };
        let Some(record) = shard.record(found.at) else { return false };
        out.clear();
        out.extend_from_slice(record);
        true
    }

    /// Offers a record. It is inserted if there is room, or if it was offered recently.
    pub(crate) fn insert(&self, key: RecordKey, record: &[u8]) {
        let hash = key.hash();
        if let Some(mut shard) = self.lock(self.shard(hash)) {
            shard.insert(hash as u32, key, record);
        }
    }

    /// Returns the counts.
    pub(crate) fn stats(&self) -> CacheStats {
        let mut stats = CacheStats {
            lookups: self.lookups.load(Ordering::Relaxed),
            hits: self.hits.load(Ordering::Relaxed),
            bytes: self.bytes,
            ..CacheStats::default()
        };
        for shard in (0..self.shards.len()).filter_map(|at| self.lock(at as u32)) {
            stats.inserted += shard.inserted;
            stats.evicted += shard.evicted;
        }
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const MIB: u64 = 1 << 20;

    fn record(row: u32, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (row as usize * 31 + at) as u8).collect()
    }

    fn key(row: u32) -> RecordKey {
        RecordKey { file: 3, row }
    }

    fn get(cache: &RecordCache, row: u32) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        cache.find(key(row)).filter(|&found| cache.copy(found, &mut out)).map(|_| out)
    }

    #[test]
    fn too_small_a_cache_is_none() {
        assert!(RecordCache::new(0, 400).is_none());
        assert!(RecordCache::new(100_000, 400).is_none());
        assert_eq!(RecordCache::new(MIB, 400).unwrap().stats().bytes, MIB);
    }

    #[test]
    fn most_of_the_bytes_hold_records() {
        let bytes = 16 * MIB;
        let size = 400;
        let cache = RecordCache::new(bytes, size as u32).unwrap();
        let rows = (bytes / size as u64) as u32;
        (0..rows).for_each(|row| cache.insert(key(row), &record(row, size)));
        let held = (0..rows).filter(|&row| cache.find(key(row)).is_some()).count();
        assert!(held as u64 * size as u64 > bytes * 8 / 10, "{held} of {rows}");
        assert!((held as u64) * (size as u64 + 24) < bytes);
    }

    #[test]
    fn a_scan_does_not_evict_used_records() {
        let cache = RecordCache::new(4 * MIB, 400).unwrap();
        let used = 0..4000u32;
        for _ in 0..3 {
            for row in used.clone() {
                if get(&cache, row).is_none() {
                    cache.insert(key(row), &record(row, 400));
                }
            }
        }
        // A single pass over ten times the capacity.
        for row in 1_000_000..1_100_000 {
            if cache.find(key(row)).is_none() {
                cache.insert(key(row), &record(row, 400));
            }
        }
        let left = used.clone().filter(|&row| get(&cache, row).is_some()).count();
        assert!(left > 3000, "{left} of {} are left", used.len());
    }

    #[test]
    fn a_full_cache_admits_repeated_records() {
        let cache = RecordCache::new(MIB, 400).unwrap();
        (0..5000).for_each(|row| cache.insert(key(row), &record(row, 400)));
        let before = cache.stats();
        assert!(before.evicted > 0 && before.inserted < 3000);
        cache.insert(key(9000), &record(9000, 400));
        assert!(cache.find(key(9000)).is_none());
        assert_eq!(cache.stats().inserted, before.inserted);
        cache.insert(key(9000), &record(9000, 400));
        assert_eq!(get(&cache, 9000), Some(record(9000, 400)));
    }

    #[test]
    fn an_evicted_position_is_empty() {
        let cache = RecordCache::new(MIB, 400).unwrap();
        cache.insert(key(0), &record(0, 400));
        let found = cache.find(key(0)).unwrap();
        (1..20_000).for_each(|row| cache.insert(key(row), &record(row, 400)));
        let mut out = vec![9];
        assert!(!cache.copy(found, &mut out) || out == record(0, 400));
        assert!(cache.stats().evicted > 0);
    }

    #[test]
    fn too_large_a_record_is_not_cached() {
        let cache = RecordCache::new(MIB, 400).unwrap();
        cache.insert(key(1), &record(1, 600_000));
        assert!(cache.find(key(1)).is_none());
    }

    #[test]
    fn threads_see_whole_records() {
        let cache = RecordCache::new(MIB, 200).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let cache = &cache;
                scope.spawn(move || {
                    for step in 0..20_000u32 {
                        let row = (step * 7 + thread * 13) % 6000;
                        match get(cache, row) {
                            Some(bytes) => assert_eq!(bytes, record(row, 100 + row as usize % 300)),
                            None => cache.insert(key(row), &record(row, 100 + row as usize % 300)),
                        }
                    }
                });
            }
        });
        assert!(cache.stats().hits > 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn returns_only_inserted_records(
            steps in proptest::collection::vec((0u32..3000, 0usize..2000, proptest::bool::ANY), 1..3000),
        ) {
            let cache = RecordCache::new(MIB, 400).unwrap();
            let mut put = BTreeMap::new();
            for (row, bytes, lookup) in steps {
                let seen = get(&cache, row);
                prop_assert!(seen.is_none() || seen == put.get(&row).cloned());
                if !lookup {
                    let fresh = seen.is_none();
                    cache.insert(key(row), &record(row, bytes));
                    if fresh {
                        put.insert(row, record(row, bytes));
                    }
                }
            }
        }
    }
}
