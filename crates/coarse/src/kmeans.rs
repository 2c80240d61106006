//! Clustering: Lloyd's iterations over a sample, then the assignment of all rows.
//!
//! Equal vectors and seeds give equal centres with any number of threads. Threads only find nearest
//! centres; sums are computed in the order of the rows.

use std::ops::Range;

use base::{Error, Result};
use kernels::float::Panels;

use super::BuildThreads;

/// Lloyd's iterations for coarse clusters; more hardly move the centres.
pub(crate) const ITERATIONS: usize = 8;
/// Upper bound of the clusters per square root of the rows, for any index.
pub(crate) const CENTRES_PER_ROOT_MAX: f64 = 5.0;
/// Number of points per chunk of a thread.
const POINTS_A_CHUNK: usize = 1536;
/// Distance between the halves of a split cluster, relative to the values of its centre.
const SPLIT: f32 = 1.0 / 1024.0;

/// Small generator of reproducible random numbers (Steele, Lea, Flood, "Fast splittable
/// pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub(crate) struct RandomDraws(u64);

impl RandomDraws {
    /// Creates a generator from `seed`.
    pub(crate) fn new(seed: u64) -> RandomDraws {
        RandomDraws(seed)
    }

    /// Returns the next 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.bits()) * end as u128) >> 64) as usize
    }

    /// Returns `count` different numbers below `end` in ascending order; all of them if there are
    /// no more.
    pub(crate) fn sample(&mut self, count: usize, end: usize) -> Vec<u32> {
        let mut left = count.min(end);
        let mut chosen = Vec::with_capacity(left);
        for number in 0..end {
            if self.below(end - number) < left {
                chosen.push(number as u32);
                left -= 1;
            }
        }
        chosen
    }
}

/// Settings of a clustering.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KmeansPlan<'a> {
    /// Number of values per point.
    pub(crate) dims: usize,
    /// Number of centres to find.
    pub(crate) clusters: usize,
    /// Number of Lloyd's iterations.
    pub(crate) iterations: usize,
    /// Threads that work on it.
    pub(crate) threads: BuildThreads<'a>,
    /// Seed of the first centres.
    pub(crate) seed: u64,
}

/// Returns the centres of `points` (`dims` values each), at most one per point. If there are fewer
/// different points than centres, some centres are nearly equal and some have no points. This is
/// harmless.
///
/// # Errors
/// `InvalidArgument` if a point is incomplete or has a value that is not finite; `Cancelled`.
pub(crate) fn train(points: &[f32], plan: &KmeansPlan<'_>) -> Result<Vec<f32>> {
    let count = check(points, plan.dims)?;
    let clusters = plan.clusters.min(count);
    let mut draw = RandomDraws::new(plan.seed);
    let first = draw.sample(clusters, count);
    let mut centres: Vec<f32> = Vec::with_capacity(clusters * plan.dims);
    for point in first {
        centres.extend_from_slice(&points[point as usize * plan.dims..][..plan.dims]);
    }
    for _ in 0..if clusters == count { 0 } else { plan.iterations } {
        let nearest = assign(points, &centres, plan.dims, plan.threads)?;
        move_centres(points, &nearest, plan.dims, &mut centres);
    }
    Ok(centres)
}

/// Checks `points` and returns their number.
///
/// # Errors
/// `InvalidArgument` if they are not whole points of `dims` finite values.
fn check(points: &[f32], dims: usize) -> Result<usize> {
    if dims == 0 || !points.len().is_multiple_of(dims) {
        return Err(Error::invalid(format!(
            "{} values are not whole points of {dims} dimensions",
            points.len()
        )));
    }
    match points.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(Error::invalid(format!(
            "point {} has a value that is not a finite number",
            at / dims
        ))),
        None => Ok(points.len() / dims),
    }
}

/// Returns the nearest centre of each point (the first of equals) and the squared distance minus
/// the squared length of the point. Empty without centres.
///
/// # Errors
/// `Cancelled`.
pub(crate) fn assign(
    points: &[f32],
    centres: &[f32],
    dims: usize,
    threads: BuildThreads<'_>,
) -> Result<Vec<(u32, f32)>> {
    if centres.is_empty() {
        return Ok(Vec::new());
    }
    NearestCentres::new(centres, dims).assign(points, threads)
}

/// Centres laid out to find the nearest one of many points.
pub(crate) struct NearestCentres {
    panels: Panels,
    dims: usize,
}

impl NearestCentres {
    /// Lays out `centres`, at least one of `dims` values.
    pub(crate) fn new(centres: &[f32], dims: usize) -> NearestCentres {
        NearestCentres { panels: Panels::new(centres, dims), dims }
    }

    /// Assigns points to their nearest centres, as [`assign`] does.
    ///
    /// # Errors
    /// `Cancelled`.
    pub(crate) fn assign(
        &self,
        points: &[f32],
        threads: BuildThreads<'_>,
    ) -> Result<Vec<(u32, f32)>> {
        let mut nearest = vec![(0, 0.0); points.len() / self.dims];
        let chunks =
            points.chunks(POINTS_A_CHUNK * self.dims).zip(nearest.chunks_mut(POINTS_A_CHUNK));
        threads.share(chunks, |(points, nearest)| self.panels.nearest(points, nearest))?;
        Ok(nearest)
    }
}

/// Rows sorted by cluster.
pub(crate) struct RowsByCluster {
    pub(crate) order: Vec<u32>,
    /// Start of each cluster in `order`, and the number of rows.
    pub(crate) starts: Vec<u32>,
}

impl RowsByCluster {
    /// Sorts rows by their nearest centres. Rows of one cluster are in ascending order.
    pub(crate) fn new(nearest: &[u32], clusters: usize) -> RowsByCluster {
        let mut starts = vec![0; clusters + 1];
        nearest.iter().for_each(|cluster| starts[*cluster as usize + 1] += 1);
        for cluster in 0..clusters {
            starts[cluster + 1] += starts[cluster];
        }
        let mut next = starts.clone();
        let mut order = vec![0; nearest.len()];
        for (row, cluster) in nearest.iter().enumerate() {
            let place = &mut next[*cluster as usize];
            order[*place as usize] = row as u32;
            *place += 1;
        }
        RowsByCluster { order, starts }
    }

    /// Sorts the rows of each cluster by id. A search keeps the first of equal rows. If equal
    /// vectors compete for its last hits, it finds the smallest ids.
    pub(crate) fn sort_by_id(&mut self, id: impl Fn(u32) -> u64) {
        for bounds in self.starts.windows(2) {
            if let Some(rows) = self.order.get_mut(bounds[0] as usize..bounds[1] as usize) {
                rows.sort_unstable_by_key(|row| id(*row));
            }
        }
    }

    /// Returns the number of clusters.
    pub(crate) fn clusters(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the rows of neighbouring clusters.
    pub(crate) fn rows_of(&self, clusters: &Range<usize>) -> &[u32] {
        &self.order[self.starts[clusters.start] as usize..self.starts[clusters.end] as usize]
    }

    /// Returns runs of neighbouring clusters with at most `rows_max` rows together, or one cluster
    /// if it has more.
    pub(crate) fn runs(&self, rows_max: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut start = 0;
        std::iter::from_fn(move || {
            let limit = *self.starts.get(start)? as usize + rows_max;
            let fits = self.starts[start + 1..].partition_point(|end| *end as usize <= limit);
            if start == self.clusters() {
                return None;
            }
            let run = start..start + fits.max(1);
            start = run.end;
            Some(run)
        })
    }
}

/// Returns the first block of each cluster, and the number of blocks. `starts` has the first row of
/// each cluster, and the number of rows. A block has up to `block_rows` rows of one cluster.
pub(crate) fn block_starts(starts: &[u32], block_rows: usize) -> Vec<u32> {
    let blocks = starts.windows(2).map(|pair| (pair[1] - pair[0]).div_ceil(block_rows as u32));
    let mut total = 0;
    let mut sums = vec![0];
    sums.extend(blocks.map(|blocks| {
        total += blocks;
        total
    }));
    sums
}

/// Moves each centre to the mean of its points. A centre without points takes half of the largest
/// cluster.
fn move_centres(points: &[f32], nearest: &[(u32, f32)], dims: usize, centres: &mut [f32]) {
    let clusters = centres.len() / dims;
    let mut sums = vec![0.0_f64; centres.len()];
    let mut counts = vec![0_usize; clusters];
    for (point, (cluster, _)) in points.chunks_exact(dims).zip(nearest) {
        let cluster = *cluster as usize;
        counts[cluster] += 1;
        for (sum, value) in sums[cluster * dims..][..dims].iter_mut().zip(point) {
            *sum += f64::from(*value);
        }
    }
    for ((centre, sum), count) in centres
        .chunks_exact_mut(dims)
        .zip(sums.chunks_exact(dims))
        .zip(&counts)
        .filter(|(_, count)| **count > 0)
    {
        for (value, sum) in centre.iter_mut().zip(sum) {
            *value = (sum / *count as f64) as f32;
        }
    }
    split_largest(dims, centres, &mut counts);
}

/// Moves each centre without points beside the centre of the largest cluster, so that the two share
/// the points of that cluster. `counts` has the number of points by centre.
fn split_largest(dims: usize, centres: &mut [f32], counts: &mut [usize]) {
    for empty in 0..counts.len() {
        if counts[empty] > 0 {
            continue;
        }
        // The first of equals, so that the result does not depend on the search order.
        let largest =
            (0..counts.len()).fold(0, |best, at| if counts[at] > counts[best] { at } else { best });
        for dim in 0..dims {
            let value = centres[largest * dims + dim];
            let apart = value * if dim % 2 == 0 { SPLIT } else { -SPLIT };
            centres[largest * dims + dim] = value + apart;
            centres[empty * dims + dim] = value - apart;
        }
        counts[empty] = counts[largest] / 2;
        counts[largest] -= counts[empty];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(clusters: usize, threads: usize) -> KmeansPlan<'static> {
        KmeansPlan {
            dims: 2,
            clusters,
            iterations: 10,
            threads: BuildThreads::of(threads),
            seed: 7,
        }
    }

    fn blobs(rows: usize) -> Vec<f32> {
        let mut draw = RandomDraws::new(1);
        (0..rows)
            .flat_map(|row| {
                let mut near = |centre: f32| centre + draw.below(100) as f32 / 100.0;
                [near((row % 3) as f32 * 10.0), near((row % 2) as f32 * 10.0)]
            })
            .collect()
    }

    fn cost(points: &[f32], centres: &[f32]) -> f32 {
        let lengths: f32 = points.iter().map(|value| value * value).sum();
        lengths
            + assign(points, centres, 2, BuildThreads::of(1))
                .unwrap()
                .iter()
                .map(|(_, cost)| cost)
                .sum::<f32>()
    }

    #[test]
    fn runs_of_clusters_hold_all_rows() {
        let nearest = [0, 1, 1, 1, 1, 1, 3, 3, 4];
        let lists = RowsByCluster::new(&nearest, 6);
        let runs = |rows_max| lists.runs(rows_max).collect::<Vec<_>>();
        assert!(matches!(&runs(100)[..], [all] if *all == (0..6)));
        assert_eq!(runs(3), [0..1, 1..2, 2..6]);
        assert_eq!(runs(1), [0..1, 1..2, 2..3, 3..4, 4..6], "a larger cluster stands alone");
        assert_eq!(lists.rows_of(&(3..5)), [6, 7, 8]);
        assert_eq!(RowsByCluster::new(&[], 0).runs(9).count(), 0);
    }

    #[test]
    fn rows_of_a_cluster_are_in_the_order_of_their_ids() {
        let mut lists = RowsByCluster::new(&[0, 2, 2, 0, 2, 0], 3);
        assert_eq!(lists.order, [0, 3, 5, 1, 2, 4]);
        let ids = [50, 9, 70, 10, 8, 30];
        lists.sort_by_id(|row| ids[row as usize]);
        assert_eq!((lists.order, lists.starts), (vec![3, 5, 0, 4, 1, 2], vec![0, 3, 3, 6]));
    }

    #[test]
    fn existing_clusters_are_found() {
        let points = blobs(600);
        let centres = train(&points, &plan(12, 1)).unwrap();
        assert!(cost(&points, &centres) / 600.0 < 0.3);
        let worse = train(&points, &KmeansPlan { iterations: 0, ..plan(12, 1) }).unwrap();
        assert!(cost(&points, &centres) < cost(&points, &worse));
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let points = blobs(5000);
        assert_eq!(train(&points, &plan(20, 1)).unwrap(), train(&points, &plan(20, 3)).unwrap());
    }

    #[test]
    fn few_equal_and_zero_points_are_harmless() {
        assert!(train(&[], &plan(4, 1)).unwrap().is_empty());
        assert!(assign(&[], &[], 2, BuildThreads::of(1)).unwrap().is_empty());
        assert_eq!(train(&[1.0, 2.0, 3.0, 4.0], &plan(9, 2)).unwrap(), [1.0, 2.0, 3.0, 4.0]);
        for value in [0.0, 5.0] {
            let centres = train(&[value; 80], &plan(4, 1)).unwrap();
            assert!(
                centres.len() == 8 && centres.iter().all(|centre| (centre - value).abs() < 0.1)
            );
        }
    }

    #[test]
    fn a_value_that_is_not_finite_is_refused() {
        let error = train(&[1.0, 2.0, 3.0, f32::NAN], &plan(1, 1)).unwrap_err();
        assert!(error.message().contains("point 1"), "{error}");
        assert!(train(&[1.0; 3], &plan(1, 1)).is_err());
    }

    proptest! {
        #[test]
        fn a_sample_has_no_repetition(count in 0_usize..60, end in 0_usize..50, seed in any::<u64>()) {
            let sample = RandomDraws::new(seed).sample(count, end);
            prop_assert_eq!(sample.len(), count.min(end));
            prop_assert!(sample.is_sorted_by(|a, b| a < b) && sample.iter().all(|number| (*number as usize) < end));
        }
    }
}
