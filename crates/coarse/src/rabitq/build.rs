//! Building the index: rotate, cluster, encode.

use base::Result;
use kernels::float;

use super::codes::{CodeRow, RabitqCodes};
use super::rotation::{Rotation, check_dims};
use super::store::directory_metric;
use super::{Metric, Rabitq};
use crate::kmeans::{self, KmeansPlan, RowsByCluster};
use crate::refine::is_zero;
use crate::source::VectorProfile;
use crate::{BuiltIndex, StreamedBuild};

/// Clusters per square root of the rows.
const CLUSTERS_PER_ROOT: f64 = 4.0;
/// Maximum clusters.
const CLUSTERS_MAX: usize = 1 << 16;
/// Training rows per cluster; more hardly move the centres.
const TRAINED_PER_CLUSTER: usize = 48;
/// Number of rows per chunk of a thread.
const ROWS_A_CHUNK: usize = 256;

/// Builds the index: trains the centres on a sample, assigns the rows, encodes them, and measures
/// the recall.
pub(crate) fn build(build: &StreamedBuild<'_>, profile: &VectorProfile) -> Result<BuiltIndex> {
    check_dims(build.dims)?;
    let mean = profile.mean.clone();
    let rotated =
        RotatedDifferences { mean: &mean, rotation: Rotation::new(build.dims, build.seed), build };
    let padded = rotated.rotation.padded();
    let plan = KmeansPlan {
        dims: padded,
        clusters: clusters_for(build.vectors.rows()),
        iterations: kmeans::ITERATIONS,
        threads: build.threads,
        seed: build.seed ^ 1,
    };
    let mut sample = Vec::new();
    rotated.append(&build.sample(plan.clusters * TRAINED_PER_CLUSTER, build.seed)?, &mut sample)?;
    let centres = kmeans::train(&sample, &plan)?;
    drop(sample);
    let nearest =
        build.assign(&centres, padded, &|vectors, points| rotated.append(vectors, points))?;
    let mut rows = RowsByCluster::new(&nearest, centres.len() / padded);
    rows.sort_by_id(|row| build.vectors.id(row));
    drop(nearest);
    let codes = encode(&rows, &centres, &rotated)?;
    let RowsByCluster { order, starts } = rows;
    let rotation = rotated.rotation;
    let index = Rabitq::assemble(build, mean, rotation, starts, centres, codes);
    let index = index.measured(build, &order)?;
    Ok(BuiltIndex { order, index: Box::new(index) })
}

fn clusters_for(rows: usize) -> usize {
    (((rows as f64).sqrt() * CLUSTERS_PER_ROOT) as usize).clamp(1, CLUSTERS_MAX).min(rows.max(1))
}

/// Map of vectors to rotated differences from their mean.
struct RotatedDifferences<'a> {
    mean: &'a [f32],
    rotation: Rotation,
    build: &'a StreamedBuild<'a>,
}

impl RotatedDifferences<'_> {
    /// Appends the points of `vectors` to `points`.
    fn append(&self, vectors: &[f32], points: &mut Vec<f32>) -> Result<()> {
        let dims = self.mean.len();
        let padded = self.rotation.padded();
        let start = points.len();
        points.resize(start + vectors.len() / dims * padded, 0.0);
        let chunks = vectors
            .chunks(ROWS_A_CHUNK * dims)
            .zip(points[start..].chunks_mut(ROWS_A_CHUNK * padded));
        self.build.threads.share(chunks, |(vectors, points)| {
            let shifted: Vec<f32> = vectors
                .chunks_exact(dims)
                .flat_map(|vector| vector.iter().zip(self.mean).map(|(value, mean)| value - mean))
                .collect();
            self.rotation.rotate_all(&shifted, points);
        })
    }
}

/// Encodes all rows, list by list.
fn encode(
    rows: &RowsByCluster,
    centres: &[f32],
    rotated: &RotatedDifferences<'_>,
) -> Result<RabitqCodes> {
    let StreamedBuild { dims, metric, threads, .. } = *rotated.build;
    let padded = rotated.rotation.padded();
    let mut codes = RabitqCodes::with_capacity(&rows.starts, padded);
    let mut points = Vec::new();
    rotated.build.by_cluster(rows, &mut |clusters, vectors| {
        points.clear();
        rotated.append(vectors, &mut points)?;
        // Pieces are joined in their own order, so that the number of threads changes nothing.
        let mut pieces: Vec<RabitqCodes> = vec![RabitqCodes::default(); clusters.len()];
        let first = rows.starts[clusters.start];
        threads.share(pieces.iter_mut().zip(clusters), |(piece, cluster)| {
            let of = |row: u32, dims: usize| (row - first) as usize * dims;
            let start = rows.starts[cluster];
            let end = rows.starts[cluster + 1];
            let list = ListRows {
                vectors: &vectors[of(start, dims)..of(end, dims)],
                points: &points[of(start, padded)..of(end, padded)],
                centre: &centres[cluster * padded..][..padded],
            };
            list.encode(rotated.mean, metric, piece);
        })?;
        pieces.iter_mut().for_each(|piece| codes.append(piece));
        Ok(())
    })?;
    Ok(codes)
}

struct ListRows<'a> {
    vectors: &'a [f32],
    points: &'a [f32],
    centre: &'a [f32],
}

impl ListRows<'_> {
    /// Appends the codes of the rows of one cluster to `codes`.
    fn encode(&self, mean: &[f32], metric: Metric, codes: &mut RabitqCodes) {
        let padded = self.centre.len();
        let points = self.points.chunks_exact(padded);
        let residuals: Vec<f32> = points
            .flat_map(|point| point.iter().zip(self.centre).map(|(value, centre)| value - centre))
            .collect();
        let rows = self.vectors.chunks_exact(mean.len()).zip(residuals.chunks_exact(padded));
        let rows = rows.map(|(vector, residual)| CodeRow {
            residual,
            // For inner products: the row with the mean, and the residual with the centre.
            constant: match metric {
                Metric::Dot => -float::dot(vector, mean) - float::dot(residual, self.centre),
                // Costs are squared distances of unit vectors. A zero vector has the cosine 0, so
                // the cost 2, but its distance is 1.
                Metric::Cosine if is_zero(vector) => 1.0,
                _ => 0.0,
            },
        });
        codes.extend(rows, self.centre, metric);
    }
}

/// Encodes the centres as one more list, around the mean of the rows. Centres and queries are
/// relative to it, and inner products with a query include those with `mean`, the rotated mean.
pub(super) fn encode_centres(centres: &[f32], mean: &[f32], metric: Metric) -> RabitqCodes {
    let mut codes = RabitqCodes::default();
    let rows = centres.chunks_exact(mean.len()).map(|residual| CodeRow {
        residual,
        constant: if metric == Metric::Dot { -float::dot(residual, mean) } else { 0.0 },
    });
    codes.extend(rows, &vec![0.0; mean.len()], directory_metric(metric));
    codes
}
