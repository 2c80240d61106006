//! Building the index: rotate, cluster, encode.

use base::Result;
use kernels::float;

use super::codes::{CodeRow, RabitqCodes};
use super::rotation::{Rotation, check_dims};
use super::store::directory_metric;
use super::{Metric, Rabitq};
use crate::coarse::kmeans::{self, KmeansPlan, RandomDraws, RowsByCluster};
use crate::coarse::refine::as_compared;
use crate::coarse::{BuildThreads, BuiltIndex, CoarseBuild};

/// Clusters per square root of the rows.
const CLUSTERS_PER_ROOT: f64 = 4.0;
/// Maximum clusters.
const CLUSTERS_MAX: usize = 1 << 16;
/// Training rows per cluster; more hardly move the centres.
const TRAINED_PER_CLUSTER: usize = 48;
/// Rows per chunk of a thread.
const ROWS_A_CHUNK: usize = 256;

pub(in crate::coarse) fn build(build: &CoarseBuild) -> Result<BuiltIndex> {
    let rows = build.check()?;
    check_dims(build.dims)?;
    let vectors = as_compared(build.vectors, build.dims, build.metric);
    let mean = mean(&vectors, build.dims);
    let rotation = Rotation::new(build.dims, build.seed);
    let points = rotate(&vectors, &mean, &rotation, build.crew)?;
    let padded = rotation.padded();
    let plan = KmeansPlan {
        dims: padded,
        clusters: clusters_for(rows),
        iterations: kmeans::ITERATIONS,
        crew: build.crew,
        seed: build.seed ^ 1,
    };
    let sample = RandomDraws::new(build.seed).sample(plan.clusters * TRAINED_PER_CLUSTER, rows);
    let sample: Vec<f32> =
        sample.iter().flat_map(|row| point(&points, padded, *row)).copied().collect();
    let centres = kmeans::train(&sample, &plan)?;
    drop(sample);
    let nearest = kmeans::assign(&points, &centres, padded, build.crew)?;
    let rows = RowsByCluster::new(&nearest, centres.len() / padded);
    let lists = Lists { rows: &rows, points: &points, centres: &centres, padded };
    let constants: Vec<f32> = match build.metric {
        Metric::Dot => {
            vectors.chunks_exact(build.dims).map(|vector| -float::dot(vector, &mean)).collect()
        }
        _ => Vec::new(),
    };
    let codes = lists.encode(&constants, build)?;
    let RowsByCluster { order, starts } = rows;
    let index = Rabitq::assemble(build, mean, rotation, starts, centres, codes);
    drop(points);
    let index = index.measured(&vectors, &order, build)?;
    Ok(BuiltIndex { order, index: Box::new(index) })
}

fn clusters_for(rows: usize) -> usize {
    (((rows as f64).sqrt() * CLUSTERS_PER_ROOT) as usize).clamp(1, CLUSTERS_MAX).min(rows.max(1))
}

fn point(points: &[f32], dims: usize, row: u32) -> &[f32] {
    &points[row as usize * dims..][..dims]
}

fn mean(vectors: &[f32], dims: usize) -> Vec<f32> {
    let mut sums = vec![0.0_f64; dims];
    for vector in vectors.chunks_exact(dims) {
        sums.iter_mut().zip(vector).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    let rows = (vectors.len() / dims).max(1) as f64;
    sums.into_iter().map(|sum| (sum / rows) as f32).collect()
}

fn rotate(
    vectors: &[f32],
    mean: &[f32],
    rotation: &Rotation,
    crew: BuildThreads<'_>,
) -> Result<Vec<f32>> {
    let dims = mean.len();
    let padded = rotation.padded();
    let mut points = vec![0.0; vectors.len() / dims * padded];
    let chunks = vectors.chunks(ROWS_A_CHUNK * dims).zip(points.chunks_mut(ROWS_A_CHUNK * padded));
    crew.share(chunks, |(vectors, points)| {
        let shifted: Vec<f32> = vectors
            .chunks_exact(dims)
            .flat_map(|vector| vector.iter().zip(mean).map(|(value, mean)| value - mean))
            .collect();
        rotation.turn_all(&shifted, points);
    })?;
    Ok(points)
}

struct Lists<'a> {
    rows: &'a RowsByCluster,
    points: &'a [f32],
    centres: &'a [f32],
    padded: usize,
}

impl Lists<'_> {
    fn encode(&self, constants: &[f32], build: &CoarseBuild) -> Result<RabitqCodes> {
        let clusters = self.rows.starts.len() - 1;
        // Pieces are joined in their own order, so that the number of threads changes nothing.
        let mut pieces: Vec<RabitqCodes> = vec![RabitqCodes::default(); clusters];
        let work = pieces.iter_mut().enumerate();
        build.crew.share(work, |(cluster, piece)| {
            self.encode_one(cluster, constants, build.metric, piece);
        })?;
        let mut codes = RabitqCodes::default();
        pieces.iter_mut().for_each(|piece| codes.append(piece));
        Ok(codes)
    }

    fn encode_one(
        &self,
        cluster: usize,
        constants: &[f32],
        metric: Metric,
        codes: &mut RabitqCodes,
    ) {
        let centre = point(self.centres, self.padded, cluster as u32);
        let rows = self.rows.rows(cluster);
        let residuals: Vec<f32> = rows
            .iter()
            .flat_map(|row| {
                point(self.points, self.padded, *row)
                    .iter()
                    .zip(centre)
                    .map(|(value, centre)| value - centre)
            })
            .collect();
        let rows =
            rows.iter().zip(residuals.chunks_exact(self.padded)).map(|(row, residual)| CodeRow {
                residual,
                // For inner products: the row with the mean, and the residual with the centre.
                constant: constants
                    .get(*row as usize)
                    .map_or(0.0, |with_mean| with_mean - float::dot(residual, centre)),
            });
        codes.extend(rows, centre, metric);
    }
}

/// Encodes the centres as one more list, around the mean of the rows, which is zero after rotation.
pub(super) fn encode_centres(centres: &[f32], padded: usize, metric: Metric) -> RabitqCodes {
    let mut codes = RabitqCodes::default();
    let rows = centres.chunks_exact(padded).map(|residual| CodeRow { residual, constant: 0.0 });
    codes.extend(rows, &vec![0.0; padded], directory_metric(metric));
    codes
}
