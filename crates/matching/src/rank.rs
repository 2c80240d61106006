//! The order of what both stages found.
//!
//! A score over the threshold is proof enough, and proofs come first. Below it a score says hardly
//! anything, least of all about pictures with few points; there the likeness of embeddings is the
//! better guess. So the answer is never worse than that of the coarse stage, as long as nothing
//! wrong is accepted.

use std::cmp::Ordering;

/// What the two stages say of one picture.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageScores {
    /// The matcher's score.
    pub score: f32,
    /// How alike the embeddings are; higher is more alike.
    pub coarse: f32,
}

impl StageScores {
    /// Whether the matcher's score alone says that it is the same thing.
    #[must_use]
    pub fn accepted(&self, accept: f32) -> bool {
        self.score >= accept
    }
}

/// The order of an answer: what is accepted, by score, before the others by the likeness of their
/// embeddings. Equal ones stay equal: whoever sorts adds the id. Use it on all candidates of a
/// query before it is cut to its k best.
#[must_use]
pub fn best_first(accept: f32, a: StageScores, b: StageScores) -> Ordering {
    match (a.accepted(accept), b.accepted(accept)) {
        (true, true) => b.score.total_cmp(&a.score).then(b.coarse.total_cmp(&a.coarse)),
        (false, false) => b.coarse.total_cmp(&a.coarse).then(b.score.total_cmp(&a.score)),
        (a, b) => b.cmp(&a),
    }
}
