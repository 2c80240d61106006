//! An index of fingerprints. It finds the few prints that can be the query's finger, without
//! reading the others.
//!
//! Each edge between neighbouring minutiae has a length and two angles that stay the same when the
//! print is moved or turned. They are quantised to a cell. For each cell the index lists the prints
//! with such an edge, and the heading of the edge in the print. An edge of the query votes for the
//! prints of the cells that it can fall into. Two prints of one finger differ by one rotation, so
//! votes are counted for each difference of headings. The score of a print is the largest sum of
//! two neighbouring counts.
//!
//! The weight of a vote is its evidence. It is the logarithm of a ratio of probabilities: that the
//! edge of the same finger falls into the cell, and that it does by chance. The first comes from
//! the errors of real prints, the second from the index itself. Common cells say little and are not
//! read. Nothing is trained.
//!
//! Indexing by invariants of minutiae that vote goes back to Germain, Califano and Colville,
//! "Fingerprint matching using transformation parameter clustering" (1997), which votes with
//! triplets. Pairs survive a missing minutia more often (`docs/adr/0020-fingerprint-index.md`).

mod build;
mod cell;
mod format;
mod search;
mod weight;

pub use build::EdgeIndexBuilder;
pub use format::EdgeIndex;
pub use search::{EdgeHit, EdgeLists, EdgeQuery, EdgeScratch};

/// Rows that are counted together.
pub const BLOCK_ROWS: usize = 1 << 14;
/// Counts of a row: one for each range of rotations.
pub(crate) const TURNS: usize = 32;
/// Maximum bytes of the counts of one thread. They fit the second-level cache.
pub const COUNTS_BYTES_MAX: usize = 1 << 20;

const _: () =
    assert!(BLOCK_ROWS * TURNS * size_of::<u16>() <= COUNTS_BYTES_MAX, "a block's counts");
