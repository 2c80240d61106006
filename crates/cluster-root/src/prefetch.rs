//! Prefetches. A round before the query finds their hits, and then the query ranks these points
//! only. So the limit of a prefetch counts the points of the collection, and not of a shard.

use std::collections::{BTreeSet, HashMap};

use api_qdrant::json::VectorQuery;
use base::{Error, Result};
use search::points::PointId;
use serde_json::json;
use serde_json::value::RawValue;

use super::envelope::Completeness;
use super::merge::{self, HitOrder, HitRange, ShardResults};
use super::query::{QueryRun, RootQuery};
use super::read::{answers, of_all};
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

/// Replaces the prefetches of each query by a filter that has their hits, for an exact search.
/// Returns the completeness of the prefetches' hits.
///
/// # Errors
/// `InvalidArgument` for too many prefetches, and for a query that cannot rank their hits;
/// `Unimplemented` for mmr in a prefetch; otherwise as [`answers`].
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
        merge::batch_ids(ShardResults { results: &texts, incomplete: false }, &ranges)
    };
    let hits = run.context.compute(bytes, merge).await?;
    let mut candidates: Vec<BTreeSet<PointId>> = vec![BTreeSet::new(); queries.len()];
    for (prefetch, found) in prefetches.iter().zip(hits) {
        completeness = completeness.or_partial(found.partial);
        if let Some(candidates) = candidates.get_mut(prefetch.of) {
            candidates.extend(found.ids);
        }
    }
    for (query, candidates) in queries.iter_mut().zip(candidates) {
        if !query.request.prefetch.is_empty() {
            query.rank_only(&candidates)?;
        }
    }
    Ok(completeness)
}

/// Returns the prefetches of a query, whose filter holds for them too.
fn prefetches_of(run: &QueryRun<'_>, query: &RootQuery, of: usize) -> Result<Vec<PrefetchQuery>> {
    let count = query.request.prefetch.len();
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
            if let Some(VectorQuery::Mmr { .. }) = query.request.query {
                return Err(Error::unimplemented(
                    "mmr in a prefetch is not supported by this server; use it in the outer query",
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
    /// Turns a query with prefetches into an exact one of `candidates`.
    fn rank_only(&mut self, candidates: &BTreeSet<PointId>) -> Result<()> {
        self.request.prefetch.clear();
        self.members.remove("prefetch");
        self.members.insert("params".to_owned(), split::raw(&json!({ "exact": true }))?);
        let is_candidate = split::raw(&json!({ "must": [{ "has_id": candidates }] }))?;
        let outer = self.members.get("filter").map(|filter| &**filter);
        let both = split::all_of([outer, Some(&is_candidate)])?;
        self.members.insert("filter".to_owned(), both);
        Ok(())
    }
}
