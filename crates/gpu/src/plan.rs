//! Division of a batch of queries among blocks. The arithmetic is that of `kernels.cu`; it is
//! separate from the device, so that tests need no device.

use base::{Error, Result};

/// Threads of a block, and rows of a tile (`THREADS` in `kernels.cu`).
pub(crate) const TILE_ROWS: usize = 128;
/// Number of slots of all lists of a block together (`PLACES` in `kernels.cu`).
const LIST_SLOTS: usize = 2048;
/// Bytes of a piece, the unit in which codes are read.
pub const PIECE_BYTES: usize = 16;
/// Maximum queries of one group, which share one pass over the codes.
const GROUP_MAX: usize = 8;
/// Maximum rows that one search may return. One list of a block and room for the next tile fill its
/// shared memory.
pub const K_MAX: usize = LIST_SLOTS - TILE_ROWS;
/// Maximum queries of one search: the transfers stay a few megabytes.
pub const QUERIES_MAX: usize = 1024;
/// Maximum values of a vector, as in the index.
pub const DIMS_MAX: usize = 4096;
/// Maximum rows, as in the index. Tiles and rows are counted in 32 bits.
pub const ROWS_MAX: usize = 1 << 30;
/// Number of blocks of one group for each multiprocessor, so that one computes while another waits.
const BLOCKS_PER_PROCESSOR: usize = 4;
/// Maximum keys of all lists of one query together, so that merging stays a small part of the work.
const LISTED_MAX: usize = 1 << 18;

/// Coding of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Symmetric bytes, with scales.
    Bytes,
    /// The upper halves of floats.
    Bfloats,
}

impl Coding {
    /// Returns the number of pieces of 16 bytes from one row to the next.
    pub fn row_pieces(self, dims: usize) -> usize {
        let width = match self {
            Coding::Bytes => 1,
            Coding::Bfloats => 2,
        };
        (dims * width).div_ceil(PIECE_BYTES)
    }

    /// Returns the number of bytes of codes of `rows` rows.
    pub(crate) fn code_bytes(self, rows: usize, dims: usize) -> u64 {
        rows as u64 * (self.row_pieces(dims) * PIECE_BYTES) as u64
    }

    /// Returns the number of bytes of device memory that `rows` rows need: codes, a scale each, and
    /// a squared length each if `squares` is set.
    pub fn device_bytes(self, rows: usize, dims: usize, squares: bool) -> u64 {
        let beside = if squares { 8 } else { 4 };
        self.code_bytes(rows, dims) + beside * rows as u64
    }

    /// Returns the name of the kernel for groups of `group` queries.
    pub(crate) fn kernel(self, group: usize) -> String {
        match self {
            Coding::Bytes => format!("rank_bytes_{group}"),
            Coding::Bfloats => format!("rank_bfloats_{group}"),
        }
    }
}

/// Division of one search among blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchPlan {
    /// Number of queries that a block compares in one pass over the codes: 1, 2, 4 or 8.
    pub group: usize,
    /// Number of groups of queries.
    pub groups: usize,
    /// Parts of the rows, each one block.
    pub parts: usize,
    /// Tiles of each part; the last has fewer.
    pub tiles_per_part: usize,
}

impl LaunchPlan {
    /// Divides a search of `queries` queries for `k` hits each over `rows` rows on a device with
    /// `processors` multiprocessors.
    ///
    /// # Errors
    /// `InvalidArgument` if there is nothing to search or more than [`K_MAX`], [`QUERIES_MAX`] or
    /// [`ROWS_MAX`].
    pub fn new(rows: usize, queries: usize, k: usize, processors: usize) -> Result<LaunchPlan> {
        if rows == 0
            || rows > ROWS_MAX
            || queries == 0
            || queries > QUERIES_MAX
            || k == 0
            || k > K_MAX
        {
            return Err(Error::invalid(format!(
                "a search on the GPU takes 1 to {ROWS_MAX} rows, {QUERIES_MAX} queries and {K_MAX} hits, not {rows}, \
                 {queries} and {k}"
            )));
        }
        let mut group = GROUP_MAX;
        // A list needs room for its k and one more tile. Narrow groups for single queries avoid
        // idle sums.
        while group > 1 && (LIST_SLOTS / group < k + TILE_ROWS || group / 2 >= queries) {
            group /= 2;
        }
        let groups = queries.div_ceil(group);
        let tiles = rows.div_ceil(TILE_ROWS);
        let wanted = (processors.max(1) * BLOCKS_PER_PROCESSOR)
            .div_ceil(groups)
            .min(LISTED_MAX / k)
            .clamp(1, tiles);
        let tiles_per_part = tiles.div_ceil(wanted);
        Ok(LaunchPlan { group, groups, parts: tiles.div_ceil(tiles_per_part), tiles_per_part })
    }
}

/// Returns the cost and row of a key that `key_of` in `kernels.cu` made; `None` for the key that
/// means no row.
pub fn parts(key: u64) -> Option<(f32, u32)> {
    if key == u64::MAX {
        return None;
    }
    let ordered = (key >> 32) as u32;
    let bits = if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered };
    Some((f32::from_bits(bits), key as u32))
}

/// Returns the key of a cost and row, as `key_of` in `kernels.cu` makes it.
pub fn key(cost: f32, row: u32) -> u64 {
    // Adding zero turns -0 into 0.
    let bits = (cost + 0.0).to_bits();
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_are_ordered_as_costs_and_rows() {
        let costs = [f32::NEG_INFINITY, -2.5, -1e-40, 0.0, 1e-40, 7.0, f32::INFINITY];
        let hits = costs.iter().flat_map(|cost| [(*cost, 0), (*cost, 9), (*cost, u32::MAX - 1)]);
        let hits: Vec<(f32, u32)> = hits.collect();
        let keys: Vec<u64> = hits.iter().map(|(cost, row)| key(*cost, *row)).collect();
        assert!(keys[0] > 0 && keys.is_sorted());
        let back: Vec<(f32, u32)> = keys.iter().map_while(|key| parts(*key)).collect();
        assert_eq!(back, hits);
        assert_eq!(key(-0.0, 3), key(0.0, 3));
    }

    proptest! {
        #[test]
        fn each_row_and_query_is_in_one_block(
            rows in 1_usize..3_000_000, queries in 1_usize..=QUERIES_MAX, k in 1_usize..=K_MAX,
            processors in 0_usize..200,
        ) {
            let plan = LaunchPlan::new(rows, queries, k, processors).unwrap();
            let tiles = rows.div_ceil(TILE_ROWS);
            prop_assert!(plan.parts * plan.tiles_per_part >= tiles && (plan.parts - 1) * plan.tiles_per_part < tiles);
            prop_assert!(plan.groups * plan.group >= queries && (plan.groups - 1) * plan.group < queries);
            prop_assert!(LIST_SLOTS / plan.group >= k + TILE_ROWS);
            prop_assert!(plan.parts * k <= LISTED_MAX);
            prop_assert!([1, 2, 4, 8].contains(&plan.group));
        }
    }

    #[test]
    fn searches_above_the_maxima_are_refused() {
        for (rows, queries, k) in [
            (0, 1, 1),
            (ROWS_MAX + 1, 1, 1),
            (1, 0, 1),
            (1, QUERIES_MAX + 1, 1),
            (1, 1, 0),
            (1, 1, K_MAX + 1),
        ] {
            assert!(LaunchPlan::new(rows, queries, k, 8).is_err());
        }
    }

    #[test]
    fn constants_are_those_of_the_kernels() {
        for (name, value) in [("THREADS", TILE_ROWS), ("PLACES", LIST_SLOTS)] {
            assert!(crate::SOURCE.contains(&format!("#define {name} {value}\n")), "{name}");
        }
    }
}
