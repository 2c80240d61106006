//! Batches of queries of one collection.

use std::time::Instant;

use base::{Error, Result};
use search::collection::{CANDIDATES_MAX, CollectionQuery, SearchThread, forget_progress};
use search::registry::NamedCollection;

use super::{QueryResponse, QueryRun, RankedHit, RankedHits, effort, reads_vectors};
use crate::call::CallContext;
use crate::json::{self, QueryRequest, SearchParams, VectorInput, VectorQuery};
use crate::retrieve::ResponseBudget;
use crate::scores;

/// Maximum queries of one batch.
const BATCH_MAX: usize = 1024;
/// Maximum hits of all queries of one batch. A hit takes about 200 bytes until it is sent.
const BATCH_HITS_MAX: usize = 1 << 20;

/// Query of a batch for the nearest points of a vector, without a filter.
struct PlainQuery<'a> {
    embedding: Vec<f32>,
    /// Number of hits to find.
    count: usize,
    params: &'a SearchParams,
    score_threshold: Option<f32>,
}

/// Answers of a batch so far. A pause keeps them, because their filters may be evicted from the
/// cache meanwhile, and would be evaluated again.
#[derive(Default)]
pub(crate) struct BatchProgress {
    responses: Vec<QueryResponse>,
    budget: Option<ResponseBudget>,
    /// Hits of queries that shared passes, by the position of the query, until they are used. The
    /// list is `None` before the passes.
    shared: Option<Vec<Option<RankedHits>>>,
}

/// Answers queries in order, from the first one without an answer in `progress`.
///
/// # Errors
/// The first error of a query, with its position: it fails the whole batch. `InvalidArgument` for
/// more than [`BATCH_MAX`] queries or [`BATCH_HITS_MAX`] hits.
pub(crate) fn batch_in_steps(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
    progress: &mut BatchProgress,
) -> Result<Vec<QueryResponse>> {
    let request: json::QueryBatchRequest = json::parse(body)?;
    if request.searches.len() > BATCH_MAX {
        return Err(Error::invalid(format!(
            "searches: more than {BATCH_MAX} queries in one request; send several"
        )));
    }
    let deadline = context.deadline;
    if progress.shared.is_none() {
        let mut run = QueryRun { named, thread: &mut *thread, context, deadline };
        run.check_batch(&request.searches)?;
        let shared = run.nearest_together(&request.searches)?;
        let hits: usize = shared.iter().flatten().map(|ranked| ranked.hits.len()).sum();
        // A pause keeps them too.
        let budget = progress.budget.insert(ResponseBudget::new(context));
        budget.add_values::<RankedHit>(hits)?;
        progress.shared = Some(shared);
    }
    let answered = progress.responses.len();
    for (at, query) in request.searches.into_iter().enumerate().skip(answered) {
        if Instant::now() > deadline {
            return Err(Error::deadline(format!(
                "searches[{at}]: the time is up; send fewer in one request"
            )));
        }
        let shared = progress.shared.as_mut().and_then(|shared| shared.get_mut(at));
        let hits = shared.and_then(Option::take);
        let run = QueryRun { named, thread: &mut *thread, context, deadline };
        let budget = progress.budget.get_or_insert_with(|| ResponseBudget::new(context));
        let response = run.answer(query, hits, budget);
        let response = response.map_err(|error| error.context(format_args!("searches[{at}]")))?;
        progress.responses.push(response);
        // An answered query does not run again.
        forget_progress();
    }
    Ok(std::mem::take(&mut progress.responses))
}

/// Answers a batch in one step.
#[cfg(test)]
pub(crate) fn batch(
    named: &NamedCollection,
    thread: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<Vec<QueryResponse>> {
    batch_in_steps(named, thread, context, body, &mut BatchProgress::default())
}

impl QueryRun<'_> {
    /// Checks how many hits the queries of a batch may find together.
    ///
    /// # Errors
    /// `InvalidArgument` for more than [`BATCH_HITS_MAX`]; the error of the medium.
    fn check_batch(&self, searches: &[QueryRequest]) -> Result<()> {
        let points = usize::try_from(self.named.count(None)?.count).unwrap_or(usize::MAX);
        let hits_max = |request: &QueryRequest| {
            let count = request.limit().saturating_add(request.offset());
            match request.query {
                // A point is a hit once for each of its values.
                Some(VectorQuery::OrderBy(_)) => count.min(CANDIDATES_MAX),
                _ => count.min(points),
            }
        };
        let hits = searches.iter().map(hits_max).fold(0, usize::saturating_add);
        if hits > BATCH_HITS_MAX {
            return Err(Error::invalid(format!(
                "searches: the queries may find {hits} hits together, and at most {BATCH_HITS_MAX} are returned; \
                 lower their limits, or send fewer in one request"
            )));
        }
        Ok(())
    }

    /// Answers the queries that only search for the nearest points of a vector, if such queries can
    /// share passes over the codes. Returns `None` for other and failed queries.
    fn nearest_together(&mut self, searches: &[QueryRequest]) -> Result<Vec<Option<RankedHits>>> {
        let mut shared: Vec<Option<RankedHits>> = searches.iter().map(|_| None).collect();
        if searches.len() < 2 || !self.named.collection().shares_scans() {
            return Ok(shared);
        }
        let plain: Vec<(usize, PlainQuery<'_>)> = searches
            .iter()
            .enumerate()
            .filter_map(|(at, request)| Some((at, self.plain(request)?)))
            .collect();
        let queries: Vec<CollectionQuery<'_>> = plain
            .iter()
            .map(|(_, query)| CollectionQuery {
                params: effort(query.params, query.count),
                exact: query.params.exact == Some(true) || reads_vectors(query.params),
                deadline: Some(self.deadline),
                ..CollectionQuery::nearest(&query.embedding, query.count)
            })
            .collect();
        let found = self.named.collection().nearest_many(self.thread, &queries)?;
        for ((at, query), found) in plain.iter().zip(found) {
            let hits = found.hits.iter().map(|hit| (hit.id, hit.score));
            let hits = self.scored(hits, query.score_threshold);
            shared[*at] = Some(RankedHits { hits, partial: found.partial });
        }
        Ok(shared)
    }

    /// Returns the request as a query for the nearest points of a vector without a filter; `None`
    /// for other requests and for requests that fail.
    fn plain<'r>(&self, request: &'r QueryRequest) -> Option<PlainQuery<'r>> {
        let Some(VectorQuery::Nearest(VectorInput::Vector(values))) = &request.query else {
            return None;
        };
        if !request.prefetch.is_empty() || request.filter.is_some() || request.lookup_from.is_some()
        {
            return None;
        }
        self.check_using(&request.using, request.query.as_ref()).ok()?;
        let count =
            self.hits_to_find(request.query.as_ref(), request.limit(), request.offset()).ok()?;
        let embedding = scores::embedding(&self.named.settings(), values.clone()).ok()?;
        Some(PlainQuery {
            embedding,
            count,
            params: &request.params,
            score_threshold: request.score_threshold,
        })
    }
}
