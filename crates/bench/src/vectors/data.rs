//! The searched vectors: from files in the format of the TEXMEX collections, or generated.

use std::path::Path;

use base::{Error, Result};
use kernels::TopK;
use kernels::float::{Panels, dot};

use super::HITS;
use loadgen::random::RandomSequence;

/// Vectors, queries, and the true nearest of each query by squared distance.
#[derive(Debug)]
pub(crate) struct VectorData {
    pub(crate) dims: usize,
    pub(crate) base: Vec<f32>,
    pub(crate) queries: Vec<f32>,
    /// The nearest [`HITS`] of each query.
    pub(crate) truth: Vec<Vec<u32>>,
    /// True if the vectors were generated.
    pub(super) made: bool,
}

/// Number of clusters of the generated set.
const CLUSTERS: usize = 200;
/// Number of queries of the generated set.
const QUERIES: usize = 500;
/// Distance of a generated vector from its cluster's centre in each dimension, relative to that
/// between centres.
const SPREAD: f64 = 0.5;
/// Maximum number of values of a vector in a file.
const DIMS_MAX: usize = coarse::DIMS_MAX;
/// Number of vectors that are compared with all queries at a time.
const ROWS_AT_A_TIME: usize = 96;

impl VectorData {
    /// Reads base.fvecs, query.fvecs and truth.ivecs.
    pub(super) fn read(folder: &Path) -> Result<VectorData> {
        let (dims, base) = read_vectors(&folder.join("base.fvecs"))?;
        let (query_dims, queries) = read_vectors(&folder.join("query.fvecs"))?;
        let (neighbours, truth) = read_vectors(&folder.join("truth.ivecs"))?;
        let rows = base.len() / dims;
        if dims != query_dims
            || truth.len() / neighbours != queries.len() / dims
            || neighbours < HITS
        {
            return Err(Error::invalid(format!(
                "{}: base has {dims} dimensions, query {query_dims}; truth needs {HITS} numbers for each query",
                folder.display()
            )));
        }
        let truth: Vec<Vec<u32>> = truth
            .chunks_exact(neighbours)
            .map(|row| row[..HITS].iter().map(|word| word.to_bits()).collect())
            .collect();
        if truth.iter().flatten().any(|row| *row as usize >= rows) {
            return Err(Error::invalid(format!(
                "{}: truth names rows that base lacks",
                folder.display()
            )));
        }
        Ok(VectorData { dims, base, queries, truth, made: false })
    }

    /// Generates clusters of uneven size and shape, and their exact neighbours.
    pub(crate) fn generated(rows: usize, dims: usize) -> VectorData {
        let mut random = RandomSequence::new(17);
        let centres: Vec<f64> = (0..CLUSTERS * dims).map(|_| normal(&mut random)).collect();
        let scales: Vec<f64> = (0..CLUSTERS * dims).map(|_| SPREAD * random.unit() * 2.0).collect();
        let mut vectors = |count: usize| {
            let mut values = Vec::with_capacity(count * dims);
            for _ in 0..count {
                // The square makes the first clusters larger than the last.
                let cluster = (random.unit().powi(2) * CLUSTERS as f64) as usize;
                for dim in cluster * dims..(cluster + 1) * dims {
                    values.push((centres[dim] + scales[dim] * normal(&mut random)) as f32);
                }
            }
            values
        };
        let base = vectors(rows);
        let queries = vectors(QUERIES);
        let truth = nearest(&base, &queries, dims);
        VectorData { dims, base, queries, truth, made: true }
    }

    pub(super) fn rows(&self) -> usize {
        self.base.len() / self.dims
    }

    /// Returns one line for people.
    pub(super) fn line(&self) -> String {
        format!(
            "{} vectors of {} dimensions, {} queries{}",
            self.rows(),
            self.dims,
            self.truth.len(),
            if self.made { "; made, not real: the figures show only that it works" } else { "" }
        )
    }
}

/// Returns an approximately normal number: the sum of twelve uniform ones.
fn normal(random: &mut RandomSequence) -> f64 {
    (0..12).map(|_| random.unit()).sum::<f64>() - 6.0
}

/// Returns the rows nearest to each query by squared distance, nearest first.
fn nearest(base: &[f32], queries: &[f32], dims: usize) -> Vec<Vec<u32>> {
    let panels = Panels::new(queries, dims);
    let mut tops = vec![TopK::new(HITS); panels.count()];
    let mut products = vec![0.0; ROWS_AT_A_TIME * panels.count()];
    for (points, first) in base.chunks(ROWS_AT_A_TIME * dims).zip((0_u32..).step_by(ROWS_AT_A_TIME))
    {
        let products = &mut products[..points.len() / dims * panels.count()];
        panels.products(points, products);
        for ((point, products), row) in
            points.chunks_exact(dims).zip(products.chunks_exact(panels.count())).zip(first..)
        {
            let half_square = 0.5 * dot(point, point);
            tops.iter_mut()
                .zip(products.iter())
                .for_each(|(top, product)| top.push(half_square - product, row));
        }
    }
    tops.iter_mut().map(|top| top.sorted().map(|(_, row)| row).collect()).collect()
}

/// Reads the number of values of one vector, and all vectors of a file. Each vector starts with its
/// number of values. Integers are returned as the float with the same bits.
fn read_vectors(path: &Path) -> Result<(usize, Vec<f32>)> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, &e))?;
    let wrong = |what: &str| Error::invalid(format!("{}: {what}", path.display()));
    let (words, rest) = bytes.as_chunks::<4>();
    let width = words.first().map_or(0, |word| u32::from_le_bytes(*word) as usize);
    if width == 0 || width > DIMS_MAX || !rest.is_empty() || !words.len().is_multiple_of(width + 1)
    {
        return Err(wrong("not a file of vectors with one length"));
    }
    let mut values = Vec::with_capacity(words.len());
    for vector in words.chunks_exact(width + 1) {
        if u32::from_le_bytes(vector[0]) as usize != width {
            return Err(wrong("vectors of different lengths"));
        }
        values.extend(vector[1..].iter().map(|word| f32::from_le_bytes(*word)));
    }
    Ok((width, values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_vectors_are_read_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.fvecs");
        let words =
            |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        std::fs::write(&path, words(&[2, 1.0_f32.to_bits(), 7, 2, 3, 4])).unwrap();
        let (width, values) = read_vectors(&path).unwrap();
        assert_eq!((width, values[0], values[3].to_bits()), (2, 1.0, 4));
        for wrong in
            [&words(&[2, 1, 7, 3, 3, 4])[..], &words(&[2, 1, 7, 2]), &[1, 0], &[], &words(&[0, 0])]
        {
            std::fs::write(&path, wrong).unwrap();
            assert!(read_vectors(&path).is_err());
        }
        assert!(VectorData::read(folder.path()).is_err());
    }

    #[test]
    fn generated_neighbours_are_the_nearest() {
        let data = VectorData::generated(300, 5);
        for (query, truth) in data.queries.chunks_exact(5).zip(&data.truth) {
            let mut rows: Vec<(f32, u32)> = data
                .base
                .chunks_exact(5)
                .map(|row| kernels::float::l2(query, row))
                .zip(0..)
                .collect();
            rows.sort_by(|a, b| a.0.total_cmp(&b.0));
            let worst = rows[HITS - 1].0;
            assert!(truth.len() == HITS);
            assert!(truth.iter().all(|row| {
                kernels::float::l2(query, &data.base[*row as usize * 5..][..5]) <= worst * 1.0001
            }));
        }
    }
}
