//! Similarities of a random sample of points to each other.

use base::Result;
use search::Metric;
use search::collection::{PointParts, SearchThread};
use search::points::PointId;
use search::registry::NamedCollection;
use search::segment::similarity;
use serde::Serialize;

use crate::call::CallContext;
use crate::filters;
use crate::json::{self, MatrixRequest};
use crate::query::QueryRun;
use crate::retrieve::{self, CHUNK};
use crate::scores;

/// Pairs of points with their scores.
#[derive(Serialize)]
pub struct MatrixPairs {
    pairs: Vec<MatrixPair>,
    #[serde(skip_serializing_if = "retrieve::is_false")]
    partial: bool,
}

/// A point of the sample and one of its nearest points.
#[derive(Serialize)]
struct MatrixPair {
    a: PointId,
    b: PointId,
    score: f32,
}

/// Pairs of points as a sparse matrix.
#[derive(Serialize)]
pub struct MatrixOffsets {
    offsets_row: Vec<usize>,
    offsets_col: Vec<usize>,
    scores: Vec<f32>,
    ids: Vec<PointId>,
    #[serde(skip_serializing_if = "retrieve::is_false")]
    partial: bool,
}

/// Nearest points of each point of a sample.
pub struct SampleMatrix {
    /// The points, in the order of their ids.
    ids: Vec<PointId>,
    entries: Vec<MatrixEntry>,
    partial: bool,
}

/// One pair, by the positions of its points in the sample.
struct MatrixEntry {
    row: usize,
    column: usize,
    score: f32,
}

/// A point of the sample.
pub struct SampledPoint {
    /// Id that the response lists.
    pub id: PointId,
    /// Vector of the point, as the collection stores it.
    pub vector: Vec<f32>,
}

impl SampleMatrix {
    /// Compares the points of a sample with each other, and keeps at most `limit` nearest points of
    /// each. `partial` is true if points may be missing. Calls `check_time` before each point.
    ///
    /// # Errors
    /// The error of `check_time`.
    pub fn new(
        metric: Metric,
        mut points: Vec<SampledPoint>,
        limit: usize,
        partial: bool,
        check_time: impl Fn() -> Result<()>,
    ) -> Result<SampleMatrix> {
        points.sort_by_key(|point| point.id);
        let mut matrix = SampleMatrix { ids: Vec::new(), entries: Vec::new(), partial };
        // A single point has no neighbour.
        if points.len() < 2 {
            return Ok(matrix);
        }
        for row in 0..points.len() {
            check_time()?;
            matrix.entries.extend(nearest(metric, &points, row, limit));
        }
        matrix.ids = points.into_iter().map(|point| point.id).collect();
        Ok(matrix)
    }

    /// Returns the pairs of points.
    pub fn pairs(self) -> MatrixPairs {
        let pair = |entry: &MatrixEntry| {
            let a = *self.ids.get(entry.row)?;
            let b = *self.ids.get(entry.column)?;
            Some(MatrixPair { a, b, score: entry.score })
        };
        let pairs = self.entries.iter().filter_map(pair).collect();
        MatrixPairs { pairs, partial: self.partial }
    }

    /// Returns the sparse matrix.
    pub fn offsets(self) -> MatrixOffsets {
        let SampleMatrix { ids, entries, partial } = self;
        MatrixOffsets {
            offsets_row: entries.iter().map(|entry| entry.row).collect(),
            offsets_col: entries.iter().map(|entry| entry.column).collect(),
            scores: entries.iter().map(|entry| entry.score).collect(),
            ids,
            partial,
        }
    }
}

/// Responds with pairs of points.
pub(crate) fn pairs(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<MatrixPairs> {
    matrix(named, thread, context, body).map(SampleMatrix::pairs)
}

/// Responds with a sparse matrix.
pub(crate) fn offsets(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<MatrixOffsets> {
    matrix(named, thread, context, body).map(SampleMatrix::offsets)
}

/// Draws a sample, and compares its points with each other.
fn matrix(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<SampleMatrix> {
    let request: MatrixRequest = json::parse(body)?;
    let sample = request.sample()?;
    let limit = request.limit();
    let run = QueryRun { named, thread, context, deadline: context.deadline };
    scores::check_using(&named.settings(), request.using.as_deref().unwrap_or_default())?;
    let filter = request.filter.map(|filter| filters::prepare(named, filter)).transpose()?;
    let drawn = run.sampled(sample, filter.as_ref())?;
    let mut partial = drawn.partial;
    let ids: Vec<u64> = drawn.hits.iter().map(|hit| hit.id).collect();
    let points = sampled_points(named, &ids, &mut partial)?;
    SampleMatrix::new(named.settings().metric, points, limit, partial, || run.check_time())
}

/// Reads the points of a sample. Damaged points are left out.
fn sampled_points(
    named: &NamedCollection,
    ids: &[u64],
    partial: &mut bool,
) -> Result<Vec<SampledPoint>> {
    let parts = PointParts { embedding: true, ..PointParts::NONE };
    let mut points = Vec::with_capacity(ids.len());
    for ids in ids.chunks(CHUNK) {
        for point in named.resolve(ids, parts) {
            match point {
                Ok(Some(point)) => {
                    points.push(SampledPoint { id: point.id, vector: point.embedding });
                }
                // The point was removed meanwhile.
                Ok(None) => {}
                Err(error) if retrieve::concerns_one_point(&error) => *partial = true,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(points)
}

/// Returns the nearest other points of the point at position `row`.
fn nearest(metric: Metric, points: &[SampledPoint], row: usize, limit: usize) -> Vec<MatrixEntry> {
    let Some(point) = points.get(row) else { return Vec::new() };
    let others = points.iter().enumerate().filter(|(column, _)| *column != row);
    let mut similarities: Vec<(usize, f32)> = others
        .map(|(column, other)| (column, similarity(metric, &point.vector, &other.vector)))
        .collect();
    similarities.sort_by(|one, other| other.1.total_cmp(&one.1));
    similarities.truncate(limit);
    let entry = |(column, similarity): (usize, f32)| MatrixEntry {
        row,
        column,
        score: scores::score(metric, similarity),
    };
    similarities.into_iter().map(entry).collect()
}
