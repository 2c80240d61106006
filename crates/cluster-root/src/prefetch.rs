//! Prefetches. A round before the query finds their hits. Then the query ranks these points only,
//! or fusion joins them. So the limit of a prefetch counts the points of the collection, and not of
//! a shard.

use std::collections::{BTreeSet, HashMap};

use api_qdrant::fusion::{Fusion, FusionHit};
use api_qdrant::json::VectorQuery;
use base::{Error, Result};
use search::coarse::Metric;
use search::points::PointId;
use serde_json::json;
use serde_json::value::RawValue;

use super::envelope::Completeness;
use super::merge::{self, HitOrder, HitRange, MergedKeys, PointKey, ShardResults};
use super::read::{answers, of_all};
use super::root_query::{QueryRun, RootQuery};
use super::split;

/// Most prefetches of one query.
const PREFETCHES_MAX: usize = 16;
/// Most prefetches of one batch of queries.
const BATCH_MAX: usize = 1024;

/// A prefetch as a query of the collection.
struct PrefetchQuery {
    query: RootQuery,
    order: HitOrder,
    /// Index of the query that ranks its hits.
    of: usize,
}

/// Replaces the prefetches of each query by their hits. Returns the completeness of these.
///
/// # Errors
/// `InvalidArgument` for too many prefetches, and for a query that cannot rank their hits;
/// `Unimplemented` for mmr or fusion in a prefetch; otherwise as [`answers`].
pub(super) async fn resolve(run: &QueryRun<'_>, queries: &mut [RootQuery]) -> Result<Completeness> {
    let mut prefetches = Vec::new();
    for (at, query) in queries.iter().enumerate() {
        prefetches.append(&mut prefetches_of(run, query, at)?);
    }
    if prefetches.is_empty() {
        return Ok(Completeness::WHOLE);
    }
    if prefetches.len() > BATCH_MAX {
        return Err(Error::invalid(format!(
            "prefetch: more than {BATCH_MAX} in one batch; send several requests"
        )));
    }
    let ids: Vec<PointId> = prefetches.iter().flat_map(|prefetch| prefetch.query.ids()).collect();
    let vectors = run.point_vectors(&ids).await?;
    let mut searches = Vec::with_capacity(prefetches.len());
    for prefetch in &prefetches {
        searches.push(prefetch.query.for_shards(&vectors)?);
    }
    let body = split::raw(&HashMap::from([("searches", searches)]))?;
    let read = of_all(run.context, run.record, "points/query/batch", body);
    let found = answers(run.context, &read).await?;
    let bytes = found.results.values().map(|result| result.get().len()).sum();
    let mut completeness = Completeness::WHOLE.after(found.coverage);
    let ranges: Vec<(HitOrder, HitRange)> =
        prefetches.iter().map(|prefetch| (prefetch.order, prefetch.query.range())).collect();
    let (results, _reservation) = (found.results, found.reservation);
    let merge = move || {
        let texts: Vec<&RawValue> = results.values().map(|result| &**result).collect();
        merge::batch_keys(ShardResults { results: &texts, incomplete: false }, &ranges)
    };
    let hits = run.context.compute(bytes, merge).await?;
    let mut found: Vec<Vec<MergedKeys>> = queries.iter().map(|_| Vec::new()).collect();
    for (prefetch, hits) in prefetches.iter().zip(hits) {
        completeness = completeness.or_partial(hits.partial);
        if let Some(found) = found.get_mut(prefetch.of) {
            found.push(hits);
        }
    }
    for (query, found) in queries.iter_mut().zip(found) {
        if !query.request.prefetch.is_empty() {
            query.replace_prefetches(run.settings.metric, &found)?;
        }
    }
    Ok(completeness)
}

/// Returns the prefetches of a query, whose filter holds for them too.
fn prefetches_of(run: &QueryRun<'_>, query: &RootQuery, of: usize) -> Result<Vec<PrefetchQuery>> {
    let count = query.request.prefetch.len();
    if let Some(VectorQuery::Fuse(fusion)) = &query.request.query {
        fusion.check(count)?;
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    check(query)?;
    let text = query.members.get("prefetch");
    let texts: Vec<&RawValue> = match text {
        Some(list) if list.get().trim_start().starts_with('[') => merge::read(list)?,
        Some(one) => vec![&**one],
        None => Vec::new(),
    };
    let outer = query.members.get("filter").map(|filter| &**filter);
    let mut prefetches = Vec::with_capacity(count);
    for (at, text) in texts.into_iter().enumerate() {
        let prefetch = || -> Result<PrefetchQuery> {
            let mut query = RootQuery::read(text.get().as_bytes())?;
            if let Some(VectorQuery::Mmr { .. } | VectorQuery::Fuse(_)) = query.request.query {
                return Err(Error::unimplemented(
                    "mmr and fusion in a prefetch are not supported by this server; use them in the outer query",
                ));
            }
            let own = query.members.get("filter").map(|filter| &**filter);
            let both = split::all_of([outer, own])?;
            query.members.insert("filter".to_owned(), both);
            Ok(PrefetchQuery { order: query.order(run.settings.metric), query, of })
        };
        let prefetch = prefetch().map_err(|error| error.context(format_args!("prefetch[{at}]")));
        prefetches.push(prefetch?);
    }
    Ok(prefetches)
}

fn check(query: &RootQuery) -> Result<()> {
    if query.request.prefetch.len() > PREFETCHES_MAX {
        return Err(Error::invalid(format!("prefetch: more than {PREFETCHES_MAX} in one query")));
    }
    match &query.request.query {
        None => Err(Error::invalid("query: a query is needed to rank what the prefetches found")),
        Some(VectorQuery::OrderBy(_)) => Err(Error::unimplemented(
            "order_by of what prefetches found is not supported by this server",
        )),
        Some(_) => Ok(()),
    }
}

impl RootQuery {
    /// Replaces the prefetches by their hits.
    fn replace_prefetches(&mut self, metric: Metric, found: &[MergedKeys]) -> Result<()> {
        self.request.prefetch.clear();
        self.members.remove("prefetch");
        if let Some(VectorQuery::Fuse(fusion)) = &self.request.query {
            self.fused = Some(self.fused_hits(fusion, metric, found));
            return Ok(());
        }
        let candidates = found.iter().flat_map(|found| &found.hits).map(PointKey::point).collect();
        self.rank_only(&candidates)
    }

    fn fused_hits(
        &self,
        fusion: &Fusion,
        metric: Metric,
        found: &[MergedKeys],
    ) -> Vec<FusionHit<PointId>> {
        // A score that is no number has no JSON.
        let hit =
            |key: &PointKey| FusionHit::new(metric, key.point(), key.score().unwrap_or(f32::NAN));
        let list = |found: &MergedKeys| found.hits.iter().map(hit).collect();
        let mut joined = fusion.join(&found.iter().map(list).collect::<Vec<_>>());
        let least = self.request.score_threshold;
        joined.retain(|hit| least.is_none_or(|least| hit.score >= least));
        joined
    }

    /// Makes the query an exact one of `candidates`.
    fn rank_only(&mut self, candidates: &BTreeSet<PointId>) -> Result<()> {
        self.members.insert("params".to_owned(), split::raw(&json!({ "exact": true }))?);
        let is_candidate = split::raw(&json!({ "must": [{ "has_id": candidates }] }))?;
        let outer = self.members.get("filter").map(|filter| &**filter);
        let both = split::all_of([outer, Some(&is_candidate)])?;
        self.members.insert("filter".to_owned(), both);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn query(body: &Value) -> RootQuery {
        RootQuery::read(body.to_string().as_bytes()).unwrap()
    }

    fn found(hits: &[(u64, f32)]) -> MergedKeys {
        let key = |(id, score): &(u64, f32)| {
            let text = split::raw(&json!({ "id": id, "score": score })).unwrap();
            merge::keyed(&text).unwrap().key
        };
        MergedKeys { hits: hits.iter().map(key).collect(), partial: false }
    }

    #[test]
    fn a_query_ranks_the_hits_of_its_prefetches_only() {
        let filter = json!({ "must": [] });
        let mut query = query(&json!({
            "query": [1, 2], "prefetch": {"query": [2, 1]}, "filter": filter, "params": {"hnsw_ef": 7},
        }));
        let hits = [found(&[(3, 0.5), (1, 0.25)]), found(&[(3, 2.0)])];
        query.replace_prefetches(Metric::Dot, &hits).unwrap();
        let text = split::raw(&query.members).unwrap();
        let candidates = json!({ "must": [{ "has_id": [1, 3] }] });
        let expected = json!({
            "query": [1, 2], "params": {"exact": true}, "filter": {"must": [filter, candidates]},
        });
        assert_eq!(serde_json::from_str::<Value>(text.get()).unwrap(), expected);
        assert!(query.fused.is_none());
    }

    #[test]
    fn fusion_joins_the_hits_of_prefetches() {
        let fused = |metric, least: f32| {
            let mut query = query(&json!({
                "query": {"fusion": "rrf"}, "prefetch": [{"query": [2, 1]}, {"query": [1, 1]}],
                "score_threshold": least,
            }));
            let hits = [found(&[(3, 0.5), (1, 0.25)]), found(&[(1, 2.0)])];
            query.replace_prefetches(metric, &hits).unwrap();
            query.fused.unwrap().iter().map(|hit| hit.id).collect::<Vec<_>>()
        };
        let [one, three] = [1, 3].map(PointId::Number);
        assert_eq!(fused(Metric::L2, 0.0), [one, three]);
        assert_eq!(fused(Metric::Dot, 0.6), [one]);
    }

    #[test]
    fn queries_that_rank_nothing_are_refused() {
        let prefetch = json!({ "query": [1] });
        let order = json!({ "order_by": { "key": "a" } });
        for body in [
            json!({ "prefetch": prefetch }),
            json!({ "prefetch": prefetch, "query": order }),
            json!({ "prefetch": vec![prefetch.clone(); PREFETCHES_MAX + 1], "query": [1] }),
        ] {
            assert!(check(&query(&body)).is_err(), "{body}");
        }
        assert!(check(&query(&json!({ "prefetch": prefetch, "query": [1] }))).is_ok());
    }
}
