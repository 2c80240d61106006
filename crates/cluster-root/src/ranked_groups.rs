//! Groups of hits that depend on each other: of mmr, a fusion or a formula, or of a random sample.
//! No shard knows their order. The root finds as many hits as a search returns, reads their values,
//! and groups them by the code of one server.

use api_qdrant::fusion::FusionHit;
use api_qdrant::json::{QueryGroupsRequest, VectorQuery};
use api_qdrant::{HitGroup, HitGroups, group_values, most_hits};
use base::{Error, Result};
use search::collection::CANDIDATES_MAX;
use search::points::PointId;

use super::envelope::Completeness;
use super::groups::GROUP_MEMBERS;
use super::mmr::{ScoredHit, ScoredHits};
use super::payload_members::{self, POINTS_AT_ONCE_MAX};
use super::read::confirmed_answers;
use super::root_query::{QueriedCollection, RootQuery};
use super::shard_read::ResultTexts;

/// Groups in the order of their best hits, with their completeness.
pub(super) struct RankedGroups {
    pub(super) groups: Vec<HitGroup<FusionHit<PointId>>>,
    pub(super) found: Completeness,
}

/// Hits of a query, best first, with their completeness.
struct FusedHits {
    hits: Vec<FusionHit<PointId>>,
    found: Completeness,
}

impl RootQuery {
    /// Returns true if the root groups the hits of the query, because no shard knows their order.
    pub(super) fn is_grouped_by_root(&self) -> bool {
        self.is_sample() || self.request.query.as_ref().is_some_and(VectorQuery::ranks_together)
    }

    /// Turns a query for groups into a query for as many hits as a search returns. If the hits
    /// depend on the limits of its prefetches, raises these too.
    ///
    /// # Errors
    /// As [`RootQuery::raise_prefetches`].
    pub(super) fn find_all(&mut self) -> Result<()> {
        GROUP_MEMBERS.iter().for_each(|name| drop(self.members.remove(*name)));
        self.request.limit = Some(most_hits(self.request.query.as_ref(), CANDIDATES_MAX));
        if self.is_sample() {
            return Ok(());
        }
        self.raise_prefetches(CANDIDATES_MAX)
    }
}

/// Returns the groups of a query after [`RootQuery::find_all`], whose prefetches were replaced by
/// their hits. `found` is the completeness of these hits.
///
/// # Errors
/// As [`QueriedCollection::own_rounds`] and [`confirmed_answers`].
pub(super) async fn groups(
    run: &QueriedCollection<'_>,
    query: RootQuery,
    request: &QueryGroupsRequest,
    found: Completeness,
) -> Result<RankedGroups> {
    let FusedHits { hits, mut found } = Box::pin(ranked_hits(run, query, found)).await?;
    let members = payload_members::request(payload_members::of_path(&request.group_by)?)?;
    let mut groups: HitGroups<FusionHit<PointId>> = HitGroups::new(request.group_size);
    for hits in hits.chunks(POINTS_AT_ONCE_MAX) {
        let ids: Vec<PointId> = hits.iter().map(|hit| hit.id).collect();
        let read = confirmed_answers(run.context, run.record, members.clone(), &ids);
        let read = Box::pin(read).await?;
        found = found.after(read.coverage);
        let hits = hits.to_vec();
        let field = request.group_by.clone();
        let work = move |results: &ResultTexts| {
            let payloads = payload_members::payloads(results)?;
            for hit in hits {
                // A point without one was removed since.
                if let Some(payload) = payloads.get(&hit.id) {
                    groups.push(hit, group_values(payload, &field));
                }
            }
            Ok(groups)
        };
        groups = run.context.compute_results(read, work).await?;
        if groups.are_full(request.limit) {
            break;
        }
    }
    Ok(RankedGroups { groups: groups.into_first(request.limit), found })
}

/// Returns the hits of a query in the order of their scores: fused ones if the query has them, else
/// those of the shards.
async fn ranked_hits(
    run: &QueriedCollection<'_>,
    mut query: RootQuery,
    found: Completeness,
) -> Result<FusedHits> {
    if let Some(mut hits) = query.fused.take() {
        hits.truncate(query.range().limit);
        return Ok(FusedHits { hits, found });
    }
    let Some(ScoredHits { hits, found }) = run.own_rounds(&query, found).await? else {
        return Err(Error::internal("a query whose hits the shards group"));
    };
    let hit = |scored: ScoredHit| FusionHit { id: scored.hit.id, score: scored.score };
    Ok(FusedHits { hits: hits.into_iter().map(hit).collect(), found })
}
