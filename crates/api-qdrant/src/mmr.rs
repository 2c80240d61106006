//! Hits that are similar to a query and different from each other: maximal marginal relevance
//! (Carbonell and Goldstein, "The use of MMR, diversity-based reranking for reordering documents
//! and producing summaries", SIGIR 1998).

use base::{Error, Result};
use search::Metric;

use crate::scores;

/// Maximum candidates of a query, because each is compared with each chosen hit.
pub(crate) const CANDIDATES_MAX: usize = 1024;

/// A hit that may be chosen.
pub struct MmrCandidate {
    vector: Vec<f32>,
    /// Similarity of the hit to the query.
    similarity: f32,
}

impl MmrCandidate {
    /// Creates a candidate from its vector, for the cosine with length one, and from its score as
    /// clients see it.
    pub fn new(metric: Metric, vector: Vec<f32>, score: f32) -> MmrCandidate {
        MmrCandidate { vector, similarity: scores::similarity(metric, score) }
    }
}

/// Returns the number of candidates of a query for `count` hits.
///
/// # Errors
/// `InvalidArgument` for 0 or more than 1024 candidates, and for more than 1024 hits.
pub fn candidates(candidates: usize, count: usize) -> Result<usize> {
    if count > CANDIDATES_MAX {
        return Err(Error::invalid(format!(
            "limit: mmr chooses at most {CANDIDATES_MAX} hits, offset included, not {count}; lower limit or offset"
        )));
    }
    if candidates == 0 || candidates > CANDIDATES_MAX {
        return Err(Error::invalid(format!(
            "mmr chooses from 1 to {CANDIDATES_MAX} candidates, not from {candidates}"
        )));
    }
    Ok(candidates)
}

/// A candidate that is not chosen yet.
struct Pending {
    index: usize,
    /// Similarity to the most similar chosen candidate.
    nearest: f32,
}

/// Returns the similarity by which a collection ranks.
fn similarity(metric: Metric, one: &[f32], other: &[f32]) -> f32 {
    let pairs = one.iter().zip(other);
    match metric {
        Metric::Cosine | Metric::Dot => pairs.map(|(one, other)| one * other).sum(),
        Metric::L2 => -pairs.map(|(one, other)| (one - other) * (one - other)).sum::<f32>(),
    }
}

/// Chooses at most `count` candidates, and returns their indexes in order. The first is the most
/// similar to the query. Each next one maximises `(1 - diversity) * similarity to the query -
/// diversity * similarity to the most similar chosen one`. Takes `count * candidates.len()`
/// comparisons.
pub fn choose(
    metric: Metric,
    candidates: &[MmrCandidate],
    diversity: f32,
    count: usize,
) -> Vec<usize> {
    let mut chosen = Vec::with_capacity(count.min(candidates.len()));
    let mut pending: Vec<Pending> =
        (0..candidates.len()).map(|index| Pending { index, nearest: f32::NEG_INFINITY }).collect();
    while chosen.len() < count {
        let worth = |pending: &Pending| {
            let relevance =
                candidates.get(pending.index).map_or(f32::NEG_INFINITY, |it| it.similarity);
            if chosen.is_empty() {
                relevance
            } else {
                (1.0 - diversity) * relevance - diversity * pending.nearest
            }
        };
        let best =
            pending.iter().map(worth).enumerate().max_by(|one, other| one.1.total_cmp(&other.1));
        let Some((best, _)) = best else { break };
        let Pending { index, .. } = pending.swap_remove(best);
        chosen.push(index);
        let Some(newest) = candidates.get(index) else { continue };
        for other in &mut pending {
            if let Some(candidate) = candidates.get(other.index) {
                other.nearest =
                    other.nearest.max(similarity(metric, &newest.vector, &candidate.vector));
            }
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_and_hits_have_a_maximum() {
        let problem = |wanted, count| candidates(wanted, count).unwrap_err().message().to_owned();
        assert_eq!(candidates(CANDIDATES_MAX, 1), Ok(CANDIDATES_MAX));
        assert!(problem(0, 1).contains("not from 0"));
        assert!(problem(CANDIDATES_MAX + 1, 1).contains("not from 1025"));
        assert!(problem(10, CANDIDATES_MAX + 1).contains("not 1025; lower limit"));
    }

    #[test]
    fn diversity_prefers_another_point_to_a_twin() {
        let query = [1.0, 0.0];
        let vectors = [vec![1.0, 0.0], vec![0.99, 0.01], vec![0.6, 0.8], vec![-1.0, 0.0]];
        for metric in [Metric::Cosine, Metric::L2] {
            let candidate = |vector: &Vec<f32>| MmrCandidate {
                vector: vector.clone(),
                similarity: similarity(metric, &query, vector),
            };
            let candidates: Vec<MmrCandidate> = vectors.iter().map(candidate).collect();
            assert_eq!(choose(metric, &candidates, 0.0, 3), [0, 1, 2]);
            assert_eq!(choose(metric, &candidates, 1.0, 2), [0, 3], "only difference counts");
            assert_ne!(
                choose(metric, &candidates, 0.6, 2)[1],
                1,
                "the twin of the first says nothing new"
            );
            assert_eq!(choose(metric, &candidates, 0.5, 9).len(), 4);
        }
        assert!(choose(Metric::Dot, &[], 0.5, 3).is_empty());
    }
}
