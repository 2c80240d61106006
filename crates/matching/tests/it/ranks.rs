//! Accepted results come first, by score; the others by similarity of embeddings.

use matching::rank::{StageScores, best_first};

fn ordered(mut all: Vec<StageScores>, accept: f32) -> Vec<(f32, f32)> {
    all.sort_by(|&a, &b| best_first(accept, a, b));
    all.into_iter().map(|it| (it.score, it.coarse)).collect()
}

#[test]
fn accepted_results_come_before_the_others() {
    let found = [(90.0, 0.9), (100.0, 0.1), (0.0, 0.95), (300.0, 0.2), (99.9, 0.3), (300.0, 0.4)];
    let all = found.map(|(score, coarse)| StageScores { score, coarse }).to_vec();
    let wanted = [(300.0, 0.4), (300.0, 0.2), (100.0, 0.1), (0.0, 0.95), (90.0, 0.9), (99.9, 0.3)];
    assert_eq!(ordered(all.clone(), 100.0), wanted);
    // If no candidate is accepted, the coarse stage alone decides.
    let by_coarse: Vec<f32> = ordered(all, 1000.0).into_iter().map(|it| it.1).collect();
    assert_eq!(by_coarse, [0.95, 0.9, 0.4, 0.3, 0.2, 0.1]);
}
