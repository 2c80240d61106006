//! Queries that score each point by its similarities to several vectors.
//!
//! No index has such scores. If few points match, all of them are compared. Otherwise the index
//! finds candidates near each positive example and near the target, and these are compared exactly.

use std::cmp::Ordering;
use std::time::Instant;

use base::{Error, Result};
use search::HITS_MAX;
use search::collection::{CollectionQuery, IDS_MAX, PointParts};
use search::filter::Filter;
use search::registry::CollectionSettings;

use crate::examples::{ExampleQuery, ExampleVectors};
use crate::json::{QueryRequest, VectorInput};
use crate::query::{self, EXAMPLES_MAX, PrefetchedPoints, QueryRun, RankedHit, RankedHits};
use crate::retrieve::CHUNK;
use crate::scores;

/// Maximum points that match a query and are all compared, without candidates from the index.
const COMPARED_POINTS_MAX: u64 = 10_000;
/// Minimum candidates from the index for each positive example and for the target.
const CANDIDATES_MIN: usize = 256;
/// Maximum candidates of one query, of all its examples together.
const CANDIDATES_TOTAL_MAX: usize = 1 << 20;
/// Maximum number of hits beyond twice the wanted number, before the list is pruned to the best.
const UNSORTED_MAX: usize = 64;

/// Best hits so far.
struct BestHits {
    count: usize,
    hits: Vec<ExampleHit>,
    /// True if points may be missing.
    partial: bool,
}

/// A point and its score.
struct ExampleHit {
    id: u64,
    score: f32,
}

impl BestHits {
    fn new(count: usize) -> BestHits {
        BestHits { count, hits: Vec::new(), partial: false }
    }

    fn offer(&mut self, id: u64, score: f32) {
        self.hits.push(ExampleHit { id, score });
        if self.hits.len() >= 2 * self.count + UNSORTED_MAX {
            self.prune();
        }
    }

    /// Sorts the hits, and keeps the best.
    fn prune(&mut self) {
        self.hits.sort_unstable_by(better);
        self.hits.truncate(self.count);
    }

    /// Returns the hits with a score above `threshold`, best first.
    fn ranked(mut self, threshold: Option<f32>) -> RankedHits {
        self.prune();
        let passes = |hit: &ExampleHit| threshold.is_none_or(|threshold| hit.score > threshold);
        let hits = self.hits.into_iter().filter(passes);
        RankedHits {
            hits: hits.map(|hit| RankedHit::scored(hit.id, hit.score)).collect(),
            partial: self.partial,
        }
    }
}

/// Returns an example as the collection stores vectors.
///
/// # Errors
/// `InvalidArgument` for a wrong number of values; as [`scores::check_comparable`].
fn stored_example(settings: &CollectionSettings, values: Vec<f32>) -> Result<Vec<f32>> {
    let stored = scores::embedding(settings, values)?;
    scores::check_comparable(&stored)?;
    Ok(stored)
}

/// Orders by descending score, then by id.
fn better(one: &ExampleHit, other: &ExampleHit) -> Ordering {
    other.score.total_cmp(&one.score).then(one.id.cmp(&other.id))
}

impl QueryRun<'_> {
    /// Returns at most `count` hits of a query by several vectors. Points among its examples are no
    /// hits.
    ///
    /// # Errors
    /// `InvalidArgument` for too many examples or candidates and for a vector that cannot be
    /// compared; `NotFound` for an example that is not a point; `DeadlineExceeded`; the errors of
    /// the search.
    pub(crate) fn by_examples(
        &mut self,
        query: ExampleQuery,
        request: &QueryRequest,
        count: usize,
        filter: Option<Filter>,
    ) -> Result<RankedHits> {
        let mut examples = Vec::new();
        let vectors = self.example_vectors(query, request, &mut examples)?;
        let mut best = BestHits::new(count);
        let filter = query::excluding(filter, &examples);
        if request.prefetch.is_empty() {
            self.compare_matching(&vectors, request, filter.as_ref(), &mut best)?;
        } else {
            let PrefetchedPoints { ids, partial } = self.prefetched(request, filter.as_ref())?;
            best.partial |= partial;
            self.compare(&vectors, &ids, &mut best)?;
        }
        Ok(best.ranked(request.score_threshold))
    }

    /// Returns the vectors of a query. Adds the points among its examples to `examples`.
    fn example_vectors(
        &self,
        query: ExampleQuery,
        request: &QueryRequest,
        examples: &mut Vec<u64>,
    ) -> Result<ExampleVectors> {
        let count = query.inputs().count();
        if count > EXAMPLES_MAX {
            return Err(Error::invalid(format!(
                "query: {count} examples are more than the {EXAMPLES_MAX} of one query"
            )));
        }
        let source = self.example_source(request)?;
        let settings = self.named.settings();
        let mut stored = |inputs: Vec<VectorInput>| -> Result<Vec<Vec<f32>>> {
            let vectors = self.vectors(inputs, &source, examples)?.into_iter();
            let stored = vectors.map(|values| stored_example(&settings, values));
            stored.collect::<Result<_>>().map_err(|error| error.context("query"))
        };
        let ExampleQuery { rule, target, positive, negative } = query;
        let target = stored(target.into_iter().collect())?.pop();
        let positive = stored(positive)?;
        let negative = stored(negative)?;
        Ok(ExampleVectors { rule, target, positive, negative })
    }

    /// Compares points that match `filter`. It compares all of them if they are few, if the request
    /// wants exact answers, or if there is neither a target nor a positive example. Otherwise it
    /// compares candidates from the index.
    fn compare_matching(
        &mut self,
        vectors: &ExampleVectors,
        request: &QueryRequest,
        filter: Option<&Filter>,
        best: &mut BestHits,
    ) -> Result<()> {
        let matching = self.named.count(filter)?;
        best.partial |= matching.partial;
        let all = request.params.exact == Some(true)
            || matching.count <= COMPARED_POINTS_MAX
            || vectors.attractive().next().is_none();
        if !all {
            let candidates = self.candidates(vectors, request, filter, best)?;
            return self.compare(vectors, &candidates, best);
        }
        let mut from = Some(0);
        while let Some(first) = from {
            let list = self.named.collection().ids_from(first, IDS_MAX, filter)?;
            best.partial |= list.partial;
            self.compare(vectors, &list.ids, best)?;
            let last = list.ids.last().filter(|_| list.more);
            from = last.and_then(|last| last.checked_add(1));
        }
        Ok(())
    }

    /// Returns the nearest points of the target and of each positive example, in ascending order.
    fn candidates(
        &mut self,
        vectors: &ExampleVectors,
        request: &QueryRequest,
        filter: Option<&Filter>,
        best: &mut BestHits,
    ) -> Result<Vec<u64>> {
        let depth = best.count.clamp(CANDIDATES_MIN, HITS_MAX);
        let searches = vectors.attractive().count();
        if searches.saturating_mul(depth) > CANDIDATES_TOTAL_MAX {
            return Err(Error::invalid(format!(
                "query: {searches} examples with {depth} candidates each have more than \
                 {CANDIDATES_TOTAL_MAX} together; lower the limit or give fewer examples"
            )));
        }
        let mut ids = Vec::new();
        for vector in vectors.attractive() {
            self.check_time()?;
            let search = CollectionQuery {
                params: query::effort(&request.params, depth),
                exact: query::reads_vectors(&request.params),
                filter,
                deadline: Some(self.deadline),
                ..CollectionQuery::nearest(vector, depth)
            };
            let found = self.named.collection().nearest(self.thread, &search)?;
            best.partial |= found.partial;
            ids.extend(found.hits.iter().map(|hit| hit.id));
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Offers the points of `ids` with their exact scores to `best`.
    fn compare(&self, vectors: &ExampleVectors, ids: &[u64], best: &mut BestHits) -> Result<()> {
        let metric = self.named.settings().metric;
        let parts = PointParts { embedding: true, ..PointParts::NONE };
        for ids in ids.chunks(CHUNK) {
            self.check_time()?;
            for point in self.named.collection().points(ids, parts) {
                match point {
                    Ok(Some(point)) => {
                        best.offer(point.id, vectors.score(metric, &point.embedding));
                    }
                    // The point was removed meanwhile.
                    Ok(None) => {}
                    Err(_) => best.partial = true,
                }
            }
        }
        Ok(())
    }

    /// Checks that the query may take more time.
    ///
    /// # Errors
    /// `DeadlineExceeded`.
    pub(crate) fn check_time(&self) -> Result<()> {
        if Instant::now() > self.deadline {
            return Err(Error::deadline(
                "query: the request timed out before all points were read; allow more time, or limit the points \
                 by a filter",
            ));
        }
        Ok(())
    }
}
