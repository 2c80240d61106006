//! Answers that are alike to a query and not to each other: maximal marginal relevance (Carbonell and
//! Goldstein, "The use of MMR, diversity-based reranking for reordering documents and producing summaries",
//! SIGIR 1998).

use search::coarse::Metric;

/// How alike two vectors are, by the measure that a collection ranks by. Those of a cosine collection have
/// length one.
fn similarity(metric: Metric, one: &[f32], other: &[f32]) -> f32 {
    let pairs = one.iter().zip(other);
    match metric {
        Metric::Cosine | Metric::Dot => pairs.map(|(one, other)| one * other).sum(),
        Metric::L2 => -pairs.map(|(one, other)| (one - other) * (one - other)).sum::<f32>(),
    }
}

/// Which candidates to answer with, at most `count`, in this order. Each has its vector and how alike it is
/// to the query. The first is the most alike; each next one has the best of `(1 - diversity) * alike to the
/// query - diversity * alike to the most alike one chosen`. Takes `count * candidates.len()` comparisons.
pub(super) fn choose(
    metric: Metric,
    candidates: &[(Vec<f32>, f32)],
    diversity: f32,
    count: usize,
) -> Vec<usize> {
    let mut chosen = Vec::with_capacity(count.min(candidates.len()));
    // For each that is not chosen: its place, and how alike it is to the most alike one chosen.
    let mut pending: Vec<(usize, f32)> = (0..candidates.len()).map(|at| (at, f32::NEG_INFINITY)).collect();
    while chosen.len() < count {
        let worth = |(at, near): &(usize, f32)| {
            let relevance = candidates.get(*at).map_or(f32::NEG_INFINITY, |(_, similarity)| *similarity);
            if chosen.is_empty() { relevance } else { (1.0 - diversity) * relevance - diversity * near }
        };
        let best = (0..pending.len())
            .filter_map(|index| Some((index, worth(pending.get(index)?))))
            .max_by(|one, other| one.1.total_cmp(&other.1));
        let Some((index, _)) = best else { break };
        let (at, _) = pending.swap_remove(index);
        chosen.push(at);
        let Some((vector, _)) = candidates.get(at) else { continue };
        for (other, near) in &mut pending {
            if let Some((candidate, _)) = candidates.get(*other) {
                *near = near.max(similarity(metric, vector, candidate));
            }
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diversity_decides_between_a_twin_and_something_else() {
        let query = [1.0, 0.0];
        let vectors = [vec![1.0, 0.0], vec![0.99, 0.01], vec![0.6, 0.8], vec![-1.0, 0.0]];
        for metric in [Metric::Cosine, Metric::L2] {
            let candidates: Vec<(Vec<f32>, f32)> =
                vectors.iter().map(|vector| (vector.clone(), similarity(metric, &query, vector))).collect();
            assert_eq!(choose(metric, &candidates, 0.0, 3), [0, 1, 2]);
            assert_eq!(choose(metric, &candidates, 1.0, 2), [0, 3], "only difference counts");
            assert_ne!(choose(metric, &candidates, 0.6, 2)[1], 1, "the twin of the first says nothing new");
            assert_eq!(choose(metric, &candidates, 0.5, 9).len(), 4);
        }
        assert!(choose(Metric::Dot, &[], 0.5, 3).is_empty());
    }
}
