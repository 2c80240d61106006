//! Finds and verifies the neighbours of points.

use std::collections::HashSet;

use base::Result;
use matching::{Graph, MatchOptions, Probe, Scratch};

use super::store::DuplicatePair;
use super::{DuplicateOptions, NEIGHBOURS_MAX};
use crate::coarse::{Metric, ScanParams};
use crate::collection::{Collection, CollectionQuery, PointParts, SearchThread, WalkedPoint};

/// Margin by which a similarity by codes may be below the exact one. The finest codes of long
/// vectors have four bits a dimension. Pairs within the margin are compared exactly.
const CODE_ERROR: f32 = 0.04;
/// Clusters that are searched for neighbours. Two similar points lie in one cluster or in near
/// ones, and each searches for the other.
const PROBES: usize = 8;

/// Pairs found, and the work that it took.
#[derive(Clone, Debug, Default)]
pub(super) struct ScanOutcome {
    pub(super) pairs: Vec<DuplicatePair>,
    /// Pairs above the threshold.
    pub(super) candidates: u64,
    /// Candidates that the keypoints refused.
    pub(super) refused: u64,
    /// Points or records that could not be read.
    pub(super) unreadable: u64,
}

/// A point near another one.
#[derive(Clone, Copy, Debug)]
struct Neighbour {
    id: u64,
    similarity: f32,
}

/// Working memory of one thread of a job.
pub(super) struct DuplicateScanner<'a> {
    collection: &'a Collection,
    metric: Metric,
    options: DuplicateOptions,
    thread: SearchThread,
    scratch: Scratch,
}

impl<'a> DuplicateScanner<'a> {
    pub(super) fn new(
        collection: &'a Collection,
        metric: Metric,
        options: DuplicateOptions,
    ) -> Result<DuplicateScanner<'a>> {
        let thread = collection.thread(crate::rerank::SearchLimits::default())?;
        Ok(DuplicateScanner { collection, metric, options, thread, scratch: Scratch::new() })
    }

    /// Finds the pairs of `points` that are not `known`.
    pub(super) fn scan(
        &mut self,
        points: &[WalkedPoint],
        known: &HashSet<(u64, u64)>,
    ) -> Result<ScanOutcome> {
        let mut outcome = ScanOutcome::default();
        for point in points {
            let neighbours = self.neighbours(point, known, &mut outcome)?;
            if !neighbours.is_empty() {
                self.verify(point.id, neighbours, &mut outcome);
            }
        }
        Ok(outcome)
    }

    /// Returns the points above the threshold.
    fn neighbours(
        &mut self,
        point: &WalkedPoint,
        known: &HashSet<(u64, u64)>,
        outcome: &mut ScanOutcome,
    ) -> Result<Vec<Neighbour>> {
        // Cosines by codes have a small error, so that few exact embeddings are read. The error of
        // other metrics has no bound.
        let by_codes = self.metric == Metric::Cosine;
        let query = CollectionQuery {
            params: ScanParams { probes: PROBES, refine: 0 },
            exact: !by_codes,
            ..CollectionQuery::nearest(&point.embedding, NEIGHBOURS_MAX)
        };
        let found = self.collection.nearest(&mut self.thread, &query)?;
        outcome.unreadable += found.damaged;
        let floor = self.options.threshold - if by_codes { CODE_ERROR } else { 0.0 };
        let is_new = |id: u64| id != point.id && !known.contains(&ordered(point.id, id));
        let hits = found.hits.iter().filter(|hit| hit.score >= floor && is_new(hit.id));
        let near: Vec<u64> = hits.map(|hit| hit.id).collect();
        if near.is_empty() {
            return Ok(Vec::new());
        }
        let scores = self.collection.scores(&mut self.thread, &point.embedding, &near)?;
        let scored = near.into_iter().zip(scores);
        let above: Vec<Neighbour> = scored
            .filter_map(|(id, score)| Some(Neighbour { id, similarity: score? }))
            .filter(|near| near.similarity >= self.options.threshold)
            .collect();
        outcome.candidates += above.len() as u64;
        Ok(above)
    }

    /// Adds the pairs that the keypoints confirm, and those without keypoints to compare.
    fn verify(&mut self, id: u64, near: Vec<Neighbour>, outcome: &mut ScanOutcome) {
        let pair = |near: Neighbour, score: Option<f32>| {
            let (a, b) = ordered(id, near.id);
            DuplicatePair { a, b, similarity: near.similarity, score }
        };
        let Some(accept) = self.options.accept else {
            outcome.pairs.extend(near.into_iter().map(|near| pair(near, None)));
            return;
        };
        let ids: Vec<u64> = std::iter::once(id).chain(near.iter().map(|near| near.id)).collect();
        let parts = PointParts { record: true, ..PointParts::NONE };
        let points = self.collection.points(&ids, parts).into_iter();
        // A point that was removed meanwhile is in no pair.
        let mut records =
            points.map(|point| -> Result<Option<Vec<u8>>> { Ok(point?.map(|point| point.record)) });
        let own: Vec<u8> = match records.next() {
            Some(Ok(Some(record))) => record,
            Some(Err(error)) => return note(outcome, &error),
            _ => return,
        };
        // An empty record is a point without an image.
        let probe = match Graph::decode(&own) {
            _ if own.is_empty() => None,
            Ok(graph) => Some(Probe::new(&graph, MatchOptions::default())),
            Err(error) => return note(outcome, &error),
        };
        for (other, record) in near.into_iter().zip(records) {
            let (record, probe) = match (record, &probe) {
                (Ok(Some(record)), Some(probe)) if !record.is_empty() => (record, probe),
                (Ok(Some(_)), _) => {
                    outcome.pairs.push(pair(other, None));
                    continue;
                }
                (Ok(None), _) => continue,
                (Err(error), _) => {
                    note(outcome, &error);
                    continue;
                }
            };
            match matching::score(probe, &record, &mut self.scratch) {
                Ok(score) if score >= accept => {
                    outcome.pairs.push(pair(other, Some(score)));
                }
                Ok(_) => outcome.refused += 1,
                Err(error) => note(outcome, &error),
            }
        }
    }
}

fn note(outcome: &mut ScanOutcome, error: &base::Error) {
    tracing::debug!(%error, "a point is left out of the search for duplicates");
    outcome.unreadable += 1;
}

/// Returns two ids, the lower one first.
pub(super) fn ordered(a: u64, b: u64) -> (u64, u64) {
    (a.min(b), a.max(b))
}
