//! Prefetches of a query: their hits, as points to rank or as lists to join.

use std::collections::BTreeSet;

use base::Result;
use search::filter::Filter;

use super::nearest::ResolvedQuery;
use super::{QueryRun, RankedHit, RankedHits, join_filters};
use crate::filters;
use crate::fusion::{Fusion, FusionHit};
use crate::json::QueryRequest;
use crate::scores;

/// Points that the prefetches of a query find, in the order of their ids.
pub(crate) struct PrefetchedPoints {
    pub(crate) ids: Vec<u64>,
    pub(crate) partial: bool,
}

impl QueryRun<'_> {
    /// Ranks the hits of the prefetches exactly. The outer filter holds for them too, so that their
    /// limits count only points that can be final hits.
    ///
    /// # Errors
    /// As [`scores::check_comparable`] and [`QueryRun::prefetches`]; the error of the medium.
    pub(super) fn over_prefetches(
        &mut self,
        query: &ResolvedQuery,
        request: &QueryRequest,
        filter: Option<&Filter>,
    ) -> Result<RankedHits> {
        scores::check_comparable(&query.embedding).map_err(|error| error.context("query"))?;
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
    pub(super) fn fused(
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
        let count = self.hits_to_find(prefetch.query.as_ref(), prefetch.limit(), 0)?;
        self.check_using(&prefetch.using, prefetch.query.as_ref())?;
        let own = prefetch
            .filter
            .clone()
            .map(|filter| filters::prepare(self.named, filter))
            .transpose()?;
        let filter = join_filters(outer.cloned(), own);
        self.find(prefetch.query.clone(), prefetch, count, filter)
    }
}
