//! The best k hits so far.

use std::cmp::Ordering;

use super::RerankCandidate;

/// The best `k` hits. Higher scores come first, and equal ones are in the order of ids. So the
/// order depends neither on the arrival of hits, nor on segments and rows, which merges change.
#[derive(Debug)]
pub(super) struct Ranking {
    k: usize,
    /// Best first. Re-ranking requests tens of hits, and most candidates are excluded by one
    /// comparison with the last hit, so a sorted list is faster than a heap.
    best: Vec<(RerankCandidate, f32)>,
}

/// Orders by descending score, then by id. Records of one id are ordered by segment and row.
pub(super) fn order(a: &(RerankCandidate, f32), b: &(RerankCandidate, f32)) -> Ordering {
    let place = |it: &RerankCandidate| (it.id, it.segment, it.row);
    b.1.total_cmp(&a.1).then_with(|| place(&a.0).cmp(&place(&b.0)))
}

impl Ranking {
    /// Creates a ranking of at most `k` hits. Memory grows with the hits, so a huge `k` costs
    /// nothing.
    pub(super) fn new(k: usize) -> Ranking {
        Ranking { k, best: Vec::new() }
    }

    /// Adds a score. A duplicate candidate is kept once.
    pub(super) fn add(&mut self, candidate: RerankCandidate, score: f32) {
        let new = (candidate, score);
        if self.best.len() >= self.k
            && self.best.last().is_none_or(|last| order(last, &new).is_le())
        {
            return;
        }
        let at = self.best.partition_point(|old| order(old, &new).is_lt());
        // A record has one score, so its duplicate would stand exactly here.
        if self.best.get(at).is_some_and(|old| order(old, &new).is_eq()) {
            return;
        }
        if self.best.len() >= self.k {
            self.best.pop();
        }
        self.best.insert(at, new);
    }

    /// Returns true if a record with at most this score can still become a hit. A score equal to
    /// the last one can, because ties are broken by id.
    pub(super) fn open_to(&self, bound: f32) -> bool {
        if self.best.len() < self.k {
            return true;
        }
        self.best.last().is_some_and(|(_, score)| bound.total_cmp(score).is_ge())
    }

    /// Returns the hits, best first.
    pub(super) fn into_hits(self) -> Vec<(RerankCandidate, f32)> {
        self.best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_sorting_everything(
            rows in proptest::collection::vec((0u32..3, 0u32..20), 0..60), k in 0usize..12,
        ) {
            // Few different scores, so that many are equal; duplicates have equal scores.
            let scored: Vec<_> = rows
                .iter()
                .map(|&(segment, row)| {
                    // A later segment has smaller ids.
                    let id = u64::from(3 - segment) * 20 + u64::from(row);
                    (RerankCandidate { segment, row, id, coarse: 0.0 }, (row % 5) as f32)
                })
                .collect();
            let mut ranking = Ranking::new(k);
            for &(candidate, score) in &scored {
                let in_before = ranking.best.clone();
                let open = ranking.open_to(score);
                ranking.add(candidate, score);
                prop_assert!(open || in_before == ranking.best, "what is not open stays as it is");
            }
            let mut wanted = scored;
            wanted.sort_by(order);
            wanted.dedup();
            wanted.truncate(k);
            prop_assert_eq!(ranking.into_hits(), wanted);
        }
    }
}
