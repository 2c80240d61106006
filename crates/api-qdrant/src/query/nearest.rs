//! Queries for the points nearest to a vector, which may be the mean of examples.

use std::time::Instant;

use base::{Error, Result};
use search::collection::{CollectionQuery, PointParts};
use search::filter::{Condition, Filter};
use search::points::PointId;
use search::{HITS_MAX, ScanParams};

use super::lookup::ExampleSource;
use super::{EXAMPLES_MAX, QueryRun, RankedHit, RankedHits};
use crate::json::{QueryRequest, SearchParams, VectorInput, VectorQuery};
use crate::mmr::{self, MmrCandidate};
use crate::scores;

/// A query with its vector.
pub(super) struct ResolvedQuery {
    /// The vector; empty if the query compares none.
    pub(super) embedding: Vec<f32>,
    /// Internal ids of points that the vector was made from. They are not hits.
    examples: Vec<u64>,
}

/// Limits of a search for the nearest points.
struct NearestLimits<'a> {
    count: usize,
    params: &'a SearchParams,
    filter: Option<Filter>,
    score_threshold: Option<f32>,
}

impl QueryRun<'_> {
    /// Returns at most `count` hits of a query that compares vectors.
    pub(super) fn ranked(
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
                NearestLimits { count: depth, params: &request.params, filter, score_threshold };
            self.nearest(&resolved, limits)?
        } else {
            // The examples do not count towards the limit of a prefetch.
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
            return Err(Error::deadline(
                "query: the request timed out while its examples were read; allow more time",
            ));
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
    fn nearest(&mut self, query: &ResolvedQuery, limits: NearestLimits<'_>) -> Result<RankedHits> {
        let NearestLimits { count, params, filter, score_threshold } = limits;
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

    /// Turns similarities into scores, and leaves out hits that are not better than `threshold`.
    pub(super) fn scored(
        &self,
        hits: impl Iterator<Item = (u64, f32)>,
        threshold: Option<f32>,
    ) -> Vec<RankedHit> {
        let metric = self.named.settings().metric;
        hits.map(|(id, similarity)| RankedHit::scored(id, scores::score(metric, similarity)))
            .filter(|hit| scores::passes(metric, hit.score, threshold))
            .collect()
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

/// Returns the effort of a search. Qdrant's beam of the graph and its oversampling both become the
/// number of candidates that are compared exactly.
pub(crate) fn effort(params: &SearchParams, count: usize) -> ScanParams {
    if params.exact == Some(true) {
        return ScanParams::EXACT;
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
