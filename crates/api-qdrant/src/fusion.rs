//! Fusion of the hits of several prefetches into one list.
//!
//! - Reciprocal rank fusion: Cormack, Clarke and Büttcher, "Reciprocal rank fusion outperforms
//!   Condorcet and individual rank learning methods", SIGIR 2009. Ranks and weights count as in
//!   Qdrant, whose constant is 2 and not 60.
//! - Distribution-based score fusion: each list is scaled so that three standard deviations below
//!   its mean become 0, and three above become 1. The scores of a point are added.

use std::collections::HashMap;
use std::hash::Hash;

use base::{Error, Result};
use search::Metric;

/// Constant of reciprocal rank fusion if a query does not set it.
const RANK_CONSTANT: u32 = 2;
/// Score of all hits of a list in which all scores are equal.
const EQUAL_SCORE: f64 = 0.5;

/// Rule by which the hits of prefetches become one list.
#[derive(Clone, Debug, PartialEq)]
pub enum Fusion {
    /// Score by the ranks of a hit in the lists.
    ReciprocalRank {
        /// Constant that is added to each rank; 2 by default. The larger, the less the first ranks
        /// count.
        constant: Option<u32>,
        /// Weight of each prefetch; 1 by default.
        weights: Option<Vec<f32>>,
    },
    /// Score by the scores of a hit, relative to the scores of its list.
    DistributionBased,
}

/// A hit of a prefetch, or of their fusion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusionHit<I> {
    /// Id of the point.
    pub id: I,
    /// Score of the point. Higher is better.
    pub score: f32,
}

impl<I> FusionHit<I> {
    /// Creates a hit from the score that clients see. If `by_distance` is true and the metric is
    /// L2, this score is a distance, and the hit gets its negative.
    pub fn new(by_distance: bool, metric: Metric, id: I, score: f32) -> FusionHit<I> {
        let score = match metric {
            Metric::L2 if by_distance => -score,
            _ => score,
        };
        FusionHit { id, score }
    }
}

impl Fusion {
    /// Checks the fusion of `lists` prefetches.
    ///
    /// # Errors
    /// `InvalidArgument` for no prefetch and for another number of weights.
    pub fn check(&self, lists: usize) -> Result<()> {
        if lists == 0 {
            return Err(Error::invalid("query: fusion needs prefetches, whose hits it joins"));
        }
        match self {
            Fusion::ReciprocalRank { weights: Some(weights), .. } if weights.len() != lists => {
                Err(Error::invalid(format!(
                    "rrf.weights: {} weights for {lists} prefetches; give one for each",
                    weights.len()
                )))
            }
            _ => Ok(()),
        }
    }

    /// Joins lists of hits, each best first. Returns the hits best first. Hits with equal scores
    /// are in the order of the lists.
    pub fn join<I: Copy + Eq + Hash>(&self, lists: &[Vec<FusionHit<I>>]) -> Vec<FusionHit<I>> {
        let mut places: HashMap<I, usize> = HashMap::new();
        let mut sums: Vec<(I, f64)> = Vec::new();
        for (number, list) in lists.iter().enumerate() {
            for (hit, score) in list.iter().zip(self.scores(number, list)) {
                let place = *places.entry(hit.id).or_insert_with(|| {
                    sums.push((hit.id, 0.0));
                    sums.len() - 1
                });
                if let Some((_, sum)) = sums.get_mut(place) {
                    *sum += score;
                }
            }
        }
        sums.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        sums.into_iter().map(|(id, score)| FusionHit { id, score: score as f32 }).collect()
    }

    /// Returns the value that each hit of a list adds to the score of its point. `number` is the
    /// number of the list.
    fn scores<I>(&self, number: usize, list: &[FusionHit<I>]) -> Vec<f64> {
        match self {
            Fusion::ReciprocalRank { constant, weights } => {
                let weight = weights.as_ref().and_then(|weights| weights.get(number));
                let weight = f64::from(weight.copied().unwrap_or(1.0));
                let constant = f64::from(constant.unwrap_or(RANK_CONSTANT));
                (1..=list.len()).map(|rank| by_rank(rank as f64, weight, constant)).collect()
            }
            Fusion::DistributionBased => by_distribution(list),
        }
    }
}

/// Returns the score of a rank, which is 1 for the best hit.
fn by_rank(rank: f64, weight: f64, constant: f64) -> f64 {
    if weight <= 0.0 {
        return 0.0;
    }
    (rank / weight + constant - 1.0).recip()
}

fn by_distribution<I>(list: &[FusionHit<I>]) -> Vec<f64> {
    let scores: Vec<f64> = list.iter().map(|hit| f64::from(hit.score)).collect();
    let count = scores.len() as f64;
    let mean = scores.iter().sum::<f64>() / count;
    let squares = scores.iter().map(|score| (score - mean).powi(2)).sum::<f64>();
    let spread = 3.0 * (squares / (count - 1.0)).sqrt();
    // One hit has no spread.
    if !spread.is_normal() {
        return vec![EQUAL_SCORE; scores.len()];
    }
    scores.iter().map(|score| (score - mean + spread) / (2.0 * spread)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(hits: &[(u64, f32)]) -> Vec<FusionHit<u64>> {
        hits.iter().map(|&(id, score)| FusionHit { id, score }).collect()
    }

    fn ranks(constant: Option<u32>, weights: Option<Vec<f32>>) -> Fusion {
        Fusion::ReciprocalRank { constant, weights }
    }

    #[test]
    fn ranks_of_all_lists_count() {
        let lists = [list(&[(1, 9.0), (2, 8.0), (3, 7.0)]), list(&[(3, 0.9), (4, 0.8)])];
        // 1/(rank + 1) of each list.
        let expected = [(3, 0.25 + 0.5), (1, 0.5), (2, 1.0 / 3.0), (4, 1.0 / 3.0)];
        assert_eq!(ranks(None, None).join(&lists), list(&expected));
        let joined = ranks(Some(1), Some(vec![0.0, 2.0])).join(&lists);
        assert_eq!(joined, list(&[(3, 2.0), (4, 1.0), (1, 0.0), (2, 0.0)]));
    }

    #[test]
    fn scores_count_relative_to_their_list() {
        let joined = Fusion::DistributionBased
            .join(&[list(&[(1, 30.0), (2, 20.0), (3, 10.0)]), list(&[(2, 0.5)])]);
        // The standard deviation is 10: 10 above the mean is 4/6.
        let expected = [(2, 1.0), (1, 4.0 / 6.0), (3, 2.0 / 6.0)];
        for (hit, (id, score)) in joined.iter().zip(expected) {
            assert_eq!(hit.id, id);
            assert!((hit.score - score).abs() < 1e-6, "{joined:?}");
        }
        let equal = Fusion::DistributionBased.join(&[list(&[(1, 2.0), (2, 2.0)]), Vec::new()]);
        assert_eq!(equal, list(&[(1, 0.5), (2, 0.5)]));
    }

    #[test]
    fn weights_are_one_for_each_prefetch() {
        assert!(ranks(None, Some(vec![1.0])).check(1).is_ok());
        assert!(ranks(None, Some(vec![1.0])).check(2).is_err());
        assert!(Fusion::DistributionBased.check(0).is_err());
    }
}
