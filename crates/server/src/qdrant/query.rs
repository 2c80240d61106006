//! Queries: coarse, then exact over the best; or over what prefetches found.

use std::collections::BTreeSet;
use std::time::Instant;

use base::{Error, Result};
use protocol::qdrant::{self as wire, QueryRequest, ScoredPoint, SearchParams, VectorInput, VectorQuery};
use search::coarse::{HITS_MAX, ScanParams};
use search::collection::{CANDIDATES_MAX, CollectionQuery, PointParts, SearchThread};
use search::filter::{Condition, Filter};
use search::points::NUMBERS_MAX;
use search::registry::NamedCollection;
use serde::Serialize;

use super::call::CallContext;
use super::convert;
use super::mmr;
use super::retrieve::{self, CHUNK, Projection, ResponseBudget};

/// Prefetches of one query.
const PREFETCHES_MAX: usize = 16;
/// Candidates that answers which differ from each other are chosen from; each is compared with each that is
/// chosen.
const DIVERSE_MAX: usize = 1024;
/// Examples of one query, liked and disliked together.
const EXAMPLES_MAX: usize = 1024;
/// Queries of one batch.
const BATCH_MAX: usize = 1024;

/// What was found.
#[derive(Serialize)]
pub(super) struct QueryResponse {
    pub(super) points: Vec<ScoredPoint>,
    #[serde(skip_serializing_if = "retrieve::is_false")]
    pub(super) partial: bool,
}

/// Ids that the collection knows, with how alike they are, best first.
#[derive(Default)]
struct RankedHits {
    hits: Vec<(u64, f32)>,
    partial: bool,
}

/// A query that has become a vector.
struct ResolvedQuery {
    embedding: Vec<f32>,
    /// Points that it was made from, which are no answers to it.
    examples: Vec<u64>,
}

pub(super) fn query(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<QueryResponse> {
    run(named, thread, context, wire::parse(body)?, &mut ResponseBudget::default())
}

/// The answers in the order of the queries; where one fails, all do.
pub(super) fn batch(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<Vec<QueryResponse>> {
    let request: wire::QueryBatchRequest = wire::parse(body)?;
    if request.searches.len() > BATCH_MAX {
        return Err(Error::invalid(format!(
            "searches: more than {BATCH_MAX} queries in one request; send several"
        )));
    }
    let mut budget = ResponseBudget::default();
    let queries = request.searches.into_iter().enumerate();
    queries
        .map(|(at, query)| {
            if Instant::now() > context.deadline {
                return Err(Error::deadline(format!(
                    "searches[{at}]: the time is up; send fewer in one request"
                )));
            }
            run(named, thread, context, query, &mut budget)
                .map_err(|error| error.context(format_args!("searches[{at}]")))
        })
        .collect()
}

fn run(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    mut request: QueryRequest,
    budget: &mut ResponseBudget,
) -> Result<QueryResponse> {
    let (limit, offset) = (request.limit(), request.offset());
    let count = wanted_hits(named, limit, offset)?;
    convert::check_using(&named.settings(), using(&request.using, request.query.is_some(), named).as_str())?;
    let projection = Projection::new(named, false, request.with_payload.take(), request.with_vector.as_ref());
    let filter = request.filter.as_ref().map(|filter| convert::clause(named, filter)).transpose()?;
    let (query, threshold) = (request.query.take(), request.score_threshold);
    let Some(query) = query else {
        if !request.prefetch.is_empty() {
            return Err(Error::invalid("query: a query is needed to rank what the prefetches found"));
        }
        let mut ranked = in_order(named, count, filter.as_ref())?;
        ranked.hits.drain(..offset.min(ranked.hits.len()));
        return present(named, ranked, &projection, budget);
    };
    let (query, diversity) = diversity(query, limit, count)?;
    let depth = diversity.map_or(count, |(_, candidates)| candidates);
    let resolved = resolve(named, context, query)?;
    let mut ranked = if request.prefetch.is_empty() {
        nearest(named, thread, context, &resolved, depth, &request.params, filter, threshold)?
    } else {
        over_prefetches(named, thread, context, &resolved, &request, filter.as_ref(), threshold)?
    };
    ranked.hits.truncate(depth);
    if let Some((diversity, _)) = diversity {
        diversify(named, &mut ranked, diversity, count);
    }
    ranked.hits.drain(..offset.min(ranked.hits.len()));
    present(named, ranked, &projection, budget)
}

/// A query for answers that differ from each other: as one for the nearest, with how much they shall differ,
/// and how many of the nearest they are chosen from.
fn diversity(query: VectorQuery, limit: usize, count: usize) -> Result<(VectorQuery, Option<(f32, usize)>)> {
    let VectorQuery::Diverse { target, diversity, candidates } = query else { return Ok((query, None)) };
    let candidates = candidates.unwrap_or(limit);
    if candidates == 0 || candidates.max(count) > DIVERSE_MAX {
        return Err(Error::invalid(format!(
            "mmr chooses from 1 to {DIVERSE_MAX} candidates, not from {candidates}"
        )));
    }
    Ok((VectorQuery::Nearest(target), Some((diversity, candidates))))
}

/// Keeps at most `count` hits that differ from each other. One whose vector is damaged is left out.
fn diversify(named: &NamedCollection, ranked: &mut RankedHits, diversity: f32, count: usize) {
    let metric = named.settings().metric;
    let ids: Vec<u64> = ranked.hits.iter().map(|(id, _)| *id).collect();
    let (mut hits, mut candidates) = (Vec::new(), Vec::new());
    for (found, hit) in
        named.resolve(&ids, PointParts { embedding: true, ..PointParts::NONE }).into_iter().zip(&ranked.hits)
    {
        match found {
            Ok(Some(point)) => {
                candidates.push((point.embedding, convert::similarity(metric, hit.1)));
                hits.push(*hit);
            }
            Ok(None) => {}
            Err(_) => ranked.partial = true,
        }
    }
    let chosen = mmr::choose(metric, &candidates, diversity, count);
    ranked.hits = chosen.into_iter().filter_map(|at| hits.get(at).copied()).collect();
}

/// The vector's name that a request means: one without a query need not say.
fn using(using: &str, asks: bool, named: &NamedCollection) -> String {
    if asks || !using.is_empty() { using.to_owned() } else { named.settings().vector_name.clone() }
}

/// How many hits to look for. More than a collection has points are as many as it has.
fn wanted_hits(named: &NamedCollection, limit: usize, offset: usize) -> Result<usize> {
    let mut count = limit.saturating_add(offset);
    if count > CANDIDATES_MAX {
        let points = usize::try_from(named.count(None)?.count).unwrap_or(usize::MAX);
        count = count.min(points.max(1));
    }
    if limit == 0 || count > CANDIDATES_MAX {
        return Err(Error::invalid(format!(
            "limit: {limit} after an offset of {offset} is not within 1 and {CANDIDATES_MAX}; scroll for more"
        )));
    }
    Ok(count)
}

fn in_order(named: &NamedCollection, count: usize, filter: Option<&Filter>) -> Result<RankedHits> {
    let found = named.scroll(None, count, filter, PointParts::NONE)?;
    let hits = found.points.iter().map(|point| (named.internal(&point.id), 1.0)).collect();
    Ok(RankedHits { hits, partial: found.partial })
}

/// The vector that a query means.
fn resolve(named: &NamedCollection, context: &CallContext, query: VectorQuery) -> Result<ResolvedQuery> {
    let settings = named.settings();
    let mut examples = Vec::new();
    let embedding = match query {
        VectorQuery::Nearest(target) | VectorQuery::Diverse { target, .. } => {
            vectors(named, vec![target], &mut examples)?.pop().unwrap_or_default()
        }
        VectorQuery::Recommend { positive, negative } => {
            let count = positive.len() + negative.len();
            if count > EXAMPLES_MAX {
                return Err(Error::invalid(format!(
                    "query: {count} examples are more than the {EXAMPLES_MAX} of one query"
                )));
            }
            let liked = mean(named, positive, &mut examples)?;
            if negative.is_empty() {
                liked
            } else {
                let disliked = mean(named, negative, &mut examples)?;
                liked.iter().zip(&disliked).map(|(liked, disliked)| liked + liked - disliked).collect()
            }
        }
    };
    if Instant::now() > context.deadline {
        return Err(Error::deadline("query: the time was up once its examples were read"));
    }
    let embedding = convert::embedding(&settings, embedding).map_err(|error| error.context("query"))?;
    Ok(ResolvedQuery { embedding, examples })
}

/// The vectors of targets, in their order. Points among them are read together, and added to `examples`.
fn vectors(
    named: &NamedCollection,
    targets: Vec<VectorInput>,
    examples: &mut Vec<u64>,
) -> Result<Vec<Vec<f32>>> {
    let mut ids = Vec::new();
    for target in &targets {
        if let VectorInput::Id(id) = target {
            ids.push(convert::point_id(*id)?);
        }
    }
    let parts = PointParts { embedding: true, ..PointParts::NONE };
    let mut found = named.get_parts(&ids, parts).into_iter().zip(&ids);
    let mut vectors = Vec::with_capacity(targets.len());
    for target in targets {
        if let VectorInput::Vector(values) = target {
            vectors.push(values);
            continue;
        }
        let Some((point, id)) = found.next() else { break };
        let missing = || Error::not_found(format!("query: Not found: No point with id {id} found"));
        vectors.push(point?.ok_or_else(missing)?.embedding);
        examples.push(named.internal(id));
    }
    Ok(vectors)
}

fn mean(named: &NamedCollection, targets: Vec<VectorInput>, examples: &mut Vec<u64>) -> Result<Vec<f32>> {
    let settings = named.settings();
    let count = targets.len() as f32;
    let mut sum = vec![0.0f32; settings.dims];
    for values in vectors(named, targets, examples)? {
        if values.len() != sum.len() {
            // Says what is wrong with it.
            convert::embedding(&settings, values)?;
            continue;
        }
        sum.iter_mut().zip(&values).for_each(|(sum, value)| *sum += value);
    }
    sum.iter_mut().for_each(|sum| *sum /= count);
    Ok(sum)
}

/// `filter` without the points that a query was made from.
fn without(filter: Option<Filter>, examples: &[u64]) -> Option<Filter> {
    if examples.is_empty() {
        return filter;
    }
    // Outside, so that what the filter itself allows is kept for the next query.
    let must = filter.map(Condition::Nested).into_iter().collect();
    Some(Filter { must, must_not: vec![Condition::has_id(examples.to_vec())], ..Filter::default() })
}

fn both(one: Option<Filter>, other: Option<Filter>) -> Option<Filter> {
    match (one, other) {
        (Some(one), Some(other)) => {
            Some(Filter { must: vec![Condition::Nested(one), Condition::Nested(other)], ..Filter::default() })
        }
        (one, other) => one.or(other),
    }
}

#[allow(clippy::too_many_arguments, reason = "what one query carries")]
fn nearest(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    resolved: &ResolvedQuery,
    count: usize,
    params: &SearchParams,
    filter: Option<Filter>,
    threshold: Option<f32>,
) -> Result<RankedHits> {
    let filter = without(filter, &resolved.examples);
    let (looks, exact) = effort(params, count);
    let query = CollectionQuery {
        params: looks,
        exact,
        filter: filter.as_ref(),
        deadline: Some(context.deadline),
        ..CollectionQuery::nearest(&resolved.embedding, count)
    };
    let found = named.collection().nearest(thread, &query)?;
    let metric = named.settings().metric;
    let hits = found.hits.iter().map(|hit| (hit.id, convert::score(metric, hit.score)));
    let hits = hits.filter(|(_, score)| convert::passes(metric, *score, threshold)).collect();
    Ok(RankedHits { hits, partial: found.partial })
}

/// How hard to look, and whether vectors are read to rank exactly. What Qdrant calls the beam of its graph,
/// and the surplus of candidates over hits, is here how many candidates are compared exactly.
fn effort(params: &SearchParams, count: usize) -> (ScanParams, bool) {
    let quantization = params.quantization.clone().unwrap_or_default();
    let exact = params.exact == Some(true);
    if exact {
        return (ScanParams { probes: usize::MAX, refine: HITS_MAX }, true);
    }
    let surplus = quantization.oversampling.filter(|factor| factor.is_finite() && *factor > 1.0);
    // A float becomes the nearest whole number there is, and the index has its own bound.
    let surplus = surplus.map_or(0, |factor| (count as f64 * factor).ceil().min(HITS_MAX as f64) as usize);
    let refine = surplus.max(params.hnsw_ef.unwrap_or(0)).min(HITS_MAX);
    let rescore = quantization.rescore != Some(false) || quantization.ignore == Some(true);
    (ScanParams { probes: 0, refine }, rescore)
}

/// Ranks exactly what the prefetches found. The outer filter holds for them too, so that their limits count
/// only what may be found in the end.
fn over_prefetches(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    resolved: &ResolvedQuery,
    request: &QueryRequest,
    filter: Option<&Filter>,
    threshold: Option<f32>,
) -> Result<RankedHits> {
    if request.prefetch.len() > PREFETCHES_MAX {
        return Err(Error::invalid(format!("prefetch: more than {PREFETCHES_MAX} in one query")));
    }
    let (mut candidates, mut partial) = (BTreeSet::new(), false);
    for (at, prefetch) in request.prefetch.iter().enumerate() {
        let found = one_prefetch(named, thread, context, prefetch, filter)
            .map_err(|error| error.context(format_args!("prefetch[{at}]")))?;
        partial |= found.partial;
        candidates.extend(found.hits.iter().map(|(id, _)| *id));
    }
    let candidates: Vec<u64> = candidates.into_iter().filter(|id| !resolved.examples.contains(id)).collect();
    let metric = named.settings().metric;
    let scores = named.scores(thread, &resolved.embedding, &candidates)?;
    partial |= scores.iter().any(Option::is_none);
    let mut ranked: Vec<(u64, f32)> =
        candidates.into_iter().zip(scores).filter_map(|(id, score)| Some((id, score?))).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let hits = ranked.into_iter().map(|(id, similarity)| (id, convert::score(metric, similarity)));
    let hits = hits.filter(|(_, score)| convert::passes(metric, *score, threshold)).collect();
    Ok(RankedHits { hits, partial })
}

fn one_prefetch(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    prefetch: &wire::Prefetch,
    outer: Option<&Filter>,
) -> Result<RankedHits> {
    let count = wanted_hits(named, prefetch.limit(), 0)?;
    let name = using(&prefetch.using, prefetch.query.is_some(), named);
    convert::check_using(&named.settings(), &name)?;
    let own = prefetch.filter.as_ref().map(|filter| convert::clause(named, filter)).transpose()?;
    let filter = both(outer.cloned(), own);
    match prefetch.query.clone() {
        None => in_order(named, count, filter.as_ref()),
        Some(VectorQuery::Diverse { .. }) => Err(Error::unimplemented(
            "mmr in a prefetch is not supported by this server; use it in the outer query",
        )),
        Some(query) => {
            let resolved = resolve(named, context, query)?;
            nearest(
                named,
                thread,
                context,
                &resolved,
                count,
                &prefetch.params,
                filter,
                prefetch.score_threshold,
            )
        }
    }
}

/// Hits as clients see them. One whose payload is damaged is left out, and the answer says that it is
/// partial.
fn present(
    named: &NamedCollection,
    ranked: RankedHits,
    projection: &Projection,
    budget: &mut ResponseBudget,
) -> Result<QueryResponse> {
    let RankedHits { hits, mut partial } = ranked;
    let plain =
        !projection.payload.any() && !projection.vector && hits.iter().all(|(id, _)| *id < NUMBERS_MAX);
    if plain {
        let scored = |(id, score)| ScoredPoint {
            id: wire::PointId::Number(id),
            version: 0,
            score,
            payload: None,
            vector: None,
        };
        return Ok(QueryResponse { points: hits.into_iter().map(scored).collect(), partial });
    }
    let mut points = Vec::with_capacity(hits.len());
    for hits in hits.chunks(CHUNK) {
        let ids: Vec<u64> = hits.iter().map(|(id, _)| *id).collect();
        for (found, (_, score)) in named.resolve(&ids, projection.parts()).into_iter().zip(hits) {
            match found {
                Ok(Some(point)) => {
                    let wire::PointRecord { id, payload, vector } = projection.record(point);
                    budget.must_add(payload.as_ref(), vector.as_ref())?;
                    points.push(ScoredPoint { id, version: 0, score: *score, payload, vector });
                }
                // Removed since it was found.
                Ok(None) => {}
                Err(error) if retrieve::concerns_one(&error) => partial = true,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(QueryResponse { points, partial })
}
