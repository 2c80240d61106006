//! Neighbours of a point above a threshold.

use base::Result;
use coarse::{Metric, ScanParams};
use serde::{Deserialize, Serialize};

use super::NEIGHBOURS_MAX;
use crate::collection::{Collection, CollectionQuery, SearchThread};

/// Margin by which a similarity by codes may be below the exact one. The finest codes of long
/// vectors have four bits a dimension. Pairs within the margin are compared exactly.
const CODE_ERROR: f32 = 0.04;
/// Clusters that are searched for neighbours. Two similar points lie in one cluster or in near
/// ones, and each searches for the other.
const PROBES: usize = 8;

/// A point near another one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NearPoint {
    /// Internal id.
    pub id: u64,
    /// Exact similarity of the embeddings.
    pub similarity: f32,
}

/// Points near an embedding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NearPoints {
    /// At most [`NEIGHBOURS_MAX`] points above the threshold.
    pub points: Vec<NearPoint>,
    /// Points that could not be read.
    pub unreadable: u64,
}

/// Search for the neighbours of points, with the working memory of one thread.
pub struct NeighbourSearch<'a> {
    collection: &'a Collection,
    metric: Metric,
    threshold: f32,
    thread: SearchThread,
}

impl<'a> NeighbourSearch<'a> {
    /// Creates a search in `collection`, which compares by `metric`.
    ///
    /// # Errors
    /// The error of the medium.
    pub fn new(
        collection: &'a Collection,
        metric: Metric,
        threshold: f32,
    ) -> Result<NeighbourSearch<'a>> {
        let thread = collection.thread(crate::rerank::SearchLimits::default())?;
        Ok(NeighbourSearch { collection, metric, threshold, thread })
    }

    /// Returns the points near `embedding` for which `is_wanted` returns true. A point of the
    /// collection with this embedding is among them.
    ///
    /// # Errors
    /// `InvalidArgument` for an embedding that does not fit. Also the error of the medium.
    pub fn near(
        &mut self,
        embedding: &[f32],
        is_wanted: impl Fn(u64) -> bool,
    ) -> Result<NearPoints> {
        // Cosines by codes have a small error, so that few exact embeddings are read. The error of
        // other metrics has no bound.
        let by_codes = self.metric == Metric::Cosine;
        let query = CollectionQuery {
            params: ScanParams { probes: PROBES, refine: 0 },
            exact: !by_codes,
            ..CollectionQuery::nearest(embedding, NEIGHBOURS_MAX)
        };
        let found = self.collection.nearest(&mut self.thread, &query)?;
        let unreadable = found.damaged;
        let floor = self.threshold - if by_codes { CODE_ERROR } else { 0.0 };
        let hits = found.hits.iter().filter(|hit| hit.score >= floor && is_wanted(hit.id));
        let near: Vec<u64> = hits.map(|hit| hit.id).collect();
        if near.is_empty() {
            return Ok(NearPoints { points: Vec::new(), unreadable });
        }
        let scores = self.collection.scores(&mut self.thread, embedding, &near)?;
        let scored = near.into_iter().zip(scores);
        let points = scored
            .filter_map(|(id, score)| Some(NearPoint { id, similarity: score? }))
            .filter(|near| near.similarity >= self.threshold)
            .collect();
        Ok(NearPoints { points, unreadable })
    }
}
