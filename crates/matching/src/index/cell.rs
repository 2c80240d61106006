//! Edges of a print as the index lists them, each with its cell and its heading.

use crate::edge::{Edge, PER_PIXEL, clamp_position, to_angle};
use crate::graph::Vertex;
use crate::star::{Coordinates, Star, stars};

/// Range of lengths of a cell in quarters of a pixel, which is 8 pixels.
pub(crate) const LENGTH_STEP: u16 = 8 * PER_PIXEL as u16;
/// Number of ranges of lengths. Longer edges are not indexed.
pub(crate) const LENGTHS: usize = 20;
/// Number of ranges of one angle, of 11.25° each.
pub(crate) const ANGLES: usize = 32;
/// Range of an 8-bit angle of a cell, in its steps.
pub(crate) const ANGLE_STEP: usize = 256 / ANGLES;
/// Number of unordered pairs of angles, because an edge has no first end.
const ANGLE_PAIRS: usize = ANGLES * (ANGLES + 1) / 2;
/// Number of cells.
pub(crate) const CELLS: usize = LENGTHS * ANGLE_PAIRS;
/// Number of nearest neighbours of a vertex to which its edges are indexed.
const INDEXED_NEIGHBOURS: usize = 6;
/// Maximum number of indexed edges of a print. It fits a byte.
pub(crate) const INDEXED_EDGES_MAX: usize = 255;

/// An edge with angles of 256 steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadedEdge {
    /// Quarters of a pixel.
    pub(crate) length: u16,
    /// Direction of the start against the way to the end.
    pub(crate) start: u8,
    /// Direction of the end against the way back.
    pub(crate) end: u8,
    /// Way from start to end in the image.
    pub(crate) heading: u8,
}

impl HeadedEdge {
    fn new(edge: Edge, from: Vertex) -> HeadedEdge {
        let heading = to_angle(from.direction).wrapping_sub(edge.start);
        HeadedEdge {
            length: edge.length,
            start: step(edge.start),
            end: step(edge.end),
            heading: step(heading),
        }
    }

    /// Returns the same edge, seen from its other end.
    pub(crate) fn reversed(self) -> HeadedEdge {
        HeadedEdge {
            start: self.end,
            end: self.start,
            heading: self.heading.wrapping_add(128),
            ..self
        }
    }

    /// Returns the edge as the index lists it. The end with the lower angle comes first. Returns
    /// `None` if the edge is too long for a cell.
    fn indexed(self) -> Option<IndexedEdge> {
        let edge = if self.start <= self.end { self } else { self.reversed() };
        let length = usize::from(edge.length / LENGTH_STEP);
        let cell = cell(length, angle_cell(edge.start), angle_cell(edge.end))?;
        Some(IndexedEdge { cell: cell as u16, heading: edge.heading })
    }
}

/// An edge as the index lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexedEdge {
    pub(crate) cell: u16,
    pub(crate) heading: u8,
}

/// Returns the cell of a length and two angles in ascending order, or `None` if there is none.
pub(crate) fn cell(length: usize, low: usize, high: usize) -> Option<usize> {
    let exists = length < LENGTHS && low <= high && high < ANGLES;
    exists.then(|| length * ANGLE_PAIRS + low * ANGLES - low * (low + 1) / 2 + high)
}

fn angle_cell(angle: u8) -> usize {
    usize::from(angle) / ANGLE_STEP
}

/// Rounds an angle of 65536 steps to 256 steps.
fn step(angle: u16) -> u8 {
    (angle.wrapping_add(128) >> 8) as u8
}

/// Working memory for the edges of one graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct EdgeFinder {
    vertices: Vec<Vertex>,
    coordinates: Coordinates,
    stars: Vec<Star>,
}

impl EdgeFinder {
    /// Calls `each` with the edges from every vertex to its `nearest` neighbours, each edge once.
    fn edges(
        &mut self,
        vertices: impl Iterator<Item = Vertex>,
        nearest: usize,
        mut each: impl FnMut(HeadedEdge),
    ) {
        self.vertices.clear();
        self.vertices.extend(vertices.map(clamp_position));
        stars(&self.vertices, &mut self.coordinates, &mut self.stars);
        for (from, (star, &vertex)) in self.stars.iter().zip(&self.vertices).enumerate() {
            for (lane, edge) in star.edges().take(nearest).enumerate() {
                let to = usize::from(star.to[lane]);
                let twice = to < from
                    && self.stars.get(to).is_some_and(|other| {
                        let count = usize::from(other.count).min(nearest);
                        other.to[..count].contains(&(from as u8))
                    });
                if !twice {
                    each(HeadedEdge::new(edge, vertex));
                }
            }
        }
    }

    /// Replaces the content of `out` by the indexed edges of a print, at most
    /// [`INDEXED_EDGES_MAX`].
    pub(crate) fn indexed_edges(
        &mut self,
        vertices: impl Iterator<Item = Vertex>,
        out: &mut Vec<IndexedEdge>,
    ) {
        out.clear();
        self.edges(vertices, INDEXED_NEIGHBOURS, |edge| out.extend(edge.indexed()));
        thin(out);
    }

    /// Returns the edges of a query. They lead to all neighbours of its stars, because a minutia
    /// that is missing in one print moves others up.
    pub(crate) fn edges_of_query(
        &mut self,
        vertices: impl Iterator<Item = Vertex>,
    ) -> Vec<HeadedEdge> {
        let mut out = Vec::new();
        self.edges(vertices, usize::MAX, |edge| out.push(edge));
        out
    }
}

/// Keeps at most [`INDEXED_EDGES_MAX`] edges, evenly spread over the vertices. Templates of many
/// minutiae can have them row by row, and another impression can show only the lower part of the
/// finger.
fn thin(edges: &mut Vec<IndexedEdge>) {
    let count = edges.len();
    if count <= INDEXED_EDGES_MAX {
        return;
    }
    let mut number = 0;
    edges.retain(|_| {
        let before = number * INDEXED_EDGES_MAX / count;
        number += 1;
        number * INDEXED_EDGES_MAX / count > before
    });
}

const _: () = assert!(CELLS <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;

    #[test]
    fn cells_are_numbered_without_gaps() {
        let mut next = 0;
        for length in 0..LENGTHS {
            for low in 0..ANGLES {
                for high in low..ANGLES {
                    assert_eq!(cell(length, low, high), Some(next));
                    next += 1;
                }
            }
        }
        assert_eq!(next, CELLS);
        assert_eq!(cell(LENGTHS, 0, 0), None);
        assert_eq!(cell(0, 3, 2), None);
    }

    #[test]
    fn an_edge_is_filed_in_one_cell_from_both_ends() {
        let graph = synthetic::fingerprint(5);
        let edges = EdgeFinder::default().edges_of_query(graph.vertices.iter().copied());
        assert!(edges.len() > 100);
        for edge in edges {
            assert_eq!(edge.reversed().reversed(), edge);
            // Equal angles leave the heading open.
            if edge.start != edge.end {
                assert_eq!(edge.reversed().indexed(), edge.indexed());
            }
        }
    }

    #[test]
    fn each_edge_occurs_once() {
        let graph = synthetic::fingerprint(6);
        let count = graph.vertices.len();
        let mut finder = EdgeFinder::default();
        let all = finder.edges_of_query(graph.vertices.iter().copied()).len();
        assert!(
            all < count * kernels::graph::NEAREST && all >= count * kernels::graph::NEAREST / 2
        );
        let mut indexed = Vec::new();
        finder.indexed_edges(graph.vertices.iter().copied(), &mut indexed);
        assert!(
            (count * INDEXED_NEIGHBOURS / 2..count * INDEXED_NEIGHBOURS).contains(&indexed.len()),
            "{}",
            indexed.len()
        );
    }

    #[test]
    fn all_parts_of_a_large_print_are_filed() {
        let part = |number: u64| -> Vec<Vertex> {
            let moved = |vertex: Vertex| Vertex { x: vertex.x + 400 * number as i16, ..vertex };
            synthetic::fingerprint(number).vertices.into_iter().map(moved).collect()
        };
        let parts = [0, 1, 2, 3].map(part);
        let indexed = |vertices: &[Vertex]| {
            let mut out = Vec::new();
            EdgeFinder::default().indexed_edges(vertices.iter().copied(), &mut out);
            out
        };
        let whole = indexed(&parts.concat());
        assert_eq!(whole.len(), INDEXED_EDGES_MAX);
        for part in &parts {
            let own = indexed(part);
            let kept = own.iter().filter(|edge| whole.contains(edge)).count();
            assert!(kept > own.len() / 5, "{kept} of {}", own.len());
        }
    }
}
