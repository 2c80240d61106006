//! Queries: nearest points from the index, ranked exactly, or the ranked hits of prefetches.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use crate::json::{
    self, OrderBy, QueryRequest, ScoredPoint, SearchParams, VectorInput, VectorQuery,
};
use base::{Error, Result};
use search::coarse::{HITS_MAX, ScanParams};
use search::collection::{
    CANDIDATES_MAX, CollectionQuery, OrderValue, OrderedPoint, PointParts, SearchThread,
};
use search::filter::{Condition, Filter};
use search::points::{NUMBERS_MAX, PointId};
use search::registry::NamedCollection;
use serde::Serialize;
use serde_json::Number;

use crate::call::CallContext;
use crate::filters;
use crate::fusion::{Fusion, FusionHit};
use crate::lookup::ExampleSource;
use crate::mmr::{self, MmrCandidate};
use crate::retrieve::{self, CHUNK, Projection, ResponseBudget};
use crate::scores;

mod batch;

#[cfg(test)]
pub(crate) use batch::batch;
pub(crate) use batch::{BatchProgress, batch_in_steps};

/// Maximum examples of one query, positive and negative together.
pub(crate) const EXAMPLES_MAX: usize = 1024;

/// Hits of a query, best first.
#[derive(Serialize)]
pub(crate) struct QueryResponse {
    pub(crate) points: Vec<ScoredPoint>,
    #[serde(skip_serializing_if = "retrieve::is_false")]
    pub(crate) partial: bool,
}

/// Score of hits that no vector ranks.
pub(crate) const UNRANKED_SCORE: f32 = 1.0;

/// A hit before its point is read.
#[derive(Clone, Copy)]
pub(crate) struct RankedHit {
    /// The internal id.
    pub(crate) id: u64,
    /// The score as clients see it.
    pub(crate) score: f32,
    /// The value that the hit was ordered by.
    value: Option<OrderValue>,
}

impl RankedHit {
    pub(crate) fn scored(id: u64, score: f32) -> RankedHit {
        RankedHit { id, score, value: None }
    }

    fn order_value(&self) -> Option<Number> {
        self.value.and_then(OrderValue::to_number)
    }
}

/// Hits of a query before their points are read.
pub(crate) struct RankedHits {
    /// Hits, best first.
    pub(crate) hits: Vec<RankedHit>,
    /// True if hits may be missing.
    pub(crate) partial: bool,
}

impl RankedHits {
    /// Returns the score of each hit, by its id.
    pub(crate) fn scores(&self) -> HashMap<u64, f32> {
        self.hits.iter().map(|hit| (hit.id, hit.score)).collect()
    }
}

/// Points that the prefetches of a query find, in the order of their ids.
pub(crate) struct PrefetchedPoints {
    pub(crate) ids: Vec<u64>,
    pub(crate) partial: bool,
}

/// Points that may be hits of a query.
struct QueryScope {
    filter: Option<Filter>,
    /// True if points may be missing.
    partial: bool,
}

/// A query with its vector.
struct ResolvedQuery {
    /// The vector; empty if the query compares none.
    embedding: Vec<f32>,
    /// Internal ids of points that the vector was made from. They are no hits.
    examples: Vec<u64>,
}

/// Limits of a search for the nearest points.
struct SearchLimits<'a> {
    count: usize,
    params: &'a SearchParams,
    filter: Option<Filter>,
    score_threshold: Option<f32>,
}

/// One query and the thread that answers it.
pub(crate) struct QueryRun<'a> {
    pub(crate) named: &'a NamedCollection,
    pub(crate) thread: &'a mut SearchThread,
    pub(crate) context: &'a CallContext,
    pub(crate) deadline: Instant,
}

/// Answers one query.
///
/// # Errors
/// `InvalidArgument` for a malformed request; `NotFound` for an example that is no point;
/// `DeadlineExceeded`; the errors of the search.
pub(crate) fn query(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<QueryResponse> {
    let request: QueryRequest = json::parse(body)?;
    let run = QueryRun { named, thread, context, deadline: context.deadline };
    run.answer(request, None, &mut ResponseBudget::default())
}

impl QueryRun<'_> {
    /// Answers a query, from `hits` if they are known already.
    fn answer(
        mut self,
        mut request: QueryRequest,
        hits: Option<RankedHits>,
        budget: &mut ResponseBudget,
    ) -> Result<QueryResponse> {
        request.check_prefetches()?;
        let limit = request.limit();
        let offset = request.offset();
        let count = self.hits_to_find(limit, offset)?;
        let has_vector = request.query.as_ref().is_some_and(VectorQuery::has_vector);
        self.check_using(&request.using, has_vector)?;
        let projection = Projection::new(
            self.named,
            false,
            request.with_payload.take(),
            request.with_vector.as_ref(),
        )?;
        let filter =
            request.filter.take().map(|filter| filters::prepare(self.named, filter)).transpose()?;
        let mut ranked = match hits {
            Some(hits) => hits,
            None => self.find(request.query.take(), &request, count, filter)?,
        };
        ranked.hits.drain(..offset.min(ranked.hits.len()));
        self.present(ranked, &projection, budget)
    }

    /// Returns at most `count` hits of `query`, which is the query of `request`; without a query,
    /// the first points in the order of their ids.
    ///
    /// # Errors
    /// As [`query`], with the place of a prefetch that fails.
    pub(crate) fn find(
        &mut self,
        query: Option<VectorQuery>,
        request: &QueryRequest,
        count: usize,
        filter: Option<Filter>,
    ) -> Result<RankedHits> {
        match query {
            Some(VectorQuery::OrderBy(order)) => {
                let scope = self.scope(request, filter)?;
                let mut ordered = self.ordered(&order, count, scope.filter.as_ref())?;
                ordered.partial |= scope.partial;
                Ok(ordered)
            }
            Some(VectorQuery::Sample) => {
                let scope = self.scope(request, filter)?;
                let mut chosen = self.sampled(count, scope.filter.as_ref())?;
                chosen.partial |= scope.partial;
                Ok(chosen)
            }
            Some(VectorQuery::Fuse(fusion)) => {
                let mut fused = self.fused(&fusion, request, filter.as_ref())?;
                fused.hits.truncate(count);
                Ok(fused)
            }
            Some(VectorQuery::Examples(query)) => self.by_examples(query, request, count, filter),
            Some(VectorQuery::Formula(formula)) => {
                self.by_formula(*formula, request, count, filter.as_ref())
            }
            Some(query) => self.ranked(query, request, count, filter),
            None => self.first_points(count, filter.as_ref()),
        }
    }

    /// Returns the filter of the points that may be hits: with prefetches, only their hits.
    fn scope(&mut self, request: &QueryRequest, filter: Option<Filter>) -> Result<QueryScope> {
        if request.prefetch.is_empty() {
            return Ok(QueryScope { filter, partial: false });
        }
        let found = self.prefetched(request, filter.as_ref())?;
        let is_found = Filter { must: vec![Condition::has_id(found.ids)], ..Filter::default() };
        Ok(QueryScope { filter: both(filter, Some(is_found)), partial: found.partial })
    }

    /// Returns the first points in the order of a field.
    fn ordered(
        &self,
        order: &OrderBy,
        count: usize,
        filter: Option<&Filter>,
    ) -> Result<RankedHits> {
        let found = retrieve::ordered(self.named, order, filter, count)?;
        let hit = |point: &OrderedPoint| RankedHit {
            id: point.id,
            score: UNRANKED_SCORE,
            value: Some(point.value),
        };
        Ok(RankedHits { hits: found.points.iter().map(hit).collect(), partial: found.partial })
    }

    /// Returns at most `count` hits of a query that compares vectors.
    fn ranked(
        &mut self,
        query: VectorQuery,
        request: &QueryRequest,
        count: usize,
        filter: Option<Filter>,
    ) -> Result<RankedHits> {
        let mmr = match &query {
            VectorQuery::Mmr { diversity, candidates, .. } => {
                Some((*diversity, mmr::candidates(candidates.unwrap_or(request.limit()), count)?))
            }
            _ => None,
        };
        let depth = mmr.map_or(count, |(_, candidates)| candidates);
        let resolved = self.resolve(query, request)?;
        let mut ranked = if request.prefetch.is_empty() {
            let score_threshold = request.score_threshold;
            let limits =
                SearchLimits { count: depth, params: &request.params, filter, score_threshold };
            self.nearest(&resolved, limits)?
        } else {
            // A prefetch finds as many other points as its limit says.
            let filter = excluding(filter, &resolved.examples);
            self.over_prefetches(&resolved, request, filter.as_ref())?
        };
        ranked.hits.truncate(depth);
        if let Some((diversity, _)) = mmr {
            self.diversify(&mut ranked, diversity, count);
        }
        Ok(ranked)
    }

    /// Keeps at most `count` hits that differ from each other. A hit with a damaged vector is left
    /// out.
    fn diversify(&self, ranked: &mut RankedHits, diversity: f32, count: usize) {
        let metric = self.named.settings().metric;
        let ids: Vec<u64> = ranked.hits.iter().map(|hit| hit.id).collect();
        let points = self.named.resolve(&ids, PointParts { embedding: true, ..PointParts::NONE });
        let mut hits = Vec::with_capacity(ids.len());
        let mut candidates = Vec::with_capacity(ids.len());
        for (point, hit) in points.into_iter().zip(&ranked.hits) {
            match point {
                Ok(Some(point)) => {
                    candidates.push(MmrCandidate::new(metric, point.embedding, hit.score));
                    hits.push(*hit);
                }
                Ok(None) => {}
                Err(_) => ranked.partial = true,
            }
        }
        let chosen = mmr::choose(metric, &candidates, diversity, count);
        ranked.hits = chosen.into_iter().filter_map(|at| hits.get(at).copied()).collect();
    }

    /// Checks the vector's name. A request without a vector may leave it out.
    ///
    /// # Errors
    /// `InvalidArgument` for the name of another vector.
    pub(crate) fn check_using(&self, using: &str, has_vector: bool) -> Result<()> {
        if !has_vector && using.is_empty() {
            return Ok(());
        }
        scores::check_using(&self.named.settings(), using)
    }

    /// Returns the number of hits to find: at most the collection's points if the request has a
    /// high limit.
    ///
    /// # Errors
    /// `InvalidArgument` for a limit of 0 or more than [`CANDIDATES_MAX`] hits; the error of the
    /// medium.
    pub(crate) fn hits_to_find(&self, limit: usize, offset: usize) -> Result<usize> {
        let mut count = limit.saturating_add(offset);
        if count > CANDIDATES_MAX {
            let points = usize::try_from(self.named.count(None)?.count).unwrap_or(usize::MAX);
            count = count.min(points.max(1));
        }
        if limit == 0 || count > CANDIDATES_MAX {
            return Err(Error::invalid(format!(
                "limit: {limit} after an offset of {offset} is not within 1 and {CANDIDATES_MAX}; scroll for more"
            )));
        }
        Ok(count)
    }

    /// Returns the first points in the order of their ids.
    fn first_points(&self, count: usize, filter: Option<&Filter>) -> Result<RankedHits> {
        let page = self.named.scroll(None, count, filter, PointParts::NONE)?;
        let hit = |id| RankedHit::scored(self.named.internal(id), UNRANKED_SCORE);
        Ok(RankedHits {
            hits: page.points.iter().map(|point| hit(&point.id)).collect(),
            partial: page.partial,
        })
    }

    /// Computes a query's vector from its targets. A recommendation has the mean of its positive
    /// examples or, with negative ones, twice that mean less the mean of the negative examples.
    ///
    /// # Errors
    /// `InvalidArgument` for too many examples or a vector of another length; `NotFound` for a
    /// point that does not exist; `DeadlineExceeded`; the error of the medium.
    fn resolve(&self, query: VectorQuery, request: &QueryRequest) -> Result<ResolvedQuery> {
        let source = self.example_source(request)?;
        let mut examples = Vec::new();
        let embedding = match query {
            VectorQuery::OrderBy(_)
            | VectorQuery::Fuse(_)
            | VectorQuery::Examples(_)
            | VectorQuery::Formula(_)
            | VectorQuery::Sample => Vec::new(),
            VectorQuery::Nearest(target) | VectorQuery::Mmr { target, .. } => {
                self.vectors(vec![target], &source, &mut examples)?.pop().unwrap_or_default()
            }
            VectorQuery::Recommend { positive, negative } => {
                let count = positive.len() + negative.len();
                if count > EXAMPLES_MAX {
                    return Err(Error::invalid(format!(
                        "query: {count} examples are more than the {EXAMPLES_MAX} of one query"
                    )));
                }
                let liked = self.mean(positive, &source, &mut examples)?;
                if negative.is_empty() {
                    liked
                } else {
                    let disliked = self.mean(negative, &source, &mut examples)?;
                    liked
                        .iter()
                        .zip(&disliked)
                        .map(|(liked, disliked)| liked + liked - disliked)
                        .collect()
                }
            }
        };
        if Instant::now() > self.deadline {
            return Err(Error::deadline("query: the time was up once its examples were read"));
        }
        let embedding = scores::embedding(&self.named.settings(), embedding);
        Ok(ResolvedQuery {
            embedding: embedding.map_err(|error| error.context("query"))?,
            examples,
        })
    }

    /// Returns the vectors of targets, in their order. Points among them are read together, from
    /// `source`. Adds those of the queried collection to `examples`.
    pub(crate) fn vectors(
        &self,
        targets: Vec<VectorInput>,
        source: &ExampleSource,
        examples: &mut Vec<u64>,
    ) -> Result<Vec<Vec<f32>>> {
        let named = source.collection().unwrap_or(self.named);
        let ids: Vec<PointId> = targets
            .iter()
            .filter_map(|target| match target {
                VectorInput::Id(id) => Some(*id),
                VectorInput::Vector(_) => None,
            })
            .collect();
        let parts = PointParts { embedding: true, ..PointParts::NONE };
        let mut points = named.get_parts(&ids, parts).into_iter();
        let mut vectors = Vec::with_capacity(targets.len());
        for target in targets {
            match target {
                VectorInput::Vector(values) => vectors.push(values),
                VectorInput::Id(id) => {
                    let missing = || {
                        Error::not_found(format!("query: Not found: No point with id {id} found"))
                    };
                    let point = points.next().unwrap_or(Ok(None))?.ok_or_else(missing)?;
                    vectors.push(point.embedding);
                    if source.collection().is_none() {
                        examples.push(self.named.internal(&id));
                    }
                }
            }
        }
        Ok(vectors)
    }

    /// Returns the mean of the vectors of targets. Adds the points among them to `examples`.
    ///
    /// # Errors
    /// As [`QueryRun::resolve`].
    fn mean(
        &self,
        targets: Vec<VectorInput>,
        source: &ExampleSource,
        examples: &mut Vec<u64>,
    ) -> Result<Vec<f32>> {
        let settings = self.named.settings();
        let count = targets.len() as f32;
        let mut sum = vec![0.0f32; settings.dims];
        for values in self.vectors(targets, source, examples)? {
            if values.len() != sum.len() {
                // Fails with the message about the length.
                scores::embedding(&settings, values)?;
                continue;
            }
            sum.iter_mut().zip(&values).for_each(|(sum, value)| *sum += value);
        }
        sum.iter_mut().for_each(|sum| *sum /= count);
        Ok(sum)
    }

    /// Returns the nearest points of a query within `limits`, without its examples.
    fn nearest(&mut self, query: &ResolvedQuery, limits: SearchLimits<'_>) -> Result<RankedHits> {
        let SearchLimits { count, params, filter, score_threshold } = limits;
        let filter = excluding(filter, &query.examples);
        let exact = params.exact == Some(true);
        let search = CollectionQuery {
            params: effort(params, count),
            exact: exact || reads_vectors(params),
            filter: filter.as_ref(),
            deadline: Some(self.deadline),
            ..CollectionQuery::nearest(&query.embedding, count)
        };
        let found = self.named.collection().nearest(self.thread, &search)?;
        let hits = found.hits.iter().map(|hit| (hit.id, hit.score));
        Ok(RankedHits { hits: self.scored(hits, score_threshold), partial: found.partial })
    }

    /// Turns similarities into scores, and leaves out hits of a worse score than `threshold`.
    fn scored(
        &self,
        hits: impl Iterator<Item = (u64, f32)>,
        threshold: Option<f32>,
    ) -> Vec<RankedHit> {
        let metric = self.named.settings().metric;
        hits.map(|(id, similarity)| RankedHit::scored(id, scores::score(metric, similarity)))
            .filter(|hit| scores::passes(metric, hit.score, threshold))
            .collect()
    }

    /// Ranks the hits of the prefetches exactly. The outer filter holds for them too, so that their
    /// limits count only points that can be hits in the end.
    fn over_prefetches(
        &mut self,
        query: &ResolvedQuery,
        request: &QueryRequest,
        filter: Option<&Filter>,
    ) -> Result<RankedHits> {
        let PrefetchedPoints { ids: candidates, mut partial } = self.prefetched(request, filter)?;
        let similarities =
            self.named.collection().scores(self.thread, &query.embedding, &candidates)?;
        partial |= similarities.iter().any(Option::is_none);
        let mut ranked: Vec<(u64, f32)> = candidates
            .into_iter()
            .zip(similarities)
            .filter_map(|(id, similarity)| Some((id, similarity?)))
            .collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        Ok(RankedHits { hits: self.scored(ranked.into_iter(), request.score_threshold), partial })
    }

    /// Returns the points that the prefetches find.
    pub(crate) fn prefetched(
        &mut self,
        request: &QueryRequest,
        filter: Option<&Filter>,
    ) -> Result<PrefetchedPoints> {
        let mut ids = BTreeSet::new();
        let mut partial = false;
        for found in self.prefetches(request, filter)? {
            partial |= found.partial;
            ids.extend(found.hits.iter().map(|hit| hit.id));
        }
        Ok(PrefetchedPoints { ids: ids.into_iter().collect(), partial })
    }

    /// Joins the hits of the prefetches.
    fn fused(
        &mut self,
        fusion: &Fusion,
        request: &QueryRequest,
        filter: Option<&Filter>,
    ) -> Result<RankedHits> {
        let metric = self.named.settings().metric;
        let found = self.prefetches(request, filter)?;
        let list = |(found, prefetch): (&RankedHits, &QueryRequest)| {
            let hits = found.hits.iter();
            let by_distance = prefetch.scores_by_distance();
            hits.map(|hit| FusionHit::new(by_distance, metric, hit.id, hit.score)).collect()
        };
        let lists: Vec<Vec<FusionHit<u64>>> =
            found.iter().zip(&request.prefetch).map(list).collect();
        let joined = fusion.join(&lists);
        let passes =
            |hit: &FusionHit<u64>| request.score_threshold.is_none_or(|least| hit.score >= least);
        let hits = joined.into_iter().filter(passes);
        Ok(RankedHits {
            hits: hits.map(|hit| RankedHit::scored(hit.id, hit.score)).collect(),
            partial: found.iter().any(|found| found.partial),
        })
    }

    /// Returns the hits of each prefetch.
    pub(crate) fn prefetches(
        &mut self,
        request: &QueryRequest,
        filter: Option<&Filter>,
    ) -> Result<Vec<RankedHits>> {
        let mut all = Vec::with_capacity(request.prefetch.len());
        for (at, prefetch) in request.prefetch.iter().enumerate() {
            let found = self.prefetch(prefetch, filter);
            all.push(found.map_err(|error| error.context(format_args!("prefetch[{at}]")))?);
        }
        Ok(all)
    }

    /// Returns the hits of one prefetch. `outer` is the filter of the query around it.
    fn prefetch(&mut self, prefetch: &QueryRequest, outer: Option<&Filter>) -> Result<RankedHits> {
        let count = self.hits_to_find(prefetch.limit(), 0)?;
        let has_vector = prefetch.query.as_ref().is_some_and(VectorQuery::has_vector);
        self.check_using(&prefetch.using, has_vector)?;
        let own = prefetch
            .filter
            .clone()
            .map(|filter| filters::prepare(self.named, filter))
            .transpose()?;
        let filter = both(outer.cloned(), own);
        self.find(prefetch.query.clone(), prefetch, count, filter)
    }

    /// Reads the requested parts of hits. A hit with a damaged payload is left out, and the
    /// response is partial then. No point is read if no part is requested and all ids are numbers.
    ///
    /// # Errors
    /// The error of [`ResponseBudget::add_or_fail`] for a response that is too large; the error of
    /// the medium.
    pub(crate) fn present(
        &self,
        ranked: RankedHits,
        projection: &Projection,
        budget: &mut ResponseBudget,
    ) -> Result<QueryResponse> {
        let RankedHits { hits, mut partial } = ranked;
        let ids_only = !projection.payload.any() && !projection.vector;
        if ids_only && hits.iter().all(|hit| hit.id < NUMBERS_MAX) {
            let scored = |hit: RankedHit| {
                let id = PointId::Number(hit.id);
                let payload = None;
                let vector = None;
                let order_value = hit.order_value();
                ScoredPoint { id, version: 0, score: hit.score, payload, vector, order_value }
            };
            return Ok(QueryResponse { points: hits.into_iter().map(scored).collect(), partial });
        }
        let mut points = Vec::with_capacity(hits.len());
        for hits in hits.chunks(CHUNK) {
            let ids: Vec<u64> = hits.iter().map(|hit| hit.id).collect();
            for (point, hit) in self.named.resolve(&ids, projection.parts()).into_iter().zip(hits) {
                match point {
                    Ok(Some(point)) => {
                        let record = projection.record(point);
                        budget.add_or_fail(&record)?;
                        let json::PointRecord { id, payload, vector, .. } = record;
                        points.push(ScoredPoint {
                            id,
                            version: 0,
                            score: hit.score,
                            payload,
                            vector,
                            order_value: hit.order_value(),
                        });
                    }
                    // Removed since the search.
                    Ok(None) => {}
                    Err(error) if retrieve::concerns_one_point(&error) => partial = true,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(QueryResponse { points, partial })
    }
}

/// Returns `filter` without the points that a query was made from.
pub(crate) fn excluding(filter: Option<Filter>, examples: &[u64]) -> Option<Filter> {
    if examples.is_empty() {
        return filter;
    }
    // Nested, so that the rows of the filter itself are cached for the next query.
    let must = filter.map(Condition::Nested).into_iter().collect();
    Some(Filter { must, must_not: vec![Condition::has_id(examples.to_vec())], ..Filter::default() })
}

/// Returns a filter for the points that both filters accept; `None` accepts all.
pub(crate) fn both(one: Option<Filter>, other: Option<Filter>) -> Option<Filter> {
    match (one, other) {
        (Some(one), Some(other)) => Some(Filter {
            must: vec![Condition::Nested(one), Condition::Nested(other)],
            ..Filter::default()
        }),
        (one, other) => one.or(other),
    }
}

/// Returns the effort of a search. Qdrant's beam of the graph and its oversampling both become the
/// number of candidates that are compared exactly.
pub(crate) fn effort(params: &SearchParams, count: usize) -> ScanParams {
    if params.exact == Some(true) {
        return ScanParams { probes: usize::MAX, refine: HITS_MAX };
    }
    let oversampling =
        params.quantization.as_ref().and_then(|quantization| quantization.oversampling);
    let oversampling = oversampling.filter(|factor| factor.is_finite() && *factor > 1.0);
    // Bounded before the cast: a float may be larger than any usize.
    let candidates = oversampling
        .map_or(0, |factor| (count as f64 * factor).ceil().min(HITS_MAX as f64) as usize);
    ScanParams { probes: 0, refine: candidates.max(params.hnsw_ef.unwrap_or(0)).min(HITS_MAX) }
}

/// Returns true if exact vectors rank the candidates, which a request can switch off.
pub(crate) fn reads_vectors(params: &SearchParams) -> bool {
    let quantization = params.quantization.clone().unwrap_or_default();
    quantization.rescore != Some(false) || quantization.ignore == Some(true)
}
