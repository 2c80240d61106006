//! The coarse filter: ranks embeddings by codes that lie in memory or on a medium.
//!
//! [`build`] takes vectors and returns an index and its order of rows. Rows of one cluster are
//! neighbours. The other data of a row (exact vector, record) can be stored in the same order, so
//! one read serves several candidates. From then on the index uses the new row numbers.
//!
//! An index never changes after it was built, and [`open`] returns an equal one from its sections.
//! Deletes and filters are passed as a set of allowed rows.
//!
//! The codes are lossy. If the caller has the vectors, it passes them as [`Exact`] and the last few
//! candidates are scored with them. Otherwise scores are those of the finest codes. Vectors are
//! expensive to read, so bounds on the scores decide which are read.
//!
//! # Modules
//! * Kinds of indexes: `flat` compares all rows, on a GPU with `device`. `ivf` has lists with codes
//!   of `pq`, `rabitq` lists with one-bit codes. `refine` has finer codes and exact vectors.
//! * Builds: `source` has the vectors, `build_threads` the threads, `kmeans` clusters rows. `tune`
//!   measures the recall with the queries of `trial`. `header` has the kinds of stored sections.
//! * Searches: `row_set` has the allowed rows, `widen` selects lists for them, `parted` divides
//!   lists among threads with `parts`, and `medium` reads codes that are not in memory.

mod build_threads;
pub mod device;
mod flat;
mod header;
mod ivf;
mod kmeans;
mod medium;
mod parted;
pub mod parts;
mod pq;
mod rabitq;
mod refine;
mod row_set;
mod source;
mod trial;
mod tune;
mod widen;

use std::borrow::Cow;

use base::{Error, Result};
use serde::{Deserialize, Serialize};

pub use build_threads::BuildThreads;
use flat::FlatIndex;
pub use header::{CoarseHeader, section};
use ivf::{IvfPq, IvfScratch};
use kmeans::RandomDraws;
pub use medium::{CodeBlock, CodeRange, ReadCodes, SectionBytes};
pub use parted::{PartedScan, ScanHelpers};
use rabitq::Rabitq;
pub use rabitq::RabitqCandidate;
pub use refine::DenseVectors;
pub use row_set::{RowAdder, RowSet};
pub use source::{BuildVectors, StreamedBuild, build_bytes};
use source::{SliceVectors, UnitVectors, VectorProfile, not_finite};
pub use tune::{Recall, RecallPoint};

/// Maximum dimensions of a vector. Embedding models stay below 4,096.
pub const DIMS_MAX: usize = 4096;
/// Maximum rows of one index: a row number and a few flags fit 32 bits.
pub const ROWS_MAX: usize = 1 << 30;
/// Maximum hits of one search.
pub const HITS_MAX: usize = 16_384;
/// Rows below which [`CoarseKind::Auto`] compares all rows; clustering would cost more than it
/// saves.
const FLAT_ROWS: usize = 2048;
/// Dimensions from which [`CoarseKind::Auto`] uses one-bit codes. Their error shrinks with the
/// square root of the dimensions (Gao and Long, "RaBitQ", SIGMOD 2024). For fewer dimensions,
/// product quantisation is better.
const RABITQ_DIMS: usize = 384;
/// Number of dimensions from which [`CoarseKind::Auto`] uses one-bit codes for vectors with a long
/// mean, but not for inner products. They need no more memory than product quantisation from here
/// on.
const LONG_MEAN_DIMS: usize = 96;

/// Measure of similarity; in JSON `cosine`, `dot` or `l2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Cosine of the angle between two vectors; a zero vector has cosine 0 to everything.
    Cosine,
    /// Inner product.
    Dot,
    /// Minus the squared Euclidean distance.
    L2,
}

impl Metric {
    /// Returns the number of the metric in binary formats.
    pub fn code(self) -> u8 {
        match self {
            Metric::Cosine => 0,
            Metric::Dot => 1,
            Metric::L2 => 2,
        }
    }

    /// Returns the metric of a number; `None` for an unknown one.
    pub fn from_code(code: u32) -> Option<Metric> {
        [Metric::Cosine, Metric::Dot, Metric::L2].get(code as usize).copied()
    }
}

/// Row that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoarseHit {
    /// Row number in the order of the index.
    pub row: u32,
    /// Score, higher is more similar: the cosine, the inner product, or minus the squared distance.
    pub score: f32,
}

/// Vectors and settings for the build of an index.
#[derive(Clone, Copy, Debug)]
pub struct CoarseBuild<'a> {
    /// `rows * dims` values, row by row.
    pub vectors: &'a [f32],
    /// Number of values per vector.
    pub dims: usize,
    /// Measure of similarity.
    pub metric: Metric,
    /// Threads that build, and their cancellation.
    pub threads: BuildThreads<'a>,
    /// Seed. Equal vectors, settings and seed give equal indexes, with any number of threads.
    pub seed: u64,
}

impl CoarseBuild<'_> {
    /// Checks every value and returns the number of rows.
    ///
    /// # Errors
    /// `InvalidArgument` if the sizes do not match or a value is not finite.
    pub fn check(&self) -> Result<usize> {
        if self.dims == 0 || self.dims > DIMS_MAX || self.threads.count == 0 {
            return Err(Error::invalid(format!(
                "an index needs 1 to {DIMS_MAX} dimensions and at least one thread, not {} and {}",
                self.dims, self.threads.count
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
            return Err(not_finite(at / self.dims, at % self.dims));
        }
        Ok(rows)
    }

    /// Returns the same build from a source.
    fn streamed<'a>(&'a self, vectors: &'a dyn BuildVectors) -> StreamedBuild<'a> {
        let CoarseBuild { dims, metric, threads, seed, .. } = *self;
        StreamedBuild { vectors, dims, metric, threads, seed }
    }
}

/// New index and its order of rows.
pub struct BuiltIndex {
    /// `order[new row]` is the input row: a permutation, by coarse cluster, then by id
    /// ([`BuildVectors::id`]).
    pub order: Vec<u32>,
    /// Index over the new rows.
    pub index: Box<dyn Coarse>,
}

/// Effort of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanParams {
    /// Clusters to scan; 0 for the number measured when the index was built.
    pub probes: usize,
    /// Candidates to compare with finer codes or exactly; 0 for the measured number.
    pub refine: usize,
}

impl ScanParams {
    /// Effort of a search that misses no row: all clusters, and bounds of errors that practically
    /// always hold. In a segment with product quantisation and more than 65,536 allowed rows, it
    /// compares only the 65,536 rows with the best looked-up sums.
    pub const EXACT: ScanParams = ScanParams { probes: usize::MAX, refine: HITS_MAX };

    /// Returns true if the search scans every cluster, as [`ScanParams::EXACT`] does.
    pub(crate) fn wants_all(self) -> bool {
        self.probes == usize::MAX
    }
}

/// Request to an index.
#[derive(Clone, Copy)]
pub struct CoarseRequest<'a> {
    /// Number of rows to find.
    pub k: usize,
    /// Effort.
    pub params: ScanParams,
    /// Rows that may be found; all if `None`.
    pub allow: Option<&'a RowSet>,
    /// Source of exact scores. If `None`, scores are those of the finest codes.
    pub exact: Option<&'a dyn Exact>,
    /// Lowest useful score, because enough better rows are known. An index with bounds skips rows
    /// below it before it reads their exact scores.
    pub floor: f32,
    /// Threads that may scan a part of the lists. The result does not depend on them.
    pub helpers: Option<&'a dyn ScanHelpers>,
    /// Reader of codes, which indexes on a medium need.
    pub codes: Option<&'a dyn ReadCodes>,
}

impl<'a> CoarseRequest<'a> {
    /// Creates a request for the best `k` of all rows, by codes alone, with the measured effort.
    pub fn best(k: usize) -> CoarseRequest<'a> {
        CoarseRequest {
            k,
            params: ScanParams::default(),
            allow: None,
            exact: None,
            floor: f32::NEG_INFINITY,
            helpers: None,
            codes: None,
        }
    }
}

/// Working memory of one search thread, reused so that a search allocates nothing.
#[derive(Default)]
pub struct CoarseScratch {
    /// Memory of [`IvfPq`].
    pub(crate) ivf: IvfScratch,
    /// Query as the metric compares it.
    pub(crate) query: Vec<f32>,
    /// Rows being ranked.
    pub(crate) rows: Vec<u32>,
    /// Scores of `rows`.
    pub(crate) scores: Vec<f32>,
    /// Memory of another kind of index, which creates it on first use.
    pub(crate) other: Option<Box<dyn std::any::Any + Send>>,
}

/// Exact scores of rows, from vectors in memory or on a medium.
pub trait Exact {
    /// Writes the exact score of each of `rows` to `out` (cleared first), in their order, as in
    /// [`CoarseHit::score`].
    ///
    /// # Errors
    /// An error if a row does not exist or its vector cannot be read.
    fn scores(&self, query: &[f32], rows: &[u32], out: &mut Vec<f32>) -> Result<()>;

    /// Returns the id of a row, by which rows with equal scores are ordered. A source without ids
    /// has its row numbers.
    fn id(&self, row: u32) -> u64 {
        u64::from(row)
    }
}

/// Keeps the `k` best hits, best first, equal scores by [`Exact::id`], or by row without exact
/// scores.
fn keep_best(hits: &mut Vec<CoarseHit>, k: usize, exact: Option<&dyn Exact>) {
    let id = |hit: &CoarseHit| exact.map_or(u64::from(hit.row), |exact| exact.id(hit.row));
    let by_score = |one: &CoarseHit, other: &CoarseHit| {
        // Adding zero turns -0 into 0, so that the two are equal here as well.
        let order = (other.score + 0.0).total_cmp(&(one.score + 0.0));
        order.then_with(|| id(one).cmp(&id(other)))
    };
    if hits.len() > k {
        hits.select_nth_unstable_by(k, by_score);
        hits.truncate(k);
    }
    hits.sort_unstable_by(by_score);
}

/// Immutable index over embeddings.
pub trait Coarse: Send + Sync {
    /// Returns the number of rows.
    fn rows(&self) -> u32;

    /// Returns the values per vector.
    fn dims(&self) -> usize;

    /// Returns the measure of similarity.
    fn metric(&self) -> Metric;

    /// Returns the memory in use, in bytes.
    fn memory_bytes(&self) -> u64;

    /// Writes the best allowed rows to `out` (cleared first), best first, equal scores by
    /// [`Exact::id`], or by row without exact scores. These are fewer than [`CoarseRequest::k`] if
    /// fewer are allowed.
    ///
    /// # Errors
    /// `InvalidArgument` if the query has other dimensions or a value that is not finite, or if
    /// [`CoarseRequest::k`] exceeds [`HITS_MAX`]; the error of [`CoarseRequest::exact`].
    fn search(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
        out: &mut Vec<CoarseHit>,
    ) -> Result<()>;

    /// Scans parts of a search that another thread of this index offered, until none is left or
    /// `leave` returns true. Of `request` it uses the allowed rows, which are those of the search,
    /// and this thread's reader of codes. Returns the number of parts.
    fn scan_parts(
        &self,
        scan: &PartedScan,
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
        leave: &dyn Fn() -> bool,
    ) -> usize {
        let _ = (scan, request, scratch, leave);
        0
    }

    /// Returns true if [`CoarseRequest::floor`] never changes whether a row with a higher score is
    /// found. Otherwise a search with exact scores has two steps that can run on different threads.
    /// [`Coarse::candidates`] does not depend on the floor, and [`Coarse::compare`] does.
    fn floor_is_exact(&self) -> bool {
        true
    }

    /// Returns the rows to compare exactly, best first. This is the first step of
    /// [`Coarse::search`].
    ///
    /// # Errors
    /// As [`Coarse::search`].
    fn candidates(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
    ) -> Result<Vec<RabitqCandidate>> {
        let _ = (query, request, scratch);
        Ok(Vec::new())
    }

    /// Compares [`Coarse::candidates`] exactly. This is the second step of [`Coarse::search`].
    ///
    /// # Errors
    /// As [`Coarse::search`].
    fn compare(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        candidates: &[RabitqCandidate],
        scratch: &mut CoarseScratch,
        out: &mut Vec<CoarseHit>,
    ) -> Result<()> {
        let _ = candidates;
        self.search(query, request, scratch, out)
    }

    /// Writes the rows that [`Coarse::search`] would compare exactly to `out` (cleared first),
    /// highest score first. Scores are upper bounds of exact scores. Returns false, and writes
    /// nothing, if the index has no bounds: then [`Coarse::search`] finds the best rows.
    ///
    /// # Errors
    /// As [`Coarse::search`].
    fn bounds(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
        out: &mut Vec<CoarseHit>,
    ) -> Result<bool> {
        let _ = (query, request, scratch);
        out.clear();
        Ok(false)
    }

    /// Returns true if [`Coarse::search_many`] is cheaper than the searches one by one.
    fn shares_scans(&self) -> bool {
        false
    }

    /// Runs [`Coarse::search`] for several queries of `dims` values each. `out` gets one list per
    /// query. An index overrides this if one pass over its codes can serve several queries.
    ///
    /// # Errors
    /// As [`Coarse::search`].
    fn search_many(
        &self,
        queries: &[f32],
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
        out: &mut Vec<Vec<CoarseHit>>,
    ) -> Result<()> {
        let count = whole_queries(queries, self.dims())?;
        out.resize_with(count, Vec::new);
        for (query, hits) in queries.chunks_exact(self.dims()).zip(out.iter_mut()) {
            self.search(query, request, scratch, hits)?;
        }
        Ok(())
    }

    /// Returns the sections to store: kinds (constants in [`section`]) and bytes. Sections that an
    /// index has on a medium are empty.
    fn sections(&self) -> Vec<(u32, Cow<'_, [u8]>)>;

    /// Returns the recall measured when it was built.
    fn recall(&self) -> Option<Recall>;
}

/// Kind of index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoarseKind {
    /// Chosen by rows and dimensions.
    Auto,
    /// Inverted lists with 4-bit product quantisation.
    IvfPq,
    /// Inverted lists with one-bit codes and error bounds.
    Rabitq,
    /// Comparison of all rows.
    Flat,
}

impl CoarseKind {
    /// Resolves [`CoarseKind::Auto`] for `rows` rows of `dims` dimensions.
    pub fn resolved(self, rows: usize, dims: usize) -> CoarseKind {
        match self {
            CoarseKind::Auto if rows < FLAT_ROWS => CoarseKind::Flat,
            CoarseKind::Auto if dims >= RABITQ_DIMS => CoarseKind::Rabitq,
            CoarseKind::Auto => CoarseKind::IvfPq,
            chosen => chosen,
        }
    }
}

/// Maximum squared length of a vector for every index. Beyond it, products of vectors and squared
/// differences come close to the largest float.
pub const SQUARE_MAX: f32 = 1e36;

/// Builds an index.
///
/// # Errors
/// As [`CoarseBuild::check`].
pub fn build(kind: CoarseKind, build: &CoarseBuild) -> Result<BuiltIndex> {
    build.check()?;
    let vectors = SliceVectors { values: build.vectors, dims: build.dims };
    build_streamed(kind, &build.streamed(&vectors))
}

/// Builds an index from vectors that are read in passes. Memory grows with the bytes of the index
/// ([`StreamedBuild`]), not with the bytes of the vectors.
///
/// # Errors
/// As [`build()`]; the errors of the source.
pub fn build_streamed(kind: CoarseKind, build: &StreamedBuild<'_>) -> Result<BuiltIndex> {
    let rows = build.check()?;
    let unit = UnitVectors { vectors: build.vectors, dims: build.dims };
    let vectors: &dyn BuildVectors =
        if build.metric == Metric::Cosine { &unit } else { build.vectors };
    let build = &StreamedBuild { vectors, ..*build };
    let profile = VectorProfile::of(build.vectors, build.dims)?;
    let is_long = profile.has_long_mean();
    let kind = match kind {
        // Vectors that are too long for inverted lists are refused today, but old collections may
        // have some.
        CoarseKind::Auto if profile.extreme => CoarseKind::Flat,
        // The order of inner products depends on the common part of all vectors, and not only on
        // their differences. Product quantisation without a mean was measured for it, one-bit codes
        // were not.
        CoarseKind::Auto
            if is_long
                && build.metric != Metric::Dot
                && rows >= FLAT_ROWS
                && build.dims >= LONG_MEAN_DIMS =>
        {
            CoarseKind::Rabitq
        }
        // The GPU compares all rows; without a GPU later, the CPU compares them.
        CoarseKind::Auto if !is_long && device::has_room_for(rows, build.dims) => CoarseKind::Flat,
        other => other,
    };
    match kind.resolved(rows, build.dims) {
        CoarseKind::IvfPq | CoarseKind::Auto => ivf::build(build, &profile),
        CoarseKind::Rabitq => rabitq::build(build, &profile),
        CoarseKind::Flat => flat::build(build),
    }
}

/// Returns true if an index over `rows` rows is one that compares all rows. With a GPU, it is
/// another one if the vectors have a long mean.
pub fn compares_all(kind: CoarseKind, rows: u64, dims: usize) -> bool {
    let rows = usize::try_from(rows).unwrap_or(usize::MAX);
    kind.resolved(rows, dims) == CoarseKind::Flat
        || kind == CoarseKind::Auto && device::has_room_for(rows, dims)
}

/// Returns an upper bound of the bytes of an index over `rows` rows, without its centres.
pub fn index_bytes(kind: CoarseKind, rows: u64, dims: usize) -> u64 {
    let row = match kind.resolved(usize::try_from(rows).unwrap_or(usize::MAX), dims) {
        CoarseKind::Rabitq => rabitq::row_bytes(dims),
        CoarseKind::IvfPq | CoarseKind::Auto => {
            dims + pq::PqShape::new(dims).block_bytes() / kernels::pq::BLOCK + 8
        }
        CoarseKind::Flat => dims.max(1) + 8,
    };
    // Lists end in incomplete blocks.
    rows * row as u64 + rows * row as u64 / 16
}

/// Opens an index from the sections of [`Coarse::sections`]. Checks every length, because the bytes
/// are untrusted.
///
/// # Errors
/// `DataLoss` if a section is missing or invalid.
pub fn open(sections: &[(u32, &[u8])]) -> Result<Box<dyn Coarse>> {
    open_with(&|kind| section::find(sections, kind).map(Cow::Borrowed))
}

/// Function that returns the bytes of a section.
pub type LoadSection<'a> = &'a dyn Fn(u32) -> Result<Cow<'a, [u8]>>;

/// Opens an index like [`open`], and loads one section after the other, so that at most one of them
/// is in memory twice.
///
/// # Errors
/// As [`open`]; the errors of `find`.
pub fn open_with(find: LoadSection<'_>) -> Result<Box<dyn Coarse>> {
    let header = CoarseHeader::decode(&find(section::HEADER)?)?;
    match header.kind {
        CoarseKind::IvfPq | CoarseKind::Auto => Ok(Box::new(IvfPq::open(&header, find)?)),
        CoarseKind::Rabitq => Ok(Box::new(Rabitq::open(&header, find)?)),
        CoarseKind::Flat => Ok(Box::new(FlatIndex::open(&header, find)?)),
    }
}

/// Opens an index whose codes stay on the medium. `find` is not called for their sections, and
/// searches read them ([`CoarseRequest::codes`]). An index without lists is read whole.
///
/// # Errors
/// As [`open_with`]; the errors of `bytes_of`.
pub fn open_on_medium(
    find: LoadSection<'_>,
    bytes_of: SectionBytes<'_>,
) -> Result<Box<dyn Coarse>> {
    let header = CoarseHeader::decode(&find(section::HEADER)?)?;
    match header.kind {
        CoarseKind::IvfPq | CoarseKind::Auto => {
            Ok(Box::new(IvfPq::open_on_medium(&header, find, bytes_of)?))
        }
        CoarseKind::Rabitq => Ok(Box::new(Rabitq::open_on_medium(&header, find, bytes_of)?)),
        CoarseKind::Flat => Ok(Box::new(FlatIndex::open(&header, find)?)),
    }
}

/// Counts the queries in `queries`.
///
/// # Errors
/// `InvalidArgument` if the last one is incomplete.
pub(crate) fn whole_queries(queries: &[f32], dims: usize) -> Result<usize> {
    match queries.len() % dims.max(1) {
        0 => Ok(queries.len() / dims.max(1)),
        _ => Err(Error::invalid(format!(
            "{} values are not whole queries of {dims} dimensions",
            queries.len()
        ))),
    }
}

/// Checks one query and its `k`.
///
/// # Errors
/// `InvalidArgument` as [`Coarse::search`].
pub fn check_query(query: &[f32], dims: usize, k: usize) -> Result<()> {
    if query.len() != dims {
        return Err(Error::invalid(format!(
            "the query has {} dimensions, the index {dims}",
            query.len()
        )));
    }
    if k > HITS_MAX {
        return Err(Error::invalid(format!(
            "{k} hits are more than {HITS_MAX}, the most one search gives"
        )));
    }
    match query.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(Error::invalid(format!(
            "the query's value at dimension {at} is not a finite number"
        ))),
        None => Ok(()),
    }
}

/// Returns true for sections of codes, which can stay on the medium.
pub fn is_codes(kind: u32) -> bool {
    let ivf = [section::CODES, section::TERMS, section::BYTE_CODES];
    ivf.contains(&kind) || rabitq::is_codes(kind)
}
