//! Queries: nearest points from the index, ranked exactly, or the ranked hits of prefetches.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use crate::json::{self, OrderBy, QueryRequest, ScoredPoint, VectorQuery, WithPayload};
use base::{Error, Result};
use search::collection::{CANDIDATES_MAX, OrderValue, OrderedPoint, PointParts, SearchThread};
use search::filter::{Condition, Filter};
use search::points::{NUMBERS_MAX, PointId};
use search::registry::NamedCollection;
use serde::Serialize;
use serde_json::Number;

use crate::call::CallContext;
use crate::filters;
use crate::retrieve::{self, CHUNK, Projection, ResponseBudget};
use crate::scores;

mod batch;
mod lookup;
mod nearest;
mod prefetch;

#[cfg(test)]
pub(crate) use batch::batch;
pub(crate) use batch::{BatchProgress, batch_in_steps};
pub(crate) use nearest::{effort, excluding, reads_vectors};
pub(crate) use prefetch::PrefetchedPoints;

/// Maximum examples of one query, positive and negative together.
pub(crate) const EXAMPLES_MAX: usize = 1024;

/// Hits of a query, best first.
#[derive(Serialize)]
pub(crate) struct QueryResponse {
    pub(crate) points: Vec<ScoredPoint>,
    #[serde(skip_serializing_if = "retrieve::is_false")]
    pub(crate) partial: bool,
    /// Positions of the points that a date ordered, only for a root of a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) order_dates: Option<Range<usize>>,
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

/// Points that may be hits of a query.
struct QueryScope {
    filter: Option<Filter>,
    /// True if points may be missing.
    partial: bool,
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
/// `InvalidArgument` for a malformed request; `NotFound` for an example that is not a point;
/// `DeadlineExceeded`; the errors of the search.
pub(crate) fn query(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<QueryResponse> {
    let request = context.parse_query(body)?;
    let run = QueryRun { named, thread, context, deadline: context.deadline };
    run.answer(request, None, &mut ResponseBudget::new(context))
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
        let count = self.hits_to_find(request.query.as_ref(), limit, offset)?;
        self.check_using(&request.using, request.query.as_ref())?;
        let payload = request.with_payload.take().unwrap_or(WithPayload::All(false));
        let projection = Projection::new(self.named, payload, request.with_vector.as_ref())?;
        let filter =
            request.filter.take().map(|filter| filters::prepare(self.named, filter)).transpose()?;
        let mut ranked = match hits {
            Some(hits) => hits,
            None => self.find(request.query.take(), &request, count, filter)?,
        };
        ranked.hits.drain(..offset.min(ranked.hits.len()));
        self.present(ranked, &projection, budget)
    }

    /// Returns at most `count` hits of `query`, which is the query of `request`. Without a query,
    /// returns the first points in the order of their ids.
    ///
    /// # Errors
    /// As [`query`], with the position of the prefetch that fails; `InvalidArgument` for more than
    /// [`CANDIDATES_MAX`] hits in the order of a field.
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
                if ordered.hits.len() > CANDIDATES_MAX {
                    return Err(limit_too_high(request.limit(), request.offset()));
                }
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
        Ok(QueryScope { filter: join_filters(filter, Some(is_found)), partial: found.partial })
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

    /// Checks the vector's name. A request whose query has no vector may omit it.
    ///
    /// # Errors
    /// `InvalidArgument` for the name of another vector.
    pub(crate) fn check_using(&self, using: &str, query: Option<&VectorQuery>) -> Result<()> {
        if using.is_empty() && !query.is_some_and(VectorQuery::has_vector) {
            return Ok(());
        }
        scores::check_using(&self.named.settings(), using)
    }

    /// Returns the number of hits of `query` to find. If the request has a high limit, this is at
    /// most the number of points of the collection. A query with order_by can have more hits than
    /// that. [`QueryRun::find`] then finds one hit more than [`CANDIDATES_MAX`], and refuses it.
    ///
    /// # Errors
    /// `InvalidArgument` for a limit of 0 or more than [`CANDIDATES_MAX`] hits; the error of the
    /// medium.
    pub(crate) fn hits_to_find(
        &self,
        query: Option<&VectorQuery>,
        limit: usize,
        offset: usize,
    ) -> Result<usize> {
        let mut count = limit.saturating_add(offset);
        if limit > 0 && count > CANDIDATES_MAX {
            let points = usize::try_from(self.named.count(None)?.count).unwrap_or(usize::MAX);
            // A point is a hit once for each of its values.
            if points <= CANDIDATES_MAX && matches!(query, Some(VectorQuery::OrderBy(_))) {
                return Ok(CANDIDATES_MAX + 1);
            }
            count = count.min(points.max(1));
        }
        if limit == 0 || count > CANDIDATES_MAX {
            return Err(limit_too_high(limit, offset));
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

    /// Reads the requested parts of hits. A hit with a damaged payload is left out, and the
    /// response is partial then. No point is read if no part is requested and no payload has an id.
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
        let ids_only = !projection.payload.any() && !projection.vector;
        if ids_only && ranked.hits.iter().all(|hit| hit.id < NUMBERS_MAX) {
            return self.present_ids(ranked, budget);
        }
        let RankedHits { hits, mut partial } = ranked;
        let mut order_dates = None;
        let mut points = Vec::with_capacity(hits.len());
        for hits in hits.chunks(CHUNK) {
            let ids: Vec<u64> = hits.iter().map(|hit| hit.id).collect();
            for (point, hit) in self.named.resolve(&ids, projection.parts()).into_iter().zip(hits) {
                let point = match point {
                    Ok(Some(point)) => point,
                    // The point was removed after the search.
                    Ok(None) => continue,
                    Err(error) if retrieve::concerns_one_point(&error) => {
                        partial = true;
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let record = projection.record(point);
                budget.add_or_fail(&record)?;
                let json::PointRecord { id, payload, vector, .. } = record;
                retrieve::add_date(&mut order_dates, points.len(), hit.value);
                let order_value = hit.order_value();
                points.push(ScoredPoint {
                    id,
                    version: 0,
                    score: hit.score,
                    payload,
                    vector,
                    order_value,
                });
            }
        }
        order_dates = order_dates.filter(|_| self.context.for_root());
        Ok(QueryResponse { points, partial, order_dates })
    }

    /// Returns hits with their ids and scores only. Reads no point, so the internal ids must be the
    /// ids of clients.
    ///
    /// # Errors
    /// The error of [`ResponseBudget::add_values`].
    fn present_ids(
        &self,
        ranked: RankedHits,
        budget: &mut ResponseBudget,
    ) -> Result<QueryResponse> {
        let RankedHits { hits, partial } = ranked;
        let mut order_dates = None;
        for (at, hit) in hits.iter().enumerate() {
            retrieve::add_date(&mut order_dates, at, hit.value);
        }
        order_dates = order_dates.filter(|_| self.context.for_root());
        budget.add_values::<ScoredPoint>(hits.len())?;
        let scored = |hit: RankedHit| {
            let id = PointId::Number(hit.id);
            let payload = None;
            let vector = None;
            let order_value = hit.order_value();
            ScoredPoint { id, version: 0, score: hit.score, payload, vector, order_value }
        };
        let points = hits.into_iter().map(scored).collect();
        Ok(QueryResponse { points, partial, order_dates })
    }
}

fn limit_too_high(limit: usize, offset: usize) -> Error {
    Error::invalid(format!(
        "limit: {limit} after an offset of {offset} is not within 1 and {CANDIDATES_MAX}; scroll for more"
    ))
}

/// Returns a filter for the points that both filters accept; `None` accepts all.
pub(crate) fn join_filters(one: Option<Filter>, other: Option<Filter>) -> Option<Filter> {
    match (one, other) {
        (Some(one), Some(other)) => Some(Filter {
            must: vec![Condition::Nested(one), Condition::Nested(other)],
            ..Filter::default()
        }),
        (one, other) => one.or(other),
    }
}
