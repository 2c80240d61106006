//! Filter of the ids of a segment. It excludes most ids that the segment does not have.
//!
//! Every write searches all segments for an earlier version of its point, and almost no segment has
//! one. A binary search for an absent id waits for memory about 15 times. This filter waits once.
//!
//! It is a split block Bloom filter: Putze, Sanders and Singler, "Cache-, Hash- and Space-Efficient
//! Bloom Filters", 2007, in the form of Apache Parquet's BloomFilter.md. At 8 bits a row, 2 to 3 %
//! of other ids pass.

use std::ops::RangeInclusive;

/// Rows of a block of 256 bits.
const BLOCK_ROWS: usize = 32;
/// Odd factors that choose a bit in each word of a block. From Apache Parquet's BloomFilter.md.
const SALTS: [u32; 8] = [
    0x47b6_137b,
    0x4497_4d91,
    0x8824_ad5b,
    0xa2b7_289d,
    0x7054_95c7,
    0x2df1_424b,
    0x9efc_4947,
    0x5c6b_fb31,
];

/// Bits of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(32))]
struct FilterBlock([u32; 8]);

/// Filter of a set of ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IdFilter {
    /// Smallest and largest id. New ids are often numbers above all ids of segments.
    range: RangeInclusive<u64>,
    blocks: Vec<FilterBlock>,
}

impl IdFilter {
    /// Creates the filter of the ids.
    pub(super) fn new(ids: &[u64]) -> IdFilter {
        let smallest = ids.iter().copied().min().unwrap_or(u64::MAX);
        let largest = ids.iter().copied().max().unwrap_or(0);
        let blocks = vec![FilterBlock::default(); blocks_of(ids.len())];
        let mut filter = IdFilter { range: smallest..=largest, blocks };
        for &id in ids {
            let hash = mixed(id);
            let block = filter.block_of(hash);
            for (word, mask) in filter.blocks[block].0.iter_mut().zip(masks(hash)) {
                *word |= mask;
            }
        }
        filter
    }

    /// Returns false if the id is certainly not one of the set.
    pub(super) fn may_have(&self, id: u64) -> bool {
        if !self.range.contains(&id) {
            return false;
        }
        let hash = mixed(id);
        let block = &self.blocks[self.block_of(hash)];
        block.0.iter().zip(masks(hash)).all(|(word, mask)| word & mask != 0)
    }

    /// Returns the number of a hash's block.
    fn block_of(&self, hash: u64) -> usize {
        (((hash >> 32) * self.blocks.len() as u64) >> 32) as usize
    }

    /// Returns the bytes of the filter of `rows` ids.
    pub(super) fn bytes_of(rows: u32) -> u64 {
        (blocks_of(rows as usize) * size_of::<FilterBlock>()) as u64
    }
}

fn blocks_of(rows: usize) -> usize {
    rows.div_ceil(BLOCK_ROWS).max(1)
}

/// Returns a bit for each word of a block.
fn masks(hash: u64) -> impl Iterator<Item = u32> {
    SALTS.iter().map(move |salt| 1 << ((hash as u32).wrapping_mul(*salt) >> 27))
}

/// Mixes the bits of an id, because neighbouring ids differ in few bits. It is the last step of
/// MurmurHash3 for 64 bits (Appleby, 2011).
fn mixed(id: u64) -> u64 {
    let id = (id ^ (id >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let id = (id ^ (id >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    id ^ (id >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the share of ids outside of the set that pass.
    fn passing(ids: &[u64], others: impl Iterator<Item = u64>) -> f64 {
        let filter = IdFilter::new(ids);
        assert!(ids.iter().all(|&id| filter.may_have(id)));
        let (mut all, mut passed) = (0_u32, 0_u32);
        for id in others {
            all += 1;
            passed += u32::from(filter.may_have(id));
        }
        f64::from(passed) / f64::from(all.max(1))
    }

    #[test]
    fn few_other_ids_pass() {
        let spread = |number: u64| mixed(number ^ 0x1234_5678_9abc) | 1 << 63;
        let sets: [Vec<u64>; 2] =
            [(0..20_000).map(|number| number * 1024).collect(), (0..20_000).map(spread).collect()];
        for ids in &sets {
            let (first, last) = (ids.iter().min().unwrap(), ids.iter().max().unwrap());
            // All lie between the ids of the set.
            let others = (50_000..100_000).map(|number| first + spread(number) % (last - first));
            let own: std::collections::HashSet<u64> = ids.iter().copied().collect();
            let share = passing(ids, others.filter(|id| !own.contains(id)));
            assert!((0.005..0.04).contains(&share), "{share}");
            assert_eq!(passing(ids, (last + 1)..(last + 1000)), 0.0, "beyond the last");
        }
        assert_eq!(IdFilter::bytes_of(20_000), 20_000);
    }

    #[test]
    fn small_sets_have_a_filter() {
        assert!(!IdFilter::new(&[]).may_have(7));
        assert!(passing(&[7], 8..10_000) < 0.001);
        assert_eq!((IdFilter::bytes_of(0), IdFilter::bytes_of(33)), (32, 64));
    }
}
