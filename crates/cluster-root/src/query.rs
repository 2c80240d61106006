//! Queries: nearest points, recommendations, and points in the order of a field.
//!
//! Prefetches are replaced by the ids of their hits, and points of a query by their vectors,
//! because a shard has its own points only. Then each shard returns its best `offset + limit`
//! hits.

use std::collections::HashMap;

use api_qdrant::fusion::FusionHit;
use api_qdrant::json::{self, QueryBatchRequest};
use base::{Error, Result};
use bytes::Bytes;
use search::points::PointId;
use serde::Deserialize;
use serde_json::json;
use transport::Reservation;

use super::call::RootContext;
use super::collections;
use super::envelope::{Completeness, ReadCoverage, RootAnswer};
use super::merge::{self, HitOrder, HitRange, ShardResults};
use super::mmr::ScoredHits;
use super::parts::{self, MergedHit};
use super::prefetch;
use super::read::{merged, of_all};
use super::root_query::{QueriedCollection, RootQuery};
use super::split::{self, RawMembers};

/// Maximum queries of one batch.
const SEARCHES_MAX: usize = 1024;

pub(super) async fn query(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let record = context.state.record(&context.collection)?;
    let settings = collections::settings(&record)?;
    let mut query = [RootQuery::read(&body)?];
    query[0].request.check_prefetches()?;
    let run = QueriedCollection { context: &context, record: &record, settings: &settings };
    let found = prefetch::resolve(&run, &mut query).await?;
    let [query] = query;
    run.answer_query(query, found).await
}

/// Answers queries in order. If one fails, the batch fails.
pub(super) async fn batch(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let record = context.state.record(&context.collection)?;
    let settings = collections::settings(&record)?;
    let bytes = body.len();
    let mut queries = context.compute(bytes, move || read_batch(&body)).await?;
    if queries.is_empty() {
        return RootAnswer::of(&json!([]));
    }
    let run = QueriedCollection { context: &context, record: &record, settings: &settings };
    let found = prefetch::resolve(&run, &mut queries).await?;
    if queries.iter().any(RootQuery::has_own_rounds) {
        return run.answer_one_by_one(queries, found).await;
    }
    run.answer_in_one_read(queries, found, bytes).await
}

impl QueriedCollection<'_> {
    /// Answers a query without prefetches. `found` is the completeness of the hits of prefetches
    /// that it had.
    async fn answer_query(&self, query: RootQuery, found: Completeness) -> Result<RootAnswer> {
        if let Some(fused) = &query.fused {
            return self.fused(&query, fused, found).await;
        }
        if let Some(ScoredHits { hits, found }) = self.own_rounds(&query, found).await? {
            let hits = hits.into_iter().map(|scored| scored.hit).collect();
            return parts::answer(self, &query.members, hits, found).await;
        }
        let order = query.order(self.settings.metric);
        let range = query.range();
        let vectors = self.point_vectors(&query.ids()).await?;
        let body = split::raw(&query.for_shards(&vectors)?)?;
        let read = of_all(self.context, self.record, "points/query", body);
        let merge = move |shards: ShardResults<'_>| {
            merge::hits(shards.or_incomplete(found.partial), order, range)
        };
        let answer = merged(self.context, &read, merge).await?;
        Ok(answer.after(found))
    }

    /// Answers a query with the hits of its fusion or its formula.
    async fn fused(
        &self,
        query: &RootQuery,
        fused: &[FusionHit<PointId>],
        found: Completeness,
    ) -> Result<RootAnswer> {
        let HitRange { offset, limit } = query.range();
        let hits = fused.iter().skip(offset).take(limit).map(MergedHit::of);
        parts::answer(self, &query.members, hits.collect::<Result<_>>()?, found).await
    }

    /// Answers queries one after the other. If one fails, the batch fails.
    async fn answer_one_by_one(
        &self,
        queries: Vec<RootQuery>,
        found: Completeness,
    ) -> Result<RootAnswer> {
        let mut results = Vec::with_capacity(queries.len());
        let mut coverage = found.coverage();
        let mut reservation: Option<Reservation> = None;
        for (at, query) in queries.into_iter().enumerate() {
            let answer = Box::pin(self.answer_query(query, found)).await;
            let answer = answer.map_err(|error| at_search(error, at))?;
            coverage = ReadCoverage::smallest([coverage, answer.coverage]);
            results.push(merge::text(answer.result)?);
            match (&mut reservation, answer.reservation) {
                (Some(all), Some(more)) => all.join(more),
                (all, more) => *all = all.take().or(more),
            }
        }
        Ok(RootAnswer { coverage, reservation, ..RootAnswer::of(&results)? })
    }

    /// Answers all queries with one read of all shards. Before it, reads the vectors of the points
    /// that queries name by their ids. No query may need rounds of its own. `bytes` is the size of
    /// the client's request.
    async fn answer_in_one_read(
        &self,
        queries: Vec<RootQuery>,
        found: Completeness,
        bytes: usize,
    ) -> Result<RootAnswer> {
        let merges: Vec<(HitOrder, HitRange)> = queries
            .iter()
            .map(|query| (query.order(self.settings.metric), query.range()))
            .collect();
        let ids: Vec<PointId> = queries.iter().flat_map(RootQuery::ids).collect();
        let vectors = self.point_vectors(&ids).await?;
        let build = move || {
            let mut searches = Vec::with_capacity(queries.len());
            for (at, query) in queries.iter().enumerate() {
                searches.push(query.for_shards(&vectors).map_err(|error| at_search(error, at))?);
            }
            split::raw(&HashMap::from([("searches", searches)]))
        };
        let body = self.context.compute(bytes, build).await?;
        let read = of_all(self.context, self.record, "points/query/batch", body);
        let merge = move |shards: ShardResults<'_>| {
            merge::batch(shards.or_incomplete(found.partial), &merges)
        };
        let answer = merged(self.context, &read, merge).await?;
        Ok(answer.after(found))
    }
}

fn at_search(error: Error, at: usize) -> Error {
    error.context(format_args!("searches[{at}]"))
}

/// Parses a batch of queries. Each keeps its text for the shards.
fn read_batch(body: &[u8]) -> Result<Vec<RootQuery>> {
    #[derive(Deserialize)]
    struct SearchesText {
        searches: Vec<RawMembers>,
    }
    let request: QueryBatchRequest = json::parse(body)?;
    if request.searches.len() > SEARCHES_MAX {
        return Err(Error::invalid(format!(
            "searches: more than {SEARCHES_MAX} queries in one request; send several"
        )));
    }
    let texts: SearchesText = split::parse(body)?;
    for (at, query) in request.searches.iter().enumerate() {
        query.check_prefetches().map_err(|error| at_search(error, at))?;
    }
    let queries = request.searches.into_iter().zip(texts.searches);
    Ok(queries.map(|(request, members)| RootQuery::new(request, members)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_read_each_query() {
        let body = json!({"searches": [{"query": [1]}, {"limit": 3, "offset": 1}]});
        let queries = read_batch(body.to_string().as_bytes()).unwrap();
        assert_eq!(queries[1].range(), HitRange { offset: 1, limit: 3 });
        let many = json!({"searches": vec![json!({}); SEARCHES_MAX + 1]});
        assert!(read_batch(many.to_string().as_bytes()).is_err());
    }
}
