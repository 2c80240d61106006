//! Scores of points by their similarities to each of several vectors: recommendations by the best
//! score or by the sum of scores, discovery, and context. A higher score is better for every
//! distance.

use search::Metric;
use search::segment::similarity;

use crate::vector_input::VectorInput;

/// Rule by which the similarities of a point to several vectors become one score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExampleRule {
    /// The largest similarity to an example. It is negated if this example is a negative one.
    BestScore,
    /// The sum of the similarities to the positive examples, less that of the negative ones.
    SumScores,
    /// The number of pairs whose positive example is nearer, less the number of the others. If
    /// equal, the similarity to the target decides.
    Discover,
    /// Loss for each pair whose negative example is nearer. It grows with the difference.
    Context,
}

/// Query that scores points by their similarities to several vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct ExampleQuery {
    /// Rule that makes a score of the similarities to the examples.
    pub rule: ExampleRule,
    /// The target of a discovery.
    pub target: Option<VectorInput>,
    /// Examples to be similar to; for discovery and context, those of each pair.
    pub positive: Vec<VectorInput>,
    /// Examples to differ from; for discovery and context, those of each pair.
    pub negative: Vec<VectorInput>,
}

impl ExampleQuery {
    /// Returns the target and all examples.
    pub fn inputs(&self) -> impl Iterator<Item = &VectorInput> {
        self.target.iter().chain(&self.positive).chain(&self.negative)
    }
}

/// Vectors of an [`ExampleQuery`], as the collection stores vectors.
pub(crate) struct ExampleVectors {
    pub(crate) rule: ExampleRule,
    pub(crate) target: Option<Vec<f32>>,
    pub(crate) positive: Vec<Vec<f32>>,
    pub(crate) negative: Vec<Vec<f32>>,
}

impl ExampleVectors {
    /// Returns the vectors near which good points lie: the target and the positive examples.
    pub(crate) fn attractive(&self) -> impl Iterator<Item = &[f32]> {
        self.target.iter().chain(&self.positive).map(Vec::as_slice)
    }

    /// Returns the score of a point from its vector.
    pub(crate) fn score(&self, metric: Metric, vector: &[f32]) -> f32 {
        let to = |example: &Vec<f32>| similarity(metric, example, vector);
        let pairs =
            || self.positive.iter().zip(&self.negative).map(move |(one, two)| (to(one), to(two)));
        match self.rule {
            ExampleRule::BestScore => {
                best_score(self.positive.iter().map(to), self.negative.iter().map(to))
            }
            ExampleRule::SumScores => {
                let sum = |examples: &[Vec<f32>]| examples.iter().map(to).sum::<f32>();
                sum(&self.positive) - sum(&self.negative)
            }
            ExampleRule::Discover => {
                let target = self.target.as_ref().map_or(0.0, to);
                pairs().map(|(liked, disliked)| rank(liked, disliked)).sum::<f32>()
                    + scaled_sigmoid(target)
            }
            ExampleRule::Context => pairs().map(|(liked, disliked)| loss(liked, disliked)).sum(),
        }
    }
}

/// Returns the score of the most similar example.
fn best_score(positive: impl Iterator<Item = f32>, negative: impl Iterator<Item = f32>) -> f32 {
    let liked = positive.fold(f32::NEG_INFINITY, f32::max);
    let disliked = negative.fold(f32::NEG_INFINITY, f32::max);
    if liked > disliked { scaled_sigmoid(liked) } else { -scaled_sigmoid(disliked) }
}

/// Returns 1 if the positive example of a pair is nearer, and -1 if the negative one is.
fn rank(liked: f32, disliked: f32) -> f32 {
    if liked > disliked {
        1.0
    } else if liked == disliked {
        0.0
    } else {
        -1.0
    }
}

/// Returns the loss for a pair, which is 0 if the positive example is nearer.
fn loss(liked: f32, disliked: f32) -> f32 {
    sigmoid((liked - disliked - f32::EPSILON).min(0.0))
}

/// Maps all numbers to the range from -1 to 1, in their order.
fn sigmoid(value: f32) -> f32 {
    if value.is_finite() { value / (1.0 + value.abs()) } else { value }
}

/// Maps all numbers to the range from 0 to 1, in their order.
fn scaled_sigmoid(value: f32) -> f32 {
    0.5 * (sigmoid(value) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(rule: ExampleRule, target: Option<[f32; 2]>) -> ExampleVectors {
        ExampleVectors {
            rule,
            target: target.map(|target| target.to_vec()),
            positive: vec![vec![1.0, 0.0], vec![0.0, 3.0]],
            negative: vec![vec![0.0, 1.0], vec![2.0, 0.0]],
        }
    }

    #[test]
    fn the_most_similar_example_decides() {
        let query = vectors(ExampleRule::BestScore, None);
        // Similarities: 1 and 3 to positive, 1 and 2 to negative examples.
        assert_eq!(query.score(Metric::Dot, &[1.0, 1.0]), 0.5 * (0.75 + 1.0));
        // Similarities: 2 and 0 to positive, 0 and 4 to negative examples.
        assert_eq!(query.score(Metric::Dot, &[2.0, 0.0]), -0.5 * (0.8 + 1.0));
        let none = ExampleVectors { positive: Vec::new(), ..query };
        assert!(none.score(Metric::L2, &[0.0, 0.0]) < 0.0);
    }

    #[test]
    fn all_examples_add_to_the_sum() {
        let query = vectors(ExampleRule::SumScores, None);
        assert_eq!(query.score(Metric::Dot, &[1.0, 1.0]), 1.0 + 3.0 - 1.0 - 2.0);
        assert_eq!(query.score(Metric::L2, &[0.0, 0.0]), -1.0 - 9.0 + 1.0 + 4.0);
    }

    #[test]
    fn pairs_count_more_than_the_target() {
        let query = vectors(ExampleRule::Discover, Some([1.0, 0.0]));
        // The first pair is equal, and the positive example of the second one is nearer.
        assert_eq!(query.score(Metric::Dot, &[1.0, 1.0]), 1.0 + 0.5 * (0.5 + 1.0));
        assert_eq!(query.attractive().count(), 3);
    }

    #[test]
    fn context_is_a_loss() {
        let query = vectors(ExampleRule::Context, None);
        assert!(query.score(Metric::Dot, &[1.0, 2.0]) < 0.0, "the negative example is nearer");
        let score = query.score(Metric::Dot, &[2.0, 1.5]);
        assert!(score.abs() < 1e-6, "{score}");
    }
}
