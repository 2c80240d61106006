//! Comparison of all rows: for small segments and for the GPU, and the reference for other indexes.
//!
//! Rows are stored as bytes with a scale per row, or as bfloat16 if they are so few that better
//! scores cost nothing. Codes are compared tile by tile, and several queries per tile, so that each
//! code is loaded from memory once for all of them. The best few are compared exactly if the caller
//! has the vectors. If the errors of the codes can hide a better row, more rows are compared.

use std::borrow::Cow;
use std::sync::Arc;

use base::{Error, Result};
use half::bf16;
use kernels::{TopK, bfloat, float, integer};

use super::refine::inverse_length;
use super::trial::TrialQueries;
use super::{
    BuiltIndex, Coarse, CoarseHeader, CoarseHit, CoarseKind, CoarseRequest, CoarseScratch, Exact,
    HITS_MAX, LoadSection, Metric, Recall, ScanParams, StreamedBuild, check_query, device,
    keep_best, section, whole_queries,
};
use crate::RowSet;

/// Bytes of the codes in a tile: half of a level-2 cache.
const TILE_BYTES: usize = 256 * 1024;
/// Maximum number of queries compared per tile.
const QUERIES_MAX: usize = 16;
/// Maximum bytes of rows stored as bfloat16. A query scans them in a tenth of a millisecond.
const BFLOAT_BYTES_MAX: usize = 2 << 20;
/// If a filter allows less than one row in this many, its rows are compared one by one.
const ONE_BY_ONE: usize = 8;
/// Minimum candidates compared exactly beyond `k`.
const EXTRA_MIN: usize = 16;
/// Growth factor of the candidates of a query whose codes decide too little.
const KEPT_GROWTH: usize = 4;
/// Largest error of a value stored as bfloat16, as a share of the value: half a unit of its eight
/// significant bits.
const BFLOAT_ERROR: f64 = 1.0 / 256.0;
/// Largest error of a value stored as a byte, in units of its scale.
const BYTE_ERROR: f64 = 0.5;
/// Bound of the error of a product, in units of the root of the sum of the squared largest errors
/// of its parts. The errors of the parts are independent, so this is more than three standard
/// deviations.
const PRODUCT_ERRORS: f64 = 2.0;
/// Bound of the rounding error of a sum, as a share of the largest sum; far above the real error.
const ROUNDING: f64 = 1e-5;

/// Encoding of the codes (u32: 0 bytes, 1 bfloat16).
const CODING: u32 = section::FLAT_FIRST;
/// Codes, row by row.
const CODES: u32 = section::FLAT_FIRST + 1;
/// Scale of each row (f32); only for bytes.
const SCALES: u32 = section::FLAT_FIRST + 2;
/// Squared length of each row (f32).
const SQUARES: u32 = section::FLAT_FIRST + 3;

/// Encoding of the rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FlatCodes {
    /// Symmetric bytes and the scale of each row.
    Bytes {
        /// `rows * dims` codes.
        codes: Vec<i8>,
        /// Value of a code of 1, for each row.
        scales: Vec<f32>,
    },
    /// Upper halves of 32-bit floats: `rows * dims` values.
    Bfloat(Vec<bf16>),
}

/// Index that compares all rows.
#[derive(Clone, Debug)]
pub(crate) struct FlatIndex {
    metric: Metric,
    dims: usize,
    codes: FlatCodes,
    /// Squared lengths, for distances.
    squares: Vec<f32>,
    bounds: RowBounds,
    recall: Option<Recall>,
    /// Copy of the codes on a GPU, if the opened index was copied there.
    device: Option<Arc<gpu::DeviceRows>>,
}

/// Bounds of the values of all rows.
#[derive(Clone, Debug, Default)]
struct RowBounds {
    /// Largest magnitude in each dimension; empty for bytes.
    reach: Vec<f32>,
    /// Largest scale of a row of bytes.
    scale: f32,
    /// Largest squared length of a row.
    square: f32,
}

impl RowBounds {
    /// Returns the bounds of rows of `dims` values.
    fn of(codes: &FlatCodes, squares: &[f32], dims: usize) -> RowBounds {
        let largest = |values: &[f32]| values.iter().copied().fold(0.0, f32::max);
        let mut bounds = RowBounds { square: largest(squares), ..RowBounds::default() };
        match codes {
            FlatCodes::Bytes { scales, .. } => bounds.scale = largest(scales),
            FlatCodes::Bfloat(codes) => {
                bounds.reach.resize(dims, 0.0);
                for row in codes.chunks_exact(dims) {
                    for (reach, code) in bounds.reach.iter_mut().zip(row) {
                        *reach = reach.max(code.to_f32().abs());
                    }
                }
            }
        }
        bounds
    }
}

#[derive(Default)]
struct FlatScratch {
    /// Queries as compared, `dims` values each.
    queries: Vec<f32>,
    bytes: Vec<i8>,
    scales: Vec<f32>,
    tops: Vec<TopK>,
    integers: Vec<i32>,
    products: Vec<f32>,
    rows: Vec<u32>,
    scores: Vec<f32>,
}

/// Builds the index, with the rows in the order of their ids. A search keeps the first of equal
/// rows. If equal vectors compete for its last hits, it finds the smallest ids.
///
/// # Errors
/// The errors of the source.
pub(super) fn build(build: &StreamedBuild<'_>) -> Result<BuiltIndex> {
    let rows = build.vectors.rows();
    let mut order: Vec<u32> = (0..rows as u32).collect();
    order.sort_unstable_by_key(|row| build.vectors.id(*row));
    let mut places = vec![0; rows];
    for (place, row) in order.iter().enumerate() {
        places[*row as usize] = place;
    }
    let mut squares = vec![0.0; rows];
    let mut codes = FlatCodes::zeros(rows, build.dims);
    let mut left = &places[..];
    build.vectors.scan(&mut |vectors| {
        for vector in vectors.chunks_exact(build.dims) {
            let Some((place, rest)) = left.split_first() else {
                return Err(Error::internal("a source has more vectors than it says"));
            };
            codes.set(*place, vector);
            squares[*place] = float::dot(vector, vector);
            left = rest;
        }
        build.threads.check()
    })?;
    if !left.is_empty() {
        return Err(Error::internal("a source has fewer vectors than it says"));
    }
    let StreamedBuild { metric, dims, .. } = *build;
    let bounds = RowBounds::of(&codes, &squares, dims);
    let mut index = FlatIndex { metric, dims, codes, squares, bounds, recall: None, device: None };
    if let Some(trial) = TrialQueries::new(build, &order)? {
        index.recall = Some(Recall { points: vec![trial.recall(&index, 1)?] });
    }
    Ok(BuiltIndex { order, index: Box::new(index) })
}

impl FlatCodes {
    /// Creates codes of `rows` zero vectors, as bytes if they are many.
    fn zeros(rows: usize, dims: usize) -> FlatCodes {
        let values = rows * dims;
        if values > BFLOAT_BYTES_MAX / 2 {
            FlatCodes::Bytes { codes: vec![0; values], scales: vec![0.0; rows] }
        } else {
            FlatCodes::Bfloat(vec![bf16::ZERO; values])
        }
    }

    /// Encodes a vector as the row `row`, which exists.
    fn set(&mut self, row: usize, vector: &[f32]) {
        let values = row * vector.len()..(row + 1) * vector.len();
        match self {
            FlatCodes::Bfloat(codes) => {
                for (code, value) in codes[values].iter_mut().zip(vector) {
                    *code = bf16::from_f32(*value);
                }
            }
            FlatCodes::Bytes { codes, scales } => {
                scales[row] = integer::quantise(vector, &mut codes[values]);
            }
        }
    }
}

impl FlatIndex {
    /// Opens the index.
    ///
    /// # Errors
    /// `DataLoss` if a section is missing or does not match the others.
    pub(super) fn open(header: &CoarseHeader, find: LoadSection<'_>) -> Result<FlatIndex> {
        let coding = section::words(&find(CODING)?, 1)?.next();
        let bytes = find(CODES)?;
        let values = header.rows * header.dims;
        let codes = match coding {
            Some(0) if bytes.len() == values => FlatCodes::Bytes {
                // -128 has no positive counterpart. It is never written, and it is harmless to read
                // it as -127.
                codes: bytes.iter().map(|byte| (*byte as i8).max(integer::CODE_MIN)).collect(),
                scales: section::floats(&find(SCALES)?, header.rows)?,
            },
            Some(1) if bytes.len() == 2 * values => FlatCodes::Bfloat(
                bytes.as_chunks::<2>().0.iter().map(|bytes| bf16::from_le_bytes(*bytes)).collect(),
            ),
            _ => {
                return Err(Error::data_loss(
                    "the flat index's codes do not fit its header; build the segment again",
                ));
            }
        };
        let squares = section::floats(&find(SQUARES)?, header.rows)?;
        let metric = header.metric;
        let dims = header.dims;
        let recall = header.recall.clone();
        let bounds = RowBounds::of(&codes, &squares, dims);
        let device = upload(&codes, &squares, dims, metric);
        Ok(FlatIndex { metric, dims, codes, squares, bounds, recall, device })
    }

    fn tile_rows(&self) -> usize {
        let row = match self.codes {
            FlatCodes::Bytes { .. } => self.dims,
            FlatCodes::Bfloat(_) => 2 * self.dims,
        };
        (TILE_BYTES / row).max(1)
    }

    /// Scales and quantises the queries, and empties their lists of `kept` hits.
    fn prepare(&self, queries: &[f32], kept: usize, work: &mut FlatScratch) {
        let count = queries.len() / self.dims;
        work.queries.clear();
        for query in queries.chunks_exact(self.dims) {
            let scale = if self.metric == Metric::Cosine { inverse_length(query) } else { 1.0 };
            work.queries.extend(query.iter().map(|value| value * scale));
        }
        work.tops.resize_with(work.tops.len().max(count), TopK::default);
        work.tops[..count].iter_mut().for_each(|top| top.reset(kept));
        if let FlatCodes::Bytes { .. } = self.codes {
            work.bytes.resize(queries.len(), 0);
            work.scales.clear();
            let pairs =
                work.queries.chunks_exact(self.dims).zip(work.bytes.chunks_exact_mut(self.dims));
            work.scales.extend(pairs.map(|(query, bytes)| integer::quantise(query, bytes)));
        }
    }

    /// Computes the products of all prepared queries with some rows, query by query.
    fn products(&self, rows: std::ops::Range<usize>, work: &mut FlatScratch) {
        let dims = self.dims;
        let values = rows.start * self.dims..rows.end * self.dims;
        let count = work.queries.len() / dims;
        work.products.resize(count * rows.len(), 0.0);
        match &self.codes {
            FlatCodes::Bfloat(codes) => {
                bfloat::dot_block(&work.queries, &codes[values], dims, &mut work.products)
            }
            FlatCodes::Bytes { codes, scales } => {
                work.integers.resize(count * rows.len(), 0);
                integer::dot_block(&work.bytes, &codes[values], dims, &mut work.integers);
                scale_products(&work.integers, &work.scales, &scales[rows], &mut work.products);
            }
        }
    }

    /// Returns the cost, lower is nearer: minus the product, or the squared distance without the
    /// query's own part.
    fn cost(&self, row: usize, product: f32) -> f32 {
        if self.metric == Metric::L2 { self.squares[row] - 2.0 * product } else { -product }
    }

    /// Offers the allowed rows to the lists of the best rows of all prepared queries.
    fn rank(&self, rows: std::ops::Range<usize>, allow: Option<&RowSet>, work: &mut FlatScratch) {
        self.products(rows.clone(), work);
        for (products, top) in work.products.chunks_exact(rows.len()).zip(&mut work.tops) {
            for (row, product) in rows.clone().zip(products) {
                if allow.is_none_or(|allow| allow.contains(row as u32)) {
                    top.push(self.cost(row, *product), row as u32);
                }
            }
        }
    }

    /// Ranks on the GPU. Returns false if the CPU has to rank.
    fn rank_on_device(&self, kept: usize, allow: Option<&RowSet>, work: &mut FlatScratch) -> bool {
        self.device.as_ref().is_some_and(|rows| {
            let queries = gpu::Queries::Bytes { codes: &work.bytes, scales: &work.scales };
            device::rank(rows, &queries, kept, allow, &mut work.tops)
        })
    }

    /// Ranks all allowed rows for the prepared queries, on the GPU if it can. Ranks rows one by one
    /// if only few are allowed.
    fn rank_all(&self, kept: usize, allow: Option<&RowSet>, work: &mut FlatScratch) {
        let rows = self.squares.len();
        let few = allow.is_some_and(|allow| allow.count() as usize * ONE_BY_ONE < rows);
        if !few && self.rank_on_device(kept, allow, work) {
            return;
        }
        match allow {
            Some(allow) if few => {
                let allowed = allow.iter().take_while(|row| (*row as usize) < rows);
                allowed.for_each(|row| self.rank(row as usize..row as usize + 1, None, work));
            }
            _ => {
                let tile = self.tile_rows();
                (0..rows)
                    .step_by(tile)
                    .for_each(|start| self.rank(start..rows.min(start + tile), allow, work));
            }
        }
    }

    /// Returns a bound of the errors of a prepared query's costs, which few of them exceed.
    fn cost_error(&self, query: &[f32]) -> f64 {
        let squares = query.iter().map(|value| f64::from(*value) * f64::from(*value));
        let length = squares.sum::<f64>().sqrt();
        let square = f64::from(self.bounds.square);
        let error = match &self.codes {
            FlatCodes::Bfloat(_) => {
                let products = query.iter().zip(&self.bounds.reach);
                let products = products.map(|(value, reach)| f64::from(*value) * f64::from(*reach));
                BFLOAT_ERROR * products.map(|product| product * product).sum::<f64>().sqrt()
            }
            FlatCodes::Bytes { .. } => {
                let largest = query.iter().map(|value| value.abs()).fold(0.0, f32::max);
                let scale = f64::from(largest) / f64::from(i8::MAX);
                let of_row = f64::from(self.bounds.scale) * length;
                BYTE_ERROR * of_row.hypot(scale * square.sqrt())
            }
        };
        let error = PRODUCT_ERRORS * error + ROUNDING * length * square.sqrt();
        if self.metric == Metric::L2 { 2.0 * error + ROUNDING * square } else { error }
    }

    /// Returns the highest cost of a row that can be among the best `k` of query `at`. The codes
    /// give costs with errors. `None` if fewer rows are ranked.
    fn highest_cost(&self, at: usize, k: usize, work: &mut FlatScratch) -> Option<f64> {
        let error = self.cost_error(&work.queries[at * self.dims..(at + 1) * self.dims]);
        let (needed, _) = work.tops[at].sorted().nth(k.saturating_sub(1))?;
        Some(f64::from(needed) + 2.0 * error)
    }

    /// Returns true if a row that is not among the `kept` ranked rows of query `at` can be among
    /// its best `k`, because codes have errors. Returns false for an index of more than
    /// [`HITS_MAX`] rows, because the codes alone rank it.
    fn may_miss(&self, at: usize, k: usize, kept: usize, work: &mut FlatScratch) -> bool {
        let rows = self.squares.len();
        if kept >= rows || rows > HITS_MAX {
            return false;
        }
        let Some(highest) = self.highest_cost(at, k, work) else { return false };
        let ranked = work.tops[at].sorted();
        // With fewer, all allowed rows were kept.
        ranked.len() >= kept && ranked.last().is_some_and(|(cost, _)| f64::from(cost) <= highest)
    }

    /// Ranks one query again and keeps more than `kept` rows, until no other row can be among its
    /// best [`CoarseRequest::k`]. Then keeps only the rows that can be.
    fn rank_more(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        mut kept: usize,
        work: &mut FlatScratch,
    ) {
        loop {
            kept = kept.saturating_mul(KEPT_GROWTH).min(HITS_MAX);
            self.prepare(query, kept, work);
            self.rank_all(kept, request.allow, work);
            if !self.may_miss(0, request.k, kept, work) {
                break;
            }
        }
        let Some(highest) = self.highest_cost(0, request.k, work) else { return };
        let top = &mut work.tops[0];
        let can_be_best = |(cost, _): &(f32, u32)| f64::from(*cost) <= highest;
        let rows: Vec<(f32, u32)> = top.sorted().take_while(can_be_best).collect();
        top.reset(rows.len());
        rows.into_iter().for_each(|(cost, row)| top.push(cost, row));
    }

    /// Takes the ranked rows of query `at`, compares them exactly if possible, and returns the best
    /// `k`.
    fn finish(
        &self,
        query: &[f32],
        at: usize,
        k: usize,
        exact: Option<&dyn Exact>,
        work: &mut FlatScratch,
        out: &mut Vec<CoarseHit>,
    ) -> Result<()> {
        out.clear();
        let ranked = work.tops[at].sorted();
        if let Some(exact) = exact {
            work.rows.clear();
            work.rows.extend(ranked.map(|(_, row)| row));
            exact.scores(query, &work.rows, &mut work.scores)?;
            out.extend(
                work.rows
                    .iter()
                    .zip(&work.scores)
                    .map(|(row, score)| CoarseHit { row: *row, score: *score }),
            );
        } else {
            let own = if self.metric == Metric::L2 { float::dot(query, query) } else { 0.0 };
            out.extend(ranked.map(|(cost, row)| CoarseHit { row, score: -(cost + own) }));
        }
        keep_best(out, k, exact);
        Ok(())
    }
}

impl Coarse for FlatIndex {
    fn rows(&self) -> u32 {
        self.squares.len() as u32
    }

    fn dims(&self) -> usize {
        self.dims
    }

    fn metric(&self) -> Metric {
        self.metric
    }

    fn memory_bytes(&self) -> u64 {
        let codes = match &self.codes {
            FlatCodes::Bytes { codes, scales } => codes.len() + scales.len() * 4,
            FlatCodes::Bfloat(codes) => codes.len() * 2,
        };
        (codes + (self.squares.len() + self.bounds.reach.len()) * 4) as u64
    }

    fn search(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
        out: &mut Vec<CoarseHit>,
    ) -> Result<()> {
        out.clear();
        let CoarseRequest { k, allow, exact, .. } = *request;
        check_query(query, self.dims, k)?;
        if k == 0 {
            return Ok(());
        }
        let work = work_of(scratch);
        let kept = kept(k, &request.params, exact);
        self.prepare(query, kept, work);
        self.rank_all(kept, allow, work);
        if exact.is_some() && self.may_miss(0, k, kept, work) {
            self.rank_more(query, request, kept, work);
        }
        self.finish(query, 0, k, exact, work, out)
    }

    fn shares_scans(&self) -> bool {
        // Smaller codes stay in a core's cache from one query to the next.
        self.device.is_some() || self.memory_bytes() > TILE_BYTES as u64
    }

    fn search_many(
        &self,
        queries: &[f32],
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
        out: &mut Vec<Vec<CoarseHit>>,
    ) -> Result<()> {
        let CoarseRequest { k, allow, exact, .. } = *request;
        let count = whole_queries(queries, self.dims)?;
        out.clear();
        out.resize_with(count, Vec::new);
        queries.chunks_exact(self.dims).try_for_each(|query| check_query(query, self.dims, k))?;
        if k == 0 {
            return Ok(());
        }
        let work = work_of(scratch);
        let kept = kept(k, &request.params, exact);
        let together = if self.device.is_some() { device::QUERIES_MAX } else { QUERIES_MAX };
        for (queries, out) in queries.chunks(together * self.dims).zip(out.chunks_mut(together)) {
            self.prepare(queries, kept, work);
            self.rank_all(kept, allow, work);
            let mut again = Vec::new();
            for (at, (query, out)) in queries.chunks_exact(self.dims).zip(&mut *out).enumerate() {
                if exact.is_some() && self.may_miss(at, k, kept, work) {
                    again.push(at);
                } else {
                    self.finish(query, at, k, exact, work, out)?;
                }
            }
            for at in again {
                let query = &queries[at * self.dims..(at + 1) * self.dims];
                self.rank_more(query, request, kept, work);
                self.finish(query, 0, k, exact, work, &mut out[at])?;
            }
        }
        Ok(())
    }

    fn sections(&self) -> Vec<(u32, Cow<'_, [u8]>)> {
        let header = CoarseHeader {
            kind: CoarseKind::Flat,
            metric: self.metric,
            dims: self.dims,
            rows: self.squares.len(),
            recall: self.recall.clone(),
            is_relative: false,
        };
        let (coding, codes): (u32, Vec<u8>) = match &self.codes {
            FlatCodes::Bytes { codes, .. } => (0, codes.iter().map(|code| *code as u8).collect()),
            FlatCodes::Bfloat(codes) => {
                (1, codes.iter().flat_map(|code| code.to_le_bytes()).collect())
            }
        };
        let mut sections = vec![
            (section::HEADER, header.encode().into()),
            (CODING, coding.to_le_bytes().to_vec().into()),
            (CODES, codes.into()),
            (SQUARES, section::from_floats(&self.squares).into()),
        ];
        if let FlatCodes::Bytes { scales, .. } = &self.codes {
            sections.push((SCALES, section::from_floats(scales).into()));
        }
        sections
    }

    fn recall(&self) -> Option<Recall> {
        self.recall.clone()
    }
}

/// Copies the rows to a GPU if there is one and they are many.
fn upload(
    codes: &FlatCodes,
    squares: &[f32],
    dims: usize,
    metric: Metric,
) -> Option<Arc<gpu::DeviceRows>> {
    // Only few rows are stored as bfloat16.
    let FlatCodes::Bytes { codes, scales } = codes else { return None };
    let squares = (metric == Metric::L2).then_some(squares);
    device::upload(
        codes.len(),
        &gpu::Rows { dims, codes: gpu::Codes::Bytes { codes, scales }, squares },
    )
}

/// Converts the products of byte codes to products of values. Multiplies each by the scale of its
/// query and by the scale of its row. Both `integers` and `products` are query by query.
fn scale_products(
    integers: &[i32],
    query_scales: &[f32],
    row_scales: &[f32],
    products: &mut [f32],
) {
    let rows = row_scales.len();
    let queries = products.chunks_exact_mut(rows).zip(integers.chunks_exact(rows));
    for ((products, integers), query_scale) in queries.zip(query_scales) {
        for ((product, integer), row_scale) in products.iter_mut().zip(integers).zip(row_scales) {
            *product = *integer as f32 * query_scale * row_scale;
        }
    }
}

/// Returns the number of candidates to keep: `k`, or by default at least `2 * k` if they are
/// compared exactly.
fn kept(k: usize, params: &ScanParams, exact: Option<&dyn Exact>) -> usize {
    match (exact, params.refine) {
        (None, _) => k,
        (Some(_), 0) => k + k.max(EXTRA_MIN),
        (Some(_), requested) => requested.max(k),
    }
}

/// Returns the working memory of this index. Replaces the memory of another kind of index.
fn work_of(scratch: &mut CoarseScratch) -> &mut FlatScratch {
    if !scratch.other.as_ref().is_some_and(|other| other.is::<FlatScratch>()) {
        scratch.other = Some(Box::new(FlatScratch::default()));
    }
    // Set by the line above.
    match scratch.other.as_mut().and_then(|other| other.downcast_mut::<FlatScratch>()) {
        Some(work) => work,
        None => unreachable!("working memory was just put in"),
    }
}
