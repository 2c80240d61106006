//! The index in memory, and its encoding.
//!
//! The layout is in this order. Numbers are little-endian, and have 32 bits by default.
//!
//! * Version, rows, rows of a block, cells.
//! * Edges of each row, one byte each.
//! * Edges of each cell.
//! * For each block, the start of each cell's list, the end of the last list, and the lists.
//!
//! A list has two bytes an edge: the step from the row before and the heading. Step 255 goes 255
//! rows on and is not an edge.

use base::{Error, Result};

use super::BLOCK_ROWS;
use super::cell::CELLS;
use super::weight::rarity;

/// Step that moves on and is not an edge.
pub(crate) const ESCAPE: u8 = 255;
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
/// Maximum rows of an index.
const ROWS_MAX: usize = 1 << 30;

/// An edge in the list of its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posting {
    /// Rows from the one before.
    pub(crate) step: u8,
    /// Heading of the edge in its print, 256 steps.
    pub(crate) heading: u8,
}

/// Lists of [`BLOCK_ROWS`] rows. The last block has fewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PostingBlock {
    /// Start of each cell's list, and the end of the last.
    pub(crate) starts: Vec<u32>,
    pub(crate) postings: Vec<Posting>,
}

impl PostingBlock {
    /// Returns the list of a cell.
    pub(crate) fn list(&self, cell: usize) -> &[Posting] {
        let bounds = self.starts.get(cell).zip(self.starts.get(cell + 1));
        let list = bounds.and_then(|(&from, &to)| self.postings.get(from as usize..to as usize));
        list.unwrap_or_default()
    }
}

/// An index of fingerprints. Immutable and shared by threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeIndex {
    /// Edges of each row.
    pub(crate) edges: Vec<u8>,
    /// Edges of each cell.
    pub(crate) counts: Vec<u32>,
    pub(crate) blocks: Vec<PostingBlock>,
    /// Rarity of each cell, from `counts`: the weight of an edge in that cell.
    pub(crate) rarities: Vec<u8>,
}

impl Default for EdgeIndex {
    fn default() -> EdgeIndex {
        EdgeIndex {
            edges: Vec::new(),
            counts: vec![0; CELLS],
            blocks: Vec::new(),
            rarities: vec![0; CELLS],
        }
    }
}

impl EdgeIndex {
    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.edges.len() as u32
    }

    /// Returns the bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let blocks = self.blocks.iter();
        let blocks =
            blocks.map(|block| block.starts.len() as u64 * 4 + block.postings.len() as u64 * 2);
        self.edges.len() as u64 + CELLS as u64 * 5 + blocks.sum::<u64>()
    }

    /// Computes the rarity of each cell.
    pub(crate) fn weigh(&mut self) {
        let all = self.counts.iter().map(|&count| u64::from(count)).sum();
        self.rarities = self.counts.iter().map(|&count| rarity(count, all, CELLS)).collect();
    }

    /// Returns the bytes to store.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.memory_bytes() as usize + HEADER_BYTES);
        for number in [VERSION, self.rows(), BLOCK_ROWS as u32, CELLS as u32] {
            out.extend(number.to_le_bytes());
        }
        out.extend(&self.edges);
        out.extend(self.counts.iter().flat_map(|count| count.to_le_bytes()));
        for block in &self.blocks {
            out.extend(block.starts.iter().flat_map(|start| start.to_le_bytes()));
            out.extend(block.postings.iter().flat_map(|posting| [posting.step, posting.heading]));
        }
        out
    }

    /// Reads stored bytes. Lists are checked when they are read, and a wrong row is ignored.
    ///
    /// # Errors
    /// `DataLoss` if the bytes are not such an index. `FailedPrecondition` for another version.
    pub fn decode(bytes: &[u8]) -> Result<EdgeIndex> {
        let mut input = IndexInput { rest: bytes };
        let version = input.number()?;
        if version != VERSION {
            return Err(Error::precondition(format!(
                "a fingerprint index of version {version}: this program reads version {VERSION}; \
                 use a newer one"
            )));
        }
        let rows = input.number()? as usize;
        if rows > ROWS_MAX
            || input.number()? as usize != BLOCK_ROWS
            || input.number()? as usize != CELLS
        {
            return Err(Error::data_loss("the fingerprint index has unknown settings"));
        }
        let edges = input.take(rows)?.to_vec();
        let counts = input.numbers(CELLS)?;
        let blocks =
            (0..rows.div_ceil(BLOCK_ROWS)).map(|_| input.block()).collect::<Result<_>>()?;
        if !input.rest.is_empty() {
            return Err(Error::data_loss("the fingerprint index has bytes after its last list"));
        }
        let mut index = EdgeIndex { edges, counts, blocks, rarities: Vec::new() };
        index.weigh();
        Ok(index)
    }
}

/// Bytes that are not read yet.
struct IndexInput<'a> {
    rest: &'a [u8],
}

impl<'a> IndexInput<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or_else(|| Error::data_loss("the fingerprint index is truncated"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u32> {
        Ok(self.numbers(1)?.first().copied().unwrap_or_default())
    }

    fn numbers(&mut self, count: usize) -> Result<Vec<u32>> {
        let bytes = self.take(count * 4)?;
        Ok(bytes.as_chunks().0.iter().map(|number| u32::from_le_bytes(*number)).collect())
    }

    fn block(&mut self) -> Result<PostingBlock> {
        let starts = self.numbers(CELLS + 1)?;
        if starts.first() != Some(&0) || !starts.is_sorted() {
            return Err(Error::data_loss("the lists of the fingerprint index overlap"));
        }
        let count = starts.last().map_or(0, |&end| end as usize);
        let bytes = self.take(count.saturating_mul(2))?;
        let postings = bytes.as_chunks().0.iter();
        let postings = postings.map(|&[step, heading]| Posting { step, heading }).collect();
        Ok(PostingBlock { starts, postings })
    }
}
