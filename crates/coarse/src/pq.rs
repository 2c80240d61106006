//! Inverted lists encoded by 4-bit product quantisation of residuals. The residual of a vector is
//! the vector minus the centre of its list.
//!
//! The squared distance of a query `q` to a row `c + r` (centre and residual) is `|q - c|² - 2 <q,
//! r> + |r|² + 2 <c, r>`. The first term belongs to the list and the last two to the row. The
//! remaining term is an inner product with the query alone, so one set of tables serves all lists.
//! Residuals are much shorter than vectors, and so are the errors of their codes. The row's term
//! uses the true `|r|²` and `<c, r'>` with the encoded residual `r'`. The error of a cost is then
//! `2 <q - c, r - r'>`, with the short vector `q - c` in place of `q`.
//!
//! For inner products the cost is `-<q, c> - <q, r>`, without a term of the row.
//!
//! Tables have steps in proportion to the length of the query. If all vectors have a large common
//! part, the mean `m`, these steps exceed the distances. So `q - m` and `c - m` take the places of
//! `q` and `c`, which changes no distance. Inner products keep `q` and `c`. They grow with the
//! query as the steps do, and the error of `<q - m, r'>` would grow with `m` instead.

use base::{Error, Result};
use kernels::float;
use kernels::pq::{BLOCK, CostTable, VALUES, block_bytes, pack, scan};

use super::kmeans::{self, KmeansPlan};
use super::refine::is_zero;
use super::section;
use super::{BuildThreads, Metric};

/// Maximum residuals to train a codebook with.
pub(crate) const TRAINING_MAX: usize = 32_768;
/// Number of Lloyd's iterations for the 16 values of a part.
const ITERATIONS: usize = 12;
/// Number of dimensions up to which a part has two of them.
const TWO_DIMS_MAX: usize = 256;

/// Division of vectors into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PqShape {
    /// Number of values per vector.
    pub(crate) dims: usize,
    /// Number of values per part.
    pub(crate) part_dims: usize,
}

impl PqShape {
    /// Chooses two dimensions per part, or as few as give at most 128 parts.
    pub(crate) fn new(dims: usize) -> PqShape {
        PqShape {
            dims,
            part_dims: if dims <= TWO_DIMS_MAX { 2 } else { dims.div_ceil(TWO_DIMS_MAX / 2) },
        }
    }

    /// Returns the parts per vector.
    pub(crate) fn parts(&self) -> usize {
        self.dims.div_ceil(self.part_dims)
    }

    /// Returns the values of all codebooks together.
    pub(crate) fn book_values(&self) -> usize {
        self.parts() * self.part_dims * VALUES
    }

    /// Returns the number of bytes of a block of 32 rows.
    pub(crate) fn block_bytes(&self) -> usize {
        block_bytes(self.parts())
    }
}

/// The 16 values of every part.
#[derive(Clone, Debug)]
pub(crate) struct Codebooks {
    shape: PqShape,
    /// Values by part, then by dimension of the part, then 16 values.
    values: Vec<f32>,
}

impl Codebooks {
    /// Trains codebooks with `residuals`, at most [`TRAINING_MAX`] of them.
    ///
    /// # Errors
    /// As [`kmeans::train`].
    pub(crate) fn train(
        residuals: &[f32],
        shape: PqShape,
        threads: BuildThreads<'_>,
        seed: u64,
    ) -> Result<Codebooks> {
        let mut values = vec![0.0; shape.book_values()];
        let books = values.chunks_exact_mut(shape.part_dims * VALUES).enumerate();
        let failed = parking_lot::Mutex::new(None);
        threads.share(books, |(part, book)| {
            let mut points = Vec::new();
            gather(residuals, shape, part, &mut points);
            let plan = KmeansPlan {
                dims: shape.part_dims,
                clusters: VALUES,
                iterations: ITERATIONS,
                threads: threads.alone(),
                seed: seed ^ part as u64,
            };
            match kmeans::train(&points, &plan) {
                Ok(centres) => {
                    for (code, centre) in centres.chunks_exact(shape.part_dims).enumerate() {
                        centre
                            .iter()
                            .enumerate()
                            .for_each(|(dim, value)| book[dim * VALUES + code] = *value);
                    }
                }
                Err(error) => *failed.lock() = Some(error),
            }
        })?;
        match failed.into_inner() {
            Some(error) => Err(error),
            None => Ok(Codebooks { shape, values }),
        }
    }

    /// Decodes the section.
    ///
    /// # Errors
    /// `DataLoss` if it has another length.
    pub(crate) fn open(bytes: &[u8], shape: PqShape) -> Result<Codebooks> {
        Ok(Codebooks { shape, values: section::floats(bytes, shape.book_values())? })
    }

    /// Encodes the section.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        section::from_floats(&self.values)
    }

    /// Returns the division into parts.
    pub(crate) fn shape(&self) -> PqShape {
        self.shape
    }

    /// Computes the tables of a query.
    pub(crate) fn table(&self, query: &[f32], metric: Metric, table: &mut CostTable) {
        let factor = if metric == Metric::Dot { -1.0 } else { -2.0 };
        table.fill(query, &self.values, self.shape.part_dims, factor);
    }

    /// Appends the code of every part of each of `residuals`, row by row.
    fn encode(&self, residuals: &[f32], codes: &mut Vec<u8>) {
        let rows = residuals.len() / self.shape.dims;
        let parts = self.shape.parts();
        codes.clear();
        codes.resize(rows * parts, 0);
        let mut points = Vec::with_capacity(rows * self.shape.part_dims);
        let mut nearest = vec![(0, 0.0); rows];
        for part in 0..parts {
            points.clear();
            gather(residuals, self.shape, part, &mut points);
            let book = &self.values[part * self.shape.part_dims * VALUES..]
                [..self.shape.part_dims * VALUES];
            let centres: Vec<f32> = (0..VALUES)
                .flat_map(|code| {
                    (0..self.shape.part_dims).map(move |dim| book[dim * VALUES + code])
                })
                .collect();
            float::Panels::new(&centres, self.shape.part_dims).nearest(&points, &mut nearest);
            for (codes, (code, _)) in codes.chunks_exact_mut(parts).zip(&nearest) {
                codes[part] = *code as u8;
            }
        }
    }

    /// Returns the inner product of `vector` with the decoded `codes`.
    fn product(&self, vector: &[f32], codes: &[u8]) -> f32 {
        let parts = vector.chunks(self.shape.part_dims).zip(codes);
        parts
            .zip(self.values.chunks_exact(self.shape.part_dims * VALUES))
            .map(|((values, code), book)| {
                let columns = book.chunks_exact(VALUES);
                values
                    .iter()
                    .zip(columns)
                    .map(|(value, column)| value * column[usize::from(*code)])
                    .sum::<f32>()
            })
            .sum()
    }
}

/// Collects the values of one part of every vector, zero beyond the last dimension.
fn gather(vectors: &[f32], shape: PqShape, part: usize, points: &mut Vec<f32>) {
    for vector in vectors.chunks_exact(shape.dims) {
        let values = vector.chunks(shape.part_dims).nth(part).unwrap_or(&[]);
        points.extend_from_slice(values);
        points.extend(std::iter::repeat_n(0.0, shape.part_dims - values.len()));
    }
}

/// Encoded rows of the lists, in whole blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct PqCodes {
    blocks: Vec<u8>,
    /// Term added to the sum of each row; infinite for padding rows.
    terms: Vec<f32>,
}

impl PqCodes {
    /// Encodes one list: `vectors` with the centre `centre`. Returns whole blocks.
    pub(crate) fn encode(
        vectors: &[f32],
        centre: &[f32],
        books: &Codebooks,
        metric: Metric,
    ) -> PqCodes {
        let shape = books.shape();
        let mut residuals = Vec::with_capacity(vectors.len());
        subtract(vectors, centre, &mut residuals);
        let mut codes = Vec::new();
        books.encode(&residuals, &mut codes);
        let parts = shape.parts();
        let blocks = (vectors.len() / shape.dims).div_ceil(BLOCK);
        let mut encoded = PqCodes {
            blocks: vec![0; blocks * shape.block_bytes()],
            terms: vec![f32::INFINITY; blocks * BLOCK],
        };
        let places = encoded.blocks.chunks_exact_mut(shape.block_bytes());
        for (codes, block) in codes.chunks(BLOCK * parts).zip(places) {
            pack(codes, parts, block);
        }
        let rows = residuals.chunks_exact(shape.dims).zip(codes.chunks_exact(parts));
        for ((residual, codes), term) in rows.zip(&mut encoded.terms) {
            *term = match metric {
                Metric::Dot => 0.0,
                Metric::Cosine | Metric::L2 => {
                    float::dot(residual, residual) + 2.0 * books.product(centre, codes)
                }
            };
        }
        encoded
    }

    /// Raises the cosine costs of the zero vectors among `vectors`, which are those of this list.
    /// Costs are squared distances of unit vectors. A zero vector has the cosine 0, so the cost 2,
    /// but its distance is 1.
    pub(crate) fn raise_zeros(&mut self, vectors: &[f32], dims: usize) {
        for (vector, term) in vectors.chunks_exact(dims).zip(&mut self.terms) {
            if is_zero(vector) {
                *term += 1.0;
            }
        }
    }

    /// Creates an empty list with room for exactly `blocks` blocks.
    pub(crate) fn with_capacity(blocks: usize, shape: PqShape) -> PqCodes {
        PqCodes {
            blocks: Vec::with_capacity(blocks * shape.block_bytes()),
            terms: Vec::with_capacity(blocks * BLOCK),
        }
    }

    /// Appends another list.
    pub(crate) fn append(&mut self, other: &PqCodes) {
        self.blocks.extend_from_slice(&other.blocks);
        self.terms.extend_from_slice(&other.terms);
    }

    /// Decodes `blocks` blocks from their two sections.
    ///
    /// # Errors
    /// `DataLoss` if a section has another length.
    pub(crate) fn open(
        codes: Vec<u8>,
        terms: &[u8],
        blocks: usize,
        shape: PqShape,
    ) -> Result<PqCodes> {
        if codes.len() != blocks * shape.block_bytes() {
            return Err(Error::data_loss(format!(
                "the coarse index has {} bytes of codes, {blocks} blocks were expected",
                codes.len()
            )));
        }
        Ok(PqCodes { blocks: codes, terms: section::floats(terms, blocks * BLOCK)? })
    }

    /// Returns the section of codes.
    pub(crate) fn block_bytes(&self) -> &[u8] {
        &self.blocks
    }

    /// Encodes the section of terms.
    pub(crate) fn term_bytes(&self) -> Vec<u8> {
        section::from_floats(&self.terms)
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.blocks.len() + self.terms.len() * 4) as u64
    }

    /// Scans a range of blocks like [`scan`].
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "each is another thing that the inner loop needs")]
    pub(crate) fn scan(
        &self,
        shape: PqShape,
        blocks: std::ops::Range<usize>,
        table: &CostTable,
        base: f32,
        first_row: u32,
        top: &mut kernels::TopK,
        accept: impl Fn(u32) -> bool,
    ) {
        let codes =
            &self.blocks[blocks.start * shape.block_bytes()..blocks.end * shape.block_bytes()];
        let terms = &self.terms[blocks.start * BLOCK..blocks.end * BLOCK];
        scan(table, codes, terms, base, first_row, top, accept);
    }

    /// Prefetches the first blocks of a list. The processor prefetches the others itself.
    #[inline]
    pub(crate) fn prefetch(&self, shape: PqShape, block: usize) {
        let codes = &self.blocks[(block * shape.block_bytes()).min(self.blocks.len())..];
        kernels::prefetch(&codes[..codes.len().min(2048)]);
        let terms = &self.terms[(block * BLOCK).min(self.terms.len())..];
        kernels::prefetch(&terms[..terms.len().min(2 * BLOCK)]);
    }
}

/// Appends `vectors` minus `centre` to `out`.
pub(crate) fn subtract(vectors: &[f32], centre: &[f32], out: &mut Vec<f32>) {
    for vector in vectors.chunks_exact(centre.len()) {
        out.extend(vector.iter().zip(centre).map(|(value, middle)| value - middle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kmeans::RandomDraws;
    use kernels::TopK;

    #[test]
    fn costs_are_close_to_the_true_ones_for_any_shape() {
        for (dims, metric) in
            [(7, Metric::L2), (8, Metric::Dot), (300, Metric::L2), (1, Metric::L2)]
        {
            let mut draw = RandomDraws::new(dims as u64);
            let mut value = || draw.below(2000) as f32 / 1000.0 - 1.0;
            let vectors: Vec<f32> = (0..90 * dims).map(|_| 3.0 + value()).collect();
            let query: Vec<f32> = (0..dims).map(|_| 3.0 + value()).collect();
            let centre = vec![3.0; dims];
            let mut residuals = Vec::new();
            subtract(&vectors, &centre, &mut residuals);
            let shape = PqShape::new(dims);
            let books = Codebooks::train(&residuals, shape, BuildThreads::of(2), 5).unwrap();
            let codes = PqCodes::encode(&vectors, &centre, &books, metric);
            let mut table = CostTable::default();
            books.table(&query, metric, &mut table);
            let base = match metric {
                Metric::Dot => -float::dot(&query, &centre),
                _ => float::l2(&query, &centre),
            };
            let mut top = TopK::new(200);
            codes.scan(shape, 0..3, &table, base, 0, &mut top, |_| true);
            let found: Vec<(f32, u32)> = top.sorted().collect();
            assert_eq!(found.len(), 90);
            let mut off = 0.0;
            for (cost, row) in found {
                let vector = &vectors[row as usize * dims..][..dims];
                let truth = match metric {
                    Metric::Dot => -float::dot(&query, vector),
                    _ => float::l2(&query, vector),
                };
                off += (cost - truth).abs() / 90.0;
            }
            assert!(off < 0.45 * (dims as f32).sqrt(), "{dims}: {off}");
        }
    }

    #[test]
    fn sections_of_another_length_are_refused() {
        let shape = PqShape::new(6);
        let codes = vec![0; 2 * shape.block_bytes()];
        let terms = section::from_floats(&[0.0; 2 * BLOCK]);
        let open = |codes: &[u8], terms: &[u8], blocks| {
            PqCodes::open(codes.to_vec(), terms, blocks, shape)
        };
        assert!(open(&codes, &terms, 2).is_ok());
        assert!(open(&codes, &terms, 3).is_err());
        assert!(open(&codes, &terms[4..], 2).is_err());
        assert!(open(&codes[1..], &terms, 2).is_err());
        assert!(Codebooks::open(&[0; 12], shape).is_err());
    }
}
