//! Queries with mmr, whose hits are similar to the query and different from each other.
//!
//! The shards return the best candidates. The root reads their vectors and chooses among them. Then
//! the holders of the chosen points return the parts that the client wants.

use api_qdrant::mmr::{self, MmrCandidate};
use base::Result;
use search::points::PointId;
use serde_json::value::RawValue;

use super::envelope::Completeness;
use super::merge::{self, HitRange, KeyedPoint, ShardResults};
use super::parts::{self, MergedHit};
use super::read::{answers, of_all};
use super::root_query::{MmrChoice, QueriedCollection, RootQuery};
use super::shard_read::ResultTexts;
use super::split;

/// Hit with its score as clients see it.
pub(super) struct ScoredHit {
    pub(super) hit: MergedHit,
    pub(super) score: f32,
}

/// Hits of a query with their completeness.
pub(super) struct ScoredHits {
    pub(super) hits: Vec<ScoredHit>,
    pub(super) found: Completeness,
}

impl ScoredHit {
    /// Creates a hit from the point of a shard.
    ///
    /// # Errors
    /// As [`merge::read_text`].
    pub(super) fn of(point: &KeyedPoint<'_>) -> Result<ScoredHit> {
        let hit = MergedHit { id: point.key.point(), members: merge::read_text(point.text)? };
        // A score that is not a number has no JSON.
        Ok(ScoredHit { hit, score: point.key.score().unwrap_or(f32::NAN) })
    }
}

/// Returns the hits of a query with mmr and without prefetches, in the order in which they were
/// chosen. `found` is the completeness of the hits of prefetches that it had.
///
/// # Errors
/// `InvalidArgument` for too many candidates; otherwise as [`answers`].
pub(super) async fn hits(
    run: &QueriedCollection<'_>,
    query: &RootQuery,
    choice: MmrChoice,
    found: Completeness,
) -> Result<ScoredHits> {
    let HitRange { offset, limit } = query.range();
    let count = limit.saturating_add(offset);
    let depth = mmr::candidates(choice.candidates, count)?;
    let ScoredHits { hits, found } = best_hits(run, query, depth, found).await?;
    let mut hits = choose(run, hits, choice.diversity, count).await?;
    hits.drain(..offset.min(hits.len()));
    Ok(ScoredHits { hits, found })
}

/// Returns the `depth` best hits of all shards, without payloads and vectors.
async fn best_hits(
    run: &QueriedCollection<'_>,
    query: &RootQuery,
    depth: usize,
    found: Completeness,
) -> Result<ScoredHits> {
    let order = query.order(run.settings.metric);
    let vectors = run.point_vectors(&query.ids()).await?;
    let mut members = query.for_shards(&vectors)?;
    parts::remove(&mut members);
    members.insert("limit".to_owned(), split::raw(&depth)?);
    let read = of_all(run.context, run.record, "points/query", split::raw(&members)?);
    let read = answers(run.context, &read).await?;
    let found = found.after(read.coverage);
    let merge = move |results: &ResultTexts| {
        let texts: Vec<&RawValue> = results.values().map(|result| &**result).collect();
        let shards = ShardResults { results: &texts, incomplete: found.partial };
        let merged = merge::merged_hits(shards, order, HitRange { offset: 0, limit: depth })?;
        let hits = merged.points.iter().map(ScoredHit::of).collect::<Result<Vec<_>>>()?;
        Ok(ScoredHits { hits, found: found.or_partial(merged.partial) })
    };
    run.context.compute_results(read, merge).await
}

/// Returns at most `count` of the hits, in the order in which they were chosen.
async fn choose(
    run: &QueriedCollection<'_>,
    hits: Vec<ScoredHit>,
    diversity: f32,
    count: usize,
) -> Result<Vec<ScoredHit>> {
    let ids: Vec<PointId> = hits.iter().map(|scored| scored.hit.id).collect();
    let mut vectors = run.point_vectors(&ids).await?;
    let metric = run.settings.metric;
    let bytes = vectors.len() * run.settings.dims * size_of::<f32>();
    let work = move || {
        let mut known = Vec::with_capacity(hits.len());
        let mut candidates = Vec::with_capacity(hits.len());
        for ScoredHit { hit, score } in hits {
            // A point that was removed meanwhile has no vector.
            let Some(vector) = vectors.remove(&hit.id) else { continue };
            candidates.push(MmrCandidate::new(metric, vector, score));
            known.push(Some(ScoredHit { hit, score }));
        }
        let chosen = mmr::choose(metric, &candidates, diversity, count);
        Ok(chosen.into_iter().filter_map(|at| known.get_mut(at)?.take()).collect())
    };
    run.context.compute(bytes, work).await
}
