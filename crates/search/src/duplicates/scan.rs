//! Finds and verifies the neighbours of points.

use std::collections::HashSet;

use base::Result;
use coarse::Metric;
use matching::Scratch;

use super::DuplicateOptions;
use super::near::{NearPoint, NeighbourSearch};
use super::store::DuplicatePair;
use super::verify::{PairOutcome, PairVerifier};
use crate::collection::{Collection, PointParts, WalkedPoint};

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

/// Working memory of one thread of a job.
pub(super) struct DuplicateScanner<'a> {
    collection: &'a Collection,
    options: DuplicateOptions,
    search: NeighbourSearch<'a>,
    scratch: Scratch,
}

impl<'a> DuplicateScanner<'a> {
    pub(super) fn new(
        collection: &'a Collection,
        metric: Metric,
        options: DuplicateOptions,
    ) -> Result<DuplicateScanner<'a>> {
        let search = NeighbourSearch::new(collection, metric, options.threshold)?;
        Ok(DuplicateScanner { collection, options, search, scratch: Scratch::new() })
    }

    /// Finds the pairs of `points` that are not `known`.
    pub(super) fn scan(
        &mut self,
        points: &[WalkedPoint],
        known: &HashSet<(u64, u64)>,
    ) -> Result<ScanOutcome> {
        let mut outcome = ScanOutcome::default();
        for point in points {
            let is_new = |id: u64| id != point.id && !known.contains(&ordered(point.id, id));
            let near = self.search.near(&point.embedding, is_new)?;
            outcome.unreadable += near.unreadable;
            outcome.candidates += near.points.len() as u64;
            if !near.points.is_empty() {
                self.verify(point.id, near.points, &mut outcome);
            }
        }
        Ok(outcome)
    }

    /// Adds the pairs that the keypoints confirm, and the pairs without keypoints to compare.
    fn verify(&mut self, id: u64, near: Vec<NearPoint>, outcome: &mut ScanOutcome) {
        let pair = |near: NearPoint, score: Option<f32>| {
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
        let own = match records.next() {
            Some(Ok(Some(record))) => PairVerifier::new(&record, accept),
            Some(Err(error)) => Err(error),
            _ => return,
        };
        let verifier = match own {
            Ok(verifier) => verifier,
            Err(error) => {
                tracing::debug!(%error, "a point is left out of the search for duplicates");
                outcome.unreadable += 1;
                return;
            }
        };
        for (other, record) in near.into_iter().zip(records) {
            match verifier.compare(record, &mut self.scratch) {
                PairOutcome::Accepted(score) => outcome.pairs.push(pair(other, score)),
                PairOutcome::Refused => outcome.refused += 1,
                PairOutcome::Removed => {}
                PairOutcome::Unreadable => outcome.unreadable += 1,
            }
        }
    }
}

/// Returns two ids, the lower one first.
pub(super) fn ordered(a: u64, b: u64) -> (u64, u64) {
    (a.min(b), a.max(b))
}
