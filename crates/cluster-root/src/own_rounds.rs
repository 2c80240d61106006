//! Queries that the shards cannot answer in one round: with mmr, and for random samples.

use base::Result;

use super::envelope::Completeness;
use super::mmr::{self, ScoredHits};
use super::root_query::{QueriedCollection, RootQuery};
use super::sample;

impl QueriedCollection<'_> {
    /// Returns the hits of a query by mmr or a random sample, without prefetches. The shards cannot
    /// answer it in one round. Returns `None` for another query. `found` is the completeness of the
    /// hits of prefetches that it had.
    ///
    /// # Errors
    /// As [`mmr::hits`] and [`sample::hits`].
    pub(super) async fn own_rounds(
        &self,
        query: &RootQuery,
        found: Completeness,
    ) -> Result<Option<ScoredHits>> {
        if let Some(choice) = query.mmr() {
            return Box::pin(mmr::hits(self, query, choice, found)).await.map(Some);
        }
        if query.is_sample() {
            return Box::pin(sample::hits(self, query, found)).await.map(Some);
        }
        Ok(None)
    }
}
