//! The evidence for a pairing, and its score.

use crate::tuning::{
    AGREEMENT_PRIOR, AGREEMENT_WEIGHT, ANGLE_ERROR_WEIGHT, DESCRIPTOR_ERROR_WEIGHT,
    LENGTH_ERROR_WEIGHT, PAIR_WEIGHT, PHOTO_ANGLE_ERROR_WEIGHT, PHOTO_LENGTH_ERROR_WEIGHT,
    PHOTO_PAIR_WEIGHT, PHOTO_SUPPORT_WEIGHT, SAME_KIND_WEIGHT, SCORE_OFFSET, SUPPORT_ERROR_WEIGHT,
    SUPPORT_WEIGHT,
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
    pub(crate) kinds: u32,
    /// Edges between paired vertices that both graphs have, without the edges that the pairing grew
    /// along.
    pub(crate) supports: u32,
    /// Error of the lengths of the edges that the pairing grew along. For photographs, it is the
    /// error of the positions of pairs.
    pub(crate) length_error: u32,
    /// Error of the angles of these edges. For photographs, it is the error of the directions of
    /// pairs.
    pub(crate) angle_error: u32,
    /// Error of supporting edges, lengths and angles together: up to 512 each.
    pub(crate) support_error: u32,
    /// Vertices of the probe within the record's outline when the images are aligned.
    pub(crate) probe_covered: u32,
    /// Vertices of the record within the probe's outline.
    pub(crate) record_covered: u32,
    /// Sum of the differing bits of paired descriptors, each as a part of the permitted maximum.
    pub(crate) descriptor_error: u32,
    /// True if descriptors were compared.
    pub(crate) described: bool,
}

impl Evidence {
    /// Returns the score: finite, at least 0. A pair of vertices rarely agrees by chance, the less
    /// the smaller its error. Unpaired vertices in the shared part lower the score.
    pub(crate) fn score(&self) -> f32 {
        self.raw_score().max(0.0)
    }

    /// Returns the score before negative values become 0. It compares the pairings of one match.
    pub(crate) fn raw_score(&self) -> f32 {
        if self.pairs < PAIRS_MIN {
            return f32::MIN;
        }
        let edge_scale = ERROR_SCALE as f32;
        if self.described {
            return PHOTO_PAIR_WEIGHT * self.pairs as f32
                + PHOTO_SUPPORT_WEIGHT * self.supports as f32
                - (PHOTO_LENGTH_ERROR_WEIGHT * self.length_error as f32
                    + PHOTO_ANGLE_ERROR_WEIGHT * self.angle_error as f32
                    + DESCRIPTOR_ERROR_WEIGHT * self.descriptor_error as f32)
                    / edge_scale;
        }
        SCORE_OFFSET
            + PAIR_WEIGHT * self.pairs as f32
            + SAME_KIND_WEIGHT * self.kinds as f32
            + SUPPORT_WEIGHT * self.supports as f32
            + AGREEMENT_WEIGHT * self.agreement()
            - (LENGTH_ERROR_WEIGHT * self.length_error as f32
                + ANGLE_ERROR_WEIGHT * self.angle_error as f32
                + SUPPORT_ERROR_WEIGHT * self.support_error as f32)
                / edge_scale
    }

    /// Returns the share of the vertices in the shared part that are paired, of one graph times
    /// that of the other: 0 to 1. Bazen and Gerez score by this product, over all vertices
    /// ("Fingerprint matching by thin-plate spline modelling of elastic deformations", 2003).
    fn agreement(&self) -> f32 {
        let pairs = self.pairs as f32;
        let share = |covered: u32| pairs / (covered.max(self.pairs) as f32 + AGREEMENT_PRIOR);
        share(self.probe_covered) * share(self.record_covered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(pairs: u32, covered: u32) -> Evidence {
        Evidence {
            pairs,
            kinds: pairs,
            supports: pairs,
            probe_covered: covered,
            record_covered: covered,
            ..Evidence::default()
        }
    }

    #[test]
    fn unpaired_vertices_of_the_shared_part_lower_the_score() {
        let scores = [10, 12, 20, 40].map(|covered| evidence(10, covered).score());
        assert!(scores.is_sorted_by(|a, b| a > b), "{scores:?}");
        // One side alone counts too: it has minutiae that the other print does not confirm.
        let one_side = Evidence { record_covered: 40, ..evidence(10, 10) }.score();
        assert!(scores[3] < one_side && one_side < scores[0], "{one_side} {scores:?}");
    }

    #[test]
    fn a_small_shared_part_in_full_agreement_is_weak() {
        assert!(evidence(2, 2).agreement() < 0.26, "{}", evidence(2, 2).agreement());
        assert!(evidence(20, 20).agreement() > 0.8, "{}", evidence(20, 20).agreement());
        // Pairs outside of both outlines do not raise the share above 1.
        assert!(evidence(20, 3).agreement() <= 1.0);
    }

    #[test]
    fn supports_with_errors_count_less() {
        let exact = evidence(8, 10);
        let loose = Evidence { support_error: exact.supports * ERROR_SCALE, ..exact };
        assert!(loose.score() < exact.score());
        assert!(loose.score() > Evidence { supports: 0, ..exact }.score());
    }
}
