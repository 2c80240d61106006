//! The edges of one vertex to its nearest neighbours, laid out for comparing many at a time.

use kernels::graph::{EDGES, Edges, NEAREST, NO_NEIGHBOUR, TOGETHER, nearest};

use crate::edge::Edge;
use crate::graph::Vertex;
use crate::tuning::{ANGLE_ERROR_MAX, LENGTH_ERROR_MAX};

/// Lanes for edges: two registers.
const LANES: usize = 2 * EDGES;

/// The edges of a vertex to its [`NEAREST`] neighbours, nearest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Star {
    edges: [Edges; 2],
    /// The vertex at the other end.
    pub(crate) to: [u8; LANES],
    pub(crate) count: u8,
}

impl Star {
    const EMPTY: Star = Star { edges: [Edges::NONE; 2], to: [0; LANES], count: 0 };

    /// Returns the edge in `lane`.
    pub(crate) fn edge(&self, lane: usize) -> Edge {
        let edges = &self.edges[lane / EDGES];
        let place = lane % EDGES;
        Edge { length: edges.length[place], start: edges.start[place], end: edges.end[place] }
    }

    /// Iterates over the edges, nearest first.
    pub(crate) fn edges(&self) -> impl Iterator<Item = Edge> {
        (0..usize::from(self.count)).map(|lane| self.edge(lane))
    }

    /// Returns the lanes of the edges similar to `edge`, as bits.
    pub(crate) fn similar(&self, edge: Edge) -> u32 {
        let properties = [edge.length, edge.start, edge.end];
        let [low, high] = &self.edges;
        u32::from(low.similar(properties, LENGTH_ERROR_MAX, ANGLE_ERROR_MAX))
            | u32::from(high.similar(properties, LENGTH_ERROR_MAX, ANGLE_ERROR_MAX)) << EDGES
    }

    fn push(&mut self, to: u8, edge: Edge) {
        let lane = usize::from(self.count);
        let edges = &mut self.edges[lane / EDGES];
        let place = lane % EDGES;
        edges.length[place] = edge.length;
        edges.start[place] = edge.start;
        edges.end[place] = edge.end;
        self.to[lane] = to;
        self.count += 1;
    }
}

/// Iterates over the lanes whose bits are set, lowest first.
pub(crate) fn set_lanes(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(place)
    })
}

/// Working memory of [`stars`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Coordinates {
    x: Vec<i32>,
    y: Vec<i32>,
}

/// Fills `stars` with one star per vertex. Of neighbours equally far away the one with the lower
/// index comes first.
pub(crate) fn stars(vertices: &[Vertex], coordinates: &mut Coordinates, stars: &mut Vec<Star>) {
    stars.clear();
    coordinates.x.clear();
    coordinates.y.clear();
    coordinates.x.extend(vertices.iter().map(|vertex| i32::from(vertex.x)));
    coordinates.y.extend(vertices.iter().map(|vertex| i32::from(vertex.y)));
    for (block, from) in vertices.chunks(TOGETHER).enumerate() {
        let nearest = nearest(block * TOGETHER, &coordinates.x, &coordinates.y);
        for (place, &vertex) in from.iter().enumerate() {
            let mut star = Star::EMPTY;
            for rank in
                nearest.iter().map(|row| row[place]).take_while(|&rank| rank != NO_NEIGHBOUR)
            {
                let to = rank as u8;
                star.push(to, Edge::between(vertex, vertices[usize::from(to)]));
            }
            stars.push(star);
        }
    }
}

const _: () = assert!(NEAREST <= LANES);
