//! Sketch of a block: one byte per value. It gives an upper bound of each row's score, from a fifth
//! of the memory and in sequential order. Queries skip rows whose bound is too low and compare all
//! others themselves, so results do not change.

use std::sync::Arc;

use coarse::Metric;
use kernels::{float, integer};

use super::MemtableRow;

/// Bound of the rounding error of a sum of products, as a share of the largest possible sum. Far
/// above the real error.
const ROUNDING: f32 = 4e-5;
/// Bound of the rounding error of the length of the residual.
const RESIDUAL_ROUNDING: f32 = 1e-3;
/// Squared lengths without overflow or underflow. Vectors outside this range have no bound, so
/// queries compare their values.
const SQUARES: std::ops::Range<f32> = 1e-18..1e18;

/// Quantisation of one vector.
#[derive(Clone, Copy, Debug)]
struct VectorScale {
    /// Value of a code of 1.
    scale: f32,
    /// Upper bound of the length of the difference between the vector and its codes.
    residual_max: f32,
    /// Length of the vector, and its square.
    length: f32,
    square: f32,
}

impl VectorScale {
    /// Quantises `values` into `codes`. Returns `None` if they are too large or small for bounds.
    fn of(values: &[f32], codes: &mut [i8]) -> Option<VectorScale> {
        let scale = integer::quantise(values, codes);
        let square = float::dot(values, values);
        let residual = |(value, code): (&f32, &i8)| value - scale * f32::from(*code);
        let residual: f32 = values.iter().zip(&*codes).map(residual).map(|left| left * left).sum();
        let residual_max = residual.sqrt() * (1.0 + RESIDUAL_ROUNDING);
        SQUARES.contains(&square).then(|| VectorScale {
            scale,
            residual_max,
            length: square.sqrt(),
            square,
        })
    }
}

/// Query prepared for sketches.
#[derive(Debug)]
pub(crate) struct SketchQuery {
    metric: Metric,
    codes: Vec<i8>,
    shape: Option<VectorScale>,
}

impl SketchQuery {
    /// Prepares a query for the points most similar to `embedding`.
    pub(crate) fn new(metric: Metric, embedding: &[f32]) -> SketchQuery {
        let mut codes = vec![0; embedding.len()];
        let shape = VectorScale::of(embedding, &mut codes);
        SketchQuery { metric, codes, shape }
    }
}

/// Codes of the rows of a block.
#[derive(Clone, Debug)]
pub(super) struct BlockSketch {
    dims: usize,
    codes: Vec<i8>,
    shapes: Vec<Option<VectorScale>>,
}

impl BlockSketch {
    pub(super) const fn row_bytes(dims: usize) -> usize {
        dims + size_of::<Option<VectorScale>>()
    }

    pub(super) fn of(rows: &[Arc<MemtableRow>]) -> BlockSketch {
        let dims = rows.first().map_or(0, |row| row.embedding.len());
        let mut codes = vec![0; rows.len() * dims];
        let shapes = rows.iter().zip(codes.chunks_exact_mut(dims.max(1)));
        let shapes = shapes.map(|(row, codes)| VectorScale::of(&row.embedding, codes)).collect();
        BlockSketch { dims, codes, shapes }
    }

    /// Writes an upper bound of each row's similarity to the query.
    pub(super) fn at_most(&self, target: &SketchQuery, out: &mut [f32]) {
        let Some(query) = target.shape.filter(|_| self.dims == target.codes.len()) else {
            return out.fill(f32::INFINITY);
        };
        let rows = self.codes.chunks_exact(self.dims.max(1)).zip(&self.shapes);
        for ((codes, row), out) in rows.zip(out) {
            let Some(row) = row else {
                *out = f32::INFINITY;
                continue;
            };
            // By the Cauchy-Schwarz inequality, for the residuals of both sides.
            let error_max = query.length * row.residual_max
                + query.residual_max * (row.length + row.residual_max);
            let together = query.length * row.length;
            let product =
                query.scale * row.scale * integer::dot(&target.codes, codes) as f32 + error_max;
            *out = match target.metric {
                Metric::Dot => product + ROUNDING * together,
                Metric::Cosine => product / together + ROUNDING,
                Metric::L2 => {
                    let squares = query.square + row.square;
                    2.0 * product - squares + ROUNDING * squares
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::MemoryBudget;
    use crate::ingest::{Memtable, row_bytes};
    use crate::segment::similarity;
    use proptest::prelude::*;

    fn memtable(vectors: &[Vec<f32>]) -> Memtable {
        let budget = MemoryBudget::new(1 << 30);
        let mut memtable = Memtable::new(1);
        for (id, vector) in (0..).zip(vectors) {
            let held = budget.reserve(row_bytes(vector.len(), 0, 0), "a row").unwrap();
            let embedding = vector.clone().into();
            let row = MemtableRow {
                id,
                embedding,
                record: Box::default(),
                payload: Box::default(),
                held,
            };
            memtable.push(Arc::new(row));
            memtable.completed().into_iter().for_each(|block| block.sketch());
        }
        memtable
    }

    /// Returns the best `k`, and how many rows were compared.
    fn best(
        memtable: &Memtable,
        metric: Metric,
        query: &[f32],
        k: usize,
    ) -> (Vec<(f32, u64)>, usize) {
        let mut all: Vec<(f32, u64)> = Vec::new();
        let mut compared: usize = 0;
        memtable.scan(&SketchQuery::new(metric, query), f32::NEG_INFINITY, |row| {
            compared += 1;
            all.push((similarity(metric, query, &row.embedding), row.id));
            // Squares may overflow; a collection's queries skip these too.
            all.retain(|(similarity, _)| !similarity.is_nan());
            all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            all.truncate(k);
            all.get(k - 1).map_or(f32::NEG_INFINITY, |last| last.0)
        });
        (all, compared)
    }

    fn naive(vectors: &[Vec<f32>], metric: Metric, query: &[f32], k: usize) -> Vec<(f32, u64)> {
        let mut all: Vec<(f32, u64)> = (0..)
            .zip(vectors)
            .map(|(id, vector)| (similarity(metric, query, vector), id))
            .collect();
        all.retain(|(similarity, _)| !similarity.is_nan());
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        all.truncate(k);
        all
    }

    /// Returns pseudo-random values around `middle`.
    fn vectors(count: usize, dims: usize, middle: f32, size: f32, seed: u64) -> Vec<Vec<f32>> {
        // SplitMix64.
        let mut state = seed;
        let mut below = |end: u64| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((u128::from(mixed ^ (mixed >> 31)) * u128::from(end)) >> 64) as u64
        };
        let mut value = || middle + size * (below(20_001) as f32 / 10_000.0 - 1.0);
        (0..count).map(|_| (0..dims).map(|_| value()).collect()).collect()
    }

    proptest! {
        #[test]
        fn equals_comparing_everything(
            dims in 1usize..70, middle in -3f32..3.0, exponent in -30i32..30, seed: u64, k in 1usize..20,
        ) {
            let size = 10f32.powi(exponent);
            let mut all = vectors(800, dims, middle * size, size, seed);
            all[5].fill(0.0);
            all[6].fill(3e38);
            all[300].fill(-1e-40);
            all[400] = all[401].clone();
            all[402] = all[401].clone();
            let memtable = memtable(&all);
            let queries = [all[401].clone(), all[5].clone(), all[6].clone()];
            for query in vectors(3, dims, middle * size, size, seed ^ 1).iter().chain(&queries) {
                for metric in [Metric::Cosine, Metric::Dot, Metric::L2] {
                    let (found, _) = best(&memtable, metric, query, k);
                    let wanted = naive(&all, metric, query, k);
                    prop_assert!(
                        found.iter().zip(&wanted).all(|(a, b)| a.0.total_cmp(&b.0).is_eq() && a.1 == b.1),
                        "{metric:?}: {found:?} instead of {wanted:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn few_rows_are_compared() {
        let all = vectors(20_000, 64, 0.0, 1.0, 7);
        let memtable = memtable(&all);
        for query in vectors(5, 64, 0.0, 1.0, 8) {
            for metric in [Metric::Cosine, Metric::Dot, Metric::L2] {
                let (found, compared) = best(&memtable, metric, &query, 10);
                assert_eq!(found, naive(&all, metric, &query, 10));
                assert!(compared < 1000, "{compared} of 20,000");
            }
        }
    }
}
