//! The coarse filter: embeddings are ranked by codes that lie in memory.
//!
//! [`build`] takes vectors and gives an index together with the order in which it wants its rows: neighbours in the
//! coarse clustering lie side by side, so that whatever else is stored for a row (its exact vector, its record) can
//! be laid out the same way and one read serves several candidates. From then on the index speaks new rows.
//!
//! An index is sealed: it never changes after it was built, and [`open`] gives the same answers from its sections
//! as the one that was built. What is deleted or filtered comes in as a set of allowed rows.
//!
//! What an index stores is lossy. Where the caller has the vectors themselves it passes them as [`Exact`], and the
//! last few candidates are scored with them; without, scores are those of the finest codes the index has. Vectors are dear to
//! read, so bounds on what a row can score decide which are.

mod build_threads;
pub mod device;
mod flat;
mod header;
mod ivf;
pub mod kmeans;
pub mod pq;
mod rabitq;
pub mod refine;
mod trial;
mod tune;

use std::borrow::Cow;
use std::cmp::Ordering;

use base::{Error, Result};

pub use build_threads::BuildThreads;
pub use flat::{FlatCodes, FlatIndex};
pub use header::{CoarseHeader, section};
pub use ivf::{IvfPq, IvfScratch};
pub use rabitq::Rabitq;
pub use refine::DenseVectors;
pub use tune::{Recall, RecallPoint};

use crate::filter::RowSet;

/// Dimensions of a vector at most: what embedding models give stays below 4,096.
pub const DIMS_MAX: usize = 4096;
/// Rows of one index at most, so that a row number and a few flags fit 32 bits.
pub const ROWS_MAX: usize = 1 << 30;
/// Hits that one search may ask for at most.
pub const HITS_MAX: usize = 16_384;
/// Below this many rows [`CoarseKind::Auto`] compares exactly: clustering would cost more than it saves.
const FLAT_ROWS: usize = 2048;
/// From this many dimensions on [`CoarseKind::Auto`] takes one-bit codes: their error shrinks with the square root of the
/// dimensions (Gao and Long, "RaBitQ", SIGMOD 2024), and below it product quantisation is better.
const RABITQ_DIMS: usize = 384;

/// What "alike" means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// The cosine of the angle between two vectors; a zero vector has cosine 0 to everything.
    Cosine,
    /// The inner product.
    Dot,
    /// Minus the squared Euclidean distance.
    L2,
}

/// A row that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoarseHit {
    /// The row, in the index's own order.
    pub row: u32,
    /// Higher is more alike: the cosine, the inner product, or minus the squared distance.
    pub score: f32,
}

/// What an index is built from.
#[derive(Clone, Copy, Debug)]
pub struct CoarseBuild<'a> {
    /// `rows * dims` values, row by row.
    pub vectors: &'a [f32],
    /// Values of one vector.
    pub dims: usize,
    /// What alike means.
    pub metric: Metric,
    /// Who builds it.
    pub crew: BuildThreads<'a>,
    /// The same vectors, settings and seed give the same index, with any number of threads.
    pub seed: u64,
}

impl CoarseBuild<'_> {
    /// The number of rows, after every value was looked at.
    ///
    /// # Errors
    /// `InvalidArgument` where the sizes do not fit together or a value is not a finite number.
    pub fn check(&self) -> Result<usize> {
        if self.dims == 0 || self.dims > DIMS_MAX || self.crew.threads == 0 {
            return Err(Error::invalid(format!(
                "an index needs 1 to {DIMS_MAX} dimensions and at least one thread, not {} and {}",
                self.dims, self.crew.threads
            )));
        }
        let rows = self.vectors.len() / self.dims;
        if rows * self.dims != self.vectors.len() || rows > ROWS_MAX {
            return Err(Error::invalid(format!(
                "{} values are not whole vectors of {} dimensions, {ROWS_MAX} at most",
                self.vectors.len(),
                self.dims
            )));
        }
        if let Some(at) = self.vectors.iter().position(|value| !value.is_finite()) {
            return Err(Error::invalid(format!(
                "vector {} has a value that is not a finite number at dimension {}; leave it out or mend it",
                at / self.dims,
                at % self.dims
            )));
        }
        Ok(rows)
    }
}

/// An index and the order it gave its rows.
pub struct BuiltIndex {
    /// `order[new row]` is the row of the input; a permutation, laid out by coarse cluster.
    pub order: Vec<u32>,
    /// Speaks new rows.
    pub index: Box<dyn Coarse>,
}

/// How hard a search shall look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanParams {
    /// Clusters to look into; 0: what the index found best when it was built.
    pub probes: usize,
    /// Candidates that are compared with finer codes or exactly; 0: what the index found best.
    pub refine: usize,
}

/// What one search wants.
#[derive(Clone, Copy)]
pub struct CoarseRequest<'a> {
    /// Rows to find.
    pub k: usize,
    /// How hard to look.
    pub params: ScanParams,
    /// The rows that may be found; all, where there is no filter.
    pub allow: Option<&'a RowSet>,
    /// What gives exact scores; without, they are those of the finest codes.
    pub exact: Option<&'a dyn Exact>,
    /// What a hit has to score to be of use, as so many are that good already elsewhere. Rows that cannot are left out
    /// before their exact scores are asked for, where an index has bounds.
    pub floor: f32,
}

impl<'a> CoarseRequest<'a> {
    /// The best `k` of all rows, by codes alone, looking as hard as the index found best.
    pub fn best(k: usize) -> CoarseRequest<'a> {
        CoarseRequest { k, params: ScanParams::default(), allow: None, exact: None, floor: f32::NEG_INFINITY }
    }
}

/// Working memory of one searching thread, reused from query to query so that a search allocates nothing.
#[derive(Default)]
pub struct CoarseScratch {
    /// What the inverted lists with product quantisation need.
    pub ivf: IvfScratch,
    /// The query as the metric wants it.
    pub query: Vec<f32>,
    /// Rows and scores on their way.
    pub rows: Vec<u32>,
    /// Scores that belong to `rows`.
    pub scores: Vec<f32>,
    /// Whatever another kind of index wants to keep; it puts in what it needs when it first sees the scratch.
    pub other: Option<Box<dyn std::any::Any + Send>>,
}

/// Exact scores of rows: vectors in memory, or read from a medium.
pub trait Exact {
    /// Puts the exact score of each of `rows` into `out` (cleared first), in their order; higher is more alike, as
    /// in [`CoarseHit::score`].
    ///
    /// # Errors
    /// Where a row is not there or its vector cannot be read.
    fn scores(&self, query: &[f32], rows: &[u32], out: &mut Vec<f32>) -> Result<()>;
}

/// An index over embeddings, sealed.
pub trait Coarse: Send + Sync {
    /// Rows it holds.
    fn rows(&self) -> u32;

    /// Values of a vector.
    fn dims(&self) -> usize;

    /// What alike means.
    fn metric(&self) -> Metric;

    /// Bytes of memory it holds.
    fn memory_bytes(&self) -> u64;

    /// The best rows that may be found into `out` (cleared first), best first, equal scores by row; fewer than
    /// [`CoarseRequest::k`] where fewer may be found.
    ///
    /// # Errors
    /// `InvalidArgument` where the query has other dimensions or a value that is not a finite number, or [`CoarseRequest::k`] is
    /// over [`HITS_MAX`]; what [`CoarseRequest::exact`] returns.
    fn search(
        &self,
        query: &[f32],
        ask: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
        out: &mut Vec<CoarseHit>,
    ) -> Result<()>;

    /// [`Coarse::search`] for several queries, `dims` values each; `out` gets one list a query. An index overrides
    /// this where going through its codes once for several queries pays.
    ///
    /// # Errors
    /// As [`Coarse::search`].
    fn search_many(
        &self,
        queries: &[f32],
        ask: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
        out: &mut Vec<Vec<CoarseHit>>,
    ) -> Result<()> {
        let count = whole_queries(queries, self.dims())?;
        out.resize_with(count, Vec::new);
        for (query, hits) in queries.chunks_exact(self.dims()).zip(out.iter_mut()) {
            self.search(query, ask, scratch, hits)?;
        }
        Ok(())
    }

    /// What is to be stored: section kinds (constants in [`section`]) and their bytes.
    fn sections(&self) -> Vec<(u32, Cow<'_, [u8]>)>;

    /// What was measured when it was built.
    fn recall(&self) -> Option<Recall>;
}

/// Which index to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoarseKind {
    /// Chosen by rows and dimensions.
    Auto,
    /// Inverted lists with 4-bit product quantisation.
    IvfPq,
    /// Inverted lists with one-bit codes and error bounds.
    Rabitq,
    /// Every row is compared.
    Flat,
}

impl CoarseKind {
    /// What [`CoarseKind::Auto`] means for this many rows of this many dimensions.
    pub fn resolved(self, rows: usize, dims: usize) -> CoarseKind {
        match self {
            CoarseKind::Auto if rows < FLAT_ROWS => CoarseKind::Flat,
            CoarseKind::Auto if dims >= RABITQ_DIMS => CoarseKind::Rabitq,
            CoarseKind::Auto => CoarseKind::IvfPq,
            chosen => chosen,
        }
    }
}

/// The squared length of a vector up to which every index works. Beyond it, products of vectors and squares of differences
/// come near the largest number that there is.
pub const SQUARE_MAX: f32 = 1e36;

/// Builds an index.
///
/// # Errors
/// What [`CoarseBuild::check`] refuses.
pub fn build(kind: CoarseKind, build: &CoarseBuild) -> Result<BuiltIndex> {
    let rows = build.check()?;
    // What the GPU takes is compared whole; where it is gone later, the processor does that.
    let flat = kind == CoarseKind::Auto && (device::takes(rows, build.dims) || is_extreme(build));
    let kind = if flat { CoarseKind::Flat } else { kind };
    match kind.resolved(rows, build.dims) {
        CoarseKind::IvfPq | CoarseKind::Auto => ivf::build(build),
        CoarseKind::Rabitq => rabitq::build(build),
        CoarseKind::Flat => flat::build(build),
    }
}

/// Whether a vector is so long that inverted lists cannot be made: such ones are refused today, but were not always.
fn is_extreme(build: &CoarseBuild) -> bool {
    let long = |vector: &[f32]| {
        kernels::float::dot(vector, vector).partial_cmp(&SQUARE_MAX).is_none_or(Ordering::is_gt)
    };
    build.metric != Metric::Cosine && build.vectors.chunks_exact(build.dims).any(long)
}

/// Opens an index from the sections that [`Coarse::sections`] gave. Every length is checked: the bytes come from
/// outside.
///
/// # Errors
/// `DataLoss` where a section is missing or is not what it should be.
pub fn open(sections: &[(u32, &[u8])]) -> Result<Box<dyn Coarse>> {
    let header = CoarseHeader::decode(section::find(sections, section::HEADER)?)?;
    match header.kind {
        CoarseKind::IvfPq | CoarseKind::Auto => Ok(Box::new(IvfPq::open(&header, sections)?)),
        CoarseKind::Rabitq => Ok(Box::new(Rabitq::open(&header, sections)?)),
        CoarseKind::Flat => Ok(Box::new(FlatIndex::open(&header, sections)?)),
    }
}

/// How many queries `queries` holds.
///
/// # Errors
/// `InvalidArgument` where they are not whole.
pub fn whole_queries(queries: &[f32], dims: usize) -> Result<usize> {
    match queries.len() % dims.max(1) {
        0 => Ok(queries.len() / dims.max(1)),
        _ => Err(Error::invalid(format!(
            "{} values are not whole queries of {dims} dimensions",
            queries.len()
        ))),
    }
}

/// Checks one query and how much it asks for.
///
/// # Errors
/// `InvalidArgument`, as [`Coarse::search`] says.
pub fn check_query(query: &[f32], dims: usize, k: usize) -> Result<()> {
    if query.len() != dims {
        return Err(Error::invalid(format!("the query has {} dimensions, the index {dims}", query.len())));
    }
    if k > HITS_MAX {
        return Err(Error::invalid(format!("{k} hits are more than {HITS_MAX}, the most one search gives")));
    }
    match query.iter().position(|value| !value.is_finite()) {
        Some(at) => {
            Err(Error::invalid(format!("the query's value at dimension {at} is not a finite number")))
        }
        None => Ok(()),
    }
}
