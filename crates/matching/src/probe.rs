//! The query. Its edges are grouped by angles, so that one lookup finds all similar ones.

use kernels::graph::{EDGES, Edges};

use crate::edge::{Edge, clamp_position};
use crate::graph::{DESCRIPTOR_BYTES, Graph, VERTICES_MAX, Vertex};
use crate::overlap::Outline;
use crate::star::{Coordinates, Star, stars};
use crate::tuning::{ANGLE_ERROR_MAX, LENGTH_ERROR_MAX};

/// Tolerance of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchOptions {
    /// Maximum number of bits, of 256, in which two descriptors of the same point differ.
    pub descriptor_bits_max: u32,
}

impl Default for MatchOptions {
    fn default() -> MatchOptions {
        MatchOptions { descriptor_bits_max: 80 }
    }
}

/// A query, prepared for scoring many records. Immutable and shared by threads.
#[derive(Clone, Debug)]
pub struct Probe {
    pub(crate) vertices: Vec<Vertex>,
    pub(crate) stars: Vec<Star>,
    pub(crate) cells: Cells,
    pub(crate) outline: Outline,
    /// Empty, or one per vertex.
    pub(crate) descriptors: Vec<[u8; DESCRIPTOR_BYTES]>,
    pub(crate) options: MatchOptions,
}

impl Probe {
    /// Prepares `graph`. Only its first [`VERTICES_MAX`] vertices count.
    #[must_use]
    pub fn new(graph: &Graph, options: MatchOptions) -> Probe {
        let vertices: Vec<Vertex> =
            graph.vertices.iter().take(VERTICES_MAX).copied().map(clamp_position).collect();
        let mut own = Vec::new();
        stars(&vertices, &mut Coordinates::default(), &mut own);
        let cells = Cells::new(&own);
        let outline = Outline::around(&vertices);
        let count = if graph.described() { vertices.len() } else { 0 };
        let descriptors = graph.descriptors.iter().take(count).copied().collect();
        Probe { vertices, stars: own, cells, outline, descriptors, options }
    }
}

/// Bits of an angle that select a cell: 16 columns a turn, each 22.5° wide.
const CELL_BITS: u32 = 4;
const CELLS: usize = 1 << (2 * CELL_BITS);

/// The edges of a probe by the angles of their two ends. An edge lies in every cell that a similar
/// edge can fall into, so one lookup finds all edges similar to a given one.
#[derive(Clone, Debug)]
pub(crate) struct Cells {
    /// Index of each cell's first block, and the end.
    first: Vec<u32>,
    blocks: Vec<EdgeBlock>,
}

/// Edges of one cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EdgeBlock {
    edges: Edges,
    /// Vertex that each edge starts at.
    pub(crate) from: [u8; EDGES],
}

impl Cells {
    fn new(stars: &[Star]) -> Cells {
        let mut by_cell: Vec<Vec<(Edge, u8)>> = vec![Vec::new(); CELLS];
        for (from, star) in stars.iter().enumerate() {
            for edge in star.edges() {
                for start in reached(edge.start) {
                    for end in reached(edge.end) {
                        by_cell[start << CELL_BITS | end].push((edge, from as u8));
                    }
                }
            }
        }
        let mut cells = Cells { first: Vec::with_capacity(CELLS + 1), blocks: Vec::new() };
        for cell in &by_cell {
            cells.first.push(cells.blocks.len() as u32);
            cells.blocks.extend(cell.chunks(EDGES).map(EdgeBlock::of));
        }
        cells.first.push(cells.blocks.len() as u32);
        cells
    }

    /// Returns the edges that can be similar to an edge with these angles, and some others.
    pub(crate) fn candidates(&self, start: u16, end: u16) -> &[EdgeBlock] {
        let cell = column(start) << CELL_BITS | column(end);
        &self.blocks[self.first[cell] as usize..self.first[cell + 1] as usize]
    }
}

impl EdgeBlock {
    fn of(by_cell: &[(Edge, u8)]) -> EdgeBlock {
        let mut block = EdgeBlock { edges: Edges::NONE, from: [0; EDGES] };
        for (place, (edge, from)) in by_cell.iter().enumerate().take(EDGES) {
            block.edges.length[place] = edge.length;
            block.edges.start[place] = edge.start;
            block.edges.end[place] = edge.end;
            block.from[place] = *from;
        }
        block
    }

    /// Returns the lanes of the edges similar to `edge`, as bits.
    pub(crate) fn similar(&self, edge: Edge) -> u32 {
        self.edges
            .similar([edge.length, edge.start, edge.end], LENGTH_ERROR_MAX, ANGLE_ERROR_MAX)
            .into()
    }
}

fn column(angle: u16) -> usize {
    usize::from(angle >> (16 - CELL_BITS))
}

/// Columns of all angles similar to this one. Each occurs once, because the tolerance is below half
/// a turn.
fn reached(angle: u16) -> impl Iterator<Item = usize> {
    let low = column(angle.wrapping_sub(ANGLE_ERROR_MAX));
    let high = column(angle.wrapping_add(ANGLE_ERROR_MAX));
    let columns = 1 << CELL_BITS;
    let count = (high + columns - low) % columns + 1;
    (0..count).map(move |step| (low + step) % columns)
}
