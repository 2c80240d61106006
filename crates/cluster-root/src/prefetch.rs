//! Prefetches. Their hits are found in a round before the query, innermost prefetches first. Then
//! the query ranks only these points, fusion joins them, or a formula scores them. So the limit of
//! a prefetch counts the points of the collection, and not of a shard.

use std::collections::{BTreeSet, HashMap};

use api_qdrant::formula::Formula;
use api_qdrant::fusion::FusionHit;
use api_qdrant::json::{QueryRequest, VectorQuery};
use api_qdrant::{check_using, raise_limits, scale_limits};
use base::{Error, Result};
use search::Metric;
use search::filter::VALUES_MAX;
use search::points::PointId;
use search::registry::CollectionSettings;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::envelope::Completeness;
use super::formula;
use super::lookup;
use super::merge::{self, HitOrder, HitRange, MergedKeys, PointKey, ShardResults};
use super::mmr::ScoredHit;
use super::read::{answers, of_all};
use super::root_query::{QueriedCollection, RootQuery, without};
use super::shard_read::ResultTexts;
use super::split::{self, RawMembers};

/// Maximum prefetches of one batch of queries, at one level.
const BATCH_MAX: usize = 1024;

/// Replaces the prefetches of each query by their hits, and points of other collections by their
/// vectors. Returns the completeness of the hits.
///
/// # Errors
/// `InvalidArgument` for too many prefetches and for the name of another vector; otherwise as
/// [`answers`], [`formula::hits`] and [`lookup::resolve`].
pub(super) async fn resolve(
    run: &QueriedCollection<'_>,
    queries: &mut [RootQuery],
) -> Result<Completeness> {
    Box::pin(lookup::resolve(run, queries)).await?;
    let mut prefetches = Vec::new();
    // For each prefetch, the index of the query that ranks its hits.
    let mut owners = Vec::new();
    for (at, query) in queries.iter().enumerate() {
        query.check_vector_name(run.settings)?;
        let mut own = query.prefetches()?;
        owners.extend(own.iter().map(|_| at));
        prefetches.append(&mut own);
    }
    if prefetches.is_empty() {
        return Ok(Completeness::WHOLE);
    }
    if prefetches.len() > BATCH_MAX {
        return Err(Error::invalid(format!(
            "prefetch: more than {BATCH_MAX} in one batch; send several requests"
        )));
    }
    let found = Box::pin(resolve(run, &mut prefetches)).await?;
    let PrefetchHits { lists, mut found } = hits(run, &prefetches, found).await?;
    let mut by_query: Vec<Vec<MergedKeys>> = queries.iter().map(|_| Vec::new()).collect();
    for (owner, list) in owners.into_iter().zip(lists) {
        if let Some(lists) = by_query.get_mut(owner) {
            lists.push(list);
        }
    }
    for (query, lists) in queries.iter_mut().zip(by_query) {
        if lists.is_empty() {
            continue;
        }
        let Some(VectorQuery::Formula(formula)) = &query.request.query else {
            query.replace_prefetches(run.settings.metric, &lists)?;
            continue;
        };
        let scored = formula::hits(run, Formula::clone(formula), &lists, found);
        let scored = Box::pin(scored).await?;
        found = scored.found;
        query.replace_by_scored(scored.hits);
    }
    Ok(found)
}

struct PrefetchHits {
    /// The hits of each prefetch.
    lists: Vec<MergedKeys>,
    found: Completeness,
}

/// Returns the hits of prefetches without prefetches of their own. `found` is the completeness of
/// the rounds before.
async fn hits(
    run: &QueriedCollection<'_>,
    prefetches: &[RootQuery],
    mut found: Completeness,
) -> Result<PrefetchHits> {
    let mut lists = Vec::with_capacity(prefetches.len());
    // Prefetches that the shards answer in one read.
    let mut plain = Vec::new();
    for (at, prefetch) in prefetches.iter().enumerate() {
        let mut list = MergedKeys::default();
        if let Some(fused) = &prefetch.fused {
            let fused = fused.iter().take(prefetch.range().limit);
            list.hits = fused.map(|hit| PointKey::scored(hit.id, hit.score)).collect();
        } else if let Some(chosen) = run.own_rounds(prefetch, found).await? {
            found = chosen.found;
            let key = |scored: &ScoredHit| PointKey::scored(scored.hit.id, scored.score);
            list.hits = chosen.hits.iter().map(key).collect();
        } else {
            plain.push(at);
        }
        lists.push(list);
    }
    let queries: Vec<&RootQuery> = plain.iter().filter_map(|at| prefetches.get(*at)).collect();
    let read = batch_hits(run, &queries, found).await?;
    for (at, list) in plain.into_iter().zip(read.lists) {
        if let Some(place) = lists.get_mut(at) {
            *place = list;
        }
    }
    Ok(PrefetchHits { lists, found: read.found })
}

/// Returns the hits of queries without rounds of their own, which the shards answer in one read.
async fn batch_hits(
    run: &QueriedCollection<'_>,
    queries: &[&RootQuery],
    found: Completeness,
) -> Result<PrefetchHits> {
    if queries.is_empty() {
        return Ok(PrefetchHits { lists: Vec::new(), found });
    }
    let ids: Vec<PointId> = queries.iter().flat_map(|query| query.ids()).collect();
    let vectors = run.point_vectors(&ids).await?;
    let mut searches = Vec::with_capacity(queries.len());
    for query in queries {
        searches.push(query.for_shards(&vectors)?);
    }
    let body = split::raw(&HashMap::from([("searches", searches)]))?;
    let read = of_all(run.context, run.record, "points/query/batch", body);
    let read = answers(run.context, &read).await?;
    let mut found = found.after(read.coverage);
    let metric = run.settings.metric;
    let ranges: Vec<(HitOrder, HitRange)> =
        queries.iter().map(|query| (query.order(metric), query.range())).collect();
    let merge = move |results: &ResultTexts| {
        let texts: Vec<&RawValue> = results.values().map(|result| &**result).collect();
        merge::batch_keys(ShardResults { results: &texts, incomplete: false }, &ranges)
    };
    let lists = run.context.compute_results(read, merge).await?;
    for list in &lists {
        found = found.or_partial(list.partial);
    }
    Ok(PrefetchHits { lists, found })
}

impl RootQuery {
    /// Checks the vector's name of a fusion or a formula. The root joins or scores the hits of its
    /// prefetches, so no shard checks the name.
    ///
    /// # Errors
    /// `InvalidArgument` for the name of another vector.
    fn check_vector_name(&self, settings: &CollectionSettings) -> Result<()> {
        let using = self.request.using.as_str();
        match &self.request.query {
            Some(VectorQuery::Fuse(_) | VectorQuery::Formula(_)) if !using.is_empty() => {
                check_using(settings, using)
            }
            _ => Ok(()),
        }
    }

    /// Returns the prefetches as queries of the collection. The filter of the query holds for them
    /// too, and they do not find the points that the query names.
    fn prefetches(&self) -> Result<Vec<RootQuery>> {
        let texts: Vec<&RawValue> = match self.members.get("prefetch") {
            Some(list) if !self.request.prefetch.is_empty() => texts(list)?,
            _ => Vec::new(),
        };
        let filter = self.members.get("filter").map(|filter| &**filter);
        let filter = filter.filter(|filter| filter.get() != "null");
        let ids = self.ids();
        let others = if ids.is_empty() { None } else { Some(without(filter, &ids)?) };
        let outer = others.as_deref().or(filter);
        let prefetch = |text: &RawValue| -> Result<RootQuery> {
            let mut query = RootQuery::read(text.get().as_bytes())?;
            let own = query.members.get("filter").map(|filter| &**filter);
            let both = split::all_of([outer, own])?;
            query.members.insert("filter".to_owned(), both);
            Ok(query)
        };
        texts.into_iter().map(prefetch).collect()
    }

    /// Raises the limits of the prefetches to `all` hits, as one server does for groups.
    ///
    /// # Errors
    /// `Internal` if the text of a prefetch is not an object.
    pub(super) fn raise_prefetches(&mut self, all: usize) -> Result<()> {
        raise_limits(&mut self.request.prefetch, all);
        self.write_limits()
    }

    /// Multiplies the limits of the prefetches by the size of a group, as one server does.
    ///
    /// # Errors
    /// As [`RootQuery::raise_prefetches`].
    pub(super) fn scale_prefetches(&mut self, group_size: usize) -> Result<()> {
        scale_limits(&mut self.request.prefetch, group_size);
        self.write_limits()
    }

    /// Writes the limits of the prefetches into their texts.
    fn write_limits(&mut self) -> Result<()> {
        if let Some(text) = self.members.get_mut("prefetch") {
            *text = with_limits(text, &self.request.prefetch)?;
        }
        Ok(())
    }

    /// Replaces the prefetches by their hits.
    fn replace_prefetches(&mut self, metric: Metric, found: &[MergedKeys]) -> Result<()> {
        self.members.remove("prefetch");
        let prefetches = std::mem::take(&mut self.request.prefetch);
        if let Some(VectorQuery::Fuse(fusion)) = &self.request.query {
            let lists = prefetches.iter().zip(found).map(|(prefetch, found)| {
                // A score that is not a number has no JSON.
                let score = |key: &PointKey| key.score().unwrap_or(f32::NAN);
                let by_distance = prefetch.scores_by_distance();
                let hit =
                    |key: &PointKey| FusionHit::new(by_distance, metric, key.point(), score(key));
                found.hits.iter().map(hit).collect()
            });
            let joined = fusion.join(&lists.collect::<Vec<_>>());
            self.replace_by_scored(joined);
            return Ok(());
        }
        let candidates = found.iter().flat_map(|found| &found.hits).map(PointKey::point).collect();
        self.rank_only(&candidates)
    }

    /// Replaces the prefetches by their hits with the scores of the query, best first.
    fn replace_by_scored(&mut self, mut hits: Vec<FusionHit<PointId>>) {
        self.members.remove("prefetch");
        self.request.prefetch.clear();
        let least = self.request.score_threshold;
        hits.retain(|hit| least.is_none_or(|least| hit.score >= least));
        self.fused = Some(hits);
    }

    /// Makes the query an exact one of `candidates`.
    fn rank_only(&mut self, candidates: &BTreeSet<PointId>) -> Result<()> {
        self.members.insert("params".to_owned(), split::raw(&json!({ "exact": true }))?);
        let is_candidate = split::raw(&any_of(candidates))?;
        let outer = self.members.get("filter").map(|filter| &**filter);
        let both = split::all_of([outer, Some(&is_candidate)])?;
        self.members.insert("filter".to_owned(), both);
        Ok(())
    }
}

/// Returns the filter of the points of `ids`. One condition has at most [`VALUES_MAX`] ids.
fn any_of(ids: &BTreeSet<PointId>) -> Value {
    if ids.len() <= VALUES_MAX {
        return json!({ "must": [{ "has_id": ids }] });
    }
    let ids: Vec<PointId> = ids.iter().copied().collect();
    let conditions = ids.chunks(VALUES_MAX).map(|ids| json!({ "has_id": ids }));
    json!({ "should": conditions.collect::<Vec<Value>>() })
}

/// Returns the texts of one prefetch or of a list of them.
///
/// # Errors
/// As [`merge::read`].
fn texts(prefetches: &RawValue) -> Result<Vec<&RawValue>> {
    if prefetches.get().trim_start().starts_with('[') {
        merge::read(prefetches)
    } else {
        Ok(vec![prefetches])
    }
}

/// Returns the text of prefetches with the limits of `requests`, which were read from it.
///
/// # Errors
/// As [`merge::read`].
fn with_limits(prefetches: &RawValue, requests: &[QueryRequest]) -> Result<Box<RawValue>> {
    if requests.is_empty() {
        return Ok(prefetches.to_owned());
    }
    let mut list = Vec::with_capacity(requests.len());
    for (text, request) in texts(prefetches)?.into_iter().zip(requests) {
        let mut members: RawMembers = merge::read(text)?;
        members.insert("limit".to_owned(), split::raw(&request.limit())?);
        if let Some(inner) = members.get_mut("prefetch") {
            *inner = with_limits(inner, &request.prefetch)?;
        }
        list.push(members);
    }
    split::raw(&list)
}

#[cfg(test)]
mod tests {
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
    fn a_query_ranks_more_hits_than_a_condition_has_ids() {
        let mut query = query(&json!({"query": [1], "prefetch": {"query": [2]}}));
        let ids = (0..=VALUES_MAX as u64).map(PointId::Number);
        let hits = ids.map(|id| PointKey::scored(id, 0.5)).collect();
        query.replace_prefetches(Metric::Dot, &[MergedKeys { hits, partial: false }]).unwrap();
        let text = query.members["filter"].get();
        let filter: Value = serde_json::from_str(text).unwrap();
        let counts = |at: usize| filter["must"][0]["should"][at]["has_id"].as_array().map(Vec::len);
        assert_eq!([0, 1, 2].map(counts), [Some(VALUES_MAX), Some(1), None]);
        // A holder accepts the filter.
        api_qdrant::json::parse_filter(text.as_bytes()).unwrap().check().unwrap();
        assert_eq!(any_of(&BTreeSet::new()), json!({ "must": [{ "has_id": [] }] }));
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
    fn limits_of_all_prefetches_are_raised() {
        let mmr = json!({"query": {"nearest": [1], "mmr": {}}, "limit": 2});
        let one = json!({"query": [2], "prefetch": mmr});
        let other = json!({"query": [3], "prefetch": null, "limit": 7000});
        let mut fusion = query(&json!({"query": {"fusion": "rrf"}, "prefetch": [one, other]}));
        fusion.raise_prefetches(5000).unwrap();
        let limits = |queries: &[RootQuery]| -> Vec<usize> {
            queries.iter().map(|query| query.range().limit).collect()
        };
        let first = fusion.prefetches().unwrap();
        assert_eq!(limits(&first), [5000, 7000]);
        assert_eq!(limits(&first[0].prefetches().unwrap()), [1024], "mmr has a lower maximum");
        let mut plain = query(&json!({"query": [1], "prefetch": null}));
        plain.raise_prefetches(5000).unwrap();
        assert_eq!(plain.members["prefetch"].get(), "null");
        let sources = json!([{"query": [2], "limit": 5}, {"query": [3], "limit": 7000}]);
        let mut grouped = query(&json!({"query": [1], "prefetch": sources}));
        grouped.scale_prefetches(3).unwrap();
        assert_eq!(limits(&grouped.prefetches().unwrap()), [15, 7000]);
    }

    #[test]
    fn filters_hold_for_prefetches_of_prefetches() {
        let [outer, own, inner] = ["a", "b", "c"].map(|key| json!({ "is_null": { "key": key } }));
        let filter = |one: &Value| json!({ "must": [one] });
        let query = query(&json!({
            "query": [1], "filter": filter(&outer),
            "prefetch": {"query": [2], "filter": filter(&own), "prefetch": [{"query": [3], "filter": filter(&inner)}]},
        }));
        let first = query.prefetches().unwrap();
        let second = first[0].prefetches().unwrap();
        let text: Value = serde_json::from_str(second[0].members["filter"].get()).unwrap();
        let both = json!({ "must": [filter(&outer), filter(&own)] });
        assert_eq!(text, json!({ "must": [both, filter(&inner)] }));
        assert!(second[0].prefetches().unwrap().is_empty());
    }

    #[test]
    fn prefetches_do_not_find_the_points_of_the_query() {
        for filter in [Value::Null, json!({ "must": [] })] {
            let query = query(&json!({"query": 7, "filter": filter, "prefetch": {"query": [2]}}));
            let prefetches = query.prefetches().unwrap();
            let text = prefetches[0].members["filter"].get();
            assert!(text.contains("\"must_not\":[{\"has_id\":[7]}]"), "{text}");
        }
    }
}
