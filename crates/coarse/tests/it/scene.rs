//! Indexes over known vectors, and the same searches by comparing all rows.

use coarse::{
    BuildThreads, BuiltIndex, CoarseBuild, CoarseHit, CoarseKind, CoarseRequest, CoarseScratch,
    DenseVectors, Exact, HITS_MAX, Metric, RowSet, ScanParams, build,
};

pub(crate) const KINDS: [CoarseKind; 3] = [CoarseKind::Flat, CoarseKind::Rabitq, CoarseKind::IvfPq];
pub(crate) const METRICS: [Metric; 3] = [Metric::Cosine, Metric::Dot, Metric::L2];
/// Scans everything and compares as much as allowed.
pub(crate) const EVERYTHING: ScanParams = ScanParams { probes: usize::MAX, refine: HITS_MAX };

/// Returns pseudo-random numbers of a seed (SplitMix64).
pub(crate) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns vectors around a few centres, with a mean that is not zero.
pub(crate) fn vectors(rows: usize, dims: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut draw = |end: usize| {
        let bits = mix(state);
        state = state.wrapping_add(1);
        ((u128::from(bits) * end as u128) >> 64) as usize
    };
    let mut value = || (0..4).map(|_| draw(1000) as f32 / 1000.0 - 0.5).sum::<f32>();
    let centres: Vec<f32> = (0..8 * dims).map(|_| 2.0 * value() + 0.3).collect();
    (0..rows)
        .flat_map(|row| (0..dims).map(|dim| (row, dim)).collect::<Vec<_>>())
        .map(|(row, dim)| centres[row % 8 * dims + dim] + value())
        .collect()
}

pub(crate) fn score(metric: Metric, query: &[f32], row: &[f32]) -> f32 {
    let product =
        |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
    match metric {
        Metric::Dot => product(query, row),
        Metric::L2 => -query.iter().zip(row).map(|(a, b)| (a - b) * (a - b)).sum::<f32>(),
        Metric::Cosine => {
            let lengths = (product(query, query) * product(row, row)).sqrt();
            if lengths > 0.0 { product(query, row) / lengths } else { 0.0 }
        }
    }
}

pub(crate) struct Scene {
    pub(crate) dims: usize,
    pub(crate) metric: Metric,
    pub(crate) vectors: Vec<f32>,
    pub(crate) built: BuiltIndex,
}

impl Scene {
    pub(crate) fn new(kind: CoarseKind, metric: Metric, rows: usize, dims: usize) -> Scene {
        let vectors = vectors(rows, dims, 3);
        let built = build(
            kind,
            &CoarseBuild { vectors: &vectors, dims, metric, threads: BuildThreads::of(2), seed: 5 },
        )
        .unwrap();
        Scene { dims, metric, vectors, built }
    }

    pub(crate) fn exact(&self) -> DenseVectors {
        DenseVectors::new(&self.vectors, self.dims, self.metric, &self.built.order).unwrap()
    }

    pub(crate) fn row(&self, row: u32) -> &[f32] {
        &self.vectors[self.built.order[row as usize] as usize * self.dims..][..self.dims]
    }

    /// Returns the best `k` allowed rows by comparing all.
    pub(crate) fn naive(&self, query: &[f32], k: usize, allow: Option<&RowSet>) -> Vec<CoarseHit> {
        let rows = (0..self.built.index.rows())
            .filter(|row| allow.is_none_or(|allow| allow.contains(*row)));
        let mut hits: Vec<CoarseHit> = rows
            .map(|row| CoarseHit { row, score: score(self.metric, query, self.row(row)) })
            .collect();
        hits.sort_by(|one, other| other.score.total_cmp(&one.score).then(one.row.cmp(&other.row)));
        hits.truncate(k);
        hits
    }

    pub(crate) fn search(
        &self,
        query: &[f32],
        k: usize,
        params: ScanParams,
        allow: Option<&RowSet>,
        exactly: bool,
    ) -> Vec<CoarseHit> {
        let exact = self.exact();
        let mut scratch = CoarseScratch::default();
        let mut hits = Vec::new();
        let exact: Option<&dyn Exact> = if exactly { Some(&exact) } else { None };
        self.built
            .index
            .search(
                query,
                &CoarseRequest { params, allow, exact, ..CoarseRequest::best(k) },
                &mut scratch,
                &mut hits,
            )
            .unwrap();
        hits
    }
}

/// Counts the rows that are compared exactly.
pub(crate) struct Counted<'a>(pub(crate) &'a DenseVectors, pub(crate) std::cell::Cell<usize>);

impl Exact for Counted<'_> {
    fn scores(&self, query: &[f32], rows: &[u32], out: &mut Vec<f32>) -> base::Result<()> {
        self.1.set(self.1.get() + rows.len());
        self.0.scores(query, rows, out)
    }
}
