//! What a pairing has to show for itself, and what that is worth.

use crate::tuning::{
    ANGLE_ERROR, COVERED, DESCRIPTOR_ERROR, LENGTH_ERROR, OFFSET, PAIR, PHOTO_PAIR, SAME_KIND,
    SUPPORT,
};

/// Pairs below this are no pairing.
pub(crate) const PAIRS_MIN: u32 = 2;
/// An edge or a descriptor that is just tolerated.
pub(crate) const ERROR_SCALE: u32 = 256;

/// Two vertices taken for the same point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pair {
    /// Index of the probe's vertex.
    pub probe: u8,
    /// Index of the record's vertex.
    pub record: u8,
}

/// What speaks for a pairing. Errors are sums over edges, each 0 (the same) to 256 (just
/// tolerated).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Pairs of vertices.
    pub pairs: u32,
    /// Pairs of the same kind.
    pub kinds: u32,
    /// Edges between paired vertices that both graphs have, beyond those that the pairing grew
    /// along.
    pub supports: u32,
    /// Of the lengths of edges the pairing grew along; of photographs, how far the places of pairs
    /// are off.
    pub length_error: u32,
    /// Of their angles; of photographs, how far the directions of pairs are off.
    pub angle_error: u32,
    /// Of supporting edges, length and angles together: up to 512 each.
    pub support_error: u32,
    /// Vertices of the probe that lie within the record's outline when the pairing is laid over it.
    pub probe_covered: u32,
    /// Vertices of the record within the probe's outline.
    pub record_covered: u32,
    /// Vertices of the probe.
    pub probe_vertices: u32,
    /// Vertices of the record.
    pub record_vertices: u32,
    /// Of descriptors.
    pub descriptor_error: u32,
    /// Whether descriptors were compared.
    pub described: bool,
}

impl Evidence {
    /// The score: 0 and up, finite. Every pair of vertices is an event that rarely happens by
    /// chance, less so the more its edge is off; every vertex in the shared part that found no
    /// partner speaks against the pairing.
    pub(crate) fn score(&self) -> f32 {
        self.weight().max(0.0)
    }

    /// The score before it is cut off at 0: pairings of one match are compared by it.
    pub(crate) fn weight(&self) -> f32 {
        if self.pairs < PAIRS_MIN {
            return f32::MIN;
        }
        let edge_scale = ERROR_SCALE as f32;
        if self.described {
            return PHOTO_PAIR * self.pairs as f32 + SUPPORT * self.supports as f32
                - (LENGTH_ERROR * self.length_error as f32
                    + ANGLE_ERROR * self.angle_error as f32
                    + DESCRIPTOR_ERROR * self.descriptor_error as f32)
                    / edge_scale;
        }
        let covered = self.probe_covered.max(self.record_covered);
        OFFSET
            + PAIR * self.pairs as f32
            + SAME_KIND * self.kinds as f32
            + SUPPORT * self.supports as f32
            - LENGTH_ERROR * self.length_error as f32 / edge_scale
            - ANGLE_ERROR * self.angle_error as f32 / edge_scale
            - COVERED * covered as f32
    }
}
