//! Vectors that an index is built from. A build reads them in passes, so they may be larger than
//! the memory.

use std::ops::Range;

use base::{Error, Result};
use kernels::float;

use super::kmeans::{self, NearestCentres, RowsByCluster};
use super::refine::normalise;
use super::{BuildThreads, DIMS_MAX, Metric, ROWS_MAX, RandomDraws, SQUARE_MAX};

/// Number of values that are read at once.
const CHUNK_VALUES: usize = 128 << 10;
/// Maximum values of all vectors that centres are trained with.
const SAMPLE_VALUES_MAX: usize = 48 << 20;
/// Variances of all dimensions together that the squared length of a long mean exceeds. A normal
/// distribution has about this squared range in 20,000 rows.
const LONG_MEAN_VARIANCES: f64 = 64.0;

/// Source of the vectors of an index, in the source's own numbering.
pub trait BuildVectors: Sync {
    /// Returns the number of vectors.
    fn rows(&self) -> usize;

    /// Calls `each` with all vectors in order, one or more whole vectors at a time.
    ///
    /// # Errors
    /// An error if a vector cannot be read; the error of `each`.
    fn scan(&self, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()>;

    /// Appends the vectors of `rows` to `out`, in their order.
    ///
    /// # Errors
    /// An error if a row does not exist or cannot be read.
    fn gather(&self, rows: &[u32], out: &mut Vec<f32>) -> Result<()>;

    /// Returns the id of a row; ids are unique. An index keeps rows with equal vectors in the order
    /// of their ids. Without ids of its own, a source has its row numbers.
    fn id(&self, row: u32) -> u64 {
        u64::from(row)
    }
}

/// Function that appends vectors in another space to a list.
pub(super) type MapVectors<'a> = dyn Fn(&[f32], &mut Vec<f32>) -> Result<()> + 'a;
/// Function that takes a run of clusters and the vectors of their rows.
pub(super) type VisitRuns<'a> = dyn FnMut(Range<usize>, &[f32]) -> Result<()> + 'a;

/// Index to build from a source.
#[derive(Clone, Copy)]
pub struct StreamedBuild<'a> {
    /// Source of the vectors.
    pub vectors: &'a dyn BuildVectors,
    /// Number of values per vector.
    pub dims: usize,
    /// Measure of similarity.
    pub metric: Metric,
    /// Threads that build, and their cancellation.
    pub threads: BuildThreads<'a>,
    /// Seed, as in [`super::CoarseBuild`].
    pub seed: u64,
}

impl StreamedBuild<'_> {
    /// Checks the sizes and returns the number of rows.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(super) fn check(&self) -> Result<usize> {
        let rows = self.vectors.rows();
        if self.dims == 0 || self.dims > DIMS_MAX || self.threads.count == 0 || rows > ROWS_MAX {
            return Err(Error::invalid(format!(
                "an index needs 1 to {DIMS_MAX} dimensions, {ROWS_MAX} rows at most and at least one thread, not \
                 {}, {rows} and {}",
                self.dims, self.threads.count
            )));
        }
        Ok(rows)
    }

    /// Returns the vectors of at most `count` rows chosen at random.
    pub(super) fn sample(&self, count: usize, seed: u64) -> Result<Vec<f32>> {
        let count = count.min(SAMPLE_VALUES_MAX / self.dims).max(1);
        let rows = RandomDraws::new(seed).sample(count, self.vectors.rows());
        let mut sample = Vec::with_capacity(rows.len() * self.dims);
        self.vectors.gather(&rows, &mut sample)?;
        Ok(sample)
    }

    /// Returns the nearest of `centres` for each row. `turn` maps vectors to the space of the
    /// centres.
    pub(super) fn assign(
        &self,
        centres: &[f32],
        dims: usize,
        turn: &MapVectors<'_>,
    ) -> Result<Vec<u32>> {
        if centres.is_empty() {
            return Ok(Vec::new());
        }
        let finder = NearestCentres::new(centres, dims);
        let mut nearest = Vec::with_capacity(self.vectors.rows());
        let mut points = Vec::new();
        self.vectors.scan(&mut |vectors| {
            points.clear();
            turn(vectors, &mut points)?;
            let found = finder.assign(&points, self.threads)?;
            nearest.extend(found.iter().map(|(cluster, _)| *cluster));
            Ok(())
        })?;
        Ok(nearest)
    }

    /// Calls `each` with runs of clusters and the vectors of their rows, by cluster.
    pub(super) fn by_cluster(&self, lists: &RowsByCluster, each: &mut VisitRuns<'_>) -> Result<()> {
        let mut vectors = Vec::new();
        for clusters in lists.runs(CHUNK_VALUES / self.dims) {
            self.threads.check()?;
            vectors.clear();
            self.vectors.gather(lists.rows_of(&clusters), &mut vectors)?;
            each(clusters, &vectors)?;
        }
        Ok(())
    }
}

/// Sums and limits of all vectors.
pub(super) struct VectorProfile {
    /// Mean of each dimension.
    pub(super) mean: Vec<f32>,
    /// Lowest value of each dimension.
    pub(super) low: Vec<f32>,
    /// Highest value of each dimension.
    pub(super) high: Vec<f32>,
    /// Mean of the squared lengths.
    mean_square: f64,
    /// True if all values are whole numbers from 0 to 255.
    pub(super) whole_bytes: bool,
    /// True if a vector is too long for inverted lists.
    pub(super) extreme: bool,
}

impl VectorProfile {
    /// Reads all vectors once.
    ///
    /// # Errors
    /// `InvalidArgument` if a value is not finite; the errors of the source.
    pub(super) fn of(vectors: &dyn BuildVectors, dims: usize) -> Result<VectorProfile> {
        let mut sums = vec![0.0_f64; dims];
        let mut low = vec![f32::INFINITY; dims];
        let mut high = vec![f32::NEG_INFINITY; dims];
        let mut whole_bytes = true;
        let mut extreme = false;
        let mut squares = 0.0_f64;
        let mut rows = 0_usize;
        vectors.scan(&mut |values| {
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                return Err(not_finite(rows + at / dims, at % dims));
            }
            for vector in values.chunks_exact(dims) {
                let places = sums.iter_mut().zip(low.iter_mut().zip(&mut high));
                for ((sum, (low, high)), value) in places.zip(vector) {
                    *sum += f64::from(*value);
                    *low = low.min(*value);
                    *high = high.max(*value);
                    whole_bytes &= (0.0..=255.0).contains(value) && value.fract() == 0.0;
                }
                let square = float::dot(vector, vector);
                extreme |= square.is_nan() || square > SQUARE_MAX;
                squares += f64::from(square);
                rows += 1;
            }
            Ok(())
        })?;
        let count = rows.max(1) as f64;
        let mean = sums.into_iter().map(|sum| (sum / count) as f32).collect();
        let mean_square = squares / count;
        Ok(VectorProfile { mean, low, high, mean_square, whole_bytes, extreme })
    }

    /// Returns true if the part that all vectors have in common is longer than all their
    /// differences together. Also returns true if it is longer than the differences of all but a
    /// few vectors. Codes that are not relative to the mean lose the differences.
    pub(super) fn has_long_mean(&self) -> bool {
        let square = |value: f64| value * value;
        let mean = self.mean.iter().map(|value| square(f64::from(*value))).sum::<f64>();
        let ranges = self.low.iter().zip(&self.high);
        let ranges = ranges.map(|(low, high)| square(f64::from(*high) - f64::from(*low)));
        // One vector far away, such as a zero vector, changes the ranges and hardly the variance.
        let variance = self.mean_square - mean;
        mean > ranges.sum::<f64>() || mean > LONG_MEAN_VARIANCES * variance
    }
}

pub(super) fn not_finite(row: usize, dim: usize) -> Error {
    Error::invalid(format!(
        "vector {row} has a value that is not a finite number at dimension {dim}; leave it out or correct it"
    ))
}

/// Vectors in memory.
pub(super) struct SliceVectors<'a> {
    pub(super) values: &'a [f32],
    pub(super) dims: usize,
}

impl BuildVectors for SliceVectors<'_> {
    fn rows(&self) -> usize {
        self.values.len() / self.dims
    }

    fn scan(&self, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let values = (CHUNK_VALUES / self.dims).max(1) * self.dims;
        self.values.chunks(values).try_for_each(each)
    }

    fn gather(&self, rows: &[u32], out: &mut Vec<f32>) -> Result<()> {
        for row in rows {
            let start = *row as usize * self.dims;
            let vector = self.values.get(start..start + self.dims);
            out.extend_from_slice(
                vector.ok_or_else(|| Error::invalid(format!("there is no vector {row}")))?,
            );
        }
        Ok(())
    }
}

/// Vectors as an index for the cosine compares them: of unit length.
pub(super) struct UnitVectors<'a> {
    pub(super) vectors: &'a dyn BuildVectors,
    pub(super) dims: usize,
}

impl BuildVectors for UnitVectors<'_> {
    fn rows(&self) -> usize {
        self.vectors.rows()
    }

    fn scan(&self, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let mut unit = Vec::new();
        self.vectors.scan(&mut |values| {
            unit.clear();
            unit.extend_from_slice(values);
            unit.chunks_exact_mut(self.dims).for_each(normalise);
            each(&unit)
        })
    }

    fn gather(&self, rows: &[u32], out: &mut Vec<f32>) -> Result<()> {
        let start = out.len();
        self.vectors.gather(rows, out)?;
        out[start..].chunks_exact_mut(self.dims).for_each(normalise);
        Ok(())
    }

    fn id(&self, row: u32) -> u64 {
        self.vectors.id(row)
    }
}

/// Vectors relative to a mean.
pub(super) struct RelativeVectors<'a> {
    pub(super) vectors: &'a dyn BuildVectors,
    pub(super) mean: &'a [f32],
}

impl BuildVectors for RelativeVectors<'_> {
    fn rows(&self) -> usize {
        self.vectors.rows()
    }

    fn scan(&self, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let mut relative = Vec::new();
        self.vectors.scan(&mut |values| {
            relative.clear();
            relative.extend_from_slice(values);
            self.subtract_mean(&mut relative);
            each(&relative)
        })
    }

    fn gather(&self, rows: &[u32], out: &mut Vec<f32>) -> Result<()> {
        let start = out.len();
        self.vectors.gather(rows, out)?;
        self.subtract_mean(&mut out[start..]);
        Ok(())
    }

    fn id(&self, row: u32) -> u64 {
        self.vectors.id(row)
    }
}

impl RelativeVectors<'_> {
    fn subtract_mean(&self, vectors: &mut [f32]) {
        for vector in vectors.chunks_exact_mut(self.mean.len()) {
            vector.iter_mut().zip(self.mean).for_each(|(value, mean)| *value -= mean);
        }
    }
}

/// Returns the number of bytes of memory that a build of `rows` rows needs in addition to the
/// index. They are for a sample for training, centres in three layouts, chunks, and numbers of
/// rows. The sample is freed before the index grows.
pub fn build_bytes(rows: u64, dims: usize, index_bytes: u64) -> u64 {
    let row = dims as u64 * 4;
    let sample = (rows * row).min(SAMPLE_VALUES_MAX as u64 * 4);
    let centres = kmeans::CENTRES_PER_ROOT_MAX * (rows as f64).sqrt() * row as f64 * 3.0;
    let numbers = rows * 16;
    sample.max(index_bytes) + centres.min((rows * row) as f64 * 3.0) as u64 + numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_vectors_far_away_hide_no_long_mean() {
        let dims = 4;
        let is_long = |common: f32, zeros: usize| {
            let mut draw = RandomDraws::new(7);
            let mut value = || common + draw.below(1000) as f32 / 1000.0 - 0.5;
            let mut values: Vec<f32> = (0..1000 * dims).map(|_| value()).collect();
            values[..zeros * dims].fill(0.0);
            let profile = VectorProfile::of(&SliceVectors { values: &values, dims }, dims);
            profile.unwrap().has_long_mean()
        };
        assert!(is_long(2000.0, 0) && is_long(2000.0, 1) && is_long(-2000.0, 10));
        assert!(!is_long(2000.0, 500) && !is_long(0.0, 0) && !is_long(0.5, 10));
        assert!(!is_long(0.0, 1000), "zero vectors alone");
    }
}
