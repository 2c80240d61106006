//! The evidence for a pairing, and its score.

use crate::tuning::{
    ANGLE_ERROR, COVERED, DESCRIPTOR_ERROR, LENGTH_ERROR, OFFSET, PAIR, PHOTO_PAIR, SAME_KIND,
    SUPPORT,
};

/// Minimum pairs of a pairing that scores.
pub(crate) const PAIRS_MIN: u32 = 2;
/// Error of an edge or a descriptor at its tolerance.
pub(crate) const ERROR_SCALE: u32 = 256;

/// Two vertices taken for the same point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pair {
    /// Index of the probe's vertex.
    pub probe: u8,
    /// Index of the record's vertex.
    pub record: u8,
}

/// Evidence for a pairing. Errors are sums over edges, each from 0 (equal) to 256 (at the
/// tolerance).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Pairs of vertices.
    pub pairs: u32,
    /// Pairs of the same kind.
    pub kinds: u32,
    /// Edges between paired vertices that both graphs have, without the edges that the pairing grew
    /// along.
    pub supports: u32,
    /// Error of the lengths of the edges that the pairing grew along; for photographs, of the
    /// positions of pairs.
    pub length_error: u32,
    /// Error of the angles of these edges; for photographs, of the directions of pairs.
    pub angle_error: u32,
    /// Error of supporting edges, lengths and angles together: up to 512 each.
    pub support_error: u32,
    /// Vertices of the probe within the record's outline when the images are aligned.
    pub probe_covered: u32,
    /// Vertices of the record within the probe's outline.
    pub record_covered: u32,
    /// Vertices of the probe, paired or not.
    pub probe_vertices: u32,
    /// Vertices of the record, paired or not.
    pub record_vertices: u32,
    /// Sum of the differing bits of paired descriptors, each as a part of the permitted maximum.
    pub descriptor_error: u32,
    /// True if descriptors were compared.
    pub described: bool,
}

impl Evidence {
    /// Returns the score: finite, at least 0. A pair of vertices rarely agrees by chance, the less
    /// the smaller its error. Each unmatched vertex in the shared part lowers the score.
    pub(crate) fn score(&self) -> f32 {
        self.weight().max(0.0)
    }

    /// Returns the score before it is cut off at 0, which compares the pairings of one match.
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
