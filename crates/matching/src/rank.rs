//! The order of results of both stages.
//!
//! A score above the threshold is proof, and proven candidates come first. A lower score says
//! little, especially for images with few points. There the similarity of embeddings is the better
//! estimate. So the result is never worse than the result of the coarse stage unless a wrong
//! candidate is accepted.

use std::cmp::Ordering;

/// Scores of the two stages for one image.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageScores {
    /// The matcher's score.
    pub score: f32,
    /// Similarity of the embeddings. Higher is more similar.
    pub coarse: f32,
}

impl StageScores {
    /// Returns true if the matcher's score alone proves the match.
    #[must_use]
    pub fn accepted(&self, accept: f32) -> bool {
        self.score >= accept
    }
}

/// Orders results. Accepted ones come first by score, and then the others by similarity of
/// embeddings. Equal ones compare equal, so the caller adds the id. Sort all candidates of a query
/// with it before the k best are taken.
#[must_use]
pub fn best_first(accept: f32, a: StageScores, b: StageScores) -> Ordering {
    match (a.accepted(accept), b.accepted(accept)) {
        (true, true) => b.score.total_cmp(&a.score).then(b.coarse.total_cmp(&a.coarse)),
        (false, false) => b.coarse.total_cmp(&a.coarse).then(b.score.total_cmp(&a.score)),
        (a, b) => b.cmp(&a),
    }
}
