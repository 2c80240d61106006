//! Similarities of a random sample of points to each other. The root draws the sample, reads its
//! vectors and compares them.

use std::time::Instant;

use api_qdrant::check_using;
use api_qdrant::json::{self, MatrixRequest};
use api_qdrant::matrix::{SampleMatrix, SampledPoint};
use base::{Error, Result};
use bytes::Bytes;
use search::points::PointId;
use serde::Serialize;
use serde_json::json;

use super::call::RootContext;
use super::collections;
use super::envelope::{Completeness, RootAnswer};
use super::root_query::{QueriedCollection, RootQuery};
use super::sample;
use super::split;

/// Answers with pairs of points.
pub(super) async fn pairs(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    answer(context, body, SampleMatrix::pairs).await
}

/// Answers with a sparse matrix.
pub(super) async fn offsets(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    answer(context, body, SampleMatrix::offsets).await
}

/// Draws a sample, and compares its points with each other. `present` chooses the form of the
/// result.
async fn answer<T: Serialize + 'static>(
    context: RootContext,
    body: Bytes,
    present: fn(SampleMatrix) -> T,
) -> Result<RootAnswer> {
    let record = context.state.record(&context.collection)?;
    let settings = collections::settings(&record)?;
    let request: MatrixRequest = json::parse(&body)?;
    let limit = request.limit();
    let sample = sample_query(&body, request.sample()?)?;
    check_using(&settings, request.using.as_deref().unwrap_or_default())?;
    let run = QueriedCollection { context: &context, record: &record, settings: &settings };
    let drawn = Box::pin(sample::hits(&run, &sample, Completeness::WHOLE)).await?;
    let ids: Vec<PointId> = drawn.hits.iter().map(|scored| scored.hit.id).collect();
    let vectors = run.point_vectors(&ids).await?;
    let bytes = vectors.len() * settings.dims * size_of::<f32>();
    let metric = settings.metric;
    let partial = drawn.found.partial;
    let deadline = context.deadline;
    let work = move || {
        let points = vectors.into_iter().map(|(id, vector)| SampledPoint { id, vector }).collect();
        let check_time = || check_time(deadline);
        RootAnswer::of(&present(SampleMatrix::new(metric, points, limit, partial, check_time)?))
    };
    let answer = context.compute(bytes, work).await?;
    Ok(RootAnswer { coverage: drawn.found.coverage(), ..answer })
}

/// Returns the query for the points of the sample, which match the filter of the request.
///
/// # Errors
/// `InvalidArgument` if the body is not an object.
fn sample_query(body: &[u8], count: usize) -> Result<RootQuery> {
    let filter = split::members(body)?.remove("filter");
    let query = json!({ "query": { "sample": "random" }, "limit": count });
    let mut query = RootQuery::read(query.to_string().as_bytes())?;
    query.members.extend(filter.map(|filter| ("filter".to_owned(), filter)));
    Ok(query)
}

fn check_time(deadline: Instant) -> Result<()> {
    if Instant::now() > deadline {
        return Err(Error::deadline(
            "the request timed out before all points of the sample were compared; request a smaller sample, or \
             allow more time",
        ));
    }
    Ok(())
}
