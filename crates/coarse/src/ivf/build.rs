//! Building of an index with inverted lists: clusters, codebooks, codes of all rows.

use base::Result;
use kernels::pq::BLOCK;

use super::{CLUSTERS_MAX, IvfPq, ListDirectory, inner_metric};
use crate::kmeans::{self, KmeansPlan, RandomDraws, RowsByCluster, block_starts};
use crate::pq::{Codebooks, PqCodes, PqShape, TRAINING_MAX, subtract};
use crate::refine::ByteVectors;
use crate::source::{RelativeVectors, VectorProfile};
use crate::{BuildVectors, BuiltIndex, Metric, StreamedBuild, tune};

/// Clusters per square root of the rows. Finding clusters and scanning them then cost about the
/// same.
const CLUSTERS_PER_ROOT: f64 = 4.5;
/// Training rows per cluster; more rows hardly move the centres.
const TRAINED_PER_CLUSTER: usize = 64;

/// Builds the index.
///
/// # Errors
/// The errors of the source and of [`kmeans::train`].
pub(crate) fn build(build: &StreamedBuild<'_>, profile: &VectorProfile) -> Result<BuiltIndex> {
    let rows = build.vectors.rows();
    let dims = build.dims;
    let is_relative = build.metric != Metric::Dot && profile.has_long_mean();
    let mean = if is_relative { &profile.mean[..] } else { &[] };
    let relative = RelativeVectors { vectors: build.vectors, mean };
    let vectors: &dyn BuildVectors = if mean.is_empty() { build.vectors } else { &relative };
    let relative = &StreamedBuild { vectors, ..*build };
    let clusters = clusters_for(rows);
    let sample = relative.sample(clusters * TRAINED_PER_CLUSTER, build.seed)?;
    let plan = KmeansPlan {
        dims,
        clusters,
        iterations: kmeans::ITERATIONS,
        threads: build.threads,
        seed: build.seed,
    };
    let centres = kmeans::train(&sample, &plan)?;
    drop(sample);
    let nearest = relative.assign(&centres, dims, &|vectors, points| {
        points.extend_from_slice(vectors);
        Ok(())
    })?;
    let mut lists = RowsByCluster::new(&nearest, centres.len() / dims);
    lists.sort_by_id(|row| build.vectors.id(row));
    let books = train_books(&centres, &nearest, relative)?;
    drop(nearest);
    let mut bytes = ByteVectors::scaled(profile);
    let codes = encode(&centres, mean, &lists, &books, &mut bytes, build)?;
    let RowsByCluster { order, starts } = lists;
    let metric = build.metric;
    let directory = ListDirectory::build(&centres, dims, inner_metric(metric), build)?;
    let block_starts = block_starts(&starts, BLOCK);
    let mut index = IvfPq {
        metric,
        dims,
        starts,
        block_starts,
        mean: mean.to_vec(),
        centres,
        directory,
        books,
        codes,
        bytes,
        on_medium: false,
        recall: None,
    };
    index.recall = tune::measure(&index, build, &order)?;
    Ok(BuiltIndex { order, index: Box::new(index) })
}

/// Returns the number of clusters of an index of `rows` rows.
fn clusters_for(rows: usize) -> usize {
    let wanted = ((rows as f64).sqrt() * CLUSTERS_PER_ROOT) as usize;
    // Whole blocks of the directory, and at least one row for each.
    wanted.next_multiple_of(BLOCK).min(rows).min(CLUSTERS_MAX)
}

/// Trains the codebooks with a sample of the rows, each relative to the centre of its cluster.
fn train_books(centres: &[f32], nearest: &[u32], build: &StreamedBuild<'_>) -> Result<Codebooks> {
    let dims = build.dims;
    let sample = RandomDraws::new(build.seed ^ 1).sample(TRAINING_MAX, nearest.len());
    let mut vectors = Vec::with_capacity(sample.len() * dims);
    build.vectors.gather(&sample, &mut vectors)?;
    let mut residuals = Vec::with_capacity(vectors.len());
    for (row, vector) in sample.iter().zip(vectors.chunks_exact(dims)) {
        let cluster = nearest[*row as usize] as usize;
        subtract(vector, &centres[cluster * dims..][..dims], &mut residuals);
    }
    drop(vectors);
    Codebooks::train(&residuals, PqShape::new(dims), build.threads, build.seed)
}

/// Encodes all rows, list by list, and adds their bytes to `bytes`. The centres are relative to
/// `mean` if it is not empty.
fn encode(
    centres: &[f32],
    mean: &[f32],
    lists: &RowsByCluster,
    books: &Codebooks,
    bytes: &mut ByteVectors,
    build: &StreamedBuild<'_>,
) -> Result<PqCodes> {
    let dims = build.dims;
    let metric = build.metric;
    let blocks = block_starts(&lists.starts, BLOCK).last().copied().unwrap_or(0);
    let mut codes = PqCodes::with_capacity(blocks as usize, books.shape());
    bytes.reserve(lists.order.len());
    build.by_cluster(lists, &mut |clusters, vectors| {
        bytes.extend(vectors);
        let mut pieces = vec![PqCodes::default(); clusters.len()];
        let first = lists.starts[clusters.start] as usize;
        build.threads.share(pieces.iter_mut().zip(clusters), |(piece, cluster)| {
            let start = (lists.starts[cluster] as usize - first) * dims;
            let end = (lists.starts[cluster + 1] as usize - first) * dims;
            let centre = &centres[cluster * dims..][..dims];
            let vectors = &vectors[start..end];
            let mut relative = Vec::new();
            if !mean.is_empty() {
                subtract(vectors, mean, &mut relative);
            }
            let points = if mean.is_empty() { vectors } else { &relative[..] };
            *piece = PqCodes::encode(points, centre, books, metric);
            if metric == Metric::Cosine {
                piece.raise_zeros(vectors, dims);
            }
        })?;
        pieces.iter().for_each(|piece| codes.append(piece));
        Ok(())
    })?;
    Ok(codes)
}

impl ListDirectory {
    /// Encodes `centres` around their mean.
    fn build(
        centres: &[f32],
        dims: usize,
        metric: Metric,
        build: &StreamedBuild<'_>,
    ) -> Result<ListDirectory> {
        let count = (centres.len() / dims).max(1) as f64;
        let mut sums = vec![0.0_f64; dims];
        for centre in centres.chunks_exact(dims) {
            sums.iter_mut().zip(centre).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        let middle: Vec<f32> = sums.iter().map(|sum| (sum / count) as f32).collect();
        let mut residuals = Vec::with_capacity(centres.len());
        subtract(centres, &middle, &mut residuals);
        let books = Codebooks::train(&residuals, PqShape::new(dims), build.threads, build.seed)?;
        let codes = PqCodes::encode(centres, &middle, &books, metric);
        Ok(ListDirectory { middle, books, codes })
    }
}
