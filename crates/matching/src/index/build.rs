//! Builds an index of fingerprints from their records, row by row.

use super::BLOCK_ROWS;
use super::cell::{CELLS, EdgeFinder, IndexedEdge};
use super::format::{ESCAPE, EdgeIndex, Posting, PostingBlock};
use crate::graph::GraphView;

/// An edge of a row of the current block.
#[derive(Clone, Copy, Debug)]
struct RowEdge {
    row: u16,
    edge: IndexedEdge,
}

/// Builder of an index, which takes fingerprints row by row.
#[derive(Debug, Default)]
pub struct EdgeIndexBuilder {
    index: EdgeIndex,
    /// Edges of the block that is not complete yet, by row.
    edges: Vec<RowEdge>,
    finder: EdgeFinder,
    indexed: Vec<IndexedEdge>,
}

impl EdgeIndexBuilder {
    /// Returns an empty builder.
    #[must_use]
    pub fn new() -> EdgeIndexBuilder {
        EdgeIndexBuilder::default()
    }

    /// Adds the next row. A record that is not a graph, such as an empty one, gets no votes.
    pub fn push(&mut self, record: &[u8]) {
        self.indexed.clear();
        if let Ok(view) = GraphView::open(record) {
            self.finder.indexed_edges(view.vertices(), &mut self.indexed);
        }
        let row = (self.index.edges.len() % BLOCK_ROWS) as u16;
        self.index.edges.push(self.indexed.len() as u8);
        self.edges.extend(self.indexed.iter().map(|&edge| RowEdge { row, edge }));
        if self.index.edges.len().is_multiple_of(BLOCK_ROWS) {
            self.complete();
        }
    }

    /// Returns the index of all rows.
    #[must_use]
    pub fn finish(mut self) -> EdgeIndex {
        if !self.index.edges.len().is_multiple_of(BLOCK_ROWS) {
            self.complete();
        }
        self.index.weigh();
        self.index
    }

    /// Turns the collected edges into a block.
    fn complete(&mut self) {
        self.edges.sort_unstable_by_key(|own| (own.edge.cell, own.row, own.edge.heading));
        let mut block =
            PostingBlock { starts: Vec::with_capacity(CELLS + 1), postings: Vec::new() };
        let mut edges = self.edges.iter().peekable();
        for cell in 0..CELLS {
            block.starts.push(block.postings.len() as u32);
            let mut last = 0;
            while let Some(own) = edges.next_if(|own| usize::from(own.edge.cell) == cell) {
                let mut step = own.row - last;
                while step >= u16::from(ESCAPE) {
                    block.postings.push(Posting { step: ESCAPE, heading: 0 });
                    step -= u16::from(ESCAPE);
                }
                block.postings.push(Posting { step: step as u8, heading: own.edge.heading });
                last = own.row;
                if let Some(count) = self.index.counts.get_mut(cell) {
                    *count += 1;
                }
            }
        }
        block.starts.push(block.postings.len() as u32);
        block.postings.shrink_to_fit();
        self.index.blocks.push(block);
        self.edges.clear();
    }
}

const _: () = assert!(BLOCK_ROWS <= 1 << 16);
