//! Similarities of a random sample of points to each other.

use base::Result;
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
pub(crate) struct MatrixPairs {
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
pub(crate) struct MatrixOffsets {
    offsets_row: Vec<usize>,
    offsets_col: Vec<usize>,
    scores: Vec<f32>,
    ids: Vec<PointId>,
    #[serde(skip_serializing_if = "retrieve::is_false")]
    partial: bool,
}

/// Nearest points of each point of a sample.
struct SampleMatrix {
    /// The points, in the order of their ids.
    ids: Vec<PointId>,
    entries: Vec<MatrixEntry>,
    partial: bool,
}

/// One pair, by the places of its points in the sample.
struct MatrixEntry {
    row: usize,
    column: usize,
    score: f32,
}

/// A point of the sample.
struct SampledPoint {
    id: PointId,
    vector: Vec<f32>,
}

/// Responds with pairs of points.
pub(crate) fn pairs(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<MatrixPairs> {
    let SampleMatrix { ids, entries, partial } = matrix(named, thread, context, body)?;
    let pair = |entry: &MatrixEntry| {
        let (a, b) = (*ids.get(entry.row)?, *ids.get(entry.column)?);
        Some(MatrixPair { a, b, score: entry.score })
    };
    Ok(MatrixPairs { pairs: entries.iter().filter_map(pair).collect(), partial })
}

/// Responds with a sparse matrix.
pub(crate) fn offsets(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<MatrixOffsets> {
    let SampleMatrix { ids, entries, partial } = matrix(named, thread, context, body)?;
    Ok(MatrixOffsets {
        offsets_row: entries.iter().map(|entry| entry.row).collect(),
        offsets_col: entries.iter().map(|entry| entry.column).collect(),
        scores: entries.iter().map(|entry| entry.score).collect(),
        ids,
        partial,
    })
}

/// Draws a sample, and compares its points with each other.
fn matrix(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<SampleMatrix> {
    let request: MatrixRequest = json::parse(body)?;
    let (sample, limit) = (request.sample()?, request.limit());
    let run = QueryRun { named, thread, context, deadline: context.deadline };
    run.check_using(request.using.as_deref().unwrap_or_default(), true)?;
    let filter = request.filter.map(|filter| filters::prepare(named, filter)).transpose()?;
    let drawn = run.sampled(sample, filter.as_ref())?;
    let mut matrix = SampleMatrix { ids: Vec::new(), entries: Vec::new(), partial: drawn.partial };
    let ids: Vec<u64> = drawn.hits.iter().map(|hit| hit.id).collect();
    let points = sampled_points(named, &ids, &mut matrix.partial)?;
    // One point has no other one.
    if points.len() < 2 {
        return Ok(matrix);
    }
    for row in 0..points.len() {
        run.check_time()?;
        matrix.entries.extend(nearest(named, &points, row, limit));
    }
    matrix.ids = points.into_iter().map(|point| point.id).collect();
    Ok(matrix)
}

/// Reads the points of a sample, and sorts them by their ids. Damaged points are left out.
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
                // Removed since.
                Ok(None) => {}
                Err(error) if retrieve::concerns_one_point(&error) => *partial = true,
                Err(error) => return Err(error),
            }
        }
    }
    points.sort_by_key(|point| point.id);
    Ok(points)
}

/// Returns the nearest other points of the point in place `row`.
fn nearest(
    named: &NamedCollection,
    points: &[SampledPoint],
    row: usize,
    limit: usize,
) -> Vec<MatrixEntry> {
    let metric = named.settings().metric;
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
